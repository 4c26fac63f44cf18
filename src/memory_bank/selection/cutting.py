"""Cuts a text into segments, spans of it that are quoted to the letter: JSON members, table rows, whole lines.

The structure is found with positions in JSON, JSON lines, printed Python objects, and cut-off or broken JSON.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass

from memory_bank.transcript.framing import FRAME_MEMBERS, NUMBERED, frame_of, framed_text, without_numbers
from memory_bank.transcript.markup import page_text
from memory_bank.transcript.quoting import Mark, as_terminal, quote_lines
from memory_bank.transcript.structure import LONGEST_KEY, Node, escaped_span, find_structure, unescape

WIDTH = 140  # characters that a segment should have
ROW_WIDTH = 60  # rows are joined up to this many characters, so that each can be shown nearly alone
MAX_TEXT = 600_000  # characters of one text that are read, from its start and its end
MAX_ESCAPED = 8_000_000  # characters of a text that is searched for an escaped string
MAX_DEPTH = 60  # containers, and strings that are cut as texts, in one another
LONGEST_WORD = 400  # a longer unbroken run (base64, minified data) is left out
NAMED_LINES = 40  # texts of more lines name the line at which a quote goes on
NEARLY_ALL = 0.8  # of a wrapper's characters, those of the text in it
SHORT_DEFINITION = 2 * WIDTH  # characters of the longest definition that is one segment, with its body
MINIFIED = 1_000  # characters from which a line of code with few blanks is left out
LONGEST_FOLDER = 120  # characters of the folder of a listing's entry, its end
MAX_INDENT = 200  # characters of the longest indentation that a quote begins with
LONG_CELL = 56  # values with more characters are shortened in a segment's short form
CELL_START = 28  # characters of a shortened value that stay, cut after a word
GAP: str = Mark.GAP.value

Cell = tuple[str, int, int]  # (key, start, end): text[start:end] is one value under `key`


@dataclass(frozen=True, slots=True)
class Segment:
    """A span of a source that is shown whole or not at all; `text` is sources[source][start:end].

    `label` says where the span stands, where its text does not name its first value, `owner` in which function, class
    or entry of a list it begins. `structured`: it is part of JSON or of a printed object, whose values are spelled
    with backslash escapes.
    """

    text: str
    block: int
    cells: tuple[Cell, ...] = ()
    source: int = 0
    start: int = 0
    end: int = 0
    label: str = ""
    structured: bool = False
    owner: str = ""

    def long_values(self) -> list[tuple[int, int]]:
        """The spans that a text's short form omits: all but the first words of each long JSON value; or none."""
        spans = []
        for _, start, end in self.cells if self.structured and len(self.cells) > 1 else ():
            if end - start > LONG_CELL and "\n" not in self.text[start:end]:
                cut = self.text.rfind(" ", start + 1, start + CELL_START)
                if cut > 0:
                    spans.append((cut, end))
        return spans

    def short(self) -> str:
        """Its text with the first words of long values, each with a gap mark; its whole text where it has none."""
        return _without(self.text, 0, len(self.text), self.long_values())


