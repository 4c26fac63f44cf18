"""Strategies as specifications that can travel: built anew for every trace, in whatever process.

A strategy sees copies of the messages before a turn and nothing else; only the oracle is told what the turn
needs.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from memory_bank.config import Config
from memory_bank.errors import ConfigError
from memory_bank.lab.meter.matching import Page, Reader
from memory_bank.lab.meter.needs import Need
from memory_bank.lab.meter.reach import Facts, facts_in
from memory_bank.lab.meter.recall import context_pages, recall
from memory_bank.lab.replay import Memory
from memory_bank.lab.traces import Trace
from memory_bank.processor import MemoryProcessor
from memory_bank.transcript.content import read
from memory_bank.transcript.interactions import Interaction, Kind
from memory_bank.transcript.parsing import parse_messages

FULL, ORACLE = "full", "oracle"


class Running(Protocol):
    """A strategy at work on one trace."""

    def build(self, messages: list[Any], needs: Sequence[Need]) -> list[Any]:
        """The context of the next model call. ``needs`` are for the oracle alone."""

    @property
    def facts(self) -> Facts | None:
        """The records that an agent could fetch by trace_id."""

    def close(self) -> None:
        """The end of the trace."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """What to measure: a key of a configuration, a plugin function, the full history or the oracle.

    ``name`` is what tables call it. Values only, so that it can be sent to another process.
    """

    name: str
    kind: Literal["configured", "plugin", "full", "oracle"]
    target: str = ""  # the key, or module:function
    config: Config | None = None
    options: tuple[tuple[str, Any], ...] = ()  # of a plugin

    def start(self, trace: Trace, reader: Reader) -> Running:
        """The strategy at the beginning of a trace. Raises ConfigError when a plugin cannot be imported."""
        if self.kind == "configured":
            assert self.config is not None
            return _Configured(self.config, self.target, trace)
        if self.kind == "plugin":
            function = functools.partial(load_plugin(self.target), **dict(self.options))
            return _Plugin(function, trace)
        return _Oracle(reader) if self.kind == "oracle" else _Full()


def parse_strategy(text: str, config: Config) -> Strategy:
    """A strategy by what a person writes: ``full``, ``oracle``, a key, ``KEY?setting=value&…`` with settings
    changed, or ``module:function?name=value&…``, a function ``f(messages, state) -> messages``.

    Values are JSON, else text. Raises ConfigError and UnknownStrategyError.
    """
    target, _, query = text.partition("?")
    options = _options(query)
    if ":" in target:
        load_plugin(target)
        return Strategy(text, "plugin", target, options=tuple(options.items()))
    if target == FULL and target not in config.memory_strategies:
        return Strategy(text, "full")
    if target == ORACLE and target not in config.memory_strategies:
        return Strategy(text, "oracle")
    return replace(configured(config, target, options), name=text)


def configured(config: Config, key: str, changes: Mapping[str, Any] | None = None) -> Strategy:
    """The strategy under a key, some of its settings changed. Raises ConfigError, UnknownStrategyError."""
    settings = config.strategy(key)
    if not changes:
        return Strategy(key, "configured", key, config)
    changed: Any = type(settings)(**{**settings.model_dump(), **changes})
    name = f"{key}?{'&'.join(f'{k}={v}' for k, v in changes.items())}"
    strategies = {**config.memory_strategies, key: changed}
    return Strategy(name, "configured", key, config.model_copy(update={"memory_strategies": strategies}))


def load_plugin(target: str) -> Callable[..., Any]:
    """The function ``module:function``. Raises ConfigError when there is none."""
    module, _, name = target.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as e:
        raise ConfigError(
            f"the strategy {target} cannot be imported ({e}): check the name and PYTHONPATH."
        ) from e
    if not callable(function):
        raise ConfigError(f"the strategy {target} is no function: give one that takes messages and a state.")
    found: Callable[..., Any] = function
    return found


def _options(query: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for part in filter(None, query.split("&")):
        name, _, value = part.partition("=")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    return options


def as_messages(context: Any) -> list[Any]:
    """A strategy's answer as a list of dicts. Raises TypeError when it is none."""
    messages = []
    for message in context:
        dump = getattr(message, "model_dump", None)
        whole = dump(exclude_none=True) if callable(dump) else message
        if not isinstance(whole, dict):
            raise TypeError("a context is a list of chat messages")
        messages.append(whole)
    return messages


