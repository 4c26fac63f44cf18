"""The files of a session as its calls leave them: what each call showed of a file, with later edits applied to it.

An edit is applied where it can be applied exactly; else the text stays as it was and its copy names the edit.
"""

from __future__ import annotations

import re
import shlex
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, islice
from typing import Any, NamedTuple

from memory_bank.selection.cutting import CutText
from memory_bank.selection.effects import applies_patches, file_access, shell_command
from memory_bank.transcript.framing import NUMBERED, numbered_lines, plain_lines
from memory_bank.transcript.harness import refers_to_earlier
from memory_bank.transcript.jsontext import parse_arguments, parse_output
from memory_bank.transcript.messages import is_text_part, part_text, parts_of

_TEXT_KEYS = ("content", "file_text", "contents", "text", "new_source")
_OLD_KEYS = ("old_string", "oldString", "old_str", "old_text", "oldText")
_NEW_KEYS = ("new_string", "newString", "new_str", "new_text", "newText")
_FENCES = re.compile(r"[<-]{5,9} ?SEARCH>?|(={5,9})|[>+]{5,9} ?REPLACE>?")
_BEFORE_OLD = re.compile(r":(?:start|end)_line: ?\d+|-{5,9}")  # Roo, after SEARCH
_PATCHED = re.compile(r"\*\*\* (Update|Add|Delete) File: (.+)|\+\+\+ (?:b/)?([^\t\n]+)(?:\t.*)?")
_MOVED = "*** Move to: "
_HEREDOC = re.compile(r"(?<!<)<<(-?)[ \t]*(['\"]?)(\w+)\2")
_OPENED = re.compile(
    r"\bopen\(\s*['\"]([^'\"\n]+)['\"]\s*,\s*['\"][wa]|\bPath\(['\"]([^'\"\n]+)['\"]\)\.write_"
)
_OPERATORS = ";&|<>()\n"
_SED = re.compile(
    r"\bsed\b[^\n|;&'\"]*\s-\w*i[^\n|;&]*?['\"]s([/|#,@])((?:\\.|(?!\1).)+?)\1((?:\\.|(?!\1).)*?)\1"
)
_SEARCHES = frozenset(("grep", "egrep", "fgrep", "rg", "ag", "ack"))
_NUMBERED_LINE = re.compile(
    r"^((?:[A-Za-z]:)?[^\s:\"'<>|*?]{1,200}\.\w{1,8}):\d{1,7}(?=[:\s-])", re.MULTILINE
)
_SHOWS = frozenset(("cat", "nl", "head", "tail", "sed", "bat"))
_MOST_COMPARED = 2_000_000  # lines of a file times lines of a place in a patch
_MOST_CHANGES = 100  # of one call that are applied
_MOST_LINES = 500  # of a place that is looked for in part of a file; places of a text that changed
_MOST_PLACES = 5_000  # that a replacement changes
_MOST_CHARS = 2_000_000  # to which a text may grow
_MOST_COPIES = 32  # of a file, the latest, that are kept as later calls leave them
_MOST_SHELL = 20_000  # characters of a command that are read
_TELLING = 24  # characters of a line that hardly stands in a file twice


class Hunk(NamedTuple):
    """A replacement in a file: ``old`` text by ``new``. Of a patch: whole ``lines``, below a line ``head``."""

    old: str
    new: str
    everywhere: bool = False
    lines: bool = False
    head: str = ""


class _Span(NamedTuple):
    """Lines of a text, from ``start`` to before ``stop``, in whose place there are ``lines`` others."""

    start: int
    stop: int
    lines: int


@dataclass(slots=True)
class FileChange:
    """A call's change of a file; ``hunks`` is empty where it is not known what changed.

    ``number``: of the call. ``near``: the first and the last line around a single hunk, where they are known.
    """

    number: int
    hunks: Sequence[Hunk] = ()
    near: tuple[int, int] | None = None


