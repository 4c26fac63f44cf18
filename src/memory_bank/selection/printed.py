"""Reads what programs print of their objects: Python lists of tuples, dicts, calls such as Decimal('1.5')."""

from __future__ import annotations

import re
from typing import Any

from memory_bank.selection.jsonish import unescape

LONGEST = 4_000_000
_DEPTH = 40
_TOKEN = re.compile(
    r"\s*(?:(?P<open>[\[({])|(?P<close>[\])}])|(?P<mark>[,:])"
    r"|[bBuUrR]{0,2}(?:'(?P<single>(?:[^'\\]|\\.)*+)'|\"(?P<double>(?:[^\"\\]|\\.)*+)\")"
    r"|(?P<word>[\w.+\-]+))",
    re.S,
)
_PAIRS = {"[": "]", "(": ")", "{": "}"}
_WORDS = {"None": None, "True": True, "False": False}


def load_printed(text: str) -> Any:
    """The lists and dicts of a printed Python object, tuples and sets as lists; ValueError if it is none.

    Numbers stay as written. A call is its only string, else its text. What was cut off at the end is
    read as far as it goes.
    """
    stripped = text.strip()
    if stripped[:2] not in ("[(", "[{", "[[", "{'", "('", "['", "((") or len(stripped) > LONGEST:
        raise ValueError("no printed object")
    stack: list[tuple[str, list[Any], int]] = []  # bracket or name of the call, items, where it opened
    at, size = 0, len(stripped)
    done: Any = None
    called, begun = "", 0
    while at < size:
        match = _TOKEN.match(stripped, at)
        if match is None:
            if stack and len(stack[0][1]) > 2 and size - at < 400:
                break  # cut off within a string
            raise ValueError("no printed object")
        start, at = at, match.end()
        kind = match.lastgroup
        if kind == "open":
            if len(stack) >= _DEPTH:
                raise ValueError("nested too deep")
            stack.append((called + match["open"], [], begun if called else start))
            called = ""
            continue
        if called:
            stack[-1][1].append(_word(called))
            called = ""
        if kind == "mark":
            stack[-1][1].append(_MARKS[match["mark"]])
        elif kind == "word":
            if stripped[at : at + 1] == "(" and match["word"][:1].isalpha():
                called, begun = match["word"], match.start("word")
            else:
                stack[-1][1].append(_word(match["word"]))
        elif kind == "close":
            name, items, opened = stack.pop()
            if _PAIRS[name[-1]] != match["close"]:
                raise ValueError("no printed object")
            done = _closed(name, items, stripped[opened:at])
            if not stack:
                if stripped[at:].strip():
                    raise ValueError("more than a printed object")
                return done
            stack[-1][1].append(done)
        else:
            body = match["single"] if match["single"] is not None else match["double"]
            stack[-1][1].append(unescape(body) if "\\" in body else body)
    if not stack or stack[0][0] != "[" or len(stack[0][1]) < 5:
        raise ValueError("an unfinished object")
    while len(stack) > 1:
        name, items, opened = stack.pop()
        if items:
            stack[-1][1].append(_closed(name, items, stripped[opened:]))
    return _closed("[", stack[0][1], stripped)


class _Mark:
    __slots__ = ()


_COMMA, _COLON = _Mark(), _Mark()
_MARKS = {",": _COMMA, ":": _COLON}


def _word(word: str) -> Any:
    return _WORDS.get(word, word)


def _closed(name: str, items: list[Any], text: str) -> Any:
    """What a bracket holds: a list, a dict, or the text of a call."""
    if len(name) > 1:
        values = [i for i in items if not isinstance(i, _Mark)]
        return values[0] if len(values) == 1 and isinstance(values[0], str) else text.strip()
    if name == "{" and len(items) > 1 and items[1] is _COLON:
        out: dict[str, Any] = {}
        key, value, known = "", None, False
        for item in [*items, _COMMA]:
            if item is _COMMA:
                if known:
                    out[key] = value
                key, value, known = "", None, False
            elif item is _COLON:
                key, known = str(value), True
            else:
                value = item
        return out
    return [i for i in items if not isinstance(i, _Mark)]
