"""Typed histories: MemoryManager, and two managers that prune by themselves (adaptive, hierarchical)."""

from __future__ import annotations

import inspect
import json
import os
import tempfile
import threading
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from memory_bank.context.gate import ROLES, broken_rule
from memory_bank.errors import HistoryError, RecordError, StepFileError, StepOrderError
from memory_bank.history import pruning as prunings
from memory_bank.history.pruning import Pruning, check_steps
from memory_bank.history.reading import chat_message, steps_from_messages
from memory_bank.history.steps import (
    ActionStep,
    Json,
    ScratchpadStep,
    Step,
    SystemPromptStep,
    Wire,
    check_wire,
    describe,
    is_protected,
    log,
    one_line,
    positive,
    trace_ids_of,
    type_name,
)
from memory_bank.ports import TokenCounter
from memory_bank.transcript.jsontext import compact, dump_value
from memory_bank.transcript.messages import content_with
from memory_bank.transcript.shortening import shorten_text
from memory_bank.transcript.tokens import open_counter

if TYPE_CHECKING:
    from rich.console import Console

    from memory_bank.bank.session import MemoryBankState


def _facts(step: Step) -> str:
    try:
        parts = [datetime.fromtimestamp(step.timestamp, UTC).strftime("%Y-%m-%d %H:%M:%S")]
    except (ValueError, OverflowError, OSError):
        parts = [str(step.timestamp)]
    timing, usage = getattr(step, "timing", None), getattr(step, "token_usage", None)
    if timing is not None and timing.seconds is not None:
        parts.append(f"{timing.seconds:.2f} s")
    if usage is not None:
        parts.append(f"{usage.input_tokens:,} + {usage.output_tokens:,} tokens")
    return ", ".join(parts)


def _printable(text: str) -> str:
    """A text without control characters, lone surrogates and characters that change the writing direction."""
    controls = {c for c in set(text) - {"\n", "\t"} if unicodedata.category(c) in ("Cc", "Cf", "Cs")}
    return text.translate(dict.fromkeys(map(ord, controls), "\ufffd"))


_HEAD, _VERSION = "memory_bank_history", 1  # of the first line of a file
S = TypeVar("S", bound=Step)
Callback = Callable[..., object]
Callbacks = Callback | Sequence[Callback] | Mapping[type[Step], Callback | Sequence[Callback]]


