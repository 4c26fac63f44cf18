"""JSON outputs without what says nothing: MCP's wrappers, indentation, empty members, what most items repeat.

No value is changed: numbers stay as they were written, members in their order, also those of one name.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from json.encoder import encode_basestring
from typing import Any, NamedTuple

from memory_bank.transcript.jsontext import complete_json, join_key
from memory_bank.transcript.shortening import pack_string

MOST_CHARS = 4_000_000  # of an output that is read
_DEPTH = 100  # deeper values stay as they came
_FEWEST = 4  # items of a list that may have members in common
_SHARE = 0.8  # of the items that have a member in common
_OTHERWISE = "items, but those that say otherwise"
_EMPTY = frozenset(("null", '""', "[]", "{}"))
_LONE = re.compile("[\ud800-\udfff]")
_SAYS_SO = re.compile(r"\S\s+\S")
CUT_OFF = "… (cut off here)"
"""The text after a value that was cut off, where the text does not say so: the value's end is ours."""


class DenseOutput(NamedTuple):
    """``text``: the output's content; ``path``: of the member that holds it, "" for all of it, None for several.

    ``value``: the object or the list that the content is, for a table; None for other texts. ``rest``: what the text
    says after a value that was cut off, as clients and tools cut long outputs.
    """

    text: str
    path: str | None = ""
    value: Any = None
    rest: str = ""


class _Object(tuple[tuple[str, Any], ...]):
    """The members of an object as they were written, also those of one name."""

    __slots__ = ()


class _Literal(str):
    """A number as it was written."""

    __slots__ = ()


def read_output(text: str, *, to_the_letter: bool = False) -> DenseOutput:
    """Return what an output holds: the text in MCP's wrappers, JSON in its dense form, any other text as it is.

    ``to_the_letter``: what the wrappers hold stays as it is: a file's text, which an edit must repeat exactly.
    Linear; applied to what it returned it changes nothing.
    """
    path = end = ""
    for _ in range(_DEPTH):
        value, rest = _parse(text), ""
        if value is None and _may_be_json(text) and (cut := complete_json(text)):
            value, rest = _parse(cut[0]), cut[1]
            end = "" if _SAYS_SO.search(rest) else CUT_OFF
        if value is None:
            return DenseOutput(text + end, path)
        inner = _wrapped(value)
        if inner is None:
            rest += end
            if to_the_letter:
                return DenseOutput(text + end if path else text, path, None if rest else value)
            try:
                return DenseOutput(_written(value) + (rest and f"\n{rest.lstrip()}"), path, value, rest)
            except RecursionError:
                return DenseOutput(text + end if path else text, path)
        step, texts = inner
        texts = [*texts[:-1], texts[-1] + rest]
        if len(texts) != 1:
            parts = texts if to_the_letter else [read_output(part).text for part in texts]
            return DenseOutput(_sendable("\n".join(parts)) + end, None)
        text = _sendable(texts[0])
        for key in step:
            path = join_key(path, key)
    return DenseOutput(text, path)


def _written(value: Any) -> str:
    """A value as dense JSON. Raises RecursionError for a deep one."""
    return _sendable(_write(value))


def _sendable(text: str) -> str:
    """The text with lone surrogates, which clients cannot send, as they are written in JSON."""
    return text if text.isascii() else _LONE.sub(lambda lone: f"\\u{ord(lone[0]):04x}", text)


def _parse(text: str) -> Any:
    """The object or the list that a text is; None for any other text."""
    if not _may_be_json(text):
        return None
    try:
        return json.loads(
            text, object_pairs_hook=_Object, parse_int=_Literal, parse_float=_Literal, parse_constant=_Literal
        )
    except (ValueError, RecursionError):
        return None


def _may_be_json(text: str) -> bool:
    return text[:64].lstrip()[:1] in ("{", "[") and len(text) <= MOST_CHARS


