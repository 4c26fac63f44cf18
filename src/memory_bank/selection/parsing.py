"""Reads the values in a text: JSON, JSON lines, escaped or broken JSON, printed Python objects."""

from __future__ import annotations

import json
import re

LOOSE_TEXT = 200_000
"""Broken JSON longer than this many characters is cut as plain text."""
PRINTED_TEXT = 4_000_000
"""JSON lines and printed objects longer than this many characters are cut as plain text."""
PRINTED_DEPTH = 40

Fields = list[tuple[str, str]]
"""(key, text) pairs of one object."""

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))", re.S)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": " ", "f": " "}
_SURROGATE = re.compile("[\ud800-\udfff]")
_KEY = re.compile(r'"\s*:')
_LOOSE = re.compile(r'"((?:[^"\\]|\\.){0,2000}+)"(\s*:)?|([{}\[\],])|([^\s{}\[\],"]+)|(")', re.S)
_PRINTED = re.compile(
    r"\s*(?:(?P<open>[\[({])|(?P<close>[\])}])|(?P<mark>[,:])"
    r"|[bBuUrR]{0,2}(?:'(?P<single>(?:[^'\\]|\\.)*+)'|\"(?P<double>(?:[^\"\\]|\\.)*+)\")"
    r"|(?P<word>[\w.+\-]+))",
    re.S,
)
_PRINTED_STARTS = ("[(", "[{", "[[", "{'", "('", "['", "((")
_CLOSING = {"[": "]", "(": ")", "{": "}"}
_CONSTANTS = {"None": None, "True": True, "False": False}


# -- strings ------------------------------------------------------------------
def clean(text: str) -> str:
    """Return `text` without control characters and without white space at its ends."""
    return _CONTROL.sub(" ", text).strip()


def unescape(text: str) -> str:
    """Undo one level of backslash escapes; two escapes of a surrogate pair become one character."""

    def plain(match: re.Match[str]) -> str:
        code = match.group(1) or match.group(2)
        return chr(int(code, 16)) if code else _ESCAPED.get(match.group(3), match.group(3))

    out = _ESCAPE.sub(plain, text)
    if _SURROGATE.search(out):
        out = out.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return out


def scalar_text(value: object) -> str:
    """Return a JSON scalar as segments show it."""
    if isinstance(value, str):
        return clean(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value)


# -- JSON ---------------------------------------------------------------------
def load_json(text: str) -> object:
    """Return the JSON object or array in `text`; ValueError for anything else."""
    stripped = text.strip()
    if stripped[:1] not in ("{", "[") or stripped[-1:] not in ("}", "]"):
        raise ValueError("no object or array")
    try:
        return json.loads(stripped)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def load_json_lines(text: str) -> list[object] | None:
    """Return the rows of a text in which every line is a JSON object, else None."""
    stripped = text.strip()
    if stripped[:1] != "{" or "\n" not in stripped or len(stripped) > PRINTED_TEXT:
        return None
    rows: list[object] = []
    for line in filter(None, map(str.strip, stripped.split("\n"))):
        if line[:1] != "{" or line[-1:] != "}":
            return None
        try:
            rows.append(json.loads(line))
        except (ValueError, RecursionError):
            return None
    return rows if len(rows) > 1 else None


def load_loose(text: str) -> list[Fields] | None:
    """Return the rows of broken or cut JSON, None if the text is not JSON-like.

    A key that is already in a row begins the next row.
    """
    if not 80 <= len(text) <= LOOSE_TEXT:
        return None
    count = len(_KEY.findall(text))
    if count < 6 or count * 220 < len(text):
        return None
    rows: list[Fields] = [[]]
    keys: set[str] = set()  # of the last row
    key = ""
    words: list[str] = []  # of the value that is being read
    for match in [*_LOOSE.finditer(text), None]:
        string, colon, mark, word = match.group(1, 2, 3, 4) if match else (None, None, "}", None)
        is_key = string is not None and colon is not None
        if is_key or mark in ("}", "]") or (mark == "," and words):
            value = clean(" ".join(words))
            if value:
                rows[-1].append((key, value))
            words.clear()
            key = ""
        if string is not None:
            string = unescape(string) if "\\" in string else string
            if is_key:
                key = clean(string)[:60]
                if key in keys:
                    rows.append([])
                    keys.clear()
                keys.add(key)
            else:
                words.append(string)
        elif word and word != ":":
            words.append(word)
    return [row for row in rows if row]


# -- printed Python objects ---------------------------------------------------
class _Mark:
    """A comma or a colon between the items of a printed object."""


_COMMA, _COLON = _Mark(), _Mark()


def load_printed(text: str) -> object:
    """Return the lists and dicts of a printed Python object, tuples and sets as lists.

    Numbers stay strings. A call such as ``Decimal('1.5')`` becomes its only string, else its text. An object
    whose end is cut off is read as far as it goes. ValueError if the text is no such object.
    """
    stripped = text.strip()
    if stripped[:2] not in _PRINTED_STARTS or len(stripped) > PRINTED_TEXT:
        raise ValueError("no printed object")
    stack: list[tuple[str, list[object], int]] = []  # bracket or name of the call, items, where it opened
    at, size = 0, len(stripped)
    called, called_at = "", 0
    while at < size:
        match = _PRINTED.match(stripped, at)
        if match is None:
            if stack and len(stack[0][1]) > 2 and size - at < 400:
                break  # cut off within a string
            raise ValueError("no printed object")
        start, at = at, match.end()
        kind = match.lastgroup
        if kind == "open":
            if len(stack) >= PRINTED_DEPTH:
                raise ValueError("nested too deep")
            stack.append((called + match["open"], [], called_at if called else start))
            called = ""
            continue
        items = stack[-1][1]
        if kind == "mark":
            items.append(_COMMA if match["mark"] == "," else _COLON)
        elif kind == "word":
            word = match["word"]
            if stripped[at : at + 1] == "(" and word[:1].isalpha():
                called, called_at = word, match.start("word")
            else:
                items.append(_CONSTANTS.get(word, word))
        elif kind == "close":
            name, items, opened = stack.pop()
            if _CLOSING[name[-1]] != match["close"]:
                raise ValueError("no printed object")
            done = _closed(name, items, stripped[opened:at])
            if not stack:
                if stripped[at:].strip():
                    raise ValueError("more than a printed object")
                return done
            stack[-1][1].append(done)
        else:
            body = match["single"] if match["single"] is not None else match["double"]
            items.append(unescape(body) if "\\" in body else body)
    if not stack or stack[0][0] != "[" or len(stack[0][1]) < 5:
        raise ValueError("an unfinished object")
    while len(stack) > 1:
        name, items, opened = stack.pop()
        if items:
            stack[-1][1].append(_closed(name, items, stripped[opened:]))
    return _closed("[", stack[0][1], stripped)


def _closed(name: str, items: list[object], text: str) -> object:
    """Return what a bracket holds: a list, a dict, or the text of a call."""
    values = [i for i in items if not isinstance(i, _Mark)]
    if len(name) > 1:
        return values[0] if len(values) == 1 and isinstance(values[0], str) else text.strip()
    if name != "{" or len(items) < 2 or items[1] is not _COLON:
        return values
    out: dict[str, object] = {}
    key: str | None = None
    value: object = None
    for item in [*items, _COMMA]:
        if item is _COMMA:
            if key is not None:
                out[key] = value
            key, value = None, None
        elif item is _COLON:
            key = str(value)
        else:
            value = item
    return out