class MemoryManager:
    """The typed history of one agent. Thread-safe.

    ``prune_strategy`` runs when there are more than ``max_steps_before_prune`` steps without the system prompt, and
    again after as many more steps where it left more than that. Without one nothing is pruned, and a WARNING says so.
    ``wire`` is the form of the messages, "tools" or "text"; ``counter`` counts their tokens, by default as
    tiktoken's o200k_base. A pruning after which the messages would be worse (``context.gate``) changes nothing, and
    a WARNING names the rule; where users and assistant alternated, users' messages that it brings together are one.
    ``callbacks`` are functions by step class, called with each step of that class after it was added;
    ``step_callbacks`` further ones in the forms of smolagents: a list for ActionSteps, or by step class. Callbacks
    with a parameter ``agent`` get ``agent`` as that.
    Raises HistoryError for a limit below 1, or an argument of the wrong type.

    Example:
        >>> history = MemoryManager("You are a careful agent.", keep_last_n_steps(20), 100)
        >>> step = history.add(TaskStep("Refund order 7."))
    """

    _own_pruning: Pruning | None = None  # of a class that prunes by itself

    def __init__(
        self,
        system_prompt: str | SystemPromptStep | None = None,
        prune_strategy: Pruning | None = None,
        max_steps_before_prune: int = 1000,
        *,
        wire: Wire = "tools",
        counter: TokenCounter | None = None,
        callbacks: Callbacks | None = None,
        step_callbacks: Callbacks | None = None,
        agent: object = None,
    ) -> None:
        if prune_strategy is not None and not callable(prune_strategy):
            raise HistoryError("prune_strategy is not a function: give a pruning of memory_bank.history.")
        check_wire(wire)
        self.prune_strategy = prune_strategy
        self.max_steps_before_prune = positive(max_steps_before_prune, "max_steps_before_prune")
        self.wire: Wire = wire
        self.lock = threading.RLock()
        self.agent = agent
        # called before steps are read, so that an adapter can bring what was changed elsewhere
        self.refresh: Callable[[], object] = lambda: None
        self._counter = counter
        self._callbacks: list[tuple[type[Step], Callback]] = []
        for group in (callbacks or {}, step_callbacks or {}):
            by_class: Mapping[Any, Any] = group if isinstance(group, Mapping) else {ActionStep: group}
            for step_class, functions in by_class.items():
                for callback in functions if isinstance(functions, (list, tuple)) else [functions]:
                    self.on(step_class, callback)
        self._joins = False  # whether users' messages in a row are one
        self._rules_logged: set[str] = set()
        self._set_steps([])
        if system_prompt is not None:
            self.add(SystemPromptStep(system_prompt) if isinstance(system_prompt, str) else system_prompt)

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps, the oldest first. Other steps can be assigned: callbacks and prunings do not run for them.

        Raises HistoryError for what is no step, StepOrderError for a number below the one before it.
        """
        self.refresh()
        with self.lock:
            return tuple(self._steps)

    @steps.setter
    def steps(self, steps: Iterable[Step]) -> None:
        ordered = _in_order(check_steps(list(steps), "the steps of a history"))
        with self.lock:
            if list(map(id, ordered)) != list(map(id, self._steps)):
                self._set_steps(ordered)

    @property
    def counter(self) -> TokenCounter:
        """The token counter."""
        if self._counter is None:
            self._counter = open_counter()
        return self._counter

    def add(self, step: S) -> S:
        """Append a step; returns it with its number, assigned where it had none.

        Raises HistoryError where this is not a step, and StepOrderError where its number is below that of the last
        step; it is not added then. What a callback or the pruning raises comes after it was added.
        """
        if not isinstance(step, Step):
            how = "add a step, such as TaskStep, or read messages by from_messages"
            if (kind := type_name(step)).startswith("smolagents."):
                how = "convert it by memory_bank.history.typed_steps"
            raise HistoryError(f"a {kind} was added to a history: {how}.")
        self.refresh()
        with self.lock:
            last = self._steps[-1].step_number if self._steps else 0
            if step.step_number == 0 and (number := last + isinstance(step, ActionStep)):
                step = replace(step, step_number=number)
            if step.step_number < last:
                raise StepOrderError(
                    f"step {step.step_number} came after step {last}: "
                    "add steps in order, or without a number to have them numbered."
                )
            self._steps.append(step)
            self._types[type(step)] += 1
            callbacks = [c for step_class, c in self._callbacks if isinstance(step, step_class)]
        for callback in callbacks:
            callback(step)
        with self.lock:
            self._prune_if_due()
        return step

    def extend(self, steps: Iterable[Step]) -> None:
        """Append several steps. Raises what ``add`` raises."""
        for step in steps:
            self.add(step)

    def on(self, step_class: type[Step], callback: Callback) -> None:
        """Call ``callback`` with every step of ``step_class`` (``Step``: of any class) after it was added.

        A callback that has a parameter ``agent`` also gets the manager's ``agent``.
        """
        if not (isinstance(step_class, type) and issubclass(step_class, Step)) or not callable(callback):
            raise HistoryError("a callback is a step class with a function: on(ActionStep, function).")
        try:
            inspect.signature(callback).bind(None, agent=None)
        except (TypeError, ValueError):  # no such parameter, or a built-in function, which has no signature
            self._callbacks.append((step_class, callback))
        else:
            self._callbacks.append((step_class, lambda step: callback(step, agent=self.agent)))

    def to_messages(self, summary_mode: bool = False) -> list[Json]:
        """The messages of all steps, as new dicts. Each step is rendered once, however often this is called.

        What stands in a message, such as its list of calls, is shared: use copy.deepcopy before you change that.
        """
        return list(map(dict, self._messages(summary_mode)))

    def _messages(self, summary_mode: bool = False) -> list[Json]:
        self.refresh()
        with self.lock:
            done, messages = self._rendered.get(summary_mode, (0, []))
            self._render(self._steps[done:], messages, self._joins, summary_mode)
            self._rendered[summary_mode] = (len(self._steps), messages)
            return messages

    def _render(
        self, steps: Iterable[Step], messages: list[Json], joins: bool, summary_mode: bool = False
    ) -> list[Json]:
        """The messages with those of further steps; ``joins``: users' messages in a row are one."""
        for step in steps:
            for message in step.to_messages(summary_mode, wire=self.wire):
                if joins and _is_user(message) and messages and _is_user(messages[-1]):
                    message = _joined(messages.pop(), message)
                messages.append(message)
        return messages

    @property
    def action_count(self) -> int:
        """The number of ActionSteps."""
        return sum(n for t, n in self._types.items() if issubclass(t, ActionStep))

    @property
    def token_count(self) -> int:
        """The tokens of ``to_messages()``. Each message is counted once, however often this is read."""
        with self.lock:
            counts = self._counts
            for at, message in enumerate(messages := self._messages()):
                if at == len(counts) or counts[at][0] is not message:
                    counts[at:] = [(message, self.counter.count_message(message))]
            return sum(tokens for _, tokens in counts[: len(messages)])

    def get_steps_by_type(self, step_class: type[S]) -> list[S]:
        """The steps of a class, the oldest first."""
        return [s for s in self.steps if isinstance(s, step_class)]

    def prune(self, strategy: Pruning | None = None) -> int:
        """Prune by ``strategy``, ``prune_strategy``, or as the class does; returns the number of removed steps.

        DEBUG logs which pruning ran, how many steps it removed or replaced, and how many are left. When the pruning
        raises, nothing changes. Raises HistoryError for a strategy that returns no steps.
        """
        self.refresh()
        with self.lock:
            before = self._steps
            if (chosen := strategy or self.prune_strategy or self._own_pruning) is not None:
                left = _in_order(check_steps(chosen(tuple(before))))
                if rule := self._broken_rule(left):
                    if rule not in self._rules_logged:
                        self._rules_logged.add(rule)
                        log.warning("a pruning changes nothing, the messages would be worse: %s", rule)
                    left = before
                self.steps = left
                name = getattr(chosen, "__qualname__", type(chosen).__name__).partition(".<locals>")[0]
                gone = len(set(map(id, before)) - set(map(id, left)))
                counts = f"{gone} of {len(before)} steps removed or replaced, {len(left)} left"
                log.debug("pruned by %s: %s", name, counts)
            self._pruned_at = len(self._steps)
            return len(before) - len(self._steps)

    def _broken_rule(self, left: list[Step]) -> str:
        """The rule of the gate that the messages of pruned steps break; "" for none.

        Where the users' messages among them have to be joined, they are from now on.
        """
        if list(map(id, left)) == list(map(id, self._steps)):
            return ""
        came, joins = self._messages(), self._joins
        rule = broken_rule(self._render(left, [], joins), came)
        if rule == ROLES:
            joins, rule = True, broken_rule(self._render(left, [], True), came)
        if not rule:
            self._joins = joins
        return rule

    def _prune_if_due(self) -> None:
        limit = self.max_steps_before_prune
        over = len(self._steps) - self._types[SystemPromptStep] - limit
        if over == 1 and self.prune_strategy is self._own_pruning is None:
            log.warning("a history has more than %d steps and no prune_strategy: nothing is pruned", limit)
        # A pruning that left more than the limit runs again only after as many further steps.
        next_prune = self._pruned_at + limit if self._pruned_at > limit else 0
        if over > 0 and self.prune_strategy is not None and len(self._steps) >= next_prune:
            self.prune()

    def clear(self) -> None:
        """Remove all steps, the system prompt included."""
        self._keep([])

    def reset(self) -> None:
        """Remove all steps but the system prompt, for the next run."""
        self._keep(self.get_steps_by_type(SystemPromptStep))

    def _keep(self, steps: list[Any]) -> None:
        """Remove all steps but these; a copy in a framework's form knows of it before it is changed again."""
        with self.lock:
            self.refresh()
            self._joins = False
            self._set_steps(steps)
            self.refresh()

    def _set_steps(self, steps: list[Step]) -> None:
        self._steps = steps
        self._types: Counter[type[Step]] = Counter(map(type, steps))
        self._rendered: dict[bool, tuple[int, list[Json]]] = {}
        self._counts: list[tuple[Json, int]] = []  # the tokens of each rendered message
        self._pruned_at = 0  # the number of steps after the last pruning

    def full_steps(self) -> list[Json]:
        """The steps as dicts with all their fields."""
        return [s.dict() for s in self.steps]

    def succinct_steps(self) -> list[Json]:
        """The steps as dicts without empty fields and without what the model saw."""
        inner = ("model_input_messages", "model_output_message", "source")
        return [
            {k: v for k, v in d.items() if k not in inner and v not in (None, [])} for d in self.full_steps()
        ]

    def replay(self, console: Console | None = None, detailed: bool = False) -> None:
        """Print the steps to a rich console; ``detailed``: whole texts, and what the model saw."""
        from rich.console import Console
        from rich.panel import Panel
        from rich.text import Text

        console = console or Console()
        for step in self.steps:
            title, rows = describe(step)
            if detailed:
                rows = [
                    *(("model saw", compact(m)) for m in getattr(step, "model_input_messages", ())),
                    *rows,
                ]
            body = Text()
            for i, (label, text) in enumerate(rows):
                body.append("\n" if i else "")
                body.append(f"{label}: " if label else "", style="bold red" if label == "error" else "bold")
                body.append(_printable(text if detailed else shorten_text(text, 600)))
            console.print(Panel(body, title=Text(title), subtitle=Text(_facts(step)), title_align="left"))

    def visualize(self, path: str | Path | None = None) -> str:
        """The steps as an HTML page that loads nothing, also written to ``path``; ``data:`` images are part of it.

        Raises HistoryError when the file cannot be written.
        """
        from memory_bank.pages import render

        kinds = Counter(s.type.replace("_", " ") for s in self.steps).items()
        html = render(
            "history.html", steps=[(s, describe(s), _facts(s)) for s in self.steps], tokens=self.token_count,
            closed=("system_prompt", "planning"), kinds=", ".join(f"{n:,} {kind}" for kind, n in kinds),
            counter=self.counter.name,
        )  # fmt: skip
        if path is not None:
            try:
                Path(path).write_text(html, encoding="utf-8", errors="replace")
            except OSError as e:
                raise HistoryError(f"{path} cannot be written ({e.strerror}): give another file.") from e
        return html

    def save(self, path: str | Path) -> None:
        """Write the steps as JSON lines; the file is replaced in one move. Raises StepFileError."""
        path, steps = Path(path), self.steps
        head = {_HEAD: _VERSION, "steps": len(steps), "wire": self.wire, "joins": self._joins}
        try:
            lines = [dump_value(v, "a step") for v in (head, *(s.dict() for s in steps))]
        except (RecordError, RecursionError) as e:
            raise StepFileError(
                f"{path} was not written, as a step is not JSON ({e}): give JSON values."
            ) from e
        try:
            handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
            try:
                with open(handle, "wb") as file:
                    file.writelines(line.encode("utf-8", "surrogatepass") + b"\n" for line in lines)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(name, path)
            except BaseException:
                os.unlink(name)
                raise
        except OSError as e:
            raise StepFileError(f"{path} cannot be written ({e.strerror}): give another file.") from e

    @classmethod
    def load(cls, path: str | Path, *args: Any, recover: bool = False, **options: Any) -> Self:
        """A history from a file that ``save`` wrote; ``args`` and ``options`` as for the class.

        Raises StepFileError where the file cannot be read, or is damaged; with ``recover`` the steps before the
        damage are returned.
        """
        try:
            lines = Path(path).read_bytes().split(b"\n")
        except OSError as e:
            raise StepFileError(
                f"{path} cannot be read ({e.strerror}): give a file that save() wrote."
            ) from e
        steps, head, damage = _parse_file(lines)
        if damage and not recover:
            advice = f"repair it, or load with recover=True the {len(steps)} steps before it."
            raise StepFileError(f"{path}: {damage}: {advice}", steps)
        if head.get("wire") in ("tools", "text"):
            options.setdefault("wire", head["wire"])
        manager = cls._of(steps, *args, **options)
        manager._joins = head.get("joins") is True
        return manager

    @classmethod
    def from_messages(cls, messages: object, *args: Any, wire: Wire = "tools", **options: Any) -> Self:
        """A history of an existing conversation; its ``to_messages`` returns that conversation.

        ``messages``: chat messages; ChatMessages of smolagents are read in their text form. ``args`` and ``options``
        as for the class. Raises MessagesError where this is no list.
        """
        if isinstance(messages, (list, tuple)):
            messages = [chat_message(m) for m in messages]
        return cls._of(steps_from_messages(messages, wire=wire), *args, wire=wire, **options)

    @classmethod
    def _of(cls, steps: Sequence[Step], *args: Any, **options: Any) -> Self:
        manager = cls(*args, **options)
        manager._set_steps([*manager._steps, *steps])
        return manager


