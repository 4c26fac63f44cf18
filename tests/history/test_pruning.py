"""Prunings: whatever their order, system prompt, task and last step survive, pairs whole, input untouched."""

import json
import logging
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.chats import any_chats, call, good_chats, result, user
from tests.examples import examples
from tests.history.test_steps import STEPS, text_pairs

from memory_bank import (
    LexicalEmbedder,
    MemoryBankSettings,
    MemoryBankState,
    apply_memory_bank_strategy,
    handle_tool_call,
)
from memory_bank.errors import HistoryError, MessagesError, StorageError, TokenBudgetError
from memory_bank.history import (
    ActionStep,
    AdaptiveMemoryManager,
    AgentMemory,
    HierarchicalMemory,
    MemoryManager,
    PlanningStep,
    ScratchpadStep,
    SystemPromptStep,
    TaskStep,
    ToolCall,
    chain,
    count_tokens,
    fit_token_budget,
    keep_last_n_steps,
    keep_system_and_recent,
    no_pruning,
    prune_old_observations,
    records_of,
    semantic_pruning,
    steps_from_messages,
    summarize_old_steps,
    to_memory_bank,
)
from memory_bank.testing import ScriptedModel
from memory_bank.transcript.pairing import pairing_errors
from memory_bank.transcript.tokens import approximate_counter

COUNTER = approximate_counter()


def run(n: int = 12, size: int = 400):
    """System prompt, task, n actions a second apart."""
    manager = MemoryManager("be careful")
    manager.add(TaskStep("find the order", timestamp=0.0))
    for i in range(n):
        body = json.dumps({"order_id": f"ORD-{1000 + i}", "note": "x" * size})
        manager.add(
            ActionStep("think", [ToolCall("get_order", {"n": i}, f"c{i}")], [body], timestamp=float(i))
        )
    return list(manager.steps)


class Rows(dict):
    """A bank in a dict."""

    session_id = "s"

    def add(self, records):
        before = len(self)
        for r in records:
            assert self.setdefault(r.trace_id, r).output_text == r.output_text
        return len(self) - before


def simple_prunings():
    numbers = st.integers(1, 6)
    return st.one_of(
        st.just(no_pruning),
        numbers.map(keep_last_n_steps),
        numbers.map(keep_system_and_recent),
        st.builds(
            lambda n, age, length: prune_old_observations(
                keep_last_n=n, max_age_seconds=age, max_length=length, now=9.0
            ),
            st.none() | numbers,
            st.none() | st.floats(0.1, 9),
            numbers,
        ),
        st.builds(
            lambda k, d: semantic_pruning(LexicalEmbedder(), keep=k, diversity=d), numbers, st.floats(0, 1)
        ),
        numbers.map(lambda n: summarize_old_steps(keep_last_n=n)),
        numbers.map(lambda n: summarize_old_steps(keep_last_n=n, summarizer=lambda text: text[:50])),
    )


@st.composite
def prunings(draw):
    inner = draw(simple_prunings())
    return draw(st.sampled_from([inner, to_memory_bank(Rows()), to_memory_bank(Rows(), inner)]))


@st.composite
def histories(draw):
    manager = MemoryManager("be careful")
    manager.add(TaskStep("the task"))
    if draw(st.booleans()):
        manager.extend(draw(STEPS))
    else:
        manager.extend(steps_from_messages(draw(good_chats())))
    return manager.steps


@examples(100)
@given(histories(), st.lists(prunings(), min_size=1, max_size=4))
def test_chains_in_any_order_keep_the_invariants(steps, chosen):
    before = json.dumps([s.dict() for s in steps])
    left = chain(*chosen)(steps)
    assert json.dumps([s.dict() for s in steps]) == before
    assert left[-1] is steps[-1]
    protected = [s for s in steps if isinstance(s, (SystemPromptStep, TaskStep))]
    assert [s for s in left if isinstance(s, (SystemPromptStep, TaskStep))] == protected
    assert pairing_errors([m for s in left for m in s.to_messages()]) == []
    for s in left:
        if s.source is None:
            assert all(calls == seen for calls, seen in text_pairs(s.to_messages(wire="text")))
    assert [s.step_number for s in left] == sorted(s.step_number for s in left)
    assert json.dumps([s.dict() for s in chain(*chosen)(steps)]) == json.dumps([s.dict() for s in left])


