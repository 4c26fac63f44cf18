"""Plays a recorded run through a strategy: what each model call needed, what its context has of it and costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from memory_bank.audit.costs import Costs, ScriptedCache
from memory_bank.audit.needs import NeedyTurn, recall
from memory_bank.audit.replay import Build, play
from memory_bank.audit.text import texts_of
from memory_bank.audit.traces import Trace
from memory_bank.transcript import MessageKind, kind_of


class NeedResult(NamedTuple):
    """Whether a context holds a needed value, and whether beside its words (``bound``); the rest as in Need."""

    present: bool
    bound: bool
    age: int
    kind: str
    first_use: bool


class StepRow(NamedTuple):
    """One step: tokens of the context, of the full history, of its anchor and of its last interaction.

    ``used`` and ``full_used``: those of the context and of the full history, with the tokens read from a prefix cache
    and written to it.
    """

    kind: str
    tokens: int
    full: int
    anchor: int
    last: int
    seconds: float
    error: str  # the type of the exception that the strategy raised, or ""
    broken: bool  # the context has broken pairs that the trace itself does not have
    found: tuple[NeedResult, ...]
    used: tuple[int, int, int] = (0, 0, 0)
    full_used: tuple[int, int, int] = (0, 0, 0)


def measure_trace(trace: Trace, turns: Sequence[NeedyTurn], build: Build, costs: Costs) -> list[StepRow]:
    """The rows of a trace, one a turn; a strategy that raises has empty contexts, needs come from tool outputs."""
    parts = []  # of the full history, which only grows
    full, anchor, last = [0], [0], [0]  # last: of the last interaction before each message
    for i, message in enumerate(trace.messages):
        kind, count = kind_of(message), costs.of(message)
        parts.append((str(i), count))
        full.append(full[-1] + count)
        anchor.append(anchor[-1] + count * (kind in (MessageKind.SYSTEM, MessageKind.USER)))
        before = 0 if kind is MessageKind.CALL else last[-1]
        last.append(before + count * (kind in (MessageKind.CALL, MessageKind.RESULT)))
    cache, full_cache = ScriptedCache(costs.counter), ScriptedCache(costs.counter)
    needed = [[n for n in turn.needs if n.born == "tool"] for turn in turns]
    played = play(trace, build, [turn.position for turn in turns])
    rows: list[StepRow] = []
    for turn, needs, step in zip(turns, needed, played, strict=True):
        texts = texts_of(step.context) if needs else []
        sent, at = costs.parts(step.context), turn.position
        used, full_used = cache.add(sent), full_cache.add(parts[:at])
        rows.append(
            StepRow(
                turn.kind, sum(count for _, count in sent), full[at], anchor[at], last[at], step.seconds, step.error,
                broken=step.broken_pairs > 0,
                found=tuple(NeedResult(*recall(n, texts), n.age, n.kind, n.first_use) for n in needs),
                used=(used.input, used.cached, used.written),
                full_used=(full_used.input, full_used.cached, full_used.written),
            )
        )  # fmt: skip
    return rows
