"""Selection "evidence": folds the older history where that pays, into what the next calls may need of it."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from hashlib import blake2b
from itertools import islice
from typing import Any

from memory_bank.bank.database import LastFold
from memory_bank.bank.folds import Fold, FoldContent, FoldReasons, Folds, Turn
from memory_bank.bank.session import MemoryBankState
from memory_bank.config import MemoryBankSettings
from memory_bank.context.build import choice_tokens, memory_tokens
from memory_bank.context.evidence import (
    EvidenceMemory,
    Excerpts,
    Explained,
    choose,
    evidence_model,
    explained,
)
from memory_bank.context.first_sight import first_sight
from memory_bank.context.fold_rule import CARRIED, fold_budget, price_fold
from memory_bank.errors import StorageError
from memory_bank.plan import Choice
from memory_bank.pricing import LEAST_GROWTH, growth_that_pays
from memory_bank.selection.effects import is_failure
from memory_bank.selection.files import FileCopy, Files
from memory_bank.transcript.chat import edited_message
from memory_bank.transcript.harness import refers_to_earlier
from memory_bank.transcript.messages import (
    Interaction,
    MessageKind,
    content_text,
    in_full,
    kind_of,
    persons_words,
    read,
    same_objects,
    with_hint,
)
from memory_bank.transcript.quoting import Mark, quote_lines, sendable
from memory_bank.transcript.shortening import fit_text
from memory_bank.transcript.textcalls import plain_arguments
from memory_bank.transcript.transcript import View
from memory_bank.transcript.turns import WHOLE, Change, Edit

log = logging.getLogger("memory_bank.MemoryBankStrategy")

MOST_STORED = 2**63 - 1
"""The largest number that a row of a bank takes: whoever gives more to `refresh_after` means never."""
NEAR = 0.7
"""The share of the growth from which the next fold is prepared, after the answer."""
ROOM = 1.5
"""Such a multiple of the room for its price is to hold it then: else it is far, or never comes."""
SHORT = "the older history is shorter than a fold and its growth"
WAITING = "the older history is too short for a first fold"
DEAR = "with a fold the run would have cost more than the full history"
NOTE_HEAD = f"{Mark.NOTES}made before the latest calls):\n"
NOTE_SHARE = 1 / 3  # of the tokens of a fold, at most
MOST_COPIED = 10_000
"""Tokens of the copy of a file; what is longer is shortened, and says so."""


def choose_evidence(view: View, session: MemoryBankState, *, settings: MemoryBankSettings) -> Choice:
    """Fold the older history where that pays: the list of past calls, and what the next calls may need of them.

    A fold has ``history_budget`` tokens. After it every interaction stays whole, until the new ones have
    ``refresh_after`` tokens: then comes the next fold. Before the first one nothing is changed. Where both are "auto"
    the prices decide, and a fold waits that would make the run cost more than the full history, and a little. A
    session whose prefix the provider has forgotten (``cache_retention``, or as its requests ask) is folded at once.
    Where the selection fails, the context has the list of calls and the latest interactions, and the log a warning.
    With ``fold_note`` a fold shows the note that a model was asked for when it drew near.

    A fold is a row of the bank that is never changed: between folds a context is a function of the messages, the
    fold and the settings, in every process.
    """
    state, ledger = _evidence(session, settings), session.ledger
    sight = first_sight(view, session, settings)
    size = sight.tokens  # of an interaction, as it is shown
    cache, (past, older) = session.prefix_cache, sight.foldable[len(view.history)]
    if state.unexplained is not None:  # in a library, that of the step before
        session.run_later("why", partial(_explain, state, session))
    retention = max(settings.cache_retention, cache.cached_for)
    models = {
        m for m, age in cache.asked.items() if age + session.idle <= retention
    }  # that may have a prefix
    if is_cold := session.idle > retention:
        ledger.sent = ()
    edits = dict(sight.edits)
    base = Choice(role=settings.memory_role, edits=edits, unfolded=edits)  # all, as it was shown first
    unfolded = choice_tokens(view, replace(base, keep_all=True))
    price, rest = None, 0
    if settings.history_budget == settings.refresh_after == "auto":  # the prices decide
        rest = choice_tokens(view, replace(base, edits=_still_shown(base, view, view.tail_start)))
        price = price_fold(view, session, settings, older=older, rest=rest, models=len({*models, cache.key}))
    if models and cache.key not in models:  # it has none of the session in its cache, which others have
        ledger.sent = ()
    budget = price.size if price else fold_budget(settings.history_budget, older)
    if settings.refresh_after == "auto":
        mean = sight.latest(20, len(view.history)) / max(
            1, min(past, 20)
        )  # which predicts that of the next ones
        growth = growth_that_pays(budget, mean, *cache.ratios)
        if cache.is_denied:  # a fold that is allowed all the same pays if there is no cache
            growth = min(growth, LEAST_GROWTH)
    else:
        growth = min(int(settings.refresh_after), MOST_STORED)
    fold = _stored_fold(state, view, session.last_fold)
    if fold and not fold.growth:  # of a step whose next one folds anew
        fold = None
    stands, tokens, why = None, unfolded, SHORT if view.history else "there was no history yet"
    if stay := len(view.history) - past:
        why = f"{why}; {stay:,} past turns stay whole"
    # tokens of the older history at the first fold, and at that of a list that goes on otherwise than the folded one
    common = ledger.shared_with(view.digests)
    differs = common < min(len(ledger.came), len(view.messages))
    anew = not fold and session.last_fold.number > 0 and differs
    first = budget + growth
    if fold:
        since = _foldable(view, fold.past)
        stands = _choice(fold, base, since, view, session, state)
        tokens = fold.tokens + choice_tokens(view, stands)
        grown = sum(map(size, _foldable(view, fold.count)))
        # where nothing was added to the interactions of the fold, a new one would be the same
        is_due = len(since) + fold.past > fold.count if is_cold else grown > (growth and fold.growth)
        near = NEAR * fold.growth
    else:
        grown = older
        is_due = older > (budget if is_cold or anew else first)
        near = NEAR * max(first, price.wait if price else 0)
    is_near, is_soon = grown > near, not price or budget <= ROOM * price.room
    # once between two folds, at a step that all processes agree on: whichever has it asks for the note
    state.asks |= is_near and past > 0 and grown - sight.latest(1, len(view.history)) <= near
    in_vain = ledger.in_vain
    if older <= budget or (in_vain is not None and in_vain <= older <= in_vain + growth):
        is_due = False
    if price and is_due and not is_cold:
        if not fold and not anew and older < price.wait:
            is_due, why = False, WAITING
        elif budget > price.room or budget + rest >= tokens or not cache.read:
            is_due, why = False, DEAR
        elif (
            growth
            and (fold or not session.last_fold.number)
            and common == len(ledger.came) == len(view.messages)
        ):
            is_due = False  # the same request: the same answer
    # whether there are records whose messages the list has lost
    gone = (
        not is_due
        and not stands
        and not session.steps.keys() <= {t for e in view.interactions for t in e.record_ids}
    )
    if gone and price and price.size * (cache.write + CARRIED * cache.read) > price.room * cache.write:
        gone, why = False, DEAR
    if (is_due or gone) and (other := session.counts_otherwise()):
        is_due, gone, why = False, False, other
    if is_due or gone:
        new = _make_fold(view, session, settings, state, budget, growth, size, gone=gone)
        choice = _choice(new, base, _foldable(view, new.past), view, session, state)
        new = replace(new, tokens=memory_tokens(choice, session))
        if gone or new.tokens + choice_tokens(view, choice) < tokens:
            ledger.in_vain = None
            stored = _store_fold(new, view, session, state)
            if settings.fold_note == "observer" and (
                state.asks or not is_near or not growth or not (fold or session.note)
            ):  # it came too suddenly: the next one has it
                _note_later(state, view, session)
            if stored.body is not new.body:
                return _choice(stored, base, _foldable(view, stored.past), view, session, state)
            return replace(choice, fold=stored.number)
        why, ledger.in_vain = "the full history costs no more", older if growth else None
    elif is_near and ((session.defer and is_soon) or (state.asks and settings.fold_note == "observer")):
        session.run_later("evidence", partial(_prepare, state, view, session, settings))
    if stands:
        return replace(stands, may_cost_more=True)  # what stands is read from the cache
    return replace(base, unchanged=why)


def choose_standing(view: View, session: MemoryBankState, *, settings: MemoryBankSettings) -> Choice:
    """The session's newest fold that fits, and what came since, however long that is; without one all messages."""
    state = _evidence(session, settings)
    edits = dict(first_sight(view, session, settings).edits)
    base = Choice(role=settings.memory_role, edits=edits, unfolded=edits)
    fold = _stored_fold(state, view, session.last_fold)
    if fold is None:
        return replace(base, unchanged=SHORT)
    stands = _choice(fold, base, _foldable(view, fold.past), view, session, state)
    return replace(stands, may_cost_more=True)


