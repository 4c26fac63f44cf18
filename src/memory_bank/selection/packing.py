"""Chooses the segments that are worth most for a token budget: budgeted maximum coverage."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from memory_bank.selection.tables import Array, EvidenceTables

EDGE = 0.2
"""Extra worth of a segment whose neighbour was chosen, as a share of the values at the cut."""
NEAR_MISSES = 12


class ShortForm(NamedTuple):
    """A segment with its long values shortened: its tokens, and by value of the segment whether it is shown."""

    tokens: int
    shown: Array


def pack(
    t: EvidenceTables,
    segments: Array,
    worth: Array,
    open_record: Mapping[int, int],
    open_block: Sequence[Sequence[int]],
    budget: int,
    shown_by: Mapping[int, Array],
    short: Mapping[int, ShortForm],
) -> tuple[dict[int, float], list[tuple[int, float]]]:
    """Choose segments by budgeted maximum coverage (lazy greedy); ties go to the later segment.

    A segment gains the `worth` of its values that no chosen one has, times its `factor`, and its worth as text
    that may be `copied`, per token. It costs its tokens, and those of its gap mark, its record's line and its
    block's heading until another one of the record or block is chosen. ``shown_by``: the values, by record, that its
    line or its call shows: its segments gain nothing by them, nor do others once a segment of it is chosen.
    ``short``: segments that are packed in their short form.

    Returns the gain of each chosen segment, in the order of choice, and the best segments that did not fit.
    """
    chosen: dict[int, float] = {}
    edge: list[tuple[int, float]] = []
    total = len(segments)
    if budget <= 0 or not total:
        return chosen, edge
    s = {name: t.segments[name][segments] for name in ("record", "start", "count", "factor", "copied")}
    stop = np.cumsum(s["count"])
    at = np.arange(int(stop[-1])) + np.repeat(s["start"] - (stop - s["count"]), s["count"])
    flat = t.pairs["value"][at]
    width = len(worth)
    if known := [values.astype(np.int64) + r * width for r, values in shown_by.items() if len(values)]:
        owners = np.repeat(s["record"], s["count"]).astype(np.int64)
        flat = np.where(np.isin(flat + owners * width, np.concatenate(known)), width, flat)
    names: list[int] = segments.tolist()
    tokens: list[int] = t.segments["tokens"][segments].tolist()
    gaps: list[int] = t.segments["gap"][segments].tolist()
    place: list[int] = t.segments["place"][segments].tolist()
    for n, segment in enumerate(names if short else ()):
        if segment in short:
            tokens[n] = short[segment].tokens
            flat[stop[n] - s["count"][n] : stop[n]][~short[segment].shown] = width
    worth = np.append(worth, 0.0)  # of values that are shown anyway, or that a short form leaves out
    sums = np.concatenate([np.zeros(1), np.cumsum(worth[flat])])
    gains: list[float] = (s["factor"] * (sums[stop] - sums[stop - s["count"]]) + s["copied"]).tolist()
    left: list[float] = worth.tolist()  # worth of each value that is not covered yet
    all_values: list[int] = flat.tolist()
    ends: list[int] = [0, *stop.tolist()]  # of the values of each segment
    record: list[int] = s["record"].tolist()
    factor, copied = s["factor"].tolist(), s["copied"].tolist()
    block: list[tuple[int, int]] = list(zip(record, t.segments["block"][segments].tolist(), strict=True))
    record_cost, block_cost = dict(open_record), {(r, b): open_block[r][b] for r, b in block}
    of_record: dict[int, list[int]] = {}
    for n, owner in enumerate(record):
        of_record.setdefault(owner, []).append(n)
    bonus = [0.0] * total
    done = bytearray(total)

    def price(n: int) -> int:
        return tokens[n] + gaps[n] + record_cost[record[n]] + block_cost[block[n]]

    heap = [(-gains[n] / price(n), -n) for n in range(total)]
    heapq.heapify(heap)
    while heap:
        negative, minus = heapq.heappop(heap)
        n = -minus
        if done[n]:
            continue
        values = all_values[ends[n] : ends[n + 1]]
        gain = gains[n] = factor[n] * sum(map(left.__getitem__, values), bonus[n]) + copied[n]
        if gain <= 1e-9:
            continue
        cost = price(n)
        if heap and gain / cost < -heap[0][0] and gain / cost < -negative:
            heapq.heappush(heap, (-gain / cost, minus))
            continue
        done[n] = 1
        if cost > budget:
            if len(edge) < NEAR_MISSES:
                edge.append((names[n], gain))
            if budget < 6 or (len(edge) >= NEAR_MISSES and budget < 25):
                break
            continue
        chosen[names[n]] = gain
        budget -= cost
        opened_record, opened_block = record_cost[record[n]], block_cost[block[n]]
        record_cost[record[n]] = block_cost[block[n]] = 0
        cheaper: list[int] = []  # or worth more
        for other, near in ((n + 1, values[-2:]), (n - 1, values[:1])):
            is_beside = 0 <= other < total and record[other] == record[n]
            if is_beside and not done[other] and abs(place[other] - place[n]) == 1:
                extra = EDGE * sum([left[v] for v in near])
                bonus[other] += extra
                gains[other] += extra
                gaps[other] = 0
                cheaper.append(other)
        for value in values:
            left[value] = 0.0
        for value in shown_by[record[n]].tolist() if opened_record and shown_by else ():
            left[value] = 0.0
        if opened_record or opened_block:
            others = (o for o in of_record[record[n]] if opened_record or block[o] == block[n])
            cheaper += [other for other in others if not done[other]]
        for other in cheaper:
            heapq.heappush(heap, (-gains[other] / price(other), -other))
    return chosen, edge
