"""Selection "evidence": under a budget, the pieces of past outputs that the next call may need."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from operator import is_

from memory_bank.bank.session import MemoryBankState
from memory_bank.config import MemoryBankSettings
from memory_bank.context.evidence import EvidenceMemory, EvidenceReasons, evidence_model
from memory_bank.context.native import NativeTurns
from memory_bank.context.render import memory_message
from memory_bank.errors import MemoryBankError
from memory_bank.plan import Choice
from memory_bank.pricing import growth_that_pays
from memory_bank.selection.index import Selection
from memory_bank.selection.thread import PARTS_HEAD, ThreadText, thread_room
from memory_bank.transcript.chat import edited_message
from memory_bank.transcript.jsontext import parse_output
from memory_bank.transcript.messages import Interaction, content_text, in_full, read, with_hint
from memory_bank.transcript.quoting import quote_lines
from memory_bank.transcript.shortening import shorten
from memory_bank.transcript.tokens import newest_within
from memory_bank.transcript.transcript import View, copy_of
from memory_bank.transcript.turns import WHOLE, Edit

NOTHING = Selection()
NATIVE_BUDGET = 1_500
"""Tokens from which past turns are shown in their native form; the frames of messages cost too much below."""
LEAST_FOLD, FOLD_SHARE, MOST_FOLD = 2_000, 0.15, 16_000
"""Tokens of a fold with ``history_budget = "auto"``: a share of the older history between two bounds."""
_RECENT_SHARE = 0.2
"""The share of a fold for the newest interactions, which it keeps whole."""

log = logging.getLogger("memory_bank.MemoryBankStrategy")


def choose_evidence(view: View, session: MemoryBankState, *, settings: MemoryBankSettings) -> Choice:
    """Fold the older history where that pays: the list of past calls, and what the next calls may need of them.

    A fold has ``history_budget`` tokens. After it every interaction stays whole, until the new ones have
    ``refresh_after`` tokens: then comes the next fold. Before the first one nothing is changed. A session whose
    prefix the provider has forgotten (``cache_retention``) is folded at once. Where the selection fails, the context
    has the list of calls and the latest interactions, and the log a warning.
    """
    memory = _memory(session, settings)
    past = view.past
    older = sum([e.tokens for e in past])
    budget = max(0, fold_budget(settings.history_budget, older) - view.pinned_tokens)
    is_cold = session.prefix_cache.sent() > settings.cache_retention
    base = Choice(
        role=settings.memory_role,
        repair_pairs=settings.repair_pairs,
        edits=_shortened_tail(view, session, settings.shorten_last),
    )
    if settings.refresh_after == "auto":
        latest, cache = past[-20:], session.prefix_cache  # whose mean length predicts that of the next ones
        mean = sum(e.tokens for e in latest) / max(1, len(latest))
        growth = growth_that_pays(budget, mean, cache.read, cache.write)
    else:
        growth = int(settings.refresh_after)
    state = session.cache(_EvidenceState)
    kept = state.kept if state.kept and state.kept.memory is memory else None
    since = None if kept is None else kept.interactions_since(view, settings, kept.growth if growth else 0)
    # where nothing was added to the interactions of the fold, a new one would be the same
    if kept and since is not None and (not is_cold or len(since) + len(kept.past) <= kept.count):
        session.run_later("evidence", partial(_feed, view, session, settings))
        return kept.choice(base, since, view, in_full(session.record_tool))
    room = budget + (0 if is_cold or kept is not None else growth)
    fits = older <= room
    # whether there are records whose messages the list has lost
    gone = fits and not session.steps.keys() <= {t for e in view.interactions for t in e.record_ids}
    if fits and not gone:
        state.kept = None
        session.run_later("evidence", partial(_feed, view, session, settings))
        shorter = "the older history is shorter than a fold and its growth"
        why = shorter if view.history else "there was no history yet"
        starts = [e.start for e in past] if view.hidden else ()
        return replace(base, unchanged=why, reasons=EvidenceReasons(memory, NOTHING, starts))
    _feed(view, session, settings)
    step = _Step(view, session, settings, memory, budget)
    try:
        shown = step.native() if settings.layout == "native" and budget >= NATIVE_BUDGET else step.block()
    except MemoryBankError:
        raise
    except Exception as e:
        log.warning(
            "session %s: choosing excerpts failed (%s); the context lists the calls and has the latest in full",
            session.session_id, type(e).__name__,
        )  # fmt: skip
        step = _Step(view, session, settings, memory, budget, recent=len(view.history))
        shown = step.without_excerpts()
    folded = tuple(view.history[: len(view.history) - len(step.whole)])
    new = _Fold(
        *shown, memory, step.anchor, step.first_step, folded, len(view.history), _before(view, folded), settings,
        growth, gone,
    )  # fmt: skip
    state.kept = new if growth else None
    return new.choice(base, step.whole, view, in_full(session.record_tool))


def fold_budget(budget: int | float | str, older: int) -> int:
    """Return the tokens of a fold of an older history of so many tokens; ``budget`` as in the settings."""
    if budget == "auto":
        return int(min(max(LEAST_FOLD, FOLD_SHARE * older), MOST_FOLD))
    return int(older * budget) if isinstance(budget, float) else int(budget)


def _before(view: View, past: Sequence[Interaction]) -> list[int]:
    """The positions of what is never dropped up to the end of some past interactions."""
    return [p for p in view.kept if past and p < past[-1].stop]


_Shown = tuple[str, Mapping[int, Edit] | None, Selection, frozenset[int]]
"""What a fold shows: the memory text, turns in their places, the selection, the calls that the text names."""


class _Step:
    """One choice: the newest interactions whole, and the room for the thread and for what is shown of the rest."""

    def __init__(
        self,
        view: View,
        session: MemoryBankState,
        settings: MemoryBankSettings,
        memory: EvidenceMemory,
        budget: int,
        recent: int | None = None,
    ) -> None:
        self._view, self._session, self._memory = view, session, memory
        share, most = (_RECENT_SHARE, settings.keep_recent) if recent is None else (1 - _RECENT_SHARE, recent)
        count = newest_within([e.tokens for e in view.history], int(budget * share), most)
        apart = view.pinned | view.hidden
        latest = view.history[len(view.history) - count :]
        self.whole = [e for e in latest if not e.fault and e.start not in apart]
        after = view.tail.stop if view.tail else len(view.messages)
        shown = [view.messages[p] for p in view.kept] + list(view.messages[after:])
        self.anchor = [content_text(read(m, "content")) for m in shown]
        hidden = _latest_hidden(view, session, self.whole)
        steps = session.steps
        self.whole = [e for e in self.whole if all(steps.get(t, hidden + 1) > hidden for t in e.record_ids)]
        visible = [*self.whole, *([view.tail] if view.tail else [])]
        seen = [steps[t] for e in visible for t in e.record_ids if t in steps]
        self.first_step = min(seen, default=session.step_count + 1)
        frame = memory_message("", session.session_id, settings.memory_role)
        room = budget - sum(e.tokens for e in self.whole) - session.counter.count_message(frame) - 1
        self._room = max(0, room)
        self._thread_room = min(self._room, thread_room(budget, len(memory.numbers)))
        # for changes and for calls that brought back ids
        self._thread_more = min(self._room - self._thread_room, int(budget * 0.25))
        self._native = settings.layout == "native"
        self._hint = in_full(session.record_tool)
        kept = (e for e in view.history if (e.fault or e.start in view.pinned) and e.start not in view.hidden)
        self._kept = {t for e in kept for t in e.record_ids}  # what every context shows

    def block(self) -> _Shown:
        """All in the memory text: the thread, then excerpts under the lines of their calls."""
        told = self._tell(self._thread_room)
        selection = self._select(self._room - told.tokens - 1, None, told.text)
        return told.text + selection.text, {} if self._native else None, selection, told.told

    def without_excerpts(self) -> _Shown:
        """The thread alone."""
        try:
            told = self._tell(self._room)
        except Exception as e:
            session_id, told = self._session.session_id, ThreadText("", 0)
            log.warning("session %s: the calls cannot be listed (%s)", session_id, type(e).__name__)
        return told.text, {} if self._native else None, NOTHING, told.told

    def native(self) -> _Shown:
        """Turns of which something is chosen in their places, the others in the thread.

        Excerpts of records whose messages are no longer in the list stand after the thread.
        """
        turns = NativeTurns(self._view, self._memory, self._session.counter, {e.start for e in self.whole})
        first = told = self._tell(self._thread_room)
        whole = [*self.whole, *([self._view.tail] if self._view.tail else [])]
        room = self._room - told.tokens
        newest = turns.newest_of_tools({p.tool_name for e in whole for p in e.pairs})
        besides: dict[str, int] = {}
        for trace_id, cost in newest.items():  # the first of them that fit in a fifth of the room
            if sum(besides.values()) + cost > int(room * 0.2):
                break
            besides[trace_id] = cost
        room -= sum(besides.values())
        selection = self._select(room, turns.opening, told.text)
        while True:
            in_place, elsewhere, numbers = turns.show(selection, besides)
            told = self._tell(self._thread_room, numbers, first)
            head = PARTS_HEAD.format(self._hint) if in_place and not told.text.startswith("Calls ") else ""
            text = head + told.text + elsewhere
            spent = sum(edit.tokens for edit in in_place.values())
            tokens = told.tokens if text == told.text else self._session.counter.count_text(text)
            over = spent + tokens - self._room
            if over > 0 and not selection.gains and besides:
                besides.popitem()
                continue
            if over <= 0 or not selection.gains:
                return text, in_place, selection, told.told | numbers
            selection = self._memory.index.without_last(selection, over)

    def _select(self, room: int, opening: Callable[[int], int] | None, listed: str) -> Selection:
        if room <= 0:
            return NOTHING
        return self._memory.select(self.anchor, self.first_step, room, opening, listed, self._kept)

    def _tell(
        self, room: int, shown: Collection[int] = (), first: ThreadText = ThreadText("", 0)
    ) -> ThreadText:
        numbers = self._memory.numbers
        shown = {*shown, *(numbers[t] for t in self._kept if t in numbers)}
        return self._memory.thread.tell(self.first_step, room, shown, self._thread_more, first, self._hint)


@dataclass(frozen=True, slots=True)
class _Fold:
    """What stands in the place of the older history for several steps, and what it was made for."""

    text: str
    in_place: Mapping[int, Edit] | None
    selection: Selection
    named: frozenset[int]
    memory: EvidenceMemory
    anchor: list[str]
    first_step: int
    past: tuple[Interaction, ...]  # the interactions that it is about
    count: int  # of past interactions then, those kept whole included
    kept: Sequence[int]
    settings: MemoryBankSettings
    growth: int  # tokens of interactions that may follow before the next fold
    gone: bool

    def choice(self, base: Choice, whole: Sequence[Interaction], view: View, hint: str) -> Choice:
        """The fold, and some interactions whole after those that it is about.

        Where the tools have changed since, the text says of them what ``hint`` says, or nothing.
        Of messages that are not the view's own the context gets copies, which a caller may change.
        """
        edits = {
            p: replace(edit, message=copy_of(edit.message) if edit.change else view.messages[p])
            for p, edit in (self.in_place or {}).items()
        }
        starts, at = [e.start for e in whole], (self.anchor, self.first_step)
        return replace(
            base,
            text=with_hint(self.text, hint),
            whole=whole,
            edits={**base.edits, **edits},
            in_place=self.in_place is not None,
            may_cost_more=self.gone,
            reasons=EvidenceReasons(self.memory, self.selection, starts, self.named, *at),
        )

    def interactions_since(
        self, view: View, settings: MemoryBankSettings, growth: int
    ) -> list[Interaction] | None:
        """The interactions after the fold; None where the next one is due: they have more tokens than ``growth``."""
        n = len(self.past)
        if settings != self.settings or len(view.history) < n or _before(view, self.past) != self.kept:
            return None
        if not all(map(is_, self.past, view.history)):
            before = zip(self.past, view.history, strict=False)
            if any(a.trace_ids != b.trace_ids or a.start != b.start for a, b in before):
                return None
        since = list(view.history[n:])
        if any(e.fault or e.start in view.pinned | view.hidden for e in since):
            return None
        return since if sum(e.tokens for e in view.history[self.count :]) <= growth else None


@dataclass(slots=True)
class _EvidenceState:
    """A session's evidence, what it was made with, and the fold that is kept."""

    memory: EvidenceMemory | None = None
    made_with: tuple[object, ...] = ()
    kept: _Fold | None = None


