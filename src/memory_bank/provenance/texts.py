"""Text made comparable: escapes undone, case and white space folded, matches only at token boundaries."""

from __future__ import annotations

import re
from collections.abc import Iterator

_ESCAPE = re.compile(r"\\+(?:u([0-9a-fA-F]{4})|([nrtbf])|([\"'/]))")
_BACKSLASHES = re.compile(r"\\{2,}")
_BLANKS = re.compile(r"\s+")
_SURROGATE = re.compile("[\ud800-\udfff]")
# ASCII letters and digits apart from all others: in CJK text no blank parts an order number from its words.
_RUN = re.compile(r"[a-z0-9]+|[^\W_a-z0-9]+")
_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?\Z")
_NO_WORD_GAPS = "\u2e80"  # from here on scripts write without blanks


def _unescape(match: re.Match[str]) -> str:
    if match[1]:
        return chr(int(match[1], 16))
    return " " if match[2] else match[3]


def normal(text: str) -> str:
    """The form in which texts are compared: JSON escaping undone, however nested; case and blanks folded."""
    if "\\" in text:
        text = _BACKSLASHES.sub(r"\\", _ESCAPE.sub(_unescape, text))
        if _SURROGATE.search(text):
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return _BLANKS.sub(" ", text).strip().casefold()


def runs(text: str) -> list[str]:
    """The runs of letters and digits in a normal text, in order."""
    return _RUN.findall(text)


def is_numeric(text: str) -> bool:
    """Whether a text is one number, thousands separators allowed."""
    return bool(_NUMBER.match(text))


def number_forms(text: str) -> Iterator[str]:
    """How else a number may be written: without separators, with them, without or with a zero at the end."""
    bare = text.replace(",", "").removeprefix("+")
    if bare.lstrip("-")[:1] == "0" and "." not in bare:
        return iter((text,))  # an identifier: its zeros count
    forms = [text, bare]
    whole, dot, rest = bare.partition(".")
    short = rest.rstrip("0")
    forms.append(f"{whole}.{short}" if short else whole)
    forms += [f"{whole}.{short.ljust(n, '0')}" for n in (1, 2) if len(short) <= n]
    sign, digits = ("-", whole[1:]) if whole.startswith("-") else ("", whole)
    if digits.isdigit() and 3 < len(digits) < 40:
        forms.append(f"{sign}{int(digits):,}{dot}{rest}")
    return iter(dict.fromkeys(forms))


def find(text: str, value: str) -> int:
    """The first place of a value in a text at token boundaries, both in normal form; -1 where there is none.

    A number is not found within another: 645 stands neither in 645.99 nor in 1,645.
    """
    if not value:
        return -1
    number = is_numeric(value)
    end = len(value)
    at = text.find(value)
    while at >= 0:
        if not _goes_on(text, at - 1, value[0]) and not _goes_on(text, at + end, value[-1]):
            if not number:
                return at
            before, after = text[max(0, at - 2) : at], text[at + end : at + end + 2]
            if not (_is_digit_joint(before[::-1]) or _is_digit_joint(after)):
                return at
        at = text.find(value, at + 1)
    return -1


def _goes_on(text: str, at: int, edge: str) -> bool:
    """Whether the character at a place continues the token that ends with ``edge``."""
    if not 0 <= at < len(text) or not edge.isalnum() or edge >= _NO_WORD_GAPS:
        return False
    other = text[at]
    return other == "_" or (other.isalnum() and other < _NO_WORD_GAPS)


def _is_digit_joint(pair: str) -> bool:
    return len(pair) == 2 and pair[0] in ".," and pair[1].isdigit()
