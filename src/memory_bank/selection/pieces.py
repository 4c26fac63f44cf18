"""Cuts one tool output, once in its life, into short segments that follow its structure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from memory_bank.selection.jsonish import (
    Row,
    clean,
    load_json,
    load_json_lines,
    load_loose,
    scalar_text,
    unescape,
)
from memory_bank.selection.printed import load_printed
from memory_bank.selection.wrapping import whole_end, whole_start, wrap_line

WIDTH = 140
"""Wanted characters of a segment."""
SHORT_ROWS = 40
"""Rows without names (a database's answer) are joined up to so many characters: each can be shown alone."""
MAX_SEGMENTS = 2400
"""Segments indexed of one output at most; the rest is counted, not read."""
MAX_TEXT = 600_000
"""Characters of one text read at most (head and tail)."""
MAX_DEPTH = 48

Cell = tuple[str, int, int]
"""(key, start, end): text[start:end] is one value that stands under `key`."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of an output that is shown whole or not at all."""

    text: str
    block: int
    cells: tuple[Cell, ...] = ()
    rows: int = 1


@dataclass(frozen=True, slots=True)
class Block:
    """Segments under one heading: `head` is shown once before any of them; `rows` counts all rows."""

    head: str
    noun: str
    rows: int


@dataclass(frozen=True, slots=True)
class Pieces:
    """An output in segments. `skipped` characters of `chars` are not indexed."""

    segments: tuple[Segment, ...]
    blocks: tuple[Block, ...]
    chars: int
    skipped: int


_LABEL = re.compile(r'[\s\-*•>#\d.)"\']{0,12}([^\W\d_][\w /\-]{0,30}?)["\'*]{0,2}\s?[:=]["\'*]{0,2}\s?(?=\S)')
_BULLET = re.compile(r"(?:[-*•+]|\d{1,3}[.)])\s+")


_OPEN_QUOTE = re.compile(r"(?:^|[=(:,\s\[{])['\"]")
_SINGLE = re.compile(r"(?:[^'\\]|\\.)*+(?=')", re.S)
_DOUBLE = re.compile(r'(?:[^"\\]|\\.)*+(?=")', re.S)
_UNFINISHED = re.compile(r'(?:[^"\\]|\\.)*+\\?\Z', re.S)
_ESCAPED = re.compile(r"\\+n")


class _TooDeep(Exception):
    pass


def cut_output(text: str, width: int = WIDTH, limit: int = MAX_SEGMENTS) -> Pieces:
    """Segments of `text` in order; linear in its length, at most about `limit` of them."""
    for structured in (True, False):
        cutter = _Cutter(width, limit)
        try:
            cutter.string(text, "", 0, structured)
        except (_TooDeep, RecursionError):
            continue
        return cutter.finish(len(text))
    raise AssertionError("plain text is never too deep")


class _Cutter:
    """Walks one output and fills segments; used once."""

    def __init__(self, width: int, limit: int) -> None:
        self.width, self.limit = width, limit
        self.segments: list[Segment] = []
        self.blocks: list[Block] = []
        self.skipped = 0
        self._parts: list[str] = []
        self._cells: list[Cell] = []
        self._length = 0
        self._rows = 0
        self._open("", "parts", 0)

    # -- filling one segment -------------------------------------------------
    def _open(self, head: str, noun: str, rows: int) -> None:
        self.flush()
        unused = self.blocks and not any(s.block == len(self.blocks) - 1 for s in self.segments[-1:])
        if unused and self.blocks[-1].head == "" and not self.blocks[-1].rows:
            self.blocks.pop()
        self.blocks.append(Block(head, noun, rows))

    def flush(self) -> None:
        text = "".join(self._parts)
        if text.strip():
            self.segments.append(Segment(text, len(self.blocks) - 1, tuple(self._cells), max(1, self._rows)))
        self._parts, self._cells, self._length, self._rows = [], [], 0, 0

    def _add(self, separator: str, label: str, text: str, key: str) -> None:
        """Append one value to the open segment."""
        lead = (separator if self._parts else "") + label
        start = self._length + len(lead)
        self._parts.append(lead + text)
        self._cells.append((key, start, start + len(text)))
        self._length = start + len(text)

    def _room(self, extra: int) -> bool:
        return self._length + extra <= self.width

    @property
    def full(self) -> bool:
        return len(self.segments) >= self.limit

    def finish(self, chars: int) -> Pieces:
        self.flush()
        return Pieces(tuple(self.segments), tuple(self.blocks), chars, min(chars, self.skipped))

    # -- strings -------------------------------------------------------------
    def string(self, text: str, path: str, depth: int, structured: bool = True) -> None:
        if structured:
            try:
                value = load_json(text)
            except ValueError:
                rows = load_json_lines(text)
                if rows is not None:
                    self.value(rows, path, depth + 1)
                    return
            else:
                self.value(value, path, depth + 1)
                return
            try:
                printed = load_printed(text)
            except ValueError:
                pass
            else:
                self.value(printed, path, depth + 1)
                return
            if "\\" in text and self._literal(text, path, depth):
                return
            loose = load_loose(text)
            if loose is not None:
                self._rows_of(loose, path, len(loose), 0)
                self._open("", "parts", 0)
                return
        self.prose(text, path)

    def _literal(self, text: str, path: str, depth: int) -> bool:
        """Cut text that is mostly one escaped string (a printed object, a string in a string)."""
        if depth > MAX_DEPTH or len(text) > 8_000_000:
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
            self.prose(text[: at - 1], path)
            self.string(unescape(match.group(0)), path, depth + 1)
            self.prose(text[match.end() + 1 :], path)
            return True
        if len(_ESCAPED.findall(text, 0, 4000)) > 3 * (1 + text.count("\n", 0, 4000)):
            self.string(unescape(text), path, depth + 1)
            return True
        return False

    def prose(self, text: str, path: str) -> None:
        """Lines of text, short ones joined, long ones cut at white space."""
        if len(text) > MAX_TEXT:
            head, tail = text[: MAX_TEXT * 2 // 3], text[-MAX_TEXT // 3 :]
            self.skipped += len(text) - len(head) - len(tail)
            self._lines(whole_end(head), path)
            self.flush()
            self._lines(whole_start(tail), path)
            return
        self._lines(text, path)

    def _lines(self, text: str, path: str) -> None:
        lines = text.split("\n")
        self._open(f"{path}:" if path else "", "lines", len(lines))
        if len(lines) > self.limit * 8:
            keep = self.limit * 4
            dropped = lines[keep : len(lines) - keep // 2]
            self.skipped += sum(map(len, dropped)) + len(dropped)
            lines = lines[:keep] + lines[len(lines) - keep // 2 :]
        key = ""
        position = 0
        for number, raw in enumerate(lines):
            if self.full:
                self.skipped += sum(len(rest) + 1 for rest in lines[number:])
                return
            line = clean(raw)
            if not line:
                if self._length >= self.width // 2:
                    self.flush()
                continue
            if _BULLET.match(line) and self._length >= self.width // 2:
                self.flush()
            heading = (raw[:1] == "#" or line[-1:] == ":") and len(line) <= 80
            if heading:
                self.flush()
                key = ""
            match = _LABEL.match(line)
            if match and match.end() < len(line):
                key, position = match.group(1), match.end()
            else:
                bullet = _BULLET.match(line)
                position = bullet.end() if bullet else 0
                key = "-" if bullet else ""
            if len(line) <= self.width * 5 // 4:
                if not self._room(len(line) + 1) and self._length:
                    self.flush()
                self._rows += 1
                self._add("\n", line[:position], line[position:], key if position or not heading else "")
            else:
                self._rows += 1
                self._fill("\n", line[:position], line[position:], key)
        self.flush()

    def _fill(self, separator: str, label: str, text: str, key: str) -> None:
        """A long value: its start joins what stands before it, the rest follows in segments of its own."""
        room = self.width * 5 // 4 - self._length - len(label)
        if self._length and room < 40:
            self.flush()
            room = self.width - len(label)
        for piece in wrap_line(text, self.width, max(40, min(room, self.width))):
            if self.full:
                self.skipped += len(piece)
                continue
            self._add(separator, label, piece, key)
            label = separator = ""
            self.flush()

    # -- JSON ----------------------------------------------------------------
    def value(self, value: Any, path: str, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise _TooDeep
        if isinstance(value, dict):
            self._object(value, path, depth)
        elif isinstance(value, list):
            self._array(value, path, depth)
        elif isinstance(value, str) and _long(value, self.width):
            if "\n" in value or value[:1] in "{[" or len(value) > MAX_TEXT:
                self.string(value, path, depth)
            else:
                self._fill("; ", f"{path}: " if path else "", clean(value), _last(path))
        elif value is not None and value != "":
            self._pair(path, scalar_text(value))

    def _pair(self, path: str, text: str) -> None:
        if self.full:
            self.skipped += len(text)
            return
        label = f"{path}: " if path else ""
        if not self._room(len(label) + len(text) + 2) and self._length:
            self.flush()
        self._add("; ", label, text, _last(path))

    def _object(self, value: dict[str, Any], path: str, depth: int) -> None:
        prefix = path + "." if path else ""
        texts = [k for k, v in value.items() if isinstance(v, str) and _long(v, self.width)]
        alone = len(texts) == 1 and all(not isinstance(v, (dict, list)) for v in value.values())
        for key, item in value.items():
            name = prefix + clean(str(key))[:60]
            if alone and key == texts[0] and len(item) > 0.6 * sum(len(str(v)) for v in value.values()):
                self.string(item, "" if key in ("text", "content", "result", "output") else name, depth + 1)
                self._open("", "parts", 0)
            else:
                self.value(item, name, depth + 1)

    def _array(self, values: list[Any], path: str, depth: int) -> None:
        if values and all(isinstance(v, dict) for v in values[:50]) and isinstance(values[-1], dict):
            if len(values) <= self.limit and any(_has_text(v, self.width) for v in values[:20]):
                for item in values:
                    self.value(item, path, depth + 1)
                    self.flush()
                return
            self._table(values, path, depth)
            return
        room = self.limit * 10
        shown = values
        if len(values) > room:
            shown = values[: room * 2 // 3] + values[len(values) - room // 3 :]
            self.skipped += sum(len(str(v)) for v in values[room * 2 // 3 : len(values) - room // 3])
        simple = all(
            not isinstance(v, (dict, list)) and not (isinstance(v, str) and _long(v, self.width))
            for v in shown
        )
        if not simple and all(isinstance(v, list) and len(v) == 1 for v in shown):
            self._array([v[0] for v in shown], path, depth)
            return
        if not simple:
            for item in shown:
                if isinstance(item, list) and all(not isinstance(v, (dict, list)) for v in item):
                    if self.full:
                        self.skipped += sum(len(str(v)) for v in item)
                    else:
                        self._row(_places(item), path, plain=True)
                else:
                    self.value(item, path, depth + 1)
            return
        if len(shown) > 8:
            self._open(f"{path}:" if path else "", "items", len(values))
        for number, item in enumerate(shown):
            text = scalar_text(item)
            if self.full:
                self.skipped += len(text)
                continue
            label = f"{path}: " if path and (number == 0 or not self._parts) and len(shown) <= 8 else ""
            if not self._room(len(label) + len(text) + 2) and self._length:
                self.flush()
                label = ""
            self._rows += 1
            self._add(", " if number and not label else "; ", label, text, _last(path))
        if len(shown) > 8:
            self._open("", "parts", 0)

    def _table(self, rows: list[Any], path: str, depth: int) -> None:
        room = self.limit
        tail = room // 3
        head = rows if len(rows) <= room else rows[: room - tail]
        last = [] if len(rows) <= room else rows[len(rows) - tail :]
        if last:
            self.skipped += sum(len(str(r)) for r in rows[room - tail : len(rows) - tail])
        flat: list[Row] = []
        for row in head + last:
            cells: list[tuple[str, Any]] = []
            if isinstance(row, dict):
                _flatten(row, "", cells, depth)
            else:
                cells.append(("", row))
            flat.append([(k, scalar_text(v)) for k, v in cells])
        self._rows_of(flat, path, len(rows), len(head) if last else 0)
        self._open("", "parts", 0)

    def _rows_of(self, rows: list[Row], path: str, total: int, break_after: int) -> None:
        """Rows of (key, text): under one header line if most have the same keys and are short."""
        names = tuple(k for k, _ in rows[0]) if rows else ()
        if len(rows) > 2 and sum(tuple(k for k, _ in r) == names for r in rows) < 0.5 * len(rows):
            names = tuple(k for k, _ in rows[len(rows) // 2])
        same = sum(tuple(k for k, _ in r) == names for r in rows)
        mean = sum(len(t) + 3 for r in rows for _, t in r) / max(1, len(rows))
        header = (
            len(rows) > 1 and same >= 0.8 * len(rows) and 1 < len(names) <= 24 and mean <= 1.5 * self.width
        )
        title = f"{path}: " if path else ""
        self._open(title + (" | ".join(names) if header else ""), "rows", total)
        for number, cells in enumerate(rows):
            if self.full:
                self.skipped += sum(len(t) for _, t in cells)
                continue
            self._row(cells, "", header and tuple(k for k, _ in cells) == names)
            if number + 1 == break_after:
                self.flush()

    def _row(self, cells: list[tuple[str, str]], path: str, plain: bool) -> None:
        """One row: joined with its neighbours while there is room, over several segments if wide."""
        separator = " | " if plain else "; "
        if plain and cells and cells[0][0] == "1" and self._length >= SHORT_ROWS:
            self.flush()
        if not plain:
            cells = [c for c in cells if c[1] not in ("", "null")]
        size = sum(len(t) + len(separator) + (0 if plain else len(k) + 2) for k, t in cells)
        if not self._room(size) and self._length:
            self.flush()
        first = True
        self._rows += 1
        for key, text in cells:
            label = "" if plain or not key else f"{key}: "
            if len(text) > self.width * 5 // 4:
                self._fill("\n" if first else separator, label, text, _last(key))
                first = False
                continue
            if not self._room(len(label) + len(text) + 3) and self._length:
                self.flush()
            self._add("\n" if first else separator, label, text, _last(key) or _last(path))
            first = False


def _places(values: list[Any]) -> Row:
    """The cells of a row without names under the number of their column; empty ones at its end left out."""
    size = len(values)
    while size > 1 and values[size - 1] in (None, ""):
        size -= 1
    return [(str(n), scalar_text(v)) for n, v in enumerate(values[:size], 1)]


def _long(text: str, width: int) -> bool:
    stripped = text[:1] in "{[" and text[:1] != "" and len(text) > 2
    return len(text) > width or "\n" in text or stripped


def _has_text(row: dict[str, Any], width: int) -> bool:
    """Does an object hold text of several lines, or JSON in a string?"""
    return any(isinstance(v, str) and len(v) > width and ("\n" in v or v[:1] in "{[") for v in row.values())


def _last(path: str) -> str:
    return path.rsplit(".", 1)[-1]


def _flatten(row: dict[str, Any], prefix: str, out: list[tuple[str, Any]], depth: int) -> None:
    """Leaves of a row with their dotted keys; lists of scalars are one leaf."""
    if depth > MAX_DEPTH:
        raise _TooDeep
    for key, item in row.items():
        name = prefix + clean(str(key))[:60]
        if isinstance(item, dict):
            _flatten(item, name + ".", out, depth + 1)
        elif isinstance(item, list):
            if all(not isinstance(v, (dict, list)) for v in item):
                out.append((name, ", ".join(scalar_text(v) for v in item)))
            else:
                for part in item:
                    if isinstance(part, dict):
                        _flatten(part, name + ".", out, depth + 1)
                    elif isinstance(part, list):
                        _flatten({"": part}, name, out, depth + 1)
                    else:
                        out.append((name, part))
        else:
            out.append((name, item))
