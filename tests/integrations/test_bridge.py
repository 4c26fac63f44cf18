"""The bridge, with a wire of its own: identity, changed results, sessions and their bound, failures, tools."""

from __future__ import annotations

import ast
import asyncio
import dataclasses
import importlib.util
import inspect
import json
import logging
import random
import re
import threading
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from memory_bank.errors import (
    ConfigError,
    LoopDetectedError,
    MessagesError,
    MissingExtraError,
    UnknownStrategyError,
)
from memory_bank.integrations.bridge import NO_SESSION, Bridge
from memory_bank.testing import pairing_errors
from memory_bank.transcript.anthropic import Thinking
from memory_bank.transcript.messages import MessageKind
from memory_bank.transcript.turns import Part, PartWire

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "memory_bank" / "integrations"
MODULES = sorted(p.stem for p in SOURCE.glob("*.py") if p.stem not in ("__init__", "bridge"))
IMPORTED = {"openai_agents": "agents", "google_adk": "google.adk"}  # where not the module's own name
PYPROJECT = ROOT / "pyproject.toml"


@dataclass(frozen=True, eq=False)
class Native:
    """A message of a framework: words, calls (id, name, arguments) or several results (id, output) in one."""

    role: str
    text: str = ""
    calls: tuple[tuple[str, str, str], ...] = ()
    results: tuple[tuple[str, str], ...] = ()


class NativeWire(PartWire[Native]):
    """See PartWire. The parts of a message are its results or its calls, then its words."""

    def read(self, native: Native) -> dict[int, Part]:
        if not isinstance(native, Native):
            raise MessagesError(f"{type(native).__name__} is not a Native.")
        parts = [Part(MessageKind.RESULT, o, i) for i, o in native.results]
        parts += [Part(MessageKind.CALL, a, i, n) for i, n, a in native.calls]
        if native.text or not parts:
            kinds = {"user": MessageKind.USER, "tool": MessageKind.USER, "system": MessageKind.SYSTEM}
            parts.append(Part(kinds.get(native.role, MessageKind.SAY), native.text))
        return dict(enumerate(parts))

    def write(self, native: Native, change: Any) -> Native | None:
        results, calls, text = [], [], native.text
        for number, (i, o) in enumerate(native.results):
            new = change.get(number, o)
            results += [] if new is None else [(i, new)]
        for number, (i, n, a) in enumerate(native.calls):
            new = change.get(number, a)
            calls += [] if new is None else [(i, n, new)]
        text = change.get(len(native.results) + len(native.calls), native.text) or ""
        if not (results or calls or text):
            return None
        return dataclasses.replace(native, results=tuple(results), calls=tuple(calls), text=text)

    def add(self, native: Native, text: str) -> Native:
        return dataclasses.replace(native, text=f"{native.text}\n\n{text}")

    def say(self, message: dict[str, Any]) -> Native:
        return Native(message["role"], message["content"])


class WatchedWire(NativeWire):
    """Notes the threads in which messages are read."""

    def __init__(self) -> None:
        self.threads: set[threading.Thread] = set()

    def read(self, native: Native) -> dict[int, Part]:
        self.threads.add(threading.current_thread())
        return super().read(native)


def test_a_coroutine_does_nothing_in_the_threads_of_the_loop():
    natives = [Native("user", "Go.")]
    for n in range(20):
        natives += [
            Native("assistant", calls=((f"c{n}", "f", "{}"),)),
            Native("tool", results=((f"c{n}", "x" * 9_000),)),
        ]
    wire = WatchedWire()
    bridge: Bridge[Native] = Bridge(wire.read_all)

    async def steps() -> str:
        rebuilt = await bridge.arebuild(natives, thinking=Thinking.KEEP_LATER)
        assert rebuilt != natives
        return await bridge.aanswer("get_record", {"trace_id": "#1"}, natives=natives)

    assert "xxx" in asyncio.run(steps())
    assert wire.threads and threading.main_thread() not in wire.threads


