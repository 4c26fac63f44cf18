"""JSON outputs without what says nothing: MCP's wrappers, indentation, empty members, what most items repeat.

No value is changed: numbers stay as they were written, members in their order, also those of one name.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from json.encoder import encode_basestring
from typing import Any, NamedTuple

from memory_bank.transcript.jsontext import join_key
from memory_bank.transcript.shortening import pack_string, share

MOST_CHARS = 4_000_000  # of an output that is read
_DEPTH = 100  # deeper values stay as they came
_FEWEST = 4  # items of a list that may have members in common
_SHARE = 0.8  # of the items that have a member in common
_EMPTY = frozenset(("null", '""', "[]", "{}"))
_LONE = re.compile("[\ud800-\udfff]")


class DenseOutput(NamedTuple):
    """``text``: the output's content; ``path``: of the member that holds it, "" for all of it, None for several.

    ``value``: the object or the list that the content is, for ``shorten_json``; None for other texts.
    """

    text: str
    path: str | None = ""
    value: Any = None


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
    path = ""
    for _ in range(_DEPTH):
        value = _parse(text)
        if value is None:
            return DenseOutput(text, path)
        inner = _wrapped(value)
        if inner is None:
            if to_the_letter:
                return DenseOutput(text, path, value)
            try:
                return DenseOutput(_written(value), path, value)
            except RecursionError:
                return DenseOutput(text, path)
        step, texts = inner
        if len(texts) != 1:
            parts = texts if to_the_letter else [read_output(part).text for part in texts]
            return DenseOutput(_sendable("\n".join(parts)), None)
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
    if text[:64].lstrip()[:1] not in ("{", "[") or len(text) > MOST_CHARS:
        return None
    try:
        return json.loads(
            text, object_pairs_hook=_Object, parse_int=_Literal, parse_float=_Literal, parse_constant=_Literal
        )
    except (ValueError, RecursionError):
        return None


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
    """Whether MCP's structured content is what the one text says."""
    return len(texts) == 1 and structured in (_parse(texts[0]), _Object([("result", texts[0])]))


def _write(value: Any, depth: int = 0, sizes: dict[int, int] | None = None) -> str:
    """Write a value densely. Raises RecursionError for a deep one. ``sizes``: gets the length of each, by its id."""
    if isinstance(value, _Literal):
        return str(value)
    if isinstance(value, str):
        return encode_basestring(value)
    if isinstance(value, _Object):
        text = _joined([(encode_basestring(key), _write(inner, depth + 1, sizes)) for key, inner in value])
    elif not isinstance(value, list):
        return "null" if value is None else "true" if value else "false"
    elif depth > _DEPTH:
        raise RecursionError
    elif len(value) >= _FEWEST and all(isinstance(item, _Object) for item in value):
        rows = [
            [(encode_basestring(key), _write(inner, depth + 2, sizes)) for key, inner in item]
            for item in value
        ]
        text = f"[{','.join(_without_repeats(rows))}]"
    else:
        text = f"[{','.join([_write(item, depth + 1, sizes) for item in value])}]"
    if sizes is not None:
        sizes[id(value)] = len(text)
    return text


def _joined(members: Sequence[tuple[str, str]], but: Sequence[str] = ()) -> str:
    """An object without its empty members, ``but`` those of some names."""
    return (
        "{" + ",".join([f"{key}:{text}" for key, text in members if text not in _EMPTY or key in but]) + "}"
    )


def _without_repeats(rows: Sequence[Sequence[tuple[str, str]]]) -> list[str]:
    """Objects, after one that says once what most of them have in common: the others have members of that name."""
    members = [dict(row) for row in rows]
    names = Counter(key for row in members for key in row)
    is_once = all(len(own) == len(row) for own, row in zip(members, rows, strict=True))
    common: dict[str, str] = {}
    for name in [n for n, times in names.items() if times == len(rows)] if is_once else ():
        text, times = Counter(row[name] for row in members).most_common(1)[0]
        if text not in _EMPTY and times >= _SHARE * len(rows):
            common[name] = text
    saved = sum((len(rows) - 1) * (len(name) + len(text)) for name, text in common.items())
    head = f'{{"all {len(rows)} items, but those that say otherwise":{_joined([*common.items()])}}}'
    if saved < 2 * len(head):
        return [_joined(row) for row in rows]
    left = ([(key, text) for key, text in row if common.get(key) != text] for row in rows)
    return [head, *(_joined(row, [*common]) for row in left)]


# -- a part of JSON -----------------------------------------------------------
_CELLS = (
    400,
    160,
    80,
)  # characters of a value in a row at most, the first of these that fits, and a cut word's rest
_LEAST = 16  # characters that a value is cut to
_TELLING = re.compile(
    r"(?i)ids?\Z|(?:\b|_)(?:uuid|sha|name|title|key|path|url|link|href|email|number|label|slug|code)s?\Z"
)


def longest_text(value: Any) -> tuple[str, str]:
    """The longest text in the members of an object, and its path; two empty ones where there is none."""
    found, path = "", ""
    for key, inner in value if isinstance(value, _Object) else ():
        text, below = (inner, "") if type(inner) is str else longest_text(inner)
        if len(text) > len(found):
            found, path = text, join_key("", key) + (below if below[:1] in ("", "[") else f".{below}")
    return found, path