def _wrapped(value: Any) -> tuple[list[str | int], list[str]] | None:
    """The texts in MCP's wrappers, and the path of the first; None where a value is no wrapper, or says more."""
    if isinstance(value, _Object):
        if (part := _part(value)) is not None:
            return ["text"], [part]
        members = dict(value)
        parts = members.pop("content", None)
        failed, structured = members.pop("isError", False), members.pop("structuredContent", None)
        is_once = len(dict(value)) == len(value)
        if failed or not is_once or not isinstance(parts, list) or any(map(_says, members.values())):
            return None
        inner = _wrapped(parts)
        if inner is None or (_says(structured) and not _repeats(structured, inner[1])):
            return None
        return ["content", *inner[0]], inner[1]
    texts = [_part(item) for item in value]
    if not texts or None in texts:
        return None
    return [0, "text"], [text for text in texts if text is not None]


def _part(value: Any) -> str | None:
    """The text of a text part that says nothing else."""
    if not isinstance(value, _Object):
        return None
    members = dict(value)
    kind, text = members.pop("type", None), members.pop("text", None)
    is_part = kind == "text" and type(text) is str and not any(map(_says, members.values()))
    return text if is_part and len(value) == len(members) + 2 else None


def _says(value: Any) -> bool:
    return value is not None and value not in ("", (), [])


def _repeats(structured: Any, texts: Sequence[str]) -> bool:
    """Return whether MCP's structured content is what the one text says."""
    return len(texts) == 1 and structured in (_parse(texts[0]), _Object([("result", texts[0])]))


def _write(value: Any, depth: int = 0, *, part: bool = False) -> str:
    """Write a value densely. Raises RecursionError for a deep one. ``part``: the items of a list as rows."""
    if isinstance(value, _Literal):
        return str(value)
    if isinstance(value, str):
        return encode_basestring(value)
    if isinstance(value, _Object):
        return _joined(
            [(encode_basestring(key), _write(inner, depth + 1, part=part)) for key, inner in value]
        )
    if not isinstance(value, list):
        return "null" if value is None else "true" if value else "false"
    if depth > _DEPTH:
        raise RecursionError
    if len(value) >= _FEWEST and all(isinstance(item, _Object) for item in value):
        rows = [
            [(encode_basestring(key), _write(inner, depth + 2, part=part)) for key, inner in item]
            for item in value
        ]
        if part and (text := _as_rows(rows)):
            return text
        return f"[{','.join(_without_repeats(rows))}]"
    return f"[{','.join([_write(item, depth + 1, part=part) for item in value])}]"


def _as_rows(rows: Sequence[Sequence[tuple[str, str]]]) -> str:
    """Objects with the same members as lists of their values, after one of the names; "" for others."""
    names = dict.fromkeys(name for row in rows for name, _ in row)
    objects = [dict(row) for row in rows]
    count = sum(map(len, rows))
    if count < _FILLED * len(names) * len(rows) or sum(map(len, objects)) < count:  # or a name stands twice
        return ""
    if len(names) == 1:
        return f"{{{next(iter(names))}:[{','.join([row[0][1] if row else 'null' for row in rows])}]}}"
    joint = ",\n"
    lines = [f'{{"… {len(rows):,} items as rows of":[{",".join(names)}]}}']
    lines += [f"[{','.join([item.get(name, 'null') for name in names])}]" for item in objects]
    return f"[{joint.join(lines)}]"


def _joined(members: Sequence[tuple[str, str]], but: Sequence[str] = ()) -> str:
    """An object without its empty members, ``but`` those of some names."""
    return (
        "{" + ",".join([f"{key}:{text}" for key, text in members if text not in _EMPTY or key in but]) + "}"
    )