@dataclass(frozen=True, slots=True)
class CutText:
    """A text in segments; `heads[block]` is the header line that names the columns of a block's rows, or "".

    `sources`: the text itself, then the unescaped strings in it that are cut as texts, all as a
    terminal shows them, and the text of a page of HTML, number `page`; `paths` names these. `skipped` of its `chars`
    characters are in no segment.
    """

    segments: tuple[Segment, ...]
    heads: tuple[str, ...]
    sources: tuple[str, ...]
    paths: tuple[str, ...]
    chars: int
    skipped: int
    page: int = 0

    def quote(self, places: Iterable[int], short: Container[int] = ()) -> str:
        """Return some segments in order, to the letter, with a gap mark alone on a line where text is left out.

        What stands between two gap marks stands together in one source, but for the backslash before lines that
        look like a gap mark or another line of the frame (``quote_lines``). A gap mark names the line or the
        path that follows it where the quote itself does not (``… line 12:``), and a function that the code goes on in
        (``… in Store.read:``), or an entry of a list (``… in "id": "ORD-7":``). Rows follow their header line.
        Of the segments at ``short`` places the long values are their first words and a gap mark.
        """
        chosen = set(places)
        blocks: dict[int, int] = {}  # a place of each block that may have a header line
        for place in chosen:
            blocks.setdefault(self.segments[place].block, place)
        blocks.pop(0, None)
        for block, place in blocks.items():
            while place and self.segments[place - 1].block == block:
                place -= 1
            if self.segments[place].text.startswith(self.heads[block]):
                chosen.add(place)
        stretches: list[list[int]] = []
        for place in sorted(chosen):
            before, segment = self.segments[place - 1], self.segments[place]
            if (
                stretches
                and stretches[-1][-1] == place - 1
                and before.source == segment.source
                and not self.sources[segment.source][before.end : segment.start].strip()
            ):
                stretches[-1].append(place)
            else:
                stretches.append([place])
        out: list[str] = []
        last: Segment | None = None
        for stretch in stretches:
            if gap := self.gap_before(stretch[0], last):
                out.append(gap)
            segments = [self.segments[place] for place in stretch]
            shortened = [s for place, s in zip(stretch, segments, strict=True) if place in short]
            cuts = [(s.start + a, s.start + b) for s in shortened for a, b in s.long_values()]
            last = segments[-1]
            out.append(quote_lines(_without(self.sources[last.source], segments[0].start, last.end, cuts)))
        if out and (stretches[-1][-1] + 1 < len(self.segments) or self.skipped):
            out.append(GAP)
        return "\n".join(out)

    def words(self) -> str:
        """Return the words of a page, the text that is nearly all of a wrapper, or the text itself."""
        whole = self.sources[self.page]
        return next((s for s in self.sources[1:] if len(s) >= NEARLY_ALL * len(whole)), whole)

    def named_lines(self) -> int:
        """The number of lines of a text whose lines have numbers, by gap marks or its own from 1 on; 0 for others."""
        text = framed_text(self.sources[0])
        of_text = {n for n, source in enumerate(self.sources) if text.startswith(source)}
        is_named = any(s.source in of_text and s.label.startswith("line ") for s in self.segments)
        return text.count("\n") + 1 if is_named or _FROM_ONE.match(text) else 0

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
        is_named = not segment.owner or _names_owner(segment.owner, segment, last)
        where = " ".join(f"{path} {segment.label}".split()) + ("" if is_named else f" in {segment.owner}")
        where = where.lstrip()
        return f"{GAP} {where}:" if where else GAP


