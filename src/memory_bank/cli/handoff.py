"""The verb ``handoff``: what another client needs to go on with a session, as a text that its user gives it."""

from __future__ import annotations

import contextlib
from enum import StrEnum
from pathlib import Path

import typer

from memory_bank.cli.shared import CONFIG, DB, one_line, open_bank
from memory_bank.errors import StorageError

LATEST = "latest"
MOST_TOKENS = 20_000  # an argument of a command has at most 128 KiB
GO_ON = "Go on with this work."
Client = StrEnum("Client", ["claude", "codex", "opencode"])


def handoff(
    session: str = typer.Argument(
        ..., help="The name of a session, as `bank sessions` lists it, or latest: of this folder's project."),
    to: Client | None = typer.Option(
        None, "--to", help="The client that goes on: it is told which rules it does not read by itself."),
    budget: int | None = typer.Option(
        None, min=500, max=MOST_TOKENS, help="Tokens of the text, at most; default: as of a client's compaction."),
    db: str | None = DB,
    config: Path | None = CONFIG,
) -> None:  # fmt: skip
    """Print what another client needs to go on with a session: `claude "$(memory-bank handoff latest)"`.

    The text has what the user asked for, rules that were read, the state of the task, changes, files under work, and
    what of the outputs the next calls may need. No model is asked, nothing leaves this machine; secrets are redacted,
    as they are stored. `memory-bank run --from latest -- codex` begins with it.
    """
    print(f"{handoff_text(session, db, config, budget, to or '')}{GO_ON}")


def handoff_text(
    session: str, db: str | None, config: Path | None, budget: int | None = None, to: str = ""
) -> str:
    """The description of a session for a client, without what to do. Raises ConfigError, StorageError."""
    from memory_bank.bank.listing import latest_used
    from memory_bank.bank.session import MemoryBankState
    from memory_bank.config import ServiceSettings
    from memory_bank.context import handed_on
    from memory_bank.service.project import projects_of
    from memory_bank.transcript import open_counter

    with contextlib.closing(open_bank(db, config, None if session == LATEST else session)) as database:
        name = latest_used(database, projects_of()) if session == LATEST else session
        if name is None:
            raise StorageError(
                f"{database.name} has no session with tool calls of this folder's project: name one of another."
            )
        state = MemoryBankState(database=database, session_id=name, counter=open_counter(), fixed=True)
        text = handed_on(state, budget or ServiceSettings().compaction_tokens, to=to)
    if not text:
        raise StorageError(f"the session {one_line(name, 80)!r} has no tool calls: nothing to hand on.")
    return text
