"""Whether a context holds a needed value, holds it next to its words, or shows how to fetch it.

Presence and binding follow the reference meter (``evbench.run``): a bare list of identifiers is present, but
bound to nothing.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from memory_bank import InteractionRecord
from memory_bank.lab.meter.matching import Form, Page, Reader
from memory_bank.lab.meter.needs import Need, words_near
from memory_bank.lab.traces import message_texts
from memory_bank.transcript import compact

BOUND_CHARS = 240
"""Characters on either side of a value within which its words are looked for."""

BOUND_SHARE = 0.5
"""The share of the words of one original occurrence that must be there."""

SHORTEST_ID = 8
"""The context must show at least this many hexadecimal digits of a trace_id, and no other id may match."""

_PLACES = 40  # occurrences looked at in one text
_OFFER = 'get_record("#'  # a context that says this offers records by their number in the order of storing
# #3, #12 to #19, #12–#19, #12–19, #3, …, #19
_HANDLE = re.compile(r"#(\d{1,6})(?:(?: to #|\s?[-–—]\s?#|–)(\d{1,6}))?(?:, …, #(\d{1,6}))?")
_SHORTENED = re.compile(r"\[…\s?#(\d{1,6})\]")  # ends a shortened output or argument
_HEX = re.compile(r"(?<![^\W_])[0-9a-f]{8,}+(?:-[0-9a-f]++)*(?![^\W_])")


def context_pages(context: Iterable[object], reader: Reader) -> list[Page]:
    """The texts of a context's messages as pages."""
    return [reader.page(text) for message in context for text in message_texts(message)]


def recall(need: Need, pages: Iterable[Page]) -> tuple[bool, bool]:
    """``(present, bound)`` of a need in a context.

    Bound: within 240 characters on either side are at least half of the words of one of its original
    occurrences. A value that once had no words around it is bound wherever it is present.
    """
    supports = [s for s in need.supports if s]
    alone = len(supports) < len(need.supports) or not supports
    present = False
    for page in pages:
        for form in need.forms:
            for at in page.places(form, 1 if alone else _PLACES):
                present = True
                if alone or _is_bound(page.text, at, at + len(form.text), supports):
                    return True, True
    return present, False


def _is_bound(text: str, start: int, stop: int, supports: Sequence[frozenset[str]]) -> bool:
    near = words_near(text[max(0, start - BOUND_CHARS) : start]) | words_near(text[stop : stop + BOUND_CHARS])
    return any(len(s & near) >= BOUND_SHARE * len(s) for s in supports)


class Facts(Protocol):
    """The part of a fact store that reachability uses."""

    def get(self, trace_id: str) -> InteractionRecord | None:
        """The record, or None."""

    def steps(self) -> Mapping[str, int]:
        """The step of every record by trace_id."""


def facts_in(state: object) -> Facts | None:
    """The store that a state (an object or a dict) carries as ``fact_store``, or None."""
    store = state.get("fact_store") if isinstance(state, Mapping) else getattr(state, "fact_store", None)
    return store if hasattr(store, "get") and hasattr(store, "steps") else None


class Reach:
    """Says which needs that a context lacks are in the records whose ids it shows."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._outputs: dict[str, Page | None] = {}

    def fetchable(self, needs: Sequence[Need], pages: Sequence[Page], facts: Facts | None) -> dict[str, bool]:
        """By value, whether fetching one of the shown records yields a need; False without a store."""
        if facts is None:
            return {n.value: False for n in needs}
        shown = shown_ids(list(facts.steps()), pages)
        fetched = [page for t in shown if (page := self._output(t, facts)) is not None]
        return {n.value: any(page.holds(n.forms) for page in fetched) for n in needs}

    def _output(self, trace_id: str, facts: Facts) -> Page | None:
        if trace_id not in self._outputs:
            record = facts.get(trace_id)
            if record is None:
                self._outputs[trace_id] = None
            else:
                text = record.output_text
                self._outputs[trace_id] = self._reader.page(
                    compact(record.raw_output) if text is None else text
                )
        return self._outputs[trace_id]


def shown_ids(trace_ids: Sequence[str], pages: Sequence[Page]) -> list[str]:
    """The trace_ids that pages show: whole, as an unambiguous prefix of 8 hex digits, or by number.

    Numbers count only where a text says how to fetch records by them; in the other texts of such a context, only
    those that end a shortened output (``[… #12]``). A list with a gap (``#3, …, #19``) names all in between.
    """
    by_digits = sorted((t.casefold().replace("-", ""), t) for t in trace_ids)
    found: dict[str, None] = {}
    for page in pages:
        for match in _HEX.findall(page.text):
            groups = match.split("-")
            for n in range(len(groups), 0, -1):  # a word may follow a hyphen: drop the last groups
                if trace_id := _only_match(by_digits, "".join(groups[:n])):
                    found[trace_id] = None
                    break
    offers = [_OFFER in page.text for page in pages]
    for page, offer in zip(pages, offers, strict=True):
        if any(offers):
            numbered = (_HANDLE if offer else _SHORTENED).finditer(page.text)
            for first, *rest in (m.groups() for m in numbered):
                last = next(filter(None, reversed(rest)), first)
                numbers = range(int(first), int(last) + 1)
                found.update((trace_ids[n - 1], None) for n in numbers if 0 < n <= len(trace_ids))
    others = [(t, Form(t.casefold())) for t in trace_ids if t not in found and not _is_hex(t)]
    found.update((t, None) for t, form in others if any(page.places(form) for page in pages))
    return list(found)


def _only_match(by_digits: Sequence[tuple[str, str]], prefix: str) -> str | None:
    """The trace_id that begins with a prefix, if there is exactly one."""
    if len(prefix) < SHORTEST_ID:
        return None
    at = bisect_left(by_digits, (prefix, ""))
    matches = [t for digits, t in by_digits[at : at + 2] if digits.startswith(prefix)]
    return matches[0] if len(matches) == 1 else None


def _is_hex(trace_id: str) -> bool:
    return re.fullmatch(r"[0-9a-f-]+", trace_id.casefold()) is not None and len(trace_id) >= SHORTEST_ID
