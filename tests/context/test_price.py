"""The price bound: at no step has a run paid more than five percent above what it would have paid without memory."""

import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.chats import call, result, system, user
from tests.examples import first_short

from memory_bank import TOOL_SCHEMAS, MemoryBankSettings, MemoryBankState, MemoryProcessor
from memory_bank.audit.costs import Costs, ScriptedCache
from memory_bank.config import Config
from memory_bank.context.fold_rule import (
    FLOORS,
    MOST_FOLD,
    WAITS,
    charge_whole,
    first_fold,
    fold_size,
    tokens_paid_for,
)
from memory_bank.pricing import Ledger, Ratios, Usage, cost, list_prices
from memory_bank.transcript.tokens import approximate_counter

EXAMPLES = Path(__file__).parents[2] / "examples"
PRICES = {
    "0.02": (0.02, 1), "0.025": (0.025, 1.25), "0.05": (0.05, 1.25), "0.1/1.25": (0.1, 1.25), "0.1/1": (0.1, 1),
    "0.25": (0.25, 1), "0.5": (0.5, 1), "none": (1, 1),
}  # fmt: skip
"""The prices of a cached token and of one written to the cache that the shipped list has, by class."""
COUNTER = approximate_counter()


def config_at(price, **settings):
    bank = {"selection": "evidence", "embedding_model": "lexical", "observer_model": "extractive"}
    read, write = PRICES[price]
    return Config(
        memory_strategies={
            "b": MemoryBankSettings(**bank, **settings, observer_mode="off", token_encoding="approximate")
        },
        prices={"m": {"prompt": 1, "completion": 4, "cached": read, "cache_write": write}},
        loop_detection="off",
    )


def played(steps, price, added=0, offered=None, **settings):
    """Play lists of messages; yield what was paid at each step, what the full history cost, the plan, the context.

    By an account of its own: a provider's cache that holds what any request began with.
    """
    costs, rate = Costs(COUNTER), config_at(price).prices["m"]
    caches = ScriptedCache(COUNTER), ScriptedCache(COUNTER)
    processor = MemoryProcessor(config_at(price, **settings))
    paid = full = 0.0
    tools = [("memory's tools", added)] if added else []
    for messages in steps:
        context, _ = processor.apply_strategy(messages, "b", model="m", added=added, tools=offered)
        paid += cost(caches[0].add([*tools, *costs.parts(context)]), rate)
        full += cost(caches[1].add(costs.parts(messages)), rate)
        yield paid, full, processor.state("b").last_plan, context
    processor.close()


def steps_of(chat):
    """The lists of a chat at each model call."""
    return [chat[:n] for n in range(1, len(chat) + 1) if chat[n - 1]["role"] in ("user", "tool")]


@pytest.mark.parametrize(("length", "pays"), [(48, False), (120, True)])
def test_the_full_history_is_sent_for_a_summary_where_what_was_saved_pays_for_it(length, pays):
    """After a fold the provider's cache does not hold it; what a list has more afterwards is paid in the same way."""
    processor = MemoryProcessor(config_at("0.1/1.25"))
    for messages in made_run(4, length=length):
        processor.apply_strategy(messages, "b", model="m")
    state = processor.state("b")
    ledger, before = state.ledger, state.ledger.paid
    assert state.last_fold.number > 0
    assert charge_whole(state.last_plan.view, state) is pays
    assert (ledger.paid > before) is pays
    assert ledger.paid <= 1.05 * ledger.full
    assert (tokens_paid_for(state) > 4_000) is pays
    processor.close()


def test_what_a_compaction_took_is_shown_where_what_was_saved_pays_for_it():
    """A client replaces its history by a summary; memory's list of the calls before is a text more at each step."""
    for length, is_shown in ((20, False), (100, True)):
        chat = made_run(4, length=length)[-1]
        words = user("This session is being continued from a previous conversation: shelves were read.")
        steps = [*steps_of(chat), *steps_of([chat[0], words, *made_run(5, length=40)[-1][2:]])[1:]]
        shown = []
        for paid, full, plan, _ in played(steps, "0.1/1.25"):
            assert paid <= 1.05 * full + 100
            shown.append(not plan.unchanged)
        assert shown[len(steps_of(chat))] is is_shown


def example_runs():
    for path in sorted(EXAMPLES.glob("*.jsonl")):
        for line in path.read_text("utf-8").splitlines():
            if (run := json.loads(line)).get("messages"):
                yield path.stem, run["messages"]


