"""Folds: when the older history is folded, what stays as it was until the next fold, and what a fold holds."""

import json
import math
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.chats import call, good_chats, parted, report, result, say, system, user
from tests.examples import examples, first_short
from tests.shops import messages_of, shop_run

from memory_bank import MemoryBankSettings, MemoryBankState, MemoryProcessor, apply_memory_bank_strategy
from memory_bank.config import Config, Price, load_config
from memory_bank.context.fold_rule import FOLD_SHARE, LEAST_FOLD, MOST_FOLD, fold_budget
from memory_bank.pricing import (
    LEAST_GROWTH,
    LEAST_STANDING,
    MISSES,
    MOST_GROWTH,
    common_length,
    growth_that_pays,
)
from memory_bank.transcript.messages import MessageKind, kind_of
from memory_bank.transcript.pairing import pairing_errors

SHIPPED = load_config().strategy("memory_bank")
LOCAL = {
    "selection": "evidence",
    "embedding_model": "lexical",
    "observer_model": "extractive",
    "token_encoding": "approximate",
}


def apply(messages, state, **changes):
    return apply_memory_bank_strategy(messages, None, MemoryBankSettings(**{**LOCAL, **changes}), state)[0]


def looks(n, start=0, rows=4):
    """n calls that each return some rows, and now and then one that changes something."""
    out = []
    for i in range(start, start + n):
        shelves = [{"item": f"ITM-{i}{r:02}", "shelf": f"SH-{i * 7 + r}"} for r in range(rows)]
        table = [{**shelf, "note": "as counted"} for shelf in shelves]
        tool = ("list_items", "move_item", "check_item")[i % 3]
        out += [call((f"c{i}", tool, {"page": i})), result(f"c{i}", json.dumps(table))]
    return out


def ends(chat):
    """The lengths of a chat at which a model is called."""
    return [n for n in range(1, len(chat) + 1) if chat[n - 1]["role"] in ("user", "tool")]


def pause(state, seconds):
    """So many seconds pass since the session's last request, by the database's clock."""
    state.database.set_session(state.session_id, asked=time.time() - seconds)


def older(plan):
    """Tokens of the older history of a plan."""
    return sum(e.tokens for e in plan.view.past)


def stands(before, now):
    return common_length(before, now) == len(before)


# when


@pytest.mark.parametrize(("budget", "refresh"), [(1_500, 1_000), (2_000, 3_000), (500, 1_500), (0, 700)])
def test_nothing_changes_before_a_fold_and_its_growth_and_then_the_context_shrinks(budget, refresh):
    chat = [system(), user(), *looks(80)]
    state = MemoryBankState("lexical")
    folded = False
    for end in ends(chat):
        context = apply(chat[:end], state, history_budget=budget, refresh_after=refresh)
        if older(state.last_plan) <= budget + refresh and not folded:
            assert context == chat[:end]
        elif not folded:
            folded = True
            assert not state.last_plan.unchanged
            assert state.last_plan.tokens <= state.last_plan.full_tokens - refresh
            break
    assert folded


@pytest.mark.parametrize("refresh", [800, 2_500, "auto"])
def test_between_folds_a_context_begins_with_the_one_before(refresh):
    """With new turns of the user in between, too."""
    chat = [system(), user()]
    for n in range(0, 90, 9):
        chat += [*looks(9, start=n), say(f"Done with {n}."), user(f"Go on after {n}.")]
    state = MemoryBankState("lexical")
    contexts, sizes = [], []
    for end in ends(chat):
        contexts.append(apply(chat[:end], state, history_budget=2_000, refresh_after=refresh))
        sizes.append(state.last_plan.tokens)
        assert pairing_errors(contexts[-1]) == []
    folds = [n for n, (a, b) in enumerate(pairwise(contexts), 1) if not stands(a, b)]
    assert len(folds) >= 2
    assert all(sizes[n] < sizes[n - 1] for n in folds)
    growths = [sizes[b - 1] - sizes[a] for a, b in pairwise(folds)]
    wanted = refresh if refresh != "auto" else LEAST_GROWTH
    assert min(growths, default=wanted) > wanted - 400  # an interaction has up to 400 tokens with its turns
    asked = [m["content"] for m in parted(contexts[-1]) if m["role"] == "user"]
    assert asked[-1] == "Go on after 81."
    assert all(f"Go on after {n}." in asked for n in range(0, 90, 9))