@pytest.mark.parametrize("module", MODULES)
def test_coroutines_of_adapters_rebuild_and_answer_in_threads(module):
    tree = ast.parse((SOURCE / f"{module}.py").read_text())
    coroutines = [n for n in ast.walk(tree) if isinstance(n, ast.AsyncFunctionDef)]
    called = {n.attr for c in coroutines for n in ast.walk(c) if isinstance(n, ast.Attribute)}
    assert called & {"rebuild", "answer", "read_all", "apply_strategy"} == set()
    assert module == "smolagents" or called & {"arebuild", "aanswer"}  # which is synchronous


def bridge_of(**options: Any) -> Bridge[Native]:
    return Bridge(NativeWire().read_all, **options)


def output(step: int, size: int = 60) -> str:
    rng = random.Random(step)
    return json.dumps({"order": step, "lines": [{"sku": f"SKU-{rng.randrange(10**7)}"} for _ in range(size)]})


def history(
    steps: int, task: str = "Check all orders.", *, start: int = 0, parallel: int = 3
) -> list[Native]:
    """A task with so many turns; every third has two calls, whose results are one message."""
    out = [Native("user", task)]
    for step in range(start, start + steps):
        calls = [
            (f"{step}.{k}", "get_order", json.dumps({"n": step + k}))
            for k in range(1 + (step % parallel == 0))
        ]
        out.append(Native("assistant", calls=tuple(calls)))
        out.append(
            Native("tool", results=tuple((i, output(step * 10 + k)) for k, (i, _, _) in enumerate(calls)))
        )
    return out


def chat(natives: list[Native]) -> list[dict[str, Any]]:
    return NativeWire().read_all(natives).messages


def test_words_beside_results_stay_when_the_results_go():
    natives = history(25)
    natives[2] = dataclasses.replace(natives[2], text="And the parcels, please.")
    bridge = bridge_of(config={"memory_strategies": {"m": {"type": "truncation"}}}, strategy="m")
    rebuilt = bridge.rebuild(natives)
    assert [(n.role, n.text, n.results) for n in rebuilt[1:2]] == [("tool", "And the parcels, please.", ())]
    assert natives[2].results


def test_a_short_history_goes_through_as_it_is():
    bridge, natives = bridge_of(), history(1)
    assert all(a is b for a, b in zip(bridge.rebuild(natives[:1]), natives[:1], strict=True))
    assert all(a is b for a, b in zip(bridge.rebuild(natives), natives, strict=True))


# -- sessions


def held(bridge: Bridge[Native]) -> int:
    """How many of the sessions s0 to s7 a bridge holds."""
    return sum(bridge.state(f"s{n}") is not None for n in range(8))


def test_a_session_goes_on_where_a_list_begins_with_its_last_one():
    bridge = bridge_of()
    natives = history(6)
    for stop in range(3, len(natives) + 1, 2):
        bridge.rebuild(natives[:stop], system=f"It is {stop} o'clock.")
    first = bridge.state(None, [*natives, Native("assistant", "Done.")])
    assert first.fact_store.size() == 8
    fork = [*natives[:5], *history(1, start=40)[1:]]  # another conversation with the same beginning
    bridge.rebuild(fork)
    assert bridge.state(None, fork).fact_store.size() == 4
    assert bridge.state(None, natives) is first
    assert bridge.state(None, history(2, "Another task.")) is None


def test_sessions_are_bounded_and_go_on_from_the_messages():
    bridge = bridge_of(max_sessions=3)
    natives = {n: history(5, f"Task {n}.", start=n * 10) for n in range(8)}
    for n, list_ in natives.items():
        bridge.rebuild(list_, f"s{n}")
        assert held(bridge) == min(n + 1, 3)
    assert bridge.state("s7").fact_store.size() > 0
    bridge.rebuild(natives[0], "s0")
    assert bridge.state("s0").fact_store.size() == 7
    with pytest.raises(ConfigError, match="1 or more"):
        bridge_of(max_sessions=0)