@dataclass(slots=True)
class FileCopy:
    """A text of a file, or of a ``part`` of it, that a call showed or wrote, as later calls leave it.

    ``number``: of the call; ``written``: it wrote the text. ``applied``, ``missing``: the numbers of the later calls
    whose changes are in the text, and of those whose changes are not. ``head``, ``tail``: lines around numbered ones.
    """

    number: int
    part: str
    origin: str
    written: bool = False
    applied: list[int] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    spans: list[_Span] = field(default_factory=list)  # of lines of the body, each after the one before
    body: str = ""
    begin: int = 0  # the number of the first line; 0: the text is not taken apart yet
    form: tuple[int, str] | None = None  # the width of a number, and what stands after it
    head: list[str] = field(default_factory=list)
    tail: list[str] = field(default_factory=list)

    def _take_apart(self) -> None:
        lines = self.origin.split("\n")
        start, stop = numbered_lines(lines)
        self.begin, self.body = 1, self.origin
        if first := NUMBERED.match(lines[start]) if stop > start else None:
            self.begin, self.form = int(first[1]) or 1, (first.end(1), first[0][first.end(1) :])
            self.head, self.tail = lines[:start], lines[stop:]
            self.body = "\n".join(plain_lines(lines[start:stop]))

    @property
    def text(self) -> str:
        """The text as it is now."""
        if self.form is None:
            return self.body if self.begin else self.origin
        width, end = self.form
        lines = (f"{n:>{width}}{end}{line}" for n, line in enumerate(self.body.split("\n"), self.begin))
        return "\n".join([*self.head, *lines, *self.tail])

    @property
    def changes(self) -> list[int]:
        """The numbers of the later calls that changed the text, whether it has their changes or not."""
        return sorted([*self.applied, *self.missing])

    def apply(self, change: FileChange) -> bool:
        """Change the text where all places of a change stand in it; else leave it as it is. Return whether it did."""
        if not self.begin:
            self._take_apart()
        body, spans, at = self.body, list[_Span](), 0
        for hunk in islice(change.hunks, _MOST_CHANGES):
            patched = _patched(body, hunk, at) if hunk.lines else _replaced(body, hunk)
            if patched is None:
                return False
            body, new_spans = patched
            spans += new_spans
            at = new_spans[-1].start + new_spans[-1].lines
        if not change.hunks or len(change.hunks) > _MOST_CHANGES:
            return False
        if len(change.hunks) == len(spans) == 1:
            change.near = self.begin + spans[0].start, self.begin + spans[0].stop
        self.body = body
        self.spans += [s for s in spans if s.stop - s.start != s.lines]
        self.applied.append(change.number)
        return True

    def miss(self, change: FileChange) -> None:
        """Take in a change that was not applied; one of another part of the file moves the line numbers."""
        moved = self._moved(change) if self.part and change.hunks and not self.missing else None
        if moved is None:
            self.missing.append(change.number)
        elif moved:
            self.begin += moved
            self.applied.append(change.number)

    def _moved(self, change: FileChange) -> int | None:
        """By how many lines a change in another part of the file moves this one; None where it may be in this one."""
        lines = self.body.split("\n")
        if any(h.old.count("\n") > _MOST_LINES for h in change.hunks):
            return None
        shift = sum(h.new.count("\n") - h.old.count("\n") for h in change.hunks)
        if self.form is not None and change.near is not None:
            if change.near[0] >= self.begin + len(lines):
                return 0
            return shift if change.near[1] < self.begin else None
        for hunk in change.hunks:
            old = hunk.old.split("\n")
            if any(len(line.strip()) >= _TELLING and line in self.body for line in old) or any(
                lines[-n:] == old[:n] or lines[:n] == old[-n:] for n in range(1, len(old))
            ):
                return None
        return None if shift and self.form is not None else 0

    def lines_of(self, hunk: Hunk) -> tuple[int, int] | None:
        """The first and the last line of a replacement in the numbered text that shows what came of it."""
        self._take_apart()
        if self.form is None:
            return None
        if not hunk.new or hunk.new not in self.body:
            return self.begin, self.begin + self.body.count("\n")
        first = self.begin + self.body[: self.body.index(hunk.new)].count("\n")
        return first, first + hunk.old.count("\n")

    def quoted(self, cut: CutText, places: Sequence[int]) -> tuple[CutText, list[int]] | None:
        """The pieces at some places of the cut text as the file is now; None where they are no spans of its lines."""
        shown = [cut.segments[place] for place in places]
        if len(self.spans) > _MOST_LINES or any(
            s.block or cut.sources[s.source] != self.origin for s in shown
        ):
            return None
        was, now = self.origin.split("\n"), self.text.split("\n")
        starts, ends = self._lines_now(len(was))
        was_at = [0, *accumulate(len(line) + 1 for line in was)]
        now_at = [0, *accumulate(len(line) + 1 for line in now)]
        text, segments, remaining, until = "\n".join(now), list(cut.segments), list[int](), 0
        for place, s in zip(places, shown, strict=True):
            first, last = (bisect_right(was_at, at) - 1 for at in (s.start, max(s.start, s.end - 1)))
            start = max(until, now_at[starts[first]])
            stop = max(now_at[ends[last]] - 1, start)
            piece = text[start:stop].rstrip()
            label = re.sub(r"line \d+", f"line {starts[first] + 1}", s.label)
            if piece.strip():
                until = start + len(piece)
                segments[place] = replace(s, text=piece, cells=(), start=start, end=until, label=label)
                remaining.append(place)
        sources = [text if source == self.origin else source for source in cut.sources]
        return replace(cut, segments=tuple(segments), sources=tuple(sources)), remaining

    def _lines_now(self, count: int) -> tuple[list[int], list[int]]:
        """For each line as it was shown, the first line that stands for it now, and the line after the last one."""
        starts, ends, before = [*range(count)], [*range(1, count + 1)], len(self.head)
        for start, stop, number in self.spans:
            start, stop = start + before, stop + before
            shift = number - (stop - start)
            starts = [n + shift if n >= stop else min(n, start) for n in starts]
            ends = [n + shift if n >= stop else n if n <= start else start + number for n in ends]
        return starts, ends


