"""What is kept of a step: its context with the fate of every part, within bounds whatever came."""

import json
from dataclasses import replace

import pytest
from tests.chats import FOLDING, call, parted, result, system, user
from tests.service.runs import orders, recorded

from memory_bank.bank.database import Database
from memory_bank.bank.steps import packed, unpacked
from memory_bank.config import MemoryBankSettings, load_config
from memory_bank.plan import Choice, Decision, Fate, Piece, Plan
from memory_bank.service.page import recorder as made_of
from memory_bank.service.page.recorder import snapshot
from memory_bank.service.sessions import Sessions


@pytest.fixture
def sessions():
    database = Database()
    config = load_config()
    folding = MemoryBankSettings(**FOLDING)
    block = folding.model_copy(update={"layout": "block"})
    strategies = {**config.memory_strategies, "memory_bank": folding, "memory_bank_block": block}
    sessions = Sessions(database, config.model_copy(update={"memory_strategies": strategies}))
    yield sessions
    sessions.close()
    database.close()


def taken(sessions, messages, strategy="memory_bank", name="a"):
    return snapshot(sessions.rebuild(None, name, messages, strategy=strategy))


def text_of(message):
    return "".join(p.get("text", "") for p in message["parts"])


def test_the_context_is_told_message_by_message_as_it_was_sent(sessions):
    steps = recorded("shop-refunds")
    for messages in steps[:-1]:
        sessions.rebuild(None, "a", messages, strategy="memory_bank")
    step = sessions.rebuild(None, "a", steps[-1], strategy="memory_bank")
    kept = snapshot(step)
    assert [m["role"] for m in kept["context"]] == [m["role"] for m in parted(step.shown)]
    assert [text_of(m) for m in kept["context"]] == [m["content"] or "" for m in parted(step.shown)]
    parts = [m["part"] for m in kept["context"]]
    assert parts == ["anchor", "anchor", "memory", *["past"] * (len(parts) - 5), "tail", "tail"]
    assert len(parts) > 15
    (asked,) = kept["context"][-2]["calls"]
    assert asked["name"] == kept["context"][-1]["tool"] == "send_report"
    assert [m["new"] for m in kept["context"]] == [*[False] * (len(parts) - 2), True, True]


def test_every_piece_that_is_shown_is_found_in_the_turn_that_quotes_it(sessions):
    for messages in recorded("shop-refunds"):
        step = sessions.rebuild(None, "a", messages, strategy="memory_bank")
    kept = snapshot(step)
    pieces = kept["plan"]["pieces"]
    told = [(m, p) for m in kept["context"] if m["part"] == "past" for p in m["parts"] if "piece" in p]
    assert len(told) > 20
    assert len({p["piece"] for _, p in told}) == len(told)
    assert all(p["text"] == pieces[p["piece"]]["text"] for _, p in told)
    assert all(p["trace_id"] == pieces[p["piece"]]["trace_id"] for _, p in told)
    steps = {t: d["step"] for d in kept["plan"]["decisions"] for t in d["trace_ids"]}
    assert all(m["step"] == steps[p["trace_id"]] for m, p in told)


def test_every_piece_that_is_shown_is_found_in_the_memory_text(sessions):
    for messages in recorded("shop-refunds"):
        step = sessions.rebuild(None, "a", messages, strategy="memory_bank_block")
    kept = snapshot(step)
    pieces = kept["plan"]["pieces"]
    parts = [p for m in kept["context"] if m["part"] == "memory" for p in m["parts"]]
    told = [p for p in parts if "piece" in p]
    assert [p["piece"] for p in told] == list(range(len(pieces)))
    assert [p["text"] for p in told] == [p["text"] for p in pieces]
    assert all(p["trace_id"] == pieces[p["piece"]]["trace_id"] for p in told)
    lines = [p for p in parts if "number" in p]
    assert {p["fate"] for p in lines} == {"listed", "shown in part"}
    known = list(step.state.steps)
    assert all(p["text"].startswith(f"#{p['number']} ") for p in lines)
    assert all(known[p["number"] - 1] == p["trace_id"] for p in lines)


def test_retrieved_records_are_pieces_too(sessions):
    for n in range(2, 8):
        step = sessions.rebuild(None, "a", orders(n), strategy="memory_bank_local")
    kept = snapshot(step)
    (memory,) = [m for m in kept["context"] if m["part"] == "memory"]
    told = [p for p in memory["parts"] if "piece" in p]
    assert [p["text"].splitlines()[0] for p in told] == [
        f"[RETRIEVED RECORD {i}]" for i in range(1, len(told) + 1)
    ]
    assert len(told) == len(kept["plan"]["pieces"]) >= 2
    assert text_of(memory) == next(
        m["content"] for m in parted(step.shown) if m["content"] == text_of(memory)
    )


def test_every_past_interaction_has_its_fate_and_its_numbers(sessions):
    for messages in recorded("shop-refunds"):
        step = sessions.rebuild(None, "a", messages, strategy="memory_bank")
    plan = snapshot(step)["plan"]
    assert [d["step"] for d in plan["decisions"]] == list(range(1, len(step.plan.view.history) + 1))
    assert sum(f["interactions"] for f in plan["fates"].values()) == len(plan["decisions"])
    assert plan["decisions_omitted"] == 0
    known = list(step.state.steps)
    assert all([known[n - 1] for n in d["numbers"]] == d["trace_ids"] for d in plan["decisions"])


