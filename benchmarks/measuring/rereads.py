"""Reads of files in agents' logs: which read again what had been read, and what a compaction had removed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import NamedTuple

from memory_bank.audit.costs import Costs
from memory_bank.audit.text import parsed_arguments
from memory_bank.audit.traces import Trace
from memory_bank.transcript import MessageKind, calls_of, content_text, kind_of, read


class Rereads(NamedTuple):
    """How often files were read; each member is a number of calls, but for the last."""

    reads: int = 0
    again: int = 0  # of a file that had been read before
    after_compaction: int = 0  # of these, of a file whose earlier read a compaction had removed
    tokens_again: int = 0  # tokens of the outputs of files read again


def count_rereads(session: Trace, costs: Costs, compaction: int | None = None) -> Rereads:
    """The reads of a session; of one ``compaction``: those between it and the next.

    A read is a call that reads one file (by a tool's name, or by cat, head, sed -n …). A file is read again when at
    least half of the lines had been read from it before.
    """
    lines_of: dict[str, dict[str, int]] = {}  # file → line → compactions made when it was last read
    asked: dict[str, str] = {}  # call → file
    reads = again = removed = tokens = 0
    for position, message in enumerate(session.messages):
        kind = kind_of(message)
        if kind is MessageKind.CALL:
            for call in calls_of(message):
                if path := file_read(call.name, parsed_arguments(call.arguments)):
                    asked[call.call_id or ""] = path
        elif kind is MessageKind.RESULT and (path := asked.pop(str(read(message, "tool_call_id") or ""), "")):
            done = sum(p <= position for p, _ in session.compactions)
            raw = content_text(read(message, "content")).splitlines()
            lines = list(filter(None, (re.sub(r"^\s*\d+\s?[\t→:|]", "", line).strip() for line in raw)))
            known = lines_of.setdefault(path, {})
            old = [known[line] for line in lines if line in known]
            counts = compaction in (None, done)
            reads += counts
            if lines and counts and len(old) >= 0.5 * len(lines):
                again += 1
                removed += max(old) < done
                tokens += costs.of(message)
            known.update(dict.fromkeys(lines, done))
    return Rereads(reads, again, removed, tokens)


def file_read(name: str, arguments: object) -> str:
    """The file that a call reads, or ""."""
    if not isinstance(arguments, Mapping):
        return ""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)
    if re.search(r"(?:^|[-_.:/ ])(?:read|view|open|cat|get)(?:$|[-_.:/ ])", words, re.I):
        paths = ("file_path", "path", "filename", "file", "notebook_path", "target_file", "uri")
        return next((v for k in paths if isinstance(v := arguments.get(k), str) and v), "")
    if not re.search(r"bash|shell|exec|terminal|command", name, re.I):
        return ""
    command = arguments.get("command", arguments.get("cmd"))
    if isinstance(command, list):
        wrapped = len(command) == 3 and str(command[1]).startswith("-")
        command = command[-1] if wrapped else shlex.join(map(str, command))
    if not isinstance(command, str):
        return ""
    command = re.sub(r"^\s*cd [^;&|]+&&", "", command)
    if re.search(r"[;&<>$`\n]", command):
        return ""
    try:
        parts = shlex.split(command.split("|")[0])
    except ValueError:
        return ""
    pagers = ("cat", "head", "tail", "nl", "less", "more", "bat", "sed")
    if not parts or parts[0] not in pagers or (parts[0] == "sed" and "-n" not in parts):
        return ""
    files = [p for p in parts[1:] if not p.startswith("-") and not re.fullmatch(r"[\d,$]+p?", p)]
    return files[0] if len(files) == 1 else ""
