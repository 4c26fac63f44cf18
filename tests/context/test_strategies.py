"""Every strategy of the shipped configuration, and what each of the new ones promises beside the contract."""

import copy
import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.chats import any_chats, call, good_chats, result, rounds, say, system, user
from tests.contracts.strategy import StrategyContract
from tests.examples import examples

from memory_bank import TOOL_SCHEMAS, MemoryBankState, MemoryProcessor, handle_tool_call, load_config
from memory_bank.config import Config
from memory_bank.plan import NO_PLAN
from memory_bank.testing import ScriptedModel
from memory_bank.transcript.pairing import pairing_errors
from memory_bank.transcript.tokens import open_counter

SHIPPED = sorted(load_config().memory_strategies)
PLAIN = ["no_strategy", "truncation", "keep_last_n", "observation_masking"]
TIGHT = {
    "observation_masking": {"max_length": 0, "keep_last": 1},
    "progressive_summarization": {"compact_threshold": 1500, "summary_tokens": 400},
    "hierarchical": {"max_tokens": 1500, "summarize_last": 4},
    "adaptive": {"max_tokens": 1200},
    "semantic": {"history_budget": 600},
    "scratchpad": {"scratchpad_tokens": 300},
}


def local_state():
    return MemoryBankState("lexical")  # no weights, whatever the settings name


def config_of(type_, **changes):
    return Config(memory_strategies={"it": {"type": type_, **changes}}, default_strategy="it")


class Base(StrategyContract):
    key = "it"
    config = load_config()

    def make_strategy(self):
        processor = MemoryProcessor(self.config, local_state)
        return lambda messages: processor.apply_strategy(messages, self.key)


def _contract(name, base, **attributes):
    globals()[f"Test_{name}"] = type(f"Test_{name}", (base,), attributes)


def _budget_of(settings):
    count = open_counter().count_message

    def budget(self, messages):
        for field in ("max_tokens", "compact_threshold"):
            if hasattr(settings, field):
                return getattr(settings, field)
        for field in ("history_budget", "scratchpad_tokens"):
            value = getattr(settings, field, None)
            if isinstance(value, int) and settings.type != "memory_bank":
                last = [i for i, m in enumerate(messages) if m.get("tool_calls")]
                tail = last[-1] if last else len(messages)
                kept = [m for m in messages[:tail] if m["role"] != "tool" and not m.get("tool_calls")]
                return value + sum(map(count, kept)) + sum(map(count, messages[tail:]))
        return None

    return budget


for _key in SHIPPED:
    _contract(f"shipped_{_key}", Base, key=_key, budget=_budget_of(load_config().strategy(_key)))
for _type, _changes in TIGHT.items():
    _config = config_of(_type, **_changes)
    _contract(f"tight_{_type}", Base, config=_config, budget=_budget_of(_config.strategy("it")))
del Base


@examples(100)
@given(st.one_of(any_chats(), good_chats()), st.sampled_from([*PLAIN, *TIGHT]))
def test_any_list_goes_through(messages, type_):
    tight = {k: 1 for k in ("max_tokens", "compact_threshold", "keep_last") if k in TIGHT.get(type_, ())}
    processor = MemoryProcessor(config_of(type_, **{**TIGHT.get(type_, {}), **tight}))
    before = copy.deepcopy(messages)
    context, tokens = processor.apply_strategy(messages)
    assert json.dumps(messages, default=str) == json.dumps(before, default=str)
    assert tokens == sum(map(open_counter().count_message, context))
    if not pairing_errors(messages):
        assert pairing_errors(context) == []
    processor.close()


