"""Texts as hashed terms, and BM25 over them: how records are ranked by words.

A term is a word without case and inflection, or a whole name of several words, such as ``user_id``, ``ORD-48213`` or
``src/app.py``, beside its words. A bank stores the terms of a record, never a second copy of its texts.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from memory_bank.models.lexical import CJK, MAX_CHARS, STOP_WORDS, TAIL_CHARS
from memory_bank.records import InteractionRecord
from memory_bank.selection.effects import is_failure
from memory_bank.transcript.jsontext import compact
from memory_bank.transcript.messages import readable_output

Hashes = npt.NDArray[np.uint32]

BESIDE = 0.3  # weight of summary, tool and arguments beside an output
SATURATION, LENGTH = 1.2, 0.5  # k1 and b of BM25 (Robertson and Zaragoza, 2009)
_MOST_CHARS = 2 * 2**20  # of a longer text the middle is left out
_FINE = 23  # a stored weight is one byte: 23 times its logarithm
_HEAD = Struct("<fQQ")
_MANNER = {"description", "timeout", "limit", "max_results", "verbose"}  # arguments that name no object

_BASE = np.uint64(0x9E3779B97F4A7C15)  # odd: it has an inverse modulo 2^64
_INVERSE = np.uint64(pow(int(_BASE), -1, 2**64))
_FOREIGN = re.compile(r"[^\x00-\x7f]+")
_ESCAPES = re.compile(r"\\[nrtbf\"/\\]")


def _table(characters: Iterable[str]) -> npt.NDArray[np.bool_]:
    return np.isin(np.arange(256), [ord(c) for c in characters])


_UPPER, _LOWER, _DIGIT = (_table(c for c in map(chr, range(128)) if is_(c)) for is_ in (
    str.isupper, str.islower, str.isdigit
))  # fmt: skip
_WORD = (
    _UPPER | _LOWER | _DIGIT | (np.arange(256) > 127)
)  # of other alphabets only letters and digits are left
_IN_NAME = _table("-._@+#")
_IN_PATH = _IN_NAME | _table("/:")
_CODE = np.where(_UPPER, np.arange(256) + 32, np.where(_WORD | _IN_PATH, np.arange(256), 0)).astype(np.uint64)


class CallState(NamedTuple):
    """Hashes of a record's call and of its output, to find what a later call of the same arguments returned.

    The call is 0 where the output says nothing about it: there is no record, or the call has failed.
    """

    call: int
    output: int


def terms_of(summary: str, record: InteractionRecord | None) -> bytes:
    """The terms of a summary with its record, as they are stored: those of the output count most.

    That is the sum of all weights (float32), the CallState (two uint64), then the terms in ascending order (uint32)
    and their weights (uint8, logarithms), all little-endian. Of a text over 64,000 characters the middle counts only
    for names and for what has a digit, and of one over 2 MiB not at all.
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
        if not is_failure(output):
            call = _digest(compact([record.tool_name, arguments])) or 1
    hashes, is_beside = _hashed(output, beside)
    weights = np.where(is_beside, BESIDE, 1.0)
    terms, which = np.unique(hashes, return_inverse=True)
    sums = np.rint(_FINE * np.log1p(np.bincount(which, weights, len(terms))))
    stored = np.minimum(sums, 255).astype(np.uint8)
    head = _HEAD.pack(weights.sum(), call, _digest(output))
    return b"".join((head, terms.astype("<u4").tobytes(), stored.tobytes()))


def _digest(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest())


def call_state(stored: bytes) -> CallState:
    """The CallState in what ``terms_of`` returned."""
    return CallState(*_HEAD.unpack_from(stored)[1:])


def terms_of_query(query: str) -> Hashes:
    """The different terms of a query, without the words that every text has, unless it has no others."""
    asked = np.unique(_hashed(query)[0])
    return left if len(left := np.setdiff1d(asked, _stop_terms())) else asked


@cache
def _stop_terms() -> Hashes:
    return np.unique(_hashed(" ".join(STOP_WORDS))[0])


