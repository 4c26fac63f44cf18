"""Stretches of a text that stand verbatim in other texts, white space and case included.

The reference meter defines them (``evbench.acting``): stretches of 24 characters and more, JSON escapes of any depth
undone, white space at the ends of lines left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memory_bank.audit.costs import shared_length
from memory_bank.audit.text import parsed_arguments, scalars
from memory_bank.audit.traces import content_texts
from memory_bank.transcript import MessageKind, calls_of, kind_of, read

SHORTEST = 24
"""Characters of the shortest stretch that counts as copied; half of them are letters, digits or underscores."""

_OCCURRENCES = 3  # of a stretch's beginning that are compared in one index


class Tally(NamedTuple):
    """A number of things, and how many of them a context has."""

    has: int
    of: int


def as_copied(text: str) -> str:
    """A text with JSON escapes undone and without white space at the ends of its lines."""
    if "\\" in text:
        control = {"n": "\n", "r": "", "t": "\t"}
        text = re.sub(
            r"""(?<!\\)\\+(?:u([0-9A-Fa-f]{4})|([rnt"'/]))""",
            lambda m: chr(int(m[1], 16)) if m[1] else control.get(m[2], m[2]),
            text,
        )
    return re.sub(r"(?<![ \t\r])[ \t\r]+$", "", text.replace("\r\n", "\n"), flags=re.M)


_Run = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]
"""The hashes of all windows of some texts in ascending order, with the text and the place of each."""


def _run(hashes: NDArray[Any], texts: NDArray[Any], places: NDArray[Any]) -> _Run:
    order = np.argsort(hashes, kind="stable")
    return hashes[order], texts[order], places[order]


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
        run = _run(hashes, number, np.arange(len(hashes), dtype=np.int32))
        while self._runs and len(self._runs[-1][0]) <= 2 * len(run[0]):
            run = _run(*(np.concatenate(pair) for pair in zip(self._runs.pop(), run, strict=True)))
        self._runs.append(run)

    def add_message(self, message: object) -> None:
        """Add the contents and the arguments of a message."""
        for text in [*content_texts(read(message, "content")), *argument_texts(message)]:
            self.add(as_copied(text))

    def candidates(self, hashes: NDArray[np.uint64]) -> dict[int, list[tuple[str, int]]]:
        """By the number of a hash: texts and places whose window has it, the oldest first, a few of each."""
        found: dict[int, list[tuple[str, int]]] = {}
        for own, texts, places in self._runs:
            at = np.searchsorted(own, hashes)
            inside = np.minimum(at, len(own) - 1)
            for n in np.flatnonzero((at < len(own)) & (own[inside] == hashes)):
                known = found.setdefault(int(n), [])
                for place in range(int(at[n]), min(int(at[n]) + _OCCURRENCES, len(own))):
                    if own[place] == hashes[n] and len(known) < _OCCURRENCES:
                        known.append((self._texts[texts[place]], int(places[place])))
        return found


def argument_texts(message: object) -> list[str]:
    """The strings and numbers in the arguments of all calls of a message; arguments that are no JSON as they are."""
    if kind_of(message) is not MessageKind.CALL:
        return []
    return [str(s) for call in calls_of(message) for s in scalars(parsed_arguments(call.arguments))]


def stretches(text: str, *indexes: TextIndex) -> Iterator[str]:
    """The stretches of a text that stand in the indexes, from left to right, each as long as it can be."""
    hashes = _window_hashes(text)
    candidates: dict[int, list[tuple[str, int]]] = {}
    for index in indexes if len(hashes) else ():
        for start, places in index.candidates(hashes).items():
            candidates.setdefault(start, []).extend(places)
    end = 0
    for start in sorted(candidates):
        if start >= end:
            rest = text[start:]
            known = (other[place : place + len(rest)] for other, place in candidates[start])
            length = max(shared_length(rest, other) for other in known)
            if length >= SHORTEST:  # else another window has the same hash
                yield rest[:length]
                end = start + length


def covered(text: str, *indexes: TextIndex) -> int:
    """How many characters of a text stand in the indexes in stretches of 24 and more."""
    return sum(map(len, stretches(text, *indexes)))


def copied_stretches(message: object, source: TextIndex, *near: TextIndex) -> list[str]:
    """The stretches of ``source`` that a message's calls repeat, without those that stand half in ``near``."""
    return [
        stretch
        for text in argument_texts(message)
        if len(text) >= SHORTEST
        for stretch in stretches(as_copied(text), source)
        if len(re.findall(r"\w", stretch)) >= SHORTEST // 2 and covered(stretch, *near) < 0.5 * len(stretch)
    ]


def characters_kept(wanted: Sequence[str], context: TextIndex) -> Tally:
    """The characters of some stretches, and how many of them a context has."""
    return Tally(sum(covered(s, context) for s in wanted), sum(map(len, wanted)))


def _window_hashes(text: str) -> NDArray[np.uint64]:
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32).astype(np.uint64)
    count = max(0, len(codes) - SHORTEST + 1)
    hashes = np.zeros(count, dtype=np.uint64)
    for offset in range(SHORTEST if count else 0):
        hashes *= np.uint64(0x9E3779B97F4A7C15)
        hashes += codes[offset : offset + count]
    return hashes
