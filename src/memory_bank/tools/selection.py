"""Parts of a tool's output: JSON paths (``items[3].sku``), numbered lines, and patterns that cannot hang."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from types import EllipsisType
from typing import Any, NamedTuple

from memory_bank.transcript.framing import content_of, framed_member
from memory_bank.transcript.jsontext import compact, complete_json, is_deep, join_key, leaves
from memory_bank.transcript.shortening import joins

LINE_CHARS = 2_000
"""Longer lines are wrapped: each piece is a line of its own."""
MAX_VALUES = 200_000
"""Values that a path may find."""
MAX_LINES = 500_000
"""Values of an output on one line that are laid out as lines."""
MAX_HITS = 100_000
"""Matching lines that are counted."""
# Repeats are possessive (``*+``): no character is tried twice, so that parsing a path is linear.
_STEP = re.compile(
    r"""\.?\[\s*+(?P<quoted>"(?:[^"\\]|\\.)*+"|'(?:[^'\\]|\\.)*+')\s*+\]|"""
    r"""\.?\[\s*+(?P<slice>-?\d{0,9}+\s*+:\s*+-?\d{0,9}+)\s*+\]|"""
    r"""\.?\[\s*+(?P<index>-?\d{1,9}+)\s*+\]|"""
    r"""\.?\[\s*+(?P<all>\*)\s*+\]|(?:^|\.)(?P<star>\*)(?=[.\[]|\Z)|"""
    r"""(?P<key>(?:^|\.)[^.\[\]]++)"""
)


_JSON = re.compile(r"(?:^|(?<=[\s:=>(`]))[\[{](?=\s{0,400}[\[{\"\]}\d\-tfn])", re.MULTILINE)
_MOST_TRIED = 20  # values beside one another that a path is tried in
_MOST_FAILED = 60  # places in a text that look like JSON and are none, after which it is read no further

Step = str | int | slice | EllipsisType
"""One step of a path: a key, an index, a slice, or ``...`` for all."""


class RefusedCall(Exception):
    """A request that cannot be answered; ``sentence`` is ours, ``quoted`` a tool's text, which is fenced."""

    def __init__(self, sentence: str, quoted: str = "") -> None:
        super().__init__(f"{sentence} {quoted}" if quoted else sentence)
        self.sentence = sentence
        self.quoted = quoted


class NothingFound(RefusedCall):
    """The request was correct, but nothing matches it."""


class ExactFloat(float):
    """A float that keeps its spelling: 19.90 stays 19.90."""

    def __init__(self, text: str) -> None:
        self.text = text


class PathValue(NamedTuple):
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


def _json_values(text: str) -> Iterator[Any]:
    """The JSON values that a text is or holds, the outermost first: between other words, in a frame's member.

    Of several values between other words the list is one, too.
    """
    value = parse_exact(text)
    if value is None and text[:64].lstrip()[:1] in ("{", "[") and (cut := complete_json(text)):
        value = parse_exact(cut[0])
    values = [*islice(_json_between(text), MAX_LINES)] if value is None else [value]
    value = values[0] if len(values) == 1 else values or None
    while isinstance(value, (dict, list)):
        yield value
        value = framed_member(value)
    if isinstance(value, str):
        yield from _json_values(value)


def _json_between(text: str) -> Iterator[Any]:
    """The JSON objects and lists among the words of a text, in their order. Linear: what fails is bounded."""
    decoder, at, failed, lost = json.JSONDecoder(parse_float=ExactFloat), 0, 0, 0
    while failed < _MOST_FAILED and (opened := _JSON.search(text, at)):
        at = opened.end()
        try:
            value, at = decoder.raw_decode(text, opened.start())
        except (ValueError, RecursionError) as e:
            failed += 1
            lost += getattr(e, "pos", at) - opened.start()
            if lost > 2 * len(text):
                return
            continue
        if not is_deep(value):
            yield value


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
        step: Step
        if (key := match["quoted"]) is not None:
            try:
                step = re.sub(r"\\(.)", r"\1", key[1:-1]) if key[0] == "'" else json.loads(key, strict=False)
            except ValueError:
                step = key[1:-1]
        elif match["slice"] is not None:
            step = slice(*(int(p) if p.strip() else None for p in match["slice"].split(":")))
        elif match["index"] is not None:
            step = int(match["index"])
        else:
            step = ... if match["key"] is None else match["key"].removeprefix(".").strip()
        steps.append(step)
    return steps


