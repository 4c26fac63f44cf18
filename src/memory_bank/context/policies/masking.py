"""observation_masking: older outputs are cut to their beginning and their trace_id."""

from __future__ import annotations

from typing import Any

from memory_bank.bank.session import MemoryBankState
from memory_bank.config import MaskingSettings
from memory_bank.plan import Choice, Replacement, Shown
from memory_bank.transcript.media import without_base64
from memory_bank.transcript.messages import Interaction, content_text
from memory_bank.transcript.quoting import quote_lines
from memory_bank.transcript.shortening import cut_at_edge
from memory_bank.transcript.transcript import View


class _Masked(dict[tuple[str, int, str], Replacement | None]):
    """Masked messages by trace_id, ``max_length`` and tool; None for an output that is short enough."""


def choose_masking(view: View, session: MemoryBankState, *, settings: MaskingSettings) -> Choice:
    """All messages; outputs before the last ``keep_last`` interactions keep ``max_length`` characters.

    The cut is marked ``[masked: …, trace_id …]``. Where the agent has ``get_record``, which returns the whole output
    for that id, the mark says so.
    """
    cache, count = session.cache(_Masked), session.counter.count_message
    replaced: dict[int, Replacement] = {}
    part: list[Interaction] = []
    for interaction in view.interactions[: max(0, len(view.interactions) - settings.keep_last)]:
        if interaction.start in view.pinned | view.hidden:
            continue
        for offset, pair in interaction.results().items():
            position, trace_id = interaction.start + offset, interaction.trace_ids[pair]
            if trace_id is None:
                continue
            key = (trace_id, settings.max_length, session.record_tool)
            if key not in cache:
                masked = _masked(view.messages[position], *key)
                cache[key] = None if masked is None else Replacement(masked, count(masked))
            shorter = cache[key]
            if shorter is not None and shorter.tokens < view.tokens_between(position, position + 1):
                replaced[position] = shorter
                part.append(interaction)
    why = "" if replaced else "no older output is longer than the limit"
    return Choice(replaced=replaced, keep_all=True, unchanged=why, reasons=Shown(view.history, part))


def _masked(message: Any, trace_id: str, max_length: int, tool: str) -> dict[str, Any] | None:
    """A tool message cut to its beginning and its id; None where that is no shorter."""
    if not isinstance(message, dict):
        return None
    key = "content" if message.get("content") is not None else "output"
    text = without_base64(content_text(message.get(key)))
    if len(text) <= max_length and isinstance(message.get(key), str):
        return None
    head = cut_at_edge(quote_lines(text), max_length)
    hint = f"; {tool} gives the whole" if tool else ""
    mark = f"[masked: {len(text):,} characters{hint}: trace_id {trace_id}]"
    return {**message, key: f"{head}\n{mark}" if head else mark}