def _in_order(steps: list[Step]) -> list[Step]:
    """The steps. Raises StepOrderError for a number below the one before it."""
    if steps != sorted(steps, key=lambda s: s.step_number):
        raise StepOrderError("the steps are not in the order of their numbers: give them in order.")
    return steps


def _is_user(message: Json) -> bool:
    return message.get("role") == "user" and isinstance(message.get("content"), str | list)


def _joined(first: Json, second: Json) -> Json:
    """Two messages of the user as one."""
    content, added = first["content"], second["content"]
    if isinstance(added, str):
        return {**first, "content": content_with(content, added)}
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    return {**first, "content": [*parts, *added]}


def _parse_file(lines: Sequence[bytes]) -> tuple[list[Step], Json, str]:
    """The steps of a file up to a damage, its first line (``{}`` without one), and what the damage is, or ""."""
    steps: list[Step] = []
    head: Json = {}
    number, damage = 0, ""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line.decode("utf-8", "surrogatepass"))
            if not steps and not head and isinstance(value, dict) and _HEAD in value:
                head = value
                if head[_HEAD] == _VERSION:
                    continue
                damage = "was written by a newer version of memory_bank"
            else:
                step = Step.from_dict(value)
                if steps and step.step_number < steps[-1].step_number:
                    damage = f"holds step {step.step_number} after step {steps[-1].step_number}"
        except HistoryError as e:
            damage = f"is not a step ({str(e).rstrip('.')})"
        except (ValueError, RecursionError):
            damage = "is cut in the middle" if number == len(lines) else "is not JSON"
        if damage:
            break
        steps.append(step)
    if not damage and head and head.get("steps") != len(steps):
        number = max(1, sum(bool(line) for line in lines))
        damage = f"is the last, with {len(steps)} steps where the first line says {head.get('steps')}"
    return steps, head, f"line {number} {damage}" if damage else ""


