"""Verbs that look after a bank: purge, verify."""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from dataclasses import asdict
from typing import Any

import typer

from memory_bank.cli.bank import DB, JSON, open_bank, the_session
from memory_bank.cli.output import is_terminal, one_line, print_json, table, tell, visible
from memory_bank.errors import ConfigError

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_DURATION = re.compile(r"(?:\d{1,9}[smhdw])+")
_SHOWN = 1_000  # problems printed one by one


def seconds_of(duration: str) -> float:
    """Seconds of ``30d``, ``12h``, ``1d12h``. Raises ConfigError."""
    text = duration.strip().lower()
    total = 0
    if _DURATION.fullmatch(text):
        total = sum(int(n) * _UNITS[u] for n, u in re.findall(r"(\d+)([smhdw])", text))
    if not total:
        raise ConfigError(
            f"--older-than {one_line(duration, 40)!r} is no duration: write 30d, 12h, 90m or 1d12h "
            "(w, d, h, m, s)."
        )
    return float(total)


def purge(
    db: str = DB,
    older_than: str | None = typer.Option(
        None, help="Records stored longer ago than this: 30d, 12h, 90m, 1d12h."
    ),
    session: str | None = typer.Option(None, "--session", help="Of this session only."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Say what would go; change nothing."),
    as_json: bool = JSON,
) -> None:
    """Remove old records, or a session's content, for good: records, insights, jobs.

    One transaction a session. Names of emptied sessions and what their Observer spent stay.
    """
    from memory_bank.bank.maintenance import Purged
    from memory_bank.bank.maintenance import purge as run

    if older_than is None and session is None:
        raise ConfigError("nothing was named that is to go: give --older-than 30d, --session ID, or both.")
    age = None if older_than is None else seconds_of(older_than)
    database = open_bank(db)
    if session is not None:
        the_session(database, session)
    gone: list[Purged] = []
    before = None if age is None else time.time() - age
    try:
        for each in run(database, session_id=session, before=before, dry_run=dry_run):
            gone.append(each)
    except BaseException:  # Ctrl-C, a locked database: what went before that is gone
        if gone or not as_json:
            _print_purged(gone, dry_run, as_json, complete=False)
        raise
    database.close()  # what the log beside a SQLite file still holds goes, too
    _print_purged(gone, dry_run, as_json, complete=True)


def _print_purged(gone: list[Any], dry_run: bool, as_json: bool, *, complete: bool) -> None:
    total: dict[str, int] = {
        name: sum(getattr(p, name) for p in gone) for name in ("records", "insights", "jobs", "bytes")
    }
    total["sessions_emptied"] = sum(p.emptied for p in gone)
    if as_json:
        each = [asdict(p) for p in gone]
        print_json({"dry_run": dry_run, "complete": complete, **total, "sessions": each})
        return
    if gone:
        rows = [
            [one_line(p.session_id, 255), f"{p.records:,}", f"{p.insights:,}", f"{p.jobs:,}", f"{p.bytes:,}",
             "yes" if p.emptied else ""]
            for p in gone
        ]  # fmt: skip
        head = ["session", "records", "insights", "jobs", "bytes", "emptied"]
        table(head, rows, right=frozenset({1, 2, 3, 4}))
    print(
        f"{'would remove' if dry_run else 'removed'} {total['records']:,} records, "
        f"{total['insights']:,} insights and {total['jobs']:,} jobs ({total['bytes']:,} bytes) "
        f"of {len(gone):,} sessions{'' if complete else ', then it was stopped'}."
    )


def verify(
    db: str = DB,
    repair: bool = typer.Option(
        False, "--repair", help="Mend what can be mended; a record is never touched."
    ),
    as_json: bool = JSON,
) -> None:
    """Check a bank: facts readable and matching their ids, insights with their facts, no orphaned jobs.

    Exit code 1 when something is wrong and not mended.
    """
    from memory_bank.bank.maintenance import Counts
    from memory_bank.bank.maintenance import verify as run

    database = open_bank(db)
    counts = Counts()
    found: list[dict[str, Any]] = []
    kinds: Counter[str] = Counter()
    left = 0
    for problem in run(database, counts, repair=repair, report=_progress if is_terminal() else None):
        kinds[problem.kind] += 1
        left += not problem.mended
        if kinds.total() > _SHOWN:
            continue
        if as_json:
            found.append(asdict(problem))
            continue
        of = [problem.session_id and f"session {problem.session_id!r}", problem.trace_id]
        where = ", ".join(one_line(str(part), 300) for part in of if part)
        print(f"{'mended' if problem.mended else 'wrong '}  {problem.kind}  {where}: {visible(problem.what)}")
    if as_json:
        print_json({**asdict(counts), "problems": dict(kinds), "left": left, "found": found})
    else:
        if kinds.total() > _SHOWN:
            print(f"… and {kinds.total() - _SHOWN:,} more.")
        print(
            f"{counts.records:,} records ({counts.checked_ids:,} ids are their content's hash), "
            f"{counts.insights:,} insights, {counts.jobs:,} jobs, {counts.sessions:,} sessions; "
            f"{counts.unobserved:,} records have no insight.\n"
            + (
                f"{kinds.total() - left:,} problems were mended, {left:,} are left."
                if kinds
                else "no problems."
            )
        )
    if left:
        if not repair:
            tell("problems were found: run it with --repair to mend what can be mended.")
        raise typer.Exit(1)


def _progress(what: str, done: int, total: int) -> None:
    print(f"\r{what}: {done:,} of {total:,} ", end="" if done < total else "\n", file=sys.stderr)
