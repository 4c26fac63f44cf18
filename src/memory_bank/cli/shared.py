"""Helpers of the verbs: options and the bank they name, JSON for programs, tables and plain lines for people."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import sys
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, TextIO

import typer

from memory_bank.audit.figures import money
from memory_bank.errors import ConfigError, EmbedderMismatchError, StorageError
from memory_bank.service.server.database import database_of, open_database

if TYPE_CHECKING:
    from memory_bank.bank.database import Database
    from memory_bank.config import ServiceSettings
    from memory_bank.ports import NamedEmbedder

DB = typer.Option(None, "--db", help="The bank: a file name or URL; default: the one that `serve` uses.")
CONFIG = typer.Option(None, "--config", help="Configuration file; default: the shipped one.")
JSON = typer.Option(False, "--json", help="Print JSON.")
ONE_SESSION = typer.Option(None, "--session", help="Only this session; default: all.")
_ODD, _PLAIN = re.compile(r"[^\n\t\x20-\x7e]"), re.compile(r"(?:[!-~]+(?: [!-~]+)*)?")
EMBEDDER = typer.Option(None, "--embedding-model", help="Default: the embedder the bank was built with.")


# -- the bank


def service_settings(db: str | None, config: Path | None = None) -> ServiceSettings:
    """The service's settings, with the bank that --db names in the place of their own."""
    from memory_bank.config import load_config

    settings = load_config(config).service
    return settings if db is None else settings.model_copy(update={"database": db})


def _named(db: str | None, config: Path | None) -> str:
    """The bank that --db names, or of the configuration, which is read where one is given or the bank is not."""
    return db if db and config is None else database_of(service_settings(db, config))


def bank_file(db: str | None, command: str = "", config: Path | None = None) -> Path:
    """The file of the bank that --db names. Raises ConfigError for one in memory, or PostgreSQL's ``command``."""
    from memory_bank.bank.database import database_url

    url = database_url(_named(db, config))
    if url.get_backend_name() != "sqlite":
        bare = url.set(drivername="postgresql")._replace(password=None)
        address = bare.difference_update_query(["password", "sslpassword"]).render_as_string(
            hide_password=False
        )
        raise ConfigError(
            f"PostgreSQL has a command for this: run  {command} --dbname={shlex.quote(address)}"
        )
    if url.database in (None, "", ":memory:"):
        raise ConfigError("a bank in memory holds nothing yet: give --db the file of one.")
    return Path(str(url.database))


def open_bank(db: str | None, config: Path | None = None, session: str | None = None) -> Database:
    """The existing bank that --db names, or of `serve`. Raises ConfigError, StorageError without the session."""
    from memory_bank.bank.database import Database, database_url
    from memory_bank.bank.listing import has_session

    name = _named(db, config)
    if database_url(name).get_backend_name() == "sqlite" and not (file := bank_file(name)).is_file():
        first = "" if db else "`memory-bank run -- COMMAND` makes one, or "
        raise ConfigError(f"there is no bank {file}: {first}give the path of yours with --db.")
    database = Database(name, must_exist=True)
    if session is not None and not has_session(database, session):
        raise StorageError(
            f"{database.name} has no session {one_line(session, 80)!r}: `memory-bank bank sessions` lists them."
        )
    return database


def new_bank(db: str | None, config: Path | None, subject: str) -> Database:
    """The bank, made when there is none. Raises ConfigError for one in memory, where ``subject`` would be lost."""
    database = open_database(service_settings(db, config))
    if database.in_memory:
        raise ConfigError(f"{subject} in memory would be lost at once: give --db the file of a bank.")
    return database


def embedder_name_of(database: Database) -> str | None:
    """The name that loads the embedder that a bank was built with; None for a bank without vectors."""
    from memory_bank.bank.embedder import bank_embedder

    name = (bank_embedder(database) or [None])[0]
    return "lexical" if name is not None and name.startswith("lexical") else name


def bank_embedder_of(database: Database, wanted: str | None) -> NamedEmbedder:
    """The named embedder, else the one that the bank was built with."""
    from memory_bank.bank.embedder import bank_embedder
    from memory_bank.models.embedding import load_embedder

    built_with = None if wanted else bank_embedder(database)
    model = load_embedder(wanted or embedder_name_of(database) or "lexical")
    if built_with is not None and model.name != built_with[0]:
        raise EmbedderMismatchError(
            f"the bank was built with {built_with[0]}: name that model or its folder with --embedding-model."
        )
    return model


# -- output


def tell(sentence: str) -> None:
    """Write one sentence to standard error, folded at a terminal; nothing happens where that is closed."""
    if sys.stderr is not None:
        text = f"memory-bank: {one_line(sentence, 2_000)}"
        if sys.stderr.isatty():
            width = shutil.get_terminal_size().columns
            text = fill(text, width, break_long_words=False, break_on_hyphens=False)
        with contextlib.suppress(OSError):
            print(text, file=sys.stderr, flush=True)


def spent(unit: str, sent: float, full: float, verb: str) -> str:
    """An amount with memory, the amount without, and their difference in percent. ``unit``: "$", or "" for tokens."""
    amounts = [f"${money(n)}" if unit else f"{n:,.0f}" for n in (sent, full)]
    share = f" ({abs(1 - sent / full):.0%} {'more' if sent > full else 'less'})" if full else ""
    return f"{amounts[0]} {verb}, {amounts[1]} without memory{share}"


def json_line(value: object) -> str:
    """A JSON line in ASCII: lone surrogates and control characters are escaped, SDK objects become dicts."""

    def plain(value: object) -> object:
        dump = getattr(value, "model_dump", None)
        return dump(exclude_none=True) if callable(dump) else str(value)

    return json.dumps(value, default=plain) + "\n"


