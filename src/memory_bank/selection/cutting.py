"""Cuts a text into short segments along its structure: JSON leaves, rows of tables, lines, wrapped prose."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from memory_bank.selection.parsing import (
    Fields,
    clean,
    load_json,
    load_json_lines,
    load_loose,
    load_printed,
    scalar_text,
    unescape,
)

WIDTH = 140
"""Characters that a segment should have."""
SHORT_ROWS = 40
"""Rows without column names are joined up to this many characters, so that each can be shown alone."""
MAX_SEGMENTS = 2400
"""Segments of one text; the rest is counted as skipped."""
MAX_TEXT = 600_000
"""Characters of one plain text that are read, from its start and its end."""
MAX_LITERAL = 8_000_000
"""Texts longer than this are not searched for an escaped string."""
MAX_DEPTH = 48
LONGEST_WORD = 400
"""An unbroken run longer than this (base64, minified data) is replaced by its length."""

Cell = tuple[str, int, int]
"""(key, start, end): text[start:end] is one value under `key`."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a text that is shown whole or not at all."""

    text: str
    block: int
    cells: tuple[Cell, ...] = ()


@dataclass(frozen=True, slots=True)
class CutText:
    """A text in segments; `heads[block]` is shown once before the segments of a block.

    `skipped` of its `chars` characters are in no segment.
    """

    segments: tuple[Segment, ...]
    heads: tuple[str, ...]
    chars: int
    skipped: int


_LABEL = re.compile(r'[\s\-*•>#\d.)"\']{0,12}([^\W\d_][\w /\-]{0,30}?)["\'*]{0,2}\s?[:=]["\'*]{0,2}\s?(?=\S)')
_BULLET = re.compile(r"(?:[-*•+]|\d{1,3}[.)])\s+")
_OPEN_QUOTE = re.compile(r"(?:^|[=(:,\s\[{])['\"]")
_SINGLE = re.compile(r"(?:[^'\\]|\\.)*+(?=')", re.S)
_DOUBLE = re.compile(r'(?:[^"\\]|\\.)*+(?=")', re.S)
_UNFINISHED = re.compile(r'(?:[^"\\]|\\.)*+\\?\Z', re.S)
_ESCAPED_BREAK = re.compile(r"\\+n")
_BREAK = re.compile(r"[\s,;|)\]}>]")
_WRAPPER_KEYS = ("text", "content", "result", "output")


class _TooDeepError(Exception):
    """Structure nested deeper than MAX_DEPTH."""


def cut_text(text: str, width: int = WIDTH, limit: int = MAX_SEGMENTS) -> CutText:
    """Return the segments of `text` in order, about `limit` at most; linear in its length, never raises."""
    for structured in (True, False):
        cutter = _Cutter(width, limit)
        try:
            cutter.add_string(text, "", 0, structured)
        except (_TooDeepError, RecursionError):
            continue
        return cutter.finish(len(text))
    raise AssertionError("plain text is never too deep")


