"""Identifiers in a text, and the place where an output contains a text, however it is written there."""

from __future__ import annotations

import re
from collections.abc import Iterator

from memory_bank.transcript.jsontext import compact, inner_json, leaves

_STRUCTURE = re.compile(r"[\d_@/\\#]|[a-z][A-Z]|\w[-.:]\w")
_FIGURE = re.compile(r"[-+\d.,:%]+\Z")  # a number, a time of day
_CHUNK = re.compile(r"[^\s\"'`<>()\[\]{},;|=*]{3,300}")
_ESCAPED = re.compile(r"(?<!\\)\\+[nrtbf\"'/]")
_EDGES = ".,:;!?&-+$%\\"


def is_identifier(token: str) -> bool:
    """Whether a text without blanks is an id, a path, an address or a name of a program; no word and no figure."""
    if _FIGURE.match(token):  # a number of an order has five digits or more
        return len(token) > 4 and token.isdigit() and token.strip("0") != ""
    return _STRUCTURE.search(token) is not None and any(map(str.isalnum, token))


def identifiers_in(text: str) -> Iterator[str]:
    """The identifiers in a text in their order, and the parts of those with ``:`` or ``&``."""
    for chunk in _CHUNK.findall(_ESCAPED.sub(" ", text)):
        token = chunk.strip(_EDGES)
        joined = (":" in token or "&" in token) and "/" not in token
        parts = re.split(r"[:&]+", token) if joined else []
        yield from (part for part in (token, *parts) if len(part) >= 3 and is_identifier(part))


_ESCAPE = re.compile(r"(?<!\\)\\+(?:u([0-9a-fA-F]{4})|([nrtbf])|([\"'/]))")
_BACKSLASHES = re.compile(r"\\{2,}")
_BLANKS = re.compile(r"\s+")
_SURROGATE = re.compile("[\ud800-\udfff]")
# ASCII letters and digits apart from all others: CJK text has no blank between an order number and its words.
_RUN = re.compile(r"[a-z0-9]+|[^\W_a-z0-9]+")
_WHOLE_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?\Z")
_NO_WORD_GAPS = "\u2e80"  # from here on scripts write without blanks
_LONGEST_JSON = 300_000  # characters of an output in which a path is looked for


def normal(text: str) -> str:
    """The normal form for comparisons: without JSON escapes, however nested; case and blanks folded."""
    if "\\" in text:
        text = _BACKSLASHES.sub(
            r"\\", _ESCAPE.sub(lambda m: chr(int(m[1], 16)) if m[1] else " " if m[2] else m[3], text)
        )
        if _SURROGATE.search(text):
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return _BLANKS.sub(" ", text).strip().casefold()


def runs(text: str) -> list[str]:
    """The runs of letters and digits in a normal text, in order."""
    return _RUN.findall(text)


def find(text: str, value: str) -> int:
    """The first position of a value in a text at token boundaries, both in normal form; -1 without one."""
    if not value:
        return -1
    is_number = bool(_WHOLE_NUMBER.match(value))
    end = len(value)
    at = text.find(value)
    while at >= 0:
        if not _continues(text, at - 1, value[0]) and not _continues(text, at + end, value[-1]):
            joints = text[max(0, at - 2) : at][::-1], text[at + end : at + end + 2]
            if not is_number or not any(len(j) == 2 and j[0] in ".," and j[1].isdigit() for j in joints):
                return at
        at = text.find(value, at + 1)
    return -1


def _continues(text: str, at: int, edge: str) -> bool:
    """Whether the character at a position continues the token that ends with ``edge``."""
    if not 0 <= at < len(text) or not edge.isalnum() or edge >= _NO_WORD_GAPS:
        return False
    other = text[at]
    return other == "_" or (other.isalnum() and other < _NO_WORD_GAPS)


def place_of(text: str, wanted: str) -> str:
    """The place of a value (in normal form) in a text: a JSON path, ``line N``, or ""."""
    value = inner_json(text) if len(text) <= _LONGEST_JSON else None
    for leaf in leaves(value, opened=inner_json) if value is not None else ():
        inner = leaf.value if isinstance(leaf.value, str) else compact(leaf.value)
        if find(normal(inner), wanted) >= 0:
            return leaf.path
    words = r"\s+".join(map(re.escape, wanted.split(" "))) if wanted.isascii() else ""
    match = re.search(words, text, re.I) if words else None
    return "" if match is None else f"line {text.count(chr(10), 0, match.start()) + 1}"
