"""The verbs on a bank: sessions, show, search, backup, restore, export, import, purge, verify, re-embed."""

from __future__ import annotations

import contextlib
import re
import shlex
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from memory_bank.cli.shared import (
    CONFIG,
    DB,
    EMBEDDER,
    JSON,
    ONE_SESSION,
    answer,
    bank_embedder_of,
    bank_file,
    embedder_name_of,
    json_line,
    new_bank,
    one_line,
    open_bank,
    output_file,
    print_json,
    progress,
    spent,
    table,
    tell,
    visible,
    when,
)  # fmt: skip
from memory_bank.errors import ConfigError, StorageError, TraceFileError

if TYPE_CHECKING:
    from memory_bank.audit.traces import TraceFiles
    from memory_bank.bank.database import Database
    from memory_bank.bank.maintenance import Purged
    from memory_bank.bank.transfer import ImportedSession, RefusedSession
    from memory_bank.ports import Scope
    from memory_bank.tools.search import SearchMatch


def sessions(db: str | None = DB, as_json: bool = JSON) -> None:
    """List the sessions of a bank, the last used ones first: requests, tokens, what memory saved, the model.

    With --json also which records of each session wait for the Observer's model, and how often it was called.
    """
    from memory_bank.bank.listing import list_sessions

    database = open_bank(db)
    every = list_sessions(database, is_short=not as_json)
    listed = [(max(s.last_step or 0.0, s.last_written or 0.0) or None, s) for s in every]
    listed.sort(key=lambda each: -(each[0] or 0.0))
    if as_json:
        from memory_bank.bank.embedder import bank_embedder

        keys = (
            "session_id", "records", "steps", "insights", "unobserved", "to_redo", "last_written", "task", "waiting",
            "failing", "attempts", "calls", "model", "title",
        )  # fmt: skip
        each = [{**{key: getattr(s, key) for key in keys}, "last_used": used, "tokens": asdict(s.tokens)}
                for used, s in listed]  # fmt: skip
        print_json({"embedder": (bank_embedder(database) or [None])[0], "sessions": each})
        return
    rows = [
        [s.session_id, t.steps, t.sent, f"{1 - t.sent / t.full:.0%}" if t.full else "", when(used)[:16], s.model,
         one_line(s.title or s.task, 50)]
        for used, s in listed
        for t in (s.tokens,)
    ]  # fmt: skip
    columns = ["session", "requests", "tokens", "saved", "last used", "model", "task"]
    table(columns, rows, right=[3], whole=[0, 4, 5])


def saved(
    today: bool = typer.Option(False, "--today", help="Only since midnight."),
    db: str | None = DB,
    config: Path | None = CONFIG,
    as_json: bool = JSON,
) -> None:
    """Say how many dollars and tokens memory has saved: in all requests of a bank, or in those of today.

    Where a share of sessions goes without memory (`holdout`), also what is measured beside them.
    """
    from memory_bank.audit.figures import count_of
    from memory_bank.bank.database import ANY
    from memory_bank.bank.holdout import comparison
    from memory_bank.bank.steps import usage_sums
    from memory_bank.config import load_config
    from memory_bank.pricing import costs, known_price

    database, prices = open_bank(db, config), load_config(config).prices
    since = time.mktime((*time.localtime()[:3], 0, 0, 0, 0, 0, -1)) if today else None
    sums = usage_sums(database, ANY, "session", since=since)
    priced = ((s, (known_price(prices, s.model or "") or (None, ""))[0]) for s in sums)
    paid = [costs(s.sent, s.full, price, s.billed) if s.reported else None for s, price in priced]
    dollars = [pair for pair in paid if pair is not None]
    unknown = sum(s.steps - (s.reported if pair else 0) for s, pair in zip(sums, paid, strict=True))
    values: dict[str, Any] = {
        "requests": sum(s.steps for s in sums), "sessions": len({s.of for s in sums}),
        "tokens": sum(s.tokens for s in sums), "full_tokens": sum(s.full_tokens for s in sums),
        "paid": sum(p for p, _ in dollars), "full_cost": sum(f for _, f in dollars), "unknown_cost": unknown,
    }  # fmt: skip
    requests, of = count_of(values["requests"], "request"), count_of(values["sessions"], "session")
    parts = [f"{'today' if today else 'in all'}: {requests} in {of}"]
    if dollars:
        parts.append(spent("$", values["paid"], values["full_cost"], "paid"))
    if values["full_tokens"]:
        parts.append(spent("", values["tokens"], values["full_tokens"], "tokens sent"))
    if unknown:
        parts.append(f"the cost of {count_of(unknown, 'request')} is not known")
    if (drawn := comparison(database, prices, since=since)) is not None:
        values["holdout"] = asdict(drawn)
        parts.append(f"measured beside sessions without memory: {drawn.compared}")
    answer(values, "; ".join(parts) + ".", as_json)


