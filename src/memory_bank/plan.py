"""The plan of one step: what the context shows of every past interaction, why, and at what cost."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from operator import attrgetter
from typing import Any

from memory_bank.records import Brief
from memory_bank.transcript.anthropic import Thinking
from memory_bank.transcript.messages import Interaction
from memory_bank.transcript.transcript import View
from memory_bank.transcript.turns import Conversation, Edit, Entry


class Fate(StrEnum):
    """The part of a past interaction that the context shows.

    Example:
        >>> Fate("listed") is Fate.LISTED
        True
    """

    KEPT = "kept"  # everything it returned
    PART = "shown in part"
    LISTED = "listed"  # its calls are named, without their content
    LEFT_OUT = "left out"


@dataclass(frozen=True, slots=True, repr=False)
class Decision(Brief):
    """The fate of one past interaction, and the reason.

    ``step`` is its place in the conversation, from 1; None for a record whose messages are no longer in the
    list. ``score`` is the best score among its records, None where they were not ranked. ``tokens`` is its
    cost in the full history.

    Example:
        >>> [decision.fate for decision in state.last_plan.decisions]  # of each Decision
        []
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
            "step": self.step, "trace_ids": list(self.trace_ids), "tools": list(self.tools), "fate": str(self.fate),
            "score": self.score, "reason": self.reason, "tokens": self.tokens,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, repr=False)
