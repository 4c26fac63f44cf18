"""Finds and reads the logs of agents: Claude Code, Codex, and lists of OpenAI messages."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from memory_bank.errors import ConfigError, TraceFileError
from memory_bank.lab.logs.claude_code import is_claude_code, read_claude_code
from memory_bank.lab.logs.codex import is_codex, read_codex
from memory_bank.lab.logs.sessions import Client, LoggedSession
from memory_bank.lab.traces import open_lines
from memory_bank.transcript import kind_of

_LOOKED_AT = 40  # lines of a file whose format is looked for
_ENDINGS = (".jsonl", ".jsonl.gz", ".json")


def log_files(paths: Sequence[Path]) -> list[Path]:
    """The files of some paths: files as they are, folders with all JSON files below them, in order.

    Raises ConfigError for a path that does not exist, and for a folder without such files.
    """
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise ConfigError(f"there is no file or folder {path}: check the name.")
        if not path.is_dir():
            found.append(path)
            continue
        below = sorted(p for p in path.rglob("*") if p.name.endswith(_ENDINGS) and p.is_file())
        if not below:
            raise ConfigError(
                f"the folder {path} holds no .jsonl or .json files: name the folder of an agent's logs."
            )
        found += below
    return found


def log_format(path: Path) -> Client | None:
    """The client whose log a file is; None for recorded runs (``{"id", "messages"}`` a line) and anything else."""
    if not path.is_file():
        return None  # a pipe can be read only once
    try:
        with open_lines(path) as lines:
            values = [_parsed(line) for line in islice(lines, _LOOKED_AT)]
            objects = [v for v in values if isinstance(v, Mapping)]
            if not objects and not any(map(_are_messages, values)):
                lines.seek(0)
                values = [_parsed(lines.read())]  # one JSON document over several lines
    except (OSError, EOFError, zlib.error):
        return None  # its reader says why it cannot be read
    if any(map(is_claude_code, objects)):
        return "Claude Code"
    if any(map(is_codex, objects)):
        return "Codex"
    return "message list" if not objects and any(map(_are_messages, map(_messages, values))) else None


@dataclass(slots=True)
class LogFiles:
    """Iterates over the sessions in log files; collects and reports what cannot be used.

    ``skipped`` counts lines that are no JSON objects, ``unknown`` lists files of no known format, ``unreadable``
    files that cannot be read (to the end).
    """

    paths: Sequence[Path]
    tell: Callable[[str], None]
    skipped: int = 0
    unknown: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[LoggedSession]:
        for path in self.paths:
            try:
                yield from self._read(path)
            except TraceFileError as e:  # the other files can still be read
                self.unreadable.append(str(path))
                self.tell(str(e))

    def _read(self, path: Path) -> list[LoggedSession]:
        try:
            with open_lines(path) as lines:
                values = [_parsed(line) for line in lines if line.strip()]
                if not any(isinstance(v, (Mapping, list)) for v in values):
                    lines.seek(0)
                    values = [_parsed(lines.read())]  # one JSON document over several lines
        except (OSError, EOFError, zlib.error) as e:
            reason = (getattr(e, "strerror", None) or str(e) or type(e).__name__).rstrip(".")
            raise TraceFileError(f"the log {path} cannot be read: {reason}; check or replace it.") from e
        objects = [v for v in values if isinstance(v, Mapping)]
        name = path.name.removesuffix(".gz").removesuffix(".jsonl").removesuffix(".json")
        if any(map(is_claude_code, objects[:_LOOKED_AT])):
            sessions = read_claude_code(objects, name)
        elif any(map(is_codex, objects[:_LOOKED_AT])):
            sessions = read_codex(objects, name)
        else:
            found = [m for m in map(_messages, values) if _are_messages(m)]
            sessions = [LoggedSession(f"{name}:{n}", "message list", m) for n, m in enumerate(found, 1)]
            if not sessions:
                self.unknown.append(str(path))
                return []
            self.skipped += len(values) - len(found)
            return sessions
        self.skipped += len(values) - len(objects)
        return sessions


def _messages(value: object) -> Any:
    """The list of messages of a document."""
    return value.get("messages") if isinstance(value, Mapping) else value


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _are_messages(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) > 0
        and all(isinstance(m, Mapping) for m in value)
        and any(str(kind_of(m)) != "other" for m in value)
    )
