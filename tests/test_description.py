"""The documented set-up, tried as users of its description do: forms of arguments, lazy loading, settings, logs."""

import importlib.util
import itertools
import logging

import numpy as np
import pytest

from memory_bank import (
    FactStore,
    InsightStore,
    InteractionRecord,
    LexicalEmbedder,
    MemoryBankSettings,
    MemoryBankState,
    MemoryProcessor,
    apply_memory_bank_strategy,
    format_retrieved_memory,
    handle_tool_call,
    ingest_tool_outputs,
    load_config,
    retrieve_and_format,
)
from memory_bank.errors import ConfigError, EmbedderLoadError, EmbedderMismatchError, MemoryBankError
from memory_bank.history import HierarchicalMemory, keep_last_n_steps, to_memory_bank
from memory_bank.testing import ScriptedModel
from tests.chats import rounds, user

SETTINGS = MemoryBankSettings(observer_model="extractive", embedding_model="lexical")
OUTPUTS = [("find", {"q": "Ada"}, {"id": "ORD-7"}), ("find", {"q": "Bob"}, {"id": "ORD-8"})]


def chat(n):
    return [user(), *rounds(n, start=-1000)]  # ORD-0, ORD-1, …


def test_stores_take_names(tmp_path):
    facts = FactStore(tmp_path / "bank.db", "s")
    insights = InsightStore("lexical", str(tmp_path / "bank.db"), "s")
    ids = ingest_tool_outputs(OUTPUTS, "find Ada", facts, insights, None, "extractive", 1)
    facts.database.close()
    insights.database.close()
    again = FactStore(str(tmp_path / "bank.db"), "s")
    assert [r.raw_output for r in again.get_many(ids)] == [{"id": "ORD-7"}, {"id": "ORD-8"}]
    again.database.close()
    with pytest.raises(ConfigError, match="pass a file name, a URL or a Database"):
        FactStore(LexicalEmbedder())
    for wrong in (FactStore(), None, LexicalEmbedder):
        with pytest.raises(ConfigError, match="a name such as 'lexical'"):
            InsightStore(wrong)


def test_swapped_arguments_are_one_sentence():
    facts, insights, state = FactStore(), InsightStore("lexical"), MemoryBankState("lexical")
    for call in (
        lambda: ingest_tool_outputs(OUTPUTS, "q", insights, facts, None, "extractive", 1),
        lambda: retrieve_and_format("q", insights, facts, 3, 100),
        lambda: apply_memory_bank_strategy(state, None, SETTINGS, chat(1)),
        lambda: apply_memory_bank_strategy(chat(1), None, state, SETTINGS),
        lambda: apply_memory_bank_strategy(chat(1), SETTINGS, None, state),
        lambda: apply_memory_bank_strategy(chat(1), None, SETTINGS, None),
        lambda: to_memory_bank(keep_last_n_steps(2), state),
        lambda: HierarchicalMemory("You are careful.", state),
        lambda: HierarchicalMemory(None),
        lambda: MemoryProcessor(load_config()).apply_strategy("memory_bank", chat(1)),
        lambda: handle_tool_call(None, "get_record", {"trace_id": "x"}),
        lambda: handle_tool_call("get_record", state, {"trace_id": "x"}),
        lambda: facts.store("find"),
    ):
        with pytest.raises(MemoryBankError) as e:
            call()
        assert "\n" not in str(e.value) and len(str(e.value)) > 30
    assert facts.size() == insights.size() == 0


def test_the_embedding_model_loads_when_there_is_something_to_embed(caplog, tmp_path):
    settings = MemoryBankSettings(observer_model="extractive", embedding_model=str(tmp_path / "none"))
    state = MemoryBankState()
    task = [{"role": "user", "content": "find Ada"}]
    assert apply_memory_bank_strategy(task, None, settings, state)[0] == task
    assert state.insight_store is None
    with pytest.raises(EmbedderLoadError):
        apply_memory_bank_strategy(chat(2), None, settings, state)
    context, _ = apply_memory_bank_strategy(chat(2), None, SETTINGS, state)
    assert "ORD-0" in str(context) and state.insight_store.size() == 2


