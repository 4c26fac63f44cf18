"""Figures as columns, which terminal, Markdown and HTML tables share, and Markdown tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

SubjectT = TypeVar("SubjectT")


@dataclass(frozen=True, slots=True)
class Column(Generic[SubjectT]):
    """A column: its title, the number of a row, how the number is written, and what it means."""

    title: str
    value: Callable[[SubjectT], float]
    write: Callable[[float], str]
    meaning: str

    def cell(self, *subjects: SubjectT) -> str:
        """The text for one row, or the plain mean over several; a dash where there is no number."""
        numbers = [v for s in subjects if not math.isnan(v := self.value(s))]
        return self.write(sum(numbers) / len(numbers)) if numbers else "–"


def whole(number: float) -> str:
    """A number without its fraction."""
    return f"{number:,.0f}"


def milliseconds(number: float) -> str:
    """A time, with one digit below 100."""
    return f"{number:.1f}" if number < 100 else whole(number)


def markdown_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, all columns but the first aligned right."""
    lines = [" | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in r) for r in (titles, *rows)]
    lines = [f"| {line} |" for line in lines]
    return "\n".join([lines[0], "|---|" + "---:|" * (len(titles) - 1), *lines[1:]])
