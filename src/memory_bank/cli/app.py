"""The verbs of ``memory-bank``, and how a failure ends: one sentence, exit code 1 or 2, no traceback."""

from __future__ import annotations

import _thread
import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import typer

from memory_bank import __version__
from memory_bank.cli import audit, bank, service, setup
from memory_bank.cli.demo import demo
from memory_bank.cli.doctor import doctor
from memory_bank.cli.handoff import handoff
from memory_bank.cli.observe import observe
from memory_bank.cli.run import run as run_command
from memory_bank.cli.shared import one_line, tell
from memory_bank.errors import ConfigError, MemoryBankError

# typer has its own copy of click since 0.2x and exports only this subclass of its usage errors
_UsageError: Any = typer.BadParameter.__bases__[0]

_GROUPS: dict[str, tuple[str, dict[str, Callable[..., None]]]] = {
    "": (
        "Memory for tool-calling agents: prompts stay small, and every tool output can be fetched by its id.",
        {
            "run": run_command, "serve": service.serve, "connect": setup.connect, "handoff": handoff,
            "saved": bank.saved, "demo": demo, "audit": audit.audit, "config": setup.config, "doctor": doctor,
            "mcp": service.mcp,
        },
    ),
    "keys": (
        "Create, list and revoke API keys of the service.",
        {"create": service.create_key, "list": service.list_keys, "revoke": service.revoke_key},
    ),
    "bank": (
        "Look into a bank, copy it and maintain it.",
        {
            "sessions": bank.sessions, "show": bank.show, "search": bank.search,
            "backup": bank.backup, "restore": bank.restore, "export": bank.export, "import": bank.import_,
            "purge": bank.purge, "verify": bank.verify, "observe": observe,
            "re-embed": bank.re_embed,
        },
    ),
    "lab": (
        "Replay and explain recorded runs.",
        {"replay": audit.replay, "explain": audit.explain},
    ),
}  # fmt: skip


def _groups() -> typer.Typer:
    groups = {}
    for group, (about, verbs) in _GROUPS.items():
        groups[group] = typer.Typer(
            help=about, short_help=about, add_completion=not group, pretty_exceptions_enable=False,
            rich_markup_mode=None, invoke_without_command=not group,
        )  # fmt: skip
        for name, verb in verbs.items():
            settings = {"allow_interspersed_args": False} if verb is run_command else None
            about = " ".join((verb.__doc__ or "").partition("\n\n")[0].split())  # else it would be cut
            groups[group].command(name, short_help=about, context_settings=settings)(verb)
        if group:
            groups[""].add_typer(groups[group], name=group)
    return groups[""]


app = _groups()


def _version(wanted: bool) -> None:
    if wanted:
        print(f"memory-bank {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    verbose: bool = typer.Option(False, "--verbose", "-v", help="Show the log of every step."),
    version: bool = typer.Option(  # noqa: ARG001  its callback has answered by now
        False, "--version", callback=_version, is_eager=True, help="Show the version."
    ),
) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_OneLineFormatter("%(levelname)s %(name)s: %(message)s"))
    handler.addFilter(lambda line: (line.exc_info or [None])[0] is not KeyboardInterrupt)  # of SQLAlchemy
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    if verbose:  # only this package: the log of the HTTP client holds whole prompts
        logging.getLogger("memory_bank").setLevel(logging.DEBUG)
    if context.invoked_subcommand is None:
        print(context.get_help(), file=sys.stderr)
        raise typer.Exit(2)


class _OneLineFormatter(logging.Formatter):
    """Formats a message as one line, with control characters escaped."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  logging's name
        return one_line(super().formatMessage(record), 2_000)


def run(args: list[str] | None) -> None:
    """Run a verb; exit code 0, 1 when it failed, 2 when it was used wrongly, 130 on Ctrl-C."""
    if sys.stdout is None:
        tell("standard output is closed: redirect it, to /dev/null for no output.")
        sys.exit(1)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    sys.unraisablehook = _press_again
    code = _run(args)
    try:
        sys.stdout.flush()
    except OSError as e:
        code = _stopped_by(e)
    sys.exit(code)


def _press_again(lost: Any) -> None:
    """Repeat a Ctrl-C that came while Python ran a finalizer, where it would be lost."""
    if issubclass(lost.exc_type, KeyboardInterrupt):
        threading.Timer(0.01, _thread.interrupt_main).start()
    else:
        sys.__unraisablehook__(lost)


def _run(args: list[str] | None) -> int:
    try:
        code = int(app(args, prog_name="memory-bank", standalone_mode=False) or 0)
        if code == 130:
            tell("stopped.")
        return code
    except _UsageError as e:
        verb = e.ctx.command_path if e.ctx else "memory-bank"
        mistake = one_line(e.format_message(), 300).rstrip(".")
        named = [f"memory-bank {group} {v}" for group, (_, verbs) in _GROUPS.items() for v in verbs if group
                 and mistake == f"No such command {v!r}"]  # fmt: skip
        tell(f"{mistake}: " + (f"use `{named[0]}`." if named else f"`{verb} --help` shows the use."))
        return 2
    except MemoryBankError as e:
        tell(str(e))
        return 2 if isinstance(e, ConfigError) else 1
    except (KeyboardInterrupt, typer.Abort):
        tell("stopped.")
        return 130
    except SystemExit as e:  # how typer answers a broken pipe
        return _stopped_by(e.__context__) if isinstance(e.__context__, OSError) else int(e.code or 0)
    except OSError as e:
        return _stopped_by(e)
    except Exception as e:
        logging.getLogger("memory_bank").debug("unexpected", exc_info=True)
        tell(
            f"an unexpected {type(e).__name__} stopped it ({one_line(str(e), 200)}): "
            "run `memory-bank --verbose …` to see where, and report it."
        )
        return 1


def _stopped_by(error: OSError) -> int:
    """The exit code after an operating system's error: 0 where the reader of the output exited, as `head` does."""
    is_pipe = isinstance(error, BrokenPipeError)
    if not is_pipe:
        file = f" ({error.filename})" if error.filename else ""
        reason = error.strerror or type(error).__name__
        tell(f"{reason}{file}: what was written so far is kept; make room or name another file.")
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):  # no file descriptor, as under a test's capture
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    return 0 if is_pipe else 1