def test_a_session_in_use_is_not_closed():
    bridge = bridge_of(max_sessions=1)
    with ThreadPoolExecutor(4) as pool:
        lists = [history(12, f"Task {n}.", start=n * 20) for n in range(8)]
        done = list(
            pool.map(lambda n: [bridge.rebuild(lists[n][:stop], f"s{n}") for stop in (3, 9, 25)], range(8))
        )
    assert all(pairing_errors(chat(r)) == [] for results in done for r in results)
    assert held(bridge) == 1


def test_a_database_keeps_named_sessions(tmp_path):
    first = bridge_of(database=tmp_path / "bank.db")
    first.rebuild(history(5), "order 7")
    first.close()
    second = bridge_of(database=tmp_path / "bank.db")
    second.rebuild(history(5)[:1], "order 7")
    assert "get_order" in second.answer("list_records", {}, "order 7")
    second.close()


# -- the tools


def test_tools_answer_for_the_session_that_was_rebuilt_last_here():
    bridge = bridge_of()
    assert bridge.answer("get_record", {"trace_id": "#1"}) == NO_SESSION

    async def agent(task: str, start: int) -> str:
        await bridge.arebuild(history(4, task, start=start))
        await asyncio.sleep(0)
        return await bridge.aanswer("get_record", {"trace_id": "#1"})

    async def both() -> list[str]:
        return await asyncio.gather(agent("One.", 10), agent("Two.", 20))

    one, two = asyncio.run(both())
    assert '"order": 100' in one and '"order": 200' in two


def test_tools_are_typed_functions():
    bridge = bridge_of()
    bridge.rebuild(history(4), "s")
    tools = bridge.tools("s")
    assert list(tools) == ["get_record"]
    assert list(inspect.signature(tools["get_record"]).parameters) == ["record", "lines", "pattern", "path"]
    assert tools["get_record"].__doc__
    assert "get_order" in tools["get_record"]("#1 to #4")
    assert '"order": 0' in tools["get_record"]("#1", pattern=None)


# -- failures


@pytest.mark.parametrize("name", MODULES)
def test_a_module_names_the_extra_of_its_framework(name):
    extra = name.replace("_", "-")
    [requirement] = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"][extra]
    assert re.match(rf"{extra}(-slim|-core)?>=", requirement)
    assert (
        f"memory_bank.integrations.{name} import" in (ROOT / "docs" / "howto" / "frameworks.md").read_text()
    )
    assert f'"{name}": (' in (ROOT / "benchmarks" / "integrations.py").read_text()
    module = f"memory_bank.integrations.{name}"
    said = f".[{extra}]"
    try:
        importlib.import_module(module)
    except MissingExtraError as e:  # where the framework is not installed
        said = str(e)
    assert f".[{extra}]" in said


def test_a_foreign_object_is_named_and_the_list_goes_through(caplog):
    bridge, natives = bridge_of(), [*history(2), {"role": "user"}]
    with caplog.at_level(logging.WARNING, "memory_bank.Integrations"):
        assert bridge.rebuild(natives) == natives  # type: ignore[comparison-overlap]
    assert "dict is not a Native" in caplog.text


def test_an_unforeseen_failure_costs_the_memory_of_a_step(caplog):
    class Broken(NativeWire):
        def add(self, native, text):
            raise RuntimeError("a secret in the contents")

    bridge = Bridge(Broken().read_all)
    natives = history(60)
    with caplog.at_level(logging.WARNING, "memory_bank.Integrations"):
        assert bridge.rebuild(natives) == natives
    assert "RuntimeError at add" in caplog.text
    assert "secret" not in caplog.text


def test_what_the_caller_is_to_change_is_raised():
    with pytest.raises(UnknownStrategyError):
        bridge_of(strategy="nothing")
    config = {
        "loop_detection": "raise",
        "memory_strategies": {"memory_bank": {"type": "memory_bank", "embedding_model": "lexical"}},
    }
    bridge = bridge_of(config=config)
    assert bridge.strategy == "memory_bank"
    same = [n for _ in range(4) for n in history(1)[1:]]
    with pytest.raises(LoopDetectedError):
        bridge.rebuild([Native("user", "Go."), *same])