def _span(at: int, old: list[str], new: list[str]) -> _Span:
    """The lines that differ between old and new ones, which begin at a line; at least one of the old."""
    same = next(
        (n for n, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new))
    )
    rest = min(len(old), len(new)) - same
    alike = zip(reversed(old), reversed(new), strict=False)
    after = min(rest, next((n for n, (a, b) in enumerate(alike) if a != b), rest))
    if same + after == len(old) and same + after:  # lines are put between: they belong to the line before
        same, after = (same - 1, after) if same else (same, after - 1)
    return _Span(at + same, at + len(old) - after, len(new) - same - after)


def _replaced(body: str, hunk: Hunk) -> tuple[str, list[_Span]] | None:
    count = body.count(hunk.old) if hunk.old else 0
    if not 0 < count <= (_MOST_PLACES if hunk.everywhere else 1):
        return None
    if len(body) + count * (len(hunk.new) - len(hunk.old)) > max(_MOST_CHARS, len(body)):
        return None
    parts = body.split(hunk.old)
    spans, line, old, new = list[_Span](), 0, hunk.old.split("\n"), hunk.new.split("\n")
    for part in parts[:-1]:
        line += part.count("\n")
        spans.append(_span(line, old, new))
        line += len(new) - 1
    return hunk.new.join(parts), spans


def _patched(body: str, hunk: Hunk, at: int) -> tuple[str, list[_Span]] | None:
    """The text with a place of a patch, from a line on; None where it does not fit."""
    lines, old, new = body.split("\n"), _lines_of(hunk.old), _lines_of(hunk.new)
    if hunk.head:
        heads = (n for n in range(at, len(lines)) if lines[n].strip() == hunk.head)
        at = next(heads, at - 1) + 1
    if len(lines) * len(old) > _MOST_COMPARED or (not old and not (new and hunk.head)):
        return None
    places = (
        n for n in range(at, len(lines)) if lines[n : n + 1] == old[:1] and lines[n : n + len(old)] == old
    )
    if (start := next(places, None) if old else at) is None:
        return None
    lines[start : start + len(old)] = new
    return "\n".join(lines), [_span(start, old, new)]


def _lines_of(text: str) -> list[str]:
    return text.split("\n")[:-1]


@dataclass(slots=True)
class _File:
    """A file: what was shown of it, and the changes since, each with how many copies were before it."""

    path: str
    copies: list[FileCopy] = field(default_factory=list)
    latest: dict[str, FileCopy] = field(default_factory=dict)  # by part
    changes: list[tuple[FileChange, int]] = field(default_factory=list)
    settled: int = 0  # changes that are applied to the copies, or kept there

    def add(self, copy: FileCopy) -> FileCopy:
        self.copies.append(copy)
        self.latest[copy.part] = copy
        return copy

    def settle(self) -> None:
        """Apply the changes since to the copies before them."""
        for change, before in self.changes[self.settled :]:
            latest = max(0, before - _MOST_COPIES)
            for copy in self.copies[:latest]:
                copy.missing.append(change.number)
            rest = [c for c in self.copies[latest:before] if c.missing or not c.apply(change)]
            for copy in rest:
                copy.miss(change)
        self.settled = len(self.changes)


