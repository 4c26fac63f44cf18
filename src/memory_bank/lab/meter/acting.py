"""Whether an agent can act on a context: the past calls that it tells of, and the text that the next call copies.

The reference meter defines both shares (``evbench.acting``). They are taken at every turn that has an interaction
before the last one: calls and texts older than the last interaction are the ones that a memory may leave out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any, Unpack

from memory_bank.lab.costs import Costs
from memory_bank.lab.meter.copies import SHORTEST, TextIndex, as_copied, covered, stretches
from memory_bank.lab.meter.figures import TracePart, intervals_of, json_value, p95, ratio, ratio_of_sums
from memory_bank.lab.meter.matching import Reader
from memory_bank.lab.meter.measure import Measurement, MeasureOptions, RowsOf, measure_by
from memory_bank.lab.meter.past_calls import (
    PastCall,
    Telling,
    argument_texts,
    lines_of,
    past_calls,
    tellings,
    told,
)
from memory_bank.lab.replay import PlayedTurn, play
from memory_bank.lab.strategies import Strategy, StrategyRun
from memory_bank.lab.tables import Column, milliseconds, percent, whole
from memory_bank.lab.traces import Trace, content_texts, is_turn
from memory_bank.transcript import MessageKind, calls_of, kind_of, read

_LETTER = re.compile(r"\w")
_LEAST_LETTERS = SHORTEST // 2  # a copied stretch has at least this many letters, digits and underscores
_NEAR = (
    0.5  # of a stretch in the anchor or the last interaction: then it is not needed from the older history
)


@dataclass(frozen=True, slots=True)
class ActingTurn:
    """What a context could tell at one turn, and the stretches that the turn's calls copy from older history.

    ``past`` are the calls older than the last interaction; ``from_outputs`` and ``from_own`` are stretches of past
    outputs and of the agent's own words and arguments. ``last_start`` is where the last interaction begins.
    """

    position: int
    last_start: int
    past: tuple[Telling, ...]
    from_outputs: tuple[str, ...]
    from_own: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tally:
    """A number of things, and how many of them a context has."""

    has: int
    of: int


@dataclass(frozen=True, slots=True)
class ActingRow:
    """One turn under a strategy: tokens, time, calls told of, and characters of copied text that are kept.

    ``near`` are the tokens of the anchor and of everything from the last interaction on.
    """

    tokens: int
    full: int
    near: int
    seconds: float
    error: str  # the type of the exception that the strategy raised, or ""
    broken: bool  # the context has broken pairs that the trace itself does not have
    told: Tally
    told_changing: Tally
    outputs: Tally
    own: Tally
    over_lines: Tally


@dataclass(frozen=True, slots=True)
class ActingFigures:
    """The figures of a strategy on a set of traces. Shares are 0 to 1; NaN where there was nothing to share.

    ``told`` and ``told_changing`` are means over turns of each turn's share of past calls; the copied shares are
    over all characters. ``copied`` is over outputs and own writing together. ``intervals`` are 95% bounds by
    bootstrap over traces.
    """

    traces: int
    steps: int
    told: float
    told_changing: float
    copied: float
    copied_outputs: float
    copied_own: float
    copied_over_lines: float
    characters_outputs: int
    characters_own: int
    characters_over_lines: int
    tokens: float
    full_tokens: float
    share_of_history: float
    ms: float
    ms_p95: float
    exceptions: int
    broken: int
    intervals: dict[str, tuple[float, float]]

    def as_dict(self) -> dict[str, Any]:
        """JSON values; NaN is None."""
        return {k: json_value(v) for k, v in asdict(self).items()}


def measure_acting(
    traces: Sequence[Trace], strategies: Sequence[Strategy], **options: Unpack[MeasureOptions]
) -> list[Measurement[ActingRow, ActingFigures]]:
    """Measure strategies on traces; returns one Measurement a strategy, in their order. See ``measure``."""
    return measure_by(_prepare, acting_figures, traces, strategies, **options)


def _prepare(trace: Trace, reader: Reader, costs: Costs) -> RowsOf[ActingRow]:  # noqa: ARG001
    turns = acting_turns(trace)
    return lambda run: measure_acting_trace(trace, turns, run, costs)


# What a turn needs


def acting_turns(trace: Trace) -> list[ActingTurn]:
    """The turns of a trace that have an interaction before the last one."""
    kinds = [kind_of(m) for m in trace.messages]
    outputs, own, asked = TextIndex(), TextIndex(), TextIndex()
    calls: list[PastCall] = []
    starts: list[int] = []  # of interactions that have a result
    indexed = 0  # messages that are in the indexes
    turns = []
    for position, message in enumerate(trace.messages):
        if kinds[position] is MessageKind.RESULT and position and kinds[position - 1] is MessageKind.CALL:
            starts.append(position - 1)
        if not is_turn(message) or len(starts) < 2:
            continue
        for i in range(indexed, starts[-1]):
            if kinds[i] in (MessageKind.SYSTEM, MessageKind.USER):
                add_texts(asked, trace.messages[i])
            elif kinds[i] is MessageKind.RESULT:
                add_texts(outputs, trace.messages[i])
            elif is_turn(trace.messages[i]):
                add_texts(own, trace.messages[i])
                calls += past_calls(trace.messages[i])
        indexed = starts[-1]
        recent = TextIndex()
        for i in range(starts[-1], position):
            add_texts(recent, trace.messages[i])
        copied = [as_copied(t) for t in argument_texts_of(message) if len(t) >= SHORTEST]
        from_outputs = needed_stretches(copied, outputs, asked, recent)
        from_own = [s for s in needed_stretches(copied, own, asked, recent) if s not in from_outputs]
        turns.append(
            ActingTurn(position, starts[-1], tuple(tellings(calls)), tuple(from_outputs), tuple(from_own))
        )
    return turns


def add_texts(index: TextIndex, message: object) -> None:
    """Add the contents and the arguments of a message to an index."""
    for text in [*content_texts(read(message, "content")), *argument_texts_of(message)]:
        index.add(as_copied(text))


def argument_texts_of(message: object) -> list[str]:
    """The strings and numbers in the arguments of all calls of a message."""
    if kind_of(message) is not MessageKind.CALL:
        return []
    return [text for call in calls_of(message) for text in argument_texts(call.arguments)]


def needed_stretches(texts: Sequence[str], source: TextIndex, *near: TextIndex) -> list[str]:
    """The stretches of texts that stand in a source and mostly not in what every context has."""
    return [
        stretch
        for text in texts
        for stretch in stretches(text, source)
        if len(_LETTER.findall(stretch)) >= _LEAST_LETTERS and covered(stretch, *near) < _NEAR * len(stretch)
    ]


# What a context has


def measure_acting_trace(
    trace: Trace, turns: Sequence[ActingTurn], run: StrategyRun, costs: Costs
) -> list[ActingRow]:
    """The rows of a trace, one for each of its acting turns; the strategy is asked at every model call."""
    by_position = {turn.position: turn for turn in turns}
    positions = [i for i, message in enumerate(trace.messages) if is_turn(message)]
    tokens = list(accumulate((costs.of(m) for m in trace.messages), initial=0))
    asked = [t if kind_of(m) in (MessageKind.SYSTEM, MessageKind.USER) else 0
             for m in trace.messages for t in [costs.of(m)]]  # fmt: skip
    anchor = list(accumulate(asked, initial=0))
    rows = []
    for step in play(trace, run, ((i, ()) for i in positions)):
        turn = by_position.get(step.position)
        if turn is not None:
            near = anchor[turn.last_start] + tokens[turn.position] - tokens[turn.last_start]
            rows.append(_row(turn, step, costs.total(step.context), tokens[turn.position], near))
    return rows


def _row(turn: ActingTurn, step: PlayedTurn, tokens: int, full: int, near: int) -> ActingRow:
    heard = told(turn.past, lines_of(step.context))
    changing = [h for h, call in zip(heard, turn.past, strict=True) if call.changes]
    needed = [*turn.from_outputs, *turn.from_own]
    context = TextIndex()
    if needed:
        for message in step.context:
            add_texts(context, message)
    kept = {stretch: covered(stretch, context) for stretch in set(needed)}
    return ActingRow(
        tokens=tokens,
        full=full,
        near=near,
        seconds=step.seconds,
        error="" if step.error is None else type(step.error).__name__,
        broken=step.broken_pairs > 0,
        told=Tally(sum(heard), len(heard)),
        told_changing=Tally(sum(changing), len(changing)),
        outputs=_characters(turn.from_outputs, kept),
        own=_characters(turn.from_own, kept),
        over_lines=_characters([s for s in needed if "\n" in s.strip()], kept),
    )


def _characters(needed: Sequence[str], kept: dict[str, int]) -> Tally:
    return Tally(sum(kept[s] for s in needed), sum(map(len, needed)))


# Figures


def acting_figures(traces: Sequence[Sequence[ActingRow]]) -> ActingFigures:
    """The figures of a strategy, from the rows of every trace."""
    rows = [row for trace in traces for row in trace]
    shares = {name: ratio_of_sums(map(part, traces)) for name, part in _PARTS.items()}
    seconds = sorted(row.seconds for row in rows)
    return ActingFigures(
        traces=len(traces),
        steps=len(rows),
        characters_outputs=sum(row.outputs.of for row in rows),
        characters_own=sum(row.own.of for row in rows),
        characters_over_lines=sum(row.over_lines.of for row in rows),
        tokens=ratio(sum(row.tokens for row in rows), len(rows)),
        full_tokens=ratio(sum(row.full for row in rows), len(rows)),
        ms=1000 * ratio(sum(seconds), len(rows)),
        ms_p95=1000 * p95(seconds),
        exceptions=sum(bool(row.error) for row in rows),
        broken=sum(row.broken for row in rows),
        intervals=intervals_of(traces, _PARTS),
        **shares,
    )


def _mean_part(of: Callable[[ActingRow], Tally]) -> Callable[[Sequence[ActingRow]], TracePart]:
    def part(trace: Sequence[ActingRow]) -> TracePart:
        shares = [t.has / t.of for t in map(of, trace) if t.of]
        return sum(shares), len(shares)

    return part


def _sum_part(of: Callable[[ActingRow], Sequence[Tally]]) -> Callable[[Sequence[ActingRow]], TracePart]:
    def part(trace: Sequence[ActingRow]) -> TracePart:
        tallies = [t for row in trace for t in of(row)]
        return sum(t.has for t in tallies), sum(t.of for t in tallies)

    return part


_PARTS: dict[str, Callable[[Sequence[ActingRow]], TracePart]] = {
    "told": _mean_part(lambda row: row.told),
    "told_changing": _mean_part(lambda row: row.told_changing),
    "copied": _sum_part(lambda row: (row.outputs, row.own)),
    "copied_outputs": _sum_part(lambda row: (row.outputs,)),
    "copied_own": _sum_part(lambda row: (row.own,)),
    "copied_over_lines": _sum_part(lambda row: (row.over_lines,)),
    "share_of_history": lambda trace: (
        sum(max(0, row.tokens - row.near) for row in trace),
        sum(row.full - row.near for row in trace),
    ),
}


def _half_interval(figures: ActingFigures) -> float:
    low, high = figures.intervals.get("copied", (math.nan, math.nan))
    return (high - low) / 2


ACTING_COLUMNS: tuple[Column[ActingFigures], ...] = (
    Column("told", lambda f: f.told, percent,
           "past calls older than the last interaction that one line tells of, mean over turns, %"),
    Column("changing", lambda f: f.told_changing, percent, "the same for calls that change something, %"),
    Column("outputs", lambda f: f.copied_outputs, percent,
           "characters that the next call copies from older outputs and that stand verbatim in the context, %"),
    Column("own", lambda f: f.copied_own, percent, "the same for what the agent wrote itself, %"),
    Column("over lines", lambda f: f.copied_over_lines, percent,
           "the same for copied stretches that go over the end of a line, %"),
    Column("copied", lambda f: f.copied, percent, "outputs and own writing together, %"),
    Column("±", _half_interval, percent, "half of the 95% interval of copied, points"),
    Column("of history", lambda f: f.share_of_history, percent,
           "tokens beyond anchor and last interaction, % of the older ones"),
    Column("tokens", lambda f: f.tokens, whole, "mean tokens of a context"),
    Column("ms", lambda f: f.ms, milliseconds, "mean milliseconds a step"),
    Column("ms p95", lambda f: f.ms_p95, milliseconds, "milliseconds that 95% of the steps stay below"),
    Column("errors", lambda f: f.exceptions, whole, "steps at which the strategy raised"),
    Column("broken", lambda f: f.broken, whole, "contexts with broken call/result pairs"),
)  # fmt: skip
