"""Reads JSON, JSON lines, escaped strings and broken JSON as values or rows; never raises on depth."""

from __future__ import annotations

import json
import re
from typing import Any

LOOSE_TEXT = 200_000
"""Characters of broken JSON that are read as rows; what is longer is cut as plain text."""

Row = list[tuple[str, str]]
"""(key, text) pairs of one object."""

_NUL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))", re.S)
_PLAIN = {"n": "\n", "t": "\t", "r": "\r", "b": " ", "f": " "}
_SURROGATE = re.compile("[\ud800-\udfff]")
_KEYED = re.compile(r'"\s*:')
_TOKEN = re.compile(r'"((?:[^"\\]|\\.){0,2000}+)"(\s*:)?|([{}\[\],])|([^\s{}\[\],"]+)|(")', re.S)


def load_json(text: str) -> Any:
    """The JSON value of `text`; ValueError for anything that is not an object or an array."""
    stripped = text.strip()
    if stripped[:1] not in ("{", "[") or stripped[-1:] not in ("}", "]"):
        raise ValueError("no object or array")
    try:
        return json.loads(stripped)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def load_json_lines(text: str) -> list[Any] | None:
    """Rows of a text in which every line is a JSON object, else None."""
    stripped = text.strip()
    if stripped[:1] != "{" or "\n" not in stripped or len(stripped) > 4_000_000:
        return None
    rows = []
    for line in stripped.split("\n"):
        line = line.strip()
        if not line:
            continue
        if line[:1] != "{" or line[-1:] != "}":
            return None
        try:
            rows.append(json.loads(line))
        except (ValueError, RecursionError):
            return None
    return rows if len(rows) > 1 else None


def load_loose(text: str) -> list[Row] | None:
    """Rows of broken or cut JSON (a key that comes again opens the next row); None if it is not JSON-like."""
    if len(text) > LOOSE_TEXT or len(text) < 80:
        return None
    keys = len(_KEYED.findall(text))
    if keys < 6 or keys * 220 < len(text):
        return None
    rows: list[Row] = [[]]
    seen: set[str] = set()
    key = ""
    bare: list[str] = []

    def close() -> None:
        nonlocal key
        if bare:
            put(" ".join(bare))
            bare.clear()
        key = ""

    def put(value: str) -> None:
        value = clean(value)
        if value:
            rows[-1].append((key, value))

    for match in _TOKEN.finditer(text):
        string, colon, mark, word, _ = match.groups()
        if string is not None and colon:
            close()
            key = clean(unescape(string) if "\\" in string else string)[:60]
            if key in seen:
                rows.append([])
                seen.clear()
            seen.add(key)
        elif string is not None:
            bare.append(unescape(string) if "\\" in string else string)
        elif (mark == "," and len(bare) > 0) or mark in ("}", "]"):
            close()
        elif word and word != ":":
            bare.append(word)
    close()
    return [row for row in rows if row]


def unescape(text: str) -> str:
    """Undo one level of backslash escapes; surrogate pairs written as two escapes become one character."""

    def plain(match: re.Match[str]) -> str:
        code = match.group(1) or match.group(2)
        if code:
            return chr(int(code, 16))
        return _PLAIN.get(match.group(3), match.group(3))

    out = _ESCAPE.sub(plain, text)
    if _SURROGATE.search(out):
        out = out.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return out


def scalar_text(value: object) -> str:
    """How a JSON scalar is written in a segment."""
    if isinstance(value, str):
        return clean(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    try:
        return repr(value)
    except ValueError:  # integers with more digits than the interpreter prints
        return "(huge number)"


def clean(text: str) -> str:
    """Text without control characters, white space at its ends removed."""
    return _NUL.sub(" ", text).strip()
