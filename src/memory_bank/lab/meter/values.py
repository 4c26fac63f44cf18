"""The values in a call's arguments that may come from earlier outputs: JSON leaves, and identifiers in text.

The reference meter defines which values count (``evbench.evidence``): leaves of up to 120 characters and the
identifier-like tokens of longer text, but no trivial values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

from memory_bank.lab.meter.matching import Form, normalise

NeedKind = Literal["leaf", "token"]

LONGEST = 120
"""Characters of the longest value that counts."""

_SHORTEST = 3
_PROSE = 12  # an argument longer than this may hold several values

_INTEGER = re.compile(r"-?\d+")
_DECIMAL = re.compile(r"-?\d+\.\d+")
_PLAIN_WORD = re.compile(r"[a-z]+")
_COMMON = frozenset(["true", "false", "none", "null", "nan", "error", "success", "utf-8"])
_ROUND = frozenset(["", *"123456789", "15", "25"])  # a round number without its trailing zeros

# Identifiers with spaces or signs in them. The look-behinds keep long runs linear.
_SPANS = tuple(
    re.compile(pattern)
    for pattern in (
        r"https?://[^\s<>\"')\]]+",
        r"(?<![-+.\w])[-+.\w]+@[-\w]+\.[.\w]+",  # e-mail
        r"(?<![-.~\w])(?:[-.~\w]*/)+[-.~\w]+",  # path
        r"\b\d{4}(?:-\d{2}){2}(?:[ T]\d{2}:\d{2}(?::\d{2})?)?",  # date and time
        r"[`'\"]([^`'\"\n]{3,60})[`'\"]",  # quoted
        r"\*\*([^\n*]{3,60})\*\*",  # bold, in answers
        r"\b[A-Z_a-z]\w*(?:\.[A-Z_a-z]\w*){1,4}\b",  # dotted name
        r"#?(?<![0-9A-Z])[0-9A-Z]{2,}-[-0-9A-Z]{2,}",  # code with a hyphen
        r"-?\d+(?:\.\d+)+|\d{3,}",  # decimal, version, long integer
    )
)
_NAME = re.compile(r"\w{3,}")
_LETTER = re.compile(r"[A-Za-z]")
_DIGIT = re.compile(r"\d")
_CAMEL = re.compile(r"[a-z]+[A-Z]\w+|(?:[A-Z][0-9a-z]+){2,}")


def is_trivial(value: str) -> bool:
    """Whether a value is so common that finding it proves nothing.

    Trivial are: fewer than three characters, short or round integers, years, decimals of fewer than three
    significant digits, plain lower-case ASCII words, and the words of programs (``null``, ``success``).
    """
    text = value.strip()
    if len(text) < _SHORTEST or text.casefold() in _COMMON or _PLAIN_WORD.fullmatch(text):
        return True
    if _INTEGER.fullmatch(text):
        digits = text.lstrip("-")
        year = len(digits) == 4 and digits.startswith(("19", "20"))
        return year or len(digits) < 3 or digits.rstrip("0") in _ROUND
    if _DECIMAL.fullmatch(text):
        return len(text.replace(".", "").replace("-", "").strip("0")) < 3
    return False


def leaves(value: object) -> Iterator[tuple[str, bool]]:
    """The scalars of a JSON value as ``(text, is_number)``; text that holds JSON is parsed and walked too."""
    stack = [value]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            stack.extend(reversed(node.values()))
        elif isinstance(node, (list, tuple)):
            stack.extend(reversed(node))
        elif isinstance(node, bool) or node is None:
            continue
        elif isinstance(node, (int, float)):
            yield _number_text(node), True
        elif isinstance(node, str):
            text = node.strip()
            inner = _parsed(text) if text[:1] in ("{", "[") and len(text) > 2 else None
            if inner is not None:
                stack.append(inner)
            else:
                yield text, False


def _number_text(number: int | float) -> str:
    try:
        return repr(number)
    except ValueError:  # more digits than Python converts
        return ""


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def parsed_arguments(arguments: object) -> Any:
    """A call's arguments as a JSON value; text that is not JSON is returned unchanged."""
    value = _parsed(arguments) if isinstance(arguments, str) else None
    return arguments if value is None else value


def identifiers(text: str) -> list[str]:
    """The different identifier-like tokens of code or prose: paths, ids, dates, names, numbers, quotes."""
    found: dict[str, None] = {}
    for pattern in _SPANS:
        for match in pattern.finditer(text):
            _take(found, match[1] if pattern.groups else match[0])
    for word in _NAME.findall(text):
        if _is_name(word):
            _take(found, word)
    return list(found)


def _take(found: dict[str, None], token: str) -> None:
    token = token.strip().rstrip(".,;:")
    if _SHORTEST <= len(token) <= LONGEST and not is_trivial(token):
        found[token] = None


def _is_name(word: str) -> bool:
    """Letters with digits, snake_case or camelCase."""
    if len(word) >= 4 and _LETTER.search(word) and _DIGIT.search(word):
        return True
    if "_" in word[1:-1] and _LETTER.match(word):
        return True
    return _CAMEL.fullmatch(word) is not None


def call_values(arguments: Iterable[object], seen: Callable[[str], bool]) -> dict[str, NeedKind]:
    """The candidate values of a turn's calls, each with its kind.

    ``seen`` says whether an earlier output holds a text: a short argument that it holds is one value; any
    other argument is searched for identifiers.
    """
    found: dict[str, NeedKind] = {}
    for argument in arguments:
        for text, is_number in leaves(parsed_arguments(argument)):
            if is_number:
                if not is_trivial(text):
                    found.setdefault(text, "leaf")
            elif len(text) <= LONGEST and "\n" not in text and not is_trivial(text) and seen(text):
                found.setdefault(text, "leaf")
            elif len(text) > _PROSE and (" " in text or "\n" in text or len(text) > 40):
                for token in identifiers(text):
                    found.setdefault(token, "token")
    return found


def forms_of(value: str) -> tuple[Form, ...]:
    """The ways in which a value may be written: its normal form; a decimal also with fewer or more zeros."""
    forms = [normalise(value)]
    if _DECIMAL.fullmatch(value):
        fraction = value.partition(".")[2]
        if fraction == "0":
            forms.append(value[:-2])
        else:
            short = value.rstrip("0")
            if short != value and not short.endswith("."):
                forms.append(short)
            if len(fraction) == 1:
                forms.append(f"{value}0")
    return tuple(Form(f) for f in forms)
