"""scratchpad: a note of key values, last calls and last failures in place of past interactions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from memory_bank.bank.session import MemoryBankState
from memory_bank.config import ScratchpadSettings
from memory_bank.context.policies.digest import Item, items_of, text_room
from memory_bank.plan import Choice, Shown
from memory_bank.selection.effects import is_failure
from memory_bank.transcript.jsontext import inner_json, leaves
from memory_bank.transcript.messages import in_full, readable_output
from memory_bank.transcript.shortening import cut_at_edge, fit_text
from memory_bank.transcript.transcript import View

_KEY = re.compile(
    r"(?:id|ids|uuid|key|code|number|sku|name|title|email|path|file|url|status|date|token)$", re.I
)
_LEAVES = 400  # of one output
_VALUES = 12  # of one key
Notes = tuple[bool, dict[tuple[str, str], None]]
"""Whether a call failed, and its keys with their values."""


class _Notes(dict[str, Notes]):
    """The notes on every call, by trace_id."""


def choose_scratchpad(view: View, session: MemoryBankState, *, settings: ScratchpadSettings) -> Choice:
    """A scratchpad of at most ``scratchpad_tokens`` tokens in place of all past interactions.

    Observations and failures first, then as many key values as there is room for, the latest first.
    """
    budget = view.kept_tokens + settings.scratchpad_tokens
    if not view.past:
        return Choice(unchanged="there was no history yet", budget=budget)
    count, room = session.counter.count_text, text_room(settings.scratchpad_tokens, session)
    items = items_of(view.past, session)
    noted = _notes(items, session)
    failed = [i for i in items if noted[i.trace_id][0]]
    parts = [f"Scratchpad of the earlier tool calls{in_full(session.record_tool)}."]
    for title, of_kind, most in (
        ("Last failures:", failed, settings.failures),
        ("Last calls:", items, settings.observations),
    ):
        if most and of_kind:
            parts += [title, *(i.line(settings.observation_chars) for i in of_kind[-most:])]
    text = fit_text("\n".join(parts), room, count)
    left = room - count(text) - 8
    lines: list[str] = []
    for line in _facts(items, noted, settings.facts):
        left -= count(line) + 1
        if left < 0:
            break
        lines.append(line)
    if lines:
        text = fit_text("\n".join([text, "Key values:", *lines]), room, count)
    return Choice(text=text, reasons=Shown(listed=view.past), budget=budget)


def _facts(items: Sequence[Item], noted: Mapping[str, Notes], most: int) -> Iterator[str]:
    """``key: value (#1), value (#2)``; the key met last comes first, and of a key its last values."""
    facts: dict[str, dict[str, int]] = {}
    for item in items:
        for key, value in noted[item.trace_id][1]:
            values = facts.pop(key, {})
            values.pop(value, None)
            values[value] = item.number
            facts[key] = values
    for key, values in islice(reversed(facts.items()), most):
        latest = list(values.items())[-_VALUES:]
        earlier = f"; {len(values) - len(latest)} earlier ones" if len(values) > len(latest) else ""
        yield f"{key}: {', '.join(f'{v} (#{n})' for v, n in latest)}{earlier}"


def _notes(items: Sequence[Item], session: MemoryBankState) -> dict[str, Notes]:
    """The notes on some calls; every output is looked at once."""
    known = session.cache(_Notes)
    missing = [i.trace_id for i in items if i.trace_id not in known]
    known.update(dict.fromkeys(missing, (False, {})))
    for record in session.fact_store.get_many(missing) if missing else ():
        value, text = readable_output(record)
        found: dict[tuple[str, str], None] = {}
        for given in (record.raw_input, value):
            shallow_first = leaves(given, opened=inner_json, breadth_first=True)
            for leaf in islice(shallow_first, _LEAVES):
                node, key = leaf.value, leaf.key
                if node not in (None, "") and not isinstance(node, bool) and _KEY.search(key):
                    found[key[:60], " ".join(cut_at_edge(str(node)[:400], 120).split())] = None
        known[record.trace_id] = is_failure(text), found
    return known
