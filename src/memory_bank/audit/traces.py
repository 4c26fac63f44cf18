"""The one reader of recorded runs and agents' logs: JSON lines or one document, plain or gzip; texts of messages."""

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

from memory_bank.audit.sessions import Trace as Trace
from memory_bank.audit.sessions import chat_of, client_of, read_claude_code, read_codex
from memory_bank.errors import TraceFileError
from memory_bank.transcript import MessageKind, calls_of, content_text, is_text_part, kind_of, read

UNPACKED_BYTES = 256 * 2**20
"""A gzip file may unpack to this, or to ``UNPACKED_TIMES`` its size if that is more."""
UNPACKED_TIMES = 200
_OF_EVENTS = {
    "type",
    "role",
    "source",
    "message",
    "payload",
    "kind",
}  # a line that is a message or an event has one


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
    """Yield the runs of a file in order; a line that holds none is yielded as a BrokenLine.

    A line, or the whole file, is a run with a list ``messages`` or ``history``, a list of messages or of runs; or
    each line is a message or an event of one run. A run without an id is named after its file and line. Of lines each
    of which goes on with the messages of the one before, the last is the run. Raises TraceFileError when the file
    cannot be read or its compressed data is cut off; all complete runs have been yielded by then.
    """
    path = Path(path)
    number = 0
    loose: list[tuple[int, dict[str, Any]]] = []  # messages or events of one run
    last: Trace | None = None
    try:
        with open_lines(path) as lines:
            for number, value in _values(lines):
                runs = [] if isinstance(value, str) else list(_runs_of(value, f"{path.name}:{number}"))
                for run in runs:
                    if last is not None and not _goes_on(last, run):
                        yield last
                    last = run
                if isinstance(value, dict) and not runs and value.keys() & _OF_EVENTS:
                    loose.append((number, value))
                elif not runs:
                    if last is not None:
                        yield last
                    last, is_object = None, isinstance(value, dict)
                    reason = 'it has no list "messages"' if is_object else "it is not a JSON object"
                    yield BrokenLine(str(path), number, value if isinstance(value, str) else reason)
    except (OSError, EOFError, zlib.error) as e:
        if last is not None:
            yield last
        where = f" beyond line {number}" if number else ""
        raise TraceFileError(
            f"the trace file {path} cannot be read{where}: {reason_of(e)}; check or replace it."
        ) from e
    if last is not None:
        yield last
    values = [value for _, value in loose]
    name = path.name.removesuffix(".gz").removesuffix(".jsonl").removesuffix(".json")
    if client := client_of(values):
        yield from (read_claude_code if client == "Claude Code" else read_codex)(values, name)
    elif chat := chat_of(values):
        yield Trace(name, chat)
    else:
        yield from (BrokenLine(str(path), n, 'it has no list "messages"') for n, _ in loose)


def _goes_on(before: Trace, run: Trace) -> bool:
    """Return whether a run is the one before with more messages."""
    length = len(before.messages)
    is_same = before.id == run.id or (":" in before.id and ":" in run.id)
    return is_same and 0 < length < len(run.messages) and run.messages[:length] == before.messages


def reason_of(error: Exception) -> str:
    """Why a file cannot be read."""
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).rstrip(".")


def _values(lines: io.TextIOWrapper) -> Iterator[tuple[int, Any]]:
    """The numbered JSON values of the lines, or the file's one document; a text is the reason why there is none."""
    first = True
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        value = _parsed(line)
        if first and isinstance(value, str) and (rest := lines.read()).strip():  # over several lines?
            whole = _parsed(line + rest)
            yield number, value if isinstance(whole, str) else whole
            if isinstance(whole, str):
                others = enumerate(io.StringIO(rest, newline="\n"), number + 1)
                yield from ((n, _parsed(other)) for n, other in others if other.strip())
            return
        first = False
        yield number, value


def _parsed(text: str) -> Any:
    """The object or list of a JSON text, or the reason why there is none."""
    try:
        value = json.loads(text)
    except RecursionError:
        return "it is nested too deeply"
    except ValueError as e:
        where = f", column {e.colno}" if isinstance(e, json.JSONDecodeError) else ""
        return f"it is not JSON ({getattr(e, 'msg', type(e).__name__)}{where})"
    return value if isinstance(value, (dict, list)) else "it is not a JSON object"


def _runs_of(value: dict[str, Any] | list[Any], name: str) -> Iterator[Trace]:
    """The runs of a JSON value, called ``name`` where they have no id."""
    if isinstance(value, list) and value and all(map(_holds_run, value)):
        for number, each in enumerate(value, 1):
            yield from _runs_of(each, f"{name}/{number}")
    elif (messages := chat_of(value)) is not None:
        about = value if isinstance(value, dict) else {}
        run_id, tools, task = (about.get(key) for key in ("id", "tools", "task"))
        yield Trace(
            id=name if run_id is None or run_id == "" else str(run_id),
            messages=messages,
            tools=tools if isinstance(tools, list) else None,
            task=task if isinstance(task, str) else "",
        )


def _holds_run(value: object) -> bool:
    return isinstance(value, list) or (
        isinstance(value, dict) and "role" not in value and chat_of(value) is not None
    )


@dataclass(slots=True)
class TraceFiles:
    """Iterates over the runs of several files; collects and reports what cannot be used, a sentence a file.

    ``skipped`` lists the lines that hold no run, ``unreadable`` the files that cannot be read (to the end),
    ``unknown`` those without any run; unreadable ones are errors when it is ``strict``. ``calls`` counts the tool
    calls, ``found`` the runs. Raises TraceFileError at the end where no run was read.
    """

    paths: Sequence[str | Path]
    tell: Callable[[str], None]
    strict: bool = False
    skipped: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    calls: int = 0
    found: int = 0

    def __iter__(self) -> Iterator[Trace]:
        count = 0
        for path in self.paths:
            before, skipped = count, len(self.skipped)
            try:
                for trace in read_traces(path):
                    if isinstance(trace, Trace):
                        count += 1
                        self.found += 1
                        self.calls += sum(len(calls_of(m)) for m in trace.messages if is_turn(m))
                        yield trace
                    else:
                        self.skipped.append(str(trace))
            except TraceFileError as e:  # the other files can still be read
                if self.strict:
                    raise
                self.unreadable.append(str(path))
                self.tell(str(e))
            else:
                if count == before and self.skipped[skipped:]:
                    self.unknown.append(str(path))
            if lines := self.skipped[skipped:]:
                others = f", and {len(lines) - 1:,} more lines of it" if len(lines) > 1 else ""
                self.tell(f"skipped {lines[0]}{others}.")
        if not count and (self.skipped or self.unreadable):
            raise TraceFileError(
                f"no run was read from {', '.join(map(str, self.paths))}: a run is a line, or the file, with a list "
                'of messages, or a JSON object that has a list "messages" or "history".'
            )

    def check_calls(self) -> None:
        """Raise TraceFileError where no run that was read has a tool call: there is nothing to measure."""
        if not self.calls:
            read = f"no tool call was read from {', '.join(map(str, self.paths))}"
            if not self.found:
                raise TraceFileError(f"{read}: nothing is in it.")
            raise TraceFileError(
                f"{read}: memory is about what tools return. "
                "Calls are read of chat and Anthropic messages, Claude Code, Codex, Cline, SWE-agent, OpenHands and "
                "Gemini CLI."
            )


def is_turn(message: object) -> bool:
    """Return whether a message is an assistant's. A recorded run has one for each model call."""
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