class _Configured:
    """A configured strategy with a memory of its own that ends with the trace."""

    def __init__(self, config: Config, key: str, trace: Trace) -> None:
        self._key = key
        self._memory = Memory()
        self._processor = MemoryProcessor(config, lambda: self._memory.open(trace))

    def build(self, messages: list[Any], needs: Sequence[Need]) -> list[Any]:  # noqa: ARG002
        context, _ = self._processor.apply_strategy(messages, self._key)
        return as_messages(context)

    @property
    def facts(self) -> Facts | None:
        return facts_in(self._processor.state(self._key))

    def close(self) -> None:
        self._memory.close()


class _Plugin:
    """A function of the reference meter's form; its state is a dict that lives for one trace."""

    def __init__(self, function: Callable[..., Any], trace: Trace) -> None:
        self._function = function
        self._state: dict[str, Any] = {"tools": trace.tools} if trace.tools else {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def build(self, messages: list[Any], needs: Sequence[Need]) -> list[Any]:  # noqa: ARG002
        context = self._function(messages, self._state)
        if inspect.isawaitable(context):
            self._loop = self._loop or asyncio.new_event_loop()
            context = self._loop.run_until_complete(_awaited(context))
        return as_messages(context)

    @property
    def facts(self) -> Facts | None:
        return facts_in(self._state)

    def close(self) -> None:
        if self._loop is not None:
            self._loop.close()


async def _awaited(value: Any) -> Any:
    return await value


class _Full:
    """The full history."""

    facts: Facts | None = None

    def build(self, messages: list[Any], needs: Sequence[Need]) -> list[Any]:  # noqa: ARG002
        return messages

    def close(self) -> None:
        pass


class _Oracle:
    """Knows what the turn needs: anchor, last interaction, and a short excerpt for each need they lack.

    What it costs is the floor that no memory goes below.
    """

    facts: Facts | None = None

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def build(self, messages: list[Any], needs: Sequence[Need]) -> list[Any]:
        segments = parse_messages(messages)
        last = next((s for s in reversed(segments) if isinstance(s, Interaction)), None)
        base: list[Any] = []
        for segment in segments:
            if segment is last or (not isinstance(segment, Interaction) and segment.kind in _ASKED):
                base.extend(segment.messages)
        pages = context_pages(base, self._reader)
        sources = [m for m in reversed(messages) if read(m, "role") not in _ASKED]
        excerpts: dict[str, None] = {}
        for need in needs:
            if not recall(need, pages)[1]:
                excerpt = self._excerpt(need, sources)
                if excerpt is not None:
                    excerpts[excerpt] = None
        return [*base, {"role": "user", "content": "\n".join(excerpts)}] if excerpts else base

    def _excerpt(self, need: Need, sources: Sequence[Any]) -> str | None:
        """The latest piece of history that shows the value and binds it; unbound where none does."""
        first: str | None = None
        for page in context_pages(sources, self._reader):
            for form in need.forms:
                for at in page.places(form, 3):
                    piece = page.text[max(0, at - _EXCERPT) : at + len(form.text) + _EXCERPT]
                    if recall(need, [Page(piece)])[1]:
                        return piece
                    first = piece if first is None else first
        return first

    def close(self) -> None:
        pass


_ASKED = (Kind.SYSTEM, Kind.USER, "developer")
_EXCERPT = 80  # characters on either side of the value
