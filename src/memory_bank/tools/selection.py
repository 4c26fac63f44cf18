"""Parts of a tool's output: JSON paths (``items[3].sku``), numbered lines, and patterns that cannot hang."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import Any

from memory_bank.transcript.jsontext import compact, is_deep, join_key

LINE_CHARS = 2_000
"""Longer lines are wrapped: each piece is a line of its own."""
_KEYS_SHOWN = 30
_WORD_CHARS = 100
_PATTERN_SECONDS = 2.0
_PATTERN_CHARS = 1_000
_STEP = re.compile(
    r"""\.?\[\s*(?P<quoted>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')\s*\]|"""
    r"""\.?\[\s*(?P<slice>-?\d{0,9}\s*:\s*-?\d{0,9})\s*\]|"""
    r"""\.?\[\s*(?P<index>-?\d{1,9})\s*\]|"""
    r"""\.?\[\s*(?P<all>\*)\s*\]|(?:^|\.)(?P<star>\*)(?=[.\[]|\Z)|"""
    r"""(?P<key>(?:^|\.)[^.\[\]]+)"""
)


Step = str | int | slice | EllipsisType
"""One step of a path: a key, an index, a slice, or ``...`` for all."""


class RefusedCall(Exception):
    """A request that cannot be answered; the text is the sentence that says why."""


class NothingFound(RefusedCall):
    """The request was correct, but nothing matches it."""


class ExactFloat(float):
    """A float that keeps its spelling: 19.90 stays 19.90."""

    text: str

    def __new__(cls, text: str) -> ExactFloat:
        """Make a float from its JSON text."""
        new = super().__new__(cls, text)
        new.text = text
        return new


@dataclass(frozen=True, slots=True)
class PathValue:
    """A value and its path."""

    path: str
    value: Any


def parse_exact(text: str) -> Any:
    """The JSON object or list in a text, floats with their spelling; None for any other text."""
    if text[:64].lstrip("\ufeff \t\r\n")[:1] not in ("{", "["):
        return None
    try:
        value = json.loads(text, parse_float=ExactFloat)
    except (ValueError, RecursionError):
        return None
    return None if is_deep(value) else value


def parse_path(path: str) -> list[Step]:
    """Parse a path such as ``items[2:5].sku`` into its steps. Raises RefusedCall."""
    text = path.strip()
    text = text[1:] if text[:1] == "$" and text[1:2] in ("", ".", "[") else text
    steps: list[Step] = []
    at = 0
    while at < len(text):
        match = _STEP.match(text, at)
        if match is None or match.end() == at:
            raise RefusedCall(
                f"The path {_quoted(path)} is not understood from {_quoted(text[at:])} on: write it like "
                'items[3].sku, items[*].sku, items[2:5] or ["odd key"].'
            )
        at = match.end()
        steps.append(_step(match))
    return steps


def _step(match: re.Match[str]) -> Step:
    if (quoted := match["quoted"]) is not None:
        if quoted[0] == "'":
            return re.sub(r"\\(.)", r"\1", quoted[1:-1])
        try:
            return str(json.loads(quoted, strict=False))
        except ValueError:
            return quoted[1:-1]
    if match["slice"] is not None:
        start, stop = (int(p) if p.strip() else None for p in match["slice"].split(":"))
        return slice(start, stop)
    if match["index"] is not None:
        return int(match["index"])
    if match["key"] is not None:
        return match["key"].removeprefix(".").strip()
    return ...


def select(value: Any, path: str) -> list[PathValue]:
    """Return the values at a path, each with its own path; JSON inside strings is parsed.

    ``[*]`` and slices skip items that lack the rest of the path. Raises RefusedCall, which names what exists
    there, if nothing is found.
    """
    found = [PathValue("", value)]
    many = False
    for step in parse_path(path):
        found = [PathValue(f.path, _opened(f.value)) for f in found]
        next_: list[PathValue] = []
        for f in found:
            next_ += _children(f, step)
        if not next_:
            raise RefusedCall(_missing(path, step, found[0], len(found), many))
        many = many or isinstance(step, slice) or step is ...
        found = next_
    return found


def _opened(value: Any) -> Any:
    if isinstance(value, str) and (inner := parse_exact(value)) is not None:
        return inner
    return value


def _children(f: PathValue, step: Step) -> list[PathValue]:
    value = f.value
    if isinstance(value, dict):
        if step is ...:
            return [PathValue(join_key(f.path, k), v) for k, v in value.items()]
        key = str(step) if isinstance(step, int) else step
        return [PathValue(join_key(f.path, key), value[key])] if isinstance(key, str) and key in value else []
    if isinstance(value, list):
        if isinstance(step, str) and re.fullmatch(r"\d{1,9}", step):
            step = int(step)
        if isinstance(step, int):
            at = step if step >= 0 else len(value) + step
            return [PathValue(f"{f.path}[{at}]", value[at])] if 0 <= at < len(value) else []
        if step is ... or isinstance(step, slice):
            chosen = range(len(value))[step] if isinstance(step, slice) else range(len(value))
            return [PathValue(f"{f.path}[{i}]", value[i]) for i in chosen]
    return []


def _missing(path: str, step: Step, first: PathValue, places: int, many: bool) -> str:
    where = first.path or "the top"
    head = f"The path {_quoted(path)} finds nothing: "
    value = first.value
    if isinstance(value, dict):
        keys = ", ".join(_quoted(k) for k in list(value)[:_KEYS_SHOWN])
        more = f" and {len(value) - _KEYS_SHOWN:,} more" if len(value) > _KEYS_SHOWN else ""
        others = f" (and in {places - 1:,} others)" if many and places > 1 else ""
        return f"{head}at {where}{others} there is an object with " + (
            f"the keys {keys}{more}." if keys else "no keys."
        )
    if isinstance(value, list):
        hint = (
            f"; name an item, {where if first.path else ''}[0] or [*]"
            if isinstance(step, str) and value
            else ""
        )
        span = f"a list of {len(value):,} items, [0] to [{len(value) - 1}]" if value else "an empty list"
        return f"{head}at {where} there is {span}{hint}."
    what = "a text that is not JSON" if isinstance(value, str) else "a single value"
    return f"{head}at {where} there is {what}."


def _quoted(text: str) -> str:
    return compact(text if len(text) <= 80 else f"{text[:79]}…")


def written(value: Any) -> str:
    """A value as text: strings as they are, anything else as JSON with numbers as they were written."""
    return value if isinstance(value, str) else as_json(value)


def as_json(value: Any, indent: str = "") -> str:
    """JSON text; an object or list that fits into 100 characters is on one line."""
    if isinstance(value, ExactFloat):
        return value.text
    if not isinstance(value, (dict, list)) or not value:
        return compact(value)
    inner = indent + "  "
    if isinstance(value, dict):
        parts = [f"{compact(k)}: {as_json(v, inner)}" for k, v in value.items()]
        left, right = "{}"
    else:
        parts = [as_json(v, inner) for v in value]
        left, right = "[]"
    flat = f"{left}{', '.join(parts)}{right}"
    if len(flat) <= 100 and "\n" not in flat:
        return flat
    return f"{left}\n{inner}" + f",\n{inner}".join(parts) + f"\n{indent}{right}"


@dataclass(frozen=True, slots=True)
class PathSelection:
    """What a path selects: its text, the JSON value of that text (if any), and the values found.

    ``found`` is None without a path, and ``single`` says that the path names exactly one value.
    """

    text: str
    value: Any
    found: list[PathValue] | None = None
    single: bool = False


def at_path(text: str, path: str | None, write: Callable[[Any], str]) -> PathSelection:
    """Apply a path to an output; None, "" and ``$`` select all of it. ``write`` renders several values.

    Raises RefusedCall if the output is not JSON or has nothing at the path.
    """
    value = parse_exact(text)
    if path is None or path.strip() in ("", "$"):
        return PathSelection(text, value)
    if value is None:
        raise RefusedCall(
            "The output is no JSON object or list, so it has no paths: it has "
            f"{text.count(chr(10)) + 1:,} lines; select by lines or pattern."
        )
    found = select(value, path)
    if len(found) == 1 and "*" not in path and ":" not in path:
        shown = written(found[0].value)
        return PathSelection(shown, parse_exact(shown), found, True)
    return PathSelection("\n".join(f"{f.path} = {write(f.value)}" for f in found), None, found)


# lines and patterns

_PLAIN = re.compile(r"[^*+?{(\\]*(?:\\[^\d][^*+?{(\\]*)*\Z")  # no repeats, no groups: linear by itself
_SPAN = re.compile(r"(?P<start>\d{1,9})\s*(?:(?P<dash>-|:|\.\.)\s*(?P<stop>\d{1,9})?)?\Z")
_LAST = re.compile(r"-\s*(\d{1,9})\Z")
# The search runs in its own process: Python's engine may backtrack for years and hold the interpreter lock.
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
    """The lines of an output. ``note`` says how they differ from its text, if they do.

    ``by_path``: one line per JSON value, each with its path.
    """

    lines: list[str]
    note: str = ""
    by_path: bool = False


def lay_out(text: str, value: Any = None) -> Layout:
    """Split an output into lines: its own, or one per value with its path if it is JSON on long lines.

    ``value`` is the JSON value of the text, if any. Lines over 2,000 characters are wrapped between words.
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


def chosen_lines(spec: object, count: int) -> list[int]:
    """Return the line numbers of ``10-25``, ``7``, ``-20`` (the last 20), or several of these with commas.

    Raises RefusedCall for a wrong specification and if no such line exists.
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
            raise RefusedCall(
                f'The lines {json.dumps(text[:60])} are not understood: write "10-25", "7" '
                'or "-20" (the last 20).'
            )
        start = int(span["start"])
        stop = int(span["stop"]) if span["stop"] else count if span["dash"] else start
        chosen.update(dict.fromkeys(range(max(1, start), min(stop, count) + 1)))
    if not chosen:
        raise RefusedCall(f"There are no lines {text[:60]}: the output has {count:,} lines, 1 to {count}.")
    return list(chosen)


def matching_lines(pattern: str, lines: Sequence[str]) -> list[int]:
    """Return the positions of the lines that match a regular expression, in bounded time.

    A pattern with repeats or groups runs in its own process for at most two seconds. Raises RefusedCall for
    an invalid or slow pattern.
    """
    if len(pattern) > _PATTERN_CHARS:
        raise RefusedCall(
            f"The pattern has {len(pattern):,} characters, at most {_PATTERN_CHARS:,} are searched for."
        )
    if _PLAIN.match(pattern):
        try:
            find = re.compile(pattern).search
        except re.error as e:
            raise RefusedCall(_invalid_pattern(e)) from None
        return [i for i, line in enumerate(lines) if find(line)]
    command = [sys.executable or "python3", "-I", "-S", "-c", _SEARCH]
    request = json.dumps([pattern, list(lines)])
    seconds = _PATTERN_SECONDS + len(request) / 20_000_000  # the time to hand over the text
    try:
        done = subprocess.run(
            command, input=request, capture_output=True, text=True, timeout=seconds, check=True
        )
        found = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        raise RefusedCall(
            f"The pattern takes more than {_PATTERN_SECONDS:.0f} seconds: make it simpler (no repeat within "
            "a repeat, fewer .*), or narrow the text by path or lines."
        ) from None
    except (OSError, subprocess.CalledProcessError, ValueError):
        raise RefusedCall(
            "Patterns with repeats or groups cannot be searched for here: give a plain word."
        ) from None
    if isinstance(found, str):
        raise RefusedCall(_invalid_pattern(found))
    return list(found)


def _invalid_pattern(error: object) -> str:
    return f"The pattern is no regular expression ({error}): escape special characters with a backslash."


@dataclass(frozen=True, slots=True)
class LineSelection:
    """Numbers of the selected lines, from 1. ``hits`` are those that match, others are next to one."""

    numbers: list[int]
    hits: set[int]


def select_lines(layout: Layout, lines: object, pattern: str | None) -> LineSelection:
    """Select lines by a specification, a pattern, or both. A match brings one line around it.

    Raises RefusedCall; a pattern without a match selects nothing.
    """
    count = len(layout.lines)
    numbers = chosen_lines(lines, count) if lines is not None else list(range(1, count + 1))
    if pattern is None:
        return LineSelection(numbers, set(numbers))
    hits = {numbers[i] for i in matching_lines(pattern, [layout.lines[n - 1] for n in numbers])}
    within = set(numbers)
    return LineSelection(sorted({m for n in hits for m in (n - 1, n, n + 1) if m in within}), hits)