@examples(25)
@given(
    good_chats(max_rounds=12),
    st.sampled_from([0, 40, 300, 1_600, "auto", 0.3]),
    st.sampled_from([1, 60, 400]),
    st.sampled_from(["native", "block"]),
)
def test_any_session_has_at_most_a_fold_and_its_growth(chat, budget, refresh, layout):
    state = MemoryBankState("lexical")
    for end in range(1, len(chat) + 1):
        if pairing_errors(chat[:end]):
            continue
        context = apply(
            chat[:end], state, history_budget=budget, refresh_after=refresh, layout=layout, keep_recent=1
        )
        plan = state.last_plan
        assert pairing_errors(context) == []
        history = older(plan)
        shown = plan.tokens - (plan.full_tokens - history)
        assert shown <= history
        # words before a call that part two messages of the user are shown besides
        said = [p for p in range(plan.view.tail_start) if kind_of(chat[p]) is MessageKind.SAY]
        spoken = sum(plan.view.tokens_between(p, p + 1) for p in said)
        assert plan.rule or shown - spoken <= fold_budget(budget, history) + refresh  # else the original goes
        if history - spoken > fold_budget(budget, history) + refresh:
            assert not plan.unchanged or plan.why_unchanged == "the full history costs no more"


# one counter


def test_the_first_fold_of_a_bank_settles_which_counter_decides_them_all(tmp_path):
    chat = [system(), user(), *looks(40)]
    changes = {"history_budget": 1_000, "refresh_after": 1_000, "token_encoding": "no_such_encoding"}
    with MemoryBankState.open(tmp_path / "bank.db", "a", "lexical") as state:
        assert apply(chat, state, **changes) != chat
        assert state.database.counter("no_such_encoding") == state.last_plan.counter == "approximate"
        state.database.keep_counter("o200k_base", "approximate")
        with MemoryBankState.open(
            state.database, "b", "lexical"
        ) as other:  # has the vocabulary, but the bank had not
            assert apply(chat, other, **changes | {"token_encoding": "o200k_base"}) != chat
            assert other.last_plan.counter == "approximate"


def test_a_process_without_the_banks_counter_decides_no_fold_and_says_why(tmp_path):
    chat = [system(), user(), *looks(40)]
    changes = {"history_budget": 1_000, "refresh_after": 1_000, "token_encoding": "no_such_encoding"}
    with MemoryBankState.open(tmp_path / "bank.db", "a", "lexical") as state:
        state.database.keep_counter("no_such_encoding", "no_such_encoding")
        for end in ends(chat):
            assert apply(chat[:end], state, **changes) == chat[:end]
        assert state.last_plan.why_unchanged == "this bank counts tokens by no_such_encoding"


# auto


def test_the_budget_of_a_fold_is_a_share_of_the_older_history_between_two_bounds():
    assert fold_budget("auto", 0) == fold_budget("auto", 1_000) == LEAST_FOLD == 2_000
    assert fold_budget("auto", 40_000) == int(FOLD_SHARE * 40_000) == 6_000
    assert fold_budget("auto", 10**6) == MOST_FOLD == 16_000
    assert fold_budget(0.25, 1_001) == 250
    assert fold_budget(4_000, 10**6) == 4_000


@pytest.mark.parametrize("price", [(0.1, 1.25), (0.1, 1.0), (0.5, 1.0), (0.25, 1.0)])
def test_auto_is_the_growth_that_pays(price):
    """The first fold comes when the older history exceeds its budget and the growth that pays."""
    chat = [system(), user(), *looks(120)]
    state = MemoryBankState("lexical")
    state.prefix_cache.take_price(Price(prompt=1, completion=1, cached=price[0], cache_write=price[1]))
    for end in ends(chat):
        apply(chat[:end], state, history_budget=1_500)
        plan = state.last_plan
        latest = plan.view.past[-20:]
        mean = sum(e.tokens for e in latest) / max(1, len(latest))
        growth = growth_that_pays(1_500, mean, *price)
        assert plan.unchanged == (older(plan) <= 1_500 + growth)
        if not plan.unchanged:
            return
    raise AssertionError("never folded")


