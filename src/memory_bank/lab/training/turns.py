"""Recorded runs as the index takes them in: assistant turns with their words, calls and outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from memory_bank.transcript.content import content_text, read
from memory_bank.transcript.interactions import Interaction, Kind
from memory_bank.transcript.parsing import parse_messages


@dataclass(frozen=True, slots=True)
class Turn:
    """One assistant turn at a message position: its words, its calls as (id, tool, arguments, output)."""

    position: int
    note: str
    calls: tuple[tuple[str, str, str, str], ...]


def turns_of(messages: Sequence[Any]) -> list[Turn]:
    """The assistant turns of a message list, in order; turns without calls have none."""
    turns = []
    for segment in parse_messages(list(messages)):
        if isinstance(segment, Interaction):
            calls = tuple(
                (
                    f"{segment.start}.{n}",
                    pair.tool_name,
                    pair.call.text if pair.call else "",
                    pair.result.text if pair.result else "",
                )
                for n, pair in enumerate(segment.pairs)
            )
            turns.append(Turn(segment.start, segment.note, calls))
        elif segment.kind is Kind.SAY:
            turns.append(Turn(segment.start, content_text(read(segment.message, "content")), ()))
    return turns
