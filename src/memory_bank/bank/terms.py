"""The terms of records, and BM25 over them: how records are ranked by words.

A bank stores the hashed terms of a record, never a second copy of its texts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from struct import Struct
from typing import Any, NamedTuple

import numpy as np

from memory_bank.models.lexical import Hashes, hashed_terms, stop_terms
from memory_bank.records import InteractionRecord
from memory_bank.selection.effects import is_failure
from memory_bank.transcript.jsontext import compact
from memory_bank.transcript.messages import readable_output

BESIDE = 0.3  # weight of summary, tool and arguments beside an output
SATURATION, LENGTH = 1.2, 0.5  # k1 and b of BM25 (Robertson and Zaragoza, 2009)
_FINE = 23  # a stored weight is one byte: 23 times its logarithm
_HEAD = Struct("<fQQ")
_MANNER = {"description", "timeout", "limit", "max_results", "verbose"}  # arguments that name no object

_SENTENCES = re.compile(
    r"(?<![^\W\d_])(?:[^\W\d_][^\W\d_'’]*+[,.!?;]*+\s++){5,}+[^\W\d_]*+"
)  # six words or more


class CallState(NamedTuple):
    """Hashes of a record's call and of its output, to find what a later call of the same arguments returned.

    The call is 0 where the output says nothing about it: there is no record, the call has failed, or it is prose.
    """

    call: int
    output: int


def terms_of(summary: str, record: InteractionRecord | None) -> bytes:
    """The terms of a summary with its record, as they are stored: those of the output count most.

    That is the sum of all weights (float32), the CallState (two uint64), then the terms in ascending order (uint32)
    and their weights (uint8, logarithms), all little-endian.
    """
    call, output, beside = 0, summary, ""
    if record is not None:
        value, text = record.raw_output, record.output_text
        if text is None or ("\\u" in text and not isinstance(value, str)):  # JSON with escaped letters
            text = compact(value)
        output = readable_output(record)[1] if "base64" in text else text
        arguments = record.raw_input
        given = arguments if isinstance(arguments, str) else compact(arguments)
        beside = f"{record.tool_name}\n{given}\n{summary}"
        if isinstance(arguments, dict):
            arguments = sorted((k, compact(v)) for k, v in arguments.items() if k not in _MANNER)
        if not is_failure(output) and not _is_prose(output):
            call = _digest(compact([record.tool_name, arguments])) or 1
    hashes, is_beside = hashed_terms(output, beside)
    weights = np.where(is_beside, BESIDE, 1.0)
    terms, which = np.unique(hashes, return_inverse=True)
    sums = np.rint(_FINE * np.log1p(np.bincount(which, weights, len(terms))))
    stored = np.minimum(sums, 255).astype(np.uint8)
    head = _HEAD.pack(weights.sum(), call, _digest(output))
    return b"".join((head, terms.astype("<u4").tobytes(), stored.tobytes()))


def _is_prose(output: str) -> bool:
    """Whether an output is mostly sentences, as a message of a conversation is: it states no value of a key."""
    return len(output) <= 2_000 and 2 * sum(len(m[0]) for m in _SENTENCES.finditer(output)) > len(output)


def _digest(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest())


def call_state(stored: bytes) -> CallState:
    """The CallState in what ``terms_of`` returned."""
    return CallState(*_HEAD.unpack_from(stored)[1:])


def terms_of_query(query: str) -> Hashes:
    """The different terms of a query, without the words that every text has, unless it has no others."""
    asked = np.unique(hashed_terms(query)[0])
    return left if len(left := np.setdiff1d(asked, stop_terms())) else asked


@dataclass(frozen=True, slots=True)
class _Segment:
    """Terms in ascending order; those of the i-th are rows and weights from ``begin[i]`` up to ``begin[i + 1]``."""

    terms: Hashes
    begin: Any
    rows: Any
    weights: Any


class TermIndex:
    """The terms of numbered rows, in memory. Adding is amortised: about as costly as sorting."""

    def __init__(self) -> None:
        self._segments: list[_Segment] = []
        self._lengths = np.zeros(0)  # of each row: the sum of its weights

    def add(self, stored: Sequence[bytes]) -> None:
        """Add rows, numbered on from those that are there, each as ``terms_of`` returns it."""
        first = len(self._lengths)
        self._lengths = np.append(self._lengths, [_HEAD.unpack_from(b)[0] for b in stored])
        counts = [(len(b) - _HEAD.size) // 5 for b in stored]
        terms = b"".join(b[_HEAD.size : _HEAD.size + 4 * n] for b, n in zip(stored, counts, strict=True))
        weights = b"".join(b[_HEAD.size + 4 * n :] for b, n in zip(stored, counts, strict=True))
        rows = np.repeat(np.arange(first, first + len(stored), dtype=np.uint32), counts)
        new = _segment(np.frombuffer(terms, "<u4"), rows, np.frombuffer(weights, np.uint8))
        while self._segments and len(self._segments[-1].rows) < 2 * len(new.rows):
            old = self._segments.pop()
            spread = np.repeat(old.terms, np.diff(old.begin)), np.repeat(new.terms, np.diff(new.begin))
            parts = spread, (old.rows, new.rows), (old.weights, new.weights)
            new = _segment(*map(np.concatenate, parts))
        self._segments.append(new)

    def scores(self, query: Hashes, present: Any = None) -> tuple[Any, float]:
        """BM25 of each row (float64), 0 where it is not ``present`` (a mask), and the most that a row could have."""
        lengths = self._lengths
        present = np.ones(len(lengths), bool) if present is None else present
        scores = np.zeros(len(lengths))
        size = max(1, int(np.count_nonzero(present)))
        mean = lengths[present].sum() / size
        norms = SATURATION * (1 - LENGTH + LENGTH * lengths / max(1.0, mean))
        most = 0.0
        for term in query:
            found = [(s.rows[a:b], s.weights[a:b]) for s in self._segments for a, b in [_place(s, term)]]
            rows, weights = (np.concatenate(column) for column in zip(*found, strict=True))
            rows, weights = rows[present[rows]], np.expm1(weights[present[rows]] / _FINE)
            weight = np.log(1 + (size - len(rows) + 0.5) / (len(rows) + 0.5)) * (SATURATION + 1)
            scores[rows] += weight * weights / (weights + norms[rows])
            most += weight
        return scores, most


def _place(segment: _Segment, term: np.uint32) -> tuple[int, int]:
    at = int(np.searchsorted(segment.terms, term))
    if at == len(segment.terms) or segment.terms[at] != term:
        return 0, 0
    return int(segment.begin[at]), int(segment.begin[at + 1])


def _segment(terms: Any, rows: Any, weights: Any) -> _Segment:
    order = np.argsort(terms, kind="stable")
    found, begin = np.unique(terms[order], return_index=True)
    return _Segment(found, np.append(begin, len(terms)), rows[order], weights[order])