@given(
    st.integers(1, 50_000),
    st.integers(1, 20_000),
    st.floats(0.01, 0.99),
    st.sampled_from([1.0, 1.25]),
)
def test_the_growth_that_pays_is_the_cheapest_of_all(budget, interaction, read, write):
    growth = growth_that_pays(budget, interaction, read, write)
    assert LEAST_GROWTH <= growth <= MOST_GROWTH

    def a_step(count: float) -> float:
        """What folds and growth cost a step, with so many interactions between two folds."""
        return (write - read) * budget / count + read * interaction * count / 2

    if LEAST_GROWTH < growth < MOST_GROWTH:
        best = a_step(growth / interaction)
        assert all(best <= a_step(f * growth / interaction) * (1 + 1e-3) for f in (0.25, 0.5, 0.9, 1.1, 2, 4))
        assert math.isclose(a_step(2 * growth / interaction), 1.25 * best, rel_tol=0.01)


def test_without_a_prefix_cache_a_standing_fold_is_given_up():
    chat = [system(), user(), *looks(100)]
    state = MemoryBankState("lexical")
    before = []
    for end in ends(chat)[:60]:
        now = apply(chat[:end], state, history_budget=2_000)
        stood, before = stands(before, now), now
    assert stood and not state.last_plan.unchanged
    for _ in range(MISSES):
        report(state.prefix_cache, LEAST_STANDING, 0)
    assert state.prefix_cache.read == 1
    for end in ends(chat)[60:64]:
        now = apply(chat[:end], state, history_budget=2_000)
        assert not stands(before, now)
        before = now
    report(state.prefix_cache, 0, 100)  # it works again: the next fold stands
    first, second = (apply(chat[:end], state, history_budget=2_000) for end in ends(chat)[64:66])
    assert stands(first, second)


def test_a_cold_cache_folds_at_once():
    chat = [system(), user(), *looks(40)]
    state, other = MemoryBankState("lexical"), MemoryBankState("lexical")
    steps = ends(chat)
    changes = {"history_budget": 1_500, "refresh_after": 4_000, "cache_retention": 60.0}
    for end in steps[:16]:
        pause(state, 59)
        assert apply(chat[:end], state, **changes) == chat[:end]
        apply(chat[:end], other, **changes)
    assert 1_500 < older(state.last_plan) < 5_500
    pause(state, 61)
    folded = apply(chat[: steps[16]], state, **changes)
    assert not state.last_plan.unchanged
    assert apply(chat[: steps[16]], other, **changes) == chat[: steps[16]]
    pause(state, 61)  # the same messages again: the fold is the same
    assert apply(chat[: steps[16]], state, **changes) == folded
    for end in steps[17:20]:
        pause(state, 59)
        longer = apply(chat[:end], state, **changes)
        assert stands(folded, longer)
        folded = longer
    pause(state, 61)
    assert not stands(folded, apply(chat[: steps[20]], state, **changes))


def test_a_cold_cache_folds_no_history_that_fits():
    state = MemoryBankState("lexical")
    chat = [system(), user(), *looks(4)]
    for end in ends(chat):
        pause(state, 10_000)
        assert apply(chat[:end], state, history_budget=2_000, refresh_after=1_000) == chat[:end]


# lists that were rewound, forks


