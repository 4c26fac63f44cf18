"""The newest copy of a file, in the place of an answer that only refers to a result which a fold has removed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
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
        for pair in () if turn.fault or turn.start in view.hidden else turn.pairs:
            if pair.result is None or pair.call is None:
                continue
            call, output = (f"{pair.tool_name} {pair.call.text}", "call"), content_text(pair.result.content)
            file, refers = file_access(pair.tool_name, pair.call.text), refers_to_earlier(output)
            if file is not None and file.access != "read" and not is_failure(output):
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
    alike = [k for k in paths if k[0].endswith(f"/{file.path}") or file.path.endswith(f"/{k[0]}")]
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
            text = text and _replaced(text, old, new, everywhere)
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
            texts[-1].append(line)
            continue
        if line.rstrip().endswith(("REPLACE", "REPLACE>")) and len(texts) > 2:
            yield "".join(texts[-2]), "".join(texts[-1]), False
        texts.append([])


def _replaced(text: str, old: str, new: str, everywhere: bool) -> str | None:
    """The text with one replaced, exactly; None where that is not possible. Line numbers before its lines stay."""
    first = NUMBERED.match(text)
    plain = without_numbers(text) if first else None
    body = text if plain is None else plain
    times = body.count(old)
    if not times or (times > 1 and not everywhere):
        return None
    body = body.replace(old, new)
    if plain is None or first is None:
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
