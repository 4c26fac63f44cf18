"""Files of recorded runs: JSON lines, plain or gzip, one trace a line."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader, TextIOWrapper
from pathlib import Path
from typing import Any

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

    A trace without an id is named after its file and line. One line is held at a time. Raises TraceFileError
    when the file cannot be read, or is cut within its compression; what was whole has come by then.
    """
    path = Path(path)
    number = 0
    try:
        with open(path, "rb") as file, _unpacked(file) as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield _parse(line, path, number)
    except (OSError, EOFError, zlib.error) as e:
        reason = (getattr(e, "strerror", None) or str(e) or type(e).__name__).rstrip(".")
        where = f" beyond line {number}" if number else ""
        raise TraceFileError(f"the trace file {path} cannot be read{where}: {reason}; get it anew.") from e


def _unpacked(file: BufferedReader) -> TextIOWrapper:
    packed = file.peek(2)[:2] == b"\x1f\x8b"
    stream: Any = gzip.GzipFile(fileobj=file) if packed else file
    # A line ends with a line feed only: a carriage return may stand between JSON values.
    return TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline="\n")


def _parse(line: str, path: Path, number: int) -> Trace | BrokenLine:
    file = str(path)
    try:
        value = json.loads(line)
    except RecursionError:
        return BrokenLine(file, number, "it is nested too deeply")
    except ValueError as e:
        where = f", column {e.colno}" if isinstance(e, json.JSONDecodeError) else ""
        return BrokenLine(file, number, f"it is no JSON ({getattr(e, 'msg', type(e).__name__)}{where})")
    if not isinstance(value, dict):
        return BrokenLine(file, number, "it is no JSON object")
    messages = value.get("messages")
    if not isinstance(messages, list):
        return BrokenLine(file, number, 'it has no list "messages"')
    name = value.get("id")
    task = value.get("task")
    tools = value.get("tools")
    return Trace(
        id=f"{path.name}:{number}" if name is None or name == "" else str(name),
        messages=messages,
        tools=tools if isinstance(tools, list) else None,
        task=task if isinstance(task, str) else "",
    )
