"""How verbs write: JSON for programs, tables and plain lines for people; control characters never pass."""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def print_json(value: Any) -> None:
    """One JSON value, on one line."""
    print(json.dumps(value, default=_default))


def json_line(value: Any) -> str:
    """A JSON line that every JSON parser reads back: ASCII, SDK objects as dicts."""
    return json.dumps(value, default=_default) + "\n"


def _default(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    return dump(exclude_none=True) if callable(dump) else str(value)


def visible(text: str, limit: int | None = None) -> str:
    """Text for a terminal: control characters and lone surrogates shown as escapes, cut at ``limit``."""
    shown = "".join(c if c in "\n\t" or c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return shown if limit is None or len(shown) <= limit else shown[: limit - 1] + "…"


def one_line(text: str, limit: int) -> str:
    """Text on one line for a table cell."""
    return visible(" ".join(text[: 4 * limit].split()), limit)


def when(timestamp: float | None) -> str:
    """A Unix time as local date and time."""
    return "–" if timestamp is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(timestamp))


def is_terminal() -> bool:
    """Whether a person is watching progress."""
    return sys.stderr.isatty()


def table(header: list[str], rows: list[list[str]], right: frozenset[int] = frozenset()) -> None:
    """A table; markup in cells is shown, not obeyed."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    t = Table(box=None, pad_edge=False, header_style="bold")
    for i, title in enumerate(header):
        t.add_column(title, justify="right" if i in right else "left", overflow="fold")
    for row in rows:
        t.add_row(*(Text(cell) for cell in row))
    Console(highlight=False).print(t)