# managers that prune by themselves

_cut = prunings.prune_old_observations
LADDER: tuple[tuple[str, Pruning], ...] = (
    ("no_pruning", prunings.no_pruning),
    ("observations before the last 5 to 1,000 characters", _cut(keep_last_n=5, max_length=1_000)),
    ("observations before the last 3 to 300 characters", _cut(keep_last_n=3, max_length=300)),
    ("observations before the last to 100 characters", _cut(keep_last_n=1)),
    ("the last 20 actions", prunings.chain(prunings.keep_system_and_recent(20), _cut(keep_last_n=1))),
    ("the last 5 actions", prunings.chain(prunings.keep_system_and_recent(5), _cut(keep_last_n=1))),
)
"""The prunings of AdaptiveMemoryManager, the mildest first; ``fit_token_budget`` follows the last."""


class AdaptiveMemoryManager(MemoryManager):
    """A MemoryManager whose messages never exceed ``max_tokens``; other arguments are MemoryManager's.

    When a step exceeds them, the mildest pruning of LADDER that fits is applied, else ``fit_token_budget``.
    ``last_level`` is the name of the pruning applied last. With a ``state``, a MemoryBankState, pruned content is
    stored in it. ``add`` and ``prune`` raise TokenBudgetError where system prompt, tasks and the last step alone
    exceed the limit; the step is kept.
    """

    def __init__(
        self, max_tokens: int, *args: Any, state: MemoryBankState | None = None, **options: Any
    ) -> None:
        self.max_tokens = positive(max_tokens, "max_tokens")
        self.state = state
        self.last_level = ""
        self._own_pruning = self._prune_mildly
        super().__init__(*args, **options)

    def _prune_if_due(self) -> None:
        super()._prune_if_due()
        if self.token_count > self.max_tokens:
            self.prune(self._own_pruning)

    def _prune_mildly(self, steps: Sequence[Step]) -> list[Step]:
        fit = prunings.fit_token_budget(self.max_tokens, counter=self.counter, wire=self.wire)
        for name, pruning in (*LADDER, ("fit_token_budget", fit)):
            left = check_steps(pruning(steps))
            if self.state is not None and self._fits(left):
                left = prunings.to_memory_bank(self.state, pruning)(steps)
                left = fit(left) if pruning is fit else left
            self.last_level = name
            if self._fits(left):
                break
        return left

    def _fits(self, steps: Sequence[Step]) -> bool:
        return prunings.count_tokens(steps, self.counter, self.wire) <= self.max_tokens


