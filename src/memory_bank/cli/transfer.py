"""Verbs that move sessions between banks: export, import."""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from memory_bank.cli.bank import DB, JSON, open_bank, the_session
from memory_bank.cli.output import is_terminal, json_line, one_line, output_file, print_json, tell
from memory_bank.errors import ConfigError


def export(
    db: str = DB,
    session: str | None = typer.Option(None, "--session", help="Only this session; default: all."),
    out: Path | None = typer.Option(None, help="Write to this file; default: standard output."),
    as_json: bool = typer.Option(False, "--json", help="One JSON array instead of JSON lines."),
) -> None:
    """Write sessions as JSON lines, complete and exact: what `memory-bank import` reads."""
    from memory_bank.bank.transfer import export_lines

    database = open_bank(db)
    if session is not None:
        the_session(database, session)
    count = written = 0
    url = database.url
    bank = [Path(url.database)] if url.get_backend_name() == "sqlite" and url.database else []
    with output_file(out, *bank) as file:
        target = file or sys.stdout
        if as_json:
            target.write("[")
        for value in export_lines(database, session):
            line = json_line(value)
            target.write(("," if written else "") + line.rstrip("\n") if as_json else line)
            written += 1
            count += "step_id" in value
        if as_json:
            target.write("]\n")
    tell(f"wrote {count:,} records.")


def import_(
    files: list[Path] = typer.Argument(..., help="What `memory-bank export` wrote, plain or .gz."),
    db: str = DB,
    embedding_model: str | None = typer.Option(
        None, help="The bank's embedder, to embed summaries anew that another one embedded."
    ),
    as_json: bool = JSON,
) -> None:
    """Take in exported sessions, each as a whole or not at all; what is there already stays as it is.

    A bank that is not there is made.
    """
    from memory_bank.bank.database import Database, database_url
    from memory_bank.bank.transfer import RefusedSession, import_lines
    from memory_bank.models.embedding import load_embedder

    url = database_url(db)
    if url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:"):
        raise ConfigError("a bank in memory would be gone at once: give --db the file of one.")
    for path in files:
        if path.is_dir() or not path.exists():
            raise ConfigError(f"{path} is no file of exported sessions: check the name.")
    model = None if embedding_model is None else load_embedder(embedding_model)
    database = Database(db)
    taken: list[Any] = []
    refused: list[dict[str, Any]] = []
    complete = False
    try:
        for path in files:
            for each in import_lines(database, _lines(path), model):
                if isinstance(each, RefusedSession):
                    of = "" if each.session_id is None else f", session {each.session_id!r}"
                    reason = f"{path}, line {each.line}{of}: {each.reason}"
                    refused.append({"session_id": each.session_id, "reason": reason})
                    tell(f"not imported: {reason}.")
                    continue
                taken.append(each)
                if is_terminal():
                    print(f"\r{len(taken):,} sessions", end="", file=sys.stderr)
        complete = True
    finally:
        if is_terminal() and taken:
            print(file=sys.stderr)
        if complete or taken:
            _print(taken, refused, as_json, complete)
    if refused:
        raise typer.Exit(1)


def _print(taken: list[Any], refused: list[dict[str, Any]], as_json: bool, complete: bool) -> None:
    total = {n: sum(getattr(t, n) for t in taken) for n in ("records", "known", "insights", "jobs")}
    if as_json:
        each = [asdict(t) for t in taken]
        print_json({"complete": complete, **total, "sessions": each, "refused": refused})
        return
    stopped = "" if complete else "; then it was stopped"
    print(
        f"imported {total['records']:,} records with {total['insights']:,} insights of {len(taken):,} "
        f"sessions; {total['known']:,} records were there already{stopped}."
    )


def _lines(path: Path) -> Iterator[tuple[int, str | None]]:
    """The numbered lines of a file; None for one at which it cannot be read on."""
    number = 0
    try:
        with open(path, "rb") as file:
            stream: Any = gzip.GzipFile(fileobj=file) if file.peek(2)[:2] == b"\x1f\x8b" else file
            with io.TextIOWrapper(stream, "utf-8-sig", errors="replace", newline="\n") as lines:
                for number, line in enumerate(lines, 1):
                    yield number, line
    except (OSError, EOFError, zlib.error) as e:
        tell(f"{path} cannot be read beyond line {number}: {one_line(str(e), 200)}.")
        yield number + 1, None
