"""Every strategy of the shipped configuration, and what each of the new ones promises beside the contract."""

import copy
import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.chats import any_chats, call, good_chats, parted, result, rounds, say, system, user
from tests.contracts.strategy import StrategyContract
from tests.examples import examples

from memory_bank import MemoryBankState, MemoryProcessor, handle_tool_call, load_config
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
}


def local_state():
    return MemoryBankState("lexical")  # no weights, whatever the settings name


def config_of(type_, **changes):
    return Config(memory_strategies={"it": {"type": type_, **changes}}, default_strategy="it")


def as_came(config):
    """A configuration by which outputs are shown as they came until they are folded."""
    given = config.model_dump()
    for settings in given["memory_strategies"].values():
        settings |= {"first_sight": 0} if settings["type"] == "memory_bank" else {}
    return Config(**given)


class Base(StrategyContract):
    key = "it"
    config = load_config()

    def make_strategy(self):
        processor = MemoryProcessor(as_came(self.config), local_state)
        return lambda messages: processor.apply_strategy(messages, self.key)


def _contract(name, base, **attributes):
    globals()[f"Test_{name}"] = type(f"Test_{name}", (base,), attributes)


def _budget_of(settings):
    def budget(self, messages):
        return getattr(settings, "compact_threshold", None)

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
    tight = {k: 1 for k in ("compact_threshold", "keep_last") if k in TIGHT.get(type_, ())}
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
    memories = [parted(context)[2]["content"] for context in contexts[unchanged:]]
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
    config = config_of("progressive_summarization", compact_threshold=50, summary_model="m")
    processor = MemoryProcessor(config)
    walk(processor, model)
    assert len(model.calls) == 39 // 4


@pytest.mark.parametrize("failure", [RuntimeError("down"), "", None])
def test_progressive_without_its_model_stays_whole(failure, caplog):
    model = ScriptedModel(lambda *_: failure)
    config = config_of("progressive_summarization", compact_threshold=2500, summary_model="m")
    processor = MemoryProcessor(config)
    context = walk(processor, model, 2500)[-1]
    assert "get_order" in parted(context)[2]["content"]
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
    assert "#" in parted(context)[2]["content"]


def test_what_cannot_be_met_is_said_once(caplog):
    processor = MemoryProcessor(config_of("progressive_summarization", compact_threshold=10))
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