def _still_shown(base: Choice, view: View, since: int) -> dict[int, Edit]:
    """The edits that stay under a fold of everything before a position: of later messages, and never dropped ones."""
    never_dropped = {*view.kept} if base.edits else ()
    return {p: edit for p, edit in base.edits.items() if p >= since or p in never_dropped}


def _make_fold(
    view: View,
    session: MemoryBankState,
    settings: MemoryBankSettings,
    state: _Evidence,
    budget: int,
    growth: int,
    size: Callable[[Interaction], int],
    *,
    gone: bool,
) -> Fold:
    """Choose what stands for the older history. ``gone``: of records, too, whose messages the list has lost."""
    session.reload_steps()
    _explain(state, session)  # before the evidence grows
    memory, note = fed_evidence(view, session, settings), ""
    if settings.fold_note == "observer" and (written := session.note):
        count = session.counter.count_text
        note = fit_text(f"\n{NOTE_HEAD}{quote_lines(written)}", int(budget * NOTE_SHARE), count)
        budget -= count(note)
    excerpts, whole = choose(view, session, settings, memory, budget, size)
    first = whole[0].start if whole else view.tail_start
    past = sum(1 for e in view.history if e.start < first)
    body = FoldContent(excerpts.text, note, gone, _turns(excerpts, view, past))
    try:
        body = FoldContent.unpacked(body.packed())  # as every other step reads it
    except (TypeError, ValueError, RecursionError) as e:  # odd arguments of a call
        log.warning("session %s: turns cannot stand in a fold (%s)", session.session_id, type(e).__name__)
        body = replace(body, turns=None)
    return Fold(
        number=session.last_fold.number + 1,
        made_for=state.made_for,
        past=past,
        about=_about(state, view, past),
        count=len(view.history),
        growth=growth,
        tokens=0,
        body=body,
        why=cache(partial(_reasons, excerpts, len(memory.numbers), session.lock, session.session_id)),
    )