class Files:
    """The files of a session, by its calls in their order; copies are brought up to date when they are asked for."""

    def __init__(self) -> None:
        self._named: dict[str, list[_File]] = {}  # by the last part of their paths
        self._shown: dict[str, tuple[_File, FileCopy]] = {}  # by what the caller calls a call
        # by what the caller calls a call the files of which it shows numbered lines, each as it is printed, with how
        # many changes it had
        self._matches: dict[str, dict[str, tuple[_File, int]]] = {}
        self._calls: dict[tuple[str, str], FileCopy] = {}  # other outputs, by tool and arguments

    def add(
        self, number: int, tool: str, arguments: str, output: str, *, failed: bool, key: str = ""
    ) -> None:
        """Add a call: what it shows of a file, and what it changes. ``key``: by which ``of_call`` finds its copy."""
        if failed:
            return
        file, values = file_access(tool, arguments), parse_arguments(arguments)
        refers = refers_to_earlier(output)
        patches: list[_Patch] = []
        if applies_patches(tool, arguments) if file is None else file.access == "edit":
            patches += _patches(values, None if file is None else file.path)
        copy: tuple[_File, FileCopy] | None = None
        for patch in patches:
            self._patch(number, patch)
        if file is None:
            command = "" if patches else shell_command(tool, values)
            for path, text in _shell_changes(command):
                if path:
                    self._change(number, path, (), text)
                else:  # of all files
                    for other in (f for named in self._named.values() for f in named):
                        other.changes.append((FileChange(number), len(other.copies)))
            for path, printed in _numbered(command, output):
                other = self._file(path)
                self._matches.setdefault(key, {})[printed] = other, len(other.changes)
            if not refers:
                self._calls[tool, arguments] = FileCopy(number, "", output)
                if shown := _shell_view(command):
                    copy = self._show(number, *shown, output)
        elif file.access == "read":
            copy = None if refers else self._show(number, file.path, file.part, output)
        elif file.access == "write" and (text := _first(values, _TEXT_KEYS)) is not None:
            copy = self._change(number, file.path, (), text)
        elif not patches:
            hunks, near = [*_hunks(values)], None
            after = FileCopy(number, "lines around an edit", output)
            if file.access == "edit" and len(hunks) == 1:
                near = after.lines_of(hunks[0])
            self._change(number, file.path, hunks, near=near)
            if near:
                copy = self._file(file.path), after
                copy[0].copies.append(after)
        if copy is not None and key:
            self._shown[key] = copy

    def of_call(self, key: str) -> FileCopy | None:
        """The part of a file that a call showed or wrote, as it is now; None for other calls."""
        if key not in self._shown:
            return None
        file, copy = self._shown[key]
        file.settle()
        return copy

    def changed_since(self, key: str, quote: str) -> int:
        """The first later change of a file from which a quote of a call has numbered lines; 0 for none."""
        matches = self._matches.get(key, {}).items()
        changes = [f.changes[at] for printed, (f, at) in matches if len(f.changes) > at and printed in quote]
        return min((change.number for change, _ in changes), default=0)

    def meant(self, tool: str, arguments: str, output: str) -> list[FileCopy]:
        """The copies that an answer such as "file unchanged" may refer to, the likeliest first."""
        access = file_access(tool, arguments)
        if access is None:
            if same := self._calls.get((tool, arguments)):
                return [same]
            files = [
                f for named in self._named.values() for f in named if len(f.path) > 2 and f.path in output
            ]
            parts = [""]
        else:
            files, parts = self._alike(access.path), [access.part, ""]
        for file in files:
            file.settle()
        return [f.latest[part] for f in files for part in dict.fromkeys(parts) if part in f.latest]

    def _alike(self, path: str) -> list[_File]:
        """The files that a path may name, the likeliest first: one of two paths may be relative."""
        files = [f for f in self._named.get(_name(path), ()) if is_same_path(f.path, path)]
        return sorted(files, key=lambda f: f.path != path)

    def _file(self, path: str) -> _File:
        """The file with a path; a new one where there is none."""
        for file in self._alike(path)[:1]:
            if path.startswith("/"):
                file.path = path
            return file
        file = _File(path)
        self._named.setdefault(_name(path), []).append(file)
        return file

    def _show(self, number: int, path: str, part: str, output: str) -> tuple[_File, FileCopy]:
        file = self._file(path)
        return file, file.add(FileCopy(number, part, _plain(output)))

    def _change(
        self, number: int, path: str, hunks: Sequence[Hunk], written: str | None = None,
        near: tuple[int, int] | None = None,
    ) -> tuple[_File, FileCopy] | None:  # fmt: skip
        """Add a change of a file; returns the copy that it writes, where it writes one."""
        file = self._file(path)
        file.changes.append(
            (FileChange(number, () if written is not None else hunks, near), len(file.copies))
        )
        if written is None:
            return None
        file.latest.clear()
        return file, file.add(FileCopy(number, "", written, written=True))

    def _patch(self, number: int, patch: _Patch) -> None:
        if patch.kind == "add":
            self._change(number, patch.path, (), "\n".join(_lines_of(patch.hunks[0].new)))
            return
        for file in self._alike(patch.path):
            self._change(number, file.path, patch.hunks)
            if patch.kind == "delete":
                file.latest.clear()
            elif patch.moved:
                for other in self._alike(patch.moved):
                    other.latest.clear()
                self._named[_name(file.path)].remove(file)
                file.path = patch.moved
                self._named.setdefault(_name(file.path), []).insert(0, file)


