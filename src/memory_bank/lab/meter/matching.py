"""Verbatim matching that does not depend on serialisation: one normal form, whole tokens only.

The rules are those of the reference meter (``evbench.text``): nested JSON escapes are undone, case is folded,
runs of white space become one space; a value is found only where it stands as a whole token.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

_UNICODE_ESCAPE = re.compile(r"\\+u([0-9A-Fa-f]{4})")
_SPACE_ESCAPE = re.compile(r"\\+[rnt]")
_SIGN_ESCAPE = re.compile(r"\\+([/'\"])")
_BACKSLASHES = re.compile(r"\\\\+")
_WORD = re.compile(r"[^\W_]+")


def normalise(text: str) -> str:
    """A text in its normal form: escapes undone at any depth, case folded, single spaces."""
    if "\\" in text:
        text = _UNICODE_ESCAPE.sub(lambda m: chr(int(m[1], 16)), text)
        text = _SPACE_ESCAPE.sub(" ", text)
        text = _SIGN_ESCAPE.sub(lambda m: m[1], text)
        text = _BACKSLASHES.sub(lambda _: "\\", text)
    if not text:
        return ""
    words = " ".join(text.split())
    if not words:
        return " "
    before = " " if text[0].isspace() else ""
    after = " " if text[-1].isspace() else ""
    return f"{before}{words}{after}".casefold()


def words_of(normal: str) -> frozenset[str]:
    """The runs of letters and digits in a normal text; a text that holds a value holds all of its words."""
    return frozenset(_WORD.findall(normal))


def occurrences(text: str, value: str, limit: int) -> list[int]:
    """The first ``limit`` positions of ``value`` in ``text`` as a whole token; both in normal form.

    No letter, digit or underscore may continue it, and a number must not be part of a longer one: 645 is not
    found in 1645, 645.99 or 1,645.
    """
    found: list[int] = []
    if not value:
        return found
    guard_left, guard_right = value[0].isalnum(), value[-1].isalnum()
    number = value.replace(".", "", 1).replace("-", "", 1).isdigit()
    at = text.find(value)
    while at >= 0:
        stop = at + len(value)
        if (
            not (guard_left and at and _continues(text[at - 1]))
            and not (guard_right and stop < len(text) and _continues(text[stop]))
            and not (number and _inside_number(text, at, stop))
        ):
            found.append(at)
            if len(found) >= limit:
                break
        at = text.find(value, at + 1)
    return found


def _continues(c: str) -> bool:
    return c == "_" or c.isalnum()


def _inside_number(text: str, start: int, stop: int) -> bool:
    """Whether a point or comma joins the digits at ``start:stop`` to more digits on either side."""
    after, before = text[stop : stop + 2], text[max(0, start - 2) : start]
    return (len(after) == 2 and after[0] in ".," and after[1].isdigit()) or (
        len(before) == 2 and before[1] in ".," and before[0].isdigit()
    )


class Page:
    """A text in normal form, with its words for quick rejection."""

    __slots__ = ("text", "words")

    def __init__(self, normal: str) -> None:
        self.text = normal
        self.words = words_of(normal)

    def places(self, form: Form, limit: int = 1) -> list[int]:
        """The positions of a form of a value."""
        return occurrences(self.text, form.text, limit) if form.words <= self.words else []

    def holds(self, forms: Collection[Form]) -> bool:
        """Whether the text holds any of the forms."""
        return any(self.places(form) for form in forms)


class Form:
    """One way to write a value, in normal form, with its words."""

    __slots__ = ("text", "words")

    def __init__(self, normal: str) -> None:
        self.text = normal
        self.words = words_of(normal)

    def __repr__(self) -> str:
        return f"Form({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Form) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)


class Reader:
    """Caches the pages of texts. One reader serves one trace and all strategies that are tried on it."""

    def __init__(self, most: int = 50_000) -> None:
        self._most = most
        self._pages: dict[str, Page] = {}

    def page(self, text: str) -> Page:
        """The page of a text that is not normalised yet."""
        return self.read(text, lambda: normalise(text))

    def read(self, key: str, normal: Callable[[], str]) -> Page:
        """The page cached under ``key``; ``normal`` returns its normalised text when it is new."""
        page = self._pages.get(key)
        if page is None:
            if len(self._pages) >= self._most:
                self._pages.clear()
            page = self._pages[key] = Page(normal())
        return page
