"""Texts in one normal form, what stands in them as a whole token, and which values of a call count.

The rules are those of the reference meter (``evbench.text``, ``evbench.evidence``): nested JSON escapes are undone,
case is folded, white space becomes one space. Values are JSON leaves of up to 120 characters and the identifier-like
tokens of longer text, but no trivial ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, lru_cache
from typing import Any, Literal

from memory_bank.audit.traces import message_texts

NeedKind = Literal["leaf", "token"]

LONGEST = 120
"""Characters of the longest value that counts."""

_WORD = re.compile(r"[^\W_]+")


class NormalText(str):
    """A text in normal form."""

    @cached_property
    def words(self) -> frozenset[str]:
        """Its runs of letters and digits; a text that holds a value holds all words of the value."""
        return frozenset(_WORD.findall(self))

    def places(self, value: NormalText, limit: int = 1) -> list[int]:
        """The first positions at which a value stands as a whole token.

        No letter, digit or underscore may continue it, and a number must not be part of a longer one: 645 is not
        found in 1645, 645.99 or 1,645.
        """
        positions: list[int] = []
        if not value or not value.words <= self.words:
            return positions
        guard_left, guard_right = value[0].isalnum(), value[-1].isalnum()
        number = value.replace(".", "", 1).replace("-", "", 1).isdigit()
        at = self.find(value)
        while at >= 0 and len(positions) < limit:
            stop = at + len(value)
            if (
                not (guard_left and at and _continues(self[at - 1]))
                and not (guard_right and stop < len(self) and _continues(self[stop]))
                and not (number and _inside_number(self, at, stop))
            ):
                positions.append(at)
            at = self.find(value, at + 1)
        return positions

    def holds(self, values: Iterable[NormalText]) -> bool:
        """Return whether any of some values stands in the text."""
        return any(self.places(value) for value in values)


def _continues(c: str) -> bool:
    return c == "_" or c.isalnum()


def _inside_number(text: str, start: int, stop: int) -> bool:
    """Return whether a point or comma joins the digits at ``start:stop`` to more digits on either side."""
    after, before = text[stop : stop + 2], text[max(0, start - 2) : start][::-1]
    return any(len(side) == 2 and side[0] in ".," and side[1].isdigit() for side in (after, before))


@lru_cache(maxsize=3_000)
def normalise(text: str) -> NormalText:
    """A text in its normal form: escapes undone at any depth, case folded, single spaces."""
    if "\\" in text:
        text = re.sub(r"(?<!\\)\\+u([0-9A-Fa-f]{4})", lambda m: chr(int(m[1], 16)), text)
        text = re.sub(r"(?<!\\)\\+[rnt]", " ", text)
        text = re.sub(r"(?<!\\)\\+([/'\"])", r"\1", text)
        text = re.sub(r"\\\\+", r"\\", text)
    words = " ".join(text.split())
    if not words:
        return NormalText(" " if text else "")
    before, after = (" " if c.isspace() else "" for c in (text[0], text[-1]))
    return NormalText(f"{before}{words}{after}".casefold())


def texts_of(messages: Iterable[object]) -> list[NormalText]:
    """The texts of messages in normal form."""
    return [normalise(text) for message in messages for text in message_texts(message)]


# Values

# Identifiers with spaces or signs in them. The look-behinds keep long runs linear.
_SPANS = tuple(
    re.compile(pattern)
    for pattern in (
        r"https?://[^\s<>\"')\]]+",
        r"(?<![-+.\w])[-+.\w]+@[-\w]+\.[.\w]+",  # e-mail
        r"(?<![-.~\w/])(?:[-.~\w]*/)++[-.~\w]+",  # path
        r"\b\d{4}(?:-\d{2}){2}(?:[ T]\d{2}:\d{2}(?::\d{2})?)?",  # date and time
        r"[`'\"]([^`'\"\n]{3,60})[`'\"]",  # quoted
        r"\*\*([^\n*]{3,60})\*\*",  # bold, in answers
        r"\b[A-Z_a-z]\w*(?:\.[A-Z_a-z]\w*){1,4}\b",  # dotted name
        r"#?(?<![0-9A-Z])[0-9A-Z]{2,}-[-0-9A-Z]{2,}",  # code with a hyphen
        r"-?\d+(?:\.\d+)+|\d{3,}",  # decimal, version, long integer
    )
)
_CAMEL = re.compile(r"[a-z]+[A-Z]\w+|(?:[A-Z][0-9a-z]+){2,}")
_DECIMAL = re.compile(r"-?\d+\.\d+")
_COMMON = frozenset(["true", "false", "none", "null", "nan", "error", "success", "utf-8"])
_ROUND = frozenset(["", *"123456789", "15", "25"])  # a round number without its trailing zeros


def is_trivial(value: str) -> bool:
    """Return whether a value is so common that finding it proves nothing.

    Trivial are: fewer than three characters, short or round integers, years, decimals of fewer than three
    significant digits, plain lower-case ASCII words, and the words of programs (``null``, ``success``).
    """
    text = value.strip()
    if len(text) < 3 or text.casefold() in _COMMON or re.fullmatch(r"[a-z]+", text):
        return True
    if re.fullmatch(r"-?\d+", text):
        digits = text.lstrip("-")
        year = len(digits) == 4 and digits.startswith(("19", "20"))
        return year or len(digits) < 3 or digits.rstrip("0") in _ROUND
    if _DECIMAL.fullmatch(text):
        return len(text.replace(".", "").replace("-", "").strip("0")) < 3
    return False


def scalars(value: object, *, nested: bool = False) -> Iterator[str | int | float]:
    """The strings and numbers in a JSON value, in order; ``nested``: text that holds JSON is walked too."""
    stack = [value]
    while stack:
        node = stack.pop()
        if isinstance(node, Mapping):
            stack += reversed(list(node.values()))
        elif isinstance(node, (list, tuple)):
            stack += reversed(node)
        elif isinstance(node, str):
            text = node.strip()
            inner = _parsed(text) if nested and text[:1] in ("{", "[") and len(text) > 2 else None
            if inner is None:
                yield node
            else:
                stack.append(inner)
        elif isinstance(node, (int, float)) and not isinstance(node, bool):
            yield node


def leaves(value: object) -> Iterator[tuple[str, bool]]:
    """The scalars of a JSON value as ``(text, is_number)``; text that holds JSON is parsed and walked too."""
    for scalar in scalars(value, nested=True):
        if isinstance(scalar, str):
            yield scalar.strip(), False
        else:
            try:
                yield repr(scalar), True
            except ValueError:  # more digits than Python converts
                yield "", True


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
    tokens = [m[1] if p.groups else m[0] for p in _SPANS for m in p.finditer(text)]
    tokens += filter(_is_name, re.findall(r"\w{3,}", text))
    stripped = dict.fromkeys(token.strip().rstrip(".,;:") for token in tokens)
    return [token for token in stripped if 3 <= len(token) <= LONGEST and not is_trivial(token)]


def _is_name(word: str) -> bool:
    with_digits = len(word) >= 4 and re.search(r"[A-Za-z]", word) and re.search(r"\d", word)
    snake_case = "_" in word[1:-1] and re.match(r"[A-Za-z]", word)
    return bool(with_digits or snake_case or _CAMEL.fullmatch(word))


def call_values(arguments: Iterable[object], seen: Callable[[str], bool]) -> dict[str, NeedKind]:
    """The candidate values of a turn's calls, each with its kind.

    ``seen`` says whether an earlier output holds a text: a short argument that it holds is one value; any
    other argument is searched for identifiers.
    """
    kinds: dict[str, NeedKind] = {}
    for argument in arguments:
        for text, is_number in leaves(parsed_arguments(argument)):
            if is_number:
                if not is_trivial(text):
                    kinds.setdefault(text, "leaf")
            elif len(text) <= LONGEST and "\n" not in text and not is_trivial(text) and seen(text):
                kinds.setdefault(text, "leaf")
            elif len(text) > 12 and (" " in text or "\n" in text or len(text) > 40):
                for token in identifiers(text):
                    kinds.setdefault(token, "token")
    return kinds


def forms_of(value: str) -> tuple[NormalText, ...]:
    """The ways in which a value may be written: its normal form; a decimal also with fewer or more zeros."""
    forms = [normalise(value)]
    if _DECIMAL.fullmatch(value):
        fraction = value.partition(".")[2]
        short = value[:-2] if fraction == "0" else value.rstrip("0")
        if short != value and not short.endswith("."):
            forms.append(NormalText(short))
        if len(fraction) == 1 and fraction != "0":
            forms.append(NormalText(f"{value}0"))
    return tuple(forms)
