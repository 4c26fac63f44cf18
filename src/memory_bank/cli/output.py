"""How verbs write: JSON for programs, tables and plain lines for people; control characters are escaped."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import time
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from memory_bank.errors import ConfigError

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress


class Stopped(Exception):
    """Ctrl-C, with one sentence that says what is kept."""


def tell(sentence: str) -> None:
    """Write one sentence to standard error; nothing happens where that is closed."""
    if sys.stderr is None:
        return
    with contextlib.suppress(OSError):
        print(f"memory-bank: {one_line(sentence, 2_000)}", file=sys.stderr, flush=True)


def print_json(value: object) -> None:
    """Write one JSON value on one line."""
    sys.stdout.write(json_line(value))


def json_line(value: object) -> str:
    """A JSON line in ASCII: lone surrogates and control characters are escaped, SDK objects become dicts."""
    return json.dumps(value, default=_json_default) + "\n"


def _json_default(value: object) -> object:
    dump = getattr(value, "model_dump", None)
    return dump(exclude_none=True) if callable(dump) else str(value)


@contextlib.contextmanager
def output_file(path: Path | None, *inputs: Path) -> Iterator[TextIO | None]:
    """A text file for results, or None without a path.

    Raises ConfigError when it cannot be written, or is one of the ``inputs``.
    """
    if path is None:
        yield None
        return
    if path.exists() and any(i.exists() and path.samefile(i) for i in inputs):
        raise ConfigError(f"{path} is read from: write the results to another file.")
    try:
        file = open(path, "w", encoding="utf-8")  # noqa: SIM115
    except OSError as e:
        raise ConfigError(f"{path} cannot be written ({e.strerror}): give another file with --out.") from e
    with file:
        yield file


_NOT_PLAIN = re.compile(r"[^\n\t\x20-\x7e]")


def visible(text: str, limit: int | None = None) -> str:
    """Text for a terminal: control characters and lone surrogates shown as escapes, cut at ``limit``."""
    shown = _NOT_PLAIN.sub(_escaped, text if limit is None else text[: limit + 1])
    return shown if limit is None or len(shown) <= limit else shown[: limit - 1] + "…"


def _escaped(match: re.Match[str]) -> str:
    c = match[0]
    if c.isprintable() or unicodedata.category(c) == "Zs":
        return c
    return c.encode("unicode_escape").decode()


def one_line(text: str, limit: int) -> str:
    """Text on one line for a table cell or a message."""
    head = text[: 4 * limit]
    line = visible(" ".join(head.split()), limit)
    return line if len(head) == len(text) or line.endswith("…") else f"{line[: limit - 1]}…"


def when(timestamp: float | None) -> str:
    """A Unix time as local date and time."""
    if timestamp is None:
        return "–"
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(timestamp))
    except (OverflowError, ValueError, OSError):  # an earlier memory_bank stored any number
        return f"{timestamp:g} s"


def is_terminal() -> bool:
    """Whether standard error is a terminal, so that progress is shown."""
    return sys.stderr is not None and sys.stderr.isatty()


def table(
    header: list[str],
    rows: list[list[str]],
    right: frozenset[int] = frozenset(),
    whole: frozenset[int] = frozenset(),
) -> None:
    """Print a table; markup in cells is shown as text.

    ``right`` columns are aligned right, ``whole`` columns never wrap; in a file or pipe no column wraps.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=100_000)
    t = Table(box=None, pad_edge=False, header_style="bold")
    for i, title in enumerate(header):
        t.add_column(title, justify="right" if i in right else "left", overflow="fold", no_wrap=i in whole)
    for row in rows:
        t.add_row(*(Text(cell) for cell in row))
    console.print(t)


def counter_line(text: str, last: bool = False) -> None:
    """Overwrite the last line of the terminal with a progress message; nothing happens elsewhere."""
    if is_terminal():
        print(f"\r{text} ", end="\n" if last else "", file=sys.stderr)


class ProgressBar:
    """A progress bar on a terminal, nothing elsewhere: ``done`` before it, ``units`` behind the numbers."""

    def __init__(self, done: str, units: str, total: int | None = None) -> None:
        self._bar: RichProgress | None = None
        if is_terminal():
            from rich import progress
            from rich.console import Console

            self._bar = progress.Progress(
                progress.TextColumn(done), progress.BarColumn(), progress.MofNCompleteColumn(),
                progress.TextColumn(units), progress.TimeRemainingColumn(),
                console=Console(stderr=True), transient=True,
            )  # fmt: skip
            self._task = self._bar.add_task(done, total=total)

    def advance(self, done: int, total: int | None = None) -> None:
        """Show that ``done`` units are done; ``total`` replaces the number of all units."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total)

    def __enter__(self) -> ProgressBar:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.stop()
