"""The newest copy of a file, in the place of an answer that only refers to a result which a fold has removed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from memory_bank.selection.effects import FileAccess, file_access, is_failure
from memory_bank.transcript.chat import edited_message
from memory_bank.transcript.framing import NUMBERED, without_numbers
from memory_bank.transcript.harness import refers_to_earlier
from memory_bank.transcript.messages import content_text
from memory_bank.transcript.quoting import Mark, quote_lines, sendable
from memory_bank.transcript.shortening import fit_text
from memory_bank.transcript.transcript import View
from memory_bank.transcript.turns import WHOLE, Edit

MOST_TOKENS = 10_000  # of a copy; what is longer is shortened, and says so
_TEXT_KEYS = ("content", "file_text", "contents", "text", "new_source")
_OLD_KEYS = ("old_string", "oldString", "old_str", "old_text")
_NEW_KEYS = ("new_string", "newString", "new_str", "new_text")
_FENCES = re.compile(r"[<-]{5,9} ?SEARCH>?|(={5,9})|[>+]{5,9} ?REPLACE>?")
_BEFORE_OLD = re.compile(r":(?:start|end)_line: ?\d+|-{5,9}")  # Roo, after SEARCH
_PATCHED = re.compile(r"\*\*\* (Update|Add|Delete) File: (.+)|\+\+\+ (?:b/)?([^\t\n]+)(?:\t.*)?")
_MOVED = "*** Move to: "
_MOST_COMPARED = 2_000_000  # lines of a file times lines of a place in a patch
_MOST_CHANGES = 100  # of one call that are applied


class _Copy(NamedTuple):
    """A text of a file as the calls so far leave it; ``missing``: later edits that are not in it."""

    text: str
    part: str
    place: int  # of the interaction that shows it
    missing: int = 0


_Key = tuple[str, str]  # a path and a part of the file ("": all of it), or a call and "call"


def restored_copies(view: View, folded: int, count: Callable[[Any], int]) -> dict[int, Edit]:
    """Edits by position of answers such as "file unchanged", whose file only the ``folded`` interactions show.

    They have the newest copy of the file after the answer's own words: what was read or written last, with later
    edits applied. A file that a later interaction shows is not shown again. A pure function of messages and fold.
    """
    if not any(
        pair.result is not None and refers_to_earlier(content_text(pair.result.content))
        for turn in view.interactions[folded:]
        for pair in turn.pairs
    ):
        return {}
    edits: dict[int, Edit] = {}
    copies: dict[_Key, _Copy] = {}
    for place, turn in enumerate(view.interactions):
        for pair in () if turn.fault else turn.pairs:
            if pair.result is None or pair.call is None:
                continue
            call, output = (f"{pair.tool_name} {pair.call.text}", "call"), content_text(pair.result.content)
            file, refers = file_access(pair.tool_name, pair.call.text), refers_to_earlier(output)
            if patches := [] if is_failure(output) else [*_patches(pair.call.raw_input, file)]:
                for patch in patches:
                    _apply(copies, patch, place)
            elif file is not None and file.access != "read" and not is_failure(output):
                _change(copies, file, pair.call.raw_input, place)
            if refers and place >= folded and pair.result_at is not None:
                keys = _meant(copies, file, output, call)
                if keys and all(copies[key].place < folded for key in keys):
                    copy = copies[keys[0]] = copies[keys[0]]._replace(place=place)
                    text = f"{output}\n{_shown(copy, count)}"
                    position = turn.start + pair.result_at
                    message = edited_message(view.messages[position], {WHOLE: text})
                    edits[position] = Edit({WHOLE: text}, message, count(message))
            elif not refers and not is_failure(output):
                if file is None:
                    copies[call] = _Copy(output, "", place)
                elif file.access == "read":
                    copies[file.path, file.part] = _Copy(output, file.part, place)
    return edits


def _meant(copies: Mapping[_Key, _Copy], file: FileAccess | None, output: str, call: _Key) -> list[_Key]:
    """The keys of the copies that an answer may mean, the likeliest first."""
    if file is None:
        named = [key for key in copies if key[1] == "" and len(key[0]) > 2 and key[0] in output]
        return [call] if call in copies else named
    own = [(file.path, file.part), (file.path, "")]
    paths = (k for k in copies if k[1] in ("", file.part))
    alike = [k for k in paths if _is_same(k[0], file.path)]
    return [key for key in dict.fromkeys([*own, *alike]) if key in copies]


def _change(copies: dict[_Key, _Copy], file: FileAccess, given: Mapping[str, Any], place: int) -> None:
    """Apply what a call writes to the copies of its file."""
    written = next((given[k] for k in _TEXT_KEYS if isinstance(given.get(k), str)), None)
    known = [key for key in copies if key[0] == file.path and key[1] != "call"]
    if file.access == "write" and written is not None:
        for key in known:
            del copies[key]
        copies[file.path, ""] = _Copy(written, "", place)
        return
    changes = list(islice(_changes(given), _MOST_CHANGES + 1))
    for key in known:
        copy = copies[key]
        text: str | None = copy.text if 0 < len(changes) <= _MOST_CHANGES else None
        for old, new, everywhere in changes:
            text = text and _changed(text, partial(_replaced, old=old, new=new, everywhere=everywhere))
        is_exact = text is not None
        copies[key] = copy._replace(text=text or "") if is_exact else copy._replace(missing=copy.missing + 1)


def _changes(given: Mapping[str, Any]) -> Iterator[tuple[str, str, bool]]:
    """The replacements that the arguments of an edit ask for: (old text, new text, whether everywhere)."""
    edits = given.get("edits")
    for edit in [e for e in edits if isinstance(e, dict)] if isinstance(edits, list) else [given]:
        old, new = (
            next((edit[k] for k in keys if isinstance(edit.get(k), str)), None)
            for keys in (_OLD_KEYS, _NEW_KEYS)
        )
        if old and new is not None:
            yield old, new, bool(edit.get("replace_all") or edit.get("replaceAll"))
    diff = given.get("diff")
    texts: list[list[str]] = [[]]
    for line in diff.splitlines(keepends=True) if isinstance(diff, str) else ():  # SEARCH, =====, REPLACE
        if not _FENCES.fullmatch(line.rstrip()):
            if texts[-1] or not _BEFORE_OLD.fullmatch(line.rstrip()):
                texts[-1].append(line)
            continue
        if line.rstrip().endswith(("REPLACE", "REPLACE>")) and len(texts) > 2:
            yield "".join(texts[-2]), "".join(texts[-1]), False
        texts.append([])


class _Hunk(NamedTuple):
    """A place of a patch: a line that stands above it ("" for none), the lines there now, and those after."""

    head: str
    old: list[str]
    new: list[str]


class _Patch(NamedTuple):
    """What a patch does to a file: "update", "add" or "delete"; ``moved``: its path from then on."""

    path: str
    kind: str
    hunks: list[_Hunk]
    moved: str = ""


def _patches(given: Mapping[str, Any], file: FileAccess | None) -> Iterator[_Patch]:
    """The patches in the arguments of a call: of apply_patch, also within a command, and unified diffs."""
    for text in _strings(given):
        if not re.search(r"^(?:\*\*\* Begin Patch|@@)", text, re.MULTILINE):
            continue
        lines = text.split("\n")
        patch = None if file is None or file.access == "read" else _Patch(file.path, "update", [])
        for at, line in enumerate(lines):
            if found := _PATCHED.match(line):
                if patch is not None and patch.hunks:
                    yield patch
                patch = _Patch((found[2] or found[3]).strip(), (found[1] or "update").lower(), [])
                patch.hunks.extend([_Hunk("", [], [])] if found[1] else [])
            elif patch is None or line.startswith(("*** Begin", "*** End of File", "\\ No newline")):
                continue
            elif line.startswith(_MOVED):
                patch = patch._replace(moved=line.removeprefix(_MOVED).strip())
            elif line.startswith("*** End Patch"):
                yield patch
                patch = None
            elif line.startswith("@@"):
                head = "" if line.startswith("@@ -") else line.removeprefix("@@").strip()
                patch.hunks.append(_Hunk(head, [], []))
            elif patch.hunks and not (line.startswith("--- ") and lines[at + 1 : at + 2] > ["+++ "]):
                last, hunk = at + 1 == len(lines), patch.hunks[-1]
                if line[:1] in (" ", "-") or not (line or last):
                    hunk.old.append(line[1:])
                if line[:1] in (" ", "+") or not (line or last):
                    hunk.new.append(line[1:])
        if patch is not None and patch.hunks:
            yield patch


def _strings(given: Any, depth: int = 3) -> Iterator[str]:
    if isinstance(given, str):
        yield given
    elif depth and isinstance(given, (dict, list)):
        for value in islice(given.values() if isinstance(given, dict) else given, _MOST_CHANGES):
            yield from _strings(value, depth - 1)


def _apply(copies: dict[_Key, _Copy], patch: _Patch, place: int) -> None:
    """Apply a patch to the copies of its file."""
    if patch.kind == "add":
        copies[patch.path, ""] = _Copy("\n".join(patch.hunks[0].new), "", place)
        return
    for key in [k for k in copies if k[1] != "call" and _is_same(k[0], patch.path)]:
        copy = copies.pop(key)
        if patch.kind == "update":
            text = None
            if len(patch.hunks) <= _MOST_CHANGES:
                text = _changed(copy.text, lambda body: _patched(body, patch.hunks))
            copy = copy._replace(missing=copy.missing + 1) if text is None else copy._replace(text=text)
            copies[patch.moved or key[0], key[1]] = copy


def _is_same(one: str, other: str) -> bool:
    """Whether two paths may name one file: one of them may be relative."""
    one, other = one.removeprefix("./"), other.removeprefix("./")
    return one == other or one.endswith(f"/{other}") or other.endswith(f"/{one}")


def _patched(body: str, hunks: Sequence[_Hunk]) -> str | None:
    """The text with all hunks applied, each after the one before; None where one does not fit."""
    lines, at = body.split("\n"), 0
    for hunk in hunks:
        if hunk.head:
            heads = (n for n in range(at, len(lines)) if lines[n].strip() == hunk.head)
            at = next(heads, at - 1) + 1
        old = hunk.old
        if len(lines) * len(old) > _MOST_COMPARED:
            return None
        if old:
            places = (
                n for n in range(at, len(lines)) if lines[n] == old[0] and lines[n : n + len(old)] == old
            )
            if (found := next(places, None)) is None:
                return None
            at = found
        elif hunk.new and not hunk.head:
            return None
        lines[at : at + len(old)] = hunk.new
        at += len(hunk.new)
    return "\n".join(lines)


def _replaced(body: str, old: str, new: str, everywhere: bool) -> str | None:
    """The text with one replaced, exactly; None where that is not possible."""
    times = body.count(old)
    return None if not times or (times > 1 and not everywhere) else body.replace(old, new)


def _changed(text: str, change: Callable[[str], str | None]) -> str | None:
    """The text after a change of its lines; line numbers before them stay. None where the change is not possible."""
    first = NUMBERED.match(text)
    plain = without_numbers(text) if first else None
    body = change(text if plain is None else plain)
    if body is None or plain is None or first is None:
        return body
    begin, width, end = int(first[1]), first.end(1) - first.start(), text[first.end(1) : first.end()]
    return "\n".join(f"{n:>{width}}{end}{line}" for n, line in enumerate(body.split("\n"), begin))


def _shown(copy: _Copy, count: Callable[[Any], int]) -> str:
    edits = f"; {copy.missing} later edits are not in it" if copy.missing else ""
    part = f" ({copy.part})" if copy.part else ""
    head = f"{Mark.SHORTENED} that result is no longer here; its text{part}{edits}:]\n"
    return head + fit_text(
        quote_lines(sendable(copy.text)), MOST_TOKENS, lambda text: count({"content": text})
    )