def test_what_the_plain_strategies_keep():
    processor = MemoryProcessor()
    messages = [system(), user(), *rounds(4), say("hm"), user("go on"), *rounds(4, size=400, start=4)]
    kept = {key: processor.apply_strategy(messages, key)[0] for key in PLAIN}
    assert kept["no_strategy"] == messages
    said = [*messages[:2], say("hm"), user("go on")]
    assert kept["truncation"] == [*said, *messages[-2:]]
    assert kept["keep_last_n"] == [*said, *messages[8:10], *messages[-8:]]
    masked = kept["observation_masking"]
    assert (len(masked), masked[-6:]) == (len(messages), messages[-6:])
    text = messages[13]["content"]
    head, place = masked[13]["content"].rsplit("\n", 1)
    assert text.startswith(head) and len(head) <= 100
    assert place.startswith(f"[masked: {len(text)} characters")
    trace_id = place.removesuffix("]").split()[-1]
    state = processor.state("observation_masking")
    assert state.fact_store.get(trace_id).output_text == text
    assert json.loads(text)["note"] in handle_tool_call(state, "get_record", {"trace_id": trace_id})


# what each promises beside the contract


def wordy(n, start=0):
    out = []
    for i in range(start, start + n):
        body = json.dumps({"order_id": f"ORD-{1000 + i}", "note": "the parcel was late once more " * 25})
        out += [call((f"c{i}", "get_order", {"number": i})), result(f"c{i}", body)]
    return out


CHAT = [system(), user(), *wordy(40)]


def steps(messages):
    return [i for i, m in enumerate(messages) if m["role"] == "assistant"] + [len(messages)]


def walk(processor, model=None, most=None):
    """The context of every step of CHAT."""
    contexts = []
    for i in steps(CHAT):
        context, tokens = processor.apply_strategy(CHAT[:i], llm_client=model)
        assert most is None or tokens <= most
        contexts.append(context)
    return contexts


def text_of(context):
    return "\n".join(str(m.get("content")) for m in context)


@pytest.mark.parametrize("type_", sorted(TIGHT))
def test_every_output_that_is_left_out_is_one_id_away(type_):
    processor = MemoryProcessor(config_of(type_, **TIGHT[type_]))
    processor.apply_strategy(CHAT)
    state = processor.state("it")
    assert state.fact_store.size() == 40
    for n in (1, 40):
        assert f"ORD-{999 + n}" in handle_tool_call(state, "get_record", {"trace_id": f"#{n}"})
    assert "ORD-1003" in handle_tool_call(state, "search_memory", {"query": "ORD-1003"})


def test_progressive_begins_at_the_threshold_and_keeps_a_stable_prefix():
    processor = MemoryProcessor(config_of("progressive_summarization", compact_threshold=3000))
    contexts = walk(processor, most=3000)
    unchanged = sum(context == CHAT[:i] for i, context in zip(steps(CHAT), contexts, strict=True))
    assert 8 < unchanged < 20
    memories = [context[2]["content"] for context in contexts[unchanged:]]
    assert 1 < len(set(memories)) < 15  # of 26 compacted contexts
    assert "#1" in memories[-1] and "get_order" in memories[-1]


def summary_model():
    def write(messages, model):
        calls = [word.strip("(") for word in messages[-1]["content"].split() if word.startswith("#")]
        return f"SUMMARY of {' '.join(calls)}"

    return ScriptedModel(write)


def test_progressive_shows_the_model_every_old_interaction_once_a_block_at_a_time():
    model = summary_model()
    config = config_of(
        "progressive_summarization", compact_threshold=2500, summary_model="m", summary_tokens=300
    )
    processor = MemoryProcessor(config)
    for i in steps(CHAT):
        context, tokens = processor.apply_strategy(CHAT[:i], llm_client=model)
        processor.apply_strategy(CHAT[:i], llm_client=model)
        assert tokens <= 2500
    assert "SUMMARY" in text_of(context)
    shown = [m.messages[-1]["content"].split("Calls after it:")[1] for m in model.calls]
    order = [int(w[1:]) for s in shown for w in s.split() if w[:1] == "#" and w[1:].isdigit()]
    assert order == list(range(1, len(order) + 1))  # nothing skipped, nothing twice
    assert len(order) > 25
    assert len(model.calls) <= len(order) / 4
    assert all("SUMMARY" in c.messages[-1]["content"] for c in model.calls[1:])