@given(histories(), st.integers(1, 200))
def test_a_budget_is_met_or_the_smallest_that_can_be_is_told(steps, budget):
    smallest = 0
    try:
        left = fit_token_budget(budget, counter=COUNTER)(steps)
    except TokenBudgetError as e:
        smallest = e.smallest
        left = fit_token_budget(smallest, counter=COUNTER)(steps)
    assert smallest == 0 or smallest > budget
    assert count_tokens(left, COUNTER) <= max(budget, smallest)
    if smallest:
        with pytest.raises(TokenBudgetError, match=f"at least {smallest:,}"):
            fit_token_budget(smallest - 1, counter=COUNTER)(steps)
    assert left[-1] is steps[-1]
    assert pairing_errors([m for s in left for m in s.to_messages()]) == []


@given(any_chats(), st.lists(prunings(), min_size=1, max_size=3))
def test_broken_histories_are_pruned_too(messages, chosen):
    steps = steps_from_messages(messages, timestamp=5.0)
    left = chain(*chosen)(steps)
    assert left[-1:] == steps[-1:]
    assert pairing_errors([m for s in left if s.source is None for m in s.to_messages()]) == []


def test_what_each_pruning_keeps():
    steps = run(6)
    steps.insert(5, PlanningStep("now this", step_number=3, timestamp=3.0))
    assert no_pruning(steps) == steps
    assert [s.step_number for s in keep_last_n_steps(2)(steps)] == [0, 0, 5, 6]
    assert [s.step_number for s in keep_system_and_recent(4)(steps)] == [0, 0, 3, 3, 4, 5, 6]
    assert wholes(prune_old_observations(keep_last_n=2, max_length=50)(steps)) == [False] * 4 + [True] * 2
    assert chain()(steps) == chain(no_pruning, no_pruning())(steps) == no_pruning()(steps) == steps


def wholes(steps):
    return [s.observations[0].whole for s in steps if isinstance(s, ActionStep)]


def test_an_age_alone_cuts_by_age_alone_and_counts_from_now():
    steps = run(8)  # at 0 to 7 seconds
    assert wholes(prune_old_observations(max_age_seconds=5, now=7.0)(steps)) == [False] * 2 + [True] * 6
    assert (
        wholes(prune_old_observations(keep_last_n=6, max_age_seconds=2.5, now=7.0)(steps))
        == [False] * 5 + [True] * 3
    )
    assert (
        wholes(prune_old_observations(keep_last_n=6, max_age_seconds=60, now=7.0)(steps))
        == [False] * 2 + [True] * 6
    )
    assert wholes(prune_old_observations(max_age_seconds=3600)(steps)) == [False] * 7 + [True]  # of 1970
    fresh = [replace(s, timestamp=time.time()) for s in steps]
    assert wholes(prune_old_observations(max_age_seconds=3600)(fresh)) == [True] * 8
    assert wholes(prune_old_observations()(steps)) == [False] * 3 + [True] * 5


def test_tasks_do_not_use_up_the_count_of_the_last_steps():
    steps = run(6)
    steps += [TaskStep(text, step_number=6) for text in ("and now this", "and that")]
    assert [s.step_number for s in keep_last_n_steps(2)(steps)] == [0, 0, 5, 6, 6, 6]
    assert keep_last_n_steps(99)(steps) == steps
    assert keep_last_n_steps(1)(steps[:2]) == steps[:2]


def test_tokens_of_steps_and_of_messages():
    steps = run(3)
    messages = [m for s in steps for m in s.to_messages()]
    assert count_tokens(messages, COUNTER) == count_tokens(steps, COUNTER)
    assert count_tokens([steps[0], *messages[1:]], COUNTER) == count_tokens(steps, COUNTER)
    with pytest.raises(MessagesError, match="a list of chat messages, not str"):
        count_tokens("hello")


@pytest.mark.parametrize(
    "bad",
    [
        lambda: keep_last_n_steps(0),
        lambda: keep_system_and_recent(-1),
        lambda: prune_old_observations(keep_last_n=0),
        lambda: prune_old_observations(keep_last_n=1, max_length=0),
        lambda: prune_old_observations(keep_last_n=1, max_age_seconds=0),
        lambda: fit_token_budget(0),
        lambda: semantic_pruning(LexicalEmbedder(), keep=0),
        lambda: semantic_pruning(LexicalEmbedder(), diversity=1.5),
        lambda: semantic_pruning("BAAI/bge"),
        lambda: summarize_old_steps(keep_last_n=0),
        lambda: summarize_old_steps(keep_last_n=1, summarizer=7),
        lambda: chain(7),
        lambda: to_memory_bank(MemoryBankState("lexical"), 1000),
        lambda: AdaptiveMemoryManager(0),
        lambda: HierarchicalMemory(Rows(), recent=0),
        lambda: HierarchicalMemory(Rows(), summarized=-1),
    ],
)
def test_limits_that_are_none_are_one_clear_error(bad):
    with pytest.raises(HistoryError):
        bad()


