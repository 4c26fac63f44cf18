"""Files of recorded runs: JSON lines, plain or gzip, one trace a line."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from memory_bank.errors import TraceFileError


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded run: its id, its chat messages, and the tools it could call."""

    id: str
    messages: list[Any]
    tools: list[Any] | None = None
    task: str = ""


@dataclass(frozen=True, slots=True)
class BrokenLine:
    """A line that holds no trace, and why."""

    file: str
    line: int
    reason: str


def read_traces(path: str | Path) -> Iterator[Trace | BrokenLine]:
    """The traces of a file in order; lines that hold none come as BrokenLine and stop nothing.

    Raises TraceFileError when the file cannot be read, or is cut within its compression.
    """
    try:
        with _open(Path(path)) as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield _parse(line, str(path), number)
    except (OSError, EOFError, zlib.error) as e:
        reason = getattr(e, "strerror", None) or str(e) or type(e).__name__
        raise TraceFileError(f"the trace file {path} cannot be read: {reason}.") from e


def _open(path: Path) -> IO[str]:
    with open(path, "rb") as probe:
        packed = probe.read(2) == b"\x1f\x8b"
    if packed:
        return gzip.open(path, "rt", encoding="utf-8", errors="surrogateescape")
    return open(path, encoding="utf-8-sig", errors="surrogateescape")


def _parse(line: str, file: str, number: int) -> Trace | BrokenLine:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as e:
        return BrokenLine(file, number, f"it is no JSON ({type(e).__name__})")
    if not isinstance(value, dict):
        return BrokenLine(file, number, "it is no JSON object")
    messages = value.get("messages")
    if not isinstance(messages, list):
        return BrokenLine(file, number, 'it has no list "messages"')
    name = value.get("id")
    tools = value.get("tools")
    return Trace(
        id=f"line-{number}" if name is None else str(name),
        messages=messages,
        tools=tools if isinstance(tools, list) else None,
        task=str(value.get("task") or ""),
    )