def test_progressive_calls_the_model_once_a_block_even_where_nothing_fits():
    model = summary_model()
    config = config_of("progressive_summarization", compact_threshold=50, summary_model="m", block=5)
    processor = MemoryProcessor(config)
    walk(processor, model)
    assert len(model.calls) == 39 // 5


@pytest.mark.parametrize("failure", [RuntimeError("down"), "", None])
def test_progressive_without_its_model_stays_whole(failure, caplog):
    model = ScriptedModel([failure], loop_last=True)
    config = config_of("progressive_summarization", compact_threshold=2500, summary_model="m", block=4)
    processor = MemoryProcessor(config)
    context = walk(processor, model, 2500)[-1]
    assert "get_order" in context[2]["content"]
    assert len(model.calls) <= 10
    assert "extractive" in caplog.text


def test_progressive_follows_a_fork_and_outlives_a_dropped_beginning():
    processor = MemoryProcessor(config_of("progressive_summarization", compact_threshold=2000))
    other = [*CHAT[:12], *wordy(30, start=500)]
    walk(processor)
    context, _ = processor.apply_strategy(other)
    assert "ORD-1020" not in text_of(context)
    assert "ORD-1526" in text_of(context)
    context, _ = processor.apply_strategy([*CHAT[:2], *CHAT[-4:]])
    assert "#" in context[2]["content"]


def test_hierarchical_has_three_tiers():
    processor = MemoryProcessor(config_of("hierarchical", max_tokens=8000, summarize_last=5))
    context, tokens = processor.apply_strategy(CHAT)
    state = processor.state("it")
    ids = list(state.steps)
    memory = context[2]["content"]
    assert context[3:] == CHAT[-6:]
    assert "#1 to #32 get_order, 32 calls, trace_ids " in memory
    assert all(t in memory for t in ids[:37])
    assert [f"#{n} [trace_id {ids[n - 1]}]" in memory for n in (32, 33, 37)] == [False, True, True]
    assert tokens <= 8000


def test_hierarchical_by_a_model_summarises_each_call_once():
    model = ScriptedModel(lambda messages, name: "Noted: an order.")
    processor = MemoryProcessor(config_of("hierarchical", summary_model="m"))
    context = walk(processor, model)[-1]
    assert len(model.calls) == 40
    assert "Noted: an order." in context[2]["content"]


def test_adaptive_takes_the_mildest_that_fits(caplog):
    chosen = []
    processor = MemoryProcessor(config_of("adaptive", max_tokens=3000))
    for i in steps(CHAT):
        _, tokens = processor.apply_strategy(CHAT[:i])
        report = processor.state("it").last_plan
        chosen.append(report.chosen)
        assert tokens <= 3000
    assert list(dict.fromkeys(chosen))[:2] == ["no_strategy", "observation_masking"]
    assert chosen[-1] not in ("no_strategy", "truncation")
    small = MemoryProcessor(config_of("adaptive", max_tokens=5))
    small.apply_strategy(CHAT)
    report = small.state("it").last_plan
    assert (report.chosen, report.over > 0) == ("truncation", True)
    assert caplog.text.count("over its budget of 5") == 1


def test_adaptive_with_keys_of_ones_own():
    config = Config(
        memory_strategies={
            "it": {"type": "adaptive", "max_tokens": 2000, "strategies": ["last_two", "memory_bank"]},
            "last_two": {"type": "keep_last_n", "n": 2},
            "memory_bank": {"type": "memory_bank", "selection": "evidence", "history_budget": 500,
                            "observer_model": "extractive", "embedding_model": "lexical"},
        }
    )  # fmt: skip
    processor = MemoryProcessor(config)
    assert processor.apply_strategy(CHAT, "it")[0] == [*CHAT[:2], *CHAT[-4:]]
    long = [*CHAT, *rounds(1, size=20_000, start=90), *rounds(1, start=91)]
    assert "retrieved-data" in text_of(processor.apply_strategy(long, "it")[0])
    assert processor.state("it").last_plan.chosen == "memory_bank"


