"""How likely a language model finds the call that was really made next, given each context: paired differences.

Teacher-forced: no sampling, no judge. Every context of a step is written by one plain template. Steps are those at
which the next call takes a value that only older outputs showed, and a few at which it takes none.
"""

from __future__ import annotations

import json
import math
import random
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from memory_bank.lab.meter.figures import RESAMPLES
from memory_bank.lab.meter.matching import Page, Reader
from memory_bank.lab.meter.needs import Need, NeedyTurn, environment_constants, needs_of
from memory_bank.lab.meter.recall import context_pages, recall
from memory_bank.lab.meter.values import parsed_arguments
from memory_bank.lab.replay import copied
from memory_bank.lab.strategies import Strategy, StrategyRun
from memory_bank.lab.tables import Column, percent, whole
from memory_bank.lab.traces import Trace
from memory_bank.transcript import MessageKind, calls_of, content_text, kind_of, read

LEAST_CALLS = 7
"""Turns that call tools before a step, at least: then there is something to remember."""

LONGEST_ACTION, SHORTEST_ACTION = 700, 30
"""Characters of the next call: longer ones are mostly text, shorter ones without values say nothing."""

_OF_A_TASK = 2  # steps, at most; of a trace one

StepKind = Literal["needs", "control"]


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """One token of an action: where it stands in the text, its negative log-likelihood, and whether it came first."""

    start: int
    stop: int
    nats: float
    first: bool


class Scorer(Protocol):
    """A language model that says how likely a text is after each of several contexts."""

    def count(self, text: str) -> int:
        """Tokens of a text."""

    def score(self, contexts: Mapping[str, str], action: str) -> Iterator[tuple[str, list[ScoredToken]]]:
        """The tokens of the action after each context, by the context's name."""


@dataclass(frozen=True, slots=True)
class LikelihoodStep:
    """A step to score: its contexts by strategy, the next call as text, and where the needed values stand in it."""

    id: str
    kind: StepKind
    action: str
    spans: tuple[tuple[int, int], ...]
    contexts: Mapping[str, str]
    present: Mapping[str, float]  # share of the needed values that stand in each context


@dataclass(frozen=True, slots=True)
class LikelihoodRow:
    """One context of a step under a model.

    ``call`` is the negative log-likelihood of the whole call in nats, ``value`` the mean over the tokens of needed
    values (NaN without any), ``copied`` the share of these tokens that the model predicts first.
    """

    step: str
    kind: StepKind
    strategy: str
    tokens: int
    present: float
    call: float
    value: float
    copied: float


# Steps


def sample_steps(
    traces: Sequence[Trace],
    strategies: Sequence[Strategy],
    scorer: Scorer,
    *,
    needs: int,
    controls: int,
    most_tokens: int,
    seed: str = "",
) -> Iterator[LikelihoodStep]:
    """Seeded steps with their contexts: so many that need an older value, so many that need none.

    A trace gives one step, a task at most two. Left out are steps of which a context or the call does not fit
    ``most_tokens``, and those whose every needed value stands in the anchor or the last interaction.
    """
    constants = environment_constants(traces)
    pools: dict[StepKind, list[tuple[int, NeedyTurn]]] = {"needs": [], "control": []}
    for number, trace in enumerate(traces):
        for kind, turn in _candidates(trace, constants):
            pools[kind].append((number, turn))
    dice = random.Random(zlib.crc32(seed.encode()))
    wanted: dict[StepKind, int] = {"needs": needs, "control": controls}
    for kind, most in wanted.items():
        dice.shuffle(pools[kind])
        used: Counter[str] = Counter()
        taken = 0
        for number, turn in pools[kind]:
            trace = traces[number]
            task = f"task {trace.task or trace.id}"
            if taken >= most or used[f"trace {number}"] or used[task] >= _OF_A_TASK:
                continue
            step = _step(trace, turn, kind, strategies, scorer, most_tokens)
            if step is not None:
                taken += 1
                used.update([f"trace {number}", task])
                yield step