def _hashed(text: str, beside: str = "") -> tuple[Hashes, npt.NDArray[np.bool_]]:
    """The terms of two texts, each as often as it occurs, and whether it is of the second."""
    encoded = [_encoded(text), _encoded(beside)]
    data = np.frombuffer(b" ".join((b"", *encoded, b"")), np.uint8)
    # the hash of a stretch is a polynomial of its bytes modulo 2^64, the same wherever it stands
    powers, inverses = (np.full(len(data), base) for base in (_BASE, _INVERSE))
    powers[0] = inverses[0] = 1
    sums = _sums((_CODE[data] + np.uint64(1)) * np.cumprod(powers))
    inverses = np.cumprod(inverses)

    def hashed(start: Any, end: Any) -> Any:
        return (sums[end] - sums[start]) * inverses[start]

    word = _WORD[data]
    start, end = whole = _stretches(word)
    humps = np.flatnonzero(word[1:] & _LOWER[data[:-1]] & _UPPER[data[1:]]) + 1
    if len(humps):  # of userName also both words
        begin, stop = (np.sort(np.concatenate((edge, humps))) for edge in whole)
        inner = np.isin(begin, humps) | np.isin(stop, humps)
        start, end = np.concatenate((start, begin[inner])), np.concatenate((end, stop[inner]))
    digits = _sums(_DIGIT[data])
    plain = digits[end] == digits[start]
    read = ~plain | (start < MAX_CHARS - TAIL_CHARS) | (end > len(data) - TAIL_CHARS)
    starts = [start[read]]
    found = [hashed(start[read], _stems(_CODE[data], start[read], end[read], plain[read]))]
    for joiners in (_IN_NAME, _IN_PATH):
        joins = joiners[data]
        joins[1:-1] &= word[:-2] & word[2:]
        start, end = _stretches(word | joins)
        joined = _sums(joins)
        several = joined[end] > joined[start]
        starts.append(start[several])
        found.append(hashed(starts[-1], end[several]))
    mixed: Any = np.concatenate(found)  # the finaliser of MurmurHash3: neighbours differ in all bits
    mixed = (mixed ^ (mixed >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    mixed = (mixed ^ (mixed >> np.uint64(33))) >> np.uint64(32)
    return mixed.astype(np.uint32), np.concatenate(starts) > len(encoded[0])


def _encoded(text: str) -> bytes:
    """A text as bytes of which all that are no ASCII are letters; of a very long one the middle is left out."""
    if text.lstrip()[:1] in ("{", "["):  # a line break in JSON is no letter
        text = _ESCAPES.sub(" ", text)
    if len(text) > _MOST_CHARS:
        text = f"{text[: _MOST_CHARS // 2]}\n{text[-_MOST_CHARS // 2 :]}"
    if text.isascii():
        return text.encode()
    return _FOREIGN.sub(_letters, unicodedata.normalize("NFKC", text)).encode("utf-8", "replace")


def _letters(match: re.Match[str]) -> str:
    """Text in another alphabet without case and signs; each Chinese or Japanese character is a word."""
    return CJK.sub(r" \g<0> ", "".join(c if c.isalnum() else " " for c in match[0].casefold()))


def _sums(values: Any) -> Any:
    """The sum of the first i values, i = 0 to n."""
    total = np.cumsum(values)
    return np.concatenate((np.zeros(1, total.dtype), total))


def _stretches(mask: Any) -> tuple[Any, Any]:
    """Where the stretches of true values begin and end; the first and the last value are false."""
    edges = np.flatnonzero(mask[1:] != mask[:-1]) + 1
    return edges[::2], edges[1::2]


def _stems(codes: Any, start: Any, end: Any, plain: Any) -> Any:
    """The ends of words without their endings: closed, closes and closing end as close does."""
    for ending, least in (("s", 4), ("ing", 6), ("ed", 5), ("e", 4), ("y", 4), ("i", 4)):
        ends = plain & (end - start >= least)
        for i, character in enumerate(reversed(ending), 1):
            ends &= codes[end - i] == ord(character)
        if ending == "s":  # neither access nor status
            ends &= (codes[end - 2] != ord("s")) & (codes[end - 2] != ord("u"))
        end = end - len(ending) * ends
    doubled = plain & (end - start >= 4) & (codes[end - 1] == codes[end - 2])  # planned
    return end - doubled


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
        self._lengths: list[Any] = []

    def add(self, stored: Sequence[bytes]) -> None:
        """Add rows, numbered on from those that are there, each as ``terms_of`` returns it."""
        first = sum(map(len, self._lengths))
        self._lengths.append(np.array([_HEAD.unpack_from(b)[0] for b in stored]))
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

    def scores(self, query: Hashes, present: Any) -> tuple[Any, float]:
        """BM25 of each row (float64), 0 where it is not ``present``, and the most that a row could have."""
        lengths = np.concatenate(self._lengths)
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
