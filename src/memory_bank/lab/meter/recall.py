"""Whether a needed value stands in a context, and whether it stands next to what it belongs to.

After the reference meter (``evbench.run``): a bare dump of identifiers recalls, but binds nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from memory_bank.lab.meter.matching import Page, Reader
from memory_bank.lab.meter.needs import Need, message_texts, words_near

BOUND_CHARS = 240
"""Characters on either side of a value within which the words that it belongs to are sought."""

BOUND_SHARE = 0.5
"""So much of the words of one original occurrence must be there."""

_PLACES = 40  # occurrences looked at in one text


def context_pages(context: Iterable[Any], reader: Reader) -> list[Page]:
    """The texts of a context's messages, ready to be searched."""
    return [reader.page(text) for message in context for text in message_texts(message)]


def recall(need: Need, pages: Iterable[Page]) -> tuple[bool, bool]:
    """``(present, bound)`` of a need in a context.

    Bound: within 240 characters on either side stand at least half of the words of one of its original
    surroundings. A value that once stood alone is bound anywhere.
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
