"""Settings: the documented defaults, the shipped file, the environment, and every way to be wrong."""

from pathlib import Path
from types import SimpleNamespace

import pydantic
import pytest

from memory_bank.config import (
    Config,
    KeepLastSettings,
    MemoryBankSettings,
    NoStrategySettings,
    as_settings,
    effective_settings,
    load_config,
    named_strategies,
)
from memory_bank.errors import ConfigError, UnknownStrategyError
from memory_bank.shipped import shipped_file

ENV = "MEMORY_BANK_MEMORY_STRATEGIES__"
PRICES = 'prices = { "gpt-4.1-mini" = { prompt = 0.4, completion = 1.6, cached = 0.1 } }'


def toml(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "config.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_the_documented_defaults():
    s = MemoryBankSettings()
    assert (s.top_k, s.max_chars_per_record, s.observer_max_chars) == (3, 2000, 10_000)
    assert (s.observer_model, s.embedding_model) == ("gpt-4.1-mini", "BAAI/bge-small-en-v1.5")
    assert (s.retrieval_query, s.fixed_query) == ("fixed", "how to proceed with the task")


def test_the_shipped_configuration():
    shipped = load_config()
    assert load_config(shipped_file("config.toml")) == shipped  # the file shows what people set
    assert shipped.strategy("memory_bank_classic") == MemoryBankSettings()
    assert shipped.strategy(shipped.default_strategy).selection == "evidence"
    assert Config().default_strategy == shipped.default_strategy


def test_every_setting_says_what_it_is():
    for setting in effective_settings():
        assert setting.place[-1] == "type" or setting.meaning.endswith("."), setting


def test_settings_are_frozen():
    with pytest.raises(pydantic.ValidationError):
        MemoryBankSettings().top_k = 5
    with pytest.raises(pydantic.ValidationError):
        load_config().default_strategy = "x"


def test_a_file_changes_and_adds_to_what_is_shipped(tmp_path):
    file = toml(
        tmp_path,
        '[service]\nport = 1\n[memory_strategies.mine]\ntype = "memory_bank"\ntop_k = 7\n'
        "[memory_strategies.memory_bank]\nkeep_recent = 4\n"
        '[memory_strategies.truncation]\ntype = "keep_last_n"\n',
    )
    config, shipped = load_config(file), load_config()
    assert config.strategy("mine") == MemoryBankSettings(
        top_k=7
    )  # a strategy of one's own has the code's defaults
    changed = shipped.strategy("memory_bank").model_copy(update={"keep_recent": 4})
    assert config.strategy("memory_bank") == changed
    assert config.strategy("truncation") == KeepLastSettings()  # another type replaces the shipped one
    assert config.service == shipped.service.model_copy(update={"port": 1})
    others = shipped.memory_strategies.keys() - {"memory_bank", "truncation"}
    assert {k: config.strategy(k) for k in others} == {k: shipped.strategy(k) for k in others}
    assert named_strategies(file) == ["mine", "memory_bank", "truncation"]
    with pytest.raises(UnknownStrategyError, match="did you mean 'mine'"):
        config.strategy("mien")


def test_a_file_without_strategies_names_all(tmp_path):
    file = toml(tmp_path, PRICES)
    assert load_config(file).prices["gpt-4.1-mini"].prompt == 0.4
    assert load_config(file).model_copy(update={"prices": {}}) == load_config()
    assert named_strategies(file) == named_strategies(None) == list(load_config().memory_strategies)


def test_a_configuration_of_values_stands_for_itself():
    assert Config(prices={}) == Config()
    assert list(Config().memory_strategies) == ["memory_bank"]
    assert list(Config(memory_strategies={"mine": {"type": "truncation"}}).memory_strategies) == ["mine"]


BANK = "memory_strategies.memory_bank."
IN_BANK = f"{ENV}MEMORY_BANK__"
WRONG: dict[str, tuple[str | bytes, dict[str, str], list[str]]] = {
    # text, environment, what each sentence says ("FILE": the file)
    "a typo": ("prizes = {}", {}, ["FILE: prizes is no setting: did you mean prices?"]),
    "a typo in a strategy": (
        "[memory_strategies.memory_bank]\nkeep_recnt = 1", {},
        [f"FILE: {BANK}keep_recnt is no setting: did you mean keep_recent?"],
    ),
    "a typo in the service": ("[service]\nprot = 1", {}, ["FILE: service.prot is no setting: did you mean port?"]),
    "a typo in a key": (
        "[memory_strategies.memory_bnk]\ntop_k = 1", {},
        ["FILE: memory_strategies.memory_bnk: there is no strategy 'memory_bnk' to change: did you mean memory_bank?"],
    ),
    "a setting of a strategy at the top": ("top_k = 3", {}, ["FILE: top_k is no setting: it belongs to a strategy"]),
    "a setting of another type": (
        "[memory_strategies.truncation]\ntop_k = 3", {}, ["FILE: memory_strategies.truncation.top_k is no setting"]
    ),
    "a type missing": (
        "[memory_strategies.zzz]\ntop_k = 3", {}, ["FILE: memory_strategies.zzz: there is no strategy 'zzz' to change"]
    ),
    "an unknown type": (
        '[memory_strategies.zzz]\ntype = "memry_bank"', {}, ["FILE: memory_strategies.zzz: its type must be one of"]
    ),
    "a wrong type": ('loop_threshold = "many"', {}, ["FILE: loop_threshold: input should be a valid integer"]),
    "a table that is none": ("service = 3", {}, ["FILE: service: "]),
    "several mistakes": (
        'loop_detection = "maybe"\n[service]\nport = "x"\nhots = 1\n'
        '[memory_strategies.progressive_summarization]\nkeep_last = 0\nblock = "no"\n', {},
        ["loop_detection: ", "memory_strategies.progressive_summarization.keep_last: ", "memory_strategies.progressive_summarization.block: ",
         "service.port: ", "service.hots is no setting: did you mean host?"],
    ),
    "a default that does not exist": (
        'default_strategy = "truncatoin"', {},
        ["FILE: default_strategy: the configuration has no strategy 'truncatoin': did you mean 'truncation'?"],
    ),
    "a service's strategy that does not exist": (
        '[service]\nstrategy = "truncatoin"', {}, ["FILE: service.strategy: the configuration has no strategy 'truncatoin'"]
    ),
    "a broken expression": ("[service]\nredact = ['(']", {}, ["FILE: service.redact: '(' is no regular expression"]),
    "a model file that is not there": (
        '[memory_strategies.memory_bank]\nevidence_model = "none.json"', {},
        [f"FILE: {BANK}evidence_model: there is no file none.json"],
    ),
    "a wrong value of the environment": (
        "", {f"{IN_BANK}TOP_K": "five"}, [f"the environment variable {IN_BANK}TOP_K: input should be a valid integer"]
    ),
    "a typo in the environment": (
        "", {f"{ENV}TRUNCATOIN__N": "0"},
        [f"the environment variable {ENV}TRUNCATOIN__N: there is no strategy 'truncatoin'"],
    ),
    "a boolean for a number": (
        "[memory_strategies.memory_bank]\ntop_k = true", {}, [f"FILE: {BANK}top_k: true and false are no values"]
    ),
    "a value too low": ("[memory_strategies.memory_bank]\ntop_k = -1", {}, [f"FILE: {BANK}top_k: "]),
    "no choice": (
        '[memory_strategies.memory_bank]\nretrieval_query = "any"', {}, ["'fixed', 'task' or 'adaptive'"]
    ),
    "strategies that are no tables": ("[memory_strategies]\na = 3", {}, ["FILE: memory_strategies.a: "]),
    "a typo in a setting of the environment": ("", {f"{IN_BANK}TOPK": "5"}, ["did you mean top_k?"]),
    "a typo in a name of the environment": (
        "", {"MEMORY_BANK_DEFAULT_STRATEGI": "x"},
        ["the environment variable MEMORY_BANK_DEFAULT_STRATEGI is no setting: did you mean default_strategy?"],
    ),
    "a default of the environment": (
        "", {"MEMORY_BANK_DEFAULT_STRATEGY": "no_strateg"},
        ["the environment variable MEMORY_BANK_DEFAULT_STRATEGY: the configuration has no strategy 'no_strateg': did"],
    ),
    "no JSON": ("", {"MEMORY_BANK_MEMORY_STRATEGIES": "{"}, ["MEMORY_BANK_MEMORY_STRATEGIES: its value is no JSON"]),
    "JSON that is no table": ("", {"MEMORY_BANK_MEMORY_STRATEGIES": "[1]"}, ["should be a valid dictionary"]),
    "not TOML": ("a = = 1", {}, ["the configuration FILE is no TOML: "]),
    "not UTF-8": (b'default_strategy = "\xff"', {}, ["the configuration FILE is no TOML: "]),
}  # fmt: skip


@pytest.mark.parametrize(("text", "env", "says"), WRONG.values(), ids=WRONG.keys())
def test_each_mistake_is_one_sentence_with_its_place(tmp_path, monkeypatch, text, env, says):
    file = tmp_path / "config.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as e:
        load_config(file)
    sentences = [m.replace(str(file), "FILE") for m in e.value.mistakes]
    assert str(e.value) == e.value.mistakes[0]
    for sentence, said in zip(sentences, says, strict=True):
        assert said in sentence and "\n" not in sentence
        assert sentence[-1] in ".?" and ".." not in sentence.replace("...", "")
        assert env == {} or "FILE" not in sentence


def test_files_that_cannot_be_read(tmp_path):
    for path in (tmp_path / "missing.toml", tmp_path, "nul\0"):
        with pytest.raises(ConfigError):
            load_config(path)
    (tmp_path / "latin.toml").write_bytes(b'a = "\xff"')
    with pytest.raises(ConfigError, match="no TOML"):
        load_config(tmp_path / "latin.toml")


def test_wrong_arguments():
    for wrong in ({"topk": 3}, {"top_k": "x"}, {"top_k": True}, {"memory_role": "tool"}, {"type": "other"}):
        with pytest.raises(ConfigError):
            MemoryBankSettings(**wrong)
    with pytest.raises(ConfigError, match="did you mean default_strategy"):
        Config(default_stratgy="x")


# the environment


def test_one_value_of_the_environment_leaves_the_others(monkeypatch):
    monkeypatch.setenv(f"{ENV}memory_bank_local__TOP_K", "5")
    settings = load_config().strategy("memory_bank_local")
    assert settings == MemoryBankSettings(
        top_k=5, observer_model="extractive", embedding_model="lexical", retrieval_query="adaptive"
    )
    assert set(load_config().memory_strategies) == {
        "memory_bank",
        "memory_bank_classic",
        "memory_bank_local",
        "no_strategy",
        "truncation",
        "keep_last_n",
        "observation_masking",
        "progressive_summarization",
    }


def test_the_environment_over_defaults_and_over_arguments(monkeypatch):
    monkeypatch.setenv(f"{ENV}MEMORY_BANK__TOP_K", "5")
    assert Config().strategy("memory_bank") == MemoryBankSettings(top_k=5)
    given = Config(memory_strategies={"memory_bank": MemoryBankSettings(top_k=9, max_chars_per_record=7)})
    assert given.strategy("memory_bank") == MemoryBankSettings(top_k=5, max_chars_per_record=7)


def test_the_environment_knows_no_case(monkeypatch, tmp_path):
    monkeypatch.setenv(f"{ENV}MYBANK__TOP_K", "5")
    config = load_config(toml(tmp_path, '[memory_strategies.MyBank]\ntype = "memory_bank"'))
    assert config.strategy("MyBank") == MemoryBankSettings(top_k=5)


def test_the_environment_names_the_default_and_adds_a_strategy(monkeypatch):
    monkeypatch.setenv("MEMORY_BANK_DEFAULT_STRATEGY", "plain")
    monkeypatch.setenv(f"{ENV}plain__TYPE", "no_strategy")
    assert load_config().default_strategy == "plain"
    monkeypatch.setenv("MEMORY_BANK_DEFAULT_STRATEGY", "")
    assert load_config().default_strategy == "memory_bank"


# settings of any make


def test_settings_of_any_make():
    own = MemoryBankSettings(top_k=4)
    assert as_settings(own) is own
    assert as_settings(None) == MemoryBankSettings()
    assert as_settings({"top_k": 4, "type": "memory_bank"}) == own
    assert as_settings(SimpleNamespace(top_k=4, unrelated=object())) == own


@pytest.mark.parametrize(
    "wrong",
    [
        {"topk": 3},
        {"top_k": [3]},
        {"top_k": "x"},
        {"type": "no_strategy"},
        SimpleNamespace(top_k=-1),
        SimpleNamespace(top_k=2.5),
        SimpleNamespace(top_k=True),
        SimpleNamespace(retrieval_query="any"),
        NoStrategySettings(),
    ],
)
def test_wrong_settings_of_any_make(wrong):
    with pytest.raises(ConfigError):
        as_settings(wrong)
