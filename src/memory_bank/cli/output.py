"""How verbs write: JSON for programs, tables and plain lines for people; control characters never pass."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import time
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from memory_bank.errors import ConfigError


class Stopped(Exception):
    """Ctrl-C, with one sentence on what is kept."""


def tell(sentence: str) -> None:
    """One sentence to the person, on standard error; where that is closed, to nobody."""
    if sys.stderr is None:
        return
    with contextlib.suppress(OSError):
        print(f"memory-bank: {one_line(sentence, 2_000)}", file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    """One JSON value, on one line."""
    sys.stdout.write(json_line(value))


def json_line(value: Any) -> str:
    """A JSON line in ASCII: lone surrogates and control characters are escaped, SDK objects are dicts."""
    return json.dumps(value, default=_default) + "\n"


def _default(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    return dump(exclude_none=True) if callable(dump) else str(value)


@contextlib.contextmanager
def output_file(path: Path | None, *inputs: Path) -> Iterator[TextIO | None]:
    """A text file to write results to, or None. Raises ConfigError when it cannot be, or is read from."""
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
    return "–" if timestamp is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(timestamp))


def is_terminal() -> bool:
    """Whether a person is watching progress."""
    return sys.stderr is not None and sys.stderr.isatty()


def table(
    header: list[str],
    rows: list[list[str]],
    right: frozenset[int] = frozenset(),
    whole: frozenset[int] = frozenset(),
) -> None:
    """A table; markup in cells is shown, not obeyed. ``whole`` columns never wrap; in a file none does."""
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


class Progress:
    """A progress bar on a terminal, nothing elsewhere: ``done`` before it, ``units`` behind the numbers."""

    def __init__(self, done: str, units: str) -> None:
        self._bar: Any = None
        if is_terminal():
            from rich import progress
            from rich.console import Console

            self._bar = progress.Progress(
                progress.TextColumn(done), progress.BarColumn(), progress.MofNCompleteColumn(),
                progress.TextColumn(units), progress.TimeRemainingColumn(),
                console=Console(stderr=True), transient=True,
            )  # fmt: skip
            self._task = self._bar.add_task(done, total=None)

    def advance(self, done: int, total: int) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total)

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.stop()