def changes_of(tool: str, arguments: str) -> list[_Patch]:
    """A call's changes of files by its arguments, also that it reads one (kind "read"); not that one is moved."""
    file, values = file_access(tool, arguments), parse_arguments(arguments)
    patched = applies_patches(tool, arguments) if file is None else file.access == "edit"
    if patched and (patches := [*_patches(values, None if file is None else file.path)]):
        return patches
    if file is None:
        command = shell_command(tool, values)
        removes = re.search(r"(?:^|[;&|(]\s*)(?:sudo )?(?:rm|git (?:checkout|restore))\s", command, re.M)
        replaced = [Hunk(re.sub(r"\\(\W)", r"\1", old), new) for _, old, new in _SED.findall(command)]
        changed = ("update", replaced or [Hunk("", "")])
        changes = [
            _Patch(path, *(changed if text is None and not removes else ("add", [Hunk("", text or "")])))
            for path, text in _shell_changes(command)
            if path
        ]
        view = None if changes else _shell_view(command)
        return [_Patch(view[0], "read", [])] if view else changes
    if file.access == "write" and (text := _first(values, _TEXT_KEYS)) is not None:
        return [_Patch(file.path, "add", [Hunk("", text)])]
    return [_Patch(file.path, "read" if file.access == "read" else "update", [*_hunks(values)])]


def _plain(output: str) -> str:
    """The text of an output that is wrapped in parts; others as they are."""
    parts = parts_of(parse_output(output)) if output[:1] in ("{", "[") else []
    is_wrapped = parts and all(isinstance(p, dict) and is_text_part(p) for p in parts)
    return "\n".join(map(part_text, parts)) if is_wrapped else output


def _name(path: str) -> str:
    """The last part of a path."""
    return path.rstrip("/").rpartition("/")[2]


def is_same_path(one: str, other: str) -> bool:
    """Return whether two paths may name one file: one of them may be relative."""
    one, other = one.removeprefix("./"), other.removeprefix("./")
    return one == other or one.endswith(f"/{other}") or other.endswith(f"/{one}")


def _first(values: Mapping[str, Any], keys: Sequence[str]) -> str | None:
    return next((values[k] for k in keys if isinstance(values.get(k), str)), None)


def _hunks(values: Mapping[str, Any]) -> Iterator[Hunk]:
    """The replacements that the arguments of an edit ask for."""
    edits = values.get("edits")
    for edit in [e for e in edits if isinstance(e, dict)] if isinstance(edits, list) else [values]:
        old, new = _first(edit, _OLD_KEYS), _first(edit, _NEW_KEYS)
        if old and new is not None:
            yield Hunk(old, new, bool(edit.get("replace_all") or edit.get("replaceAll")))
    diff = values.get("diff")
    texts: list[list[str]] = [[]]
    for line in diff.splitlines(keepends=True) if isinstance(diff, str) else ():  # SEARCH, =====, REPLACE
        if not _FENCES.fullmatch(line.rstrip()):
            if texts[-1] or not _BEFORE_OLD.fullmatch(line.rstrip()):
                texts[-1].append(line)
            continue
        if line.rstrip().endswith(("REPLACE", "REPLACE>")) and len(texts) > 2:
            yield Hunk("".join(texts[-2]), "".join(texts[-1]))
        texts.append([])