def print_json(value: object) -> None:
    """Write one JSON value on one line."""
    sys.stdout.write(json_line(value))


def answer(value: object, text: str, as_json: bool) -> None:
    """Print what a verb has to say: the value as JSON, or the text."""
    sys.stdout.write(json_line(value) if as_json else f"{text}\n")


@contextlib.contextmanager
def output_file(path: Path | None, *inputs: Path) -> Iterator[TextIO | None]:
    """A text file for results, or None. Raises ConfigError when it cannot be written, or is one of the ``inputs``."""
    if path is None:
        yield None
        return
    if path.exists() and any(i.exists() and path.samefile(i) for i in inputs):
        raise ConfigError(f"{path} is read from: write the results to another file.")
    try:
        file = open(path, "w", encoding="utf-8", opener=lambda p, flags: os.open(p, flags, 0o600))  # noqa: SIM115
        if path.is_file():  # one that was there
            path.chmod(0o600)
    except OSError as e:
        raise ConfigError(f"{path} cannot be written ({e.strerror}): give another file with --out.") from e
    with file:
        yield file


def _escaped(match: re.Match[str]) -> str:
    c = match[0]
    return c if c.isprintable() or unicodedata.category(c) == "Zs" else c.encode("unicode_escape").decode()


def visible(text: str, limit: int | None = None) -> str:
    """Text for a terminal: control characters and lone surrogates printed as escapes, cut at ``limit``."""
    escaped = _ODD.sub(_escaped, text if limit is None else text[: limit + 1])
    return escaped if limit is None or len(escaped) <= limit else escaped[: limit - 1] + "…"


def one_line(text: str, limit: int) -> str:
    """Text on one line for a table cell or a message."""
    if len(text) <= limit and _PLAIN.fullmatch(text):
        return text
    head = text[: 4 * limit]
    line = visible(" ".join(head.split()), limit)
    return line if len(head) == len(text) or line.endswith("…") else f"{line[: limit - 1]}…"


def when(timestamp: float | None) -> str:
    """A Unix time as local date and time."""
    try:
        return "–" if timestamp is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(timestamp))
    except (OverflowError, ValueError, OSError):  # an earlier memory_bank stored any number
        return f"{timestamp:g} s"


def table(
    header: Sequence[str],
    rows: Iterable[Sequence[object]],
    right: Iterable[int] = (),
    whole: Iterable[int] = (),
) -> None:
    """Print a table that fits the terminal, or 80 columns; numbers and the columns ``right`` are aligned right.

    These, and columns ``whole``, are never wrapped. Columns that find no room stand below, with the first one again.
    Markup in cells is printed as text. True is "yes", False and None are empty.
    """
    from rich.cells import cell_len, set_cell_size
    from rich.console import Console
    from rich.text import Text

    def cell(value: object) -> str:
        if isinstance(value, bool) or value is None:
            return "yes" if value else ""
        return f"{value:,}" if isinstance(value, (int, float)) else one_line(str(value), 255)

    def width(text: str) -> int:
        return len(text) if text.isascii() else cell_len(text)

    console = Console(highlight=False)
    values = [list(row) for row in rows]
    cells = [list(map(cell, row)) for row in values]
    numbers = {
        i for i in range(len(header))
        if i in right or (values and all(isinstance(row[i], (int, float)) for row in values))
    }  # fmt: skip
    widths = [max(map(width, (title, *(row[i] for row in cells)))) for i, title in enumerate(header)]
    fixed = {i for i in {*numbers, *whole} if widths[i] <= console.width // 2}
    least = [w if i in fixed else min(w, 16) for i, w in enumerate(widths)]
    blocks: list[list[int]] = [[0]]
    for i in range(1, len(header)):
        if len(blocks[-1]) > 1 and sum(least[n] + 2 for n in (*blocks[-1], i)) - 2 > console.width:
            blocks.append([0])
        blocks[-1].append(i)
    for n, block in enumerate(blocks):
        room = {i: widths[i] for i in block}
        while sum(room.values()) + 2 * (len(block) - 1) > console.width and (fold := [*{*block} - fixed]):
            widest = max(fold, key=lambda i: (room[i], i))
            if room[widest] == 1:
                break
            room[widest] -= 1

        def lines(row: Sequence[str], block: list[int] = block, room: dict[int, int] = room) -> Iterator[str]:
            folded = [
                [row[i]] if width(row[i]) <= room[i]
                else [t.plain.rstrip() for t in Text(row[i]).wrap(console, room[i], overflow="fold")]
                for i in block
            ]  # fmt: skip
            for texts in zip_longest(*folded, fillvalue=""):
                padded = [
                    f"{' ' * (room[i] - width(text))}{text}" if i in numbers
                    else text.ljust(room[i]) if text.isascii() else set_cell_size(text, room[i])
                    for i, text in zip(block, texts, strict=True)
                ]  # fmt: skip
                yield "  ".join(padded).rstrip()

        if n:
            console.print()
        for line in lines(header):
            console.print(Text(line, "bold"), soft_wrap=True)
        console.file.writelines(f"{line}\n" for row in cells for line in lines(row))


@contextlib.contextmanager
def progress(done: str, units: str) -> Iterator[Callable[..., None]]:
    """A progress bar on a terminal, nothing elsewhere; yields a function of what is done and how much there is."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda *_: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn(done), BarColumn(), MofNCompleteColumn(), TextColumn(units), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(done, total=None)
        yield lambda done, total=None: bar.update(task, completed=done, total=total)
