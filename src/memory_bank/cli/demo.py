"""``memory-bank demo``: what a recorded run costs without memory, with a window, and with memory as it ships."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from textwrap import fill
from typing import TYPE_CHECKING, Any

import typer

from memory_bank.cli.shared import one_line, table
from memory_bank.errors import ConfigError
from memory_bank.shipped import shipped_trace

if TYPE_CHECKING:
    from memory_bank.audit.measure import StepRow
    from memory_bank.audit.needs import NeedyTurn
    from memory_bank.audit.replay import Build
    from memory_bank.audit.traces import Trace

_WIDTH, _HEIGHT = 80, 12
_SIGNS = {"no memory": ".", "keep last 5": "x", "memory_bank": "#"}


def demo(
    model: str = typer.Option("claude-sonnet-5-5", help="The model at whose list price the input is billed."),
) -> None:
    """Replay a recorded run of an agent: what it costs without memory, with a window, and with memory.

    Needs no model, key or network.
    """
    from memory_bank.audit.needs import needs_of
    from memory_bank.audit.replay import building
    from memory_bank.audit.traces import Trace, is_turn, read_traces
    from memory_bank.config import SHIPPED, Config, KeepLastSettings, MemoryBankSettings
    from memory_bank.pricing import Usage, cost, list_prices

    prices = list_prices()
    price = prices.price(model)
    if price is None:
        raise ConfigError(f"'{one_line(model, 60)}' has no list price: name another model, such as gpt-4.1.")
    # the environment is not read and tokens are estimated: the demo shows the same on every machine
    as_shipped = MemoryBankSettings(**SHIPPED["memory_bank"], token_encoding="approximate")
    settings: Any = {"keep last 5": KeepLastSettings(n=5), "memory_bank": as_shipped}
    config = Config.model_construct(memory_strategies=settings, prices={model: price})
    trace = next(t for t in read_traces(shipped_trace("invoice-check.jsonl")) if isinstance(t, Trace))
    turns = needs_of(trace)
    replayed = {"no memory": _replay(trace, turns, lambda messages: messages)}
    for name in settings:
        with building(trace, config, name, model) as build:
            replayed[name] = _replay(trace, turns, build)
    paid = {
        n: list(accumulate(cost(Usage(*r.used), price) for r in rows)) for n, (rows, _) in replayed.items()
    }
    full = paid["no memory"]
    calls = sum(map(is_turn, trace.messages))
    first = calls - len(turns) + 1  # the calls before it had no tool output to send
    memory = replayed["memory_bank"][
        0
    ]  # a fold does not begin with the context before, so that less is cached
    folds = [i for i in range(1, len(memory)) if memory[i].used[1] < memory[i - 1].tokens]

    outputs = sum(m["role"] == "tool" for m in trace.messages)
    print(fill(f"A recorded run of an agent, {calls} model calls and {outputs} tool calls: {trace.task}", 80))
    cached = price.prompt if price.cached is None else price.cached
    about = (
        f"Dollars for its input so far, at the list price of {model} of {prices.date}, ${price.prompt:g} for a "
        f"million tokens, ${cached:g} where the provider has them in its cache:"
    )
    print(f"\n{fill(about, 80)}\n")
    for line in _curves(paid, folds):
        print(line)
    print(f"        {first:<4}{'model call':^{_WIDTH - 16}}{calls:>4}")
    print("        . no memory   x keep last 5   # memory_bank   F memory_bank folds\n")
    needed = sum(len(row.found) for row in replayed["no memory"][0])
    lines = []
    for name, (rows, _) in replayed.items():
        worst, at = max((cost / all_, i) for i, (cost, all_) in enumerate(zip(paid[name], full, strict=True)))
        present = sum(f.present for row in rows for f in row.found)
        lines.append(
            [name, f"${paid[name][-1]:.3f}", f"{paid[name][-1] / full[-1]:.0%}",
             f"{worst:.0%}" + (f" (call {at + first})" if worst > 1.0005 else ""), f"{present} of {needed}"]
        )  # fmt: skip
    table(["", "dollars", "share", "worst step", "needed values shown"], lines, range(1, 5))
    print("worst step: what was paid up to there, in percent of no memory up to there")
    for line in _lost_id(turns, replayed, first):
        print(line)
    print("What is not shown is stored: get_record returns it. Not counted: such")
    print("calls, and the schemas of the memory tools, some 170 tokens of each request.")
    print("Until the first fold only long outputs are shorter: short tasks gain little.\n")
    print("Other prices:   memory-bank demo --model claude-sonnet-4-6")
    print("Your own runs:  memory-bank audit FILE")


def _replay(trace: Trace, turns: Sequence[NeedyTurn], build: Build) -> tuple[list[StepRow], list[list[Any]]]:
    """The rows of a strategy, and its contexts."""
    from memory_bank.audit.costs import Costs, named_counter
    from memory_bank.audit.measure import measure_trace

    contexts: list[list[Any]] = []

    def keep(messages: list[Any]) -> list[Any]:
        contexts.append(build(messages))
        return contexts[-1]

    return measure_trace(trace, turns, keep, Costs(named_counter("approximate"))), contexts


def _curves(paid: Mapping[str, Sequence[float]], folds: Sequence[int]) -> Iterator[str]:
    """The lines of a drawing: dollars from below to the top, a column a model call."""
    top = max(amounts[-1] for amounts in paid.values())
    steps = len(next(iter(paid.values())))
    width = min(steps, _WIDTH - 9)
    cells = [[" "] * width for _ in range(_HEIGHT)]
    for name, amounts in paid.items():
        for i, amount in enumerate(amounts):
            sign = "F" if name == "memory_bank" and i in folds else _SIGNS[name]
            row, column = _HEIGHT - 1 - round((_HEIGHT - 1) * amount / top), i * width // steps
            if cells[row][column] != "F":
                cells[row][column] = sign
    for n, line in enumerate(cells):
        label = f"${top * (_HEIGHT - 1 - n) / (_HEIGHT - 1):.2f}" if n % 3 == 0 or n == _HEIGHT - 1 else ""
        yield f"{label:>6} |{''.join(line)}".rstrip()


def _lost_id(
    turns: Sequence[NeedyTurn], replayed: Mapping[str, tuple[list[StepRow], list[list[Any]]]], first: int
) -> Iterator[str]:
    """The oldest id that a call needs, that the window has lost and memory shows: where, and when."""
    from memory_bank.audit.traces import message_texts

    window, (memory, contexts) = replayed["keep last 5"][0], replayed["memory_bank"]
    needs = [[n for n in turn.needs if n.born == "tool"] for turn in turns]
    lost = [
        (need.age, -i, need.value)
        for i, of_call in enumerate(needs)
        for need, there, here in zip(of_call, window[i].found, memory[i].found, strict=True)
        if re.search(r"\d", need.value) and here.bound and not there.present
    ]
    if not lost:
        return
    age, i, value = max(lost)
    text = next(t for m in contexts[-i] for t in message_texts(m) if value in t)
    at = text.index(value)
    line = one_line(text[max(0, at - 40) : at + 40], 70)
    yield f"\nCall {first - i} needs {value}, which was last seen {age} calls before."
    yield f"Keep last 5 has lost it. memory_bank shows it:\n  {line}\n"