def _reasons(
    excerpts: Excerpts, records: int, lock: AbstractContextManager[object], name: str
) -> FoldReasons | None:
    """Why a fold of so many records shows what it does; None where that fails, which is logged."""
    with lock:
        try:
            return explained(excerpts, records)
        except Exception as e:
            log.warning("session %s: a fold is not explained (%s)", name, type(e).__name__)
            return None


def _explain(state: _Evidence, session: MemoryBankState) -> None:
    """Store the reasons of the latest fold made by this process; if the database fails, a later step does it."""
    fold = state.unexplained
    with suppress(StorageError):
        if fold is not None and (why := fold.why()) is not None:
            state.folds.explain(fold, why, session.generation)
        state.unexplained = None


def _store_fold(fold: Fold, view: View, session: MemoryBankState, state: _Evidence) -> Fold:
    """Store a fold; returns it, or the one that another process stored for this step. Number 0: it is not stored."""
    while not state.folds.add(fold, session.generation):
        last = state.folds.last()
        if last.number < fold.number:  # content was deleted meanwhile: the next step folds anew
            return replace(fold, number=0)
        other = _stored_fold(state, view, last)
        if other is not None and other.count == fold.count:
            return other
        fold = replace(fold, number=last.number + 1)
    if not session.database.in_memory:
        state.unexplained = fold
        session.put_off("why", partial(_explain, state, session))
    return fold


