"""Does one unit of an experiment: replays a recorded run, or lets an agent do the case with a model."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from typing import Any

import openai
from openai.types.chat import ChatCompletionMessage

from memory_bank.errors import ModelError
from memory_bank.lab.costs import Costs, bill, named_counter
from memory_bank.lab.experiments.cases import (
    Book,
    RecordedTools,
    World,
    judge_messages,
    opening,
    parse_judgement,
    parsed_json,
)
from memory_bank.lab.experiments.config import CostSettings, ModelSettings, SuiteSettings
from memory_bank.lab.experiments.matrix import Unit
from memory_bank.lab.meter.figures import NeedResult, StepRow
from memory_bank.lab.meter.matching import Reader
from memory_bank.lab.meter.measure import measure_trace
from memory_bank.lab.meter.needs import Need, NeedyTurn, needs_of
from memory_bank.lab.meter.recall import Facts
from memory_bank.lab.replay import copied
from memory_bank.lab.strategies import StrategyRun
from memory_bank.pricing import Usage

_MOST_WRONG = 5  # wrong calls in a row that end a case
_OVERFLOW_WORDS = (
    "context length", "context window", "maximum context", "too many tokens", "prompt is too long",
)  # fmt: skip


class GatedRun(StrategyRun):
    """A strategy behind a gate: contexts of up to ``gate`` tokens pass unchanged. Records all contexts."""

    def __init__(self, run: StrategyRun, costs: Costs, gate: int) -> None:
        self._run, self._costs, self._gate = run, costs, gate
        self.contexts: list[list[Any]] = []

    def build(self, messages: list[Any], needs: Sequence[Need] = ()) -> list[Any]:
        """The context; one that could not be built is recorded as empty."""
        self.contexts.append([])
        passes = self._gate and self._costs.total(messages) <= self._gate
        self.contexts[-1] = messages if passes else self._run.build(messages, needs)
        return self.contexts[-1]

    @property
    def facts(self) -> Facts | None:
        """The strategy's own."""
        return self._run.facts

    def close(self) -> None:
        """End the trace."""
        self._run.close()


def _start(unit: Unit, costs: Costs, reader: Reader) -> GatedRun:
    strategy, gate = unit.strategy.with_threshold(unit.threshold)
    return GatedRun(strategy.start(unit.case.trace, reader), costs, gate)


def _bill_of(run: GatedRun, costs: Costs, prices: CostSettings) -> tuple[dict[str, Any], list[int]]:
    made, cached = bill(
        run.contexts, costs, prices.price_per_million, prices.cached_discount, prices.cache_minimum
    )
    return asdict(made), cached


def replay_unit(unit: Unit, counter: str, prices: CostSettings, constants: frozenset[str]) -> dict[str, Any]:
    """The result of a replay as JSON values: rows of every step, cached tokens of each, the bill."""
    reader, costs, turns = _prepare(unit, counter, constants)
    with closing(_start(unit, costs, reader)) as run:
        rows = measure_trace(unit.case.trace, turns, run, costs, reader)
    bill_values, cached = _bill_of(run, costs, prices)
    return {
        "rows": [pack_row(row) for row in rows],
        "cached": cached,
        "counter": costs.counter.name,
        "bill": bill_values,
    }


def pack_row(row: StepRow) -> list[Any]:
    """A row as a short JSON list; ``unpack_row`` is the inverse."""
    found = [[f.present, f.bound, f.age, f.kind, f.first_use, f.reachable] for f in row.found]
    flags = [int(row.broken), row.error]
    usage = [[u.input, u.cached, u.written] for u in (row.used, row.full_used)]
    return [
        row.kind,
        row.tokens,
        row.full,
        row.anchor,
        row.last,
        round(row.seconds, 6),
        *flags,
        found,
        *usage,
    ]