def made_run(seed, *, length=60, tokens=900, head=400, parallel=1, last=1, words=0):
    """A run of made-up outputs: so many calls of about so many tokens, every tenth ``last`` times as long."""
    r = random.Random(seed)
    chat = [system("Rules of the house. " * (head // 5)), user("Look at every shelf and report.")]
    for n in range(length):
        ids = [f"c{n}-{k}" for k in range(r.randint(1, parallel))]
        chat.append(
            call(*((i, r.choice(("look", "move", "count")), {"shelf": f"SH-{seed}-{i}"}) for i in ids))
        )
        if words:
            chat[-1]["content"] = "I think about where this belongs. " * (words // 8)
        for i in ids:
            size = tokens * r.choice((0.2, 0.5, 1, 2)) * (last if n % 10 == 9 else 1) / len(ids)
            chat.append(result(i, f"item_id: ITM-{i}\n" + "nothing more to tell of it\n" * int(size / 7)))
        if r.random() < 0.1:
            chat += [
                {"role": "assistant", "content": "Done so far."},
                user("And the next ones, please. " * r.randint(1, 60)),
            ]
    return steps_of(chat)


KINDS = {
    "short outputs": {"tokens": 500, "length": 70},
    "long outputs": {"tokens": 3_000, "length": 25},
    "a long head": {"head": 12_000, "length": 45},
    "long thoughts": {"words": 700, "length": 45},
    "parallel calls": {"parallel": 4, "tokens": 2_500, "length": 30},
    "long last outputs": {"last": 8, "length": 40},
}


CASES = [(k, p) for n in range(len(PRICES)) for k, p in zip(KINDS, [*PRICES, *PRICES][n:], strict=False)]


@pytest.mark.parametrize("case", first_short(CASES, 8), ids=" at ".join)
def test_no_step_of_a_run_is_five_percent_dearer(case):
    kind, price = case
    for paid, full, _, _ in played(made_run(len(kind), **KINDS[kind]), price):
        assert paid <= 1.05 * full


@pytest.mark.parametrize(
    "case", first_short([("thrifty", "0.1/1.25"), ("thrifty", "0.05"), ("careful", "0.25")], 1)
)
def test_folds_save_where_a_run_is_long(case):
    fold, price = case
    for paid, full, plan, _ in played(made_run(3, tokens=1_500, length=50), price, fold=fold):
        assert paid <= 1.05 * full
        folded = not plan.unchanged
    assert folded
    assert paid < (0.95 if price == "0.05" else 0.8) * full


def test_the_tokens_of_memorys_tools_are_counted():
    run = made_run(5, head=14_000, tokens=1_500, length=40)
    saved = []
    for added in (0, 480):
        for paid, full, plan, _ in played(run, "0.1/1.25", added=added):
            assert paid <= 1.05 * full
            folded = not plan.unchanged
        saved.append(paid / full)
        assert folded
    assert saved[0] < saved[1] < 1


def test_outputs_that_are_shown_in_part_are_counted_as_they_are_sent():
    run = made_run(2, tokens=2_500, length=30)
    shown = [*played(run, "0.1/1.25", first_sight=4_000, first_sight_tokens=500, offered=TOOL_SCHEMAS)]
    for paid, full, _, _ in shown:
        assert paid <= 1.05 * full
    whole = [*played(run, "0.1/1.25", first_sight=0)]
    assert shown[-1][0] < 0.7 * whole[-1][0]


def test_a_run_that_goes_back_some_calls_and_on_stays_within_the_bound():
    steps, other = made_run(1, tokens=1_200, length=40), made_run(8, tokens=1_200, length=12)
    back = [[*steps[24], *again[2:]] for again in other[1:]]
    for paid, full, _, _ in played([*steps[:31], *back], "0.1/1.25"):
        assert paid <= 1.05 * full


@pytest.mark.parametrize("price", first_short(["0.1/1.25", "0.025"]))
def test_recorded_runs_stay_within_the_bound(price):
    for _, messages in example_runs():
        for paid, full, _, _ in played(steps_of(messages), price):
            assert paid <= 1.05 * full


def test_a_ledger_has_what_an_account_beside_it_has():
    run = made_run(4, tokens=1_500, length=35)
    processor = MemoryProcessor(config_at("0.1/1.25"))
    account = played(run, "0.1/1.25")
    for messages, (paid, full, _, _) in zip(run, account, strict=True):
        processor.apply_strategy(messages, "b", model="m")
        ledger = processor.state("b").ledger
        assert ledger.paid == pytest.approx(1e6 * paid, rel=0.01)
        assert ledger.full == pytest.approx(1e6 * full, rel=0.01)


def test_a_fold_that_would_remove_nothing_is_not_made_and_not_tried_at_every_step():
    run = made_run(6, tokens=60, length=30)
    processor = MemoryProcessor(config_at("0.1/1", history_budget=1_900, refresh_after=100))
    for messages in run:
        processor.apply_strategy(messages, "b", model="m")
        plan = processor.state("b").last_plan
        assert plan.tokens <= plan.full_tokens


def test_what_a_fold_needs_is_read_after_an_answer_before_it_once_its_price_is_nearly_saved():
    processor = MemoryProcessor(config_at("0.1/1.25"), lambda: MemoryBankState(defer=True))
    read = []  # the older tokens of the steps after which it was read, up to the fold
    for messages in made_run(1, tokens=500, length=90):
        processor.apply_strategy(messages, "b", model="m")
        if (plan := processor.state("b").last_plan).fold:
            break
        processor.state("b").finish()
        if processor.state("b").cache("evidence").memory is not None:
            read.append(plan.full_tokens - plan.kept_tokens)
    assert plan.fold
    assert len(read) > 3
    assert read[0] > WAITS["careful"]
    processor.close()


def test_what_was_reported_takes_the_place_of_what_was_estimated():
    ledger, ratios = Ledger(), Ratios(0.1, 1.25)
    charge = ledger.step(ratios, 10_000, 0, 10_000, 0)
    ledger.add(charge, ["a"])
    assert (ledger.paid, ledger.full) == (12_500, 12_500)
    ledger.settle(charge, 4_000.0, 6_000.0)
    assert (ledger.paid, ledger.full) == (4_000, 6_000)
    ledger.settle(charge, 4_500.0, 6_000.0)  # a late report counts once
    assert (ledger.paid, ledger.full) == (4_500, 6_000)
    assert ratios.of(Usage(10_000, 8_000, 1_500)) == 500 + 800 + 1_875


def test_a_ledger_counts_nothing_as_cached_that_a_provider_has_forgotten():
    ledger, ratios = Ledger(), Ratios(0.1, 1.0)
    ledger.beside, ledger.added = 3_000, 200
    ledger.add(ledger.step(ratios, 5_000, 0, 5_000, 0), ["a"])
    assert ledger.paid == 8_200 and ledger.full == 8_000
    step = ledger.step(ratios, 6_000, 5_000, 6_000, 5_000)
    assert (step.paid, step.full) == (pytest.approx(820 + 1_000), pytest.approx(800 + 1_000))
    ledger.sent = ()
    step = ledger.step(ratios, 6_000, 5_000, 6_000, 5_000)
    assert (step.paid, step.full) == (9_200, 9_000)


def test_the_sums_end_with_the_task():
    processor = MemoryProcessor(config_at("0.1/1"))
    processor.apply_strategy(made_run(1)[3], "b", model="m")
    assert processor.state("b").ledger.paid > 0
    processor.reset_state()
    assert processor.state("b").ledger.paid == 0


# the size of a fold


@given(st.floats(0, 1), st.sampled_from([1.0, 1.25, 2.0]), st.integers(0, 10**6), st.floats(-1e6, 1e6))
def test_a_fold_is_a_share_of_the_older_history_between_its_bounds(read, write, older, room):
    ratios = Ratios(read, write)
    for fold in FLOORS:
        size, scale = fold_size(ratios, older, room, FLOORS[fold]), min(1, (read / 0.1) ** 0.5)
        least = min(MOST_FOLD, max(scale * FLOORS[fold], scale * 0.12 * older))
        assert int(least) <= size <= MOST_FOLD
        assert size <= max(least, 0.15 * older)
        if room >= 0.15 * older:
            assert size == int(min(MOST_FOLD, max(least, 0.15 * older)))
        elif room <= least:
            assert size == int(least)


def test_a_first_fold_comes_the_earlier_the_dearer_cached_tokens_are():
    wait = WAITS["thrifty"]
    assert [first_fold(Ratios(r, 1), wait) for r in (0.0, 0.02, 0.1, 0.25, 1.0)] == [16_000] * 3 + [
        6_400,
        1_600,
    ]


def test_the_prices_that_ship_are_used_where_none_are_given():
    cheap = next(n for n, p in list_prices().models.items() if p.cached and p.cached / p.prompt < 0.06)
    processor = MemoryProcessor(Config(memory_strategies=config_at("none").memory_strategies))
    processor.apply_strategy(made_run(1)[2], "b", model=cheap)
    price = list_prices().models[cheap]
    assert processor.state("b").prefix_cache.read == price.cached / price.prompt