def _memory(session: MemoryBankState, settings: MemoryBankSettings) -> EvidenceMemory:
    """The session's evidence; made anew where the settings or the order of its records changed."""
    state = session.cache(_EvidenceState)
    made_with = (settings.evidence_model, settings.tools, session.order_changes)
    if state.memory is None or state.made_with != made_with:
        learned = session.learned_model() if settings.evidence_model is None else None
        model = evidence_model(settings.evidence_model, learned)
        state.memory = EvidenceMemory(session.counter, model, settings.tools)
        state.made_with = made_with
    return state.memory


def evidence_of(session: MemoryBankState) -> EvidenceMemory | None:
    """The evidence that a session has built so far."""
    return session.cache(_EvidenceState).memory


def _feed(view: View, session: MemoryBankState, settings: MemoryBankSettings) -> None:
    """Add the stored records that are not yet in the session's evidence."""
    memory = _memory(session, settings)
    missing = list(islice(session.steps, len(memory.numbers), None))
    if missing:
        records = {r.trace_id: r for r in session.new_records}
        stored = session.fact_store.get_many([t for t in missing if t not in records])
        records.update((r.trace_id, r) for r in stored)
        notes = _notes(view, set(missing))
        for trace_id in missing:
            record = records.get(trace_id)
            if record is None:  # purged meanwhile: the next step loads the session again
                continue
            if trace_id in session.retained[1]:  # nothing of it is to be chosen
                memory.add(replace(record, raw_input={}, input_text=None, raw_output="", output_text=""))
            else:
                memory.add(record, notes.get(trace_id, ""))


