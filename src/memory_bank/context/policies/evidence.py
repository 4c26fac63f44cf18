"""Selection "evidence": folds the older history where that pays, into what the next calls may need of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from memory_bank.bank.session import MemoryBankState
from memory_bank.config import MemoryBankSettings
from memory_bank.context.build import choice_tokens, memory_tokens
from memory_bank.context.evidence import EvidenceMemory, EvidenceReasons, Excerpts, choose, evidence_model
from memory_bank.context.fold_rule import fold_budget, is_priced, price_fold
from memory_bank.context.unchanged import restored_copies
from memory_bank.plan import Choice
from memory_bank.pricing import growth_that_pays
from memory_bank.transcript.chat import edited_message
from memory_bank.transcript.jsontext import parse_output
from memory_bank.transcript.messages import Interaction, content_text, in_full, read, with_hint
from memory_bank.transcript.quoting import Mark, quote_lines
from memory_bank.transcript.shortening import fit_text, shorten
from memory_bank.transcript.transcript import View, copy_of
from memory_bank.transcript.turns import WHOLE, Edit

PUT_OFF = 2
"""Under load the next fold comes after so many times the growth: to twice of it a step's cost differs little."""
SHORT = "the older history is shorter than a fold and its growth"
WAITING = "the older history is too short for a first fold"
DEAR = "with a fold the run would have cost more than the full history"
NOTE_HEAD = f"{Mark.NOTES}made before the latest calls):\n"
NOTE_SHARE = 1 / 3  # of the tokens of a fold, at most


def choose_evidence(view: View, session: MemoryBankState, *, settings: MemoryBankSettings) -> Choice:
    """Fold the older history where that pays: the list of past calls, and what the next calls may need of them.

    A fold has ``history_budget`` tokens. After it every interaction stays whole, until the new ones have
    ``refresh_after`` tokens: then comes the next fold. Before the first one nothing is changed. Where both are "auto"
    the prices decide, and a fold waits that would make the run cost more than the full history, and a little. A
    session whose prefix the provider has forgotten (``cache_retention``) is folded at once. Where the selection
    fails, the context has the list of calls and the latest interactions, and the log a warning. With ``fold_note`` a
    fold shows the note that a model wrote after the fold before.
    """
    state, past = _evidence(session, settings), view.past
    memory, fold = state.memory, state.fold
    assert memory is not None
    cache, older = session.prefix_cache, sum([e.tokens for e in past])
    if is_cold := cache.sent() > settings.cache_retention:
        session.ledger.sent = ()
    shortened = _shortened_tail(view, session, settings.shorten_last)
    base = Choice(role=settings.memory_role, edits=shortened)
    unfolded = choice_tokens(view, replace(base, keep_all=True))
    price = None
    if is_priced(settings):
        price = price_fold(view, session, settings, older=older, saved=view.full_tokens - unfolded)
    budget = price.size if price else fold_budget(settings.history_budget, older)
    budget = max(0, budget - view.pinned_tokens)
    if settings.refresh_after == "auto":
        latest = past[-20:]  # whose mean length predicts that of the next ones
        mean = sum(e.tokens for e in latest) / max(1, len(latest))
        growth = growth_that_pays(budget, mean, *cache.ratios)
        put_off = PUT_OFF if session.under_load else 1
    else:
        growth, put_off = int(settings.refresh_after), 1
    since = None if fold is None else fold.interactions_since(view, settings)
    stands, tokens, why = None, unfolded, SHORT if view.history else "there was no history yet"
    if stay := len(view.history) - len(past):
        why = f"{why}; {stay:,} past turns stay whole"
    if fold and since is not None:
        stands = fold.choice(base, since, view, session)
        tokens = fold.memory_tokens + choice_tokens(view, stands)
        # where nothing was added to the interactions of the fold, a new one would be the same
        is_due = (
            len(since) + len(fold.past) > fold.count
            if is_cold
            else fold.grown(view) > (growth and put_off * fold.growth)
        )
    else:
        is_due = older > budget + (0 if is_cold or fold else put_off * growth)
    if older <= budget or state.in_vain <= older <= state.in_vain + growth:
        is_due = False
    if price and is_due and not is_cold and (stands or not fold):
        if not fold and older < put_off * price.wait:
            is_due, why = False, WAITING
        elif budget > price.room or budget + price.rest >= tokens or not cache.read:
            is_due, why = False, DEAR
    # whether there are records whose messages the list has lost
    gone = not is_due and not stands and not session.steps.keys() <= _record_ids(view)
    if (is_due or gone) and (other := session.counts_otherwise()):
        is_due, gone, why = False, False, other
    if is_due or gone:
        fed_evidence(view, session, settings)
        note = ""
        if settings.fold_note == "observer" and (said := session.note):
            count = session.counter.count_text
            note = fit_text(f"\n{NOTE_HEAD}{quote_lines(said)}", int(budget * NOTE_SHARE), count)
            budget -= count(note)
        excerpts, whole = choose(view, session, settings, memory, budget)
        first = whole[0].start if whole else view.tail_start
        folded = tuple(e for e in view.history if e.start < first)
        kept = _kept_before(view, folded)
        new = _Fold(excerpts, folded, len(view.history), kept, settings, growth, gone, note)
        choice = new.choice(base, whole, view, session)
        new.memory_tokens = memory_tokens(choice, session)
        if gone or new.memory_tokens + choice_tokens(view, choice) < tokens:
            state.fold, state.in_vain = new if growth else None, -math.inf
            if settings.fold_note == "observer":
                _note_later(state, view, session)
            return choice
        why, state.in_vain = "the full history costs no more", older if growth else -math.inf
    else:
        session.run_later("evidence", partial(fed_evidence, view, session, settings))
    if stands:
        return replace(stands, may_cost_more=True)  # what stands is read from the cache
    state.fold = None
    starts = [e.start for e in past] if view.hidden else ()
    return replace(base, unchanged=why, reasons=EvidenceReasons(Excerpts(memory), starts))


