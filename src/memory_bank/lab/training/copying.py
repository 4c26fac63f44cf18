"""Samples of segments that the next call copies text from, and the fit of the model of copied text to them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from memory_bank.selection.copying import COPY_FEATURES
from memory_bank.selection.index import EvidenceIndex
from memory_bank.selection.tables import Array

COPIED = 24
"""Characters of the shortest text that counts as copied."""
OTHERS = 60
"""Segments of one step that nothing is copied from and that are sampled."""
MOST_TEXT = 40_000
"""Characters of one argument that are compared."""

_WORD = re.compile(r"\w")


@dataclass(frozen=True, slots=True)
class CopySamples:
    """Segments of a trace file: features `x` (n, features), copied from or not `y`, weight `w`, trace."""

    x: Array
    y: Array
    w: Array
    trace: Array

    def take(self, rows: Array) -> CopySamples:
        """Return some of the samples."""
        return CopySamples(self.x[rows], self.y[rows], self.w[rows], self.trace[rows])


NO_SAMPLES = (np.zeros((0, len(COPY_FEATURES)), np.float32), np.zeros(0, bool), np.zeros(0, np.float32))


def argument_texts(arguments: str) -> Iterator[str]:
    """Yield the strings in a call's arguments that are long enough to hold copied text."""
    try:
        stack: list[object] = [json.loads(arguments)] if arguments else []
    except (ValueError, RecursionError):
        stack = [arguments]
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            stack.extend(value.values())
        elif isinstance(value, list):
            stack.extend(value)
        elif isinstance(value, str) and len(value) >= COPIED:
            yield value[:MOST_TEXT]


class CopiedText:
    """Where the text of a trace's arguments stands in the segments of its index."""

    def __init__(self, calls: Sequence[str]) -> None:
        """`calls`: the arguments of all calls of the trace."""
        self._known = {gram for call in calls for text in argument_texts(call) for gram in _grams(text)}
        self._places: dict[str, list[int]] = {}  # of each gram, in the order of the segments
        self._records = 0

    def follow(self, index: EvidenceIndex) -> None:
        """Take in the records that the index has got since the last time."""
        t = index.tables
        for record in range(self._records, len(t.parsed)):
            for number, segment in enumerate(t.parsed[record].cut.segments, t.first_segment[record]):
                for gram in _grams(segment.text):
                    if gram in self._known:
                        places = self._places.setdefault(gram, [])
                        if not places or places[-1] != number:
                            places.append(number)
        self._records = len(t.parsed)

    def sources(self, arguments: Sequence[str], last: int, anchor: str) -> set[int]:
        """Return the segments before `last` from which some calls copy what neither anchor nor tail shows.

        Of several copies of a text the latest counts.
        """
        found: set[int] = set()
        for call in arguments:
            for text in argument_texts(call):
                for gram in _grams(text):
                    places = self._places.get(gram)
                    if not places or places[-1] >= last or places[-1] in found:
                        continue
                    if len(_WORD.findall(gram)) >= COPIED // 2 and gram not in anchor:
                        found.add(places[-1])
        return found


def _grams(text: str) -> Iterator[str]:
    return (text[n : n + COPIED] for n in range(len(text) - COPIED + 1))


def sample(x: Array, sources: set[int], random: np.random.Generator) -> tuple[Array, Array, Array]:
    """Return (x, y, w) of one step: all segments that are copied from, some of the others; x by segment."""
    y = np.zeros(len(x), bool)
    y[list(sources)] = True
    positive, others = np.flatnonzero(y), np.flatnonzero(~y)
    few = others
    if len(others) > OTHERS:
        few = np.sort(random.choice(others, OTHERS, replace=False))
    chosen = np.concatenate([positive, few])
    weight = np.concatenate([np.ones(len(positive)), np.full(len(few), len(others) / max(1, len(few)))])
    return x[chosen], y[chosen], weight.astype(np.float32)


def fit_copied(samples: Sequence[CopySamples], ridge: float = 30.0) -> Array:
    """Return logistic weights and a bias by Newton steps; a file weighs its positive samples to the power 0.5.

    Empty where too little is copied.
    """
    used = [s for s in samples if s.y.sum() >= 20]
    if not used:
        return np.zeros(0, np.float32)
    x = np.concatenate([s.x for s in used]).astype(np.float64)
    y = np.concatenate([s.y for s in used])
    w = np.concatenate([s.w * float(s.y.sum()) ** -0.5 for s in used])
    w *= 20_000 / w[y].sum()
    mean, spread = np.average(x, axis=0, weights=w), x.std(axis=0)
    spread[spread < 1e-6] = 1.0
    z = np.concatenate([(x - mean) / spread, np.ones((len(x), 1))], axis=1)
    beta = np.zeros(z.shape[1])
    beta[-1] = np.log(w[y].sum() / w[~y].sum())
    penalty = np.full(len(beta), ridge)
    penalty[-1] = 0.0
    for _ in range(25):
        p = 1 / (1 + np.exp(-np.clip(z @ beta, -30, 30)))
        gradient = z.T @ (w * (p - y)) + penalty * beta
        hessian = (z * (w * p * (1 - p))[:, None]).T @ z + np.diag(penalty + 1e-6)
        step = np.linalg.solve(hessian, gradient)
        beta -= step * min(1.0, 2 / max(1e-9, float(np.abs(step).max())))
        if np.abs(step).max() < 1e-5:
            break
    weights = beta[:-1] / spread
    return np.append(weights, beta[-1] - (weights * mean).sum()).astype(np.float32)