def _stored_fold(state: _Evidence, view: View, last: LastFold) -> Fold | None:
    """The newest fold of the session that fits the list; ``last``: its newest of all."""
    if not last.number:
        return None
    return state.folds.newest(last, state.made_for, len(view.history), partial(_about, state, view))


def _about(state: _Evidence, view: View, count: int) -> str:
    """A digest of the first interactions: their records, and where their calls and results stand."""
    first = view.history[:count]
    if state.about:  # a list that has only grown since has the same digests
        digests, interactions, about = state.about
        if len(interactions) == len(first) and (digests is view.digests or same_objects(first, interactions)):
            return about
    digest = blake2b(digest_size=16)
    for e in first:
        apart = (True, False, False) if e.stays else ""
        digest.update(f"{e.trace_ids}{e.stop - e.start}{apart}".encode())
        if len(e.pairs) > 1:
            digest.update(str([(p.call_at, p.result_at) for p in e.pairs]).encode())
    state.about = view.digests, first, digest.hexdigest()
    return state.about[2]


def _turns(excerpts: Excerpts, view: View, past: int) -> list[Turn] | None:
    """The turns in their places, of the first ``past`` interactions, as a fold keeps them."""
    if excerpts.in_place is None:
        return None
    history = view.history[:past]
    starts = [e.start for e in history]
    turns: dict[int, list[tuple[int, Change, int]]] = {}
    for position, edit in excerpts.in_place.items():
        at = bisect_right(starts, position) - 1
        if at >= 0 and position < history[at].stop:
            turns.setdefault(at, []).append((position - starts[at], edit.change, edit.tokens))
    return [*turns.items()]


def _choice(
    fold: Fold,
    base: Choice,
    whole: Sequence[Interaction],
    view: View,
    session: MemoryBankState,
    state: _Evidence,
) -> Choice:
    """The choice that shows a fold, the interactions after it whole, and files that these only refer to."""
    body, folded = fold.body, view.history[: fold.past]
    if not (
        state.turns[0] is body
        and len(folded) == len(state.turns[2])
        and (view.digests is state.turns[1] or same_objects(state.turns[2], folded))
    ):
        edits: dict[int, Edit] = {}
        for at, messages in body.turns or ():
            for place, change, tokens in messages:
                position = folded[at].start + place
                edits[position] = Edit(change, edited_message(view.messages[position], change), tokens)
        _part_users(edits, folded, view)
        state.turns = body, view.digests, folded, edits
    turns = [folded[at] for at, _ in body.turns or ()]
    copies = restored_copies(view, fold.past, session.counter.count_message)
    since = next((e.start for e in view.interactions[fold.past :]), view.tail_start)
    return replace(
        base,
        text=(with_hint(body.text, in_full(session.record_tool)) + body.note).lstrip("\n"),
        whole=whole,
        edits={**_still_shown(base, view, since), **state.turns[3], **copies},
        in_place=body.turns is not None,
        may_cost_more=body.gone,
        since=since,
        fold=fold.number,
        reasons=Explained(fold.why, session.steps, whole, turns, folded),
    )


