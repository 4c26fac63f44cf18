"""MemoryManager: the typed history of one agent, numbered, rendered, counted, pruned, saved and shown."""

from __future__ import annotations

import inspect
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from memory_bank.errors import HistoryError, StepFileError, StepOrderError
from memory_bank.history.display import render_page, replay_steps
from memory_bank.history.pruning import Pruning, check_steps
from memory_bank.history.reading import chat_message, steps_from_messages
from memory_bank.history.stepfiles import load_steps, save_steps
from memory_bank.history.steps import ActionStep, Json, Step, SystemPromptStep, Wire, check_wire
from memory_bank.history.values import freeze, positive, type_name
from memory_bank.ports import TokenCounter
from memory_bank.transcript.tokens import open_counter

if TYPE_CHECKING:
    from rich.console import Console

S = TypeVar("S", bound=Step)
Callback = Callable[..., object]
"""Called with a step of the class that it was registered for; one with a parameter ``agent`` also gets that."""
_Functions = Callback | Sequence[Callback]
Callbacks = _Functions | Mapping[type[Step], _Functions]


class MemoryManager:
    """The typed history of one agent. Thread-safe.

    Args:
        system_prompt: text or a step.
        prune_strategy: runs when there are more than ``max_steps_before_prune`` steps without the system
            prompt, and again after as many more steps where it left more than that.
        wire: the form of the messages, "tools" or "text".
        counter: counts the tokens of the messages; default: tiktoken's o200k_base.
        callbacks: functions by step class, called with each step of that class after it was added.
        step_callbacks: further callbacks in the forms of smolagents: a list for ActionSteps, or by step class.
        agent: what callbacks with a parameter ``agent`` get as that.

    Raises:
        HistoryError: a limit is below 1, or an argument has the wrong type.

    Example:
        >>> history = MemoryManager("You are a careful agent.", keep_last_n_steps(20), 100)
        >>> step = history.add(TaskStep("Refund order 7."))
    """

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
        self._counter = counter
        self._counted = 0  # the number of messages that are in _tokens
        self._tokens = 0
        self._callbacks: list[tuple[type[Step], Callback]] = []
        for given in (callbacks or {}, step_callbacks or {}):
            by_class: Mapping[Any, Any] = given if isinstance(given, Mapping) else {ActionStep: given}
            for step_class, functions in by_class.items():
                for callback in functions if isinstance(functions, (list, tuple)) else [functions]:
                    self.on(step_class, callback)
        self._set_steps([])
        if system_prompt is not None:
            self.add(SystemPromptStep(system_prompt) if isinstance(system_prompt, str) else system_prompt)

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
        """The token counter."""
        if self._counter is None:
            self._counter = open_counter()
        return self._counter

    def add(self, step: S) -> S:
        """Append a step; returns it with its number, assigned where it had none.

        Raises:
            HistoryError: this is not a step.
            StepOrderError: its number is below that of the last step; the step is not added.
            Exception: anything that a callback or the pruning raises; the step is added.
        """
        if not isinstance(step, Step):
            kind = type_name(step)
            how = "convert it by memory_bank.history.typed_steps"
            if not kind.startswith("smolagents."):
                how = "add a step, such as TaskStep, or read messages by from_messages"
            raise HistoryError(f"a {kind} was added to a history: {how}.")
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
        if _takes_agent(callback):
            self._callbacks.append((step_class, lambda step: callback(step, agent=self.agent)))
        else:
            self._callbacks.append((step_class, callback))

    def to_messages(self, summary_mode: bool = False) -> list[Json]:
        """The messages of all steps. Each step is rendered once, however often this is called.

        The list is new; its messages are shared and cannot be changed: copy.deepcopy returns plain ones.
        """
        with self.lock:
            return list(self._messages(summary_mode))

    def _messages(self, summary_mode: bool) -> list[Json]:
        """The list of rendered messages itself, extended by those of new steps."""
        done, messages = self._rendered.get(summary_mode, (0, []))
        for step in self._steps[done:]:
            messages.extend(freeze(m) for m in step.to_messages(summary_mode, wire=self.wire))
        self._rendered[summary_mode] = (len(self._steps), messages)
        return messages

    @property
    def action_count(self) -> int:
        """The number of ActionSteps."""
        return sum(n for t, n in self._types.items() if issubclass(t, ActionStep))

    @property
    def token_count(self) -> int:
        """The tokens of ``to_messages()``. Each message is counted once, however often this is read."""
        with self.lock:
            messages = self._messages(False)
            self._tokens += sum(self.counter.count_message(m) for m in messages[self._counted :])
            self._counted = len(messages)
            return self._tokens

    def get_steps_by_type(self, step_class: type[S]) -> list[S]:
        """The steps of a class, the oldest first."""
        return [s for s in self.steps if isinstance(s, step_class)]

    def prune(self, strategy: Pruning | None = None) -> int:
        """Prune by ``strategy``, else by ``prune_strategy``; returns the number of removed steps.

        When the pruning raises, nothing changes. Raises HistoryError for a strategy that returns no steps.
        """
        with self.lock:
            chosen = strategy or self.prune_strategy
            before = len(self._steps)
            if chosen is not None:
                kept = check_steps(chosen(tuple(self._steps)))
                if len(kept) != before or any(a is not b for a, b in zip(kept, self._steps, strict=True)):
                    self._set_steps(kept)
            self._pruned_at = len(self._steps)
            return before - len(self._steps)

    def clear(self) -> None:
        """Remove all steps, the system prompt included."""
        with self.lock:
            self._set_steps([])

    def reset(self) -> None:
        """Remove all steps but the system prompt, for the next run."""
        with self.lock:
            self._set_steps([s for s in self._steps if isinstance(s, SystemPromptStep)])

    def full_steps(self) -> list[Json]:
        """The steps as dicts with all their fields."""
        return [s.dict() for s in self.steps]

    def succinct_steps(self) -> list[Json]:
        """The steps as dicts without empty fields and without what the model saw."""
        hidden = ("model_input_messages", "model_output_message", "source")
        return [
            {k: v for k, v in d.items() if k not in hidden and v not in (None, [])} for d in self.full_steps()
        ]

    def replay(self, console: Console | None = None, detailed: bool = False) -> None:
        """Print the steps to a rich console; ``detailed``: whole texts, and what the model saw."""
        replay_steps(self.steps, console, detailed)

    def visualize(self, path: str | Path | None = None) -> str:
        """The steps as one self-contained HTML page, also written to ``path``.

        Raises HistoryError when the file cannot be written.
        """
        html = render_page(self.steps, self.token_count, self.counter.name)
        if path is not None:
            try:
                Path(path).write_text(html, encoding="utf-8", errors="replace")
            except OSError as e:
                raise HistoryError(f"{path} cannot be written ({e.strerror}): give another file.") from e
        return html

    def save(self, path: str | Path) -> None:
        """Write the steps as JSON lines; the file is replaced in one move. Raises StepFileError."""
        save_steps(path, self.steps, {"wire": self.wire})

    @classmethod
    def load(cls, path: str | Path, *args: Any, recover: bool = False, **options: Any) -> Self:
        """A history from a file that ``save`` wrote.

        Args:
            recover: return the steps before the damage where the file is damaged.
            args, options: as for the class.

        Raises:
            StepFileError: the file cannot be read or is damaged.
        """
        try:
            steps, head = load_steps(path)
        except StepFileError as e:
            if not recover or not Path(path).is_file():
                raise
            steps, head = list(e.steps), {}
        if head.get("wire") in ("tools", "text"):
            options.setdefault("wire", head["wire"])
        return cls._of(steps, *args, **options)

    @classmethod
    def from_messages(cls, messages: object, *args: Any, wire: Wire = "tools", **options: Any) -> Self:
        """A history of an existing conversation; its ``to_messages`` returns that conversation.

        Args:
            messages: a list of chat messages; ChatMessages of smolagents are read in their text form.
            args, options: as for the class.

        Raises:
            MessagesError: ``messages`` is not a list.
        """
        if isinstance(messages, (list, tuple)):
            messages = [chat_message(m) for m in messages]
        return cls._of(steps_from_messages(messages, wire=wire), *args, wire=wire, **options)

    @classmethod
    def _of(cls, steps: Sequence[Step], *args: Any, **options: Any) -> Self:
        manager = cls(*args, **options)
        manager._set_steps([*manager._steps, *steps])
        return manager

    def _prune_if_due(self) -> None:
        limit = self.max_steps_before_prune
        is_over = len(self._steps) - self._types[SystemPromptStep] > limit
        # A pruning that left more than the limit runs again only after as many further steps.
        next_prune = self._pruned_at + limit if self._pruned_at > limit else 0
        if is_over and self.prune_strategy is not None and len(self._steps) >= next_prune:
            self.prune()

    def _set_steps(self, steps: list[Step]) -> None:
        """Replace the steps and drop everything that was computed from the old ones."""
        self._steps = steps
        self._types: Counter[type[Step]] = Counter(type(s) for s in steps)
        self._rendered: dict[bool, tuple[int, list[Json]]] = {}
        self._counted = self._tokens = 0
        self._pruned_at = 0  # the number of steps after the last pruning


def _takes_agent(callback: Callback) -> bool:
    """Whether a callback has a parameter ``agent``, as those of smolagents may."""
    try:
        inspect.signature(callback).bind(None, agent=None)
    except (TypeError, ValueError):  # no such parameter, or a built-in function, which has no signature
        return False
    return True
