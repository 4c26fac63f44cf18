"""The verbs of ``memory-bank`` and how a failure ends: one sentence, exit code 1 or 2, no traceback."""

from __future__ import annotations

import logging
import os
import sys

import typer

from memory_bank import __version__
from memory_bank.cli import bank, demo, replay
from memory_bank.errors import ConfigError, MemoryBankError

app = typer.Typer(
    name="memory-bank",
    help="Memory for tool-calling agents: the prompt stays small, every tool output stays one id away.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("demo")(demo.demo)
app.command("replay")(replay.replay)
app.command("sessions")(bank.sessions)
app.command("show")(bank.show)
app.command("search")(bank.search)
app.command("reset")(bank.reset)
app.command("export")(bank.export)
app.command("observe")(bank.observe)
app.command("re-embed")(bank.re_embed)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"memory-bank {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    verbose: bool = typer.Option(False, "--verbose", "-v", help="Show the log of every step."),
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    level = logging.DEBUG if verbose else logging.WARNING
    logging.basicConfig(level=level, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    logging.getLogger("httpx2").setLevel(logging.WARNING)


def run() -> None:
    """Run a verb; exit 0, 1 when it failed, 2 when it was used wrongly, 130 on Ctrl-C."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        app(prog_name="memory-bank")
    except MemoryBankError as e:
        print(f"memory-bank: {e}", file=sys.stderr)
        sys.exit(2 if isinstance(e, ConfigError) else 1)
    except KeyboardInterrupt:
        print("memory-bank: stopped.", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as e:
        print(f"memory-bank: {e.strerror or e}{f': {e.filename}' if e.filename else ''}.", file=sys.stderr)
        sys.exit(1)
