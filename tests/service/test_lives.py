"""A record's life over the steps: whole, quoted, listed, and why no more."""

import pytest
from tests.chats import FOLDING
from tests.service.runs import recorded

from memory_bank.bank.folds import FoldReasons, stored_folds
from memory_bank.bank.sqlite import Sqlite
from memory_bank.bank.steps import StepShown, steps_shown
from memory_bank.config import Config
from memory_bank.plan import Fate, Piece
from memory_bank.service.api.records import spans_of
from memory_bank.service.page.recorder import Recorder
from memory_bank.service.sessions import Sessions

KEPT, PART, LISTED, OUT = "kept", "shown in part", "listed", "left out"


def piece(trace_id, score, value="ord-7", text="order=ORD-7 is late"):
    return Piece(trace_id, "look", text, score, ((value, score, ()),) if value else ())


def folded(fate, reason="", pieces=()):
    """A fold of the first five records; the third one has a fate."""
    return FoldReasons(5, {3: (Fate(fate), None, reason)}, frozenset(), pieces, ())


def life(*steps, number=3):
    """The spans of steps: a status, a fold, or fates; None: rebuilt, and nothing is known of what it showed."""
    found, folds = [], {}
    for n, step in enumerate(steps, 1):
        status, fold, fates, changed = "rebuilt", None, None, None
        if step == "moved":
            changed = "memory"
        elif isinstance(step, str):
            status = step
        elif isinstance(step, dict):
            fates, changed = step, "memory"
        elif step is not None:
            fold, fates, changed = n, {KEPT: [[6, 9]]}, "memory"
            folds[n] = step
        found.append(StepShown(n, status, changed, 9, fold, fates))
    return [(s.first, s.last, s.fate, s.as_it_came) for s in spans_of(found, folds, number, "t")]


@pytest.mark.parametrize(
    ("steps", "spans"),
    [
        ((), []),
        (("unchanged", "unchanged"), [(1, 2, KEPT, True)]),
        (("unchanged", folded(PART), folded(LISTED)), [(1, 1, KEPT, True), (2, 2, PART, False), (3, 3, LISTED, False)]),
        (("unchanged", folded(LISTED), None, None), [(1, 1, KEPT, True), (2, 4, LISTED, False)]),  # goes on as before
        ((folded(KEPT), "moved", folded(OUT)), [(1, 1, KEPT, False), (2, 2, None, False), (3, 3, OUT, False)]),
        (("failed", "refused", "control"), [(1, 3, KEPT, True)]),
        ((folded(LISTED), "passed", "answered", None), [(1, 4, LISTED, False)]),
        (({KEPT: [[1, 4]]}, {KEPT: [[4, 5]], PART: [[3, 3]]}), [(1, 1, KEPT, False), (2, 2, PART, False)]),
        (({KEPT: [[1, 4]]}, {KEPT: [[4, 5]]}), [(1, 1, KEPT, False), (2, 2, OUT, False)]),
    ],
)  # fmt: skip
def test_steps_that_show_the_same_of_a_record_are_one_span(steps, spans):
    assert life(*steps) == spans


def test_a_record_that_came_after_the_fold_is_whole_or_its_messages_are_gone():
    assert life(folded(LISTED), number=7) == [(1, 1, KEPT, False)]
    assert life(folded(LISTED), number=10) == [(1, 1, OUT, False)]


def test_why_it_was_not_shown_is_told_by_what_was():
    reason = (
        "#3 named in the list of calls, nothing of its output; nearly shown: worth 0.031, beyond the budget"
    )
    pieces = [piece("a", 0.11), piece("a", 0.4, value=""), piece("b", 0.9), piece("c", 0.2), piece("d", 0.3)]

    def only(fold):
        [span] = spans_of([StepShown(8, "rebuilt", "memory", 9, 2, {})], {2: fold}, 3, "t")
        return span

    span = only(folded(LISTED, reason, pieces))
    assert (span.worth, span.least) == (0.031, 0.11)
    assert [(o.trace_id, o.value, o.worth) for o in span.likelier] == [
        ("b", "ORD-7", 0.9), ("a", "order=ORD-7 is late", 0.4), ("d", "ORD-7", 0.3),
    ]  # fmt: skip
    span = only(folded(LISTED, "#3 named", pieces))
    assert (span.worth, span.least) == (None, 0.11)
    span = only(folded(PART, "", [*pieces, piece("t", 0.7), piece("t", 0.2)]))
    assert (span.worth, span.least, len(span.likelier)) == (0.7, 0.11, 3)


def test_the_life_of_every_record_of_a_run_is_what_its_contexts_showed(tmp_path):
    database = Sqlite(tmp_path / "bank.db")
    recorder = Recorder(database, 100)
    sessions = Sessions(database, Config(memory_strategies={"memory_bank": FOLDING}), rebuilt=recorder.take)
    run = recorded("shop-refunds")
    steps = [sessions.rebuild(None, "a", messages) for messages in run]
    plans = [step.plan for step in steps]
    sessions.finish(steps[-1])
    assert recorder.drain(60)
    fates = set()
    decisions = [{t: d for d in plan.decisions for t in d.trace_ids} for plan in plans]
    ids = list(dict.fromkeys(t for of in decisions for t in of))
    found = steps_shown(database, "a")
    folds = {n: why for n, (_, why) in stored_folds(database, "a", [s.fold for s in found]).items()}
    for number, trace_id in enumerate(ids, 1):
        spans = spans_of([s for s in found if s.records >= number], folds, number, trace_id)
        assert [s.first for s in spans[1:]] == [s.last + 1 for s in spans[:-1]]  # without a gap
        assert spans[-1].last == len(run) and spans[0].fate == KEPT
        for span in spans:
            fates.add(span.fate)
            for n in range(span.first, span.last + 1):
                decision = decisions[n - 1].get(trace_id)
                assert decision is None or len(decision.trace_ids) > 1 or str(decision.fate) == span.fate
            if span.fate in (LISTED, OUT):
                assert span.least is not None and span.likelier
    assert {KEPT, PART, LISTED} <= fates
    sessions.close()
    recorder.close(60)
    database.close()


def test_the_folds_of_any_number_of_steps_are_found(tmp_path):
    database = Sqlite(tmp_path / "bank.db")
    assert stored_folds(database, "a", range(300_000)) == {}
    database.close()
