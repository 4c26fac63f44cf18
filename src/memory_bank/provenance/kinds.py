"""What a value is: an identifier that must come from somewhere, or what an agent may write itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum


class Kind(StrEnum):
    """The kinds of values in arguments and outputs."""

    TRIVIAL = "trivial"  # booleans, small numbers, common words, nothing
    NUMBER = "number"  # may be computed
    LONG_NUMBER = "long number"
    DATE = "date"
    EMAIL = "e-mail"
    URL = "url"
    PATH = "path"
    CODE = "code"  # one token with a part that nobody guesses: A-1042, credit_card_9513926
    NAME = "name"  # one token with inner structure but no such part: order_items, report.pdf
    WORD = "word"
    TEXT = "text"  # prose, code, queries: checked token by token


IDENTIFIERS = frozenset({Kind.LONG_NUMBER, Kind.EMAIL, Kind.URL, Kind.PATH, Kind.CODE, Kind.NAME})

_EMAIL = re.compile(r"[\w.+%-]+@[\w-]+(?:\.[\w-]+)+\Z")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{1,20}://\S+\Z")
_PATH = re.compile(r"(?:~|\.{1,2}|[A-Za-z]:)?[/\\][^\s]|[\w.@~-]+/[\w.@~*-]")
_DAY = r"(?:19|20)\d\d[-_/.]?(?:0[1-9]|1[0-2])[-_/.]?(?:0[1-9]|[12]\d|3[01])"
_CLOCK = r"(?:[01]?\d|2[0-3])[:h]?[0-5]\d(?:[:.]?[0-5]\d(?:[.,]\d{1,9})?)?\s*(?:[ap]m)?"
_ZONE = r"(?:z|utc|[+-]\d\d:?\d\d)?"
_DATE = re.compile(
    rf"(?:{_DAY}(?:(?:t|[ _-]){_CLOCK}\s*{_ZONE})?|(?:19|20)\d\d-(?:0[1-9]|1[0-2])"
    rf"|\d{{1,2}}[/.]\d{{1,2}}[/.]\d{{2,4}}|\d{{1,2}}[:]\d\d(?::\d\d)?\s*(?:[ap]m)?|p(?=t?\d)(?:\d+[ymwd])*(?:t(?:\d+[hms])+)?)\Z",
    re.I,
)
_DAY_INSIDE = re.compile(
    rf"(?<!\d){_DAY}(?:[t_-]?(?:[01]\d|2[0-3])[:_-]?[0-5]\d(?:[:_-]?[0-5]\d)?z?)?(?!\d)", re.I
)
_INTEGER = re.compile(r"[-+]?\d+\Z")
_DECIMAL = re.compile(r"[-+]?(?:\d[\d,]*)?\.?\d+(?:e[-+]?\d+)?%?\Z", re.I)
_RUN = re.compile(r"[^\W_]+")
_UNIT = re.compile(
    r"\d{1,4}[kpsmhdxg]\Z|\d+(?:px|pt|em|rem|kb|mb|gb|tb|ms|min|hz|khz|mhz|ghz|bit|bits|fps|dpi|usd|eur|kg|km|cm|mm|th|st|nd|rd|am|pm|"
    r"days?|hours?|years?|weeks?|months?)\Z|\d+x\d+\Z|(?:19|20)\d\d(?:s|q[1-4]|h[12]|[a-z]{3,9})\Z|"
    r"(?:q[1-4]|h[12]|fy|[a-z]{3,9})(?:19|20)\d\d\Z|\d{1,2}[a-z]{3,9}(?:19|20)?\d\d\Z|(?:utf|sha|md|iso|rfc|base|latin|cp|"
    r"gb|ascii|float|int|uint|v|p|ipv|es|python|py|col|column|row|sheet|h|gpt)\d{1,5}\Z"
)
_ID_KEY = re.compile(
    r"(?:^|[_\W])(?:ids?|uuid|guid|no|number|num|code|ref|reference|account|acct|iban|phone|mobile|zip|postcode|sku|"
    r"isbn|key|token|hash|sha|commit|ticket|invoice|tracking|serial)\Z|[a-z](?:Id|ID|Ids|IDs|Uuid|Code|Number)\Z"
)
_TIME_KEY = re.compile(r"time|date|since|until|before|after|start|end|expire|epoch|^ts$|_ts$|_at$", re.I)
_STRUCTURE = re.compile(r"[\d_@/\\#]|[a-z][A-Z]|\w[-.:]\w")
_CHUNK = re.compile(r"[^\s\"'`<>()\[\]{},;|=*]+")
_ESCAPED = re.compile(r"\\+[nrtbf\"'/]")
_COLOUR = re.compile(r"#?(?:[0-9a-f]{3}|(?=\d*[a-f]+\d*[a-f])[0-9a-f]{6})\Z", re.I)
_CELLS = re.compile(r"(?:[^\s!]{1,40}!)?\$?[A-Z]{1,2}\$?\d{0,5}:\$?[A-Z]{1,2}\$?\d{0,5}\Z|[A-Z]\d{1,3}\Z")
_CASE_MIX = re.compile(r"(?:[a-z\d]+[A-Z]+){3}|(?:[A-Z\d]+[a-z]+){3}")
_EDGES = ".,:;!?&-+$%\\"
_BLANK = re.compile(r"\s")
_LETTER = re.compile(r"[^\W\d_]")
_DIGIT = re.compile(r"\d")
_LONGEST = 300  # longer tokens (base64, say) are nobody's identifier


def is_id_key(key: str) -> bool:
    """Whether an argument or member of this name holds an identifier."""
    return bool(_ID_KEY.search(key))


def hard_runs(value: str) -> list[str]:
    """The parts of a token that nobody guesses: numbers of four digits and more, letters mixed with digits.

    Dates, years, round numbers, units and the like are none. In normal form.
    """
    if not _DIGIT.search(value):
        return []
    rest = _DAY_INSIDE.sub(" ", value)
    return [r.casefold() for r in _RUN.findall(rest) if _is_hard(r.casefold()) or _is_mixed(r)]


def _is_mixed(run: str) -> bool:
    """A digit in a random mix of small and capital letters."""
    return len(run) >= 8 and any(c.isdigit() for c in run) and bool(_CASE_MIX.search(run))


def _is_hard(run: str) -> bool:
    digits = sum(c.isdigit() for c in run)
    if digits == len(run):
        if digits < 4 or len(set(run[1:])) == 1 == len(set(run[1:] + "0")):
            return False
        return digits > 4 or run[:2] not in ("19", "20")
    return digits >= 2 and len(run) >= 5 and run.isascii() and not _UNIT.match(run)


def kind_of_text(value: str, key: str = "") -> Kind:
    """The kind of a text value that stands under ``key``."""
    text = value.strip()
    if len(text) < 2:
        return Kind.TRIVIAL
    if _DATE.match(text):
        return Kind.DATE
    if _INTEGER.match(text):
        digits = text.lstrip("+-")
        return _kind_of_integer(digits, key, 5)
    if _DECIMAL.match(text):
        return Kind.NUMBER
    if len(text) > _LONGEST or _BLANK.search(text):
        return _kind_of_spaced(text)
    return kind_of_token(text)


def _kind_of_spaced(text: str) -> Kind:
    """A path or an e-mail may hold blanks; all else with blanks is text."""
    if text[0] in "/~" and "\n" not in text and len(text) <= _LONGEST and text.count("/") > 1:
        return Kind.PATH
    return Kind.TEXT


def kind_of_number(value: float, key: str = "") -> Kind:
    """The kind of a number that stands under ``key``."""
    if isinstance(value, int):
        return _kind_of_integer(str(abs(value)), key, 9)
    return Kind.TRIVIAL if value == int_or_none(value) and abs(value) < 1000 else Kind.NUMBER


def int_or_none(value: float) -> int | None:
    """A whole number's int; None for all else, infinities included."""
    try:
        whole = int(value)
    except (ValueError, OverflowError):
        return None
    return whole if whole == value else None