def _candidates(trace: Trace, constants: frozenset[str]) -> Iterator[tuple[StepKind, NeedyTurn]]:
    callers = [i for i, m in enumerate(trace.messages) if kind_of(m) is MessageKind.CALL]
    for turn in needs_of(trace, constants):
        before = sum(i < turn.position for i in callers)
        message = trace.messages[turn.position]
        if turn.kind != "call" or before < LEAST_CALLS or len(calls_of(message)) != 1:
            continue
        action = action_text(message)
        if len(action) > LONGEST_ACTION:
            continue
        if any(n.age > 1 and n.born == "tool" for n in turn.needs):
            yield "needs", turn
        elif not any(n.age > 1 for n in turn.needs) and len(action) > SHORTEST_ACTION:
            yield "control", turn


def _step(
    trace: Trace,
    turn: NeedyTurn,
    kind: StepKind,
    strategies: Sequence[Strategy],
    scorer: Scorer,
    most_tokens: int,
) -> LikelihoodStep | None:
    messages, reader = trace.messages[: turn.position], Reader()
    action = action_text(trace.messages[turn.position])
    values, spans = _values_to_find(turn, messages, action, reader) if kind == "needs" else ([], [])
    if kind == "needs" and not values:
        return None
    tools = tools_text(trace)
    contexts: dict[str, str] = {}
    present: dict[str, float] = {}
    room = most_tokens - scorer.count(action)
    for strategy in strategies:
        with closing(strategy.start(trace, reader)) as run:
            context = _built(run, messages)
        if context is None:
            return None
        contexts[strategy.name] = tools + context_text(context)
        if scorer.count(contexts[strategy.name]) > room:
            return None
        pages = context_pages(context, reader)
        shown = [recall(need, pages)[0] for need in values]
        present[strategy.name] = sum(shown) / len(shown) if shown else math.nan
    return LikelihoodStep(f"{trace.id}@{turn.position}", kind, action, tuple(spans), contexts, present)


def _built(run: StrategyRun, messages: Sequence[Any]) -> list[Any] | None:
    try:
        return run.build(copied(messages))
    except Exception:  # a step at which a strategy fails compares nothing
        return None


def _values_to_find(
    turn: NeedyTurn, messages: Sequence[Any], action: str, reader: Reader
) -> tuple[list[Need], list[tuple[int, int]]]:
    """The needs that neither anchor nor last interaction show, and where they stand in the action."""
    last = max((i for i, m in enumerate(messages) if kind_of(m) is MessageKind.CALL), default=0)
    always = [m for m in messages[:last] if kind_of(m) in (MessageKind.SYSTEM, MessageKind.USER)]
    pages: list[Page] = context_pages([*always, *messages[last:]], reader)
    values, spans = [], []
    for need in turn.needs:
        span = _span_in(action, need.value)
        if need.born == "tool" and need.age > 1 and span and not recall(need, pages)[0]:
            values.append(need)
            spans.append(span)
    return values, spans


def _span_in(action: str, value: str) -> tuple[int, int] | None:
    """Where a value first stands in an action's arguments as a whole token, as it is or as JSON escapes it."""
    start = action.index(" ", 1) if " " in action[1:] else 0
    found = []
    for form in (value, json.dumps(value, ensure_ascii=False)[1:-1], json.dumps(value)[1:-1]):
        if match := re.compile(rf"(?<!\w){re.escape(form)}(?!\w)").search(action, start):
            found.append(match.span())
    return min(found, default=None)


# The template


def context_text(messages: Iterable[object]) -> str:
    """Messages as plain text, up to the next call."""
    parts = []
    for message in messages:
        role = str(read(message, "role"))
        text = content_text(read(message, "content")).strip()
        parts.append(f"### {'result' if role == 'tool' else role}\n{text}{chr(10) if text else ''}")
        if kind_of(message) is MessageKind.CALL:
            parts[-1] += "".join(f"CALL {call.name} {call.text or '{}'}\n" for call in calls_of(message))
    return "\n".join([*parts, "### assistant\nCALL"])


def action_text(message: object) -> str:
    """The first call of a message as the template writes it after ``CALL``."""
    call = calls_of(message)[0]
    return f" {call.name} {call.text or '{}'}\n"


def tools_text(trace: Trace) -> str:
    """The tools that a run uses and the names of their arguments, in place of their schemas."""
    tools: dict[str, set[str]] = {}
    for message in trace.messages:
        for call in calls_of(message) if kind_of(message) is MessageKind.CALL else ():
            arguments = parsed_arguments(call.arguments)
            tools.setdefault(call.name, set()).update(arguments if isinstance(arguments, Mapping) else ())
    lines = [f"{name}({', '.join(sorted(arguments))})" for name, arguments in sorted(tools.items())]
    return '### tools\nCall a tool by a line: CALL name {"argument": "value"}\n' + "\n".join(lines) + "\n\n"