def test_what_changed_since_the_step_before_is_told(sessions):
    for messages in recorded("shop-refunds"):
        step = sessions.rebuild(None, "a", messages, strategy="memory_bank")
    plan = snapshot(step)["plan"]
    before = {(p.trace_id, p.text) for p in step.plan.previous.choice.reasons.pieces(explained=False)}
    now = {(p["trace_id"], p["text"]) for p in plan["pieces"]}
    assert {(p["trace_id"], p["text"]) for p in plan["pieces"] if p["new"]} == now - before
    assert {(p["trace_id"], p["text"]) for p in plan["gone"]} == before - now
    assert now - before and before - now
    assert not plan["first"]
    assert snapshot(sessions.rebuild(None, "b", orders(20)))["plan"]["first"]


def test_messages_that_went_through_have_their_places(sessions):
    kept = taken(sessions, orders(2))
    assert kept["plan"]["unchanged"] and kept["plan"]["why_unchanged"]
    assert kept["plan"]["pieces"] == []
    assert [(m["part"], m["step"]) for m in kept["context"]] == [
        ("anchor", None), ("anchor", None), ("past", 1), ("past", 1), ("tail", 2), ("tail", 2),
    ]  # fmt: skip


def test_strategies_without_memory_have_a_plan_and_their_context(sessions):
    for strategy in ("observation_masking", "keep_last_n"):
        kept = taken(sessions, orders(30), strategy, name=strategy)
        assert sum(f["interactions"] for f in kept["plan"]["fates"].values()) == 29
        assert kept["plan"]["pieces"] == []
        assert kept["context_messages"] == len(kept["context"]) > 2


def test_long_texts_and_long_contexts_are_cut_and_say_so(sessions):
    long = "".join(f"{i:08}" for i in range(100_000))
    kept = taken(sessions, [system(), user(long), *orders(1)[2:-1], result("c0", long + "!")])
    (beginning, gap, end) = kept["context"][1]["parts"]
    assert long.startswith(beginning["text"]) and long.endswith(end["text"])
    assert len(beginning["text"]) + gap["left_out"] + len(end["text"]) == len(long)
    assert len(packed(kept)) < 100_000
    many = taken(sessions, orders(400), "no_strategy", name="many")
    assert [m.get("left_out") for m in many["context"] if "role" not in m] == [802 - 200]
    assert many["context_messages"] == 802
    assert many["context"][-1]["part"] == "tail"
    assert len(json.dumps(many)) < 500_000


class EveryFate:
    """A choice that lets interactions have their fates in turns."""

    def __init__(self, fates):
        self.fates = fates

    def pieces(self, *, explained=True):
        return [Piece("t", "tool", "a piece", 0.5)]

    def near_misses(self):
        return []

    def decide(self, entry):
        fate = self.fates[entry.start % len(self.fates)]
        return fate, None, "because " * 1000

    def beyond(self, here):
        return [Decision(None, ("gone",), ("tool",), Fate.PART, 0.5, "it is", 0)]


def planned(view, fates):
    choice = Choice(reasons=EveryFate(fates))
    return Plan(view, choice, "memory_bank", 1, 2, 1, 1, False, "", "counter")


def a_plan(sessions, n, fates):
    step = sessions.rebuild(None, "a", orders(n, rows=1))
    view = step.plan.view
    plan = planned(view, fates)
    return replace(step, plan=plan)


def test_of_thousands_of_decisions_the_newest_of_each_fate_are_kept_and_all_are_counted(
    sessions, monkeypatch
):
    monkeypatch.setattr(made_of, "DECISIONS", 50)
    step = a_plan(sessions, 601, [Fate.LEFT_OUT, Fate.LEFT_OUT, Fate.LISTED, Fate.LEFT_OUT])
    plan = snapshot(step)["plan"]
    counts = {f: v["interactions"] for f, v in plan["fates"].items()}
    assert sum(counts.values()) == 601 and counts["shown in part"] == 1 and counts["kept"] == 0
    kept = [d["fate"] for d in plan["decisions"]]
    assert kept.count("left out") == min(50, counts["left out"])
    assert kept.count("listed") == min(50, counts["listed"])
    assert plan["decisions_omitted"] == 601 - len(kept)
    steps = [d["step"] for d in plan["decisions"] if d["step"]]
    assert steps == sorted(steps) and steps[-1] == 600
    assert all(len(d["reason"]) <= 400 for d in plan["decisions"])


def test_at_ten_thousand_decisions_a_manifest_stays_small(sessions):
    step = a_plan(sessions, 1_001, [Fate.LEFT_OUT])
    view = step.plan.view
    many = type(view)(
        view.messages, [*view.interactions] * 10, view.kept, view.tail_start, "", view.tokens_before
    )
    kept = packed(snapshot(replace(step, plan=planned(many, [Fate.LEFT_OUT]))))
    assert len(kept) < 100_000
    assert unpacked(kept)["plan"]["fates"]["left out"]["interactions"] == 10_009


def test_hostile_text_comes_back_as_it_was(sessions):
    hostile = "\ud800 <script>alert(1)</script> \u202e\0\x1b[31m" + "😀"
    chat = [system(hostile), user(hostile), call(("c", hostile, {"a": hostile})), result("c", hostile)]
    kept = unpacked(packed(taken(sessions, chat)))
    assert [text_of(m) for m in kept["context"]] == [hostile, hostile, "", hostile]
    assert kept["context"][2]["calls"][0]["name"] == hostile
    assert kept["context"][3]["tool"] == hostile
