"""Policies that show past interactions themselves: all, the last, or masked ones."""

from __future__ import annotations

from memory_bank.bank.session import MemoryBankState, Session
from memory_bank.config import MaskingSettings
from memory_bank.plan import Choice, Shown
from memory_bank.transcript.chat import edited_message
from memory_bank.transcript.media import without_base64
from memory_bank.transcript.messages import Interaction, content_text, result_of
from memory_bank.transcript.quoting import Mark, quote_lines
from memory_bank.transcript.shortening import cut_at_edge
from memory_bank.transcript.transcript import View
from memory_bank.transcript.turns import WHOLE, Edit


def choose_all(view: View, session: Session) -> Choice:
    """Keep all messages."""
    return Choice(unchanged="the strategy keeps everything")


def choose_last(view: View, session: Session, *, n: int) -> Choice:
    """Keep what is never dropped and the last ``n`` interactions."""
    if len(view.history) < n:
        return Choice(unchanged="there are no older interactions")
    whole = [e for e in view.history[len(view.history) - n + 1 :] if not e.stays]
    return Choice(whole=whole, reasons=Shown(whole))


def choose_masking(view: View, session: MemoryBankState, *, settings: MaskingSettings) -> Choice:
    """All messages; outputs before the last ``keep_last`` interactions keep ``max_length`` characters.

    The cut is marked ``[masked: …, trace_id …]``. Where the agent has ``get_record``, which returns the whole output
    for that id, the mark says so.
    """
    limit, tool = settings.max_length, session.record_tool
    cache: dict[tuple[str, int, str], Edit | None] = session.cache("masked")  # None: short enough
    edits: dict[int, Edit] = {}
    part: list[Interaction] = []
    for interaction in view.interactions[: max(0, len(view.interactions) - settings.keep_last)]:
        for pair, trace_id in zip(interaction.pairs, interaction.trace_ids, strict=True):
            if trace_id is None or pair.result_at is None:
                continue
            position = interaction.start + pair.result_at
            if (trace_id, limit, tool) not in cache:
                masked = _masked(view.messages[position], session, trace_id, limit)
                cache[trace_id, limit, tool] = masked
            shorter = cache[trace_id, limit, tool]
            if shorter is not None and shorter.tokens < view.tokens_between(position, position + 1):
                edits[position] = shorter
                part.append(interaction)
    why = "" if edits else "no older output is longer than the limit"
    return Choice(edits=edits, keep_all=True, unchanged=why, reasons=Shown(view.history, part))


def _masked(message: object, session: MemoryBankState, trace_id: str, limit: int) -> Edit | None:
    """A result cut to its beginning and its id; None where that is no shorter."""
    content = result_of(message).content
    text = without_base64(content_text(content))
    if len(text) <= limit and isinstance(content, str):
        return None
    head = cut_at_edge(quote_lines(text), limit)
    hint = f"; {session.record_tool} gives the whole" if session.record_tool else ""
    mark = f"{Mark.MASKED}{len(text):,} characters{hint}: trace_id {trace_id}]"
    change = {WHOLE: f"{head}\n{mark}" if head else mark}
    masked = edited_message(message, change)
    return Edit(change, masked, session.counter.count_message(masked))