# Scores


def score_step(step: LikelihoodStep, scorer: Scorer) -> Iterator[LikelihoodRow]:
    """The rows of a step, one a context."""
    for name, tokens in scorer.score(step.contexts, step.action):
        needed = [t for t in tokens if any(t.start < stop and start < t.stop for start, stop in step.spans)]
        yield LikelihoodRow(
            step=step.id,
            kind=step.kind,
            strategy=name,
            tokens=scorer.count(step.contexts[name]),
            present=step.present[name],
            call=sum(t.nats for t in tokens),
            value=sum(t.nats for t in needed) / len(needed) if needed else math.nan,
            copied=sum(t.first for t in needed) / len(needed) if needed else math.nan,
        )


@dataclass(frozen=True, slots=True)
class PairedFigures:
    """A strategy against the baseline on the same steps: differences with their 95% intervals; negative is better.

    ``tokens``, ``present`` and ``copied`` are the strategy's own means. NaN where no step has values.
    """

    steps: int
    tokens: float
    present: float
    call: float
    call_interval: tuple[float, float]
    value: float
    value_interval: tuple[float, float]
    copied: float


def paired_figures(rows: Iterable[LikelihoodRow], baseline: str) -> dict[StepKind, dict[str, PairedFigures]]:
    """For each kind of step and each strategy its figures against the baseline, on the steps that have both."""
    by_step: dict[tuple[StepKind, str], dict[str, LikelihoodRow]] = {}
    for row in rows:
        by_step.setdefault((row.kind, row.step), {})[row.strategy] = row
    found: dict[StepKind, dict[str, PairedFigures]] = {}
    for kind in ("needs", "control"):
        steps = [own for (k, _), own in by_step.items() if k == kind and baseline in own]
        for name in dict.fromkeys(name for own in steps for name in own):
            pairs = [(own[name], own[baseline]) for own in steps if name in own]
            found.setdefault(kind, {})[name] = _paired(pairs)
    return found


def _paired(pairs: Sequence[tuple[LikelihoodRow, LikelihoodRow]]) -> PairedFigures:
    calls = [a.call - b.call for a, b in pairs]
    values = [d for a, b in pairs if not math.isnan(d := a.value - b.value)]
    own = [a for a, _ in pairs]
    return PairedFigures(
        steps=len(pairs),
        tokens=_mean([a.tokens for a in own]),
        present=_mean([a.present for a in own if not math.isnan(a.present)]),
        call=_mean(calls),
        call_interval=_interval(calls),
        value=_mean(values),
        value_interval=_interval(values),
        copied=_mean([a.copied for a in own if not math.isnan(a.copied)]),
    )


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers) if numbers else math.nan


def _interval(differences: Sequence[float]) -> tuple[float, float]:
    """95% bounds of the mean by resampling steps; NaN for fewer than two."""
    if len(differences) < 2:
        return math.nan, math.nan
    dice = random.Random(0)
    means = sorted(_mean(dice.choices(differences, k=len(differences))) for _ in range(RESAMPLES))
    edge = round(RESAMPLES * 0.025)
    return means[edge], means[-1 - edge]


def _signed(number: float) -> str:
    return f"{number:+.2f}"


LIKELIHOOD_COLUMNS: tuple[Column[PairedFigures], ...] = (
    Column("steps", lambda f: f.steps, whole, "steps that are compared"),
    Column("tokens", lambda f: f.tokens, whole, "mean tokens of a context, by the model's own count"),
    Column("present", lambda f: f.present, percent, "needed values that stand in the context, %"),
    Column("Δ call", lambda f: f.call, _signed, "log-likelihood of the next call, nats against the baseline"),
    Column("from", lambda f: f.call_interval[0], _signed, "lower end of its 95% interval"),
    Column("to", lambda f: f.call_interval[1], _signed, "upper end of its 95% interval"),
    Column("Δ value", lambda f: f.value, _signed, "the same for the needed values, nats a token"),
    Column("value from", lambda f: f.value_interval[0], _signed, "lower end of its 95% interval"),
    Column("value to", lambda f: f.value_interval[1], _signed, "upper end of its 95% interval"),
    Column("copied", lambda f: f.copied, percent, "tokens of needed values that the model predicts first, %"),
)
