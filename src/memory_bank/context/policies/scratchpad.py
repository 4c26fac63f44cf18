"""scratchpad: a note of key values, last calls and last failures in place of past interactions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from memory_bank.bank.session import MemoryBankState
from memory_bank.config import ScratchpadSettings
from memory_bank.context.policies.digest import Item, items_of, text_room
from memory_bank.plan import Choice, Shown
from memory_bank.records import InteractionRecord
from memory_bank.transcript.jsontext import RAW
from memory_bank.transcript.messages import Interaction, in_full
from memory_bank.transcript.shortening import cut_at_edge, fit_text, unfold
from memory_bank.transcript.transcript import View

HEADING = "Scratchpad of the earlier tool calls{}."
_FAILED = re.compile(r"\b(?:error|exception|traceback|failed|failure|denied|fatal|not found)\b", re.I)
_FAILED_KEY = re.compile(r"(?:^|_)(?:error|errors|exception|failure)(?:_|$)", re.I)
_KEY = re.compile(
    r"(?:id|ids|uuid|key|code|number|sku|name|title|email|path|file|url|status|date|token)$", re.I
)
_HEAD_CHARS = 300  # of a text, where it tells of a failure
_LEAVES = 400  # of one output
_VALUE_CHARS = 120
_VALUES = 12  # of one key


class _Notes(dict[str, tuple[bool, list[tuple[str, str]]]]):
    """Whether each call failed, and its key values, by trace_id."""


def choose_scratchpad(view: View, session: MemoryBankState, *, settings: ScratchpadSettings) -> Choice:
    """A scratchpad of at most ``scratchpad_tokens`` tokens in place of all past interactions."""
    budget = view.kept_tokens + settings.scratchpad_tokens
    if not view.past:
        return Choice(unchanged="there was no history yet", budget=budget)
    text = _scratchpad(view.past, settings, session, text_room(settings.scratchpad_tokens, session))
    return Choice(text=text, reasons=Shown(listed=view.past), budget=budget)


def _scratchpad(
    interactions: Sequence[Interaction], settings: ScratchpadSettings, session: MemoryBankState, room: int
) -> str:
    """Observations and failures first, then as many key values as there is room for, the latest first."""
    items = items_of(interactions, session)
    noted = _notes(items, session)
    failed = [i for i in items if noted[i.trace_id][0]]
    parts = [HEADING.format(in_full(session.record_tool))]
    for title, chosen in (
        ("Last failures", failed[-settings.failures :] if settings.failures else []),
        ("Last calls", items[-settings.observations :] if settings.observations else []),
    ):
        if chosen:
            parts.append(f"{title}:")
            parts += [i.line(settings.observation_chars) for i in chosen]
    count = session.counter.count_text
    text = fit_text("\n".join(parts), room, count)
    left = room - count(text) - 8
    lines: list[str] = []
    for line in _facts(items, noted, settings.facts):
        left -= count(line) + 1
        if left < 0:
            break
        lines.append(line)
    return fit_text("\n".join([text, "Key values:", *lines]), room, count) if lines else text


def _facts(items: Sequence[Item], noted: dict[str, Any], most: int) -> Iterator[str]:
    """``key: value (#1), value (#2)``; the key met last comes first, and of a key its last values."""
    facts: dict[str, dict[str, int]] = {}
    for item in items:
        for key, value in noted[item.trace_id][1]:
            values = facts.setdefault(key, {})
            values.pop(value, None)
            values[value] = item.number
            facts[key] = facts.pop(key)
    for key, values in list(reversed(facts.items()))[:most]:
        latest = list(values.items())[-_VALUES:]
        earlier = f"; {len(values) - len(latest)} earlier ones" if len(values) > len(latest) else ""
        yield f"{key}: {', '.join(f'{v} (#{n})' for v, n in latest)}{earlier}"


def _notes(items: Sequence[Item], session: MemoryBankState) -> dict[str, tuple[bool, list[tuple[str, str]]]]:
    """Whether each call failed, and its key values; looked at once."""
    known = session.cache(_Notes)
    missing = [i.trace_id for i in items if i.trace_id not in known]
    for record in session.fact_store.get_many(missing) if missing else ():
        known[record.trace_id] = _note(record)
    for trace_id in missing:
        known.setdefault(trace_id, (False, []))
    return known


def _note(record: InteractionRecord) -> tuple[bool, list[tuple[str, str]]]:
    value = record.raw_output
    if isinstance(value, dict) and list(value) == [RAW]:
        text = str(value[RAW])
        return bool(_FAILED.search(text[:_HEAD_CHARS])), _values(record.raw_input)
    try:
        value = unfold(value)
    except RecursionError:
        return False, []
    failed = isinstance(value, dict) and any(_FAILED_KEY.search(str(k)) and v for k, v in value.items())
    return failed, [*_values(record.raw_input), *_values(value)]


def _values(value: Any) -> list[tuple[str, str]]:
    """Keys that name things with their values, the shallow ones first."""
    found: dict[tuple[str, str], None] = {}
    level: list[tuple[str, Any]] = [("", value)]
    seen = 0
    while level and seen < _LEAVES:
        deeper: list[tuple[str, Any]] = []
        for key, node in level[:_LEAVES]:
            seen += 1
            if isinstance(node, dict):
                deeper += [(str(k), v) for k, v in node.items()]
            elif isinstance(node, list):
                deeper += [(key, v) for v in node]
            elif node not in (None, "") and not isinstance(node, bool) and _KEY.search(key):
                found[key[:60], " ".join(cut_at_edge(str(node)[:400], _VALUE_CHARS).split())] = None
        level = deeper
    return list(found)
