"""The nearest real identifier to one that nobody gave: by edits, shape and key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from memory_bank.provenance.kinds import Kind

_DIMENSIONS = 40  # a-z, 0-9, and four for all else
_LOOKED_AT = 24  # candidates whose distance is computed exactly
_BLOCK = 1024
_DIMENSION_OF = bytes(
    o - 97 if 97 <= o <= 122 else 26 + o - 48 if 48 <= o <= 57 else 36 + o % 4 for o in range(256)
)


@dataclass(frozen=True, slots=True)
class Candidate:
    """An identifier that stands in a source: as written, in normal form, its kind, key and place."""

    value: str
    normal: str
    kind: Kind
    key: str
    source: int
    place: str


def distance(a: str, b: str, limit: int) -> int:
    """Edits from ``a`` to ``b``: insert, delete, replace, swap of neighbours; ``limit + 1`` when more.

    The optimal string alignment distance, in a band around the diagonal.
    """
    if abs(len(a) - len(b)) > limit:
        return limit + 1
    start = 0
    while start < len(a) and start < len(b) and a[start] == b[start]:
        start += 1
    end = 0
    while end < len(a) - start and end < len(b) - start and a[-1 - end] == b[-1 - end]:
        end += 1
    a, b = a[start : len(a) - end], b[start : len(b) - end]
    if not a or not b:
        return min(len(a) + len(b), limit + 1)
    far = limit + 1
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, ca in enumerate(a, 1):
        low, high = max(1, i - limit), min(len(b), i + limit)
        new = [far] * (len(b) + 1)
        new[0] = i
        for j in range(low, high + 1):
            cb = b[j - 1]
            cost = min(new[j - 1] + 1, row[j] + 1, row[j - 1] + (ca != cb))
            if i > 1 and j > 1 and ca == b[j - 2] and cb == a[i - 2]:
                cost = min(cost, before[j - 2] + 1)
            new[j] = cost
        if min(new) > limit:
            return far
        before, row = row, new
    return min(row[-1], far)


def shape(normal: str) -> str:
    """The form of an identifier: digits as 9, letters as a, all else as it is."""
    return "".join("9" if c.isdigit() else "a" if c.isalpha() else c for c in normal)


def same_key(a: str, b: str) -> bool:
    """Whether two names of members mean the same: ``orderId``, ``order_ids`` and ``id`` of an order."""
    a, b = (k.casefold().replace("_", "").replace("-", "").removesuffix("s") for k in (a, b))
    return bool(a and b) and (a.endswith(b) or b.endswith(a))


class Neighbourhood:
    """Candidates as columns of character counts: the near ones of many thousands are found at once."""

    def __init__(self) -> None:
        self.candidates: list[Candidate] = []
        self._by_normal: dict[str, int] = {}
        self._by_shape: dict[str, list[int]] = {}
        self._counts: np.ndarray[Any, Any] = np.zeros((_DIMENSIONS, _BLOCK), np.int8)

    def add(self, candidate: Candidate) -> bool:
        """Take in a candidate; of equal ones the first stays, and the answer is False."""
        if candidate.normal in self._by_normal:
            return False
        at = len(self.candidates)
        if at == self._counts.shape[1]:
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)], axis=1)
        self._by_normal[candidate.normal] = at
        self._by_shape.setdefault(shape(candidate.normal), []).append(at)
        self._counts[:, at] = _count(candidate.normal)
        self.candidates.append(candidate)
        return True

    def get(self, normal: str) -> Candidate | None:
        """The candidate that is written so."""
        at = self._by_normal.get(normal)
        return None if at is None else self.candidates[at]

    def nearest(self, normal: str, key: str = "", limit: int | None = None) -> tuple[Candidate, int] | None:
        """The nearest candidate and its distance, or None where none is near.

        With ``limit`` only candidates within so many edits; without, up to a third of the length, and, where
        there is none, the latest of the same shape under the same key.
        """
        size = len(self.candidates)
        if not size:
            return None
        reach = max(2, len(normal) // 3) if limit is None else limit
        own_shape = shape(normal)
        best: tuple[tuple[float, int], Candidate, int] | None = None
        for candidate, least in self._near(normal, reach):
            if best is not None and least > best[2] + 1:  # shape and key outweigh one edit, never two
                break
            d = distance(normal, candidate.normal, reach if best is None else min(reach, best[2] + 1))
            if not 0 < d <= reach:
                continue
            score = d - 0.6 * (own_shape == shape(candidate.normal)) - 0.5 * same_key(key, candidate.key)
            if best is None or (score, -candidate.source) < best[0]:
                best = (score, -candidate.source), candidate, d
        if best is not None:
            return best[1], best[2]
        if limit is None:
            for at in reversed(self._by_shape.get(own_shape, ())[-_LOOKED_AT:]):
                if same_key(key, self.candidates[at].key):
                    return self.candidates[at], distance(normal, self.candidates[at].normal, len(normal))
        return None

    def _near(self, normal: str, reach: int) -> Iterator[tuple[Candidate, int]]:
        """The candidates whose letters differ least, each with the fewest edits that this may mean."""
        counts = self._counts[:, : len(self.candidates)]
        differ = np.abs(counts - _count(normal)[:, None]).sum(axis=0, dtype=np.int16)
        chosen = np.flatnonzero(differ <= 2 * reach)  # one edit changes at most two counts
        if len(chosen) > _LOOKED_AT:
            chosen = chosen[np.argpartition(differ[chosen], _LOOKED_AT)[:_LOOKED_AT]]
        for i in sorted(chosen.tolist(), key=lambda i: differ[i]):
            yield self.candidates[i], (int(differ[i]) + 1) // 2


def _count(normal: str) -> np.ndarray[Any, Any]:
    codes = normal[:100].encode("latin-1", "replace").translate(_DIMENSION_OF)
    return np.bincount(np.frombuffer(codes, np.uint8), minlength=_DIMENSIONS).astype(np.int8)
