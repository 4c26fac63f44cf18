"""Chooses the segments that are worth most for a token budget: budgeted maximum coverage."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from memory_bank.selection.tables import Array, EvidenceTables

EDGE = 0.2
"""Extra worth of a segment whose neighbour was chosen, as a share of the values at the cut."""
NEAR_MISSES = 12


@dataclass(frozen=True, slots=True)
class ShortForm:
    """A segment with its long values shortened: its tokens, and by value of the segment whether it is shown."""

    tokens: int
    shown: Array


@dataclass(slots=True)
class Packing:
    """The chosen segments in the order of choice, the gain of each, and the best ones that did not fit."""

    chosen: list[int] = field(default_factory=list)
    gains: dict[int, float] = field(default_factory=dict)
    edge: list[tuple[int, float]] = field(default_factory=list)


def pack(
    t: EvidenceTables,
    segments: Array,
    worth: Array,
    open_record: Mapping[int, int],
    open_block: Sequence[Sequence[int]],
    budget: int,
    shown_by: Mapping[int, Array],
    short: Mapping[int, ShortForm],
) -> Packing:
    """Choose segments by budgeted maximum coverage (lazy greedy); ties go to the later segment.

    A segment gains the `worth` of its values that no chosen one has, times its `factor`, and its worth as text
    that may be `copied`, per token. It costs its tokens, and those of its gap mark, its record's line and its
    block's heading until another one of the record or block is chosen. ``shown_by``: the values, by record, that its
    line or its call shows: its segments gain nothing by them, nor do others once a segment of it is chosen.
    ``short``: segments that are packed in their short form.
    """
    result = Packing()
    total = len(segments)
    if budget <= 0 or not total:
        return result
    length = t.segments["count"][segments]
    stop = np.cumsum(length)
    at = np.arange(int(stop[-1])) + np.repeat(t.segments["start"][segments] - (stop - length), length)
    flat = t.pairs["value"][at]
    record: list[int] = t.segments["record"][segments].tolist()
    width = len(worth)
    if known := [values.astype(np.int64) + r * width for r, values in shown_by.items() if len(values)]:
        owners = np.repeat(t.segments["record"][segments], length).astype(np.int64)
        flat = np.where(np.isin(flat + owners * width, np.concatenate(known)), width, flat)
    tokens: list[int] = t.segments["tokens"][segments].tolist()
    for at_place, segment in enumerate(segments.tolist() if short else ()):
        if segment in short:
            tokens[at_place] = short[segment].tokens
            end = stop[at_place]
            flat[end - length[at_place] : end][~short[segment].shown] = width
    worth = np.append(worth, 0.0)  # of values that are shown anyway, or that a short form leaves out
    sums = np.concatenate([np.zeros(1), np.cumsum(worth[flat])])
    factors, copied = t.segments["factor"][segments], t.segments["copied"][segments].tolist()
    factor: list[float] = factors.tolist()
    gains: list[float] = (factors * (sums[stop] - sums[stop - length]) + copied).tolist()
    left: list[float] = worth.tolist()  # worth of each value that is not covered yet
    all_values: list[int] = flat.tolist()
    ends: list[int] = [0, *stop.tolist()]  # of the values of each segment
    gaps: list[int] = t.segments["gap"][segments].tolist()
    place = t.segments["place"][segments].tolist()
    blocks: list[int] = t.segments["block"][segments].tolist()
    block = list(zip(record, blocks, strict=True))
    record_cost, block_cost = dict(open_record), {b: open_block[b[0]][b[1]] for b in block}
    of_record: dict[int, list[int]] = {}
    for n, owner in enumerate(record):
        of_record.setdefault(owner, []).append(n)
    bonus = [0.0] * total
    done = bytearray(total)

    def price(n: int) -> int:
        return tokens[n] + gaps[n] + record_cost[record[n]] + block_cost[block[n]]

    def values_of(n: int) -> list[int]:
        return all_values[ends[n] : ends[n + 1]]

    prices = zip(gains, tokens, gaps, record, block, strict=True)
    heap = [
        (-gain / (size + gap + record_cost[r] + block_cost[b]), -n)
        for n, (gain, size, gap, r, b) in enumerate(prices)
    ]
    heapq.heapify(heap)
    spent = 0
    while heap:
        negative, minus = heapq.heappop(heap)
        n = -minus
        if done[n]:
            continue
        gain = gains[n] = factor[n] * sum(map(left.__getitem__, values_of(n)), bonus[n]) + copied[n]
        if gain <= 1e-9:
            continue
        cost = price(n)
        if heap and gain / cost < -heap[0][0] and gain / cost < -negative:
            heapq.heappush(heap, (-gain / cost, minus))
            continue
        done[n] = 1
        if spent + cost > budget:
            if len(result.edge) < NEAR_MISSES:
                result.edge.append((int(segments[n]), gain))
            if budget - spent < 6 or (len(result.edge) >= NEAR_MISSES and budget - spent < 25):
                break
            continue
        result.chosen.append(int(segments[n]))
        result.gains[int(segments[n])] = gain
        spent += cost
        opened_record, opened_block = record_cost[record[n]], block_cost[block[n]]
        record_cost[record[n]] = block_cost[block[n]] = 0
        values = values_of(n)
        for other, near in ((n + 1, values[-2:]), (n - 1, values[:1])):
            if (
                0 <= other < total
                and not done[other]
                and record[other] == record[n]
                and abs(place[other] - place[n]) == 1
            ):
                extra = EDGE * sum([left[v] for v in near])
                bonus[other] += extra
                gains[other] += extra
                gaps[other] = 0
                heapq.heappush(heap, (-gains[other] / price(other), -other))
        for value in values:
            left[value] = 0.0
        for value in shown_by[record[n]].tolist() if opened_record and shown_by else ():
            left[value] = 0.0
        if opened_record or opened_block:
            for other in of_record[record[n]]:
                if not done[other] and (opened_record or block[other] == block[n]):
                    heapq.heappush(heap, (-gains[other] / price(other), -other))
    return result