@pytest.mark.skipif(not importlib.util.find_spec("FlagEmbedding"), reason="needs FlagEmbedding")
def test_the_log_says_which_model_loads_before_it_loads(caplog, tmp_path):
    (tmp_path / "model").mkdir()
    settings = MemoryBankSettings(observer_model="extractive", embedding_model=str(tmp_path / "model"))
    with caplog.at_level(logging.INFO, logger="memory_bank"), pytest.raises(EmbedderLoadError):
        apply_memory_bank_strategy(chat(2), None, settings, MemoryBankState())
    assert f"loading embedding model {tmp_path / 'model'}" in caplog.text


def test_settings_of_other_strategies_in_a_mapping_have_no_effect_and_a_warning(caplog):
    given = {
        "type": "memory_bank",
        "observer_model": "extractive",
        "embedding_model": "lexical",
        "compact_threshold": 9,
    }
    state = MemoryBankState()
    with caplog.at_level(logging.WARNING):
        context, _ = apply_memory_bank_strategy(chat(3), None, given, state)
        apply_memory_bank_strategy(chat(4), None, given, state)
    assert "ORD-0" in str(context)
    [warning] = [r for r in caplog.records if "compact_threshold" in r.getMessage()]
    assert "no effect" in warning.getMessage()
    with pytest.raises(ConfigError, match="did you mean top_k"):
        apply_memory_bank_strategy(chat(3), None, {"top_kk": 3, "compact_threshold": 9}, state)
    with pytest.raises(ConfigError, match="compact_threshold is no setting"):
        MemoryBankSettings(compact_threshold=9)


def test_the_documented_lines_are_logged_by_every_path(caplog):
    state = MemoryBankState()
    with caplog.at_level(logging.DEBUG, logger="memory_bank"):
        apply_memory_bank_strategy(chat(3), None, SETTINGS, state)
    lines = [(r.name, r.getMessage()) for r in caplog.records]
    for trace_id in state.steps:
        assert ("memory_bank.Ingestion", f"Ingested tool 'get_order' -> trace_id={trace_id}") in lines
    assert ("memory_bank.MemoryBankStrategy", "Added 2 retrieved records to context") in lines
    assert ("memory_bank.MemoryBankStrategy", f"Memory Bank Strategy - Step {state.step_count}") in lines
    assert any(text.startswith("Context constructed: ") for _, text in lines)
    caplog.clear()
    with caplog.at_level(logging.DEBUG, logger="memory_bank"):
        state.reset()
        [first, _] = ingest_tool_outputs(
            OUTPUTS, "q", FactStore(), InsightStore("lexical"), None, "extractive", 1
        )
    assert f"Ingested tool 'find' -> trace_id={first}" in caplog.text
    assert "MemoryBankState reset" in caplog.text and "ORD-7" not in caplog.text


def test_a_step_is_counted_once_however_often_the_strategy_is_called():
    state = MemoryBankState()
    apply_memory_bank_strategy([user()], None, SETTINGS, state)
    assert state.step_count == 0
    for n in (1, 3, 3, 3, 4):
        apply_memory_bank_strategy(chat(n), None, SETTINGS, state)
        assert state.step_count == n == max(state.fact_store.steps().values())


def test_the_defaults_of_retrieval_and_no_records():
    facts, insights = FactStore(), InsightStore("lexical")
    outputs = [("find", {"q": i}, {"id": f"ORD-{i}", "text": "x" * 3_000}) for i in range(5)]
    ingest_tool_outputs(outputs, "q", facts, insights, None, "extractive", 1)
    found = retrieve_and_format("how to proceed with the task", facts, insights)
    assert len(found) == 3 and all(len(r["raw_data"]) <= 2_000 for r in found)
    assert format_retrieved_memory([]) == "" and "[RETRIEVED RECORD 3]" in format_retrieved_memory(found)


