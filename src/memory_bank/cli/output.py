"""How verbs write: JSON for programs, tables and plain lines for people; control characters are escaped."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TextIO

from memory_bank.errors import ConfigError

NAME_LENGTH = 255


class Stopped(Exception):
    """Ctrl-C, with one sentence that says what is kept."""


def tell(sentence: str) -> None:
    """Write one sentence to standard error; nothing happens where that is closed."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(f"memory-bank: {one_line(sentence, 2_000)}", file=sys.stderr, flush=True)


def print_json(value: object) -> None:
    """Write one JSON value on one line."""
    sys.stdout.write(json_line(value))


def answer(value: object, text: str, as_json: bool) -> None:
    """Print what a verb has to say: the value as JSON, or the text."""
    if as_json:
        print_json(value)
    else:
        print(text)


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
    return c if c.isprintable() or unicodedata.category(c) == "Zs" else c.encode("unicode_escape").decode()


def one_line(text: str, limit: int) -> str:
    """Text on one line for a table cell or a message."""
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
    """Print a table; numbers and the columns ``right`` are aligned right, markup in cells is shown as text.

    Columns ``whole`` never wrap; in a file or pipe none does. True is "yes", False and None are empty.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=100_000)
    cells = [list(row) for row in rows]
    t = Table(box=None, pad_edge=False, header_style="bold")
    for i, title in enumerate(header):
        numbers = i in right or (bool(cells) and all(isinstance(row[i], (int, float)) for row in cells))
        t.add_column(title, justify="right" if numbers else "left", overflow="fold", no_wrap=i in whole)
    for row in cells:
        t.add_row(*(Text(_cell(value)) for value in row))
    console.print(t)


def _cell(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return "yes" if value else ""
    return f"{value:,}" if isinstance(value, (int, float)) else one_line(str(value), NAME_LENGTH)


@contextlib.contextmanager
def progress(done: str, units: str, total: int | None = None) -> Iterator[Callable[..., None]]:
    """A progress bar on a terminal, nothing elsewhere: ``done`` before it, ``units`` behind the numbers.

    The function that it gives shows how many are done; its second argument replaces the number of all.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda *_: None
        return
    from rich import progress as rich_progress
    from rich.console import Console

    with rich_progress.Progress(
        rich_progress.TextColumn(done), rich_progress.BarColumn(), rich_progress.MofNCompleteColumn(),
        rich_progress.TextColumn(units), rich_progress.TimeRemainingColumn(),
        console=Console(stderr=True), transient=True,
    ) as bar:  # fmt: skip
        task = bar.add_task(done, total=total)
        yield lambda done, total=None: bar.update(task, completed=done, total=total)
