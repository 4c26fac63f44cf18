"""An output as numbered lines, and the search for a pattern in them that cannot hang."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from memory_bank.provenance.places import join_key
from memory_bank.tools.selection import Refused, as_json, parse_exact

LINE_CHARS = 2_000  # longer lines are wrapped: each piece is a line of its own
_WORD_CHARS = 100
_SECONDS = 2.0
_PATTERN_CHARS = 1_000
_PLAIN = re.compile(r"[^*+?{(\\]*(?:\\[^\d][^*+?{(\\]*)*\Z")  # no repeats, no groups: linear by itself
_SPAN = re.compile(r"(?P<start>\d{1,9})\s*(?:(?P<dash>-|:|\.\.)\s*(?P<stop>\d{1,9})?)?\Z")
_LAST = re.compile(r"-\s*(\d{1,9})\Z")
# The search runs in a process of its own: Python's engine can backtrack for years, and holds all threads.
_SEARCH = """
import json, re, sys
pattern, lines = json.load(sys.stdin)
try:
    find = re.compile(pattern).search
    out = [i for i, line in enumerate(lines) if find(line)]
except (re.error, RecursionError, OverflowError, MemoryError) as e:
    out = str(e) or type(e).__name__
json.dump(out, sys.stdout)
"""


@dataclass(frozen=True, slots=True)
class Layout:
    """The lines of an output. ``note`` says in what they differ from its text, if they do."""

    lines: list[str]
    note: str = ""
    by_path: bool = False  # one line a value, each under its path


def lay_out(text: str, value: Any = None) -> Layout:
    """An output's lines: its own, or, for JSON written on few long lines, one a value with its path.

    ``value`` is what the text holds as JSON, None where it is none. Lines over 2,000 characters are wrapped
    between words.
    """
    raw = text.split("\n")
    if isinstance(value, (dict, list)) and (len(raw) == 1 or any(len(r) > LINE_CHARS for r in raw)):
        laid = [piece for line in _values(value, "") for piece in _wrapped(line)]
        return Layout(laid, "the output is JSON on one line; here each value is a line under its path", True)
    lines = [piece for line in raw for piece in _wrapped(line)]
    if len(lines) > len(raw):
        return Layout(lines, f"lines of more than {LINE_CHARS:,} characters are wrapped and count as several")
    return Layout(lines)


def _values(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, str):
        inner = parse_exact(value)
        if inner is None:
            if "\n" in value:
                yield f"{path}:"
                yield from value.split("\n")
            else:
                yield f"{path} = {as_json(value)}"
            return
        value = inner
    if isinstance(value, dict) and value:
        for key, child in value.items():
            yield from _values(child, join_key(path, key))
    elif isinstance(value, list) and value:
        for i, child in enumerate(value):
            yield from _values(child, f"{path}[{i}]")
    else:
        yield f"{path} = {as_json(value)}"


def _wrapped(line: str) -> Iterator[str]:
    at = 0
    while len(line) - at > LINE_CHARS:
        end = at + LINE_CHARS
        for near in range(end, end - _WORD_CHARS, -1):
            if not _joins(line[near - 1], line[near]):
                end = near
                break
        yield line[at:end]
        at = end
    yield line[at:]


def _joins(a: str, b: str) -> bool:
    return (a.isalnum() or a in "_-.@/") and (b.isalnum() or b in "_-.@/")


def chosen_lines(spec: Any, count: int) -> list[int]:
    """The numbers of the lines asked for: ``10-25``, ``7``, ``-20`` (the last 20), several by commas.

    Raises Refused for what is not understood or not there.
    """
    text = str(spec).strip()
    chosen: dict[int, None] = {}
    for part in text.split(","):
        part = part.strip()
        if last := _LAST.match(part):
            chosen.update(dict.fromkeys(range(max(1, count - int(last[1]) + 1), count + 1)))
            continue
        span = _SPAN.match(part)
        if span is None:
            raise Refused(
                f'The lines {json.dumps(text[:60])} are not understood: write "10-25", "7" '
                'or "-20" (the last 20).'
            )
        start = int(span["start"])
        stop = int(span["stop"]) if span["stop"] else count if span["dash"] else start
        chosen.update(dict.fromkeys(range(max(1, start), min(stop, count) + 1)))
    if not chosen:
        raise Refused(f"There are no lines {text[:60]}: the output has {count:,} lines, 1 to {count}.")
    return list(chosen)


def matching_lines(pattern: str, lines: Sequence[str]) -> list[int]:
    """The positions of the lines that a regular expression finds; no pattern can hang this.

    A pattern with repeats or groups is searched by a process of its own that is given two seconds. Raises
    Refused for a pattern that is wrong or too slow.
    """
    if len(pattern) > _PATTERN_CHARS:
        raise Refused(
            f"The pattern has {len(pattern):,} characters, at most {_PATTERN_CHARS:,} are searched for."
        )
    if _PLAIN.match(pattern):
        try:
            find = re.compile(pattern).search
        except re.error as e:
            raise Refused(_wrong(e)) from None
        return [i for i, line in enumerate(lines) if find(line)]
    command = [sys.executable or "python3", "-I", "-S", "-c", _SEARCH]
    request = json.dumps([pattern, list(lines)])
    seconds = _SECONDS + len(request) / 20_000_000  # the time to hand over the text
    try:
        done = subprocess.run(
            command, input=request, capture_output=True, text=True, timeout=seconds, check=True
        )
        found = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        raise Refused(
            f"The pattern takes more than {_SECONDS:.0f} seconds: make it simpler (no repeat within a "
            "repeat, fewer .*), or narrow the text by path or lines."
        ) from None
    except (OSError, subprocess.CalledProcessError, ValueError):
        raise Refused(
            "Patterns with repeats or groups cannot be searched for here: give a plain word."
        ) from None
    if isinstance(found, str):
        raise Refused(_wrong(found))
    return list(found)


def _wrong(error: object) -> str:
    return f"The pattern is no regular expression ({error}): escape special characters with a backslash."