def show(
    trace_id: str = typer.Argument(..., help="The trace_id of a record."),
    db: str | None = DB,
    raw: bool = typer.Option(False, "--raw", help="Write only the tool's output, byte for byte."),
    as_json: bool = JSON,
) -> None:
    """Show one record: the call, its raw output, its summary."""
    from memory_bank.bank.listing import find_record
    from memory_bank.transcript.jsontext import RAW, compact, dump_value, is_deep

    stored = find_record(open_bank(db), trace_id)
    if stored is None:
        raise StorageError(f"no record has the trace_id {one_line(trace_id, 60)}: check it.")
    session_id, record, insight = stored
    output = dump_value(record.raw_output) if record.output_text is None else record.output_text
    if raw:
        sys.stdout.flush()
        sys.stdout.buffer.write(output.encode("utf-8", "surrogatepass"))
        sys.stdout.buffer.flush()
        return
    if as_json:
        values = {"session_id": session_id, **{n: getattr(record, n) for n in record.__dataclass_fields__}}
        for name, text in (("raw_input", record.input_text), ("raw_output", output)):
            if is_deep(values[name]):  # deeper than json.dumps allows: the text instead
                values[name] = {RAW: text}
        for name, field in (("summary", "summary"), ("summary_source", "source"), ("redo", "redo")):
            values[name] = getattr(insight, field, None)
        print_json(values)
        return
    lines = [
        ("session", visible(session_id)),
        ("trace_id", record.trace_id),
        ("step", f"{record.step_id}, {when(record.timestamp)}"),
        ("tool", visible(record.tool_name)),
        ("arguments", visible(record.input_text or compact(record.raw_input))),
    ]
    if insight is not None:
        redo = f", to be made again: {insight.redo}" if insight.redo else ""
        lines += [("summary", visible(insight.summary)), ("", f"({insight.source}{redo})")]
    lines.append(("output", f"{len(output):,} characters\n{visible(output)}"))
    print("\n".join(f"{title:<10} {text}" for title, text in lines))


def search(
    query: str = typer.Argument(..., help="What to look for: words, a name, an id."),
    db: str | None = DB,
    session: str | None = ONE_SESSION,
    top_k: int = typer.Option(5, min=1, help="How many records."),
    embedding_model: str | None = EMBEDDER,
    as_json: bool = JSON,
) -> None:
    """Search the records of all sessions, or of one, by words and similarity."""
    from memory_bank.bank.listing import newest_of_namespaces
    from memory_bank.bank.retrieval import session_name
    from memory_bank.bank.session import MemoryBankState
    from memory_bank.config import MemoryBankSettings
    from memory_bank.tools.search import search_session

    if not query.strip():
        raise ConfigError("the query is empty: give words, a name or an id.")
    database = open_bank(db, session=session)
    searched = newest_of_namespaces(database) if session is None else [session]
    model = bank_embedder_of(database, embedding_model)
    matches: list[tuple[int, SearchMatch]] = []
    for each in searched:
        with MemoryBankState.open(database, each, model) as state:
            state.prepare(MemoryBankSettings(observer_model="extractive"))
            scope: Scope = "all" if session is None else "session"
            result = search_session(state, query.strip(), top_k, scope=scope, by_agent=False)
        if result.trouble is not None:
            tell(f"only words were compared: {result.trouble}")
        matches += enumerate(result.matches)
    matches = sorted(matches, key=lambda match: match[0])[:top_k]  # the best of each namespace first
    if as_json:
        listed = [
            {"session_id": m.outline.session_id, "trace_id": m.outline.trace_id, "score": round(m.score, 6),
             "step": m.outline.step_id, "tool": m.outline.tool_name, "why": m.why, "reason": m.reason,
             "newer": m.newer, "summary": m.outline.summary}
            for _, m in matches
        ]  # fmt: skip
        print_json({"session_id": session, "embedder": model.name, "hits": listed})
    elif not matches:
        print(f"nothing matches {visible(query.strip(), 200)!r}: try other words, a name or an id.")
    else:
        rows = [
            [session_name(o.session_id), o.step_id, one_line(o.tool_name, 30), o.trace_id,
             one_line(m.reason, 120), one_line(o.summary or "", 100)]
            for _, m in matches
            for o in [m.outline]
        ]  # fmt: skip
        table(["session", "step", "tool", "trace_id", "why", "summary"], rows, whole=(1, 3))