def _without_repeats(rows: Sequence[Sequence[tuple[str, str]]]) -> list[str]:
    """Objects, after one that says once what most of them have in common: the others have members of that name."""
    if rows[0] and rows[0][0][0].endswith(f'{_OTHERWISE}"'):  # a list as this function wrote it
        return [_joined(row, [key for key, _ in row]) for row in rows]
    members = [dict(row) for row in rows]
    names = Counter(key for row in members for key in row)
    is_once = all(len(item) == len(row) for item, row in zip(members, rows, strict=True))
    common: dict[str, str] = {}
    for name in [n for n, times in names.items() if times == len(rows)] if is_once else ():
        text, times = Counter(row[name] for row in members).most_common(1)[0]
        if text not in _EMPTY and times >= _SHARE * len(rows):
            common[name] = text
    saved = sum((len(rows) - 1) * (len(name) + len(text)) for name, text in common.items())
    head = f'{{"all {len(rows)} {_OTHERWISE}":{_joined([*common.items()])}}}'
    if saved < 2 * len(head):
        return [_joined(row) for row in rows]
    left = ([(key, text) for key, text in row if common.get(key) != text] for row in rows)
    return [head, *(_joined(row, [*common]) for row in left)]


# -- a part of JSON -----------------------------------------------------------
_CELLS = (60, 160, 400, 1 << 30)
"""Characters that are shown of a value in every item: the least, then more where there is room."""
_MANY = 40  # members that are objects, of an object that is read as a list
_FILLED = 0.7  # of the cells of a table whose items are written as rows
_MOST_LEFT_OUT = 500  # characters that say which members are left out

WITHOUT = "\n(without "
"""The text before the names of the members that are left out."""
Names = tuple[str, ...]
"""The way to a value by the names of members; the items of a list share one."""


def longest_text(value: Any) -> tuple[str, str]:
    """The longest text in the members of an object, and its path; two empty ones where there is none."""
    longest, path = "", ""
    for key, inner in value if isinstance(value, _Object) else ():
        text, below = (inner, "") if type(inner) is str else longest_text(inner)
        if len(text) > len(longest):
            longest, path = text, join_key("", key) + (below if below[:1] in ("", "[") else f".{below}")
    return longest, path


def longest_list(value: Any) -> tuple[int, str | None]:
    """The characters of the longest list in the members of an object, and its path; None where there is none."""
    if isinstance(value, list):
        return (len(_written(value)), "") if len(value) >= _FEWEST else (0, None)
    longest, path = 0, None
    for key, inner in value if isinstance(value, _Object) else ():
        chars, below = longest_list(inner)
        if below is not None and chars > longest:
            longest, path = chars, join_key("", key) + (below if below[:1] in ("", "[") else f".{below}")
    return longest, path


def without_text(value: Any, text: str, other: str) -> Any:
    """A value with ``other`` in the place of a text."""
    if isinstance(value, _Object):
        return _Object([(key, without_text(inner, text, other)) for key, inner in value])
    return other if value == text else value


def opened(output: DenseOutput) -> DenseOutput:
    """The output with what strings that hold JSON hold, in their places."""
    value = _open(output.value)
    rest = output.rest and f"\n{output.rest.lstrip()}"
    return output._replace(value=value, text=_written(value) + rest)


def _open(value: Any) -> Any:
    if isinstance(value, _Object):
        return _Object([(key, _open(inner)) for key, inner in value])
    if isinstance(value, list):
        return [_open(item) for item in _grid(value) or value]
    if type(value) is str and len(value) > _CELLS[0] and (inner := _parse(value)) is not None:
        return _open(inner)
    return value


def _grid(cells: list[Any]) -> list[Any]:
    """The rows of a sheet whose cells are items with a row, a column and a value; empty for other lists."""
    rows: dict[str, list[tuple[str, Any]]] = {}
    for n, cell in enumerate(cells):
        members = dict(cell) if isinstance(cell, _Object) else {}
        row, column, at = (members.get(name) for name in ("row", "column", "address"))
        if isinstance(row, _Literal) and isinstance(column, (str, _Literal)) and "value" in members:
            name = at.removesuffix(row) if isinstance(at, str) else column
            rows.setdefault(row, [("row", row)]).append((str(name), members["value"]))
        elif n < len(cells) - 1:  # the last one may be cut off
            return []
        else:
            rows[""] = [*cell] if isinstance(cell, _Object) else []
    return [_Object(row) for row in rows.values()] if len(rows) >= _FEWEST else []