def _part_users(edits: dict[int, Edit], folded: Sequence[Interaction], view: View) -> None:
    """Decide which texts of the assistant stay between the user's messages in the folded turns, in ``edits``.

    A text stays if the next message is the user's and is shown, so that user and assistant go on taking turns.
    """
    follows: bool | None = True  # whether what follows is the user's and shown; None: the assistant's
    stop = folded[-1].stop if folded else 0
    for turn in reversed(folded):
        for at in range(stop - 1, turn.start - 1, -1):
            kind = kind_of(message := view.messages[at])
            is_folded = at < turn.stop and not turn.stays
            if kind is MessageKind.USER:
                follows = not is_folded
            elif kind is MessageKind.SAY:
                if is_folded and follows is not None and read(turn.messages[-1], "role") is not None:
                    if not follows:
                        edits.pop(at, None)
                    elif at not in edits:
                        edits[at] = Edit({}, message, view.tokens_between(at, at + 1))
                follows = None
        stop = turn.start


def restored_copies(view: View, folded: int, count: Callable[[Any], int]) -> dict[int, Edit]:
    """Edits by position of answers such as "file unchanged", whose file only the ``folded`` interactions show.

    They have the newest copy of the file after the answer's own words: what was read or written last, with later
    edits applied. A file that a later interaction shows is not shown again. A pure function of messages and fold.
    """
    if not any(
        pair.result is not None and refers_to_earlier(content_text(pair.result.content))
        for turn in view.interactions[folded:]
        for pair in turn.pairs
    ):
        return {}
    edits: dict[int, Edit] = {}
    files = Files()  # a copy has the number of the interaction that shows it
    for place, turn in enumerate(view.interactions):
        for pair in () if turn.fault else turn.pairs:
            if pair.result is None or pair.call is None:
                continue
            output, tool = content_text(pair.result.content), pair.tool_name
            call = tool, plain_arguments(tool, pair.call.text)
            files.add(place, *call, output, failed=is_failure(output, *call))
            if place < folded or pair.result_at is None or not refers_to_earlier(output):
                continue
            copies = files.meant(*call, output)
            if copies and all(copy.number < folded for copy in copies):
                copies[0].number = place
                text = f"{output}\n{_shown_copy(copies[0], count)}"
                position = turn.start + pair.result_at
                message = edited_message(view.messages[position], {WHOLE: text})
                edits[position] = Edit({WHOLE: text}, message, count(message))
    return edits


def _shown_copy(copy: FileCopy, count: Callable[[Any], int]) -> str:
    edits = f"; {len(copy.missing)} later edits are not in it" if copy.missing else ""
    part = f" ({copy.part})" if copy.part else ""
    head = f"{Mark.SHORTENED} that result is no longer here; its text{part}{edits}:]\n"
    return head + fit_text(
        quote_lines(sendable(copy.text)), MOST_COPIED, lambda text: count({"content": text})
    )


def _foldable(view: View, start: int) -> list[Interaction]:
    """The interactions of the history from one on, by number, that a fold may replace."""
    return [e for e in view.history[start:] if not e.stays]


@dataclass(slots=True)
class _Evidence:
    """The data that a session keeps in memory for its folds; no context depends on it."""

    folds: Folds
    memory: EvidenceMemory | None = None
    made_with: tuple[object, ...] = ()
    settings: tuple[object, str] | None = None  # and the name of the counter
    made_for: str = ""  # a digest of both
    # the first interactions of a list with their digest, and those of a fold with its edits: as at the next step
    # (each after the list's own digests)
    about: tuple[object, Sequence[Interaction], str] | None = None
    turns: tuple[FoldContent | None, object, Sequence[Interaction], Mapping[int, Edit]] = (None, (), (), {})
    unexplained: Fold | None = None  # of this process, whose reasons are not stored yet
    asks: bool = False  # whether the next fold is near, and its note not asked for
    note_until: int = 0  # the number of the latest record that the note is about; 0 where that is not known


