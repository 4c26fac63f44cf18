"""Writes the memory block: a ledger of past calls, then excerpts in their order."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from memory_bank.selection.jsonish import clean
from memory_bank.selection.pieces import Pieces

LEDGER_HEAD = 'Earlier calls (get_record("#n") has each in full):\n'
EXCERPT_HEAD = "Excerpts (… left out, +n parts more):\n"
UNLISTED_HEAD = '#1 to #{last}, in parts; get_record("#n") has all:\n'
SHORT_HEAD = "Excerpts:\n"
GAP = "… "
ARGUMENT_CHARS = 72
_CUT = re.compile(r"[\s,;)\]}]")


def call_line(number: int, tool: str, arguments: str, chars: int = ARGUMENT_CHARS) -> str:
    """One line for a call: `#number tool key=value, …`, arguments cut at a word's end."""
    body = arguments_text(arguments, chars)
    return f"#{number} {clean(tool)[:80]}" + (f" {body}" if body else "")


def arguments_text(arguments: str, chars: int) -> str:
    """Arguments as `key=value, …`, never cut inside a word; `…` marks a cut."""
    try:
        value = json.loads(arguments) if arguments else {}
    except (ValueError, RecursionError):
        value = arguments
    if not isinstance(value, dict):
        return clip(arguments, chars)
    parts: list[str] = []
    room = chars
    for key, item in value.items():
        if item in ("", None, [], {}):
            continue
        if not isinstance(item, str):
            try:
                item = json.dumps(item, ensure_ascii=False)
            except (ValueError, RecursionError):
                item = "…"
        part = f"{clean(str(key))[:40]}={clip(item, max(24, room))}"
        if parts and len(part) > room:
            parts.append("…")
            break
        parts.append(part)
        room -= len(part) + 2
    return ", ".join(parts)


def clip(text: str, chars: int) -> str:
    """The first words of a text on one line, at most about `chars` characters."""
    text = " ".join(text[: chars * 8 + 400].split())
    text = clean(text)
    if len(text) <= chars:
        return text
    cut = 0
    for match in _CUT.finditer(text, 0, chars + 1):
        cut = match.start()
    if not cut:
        after = _CUT.search(text, 0, chars * 4)
        if after is None:
            return text if len(text) <= chars * 4 else f"[{len(text)} characters]"
        cut = after.start()
    return text[:cut] + "…"


@dataclass(frozen=True, slots=True)
class Group:
    """The excerpts of one record: its header and the places of the segments shown."""

    header: str
    pieces: Pieces
    places: tuple[int, ...]


def render_groups(groups: Sequence[Group], count_missing: bool = True) -> list[str]:
    """Lines of the excerpts, each with its line break; `count_missing` adds what is left out."""
    out: list[str] = []
    for group in groups:
        out.append(group.header + "\n")
        block, previous = -1, -1
        segments = group.pieces.segments
        for place in group.places:
            segment = segments[place]
            if segment.block != block:
                block = segment.block
                head = group.pieces.blocks[block].head
                if head and not segment.text.startswith(head):
                    out.append(head + "\n")
            gap = GAP if place != previous + 1 else ""
            out.append(gap + segment.text + "\n")
            previous = place
        missing = len(segments) - len(group.places)
        if count_missing and (missing or group.pieces.skipped):
            out.append(_missing(group, missing) + "\n")
    return out


def _missing(group: Group, parts: int) -> str:
    return f"+{parts}" + (f" and {group.pieces.skipped} characters" if group.pieces.skipped else "")


def ledger_start(total: Sequence[int], end: int, room: int) -> int:
    """First of the calls before `end` that are listed in `room` tokens.

    `total[i]` is the tokens of the lines before call i. The start moves in steps of two fifths of
    the room, so that from step to step the list mostly grows at its end.
    """
    excess = total[end] - room
    if excess <= 0:
        return 0
    step = max(1, room * 2 // 5)
    return bisect_left(total, -(-excess // step) * step, 0, end)
