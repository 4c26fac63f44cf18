"""Steps for people to read: printed on a terminal, or as one HTML page."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from memory_bank.history.steps import Step, describe
from memory_bank.transcript.jsontext import compact
from memory_bank.transcript.shortening import shorten_text

if TYPE_CHECKING:
    from rich.console import Console


def _facts(step: Step) -> str:
    try:
        parts = [datetime.fromtimestamp(step.timestamp, UTC).strftime("%Y-%m-%d %H:%M:%S")]
    except (ValueError, OverflowError, OSError):
        parts = [str(step.timestamp)]
    timing, usage = getattr(step, "timing", None), getattr(step, "token_usage", None)
    if timing is not None and timing.seconds is not None:
        parts.append(f"{timing.seconds:.2f} s")
    if usage is not None:
        parts.append(f"{usage.input_tokens:,} + {usage.output_tokens:,} tokens")
    return ", ".join(parts)


def replay_steps(steps: Sequence[Step], console: Console | None = None, detailed: bool = False) -> None:
    """Print steps to a rich console; long texts are shortened unless ``detailed``."""
    from rich.console import Console
    from rich.panel import Panel
    from rich.text import Text

    console = console or Console()
    for step in steps:
        title, rows = describe(step)
        if detailed:
            rows = [*(("model saw", compact(m)) for m in getattr(step, "model_input_messages", ())), *rows]
        body = Text()
        for i, (label, text) in enumerate(rows):
            body.append("\n" if i else "")
            body.append(f"{label}: " if label else "", style="bold red" if label == "error" else "bold")
            body.append(_printable(text if detailed else shorten_text(text, 600)))
        console.print(Panel(body, title=Text(title), subtitle=Text(_facts(step)), title_align="left"))


def _printable(text: str) -> str:
    """A text without control characters, lone surrogates and marks that change the writing direction."""
    hidden = {c for c in set(text) - {"\n", "\t"} if unicodedata.category(c) in ("Cc", "Cf", "Cs")}
    return text.translate(dict.fromkeys(map(ord, hidden), "\ufffd"))


def render_page(steps: Sequence[Step], tokens: int, counter: str) -> str:
    """A self-contained HTML page of a run: it loads nothing, and every text is escaped.

    Images in ``data:`` URLs are shown, others are named by their URL.
    """
    from memory_bank.pages import render

    kinds = ", ".join(f"{n:,} {t.replace('_', ' ')}" for t, n in Counter(s.type for s in steps).items())
    shown, closed = [(s, describe(s), _facts(s)) for s in steps], ("system_prompt", "planning")
    return render("history.html", steps=shown, closed=closed, kinds=kinds, tokens=tokens, counter=counter)
