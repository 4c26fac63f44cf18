"""A live unit: an agent does a case anew against an endpoint, and sees only what the strategy leaves it."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import asdict
from typing import Any

from memory_bank.errors import ModelError
from memory_bank.lab.experiments.config import CostSettings, ModelSettings, SuiteSettings
from memory_bank.lab.experiments.funcbench import Desk, judged, judging, opening, parsed
from memory_bank.lab.experiments.overflow import Book
from memory_bank.lab.experiments.pricing import bill
from memory_bank.lab.experiments.replay import Watched
from memory_bank.lab.experiments.units import Unit, with_threshold
from memory_bank.lab.meter.costs import Costs, named_counter
from memory_bank.lab.meter.matching import Reader
from memory_bank.lab.meter.measure import copied
from memory_bank.models.chat import OpenAIChat, reply_text

_MOST_WRONG = 5  # wrong calls in a row, then the case is given up


def live_unit(unit: Unit, settings: SuiteSettings, counter: str, prices: CostSettings) -> dict[str, Any]:
    """The result of a unit as JSON values: its score, its turns and the bill.

    ``ended`` says how: ``answered``, ``overflow`` (the endpoint or ``context_limit`` refused the context),
    ``wrong calls`` or ``max_steps``. What the strategy raises ends the case as ``error: TYPE``. Raises
    ModelError when the endpoint cannot be used, which says nothing about the case.
    """
    assert unit.model is not None
    run = _Run(unit, settings, Costs(named_counter(counter)))
    ended, answer = run.go(open_chat(unit.model))
    made, cached = bill(run.contexts, run.costs, prices)
    for turn, known in zip(run.turns, cached, strict=True):
        turn["cached"] = known
    return {
        "ended": ended,
        "steps": len(run.turns),
        "largest": max((t["tokens"] for t in run.turns), default=0),
        "ms": sum(t["ms"] for t in run.turns) / max(1, len(run.turns)),
        "score": {**run.world_score(answer), "completeness": _completeness(unit, settings, run, answer)},
        "turns": run.turns,
        "counter": run.costs.counter.name,
        "bill": asdict(made),
    }


def open_chat(model: ModelSettings) -> OpenAIChat:
    """The client of a model. Raises ModelError when the key's variable is empty."""
    key = os.environ.get(model.api_key_env)
    if not key:
        raise ModelError(
            f"the model {model.name} has no API key: set {model.api_key_env} (any text for a local one)."
        )
    return OpenAIChat(base_url=model.base_url, api_key=key, timeout=model.timeout)


class _Run:
    """One agent at work on one case."""

    def __init__(self, unit: Unit, settings: SuiteSettings, costs: Costs) -> None:
        self._unit, self._settings, self.costs = unit, settings, costs
        self.world: Book | Desk = (
            Book(unit.case.id, settings) if unit.kind == "overflow" else Desk(unit.case.trace)
        )
        self.turns: list[dict[str, Any]] = []
        self.contexts: list[list[Any]] = []
        self.outputs: list[str] = []

    def go(self, chat: OpenAIChat) -> tuple[str, str]:
        """How it ended, and the answer."""
        strategy, gate = with_threshold(self._unit.strategy, self._unit.threshold)
        messages = opening(self._unit.case.trace)
        most = self._settings.max_steps
        if self._unit.kind == "overflow":
            most = max(most, self._settings.pages + 2)
        wrong_in_a_row = 0
        with contextlib.closing(strategy.start(self._unit.case.trace, Reader())) as running:
            watched = Watched(running, self.costs, gate)
            for _ in range(most):
                begun = time.perf_counter()
                try:
                    context = watched.build([copied(m) for m in messages], ())
                except Exception as e:  # the case is lost, the experiment is not
                    return f"error: {type(e).__name__}", ""
                ms = round(1000 * (time.perf_counter() - begun), 3)
                self.contexts.append(context)
                tokens = self.costs.total(context)
                turn = {
                    "tokens": tokens,
                    "full": self.costs.total(messages),
                    "cached": 0,
                    "ms": ms,
                    "calls": [],
                }
                self.turns.append(turn)
                if self._settings.context_limit is not None and tokens > self._settings.context_limit:
                    return "overflow", ""
                try:
                    said = self._ask(chat, context)
                except ModelError as e:
                    if _is_overflow(e):
                        return "overflow", ""
                    raise
                messages.append(said)
                if not said.get("tool_calls"):
                    return "answered", str(said.get("content") or "")
                wrong = self.world.wrong
                messages += self._tools(said["tool_calls"], turn)
                wrong_in_a_row = wrong_in_a_row + 1 if self.world.wrong > wrong else 0
                if wrong_in_a_row >= _MOST_WRONG:
                    return "wrong calls", ""
        return "max_steps", ""

    def _ask(self, chat: OpenAIChat, context: list[Any]) -> dict[str, Any]:
        model = self._unit.model
        assert model is not None
        options: dict[str, Any] = {"seed": self._unit.seed, "user": self._unit.id}
        if self._unit.case.trace.tools:
            options["tools"] = self._unit.case.trace.tools
        if model.temperature is not None:
            options["temperature"] = model.temperature
        answer = chat.generate_plain(input_messages=context, model=model.name, **options)
        if not answer.choices:
            raise ModelError(
                f"the model {model.name} answered with no choice: try again or use another model"
            )
        said = answer.choices[0].message
        message: dict[str, Any] = {"role": "assistant", "content": said.content}
        if said.tool_calls:
            message["tool_calls"] = [c.model_dump(exclude_none=True) for c in said.tool_calls]
        return message

    def _tools(self, calls: list[dict[str, Any]], turn: dict[str, Any]) -> list[dict[str, Any]]:
        answers = []
        for call in calls:
            function = call.get("function") or {}
            name, wrong = str(function.get("name", "")), self.world.wrong
            output = self.world.call(name, parsed(function.get("arguments")))
            self.outputs.append(output)
            turn["calls"].append(
                {"call": name[:80], "verdict": "wrong" if self.world.wrong > wrong else "right"}
            )
            answers.append({"role": "tool", "tool_call_id": call.get("id"), "content": output})
        return answers

    def world_score(self, answer: str) -> dict[str, Any]:
        """Success, and the calls: due, made, wrong."""
        world = self.world
        calls, correct = (
            (world.pages, world.reached) if isinstance(world, Book) else (world.calls, world.correct)
        )
        return {"success": world.finished(answer), "calls": calls, "correct": correct, "wrong": world.wrong}


def _completeness(unit: Unit, settings: SuiteSettings, run: _Run, answer: str) -> int | None:
    if settings.judge is None or unit.kind != "complex_func":
        return None
    if not answer.strip():
        return 0
    asked = judging(unit.case.trace, answer, run.outputs)
    return judged(
        reply_text(open_chat(settings.judge).generate_plain(input_messages=asked, model=settings.judge.name))
    )


def _is_overflow(error: ModelError) -> bool:
    """Whether an endpoint refused a request for its length."""
    cause = error.__cause__
    status = getattr(cause, "status_code", None)
    if status == 413 or getattr(cause, "code", None) == "context_length_exceeded":
        return True
    told = str(getattr(cause, "message", "")).lower()
    words = ("context length", "context window", "maximum context", "too many tokens", "prompt is too long")
    return status == 400 and any(w in told for w in words)