@examples(12)
@given(st.lists(st.tuples(st.integers(1, 8), st.integers(0, 14)), min_size=1, max_size=4), st.booleans())
def test_no_undone_call_stands_in_its_place_in_a_list_that_was_rewound(turns, forked):
    """Steps forward and back; ``forked``: the calls that follow are other ones with the same ids.

    Records of a session are found even if their messages have left the list: the list of calls may name them.
    """
    state = MemoryBankState("lexical")
    done = [(0, n) for n in range(16)]
    for branch, (forward, back) in enumerate(turns, 1):
        del done[len(done) - back :]
        done += [(branch if forked else 0, n) for n in range(len(done), len(done) + forward)]
        chat = [system(), user()]
        for b, n in done:
            rows = [{"item": f"ITM-{b}x{n}x{r}", "shelf": "by the door"} for r in range(6)]
            moved = call((f"c{n}", "move_item", {"to": f"PLACE-{b}x{n}x"}))
            chat += [moved, result(f"c{n}", json.dumps(rows))]
        context = apply(chat, state, history_budget=1_600, refresh_after=800)
        assert pairing_errors(context) == []
        assert context[-2:] == chat[-2:]
        there = [f"PLACE-{b}x{n}x" for b, n in done]
        calls = [c["function"] for m in context for c in m.get("tool_calls") or []]
        native = [json.loads(c["arguments"])["to"] for c in calls]
        assert native == [place for place in there if place in native]  # in order, none of another branch
        memory = json.dumps([m for m in parted(context) if "<retrieved-data" in str(m["content"])])
        told = [place for place in there if place in memory or place in native]
        assert told == there


# what a fold holds


def names_of(context):
    """The tools that stand natively in a context."""
    return {c["function"]["name"] for m in context for c in m.get("tool_calls") or []}


def test_a_fold_tells_every_change_and_every_tool():
    chat = [system(), user("Move the items to where they belong.")]
    state = MemoryBankState("lexical")
    for n in range(150):
        tool = f"rare_{n}" if n % 60 == 7 else ("list_items", "move_item", "check_item")[n % 3]
        rows = [{"item": f"ITM-{n}{r:02}", "shelf": f"SH-{n}"} for r in range(12)]
        chat += [call((f"c{n}", tool, {"item": f"BOX-{n:03}"})), result(f"c{n}", json.dumps(rows))]
        if n % 5 == 0:
            context = apply(chat, state, history_budget=8_000, refresh_after=3_000)
            text = json.dumps(context)
            missing = [i for i in range(n + 1) if i % 3 == 1 and i % 60 != 7 and f"BOX-{i:03}" not in text]
            assert missing == []
            listed = next(
                (m["content"] for m in parted(context) if "<retrieved-data" in str(m["content"])), ""
            )
            tools = {c["function"]["name"] for m in chat for c in m.get("tool_calls") or []}
            assert all(t in names_of(context) or f"{t} " in listed for t in tools)
    assert not state.last_plan.unchanged


def test_one_call_of_every_tool_stands_in_its_place():
    chat = [system(), user()]
    for n in range(60):
        tool = "start_work" if n == 3 else "choose_shelf" if n == 30 else "list_items"
        rows = [{"item": f"ITM-{n}{r:02}"} for r in range(30)]
        chat += [call((f"c{n}", tool, {"at": n})), result(f"c{n}", json.dumps(rows))]
    state = MemoryBankState("lexical")
    context = apply(chat, state, history_budget=3_000, refresh_after=0)
    assert names_of(context) == {"start_work", "choose_shelf", "list_items"}
    answers = {m["tool_call_id"]: m["content"] for m in context if m["role"] == "tool"}
    assert answers["c3"].endswith("[… #4]")
    assert answers["c30"].endswith("[… #31]")


def test_of_a_turn_of_parallel_calls_only_the_chosen_ones_are_shown():
    chat = [system(), user("Settle what is open.")]
    for n in range(8):
        ids = [f"p{n}-{k}" for k in range(10)]
        chat.append(call(*((i, "get_account", {"account": f"ACC-{n}{i[-1]}"}) for i in ids)))
        for k, i in enumerate(ids):
            lines = f"invoice_id: INV-{n}{k}77\n" + f"history: nothing to tell of {n} and {k}\n" * 12
            chat.append(result(i, lines))
        chat += [call((f"s{n}", "settle", {"invoice_id": f"INV-{n}377"})), result(f"s{n}", "settled")]
    state = MemoryBankState("lexical")
    context = apply(chat, state, history_budget=2_500, refresh_after=0, keep_recent=0)
    assert pairing_errors(context) == []
    turns = [str(m["tool_calls"]) for m in context[:-2] if m.get("tool_calls")]
    assert any(0 < turn.count("ACC-") < 10 for turn in turns)
    listed = next(m["content"] for m in parted(context) if "<retrieved-data" in str(m["content"]))
    assert len(state.cache("evidence", dict).memory.numbers) == 88
    in_list = [account for n in range(80) if (account := f"ACC-{n:02}") in listed]
    assert in_list
    assert not any(account in turn for account in in_list for turn in turns)  # once, not twice


