"""The pipeline's doors: what settings may be, wrong arguments, and the plan that every strategy gives."""

import pytest
from tests.chats import rounds, system, user

from memory_bank import (
    InteractionRecord,
    MemoryBankSettings,
    MemoryBankState,
    MemoryProcessor,
    Plan,
    apply_memory_bank_strategy,
    load_config,
)
from memory_bank.config import Config
from memory_bank.errors import ConfigError

CHAT = [system(), user(), *rounds(20, size=24_000)]


@pytest.fixture
def state():
    with MemoryBankState("lexical") as opened:
        yield opened


def test_a_configuration_stands_for_its_default_strategy(state):
    config = load_config()
    context, tokens = apply_memory_bank_strategy(CHAT, None, config, state)
    with MemoryBankState("lexical") as other:
        expected = apply_memory_bank_strategy(CHAT, None, config.strategy(config.default_strategy), other)
    assert "[… #" in str(context)  # a past output that is shortened to quotes
    assert tokens == expected[1]
    assert "[RETRIEVED RECORD 1]" not in str(context)  # which the classic defaults would show


def test_a_configuration_whose_default_is_no_memory_bank_is_refused(state):
    config = Config(
        memory_strategies={"last": {"type": "keep_last_n"}, "memory_bank": {"type": "memory_bank"}},
        default_strategy="last",
    )
    with pytest.raises(ConfigError, match=r"'last' is of type 'keep_last_n'.*MemoryProcessor"):
        apply_memory_bank_strategy(CHAT, None, config, state)


@pytest.mark.parametrize("missing", [None, "sqlite:///bank.db", {}])
def test_a_missing_state_gets_one_sentence(missing):
    with pytest.raises(ConfigError, match=r"\(messages, llm_client, settings, state\): the fourth is"):
        apply_memory_bank_strategy(CHAT, None, MemoryBankSettings(), missing)


def test_swapped_arguments_get_one_sentence(state):
    for arguments in ((CHAT, None, state, MemoryBankSettings()), (CHAT, None, state, state)):
        with pytest.raises(ConfigError, match=r"\(messages, llm_client, settings, state\)"):
            apply_memory_bank_strategy(*arguments)


@pytest.mark.parametrize("key", sorted(load_config().memory_strategies))
def test_every_strategy_gives_a_plan(key):
    processor = MemoryProcessor(load_config(), lambda: MemoryBankState("lexical"))
    context, tokens = processor.apply_strategy(CHAT, key)
    plan = processor.state(key).last_plan
    assert isinstance(plan, Plan)
    assert plan.tokens == tokens == sum(map(processor.state(key).counter.count_message, context))
    assert plan.full_tokens >= tokens or key in ("memory_bank_classic", "memory_bank_local")
    assert plan.strategy == load_config().strategy(key).type
    assert [d.step for d in plan.decisions if d.step] == list(range(1, 20))
    assert plan.unchanged == (context == CHAT)
    assert bool(plan.why_unchanged) == plan.unchanged
    assert plan.as_html().startswith("<!doctype html>")
    left_out = [d for d in plan.decisions if d.fate == "left out"]
    for decision in left_out:
        assert not any(m in context for m in CHAT[2 * decision.step : 2 * decision.step + 2])
    processor.close()


def test_records_from_elsewhere_take_the_same_path_once(state):
    apply_memory_bank_strategy(CHAT[:4], None, load_config(), state)
    record = InteractionRecord.create(9, "get_order", {"number": 7}, {"order_id": "ORD-7"})
    assert state.add([record, record]) == 1
    assert state.add([record]) == 0
    assert state.fact_store.get(record.trace_id) == record
    assert not state.insight_store.is_empty()
    assert state.step_count == 9
    assert state.pending == 0