def _record_ids(view: View) -> set[str]:
    return {t for e in view.interactions for t in e.record_ids}


def _foldable(view: View, start: int) -> list[Interaction]:
    """The interactions of the history from one on, by number, that a fold may replace."""
    apart = view.pinned | view.hidden
    return [e for e in view.history[start:] if not e.stays and e.start not in apart]


def _kept_before(view: View, past: Sequence[Interaction]) -> list[int]:
    return [p for p in view.kept if past and p < past[-1].stop]


@dataclass(slots=True)
class _Fold:
    """What replaces the older history until the next fold, and the history and settings that it was made for."""

    excerpts: Excerpts
    past: tuple[Interaction, ...]  # the interactions that it is about
    count: int  # of past interactions then, those kept whole included
    kept: Sequence[int]
    settings: MemoryBankSettings
    growth: int  # tokens of interactions that may follow before the next fold
    gone: bool  # whether it shows records whose messages the list has lost
    note: str  # what it quotes of a model's note, with its heading
    memory_tokens: int = 0  # of its message

    def choice(
        self, base: Choice, whole: Sequence[Interaction], view: View, session: MemoryBankState
    ) -> Choice:
        """The fold, and some interactions whole after it, with copies that these only refer to."""
        hint, count = in_full(session.record_tool), session.counter.count_message
        in_place = self.excerpts.in_place
        edits = {
            p: replace(edit, message=copy_of(edit.message) if edit.change else view.messages[p])
            for p, edit in (in_place or {}).items()
        }
        restored = restored_copies(view, len(self.past), count)
        return replace(
            base,
            text=(with_hint(self.excerpts.text, hint) + self.note).lstrip("\n"),
            whole=whole,
            edits={**base.edits, **edits, **restored},
            in_place=in_place is not None,
            may_cost_more=self.gone,
            since=next((e.start for e in view.interactions[len(self.past) :]), view.tail_start),
            reasons=EvidenceReasons(self.excerpts, [e.start for e in whole]),
        )

    def grown(self, view: View) -> int:
        """The tokens of the interactions after it that a fold may replace."""
        return sum(e.tokens for e in _foldable(view, self.count))

    def interactions_since(self, view: View, settings: MemoryBankSettings) -> list[Interaction] | None:
        """The interactions after the fold; None where it is not about this list, or made with other settings."""
        n = len(self.past)
        if settings != self.settings or len(view.history) < n or _kept_before(view, self.past) != self.kept:
            return None
        for then, now in zip(self.past, view.history, strict=False):
            if then is not now and (then.trace_ids != now.trace_ids or then.start != now.start):
                return None
        return _foldable(view, n)