class JsonPart:
    """The shown part of a value that ``read_output`` returned: of every item the same members.

    Those of most worth for their length come first. ``worth``: of the texts under a name, by text; what two members
    say counts once. What is left out is named at the end. Words and numbers are never cut.
    """

    def __init__(self, value: Any, worth: Callable[[str, Sequence[str]], Mapping[str, float]]) -> None:
        self._value = value
        self._columns: dict[Names, _Column] = {}
        self._add(value, (), 0)
        for way, column in self._columns.items():
            column.worth = worth(way[-1] if way else "", [*column.texts])

    def shown(self, room: int) -> str:
        """About so many characters; "" where there is no room for one member of every item."""
        columns, covered, chosen, used = self._columns, set[str](), dict[Names, int](), 0
        heap = [(-sum(c.worth.values()) / c.sizes[0], n, way) for n, (way, c) in enumerate(columns.items())]
        heapify(heap)
        while heap:
            _, n, way = heappop(heap)
            column = columns[way]
            new = sum([much for text, much in column.worth.items() if text not in covered]) / column.sizes[0]
            if heap and -new > heap[0][0]:
                heappush(heap, (-new, n, way))
            elif used + column.sizes[0] <= room:
                used += column.sizes[0]
                chosen[way] = 0
                covered.update(column.worth)
        for level in range(1, len(_CELLS)):
            for way in chosen:
                growth = columns[way].sizes[level] - columns[way].sizes[chosen[way]]
                if used + growth <= room:
                    used += growth
                    chosen[way] = level
        if not chosen:
            return ""
        shown = _write(self._with(self._value, (), chosen), part=True)
        left = dict.fromkeys(".".join(_first_without(way, chosen)) for way in columns if way not in chosen)
        without = f"{WITHOUT}{', '.join(left)[:_MOST_LEFT_OUT]})" if left else ""
        return _LONE.sub("\ufffd", shown + without)

    def _add(self, value: Any, way: Names, names: int) -> None:
        """Add what a value holds to the columns; ``names``: the characters of those since the item that it is in."""
        if isinstance(value, _Object):
            is_list = _is_list_like(value)
            for key, inner in value:
                if _says(inner):
                    self._add(inner, (*way, "*" if is_list else key), 2 if is_list else names + len(key) + 3)
        elif isinstance(value, list):
            for item in value:
                self._add(item, way, 2)
        else:
            if (column := self._columns.get(way)) is None:
                column = self._columns[way] = _Column({}, [0] * len(_CELLS))
            text = value if isinstance(value, str) else _write(value)
            column.texts[text] = None
            for level, most in enumerate(_CELLS):
                column.sizes[level] += min(len(text), most + 10) + names + 1

    def _with(self, value: Any, way: Names, chosen: Mapping[Names, int]) -> Any:
        """The value with the chosen columns, texts cut as they are."""
        if isinstance(value, _Object):
            is_list = _is_list_like(value)
            members = (
                (k, self._with(v, (*way, "*" if is_list else k), chosen)) for k, v in value if _says(v)
            )
            return _Object([(key, inner) for key, inner in members if _says(inner)])
        if isinstance(value, list):
            return [inner for item in value if _says(inner := self._with(item, way, chosen))]
        if way not in chosen:
            return None
        most = _CELLS[chosen[way]]
        if type(value) is not str or len(value) <= most:
            return value
        if len(value) <= 100 and not any(map(str.isspace, value)):  # a word
            return value
        return json.loads(pack_string(value, most))


@dataclass(slots=True)
class _Column:
    """The values of one way: their texts, the characters that they take by the longest shown, what each is worth."""

    texts: dict[str, None]
    sizes: list[int]
    worth: Mapping[str, float] = field(default_factory=dict)


def _is_list_like(value: _Object) -> bool:
    return len(value) >= _MANY and all(isinstance(inner, (_Object, list)) for _, inner in value)


def _first_without(way: Names, chosen: Mapping[Names, int]) -> Names:
    """The shortest beginning of a way that is the beginning of no chosen one."""
    for n in range(1, len(way)):
        if not any(other[:n] == way[:n] for other in chosen):
            return way[:n]
    return way
