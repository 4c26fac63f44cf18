"""Steps printed on a terminal, as a person reads a run; nothing in them can steer the terminal."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from memory_bank.history.steps import (
    ActionStep,
    FinalAnswerStep,
    PlanningStep,
    ScratchpadStep,
    Step,
    SystemPromptStep,
    TaskStep,
)
from memory_bank.transcript.jsontext import compact
from memory_bank.transcript.shortening import shorten_text

_CHARS = 600  # of a text, unless it is to be detailed


def told(step: Step) -> tuple[str, list[tuple[str, str]]]:
    """A step as a person reads it: its title, and its texts with what they are."""
    if isinstance(step, SystemPromptStep):
        return "System prompt", [("", step.system_prompt)]
    if isinstance(step, TaskStep):
        images = [("images", str(len(step.images)))] if step.images else []
        return "Task", [("", step.task), *images]
    if isinstance(step, PlanningStep):
        return "Plan", [("", step.plan)]
    if isinstance(step, ScratchpadStep):
        return f"Notes ({step.kind})", [("", step.text)]
    if isinstance(step, FinalAnswerStep):
        return "Final answer", [("", step.text)]
    if isinstance(step, ActionStep):
        rows = [("thought", step.thought)] if step.thought else []
        rows += [("call", f"{c.name}({c.text})") for c in step.tool_calls]
        rows += [("observation", o.text) for o in step.observations]
        rows += [("error", step.error)] if step.error is not None else []
        return f"Action {step.step_number}" + (" (final)" if step.is_final else ""), rows
    return type(step).__name__, [("", compact(step.dict()))]


def facts(step: Step) -> str:
    """When a step was, how long it took, what the model reported for it."""
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


def replay_steps(steps: Sequence[Step], console: Any = None, detailed: bool = False) -> None:
    """Print steps to a rich console, long texts shortened unless ``detailed``."""
    from rich.console import Console
    from rich.panel import Panel
    from rich.text import Text

    console = console or Console()
    for step in steps:
        title, rows = told(step)
        if detailed:
            seen = getattr(step, "model_input_messages", ())
            rows = [*(("model saw", compact(m)) for m in seen), *rows]
        body = Text()
        for i, (label, text) in enumerate(rows):
            body.append("\n" if i else "")
            body.append(f"{label}: " if label else "", style="bold red" if label == "error" else "bold")
            body.append(_harmless(text if detailed else shorten_text(text, _CHARS)))
        console.print(Panel(body, title=Text(title), subtitle=Text(facts(step)), title_align="left"))


def _harmless(text: str) -> str:
    """A text without control characters, lone surrogates and marks that turn the direction of writing."""
    return "".join(
        c if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Cs") else "\ufffd" for c in text
    )
