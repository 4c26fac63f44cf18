"""observation_masking: older outputs are cut to their beginning and their trace_id."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from memory_bank.bank.session import MemoryBankState
from memory_bank.config import MaskingSettings
from memory_bank.plan import Choice, Shown
from memory_bank.transcript.chat import edited_message
from memory_bank.transcript.media import without_base64
from memory_bank.transcript.messages import Interaction, content_text, result_of
from memory_bank.transcript.quoting import quote_lines
from memory_bank.transcript.shortening import cut_at_edge
from memory_bank.transcript.transcript import View
from memory_bank.transcript.turns import WHOLE, Edit


class _Masked(dict[tuple[str, int, str], Edit | None]):
    """Masked messages by trace_id, ``max_length`` and tool; None for an output that is short enough."""


def choose_masking(view: View, session: MemoryBankState, *, settings: MaskingSettings) -> Choice:
    """All messages; outputs before the last ``keep_last`` interactions keep ``max_length`` characters.

    The cut is marked ``[masked: …, trace_id …]``. Where the agent has ``get_record``, which returns the whole output
    for that id, the mark says so.
    """
    cache, count = session.cache(_Masked), session.counter.count_message
    edits: dict[int, Edit] = {}
    part: list[Interaction] = []
    for interaction in view.interactions[: max(0, len(view.interactions) - settings.keep_last)]:
        if interaction.start in view.pinned | view.hidden:
            continue
        for pair, trace_id in zip(interaction.pairs, interaction.trace_ids, strict=True):
            if trace_id is None or pair.result_at is None:
                continue
            position = interaction.start + pair.result_at
            key = (trace_id, settings.max_length, session.record_tool)
            if key not in cache:
                message = view.messages[position]
                text = _masked(message, *key)
                masked = None if text is None else edited_message(message, {WHOLE: text})
                cache[key] = None if text is None else Edit({WHOLE: text}, masked, count(masked))
            shorter = cache[key]
            if shorter is not None and shorter.tokens < view.tokens_between(position, position + 1):
                edits[position] = replace(shorter, message=dict(shorter.message))
                part.append(interaction)
    why = "" if edits else "no older output is longer than the limit"
    return Choice(edits=edits, keep_all=True, unchanged=why, reasons=Shown(view.history, part))


def _masked(message: Any, trace_id: str, max_length: int, tool: str) -> str | None:
    """The text of a result cut to its beginning and its id; None where that is no shorter."""
    content = result_of(message).content
    text = without_base64(content_text(content))
    if len(text) <= max_length and isinstance(content, str):
        return None
    head = cut_at_edge(quote_lines(text), max_length)
    hint = f"; {tool} gives the whole" if tool else ""
    mark = f"[masked: {len(text):,} characters{hint}: trace_id {trace_id}]"
    return f"{head}\n{mark}" if head else mark
