"""Long outputs shortened by their structure; every cut says how much is missing."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from memory_bank.transcript.jsontext import compact, is_raw, parse_output

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
    each cut says how much is missing. A note at the end gives the length and the ``trace_id`` of the whole; it
    is left out where ``max_chars`` is too small for it. Linear in the input.
    """
    is_text = text is not None and (value is None or is_raw(value))
    source = text if text is not None else compact(value)
    if len(source) <= max_chars:
        return Shortened(source, len(source), False)
    dense = source
    if not is_text:
        with suppress(RecursionError):
            value = unfold(value)
        dense = compact(value)
        if len(dense) <= max_chars:
            return Shortened(dense, len(source), False)
    if max_chars <= 0:
        return Shortened("", len(source), True)
    where = f"; the whole has trace_id {trace_id}" if trace_id else ""
    note = f"\n[shortened from {len(source):,} characters{where}]"
    room = max_chars - len(note)
    if room < 2 * _MIN_ROOM:
        note, room = "", max_chars
    body = ""
    if not is_text and isinstance(value, (dict, list)):
        with suppress(RecursionError):
            body = _Packer(value).pack(value, room)
    if not body or len(body) > room:
        body = shorten_text(dense, room)
    return Shortened(body + note, len(source), True)


def shorten_text(text: str, room: int) -> str:
    """At most ``room`` characters of plain text: whole lines of its beginning and end, the gap counted."""
    if len(text) <= room:
        return text
    lines = text.count("\n") + 1
    if lines >= 4 and room >= 80:
        gap_room = len(f"\n[… {lines:,} more lines …]\n")
        head = _whole_lines(text, (room - gap_room) * 2 // 3)
        tail = _whole_lines_back(text, room - gap_room - len(head))
        if head or tail:
            gap = text[len(head) : len(text) - len(tail)].strip("\n")
            missing = gap.count("\n") + 1
            left = room - gap_room - len(head) - len(tail) - 1
            if left >= _LONG_LINE_ROOM:  # a line that is longer than all of this is shown in part
                first, last = gap.split("\n", 1)[0], gap.rsplit("\n", 1)[-1]
                if len(first) > room // 2:
                    head = f"{head}\n{cut_at_edge(first, left, marked=True)}".lstrip("\n")
                    missing -= 1
                elif len(last) > room // 2:
                    tail = f"{cut_at_edge(last, left, marked=True)}\n{tail}"
                    missing -= 1
            mark = f"\n[… {missing:,} more lines …]\n" if missing else "\n"
            return f"{head}{mark}{tail}".strip("\n")[:room]
    return cut_at_edge(text, room, marked=True)


def fit_text(text: str, budget: int, count: Callable[[str], int]) -> str:
    """The text in at most ``budget`` tokens, cut between lines and words; each cut says how much is missing.

    Args:
        count: returns the tokens of a text.

    Returns:
        The text itself where it fits; "" where the budget is too small for any part of it.
    """
    if budget <= 0:
        return ""
    if count(text) <= budget:
        return text
    low, high = 0, min(len(text), budget * 8)
    best = ""
    while low < high:  # the longest that fits, to within 8 characters
        middle = (low + high + 1) // 2
        shown = shorten_text(text, middle)
        if count(shown) <= budget:
            low, best = middle, shown
        else:
            high = middle - 1
        if high - low < 8:
            break
    return best


def _whole_lines(text: str, room: int) -> str:
    end = text.rfind("\n", 0, max(0, room) + 1)
    return text[:end] if end > 0 else ""


def _whole_lines_back(text: str, room: int) -> str:
    if room <= 0:
        return ""
    start = text.find("\n", len(text) - room - 1)
    return text[start + 1 :] if 0 <= start < len(text) - 1 else ""


def cut_at_edge(text: str, room: int, *, marked: bool = False) -> str:
    """The beginning of a text that fits, cut between words; never inside an identifier or a number.

    Only a single word of more than a hundred characters (base64, say) is cut within itself.
    """
    if len(text) <= room:
        return text
    mark = f" …(+{len(text) - max(0, room - 16):,})" if marked else ""
    if len(mark) >= room:
        mark = ""
    end = room - len(mark)
    start = end
    while end > 0 and start - end < _LONG_WORD and joins(text, end):
        end -= 1
    if joins(text, end) or (end == 0 and _is_long_word(text, start)):
        end = start - 1 if "\udc00" <= text[start] <= "\udfff" else start
    return text[:end].rstrip() + mark


def joins(text: str, i: int) -> bool:
    """Whether the characters before and after ``i`` belong to one word, number or character."""
    if not 0 < i < len(text):
        return False
    a, b = text[i - 1], text[i]
    return ((a.isalnum() or a in "_-.@/") and (b.isalnum() or b in "_-.@/")) or "\udc00" <= b <= "\udfff"


def _is_long_word(text: str, i: int) -> bool:
    """Whether the text begins with a word of more than a hundred characters that reaches over ``i``."""
    end = i
    while end < len(text) and end < _LONG_WORD and joins(text, end):
        end += 1
    return end >= _LONG_WORD


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


class _Packer:
    """Writes a JSON value in a number of characters: measures every node once, then divides the room."""

    def __init__(self, value: Any) -> None:
        self.sizes: dict[int, int] = {}  # of objects and lists, by identity
        self._measure(value)

    def _measure(self, node: Any) -> int:
        if isinstance(node, dict):
            size = 2 + sum(_len(k) + 2 + self._measure(v) for k, v in node.items())
        elif isinstance(node, list):
            size = 2 + sum(1 + self._measure(v) for v in node)
        else:
            return _len(node)
        self.sizes[id(node)] = size
        return size

    def _size(self, node: Any) -> int:
        return self.sizes.get(id(node), 0) if isinstance(node, (dict, list)) else _len(node)

    def pack(self, node: Any, room: int) -> str:
        """The value, or one within it, in at most so many characters."""
        if not node or self._size(node) <= room:
            return compact(node)
        if isinstance(node, dict):
            return self._pack_dict(node, room)
        if isinstance(node, list):
            return self._pack_list(node, room)
        if isinstance(node, str):
            return _pack_string(node, room)
        return compact(node)

    def _pack_dict(self, node: dict[str, Any], room: int) -> str:
        free = room - 2 - (_MARK if len(node) > 1 else 0)
        shown: list[str] = []
        least = 0
        for key, value in node.items():  # as many keys as have room for something
            least += _len(key) + 2 + min(self._size(value), _MIN_ROOM)
            if least > free:
                break
            shown.append(key)
        shares = _share([self._size(node[k]) for k in shown], free - sum(_len(k) + 2 for k in shown))
        parts = [f"{compact(k)}:{self.pack(node[k], s)}" for k, s in zip(shown, shares, strict=True)]
        if len(shown) < len(node):
            parts.append(f'"…":"{len(node) - len(shown):,} more keys"')
        return "{" + ",".join(parts) + "}"

    def _pack_list(self, node: list[Any], room: int) -> str:
        free = room - 2 - (_MARK if len(node) > 1 else 0)
        mean = self._size(node) // max(1, len(node))
        # Each item takes one more for its comma.
        fair = max(_MIN_ROOM, free // min(len(node), _SHOWN_ITEMS) - 1, min(mean * 3 // 2, free // 3 - 1))
        sizes: list[int] = []
        used = 0
        for item in node:
            size = min(self._size(item), fair) + 1
            if used + size > free:
                break
            used += size
            sizes.append(self._size(item))
        if not sizes:
            return f'["… {len(node):,} items"]'
        shares = _share(sizes, free - len(sizes))
        parts = [self.pack(item, s) for item, s in zip(node, shares, strict=False)]
        if len(parts) < len(node):
            parts.append(f'"… {len(node) - len(parts):,} more items"')
        return "[" + ",".join(parts) + "]"


def _len(value: Any) -> int:
    """Characters of a scalar or a key as compact JSON."""
    if isinstance(value, str):
        if value.isprintable():
            return len(value) + 2 + value.count('"') + value.count("\\")
        return len(json.dumps(value, ensure_ascii=False))
    return len(compact(value))


def _share(sizes: list[int], room: int) -> list[int]:
    """Room for each: the small ones whole, the rest in equal parts (water-filling)."""
    shares = [0] * len(sizes)
    left, open_ = max(0, room), len(sizes)
    for i in sorted(range(len(sizes)), key=lambda i: sizes[i]):
        shares[i] = min(sizes[i], left // open_)
        left -= shares[i]
        open_ -= 1
    return shares


def _pack_string(text: str, room: int) -> str:
    """A JSON string of at most ``room`` characters, its missing part counted."""
    mark = f" …(+{len(text):,})"
    inner = room - 2 - len(mark)
    if inner <= 0:
        return f'"…(+{len(text):,})"'
    head = cut_at_edge(text, inner)
    while head and (over := _len(head) - 2 - inner) > 0:
        head = cut_at_edge(head, max(0, len(head) - over))
    return json.dumps(f"{head} …(+{len(text) - len(head):,})", ensure_ascii=False)
