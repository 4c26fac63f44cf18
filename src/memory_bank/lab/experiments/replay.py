"""A replay unit: a recorded run through a strategy; evidence kept, tokens out, what they cost. No model."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from memory_bank.lab.experiments.config import CostSettings
from memory_bank.lab.experiments.pricing import bill
from memory_bank.lab.experiments.units import Unit, with_threshold
from memory_bank.lab.meter.costs import Costs, named_counter
from memory_bank.lab.meter.matching import Reader
from memory_bank.lab.meter.measure import Found, Row, measure_trace
from memory_bank.lab.meter.needs import Need, needs_of
from memory_bank.lab.meter.reach import Facts
from memory_bank.lab.meter.strategies import Running


def replay_unit(unit: Unit, counter: str, prices: CostSettings, constants: frozenset[str]) -> dict[str, Any]:
    """The result of a unit as JSON values: rows of every step, their contexts' tokens and the bill."""
    reader, costs, turns = _prepared(unit, counter, constants)
    strategy, gate = with_threshold(unit.strategy, unit.threshold)
    with contextlib.closing(strategy.start(unit.case.trace, reader)) as running:
        watched = Watched(running, costs, gate)
        rows = measure_trace(unit.case.trace, turns, watched, costs, reader)
    made, cached = bill(watched.contexts, costs, prices)
    return {
        "rows": [packed(row) for row in rows],
        "cached": cached,
        "counter": costs.counter.name,
        "bill": asdict(made),
    }


class Watched:
    """A strategy behind a gate: contexts up to so many tokens pass as they came; all contexts are kept."""

    def __init__(self, running: Running, costs: Costs, gate: int) -> None:
        self._running, self._costs, self._gate = running, costs, gate
        self.contexts: list[list[Any]] = []

    def build(self, messages: list[Any], needs: Sequence[Need]) -> list[Any]:
        """The context; one that could not be built is empty."""
        self.contexts.append([])
        passes = self._gate and self._costs.total(messages) <= self._gate
        self.contexts[-1] = messages if passes else self._running.build(messages, needs)
        return self.contexts[-1]

    @property
    def facts(self) -> Facts | None:
        """The strategy's own."""
        return self._running.facts

    def close(self) -> None:
        """The end of the trace."""
        self._running.close()


def packed(row: Row) -> list[Any]:
    """A row as a short JSON list, ``unpacked`` its inverse."""
    found = [[f.present, f.bound, f.age, f.kind, f.first_use, f.reachable] for f in row.found]
    flags = [int(row.broken), row.error]
    return [row.kind, row.tokens, row.full, row.anchor, row.last, round(row.seconds, 6), *flags, found]


def unpacked(values: Sequence[Any]) -> Row:
    """The row of a packed one."""
    kind, tokens, full, anchor, last, seconds, broken, error, found = values
    return Row(
        kind, tokens, full, anchor, last, seconds, error, bool(broken), tuple(Found(*f) for f in found)
    )


_last: dict[str, Any] = {}  # of one process: what the latest case needs, as its strategies follow each other


def _prepared(unit: Unit, counter: str, constants: frozenset[str]) -> tuple[Reader, Costs, Any]:
    key = (unit.suite, unit.case.digest, counter)
    if _last.get("key") != key:
        reader = Reader()
        turns = needs_of(unit.case.trace, constants, reader)
        _last.update(key=key, value=(reader, Costs(_open(counter)), turns))
    value: tuple[Reader, Costs, Any] = _last["value"]
    return value


@lru_cache(maxsize=4)
def _open(counter: str) -> Any:
    return named_counter(counter)
