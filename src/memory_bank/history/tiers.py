"""Managers that prune by themselves: by the mildest pruning that fits a budget, and in three tiers."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from memory_bank.errors import HistoryError
from memory_bank.history.banking import check_bank, store_parts, to_memory_bank
from memory_bank.history.manager import MemoryManager
from memory_bank.history.pruning import (
    Pruning,
    Summarize,
    chain,
    check_steps,
    count_tokens,
    fit_token_budget,
    keep_system_and_recent,
    line_of,
    no_pruning,
    note_after,
    nth_last,
    open_summarizer,
    prune_old_observations,
    summarized,
)
from memory_bank.history.steps import (
    ActionStep,
    ScratchpadStep,
    Step,
    is_protected,
    one_line,
    trace_ids_of,
)
from memory_bank.history.values import positive
from memory_bank.ports import ChatModel

if TYPE_CHECKING:
    from memory_bank.bank.session import MemoryBankState

LADDER: tuple[tuple[str, Pruning], ...] = (
    ("no_pruning", no_pruning),
    ("observations before the last 5 to 1,000 characters", prune_old_observations(5, max_length=1_000)),
    ("observations before the last 3 to 300 characters", prune_old_observations(3, max_length=300)),
    ("observations before the last to 100 characters", prune_old_observations(1)),
    ("the last 20 actions", chain(keep_system_and_recent(20), prune_old_observations(1))),
    ("the last 5 actions", chain(keep_system_and_recent(5), prune_old_observations(1))),
)
"""The prunings of AdaptiveMemoryManager, the mildest first; ``fit_token_budget`` follows the last."""


class AdaptiveMemoryManager(MemoryManager):
    """A MemoryManager whose messages never exceed ``max_tokens``.

    When a step exceeds them, the first pruning of the ladder that fits is applied, after the last one
    ``fit_token_budget``. ``last_level`` is the name of the pruning applied last. ``add`` and ``prune`` raise
    TokenBudgetError where system prompt, tasks and the last step alone exceed the limit; the step is kept.

    Args:
        max_tokens: the limit.
        ladder: (name, pruning) pairs, the mildest first.
        state: a MemoryBankState in which pruned content is stored.
        args, options: as for MemoryManager.
    """

    def __init__(
        self,
        max_tokens: int,
        *args: Any,
        ladder: Sequence[tuple[str, Pruning]] = LADDER,
        state: MemoryBankState | None = None,
        **options: Any,
    ) -> None:
        self.max_tokens = positive(max_tokens, "max_tokens")
        self.ladder = tuple(ladder)
        if not all(isinstance(r, tuple) and len(r) == 2 and callable(r[1]) for r in self.ladder):
            raise HistoryError("a ladder is a list of (name, pruning), the mildest first.")
        self.state = state
        self.last_level = ""
        super().__init__(*args, **options)

    def prune(self, strategy: Pruning | None = None) -> int:
        """Prune by ``strategy``, else by the mildest that fits; returns the number of removed steps."""
        return super().prune(strategy or self._prune_mildly)

    def _prune_if_due(self) -> None:
        super()._prune_if_due()
        if self.token_count > self.max_tokens:
            self.prune()

    def _prune_mildly(self, steps: Sequence[Step]) -> list[Step]:
        fit = fit_token_budget(self.max_tokens, counter=self.counter, wire=self.wire)
        for name, pruning in (*self.ladder, ("fit_token_budget", fit)):
            left = check_steps(pruning(steps))
            if self.state is not None and self._fits(left):
                left = to_memory_bank(self.state, pruning)(steps)
                left = fit(left) if pruning is fit else left
            self.last_level = name
            if self._fits(left):
                break
        return left

    def _fits(self, steps: Sequence[Step]) -> bool:
        return count_tokens(steps, self.counter, self.wire) <= self.max_tokens


_THEME_LINE = re.compile(r"- (.+): (\d+) steps, (\d+) to (\d+)(?:; trace_id .*)?\Z")
_STEP_LINE = re.compile(r"\[(.*?)\] (\d+)\. ")
_Theme = tuple[int, int, int, list[str]]
"""The steps of one theme: how many, the first and the last number, the latest trace_ids."""
_TRACE_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class HierarchicalMemory(MemoryManager):
    """A MemoryManager in three tiers, after system prompt and tasks: themes, lines, recent steps.

    An older step is stored in ``state`` and becomes one line with its trace_ids. Beyond ``summarized`` lines
    the oldest line joins its theme: a count, the span of steps, the latest trace_ids. The trace_ids of all
    steps are in the note's ``trace_ids``.

    Args:
        state: a MemoryBankState.
        recent: the number of actions that stay whole.
        summarized: the number of lines.
        summarizer: a function from text to text or a chat model that writes the lines; default: extraction.
        model: the name that a chat model is asked for.
        theme_of: the theme of a step; default: the names of its tools.
        args, options: as for MemoryManager.

    Raises:
        HistoryError: a limit is below 1.
    """

    def __init__(
        self,
        state: MemoryBankState,
        *args: Any,
        recent: int = 5,
        summarized: int = 20,
        summarizer: Summarize | ChatModel | None = None,
        model: str = "",
        theme_of: Callable[[Step], str] | None = None,
        **options: Any,
    ) -> None:
        check_bank(state, "HierarchicalMemory")
        self.state = state
        self.recent = positive(recent, "recent")
        self.summarized = positive(summarized, "summarized")
        self.theme_of = theme_of or _tool_names
        self._summarizer = open_summarizer(summarizer, model)
        super().__init__(*args, **options)

    def prune(self, strategy: Pruning | None = None) -> int:
        """Prune by ``strategy``, else sort the steps into the tiers; returns the number of removed steps."""
        return super().prune(strategy or self.prune_strategy or self._to_tiers)

    def _prune_if_due(self) -> None:
        super()._prune_if_due()
        if self.action_count > self.recent:
            super().prune(self._to_tiers)

    def _to_tiers(self, steps: Sequence[Step]) -> list[Step]:
        first = nth_last(steps, self.recent) if self.action_count > self.recent else 0
        lines: list[str] = []
        themes: dict[str, _Theme] = {}
        ids: list[str] = []
        new: list[int] = []
        for i, step in enumerate(steps[:first]):
            if isinstance(step, ScratchpadStep) and step.kind == "themes":
                found = [(m, line) for line in step.text.splitlines() if (m := _THEME_LINE.match(line))]
                themes = {
                    m[1]: (int(m[2]), int(m[3]), int(m[4]), _TRACE_ID.findall(line)) for m, line in found
                }
                ids += step.trace_ids
            elif (
                isinstance(step, ScratchpadStep)
                and step.kind == "summary"
                and all(map(_STEP_LINE.match, step.text.splitlines()))
            ):
                lines += step.text.splitlines()
            elif not is_protected(step):
                new.append(i)
        if not new:
            return list(steps)
        stored = store_parts(self.state, steps, dict.fromkeys(new))
        lines += [self._line(steps[i], [p.record.trace_id for p in stored[i]]) for i in new]
        for line in lines[: -self.summarized]:
            head = _STEP_LINE.match(line)
            assert head is not None
            number, line_ids = int(head[2]), _TRACE_ID.findall(line)
            count, start, end, known = themes.get(head[1], (0, number, number, []))
            themes[head[1]] = count + 1, min(start, number), max(end, number), [*known, *line_ids][-4:]
            ids += line_ids
        lines = lines[-self.summarized :]
        last = steps[new[-1]]
        notes = [note_after(last, "\n".join(lines), "summary", _TRACE_ID.findall("\n".join(lines)))]
        if themes:
            text = "\n".join(
                f"- {name}: {count} steps, {start} to {end}"
                + (f"; trace_id {', '.join(known)}" if known else "")
                for name, (count, start, end, known) in themes.items()
            )
            notes.insert(0, note_after(last, text, "themes", ids))
        return [*(s for s in steps[:first] if is_protected(s)), *notes, *steps[first:]]

    def _line(self, step: Step, new_ids: Sequence[str]) -> str:
        text = summarized([step], self._summarizer, 400)
        text = line_of(step) if text is None else one_line(text, 400)
        text = text.removeprefix(f"{step.step_number}. ")
        missing = [t for t in (*trace_ids_of(step), *new_ids) if t not in text]
        mark = f" (trace_id {', '.join(missing)})" if missing else ""
        theme = one_line(self.theme_of(step).replace("]", ")"), 60) or "other"
        return f"[{theme}] {step.step_number}. {' '.join(text.split())}{mark}"


def _tool_names(step: Step) -> str:
    """The names of the tools that a step calls; the type of a step without calls."""
    if isinstance(step, ActionStep) and step.tool_calls:
        return ", ".join(sorted({c.name for c in step.tool_calls}))
    return "thought" if isinstance(step, ActionStep) else step.type