def _notes(view: View, trace_ids: set[str]) -> dict[str, str]:
    """What the agent said in the turns of some records, by the first record of each interaction."""
    notes: dict[str, str] = {}
    for interaction in reversed(view.interactions):  # the newest are the likeliest
        ids = [t for t in interaction.trace_ids if t]
        if ids and ids[0] in trace_ids:
            notes[ids[0]] = interaction.note
        trace_ids.difference_update(ids)
        if not trace_ids:
            break
    return notes


def _latest_hidden(view: View, session: MemoryBankState, whole: Sequence[Interaction]) -> int:
    """The step of the newest record before the tail that the messages do not show; 0 for none.

    It may be newer than interactions kept whole where records came in apart from the messages.
    """
    tail = view.tail.record_ids if view.tail else ()
    before = min((session.steps[t] for t in tail if t in session.steps), default=session.step_count + 1)
    apart = view.pinned | view.hidden
    others = (e for e in view.history if e.fault or e.start in apart)
    shown = session.retained[1].union(t for e in (*whole, *others) for t in e.record_ids)
    return next((s for t, s in reversed(session.steps.items()) if s < before and t not in shown), 0)


def _shortened_tail(view: View, session: MemoryBankState, most: int) -> dict[int, Edit]:
    """The tail's outputs of more than ``most`` characters, shortened; 0 shortens none."""
    edits: dict[int, Edit] = {}
    if not most or view.tail is None:
        return edits
    for pair, trace_id in zip(view.tail.pairs, view.tail.trace_ids, strict=True):
        content = None if pair.result is None else pair.result.content
        if not isinstance(content, str) or len(content) <= most or pair.result_at is None:
            continue
        position = view.tail_start + pair.result_at
        text = shorten(parse_output(content), most, text=quote_lines(content), trace_id=trace_id).text
        new = edited_message(view.messages[position], {WHOLE: text})
        edits[position] = Edit({WHOLE: text}, new, session.counter.count_message(new))
    return edits
