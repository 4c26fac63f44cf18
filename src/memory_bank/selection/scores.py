"""The linear half of the model for all values of a session: what did not change is not computed again."""

from __future__ import annotations

import numpy as np

from memory_bank.selection.candidates import KINDS
from memory_bank.selection.features import (
    FEATURES,
    OWNERS,
    history,
    owner_columns,
    segment_constants,
    static_columns,
    step_columns,
    timed_columns,
)
from memory_bank.selection.session import Session
from memory_bank.selection.situation import Situation
from memory_bank.selection.tables import Array, Table


class LinearScores:
    """``weights @ describe(...)`` of one growing session, without building the matrix.

    Each value's constant part is kept and made anew when the session says that the value changed; a part
    that many values share is summed once by its owner and then looked up.
    """

    def __init__(self, weights: Array) -> None:
        self._weights = {n: float(w) for n, w in zip(FEATURES, weights, strict=True)}
        self._by_kind = np.asarray(weights[: len(KINDS)], dtype=np.float32)
        self._constant = Table(score=("f4", 0.0))
        self._segments = Table(score=("f4", 0.0))

    def score(self, session: Session, now: Situation) -> Array:
        """A score for every value of the session, float32, shape (values,); some may not be on offer."""
        v = session.values
        self._constant.grow(v.size - self._constant.size)
        changed = session.take_changed()
        if len(changed):
            sums = self._sum(static_columns(session, changed))
            self._constant["score"][changed] = sums + self._by_kind[v["kind"][changed]]
        total = self._constant["score"] + np.float32(self._weights["history"] * history(session))
        parts = {name: self._sum(owner_columns(session, now, name)) for name in OWNERS}
        if session.segments.size:
            first = session.take_changed_segments()
            self._segments.grow(session.segments.size - self._segments.size)
            if first < self._segments.size:
                self._segments["score"][first:] = self._sum(segment_constants(session, slice(first, None)))
            by_record = parts.pop("record")[session.segments["record"]]
            parts["segment"] = parts["segment"] + self._segments["score"] + by_record
            for name, part in parts.items():
                if len(part):
                    total += part.take(v[name], mode="clip")
        for name, column in step_columns(now, slice(None)).items():
            total += np.float32(self._weights[name]) * column
        timed = session.timed["value"]
        if len(timed):
            total[timed] += self._sum(timed_columns(session, now, timed))
        return np.asarray(total)

    def _sum(self, columns: dict[str, Array]) -> Array:
        total: Array = np.zeros(1, dtype=np.float32)
        for name, column in columns.items():
            total = total + np.float32(self._weights[name]) * np.asarray(column, dtype=np.float32)
        return total
