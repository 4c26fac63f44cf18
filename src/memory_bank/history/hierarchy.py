"""A history in three tiers: recent steps whole, older ones a line each, the oldest as themes with ids."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from memory_bank.history.banking import Bank, bank_steps
from memory_bank.history.manager import MemoryManager
from memory_bank.history.parts import one_line, positive
from memory_bank.history.pruning import Pruning, is_protected
from memory_bank.history.steps import ActionStep, ScratchpadStep, Step
from memory_bank.history.summaries import asker, line_of, summary_of

_SHOWN = 4  # ids that a theme names; the others are counted
_THEME = re.compile(r"- (.+): (\d+) steps, (\d+) to (\d+)(?:; trace_id .*)?\Z")
_LINE = re.compile(r"\[(.*?)\] (\d+)\. ")
_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class HierarchicalMemory(MemoryManager):
    """A MemoryManager whose steps are, after system prompt and tasks: themes, summaries, recent steps.

    The last ``recent`` actions stay whole. An older step is stored in ``state`` (a MemoryBankState) and
    becomes one line with its trace_ids; ``summarizer`` (a function or chat model, asked as ``model``) writes
    it, or extraction. Beyond ``summarized`` lines the oldest goes into its theme, by ``theme_of`` (the tools'
    names): a count, the span of steps, the latest ids; the ids of all are in the note's ``trace_ids``. Raises
    HistoryError for limits below 1. Further arguments as for MemoryManager.
    """

    def __init__(
        self,
        state: Bank,
        *args: Any,
        recent: int = 5,
        summarized: int = 20,
        summarizer: Any = None,
        model: str = "",
        theme_of: Callable[[Step], str] | None = None,
        **options: Any,
    ) -> None:
        self.state = state
        self.recent = positive(recent, "recent")
        self.summarized = positive(summarized, "summarized")
        self.theme_of = theme_of or tools_of
        self._ask = None if summarizer is None else asker(summarizer, model)
        super().__init__(*args, **options)

    def prune(self, strategy: Pruning | None = None) -> int:
        """Prune by ``strategy``, else sort the steps into their tiers; returns how many steps are gone."""
        return super().prune(strategy or self.prune_strategy or self._tiers)

    def _prune_if_due(self) -> None:
        super()._prune_if_due()
        if self.action_count > self.recent:
            super().prune(self._tiers)

    def _tiers(self, steps: Sequence[Step]) -> list[Step]:
        actions = [i for i, s in enumerate(steps) if isinstance(s, ActionStep)]
        first = actions[-self.recent] if len(actions) > self.recent else 0
        protected = [s for s in steps[:first] if is_protected(s)]
        old = [s for s in steps[:first] if not is_protected(s)]
        lines: list[str] = []
        themes: dict[str, _Theme] = {}
        ids: list[str] = []
        fresh: list[Step] = []
        for step in old:
            if isinstance(step, ScratchpadStep) and step.kind == "themes":
                themes = _themes_in(step)
                ids += step.trace_ids
            elif isinstance(step, ScratchpadStep) and step.kind == "summary" and _is_ours(step):
                lines += step.text.splitlines()
            else:
                fresh.append(step)
        if not fresh:
            return list(steps)
        known = bank_steps(self.state, fresh, steps)
        lines += [self._line(step, known[i]) for i, step in enumerate(fresh)]
        for line in lines[: -self.summarized]:
            found = _LINE.match(line)
            assert found is not None
            theme = themes.setdefault(found[1], _Theme(int(found[2])))
            theme.take(int(found[2]), _ID.findall(line))
            ids += _ID.findall(line)
        lines = lines[-self.summarized :]
        at = {"step_number": old[-1].step_number, "timestamp": old[-1].timestamp}
        notes: list[Step] = []
        if themes:
            text = "\n".join(theme.line(name) for name, theme in themes.items())
            notes.append(ScratchpadStep(text, "themes", tuple(dict.fromkeys(ids)), **at))  # type: ignore[arg-type]
        shown = tuple(dict.fromkeys(t for line in lines for t in _ID.findall(line)))
        notes.append(ScratchpadStep("\n".join(lines), "summary", shown, **at))  # type: ignore[arg-type]
        return [*protected, *notes, *steps[first:]]

    def _line(self, step: Step, ids: Sequence[str]) -> str:
        text = line_of(step)
        if self._ask is not None:
            text = one_line(summary_of([step], self._ask).text, 400)
        text = text.removeprefix(f"{step.step_number}. ")
        missing = [t for t in ids if t not in text]
        mark = f" (trace_id {', '.join(missing)})" if missing else ""
        theme = one_line(self.theme_of(step).replace("]", ")"), 60) or "other"
        return f"[{theme}] {step.step_number}. {' '.join(text.split())}{mark}"


def tools_of(step: Step) -> str:
    """The names of the tools that a step calls; what it is, where it calls none."""
    if isinstance(step, ActionStep) and step.tool_calls:
        return ", ".join(sorted({c.name for c in step.tool_calls}))
    return "thought" if isinstance(step, ActionStep) else step.type


def _is_ours(step: ScratchpadStep) -> bool:
    return all(_LINE.match(line) for line in step.text.splitlines())


class _Theme:
    """What is known of the steps of one theme."""

    def __init__(self, first: int) -> None:
        self.first = self.last = first
        self.count = 0
        self.ids: list[str] = []

    def take(self, number: int, ids: Sequence[str]) -> None:
        self.first, self.last = min(self.first, number), max(self.last, number)
        self.count += 1
        self.ids = [*self.ids, *ids][-_SHOWN:]

    def line(self, name: str) -> str:
        ids = f"; trace_id {', '.join(self.ids)}" if self.ids else ""
        return f"- {name}: {self.count} steps, {self.first} to {self.last}{ids}"


def _themes_in(step: ScratchpadStep) -> dict[str, _Theme]:
    themes = {}
    for line in step.text.splitlines():
        found = _THEME.match(line)
        if found:
            theme = themes[found[1]] = _Theme(int(found[3]))
            theme.count, theme.last, theme.ids = int(found[2]), int(found[4]), _ID.findall(line)
    return themes