def select(value: Any, path: str) -> list[PathValue]:
    """Return the values at a path, each with its own path; JSON inside strings is parsed.

    ``[*]`` and slices skip items that lack the rest of the path. Raises RefusedCall, which names what exists
    there, if nothing is found.
    """
    hits = [PathValue("", value)]
    many = False
    for step in parse_path(path):
        opened = ((f, next(_json_values(f.value), None) if isinstance(f.value, str) else None) for f in hits)
        hits = [f if inner is None else PathValue(f.path, inner) for f, inner in opened]
        next_: list[PathValue] = []
        for f in hits:
            next_ += islice(_children(f, step), MAX_VALUES + 1 - len(next_))
        if len(next_) > MAX_VALUES:
            raise RefusedCall(
                f"The path {quoted(path)} finds more than {MAX_VALUES:,} values: select fewer, for example "
                "by a slice such as [0:1000]."
            )
        if not next_:
            missing = _missing(step, hits[0], len(hits), many)
            raise RefusedCall(f"The path {quoted(path)} finds nothing.", missing)
        many = many or isinstance(step, slice) or step is ...
        hits = next_
    return hits


def _children(f: PathValue, step: Step) -> Iterator[PathValue]:
    value = f.value
    if isinstance(value, dict):
        key = str(step) if isinstance(step, int) else step
        for k in value if step is ... else [key] if isinstance(key, str) and key in value else ():
            yield PathValue(join_key(f.path, k), value[k])
    elif isinstance(value, list):
        if isinstance(step, str) and re.fullmatch(r"\d{1,9}", step):
            step = int(step)
        places = range(len(value))
        if isinstance(step, int):
            places = places[step:][:1] if -len(value) <= step < len(value) else range(0)
        elif isinstance(step, slice):
            places = places[step]
        elif isinstance(step, str):
            return
        for i in places:
            yield PathValue(join_key(f.path, i), value[i])


def _missing(step: Step, first: PathValue, places: int, many: bool) -> str:
    """The names at a place where a step finds nothing."""
    where = first.path or "the top"
    value = first.value
    if isinstance(value, dict):
        keys = ", ".join(quoted(k) for k in islice(value, 30))
        others_named = f" and {len(value) - 30:,} more" if len(value) > 30 else ""
        others = f" (and in {places - 1:,} others)" if many and places > 1 else ""
        kind = f"an object with the keys {keys}{others_named}" if keys else "an object with no keys"
        return f"At {where}{others} there is {kind}."
    if isinstance(value, list) and value:
        hint = f"; name an item, {first.path}[0] or [*]" if isinstance(step, str) else ""
        return f"At {where} there is a list of {len(value):,} items, [0] to [{len(value) - 1}]{hint}."
    kind = "a text that is not JSON" if isinstance(value, str) else "a single value"
    return f"At {where} there is {'an empty list' if isinstance(value, list) else kind}."


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
    inner = indent + "  " if len(indent) < 40 else indent
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
    """The text at a path, its JSON value if it has one, and the ``values`` found (None: no path was given).

    ``single``: the path names exactly one value.
    """

    text: str
    value: Any
    values: list[PathValue] | None = None
    single: bool = False


def at_path(text: str, path: str | None, write: Callable[[Any], str]) -> PathSelection:
    """Apply a path to an output (None, "" and ``$``: all); ``write`` renders several values. Raises RefusedCall.

    Where the output is no JSON, or has nothing at the path, it is applied to the JSON that it holds: between other
    lines, or in the member of a frame such as ``stdout``. Several JSON values are a list.
    """
    if path is None or path.strip() in ("", "$"):
        return PathSelection(text, parse_exact(text))
    values, refused = None, None
    for value in chain(_json_values(text), _only_value_at(text, path), _json_as_printed(text)):
        try:
            values = select(value, path)
            break
        except RefusedCall as e:
            refused = refused or e
    if values is None:
        raise refused or RefusedCall(
            "The output has no JSON object or list, so it has no paths: it has "
            f"{text.count(chr(10)) + 1:,} lines; select by lines or pattern."
        )
    if len(values) == 1 and "*" not in path and ":" not in path:
        text = written(values[0].value)
        return PathSelection(text, parse_exact(text), values, True)
    return PathSelection("\n".join(f"{f.path} = {write(f.value)}" for f in values), None, values)


def _only_value_at(text: str, path: str) -> list[Any]:
    """The one JSON value of several in a text that has something at a path; none where none has, or more do."""
    values = []
    for value in islice(_json_between(text), _MOST_TRIED):
        with suppress(RefusedCall):
            select(value, path)
            values.append(value)
    return values if len(values) == 1 else []


def _json_as_printed(text: str) -> Iterator[Any]:
    """The value of a text that is JSON in another form: with line numbers, escaped, printed by Python."""
    content = content_of(text)
    value = parse_exact(content.text)
    if isinstance(value := content.value if value is None else value, (dict, list)):
        yield value


# lines and patterns