_LABEL = re.compile(r'[\s\-*•>#\d.)"\']{0,12}([^\W\d_][\w /\-]{0,30}?)["\'*]{0,2}\s?[:=]["\'*]{0,2}\s?(?=\S)')
_BULLET = re.compile(r"\s*(?:[-*•+]|\d{1,3}[.)])\s+")
_UNIT = re.compile(r"@@|diff --git\b")
_DEFINITION = re.compile(
    r"(?:(?:export|default|public|private|protected|static|final|abstract|pub(?:\([a-z]+\))?|async|unsafe) )*"
    r"(?:def|class|func|function|fn|impl|interface|struct|enum|trait|type|module)\b\*? ?(?:\([^()\n]{0,80}\) )?"
    r"(?:\w{1,60}::){0,6}([A-Za-z_$][\w$]{2,60})(?=\s*(?:[(<{:=\[;]|\Z|(?:struct|interface|extends|implements|for|where|map)\b))"
    r"|(?:export )?(?:const|let|var) ([A-Za-z_$][\w$]{2,60})(?: ?: ?[^=\n]{1,80})? = (?:async )?"
    r"(?:function\b|(?:\([^\n]{0,120}|\w{1,60} )=>)"
)
# One that only its brace tells from a call: of Java, C, or a method of JavaScript
_BRACED = re.compile(
    r"(?!(?:if|for|while|switch|catch|return|else|do|try|with|new|throw|await|match|using|lock)\b|[:,])"
    r"(?:[\w$.:<>,\[\]?&*~ ]{0,120}[ *&])?(?!func)([A-Za-z_$~][\w$]{2,60})(?:<[^<>]{1,60}>)?"
    r"\((?:[^(){};]|\([^()]{0,80}\)){0,300}+\)[^(){};=]{0,100}\{\Z"
)
# Listings of folders: a branch of `tree`, the bullet of an entry, what stands above the entries of `ls -R`
_BRANCH = re.compile(r"((?:[│ \xa0]|\|(?!-))*+)(?:(?:[├└]──|[|`+]--)[ \xa0]|- (?=.*/\Z))(\S.*)")
_BULLETED = re.compile(r"( *+)- (\S.*)")
_FOLDER = re.compile(r"\A(\.|(?=[^\s:/]{0,80}/)[^:]{1,200}):\Z")
_LISTING = re.compile(
    r"^(?:[│ ]*+[├└]──|(?:\|(?!-)| )*+[|`+]-- | *+- \S*+(?<=/)$|\.:\r?$|(?=[^\s:/]{0,80}/)[^\s:]++:\r?$)",
    re.M,
)
# With which a line begins that may belong to a definition below it
_ABOVE = re.compile(r"@\w|//|#(?!!)|/?\*|--")
_RULE = re.compile(r"(?=[\s|+:=\-]*+\Z)[\s:]*+[|+\-=]")
_BLANKS, _CELL = "  ", re.compile(r" (?! )")
_ALIGNED = re.compile(r"\S+(?: \S+)*")  # what stands apart by two blanks or more
_FROM_ONE = re.compile(r"\s*1[\t|→]")
_LINE_NUMBER = re.compile(r"\s*\d{1,7}[\t|:→-]|[^\s:]{1,200}:\d{1,7}[:\-]")
# What nobody copies by hand: lines of base64 or of a hex dump, a piece of the path of a drawing
_BASE64 = re.compile(
    r"(?=[^a-z]{0,400}[a-z])(?=[^A-Z]{0,400}[A-Z])(?=\D{0,400}\d)[A-Za-z0-9+/]{60,400}={0,2}"
)
_HEX_DUMP = re.compile(r"[0-9a-fA-F]{4,8}:? +(?:[0-9a-fA-F]{2}(?:[0-9a-fA-F]{2})? +){7,16}.{0,20}")
DRAWING = re.compile(r'="[Mm][MLHVCSQTAZmlhvcsqtaz\d.,\-\s]{16,}+"?')
_ESCAPED_BREAK = re.compile(r"(?<!\\)\\+n")
_WORD = re.compile(r"\w")
_SPACE = re.compile(r"\s")
_BREAK = re.compile(r"[\s,;|)\]}>]")
# Keys of the members that name an entry, in a group those that do so best
_NAMING = re.compile(r"(_?id|name|title|key|path|url|email|number|sku|subject|slug)\Z|.*(?:_id|[a-z]Id|ID)\Z")
_WRAPPER_KEYS = frozenset(("text", "content", "result", "output", "data", "stdout"))
_EMPTY = frozenset(("", "null", "None", "true", "false", "True", "False"))


def cut_text(
    text: str, width: int = WIDTH, limit: int = 2400, unfold: bool = False, pages: bool = False
) -> CutText:
    """Return the segments of `text` in order; linear in its length, never raises.

    Of more than `limit` segments the first two thirds and the last third are kept. `unfold`: every string in it
    that is longer than `width` is cut as a text of its own. `pages`: of a page of HTML its text is cut.
    """
    cutter = _Cutter(width, unfold, pages)
    cutter.add_source(text, "", 0)
    segments, skipped = cutter.segments, cutter.skipped
    if len(segments) > limit:
        first = limit * 2 // 3
        after = len(segments) - (limit - first)
        skipped += sum(len(s.text) for s in segments[first:after])
        segments = segments[:first] + segments[after:]
    if len({s.source for s in segments}) == 1:
        cutter.paths[segments[0].source] = ""
    heads, sources, paths = tuple(cutter.heads), tuple(cutter.sources), tuple(cutter.paths)
    return CutText(tuple(segments), heads, sources, paths, len(text), min(len(text), skipped), cutter.page)