class _Cutter:
    """Collects the segments of one text."""

    def __init__(self, width: int, limit: int) -> None:
        self.width, self.limit = width, limit
        self.segments: list[Segment] = []
        self.heads = [""]
        self.skipped = 0
        self._parts: list[str] = []  # of the open segment, as are the next two
        self._cells: list[Cell] = []
        self._length = 0

    # -- the open segment ------------------------------------------------------
    def _start_block(self, head: str = "") -> None:
        self.flush()
        if not self.segments or self.segments[-1].block < len(self.heads) - 1:
            self.heads.pop()  # the last block has no segment
        self.heads.append(head)

    def flush(self) -> None:
        """End the open segment."""
        text = "".join(self._parts)
        if text.strip():
            self.segments.append(Segment(text, len(self.heads) - 1, tuple(self._cells)))
        self._parts, self._cells, self._length = [], [], 0

    def finish(self, chars: int) -> CutText:
        self.flush()
        return CutText(tuple(self.segments), tuple(self.heads), chars, min(chars, self.skipped))

    @property
    def full(self) -> bool:
        return len(self.segments) >= self.limit

    def _flush_unless_room(self, chars: int) -> bool:
        """End the open segment unless it has room for that many characters; whether it was ended."""
        if self._length and self._length + chars > self.width:
            self.flush()
            return True
        return False

    def _append(self, separator: str, label: str, text: str, key: str) -> None:
        """Append one value to the open segment."""
        lead = (separator if self._parts else "") + label
        start = self._length + len(lead)
        self._parts.append(lead + text)
        self._cells.append((key, start, start + len(text)))
        self._length = start + len(text)

    def _append_long(self, separator: str, label: str, text: str, key: str) -> None:
        """Append a long value: its start to the open segment, the rest in segments of its own."""
        room = self.width * 5 // 4 - self._length - len(label)
        if self._length and room < 40:
            self.flush()
            room = self.width - len(label)
        for piece in wrap(text, self.width, max(40, min(room, self.width))):
            if self.full:
                self.skipped += len(piece)
                continue
            self._append(separator, label, piece, key)
            label = separator = ""
            self.flush()

    # -- strings ---------------------------------------------------------------
    def add_string(self, text: str, path: str, depth: int, structured: bool = True) -> None:
        """Add a string by the structure that is found in it, else as lines."""
        if not (structured and self._add_structured(text, path, depth)):
            self._add_prose(text, path)

    def _add_structured(self, text: str, path: str, depth: int) -> bool:
        for load in (load_json, load_json_lines, load_printed):
            try:
                value = load(text)
            except ValueError:
                continue
            if value is not None:
                self.add_value(value, path, depth + 1)
                return True
        if "\\" in text and self._add_escaped(text, path, depth):
            return True
        rows = load_loose(text)
        if rows is not None:
            self._add_rows(rows, path, 0)
            self._start_block()
        return rows is not None

    def _add_escaped(self, text: str, path: str, depth: int) -> bool:
        """Add a text that is mostly one escaped string (a printed object, a string in a string), if it is."""
        if depth > MAX_DEPTH or len(text) > MAX_LITERAL:
            return False
        at = 0
        for _ in range(6):
            opened = _OPEN_QUOTE.search(text, at, at + 400)
            if opened is None:
                break
            at = opened.end()
            pattern = _SINGLE if opened.group(0)[-1] == "'" else _DOUBLE
            match = pattern.match(text, at)
            if match is None and opened.group(0) == ':"':
                match = _UNFINISHED.match(text, at)
            if match is None or match.end() - at < 0.6 * len(text):
                continue
            self._add_prose(text[: at - 1], path)
            self.add_string(unescape(match.group(0)), path, depth + 1)
            self._add_prose(text[match.end() + 1 :], path)
            return True
        if len(_ESCAPED_BREAK.findall(text, 0, 4000)) > 3 * (1 + text.count("\n", 0, 4000)):
            self.add_string(unescape(text), path, depth + 1)
            return True
        return False

    def _add_prose(self, text: str, path: str) -> None:
        """Add lines of text: short ones joined, long ones cut at white space."""
        if len(text) > MAX_TEXT:
            head, tail = text[: MAX_TEXT * 2 // 3], text[-MAX_TEXT // 3 :]
            self.skipped += len(text) - len(head) - len(tail)
            self._add_lines(_without_last_word(head), path)
            self._add_lines(_without_first_word(tail), path)
        else:
            self._add_lines(text, path)

    def _add_lines(self, text: str, path: str) -> None:
        lines = text.split("\n")
        self._start_block(f"{path}:" if path else "")
        if len(lines) > self.limit * 8:
            keep = self.limit * 4
            dropped = lines[keep : len(lines) - keep // 2]
            self.skipped += sum(map(len, dropped)) + len(dropped)
            lines = lines[:keep] + lines[len(lines) - keep // 2 :]
        for number, raw in enumerate(lines):
            if self.full:
                self.skipped += sum(len(rest) + 1 for rest in lines[number:])
                return
            line = clean(raw)
            bullet = _BULLET.match(line)
            if (not line or bullet) and self._length >= self.width // 2:
                self.flush()
            if not line:
                continue
            heading = (raw[:1] == "#" or line[-1:] == ":") and len(line) <= 80
            if heading:
                self.flush()
            label = _LABEL.match(line)
            if label and label.end() < len(line):
                key, start = label.group(1), label.end()
            else:
                key, start = ("-", bullet.end()) if bullet else ("", 0)
            if len(line) <= self.width * 5 // 4:
                self._flush_unless_room(len(line) + 1)
                self._append("\n", line[:start], line[start:], key)
            else:
                self._append_long("\n", line[:start], line[start:], key)
        self.flush()

    # -- JSON values -----------------------------------------------------------
    def add_value(self, value: object, path: str, depth: int) -> None:
        """Add a JSON value under its path."""
        if depth > MAX_DEPTH:
            raise _TooDeepError
        label = f"{path}: " if path else ""
        if isinstance(value, dict):
            self._add_object(value, path, depth)
        elif isinstance(value, list):
            self._add_array(value, path, depth)
        elif isinstance(value, str) and self._is_long(value):
            if "\n" in value or value[:1] in "{[" or len(value) > MAX_TEXT:
                self.add_string(value, path, depth)
            else:
                self._append_long("; ", label, clean(value), _last_key(path))
        elif value is not None and value != "":
            text = scalar_text(value)
            if self.full:
                self.skipped += len(text)
                return
            self._flush_unless_room(len(label) + len(text) + 2)
            self._append("; ", label, text, _last_key(path))

    def _is_long(self, text: str) -> bool:
        """Whether a string is longer than a segment, of several lines or perhaps JSON."""
        return len(text) > self.width or "\n" in text or (len(text) > 2 and text[0] in "{[")

    def _is_scalar(self, value: object) -> bool:
        return not _is_nested(value) and not (isinstance(value, str) and self._is_long(value))

    def _add_object(self, value: Mapping[object, object], path: str, depth: int) -> None:
        prefix = path + "." if path else ""
        texts = [k for k, v in value.items() if isinstance(v, str) and self._is_long(v)]
        alone = len(texts) == 1 and not any(map(_is_nested, value.values()))
        for key, item in value.items():
            name = prefix + clean(str(key))[:60]
            if (
                alone
                and key == texts[0]
                and isinstance(item, str)
                and len(item) > 0.6 * sum(len(str(v)) for v in value.values())
            ):
                self.add_string(item, "" if key in _WRAPPER_KEYS else name, depth + 1)
                self._start_block()
            else:
                self.add_value(item, name, depth + 1)

    def _add_array(self, values: list[object], path: str, depth: int) -> None:
        if values and all(isinstance(v, dict) for v in [*values[:50], values[-1]]):
            if len(values) <= self.limit and any(self._holds_text(v) for v in values[:20]):
                for item in values:
                    self.add_value(item, path, depth + 1)
                    self.flush()
            else:
                self._add_table(values, path, depth)
            return
        room = self.limit * 10
        shown, _ = self._first_and_last(values, room * 2 // 3, room // 3)
        if all(map(self._is_scalar, shown)):
            self._add_scalars(shown, path)
        elif all(isinstance(v, list) and len(v) == 1 for v in shown):
            self._add_array([v[0] for v in shown if isinstance(v, list)], path, depth)
        else:
            for item in shown:
                if not isinstance(item, list) or any(map(_is_nested, item)):
                    self.add_value(item, path, depth + 1)
                elif self.full:
                    self.skipped += sum(len(str(v)) for v in item)
                else:
                    self._add_row(_numbered(item), path, plain=True)

    def _add_scalars(self, values: Sequence[object], path: str) -> None:
        many = len(values) > 8
        if many:
            self._start_block(f"{path}:" if path else "")
        for number, item in enumerate(values):
            text = scalar_text(item)
            if self.full:
                self.skipped += len(text)
                continue
            label = f"{path}: " if path and not many and (number == 0 or not self._parts) else ""
            if self._flush_unless_room(len(label) + len(text) + 2):
                label = ""
            self._append(", " if number and not label else "; ", label, text, _last_key(path))
        if many:
            self._start_block()

    def _holds_text(self, row: object) -> bool:
        """Whether an object holds text of several lines, or JSON in a string."""
        return isinstance(row, dict) and any(
            isinstance(v, str) and len(v) > self.width and ("\n" in v or v[:1] in "{[") for v in row.values()
        )

    def _first_and_last(self, values: list[object], first: int, last: int) -> tuple[list[object], bool]:
        """The values that are read of a long list, and whether some between them were skipped."""
        if len(values) <= first + last:
            return values, False
        self.skipped += sum(len(str(v)) for v in values[first : len(values) - last])
        return values[:first] + values[len(values) - last :], True

    def _add_table(self, rows: list[object], path: str, depth: int) -> None:
        last = self.limit // 3
        shown, skipped = self._first_and_last(rows, self.limit - last, last)
        flat: list[Fields] = []
        for row in shown:
            leaves: list[tuple[str, object]] = []
            if isinstance(row, dict):
                _flatten(row, "", leaves, depth)
            else:
                leaves.append(("", row))
            flat.append([(k, scalar_text(v)) for k, v in leaves])
        self._add_rows(flat, path, self.limit - last if skipped else 0)
        self._start_block()

    def _add_rows(self, rows: list[Fields], path: str, break_after: int) -> None:
        """Add rows, under one header line if most have the same keys and are short."""
        names = [tuple(k for k, _ in r) for r in rows]
        header = names[0] if names else ()
        if len(rows) > 2 and names.count(header) < 0.5 * len(rows):
            header = names[len(rows) // 2]
        mean = sum(len(t) + 3 for r in rows for _, t in r) / max(1, len(rows))
        tabular = (
            len(rows) > 1
            and names.count(header) >= 0.8 * len(rows)
            and 1 < len(header) <= 24
            and mean <= 1.5 * self.width
        )
        self._start_block((f"{path}: " if path else "") + (" | ".join(header) if tabular else ""))
        for number, fields in enumerate(rows):
            if self.full:
                self.skipped += sum(len(t) for _, t in fields)
                continue
            self._add_row(fields, "", tabular and names[number] == header)
            if number + 1 == break_after:
                self.flush()

    def _add_row(self, fields: Fields, path: str, plain: bool) -> None:
        """Add one row, joined with its neighbours while there is room; `plain`: without its keys."""
        if plain and fields and fields[0][0] == "1" and self._length >= SHORT_ROWS:
            self.flush()
        if not plain:
            fields = [f for f in fields if f[1] not in ("", "null")]
        separator, between = "\n", " | " if plain else "; "
        self._flush_unless_room(sum(len(t) + len(between) + (0 if plain else len(k) + 2) for k, t in fields))
        for key, text in fields:
            label = "" if plain or not key else f"{key}: "
            if len(text) > self.width * 5 // 4:
                self._append_long(separator, label, text, _last_key(key))
            else:
                self._flush_unless_room(len(label) + len(text) + 3)
                self._append(separator, label, text, _last_key(key) or _last_key(path))
            separator = between


def _is_nested(value: object) -> bool:
    return isinstance(value, (dict, list))


def _numbered(values: list[object]) -> Fields:
    """The fields of a row without names, under the number of their column; empty ones at its end left out."""
    size = len(values)
    while size > 1 and values[size - 1] in (None, ""):
        size -= 1
    return [(str(n), scalar_text(v)) for n, v in enumerate(values[:size], 1)]


def _last_key(path: str) -> str:
    return path.rsplit(".", 1)[-1]


def _flatten(row: Mapping[object, object], prefix: str, out: list[tuple[str, object]], depth: int) -> None:
    """Append the leaves of a row under their dotted keys; a list of scalars is one leaf."""
    if depth > MAX_DEPTH:
        raise _TooDeepError
    for key, item in row.items():
        name = prefix + clean(str(key))[:60]
        if isinstance(item, dict):
            _flatten(item, name + ".", out, depth + 1)
        elif not isinstance(item, list):
            out.append((name, item))
        elif not any(map(_is_nested, item)):
            out.append((name, ", ".join(map(scalar_text, item))))
        else:
            for part in item:
                if isinstance(part, dict):
                    _flatten(part, name + ".", out, depth + 1)
                elif isinstance(part, list):
                    _flatten({"": part}, name, out, depth + 1)
                else:
                    out.append((name, part))


# -- long lines ---------------------------------------------------------------
def wrap(line: str, width: int, first: int) -> list[str]:
    """Return a long line in pieces of about `width` characters (the first: `first`), cut where words end."""
    out: list[str] = []
    start, size = 0, len(line)
    while start < size:
        room = width if start else first
        if size - start <= room * 5 // 4:
            out.append(line[start:])
            break
        end = 0
        for match in _BREAK.finditer(line, start + room // 2, start + room):
            end = match.end()
        if not end:
            after = _BREAK.search(line, start + room, start + LONGEST_WORD)
            end = after.end() if after else 0
        if not end:
            after = _BREAK.search(line, start + LONGEST_WORD)
            end = after.end() if after else size
            begin = line.rfind(" ", start, start + room // 2)
            if begin > start:
                out.append(line[start:begin])
                start = begin + 1
            if end - start > LONGEST_WORD:
                out.append(f"[{end - start} characters without a break]")
                start = end
                continue
        out.append(line[start:end])
        start = end
    return [p for p in map(clean, out) if p]


def _without_last_word(text: str) -> str:
    """Text without the word that a cut left unfinished at its end."""
    cut = max(text.rfind("\n", len(text) - 4000), text.rfind(" ", len(text) - 4000))
    return text[:cut] if cut > 0 else text


def _without_first_word(text: str) -> str:
    """Text without the word that a cut left unfinished at its start."""
    match = re.search(r"\s", text[:4000])
    return text[match.end() :] if match else text
