"""Configuration files of every kind: each is told what is wrong, or runs as `config` prints it."""

from __future__ import annotations

import re
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from memory_bank.config import load_config
from memory_bank.shipped import shipped_file

pytest.importorskip("fastapi", reason="needs the extra service")

from starlette.testclient import TestClient

from memory_bank.service.app import create_app
from memory_bank.service.server.startup import checked

PRICES = 'prices = { "gpt-4.1-mini" = { prompt = 0.4, completion = 1.6, cached = 0.1 } }'
OWN = '[memory_strategies."my own"]\ntype = "memory_bank"\nembedding_model = "lexical"\nobserver_model = "extractive"\n'
BANK = "memory_strategies.memory_bank."
IN_BANK = "MEMORY_BANK_MEMORY_STRATEGIES__MEMORY_BANK__"

WELL: dict[str, tuple[str, dict[str, str], dict[tuple[str, ...], tuple[Any, str]]]] = {
    # text, environment, some settings: their values and sources ("FILE": the file)
    "empty": ("", {}, {("default_strategy",): ("memory_bank", "default")}),
    "comments only": ("# nothing\n\n", {}, {("memory_strategies", "memory_bank", "top_k"): (3, "default")}),
    "a byte-order mark": ("\ufeffloop_detection = \"off\"", {}, {("loop_detection",): ("off", "FILE")}),
    "one setting": ('loop_detection = "off"', {}, {("loop_detection",): ("off", "FILE")}),
    "another default": ('default_strategy = "truncation"', {}, {("default_strategy",): ("truncation", "FILE")}),
    "prices only": (
        PRICES, {},
        {("prices",): ({"gpt-4.1-mini": {"prompt": 0.4, "completion": 1.6, "cached": 0.1}}, "FILE"),
         ("memory_strategies", "memory_bank", "embedding_model"): ("lexical", "default")},
    ),
    "service only": (
        "[service]\nholdout = 0.25\n", {},
        {("service", "holdout"): (0.25, "FILE"), ("service", "memory_timeout"): (5.0, "default")},
    ),
    "one table of a strategy": (
        "[memory_strategies.memory_bank]\nkeep_recent = 4\n", {},
        {("memory_strategies", "memory_bank", "keep_recent"): (4, "FILE"),
         ("memory_strategies", "memory_bank", "selection"): ("evidence", "default")},
    ),
    "its own type again": (
        '[memory_strategies.memory_bank]\ntype = "memory_bank"\nhistory_budget = 0.25\n', {},
        {("memory_strategies", "memory_bank", "type"): ("memory_bank", "FILE"),
         ("memory_strategies", "memory_bank", "observer_model"): ("extractive", "default")},
    ),
    "another type": (
        '[memory_strategies.truncation]\ntype = "keep_last_n"\n', {},
        {("memory_strategies", "truncation", "n"): (5, "default")},
    ),
    "a strategy of one's own": (
        f'default_strategy = "my own"\n{OWN}tools = {{ "a b" = {{ effect = "read" }} }}\n', {},
        {("memory_strategies", "my own", "tools"): ({"a b": {"effect": "read"}}, "FILE"),
         ("memory_strategies", "my own", "scope"): ("auto", "default")},
    ),
    "texts that need quotes": (
        '[memory_strategies.memory_bank]\nfixed_query = "a \\"b\\" \\\\ \\u007f ü\\n"\n', {},
        {("memory_strategies", "memory_bank", "fixed_query"): ('a "b" \\ \x7f ü\n', "FILE")},
    ),
    "expressions": (
        "[service]\nredact = ['\\d{4}-\\d{4}']\n", {}, {("service", "redact"): (["\\d{4}-\\d{4}"], "FILE")}
    ),
    "a file and the environment": (
        '[service]\nholdout = 0.5\nlog_format = "json"\n', {"MEMORY_BANK_SERVICE__HOLDOUT": "0.125"},
        {("service", "holdout"): (0.125, "MEMORY_BANK_SERVICE__HOLDOUT"), ("service", "log_format"): ("json", "FILE")},
    ),
    "the environment in a shipped strategy": (
        "", {f"{IN_BANK}KEEP_RECENT": "7"},
        {("memory_strategies", "memory_bank", "keep_recent"): (7, f"{IN_BANK}KEEP_RECENT")},
    ),
    "the environment in one's own": (
        OWN, {"MEMORY_BANK_MEMORY_STRATEGIES__MY OWN__TOP_K": "5"},
        {("memory_strategies", "my own", "top_k"): (5, "MEMORY_BANK_MEMORY_STRATEGIES__MY OWN__TOP_K")},
    ),
    "prices of the environment": (
        "", {"MEMORY_BANK_PRICES": '{"m": {"prompt": 1, "completion": 2}}'},
        {("prices",): ({"m": {"prompt": 1.0, "completion": 2.0}}, "MEMORY_BANK_PRICES")},
    ),
    "a section of the environment": (
        "", {"MEMORY_BANK_SERVICE": '{"steps_kept": 3}'},
        {("service", "steps_kept"): (3, "MEMORY_BANK_SERVICE"), ("service", "holdout"): (0.0, "default")},
    ),
    "a limit of the environment": (
        "", {f"{IN_BANK}OBSERVER_CALLS_PER_DAY": "3"},
        {("memory_strategies", "memory_bank", "observer_calls_per_day"): (3, f"{IN_BANK}OBSERVER_CALLS_PER_DAY")},
    ),
    "the shipped file": (
        shipped_file("config.toml").read_text(encoding="utf-8"), {}, {("default_strategy",): ("memory_bank", "FILE")}
    ),
}  # fmt: skip


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return tmp_path / "my.toml"