class _Cutter:
    """Collects the segments of one text and of the strings in it."""

    def __init__(self, width: int, unfold: bool, pages: bool) -> None:
        self.width, self.unfold, self.pages, self.page = width, unfold, pages, 0
        self.segments: list[Segment] = []
        self.heads = [""]
        self.sources: list[str] = []
        self.paths: list[str] = []
        self.skipped = 0
        self._source, self._text, self._structured, self._block = 0, "", False, 0
        self._after_string = False  # the open segment begins after a string that is a source of its own
        self._owner = ""
        self._entries: list[str] = []  # what names each entry of a list that the open value is in
        self._start = -1  # of the open segment, as are the next four; -1: none is open
        self._end = 0
        self._cells: list[Cell] = []
        self._label = ""
        self._in_structure = False

    # -- the open segment ------------------------------------------------------
    def _add(
        self, start: int, end: int, cells: list[Cell], label: str = "", width: int = 0, owner: str = ""
    ) -> None:
        """Add text[start:end] to the open segment if it has room, else begin the next segment with it."""
        if self._start >= 0 and end - self._start > (width or self.width):
            self._close(start)
        if self._start < 0:
            self._open(start, label)
            self._owner = owner or self._owner
        self._end = end
        self._cells += cells

    def _open(self, start: int, label: str) -> None:
        self._start, self._end, self._label, self._in_structure = start, start, label, self._structured
        self._owner = ", ".join(self._entries[-2:])

    def _close(self, until: int = -1, before_string: bool = False) -> None:
        """End the open segment at `until` or with its last value; beside a string, drop one without content."""
        start, end = self._start, max(self._end, until)
        if start < 0:
            return
        self._start = -1
        cells, self._cells = self._cells, []
        beside, self._after_string = before_string or self._after_string, False
        line = self._text.rfind("\n", max(0, start - MAX_INDENT), start) + 1
        if line and not self._text[line:start].strip(" \t"):
            start = line
        text = self._text[start:end].rstrip()
        says = (k not in FRAME_MEMBERS and self._text[s:e] not in _EMPTY for k, s, e in cells)
        if not text or (beside and not any(says)):
            return
        end = start + len(text)
        inside = tuple((k, s - start, min(e, end) - start) for k, s, e in cells if s < end)
        place = self._source, start, end
        owner, self._owner = self._owner, ""
        self.segments.append(
            Segment(text, self._block, inside, *place, self._label, self._in_structure, owner)
        )

    # -- texts -----------------------------------------------------------------
    def add_source(self, text: str, path: str, depth: int) -> None:
        """Add a text by the structure that is found in it, else as lines, as a terminal shows it."""
        text = as_terminal(text)
        outer = self._source, self._text, self._structured, self._block
        self._source, self._text, self._structured, self._block = len(self.sources), text, False, 0
        self.sources.append(text)
        self.paths.append(path)
        start, stop, _ = frame_of(text)
        self.skipped += len(text) - (stop - start)
        if page := as_terminal(page_text(text[start:stop]) if self.pages else ""):
            self._source = self.page = len(self.sources)
            self._text = page
            self.sources.append(page)
            self.paths.append(path)
            self.skipped += max(0, stop - start - len(page))
            self._add_lines(0, len(page), is_numbered=False)
        elif stop - start <= MAX_TEXT:
            self._add_part(start, stop, depth)
        elif len(text) > MAX_ESCAPED or not self._add_escaped(start, stop, depth):
            first, last = start + MAX_TEXT * 2 // 3, stop - MAX_TEXT // 3  # moved to where no word is cut
            first = max(text.rfind(space, first - 4000, first) for space in "\n ") + 1 or first
            after = _SPACE.search(text, last, min(stop, last + 4000))
            last = after.end() if after else last
            self.skipped += last - first
            self._add_part(start, first, depth)
            self._add_part(last, stop, depth)
        self._source, self._text, self._structured, self._block = outer

    def _add_part(self, start: int, stop: int, depth: int) -> None:
        roots = self._structure(self._text, start, stop) if depth < MAX_DEPTH else []
        if not roots and self._add_escaped(start, stop, depth):
            return
        plain = without_numbers(self._text[start:stop]) if not roots and depth < MAX_DEPTH else None
        if plain and self._structure(plain, 0, len(plain)):
            self.add_source(plain, "", depth + 1)
            return
        for root in [*roots, None]:
            until = stop if root is None else root.start
            if _WORD.search(self._text, start, until):
                self._close()
                self._add_lines(start, until)
            if root is not None:
                self._structured = True
                self._add_node(root, root.start, "", depth)
                self._structured = False
                start = root.end
        self._close(stop)

    @staticmethod
    def _structure(text: str, start: int, stop: int) -> list[Node]:
        """The structure in a text; none in code, of which calls may be the most."""
        roots = find_structure(text, start, stop)
        is_first = not roots or not text[start : roots[0].start].strip()
        return roots if is_first or not _definitions(text, [*_lines(text, start, stop)])[1] else []

    def _add_escaped(self, start: int, stop: int, depth: int) -> bool:
        """Add a text that is mostly one escaped string (a printed object, a string in a string), if it is."""
        text = self._text
        if depth > MAX_DEPTH or text.find("\\", start, stop) < 0:
            return False
        if span := escaped_span(text, start, stop):
            self._add_lines(start, span[0])
            self.add_source(unescape(text[slice(*span)]), "", depth + 1)
            self._add_lines(span[1], stop)
            return True
        head = min(stop, start + 4000)
        if len(_ESCAPED_BREAK.findall(text, start, head)) <= 3 * (1 + text.count("\n", start, head)):
            return False
        self.add_source(unescape(text[start:stop]), "", depth + 1)
        return True

    # -- structure -------------------------------------------------------------
    def _add_node(self, node: Node, begin: int, path: str, depth: int) -> None:
        """Add a value; `begin` is where its key or the brackets before it begin."""
        key = path.rpartition(".")[2].partition("[")[0]
        size = node.end - node.start
        if node.items and size > self.width * 5 // 4 and depth <= MAX_DEPTH:
            self._add_container(node.items, begin, node.end, path, depth + 1)
        elif node.items is not None and size > self.width * 2:
            self._add_long(begin, node.body, node.end, key, _shown_path(path))
        elif node.items is not None:
            named = node.named or any(i.named for i in node.items[:1])
            self._add(begin, node.end, _cells_of(node, key), "" if named else _shown_path(path))
        else:
            size = node.stop - node.body
            inner = self._text[node.body : node.stop] if size > self.width else ""
            if inner and (self.unfold or "\\" in inner or inner[0] in "{["):
                if self._start < 0:
                    self._open(begin, "")
                    self._end = node.body
                self._close(node.body, before_string=True)
                self.add_source(unescape(inner) if "\\" in inner else inner, _shown_path(path), depth + 1)
                self._after_string = True
            elif size > self.width * 5 // 4:
                self._add_long(begin, node.body, node.stop, key, _shown_path(path))
            else:
                cell = (key, node.body, node.stop)
                self._add(begin, node.end, [cell], "" if node.named else _shown_path(path))

    def _add_container(self, items: list[Node], begin: int, end: int, path: str, depth: int) -> None:
        """Add the values of a list or object one by one, its rows nearly alone, under their header if it has one."""
        rows = sum(i.items is not None for i in items) * 2 > len(items) > 1
        block = self._block
        names: list[str] = []  # of the columns
        tabular = rows and _is_header(items, self._text)
        if tabular:
            self._close(begin)
            begin = items[0].start
            self.heads.append(self._text[begin : items[0].end])
            self._block = len(self.heads) - 1
            names = [self._text[i.body : min(i.stop, i.body + LONGEST_KEY)] for i in items[0].items or ()]
        for number, item in enumerate(items):
            at = item.start if number else begin
            name = _entry_name(item, self._text) if rows and item.end - item.start > self.width else ""
            self._entries += [name] if name else []
            if rows and self._start >= 0:
                near = at - self._start
                if near >= ROW_WIDTH or near + item.end - item.start > self.width or (tabular and number < 2):
                    self._close(at)
            inside = item.items or []
            is_short = item.end - item.start <= 2 * self.width
            if inside and is_short and not item.named and all(i.items is None for i in inside):
                columns = [*names, *(str(n + 1) for n in range(len(names), len(inside)))]
                keys = [i.key if i.named else name for i, name in zip(inside, columns, strict=False)]
                cells = [(key, i.body, i.stop) for key, i in zip(keys, inside, strict=True)]
                self._add(at, item.end, cells, width=self.width * 2)
            elif item.named:
                self._add_node(item, at, f"{path}.{item.key}" if path else item.key, depth)
            else:
                self._add_node(item, at, path if item.items is None else f"{path}[{number}]", depth)
            if name:
                self._entries.pop()
        if tabular:
            self._close(end)
            self._block = block

    def _add_long(self, begin: int, start: int, stop: int, key: str, label: str, column: str = "") -> None:
        """Add a long value: its start with what names it, the rest in segments of its own."""
        if self._start >= 0 and begin - self._start > self.width // 2:
            self._close(begin)
        if self._start < 0:
            self._open(begin, column)
        room = self.width * 5 // 4 - (start - self._start)
        previous, drawn = -1, [match.span() for match in DRAWING.finditer(self._text, start, stop)]
        for first, last in _wrap(self._text, start, stop, self.width, max(40, min(room, self.width))):
            if (inside := bisect_left(drawn, (first,)) - 1) >= 0 and last <= drawn[inside][1]:
                continue
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
    def _add_lines(self, start: int, stop: int, *, is_numbered: bool = True) -> None:
        text, width = self._text, self.width
        if start >= stop:
            return
        lines = list(_lines(text, start, stop))
        starts = text.count("\n", 0, start) + 1 if is_numbered and len(lines) > NAMED_LINES else None
        self._block = 0
        table: tuple[str, list[str]] | None = None
        in_trace = False
        owners, ends = _definitions(text, lines)
        if _LISTING.search(text, start, stop) and not any(owners):
            owners = _folders(text, lines)
        unit = start  # where the short definition ends that the open segment is
        numbered = enumerate(lines)
        for number, (at, end) in numbered:
            line = text[at:end]
            label = "" if starts is None or _LINE_NUMBER.match(line) else f"line {starts + number}"
            inside = owners[number]
            bare = line.strip()
            if at >= unit and number in ends and table is None:
                if self._start >= 0 and self._end - self._start >= width // 2:
                    self._close()
                unit = ends[number]
            if at < unit:
                if bare:
                    self._add(at, end, [_cell(line, at)], label, 2 * SHORT_DEFINITION, inside)
                continue
            if table is None and _is_noise(text, lines, number):
                self._close()
                self.skipped += end - at
                continue
            if table is not None:
                delimiter, names = table
                if delimiter in line:
                    if self._start >= 0 and at - self._start >= ROW_WIDTH:
                        self._close()
                    if len(line) <= width * 2:
                        self._add(at, end, _row_cells(line, at, delimiter, names), label)
                    else:
                        self._add_long_row(at, end, _row_cells(line, at, delimiter, names), label)
                    continue
                self._close()
                table, self._block = None, 0
            open_chars = self._end - self._start if self._start >= 0 else 0
            if not bare:
                if open_chars >= width // 2:
                    self._close()
                continue
            table = _find_table(text, lines, number)
            if table is not None:
                self._close()
                is_ruled = _RULE.match(text, *lines[number + 1])
                last = next(numbered)[1][1] if is_ruled else end  # with the rule under the header
                self.heads.append(text[at:last].rstrip())
                self._block = len(self.heads) - 1
                self._add(at, last, [("", at, end)], label)
                self._close()
                continue
            if bare.startswith("Traceback (most recent call last)"):
                in_trace = True
            elif in_trace and line[0] not in " \t":
                in_trace = False
                self._add(at, end, [_cell(line, at)], label, 4 * width)
                continue
            if open_chars and not in_trace:
                heading = (line[0] == "#" or bare[-1] == ":") and len(bare) <= 80 and line[0] not in " \t"
                if heading or (open_chars >= width // 2 and (_BULLET.match(line) or _UNIT.match(line))):
                    self._close()
            if len(line) <= width * 5 // 4:
                self._add(at, end, [_cell(line, at)], label, 4 * width if in_trace else 0, inside)
            else:
                key, first, _ = _cell(line, at)
                self._add_long_line(at, first, end, key, label)
        self._close()
        self._block = 0

    def _add_long_row(self, at: int, end: int, cells: list[Cell], label: str) -> None:
        """Add a row cell by cell; a gap within it names the row, by its first cell, and the column."""
        self._close()
        row = " ".join(
            [label, *(f"{key} {self._text[a : min(b, a + LONG_CELL)]}" for key, a, b in cells[:1])]
        )
        for number, (key, first, last) in enumerate(cells):
            where = f"{row} {key}"
            if last - first > self.width * 5 // 4:
                self._add_long(first if number else at, first, last, key, where, where if number else label)
            else:
                self._add(first if number else at, last, [(key, first, last)], where if number else label)
        self._close(end)

    def _add_long_line(self, at: int, first: int, end: int, key: str, label: str) -> None:
        self._close()
        self._add_long(at, first, end, key, "", label)
        self._close()


# -- code ---------------------------------------------------------------------
def _definitions(text: str, lines: Sequence[tuple[int, int]]) -> tuple[list[str], dict[int, int]]:
    """By line of code the definition that it is in, "" for none; by its first line where a short one ends.

    A definition goes as far as its lines are indented, with what closes it, and begins with the comments above it.
    """
    inside, ends = [""] * len(lines), dict[int, int]()
    within: list[tuple[int, str, int]] = []  # definitions in one another: indentation, name, first line
    above = before = 0  # the first of some comments in a row; the number of the line before
    last = -1  # the last line that is code

    def extend(first: int, until: int) -> None:
        if until - lines[first][0] <= SHORT_DEFINITION:
            ends[first] = until

    def leave(indent: int) -> None:
        while within and within[-1][0] >= indent:
            extend(within.pop()[2], lines[last][1])

    for number, (start, end) in enumerate(lines):
        line = text[start : min(end, start + LONGEST_WORD)]
        count = NUMBERED.match(line)
        code = (line[count.end() :] if count else line).rstrip()
        begin = code.lstrip()
        if count and int(count[1]) != before + 1:  # lines are left out before it
            leave(0)
            above = number
        before = int(count[1]) if count else 0
        if not begin or _ABOVE.match(begin):
            above = above if begin else number + 1
            continue
        indent = len(code[: len(code) - len(begin)].expandtabs())
        leave(indent + (begin[0] in ")}]{"))
        owner = ".".join(name for _, name, _ in within[-2:])
        inside[last + 1 : number + 1] = [owner] * (number - last)  # comments above may be of it
        if begin[-1] == ")" and NUMBERED.sub("", text[end + 1 : end + 40], count=1).lstrip()[:1] == "{":
            begin += " {"
        if match := _DEFINITION.match(begin) or (begin[-1] == "{" and _BRACED.match(begin)):
            within.append((indent, match[match.lastindex or 0], above))
            extend(above, end)  # its signature, if no more of it
        above, last = number + 1, number
    leave(0)
    return inside, ends


def _folders(text: str, lines: Sequence[tuple[int, int]]) -> list[str]:
    """By line of a listing the folder in which its entry is, "" for others: of `tree`, `ls -R`, nested bullets."""
    inside, within, heading = [""] * len(lines), list[tuple[int, str]](), ""
    for number, (start, end) in enumerate(lines):
        line = text[start : min(end, start + LONGEST_WORD)].rstrip()
        if match := _BRANCH.match(line) or _BULLETED.match(line):
            while within and within[-1][0] >= match.end(1):
                within.pop()
            inside[number] = "/".join(name for _, name in within)[-LONGEST_FOLDER:]
            if match.re is _BRANCH:
                within.append((match.end(1), match[2].rstrip("/")))
        elif match := _FOLDER.match(line):
            heading = match[1][-LONGEST_FOLDER:]
        elif line:
            inside[number] = heading
        else:
            within, heading = [], ""
    return inside


# -- owners -------------------------------------------------------------------
def _entry_name(item: Node, text: str) -> str:
    """The member that names a container among others, as it is spelled: its own key, an id, else the first; or ""."""
    best, end = item, item.body
    if not item.named:
        members = [i for i in item.items or () if i.named and i.items is None and i.stop > i.body]
        members = [i for i in members if i.key not in FRAME_MEMBERS] or [item]
        best = min(members, key=lambda i: (not (naming := _NAMING.match(i.key)), not (naming and naming[1])))
        end = best.end
    name = text[best.start : min(end, best.start + 2 * LONG_CELL + 1)].rstrip(" :=")
    is_short = len(name) <= 2 * LONG_CELL and "\n" not in name
    return name if best.named and is_short and best.key not in _WRAPPER_KEYS else ""


def _names_owner(owner: str, segment: Segment, last: Segment | None) -> bool:
    """Return whether a quote tells what a segment is in, by it or by the segment quoted before it."""
    if re.search("[\"'=:]", owner):  # an entry
        return owner in segment.text or (last is not None and last.owner == owner)
    if "/" in owner:  # a folder
        return last is not None and last.owner == owner
    return last is not None and (last.owner == owner or owner.rpartition(".")[2] in last.text)


# -- cells --------------------------------------------------------------------
def _without(text: str, start: int, end: int, cuts: Iterable[tuple[int, int]]) -> str:
    """Return text[start:end] with a gap mark for each span in `cuts`, which are in order."""
    parts = []
    for first, last in cuts:
        parts += [text[start:first], GAP]
        start = last
    return "".join([*parts, text[start:end]])


def _cells_of(node: Node, key: str) -> list[Cell]:
    if node.items is None:
        return [(key, node.body, node.stop)]
    return [cell for i in node.items for cell in _cells_of(i, i.key if i.named else key)]


def _cell(line: str, at: int) -> Cell:
    """Return the value of a line, after its label or its bullet."""
    size = len(line.rstrip())
    for pattern in (_LABEL, _BULLET):
        match = pattern.match(line)
        if match and match.end() < size:
            return match.group(1) if pattern is _LABEL else "-", at + match.end(), at + size
    return "", at + len(line) - len(line.lstrip()), at + size


def _shown_path(path: str) -> str:
    """Return a path without the keys of wrappers, in its last parts."""
    parts = [p for p in path.split(".") if p.partition("[")[0] not in _WRAPPER_KEYS]
    return ".".join(parts[-3:])[-80:]


def _is_header(items: list[Node], text: str) -> bool:
    """Return whether the first of several lists names the columns of the others."""
    first = items[0].items
    if len(items) < 3 or not first or len(first) < 2 or any(i.named or i.items is not None for i in first):
        return False
    return all(
        text[i.body - 1 : i.body] in ("'", '"') and not any(c.isdigit() for c in text[i.body : i.stop])
        for i in first
    ) and any(len(i.items or ()) == len(first) for i in items[1:3])


# -- tables in text -----------------------------------------------------------
def _find_table(text: str, lines: list[tuple[int, int]], number: int) -> tuple[str, list[str]] | None:
    """The delimiter and column names of the table whose header a line is: ruled off below, or even cells follow.

    The delimiter of columns that are aligned is two blanks.
    """
    if number + 2 >= len(lines):
        return None
    header, rule, row = (text[a:b] for a, b in lines[number : number + 3])
    is_ruled = len(rule) >= 3 and "-" in rule and _RULE.match(rule) is not None
    sign = "|" if "|" in header and is_ruled else ""
    if not sign and number == 0:
        for delimiter in ("\t", ",", ";"):
            names = header.split(delimiter)
            alike = len(names) > 1 and len(names) - 1 == rule.count(delimiter) == row.count(delimiter)
            are_names = all(len(n) <= 40 and any(map(str.isalpha, n)) for n in names)
            if alike and are_names and len(set(names)) == len(names):
                sign = delimiter
                break
    if not sign and (number == 0 or not text[slice(*lines[number - 1])].strip()):
        columns, rows = [*_ALIGNED.finditer(header)], (row,) if is_ruled else (rule, row)
        first = columns[0][0] if columns else ""
        is_name = is_ruled or not any(map(str.isdigit, first))  # not the first of some ids
        starts = [c.start() for c in columns if is_name and c[0][0].isalpha() and len(c[0]) <= 40]
        are_even = all(_CELL.match(f" {line}", at) for at in starts for line in rows)
        if are_even and len(starts) == len(columns) > (1 if is_ruled else 2):
            return _BLANKS, [c[0][:LONGEST_KEY] for c in columns]
    return (sign, [n.strip(' "')[:LONGEST_KEY] for n in header.split(sign)]) if sign else None


def _row_cells(line: str, at: int, delimiter: str, names: list[str]) -> list[Cell]:
    if delimiter == _BLANKS:  # an empty cell leaves no trace
        parts = [*_ALIGNED.finditer(line)]
        names = names if len(parts) == len(names) else [""] * len(parts)
        return [(name, at + part.start(), at + part.end()) for name, part in zip(names, parts, strict=True)]
    cells = []
    for number, part in enumerate(line.split(delimiter)):
        if bare := part.strip().strip('"'):
            start = at + part.index(bare)
            cells.append((names[number] if number < len(names) else "", start, start + len(bare)))
        at += len(part) + 1
    return cells


def _is_noise(text: str, lines: list[tuple[int, int]], number: int) -> bool:
    """Return whether a line is one of several of base64 or of a hex dump, mostly a drawing, or minified code."""
    line = text[slice(*lines[number])]
    if '="' in line and 2 * sum(len(drawn[0]) for drawn in DRAWING.finditer(line)) > len(line):
        return True
    if len(line) > MINIFIED and 20 * line.count(" ") < len(line):
        return len(line) < 25 * sum(map(line.count, "{}();")) and 100 * line.count("\\n") < len(line)
    for noise in (_BASE64, _HEX_DUMP):
        if noise.fullmatch(text, *lines[number]):
            beside = lines[max(0, number - 1) : number] + lines[number + 1 : number + 2]
            return any(noise.fullmatch(text, *span) for span in beside)
    return False


def _lines(text: str, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of each line of text[start:stop] without its line end."""
    while start <= stop:
        end = text.find("\n", start, stop)
        if end < 0:
            end = stop
        yield start, end - (end > start and text[end - 1] == "\r" and end < stop)
        start = end + 1


def _wrap(text: str, start: int, stop: int, width: int, first: int) -> Iterator[tuple[int, int]]:
    """Yield spans of about `width` characters (the first: `first`) of a long line, cut where words end."""
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
