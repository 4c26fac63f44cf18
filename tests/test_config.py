"""Settings: the documented defaults, the shipped file, the environment, and every way to be wrong."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pydantic
import pytest

from memory_bank import MemoryBankState, apply_memory_bank_strategy
from memory_bank import config as config_module
from memory_bank.config import (
    Config,
    KeepLastSettings,
    MemoryBankSettings,
    NoStrategySettings,
    ServiceSettings,
    as_settings,
    effective_settings,
    load_config,
)
from memory_bank.errors import ConfigError, UnknownStrategyError
from memory_bank.shipped import shipped_file
from tests.chats import rounds

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
    with pytest.raises(UnknownStrategyError, match="did you mean 'mine'"):
        config.strategy("mien")


def test_a_file_without_strategies_names_all(tmp_path):
    file = toml(tmp_path, PRICES)
    assert load_config(file).prices["gpt-4.1-mini"].prompt == 0.4
    assert load_config(file).model_copy(update={"prices": {}}) == load_config()


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
        '[memory_strategies.progressive_summarization]\nkeep_last = 0\nsummary_tokens = "no"\n', {},
        ["loop_detection: ", "memory_strategies.progressive_summarization.keep_last: ", "memory_strategies.progressive_summarization.summary_tokens: ",
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


# settings that have no effect under the others

SEED = {
    "type": "memory_bank", "observer_model": "gpt-4-1-mini", "embedding_model": "lexical", "top_k": 3,
    "max_chars_per_record": 2000,
}  # fmt: skip
ALWAYS = {
    "type", "selection", "tools", "scope", "memory_role", "on_storage_error", "embedding_model", "observer_model",
    "token_encoding",
}  # fmt: skip
"""Settings of the memory bank that have an effect under all others."""
OTHERS = {
    "fold_note": "observer", "fold": "thrifty", "layout": "block", "evidence_model": "f", "retrieval_query": "task", "fixed_query": "q",
    "observer_mode": "background", "observer_prompt": "f", "observer_calls_per_day": 1,
    "cache_retention": 9.0, "observer_timeout": 9.0, "compaction_tokens": 300, "observer_max_chars": 300,
    "first_sight_tokens": 700,
}  # fmt: skip
"""Values that are not the defaults; 7 for all others."""
NEEDED = [
    (model, needs, name)
    for model in (*config_module.AnyStrategy.__args__, ServiceSettings)
    for needs in model.needs
    for name in needs.names
]


@pytest.fixture
def warnings(caplog):
    config_module._warn.cache_clear()
    return lambda: [r.getMessage() for r in caplog.records if r.name == "memory_bank.MemoryBankStrategy"]


def table(tmp_path, values):
    """A file with this table of the memory bank."""
    lines = ["[memory_strategies.memory_bank]", *(f"{k} = {json.dumps(v)}" for k, v in values.items())]
    return toml(tmp_path, "\n".join(lines))


def test_the_seeds_table_is_the_classic_bank(tmp_path, warnings):
    found = load_config(table(tmp_path, SEED)).strategy("memory_bank")
    assert found == MemoryBankSettings(**SEED)
    assert (found.selection, found.observer_mode, found.observer_min_chars) == ("top_k", "inline", 0)
    assert found == MemoryBankSettings(**{k: v for k, v in SEED.items() if k != "type"})
    assert found == as_settings(SEED) == as_settings(SimpleNamespace(**SEED))
    assert Config(memory_strategies={"memory_bank": SEED}).strategy("memory_bank") == found
    assert warnings() == []


@pytest.mark.parametrize("name", config_module.CLASSIC)
@pytest.mark.parametrize("of_environment", [False, True])
def test_a_table_with_a_classic_key_has_the_selection_top_k_unless_it_names_one(
    tmp_path, monkeypatch, warnings, name, of_environment
):
    value, file = OTHERS.get(name, 7), None
    if of_environment:
        monkeypatch.setenv(f"MEMORY_BANK_MEMORY_STRATEGIES__memory_bank__{name.upper()}", str(value))
    else:
        file = table(tmp_path, {name: value})
    found = load_config(file).strategy("memory_bank")
    assert (found.selection, getattr(found, name)) == ("top_k", value)
    assert (found.observer_model, found.embedding_model) == ("extractive", "lexical")
    assert warnings() == []
    monkeypatch.setenv("MEMORY_BANK_MEMORY_STRATEGIES__memory_bank__SELECTION", "evidence")
    assert load_config(file).strategy("memory_bank").selection == "evidence"
    assert [w.split(":")[0] for w in warnings()] == [f'{name} has no effect with selection = "evidence"']


def test_what_ships_is_as_it_was(tmp_path, warnings):
    root = Path(__file__).parents[1]
    for file in (None, root / "config.toml", table(tmp_path, {"history_budget": 4000})):
        assert load_config(file).strategy("memory_bank").selection == "evidence"
    both = load_config(table(tmp_path, {"top_k": 7, "history_budget": 4000})).strategy("memory_bank")
    assert both.selection == "top_k"
    [said] = warnings()
    assert said.startswith(
        'history_budget has no effect with selection = "top_k": set selection = "evidence", or'
    )


def test_every_setting_of_the_memory_bank_is_sorted():
    fields = set(MemoryBankSettings.model_fields)
    needing = {name for needs in MemoryBankSettings.needs for name in needs.names}
    assert needing | ALWAYS == fields
    assert not needing & ALWAYS
    for model, needs, name in NEEDED:
        assert {name, needs.other} <= set(model.model_fields)


@pytest.mark.parametrize(("model", "needs", "name"), NEEDED)
def test_a_setting_without_effect_is_named_with_the_one_that_keeps_it_from_it(model, needs, name, warnings):
    wrong, right = (needs.value, "other") if needs.is_not else ("other", needs.value)
    fields = model.model_fields
    options = get_args(fields[needs.other].annotation) or ("some-model",)
    other = next(o for o in options if o != needs.value)
    values = {needs.other: other if right == "other" else right}
    if needs.other == "retrieval_query":
        values["selection"] = "top_k"
    if name == "observer_attempts":
        values |= {"observer_mode": "background", "observer_model": "m"}
    if name == "fold_note":
        values |= {"selection": "evidence", "observer_model": "m"}
    given = {name: OTHERS.get(name, 7)}
    model.model_validate({**values, **given})
    assert warnings() == []
    values[needs.other] = other if wrong == "other" else wrong
    made = model.model_validate({**values, **given})
    assert name in {n for n, _ in made.idle()}
    said = [w for w in warnings() if w.startswith(f"{name} has no effect with {needs.other} = ")]
    assert len(said) == 1
    assert f"or remove {name}" in said[0]
    model.model_validate({**values, **given})
    assert len(warnings()) == len({*warnings()})  # once a process


IDLE = {"top_k": 1, "max_chars_per_record": 5, "retrieval_query": "task", "fixed_query": "other"}
IDLE_TOP_K = {
    "history_budget": 50,
    "refresh_after": 0,
    "layout": "block",
    "keep_recent": 9,
    "first_sight": 5,
    "first_sight_tokens": 500,
}


@pytest.mark.parametrize(
    ("selection", "values"),
    [("evidence", {k: v}) for k, v in IDLE.items()] + [("top_k", {k: v}) for k, v in IDLE_TOP_K.items()],
)
def test_what_is_called_idle_changes_no_context(selection, values):
    base = {"selection": selection, "observer_model": "extractive", "embedding_model": "lexical"}
    messages = rounds(9, size=700)
    contexts = []
    for given in ({}, values):
        with MemoryBankState() as state:
            settings = MemoryBankSettings(**base, **given)
            contexts.append(apply_memory_bank_strategy(messages, None, settings, state)[0])
    assert contexts[0] == contexts[1]


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("SERVICE_PORT", "SERVICE__PORT"),
        ("SERVICE_MAX_BODY_BYTES", "SERVICE__MAX_BODY_BYTES"),
        ("PORT", "SERVICE__PORT"),
        ("MEMORY_STRATEGIES_MEMORY_BANK_TOP_K", "MEMORY_STRATEGIES__MEMORY_BANK__TOP_K"),
        ("MEMORY_STRATEGIES__MEMORY_BANK_TOP_K", "MEMORY_STRATEGIES__MEMORY_BANK__TOP_K"),
    ],
)
def test_a_variable_with_its_underscores_elsewhere_is_answered_with_the_right_name(
    monkeypatch, variable, meant
):
    monkeypatch.setenv(f"MEMORY_BANK_{variable}", "5")
    with pytest.raises(
        ConfigError, match=rf"MEMORY_BANK_{variable} is no setting: did you mean MEMORY_BANK_{meant}\?"
    ):
        load_config()