@pytest.mark.parametrize(("text", "env", "some"), WELL.values(), ids=WELL.keys())
def test_what_is_shown_is_what_runs(
    cli: Any,
    file: Path,
    tmp_path: Path,
    monkeypatch: Any,
    text: str,
    env: dict[str, str],
    some: dict[Any, Any],
) -> None:
    file.write_text(text, encoding="utf-8")
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    config = load_config(file)
    short, shown, listed = (cli("config", file, *more) for more in ((), ("--all",), ("--all", "--json")))
    told = {tuple(s["setting"]): (s["value"], s["source"].replace(str(file), "FILE")) for s in listed.json()}
    assert {place: told[place] for place in some} == some
    assert (
        checked(config)["strategy"] == config.default_strategy
    )  # what `serve` checks, and says at its start
    with TestClient(create_app(config)) as client:
        running = client.app.state.service.config  # type: ignore[attr-defined]
        assert client.get("/health").json()["parts"]["embedder"]["ok"]
    for name in env:
        monkeypatch.delenv(name)
    again = tmp_path / "shown.toml"
    for printed_form in (short, shown):
        again.write_text(printed_form.out, encoding="utf-8")
        assert load_config(again) == running
    printed = tomllib.loads(shown.out)
    for place, (value, _) in told.items():
        at: Any = printed
        for part in place:
            at = at.get(part)
        if at is None and value is not None:  # it has no effect under the others
            assert f"# {place[-1]} = " in shown.out
            continue
        assert at == value, place


def test_each_mistake_is_a_line_and_nothing_runs(cli: Any, file: Path) -> None:
    file.write_text('loop_detection = "maybe"\n[service]\nport = "x"\nhots = 1\n', encoding="utf-8")
    done = cli("config", file)
    assert (done.code, done.out) == (2, "")
    for line, said in zip(
        done.err.splitlines(), ("loop_detection: ", "port: ", "hots is no setting"), strict=True
    ):
        assert line.startswith(f"memory-bank: {file}: ") and said in line
    refused = cli("serve", "--port", "0", "--config", file)  # which tells the first one
    assert (refused.code, refused.out, refused.err) == (2, "", f"{done.err.splitlines()[0]}\n")


def test_an_embedder_that_is_missing_is_told_at_the_start(cli: Any, file: Path) -> None:
    file.write_text('[memory_strategies.memory_bank]\nembedding_model = "./no-such-folder"\n')
    assert cli("config", file).code == 0  # models are looked for when a service starts
    refused = cli("serve", "--port", "0", "--config", file)
    assert (refused.code, refused.out) == (2, "")
    assert (
        "the strategy 'memory_bank' cannot work: there is no folder './no-such-folder'" in refused.sentence()
    )


def test_a_password_is_not_shown(cli: Any, file: Path) -> None:
    for url in ("postgresql://me:se/cr:et@host/bank", "postgresql://host/bank?password=se/cr:et"):
        file.write_text(f'[service]\ndatabase = "{url}"\n')
        for more in ((), ("--json",)):
            shown = cli("config", file, *more)
            assert shown.code == 0
            assert "cr:et" not in shown.out and "***" in shown.out


def test_without_a_file(cli: Any) -> None:
    printed = cli("config").out
    assert tomllib.loads(printed) == tomllib.loads(shipped_file("config.toml").read_text(encoding="utf-8"))
    every = cli("config", "--all").out
    for line, below in pairwise(every.splitlines()):  # a sentence stands above every setting
        if re.match(r"\w+ = |# \w+ =$", below) and not below.startswith("type = "):
            assert re.match(r"# [A-Z].*\.$", line), below
    assert len(printed.splitlines()) < 40 < 200 < len(every.splitlines())