@dataclass(slots=True)
class _Evidence:
    memory: EvidenceMemory | None = None
    made_with: tuple[object, ...] = ()
    fold: _Fold | None = None
    in_vain: float = -math.inf  # tokens of the older history when a fold would have removed nothing
    noted: int = 0  # the number of the latest record that the note is about; 0 where that is not known


def _evidence(session: MemoryBankState, settings: MemoryBankSettings) -> _Evidence:
    """The session's evidence; made anew where the settings or the order of its records changed."""
    state: _Evidence = session.cache("evidence", _Evidence)
    made_with = (settings.evidence_model, settings.tools, session.order_changes, session.counter.name)
    if state.memory is None or state.made_with != made_with:
        model = evidence_model(settings.evidence_model)
        state.memory = EvidenceMemory(session.counter, model, settings.tools)
        state.made_with, state.fold = made_with, None
    return state


def evidence_of(session: MemoryBankState) -> EvidenceMemory | None:
    """The evidence that a session has built so far."""
    state: _Evidence = session.cache("evidence", _Evidence)
    return state.memory


def fed_evidence(view: View, session: MemoryBankState, settings: MemoryBankSettings) -> EvidenceMemory:
    """The session's evidence, with the stored records that were not yet in it."""
    memory = _evidence(session, settings).memory
    assert memory is not None
    missing = list(islice(session.steps, len(memory.numbers), None))
    if not missing:
        return memory
    records = {r.trace_id: r for r in session.new_records}
    stored = session.fact_store.get_many([t for t in missing if t not in records])
    records.update((r.trace_id, r) for r in stored)
    notes: dict[str, str] = {}  # what the agent said, by the first record of each turn
    starts: dict[str, int] = {}  # of each record's turn
    left = set(missing)
    for interaction in reversed(view.interactions):  # the newest are the likeliest
        ids = [t for t in interaction.trace_ids if t]
        if ids and ids[0] in left:
            notes[ids[0]] = interaction.note
        starts.update(dict.fromkeys(ids, interaction.start))
        left.difference_update(ids)
        if not left:
            break
    kept, anchor = [*reversed(view.kept)], list[str]()  # positions and texts of what every context shows
    for trace_id in missing:
        record = records.get(trace_id)
        if record is None:  # purged meanwhile: the next step loads the session again
            continue
        while kept and kept[-1] < starts.get(trace_id, 0):
            anchor.append(content_text(read(view.messages[kept.pop()], "content")))
        if trace_id in session.retained[1]:  # nothing of it is to be chosen
            memory.add(
                replace(record, raw_input={}, input_text=None, raw_output="", output_text=""), anchor=anchor
            )
        else:
            memory.add(record, notes.get(trace_id, ""), anchor)
    return memory


def _note_later(state: _Evidence, view: View, session: MemoryBankState) -> None:
    """Have a note written about the calls before the tail that the one before is not about, without excluded ones."""
    assert state.memory is not None
    words = {next(filter(None, e.trace_ids), ""): e.note for e in view.history}
    apart = session.retained[1].union(view.tail.record_ids if view.tail else ())
    numbers = state.memory.numbers
    calls = [(n, t, words.get(t, "")) for t, n in numbers.items() if n > state.noted and t not in apart]
    if calls:
        session.note_later(calls, view.task, lambda: setattr(state, "noted", calls[-1][0]))


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
