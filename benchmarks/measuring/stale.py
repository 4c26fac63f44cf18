"""Counts quotes of files that a later call edited, and those of them that say so or are up to date."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from memory_bank.audit.text import parsed_arguments
from memory_bank.transcript import MessageKind, calls_of, content_text, kind_of, read

from .copies import Tally
from .rereads import file_read

EDITS = re.compile(r"(?:^|[-_.:/ ])(?:edit|replace|multiedit)(?:$|[-_.:/ ])", re.I)
FAILED = re.compile(r"\W{0,4}(?:\w*error\b|<tool_use_error>|the user (?:doesn't|rejected)|failed\b)", re.I)
MARKED = re.compile(r"\b(?:before|with) edit #\d+")
NUMBER = re.compile(r"^\s*(\d+)(?:\t|→|[|:] ?)")
LONG = 12  # characters of a line that counts as quoted


class FileQuotes:
    """What a run has read of files and edited so far; messages are added in their order."""

    def __init__(self) -> None:
        self._reads: dict[str, tuple[int, str, str]] = {}  # by call: position, path, output
        self._edits: dict[str, list[tuple[int, str, str, str]]] = {}  # by path: position, call, old, new
        self._asked: dict[str, tuple[str, str, Mapping[str, Any]]] = {}
        self._at = 0

    def add(self, message: object) -> None:
        """Add a message of the run."""
        self._at += 1
        for call in calls_of(message) if kind_of(message) is MessageKind.CALL else ():
            given = parsed_arguments(call.arguments)
            given = given if isinstance(given, Mapping) else {}
            edits = EDITS.search(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", call.name))
            path = file_read(call.name, given) or (
                edits and str(given.get("file_path") or given.get("path") or "")
            )
            if path and call.call_id:
                self._asked[call.call_id] = "edit" if edits else "read", path, given
        call_id = str(read(message, "tool_call_id") or "")
        if kind_of(message) is not MessageKind.RESULT or call_id not in self._asked:
            return
        what, path, given = self._asked.pop(call_id)
        output = content_text(read(message, "content"))
        if what == "read":
            self._reads[call_id] = self._at, path, output
        elif not FAILED.match(output):
            old, new = (str(given.get(f"{k}_string", given.get(f"{k}_str", ""))) for k in ("old", "new"))
            self._edits.setdefault(path, []).append((self._at, call_id, old, new))

    def quoted(self, context: Sequence[object]) -> Tally:
        """The quotes of files that were edited later, unless the context has the edit whole after it, and how many of
        them are marked or up to date."""
        whole = {c.call_id: str(c.arguments) for m in context for c in calls_of(m)}
        good = total = 0
        for message in context:
            call_id = str(read(message, "tool_call_id") or "")
            if call_id not in self._reads or kind_of(message) is not MessageKind.RESULT:
                continue
            at, path, output = self._reads[call_id]
            text = content_text(read(message, "content"))
            lines = {
                bare for line in output.splitlines() if len(bare := NUMBER.sub("", line).strip()) >= LONG
            }
            quoted = [line for line in text.splitlines() if NUMBER.sub("", line).strip() in lines]
            later = [e for e in self._edits.get(path, ()) if e[0] > at and "[…" in whole.get(e[1], "[…")]
            if text != output and quoted and later:
                total += 1
                good += bool(MARKED.search(text)) or _is_current(output, quoted, later)
        return Tally(good, total)


def _is_current(output: str, quoted: Sequence[str], edits: Sequence[tuple[int, str, str, str]]) -> bool:
    """Whether no quoted line is one that an edit removed or gave another number, as far as the output tells."""
    lines = output.splitlines()
    first = next((int(m[1]) for line in lines if (m := NUMBER.match(line))), None)
    text = "\n".join(NUMBER.sub("", line) for line in lines)
    for _, _, old, new in edits:
        gone = {line.strip() for line in old.splitlines()} - {line.strip() for line in new.splitlines()}
        if any(NUMBER.sub("", line).strip() in gone for line in quoted):
            return False
        text = text.replace(old, new) if old else text
    now = text.split("\n")
    numbers = [(int(m[1]), NUMBER.sub("", line)) for line in quoted if (m := NUMBER.match(line))]
    return first is None or all(line in now[n - first : n - first + 1] for n, line in numbers)
