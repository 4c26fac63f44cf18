"""How often an agent read a file again: counted from its calls and their outputs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from memory_bank.lab.costs import Costs
from memory_bank.lab.logs.sessions import LoggedSession
from memory_bank.lab.meter.values import parsed_arguments
from memory_bank.transcript import MessageKind, calls_of, content_text, kind_of, read

AGAIN = 0.5
"""A file is read again when at least this share of the lines had been read from it before."""

_READS = re.compile(r"(?:^|[-_.:/ ])(?:read|view|open|cat|get)(?:$|[-_.:/ ])", re.I)
_CAMEL_JOINT = re.compile(r"(?<=[a-z])(?=[A-Z])")
_PATHS = ("file_path", "path", "filename", "file", "notebook_path", "target_file", "uri")
_SHELL = re.compile(r"bash|shell|exec|terminal|command", re.I)
_PAGERS = frozenset({"cat", "head", "tail", "nl", "less", "more", "bat", "sed"})
_NUMBER = re.compile(r"^\s*\d+\s?[\t→:|]")


@dataclass(frozen=True, slots=True)
class Rereads:
    """Reads of files, those of what had been read before, those of what a compaction had removed, their tokens."""

    reads: int = 0
    again: int = 0
    after_compaction: int = 0
    tokens_again: int = 0

    def __add__(self, other: Rereads) -> Rereads:
        return Rereads(
            self.reads + other.reads,
            self.again + other.again,
            self.after_compaction + other.after_compaction,
            self.tokens_again + other.tokens_again,
        )


def count_rereads(session: LoggedSession, costs: Costs) -> Rereads:
    """The reads of a session. A read is a call that reads one file (by a tool's name, or by cat, head, sed -n …)."""
    lines_of: dict[
        str, dict[str, int]
    ] = {}  # file → line → how many compactions had been made when it was last read
    asked: dict[str, str] = {}  # call → file
    positions = [c.position for c in session.compactions]
    reads = again = removed = tokens = 0
    for position, message in enumerate(session.messages):
        kind = kind_of(message)
        if kind is MessageKind.CALL:
            for call in calls_of(message):
                if path := file_read(call.name, parsed_arguments(call.arguments)):
                    asked[call.call_id or ""] = path
        elif kind is MessageKind.RESULT and (path := asked.pop(str(read(message, "tool_call_id") or ""), "")):
            done = sum(p <= position for p in positions)
            text = content_text(read(message, "content"))
            lines = [line for raw in text.splitlines() if (line := _NUMBER.sub("", raw).strip())]
            known = lines_of.setdefault(path, {})
            old = [known[line] for line in lines if line in known]
            reads += 1
            if lines and len(old) >= AGAIN * len(lines):
                again += 1
                removed += max(old) < done
                tokens += costs.of(message)
            known.update(dict.fromkeys(lines, done))
    return Rereads(reads, again, removed, tokens)


def file_read(name: str, arguments: object) -> str:
    """The file that a call reads, or ""."""
    if not isinstance(arguments, Mapping):
        return ""
    if _READS.search(_CAMEL_JOINT.sub("_", name)):
        return next((v for k in _PATHS if isinstance(v := arguments.get(k), str) and v), "")
    if not _SHELL.search(name):
        return ""
    command = arguments.get("command", arguments.get("cmd"))
    if isinstance(command, list):
        command = (
            command[-1]
            if len(command) == 3 and str(command[1]).startswith("-")
            else shlex.join(map(str, command))
        )
    return _shell_read(command) if isinstance(command, str) else ""


def _shell_read(command: str) -> str:
    """The one file that a simple command prints."""
    if re.search(r"[|;&<>$`\n]", command):
        command = re.sub(r"^\s*cd [^;&|]+&&", "", command)
        if re.search(r"[;&<>$`\n]", command):
            return ""
        command = command.split("|")[0]
    try:
        words = shlex.split(command)
    except ValueError:
        return ""
    if not words or words[0] not in _PAGERS or (words[0] == "sed" and "-n" not in words):
        return ""
    files = [w for w in words[1:] if not w.startswith("-") and not re.fullmatch(r"[\d,$]+p?", w)]
    return files[0] if len(files) == 1 else ""
