"""The part of a stored output that a JSON path, lines or a pattern select, as the API returns it.

Long outputs are processed by a child process: parsing 100 MB of JSON blocks every thread of its process for
seconds.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from memory_bank.errors import InvalidRequestError
from memory_bank.tools.selection import RefusedCall, at_path, lay_out, select_lines, written
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


def part_of(text: str, query: Mapping[str, Any]) -> dict[str, Any]:
    """The part of an output that the query's path, lines, pattern and max_chars select. Raises RefusedCall."""
    chosen, room = at_path(text, query["path"], written), query["max_chars"]
    found, values, rest = chosen.found, None, None
    rows: list[dict[str, Any]] = []
    by_line = query["lines"] is not None or query["pattern"] is not None
    if by_line:
        layout = lay_out(chosen.text, chosen.value)
        selection = select_lines(layout, query["lines"], query["pattern"])
        count, complete, used = layout.count, True, 0
        for n, line, matches in selection:
            used += len(line) + 1
            if used > room and rows:
                complete, rest = False, f"{n}-{selection.last}"
                break
            shown = cut_at_edge(line, room)
            complete = complete and len(shown) == len(line)
            rows.append({"number": n, "text": shown, "matches": matches})
        shown = "\n".join(row["text"] for row in rows)
    else:
        count, shown = 1 if found is None else len(found), cut_at_edge(chosen.text, room)
        complete = len(shown) == len(chosen.text) and (found is None or len(found) <= _MAX_VALUES)
        values = [{"path": f.path, "value": f.value} for f in found] if found and complete else None
    return {
        "text": shown, "values": values, "lines": rows if by_line else None, "count": count, "complete": complete,
        "next": rest,
    }  # fmt: skip


def part_of_long(pieces: Iterable[bytes], query: Mapping[str, Any]) -> dict[str, Any]:
    """As ``part_of``, in a child process. Raises RefusedCall, InvalidRequestError after 120 seconds."""
    command = [sys.executable or "python3", "-c", _START, json.dumps(sys.path), json.dumps(query)]
    output, null = b"".join(pieces), subprocess.DEVNULL
    try:
        done = subprocess.run(
            command, input=output, stdout=subprocess.PIPE, stderr=null, timeout=_SECONDS, check=True
        )
    except subprocess.SubprocessError:
        raise InvalidRequestError(
            f"this output is too long to select from within {_SECONDS:.0f} seconds: get all of it with raw=1."
        ) from None
    result: dict[str, Any] = json.loads(done.stdout)
    if "refused" in result:
        raise RefusedCall(result["refused"])
    return result


def run() -> None:
    """The child process: the query is an argument, the output comes on stdin."""
    text = sys.stdin.buffer.read().decode("utf-8", "surrogatepass")
    try:
        result = part_of(text, json.loads(sys.argv[2]))
    except RefusedCall as e:
        result = {"refused": str(e)}
    sys.stdout.write(json.dumps(result))
