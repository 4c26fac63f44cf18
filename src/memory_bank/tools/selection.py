"""Parts of a tool's output: JSON paths (``items[3].sku``), numbered lines, and patterns that cannot hang."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from types import EllipsisType
from typing import Any

from memory_bank.transcript.jsontext import compact, is_deep, join_index, join_key, leaves
from memory_bank.transcript.shortening import joins

LINE_CHARS = 2_000
"""Longer lines are wrapped: each piece is a line of its own."""
MAX_VALUES = 200_000
"""Values that a path may find."""
MAX_LINES = 500_000
"""Values of an output on one line that are laid out as lines."""
MAX_HITS = 100_000
"""Matching lines that are counted."""
_KEYS_SHOWN = 30
_WORD_CHARS = 100
_INDENTED = 20  # levels of JSON that are indented
_PATTERN_SECONDS = 2.0
_SHORT_SEARCH = 20_000_000  # characters of pattern × text that are searched in this process
# Repeats are possessive (``*+``): no character is tried twice, so that parsing a path is linear.
_STEP = re.compile(
    r"""\.?\[\s*+(?P<quoted>"(?:[^"\\]|\\.)*+"|'(?:[^'\\]|\\.)*+')\s*+\]|"""
    r"""\.?\[\s*+(?P<slice>-?\d{0,9}+\s*+:\s*+-?\d{0,9}+)\s*+\]|"""
    r"""\.?\[\s*+(?P<index>-?\d{1,9}+)\s*+\]|"""
    r"""\.?\[\s*+(?P<all>\*)\s*+\]|(?:^|\.)(?P<star>\*)(?=[.\[]|\Z)|"""
    r"""(?P<key>(?:^|\.)[^.\[\]]++)"""
)


Step = str | int | slice | EllipsisType
"""One step of a path: a key, an index, a slice, or ``...`` for all."""


class RefusedCall(Exception):
    """A request that cannot be answered; the text says why.

    ``sentence`` is ours, ``quoted`` what the output has instead: text of a tool, which an agent gets fenced.
    """

    def __init__(self, sentence: str, quoted: str = "") -> None:
        super().__init__(f"{sentence} {quoted}" if quoted else sentence)
        self.sentence = sentence
        self.quoted = quoted


class NothingFound(RefusedCall):
    """The request was correct, but nothing matches it."""


class ExactFloat(float):
    """A float that keeps its spelling: 19.90 stays 19.90."""

    __slots__ = ("text",)
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
                f"The path {quoted(path)} is not understood from {quoted(text[at:])} on: write it like "
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
            next_ += islice(_children(f, step), MAX_VALUES + 1 - len(next_))
        if len(next_) > MAX_VALUES:
            raise RefusedCall(
                f"The path {quoted(path)} finds more than {MAX_VALUES:,} values: select fewer, for example "
                "by a slice such as [0:1000]."
            )
        if not next_:
            raise RefusedCall(
                f"The path {quoted(path)} finds nothing.", _missing(step, found[0], len(found), many)
            )
        many = many or isinstance(step, slice) or step is ...
        found = next_
    return found


def _opened(value: Any) -> Any:
    if isinstance(value, str) and (inner := parse_exact(value)) is not None:
        return inner
    return value


def _children(f: PathValue, step: Step) -> Iterator[PathValue]:
    value = f.value
    if isinstance(value, dict):
        if step is ...:
            for k, v in value.items():
                yield PathValue(join_key(f.path, k), v)
            return
        key = str(step) if isinstance(step, int) else step
        if isinstance(key, str) and key in value:
            yield PathValue(join_key(f.path, key), value[key])
    elif isinstance(value, list):
        if isinstance(step, str) and re.fullmatch(r"\d{1,9}", step):
            step = int(step)
        if isinstance(step, int):
            at = step if step >= 0 else len(value) + step
            if 0 <= at < len(value):
                yield PathValue(join_index(f.path, at), value[at])
        elif step is ... or isinstance(step, slice):
            for i in range(len(value))[step] if isinstance(step, slice) else range(len(value)):
                yield PathValue(join_index(f.path, i), value[i])


