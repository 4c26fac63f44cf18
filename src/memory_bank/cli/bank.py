"""The verbs on a database: sessions, show, search, reset, re-embed."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from memory_bank.cli.output import (
    is_terminal,
    one_line,
    print_json,
    table,
    visible,
    when,
)
from memory_bank.errors import ConfigError, EmbedderMismatchError, StorageError

DB = typer.Option(
    ..., "--db", help="The bank: a file name, sqlite:///FILE or postgresql://USER@HOST/DATABASE."
)
JSON = typer.Option(False, "--json", help="Print JSON.")
SESSION = typer.Option(None, "--session", help="The session; may be left out when there is only one.")


_NUMBERS = frozenset({0, 1})  # columns of the table of hits


def open_bank(db: str) -> Any:
    """The bank that --db names. Raises ConfigError where there is none."""
    from memory_bank.bank.database import Database, database_url

    url = database_url(db)
    file = url.database if url.get_backend_name() == "sqlite" else None
    if file in ("", ":memory:") or (file is None and url.get_backend_name() == "sqlite"):
        raise ConfigError("a bank in memory holds nothing yet: give --db the file of one.")
    if file is not None and not Path(file).is_file():
        raise ConfigError(f"there is no bank {file}: check the path given by --db.")
    return Database(db, must_exist=True)


def the_session(database: Any, wanted: str | None) -> str:
    """The session asked for, else the only one."""
    from memory_bank.bank.catalog import has_session, list_sessions

    if wanted is not None:
        if not has_session(database, wanted):
            told = f"{database.name} has no session {one_line(wanted, 80)!r}"
            raise StorageError(f"{told}: `memory-bank sessions` lists them.")
        return wanted
    known = list_sessions(database)
    if len(known) != 1:
        names = ", ".join(repr(s.session_id) for s in known[:3]) + (", …" if len(known) > 3 else "")
        raise ConfigError(f"{database.name} has {len(known)} sessions ({names}): name one with --session.")
    return known[0].session_id


def sessions(db: str = DB, as_json: bool = JSON) -> None:
    """List the sessions of a bank."""
    from memory_bank.bank.catalog import list_sessions
    from memory_bank.bank.embedder import bank_embedder

    database = open_bank(db)
    found = list_sessions(database)
    if as_json:
        embedder = bank_embedder(database)
        print_json({"embedder": embedder[0] if embedder else None, "sessions": [asdict(s) for s in found]})
        return
    rows = [
        [one_line(s.session_id, 255), f"{s.records:,}", f"{s.steps:,}", f"{s.insights:,}",
         f"{s.unobserved + s.to_redo:,}", f"{s.jobs:,}", _failing(s), f"{s.spent.calls:,}",
         f"{s.spent.tokens:,}", f"{s.spent.cost:,.4f}".rstrip("0").rstrip("."), when(s.last_written),
         one_line(s.task, 60)]
        for s in found
    ]  # fmt: skip
    numbers = ["records", "steps", "insights", "to observe", "jobs", "failing", "calls", "tokens", "cost"]
    table(["session", *numbers, "last written", "task"], rows, right=frozenset(range(1, 10)))


def _failing(info: Any) -> str:
    """Failing jobs and how often the worst was tried."""
    return f"{info.failing:,} (×{info.attempts:,})" if info.failing else "0"


def _output_text(record: Any) -> str:
    from memory_bank.transcript.jsontext import dump_value

    return dump_value(record.raw_output) if record.output_text is None else record.output_text


def show(
    trace_id: str = typer.Argument(..., help="The trace_id of a record."),
    db: str = DB,
    raw: bool = typer.Option(False, "--raw", help="Write the tool's output only, byte for byte."),
    as_json: bool = JSON,
) -> None:
    """Show one record: the call, its raw output, its summary."""
    from memory_bank.bank.catalog import find_record
    from memory_bank.bank.transfer import record_line
    from memory_bank.transcript.jsontext import compact

    found = find_record(open_bank(db), trace_id)
    if found is None:
        raise StorageError(f"no record has the trace_id {one_line(trace_id, 60)}: check it.")
    session_id, record, insight = found
    output = _output_text(record)
    if raw:
        sys.stdout.flush()
        sys.stdout.buffer.write(output.encode("utf-8", "surrogatepass"))
        sys.stdout.buffer.flush()
        return
    if as_json:
        print_json(record_line(session_id, record, insight))
        return
    print(f"session    {visible(session_id)}")
    print(f"trace_id   {record.trace_id}")
    print(f"step       {record.step_id}, {when(record.timestamp)}")
    print(f"tool       {visible(record.tool_name)}")
    print(f"arguments  {visible(record.input_text or compact(record.raw_input))}")
    if insight is not None:
        mark = f", to be made again: {insight.redo}" if insight.redo else ""
        print(f"summary    {visible(insight.summary)}\n           ({insight.source}{mark})")
    print(f"output     {len(output):,} characters\n{visible(output)}")


def search(
    query: str = typer.Argument(..., help="What to look for."),
    db: str = DB,
    session: str | None = SESSION,
    top_k: int = typer.Option(5, min=1, help="How many records."),
    embedding_model: str | None = typer.Option(None, help="Default: the embedder the bank was built with."),
    as_json: bool = JSON,
) -> None:
    """Search a session's insights by similarity."""
    from memory_bank.bank.catalog import list_sessions
    from memory_bank.bank.facts import FactStore
    from memory_bank.bank.insights import InsightStore

    database = open_bank(db)
    if session is None and not list_sessions(database):
        if as_json:
            print_json({"session_id": None, "embedder": None, "hits": []})
        else:
            print("the bank is empty.")
        return
    session_id = the_session(database, session)
    model = bank_embedder_of(database, embedding_model)
    store = InsightStore(model, database, session_id)
    hits = list(store.rank(query, limit=top_k))
    facts = {r.trace_id: r for r in FactStore(database, session_id).get_many([h.trace_id for h in hits])}
    found = [
        {
            "trace_id": h.trace_id,
            "score": round(h.score, 6),
            "step": facts[h.trace_id].step_id,
            "tool": facts[h.trace_id].tool_name,
            "summary": store.get_summary(h.trace_id),
        }
        for h in hits
        if h.trace_id in facts
    ]
    if as_json:
        print_json({"session_id": session_id, "embedder": store.embedder_name, "hits": found})
        return
    rows = [
        [f"{f['score']:.3f}", str(f["step"]), one_line(str(f["tool"]), 30), str(f["trace_id"]),
         one_line(str(f["summary"]), 100)]
        for f in found
    ]  # fmt: skip
    table(
        ["score", "step", "tool", "trace_id", "summary"],
        rows,
        right=_NUMBERS,
        whole=_NUMBERS | {3},
    )