class HierarchicalMemory(MemoryManager):
    """A MemoryManager in three tiers, after system prompt and tasks: themes, lines, recent steps.

    The last ``recent`` actions stay whole. An older step is stored in ``state``, a MemoryBankState, and becomes one
    line with its trace_ids, by extraction. Beyond ``summarized`` lines the oldest line joins its theme (the names of
    its tools): a count, the span of steps, the latest trace_ids. The trace_ids of all steps are in the summary's
    ``trace_ids``. Other arguments are MemoryManager's. Raises HistoryError for a limit below 1.
    """

    def __init__(
        self, state: MemoryBankState, *args: Any, recent: int = 5, summarized: int = 20, **options: Any
    ) -> None:
        prunings.check_bank(state, "HierarchicalMemory")
        self.state = state
        self.recent = positive(recent, "recent")
        self.summarized = positive(summarized, "summarized")
        self._own_pruning = self._to_tiers
        super().__init__(*args, **options)

    def _prune_if_due(self) -> None:
        super()._prune_if_due()
        if self.action_count > self.recent:
            self.prune(self._own_pruning)

    def _to_tiers(self, steps: Sequence[Step]) -> list[Step]:
        first = prunings.first_recent(steps, self.recent) if self.action_count > self.recent else 0
        lines: list[Json] = []
        themes: dict[str, Json] = {}
        ids: list[str] = []  # of the steps that themes hold
        new: list[int] = []
        for i, step in enumerate(steps[:first]):
            if isinstance(step, ScratchpadStep) and step.rows is not None:
                if step.kind == "themes":
                    themes, ids = {row["theme"]: row for row in step.rows}, list(step.trace_ids)
                else:
                    lines += step.rows
            elif not is_protected(step):
                new.append(i)
        if not new:
            return list(steps)
        stored = prunings.store_lost(self.state, steps, dict.fromkeys(new))
        lines += [self._line(steps[i], [each.record.trace_id for each in stored[i]]) for i in new]
        for line in lines[: -self.summarized]:
            name, number = line["theme"], line["step"]
            theme = themes.get(name, {"count": 0, "first": number, "last": number, "trace_ids": []})
            themes[name] = {
                "theme": name,
                "count": theme["count"] + 1,
                "first": min(theme["first"], number),
                "last": max(theme["last"], number),
                "trace_ids": [*theme["trace_ids"], *line["trace_ids"]][-4:],
            }
            ids += line["trace_ids"]
        last, lines = steps[new[-1]], lines[-self.summarized :]
        text, line_ids = (
            "\n".join(line["text"] for line in lines),
            [t for line in lines for t in line["trace_ids"]],
        )
        pads = [prunings.stand_in(last, text, "summary", line_ids, lines)]
        if themes:
            rows = list(themes.values())
            pads.insert(0, prunings.stand_in(last, "\n".join(map(_theme_line, rows)), "themes", ids, rows))
        return [*filter(is_protected, steps[:first]), *pads, *steps[first:]]

    def _line(self, step: Step, new_ids: Sequence[str]) -> Json:
        """The line of a step, with its theme, its number and its trace_ids."""
        text = prunings.line_of(step).removeprefix(f"{step.step_number}. ")
        ids = [*trace_ids_of(step), *new_ids]
        named_ids = new_ids if isinstance(step, ScratchpadStep) and new_ids else ids  # a pad may have many
        missing = [t for t in named_ids if t not in text]
        named = f" (trace_id {', '.join(missing)})" if missing else ""
        theme = one_line(_tool_names(step).replace("]", ")"), 60) or "other"
        line = f"[{theme}] {step.step_number}. {' '.join(text.split())}{named}"
        return {"theme": theme, "step": step.step_number, "text": line, "trace_ids": ids}


def _theme_line(theme: Json) -> str:
    named = f"; trace_id {', '.join(theme['trace_ids'])}" if theme["trace_ids"] else ""
    return f"- {theme['theme']}: {theme['count']} steps, {theme['first']} to {theme['last']}{named}"


def _tool_names(step: Step) -> str:
    if isinstance(step, ActionStep):
        return ", ".join(sorted({c.name for c in step.tool_calls})) if step.tool_calls else "thought"
    return step.type