def without_text(value: Any, text: str, other: str) -> Any:
    """A value with ``other`` in the place of a text."""
    if isinstance(value, _Object):
        return _Object([(key, without_text(inner, text, other)) for key, inner in value])
    return other if value == text else value


def shorten_json(value: Any, room: int) -> str:
    """About ``room`` characters of a value as ``read_output`` returns it; each cut says how much is missing.

    An object keeps its members. Of a list of objects every item has the same few members, those that tell items apart
    first; where even one is too much, items are left out in the middle. Words and numbers are never cut.
    """
    return _LONE.sub("\ufffd", _Packer().pack(value, room))


class _Packer:
    """Shortens one value. What was made of a part is kept, as tables within tables ask for it many times."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}  # by id, as those of what was packed
        self._packed: dict[tuple[int, int], str] = {}

    def pack(self, value: Any, room: int) -> str:
        """A value in about so many characters."""
        if not isinstance(value, (_Object, list)):
            text = _write(value)
            if len(text) <= room or not isinstance(value, str) or isinstance(value, _Literal):
                return text
            is_word = len(value) <= 100 and not any(map(str.isspace, value))
            return text if is_word else pack_string(value, max(room, _LEAST))
        known = id(value), room
        if known not in self._packed:
            self._packed[known] = self._pack(value, room)
        return self._packed[known]

    def _size(self, value: Any) -> int:
        """The characters of a value that is written whole."""
        if isinstance(value, (_Object, list)) and id(value) in self._sizes:
            return self._sizes[id(value)]
        return len(_write(value, 0, self._sizes))

    def _pack(self, value: Any, room: int) -> str:
        if self._size(value) <= room or not value:
            return _write(value)
        if isinstance(value, _Object):
            return self._object(value, room)
        is_table = len(value) >= _FEWEST and all(isinstance(item, _Object) for item in value)
        return self._rows(value, room) if is_table else self._list(value, room)

    def _object(self, value: _Object, room: int) -> str:
        members = [(encode_basestring(key), inner) for key, inner in value if _says(inner)]
        sizes = [self._size(inner) for _, inner in members]
        shown, used = 0, 24
        for (key, _), size in zip(members, sizes, strict=True):
            used += len(key) + 2 + min(size, _LEAST)
            if used > room and shown:
                break
            shown += 1
        shares = share(sizes[:shown], room - 24 - sum(len(key) + 2 for key, _ in members[:shown]))
        parts = [
            f"{key}:{self.pack(inner, most)}" for (key, inner), most in zip(members, shares, strict=False)
        ]
        if shown < len(members):
            parts.append(f'"…":"{len(members) - shown:,} more members"')
        return f"{{{','.join(parts)}}}"

    def _list(self, value: list[Any], room: int) -> str:
        """The first items, as many as have room for a fair share."""
        sizes = [self._size(item) for item in value]
        fair = max(_LEAST, room // 12, sum(sizes) // len(sizes) * 3 // 2)
        shown, used = 0, 30
        for size in sizes:
            used += min(size, fair) + 1
            if used > room and shown:
                break
            shown += 1
        shares = share(sizes[:shown], room - 30 - shown)
        parts = [self.pack(item, most) for item, most in zip(value, shares, strict=False)]
        if shown < len(value):
            parts.append(f'"… {len(value) - shown:,} more items"')
        return f"[{','.join(parts)}]"

    def _rows(self, rows: list[_Object], room: int) -> str:
        """Every item with the same members; items are left out in the middle."""
        for cell in _CELLS:
            table = [
                {encode_basestring(k): self.pack(inner, cell) for k, inner in row if _says(inner)}
                for row in rows
            ]
            texts: dict[str, list[str]] = {}
            for row in table:
                for name, text in row.items():
                    texts.setdefault(name, []).append(text)
            sizes = {name: sum(map(len, some)) + (len(name) + 2) * len(some) for name, some in texts.items()}
            if sum(sizes.values()) + 3 * len(rows) <= room:
                break
        worth = {name: (1 + 3 * len({*some}) / len(rows)) * len(some) for name, some in texts.items()}
        used, chosen = 60 + 3 * len(rows), set[str]()
        for name in sorted(
            texts, key=lambda n: -worth[n] * (3 if _TELLING.search(n[1:-1][-80:]) else 1) / sizes[n]
        ):
            if used + sizes[name] <= room or not chosen:
                used += sizes[name]
                chosen.add(name)
        shown = _without_repeats([[(k, text) for k, text in row.items() if k in chosen] for row in table])
        left = [json.loads(name) for name in texts if name not in chosen]
        needed = sum(map(len, shown)) + len(shown) + 80
        if needed > room and (most := max(2, len(shown) * room // needed)) < len(shown):
            first = (most * 2 + 2) // 3
            last = len(shown) - (most - first)
            shown[first:last] = [f'"… {last - first:,} items"']
        if left:
            shown.insert(
                0, encode_basestring(f"… {len(rows):,} items, of each without: {', '.join(left)[:1000]}")
            )
        return f"[{','.join(shown)}]"