def bank_embedder_of(database: Any, wanted: str | None) -> Any:
    """The embedder named, else the one that the bank was built with."""
    from memory_bank.bank.embedder import bank_embedder
    from memory_bank.models.embedding import load_embedder

    if wanted is not None:
        return load_embedder(wanted)
    known = bank_embedder(database)
    if known is None:
        return load_embedder("lexical")
    model = load_embedder("lexical" if known[0].startswith("lexical") else known[0])
    if model.name != known[0]:
        raise EmbedderMismatchError(
            f"the bank was built with {known[0]}: name that model or its folder with --embedding-model."
        )
    return model


def reset(
    session: str = typer.Argument(..., help="The session to empty."), db: str = DB, as_json: bool = JSON
) -> None:
    """Empty one session: its records and insights are removed for good."""
    from memory_bank.bank.maintenance import purge

    database = open_bank(db)
    the_session(database, session)
    gone = sum(purged.records for purged in purge(database, session_id=session))
    if as_json:
        print_json({"session_id": session, "records_removed": gone})
    else:
        print(f"removed {gone:,} records of session {visible(session)}.")


def re_embed(
    db: str = DB,
    embedding_model: str = typer.Option(..., help="The new one: a model, a folder, openai:NAME, lexical."),
    as_json: bool = JSON,
) -> None:
    """Embed every summary anew with another model, all or nothing."""
    from memory_bank.bank.embedder import re_embed as run
    from memory_bank.models.embedding import load_embedder

    database = open_bank(db)
    model = load_embedder(embedding_model)

    def progress(done: int, total: int) -> None:
        if is_terminal():
            print(f"\r{done:,} of {total:,}", end="" if done < total else "\n", file=sys.stderr)

    count = run(database, model, progress)
    if as_json:
        print_json({"embedder": model.name, "insights": count})
    else:
        print(f"embedded {count:,} summaries with {model.name}.")
