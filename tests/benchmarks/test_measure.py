"""Figures on the room's own trace: by hand, against the reference meter, and for every toy's trait."""

import json
import math

import pytest
from benchmarks.measuring.measure import figures_of, measure
from benchmarks.measuring.strategies import Strategy, parse_strategy, with_budgets
from hypothesis import given

from memory_bank.audit.costs import Costs
from memory_bank.audit.traces import Trace
from memory_bank.config import Config, load_config
from memory_bank.errors import ConfigError, UnknownStrategyError
from memory_bank.transcript.tokens import approximate_counter
from tests.benchmarks import load
from tests.chats import any_chats

TOYS = "tests.benchmarks.toys:"


@pytest.fixture
def run(traces, config, counter):
    def figures(name):
        strategy = parse_strategy(name if name in ("full", "oracle") else TOYS + name, config)
        return measure(traces, [strategy], counter=counter)[0].figures

    return figures


# The reference meter's figures (evbench of 2026-11) for the same file and the same functions, without tiktoken:
#   PYTHONPATH=.:../shared/evidence python -c "import sys; sys.modules['tiktoken'] = None
#   from evbench.run import main; main()" --data tests/evidence/orders.jsonl --strategy tests.benchmarks.toys:NAME
NAMES = (
    "recall", "bound", "bound_old", "first_old", "complete", "by_age", "say", "share_of_full", "share_of_history",
    "step_ratio", "exceptions", "broken",
)  # fmt: skip
REFERENCE = {
    "whole": (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0, 0),
    "keep_last": (0.5, 0.5, 0.0, 0.0, 0.5217, 0.0, 0.25, 0.4522, 0.0, 0.5726, 0, 0),
    "keep_last?n=2": (0.8929, 0.8929, 0.7857, 0.7692, 0.913, 0.9167, 1.0, 0.7086, 0.4681, 0.8271, 0, 0),
    "shorten": (0.5714, 0.5357, 0.0714, 0.0769, 0.5217, 0.1667, 1.0, 0.8597, 0.7439, 0.9138, 0, 0),
    "bag": (0.6786, 0.5, 0.0, 0.3077, 0.6087, 0.25, 0.75, 4.0489, 6.5657, 5.4843, 0, 0),
    "breaks_pairs": (0.5357, 0.5357, 1.0, 1.0, 0.4348, 1.0, 1.0, 0.8597, 0.8686, 0.7982, 0, 33),
    "raises_late": (0.6786, 0.6786, 0.6429, 0.6923, 0.8261, 0.75, 0.0, 0.3423, 0.1917, 0.5758, 14, 0),
}


@pytest.mark.parametrize("name", REFERENCE)
def test_within_a_point_of_the_reference_meter(run, name):
    ours = run(name)
    for field, theirs in zip(NAMES, REFERENCE[name], strict=True):
        value = ours.by_age["2-3"] if field == "by_age" else getattr(ours, field)
        assert value == pytest.approx(theirs, abs=0.01), field


def test_keep_two_by_hand(run):
    # 28 values, of which 14 are old: in "orders" #W5511 and 149.5 (2 back), the address and #W6020 (4), the
    # path (3); in each of nine small traces a depot (2). Two interactions keep what is at most 2 back.
    f = run("keep_last?n=2")
    assert (f.traces, f.steps, f.values, f.values_old, f.values_say) == (10, 33, 28, 14, 4)
    assert f.recall == 25 / 28
    assert f.recall_old == f.bound_old == 11 / 14
    assert f.by_age["2-3"] == 11 / 12
    assert f.by_age["4-7"] == 0
    assert math.isnan(f.by_age["8+"])


def test_dollars_are_those_of_a_prefix_cache(run):
    assert set(run("full").dollars.values()) == {1}
    long = [{"role": "user", "content": "words " * 2_000}]
    for n in range(6):
        call = {"id": f"c{n}", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        long += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{n}", "content": f"{n} " * 1_000},
        ]
    [full, last] = measure(
        [Trace("long", long)],
        [Strategy("full", "full"), parse_strategy(f"{TOYS}keep_last", load_config())],
        counter="approximate",
    )
    shares = last.figures.dollars
    rows = full.rows[0]
    assert [r.used for r in rows] == [r.full_used for r in rows]
    assert rows[1].used[1] == rows[0].tokens
    assert shares["0.25/1"] < shares["0.1/1"] < shares["0.1/1.25"]
    assert shares["0.1/1.25"] > last.figures.share_of_full  # what is cut was cached


def test_full_is_everything_and_the_oracle_no_less(run):
    full, oracle, two = run("full"), run("oracle"), run("keep_last?n=2")
    assert full.recall == full.bound == full.share_of_full == full.share_of_history == full.step_ratio == 1
    assert oracle.recall == oracle.bound == oracle.bound_old == oracle.complete == oracle.say == 1
    assert oracle.tokens < two.tokens


def test_a_bag_of_values_is_not_bound(run):
    f = run("bag")
    assert f.recall_old == 5 / 14
    assert f.bound_old == 0


def test_exceptions_and_broken_pairs_are_counted(run):
    f = run("raises")
    assert (f.exceptions, f.broken, f.recall, f.tokens) == (f.steps, 0, 0, 0)
    assert run("no_messages").exceptions == f.steps
    assert run("breaks_pairs").broken == f.steps
    assert run("slow").recall == 1  # asynchronous functions serve


def test_pairs_that_the_trace_itself_broke_are_not_the_strategys(traces, config, counter):
    cut = [m for m in traces[0].messages if m.get("tool_call_id") != "c2"]
    broken = type(traces[0])("broken", cut)
    assert measure([broken], [parse_strategy("full", config)], counter=counter)[0].figures.broken == 0