def _missing(step: Step, first: PathValue, places: int, many: bool) -> str:
    """What there is where a step finds nothing."""
    where = first.path or "the top"
    value = first.value
    if isinstance(value, dict):
        keys = ", ".join(quoted(k) for k in islice(value, _KEYS_SHOWN))
        more = f" and {len(value) - _KEYS_SHOWN:,} more" if len(value) > _KEYS_SHOWN else ""
        others = f" (and in {places - 1:,} others)" if many and places > 1 else ""
        return f"At {where}{others} there is an object with " + (
            f"the keys {keys}{more}." if keys else "no keys."
        )
    if isinstance(value, list):
        hint = (
            f"; name an item, {where if first.path else ''}[0] or [*]"
            if isinstance(step, str) and value
            else ""
        )
        span = f"a list of {len(value):,} items, [0] to [{len(value) - 1}]" if value else "an empty list"
        return f"At {where} there is {span}{hint}."
    what = "a text that is not JSON" if isinstance(value, str) else "a single value"
    return f"At {where} there is {what}."


def quoted(text: str) -> str:
    """A text as JSON, cut after 80 characters."""
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
    inner = indent + "  " if len(indent) < 2 * _INDENTED else indent
    if isinstance(value, dict):
        parts = [f"{compact(k)}: {as_json(v, inner)}" for k, v in value.items()]
        left, right = "{}"
    else:
        parts = [as_json(v, inner) for v in value]
        left, right = "[]"
    if len(parts) <= 50 and sum(map(len, parts)) <= 100:
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

_PLAIN = re.compile(r"[^*+?{(\\]*+(?:\\[^\d][^*+?{(\\]*+)*+\Z")  # no repeats, no groups
_TOO_LONG = re.compile(rf"[^\n]{{{LINE_CHARS + 1}}}")
_SPAN = re.compile(r"(?P<start>\d{1,9}+)\s*+(?:(?P<dash>-|:|\.\.)\s*+(?P<stop>\d{1,9}+)?)?\Z")
_LAST = re.compile(r"-\s*+(\d{1,9}+)\Z")
# The search runs in its own process: Python's engine may backtrack for years and hold the interpreter lock.
_SEARCH = """
import json, re, sys
pattern, most = json.loads(sys.stdin.buffer.readline())
lines = sys.stdin.buffer.read().decode("utf-8", "surrogatepass").split("\\n")
try:
    find = re.compile(pattern).search
    out = []
    for i, line in enumerate(lines):
        if find(line):
            out.append(i)
            if len(out) == most:
                break
except (re.error, RecursionError, OverflowError, MemoryError) as e:
    out = str(e) or type(e).__name__
json.dump(out, sys.stdout)
"""


@dataclass(frozen=True, slots=True)
class Layout:
    """The lines of an output, made while they are iterated over.

    ``note`` says how they differ from its text, if they do. ``by_path``: one line per JSON value, each with
    its path.
    """

    make: Callable[[], Iterator[str]] = field(repr=False)
    count: int
    note: str = ""
    by_path: bool = False

    def __iter__(self) -> Iterator[str]:
        return self.make()

    def numbered(self, ranges: Iterable[range]) -> Iterator[tuple[int, str]]:
        """The lines of these ranges (ascending and disjoint) with their numbers, from 1."""
        lines, at = self.make(), 1
        for wanted in ranges:
            yield from enumerate(islice(lines, wanted.start - at, wanted.stop - at), wanted.start)
            at = wanted.stop


def lay_out(text: str, value: Any = None) -> Layout:
    """Split an output into lines: its own, or one per value with its path if it is JSON on long lines.

    ``value`` is the JSON value of the text, if any. Lines over 2,000 characters are wrapped between words.
    Time and memory are linear in the size of the output.
    """
    long = _TOO_LONG.search(text) is not None
    if isinstance(value, (dict, list)) and (long or "\n" not in text):

        def values() -> Iterator[str]:
            return islice((piece for line in _values(value) for piece in _wrapped(line)), MAX_LINES)

        count = sum(1 for _ in values())
        note = "the output is JSON on one line; here each value is a line under its path"
        if count == MAX_LINES:
            note += f"; laid out are the first {MAX_LINES:,}, the rest by path="
        return Layout(values, count, note, True)
    if long:

        def wrapped() -> Iterator[str]:
            return (piece for line in _lines(text) for piece in _wrapped(line))

        note = f"lines of more than {LINE_CHARS:,} characters are wrapped and count as several"
        return Layout(wrapped, sum(1 for _ in wrapped()), note)
    return Layout(lambda: _lines(text), text.count("\n") + 1)


def _lines(text: str) -> Iterator[str]:
    at = 0
    while (end := text.find("\n", at)) >= 0:
        yield text[at:end]
        at = end + 1
    yield text[at:]


def _values(value: Any) -> Iterator[str]:
    """A line for each scalar and empty container, with its path."""
    for leaf in leaves(value, opened=parse_exact, with_empty=True):
        if isinstance(leaf.value, str) and "\n" in leaf.value:
            yield f"{leaf.path}:"
            yield from _lines(leaf.value)
        else:
            yield f"{leaf.path} = {as_json(leaf.value)}"