def unpack_row(values: Sequence[Any]) -> StepRow:
    """The row of a packed one."""
    kind, tokens, full, anchor, last, seconds, broken, error, found, *usage = values
    results = tuple(NeedResult(*f) for f in found)
    used = (Usage(*u) for u in usage)
    return StepRow(kind, tokens, full, anchor, last, seconds, error, bool(broken), results, *used)


_Prepared = tuple[Reader, Costs, list[NeedyTurn]]
_latest: dict[tuple[str, str, str], _Prepared] = {}  # one entry: the strategies of a case follow one another


def _prepare(unit: Unit, counter: str, constants: frozenset[str]) -> _Prepared:
    key = (unit.suite, unit.case.digest, counter)
    if key not in _latest:
        _latest.clear()
        reader = Reader()
        _latest[key] = reader, Costs(named_counter(counter)), needs_of(unit.case.trace, constants, reader)
    return _latest[key]


def live_unit(unit: Unit, settings: SuiteSettings, counter: str, prices: CostSettings) -> dict[str, Any]:
    """The result of a live case as JSON values: its score, its turns and the bill.

    ``ended`` is ``answered``, ``overflow`` (the endpoint or ``context_limit`` refused the context), ``wrong
    calls``, ``max_steps``, or ``error: TYPE`` for what the strategy raised. Raises ModelError when the
    endpoint cannot be used, which says nothing about the case.
    """
    assert unit.model is not None
    costs = Costs(named_counter(counter))
    agent = _Agent(unit, unit.model, settings, costs)
    with closing(_start(unit, costs, Reader())) as run:
        ended, answer = agent.work(run)
    bill_values, cached = _bill_of(run, costs, prices)
    for turn, known in zip(agent.turns, cached, strict=False):  # a context that failed has no turn
        turn["cached"] = known
    world = agent.world
    completeness = None
    if settings.judge is not None and unit.kind == "complex_func":
        completeness = 0 if not answer.strip() else _judge(settings.judge, unit, answer, agent.outputs)
    return {
        "ended": ended,
        "steps": len(agent.turns),
        "largest": max((t["tokens"] for t in agent.turns), default=0),
        "ms": sum(t["ms"] for t in agent.turns) / max(1, len(agent.turns)),
        "score": {
            "success": world.succeeded(answer),
            "calls": world.calls,
            "correct": world.correct,
            "wrong": world.wrong,
            "completeness": completeness,
        },
        "turns": agent.turns,
        "counter": costs.counter.name,
        "bill": bill_values,
    }


