"""What goes in and why: the fate of every past interaction, at what cost."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from itertools import islice
from typing import Any, Protocol

from memory_bank.bank.retrieval import Retrieved, session_name
from memory_bank.records import Ranking
from memory_bank.transcript.interactions import Interaction
from memory_bank.transcript.transcript import View

_NEAR = 5  # near misses told


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
    costs in the full history. ``session_id`` names another session whose record was brought back, as a wider
    ``scope`` does; None for the session's own.
    """

    step: int | None
    trace_ids: tuple[str, ...]
    tools: tuple[str, ...]
    fate: Fate
    score: float | None
    reason: str
    tokens: int
    session_id: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """JSON values; ``session_id`` only where it is another session's."""
        origin = {} if self.session_id is None else {"session_id": self.session_id}
        return origin | {
            "step": self.step,
            "trace_ids": list(self.trace_ids),
            "tools": list(self.tools),
            "fate": str(self.fate),
            "score": self.score,
            "reason": self.reason,
            "tokens": self.tokens,
        }


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a record that is shown, or nearly was.

    ``reasons`` are its likeliest values: each with its probability and the features that speak loudest for
    and against it (in log-odds); empty where the selection knows only ``score``.
    """

    trace_id: str
    tool: str
    text: str
    score: float
    reasons: tuple[tuple[str, float, tuple[tuple[str, float], ...]], ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        values = [{"value": v, "probability": p, "features": dict(f)} for v, p, f in self.reasons]
        return {
            "trace_id": self.trace_id,
            "tool": self.tool,
            "text": self.text,
            "score": self.score,
            "values": values,
        }


class Choice(Protocol):
    """What a selection decided; asked when a plan is read, not at each step."""

    def pieces(self, *, explained: bool = True) -> list[Piece]:
        """What is shown of past records, in the order of the context; ``explained``: with its reasons."""

    def near_misses(self) -> list[Piece]:
        """What would have been shown next, best first."""

    def decide(self, entry: Interaction) -> tuple[Fate, float | None, str]:
        """Fate, score and reason of a past interaction with whole pairs."""

    def beyond(self, here: Collection[str]) -> list[Decision]:
        """Decisions on records that are shown although their messages are not in the list."""


class TopK:
    """The classic choice: the most similar records, whole or shortened."""

    def __init__(self, retrieved: Sequence[Retrieved], rank_all: Callable[[], Ranking]) -> None:
        self.retrieved = tuple(retrieved)
        self._shown = {r.trace_id: (i, r) for i, r in enumerate(retrieved, 1) if r.session_id is None}
        self._rank_all = rank_all

    @cached_property
    def _ranking(self) -> Ranking:
        return self._rank_all()

    @cached_property
    def _scores(self) -> dict[str, float]:
        return self._ranking.as_dict()  # of the session's own records: no entry is another's

    @cached_property
    def _places(self) -> dict[str, int]:
        return {h.trace_id: i for i, h in enumerate(self._ranking, 1) if h.session_id is None}

    def pieces(self, *, explained: bool = True) -> list[Piece]:  # noqa: ARG002  the score is all there is
        """See Choice."""
        return [
            Piece(r.trace_id, _of(r.session_id), f"{r.summary}\n{r.raw_data}", r.score)
            for r in self.retrieved
        ]

    def near_misses(self) -> list[Piece]:
        """See Choice."""
        shown = {(r.session_id, r.trace_id) for r in self.retrieved}
        rest = (h for h in self._ranking if (h.session_id, h.trace_id) not in shown)
        return [Piece(h.trace_id, _of(h.session_id), "", h.score) for h in islice(rest, _NEAR)]

    def decide(self, entry: Interaction) -> tuple[Fate, float | None, str]:
        """See Choice."""
        ids = [t for t in entry.trace_ids if t]
        score = max((self._scores[t] for t in ids if t in self._scores), default=None)
        found = [self._shown[t] for t in ids if t in self._shown]
        if not found:
            best = min((self._places[t] for t in ids if t in self._places), default=None)
            if best is None:
                return Fate.LEFT_OUT, score, "it has no insight yet"
            reason = f"rank {best} of {len(self._ranking)}, beyond the {len(self.retrieved)} shown"
            return Fate.LEFT_OUT, score, reason
        reason = ", ".join(f"retrieved record {i} (rank {self._places.get(r.trace_id, i)})" for i, r in found)
        cut = [r for _, r in found if r.cut]
        if cut:
            shown, whole = len(cut[0].raw_data), cut[0].whole_chars
            reason += f"; raw data shortened to {shown:,} of {whole:,} characters"
        if len(found) < len(ids):
            reason += f"; {len(ids) - len(found)} parallel call(s) left out"
        whole_shown = not cut and len(found) == len(ids)
        return (Fate.KEPT if whole_shown else Fate.PART), score, reason

    def beyond(self, here: Collection[str]) -> list[Decision]:
        """See Choice."""
        made = []
        for i, r in enumerate(self.retrieved, 1):
            if r.session_id is None and r.trace_id in here:
                continue
            why = "; its messages are no longer in the list"
            if r.session_id is not None:
                why = f", {_of(r.session_id)}"
            tools = () if r.record is None else (r.record.tool_name,)
            fate = Fate.PART if r.cut else Fate.KEPT
            told = f"retrieved record {i}{why}"
            made.append(Decision(None, (r.trace_id,), tools, fate, r.score, told, 0, r.session_id))
        return made


def _of(session_id: str | None) -> str:
    return "" if session_id is None else f"of the session {session_name(session_id)}"


@dataclass(frozen=True)
class Plan:
    """One step's plan: sums at once, the decision on every past interaction when asked for.

    ``tokens`` and ``full_tokens`` count the context and the full history by ``counter``. ``unchanged`` says
    that the messages went through as they came; ``why_unchanged`` says why.
    """

    view: View
    query: str
    choice: Choice
    tokens: int
    full_tokens: int
    memory_tokens: int
    unchanged: bool
    counter: str
    embedder: str
    observer: str
    repairs: Mapping[int, str] = field(default_factory=dict)  # position of the interaction → what was done
    why_unchanged: str = "there was no history yet"
    previous: Plan | None = None  # the plan of the step before, without its own

    @cached_property
    def decisions(self) -> tuple[Decision, ...]:
        """Every past interaction in order, then records that are shown but whose messages are gone."""
        return tuple(self.decided())

    def decided(self) -> Iterator[Decision]:
        """``decisions`` one by one, none of them kept."""
        for step, entry in enumerate(self.view.history, 1):
            yield self._decide(step, entry)
        if not self.unchanged:
            yield from self.choice.beyond(
                {t for entry in self.view.interactions for t in entry.trace_ids if t}
            )

    def _decide(self, step: int, interaction: Interaction) -> Decision:
        score: float | None = None
        if self.unchanged:
            fate, reason = Fate.KEPT, f"the messages went through unchanged: {self.why_unchanged}"
        elif interaction.fault:
            done = self.repairs.get(interaction.start, "passed through as it came")
            fate, reason = Fate.KEPT, f"its pairs are broken ({interaction.fault}): {done}"
        else:
            fate, score, reason = self.choice.decide(interaction)
        ids = tuple(t for t in interaction.trace_ids if t)
        tools = tuple(p.tool_name for p in interaction.pairs)
        return Decision(step, ids, tools, fate, score, reason, interaction.tokens)

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

    def manifest(self) -> dict[str, Any]:
        """``as_dict`` and what was shown, what nearly was, and what changed since the step before."""
        return {**self.as_dict(), **self.shown()}

    def shown(self) -> dict[str, Any]:
        """The pieces shown, those that nearly were, and those that went since the step before.

        A choice is asked now: once its session has gone on, the reasons are no longer this step's.
        """
        pieces = [] if self.unchanged else self.choice.pieces()
        near = [] if self.unchanged else self.choice.near_misses()
        earlier = self._before()
        now = {(p.trace_id, p.text) for p in pieces}
        before = {(p.trace_id, p.text) for p in earlier}
        return {
            "pieces": [p.as_dict() | {"new": (p.trace_id, p.text) not in before} for p in pieces],
            "near_misses": [p.as_dict() for p in near],
            "gone": [p.as_dict() for p in earlier if (p.trace_id, p.text) not in now],
        }

    def _before(self) -> list[Piece]:
        if self.previous is None or self.previous.unchanged:
            return []
        return self.previous.choice.pieces(explained=False)

    def as_html(self) -> str:
        """The manifest as one self-contained page."""
        from memory_bank.context.manifest import render_manifest

        return render_manifest(self.manifest())
