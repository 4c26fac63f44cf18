"""Words and names of texts as hashed terms, and the embedder that is built on them, with numpy alone."""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint32]

#: Of a longer text only the head and the tail are read as words.
MAX_CHARS = 64_000
TAIL_CHARS = 16_000
_MOST_CHARS = 2 * 2**20  # of a longer text the middle is left out
_STOPPED = 0.1  # weight of a stop-word in a vector

# English words that say nothing about a call, and words that every summary of a call has.
_STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a about after all also an and any are as at be been but by can did do does for from had has have "
        "he her his how i if in into is it its just me more my no not of on one only or our out over she "
        "so some such than that the their them then there these they this to up us was we were what when "
        "where which while who will with would you your arguments call called calls false none null "
        "output outputs result results returned returns step task tool tools true ",
    )
)

_BASE = 0x9E3779B97F4A7C15  # odd: it has an inverse modulo 2^64
_KEPT = 2**16  # powers
_FOREIGN = re.compile(r"[^\x00-\x7f]+")
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]")
_ESCAPES = re.compile(r"\\[nrtbf\"/\\]")


def _table(characters: str) -> bytes:
    """A table for ``bytes.translate``: which bytes are among these characters."""
    return bytes(chr(byte) in characters for byte in range(256))


_UPPER, _LOWER, _DIGIT = map(_table, (string.ascii_uppercase, string.ascii_lowercase, string.digits))
# of other alphabets only letters and digits are left
_WORD = _table(string.ascii_letters + string.digits + "".join(map(chr, range(128, 256))))
_IN_NAME, _IN_PATH = (np.frombuffer(_table(c), np.bool_) for c in ("-._@+#", "-._@+#/:"))
_CODE = bytes(
    byte + 32 * _UPPER[byte] if _WORD[byte] or _IN_PATH[byte] else 0 for byte in range(256)
)  # without case


