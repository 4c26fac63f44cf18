"""The terms of records, and BM25 over them: how records are ranked by words.

A bank stores the hashed terms of a record, never a second copy of its texts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b
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
HEAD = np.dtype([("length", "<f4"), ("call", "<u8"), ("output", "<u8")])
"""The head before the terms: the sum of all weights, and hashes of the record's call and of its output.

By these a later call of the same arguments is found, and whether it returned something else. The call is 0 where the
output says nothing about it: there is no record, the call has failed, or it is a message or other prose.
"""
_MANNER = {"description", "timeout", "verbose"}  # arguments of which an output does not depend

_SENTENCES = re.compile(
    r"(?<![^\W\d_])(?:[^\W\d_][^\W\d_'’]*+[,.!?;]*+\s++){5,}+[^\W\d_]*+"
)  # six words or more


def terms_of(summary: str, record: InteractionRecord | None) -> bytes:
    """The terms of a summary with its record, as they are stored: those of the output count most.

    That is a HEAD, then the terms in ascending order (uint32), then their weights (uint8, logarithms).
    """
    call, output, beside = 0, summary, ""
    if record is not None:
        value, text = record.raw_output, record.output_text
        if text is None or ("\\u" in text and not isinstance(value, str)):  # JSON with escaped letters
            text = compact(value)
        output = readable_output(record)[1] if "base64" in text else text
        arguments = record.raw_input
        written = arguments if isinstance(arguments, str) else compact(arguments)
        beside = f"{record.tool_name}\n{written}\n{summary}"
        if not is_failure(output) and not is_said(record.raw_input, output):
            if isinstance(arguments, dict):
                arguments = sorted((k, compact(v)) for k, v in arguments.items() if k not in _MANNER)
            call = _digest(compact([record.tool_name, arguments])) or 1
    hashes, of = hashed_terms(output, beside)
    weights = np.where(of == 1, BESIDE, 1.0)
    terms, which = np.unique(hashes, return_inverse=True)
    sums = np.rint(_FINE * np.log1p(np.bincount(which, weights, len(terms))))
    stored = np.minimum(sums, 255).astype(np.uint8)
    head = np.array((weights.sum(), call, _digest(output)), HEAD)
    return b"".join((head.tobytes(), terms.astype("<u4").tobytes(), stored.tobytes()))


def speaks(arguments: object) -> bool:
    """Return whether a record of these arguments is what somebody said in a conversation."""
    if not isinstance(arguments, dict):
        return False
    return "speaker" in arguments or arguments.get("role") in ("user", "assistant")


def is_said(arguments: object, output: str) -> bool:
    """Return whether an output is a message, or consists mostly of sentences, not of values under keys."""
    sentences = sum(len(m[0]) for m in _SENTENCES.finditer(output)) if len(output) <= 2_000 else 0
    return speaks(arguments) or 2 * sentences > len(output)


def _digest(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest())


def heads_of(stored: Sequence[bytes]) -> Any:
    """The HEADs of what ``terms_of`` returned, or of its first bytes."""
    return np.frombuffer(b"".join(b[: HEAD.itemsize] for b in stored), HEAD)


def parts_of(stored: Sequence[bytes]) -> tuple[Any, Any, Any]:
    """Arrays of rows of ``terms_of``: how many terms each has, the terms, their weights. Raises ValueError."""
    sizes = np.fromiter(map(len, stored), np.int64, len(stored)) - HEAD.itemsize
    if (sizes < 0).any() or (sizes % 5).any():
        raise ValueError("damaged terms")
    ends = (HEAD.itemsize + 4 * (sizes // 5)).tolist()
    terms = b"".join(b[HEAD.itemsize : end] for b, end in zip(stored, ends, strict=True))
    weights = b"".join(b[end:] for b, end in zip(stored, ends, strict=True))
    return sizes // 5, np.frombuffer(terms, "<u4"), np.frombuffer(weights, np.uint8)


def may_be_of(query: Hashes, terms: Any) -> Any:
    """The numbers of the terms that may be a query's: the others differ in the first half of their bits."""
    wanted = np.zeros(2**16, bool)
    wanted[query >> 16] = True
    return np.flatnonzero(wanted[terms >> 16])


class Postings(NamedTuple):
    """Terms of numbered rows: the i-th is ``terms[i]``, of row ``rows[i]``, with the stored weight ``weights[i]``."""

    terms: Any
    rows: Any
    weights: Any

    @classmethod
    def of(cls, stored: Sequence[bytes]) -> Postings:
        """The terms of rows that ``terms_of`` returned; the rows are numbered from 0. Raises ValueError."""
        counts, terms, weights = parts_of(stored)
        return cls(terms, np.repeat(np.arange(len(stored), dtype=np.uint32), counts), weights)

    def stored(self, heads: Any) -> list[bytes]:
        """The rows as ``terms_of`` returned them, of their ``heads_of``."""
        order = np.lexsort((self.terms, self.rows))
        terms, weights = self.terms[order].astype("<u4"), self.weights[order]
        ends = np.searchsorted(self.rows[order], np.arange(len(heads) + 1)).tolist()
        return [
            b"".join((head.tobytes(), terms[a:b].tobytes(), weights[a:b].tobytes()))
            for head, a, b in zip(heads, ends, ends[1:], strict=False)
        ]

    def asked(self, query: Hashes) -> Postings:
        """The terms that may be a query's, with their rows."""
        at = may_be_of(query, self.terms)
        return Postings(*(column[at] for column in self))


def terms_of_query(query: str) -> Hashes:
    """The different terms of a query, without the words that every text has, unless it has no others."""
    asked = np.unique(hashed_terms(query)[0])
    return left if len(left := np.setdiff1d(asked, stop_terms())) else asked


def terms_of_texts(texts: Sequence[str]) -> list[frozenset[int]]:
    """The set of hashed terms of each text, without common words such as "the" and "is"."""
    hashes, of = hashed_terms(*texts)
    has_meaning = ~np.isin(hashes, stop_terms())
    return [frozenset(hashes[has_meaning & (of == n)].tolist()) for n in range(len(texts))]


def bm25(query: Hashes, postings: Postings, lengths: Any) -> tuple[Any, float]:
    """BM25 of each row (float64), 0 where it has no term of a query, and the most that a row could have.

    ``lengths``: the sum of the weights of each row.
    """
    postings = postings.asked(query)
    scores = np.zeros(len(lengths))
    mean = lengths.sum() / max(1, len(lengths))
    norms = SATURATION * (1 - LENGTH + LENGTH * lengths / max(1.0, mean))
    most, size = 0.0, max(1, len(lengths))
    for term in query:
        at = postings.terms == term
        rows, weights = postings.rows[at], np.expm1(postings.weights[at] / _FINE)
        weight = np.log(1 + (size - len(rows) + 0.5) / (len(rows) + 0.5)) * (SATURATION + 1)
        scores[rows] += weight * weights / (weights + norms[rows])
        most += weight
    return scores, most