def test_semantic_takes_what_is_relevant_and_not_the_same_twice():
    outputs = ["weather in Oslo is rainy today"] * 3 + ["invoice INV-77 of Baker unpaid"] * 3 + ["noise"] * 6
    past = []
    for n, output in enumerate(outputs):
        text = f"{output} " * (40 if output != "noise" else 400)
        past += [call((f"c{n}", "look", {"n": n})), result(f"c{n}", text)]
    task = user("Is the invoice INV-77 of Baker unpaid? And is the weather in Oslo rainy?")
    messages = [system(), task, *past, *rounds(1)]
    one = sum(map(open_counter().count_message, past[6:8]))
    for diversity, wanted in ((0.0, {"invoice"}), (0.4, {"invoice", "weather"})):
        config = config_of(
            "semantic", history_budget=2 * one + 150, diversity=diversity, retrieval_query="task"
        )
        context, _ = MemoryProcessor(config).apply_strategy(messages, tools=TOOL_SCHEMAS)
        kept = [m["content"].split()[0] for m in context if m["role"] == "tool"][:-1]
        assert set(kept) == wanted
        assert len(kept) == 2
        assert 'get_record("#' in context[2]["content"]


def test_the_scratchpad_holds_observations_failures_and_values():
    past = []
    for n in range(12):
        good = {"order_id": f"ORD-{n}", "note": "late again " * 99}
        output = json.dumps(good if n % 3 else {"error": f"denied {n}"})
        past += [call((f"c{n}", "get_order", {"n": n})), result(f"c{n}", output)]
    processor = MemoryProcessor(config_of("scratchpad"))
    context, _ = processor.apply_strategy([system(), user(), *past, *rounds(1)])
    assert context[:2] == [system(), user()]
    assert context[3:] == rounds(1)
    memory = context[2]["content"]
    failures, rest = memory.split("Last calls:")
    calls, values = rest.split("Key values:")
    assert [f"denied {n}" in failures for n in (0, 3, 6, 9)] == [False, True, True, True]
    assert [f"#{n} [" in calls for n in range(7, 13)] == [False, True, True, True, True, True]
    assert "order_id: ORD-1 (#2), ORD-2 (#3)" in values


def test_what_cannot_be_met_is_said_once(caplog):
    processor = MemoryProcessor(config_of("hierarchical", max_tokens=10))
    with caplog.at_level(logging.WARNING):
        for i in steps(CHAT[:20]):
            processor.apply_strategy(CHAT[:i])
    assert caplog.text.count("over its budget of 10") == 1
    report = processor.state("it").last_plan
    assert report.over == report.tokens - 10
    assert report.figures()["over"] == report.over
    assert report.tokens == report.kept_tokens


def test_a_durable_state_goes_on_where_it_was(tmp_path):
    def opened():
        return MemoryBankState.open(tmp_path / "bank.db", "s")

    for type_ in sorted(TIGHT):
        first = MemoryProcessor(config_of(type_, **TIGHT[type_]), opened)
        expected = first.apply_strategy(CHAT)
        first.close()
        again = MemoryProcessor(config_of(type_, **TIGHT[type_]), opened)
        assert again.apply_strategy(CHAT) == expected
        assert again.state("it").fact_store.size() == 40
        again.close()


def test_reset_empties_what_a_strategy_noted():
    processor = MemoryProcessor(config_of("progressive_summarization", compact_threshold=2000))
    processor.apply_strategy(CHAT)
    processor.reset_state()
    state = processor.state("it")
    assert (state.last_plan, state.steps, state.fact_store.size()) == (NO_PLAN, {}, 0)
    assert processor.apply_strategy(CHAT[:4])[0] == CHAT[:4]