_LINE = re.compile(r"^.*", re.MULTILINE)
_TOO_LONG = re.compile(rf"[^\n]{{{LINE_CHARS + 1}}}")
_SPAN = re.compile(r"L?(?P<start>\d{1,9}+)\s*+(?:(?P<dash>-|–|:|\.\.|to\b)\s*+L?(?P<stop>\d{1,9}+)?)?\Z")
_LAST = re.compile(r"-\s*+(\d{1,9}+)\Z")


@dataclass(frozen=True, slots=True)
class Layout:
    """The lines of an output, made while they are iterated over.

    ``difference`` says how they differ from its text, if they do. ``by_path``: one line per JSON value, each with
    its path.
    """

    make: Callable[[], Iterator[str]] = field(repr=False)
    count: int
    difference: str = ""
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
    by_path = isinstance(value, (dict, list)) and (long or "\n" not in text)
    if not long and not by_path:
        return Layout(lambda: _lines(text), text.count("\n") + 1)

    def wrapped() -> Iterator[str]:
        lines = _values(value) if by_path else _lines(text)
        return islice((p for line in lines for p in _wrapped(line)), MAX_LINES if by_path else None)

    count = sum(1 for _ in wrapped())
    hint = f"lines of more than {LINE_CHARS:,} characters are wrapped and count as several"
    if by_path:
        hint = "the output is JSON on one line; here each value is a line under its path"
        if count == MAX_LINES:
            hint += f"; laid out are the first {MAX_LINES:,}, the rest by path="
    return Layout(wrapped, count, hint, by_path)


def _lines(text: str) -> Iterator[str]:
    return (match[0] for match in _LINE.finditer(text))


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
        end = next((near for near in range(end, end - 100, -1) if not joins(line, near)), end)
        yield line[at:end]
        at = end
    yield line[at:]


def chosen_lines(spec: object, count: int) -> list[range]:
    """Return the lines of ``10-25``, ``7``, ``-20`` (the last 20), or several of these with commas.

    The ranges are ascending and disjoint. Raises RefusedCall for a wrong specification and if no such line
    exists.
    """
    text = re.sub(r"lines?\b\s*", "", str(spec)).strip()
    spans: list[tuple[int, int]] = []
    for part in map(str.strip, text.split(",")):
        if last := _LAST.match(part):
            spans.append((max(1, count - int(last[1]) + 1), count + 1))
            continue
        span = _SPAN.match(part)
        if span is None:
            spelled = '"10-25", "7" or "-20" (the last 20)'
            raise RefusedCall(f"The lines {json.dumps(text[:60])} are not understood: write {spelled}.")
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
    for start, stop in sorted(s for s in spans if s[0] < s[1]):
        if merged and start <= merged[-1].stop:
            merged[-1] = range(merged[-1].start, max(merged[-1].stop, stop))
        else:
            merged.append(range(start, stop))
    return merged


def matching_lines(pattern: str, lines: Iterable[tuple[int, str]]) -> list[int]:
    """The numbers of lines that match, at most ``MAX_HITS``. Raises RefusedCall: invalid, or over two seconds."""
    import regex  # slow to import; unlike ``re`` it has a time limit, and releases the interpreter lock

    try:
        find = regex.compile(pattern).search
    except (regex.error, RecursionError, OverflowError) as e:
        raise RefusedCall(
            f"The pattern is no regular expression ({e}): escape special characters with a backslash."
        ) from None
    numbers: list[int] = []
    left = 2.0  # seconds
    try:
        for number, line in lines:
            begun = time.thread_time()
            try:
                match = find(line, timeout=0.01)
            except TimeoutError:  # a slow pattern: other threads may run meanwhile
                match = find(line, timeout=left, concurrent=True)
            left -= max(0.0, time.thread_time() - begun - 1e-5)  # what a usual line takes is not counted
            if left <= 0:
                raise TimeoutError
            if match:
                numbers.append(number)
                if len(numbers) == MAX_HITS:
                    break
    except TimeoutError:
        raise RefusedCall(
            "The pattern takes more than 2 seconds: make it simpler (no repeat within a repeat, fewer .*), "
            "or narrow the text by path or lines."
        ) from None
    return numbers


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


def select_lines(layout: Layout, lines: object, pattern: str | None) -> LineSelection:
    """Lines by a specification, a pattern (with a line around each match), or both. Raises RefusedCall."""
    within = chosen_lines(lines, layout.count) if lines is not None else [range(1, layout.count + 1)]
    if pattern is None:
        return LineSelection(layout, within)
    hits = matching_lines(pattern, layout.numbered(within))
    around, spans = [], iter(within)
    span = next(spans)
    for number in hits:
        while number >= span.stop:
            span = next(spans)
        around.append((max(span.start, number - 1), min(span.stop, number + 2)))
    return LineSelection(layout, _merged(around), frozenset(hits))