def _evidence(session: MemoryBankState, settings: MemoryBankSettings) -> _Evidence:
    """The data that the session keeps in memory for its folds."""
    state: _Evidence = session.cache(
        "evidence", lambda: _Evidence(Folds(session.database, session.session_id))
    )
    if (
        state.settings is None
        or state.settings[0] is not settings
        or state.settings[1] != session.fold_counter
    ):
        state.settings = settings, session.fold_counter
        # defaults apart: a version that has other ones, or a setting more, goes on with the folds of the one before
        text = settings.model_dump_json(exclude_defaults=True) + session.fold_counter
        state.made_for = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return state


def _memory(state: _Evidence, session: MemoryBankState, settings: MemoryBankSettings) -> EvidenceMemory:
    """The session's evidence; made anew where the settings or the order of its records changed."""
    numbers = () if state.memory is None else state.memory.numbers
    # whether another process stored between
    reordered = any(a != b for a, b in zip(numbers, session.steps, strict=False))
    made_with = (settings.evidence_model, settings.tools, session.counter.name)
    if state.memory is None or state.made_with != made_with or reordered:
        model = evidence_model(settings.evidence_model)
        state.memory = EvidenceMemory(session.counter, model, settings.tools)
        state.made_with = made_with
    return state.memory


def fed_evidence(view: View, session: MemoryBankState, settings: MemoryBankSettings) -> EvidenceMemory:
    """The session's evidence, with the stored records that were not yet in it."""
    memory = _memory(_evidence(session, settings), session, settings)
    missing = list(islice(session.steps, len(memory.numbers), None))
    if not missing:
        return memory
    records = {r.trace_id: r for r in session.new_records}
    stored = session.fact_store.get_many([t for t in missing if t not in records])
    records.update((r.trace_id, r) for r in stored)
    parsed = session.cache("parsed records")  # by first_sight
    shown = session.cache("shown calls")  # where a session is handed on
    remarks: dict[str, str] = {}  # what the agent said, by the first record of each turn
    starts: dict[str, int] = {}  # of each record's turn
    left = set(missing)
    for interaction in reversed(view.interactions):  # the newest are the likeliest
        ids = [t for t in interaction.trace_ids if t]
        if ids and ids[0] in left:
            remarks[ids[0]] = interaction.remark
        starts.update(dict.fromkeys(ids, interaction.start))
        left.difference_update(ids)
        if not left:
            break
    positions, anchor = [*reversed(view.kept)], list[str]()  # positions and texts of what every context shows
    for trace_id in missing:
        record = records.get(trace_id)
        if record is None:  # purged meanwhile: the next step loads the session again
            continue
        while positions and positions[-1] < starts.get(trace_id, 0):
            anchor.append(content_text(read(view.messages[positions.pop()], "content")))
        memory.add(record, remarks.get(trace_id, ""), anchor, parsed.pop(trace_id, None), shown.get(trace_id))
    return memory


def _prepare(state: _Evidence, view: View, session: MemoryBankState, settings: MemoryBankSettings) -> None:
    """Prepare the next fold, and ask for its note once."""
    fed_evidence(view, session, settings)
    if state.asks and settings.fold_note == "observer":
        _note_later(state, view, session)


def _note_later(state: _Evidence, view: View, session: MemoryBankState) -> None:
    """Have a note written about the calls before the tail that the one before is not about."""
    assert state.memory is not None
    state.asks = False
    words = {next(filter(None, e.trace_ids), ""): e.remark for e in view.history}
    apart = view.tail.record_ids if view.tail else ()
    numbers = state.memory.numbers
    calls = [(n, t, words.get(t, "")) for t, n in numbers.items() if n > state.note_until and t not in apart]
    if calls:
        users = (m for m in view.messages if kind_of(m) is MessageKind.USER)
        asked = [*filter(None, map(persons_words, users))]
        session.note_later(calls, asked, lambda: setattr(state, "note_until", calls[-1][0]))