class _Agent:
    """An agent at work on one case: asks the model, calls the tools, until it answers or fails."""

    def __init__(self, unit: Unit, model: ModelSettings, settings: SuiteSettings, costs: Costs) -> None:
        self._unit, self._settings, self._costs = unit, settings, costs
        self._model = model
        self._client = _open_client(model)
        self.world: World
        self._most_steps = settings.max_steps
        if unit.kind == "overflow":
            self.world = Book(unit.case.id, settings)
            self._most_steps = max(settings.max_steps, settings.pages + 2)
        else:
            self.world = RecordedTools(unit.case.trace)
        self.turns: list[dict[str, Any]] = []
        self.outputs: list[str] = []

    def work(self, run: GatedRun) -> tuple[str, str]:
        """How the case ended, and the answer."""
        messages = opening(self._unit.case.trace)
        wrong_in_a_row = 0
        for _ in range(self._most_steps):
            begun = time.perf_counter()
            try:
                context = run.build(copied(messages))
            except Exception as e:  # only this case fails, not the experiment
                return f"error: {type(e).__name__}", ""
            ms = round(1000 * (time.perf_counter() - begun), 3)
            tokens, full = self._costs.total(context), self._costs.total(messages)
            turn: dict[str, Any] = {"tokens": tokens, "full": full, "cached": 0, "ms": ms, "calls": []}
            self.turns.append(turn)
            if self._settings.context_limit is not None and tokens > self._settings.context_limit:
                return "overflow", ""
            said = self._ask(context)
            if said is None:
                return "overflow", ""
            messages.append(said)
            if not said.get("tool_calls"):
                return "answered", str(said.get("content") or "")
            wrong = self.world.wrong
            messages += [self._call_tool(call, turn) for call in said["tool_calls"]]
            wrong_in_a_row = wrong_in_a_row + 1 if self.world.wrong > wrong else 0
            if wrong_in_a_row >= _MOST_WRONG:
                return "wrong calls", ""
        return "max_steps", ""

    def _ask(self, context: list[Any]) -> dict[str, Any] | None:
        """The model's message; None when the endpoint refused the request for its length."""
        options: dict[str, Any] = {"seed": self._unit.seed, "user": self._unit.id}
        if self._unit.case.trace.tools:
            options["tools"] = self._unit.case.trace.tools
        if self._model.temperature is not None:
            options["temperature"] = self._model.temperature
        try:
            said = _complete(self._client, self._model, context, **options)
        except ModelError as e:
            if isinstance(e.__cause__, openai.APIStatusError) and _is_overflow(e.__cause__):
                return None
            raise
        message: dict[str, Any] = {"role": "assistant", "content": said.content}
        if said.tool_calls:
            message["tool_calls"] = [c.model_dump(exclude_none=True) for c in said.tool_calls]
        return message

    def _call_tool(self, call: dict[str, Any], turn: dict[str, Any]) -> dict[str, Any]:
        function = call.get("function") or {}
        name, wrong = str(function.get("name", "")), self.world.wrong
        output = self.world.call(name, parsed_json(function.get("arguments")))
        self.outputs.append(output)
        verdict = "wrong" if self.world.wrong > wrong else "right"
        turn["calls"].append({"call": name[:80], "verdict": verdict})
        return {"role": "tool", "tool_call_id": call.get("id"), "content": output}


def _open_client(model: ModelSettings) -> openai.OpenAI:
    """The client of a model. Raises ModelError when the variable of its key is empty."""
    key = os.environ.get(model.api_key_env)
    if not key:
        raise ModelError(
            f"the model {model.name} has no API key: set {model.api_key_env} (any text for a local one)."
        )
    return openai.OpenAI(base_url=model.base_url, api_key=key, timeout=model.timeout)


def _complete(
    client: openai.OpenAI, model: ModelSettings, messages: list[Any], **options: Any
) -> ChatCompletionMessage:
    """A model's reply. Text that UTF-8 cannot hold (lone surrogates) is sent as U+FFFD. Raises ModelError."""
    create = client.chat.completions.create
    try:
        try:
            answer = create(messages=messages, model=model.name, **options)
        except UnicodeEncodeError:
            text = json.dumps(messages, ensure_ascii=False)
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            answer = create(messages=json.loads(text), model=model.name, **options)
    except openai.OpenAIError as e:
        status = f" (HTTP {e.status_code})" if isinstance(e, openai.APIStatusError) else ""
        raise ModelError(
            f"the model {model.name} did not answer: {type(e).__name__}{status}. Check base_url, the API key "
            "and the model name."
        ) from e
    if not getattr(answer, "choices", None):
        raise ModelError(f"the model {model.name} answered with no choice: try again or use another model.")
    message: ChatCompletionMessage = answer.choices[0].message
    return message


def _judge(model: ModelSettings, unit: Unit, answer: str, outputs: Sequence[str]) -> int | None:
    """How complete a judging model finds an answer; None when it gives no number."""
    reply = _complete(_open_client(model), model, judge_messages(unit.case.trace, answer, outputs))
    return parse_judgement(reply.content or "")


def _is_overflow(error: openai.APIStatusError) -> bool:
    """Whether an endpoint refused a request for its length."""
    if error.status_code == 413 or error.code == "context_length_exceeded":
        return True
    text = error.message.lower()
    return error.status_code == 400 and any(w in text for w in _OVERFLOW_WORDS)
