"""Stretches of a text that stand verbatim in other texts, white space and case included.

The reference meter defines them (``evbench.acting``): stretches of 24 characters and more, JSON escapes of any depth
undone, white space at the ends of lines left out.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SHORTEST = 24
"""Characters of the shortest stretch that counts as copied."""

_OCCURRENCES = 3  # of a stretch's beginning that are compared in one index
_BASE = np.uint64(0x9E3779B97F4A7C15)

_ESCAPE = re.compile(r"""\\+(?:u([0-9A-Fa-f]{4})|([rnt"'/]))""")
_CONTROL = {"n": "\n", "r": "", "t": "\t"}
_LINE_END = re.compile(r"[ \t\r]+$", re.M)


def as_copied(text: str) -> str:
    """A text with JSON escapes undone and without white space at the ends of its lines."""
    if "\\" in text:
        text = _ESCAPE.sub(lambda m: chr(int(m[1], 16)) if m[1] else _CONTROL.get(m[2], m[2]), text)
    return _LINE_END.sub("", text.replace("\r\n", "\n"))


def shared_length(a: str, b: str) -> int:
    """How many leading characters two texts share, by bisection (slices compare faster than characters)."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


@dataclass(frozen=True, slots=True)
class _Run:
    """The hashes of all windows of some texts in ascending order, with the text and the place of each."""

    hashes: NDArray[np.uint64]
    texts: NDArray[np.int32]
    places: NDArray[np.int32]


class TextIndex:
    """Texts in which verbatim stretches are looked up by a hash of every window of 24 characters."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._runs: list[_Run] = []  # each more than twice as long as the next; older texts first

    def add(self, text: str) -> None:
        """Add a text (``as_copied`` has been applied)."""
        hashes = _window_hashes(text)
        if not len(hashes):
            return
        number = np.full(len(hashes), len(self._texts), dtype=np.int32)
        self._texts.append(text)
        self._runs.append(_sorted(hashes, number, np.arange(len(hashes), dtype=np.int32)))
        while len(self._runs) > 1 and len(self._runs[-2].hashes) <= 2 * len(self._runs[-1].hashes):
            new, old = self._runs.pop(), self._runs.pop()
            self._runs.append(
                _sorted(
                    np.concatenate((old.hashes, new.hashes)),
                    np.concatenate((old.texts, new.texts)),
                    np.concatenate((old.places, new.places)),
                )
            )

    def candidates(self, hashes: NDArray[np.uint64]) -> dict[int, list[tuple[str, int]]]:
        """By the number of a hash: texts and places whose window has it, the oldest first, a few of each."""
        found: dict[int, list[tuple[str, int]]] = {}
        for run in self._runs:
            at = np.searchsorted(run.hashes, hashes)
            inside = np.minimum(at, len(run.hashes) - 1)
            for n in np.flatnonzero((at < len(run.hashes)) & (run.hashes[inside] == hashes)):
                known = found.setdefault(int(n), [])
                for place in range(int(at[n]), min(int(at[n]) + _OCCURRENCES, len(run.hashes))):
                    if run.hashes[place] == hashes[n] and len(known) < _OCCURRENCES:
                        known.append((self._texts[run.texts[place]], int(run.places[place])))
        return found


def stretches(text: str, *indexes: TextIndex) -> Iterator[str]:
    """The stretches of a text that stand in the indexes, from left to right, each as long as it can be."""
    hashes = _window_hashes(text)
    if not len(hashes):
        return
    candidates: dict[int, list[tuple[str, int]]] = {}
    for index in indexes:
        for start, places in index.candidates(hashes).items():
            candidates.setdefault(start, []).extend(places)
    starts = sorted(candidates)
    start = 0
    while (n := bisect_left(starts, start)) < len(starts):
        start = starts[n]
        rest = text[start:]
        length = max(
            shared_length(rest, other[place : place + len(rest)]) for other, place in candidates[start]
        )
        if length < SHORTEST:  # another window has the same hash
            start += 1
            continue
        yield rest[:length]
        start += length


def covered(text: str, *indexes: TextIndex) -> int:
    """How many characters of a text stand in the indexes in stretches of 24 and more."""
    return sum(map(len, stretches(text, *indexes)))


def _window_hashes(text: str) -> NDArray[np.uint64]:
    """A hash of every window of 24 characters."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32).astype(np.uint64)
    count = max(0, len(codes) - SHORTEST + 1)
    hashes = np.zeros(count, dtype=np.uint64)
    for offset in range(SHORTEST if count else 0):
        hashes *= _BASE
        hashes += codes[offset : offset + count]
    return hashes


def _sorted(hashes: NDArray[np.uint64], texts: NDArray[np.int32], places: NDArray[np.int32]) -> _Run:
    order = np.argsort(hashes, kind="stable")
    return _Run(hashes[order], texts[order], places[order])
