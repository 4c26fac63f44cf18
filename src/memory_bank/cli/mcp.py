"""``memory-bank mcp``: the MCP server over standard input and output."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import typer

from memory_bank.cli.bank import open_bank
from memory_bank.cli.output import one_line, tell

_READ = 65_536
_LONGEST = 16 * 2**20  # a line longer than this is no request of ours


def mcp(
    db: str | None = typer.Option(
        None, "--db", help="The bank: a file name or URL; default: the configured one, else your own."
    ),
    session: str | None = typer.Option(
        None, "--session", help="The session that is meant where a request names none; default: the only one."
    ),
    config: Path | None = typer.Option(None, help="Configuration file; default: the shipped one."),
) -> None:
    """Serve search_memory, get_record, list_records and the records to an MCP client over stdio.

    The client starts this; Ctrl-C, SIGTERM and a closed standard input end it. `memory-bank serve` offers the
    same over HTTP, at /mcp.
    """
    import anyio

    from memory_bank.config import load_config
    from memory_bank.service.mcp import create_server
    from memory_bank.service.server.places import default_database
    from memory_bank.service.sessions import Sessions

    loaded = load_config(config)
    database = open_bank(db or loaded.service.database or str(default_database()))
    try:
        sessions = Sessions(database, loaded if config is not None else with_embedder_of(loaded, database))
        if session is not None and not sessions.exists(None, session):
            named = one_line(session, 80)
            tell(f"{database.name} has no session {named!r} yet: `memory-bank sessions` lists them.")
        came = anyio.run(_serve, create_server(sessions, session))
        sessions.close()
    finally:
        database.close()
    if came == signal.SIGINT:
        raise typer.Exit(130)


def with_embedder_of(config: Any, database: Any) -> Any:
    """The configuration, with the embedder that the bank was built with in the strategy that reads it."""
    from memory_bank.bank.embedder import bank_embedder
    from memory_bank.service.sessions import Sessions

    known = bank_embedder(database)
    if known is None:
        return config
    model = "lexical" if known[0].startswith("lexical") else known[0]
    sessions = Sessions(database, config)
    settings = sessions.bank_settings().model_copy(update={"embedding_model": model})
    strategies = {**config.memory_strategies, sessions.strategy: settings}
    return config.model_copy(update={"memory_strategies": strategies})


async def _serve(server: Any) -> int | None:
    """Serve one client on standard input and output; returns the signal that ended it, if one did."""
    import anyio
    from mcp.server.stdio import stdio_server

    came: list[int] = []
    lines = _Lines()
    async with anyio.create_task_group() as group:

        async def watch() -> None:
            with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                async for number in signals:
                    came.append(number)
                    group.cancel_scope.cancel()
                    return

        group.start_soon(watch)
        try:
            async with stdio_server(stdin=lines) as (read, write):  # type: ignore[arg-type]
                await server.run(read, write, server.create_initialization_options())
        except* (BrokenPipeError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # the client went away
        group.cancel_scope.cancel()
    return came[0] if came else None


class _Lines:
    """The lines of standard input as they come; waiting for one never keeps the process from ending.

    Read from the descriptor by a daemon thread: the library's own reader waits in a thread that Ctrl-C cannot
    end, and Python's buffered stdin must not be held by a daemon when the interpreter ends.
    """

    def __init__(self) -> None:
        import anyio
        from anyio.from_thread import run
        from anyio.lowlevel import current_token

        self._send, self._receive = anyio.create_memory_object_stream[str](16)
        token, put = current_token(), self._put

        def read() -> None:
            try:
                rest = b""
                while piece := os.read(0, _READ):
                    *whole, rest = (rest + piece).split(b"\n")
                    for line in whole:
                        run(put, line, token=token)
                    if len(rest) > _LONGEST:
                        break
                run(put, rest, token=token)
                run(put, None, token=token)
            except Exception:  # the loop has ended, or the descriptor is closed: nobody waits any more
                return

        threading.Thread(target=read, name="memory_bank-stdin", daemon=True).start()

    async def _put(self, line: bytes | None) -> None:
        if line is None:
            self._send.close()
        elif line.strip():
            await self._send.send(line.decode("utf-8", "replace"))

    def __aiter__(self) -> AsyncIterator[str]:
        return self._receive.__aiter__()
