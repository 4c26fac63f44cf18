"""Packs segments into a budget so that what the next call may need is covered once (lazy greedy)."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from memory_bank.selection.tables import Array


@dataclass(frozen=True, slots=True)
class Offer:
    """Segments on offer. Arrays by segment unless said otherwise; costs in tokens.

    `start`/`count` give each segment's slice of `pair_value`; `worth` is by value; opening a
    record costs `open_record[record]`, a block `open_block[block]` (by number).
    """

    segments: Array
    tokens: Array
    record: Array
    block: Array
    place: Array
    start: Array
    count: Array
    pair_value: Array
    worth: Array
    open_record: Array
    open_block: Array


@dataclass(slots=True)
class Packing:
    """What was chosen, in order of choice, with each one's gain; `edge`: best ones that did not fit."""

    chosen: list[int] = field(default_factory=list)
    gains: dict[int, float] = field(default_factory=dict)
    spent: int = 0
    edge: list[tuple[int, float]] = field(default_factory=list)


def pack(
    offer: Offer,
    budget: int,
    gap: int = 0,
    power: float = 1.0,
    covered: Sequence[int] = (),
    repeat: float = 0.0,
    least: float = 0.0,
    edge: float = 0.0,
) -> Packing:
    """Budgeted maximum coverage; ties go to the later segment. Each position refers to `offer.segments`."""
    result = Packing()
    total = len(offer.segments)
    if budget <= 0 or not total:
        return result
    ends = np.cumsum(offer.count)
    at = np.arange(int(ends[-1])) + np.repeat(offer.start - (ends - offer.count), offer.count)
    needed, local = np.unique(offer.pair_value[at], return_inverse=True)
    amounts = offer.worth[needed]
    amounts[np.isin(needed, np.asarray(covered, dtype=np.int64))] = 0
    prices = offer.tokens + gap + offer.open_record[offer.record] + offer.open_block[offer.block]
    sums = np.concatenate([np.zeros(1), np.cumsum(amounts[local])])
    first = sums[ends] - sums[ends - offer.count]
    heap = list(zip((-first / prices**power).tolist(), range(0, -total, -1), strict=True))
    heapq.heapify(heap)
    worth: list[float] = amounts.tolist()
    flat: list[int] = local.tolist()
    last, length = ends.tolist(), offer.count.tolist()
    tokens, record, block = (offer.tokens + gap).tolist(), offer.record.tolist(), offer.block.tolist()
    record_cost, block_cost = offer.open_record.tolist(), offer.open_block.tolist()
    of_record: dict[int, list[int]] = {}
    for number, owner in enumerate(record):
        of_record.setdefault(owner, []).append(number)

    gains = first.tolist()
    bonus = [0.0] * total
    place = offer.place.tolist()

    def row_of(number: int) -> list[int]:
        return flat[last[number] - length[number] : last[number]]

    def gain_of(number: int) -> float:
        return sum(map(worth.__getitem__, row_of(number)), bonus[number])

    def cost_of(number: int) -> int:
        return int(tokens[number] + record_cost[record[number]] + block_cost[block[number]])

    taken = bytearray(total)
    while heap:
        negative, minus = heapq.heappop(heap)
        number = -minus
        if taken[number]:
            continue
        gain = gains[number] = gain_of(number)
        if gain <= 1e-9:
            continue
        price = cost_of(number)
        ratio = gain / price**power
        if heap and ratio < -heap[0][0] and ratio < -negative:
            heapq.heappush(heap, (-ratio, minus))
            continue
        if ratio < least:
            break
        taken[number] = 1
        if result.spent + price > budget:
            if len(result.edge) < 12:
                result.edge.append((number, gain))
            if budget - result.spent < 6 or (len(result.edge) >= 12 and budget - result.spent < 25):
                break
            continue
        result.chosen.append(number)
        result.gains[number] = gain
        result.spent += price
        opened_block, opened_record = block_cost[block[number]], record_cost[record[number]]
        record_cost[record[number]] = block_cost[block[number]] = 0
        row = row_of(number)
        if edge:
            for other, near in ((number + 1, row[-2:]), (number - 1, row[:1])):
                if (
                    0 <= other < total
                    and not taken[other]
                    and record[other] == record[number]
                    and abs(place[other] - place[number]) == 1
                ):
                    extra = edge * sum([worth[v] for v in near])
                    bonus[other] += extra
                    gains[other] += extra
                    heapq.heappush(heap, (-gains[other] / cost_of(other) ** power, -other))
        for value in row:
            worth[value] *= repeat
        if opened_record or opened_block:
            for other in of_record[record[number]]:
                if not taken[other] and (opened_record or block[other] == block[number]):
                    heapq.heappush(heap, (-gains[other] / cost_of(other) ** power, -other))
    return result
