"""What a client's own compaction kept of what the next calls took, and what a strategy would have kept instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from memory_bank.lab.costs import Costs
from memory_bank.lab.logs.sessions import LoggedSession
from memory_bank.lab.meter.acting import Tally, add_texts, argument_texts_of, needed_stretches
from memory_bank.lab.meter.copies import SHORTEST, TextIndex, as_copied, covered
from memory_bank.lab.meter.matching import Reader
from memory_bank.lab.meter.needs import Need, needs_of
from memory_bank.lab.meter.recall import context_pages, recall
from memory_bank.lab.replay import copied
from memory_bank.lab.strategies import Strategy, with_budgets
from memory_bank.lab.traces import Trace
from memory_bank.transcript import MessageKind, calls_of, kind_of

NEXT_CALLS = 30
"""Calls after a compaction whose values and copied text are looked for."""

OWN = "own compaction"

_TRIES = 4  # to make a memory as small as the summary


@dataclass(frozen=True, slots=True)
class KeptByOne:
    """What one way to compact kept: values present, values next to their words, characters of copied text, tokens."""

    values: Tally
    bound: Tally
    characters: Tally
    tokens: int
    failed: bool = False


@dataclass(frozen=True, slots=True)
class CompactionRow:
    """One compaction of a session: by name (OWN, strategies) what was kept, and tokens of the history before it."""

    kept: Mapping[str, KeptByOne]
    full_tokens: int


def measure_compactions(
    session: LoggedSession, strategies: Sequence[Strategy], costs: Costs, seen: set[str]
) -> list[CompactionRow]:
    """The compactions of a session that are followed by calls; those whose summary is in ``seen`` are left out.

    A compaction sees the history since the one before, with that one's summary as a user message. The values are
    those of the next 30 calls that only an output of this history showed; the text is what these calls copy from it.
    What user messages or the last interaction show is left out. Strategies get a budget of the summary's tokens.
    """
    rows = []
    start, before = 0, None
    for n, compaction in enumerate(session.compactions):
        following = session.compactions[n + 1 :]
        stop = following[0].position if following else len(session.messages)
        summary = compaction.summary
        history = session.messages[start : compaction.position]
        if before is not None:
            history = [{"role": "user", "content": before}, *history]
        after = _next_calls(session.messages[compaction.position : stop])
        if summary is not None and summary not in seen and after and _interactions(history):
            seen.add(summary)
            rows.append(_measure(session.id, history, after, summary, strategies, costs))
        start, before = compaction.position, summary
    return rows


def _next_calls(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages up to the thirtieth call; none when there is no call."""
    count = 0
    for position, message in enumerate(messages):
        if kind_of(message) is MessageKind.CALL:
            count += len(calls_of(message))
            if count >= NEXT_CALLS:
                return list(messages[: position + 1])
    return list(messages) if count else []


def _interactions(history: Sequence[object]) -> list[int]:
    """Where the calls with a result begin."""
    kinds = [kind_of(m) for m in history]
    return [i for i, pair in enumerate(pairwise(kinds)) if pair == (MessageKind.CALL, MessageKind.RESULT)]


def _measure(
    name: str,
    history: list[dict[str, Any]],
    after: list[dict[str, Any]],
    summary: str,
    strategies: Sequence[Strategy],
    costs: Costs,
) -> CompactionRow:
    reader = Reader()
    own = {"role": "user", "content": summary}
    tail = _interactions(history)[-1]
    values = _needed_values(history, after, tail, reader)
    stretches = _copied_text(history, after, tail)
    kept = {OWN: _measure_kept([own], values, stretches, reader, costs)}
    budget = max(1, costs.of(own))
    always = [m for m in history if kind_of(m) in (MessageKind.SYSTEM, MessageKind.USER)] + history[tail:]
    for strategy in strategies:
        try:
            memory = _memory_of(strategy, name, history, always, budget, reader, costs)
            kept[strategy.name] = _measure_kept(memory, values, stretches, reader, costs)
        except Exception:  # counted: a strategy's failure says nothing about the others
            kept[strategy.name] = replace(_measure_kept([], values, stretches, reader, costs), failed=True)
    return CompactionRow(kept, costs.total(history))


def _memory_of(
    strategy: Strategy,
    name: str,
    history: list[dict[str, Any]],
    always: Sequence[object],
    most: int,
    reader: Reader,
    costs: Costs,
) -> list[Any]:
    """What a strategy shows beyond what ``always`` stands in a context, in at most ``most`` tokens where it can.

    Frames and notes may come on top of a ``history_budget``: it is lowered by as much, a few times.
    """
    budget = most
    for _ in range(_TRIES):
        [limited] = with_budgets(strategy, [max(1, budget)], folds=True)
        with closing(limited.start(Trace(name, history), reader)) as run:
            context = run.build(copied(history))
        memory = [m for m in context if m not in always]
        over = costs.total(memory) - most
        if over <= 0 or limited is strategy or budget <= 1:
            break
        budget -= over
    return memory


def _needed_values(
    history: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]], tail: int, reader: Reader
) -> list[Need]:
    """The values of the next calls that outputs before the compaction showed; each once."""
    outputs = context_pages([m for m in history[:tail] if kind_of(m) is MessageKind.RESULT], reader)
    recent = context_pages(history[tail:], reader)
    found: dict[str, Need] = {}
    for turn in needs_of(Trace("", [*history, *after]), reader=reader):
        if turn.position >= len(history) and turn.kind == "call":
            for need in turn.needs:
                old = any(page.holds(need.forms) for page in outputs)
                if need.born == "tool" and old and not any(page.holds(need.forms) for page in recent):
                    found.setdefault(need.value, need)
    return list(found.values())


def _copied_text(history: Sequence[object], after: Sequence[object], tail: int) -> list[str]:
    """The stretches that the next calls copy from before the compaction; each once."""
    source, near = TextIndex(), TextIndex()
    for position, message in enumerate(history):
        asked = kind_of(message) in (MessageKind.SYSTEM, MessageKind.USER)
        add_texts(near if asked or position >= tail else source, message)
    found: dict[str, None] = {}
    for message in after:
        if kind_of(message) is MessageKind.USER:
            add_texts(near, message)
        texts = [as_copied(t) for t in argument_texts_of(message) if len(t) >= SHORTEST]
        found.update(dict.fromkeys(needed_stretches(texts, source, near)))
    return list(found)


def _measure_kept(
    messages: Sequence[object], values: Sequence[Need], stretches: Sequence[str], reader: Reader, costs: Costs
) -> KeptByOne:
    pages = context_pages(messages, reader)
    index = TextIndex()
    for message in messages:
        add_texts(index, message)
    recalled = [recall(need, pages) for need in values]
    return KeptByOne(
        values=Tally(sum(present for present, _ in recalled), len(values)),
        bound=Tally(sum(bound for _, bound in recalled), len(values)),
        characters=Tally(sum(covered(s, index) for s in stretches), sum(map(len, stretches))),
        tokens=costs.total(messages),
    )
