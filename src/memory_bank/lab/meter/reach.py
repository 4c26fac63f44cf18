"""Reachability: what a context leaves out, but one fetch by a trace_id that it shows would bring back."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from memory_bank.lab.meter.matching import Form, Page, Reader
from memory_bank.lab.meter.needs import Need
from memory_bank.records import InteractionRecord
from memory_bank.transcript.jsontext import compact, plain

SHORTEST_ID = 8
"""So many hexadecimal digits of a trace_id must stand in the context, and no other id may begin with them."""

_OFFER = 'get_record("#'
"""A context that says this offers records by their number, from 1 in the order of storing."""

_HANDLE = re.compile(r"#(\d{1,6})(?: to #(\d{1,6}))?")
_HEX = re.compile(r"(?<![^\W_])[0-9a-f]{8,}+(?:-[0-9a-f]++)*(?![^\W_])")


class Facts(Protocol):
    """What reachability asks of a store of records."""

    def get(self, trace_id: str) -> InteractionRecord | None:
        """The record, or None."""

    def steps(self) -> Mapping[str, int]:
        """The step of every record by trace_id."""


class Reach:
    """Looks up a trace's left-out needs in the records whose ids a context shows."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._outputs: dict[str, Page | None] = {}

    def fetchable(self, needs: Sequence[Need], pages: Sequence[Page], facts: Facts | None) -> dict[str, bool]:
        """For every need, by value, whether a fetch of a shown trace_id yields it; without a store, never."""
        if facts is None:
            return {n.value: False for n in needs}
        shown = shown_ids(list(facts.steps()), pages)
        fetched = [page for t in shown if (page := self._output(t, facts)) is not None]
        return {n.value: any(page.holds(n.forms) for page in fetched) for n in needs}

    def _output(self, trace_id: str, facts: Facts) -> Page | None:
        if trace_id not in self._outputs:
            record = facts.get(trace_id)
            self._outputs[trace_id] = None if record is None else self._reader.page(output_text(record))
        return self._outputs[trace_id]


def output_text(record: InteractionRecord) -> str:
    """What a fetch of the record shows of its output."""
    return record.output_text if record.output_text is not None else compact(plain(record.raw_output))


def shown_ids(trace_ids: Sequence[str], pages: Sequence[Page]) -> list[str]:
    """The trace_ids on the pages: whole, as a prefix of 8 hex digits that only one has, or by number.

    Numbers count only where the context says how they are fetched.
    """
    by_digits = sorted((t.casefold().replace("-", ""), t) for t in trace_ids)
    found: dict[str, None] = {}
    for page in pages:
        for match in _HEX.findall(page.text):
            for prefix in _shorter(match):
                if trace_id := _only(by_digits, prefix):
                    found[trace_id] = None
                    break
    for page in pages:
        if _OFFER in page.text:
            for first, last in _HANDLE.findall(page.text):
                numbers = range(int(first), int(last or first) + 1)
                found.update((trace_ids[n - 1], None) for n in numbers if 0 < n <= len(trace_ids))
    rest = [(t, Form(t.casefold())) for t in trace_ids if t not in found and not _is_hex(t)]
    for trace_id, form in rest:
        if any(page.places(form) for page in pages):
            found[trace_id] = None
    return list(found)


def _shorter(match: str) -> list[str]:
    """A run of hex groups as digits, and what it is without its last groups: a word may follow a hyphen."""
    groups = match.split("-")
    return ["".join(groups[:n]) for n in range(len(groups), 0, -1)]


def _only(by_digits: Sequence[tuple[str, str]], prefix: str) -> str | None:
    """The one trace_id that begins with a prefix, if there is exactly one."""
    if len(prefix) < SHORTEST_ID:
        return None
    at = bisect_left(by_digits, (prefix, ""))
    starts = [t for digits, t in by_digits[at : at + 2] if digits.startswith(prefix)]
    return starts[0] if len(starts) == 1 else None


def _is_hex(trace_id: str) -> bool:
    return re.fullmatch(r"[0-9a-f-]+", trace_id.casefold()) is not None and len(trace_id) >= SHORTEST_ID


def facts_in(state: Any) -> Facts | None:
    """The store that a state (an object or a dict) carries as ``fact_store``, or None."""
    store = state.get("fact_store") if isinstance(state, Mapping) else getattr(state, "fact_store", None)
    return store if hasattr(store, "get") and hasattr(store, "steps") else None