def test_a_strategy_gets_copies_of_the_prefix(traces, config, counter):
    before = json.dumps([t.messages for t in traces])
    edits, full = measure(
        traces, [parse_strategy(n, config) for n in (TOYS + "edits", "full")], counter=counter
    )
    assert json.dumps([t.messages for t in traces]) == before
    assert (edits.figures.recall, full.figures.recall) == (0, 1)


def test_a_configured_strategy(traces, config, counter):
    top = [parse_strategy(f"local?top_k={k}", config) for k in (0, 9)]
    none, all_ = (o.figures for o in measure(traces, top, counter=counter))
    assert none.bound_old < all_.bound_old == 1
    assert (none.exceptions, none.broken) == (0, 0)
    with parse_strategy("none", config).start(traces[0]) as build:
        assert build(traces[0].messages, []) == traces[0].messages


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("nope", UnknownStrategyError),
        ("local?topk=3", ConfigError),
        ("local?top_k=x", ConfigError),
        ("no.module:f", ConfigError),
        ("json:nothing", ConfigError),
        ("json:__name__", ConfigError),
        (":f", ConfigError),
    ],
)
def test_a_strategy_that_is_none(config, name, error):
    with pytest.raises(error):
        parse_strategy(name, config)


def test_a_budget_is_for_strategies_that_heed_one():
    bank = {"type": "memory_bank", "embedding_model": "lexical", "history_budget": 3000}
    own = Config(
        memory_strategies={k: {**bank, "selection": v} for k, v in (("e", "evidence"), ("t", "top_k"))}
    )
    tried = [
        s
        for name in ("e?keep_recent=1", "e?history_budget=5", "t")
        for s in with_budgets(parse_strategy(name, own), [7])
    ]
    assert [s.name for s in tried] == ["e?keep_recent=1&history_budget=7", "e?history_budget=5", "t"]
    settings = tried[0].config.strategy("e")
    assert (settings.keep_recent, settings.history_budget) == (1, 7)


@pytest.mark.long
def test_one_process_or_two_the_figures_are_the_same(traces, config):
    names = ["local", TOYS + "keep_last?n=2", TOYS + "raises_late", "oracle"]
    strategies = [parse_strategy(n, config) for n in names]
    seen = []
    one = measure(traces, strategies, counter="approximate", progress=lambda *p: seen.append(p))
    two = measure(traces, strategies, counter="approximate", jobs=2)
    assert seen == [(i, 10) for i in range(1, 11)]
    assert [timeless(o) for o in one] == [timeless(o) for o in two]


def timeless(outcome):
    found = outcome.figures.as_dict()
    return {k: v for k, v in found.items() if not k.startswith("ms")}


def test_a_limit_spreads_and_nothing_is_no_error(traces, config, counter):
    full = [parse_strategy("full", config)]
    assert measure(traces, full, counter=counter, limit=3)[0].figures.traces == 3
    assert measure(traces, full, counter=counter, limit=0)[0].figures.traces == 0
    nothing = measure([], full, counter=counter)[0].figures
    assert (nothing.steps, nothing.intervals) == (0, {})
    assert json.loads(json.dumps(nothing.as_dict(), allow_nan=False))["recall"] is None


def test_intervals_hold_the_figure_and_need_four_traces(traces, config, counter):
    strategy = [parse_strategy(TOYS + "keep_last?n=2", config)]
    outcome = measure(traces, strategy, counter=counter)[0]
    low, high = outcome.figures.intervals["bound_old"]
    assert low <= outcome.figures.bound_old <= high
    assert low < high
    assert figures_of(outcome.rows) == outcome.figures
    assert figures_of(outcome.rows[:3]).intervals == {}


@given(any_chats())
def test_whatever_the_messages_are_full_keeps_everything(messages):
    strategies = [Strategy("full", "full"), Strategy("oracle", "oracle")]
    full, oracle = measure([Trace("any", messages)], strategies, counter="approximate")
    assert full.figures.broken == full.figures.exceptions == oracle.figures.exceptions == 0
    assert full.figures.recall == 1 or not full.figures.values


def test_what_is_nested_too_deeply_is_measured_all_the_same(counter):
    deep: object = "QX-4410"
    for _ in range(20_000):
        deep = {"a": [deep]}
    messages = [{"role": "tool", "content": deep}, {"role": "assistant", "content": "It is QX-4410."}]
    full = measure([Trace("deep", messages, tools=[deep])], [Strategy("full", "full")], counter=counter)[0]
    assert [row.kind for row in full.rows[0]] == ["say"]


def test_costs_are_those_of_the_counter(traces):
    counter = approximate_counter()
    costs = Costs(counter, most=3)
    odd = [
        {"role": "user", "content": [{"type": "text", "text": "a b"}]}, {"content": "x"}, 5,
        {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": {"a": 1}}}]},
    ]  # fmt: skip
    messages = [*traces[0].messages, *odd]
    for _ in range(2):
        assert [costs.of(m) for m in messages] == [counter.count_message(m) for m in messages]
    assert costs.total(messages) == sum(map(counter.count_message, messages))


def test_the_reference_rule_counts_a_call_as_one_text_and_four_a_frame(traces):
    counter = load("meters").ReferenceCounter()
    call = traces[0].messages[2]
    assert counter.count_message(call) == 4 + counter.count_text('find_customer {"name": "Ada Quill"}')
    assert counter.count_text("") == 0
    assert counter.count_text("<|endoftext|> \ud800" * 1000) > 0
