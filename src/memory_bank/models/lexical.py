"""The lexical embedder: hashed words, sub-words and identifiers as vectors, with numpy alone."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from zlib import crc32

import numpy as np
import numpy.typing as npt

Features = tuple[npt.NDArray[np.intp], npt.NDArray[np.float64]]

#: Of a longer text only the head and the tail are read.
MAX_CHARS = 64_000
TAIL_CHARS = 16_000

# Weights of tokens: an identifier that matches as a whole says more than any word.
IDENTIFIER, WORD, PART, STOP_WORD = 2.5, 1.0, 0.5, 0.1
# All character n-grams of a word together weigh this share of the word.
SUBWORDS = 0.6
NGRAMS, CJK_NGRAMS = (3, 4), (1, 2)
MAX_NGRAM_CHARS = 40

_CHUNK = re.compile(r"\w+(?:[-./:@+]\w+)*")
_PIECE = re.compile(r"[^\W_]+")
_CAMEL = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[^\W\d_A-Z]+|\d+")
CJK = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]")
_DIGIT = re.compile(r"\d")

# English words that say nothing about a call, and words that every summary of a call has.
STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a about after all also an and any are as at be been but by can did do does for from had has have "
        "he her his how i if in into is it its just me more my no not of on one only or our out over she "
        "so some such than that the their them then there these they this to up us was we were what when "
        "where which while who will with would you your arguments call called calls false none null "
        "output outputs result results returned returns step task tool tools true ",
    )
)


class LexicalEmbedder:
    """Embeds texts by hashing their words, without a model; an ``Embedder`` named ``lexical-v1``.

    A text becomes the signed sum of its hashed features, scaled to length 1: identifiers as wholes
    (``ORD-48213``, ``user_id``, ``a@b.com``), their parts (at separators, camelCase humps and between letters
    and digits), words without case, and the character n-grams of words, which let "refunded" find "refund".
    Counts are damped (1 + ln n), stop-words weigh little. It compares spelling, not meaning: "car" does not
    find "vehicle". The method is feature hashing: Weinberger et al., 2009, arXiv:0902.2206.

    The same text gives the same vector in every process and whatever else is in the batch. Time is linear; of
    a text over 64,000 characters only the first 48,000 and the last 16,000 are read. Safe to share between
    threads.
    """

    instant = True  # no model and no network: it may be called before the facts are stored

    name = "lexical-v1"
    dimension = 512

    _CACHE_TOKENS = 50_000
    _CACHE_TOKEN_CHARS = 64

    def __init__(self) -> None:
        self._cache: dict[str, Features] = {}

    def encode(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Embed texts: float32 of shape (n, 512), rows of length 1, or zeros for a text without words."""
        rows = np.zeros((len(texts), self.dimension), dtype=np.float32)
        for row, text in zip(rows, texts, strict=True):
            if len(text) > MAX_CHARS:
                text = f"{text[: MAX_CHARS - TAIL_CHARS]}\n{text[-TAIL_CHARS:]}"
            if not text.isascii():
                text = unicodedata.normalize("NFKC", text)
            if counts := Counter(_CHUNK.findall(text)):
                found = self._features(list(counts))
                damped = 1.0 + np.log(np.fromiter(counts.values(), np.float64, len(counts)))
                weights = np.concatenate([f[1] for f in found]) * np.repeat(
                    damped, [len(f[0]) for f in found]
                )
                summed = np.bincount(np.concatenate([f[0] for f in found]), weights, minlength=self.dimension)
                norm = float(np.sqrt(np.sum(summed * summed)))
                row[:] = summed / norm if norm > 1e-9 else 0.0
        return rows

    def encode_queries(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """As ``encode``: a query is read like any other text."""
        return self.encode(texts)

    def _features(self, tokens: list[str]) -> list[Features]:
        cache, hashed = self._cache, dict[str, Features]()
        if new := [token for token in tokens if token not in cache]:
            hashed = dict(zip(new, _hashed(new, self.dimension), strict=True))
        found = [hashed[token] if token in hashed else cache[token] for token in tokens]
        if len(cache) + len(hashed) > self._CACHE_TOKENS:
            cache = self._cache = {}
        cache.update((t, features) for t, features in hashed.items() if len(t) <= self._CACHE_TOKEN_CHARS)
        return found


def _hashed(tokens: list[str], dimension: int) -> list[Features]:
    """For each token the indices of the vector that it adds to, and its signed weights there."""
    hashes: list[int] = []
    weights: list[float] = []
    ends: list[int] = []
    for token in tokens:
        for feature, weight in _weighted(token):
            hashes.append(crc32(feature))
            weights.append(weight)
        ends.append(len(hashes))
    h = np.array(hashes, np.uint32)
    # crc32 is linear: neighbours differ in few bits. The finaliser of MurmurHash3 spreads them.
    h = (h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    h = (h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    h ^= h >> np.uint32(16)
    indices = ((h >> np.uint32(1)) % np.uint32(dimension)).astype(np.intp)
    signed = np.array(weights, np.float64) * np.where(h & np.uint32(1), 1.0, -1.0)
    starts = [0, *ends]
    # Copies, so that a cached token does not keep the arrays of a whole text alive.
    return [(indices[a:b].copy(), signed[a:b].copy()) for a, b in pairwise(starts)]


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _weighted(token: str) -> Iterator[tuple[bytes, float]]:
    """The features of a token with their weights."""
    pieces = _PIECE.findall(token)
    whole = token.casefold()
    if len(pieces) == 1 and len(parts := _parts(pieces[0])) == 1 and pieces[0] == token:
        if _DIGIT.search(token):
            yield _bytes(whole), IDENTIFIER
        else:
            yield from _word(whole, WORD)
        return
    identifier = len(pieces) != 1 or not pieces[0].isalpha() or pieces[0] != token
    plain = "-" in token and token.replace("-", "").isalpha()
    yield _bytes(whole), IDENTIFIER if identifier and not plain else WORD
    for piece in pieces:
        parts = _parts(piece)
        if len(parts) > 1 and piece != token:
            yield _bytes(piece.casefold()), WORD
        for part in parts:
            if _DIGIT.search(part):
                yield _bytes(part.casefold()), WORD
            else:
                yield from _word(part.casefold(), PART if not plain else WORD)


def _parts(piece: str) -> list[str]:
    """The humps of a camelCase name, letters and digits apart; the whole where there are more than five."""
    if piece.isdigit() or (piece.isalpha() and (piece.islower() or piece.isupper())):
        return [piece]
    parts = _CAMEL.findall(piece)
    return parts if 1 <= len(parts) <= 5 else [piece]


def _word(word: str, weight: float) -> Iterator[tuple[bytes, float]]:
    """A word and its character n-grams."""
    if word in STOP_WORDS:
        yield _bytes(word), STOP_WORD
        return
    if CJK.search(word):
        for n in CJK_NGRAMS:
            for i in range(len(word) - n + 1):
                yield _bytes(word[i : i + n]), weight * (0.5 if n == 1 else 1.0)
        return
    yield _bytes(word), weight
    if len(word) < 4:
        return
    framed = f"<{word[:MAX_NGRAM_CHARS]}>"
    grams: list[bytes]
    if framed.isascii():  # a byte is a character: encode once, then slice
        raw = framed.encode()
        grams = [raw[i : i + n] for n in NGRAMS for i in range(len(raw) - n + 1)]
    else:
        grams = [_bytes(framed[i : i + n]) for n in NGRAMS for i in range(len(framed) - n + 1)]
    share = weight * SUBWORDS / len(grams) ** 0.5
    for gram in grams:
        yield b"#" + gram, share
