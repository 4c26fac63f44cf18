"""What kind of value a text is, which identifiers it holds, and how two texts are compared."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum


class ValueKind(StrEnum):
    """The kinds of values in arguments and outputs."""

    TRIVIAL = "trivial"  # booleans, small numbers, common words, empty values
    NUMBER = "number"  # may be computed
    LONG_NUMBER = "long number"
    DATE = "date"
    EMAIL = "e-mail"
    URL = "url"
    PATH = "path"
    CODE = "code"  # one token with a part that cannot be guessed: A-1042, credit_card_9513926
    NAME = "name"  # one token with inner structure but no such part: order_items, report.pdf
    WORD = "word"
    TEXT = "text"  # prose, code, queries: checked token by token


_WRITTEN = {ValueKind.TRIVIAL, ValueKind.NUMBER, ValueKind.DATE, ValueKind.WORD, ValueKind.TEXT}
IDENTIFIERS = frozenset(ValueKind) - _WRITTEN
"""The kinds that must come from somewhere; an agent may write the others itself."""

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
_LONGEST = 300  # characters of an identifier; longer tokens are data, such as base64


def hard_runs(value: str) -> list[str]:
    """The case-folded parts of a token that cannot be guessed: 4 digits or more, letters mixed with digits."""
    if not _DIGIT.search(value):
        return []
    return [
        run.casefold()
        for run in _RUN.findall(_DAY_INSIDE.sub(" ", value))
        if _is_hard(run.casefold())
        or (len(run) >= 8 and _DIGIT.search(run) and _CASE_MIX.search(run))  # in a random mix of case
    ]


def _is_hard(run: str) -> bool:
    digits = sum(c.isdigit() for c in run)
    if digits == len(run):
        if digits < 4 or len(set(run[1:])) == 1 == len(set(run[1:] + "0")):
            return False
        return digits > 4 or run[:2] not in ("19", "20")
    return digits >= 2 and len(run) >= 5 and run.isascii() and not _UNIT.match(run)


def kind_of_text(value: str, key: str = "") -> ValueKind:
    """The kind of a text; ``key`` is the name of the argument or member that holds it."""
    text = value.strip()
    if len(text) < 2:
        return ValueKind.TRIVIAL
    if (figure := _kind_of_figure(text, key)) is not None:
        return figure
    if len(text) > _LONGEST or _BLANK.search(text):
        is_path = text[0] in "/~" and "\n" not in text and len(text) <= _LONGEST and text.count("/") > 1
        return ValueKind.PATH if is_path else ValueKind.TEXT
    return kind_of_token(text)


def kind_of_number(value: float, key: str = "") -> ValueKind:
    """The kind of a number; ``key`` is the name of the argument or member that holds it."""
    if isinstance(value, int):
        return _kind_of_integer(str(abs(value)), key, 9)
    return ValueKind.TRIVIAL if value.is_integer() and abs(value) < 1000 else ValueKind.NUMBER


def _kind_of_figure(text: str, key: str = "") -> ValueKind | None:
    """The kind of a text that is a date or a number; None for others."""
    if _DATE.match(text):
        return ValueKind.DATE
    if _INTEGER.match(text):
        return _kind_of_integer(text.lstrip("+-"), key, 5)
    return ValueKind.NUMBER if _DECIMAL.match(text) else None


def _kind_of_integer(digits: str, key: str, long: int) -> ValueKind:
    if len(digits) < 4 or not digits.strip("0"):
        return ValueKind.TRIVIAL
    if _TIME_KEY.search(key) and len(digits) in (8, 10, 13) and digits[0] in "12":
        return ValueKind.DATE
    is_long = _is_hard(digits) and (len(digits) >= long or _ID_KEY.search(key))
    return ValueKind.LONG_NUMBER if is_long else ValueKind.NUMBER


def kind_of_token(token: str) -> ValueKind:
    """The kind of a text without blanks."""
    if not _STRUCTURE.search(token):
        is_common = token.isalpha() and token.islower() and token.isascii()
        return ValueKind.TRIVIAL if is_common else ValueKind.WORD
    if "://" in token and _URL.match(token):
        return ValueKind.URL
    if "@" in token and _EMAIL.match(token):
        return ValueKind.EMAIL
    if (figure := _kind_of_figure(token)) is not None:
        return figure
    if ("/" in token or "\\" in token) and _PATH.match(token):
        return ValueKind.PATH
    if _CELLS.match(token) or (token[0] == "#" and _COLOUR.match(token)):
        return ValueKind.TRIVIAL
    if hard_runs(token):
        return ValueKind.CODE
    return ValueKind.NAME if _LETTER.search(token) else ValueKind.TRIVIAL


def identifiers_in(text: str) -> Iterator[tuple[str, ValueKind, int]]:
    """``(token, kind, position)`` of the identifiers in a text."""
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
        has_parts = kind in (ValueKind.CODE, ValueKind.NAME) and (":" in token or "&" in token)
        if has_parts or (kind is ValueKind.TRIVIAL and ":" in token):
            for part in re.split(r"[:&]+", token):
                if len(part) >= 3 and part != token and (inner := kind_of_token(part)) in IDENTIFIERS:
                    yield part, inner, match.start()


# comparing texts

_ESCAPE = re.compile(r"\\+(?:u([0-9a-fA-F]{4})|([nrtbf])|([\"'/]))")
_BACKSLASHES = re.compile(r"\\{2,}")
_BLANKS = re.compile(r"\s+")
_SURROGATE = re.compile("[\ud800-\udfff]")
# ASCII letters and digits apart from all others: CJK text has no blank between an order number and its words.
_NORMAL_RUN = re.compile(r"[a-z0-9]+|[^\W_a-z0-9]+")
_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?\Z")
_NO_WORD_GAPS = "\u2e80"  # from here on scripts write without blanks


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
    return _NORMAL_RUN.findall(text)


def number_forms(text: str) -> Iterator[str]:
    """The forms in which a number may be written: with and without separators and zeros at the end."""
    bare = text.replace(",", "").removeprefix("+")
    if bare.lstrip("-")[:1] == "0" and "." not in bare:
        return iter((text,))  # an identifier, in which zeros count
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
    """The first position of a value in a text at token boundaries, both in normal form; -1 without one."""
    if not value:
        return -1
    is_number = bool(_NUMBER.match(value))
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