@pytest.mark.parametrize("sign", ["extra_content", "provider_specific_fields", "reasoning_details", "id"])
def test_a_turn_of_parallel_calls_is_shown_with_the_call_that_has_its_signature(sign):
    """Gemini signs the first call of a turn, and refuses a turn of which only other calls come back."""
    chat = [system(), user("Settle what is open.")]
    for n in range(12):
        ids = [f"p{n}-{k}" for k in range(4)]
        if sign == "id":  # as LiteLLM writes it
            ids[0] += "__thought__c2lnbmF0dXJl"
        turn = call(*((i, "get_account", {"account": f"ACC-{n}{k}"}) for k, i in enumerate(ids)))
        details = [{"type": "reasoning.encrypted", "id": f"p{n}-0", "data": "c2lnbmF0dXJl"}]
        if sign == "reasoning_details":
            turn[sign] = details
        elif sign != "id":
            turn["tool_calls"][0][sign] = {"google": {"thought_signature": "c2lnbmF0dXJl"}}
        chat.append(turn)
        for k in range(4):
            lines = f"invoice_id: INV-{n}{k}77\n" + f"history: nothing to tell of {n} and {k}\n" * 12
            chat.append(result(ids[k], lines))
        chat += [call((f"s{n}", "settle", {"invoice_id": f"INV-{n}377"})), result(f"s{n}", "settled")]
    context = apply(chat, MemoryBankState("lexical"), history_budget=2_500, refresh_after=0, keep_recent=0)
    assert pairing_errors(context) == []
    turns = [m["tool_calls"] for m in context[:-2] if "ACC-" in str(m.get("tool_calls"))]
    assert any(len(calls) < 4 for calls in turns)  # others are left out
    assert [calls[0]["id"] for calls in turns if "-0" not in calls[0]["id"]] == []


@pytest.mark.parametrize("shell", [False, True], ids=["own tools", "one shell"])
@pytest.mark.parametrize("seed", first_short(range(3), 1))
def test_no_id_is_missing_in_a_shop_of_twelve_orders(seed, shell):
    turns = list(shop_run(seed, 12, shell=shell))
    chat = messages_of(turns)
    shipped = {
        "memory_bank": SHIPPED.model_copy(update={"token_encoding": "approximate", "history_budget": 2_000})
    }
    processor = MemoryProcessor(Config(memory_strategies=shipped))
    missing = []
    for n, turn in enumerate(turns):
        context, tokens = processor.apply_strategy(chat[: 2 + 2 * n])
        text = json.dumps(context)
        missing += [(n, turn.tool, i) for i in turn.needed if i not in text]
    assert missing == []
    assert tokens < 0.7 * processor.state("memory_bank").last_plan.full_tokens


@examples(10)
@given(st.integers(0, 10**6), st.booleans(), st.sampled_from([700, 1_600, 3_000]), st.booleans())
def test_a_session_that_grew_chooses_as_a_fresh_one(seed, shell, budget, block):
    """With a fold at every step: what earlier steps chose and kept has no influence."""
    chat = messages_of(list(shop_run(seed, 5, shell=shell)))
    growing = MemoryBankState("lexical")
    changes = {"history_budget": budget, "refresh_after": 0, "layout": "block" if block else "native"}
    for end in ends(chat)[1:]:
        context = apply(chat[:end], growing, **changes)
        if end % 5 == 0 or end == len(chat):
            assert context == apply(chat[:end], MemoryBankState("lexical"), **changes)


def test_a_caller_may_change_a_context_between_folds():
    chat = [system(), user(), *looks(40)]
    state, other = MemoryBankState("lexical"), MemoryBankState("lexical")
    for end in ends(chat):
        context = apply(chat[:end], state, history_budget=1_600, refresh_after=1_000)
        assert context == apply(chat[:end], other, history_budget=1_600, refresh_after=1_000)
        for message in context:
            if message not in chat:
                message["content"] = "changed"
                for entry in message.get("tool_calls", []):
                    entry["function"]["arguments"] = "changed"