@pytest.mark.parametrize(
    "call",
    [
        lambda: prune_old_observations(3600),  # seconds?
        lambda: prune_old_observations(5, 100),
        lambda: semantic_pruning(LexicalEmbedder(), 1000),  # tokens?
        lambda: summarize_old_steps(4000),  # characters?
        lambda: AgentMemory(2000),
    ],
)
def test_a_number_that_could_be_taken_for_another_one_needs_its_name(call):
    with pytest.raises(TypeError, match="positional argument"):
        call()


def test_relevance_with_diversity():
    texts = [*["refund of order 7 approved"] * 2, "weather in Paris", "order 7 shipped late"]
    actions = [ActionStep(t, step_number=i) for i, t in enumerate(texts, 1)]
    steps = [TaskStep("refund order 7"), *actions, ActionStep("end", step_number=9)]
    relevant = semantic_pruning(LexicalEmbedder(), keep=2, diversity=0.0)(steps)
    assert [s.step_number for s in relevant] == [0, 1, 2, 9]
    diverse = semantic_pruning(LexicalEmbedder(), keep=2, diversity=0.5)(steps)
    assert [s.step_number for s in diverse] == [0, 2, 4, 9]


def test_a_summary_takes_the_earlier_one_in_and_a_failing_model_leaves_an_extraction(caplog):
    steps = run(8)
    short = summarize_old_steps(keep_last_n=3)(steps)
    note = short[2]
    assert isinstance(note, ScratchpadStep) and note.kind == "summary" and note.step_number == 5
    assert all(f"ORD-{1000 + i}" in note.text for i in range(5))
    again = summarize_old_steps(keep_last_n=1)(short)
    assert all(f"ORD-{1000 + i}" in again[2].text for i in range(7)) and len(again) == 4
    small = summarize_old_steps(keep_last_n=1, max_chars=600)(steps)[2].text
    assert len(small) <= 600 and "earlier lines are left out" in small
    by_model = summarize_old_steps(
        keep_last_n=3, summarizer=ScriptedModel(["ORD-1000 to ORD-1004 were looked at."])
    )(steps)
    assert by_model[2].text == "ORD-1000 to ORD-1004 were looked at."

    def broken(text):
        raise RuntimeError("no key")

    with caplog.at_level(logging.WARNING):
        assert "ORD-1000" in summarize_old_steps(keep_last_n=3, summarizer=broken)(steps)[2].text
        assert "ORD-1000" in summarize_old_steps(keep_last_n=3, summarizer=lambda text: "")(steps)[2].text
    assert "RuntimeError" in caplog.text and "answered nothing" in caplog.text


def test_what_is_pruned_into_the_bank_comes_back_exactly_by_its_id():
    steps = run(12)
    with MemoryBankState("lexical") as state:
        masked = to_memory_bank(state, keep_last_n=3)(steps)
        assert state.fact_store.size() == 9
        for old, new in zip(steps[2:11], masked[2:11], strict=True):
            seen = new.observations[0]
            assert seen.trace_id in seen.text and not seen.whole
            assert state.fact_store.get(seen.trace_id).output_text == old.observations[0].text
        assert to_memory_bank(state, keep_last_n=3)(masked) == masked
        dropped = to_memory_bank(state, keep_last_n_steps(2))(steps)
        note = next(s for s in dropped if isinstance(s, ScratchpadStep))
        assert note.kind == "bank" and len(note.trace_ids) == 20  # ten calls, ten thoughts
        assert all(state.fact_store.get(t) is not None and t in note.text for t in note.trace_ids)
        further = to_memory_bank(state, keep_last_n_steps(1))(dropped)
        notes = [s for s in further if isinstance(s, ScratchpadStep)]
        assert len(notes) == 1 and len(notes[0].trace_ids) == 22 and "#" not in notes[0].text
        answer = handle_tool_call(state, "get_record", {"trace_id": note.trace_ids[0]})
        assert "ORD-1000" in answer
        assert "ORD-1003" in handle_tool_call(state, "search_memory", {"query": "ORD-1003"})


