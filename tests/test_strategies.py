"""Every strategy of the shipped configuration, and what each of the new ones promises beside the contract."""

import copy
import json

from hypothesis import given, settings
from hypothesis import strategies as st

from memory_bank import MemoryBankState, MemoryProcessor, load_config
from memory_bank.config import STRATEGY_TYPES, Config
from memory_bank.history.pairing import pairing_errors
from memory_bank.history.tokens import open_counter
from memory_bank.testing.strategy_contract import StrategyContract
from tests.chats import any_chats, good_chats

SHIPPED = sorted(load_config().memory_strategies)
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


def test_the_shipped_file_has_every_type_under_its_name():
    config = load_config()
    for type_ in STRATEGY_TYPES:
        assert config.strategy(type_).type == type_


@settings(max_examples=60)
@given(st.one_of(any_chats(), good_chats()), st.sampled_from(sorted(TIGHT)))
def test_any_list_goes_through(messages, type_):
    tight = {k: 1 for k in ("max_tokens", "compact_threshold", "keep_last") if k in TIGHT[type_]}
    processor = MemoryProcessor(config_of(type_, **{**TIGHT[type_], **tight}))
    before = copy.deepcopy(messages)
    context, _ = processor.apply_strategy(messages)
    assert json.dumps(messages, default=str) == json.dumps(before, default=str)
    if not pairing_errors(messages):
        assert pairing_errors(context) == []
    processor.close()