def re_embed(
    db: str | None = DB,
    embedding_model: str = typer.Option(..., help="The new model: a name, a folder, openai:NAME or lexical."),
    as_json: bool = JSON,
) -> None:
    """Embed every summary again with another model, all or nothing."""
    from memory_bank.bank.embedder import re_embed as run
    from memory_bank.models.embedding import load_embedder

    database = open_bank(db)
    model = load_embedder(embedding_model)
    with progress("embedded", "summaries") as bar:
        count = run(database, model, bar)
    sentence = f"embedded {count:,} summaries with {model.name}."
    answer({"embedder": model.name, "insights": count}, sentence, as_json)


def seconds_of(duration: str) -> float:
    """The seconds of ``30d``, ``12h`` or ``1d12h``. Raises ConfigError."""
    text = duration.strip().lower()
    units = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
    correct = re.fullmatch(r"(?:\d{1,9}[smhdw])+", text)
    total = sum(int(n) * units[u] for n, u in re.findall(r"(\d{1,9})([smhdw])", text)) if correct else 0
    if not total:
        raise ConfigError(
            f"--older-than {one_line(duration, 40)!r} is not a duration: write 30d, 12h, 90m or 1d12h "
            "(w, d, h, m, s)."
        )
    return float(total)


def purge(
    db: str | None = DB,
    older_than: str | None = typer.Option(
        None, help="Delete records stored longer ago than this: 30d, 12h, 90m, 1d12h."),
    session: str | None = ONE_SESSION,
    namespace: str | None = typer.Option(None, help="Everything of a namespace, the agents' files too."),
    project: str | None = typer.Option(None, help="Only the agents' files of this project."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Show what would be deleted; change nothing."),
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Delete old records, or everything in a session: records and insights; and the files of agents.

    One transaction a session. The names of emptied sessions and the number of their Observer's calls are kept.
    Files below /memories belong to no session: they are deleted by project, by namespace, and where not changed for
    so long.
    """
    from memory_bank.bank.maintenance import purge as run
    from memory_bank.bank.maintenance import purge_files

    if (older_than, session, namespace, project) == (None,) * 4:
        raise ConfigError(
            "nothing to delete was named: give --older-than 30d, --session ID, --namespace NAME or --project NAME."
        )
    if session is not None and (namespace, project) != (None, None):
        raise ConfigError("--session goes with --older-than alone: files belong to no session.")
    before = None if older_than is None else time.time() - seconds_of(older_than)
    database = open_bank(db, session=session)
    purged: list[Purged] = []
    files, complete = (0, 0), False
    options: dict[str, Any] = {"namespace": namespace, "before": before, "dry_run": dry_run}
    try:
        for each in run(database, session_id=session, **options) if project is None else ():
            purged.append(each)
        if session is None:
            files = purge_files(database, project=project, **options)
        database.close()  # removes deleted data from SQLite's write-ahead log, too
        complete = True
    finally:  # after Ctrl-C or at a locked database earlier sessions are deleted all the same
        total = _sums(purged, "records", "insights", "bytes", "emptied")
        if purged and not as_json:
            table(
                ["session", *total], [[p.session_id, *(getattr(p, name) for name in total)] for p in purged]
            )
        if complete or purged or not as_json:
            answer(
                {"dry_run": dry_run, "complete": complete, "sessions_emptied": total.pop("emptied"), **total,
                 "files": files[0], "file_bytes": files[1], "sessions": [asdict(p) for p in purged]},
                f"{'would remove' if dry_run else 'removed'} {total['records']:,} records "
                f"and {total['insights']:,} insights ({total['bytes']:,} bytes) "
                f"of {len(purged):,} sessions{f' and {files[0]:,} files ({files[1]:,})' if files[0] else ''}"
                f"{'' if complete else ', then it was stopped'}.",
                as_json,
            )  # fmt: skip


def _sums(items: Sequence[object], *names: str) -> dict[str, int]:
    return {name: sum(getattr(item, name) for item in items) for name in names}


def verify(
    db: str | None = DB,
    repair: bool = typer.Option(False, "--repair", help="Repair what can be repaired; records are never changed."),
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Check a bank: facts readable and matching their ids, insights with their facts.

    Exit code 1 when a problem is left.
    """
    from memory_bank.bank.maintenance import Counts
    from memory_bank.bank.maintenance import verify as run

    database = open_bank(db)
    counts = Counts()
    problems: list[dict[str, Any]] = []
    kinds: Counter[str] = Counter()
    left = 0
    with progress("checked", "") as bar:
        report = run(database, counts, repair=repair, report=lambda _what, done, total: bar(done, total))
        for problem in report:
            kinds[problem.kind] += 1
            left += not problem.mended
            if kinds.total() > 1_000:
                continue
            problems.append(asdict(problem))
            if not as_json:
                of = [problem.session_id and f"session {problem.session_id!r}", problem.trace_id]
                where = ", ".join(one_line(str(part), 300) for part in of if part)
                state = "mended" if problem.mended else "wrong "
                print(f"{state}  {problem.kind}  {where}: {visible(problem.what)}")
    if kinds.total() > 1_000 and not as_json:
        print(f"… and {kinds.total() - 1_000:,} more.")
    answer(
        {**asdict(counts), "problems": dict(kinds), "left": left, "found": problems},
        f"{counts.records:,} records ({counts.checked_ids:,} ids are their content's hash), "
        f"{counts.insights:,} insights, {counts.sessions:,} sessions, {counts.files:,} files; "
        f"{counts.unobserved:,} records have no insight.\n"
        + (f"{kinds.total() - left:,} problems mended, {left:,} are left." if kinds else "no problems."),
        as_json,
    )
    if left:
        if not repair:
            tell("problems were found: run it with --repair to repair what can be repaired.")
        raise typer.Exit(1)


FILE = typer.Argument(..., help="The backup.")


def backup(file: Path = FILE, db: str | None = DB, as_json: bool = JSON) -> None:
    """Copy a bank to a new file, as it is at one moment; a service may go on writing meanwhile."""
    from memory_bank.bank.backup import backup as run

    bank = bank_file(db, f"pg_dump --format=custom --file={shlex.quote(str(file))}")
    run(open_bank(db), file)
    answer({"file": str(file), "bytes": file.stat().st_size}, f"{bank} is copied to {file}.", as_json)


def restore(file: Path = FILE, db: str | None = DB, as_json: bool = JSON) -> None:
    """Put a backup in the place of the bank, which is kept beside it; not while a process has the bank open."""
    from memory_bank.bank.backup import restore as run

    bank = bank_file(db, f"pg_restore --clean --if-exists {shlex.quote(str(file))}")
    former = run(file, bank)
    before = f"; the bank that was there is now {former}" if former else ""
    answer(
        {"file": str(bank), "kept": former and str(former)}, f"{bank} is now as in {file}{before}.", as_json
    )


def export(
    db: str | None = DB,
    session: str | None = ONE_SESSION,
    out: Path | None = typer.Option(None, help="Write to this file; default: standard output."),
    as_json: bool = typer.Option(False, "--json", help="One JSON array instead of JSON lines."),
) -> None:
    """Write sessions and agents' files as JSON lines, complete and exact: what `memory-bank bank import` reads."""
    from memory_bank.bank.transfer import export_lines

    database = open_bank(db, session=session)
    count = files = 0
    url = database.url
    bank = [Path(url.database)] if url.get_backend_name() == "sqlite" and url.database else []
    with output_file(out, *bank) as file:
        target = file or sys.stdout
        target.write("[" if as_json else "")
        for number, value in enumerate(export_lines(database, session)):
            line = json_line(value)
            target.write(("," if number else "") + line.rstrip("\n") if as_json else line)
            count += "record" in value
            files += "file" in value and value["file"]["content"] is not None
        target.write("]\n" if as_json else "")
    tell(f"wrote {count:,} records" + (f" and {files:,} files." if files else "."))


def import_(
    files: list[Path] = typer.Argument(
        ..., help="What `memory-bank bank export` wrote, or recorded runs and agents' logs; plain or .gz."),
    db: str | None = DB,
    embedding_model: str | None = typer.Option(
        None, help="The bank's embedder, to embed summaries again that another one embedded."),
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Import exported sessions and files, each completely or not at all; what exists is not changed.

    Recorded runs, in all forms that `audit` reads, are a session each, under their id. Creates the bank when there is
    none.
    """
    from memory_bank.bank.transfer import ImportedSession, import_lines
    from memory_bank.models.embedding import load_embedder

    for path in files:
        if path.is_dir() or not path.exists():
            raise ConfigError(f"{path} is not a file of exported sessions: check the name.")
    model = None if embedding_model is None else load_embedder(embedding_model)
    database = new_bank(db, None, "a bank")
    imported: list[ImportedSession] = []
    refused: list[dict[str, str | None]] = []
    new_files, complete = 0, False
    try:
        with progress("imported", "sessions") as bar:
            for path in files:
                runs = _recorded_runs(path)
                each_in = import_lines(database, _numbered_lines(path), model) if runs is None else (
                    _import_runs(database, runs, embedding_model))  # fmt: skip
                for each in each_in:
                    if isinstance(each, ImportedSession):
                        imported.append(each)
                        bar(len(imported))
                        continue
                    if isinstance(each, bool):
                        new_files += each
                        continue
                    of = "" if each.session_id is None else f", session {each.session_id!r}"
                    reason = f"{path}, line {each.line}{of}: {each.reason}"
                    refused.append({"session_id": each.session_id, "reason": reason})
                    tell(f"not imported: {reason}.")
        complete = True
    finally:
        if complete or imported or new_files:
            total = _sums(imported, "records", "known", "insights")
            answer(
                {"complete": complete, **total, "files": new_files, "sessions": list(map(asdict, imported)),
                 "refused": refused},
                f"imported {total['records']:,} records with {total['insights']:,} insights of "
                f"{len(imported):,} sessions{f' and {new_files:,} files' if new_files else ''}; "
                f"{total['known']:,} records were there already"
                f"{'' if complete else '; then it was stopped'}.",
                as_json,
            )  # fmt: skip
    if refused:
        raise typer.Exit(1)


def _recorded_runs(path: Path) -> TraceFiles | None:
    """The reader of a file of recorded runs or agents' logs; None for an export, and for a pipe, read only once."""
    from memory_bank.audit.traces import Trace, TraceFiles, read_traces

    with contextlib.suppress(TraceFileError):  # the reader of exports says why it cannot be read
        if path.is_file() and isinstance(next(read_traces(path), None), Trace):
            return TraceFiles([path], tell)
    return None


def _import_runs(
    database: Database, runs: TraceFiles, embedding_model: str | None
) -> Iterator[ImportedSession | RefusedSession]:
    """Store the tool calls of runs, with summaries by extraction. Raises TraceFileError where there is none."""
    from memory_bank.bank.session import MemoryBankState
    from memory_bank.bank.transfer import ImportedSession, RefusedSession
    from memory_bank.config import MemoryBankSettings

    model = embedding_model or embedder_name_of(database) or "lexical"
    settings = MemoryBankSettings(observer_model="extractive", embedding_model=model)
    number = 0
    for number, run in enumerate(runs, 1):
        try:
            with MemoryBankState.open(database, session_id=run.id, fixed=True) as state:
                state.prepare(settings)
                before = len(state.steps)
                state.store(state.read(run.messages))
                new = len(state.steps) - before
                yield ImportedSession(run.id, new, before, new)
        except ConfigError as e:
            yield RefusedSession(run.id, number, str(e).rstrip("."))
    runs.check_calls()
    if runs.unreadable:  # the sentence is printed
        yield RefusedSession(None, number + 1, "the rest cannot be read")


def _numbered_lines(path: Path) -> Iterator[tuple[int, str | None]]:
    """The numbered lines of a file; the text is None where the file cannot be read any further."""
    from memory_bank.audit.traces import open_lines

    number = 0
    try:
        with open_lines(path, "replace") as lines:
            for number, line in enumerate(lines, 1):
                yield number, line
    except (OSError, EOFError, zlib.error) as e:
        tell(f"{path} cannot be read beyond line {number}: {one_line(str(e), 200)}.")
        yield number + 1, None
