"""Files of recorded runs (JSON lines, plain or gzip, one trace a line) and the texts of their messages."""

from __future__ import annotations

import gzip
import io
import json
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memory_bank.errors import TraceFileError
from memory_bank.transcript import MessageKind, calls_of, content_text, is_text_part, kind_of, read

UNPACKED_BYTES = 256 * 2**20
"""A gzip file may unpack to this, or to ``UNPACKED_TIMES`` its size if that is more."""
UNPACKED_TIMES = 200


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded run: its id, its chat messages, and the tools it could call."""

    id: str
    messages: list[Any]
    tools: list[Any] | None = None
    task: str = ""


@dataclass(frozen=True, slots=True)
class BrokenLine:
    """A line that holds no trace, and the reason."""

    file: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}: {self.reason}"


class _Gunzip(gzip.GzipFile):
    """A gzip file that is read up to ``most`` bytes."""

    most = 0

    def read1(self, size: int = -1) -> bytes:
        data = super().read1(size)
        if self.tell() > self.most:
            raise gzip.BadGzipFile(
                f"it unpacks to over {self.most / 2**20:,.0f} MiB, more than {UNPACKED_TIMES} times its size: "
                "unpack it with gunzip if that is right"
            )
        return data


@contextmanager
def open_lines(path: str | Path, errors: str = "surrogateescape") -> Iterator[io.TextIOWrapper]:
    """The lines of a text file, plain or gzip. Raises gzip.BadGzipFile where it unpacks to far more than its size."""
    with open(path, "rb") as file:
        stream: Any = file
        if file.peek(2)[:2] == b"\x1f\x8b":
            stream = _Gunzip(fileobj=file)
            stream.most = max(UNPACKED_BYTES, UNPACKED_TIMES * os.fstat(file.fileno()).st_size)
        # Only a line feed ends a line: a carriage return may stand between JSON values.
        with io.TextIOWrapper(stream, encoding="utf-8-sig", errors=errors, newline="\n") as lines:
            yield lines


def read_traces(path: str | Path) -> Iterator[Trace | BrokenLine]:
    """Yield the traces of a file in order; a line that holds none is yielded as a BrokenLine.

    A trace without an id is named after its file and line. Only one line is in memory at a time. Raises
    TraceFileError when the file cannot be read or its compressed data is cut off; all complete traces have
    been yielded by then.
    """
    path = Path(path)
    number = 0
    try:
        with open_lines(path) as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    found = _parse(line, f"{path.name}:{number}")
                    yield BrokenLine(str(path), number, found) if isinstance(found, str) else found
    except (OSError, EOFError, zlib.error) as e:
        where = f" beyond line {number}" if number else ""
        raise TraceFileError(
            f"the trace file {path} cannot be read{where}: {reason_of(e)}; check or replace it."
        ) from e


def reason_of(error: Exception) -> str:
    """Why a file cannot be read."""
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).rstrip(".")


def _parse(line: str, name: str) -> Trace | str:
    """The trace of a line, called ``name`` if it has no id, or the reason why there is none."""
    try:
        value = json.loads(line)
    except RecursionError:
        return "it is nested too deeply"
    except ValueError as e:
        where = f", column {e.colno}" if isinstance(e, json.JSONDecodeError) else ""
        return f"it is not JSON ({getattr(e, 'msg', type(e).__name__)}{where})"
    if not isinstance(value, dict):
        return "it is not a JSON object"
    messages, task, tools = value.get("messages"), value.get("task"), value.get("tools")
    if not isinstance(messages, list):
        return 'it has no list "messages"'
    given = value.get("id")
    return Trace(
        id=name if given is None or given == "" else str(given),
        messages=messages,
        tools=tools if isinstance(tools, list) else None,
        task=task if isinstance(task, str) else "",
    )


@dataclass(slots=True)
class TraceFiles:
    """Iterates over the traces of several files; collects and reports what cannot be used.

    ``skipped`` lists the lines that hold no trace, ``unreadable`` the files that cannot be read (to the end); these
    are errors when it is ``strict``. Raises TraceFileError at the end of files with broken
    lines alone.
    """

    paths: Sequence[str | Path]
    tell: Callable[[str], None]
    strict: bool = False
    skipped: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[Trace]:
        found = False
        for path in self.paths:
            try:
                for trace in read_traces(path):
                    if isinstance(trace, Trace):
                        found = True
                        yield trace
                        continue
                    self.skipped.append(str(trace))
                    self.tell(f"skipped {trace}.")
            except TraceFileError as e:  # the other files can still be read
                if self.strict:
                    raise
                self.unreadable.append(str(path))
                self.tell(str(e))
        if not found and (self.skipped or self.unreadable):
            raise TraceFileError(
                f"no run was read from {', '.join(map(str, self.paths))}: a run is a line with a JSON object that "
                'has a list "messages".'
            )


def is_turn(message: object) -> bool:
    """Whether a message is an assistant turn, the result of one model call of a recorded run."""
    return bool(read(message, "role") == "assistant")


def message_texts(message: object) -> list[str]:
    """Every text of a message that a model would see: its content, then each call's name and arguments."""
    texts = content_texts(read(message, "content"))
    if texts == [""]:
        texts = []
    if kind_of(message) is MessageKind.CALL:
        texts += [f"{call.name} {call.text}" for call in calls_of(message)]
    if read(message, "role") is None and (output := read(message, "output")) is not None:
        texts += content_texts(output)
    return texts


def content_texts(content: object) -> list[str]:
    """The texts of a content, one a part; parts that are not text are left out."""
    if isinstance(content, (list, tuple)):
        return [content_text([part]) for part in content if is_text_part(part)]
    return [content_text(content)]
