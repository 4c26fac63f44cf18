"""observation_masking: older outputs give way to their beginning and their trace_id."""

from __future__ import annotations

from typing import Any

from memory_bank.config import MaskingSettings
from memory_bank.context.drawn import BankState
from memory_bank.context.report import ContextReport
from memory_bank.context.storing import reported, store
from memory_bank.transcript.content import content_text, read
from memory_bank.transcript.interactions import Interaction, Kind, kind_of, result_of
from memory_bank.transcript.shortening import cut_at_edge


def apply_masking(
    messages: Any, llm_client: Any, settings: MaskingSettings, state: BankState
) -> tuple[list[Any], int]:
    """All messages; outputs before the last ``keep_last`` interactions keep ``max_length`` characters.

    What is cut says so, by ``[masked: …, trace_id …]``; ``get_record`` with that id gives the whole back.
    """
    with state.lock:
        view = store(messages, llm_client, settings, state)
        out, tokens = list(view.messages), view.full_tokens
        cache: dict[Any, Any] = state.memos.setdefault("masked", {})
        for entry in view.interactions[: max(0, len(view.interactions) - settings.keep_last)]:
            for position, trace_id in _results(entry):
                key = (trace_id, settings.max_length)
                if key not in cache:
                    masked = _masked(out[position], settings.max_length, trace_id)
                    cache[key] = masked and (masked, state.counter.count_message(masked))
                if cache[key] is not None:
                    masked, count = cache[key]
                    saved = view.tokens_between(position, position + 1) - count
                    if saved > 0:
                        out[position] = dict(masked)
                        tokens -= saved
        reported(state, ContextReport("observation_masking"), view, tokens)
        return out, tokens


def _results(entry: Interaction) -> list[tuple[int, str]]:
    """The positions of an interaction's results with their trace_ids."""
    left = [
        (p.result, t)
        for p, t in zip(entry.pairs, entry.trace_ids, strict=True)
        if p.result is not None and t is not None
    ]
    found = []
    for i, message in enumerate(entry.messages):
        if kind_of(message) is not Kind.RESULT:
            continue
        result = result_of(message)
        for at, (known, trace_id) in enumerate(left):
            if known.content is result.content and known.call_id == result.call_id:
                found.append((entry.start + i, trace_id))
                del left[at]
                break
    return found


def _masked(message: Any, most: int, trace_id: str) -> Any:
    """A tool message cut to its beginning and its id, or None where that would be no shorter."""
    if not isinstance(message, dict):
        return None
    key = "content" if read(message, "content") is not None else "output"
    text = content_text(message.get(key))
    if len(text) <= most and isinstance(message.get(key), str):
        return None
    head = cut_at_edge(text, most)
    place = f"[masked: {len(text):,} characters; get_record gives the whole: trace_id {trace_id}]"
    return {**message, key: f"{head}\n{place}" if head else place}
