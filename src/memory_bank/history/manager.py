"""A run's steps, kept in order: rendered and counted once each, pruned, saved, replayed, shown."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TypeVar

from memory_bank.errors import HistoryError, StepFileError, StepOrderError
from memory_bank.history.frozen import Json, freeze
from memory_bank.history.parts import positive
from memory_bank.history.pruning import Pruning, check_steps
from memory_bank.history.reading import steps_from_messages
from memory_bank.history.stepfiles import load_steps, save_steps
from memory_bank.history.steps import WIRES, ActionStep, Step, SystemPromptStep, Wire
from memory_bank.ports import TokenCounter
from memory_bank.transcript.tokens import open_counter

S = TypeVar("S", bound=Step)
Callback = Callable[[Any], object]


class MemoryManager:
    """The typed history of one agent. Safe under threads.

    ``system_prompt``: text or a step. ``prune_strategy`` runs when more than ``max_steps_before_prune`` steps
    stand beside the system prompt, and again after as many further steps where it left more. ``wire`` is the
    form of its messages ("tools" or "text"), ``counter`` counts their tokens. ``callbacks``: functions by
    step class, called with each step of that class after it was added. Raises HistoryError for
    limits below 1.
    """

    def __init__(
        self,
        system_prompt: str | SystemPromptStep | None = None,
        prune_strategy: Pruning | None = None,
        max_steps_before_prune: int = 1000,
        *,
        wire: Wire = "tools",
        counter: TokenCounter | None = None,
        callbacks: Mapping[type[Step], Callback | Iterable[Callback]] | None = None,
    ) -> None:
        if prune_strategy is not None and not callable(prune_strategy):
            raise HistoryError("prune_strategy is no function: give one of memory_bank.history's prunings.")
        if wire not in WIRES:
            raise HistoryError(f"wire is {wire!r}: give 'tools' or 'text'.")
        self.prune_strategy = prune_strategy
        self.max_steps_before_prune = positive(max_steps_before_prune, "max_steps_before_prune")
        self.wire: Wire = wire
        self.lock = threading.RLock()
        self._counter = counter
        self._callbacks: list[tuple[type[Step], Callback]] = []
        for step_class, given in (callbacks or {}).items():
            for callback in [given] if callable(given) else given:
                self.on(step_class, callback)
        self._counted = 0  # messages of which the tokens are known
        self._tokens = 0
        self._forget([])
        if system_prompt is not None:
            given_prompt = system_prompt
            self.add(SystemPromptStep(given_prompt) if isinstance(given_prompt, str) else given_prompt)

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps, the oldest first."""
        with self.lock:
            return tuple(self._steps)

    @property
    def counter(self) -> TokenCounter:
        """What counts tokens."""
        if self._counter is None:
            self._counter = open_counter()
        return self._counter

    def add(self, step: S) -> S:
        """Append a step; returns it as it is kept, numbered.

        A step without a number gets one. Raises HistoryError for what is no step, StepOrderError for a number
        below the last one: nothing is added then. What a callback or the pruning raises comes through, with
        the step added.
        """
        if not isinstance(step, Step):
            raise HistoryError(
                f"a {type(step).__name__} was added to a history: add a step, such as TaskStep."
            )
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
            called = [c for known, c in self._callbacks if isinstance(step, known)]
        for callback in called:
            callback(step)
        with self.lock:
            self._prune_if_due()
        return step

    def extend(self, steps: Iterable[Step]) -> None:
        """Append several steps."""
        for step in steps:
            self.add(step)

    def on(self, step_class: type[Step], callback: Callback) -> None:
        """Call a function with every step of a class (``Step``: of any) after it was added."""
        if not (isinstance(step_class, type) and issubclass(step_class, Step)) or not callable(callback):
            raise HistoryError("a callback is a step class with a function: on(ActionStep, function).")
        self._callbacks.append((step_class, callback))

    def to_messages(self, summary_mode: bool = False) -> list[Json]:
        """The messages of all steps. Each step is rendered once, however often this is called.

        The list is new, the messages are shared and refuse changes; copy.deepcopy gives some that do not.
        """
        with self.lock:
            return list(self._messages(summary_mode))

    def _messages(self, summary_mode: bool) -> list[Json]:
        """The messages themselves, with those of new steps added."""
        done, messages = self._rendered.get(summary_mode, (0, []))
        for step in self._steps[done:]:
            messages.extend(freeze(m) for m in step.to_messages(summary_mode, wire=self.wire))
        self._rendered[summary_mode] = (len(self._steps), messages)
        return messages

    @property
    def action_count(self) -> int:
        """How many ActionSteps there are."""
        return sum(n for t, n in self._types.items() if issubclass(t, ActionStep))

    @property
    def token_count(self) -> int:
        """Tokens of ``to_messages()``; each message is counted once."""
        with self.lock:
            messages = self._messages(False)
            self._tokens += sum(self.counter.count_message(m) for m in messages[self._counted :])
            self._counted = len(messages)
            return self._tokens

    def get_steps_by_type(self, step_class: type[S]) -> list[S]:
        """The steps of a class, the oldest first."""
        return [s for s in self.steps if isinstance(s, step_class)]

    def prune(self, strategy: Pruning | None = None) -> int:
        """Prune by ``strategy``, else by the manager's own; returns how many steps are gone.

        Where it raises, nothing has changed. Raises HistoryError for a strategy that returns no steps.
        """
        with self.lock:
            chosen = strategy or self.prune_strategy
            before = len(self._steps)
            if chosen is not None:
                kept = check_steps(chosen(tuple(self._steps)))
                if len(kept) != before or any(a is not b for a, b in zip(kept, self._steps, strict=True)):
                    self._forget(kept)
            self._pruned_at = len(self._steps)
            return before - len(self._steps)

    def clear(self) -> None:
        """Forget all steps, the system prompt too."""
        with self.lock:
            self._forget([])

    def reset(self) -> None:
        """Forget all steps but the system prompt: ready for the next run."""
        with self.lock:
            self._forget([s for s in self._steps if isinstance(s, SystemPromptStep)])

    def full_steps(self) -> list[Json]:
        """The steps as dicts, with everything in them."""
        return [s.dict() for s in self.steps]

    def succinct_steps(self) -> list[Json]:
        """The steps as dicts without what the model saw (``model_input_messages``) and what is empty."""
        return [
            {
                k: v
                for k, v in d.items()
                if k not in ("model_input_messages", "source") and v not in (None, [])
            }
            for d in self.full_steps()
        ]

    def replay(self, console: Any = None, detailed: bool = False) -> None:
        """Print the steps to a rich console; ``detailed``: texts whole, with what the model saw."""
        from memory_bank.history.replaying import replay_steps

        replay_steps(self.steps, console, detailed)

    def visualize(self, path: str | Path | None = None) -> str:
        """The steps as one self-contained HTML page; also written to ``path`` where one is given."""
        from memory_bank.history.page import render_page

        html = render_page(self.steps, self.token_count, self.counter.name)
        if path is not None:
            try:
                Path(path).write_text(html, encoding="utf-8", errors="replace")
            except OSError as e:
                raise HistoryError(f"{path} cannot be written ({e.strerror}): give another file.") from e
        return html

    def save(self, path: str | Path) -> None:
        """Write the steps as JSON lines, the whole file in one move. Raises StepFileError."""
        save_steps(path, self.steps, {"wire": self.wire})

    @classmethod
    def load(cls, path: str | Path, *args: Any, recover: bool = False, **options: Any) -> Self:
        """A history from ``save``; further arguments as for the class.

        Raises StepFileError for a damaged file; with ``recover`` the steps before the damage are taken.
        """
        try:
            steps, head = load_steps(path)
        except StepFileError as e:
            if not recover or not Path(path).is_file():
                raise
            steps, head = list(e.steps), {}
        if head.get("wire") in WIRES:
            options.setdefault("wire", head["wire"])
        return cls._of(steps, *args, **options)

    @classmethod
    def from_messages(cls, messages: Any, *args: Any, wire: Wire = "tools", **options: Any) -> Self:
        """A history from an existing conversation; its ``to_messages`` are that conversation again.

        Further arguments as for the class. Raises MessagesError when ``messages`` is no list.
        """
        return cls._of(steps_from_messages(messages, wire=wire), *args, wire=wire, **options)

    @classmethod
    def _of(cls, steps: Sequence[Step], *args: Any, **options: Any) -> Self:
        manager = cls(*args, **options)
        manager._forget([*manager._steps, *steps])
        return manager

    def _prune_if_due(self) -> None:
        beside = len(self._steps) - self._types[SystemPromptStep]
        over = beside > self.max_steps_before_prune
        if over and self.prune_strategy is not None and len(self._steps) >= self._next_prune():
            self.prune()

    def _next_prune(self) -> int:
        left_too_many = self._pruned_at > self.max_steps_before_prune
        return self._pruned_at + self.max_steps_before_prune if left_too_many else 0

    def _forget(self, steps: list[Step]) -> None:
        """Hold these steps, and nothing that was made of others."""
        self._steps = steps
        self._types = Counter(type(s) for s in steps)
        self._rendered: dict[bool, tuple[int, list[Json]]] = {}
        self._counted = self._tokens = 0
        self._pruned_at = 0
