"""Settings of the strategies: every wrong one is a sentence; every key runs by name in the instruments."""

import json
from pathlib import Path

import pytest
from tests.examples import first_short

from memory_bank.audit.replay import replay_trace
from memory_bank.audit.traces import read_traces
from memory_bank.config import Config, load_config
from memory_bank.errors import ConfigError, UnknownStrategyError

ROOT = Path(__file__).parents[2]
LOCAL = sorted(k for k in load_config().memory_strategies if k != "memory_bank_classic")
WRONG = [
    ("keep_last_n", "n", 0), ("keep_last_n", "n", True), ("keep_last_n", "n", "five"),
    ("keep_last_n", "n", 1.5), ("observation_masking", "keep_last", 0), ("observation_masking", "max_length", -1),
    ("progressive_summarization", "compact_threshold", 0), ("progressive_summarization", "keep_last", 0),
    ("progressive_summarization", "summary_tokens", -5), ("progressive_summarization", "block", 4),
    ("progressive_summarization", "summary_model", ""),
    ("progressive_summarization", "compact_treshold", 5),
]  # fmt: skip


@pytest.mark.parametrize(("type_", "name", "value"), WRONG)
def test_a_wrong_value_is_one_sentence_that_names_it(tmp_path, type_, name, value):
    file = tmp_path / "config.toml"
    file.write_text(f'[memory_strategies.a]\ntype = "{type_}"\n{name} = {json.dumps(value)}\n')
    with pytest.raises(ConfigError) as e:
        load_config(file)
    told = str(e.value)
    assert f"{file}: memory_strategies.a.{name}" in told
    assert "\n" not in told and told[-1] in ".?"


def test_the_nearest_known_name_is_told():
    with pytest.raises(ConfigError, match="did you mean compact_threshold"):
        Config(memory_strategies={"a": {"type": "progressive_summarization", "compact_treshold": 5}})
    with pytest.raises(ConfigError, match="did you mean truncation"):
        Config(memory_strategies={"a": {"type": "truncatoin"}})
    with pytest.raises(UnknownStrategyError, match="did you mean 'keep_last_n'"):
        load_config().strategy("kep_last_n")


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"loop_detection": "maybe"}, "'off', 'warn' or 'raise'"),
        ({"loop_threshold": 1}, "greater than or equal to 2"),
        ({"loop_threshold": True}, "true and false"),
        ({"prices": {"m": {"prompt": -1, "completion": 1}}}, "prices.m.prompt"),
    ],
)
def test_wrong_settings_of_the_configuration(setting, says):
    with pytest.raises(ConfigError) as e:
        Config(**setting)
    assert says in str(e.value)


def test_the_environment_reaches_them(monkeypatch):
    monkeypatch.setenv("MEMORY_BANK_LOOP_DETECTION", "raise")
    monkeypatch.setenv("MEMORY_BANK_MEMORY_STRATEGIES__progressive_summarization__COMPACT_THRESHOLD", "123")
    config = load_config()
    assert config.loop_detection == "raise"
    assert config.strategy("progressive_summarization").compact_threshold == 123


@pytest.mark.parametrize("key", first_short(LOCAL))
def test_every_key_replays_as_it_comes(key):
    trace = next(iter(read_traces(ROOT / "examples" / "shop-refunds.jsonl")))
    steps = list(replay_trace(trace, load_config(), key))
    assert len(steps) > 5
    assert all(
        (s.broken_pairs == 0 and s.tokens <= s.full_tokens) or key == "memory_bank_local" for s in steps
    )
