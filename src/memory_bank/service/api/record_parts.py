"""The part of a stored output that a JSON path, lines or a pattern select, as the API returns it.

Long outputs are processed by a child process: parsing 100 MB of JSON blocks every thread of its process for
seconds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterable
from typing import Any, TypedDict

from memory_bank.errors import InvalidRequestError
from memory_bank.tools.selection import PathSelection, RefusedCall, at_path, lay_out, select_lines, written
from memory_bank.transcript.shortening import cut_at_edge

LONG_OUTPUT = 2**20
"""Bytes of an output above which a child process selects the part."""
_SECONDS = 120.0
_MAX_VALUES = 10_000  # values that are listed with their paths
_START = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from memory_bank.service.api.record_parts import run
run()
"""


class PartQuery(TypedDict):
    """What is selected, and the longest text that is returned."""

    path: str | None
    lines: str | None
    pattern: str | None
    max_chars: int


class RecordPart(TypedDict):
    """The selected part, in the shape of the API's model ``Part`` without ``trace_id``."""

    text: str
    values: list[dict[str, Any]] | None
    lines: list[dict[str, Any]] | None
    count: int
    complete: bool
    next: str | None


def part_of(text: str, query: PartQuery) -> RecordPart:
    """Select a part of an output. Raises RefusedCall."""
    chosen = at_path(text, query["path"], written)
    if query["lines"] is not None or query["pattern"] is not None:
        return _lines_of(chosen, query)
    shown = cut_at_edge(chosen.text, query["max_chars"])
    found = chosen.found
    complete = len(shown) == len(chosen.text) and (found is None or len(found) <= _MAX_VALUES)
    return {
        "text": shown,
        "values": [{"path": f.path, "value": f.value} for f in found] if found and complete else None,
        "lines": None,
        "count": 1 if found is None else len(found),
        "complete": complete,
        "next": None,
    }


def _lines_of(chosen: PathSelection, query: PartQuery) -> RecordPart:
    room = query["max_chars"]
    layout = lay_out(chosen.text, chosen.value)
    selection = select_lines(layout, query["lines"], query["pattern"])
    rows: list[dict[str, Any]] = []
    used, rest = 0, None
    complete = True
    for n, line, matches in selection:
        used += len(line) + 1
        if used > room and rows:
            rest = f"{n}-{selection.last}"
            break
        shown = cut_at_edge(line, room)
        complete = complete and len(shown) == len(line)
        rows.append({"number": n, "text": shown, "matches": matches})
    return {
        "text": "\n".join(row["text"] for row in rows),
        "values": None,
        "lines": rows,
        "count": layout.count,
        "complete": complete and rest is None,
        "next": rest,
    }


def part_of_long(pieces: Iterable[bytes], query: PartQuery) -> RecordPart:
    """As ``part_of``, for an output given in pieces, in a child process.

    Raises RefusedCall, InvalidRequestError after 120 seconds, and what reading the pieces raises.
    """
    command = [sys.executable or "python3", "-c", _START, json.dumps(sys.path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as process:
        clock = threading.Timer(_SECONDS, process.kill)
        clock.start()
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(json.dumps(query).encode() + b"\n")
                for piece in pieces:
                    process.stdin.write(piece)
                process.stdin.close()
            except BrokenPipeError:
                pass  # the child has ended; its answer says why
            answer = process.stdout.read()
        except BaseException:
            process.kill()
            raise
        finally:
            clock.cancel()
    if process.returncode != 0:
        raise InvalidRequestError(
            f"this output is too long to select from within {_SECONDS:.0f} seconds: get all of it with raw=1."
        )
    result: dict[str, Any] = json.loads(answer)
    if "refused" in result:
        raise RefusedCall(result["refused"])
    part: RecordPart = result["part"]
    return part


def run() -> None:
    """The child process: reads the query from the first line of stdin and the output from the rest."""
    query: PartQuery = json.loads(sys.stdin.buffer.readline())
    text = sys.stdin.buffer.read().decode("utf-8", "surrogatepass")
    try:
        result: dict[str, Any] = {"part": part_of(text, query)}
    except RefusedCall as e:
        result = {"refused": str(e)}
    sys.stdout.write(json.dumps(result))