def test_equal_calls_are_two_records_and_ids_are_those_of_the_strategy():
    messages = [user("find"), *[call(("a", "f", {})), result("a", "same " * 50)] * 3]
    with MemoryBankState("lexical") as state:
        steps = steps_from_messages(messages)
        to_memory_bank(state, keep_last_n=1)(steps)
        assert state.fact_store.size() == 2
        apply_memory_bank_strategy(messages, None, MemoryBankSettings(observer_model="extractive"), state)
        assert state.fact_store.size() == 3
        assert [r.trace_id for r in records_of(steps, state.session_id)] == list(state.fact_store.steps())
        to_memory_bank(state, keep_last_n_steps(1))(steps)
        assert state.fact_store.size() == 3


def test_a_bank_that_refuses_loses_nothing():
    def refuse(records):
        raise StorageError("the disk is full")

    bank = SimpleNamespace(session_id="s", add=refuse)
    manager = MemoryManager("s", to_memory_bank(bank, keep_last_n_steps(1)))
    manager.extend(run(4)[1:])
    before = manager.steps
    with pytest.raises(StorageError):
        manager.prune()
    assert manager.steps == before


def test_adaptive_takes_the_mildest_that_fits():
    levels = {}
    for budget in (50_000, 1_600, 900, 500, 250):
        manager = AdaptiveMemoryManager(budget, "be careful", counter=COUNTER)
        manager.extend(run(12)[1:])
        assert manager.token_count <= budget
        assert pairing_errors(manager.to_messages()) == []
        levels[budget] = manager.last_level
    assert levels[50_000] == "" and len(set(levels.values())) >= 4
    state = Rows()
    manager = AdaptiveMemoryManager(500, "be careful", counter=COUNTER, state=state)
    manager.extend(run(12)[1:])
    assert manager.token_count <= 500
    outputs = {r.output_text for r in state.values()}
    for step in run(12)[2:-1]:
        assert step.observations[0].text in outputs or step in manager.steps
    with pytest.raises(TokenBudgetError) as e:
        manager.add(ActionStep(tool_calls=[ToolCall("f", {}, "big")], observations=["a b " * 2_000]))
    assert e.value.smallest > 2_000
    assert manager.steps[-1].tool_calls[0].id == "big"


def test_a_hierarchy_holds_recent_steps_summaries_and_themes():
    with MemoryBankState("lexical") as state:
        memory = HierarchicalMemory(state, "be careful", recent=3, summarized=4)
        original = run(20)[1:]
        sizes = []
        for step in original:
            memory.add(step)
            sizes.append(len(memory))
        assert max(sizes) <= 2 + 2 + 3
        themes, summary = memory.steps[2:4]
        assert (themes.kind, summary.kind) == ("themes", "summary")
        assert themes.text.startswith("- get_order: 13 steps, 1 to 13; trace_id ")
        assert len(summary.text.splitlines()) == 4 and "[get_order] 14. " in summary.text
        whole = {state.fact_store.get(t).output_text for t in (*themes.trace_ids, *summary.trace_ids)}
        assert {s.observations[0].text for s in original[1:18]} <= whole
        assert memory.steps[-3:] == tuple(original[-3:])
        assert pairing_errors(memory.to_messages()) == []


@given(STEPS, STEPS)
def test_a_hierarchy_keeps_the_invariants(first, second):
    memory = HierarchicalMemory(Rows(), "s", recent=2, summarized=1, counter=COUNTER)
    memory.add(TaskStep("the task"))
    for step in [*first, *second]:
        last = memory.add(step)
        assert memory.steps[-1] is last
        assert sum(isinstance(s, TaskStep) for s in memory) >= 1
    assert pairing_errors(memory.to_messages()) == []
    assert [s.step_number for s in memory] == sorted(s.step_number for s in memory)


def test_an_embedder_that_fails_costs_no_fact_and_its_summaries_wait():
    class Failing(LexicalEmbedder):
        instant = False
        fails = True

        def encode(self, texts):
            if self.fails:
                raise RuntimeError("out of memory")
            return super().encode(texts)

    model = Failing()
    with MemoryBankState(model) as state:
        to_memory_bank(state, keep_last_n=1)(run(4))
        assert (state.fact_store.size(), state.insight_store.size()) == (3, 0)
        model.fails = False
        assert (state.flush(5), state.insight_store.size()) == (0, 3)
