"""What goes in and why: the fate of every past interaction, at what cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

from memory_bank.history.conversation import Entry, View
from memory_bank.records import Ranking
from memory_bank.retrieval import Retrieved


class Fate(StrEnum):
    """What became of a past interaction."""

    KEPT = "kept"  # everything it returned is in the context
    PART = "shown in part"
    LISTED = "listed"  # named, without its content
    LEFT_OUT = "left out"


@dataclass(frozen=True, slots=True)
class Decision:
    """One past interaction: its place in the conversation (1 = the first), its fate and the reason.

    ``step`` is None for records of an earlier part of the session that the message list no longer has.
    ``score`` is the best similarity among its records, None where they were not ranked. ``tokens`` is what it
    costs in the full history.
    """

    step: int | None
    trace_ids: tuple[str, ...]
    tools: tuple[str, ...]
    fate: Fate
    score: float | None
    reason: str
    tokens: int

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "step": self.step,
            "trace_ids": list(self.trace_ids),
            "tools": list(self.tools),
            "fate": str(self.fate),
            "score": self.score,
            "reason": self.reason,
            "tokens": self.tokens,
        }


@dataclass(frozen=True)
class Plan:
    """One step's plan: sums at once, the decision on every past interaction when asked for.

    ``tokens`` and ``full_tokens`` count the context and the full history by ``counter``. ``unchanged`` says
    that there was no history yet, so that the messages went through as they came.
    """

    view: View
    query: str
    retrieved: Sequence[Retrieved]
    ranking: Ranking
    tokens: int
    full_tokens: int
    memory_tokens: int
    unchanged: bool
    counter: str
    embedder: str
    observer: str
    repairs: Mapping[int, str] = field(default_factory=dict)  # position of the interaction → what was done

    @cached_property
    def decisions(self) -> tuple[Decision, ...]:
        """Every past interaction in order, then records of which the messages are gone but which are shown."""
        shown = {r.trace_id: (i, r) for i, r in enumerate(self.retrieved, 1)}
        scores = self.ranking.as_dict()
        places = {t: i for i, t in enumerate(self.ranking.trace_ids, 1)}
        made = [
            self._decide(step, entry, shown, scores, places)
            for step, entry in enumerate(self.view.history, 1)
        ]
        here = {t for entry in self.view.entries for t in entry.trace_ids}
        for trace_id, (i, r) in shown.items():
            if trace_id not in here:
                reason = f"retrieved record {i}; its messages are no longer in the list"
                fate = Fate.PART if r.cut else Fate.KEPT
                made.append(Decision(None, (trace_id,), (), fate, r.score, reason, 0))
        return tuple(made)

    def _decide(
        self,
        step: int,
        entry: Entry,
        shown: Mapping[str, tuple[int, Retrieved]],
        scores: Mapping[str, float],
        places: Mapping[str, int],
    ) -> Decision:
        interaction = entry.interaction
        ids = tuple(t for t in entry.trace_ids if t)
        tools = tuple(p.tool_name for p in interaction.pairs)
        score = max((scores[t] for t in ids if t in scores), default=None)
        if self.unchanged:
            fate, reason = Fate.KEPT, "no memory was needed: the messages went through unchanged"
        elif interaction.fault:
            done = self.repairs.get(interaction.start, "passed through as it came")
            fate, reason = Fate.KEPT, f"its pairs are broken ({interaction.fault}): {done}"
        else:
            fate, reason = self._fate(ids, shown, places)
        return Decision(step, ids, tools, fate, score, reason, entry.tokens)

    def _fate(
        self, ids: Sequence[str], shown: Mapping[str, tuple[int, Retrieved]], places: Mapping[str, int]
    ) -> tuple[Fate, str]:
        found = [shown[t] for t in ids if t in shown]
        if not found:
            best = min((places[t] for t in ids if t in places), default=None)
            if best is None:
                return Fate.LEFT_OUT, "it has no insight yet"
            return Fate.LEFT_OUT, f"rank {best} of {len(places)}, beyond the {len(self.retrieved)} shown"
        which = ", ".join(f"retrieved record {i} (rank {places.get(r.trace_id, i)})" for i, r in found)
        cut = [r for _, r in found if r.cut]
        if cut:
            which += f"; raw data shortened to {len(cut[0].raw_data):,} of {cut[0].whole_chars:,} characters"
        if len(found) < len(ids):
            which += f"; {len(ids) - len(found)} parallel call(s) left out"
        whole = not cut and len(found) == len(ids)
        return (Fate.KEPT if whole else Fate.PART), which

    def as_dict(self) -> dict[str, Any]:
        """The whole plan as JSON values."""
        return {
            "tokens": self.tokens,
            "full_tokens": self.full_tokens,
            "memory_tokens": self.memory_tokens,
            "unchanged": self.unchanged,
            "query": self.query,
            "counter": self.counter,
            "embedder": self.embedder,
            "observer": self.observer,
            "decisions": [d.as_dict() for d in self.decisions],
        }
