"""A record's life over the steps: whole, quoted, listed, and why no more."""

import pytest
from tests.chats import FOLDING
from tests.service.runs import recorded

from memory_bank.bank.sqlite import Sqlite
from memory_bank.bank.steps import StepShown, get_step, steps_since
from memory_bank.config import Config
from memory_bank.service.api.lives import spans_of
from memory_bank.service.page.recorder import Recorder
from memory_bank.service.sessions import Sessions

KEPT, PART, LISTED, OUT = "kept", "shown in part", "listed", "left out"


def piece(trace_id, score, value="ord-7", text="order=ORD-7 is late"):
    values = [{"value": value, "probability": score, "features": {}}] if value else []
    return {"trace_id": trace_id, "score": score, "number": 4, "tool": "look", "text": text, "values": values}


def decided(fate, reason="", pieces=(), ids=("t",), omitted=0):
    decision = {"trace_ids": list(ids), "fate": fate, "reason": reason}
    plan = {"decisions": [decision], "decisions_omitted": omitted, "pieces": list(pieces)}
    return {
        "plan": plan,
        "context": [{"part": "past", "calls": [1]}, {"left_out": 3}, {"part": "tail", "calls": [1, 2]}],
    }


def life(*steps, number=3):
    """The spans of steps, given as a status, or as a manifest; None: rebuilt, its manifest is not kept."""
    found = []
    for n, step in enumerate(steps, 1):
        status, manifest = (step, None) if isinstance(step, str) else ("rebuilt", step)
        changed = "memory" if manifest else None
        if status == "moved":
            status, changed = "rebuilt", "memory"
        found.append(StepShown(n, status, changed, 4 if n == 1 else 9, manifest))
    return [(s.first, s.last, s.fate, s.as_it_came) for s in spans_of(found, number, "t")]


@pytest.mark.parametrize(
    ("steps", "spans"),
    [
        ((), []),
        (("unchanged", "unchanged"), [(1, 2, KEPT, True)]),
        (("unchanged", decided(PART), decided(LISTED)), [(1, 1, KEPT, True), (2, 2, PART, False), (3, 3, LISTED, False)]),
        (("unchanged", decided(LISTED), None, None), [(1, 1, KEPT, True), (2, 4, LISTED, False)]),  # goes on as before
        ((decided(KEPT), "moved", decided(OUT)), [(1, 1, KEPT, False), (2, 2, None, False), (3, 3, OUT, False)]),
        (("failed", "refused", "control"), [(1, 3, KEPT, True)]),
        ((decided(LISTED), "passed", "answered", None), [(1, 4, LISTED, False)]),
        ((decided(KEPT, ids=("other",)),), [(1, 1, KEPT, False)]),  # the latest call
        (("moved", decided(LISTED, ids=("other",), omitted=9)), [(1, 1, KEPT, False), (2, 2, None, False)]),
        ((decided(KEPT, ids=("other",)), decided(KEPT, ids=("other",))), [(1, 1, KEPT, False), (2, 2, OUT, False)]),  # gone
        (({"plan": None}, decided(LISTED)), [(1, 1, KEPT, False), (2, 2, LISTED, False)]),  # a session at work
        ((decided(PART, "#3 named in the list", [piece("o", 0.5)], ("t", "o")),), [(1, 1, LISTED, False)]),
        ((decided(PART, "#3 counted in the list", [piece("o", 0.5)], ("t", "o")),), [(1, 1, OUT, False)]),
        ((decided(PART, "#3: 2 of 9 pieces", [piece("t", 0.5)], ("t", "o")),), [(1, 1, PART, False)]),
    ],
)  # fmt: skip
def test_steps_that_show_the_same_of_a_record_are_one_span(steps, spans):
    assert life(*steps) == spans


def test_why_it_was_not_shown_is_told_by_what_was():
    reason = (
        "#3 named in the list of calls, nothing of its output; nearly shown: worth 0.031, beyond the budget"
    )
    pieces = [piece("a", 0.11), piece("a", 0.4, value=""), piece("b", 0.9), piece("c", 0.2), piece("d", 0.3)]

    def only(manifest):
        [span] = spans_of([StepShown(8, "rebuilt", "memory", 9, manifest)], 3, "t")
        return span

    span = only(decided(LISTED, reason, pieces))
    assert (span.worth, span.least) == (0.031, 0.11)
    assert [(o.trace_id, o.value, o.worth) for o in span.likelier] == [
        ("b", "ORD-7", 0.9), ("a", "order=ORD-7 is late", 0.4), ("d", "ORD-7", 0.3),
    ]  # fmt: skip
    span = only(decided(LISTED, "#3 named", pieces))
    assert (span.worth, span.least) == (None, 0.11)
    span = only(decided(PART, "", [*pieces, piece("t", 0.7), piece("t", 0.2)]))
    assert (span.worth, span.least, len(span.likelier)) == (0.7, 0.11, 3)


def test_the_life_of_every_record_of_a_run_is_what_its_contexts_showed(tmp_path):
    database = Sqlite(tmp_path / "bank.db")
    recorder = Recorder(database, 100)
    sessions = Sessions(database, Config(memory_strategies={"memory_bank": FOLDING}), rebuilt=recorder.take)
    run = recorded("shop-refunds")
    for messages in run:
        sessions.rebuild(None, "a", messages)
        assert recorder.drain(60)
    fates = set()
    manifests = [get_step(database, "a", n)[1] for n in range(1, len(run) + 1)]
    decisions = [{t: d for d in m["plan"]["decisions"] for t in d["trace_ids"]} for m in manifests]
    ids = list(dict.fromkeys(t for of in decisions for t in of))
    for number, trace_id in enumerate(ids, 1):
        spans = spans_of(steps_since(database, "a", number), number, trace_id)
        assert [s.first for s in spans[1:]] == [s.last + 1 for s in spans[:-1]]  # without a gap
        assert spans[-1].last == len(run) and spans[0].fate == KEPT
        for span in spans:
            fates.add(span.fate)
            for n in range(span.first, span.last + 1):
                decision = decisions[n - 1].get(trace_id)
                assert decision is None or len(decision["trace_ids"]) > 1 or decision["fate"] == span.fate
            if span.fate in (LISTED, OUT):
                assert span.least is not None and span.likelier
    assert {KEPT, PART, LISTED} <= fates
    sessions.close()
    recorder.close(1)
    database.close()