def _wrapped(line: str) -> Iterator[str]:
    at = 0
    while len(line) - at > LINE_CHARS:
        end = at + LINE_CHARS
        for near in range(end, end - _WORD_CHARS, -1):
            if not joins(line, near):
                end = near
                break
        yield line[at:end]
        at = end
    yield line[at:]


def chosen_lines(spec: object, count: int) -> list[range]:
    """Return the lines of ``10-25``, ``7``, ``-20`` (the last 20), or several of these with commas.

    The ranges are ascending and disjoint. Raises RefusedCall for a wrong specification and if no such line
    exists.
    """
    text = str(spec).strip()
    spans: list[tuple[int, int]] = []
    for part in text.split(","):
        part = part.strip()
        if last := _LAST.match(part):
            spans.append((max(1, count - int(last[1]) + 1), count + 1))
            continue
        span = _SPAN.match(part)
        if span is None:
            raise RefusedCall(
                f'The lines {json.dumps(text[:60])} are not understood: write "10-25", "7" '
                'or "-20" (the last 20).'
            )
        start = int(span["start"])
        stop = int(span["stop"]) if span["stop"] else count if span["dash"] else start
        spans.append((max(1, start), min(stop, count) + 1))
    chosen = _merged(spans)
    if not chosen:
        raise RefusedCall(f"There are no lines {text[:60]}: the output has {count:,} lines, 1 to {count}.")
    return chosen


def _merged(spans: Iterable[tuple[int, int]]) -> list[range]:
    """The spans as ascending, disjoint ranges; empty ones are left out."""
    merged: list[range] = []
    for start, stop in sorted(spans):
        if start >= stop:
            continue
        if merged and start <= merged[-1].stop:
            merged[-1] = range(merged[-1].start, max(merged[-1].stop, stop))
        else:
            merged.append(range(start, stop))
    return merged


def matching_lines(pattern: str, lines: Iterable[str], chars: int) -> list[int]:
    """Return the positions of the lines that match a regular expression, in bounded time.

    ``chars``: about the length of all lines. A pattern with repeats or groups, and a long search, runs in its
    own process for at most two seconds. At most ``MAX_HITS`` lines are found. Raises RefusedCall for an
    invalid or slow pattern.
    """
    try:
        find = re.compile(pattern).search
    except (re.error, RecursionError, OverflowError) as e:
        raise RefusedCall(_invalid_pattern(e)) from None
    if _PLAIN.match(pattern) and len(pattern) * chars <= _SHORT_SEARCH:
        return list(islice((i for i, line in enumerate(lines) if find(line)), MAX_HITS))
    command = [sys.executable or "python3", "-I", "-S", "-c", _SEARCH]
    request = io.BytesIO()
    request.write(json.dumps([pattern, MAX_HITS]).encode())
    for line in lines:
        request.write(b"\n" + line.encode("utf-8", "surrogatepass"))
    seconds = _PATTERN_SECONDS + request.tell() / 20_000_000  # the time to hand over the text
    try:
        done = subprocess.run(
            command, input=request.getbuffer(), capture_output=True, timeout=seconds, check=True
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
    """Selected lines. ``hits``: the numbers of those that match a pattern, others are next to one."""

    layout: Layout
    ranges: list[range]
    hits: frozenset[int] | None = None

    @property
    def last(self) -> int:
        """The number of the last selected line."""
        return self.ranges[-1][-1]

    def __iter__(self) -> Iterator[tuple[int, str, bool]]:
        """Number and text of each line, and whether it matches (True without a pattern)."""
        for number, line in self.layout.numbered(self.ranges):
            yield number, line, self.hits is None or number in self.hits


def select_lines(layout: Layout, lines: object, pattern: str | None, chars: int) -> LineSelection:
    """Select lines by a specification, a pattern, or both. A match brings one line around it.

    ``chars``: the length of the text. Raises RefusedCall; a pattern without a match selects nothing.
    """
    within = chosen_lines(lines, layout.count) if lines is not None else [range(1, layout.count + 1)]
    if pattern is None:
        return LineSelection(layout, within)
    texts = (line for _, line in layout.numbered(within))
    found = matching_lines(pattern, texts, chars)
    hits, before, spans = [], 0, iter(within)
    span = next(spans)
    around: list[tuple[int, int]] = []
    for position in found:
        while position - before >= len(span):
            before += len(span)
            span = next(spans)
        number = span.start + position - before
        hits.append(number)
        around.append((max(span.start, number - 1), min(span.stop, number + 2)))
    return LineSelection(layout, _merged(around), frozenset(hits))
