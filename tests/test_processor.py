"""MemoryProcessor: which strategy, which state."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from memory_bank.bank.session import MemoryBankState
from memory_bank.config import Config, MemoryBankSettings, load_config
from memory_bank.errors import ConfigError, MessagesError, UnknownStrategyError
from memory_bank.processor import MemoryProcessor
from tests.chats import rounds, system, user

LOCAL = {"type": "memory_bank", "observer_model": "extractive", "embedding_model": "lexical"}
CONFIG = {
    "default_strategy": "one",
    "memory_strategies": {"one": LOCAL, "two": LOCAL | {"top_k": 1}, "none": {"type": "no_strategy"}},
}
CHAT = [system(), user(), *rounds(6)]


def test_dispatch_by_key():
    processor = MemoryProcessor(CONFIG)
    context, tokens = processor.apply_strategy(CHAT, "one")
    assert context != CHAT
    assert tokens > 0
    assert processor.state("one").step_count == 6
    same, full = processor.apply_strategy(CHAT, "none")
    assert same == CHAT
    assert same is not CHAT
    assert full == processor.state("one").last_plan.full_tokens
    assert processor.apply_strategy(tuple(CHAT)) == (context, tokens)  # the default strategy
    for unknown in ("twoo", 5):
        with pytest.raises(UnknownStrategyError):
            processor.apply_strategy(CHAT, unknown)


def test_states_are_kept_apart_and_reset_together():
    processor = MemoryProcessor(CONFIG)
    processor.apply_strategy(CHAT, "one")
    processor.apply_strategy(CHAT[:4], "two")
    assert processor.state("one").fact_store.size() == 6
    assert processor.state("two").fact_store.size() == 1
    assert processor.state("none") is None
    one = processor.state("one")
    processor.apply_strategy(CHAT, "none")
    processor.reset_state()
    assert processor.state("one") is one
    assert (one.step_count, one.fact_store.size(), one.insight_store.is_empty()) == (0, 0, True)
    assert processor.apply_strategy(CHAT[:2], "one")[0] == CHAT[:2]


def test_a_count_that_the_caller_has_is_given_back():
    processor = MemoryProcessor(CONFIG)
    assert processor.apply_strategy(CHAT, "none", input_token_count=4711) == (CHAT, 4711)
    assert processor.apply_strategy(CHAT, "none", input_token_count=0)[1] == 0
    assert processor.apply_strategy(CHAT, "one", input_token_count=4711)[1] != 4711


def test_what_is_no_list_is_refused_everywhere():
    processor = MemoryProcessor(CONFIG)
    for key in ("one", "none"):
        for count in (None, 5):
            with pytest.raises(MessagesError):
                processor.apply_strategy("hello", key, count)


def test_configurations_of_any_make(tmp_path):
    file = tmp_path / "c.toml"
    file.write_text('default_strategy = "mine"\n[memory_strategies.mine]\ntype = "memory_bank"\ntop_k = 9')
    for config in (file, str(file), load_config(file)):
        assert MemoryProcessor(config).config.strategy("mine") == MemoryBankSettings(top_k=9)
    assert MemoryProcessor().config == MemoryProcessor(None).config == load_config()
    assert MemoryProcessor(Config()).config == Config()
    with pytest.raises(ConfigError, match="a Config, a dict or a path, not int"):
        MemoryProcessor(5)


def test_threads_share_one_state_a_key():
    made = []

    def opened():
        made.append(MemoryBankState())
        return made[-1]

    processor = MemoryProcessor(CONFIG, opened)

    def work(n: int) -> None:
        for i in range(2, len(CHAT) + 1):
            processor.apply_strategy(CHAT[:i], ["one", "none"][n % 2])

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    assert len(made) == 1
    assert made[0].fact_store.size() == 6
