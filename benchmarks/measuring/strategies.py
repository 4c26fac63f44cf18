"""What is measured: strategies of a configuration with settings changed, plugins, the full history and the oracle.

A strategy sees copies of the messages before a turn and nothing else; only the oracle is given the turn's needs.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from memory_bank import Config
from memory_bank.audit.needs import Need, NeedyTurn, recall
from memory_bank.audit.replay import building
from memory_bank.audit.text import NormalText, texts_of
from memory_bank.audit.traces import Trace
from memory_bank.errors import ConfigError
from memory_bank.transcript import Interaction, MessageKind, parse_messages, read

Build = Callable[[list[Any], Sequence[Need]], list[Any]]
"""The context of the next model call, from the messages before it; the turn's needs are for the oracle alone."""


def given_needs(build: Build, turns: Iterable[NeedyTurn]) -> Callable[[list[Any]], list[Any]]:
    """A build that is given what each turn needs of tool outputs, found by the number of messages before it."""
    needs = {turn.position: [n for n in turn.needs if n.born == "tool"] for turn in turns}
    return lambda messages: build(messages, needs[len(messages)])


@dataclass(frozen=True, slots=True)
class Strategy:
    """What to measure: a key of a configuration, a plugin, the full history or the oracle; picklable."""

    name: str
    kind: Literal["configured", "plugin", "full", "oracle"]
    target: str = ""  # the key, or module:function
    config: Config | None = None
    options: tuple[tuple[str, Any], ...] = ()  # of a plugin
    model: str = ""  # that the contexts are for, whose price the configuration has

    @contextmanager
    def start(self, trace: Trace) -> Iterator[Build]:
        """What builds contexts from the beginning of a trace. Raises ConfigError when a plugin cannot be imported."""
        if self.config is not None:
            with building(trace, self.config, self.target, self.model) as build_context:
                yield lambda messages, _: build_context(messages)
        elif self.kind == "plugin":
            function = partial(_plugin(self.target), **dict(self.options))
            state: dict[str, Any] = {"tools": trace.tools} if trace.tools else {}  # lives for one trace
            with asyncio.Runner() as loop:

                async def awaited(context: Any) -> Any:
                    return await context

                def build(messages: list[Any], _: Sequence[Need]) -> list[Any]:
                    context = function(messages, state)
                    return _as_messages(
                        loop.run(awaited(context)) if inspect.isawaitable(context) else context
                    )

                yield build
        else:
            yield _oracle if self.kind == "oracle" else lambda messages, _: messages

    def settings(self) -> Any:
        """The settings in its configuration; None without one."""
        return None if self.config is None else self.config.strategy(self.target)


def parse_strategy(text: str, config: Config) -> Strategy:
    """The strategy that a text names. Raises ConfigError and UnknownStrategyError.

    ``full``, ``oracle``, a key of the configuration, ``KEY?setting=value&…`` with settings changed, or
    ``module:function?name=value&…`` for a function ``f(messages, state) -> messages``. Values are JSON, else text.
    """
    target, _, query = text.partition("?")
    options: dict[str, Any] = {}
    for part in filter(None, query.split("&")):
        name, _, value = part.partition("=")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    if ":" in target:
        _plugin(target)
        return Strategy(text, "plugin", target, options=tuple(options.items()))
    if target in ("full", "oracle") and target not in config.memory_strategies:
        return Strategy(text, "full" if target == "full" else "oracle")
    return replace(configured(config, target, options), name=text)


def configured(config: Config, key: str, changes: Mapping[str, Any]) -> Strategy:
    """The strategy under a key, some of its settings changed. Raises ConfigError, UnknownStrategyError."""
    settings = config.strategy(key)
    if changes:
        changed = type(settings)(**{**settings.model_dump(), **changes})
        config = config.model_copy(update={"memory_strategies": {**config.memory_strategies, key: changed}})
    return Strategy(key, "configured", key, config)


def uses_budget(strategy: Strategy) -> bool:
    """Whether ``history_budget`` is one of the settings, and the selection respects it."""
    settings = strategy.settings()
    return hasattr(settings, "history_budget") and getattr(settings, "selection", "evidence") == "evidence"


def with_budgets(
    strategy: Strategy, budgets: Sequence[float | str], *, folds: bool = False
) -> list[Strategy]:
    """The strategy with each ``history_budget`` that it takes and its name does not set; ``folds``: at every step."""
    if strategy.config is None or not uses_budget(strategy) or "history_budget" in strategy.name:
        return [strategy]
    often = {"refresh_after": 0} if folds and hasattr(strategy.settings(), "refresh_after") else {}
    joint = "&" if "?" in strategy.name else "?"
    return [
        replace(
            configured(strategy.config, strategy.target, {"history_budget": budget, **often}),
            name=f"{strategy.name}{joint}history_budget={budget}",
        )
        for budget in budgets
    ]


def _plugin(target: str) -> Callable[..., Any]:
    """The function ``module:function``. Raises ConfigError when there is none."""
    module, _, name = target.partition(":")
    try:
        function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as e:
        raise ConfigError(
            f"the strategy {target} cannot be imported ({e}): check the name and PYTHONPATH."
        ) from e
    if not callable(function):
        raise ConfigError(f"the strategy {target} is not a function: name one of (messages, state).")
    return function


def _as_messages(context: Iterable[object]) -> list[Any]:
    """A plugin's answer as a list of dicts. Raises TypeError when it is not a list of messages."""
    messages = []
    for message in context:
        dump = getattr(message, "model_dump", None)
        messages.append(dump(exclude_none=True) if callable(dump) else message)
        if not isinstance(messages[-1], dict):
            raise TypeError("a context is a list of chat messages")
    return messages


def _oracle(messages: list[Any], needs: Sequence[Need]) -> list[Any]:
    """Anchor, last interaction, and an excerpt for each need of the turn that they lack: a lower bound of costs."""
    segments = parse_messages(messages)
    last = next((s for s in reversed(segments) if isinstance(s, Interaction)), None)
    base: list[Any] = []
    for s in segments:
        if s is last or (not isinstance(s, Interaction) and s.kind in (MessageKind.SYSTEM, MessageKind.USER)):
            base.extend(s.messages)
    shown = texts_of(base)
    asking = ("system", "user", "developer")
    history = texts_of(m for m in reversed(messages) if read(m, "role") not in asking)
    excerpts = filter(None, (_excerpt(need, history) for need in needs if not recall(need, shown)[1]))
    text = "\n".join(dict.fromkeys(excerpts))
    return [*base, {"role": "user", "content": text}] if text else base


def _excerpt(need: Need, history: Sequence[NormalText]) -> str | None:
    """The latest piece of history that holds the value and binds it; unbound where none binds it."""
    first: str | None = None
    for text in history:
        for form in need.forms:
            for at in text.places(form, 3):
                piece = NormalText(text[max(0, at - 80) : at + len(form) + 80])
                if recall(need, [piece])[1]:
                    return piece
                first = first or piece
    return first
