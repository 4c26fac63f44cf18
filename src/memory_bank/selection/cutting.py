"""Cuts a text into segments, spans of it that are quoted to the letter: JSON members, table rows, whole lines."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass

from memory_bank.selection.parsing import LONGEST_KEY, Node, find_structure, unescape
from memory_bank.transcript.quoting import quote_lines

WIDTH = 140
"""Characters that a segment should have."""
ROW_WIDTH = 60
"""Rows are joined up to this many characters, so that each can be shown nearly alone."""
MAX_SEGMENTS = 2400
"""Segments of one text; the rest is counted as skipped."""
MAX_TEXT = 600_000
"""Characters of one text that are read, from its start and its end."""
MAX_ESCAPED = 8_000_000
"""Texts longer than this are not searched for an escaped string."""
MAX_DEPTH = 60
"""Containers, and strings that are cut as texts, in one another."""
LONGEST_WORD = 400
"""An unbroken run longer than this (base64, minified data) is left out."""
NAMED_LINES = 40
"""Texts of more lines name the line at which a quote goes on."""
MAX_INDENT = 200
"""Characters of the longest indentation that a quote begins with."""
GAP = "…"
LONG_CELL, CELL_START = 56, 28
"""Characters from which a value is shortened in the short form of its segment, and of its words that stay."""

Cell = tuple[str, int, int]
"""(key, start, end): text[start:end] is one value under `key`."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A span of a source that is shown whole or not at all; `text` is sources[source][start:end].

    `label` says where the span stands, where its text does not name its first value. `structured`: it is part of
    JSON or of a printed object, whose values are spelled with backslash escapes.
    """

    text: str
    block: int
    cells: tuple[Cell, ...] = ()
    source: int = 0
    start: int = 0
    end: int = 0
    label: str = ""
    structured: bool = False

    def long_values(self) -> list[tuple[int, int]]:
        """The spans of its text that its short form leaves out: all but the first words of long values.

        No spans where it is no JSON, or where nothing but a value would be left.
        """
        found = []
        for _, start, end in self.cells if self.structured and len(self.cells) > 1 else ():
            if end - start > LONG_CELL and "\n" not in self.text[start:end]:
                cut = self.text.rfind(" ", start + 1, start + CELL_START)
                if cut > 0:
                    found.append((cut, end))
        return found

    def short(self) -> str:
        """Its text with the first words of long values, each with a gap mark; its whole text where it has none."""
        return _without(self.text, 0, len(self.text), self.long_values())


@dataclass(frozen=True, slots=True)
class CutText:
    """A text in segments; `heads[block]` is the header line that names the columns of a block's rows, or "".

    `sources`: the text itself, then the unescaped strings in it that are cut as texts; `paths` names these.
    `skipped` of its `chars` characters are in no segment.
    """

    segments: tuple[Segment, ...]
    heads: tuple[str, ...]
    sources: tuple[str, ...]
    paths: tuple[str, ...]
    chars: int
    skipped: int

    def quote(self, places: Iterable[int], short: Container[int] = ()) -> str:
        """Return some segments in order, to the letter, with a gap mark alone on a line where text is left out.

        What stands between two gap marks stands together in one source, but for the backslash before lines that
        look like a gap mark or another line of the frame (``quote_lines``). A gap mark names the line or the
        path that follows it where the quote itself does not: ``… line 12:``. Rows follow their header line.
        Of the segments at ``short`` places the long values are their first words and a gap mark.
        """
        out: list[str] = []
        last: Segment | None = None
        last_place = start = -1
        cuts: list[tuple[int, int]] = []

        def end_stretch() -> None:
            if last is not None:
                out.append(quote_lines(_without(self.sources[last.source], start, last.end, cuts)))
                cuts.clear()

        for place in sorted(self._with_heads(places)):
            segment = self.segments[place]
            if (
                last is None
                or place != last_place + 1
                or last.source != segment.source
                or self.sources[segment.source][last.end : segment.start].strip()
            ):
                end_stretch()
                if gap := self.gap_before(place, last):
                    out.append(gap)
                start = segment.start
            if place in short:
                cuts += [(segment.start + a, segment.start + b) for a, b in segment.long_values()]
            last, last_place = segment, place
        end_stretch()
        if out and (last_place + 1 < len(self.segments) or self.skipped):
            out.append(GAP)
        return "\n".join(out)

    def _with_heads(self, places: Iterable[int]) -> set[int]:
        """Return the places, and those of the header lines of the rows among them."""
        chosen = set(places)
        blocks: dict[int, int] = {}  # a place of each block that has a header line
        for place in chosen:
            blocks.setdefault(self.segments[place].block, place)
        for block, place in blocks.items():
            if block:
                while place and self.segments[place - 1].block == block:
                    place -= 1
                if self.segments[place].text.startswith(self.heads[block]):
                    chosen.add(place)
        return chosen

    def gap_before(self, place: int, last: Segment | None = None) -> str:
        """Return the line that stands before a segment that does not follow `last`; "" before the first one."""
        segment = self.segments[place]
        if last is None and not place:
            return ""
        path = self.paths[segment.source]
        if last is not None:
            key = path.rpartition(".")[2]  # which the segment before may end with
            named = self.segments[place - 1] is last and key in last.text[-len(key) - 6 :]
            path = "" if named or last.source == segment.source else path
        where = " ".join(f"{path} {segment.label}".split())
        return f"{GAP} {where}:" if where else GAP


_LABEL = re.compile(r'[\s\-*•>#\d.)"\']{0,12}([^\W\d_][\w /\-]{0,30}?)["\'*]{0,2}\s?[:=]["\'*]{0,2}\s?(?=\S)')
_BULLET = re.compile(r"\s*(?:[-*•+]|\d{1,3}[.)])\s+")
_UNIT = re.compile(
    r"\s*(?:def|class|async def|function|export|public|private|func|fn|impl|@@|diff --git)\b|@@|\s*@\w"
)
_RULE = re.compile(r"[\s|+:=\-]*[|+\-=][\s|+:=\-]*\Z")
_NUMBERED = re.compile(r"\s*\d{1,7}[\t|:→-]|[^\s:]{1,200}:\d{1,7}[:\-]")
_TRACEBACK = "Traceback (most recent call last)"
_OPEN_QUOTE = re.compile(r"(?:^|[=(:,\s\[{])['\"]")
_SINGLE = re.compile(r"(?:[^'\\]|\\.)*+(?=')", re.S)
_DOUBLE = re.compile(r'(?:[^"\\]|\\.)*+(?=")', re.S)
_UNFINISHED = re.compile(r'(?:[^"\\]|\\.)*+\\?\Z', re.S)
_ESCAPED_BREAK = re.compile(r"\\+n")
_WORD = re.compile(r"\w")
_BREAK = re.compile(r"[\s,;|)\]}>]")
_WRAPPER_KEYS = frozenset(("text", "content", "result", "output", "data", "stdout"))
_EMPTY_KEYS = frozenset(("type", "isError", "is_error", "annotations", "_meta", "meta", "mimeType"))
_EMPTY = frozenset(("", "null", "None", "true", "false", "True", "False"))


def cut_text(text: str, width: int = WIDTH, limit: int = MAX_SEGMENTS, unfold: bool = False) -> CutText:
    """Return the segments of `text` in order, at most `limit`; linear in its length, never raises.

    `unfold`: every string in it that is longer than `width` is cut as a text of its own.
    """
    cutter = _Cutter(width, unfold)
    cutter.add_source(text, "", 0)
    return cutter.finish(len(text), limit)


class _Cutter:
    """Collects the segments of one text and of the strings in it."""

    def __init__(self, width: int, unfold: bool) -> None:
        self.width, self.unfold = width, unfold
        self.segments: list[Segment] = []
        self.heads = [""]
        self.sources: list[str] = []
        self.paths: list[str] = []
        self.skipped = 0
        self._source = 0
        self._text = ""
        self._block = 0
        self._structured = False
        self._after_string = False  # the open segment begins after a string that is a source of its own
        self._start = -1  # of the open segment, as are the next four; -1: none is open
        self._end = 0
        self._cells: list[Cell] = []
        self._label = ""
        self._in_structure = False

    def finish(self, chars: int, limit: int) -> CutText:
        """Return what was collected: of too many segments the first two thirds and the last third."""
        segments = self.segments
        if len(segments) > limit:
            first = limit * 2 // 3
            after = len(segments) - (limit - first)
            self.skipped += sum(len(s.text) for s in segments[first:after])
            segments = segments[:first] + segments[after:]
        if len({s.source for s in segments}) == 1:
            self.paths[segments[0].source] = ""
        return CutText(
            tuple(segments),
            tuple(self.heads),
            tuple(self.sources),
            tuple(self.paths),
            chars,
            min(chars, self.skipped),
        )

    # -- the open segment ------------------------------------------------------
    def _add(self, start: int, end: int, cells: list[Cell], label: str = "", width: int = 0) -> None:
        """Add text[start:end] to the open segment if it has room, else begin the next segment with it."""
        if self._start >= 0 and end - self._start > (width or self.width):
            self._close(start)
        if self._start < 0:
            self._open(start, label)
        self._end = end
        self._cells += cells

    def _open(self, start: int, label: str) -> None:
        self._start, self._label, self._in_structure = start, label, self._structured

    def _close(self, until: int = -1, before_string: bool = False) -> None:
        """End the open segment: at `until`, the start of the next one, else where its last value ends.

        Beside a string that is a source of its own, a segment without content is dropped.
        """
        start, end = self._start, max(self._end, until)
        if start < 0:
            return
        self._start = -1
        cells, self._cells = self._cells, []
        beside, self._after_string = before_string or self._after_string, False
        start = _indent_before(self._text, start)
        text = self._text[start:end].rstrip()
        content = any(k not in _EMPTY_KEYS and self._text[s:e] not in _EMPTY for k, s, e in cells)
        if not text or (beside and not content):
            return
        end = start + len(text)
        self.segments.append(
            Segment(
                text,
                self._block,
                tuple((k, s - start, min(e, end) - start) for k, s, e in cells if s < end),
                self._source,
                start,
                end,
                self._label,
                self._in_structure,
            )
        )

    # -- texts -----------------------------------------------------------------
    def add_source(self, text: str, path: str, depth: int) -> None:
        """Add a text by the structure that is found in it, else as lines."""
        outer = self._source, self._text, self._structured, self._block
        self._source, self._text, self._structured, self._block = len(self.sources), text, False, 0
        self.sources.append(text)
        self.paths.append(path)
        if len(text) <= MAX_TEXT:
            self._add_part(0, len(text), depth)
        else:
            first, last = MAX_TEXT * 2 // 3, len(text) - MAX_TEXT // 3  # moved to where no word is cut
            first = max(text.rfind(space, first - 4000, first) for space in "\n ") + 1 or first
            after = re.compile(r"\s").search(text, last, last + 4000)
            last = after.end() if after else last
            if not (len(text) <= MAX_ESCAPED and self._add_escaped(0, len(text), depth)):
                self.skipped += last - first
                self._add_part(0, first, depth)
                self._add_part(last, len(text), depth)
        self._source, self._text, self._structured, self._block = outer

    def _add_part(self, start: int, stop: int, depth: int) -> None:
        roots = find_structure(self._text, start, stop) if depth < MAX_DEPTH else []
        if not roots and self._add_escaped(start, stop, depth):
            return
        at = start
        for root in roots:
            if _WORD.search(self._text, at, root.start):
                self._close()
                self._add_lines(at, root.start)
            self._structured = True
            self._add_node(root, root.start, "", depth)
            self._structured = False
            at = root.end
        if _WORD.search(self._text, at, stop):
            self._close()
            self._add_lines(at, stop)
        self._close(stop)

    def _add_escaped(self, start: int, stop: int, depth: int) -> bool:
        """Add a text that is mostly one escaped string (a printed object, a string in a string), if it is."""
        text = self._text
        if depth > MAX_DEPTH or text.find("\\", start, stop) < 0:
            return False
        at = start
        for _ in range(6):
            opened = _OPEN_QUOTE.search(text, at, min(stop, at + 400))
            if opened is None:
                break
            at = opened.end()
            pattern = _SINGLE if opened.group(0)[-1] == "'" else _DOUBLE
            match = pattern.match(text, at, stop)
            if match is None and opened.group(0) == ':"':
                match = _UNFINISHED.match(text, at, stop)
            if match is None or match.end() - at < 0.6 * (stop - start):
                continue
            self._add_lines(start, at)
            self.add_source(unescape(match.group(0)), "", depth + 1)
            self._add_lines(match.end(), stop)
            return True
        breaks = len(_ESCAPED_BREAK.findall(text, start, min(stop, start + 4000)))
        if breaks > 3 * (1 + text.count("\n", start, min(stop, start + 4000))):
            self.add_source(unescape(text[start:stop]), "", depth + 1)
            return True
        return False

    # -- structure -------------------------------------------------------------
    def _add_node(self, node: Node, begin: int, path: str, depth: int) -> None:
        """Add a value; `begin` is where its key or the brackets before it begin."""
        if node.items is None:
            self._add_scalar(node, begin, path, depth)
        elif node.end - node.start <= self.width * 5 // 4 or not node.items or depth > MAX_DEPTH:
            if node.end - node.start > self.width * 2:
                self._add_long(begin, node.body, node.end, _last_key(path), _shown_path(path))
            else:
                named = node.named or any(i.named for i in node.items[:1])
                label = "" if named else _shown_path(path)
                self._add(begin, node.end, _cells_of(node, _last_key(path)), label)
        else:
            self._add_container(node, begin, path, depth + 1)

    def _add_scalar(self, node: Node, begin: int, path: str, depth: int) -> None:
        size = node.stop - node.body
        key = _last_key(path)
        if size > self.width:
            inner = self._text[node.body : node.stop]
            if self.unfold or "\\" in inner or inner[:1] in "{[":
                if self._start < 0:
                    self._open(begin, "")
                    self._end = node.body
                self._close(node.body, before_string=True)
                self.add_source(unescape(inner) if "\\" in inner else inner, _shown_path(path), depth + 1)
                self._after_string = True
                return
        if size > self.width * 5 // 4:
            self._add_long(begin, node.body, node.stop, key, _shown_path(path))
        else:
            cell = (key, node.body, node.stop)
            self._add(begin, node.end, [cell], "" if node.named else _shown_path(path))

    def _add_container(self, node: Node, begin: int, path: str, depth: int) -> None:
        items = node.items or []
        rows = sum(i.items is not None for i in items) * 2 > len(items) > 1
        block = self._block
        tabular = rows and _is_header(items, self._text)
        if tabular:
            self._close(begin)
            head = self._text[items[0].start : items[0].end]
            self.heads.append(head)
            self._block = len(self.heads) - 1
            begin = items[0].start
        header = (items[0].items or []) if tabular else []
        names = [self._text[i.body : min(i.stop, i.body + LONGEST_KEY)] for i in header]
        for number, item in enumerate(items):
            if item.named:
                inner = f"{path}.{item.key}" if path else item.key
            else:
                inner = f"{path}[{number}]" if item.items is not None else path
            at = begin if number == 0 else item.start
            if rows and self._start >= 0:
                near = at - self._start
                if near >= ROW_WIDTH or near + item.end - item.start > self.width or (tabular and number < 2):
                    self._close(at)
            if (
                item.items
                and not item.named
                and item.end - item.start <= 2 * self.width
                and all(i.items is None for i in item.items)
            ):
                self._add_row(item, at, names)
            else:
                self._add_node(item, at, inner, depth)
        if tabular:
            self._close(node.end)
            self._block = block

    def _add_row(self, row: Node, begin: int, names: list[str]) -> None:
        """Add a short list of scalars or an object that stands in a list."""
        cells = []
        for number, item in enumerate(row.items or []):
            name = names[number] if number < len(names) else str(number + 1)
            cells += _cells_of(item, item.key if item.named else name)
        self._add(begin, row.end, cells, width=self.width * 2)

    def _add_long(self, begin: int, start: int, stop: int, key: str, label: str, column: str = "") -> None:
        """Add a long value: its start with what names it, the rest in segments of its own."""
        if self._start >= 0 and begin - self._start > self.width // 2:
            self._close(begin)
        if self._start < 0:
            self._open(begin, column)
            self._end = begin
        room = self.width * 5 // 4 - (start - self._start)
        previous = -1
        for first, last in wrap(self._text, start, stop, self.width, max(40, min(room, self.width))):
            if previous >= 0 or first > start:
                self.skipped += max(0, first - max(previous, start) - 1)
                self._close(first if first <= previous + 1 else -1)
                self._open(first, label)
            self._cells.append((key, first, last))
            self._end = previous = last
        left_out = stop - max(previous, start)
        if left_out:
            self.skipped += left_out
            self._close()

    # -- lines -----------------------------------------------------------------
    def _add_lines(self, start: int, stop: int) -> None:
        """Add lines of text, whole and with their indentation: short ones joined, long ones cut at white space."""
        text = self._text
        if start >= stop:
            return
        lines = list(_lines(text, start, stop))
        starts = text.count("\n", 0, start) + 1 if len(lines) > NAMED_LINES else None
        width, table, self._block = self.width, None, 0
        in_trace = False
        for number, (at, end) in enumerate(lines):
            line = text[at:end]
            label = ""
            if starts is not None and not _NUMBERED.match(line):
                label = f"line {starts + number}"
            bare = line.strip()
            if table is not None:
                if table.holds(line):
                    self._add_table_row(table, at, end, line, label)
                    continue
                self._close()
                table, self._block = None, 0
            if not bare:
                if self._start >= 0 and self._end - self._start >= width // 2:
                    self._close()
                continue
            table = _find_table(text, lines, number)
            if table is not None:
                self._close()
                self.heads.append(text[at : lines[number + table.rules][1]].rstrip())
                self._block = len(self.heads) - 1
                self._open(at, label)
                self._end = end
                self._cells = [("", at, end)]
                table.left = table.rules
                if not table.left:
                    self._close()
                continue
            if bare.startswith(_TRACEBACK):
                in_trace = True
            elif in_trace and line[:1] not in (" ", "\t"):
                in_trace = False
                self._add(at, end, [_cell(line, at)], label, 4 * width)
                continue
            open_chars = self._end - self._start if self._start >= 0 else 0
            heading = (line[:1] == "#" or bare[-1] == ":") and len(bare) <= 80 and line[:1] not in (" ", "\t")
            if open_chars and not in_trace:
                unit = open_chars >= width // 2 and (_BULLET.match(line) or _UNIT.match(line))
                if heading or unit:
                    self._close()
            if len(line) <= width * 5 // 4:
                self._add(at, end, [_cell(line, at)], label, 4 * width if in_trace else 0)
            else:
                key, first, _ = _cell(line, at)
                self._close()
                self._add_long(at, first, end, key, "", label)
                self._close()
        self._close()
        self._block = 0

    def _add_table_row(self, table: _Table, at: int, end: int, line: str, label: str) -> None:
        if table.left:  # the rule under the header
            table.left -= 1
            self._end = end
            if not table.left:
                self._close()
            return
        if self._start >= 0 and at - self._start >= ROW_WIDTH:
            self._close()
        if len(line) <= self.width * 2:
            self._add(at, end, table.cells(line, at), label)
        else:
            self._close()
            self._add_long(at, at, end, "", "", label)
            self._close()


# -- cells --------------------------------------------------------------------
def _without(text: str, start: int, end: int, cuts: Iterable[tuple[int, int]]) -> str:
    """Return text[start:end] with a gap mark for each span in `cuts`, which are in order."""
    parts = []
    for first, last in cuts:
        parts += [text[start:first], GAP]
        start = last
    return "".join([*parts, text[start:end]])


def _cells_of(node: Node, key: str) -> list[Cell]:
    """Return the scalars in a value with their keys."""
    if node.items is None:
        return [(key, node.body, node.stop)]
    cells: list[Cell] = []
    stack: list[tuple[str, Node]] = [(key, node)]
    while stack:
        key, item = stack.pop()
        if item.items is None:
            cells.append((key, item.body, item.stop))
        else:
            stack.extend((i.key if i.named else key, i) for i in reversed(item.items))
    return cells


def _cell(line: str, at: int) -> Cell:
    """Return the value of a line, after its label or its bullet."""
    label = _LABEL.match(line)
    end = at + len(line.rstrip())
    if label and label.end() < len(line.rstrip()):
        return label.group(1), at + label.end(), end
    bullet = _BULLET.match(line)
    if bullet and at + bullet.end() < end:
        return "-", at + bullet.end(), end
    return "", at + len(line) - len(line.lstrip()), end


def _last_key(path: str) -> str:
    return path.rpartition(".")[2].partition("[")[0]


def _shown_path(path: str) -> str:
    """Return a path without the keys of wrappers, in its last parts."""
    parts = [p for p in path.split(".") if p.partition("[")[0] not in _WRAPPER_KEYS]
    return ".".join(parts[-3:])[-80:]


def _is_header(items: list[Node], text: str) -> bool:
    """Whether the first of several lists names the columns of the others."""
    first = items[0].items
    if len(items) < 3 or not first or len(first) < 2 or any(i.named or i.items is not None for i in first):
        return False
    return all(
        text[i.body - 1 : i.body] in ("'", '"') and not any(c.isdigit() for c in text[i.body : i.stop])
        for i in first
    ) and any(len(i.items or ()) == len(first) for i in items[1:3])


# -- tables in text -----------------------------------------------------------
class _Table:
    """A table in lines: its delimiter, its column names, the lines that rule off its header."""

    def __init__(self, mark: str, header: str, rules: int) -> None:
        self.mark, self.rules, self.left = mark, rules, 0
        self.names = [n.strip(' "')[:LONGEST_KEY] for n in header.split(mark)]

    def holds(self, line: str) -> bool:
        """Whether a line is a row of the table."""
        if self.mark == "|":
            return "|" in line or (self.left > 0 and bool(line.strip()))
        return self.mark in line

    def cells(self, line: str, at: int) -> list[Cell]:
        """Return the values of a row under their column names."""
        cells = []
        for number, part in enumerate(line.split(self.mark)):
            bare = part.strip().strip('"')
            if bare:
                start = at + part.index(bare)
                name = self.names[number] if number < len(self.names) else ""
                cells.append((name, start, start + len(bare)))
            at += len(part) + 1
        return cells


def _find_table(text: str, lines: list[tuple[int, int]], number: int) -> _Table | None:
    """Return the table whose header is a line: one ruled off below it, or lines of equally many cells."""
    if number + 2 >= len(lines):
        return None
    header, rule, row = (text[a:b] for a, b in lines[number : number + 3])
    if "|" in header and len(rule) >= 3 and _RULE.match(rule) and "-" in rule:
        return _Table("|", header, 1)
    for mark in ("\t", ",", ";"):
        count = header.count(mark)
        if count and number == 0 and count == rule.count(mark) == row.count(mark):
            names = header.split(mark)
            named = all(len(n) <= 40 and any(c.isalpha() for c in n) for n in names)
            if named and len(set(names)) == len(names):
                return _Table(mark, header, 0)
    return None


# -- lines and words ----------------------------------------------------------
def _lines(text: str, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of each line of text[start:stop] without its line end."""
    while start <= stop:
        end = text.find("\n", start, stop)
        if end < 0:
            end = stop
        yield start, end - (end > start and text[end - 1] == "\r" and end < stop)
        start = end + 1


def _indent_before(text: str, at: int) -> int:
    """Return the start of the line if only its indentation stands before `at`, else `at`."""
    line = text.rfind("\n", max(0, at - MAX_INDENT), at) + 1
    return line if line and not text[line:at].strip(" \t") else at


def wrap(text: str, start: int, stop: int, width: int, first: int) -> Iterator[tuple[int, int]]:
    """Yield spans of about `width` characters (the first: `first`) of a long line, cut where words end.

    An unbroken run of more than LONGEST_WORD characters is in none.
    """
    room = first
    while start < stop:
        if stop - start <= room * 5 // 4:
            yield start, stop
            return
        end = 0
        for match in _BREAK.finditer(text, start + room // 2, min(stop, start + room)):
            end = match.end()
        if not end:
            after = _BREAK.search(text, start + room, min(stop, start + LONGEST_WORD))
            end = after.end() if after else 0
        if not end:
            after = _BREAK.search(text, start + LONGEST_WORD, stop)
            end = after.end() if after else stop
            begin = text.rfind(" ", start, start + room // 2)
            if begin > start:
                yield start, begin
                start = begin + 1
            if end - start > LONGEST_WORD:
                start, room = end, width
                continue
        yield start, end
        start, room = end, width
