"""Long outputs shortened by their structure; every cut says how much is missing."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from memory_bank.transcript.jsontext import compact, is_raw, parse_output
from memory_bank.transcript.quoting import Mark

_SHOWN_ITEMS = 12  # a long list shares its room among this many items at first
_MARK = 24  # what a count of items or keys left out takes at most
_MIN_ROOM = 16  # no value is cut to fewer characters than this
_LONG_WORD = 100
_LONG_LINE_ROOM = 80  # characters left over that are worth filling with a part of a line that is too long


@dataclass(frozen=True, slots=True)
class Shortened:
    """A text that fits, with the length of the whole."""

    text: str
    whole: int
    cut: bool


def shorten(value: Any, max_chars: int, *, text: str | None = None, trace_id: str | None = None) -> Shortened:
    """At most ``max_chars`` characters of a JSON value or of a text.

    ``value`` is the parsed output (None for plain text); ``text`` its original text, used as it is where it
    fits or is no JSON.
    Objects keep their keys and lists their first items; strings, lines and items are cut between words, and
    each cut says how much is missing. A mark at the end gives the length and the ``trace_id`` of the whole; it
    is left out where ``max_chars`` is too small for it. Linear in the input.
    """
    is_text = text is not None and (value is None or is_raw(value))
    source = dense = text if text is not None else compact(value)
    if len(source) <= max_chars:
        return Shortened(source, len(source), False)
    if not is_text:
        with suppress(RecursionError):
            value = unfold(value)
        dense = compact(value)
        if len(dense) <= max_chars:
            return Shortened(dense, len(source), False)
    if max_chars <= 0:
        return Shortened("", len(source), True)
    where = f"; the whole has trace_id {trace_id}" if trace_id else ""
    ending = f"\n{Mark.SHORTENED_FROM}{len(source):,} characters{where}]"
    if max_chars - len(ending) < 2 * _MIN_ROOM:
        ending = ""
    room, body = max_chars - len(ending), ""
    if not is_text and isinstance(value, (dict, list)):
        with suppress(RecursionError):
            body = _pack(value, room, _sizes(value))
    if not body or len(body) > room:
        body = shorten_text(dense, room)
    return Shortened(body + ending, len(source), True)


def shorten_text(text: str, room: int) -> str:
    """At most ``room`` characters of plain text: whole lines of its beginning and end, the gap counted."""
    if len(text) <= room:
        return text
    lines = text.count("\n") + 1
    if lines < 4 or room < 80:
        return cut_at_edge(text, room, marked=True)
    space = room - len(f"\n{Mark.SHORTENED} {lines:,} more lines …]\n")
    head = text[: max(0, text.rfind("\n", 0, max(0, space * 2 // 3) + 1))]
    left = space - len(head)
    start = text.find("\n", len(text) - left - 1) if left > 0 else -1
    tail = text[start + 1 :] if start >= 0 else ""
    if not head and not tail:
        return cut_at_edge(text, room, marked=True)
    gap = text[len(head) : len(text) - len(tail)].strip("\n")
    missing = gap.count("\n") + 1
    left -= len(tail) + 1
    if left >= _LONG_LINE_ROOM:  # a line that is longer than all of this is shown in part
        first, last = gap.split("\n", 1)[0], gap.rsplit("\n", 1)[-1]
        if len(first) > room // 2:
            head = f"{head}\n{cut_at_edge(first, left, marked=True)}".lstrip("\n")
            missing -= 1
        elif len(last) > room // 2:
            tail = f"{cut_at_edge(last, left, marked=True)}\n{tail}"
            missing -= 1
    mark = f"\n{Mark.SHORTENED} {missing:,} more lines …]\n" if missing else "\n"
    return f"{head}{mark}{tail}".strip("\n")[:room]


def fit_text(text: str, budget: int, count: Callable[[str], int]) -> str:
    """The text in at most ``budget`` tokens, cut between lines and words; each cut says how much is missing.

    ``count`` returns the tokens of a text. "" where the budget is too small for any part of it.
    """
    if budget <= 0:
        return ""
    if count(text) <= budget:
        return text
    low, high = 0, min(len(text), budget * 8)
    best = ""
    while low < high:  # the longest that fits, to within 8 characters
        middle = (low + high + 1) // 2
        shorter = shorten_text(text, middle)
        if count(shorter) <= budget:
            low, best = middle, shorter
        else:
            high = middle - 1
        if high - low < 8:
            break
    return best


def cut_at_edge(text: str, room: int, *, marked: bool = False) -> str:
    """The beginning of a text that fits, cut between words; never inside an identifier or a number.

    Only a single word of more than a hundred characters (base64, say) is cut within itself.
    """
    if len(text) <= room:
        return text
    ending = f" …(+{len(text) - max(0, room - 16):,})" if marked else ""
    if len(ending) >= room:
        ending = ""
    start = end = room - len(ending)
    while end > 0 and start - end < _LONG_WORD and joins(text, end):
        end -= 1
    if not joins(text, end) and end == 0:  # nothing but one word: is it a long one?
        reach = start
        while reach < min(len(text), _LONG_WORD) and joins(text, reach):
            reach += 1
        is_long = reach >= _LONG_WORD
    else:
        is_long = joins(text, end)
    if is_long:
        end = start - ("\udc00" <= text[start] <= "\udfff")
    return text[:end].rstrip() + ending


def joins(text: str, i: int) -> bool:
    """Return whether the characters before and after ``i`` belong to one word, number or character."""
    if not 0 < i < len(text):
        return False
    a, b = text[i - 1], text[i]
    return ((a.isalnum() or a in "_-.@/") and (b.isalnum() or b in "_-.@/")) or "\udc00" <= b <= "\udfff"


def unfold(value: Any) -> Any:
    """A JSON value whose strings that hold JSON objects or lists are replaced by what they hold."""
    if isinstance(value, str):
        if value[:1] in "{[" and len(value) > 2:
            inner = parse_output(value)
            return value if is_raw(inner) else unfold(inner)
        return value
    if isinstance(value, dict):
        return {k: unfold(v) for k, v in value.items()}
    if isinstance(value, list):
        return [unfold(v) for v in value]
    return value


def _sizes(value: Any) -> dict[int, int]:
    """The characters of objects and lists as compact JSON, by identity."""
    sizes: dict[int, int] = {}

    def measure(node: Any) -> int:
        if isinstance(node, dict):
            size = 2 + sum(_len(k) + 2 + measure(v) for k, v in node.items())
        elif isinstance(node, list):
            size = 2 + sum(1 + measure(v) for v in node)
        else:
            return _len(node)
        sizes[id(node)] = size
        return size

    measure(value)
    return sizes


def _pack(node: Any, room: int, sizes: dict[int, int]) -> str:
    """A JSON value in at most so many characters: the room is divided among its parts."""

    def size_of(inner: Any) -> int:
        return sizes[id(inner)] if isinstance(inner, (dict, list)) else _len(inner)

    if not node or size_of(node) <= room or not isinstance(node, (dict, list, str)):
        return compact(node)
    if isinstance(node, str):
        return pack_string(node, room)
    free = room - 2 - (_MARK if len(node) > 1 else 0)
    used, count = 0, 0
    if isinstance(node, dict):
        for key, value in node.items():  # as many keys as have room for something
            used += _len(key) + 2 + min(size_of(value), _MIN_ROOM)
            if used > free:
                break
            count += 1
        keys = list(node)[:count]
        shares = share([size_of(node[k]) for k in keys], free - sum(_len(k) + 2 for k in keys))
        parts = [f"{compact(k)}:{_pack(node[k], s, sizes)}" for k, s in zip(keys, shares, strict=True)]
        rest = [f'"…":"{len(node) - count:,} more keys"'] if count < len(node) else []
        return f"{{{','.join(parts + rest)}}}"
    # each item takes one more for its comma
    most = free // min(len(node), _SHOWN_ITEMS) - 1
    fair = max(_MIN_ROOM, most, min(size_of(node) // len(node) * 3 // 2, free // 3 - 1))
    for item in node:
        used += min(size_of(item), fair) + 1
        if used > free:
            break
        count += 1
    if not count:
        return f'["… {len(node):,} items"]'
    shares = share([size_of(item) for item in node[:count]], free - count)
    parts = [_pack(item, s, sizes) for item, s in zip(node, shares, strict=False)]
    rest = [f'"… {len(node) - count:,} more items"'] if count < len(node) else []
    return f"[{','.join(parts + rest)}]"


def _len(value: Any) -> int:
    """Characters of a scalar or a key as compact JSON."""
    if isinstance(value, str):
        if value.isprintable():
            return len(value) + 2 + value.count('"') + value.count("\\")
        return len(json.dumps(value, ensure_ascii=False))
    return len(compact(value))


def share(sizes: list[int], room: int) -> list[int]:
    """Divide ``room`` among parts: small ones get their whole size, the others equal shares (water-filling)."""
    shares = [0] * len(sizes)
    left, open_ = max(0, room), len(sizes)
    for i in sorted(range(len(sizes)), key=lambda i: sizes[i]):
        shares[i] = min(sizes[i], left // open_)
        left -= shares[i]
        open_ -= 1
    return shares


def pack_string(text: str, room: int) -> str:
    """A JSON string of at most ``room`` characters, its missing part counted."""
    ending = f" …(+{len(text):,})"
    inner = room - 2 - len(ending)
    if inner <= 0:
        return f'"…(+{len(text):,})"'
    head = cut_at_edge(text, inner)
    while head and (over := _len(head) - 2 - inner) > 0:
        head = cut_at_edge(head, max(0, len(head) - over))
    return json.dumps(f"{head} …(+{len(text) - len(head):,})", ensure_ascii=False)