class _Patch(NamedTuple):
    """The change of a file by a patch: "update", "add" or "delete"; ``moved``: its path from then on."""

    path: str
    kind: str
    hunks: list[Hunk]
    moved: str = ""


def is_patch(text: str) -> bool:
    """Return whether a text has a patch: of apply_patch, or a unified diff."""
    return re.search(r"^(?:\*\*\* Begin Patch|@@)", text, re.MULTILINE) is not None


def _patches(values: Mapping[str, Any], path: str | None) -> Iterator[_Patch]:
    """The patches in the arguments of a call: of apply_patch, also within a command, and unified diffs."""
    for text in _strings(values):
        if not is_patch(text):
            continue
        lines = text.split("\n")
        patch = None if path is None else _Patch(path, "update", [])
        old, new = list[str](), list[str]()  # of the last place
        for at, line in enumerate(lines):
            ends_place = _PATCHED.match(line) or line.startswith(("@@", "*** End Patch"))
            if ends_place and patch is not None and patch.hunks:
                _close(patch, old, new)
            if match := _PATCHED.match(line):
                if patch is not None and patch.hunks:
                    yield patch
                patch = _Patch((match[2] or match[3]).strip(), (match[1] or "update").lower(), [])
                patch.hunks.extend([Hunk("", "", lines=True)] if match[1] else [])
            elif patch is None or line.startswith(("*** Begin", "*** End of File", "\\ No newline")):
                continue
            elif line.startswith(_MOVED):
                patch = patch._replace(moved=line.removeprefix(_MOVED).strip())
            elif line.startswith("*** End Patch"):
                yield patch
                patch = None
            elif line.startswith("@@"):
                head = "" if line.startswith("@@ -") else line.removeprefix("@@").strip()
                if patch.hunks and patch.hunks[-1] == Hunk("", "", lines=True):
                    patch.hunks.pop()
                patch.hunks.append(Hunk("", "", lines=True, head=head))
            elif patch.hunks and not (line.startswith("--- ") and lines[at + 1 : at + 2] > ["+++ "]):
                last = at + 1 == len(lines)
                if line[:1] in (" ", "-") or not (line or last):
                    old.append(f"{line[1:]}\n")
                if line[:1] in (" ", "+") or not (line or last):
                    new.append(f"{line[1:]}\n")
        if patch is not None and patch.hunks:
            _close(patch, old, new)
            yield patch


def _close(patch: _Patch, old: list[str], new: list[str]) -> None:
    """Give the last place of a patch its lines, and empty the lists of them."""
    patch.hunks[-1] = patch.hunks[-1]._replace(old="".join(old), new="".join(new))
    old.clear()
    new.clear()


def _strings(node: Any, depth: int = 3) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    elif depth and isinstance(node, (dict, list)):
        for value in islice(node.values() if isinstance(node, dict) else node, _MOST_CHANGES):
            yield from _strings(value, depth - 1)