class LexicalEmbedder:
    """Embeds texts by hashing their words, without a model; an ``Embedder`` named ``lexical-v1``.

    A text becomes the signed sum of its ``hashed_terms``, scaled to length 1. Counts are damped (1 + ln n), and
    stop-words weigh little. It compares spelling, not meaning: "car" does not find "vehicle". The method is feature
    hashing: Weinberger et al., 2009, arXiv:0902.2206.

    The same text gives the same vector in every process and whatever else is in the batch. Time is linear; of
    a text over 64,000 characters only the first 48,000 and the last 16,000 are read. Safe to share between
    threads.

    Example:
        >>> embedder = LexicalEmbedder()
        >>> late, parcel = embedder.encode(["The order is late.", "A parcel."]) @ embedder.encode_queries(["late"])[0]
        >>> bool(late > parcel)
        True
    """

    instant = True  # no model and no network: it may be called before the facts are stored

    name = "lexical-v1"
    dimension = 512

    def encode(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Embed texts: float32 of shape (n, 512), rows of length 1, or zeros for a text without words."""
        rows = np.zeros((len(texts), self.dimension), dtype=np.float32)
        for row, text in zip(rows, texts, strict=True):
            if len(text) > MAX_CHARS:
                text = f"{text[: MAX_CHARS - TAIL_CHARS]}\n{text[-TAIL_CHARS:]}"
            terms, counts = np.unique(hashed_terms(text)[0], return_counts=True)
            weights = (1 + np.log(counts)) * np.where(np.isin(terms, stop_terms()), _STOPPED, 1.0)
            signed = np.where(terms & 1, weights, -weights)
            summed = np.bincount((terms >> 1) % self.dimension, signed, self.dimension)
            norm = float(np.sqrt(np.sum(summed * summed)))
            row[:] = summed / norm if norm > 1e-9 else 0.0
        return rows

    def encode_queries(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """As ``encode``: a query is read like any other text."""
        return self.encode(texts)


@cache
def stop_terms() -> Hashes:
    """The terms of words that nearly every text has, in ascending order."""
    return np.unique(hashed_terms(" ".join(_STOP_WORDS))[0])


def hashed_terms(*texts: str) -> tuple[Hashes, npt.NDArray[np.intp]]:
    """The terms of texts, each as often as it occurs, and the number of its text.

    A term is a word without case and inflection, a part of a camelCase word, or a whole name of several words, such
    as ``user_id``, ``ORD-48213`` or ``src/app.py``, beside its words. Of a text over 64,000 characters the middle
    counts only for names and for what has a digit, and of one over 2 MiB not at all.
    """
    encoded = [*map(_encoded, texts)]
    raw = b" ".join((b"", *encoded, b""))
    codes = np.frombuffer(raw.translate(_CODE), np.uint8)
    # the hash of a stretch is a polynomial of its bytes modulo 2^64, the same wherever it stands
    powers, inverses = (_powers if len(raw) <= _KEPT else _powers.__wrapped__)(max(len(raw), _KEPT))
    sums = _sums((codes + np.uint64(1)) * powers[: len(raw)])

    def hashed(start: Any, end: Any) -> Any:
        return (sums[end] - sums[start]) * inverses[start]

    def are_in(table: bytes) -> Any:
        return np.frombuffer(raw.translate(table), np.bool_)

    start, end = words = _stretches(are_in(_WORD))
    humps = np.flatnonzero(are_in(_LOWER)[:-1] & are_in(_UPPER)[1:]) + 1
    if len(humps):  # of userName also both words
        begin, stop = (np.sort(np.concatenate((edge, humps))) for edge in words)
        inner = np.isin(begin, humps) | np.isin(stop, humps)
        start, end = np.concatenate((start, begin[inner])), np.concatenate((end, stop[inner]))
    digits = _sums(are_in(_DIGIT))
    plain = digits[end] == digits[start]
    if len(raw) > MAX_CHARS - TAIL_CHARS:
        read = ~plain | (start < MAX_CHARS - TAIL_CHARS) | (end > len(raw) - TAIL_CHARS)
        start, end, plain = start[read], end[read], plain[read]
    starts, hashes = [start], [hashed(start, _stems(codes, start, end, plain))]
    start, end = words
    for joiners in (_IN_NAME, _IN_PATH):
        joined = np.zeros(len(start) + 1, np.bool_)  # a word with the one before it, by one sign
        joined[1:-1] = joiners[codes[end[:-1]]] & (end[:-1] + 1 == start[1:])
        first, last = _stretches(joined)
        starts.append(start[first - 1])
        hashes.append(hashed(starts[-1], end[last - 1]))
    mixed: Any = np.concatenate(hashes)  # the finaliser of MurmurHash3: neighbours differ in all bits
    mixed = (mixed ^ (mixed >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    mixed = (mixed ^ (mixed >> np.uint64(33))) >> np.uint64(32)
    ends = np.cumsum([len(text) + 1 for text in encoded])  # each with the blank after it
    return mixed.astype(np.uint32), np.searchsorted(ends, np.concatenate(starts), "right")


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
    return _CJK.sub(r" \g<0> ", "".join(c if c.isalnum() else " " for c in match[0].casefold()))


@lru_cache(1)
def _powers(count: int) -> Any:
    """The powers of the base and those of its inverse."""
    factors = np.full((2, count), [[_BASE], [pow(_BASE, -1, 2**64)]], np.uint64)
    factors[:, 0] = 1
    return np.cumprod(factors, axis=1)


def _sums(values: Any) -> Any:
    """The sum of the first i values, i = 0 to n."""
    total = np.zeros(len(values) + 1, np.uint64)
    np.cumsum(values, out=total[1:])
    return total


def _stretches(mask: Any) -> tuple[Any, Any]:
    """Where the stretches of true values begin and end; the first and the last value are false."""
    edges = np.flatnonzero(mask[1:] != mask[:-1]) + 1
    return edges[::2], edges[1::2]


def _stems(codes: Any, start: Any, end: Any, plain: Any) -> Any:
    """The ends of words without their endings: closed, closes and closing end as close does."""
    end, length, last = end.copy(), np.where(plain, end - start, 0), codes[end - 1]
    for ending, least in (("s", 4), ("ing", 6), ("ed", 5), ("e", 4), ("y", 4), ("i", 4)):
        at = np.flatnonzero((last == ord(ending[-1])) & (length >= least))
        for i, character in enumerate(reversed(ending[:-1]), 2):
            at = at[codes[end[at] - i] == ord(character)]
        if ending == "s":  # neither access nor status
            before = codes[end[at] - 2]
            at = at[(before != ord("s")) & (before != ord("u"))]
        if len(at):
            end[at] -= len(ending)
            length[at] -= len(ending)
            last[at] = codes[end[at] - 1]
    doubled = (length >= 4) & (last == codes[end - 2])  # planned
    return end - doubled
