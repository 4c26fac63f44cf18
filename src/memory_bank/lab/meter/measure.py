"""One trace through one strategy: every turn's context, held against what the turn needed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from memory_bank.lab.meter.costs import Costs
from memory_bank.lab.meter.matching import Page, Reader
from memory_bank.lab.meter.needs import Need, Turn
from memory_bank.lab.meter.reach import Reach
from memory_bank.lab.meter.recall import context_pages, recall
from memory_bank.lab.meter.strategies import Running
from memory_bank.lab.traces import Trace
from memory_bank.transcript.interactions import Kind, kind_of
from memory_bank.transcript.pairing import pairing_errors


@dataclass(frozen=True, slots=True)
class Found:
    """What became of one need: its value stands in the context, it is bound, an exact fetch brings it.

    ``age`` and ``kind`` are the need's own. ``reachable`` is only asked of what is not present, and only of
    what is older than the last interaction: else None.
    """

    present: bool
    bound: bool
    age: int
    kind: str
    first_use: bool
    reachable: bool | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One step: tokens of the context, of the full history, its anchor and its last interaction."""

    kind: str
    tokens: int
    full: int
    anchor: int
    last: int
    seconds: float
    error: str  # the type of the exception, or nothing
    broken: bool  # the context has broken pairs that the trace's own messages have not
    found: tuple[Found, ...]


def measure_trace(
    trace: Trace, turns: Sequence[Turn], running: Running, costs: Costs, reader: Reader
) -> list[Row]:
    """The rows of a trace, one a turn. A strategy that raises has an empty context at that turn.

    Only what a tool told first counts as a need here, as in the reference meter.
    """
    ledger = _Ledger(trace.messages, costs)
    reach = Reach(reader)
    rows: list[Row] = []
    for turn in turns:
        needs = [n for n in turn.needs if n.born == "tool"]
        original = trace.messages[: turn.position]
        prefix = [copied(m) for m in original]
        error = ""
        context: list[Any] = []
        start = time.perf_counter()
        try:
            context = running.build(prefix, needs)
        except Exception as e:  # counted, not fatal: the next step is asked all the same
            error = type(e).__name__
        seconds = time.perf_counter() - start
        broken = pairing_errors(context)
        pages = context_pages(context, reader) if needs else []
        rows.append(
            Row(
                kind=turn.kind,
                tokens=costs.total(context),
                full=ledger.full[turn.position],
                anchor=ledger.anchor[turn.position],
                last=ledger.last[turn.position],
                seconds=seconds,
                error=error,
                broken=len(broken) > (len(pairing_errors(original)) if broken else 0),
                found=tuple(_found(turn, needs, pages, running, reach)),
            )
        )
    return rows


def _found(
    turn: Turn, needs: Sequence[Need], pages: Sequence[Page], running: Running, reach: Reach
) -> Iterable[Found]:
    recalled = [recall(need, pages) for need in needs]
    left_out = [n for n, (present, _) in zip(needs, recalled, strict=True) if not present and n.age > 1]
    asked = turn.kind == "call" and left_out
    fetched = reach.fetchable(left_out, pages, running.facts) if asked else {}
    for need, (present, bound) in zip(needs, recalled, strict=True):
        reachable = fetched.get(need.value)
        yield Found(present, bound, need.age, need.kind, need.first_use, reachable)


class _Ledger:
    """Running sums over a trace: tokens of the first i messages, i = 0 … n."""

    def __init__(self, messages: Sequence[Any], costs: Costs) -> None:
        tokens = [costs.of(m) for m in messages]
        kinds = [kind_of(m) for m in messages]
        self.full = list(accumulate(tokens, initial=0))
        asked = (t if k in (Kind.SYSTEM, Kind.USER) else 0 for t, k in zip(tokens, kinds, strict=True))
        self.anchor = list(accumulate(asked, initial=0))
        self.last = [0]
        latest = 0
        for count, kind in zip(tokens, kinds, strict=True):
            if kind is Kind.CALL:
                latest = count
            elif kind is Kind.RESULT:
                latest += count
            self.last.append(latest)


def copied(value: Any) -> Any:
    """A copy of a JSON value's containers; texts are shared, for they cannot be changed.

    What is nested too deeply for a copy is given as it is.
    """
    try:
        return _copied(value)
    except RecursionError:
        return value


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _copied(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_copied(v) for v in value]
    return value
