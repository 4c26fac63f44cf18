"""The documented set-up, tried as users of its description do: forms of arguments, lazy loading, settings, logs."""

import importlib.util
import logging

import pytest

from memory_bank import (
    FactStore,
    InsightStore,
    LexicalEmbedder,
    MemoryBankSettings,
    MemoryBankState,
    MemoryProcessor,
    apply_memory_bank_strategy,
    handle_tool_call,
    ingest_tool_outputs,
    load_config,
    retrieve_and_format,
)
from memory_bank.errors import ConfigError, EmbedderLoadError, MemoryBankError
from memory_bank.history import HierarchicalMemory, keep_last_n_steps, to_memory_bank
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
    assert any(text.startswith("Context constructed: ") for _, text in lines)
    caplog.clear()
    with caplog.at_level(logging.DEBUG, logger="memory_bank"):
        state.reset()
        [first, _] = ingest_tool_outputs(
            OUTPUTS, "q", FactStore(), InsightStore("lexical"), None, "extractive", 1
        )
    assert f"Ingested tool 'find' -> trace_id={first}" in caplog.text
    assert "MemoryBankState reset" in caplog.text and "ORD-7" not in caplog.text


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