def _kind_of_integer(digits: str, key: str, long: int) -> Kind:
    if len(digits) < 4 or not digits.strip("0"):
        return Kind.TRIVIAL
    if _TIME_KEY.search(key) and len(digits) in (8, 10, 13) and digits[0] in "12":
        return Kind.DATE
    if not _is_hard(digits):
        return Kind.NUMBER
    return Kind.LONG_NUMBER if len(digits) >= long or is_id_key(key) else Kind.NUMBER


def kind_of_token(token: str) -> Kind:
    """The kind of a text without blanks."""
    if not _STRUCTURE.search(token):
        if token.isalpha() and token.islower() and token.isascii():
            return Kind.TRIVIAL
        return Kind.WORD
    if "://" in token and _URL.match(token):
        return Kind.URL
    if "@" in token and _EMAIL.match(token):
        return Kind.EMAIL
    if _DATE.match(token):
        return Kind.DATE
    if ("/" in token or "\\" in token) and _PATH.match(token):
        return Kind.PATH
    if _INTEGER.match(token):
        return _kind_of_integer(token.lstrip("+-"), "", 5)
    if _DECIMAL.match(token):
        return Kind.NUMBER
    if _CELLS.match(token) or (token[0] == "#" and _COLOUR.match(token)):
        return Kind.TRIVIAL
    if hard_runs(token):
        return Kind.CODE
    return Kind.NAME if _LETTER.search(token) else Kind.TRIVIAL


def identifiers_in(text: str) -> Iterator[tuple[str, Kind, int]]:
    """``(token, kind, position)`` of the identifier-like tokens of a text."""
    if "\\" in text:
        text = _ESCAPED.sub(lambda m: " " * len(m[0]), text)
    for match in _CHUNK.finditer(text):
        chunk = match.group()
        if len(chunk) < 3 or len(chunk) > _LONGEST or not _STRUCTURE.search(chunk):
            continue
        token = chunk.strip(_EDGES)
        if len(token) < 3:
            continue
        kind = kind_of_token(token)
        if kind in IDENTIFIERS:
            yield token, kind, match.start()
            if kind in (Kind.CODE, Kind.NAME) and (":" in token or "&" in token):
                yield from _inner(token, match.start())
        elif kind is Kind.TRIVIAL and ":" in token:
            yield from _inner(token, match.start())


def _inner(token: str, at: int) -> Iterator[tuple[str, Kind, int]]:
    for part in re.split(r"[:&]+", token):
        if len(part) >= 3 and part != token and (kind := kind_of_token(part)) in IDENTIFIERS:
            yield part, kind, at
