"""Fills a budget with what is worth most and writes it: the ledger of past calls, then excerpts."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from memory_bank.selection.candidates import fold
from memory_bank.selection.cover import Offer, Packing, pack
from memory_bank.selection.excerpt import (
    EXCERPT_HEAD,
    LEDGER_HEAD,
    SHORT_HEAD,
    UNLISTED_HEAD,
    Group,
    call_line,
    ledger_start,
    render_groups,
)
from memory_bank.selection.prepared import Prepared
from memory_bank.selection.session import Session
from memory_bank.selection.tables import Array

ARGUMENT_ROOM = (-1, 0, 24, 40, 72)
"""Characters of arguments in a call's line, from the tersest form (its number only) to the ledger's."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """Knobs of the packing; defaults chosen over all shared sets together."""

    ledger_share: float = 0.06
    power: float = 1.0
    refine: int = 500
    offers: int = 150
    offers_share: float = 0.125
    word_worth: float = 0.5
    agent_worth: float = 0.3
    error_worth: float = 0.25
    refused_worth: float = 0.1
    repeat: float = 0.0
    least: float = 0.0
    edge: float = 0.2
    terse: tuple[int, int, int, int] = (160, 1300, 1600, 3000)
    headless: int = 200
    uncounted: int = 700
    ledgerless: int = 1800


@dataclass(frozen=True, slots=True)
class Selection:
    """The memory block and what it is made of."""

    text: str
    tokens: int
    shown: dict[int, tuple[int, ...]] = field(default_factory=dict)
    listed: tuple[int, ...] = ()
    gains: dict[int, float] = field(default_factory=dict)
    edge: tuple[tuple[int, float], ...] = ()
    older: int = 0


class Lines:
    """The line of each call in several lengths, with their tokens; kept beside the session."""

    def __init__(self, session: Session, count: Callable[[str], int]) -> None:
        self.session = session
        self.count = count
        self.calls = 0
        self.records: list[int] = []  # of each call
        self.tokens: list[int] = [0]  # of the ledger before each call
        self.texts: list[tuple[tuple[str, int], ...]] = []  # by record
        self.values: list[Array] = []  # that each record's line shows
        self.block_tokens: list[list[int]] = []

    def add(self, item: Prepared) -> None:
        """Take in what the session has just taken in."""
        if item.note:
            line = f"note before #{self.calls + 1}"
            short = self.count(line + "\n")
            self.texts.append(((line, short),) * len(ARGUMENT_ROOM))
            self.values.append(np.zeros(0, np.int32))
        else:
            self.calls += 1
            self.records.append(self.session.records.size - 1)
            name = item.call_text.split(" ", 2)[:2]
            lines = (
                [name[0], " ".join(name)]
                + [call_line(self.calls, item.tool, item.arguments, chars) for chars in ARGUMENT_ROOM[2:-1]]
                + [item.call_text]
            )
            self.texts.append(tuple((line, self.count(line + "\n")) for line in lines))
            self.tokens.append(self.tokens[-1] + self.texts[-1][-1][1])
            folded = fold(item.call_text)
            self.values.append(
                np.array(
                    [
                        self.session.ids[u.form]
                        for u in item.uses
                        if u.form in self.session.ids and u.form in folded
                    ],
                    np.int32,
                )
            )
        self.block_tokens.append([self.count(b.head + "\n") if b.head else 0 for b in item.pieces.blocks])


def fill(s: Session, lines: Lines, worth: Array, older: int, budget: int, t: Tuning) -> Selection:
    """The memory text of at most `budget` tokens; `worth` by value, `older` records are on offer."""
    form = sum(budget >= limit for limit in t.terse)
    listed = _ledger(lines, older, int(budget * t.ledger_share)) if budget >= t.ledgerless else []
    in_ledger = set(listed)
    head = ""
    if budget >= t.headless:
        head = EXCERPT_HEAD if budget >= 600 else SHORT_HEAD
        if not listed:
            head = UNLISTED_HEAD.format(last=bisect_left(lines.records, older))
    spent = lines.count(head) if head else 0
    if listed:
        spent += sum(lines.texts[r][-1][1] for r in listed) + 16
    top = _worthy(s, worth, older, int(t.offers + budget * t.offers_share))
    used = np.unique(s.segments["record"][top]).tolist()
    headers = {r: lines.texts[r][min(1, form) if r in in_ledger else form] for r in used}
    offer = _offer(s, lines, worth, top, headers, 3 if budget >= t.uncounted else 0)
    covered = [v for r in listed for v in lines.values[r].tolist()]
    packing = pack(offer, budget - spent, 1, t.power, covered, t.repeat, t.least, t.edge)
    text, chosen, listed = _write(s, lines, packing, top, headers, listed, head, budget, t)
    shown: dict[int, list[int]] = {}
    for number in chosen:
        shown.setdefault(int(s.segments["record"][top[number]]), []).append(
            int(s.segments["place"][top[number]])
        )
    return Selection(
        text,
        lines.count(text) if text else 0,
        {record: tuple(sorted(places)) for record, places in shown.items()},
        tuple(listed),
        {int(top[n]): packing.gains[n] for n in chosen},
        tuple((int(top[n]), g) for n, g in packing.edge),
        older,
    )


def _ledger(lines: Lines, older: int, room: int) -> list[int]:
    """The records of the calls that are listed."""
    end = bisect_left(lines.records, older)
    if room < 32 or not end:
        return []
    return lines.records[ledger_start(lines.tokens, end, room - 12) : end]


def _worthy(s: Session, worth: Array, older: int, most: int) -> Array:
    """The older segments that give most for their tokens, in their order."""
    last = s.first_segment[older] if older < s.records.size else s.segments.size
    gain = np.zeros(last)
    filled = np.flatnonzero(s.segments["count"][:last])
    if len(filled):
        end = int(s.segments["start"][filled[-1]] + s.segments["count"][filled[-1]])
        gain[filled] = np.add.reduceat(worth[s.pairs["value"][:end]], s.segments["start"][filled])
    top = np.flatnonzero(gain > 0)
    if len(top) > most:
        ratio = gain[top] / (s.segments["tokens"][top] + 4)
        top = np.sort(top[np.argpartition(-ratio, most)[:most]])
    return top


def _offer(
    s: Session, lines: Lines, worth: Array, top: Array, headers: dict[int, tuple[str, int]], rest: int
) -> Offer:
    seg = s.segments
    records = seg["record"][top]
    used = np.unique(records)
    open_block: list[int] = []
    block_of: dict[tuple[int, int], int] = {}
    blocks = []
    for r, b in zip(records.tolist(), seg["block"][top].tolist(), strict=True):
        number = block_of.get((r, b))
        if number is None:
            number = block_of[(r, b)] = len(open_block)
            open_block.append(lines.block_tokens[r][b])
        blocks.append(number)
    return Offer(
        top,
        seg["tokens"][top],
        np.searchsorted(used, records),
        np.array(blocks, np.int64),
        seg["place"][top],
        seg["start"][top],
        seg["count"][top],
        s.pairs["value"],
        worth,
        np.array([headers[r][1] + rest for r in used.tolist()], np.int64),
        np.array(open_block, np.int64),
    )


def _write(
    s: Session,
    lines: Lines,
    packing: Packing,
    top: Array,
    headers: dict[int, tuple[str, int]],
    listed: list[int],
    head: str,
    budget: int,
    t: Tuning,
) -> tuple[str, list[int], list[int]]:
    """Text, chosen and listed; what makes the text too long (tokens do not add up exactly) is left away."""
    chosen = list(packing.chosen)
    place, owner = s.segments["place"], s.segments["record"]
    while True:
        by_record: dict[int, list[int]] = {}
        for number in chosen:
            by_record.setdefault(int(owner[top[number]]), []).append(int(place[top[number]]))
        groups = [
            Group(headers[record][0], s.prepared[record].pieces, tuple(sorted(by_record[record])))
            for record in sorted(by_record)
        ]
        excerpts = render_groups(groups, budget >= t.uncounted)
        text = "".join([*_listing(s, listed), *([head] if head and groups else []), *excerpts])
        over = lines.count(text) - budget if text else 0
        if over <= 0:
            return text, chosen, listed
        if chosen:
            while chosen and over > 0:
                over -= int(s.segments["tokens"][top[chosen.pop()]])
        elif listed:
            listed = []
        else:
            return text, chosen, listed


def _listing(s: Session, listed: list[int]) -> list[str]:
    """The ledger's lines."""
    if not listed:
        return []
    first = int(s.prepared[listed[0]].call_text.split(" ", 1)[0][1:])
    before = [f"(#1 to #{first - 1} before)\n"] if first > 1 else []
    return [LEDGER_HEAD, *before, *(s.prepared[r].call_text + "\n" for r in listed)]