# -- shells -------------------------------------------------------------------
def _commands(command: str) -> list[tuple[str, list[str], list[str]]]:
    """The simple commands in a shell's command: the folder, the words, the paths that output goes into."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=_OPERATORS)
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    commands = list[tuple[str, list[str], list[str]]]()
    folder, words, paths, into = "", list[str](), list[str](), False
    try:
        tokens = [*lexer, ";"]
    except ValueError:
        return []
    for token in tokens:
        if token and token[0] in _OPERATORS:
            into = token in (">", ">>", ">|")
            if into and words and words[-1] in ("1", "2"):
                words.pop()
            if into or token in ("<", "<<", ">&", "<("):
                continue
            if words[:1] == ["cd"] and len(words) == 2:
                folder = _joined(folder, words[1])
            elif words or paths:
                commands.append((folder, words, paths))
            words, paths = [], []
        elif into:
            paths.append(_joined(folder, token))
            into = False
        else:
            words.append(token)
    return commands


def _joined(folder: str, path: str) -> str:
    return path if not folder or path.startswith(("/", "~")) else f"{folder.rstrip('/')}/{path}"


def _shell_changes(command: str) -> list[tuple[str, str | None]]:
    """The files that a command changes, each with the text that it writes; None where that is not known.

    A path of "" stands for any file, as git changes them.
    """
    if not command or len(command) > _MOST_SHELL:
        return []
    changes: list[tuple[str, str | None]] = [(a or b, None) for a, b in _OPENED.findall(command)]

    lines, left, at = command.split("\n"), list[str](), 0
    ends: dict[str, list[int]] = {}  # where a line is a word alone
    for number, line in enumerate(lines):
        ends.setdefault(line.strip(" \t"), []).append(number)
    while at < len(lines):
        line, at = lines[at], at + 1
        for heredoc in _HEREDOC.finditer(line):
            after = ends.get(heredoc[3], ())
            if (place := bisect_left(after, at)) == len(after):
                continue
            tabs, quoted, _ = heredoc.groups()
            text, at = "".join(f"{row}\n" for row in lines[at : after[place]]), after[place] + 1
            line = line[: heredoc.start()] + line[heredoc.end() :]
            commands = _commands(line)
            is_exact = (quoted or not re.search(r"[$`\\]", text)) and not tabs and ">>" not in line
            if len(commands) == 1 and commands[0][1][:1] in (["cat"], ["tee"]) and is_exact:
                _, words, paths = commands[0]
                changes.extend(
                    (path, text) for path in [*paths, *(words[1:] if words[0] == "tee" else [])][:1]
                )
                line = ""
            break
        left.append(line)

    for folder, words, paths in _commands("\n".join(left)):
        while words and ("=" in words[0] or words[0] in ("sudo", "then", "do", "else")):
            words = words[1:]
        name = words[0].rpartition("/")[2] if words else ""
        named = [w for w in words[1:] if not w.startswith("-")]
        if name in ("sed", "perl"):
            paths = paths + (named[1:] if re.search(r"-\w*i", " ".join(words[1:3])) else [])
        elif name in ("tee", "rm", "mv", "patch"):
            paths = paths + named
        elif name == "cp":
            paths = paths + named[-1:]
        elif name == "git" and _changes_tree(words):
            changes.append(("", None))
        elif name == "git" and words[1:2] in (["checkout"], ["restore"]):
            paths = paths + named[1:]
        changes += [(_joined(folder, p), None) for p in paths if p and not re.search(r"[$*`?]|^/dev/|^&", p)]
    return changes


def _changes_tree(words: Sequence[str]) -> bool:
    """Return whether a command of git may change any file: it goes to other commits, or takes changes back."""
    verb, args = words[1] if len(words) > 1 else "", words[2:]
    if verb == "stash":
        return args[:1] not in (["list"], ["show"], ["drop"], ["clear"])
    if verb == "reset":
        return "--hard" in args
    if verb in ("checkout", "restore", "switch") and len(args) == 1:
        return args == ["."] or (verb != "restore" and not re.search(r"[./]|^-", args[0]))
    return verb in ("pull", "merge", "rebase", "revert", "cherry-pick")


def _numbered(command: str, output: str) -> Iterator[tuple[str, str]]:
    """The files of which an output shows lines with their numbers, as a search does, and how each is printed."""
    text = _plain(output)
    printed = dict.fromkeys(match[1] for match in islice(_NUMBERED_LINE.finditer(text), _MOST_PLACES))
    yield from ((path, f"{path}:") for path in islice(printed, _MOST_CHANGES))
    if not printed and command[:_MOST_SHELL] and re.match(r"\d+[:-]", text):
        for folder, words, _ in _commands(command[:_MOST_SHELL]):
            if words[0] in _SEARCHES and len(words) > 2 and not words[-1].startswith("-"):
                yield _joined(folder, words[-1]), ""  # of one file: its name is not printed


def _shell_view(command: str) -> tuple[str, str] | None:
    """The file that a command shows, and of what part; None where it shows none, or something else besides."""
    if not command or len(command) > _MOST_SHELL or "<<" in command:
        return None
    commands = [(folder, words, paths) for folder, words, paths in _commands(command)]
    if not commands or any(paths or words[0] not in _SHOWS for _, words, paths in commands):
        return None
    files = [
        _joined(folder, word)
        for folder, words, _ in commands
        for word in words[1 + (words[0] == "sed") :]
        if not re.fullmatch(r"-.*|[\d,$+;p ]+", word) and not re.search(r"[$*`?]", word)
    ]
    is_whole = len(commands) == 1 and commands[0][1][0] in ("cat", "nl", "bat")
    return (files[0], "" if is_whole else command) if len(files) == 1 else None
