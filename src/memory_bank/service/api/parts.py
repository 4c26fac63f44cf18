"""A part of a stored output: what a JSON path, lines or a pattern select, with its places.

A long output is taken apart by a process of its own: parsing 100 MB of JSON holds up all threads of the one
that does it, for seconds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterable
from typing import Any

from memory_bank.errors import InvalidRequestError
from memory_bank.tools.lines import chosen_lines, lay_out, matching_lines
from memory_bank.tools.selection import Refused, parse_exact, select, written
from memory_bank.transcript.shortening import cut_at_edge

LONG = 2**20
"""Bytes of an output from which on a process of its own takes it apart."""
_SECONDS = 120.0
_VALUES = 10_000  # values listed by their paths
_START = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from memory_bank.service.api.parts import run
run()
"""

Asked = dict[str, Any]


def part_of(text: str, asked: Asked) -> dict[str, Any]:
    """The part of an output that ``path``, ``lines`` and ``pattern`` select, at most ``max_chars`` long.

    ``text`` is the part as text; ``values`` what a path found (None without one), ``lines`` what lines and
    pattern did. ``count`` is how many values or lines there are in all; ``complete`` whether all that was
    asked for is here, ``next`` the lines to go on with where it is not. Raises Refused.
    """
    path, lines, pattern = asked.get("path"), asked.get("lines"), asked.get("pattern")
    room = int(asked["max_chars"])
    value = parse_exact(text)
    found = None
    if path is not None and path.strip() not in ("", "$"):
        if value is None:
            raise Refused(
                "The output is no JSON object or list, so it has no paths: select by lines or pattern."
            )
        found = select(value, path)
        single = len(found) == 1 and "*" not in path and ":" not in path
        text = (
            written(found[0].value) if single else "\n".join(f"{f.path} = {written(f.value)}" for f in found)
        )
        value = parse_exact(text) if single else None
    if lines is None and pattern is None:
        shown = cut_at_edge(text, room)
        complete = len(shown) == len(text) and (found is None or len(found) <= _VALUES)
        values = [{"path": f.path, "value": f.value} for f in found[:_VALUES]] if found and complete else None
        count = 1 if found is None else len(found)
        return {
            "text": shown,
            "values": values,
            "lines": None,
            "count": count,
            "complete": complete,
            "next": None,
        }
    return _lines_of(text, value, lines, pattern, room)


def _lines_of(text: str, value: Any, lines: str | None, pattern: str | None, room: int) -> dict[str, Any]:
    layout = lay_out(text, value)
    count = len(layout.lines)
    numbers = chosen_lines(lines, count) if lines is not None else list(range(1, count + 1))
    hits = set(numbers)
    if pattern is not None:
        found = matching_lines(pattern, [layout.lines[n - 1] for n in numbers])
        hits = {numbers[i] for i in found}
        within = set(numbers)
        numbers = sorted({m for n in hits for m in (n - 1, n, n + 1) if m in within})
    rows: list[dict[str, Any]] = []
    used, left = 0, None
    for n in numbers:
        line = layout.lines[n - 1]
        used += len(line) + 1
        if used > room and rows:
            left = f"{n}-{numbers[-1]}"
            break
        rows.append({"number": n, "text": cut_at_edge(line, room), "matches": n in hits})
    whole = left is None and all(len(layout.lines[r["number"] - 1]) == len(r["text"]) for r in rows)
    return {
        "text": "\n".join(r["text"] for r in rows), "values": None, "lines": rows, "count": count,
        "complete": whole, "next": left,
    }  # fmt: skip


def part_of_long(pieces: Iterable[bytes], asked: Asked) -> dict[str, Any]:
    """As ``part_of``, of an output given in pieces, by a process of its own.

    Raises Refused, InvalidRequestError, and what reading the pieces raises.
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
                process.stdin.write(json.dumps(asked).encode() + b"\n")
                for piece in pieces:
                    process.stdin.write(piece)
                process.stdin.close()
            except BrokenPipeError:
                pass  # it has ended: what it says tells why
            answer = process.stdout.read()
        except BaseException:
            process.kill()
            raise
        finally:
            clock.cancel()
    if process.returncode != 0:
        raise InvalidRequestError(
            f"the output is too long to be taken apart here within {_SECONDS:.0f} seconds: get it with raw=1."
        )
    told = json.loads(answer)
    if "refused" in told:
        raise Refused(told["refused"])
    part: dict[str, Any] = told["part"]
    return part


def run() -> None:
    """What the process does: the request on the first line of stdin, the output after it."""
    asked = json.loads(sys.stdin.buffer.readline())
    text = sys.stdin.buffer.read().decode("utf-8", "surrogatepass")
    try:
        told: dict[str, Any] = {"part": part_of(text, asked)}
    except Refused as e:
        told = {"refused": str(e)}
    sys.stdout.write(json.dumps(told))