def by_hand(embedder):
    """Two stores with two records; one has a summary written by hand."""
    facts, insights = FactStore(), InsightStore(embedder)
    records = [InteractionRecord.create(n, "find", {"q": n}, {"id": f"HND-{n}"}) for n in (1, 2)]
    facts.store_many(records)
    insights.add(records[0].trace_id, "A summary by hand.")
    return facts, insights, records


@pytest.mark.parametrize("order", [["fact_store", "insight_store"], ["insight_store", "fact_store"]])
@pytest.mark.parametrize("database", [None, "bank.db"])
def test_stores_that_are_assigned_are_used_wholly(order, database, tmp_path):
    facts, insights, [done, bare] = by_hand("lexical")
    model = ScriptedModel(["By the model."] * 3)
    settings = MemoryBankSettings(embedding_model="lexical", observer_model="m", top_k=5)
    with MemoryBankState(database=database and tmp_path / database) as state:
        for name in order:
            setattr(state, name, {"fact_store": facts, "insight_store": insights}[name])
        assert (state.fact_store, state.insight_store) == (facts, insights)
        for _ in range(2):
            context, _ = apply_memory_bank_strategy(chat(2), model, settings, state)
        assert len(model.calls) == 3  # the two calls, and the record without a summary
        assert insights.get_summary(done.trace_id) == "A summary by hand." and "by hand" in str(context)
        assert insights.get_summary(bare.trace_id) == "By the model." and "HND-2" in str(context)
        assert (facts.size(), insights.size(), state.step_count, state.pending) == (4, 4, 4, 0)
        for name, store in (("fact_store", FactStore()), ("insight_store", InsightStore("lexical"))):
            with pytest.raises(ConfigError, match="has stored in its"):
                setattr(state, name, store)
        state.fact_store, state.insight_store = facts, insights  # what it has
        state.reset()
        assert facts.size() == insights.size() == 0
        state.fact_store = FactStore()
    if database:
        with MemoryBankState.open(tmp_path / database) as again:
            assert again.fact_store.size() == 0


def test_what_cannot_be_a_store_is_refused_in_one_sentence(tmp_path):
    for name, wrong in itertools.product(
        ("fact_store", "insight_store"), (None, {}, "lexical", LexicalEmbedder())
    ):
        with pytest.raises(ConfigError, match=r"was assigned as a state's \w+: give one made by"):
            setattr(MemoryBankState(), name, wrong)
    other = FactStore(tmp_path / "bank.db")
    with pytest.raises(ConfigError, match="open the state there"):
        MemoryBankState().fact_store = other
    other.database.close()
    with MemoryBankState("lexical", database=tmp_path / "other.db") as state:
        apply_memory_bank_strategy(chat(2), None, SETTINGS, state)
    _, insights, _ = by_hand(Ones())
    with MemoryBankState(database=tmp_path / "other.db", session_id="new") as state:
        with pytest.raises(EmbedderMismatchError):
            state.insight_store = insights
        assert insights.size() == 1  # it is what it was


class Ones:
    def encode(self, texts):
        return np.ones((len(texts), 2))


@pytest.mark.parametrize("name", ["evidence_model", "observer_prompt"])
def test_a_file_that_a_setting_names_and_that_is_missing_ends_the_start(name, tmp_path):
    file = tmp_path / "config.toml"
    file.write_text(f'[memory_strategies.memory_bank]\ntype = "memory_bank"\n{name} = "none.json"\n')
    with pytest.raises(
        ConfigError, match=rf"memory_strategies\.memory_bank\.{name}: there is no file none\.json"
    ):
        load_config(file)
    with pytest.raises(ConfigError, match=r"cannot be read .*: give the path of a TOML file"):
        load_config(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="there is no file"):
        MemoryProcessor({"memory_strategies": {"m": {"type": "memory_bank", name: "none.json"}}})
