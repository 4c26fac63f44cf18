"""Wrong use of any verb is one sentence, with exit code 2."""

import shlex

import pytest

# Each is run in a folder with the recorded runs two.jsonl.
WRONG = {
    "bogus": "bogus",
    "--nope": "--nope",
    "bank search": "query",
    "bank search x --db x --top-k 0": "--top-k",
    "bank search x --db x --top-k many": "--top-k",
    "bank re-embed --db x": "--embedding-model",
    "demo extra": "extra",
    "keys": "Missing command",
    "keys create": "name",
    "keys create ''": "name of a key",
    "keys create a --namespace 'a b'": "namespace",
    "keys create a --requests-per-minute -1": "--requests-per-minute",
    "keys create a --max-body-bytes 1": "--max-body-bytes",
    "keys create a --db :memory:": "--db",
    "keys list --db missing.db": "there is no bank",
    "keys revoke a --db missing.db": "there is no bank",
    "keys list --config missing.toml": "missing.toml",
    "handoff latest --db x --config missing.toml": "missing.toml",
    "lab replay": "traces",
    "lab replay nope.jsonl": "there is no trace file nope.jsonl",
    "lab replay .": "is a directory",
    "lab replay two.jsonl --strategy memory_bnk": "did you mean 'memory_bank'?",
    "lab replay two.jsonl --config nope.toml": "nope.toml cannot be read",
    "lab replay two.jsonl --db nowhere/x.db": "there is no folder nowhere",
    "lab replay two.jsonl --out nowhere/x": "nowhere/x cannot be written",
    "lab replay two.jsonl --out two.jsonl": "is read from",
    "lab replay two.jsonl --nope": "--nope",
    "lab explain two.jsonl --strategy no_strategy": "keeps no plan",
    "lab explain two.jsonl --strategy memory_bnk": "did you mean 'memory_bank'",
}


@pytest.mark.parametrize("line", WRONG)
def test_wrong_use_is_one_sentence(cli, two, monkeypatch, line):
    monkeypatch.chdir(two.parent)
    before = two.read_bytes()
    done = cli(*shlex.split(line))
    assert (done.code, done.out) == (2, "")
    assert WRONG[line].lower() in done.sentence().lower()  # typer has written names of arguments in capitals
    assert two.read_bytes() == before


def test_a_verb_of_a_group_is_named_with_its_group(cli):
    done = cli("sessions")
    assert done.code == 2
    assert done.err == "memory-bank: No such command 'sessions': use `memory-bank bank sessions`.\n"
    assert "use `memory-bank lab replay`" in cli("bank", "replay").err


@pytest.mark.parametrize("line", ["bogus", "bank search", "demo extra", "bank re-embed --db x"])
def test_wrong_options_name_the_help(cli, line):
    assert "--help` shows the use." in cli(*shlex.split(line)).sentence()


@pytest.mark.parametrize(
    ("more", "says"), [("--id nope", "has no such run"), ("--step 99", "--step from 1 to")]
)
def test_a_run_or_a_step_that_is_not_there(cli, two, more, says):
    done = cli("lab", "explain", two, *more.split())
    assert (done.code, says in done.sentence()) == (1, True)