class Piece(Brief):
    """A piece of a record that the context shows, or would show with a larger budget.

    ``reasons`` are its most probable values: each with its probability and the features that weigh most (in
    log-odds); empty where the policy knows only ``score``.
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
            "trace_id": self.trace_id, "tool": self.tool, "text": self.text, "score": self.score, "values": values
        }  # fmt: skip


class Reasons:
    """Explains a choice. It is asked when a plan is read, not at each step."""

    def pieces(self) -> Sequence[Piece]:
        """The pieces shown of past records, in their order in the context."""
        return []

    def near_misses(self) -> Sequence[Piece]:
        """The pieces that come next with a larger budget, best first."""
        return []

    def decide(self, interaction: Interaction) -> tuple[Fate, float | None, str]:
        """Fate, score and reason of a past interaction with whole pairs."""
        raise NotImplementedError

    def fate(self, interaction: Interaction) -> Fate:
        """The fate alone: it is asked at each step."""
        return self.decide(interaction)[0]

    def beyond(self, here: Collection[str]) -> list[Decision]:  # noqa: ARG002
        """Decisions on shown records whose trace_id is not in ``here``."""
        return []


_REASONS = {
    Fate.KEPT: "kept whole",
    Fate.PART: "its outputs are shortened",
    Fate.LISTED: "summarised in the memory message",
    Fate.LEFT_OUT: "older than what the strategy keeps",
}


class Shown(Reasons):
    """Reasons of a policy that scores nothing: interactions kept whole, shown in part, listed or left out."""

    def __init__(
        self,
        whole: Sequence[Interaction] = (),
        part: Sequence[Interaction] = (),
        listed: Sequence[Interaction] = (),
    ) -> None:
        self._groups = (Fate.LISTED, listed), (Fate.PART, part), (Fate.KEPT, whole)

    @cached_property
    def _fates(self) -> dict[int, Fate]:
        return {interaction.start: fate for fate, group in self._groups for interaction in group}

    def decide(self, interaction: Interaction) -> tuple[Fate, float | None, str]:
        fate = self._fates.get(interaction.start, Fate.LEFT_OUT)
        return fate, None, _REASONS[fate]


SCORELESS = Shown()
"""The reasons of a choice that names none."""


@dataclass(frozen=True, slots=True, repr=False)
class Choice(Brief):
    """The choice of a policy for the context, besides the anchor and the tail.

    ``text``: the content of the memory message, "" for none; ``role``: its role. ``whole``: past interactions
    that are kept as they are. ``edits``: messages by position that are sent in another form, also those of past
    interactions of which nothing else is shown; ``unfolded``: those that also apply where nothing is folded.
    ``in_place``: what is shown of the past stands in its place among the messages that are never dropped.
    ``keep_all``: all messages are kept, in their order. ``unchanged``: why the messages need no change, or "".
    ``may_cost_more``: the context is used even where the full history costs no more, because it holds something that
    the messages lack. ``since``: the position of the first interaction that the fold is not about; from there on all
    that is kept stands in its place. None: there is no fold. ``fold``: its number in the bank; 0: it is not stored.
    ``budget``: tokens of the whole context. ``model_calls``: calls of a model that the choice made.
    """

    text: str = ""
    role: str = "user"
    whole: Sequence[Interaction] = ()
    edits: Mapping[int, Edit] = field(default_factory=dict)
    unfolded: Mapping[int, Edit] = field(default_factory=dict)
    in_place: bool = False
    keep_all: bool = False
    unchanged: str = ""
    may_cost_more: bool = False
    since: int | None = None
    fold: int | None = None
    reasons: Reasons = SCORELESS
    query: str = ""
    budget: int | None = None
    model_calls: int = 0


@dataclass(frozen=True)
class Plan:
    """The plan of one step: its token counts at once, the decision on every past interaction when asked for.

    ``tokens`` and ``full_tokens`` count the context and all messages with ``counter``; ``kept_tokens`` is the
    part that every context has: anchor, interactions that stay, tail. ``unchanged``: the messages are
    sent as they came, for the reason ``why_unchanged``. ``strategy`` is the type of the strategy.

    Example:
        >>> plan = state.last_plan  # a Plan
        >>> plan.as_dict()["unchanged"], len(plan.decisions), plan.as_html()[:15]
        (True, 0, '<!doctype html>')
    """

    view: View
    choice: Choice
    strategy: str
    tokens: int
    full_tokens: int
    kept_tokens: int
    memory_tokens: int
    unchanged: bool
    why_unchanged: str
    counter: str
    embedder: str = ""
    observer: str = ""
    memory: Mapping[str, str] | None = None
    host: int | None = None  # the position of the user's message that the memory joins
    rule: str = ""  # of the exit, that the context would have broken

    def __repr__(self) -> str:
        """One line, whatever the conversation has."""
        size = f"{self.tokens:,} of {self.full_tokens:,} tokens"
        return f"<Plan of {self.strategy or 'no step'}: {size}, {len(self.view.history)} past interactions>"

    def _repr_html_(self) -> str:
        return self.as_html()

    edits = property(attrgetter("choice.edits"), doc="The messages that the context has in another form.")
    fold = property(attrgetter("choice.fold"), doc="The number of its fold; None without one, 0: not stored.")
    query = property(attrgetter("choice.query"), doc='What was searched for; "" where nothing was.')
    budget = property(attrgetter("choice.budget"), doc="The most tokens of the context; None: no limit.")
    model_calls = property(attrgetter("choice.model_calls"), doc="Calls of a model that the choice made.")

    @property
    def over(self) -> int:
        """Tokens above the budget; more than 0 only if what every context has is larger than the budget."""
        return 0 if self.budget is None else max(0, self.tokens - self.budget)

    @cached_property
    def decisions(self) -> tuple[Decision, ...]:
        """One for every past interaction, in order, then those on records whose messages are gone."""
        return tuple(self.decided())

    def decided(self) -> Iterator[Decision]:
        """Iterate over ``decisions`` without keeping them."""
        for step, interaction in enumerate(self.view.history, 1):
            fate, score, reason = self._decide(interaction)
            ids = tuple(t for t in interaction.trace_ids if t)
            tools = tuple(p.tool_name for p in interaction.pairs)
            yield Decision(step, ids, tools, fate, score, reason, interaction.tokens)
        if not self.unchanged:
            here = {t for interaction in self.view.interactions for t in interaction.trace_ids if t}
            yield from self.choice.reasons.beyond(here)

    def _decide(self, interaction: Interaction) -> tuple[Fate, float | None, str]:
        if self.unchanged:
            return Fate.KEPT, None, f"the messages went through unchanged: {self.why_unchanged}"
        if interaction.stays:
            return Fate.KEPT, None, f"its pairs are broken ({interaction.fault}): passed through as it came"
        return self.choice.reasons.decide(interaction)

    def fates(self, numbers: Mapping[str, int]) -> dict[str, list[int]]:
        """The numbers of the records of which the context shows something, by fate; ``numbers``: by trace_id.

        Those that a fold is about are not among them: what it shows of them stands with the fold.
        """
        by_fate: dict[str, list[int]] = {}
        tail = self.view.tail
        for interaction in self.view.interactions:
            if interaction is tail or self.unchanged or interaction.stays:
                fate = Fate.KEPT
            elif self.choice.since is None:
                fate = self.choice.reasons.fate(interaction)
            else:
                fate = Fate.KEPT if interaction.start >= self.choice.since else Fate.LEFT_OUT
            if fate is not Fate.LEFT_OUT:
                shown = (numbers[t] for t in interaction.record_ids if t in numbers)
                by_fate.setdefault(str(fate), []).extend(shown)
        return by_fate

    def figures(self) -> dict[str, Any]:
        """The token counts and labels as JSON values, without the decisions."""
        return {name: getattr(self, name) for name in _FIGURES}

    def as_dict(self) -> dict[str, Any]:
        """The figures and the decisions as JSON values."""
        return {**self.figures(), "decisions": [d.as_dict() for d in self.decisions]}

    def manifest(self) -> dict[str, Any]:
        """``as_dict`` with the pieces that are shown and nearly shown."""
        reasons = Reasons() if self.unchanged else self.choice.reasons
        return {
            **self.as_dict(),
            "pieces": [p.as_dict() for p in reasons.pieces()],
            "near_misses": [p.as_dict() for p in reasons.near_misses()],
        }

    def as_html(self) -> str:
        """The manifest as one self-contained page."""
        from memory_bank.pages import render

        return render("plan.html", m=self.manifest())


NO_PLAN = Plan(
    View((), (), (), 0, "", (0,)), Choice(), "", 0, 0, 0, 0,
    unchanged=True, why_unchanged="no step was taken", counter="",
)  # fmt: skip
"""The plan before the first step, and after a step that went on without memory: it has no decisions."""

_FIGURES = (
    "strategy", "tokens", "full_tokens", "kept_tokens", "memory_tokens", "budget", "over", "unchanged",
    "why_unchanged", "model_calls", "query", "counter", "embedder", "observer",
)  # fmt: skip


class Context(list[Any]):
    """The messages for the next model call, with the plan that they were rendered from.

    ``entries`` has an entry for each message: the position of its source and the edit, or a new message.
    """

    def __init__(self, messages: Iterable[Any], plan: Plan, entries: Sequence[Entry]) -> None:
        super().__init__(messages)
        self.plan = plan
        self.entries = entries

    @property
    def since(self) -> int:
        """The position of the first message whose thinking blocks are kept; 0 where nothing was folded."""
        choice = self.plan.choice
        if choice.keep_all:
            return 0
        return self.plan.view.tail_start if choice.since is None else choice.since


@dataclass(frozen=True)
class Form:
    """The form in which a context leaves: that of an API or a framework, in which ``source`` came.

    ``read``: the chat messages of a written list. ``finish``: what else is done to it before it is
    sent; it gets the place in the source from which on thinking stays, too.
    ``thinking``: what becomes of thinking blocks.
    """

    source: Conversation[Any]
    read: Callable[[Sequence[Any]], Sequence[Any]]
    finish: Callable[[list[Any], int], list[Any]] = lambda written, since: written  # noqa: ARG005
    thinking: Thinking = Thinking.DROP
