"""The audit of recorded runs: what it reads, what it says, and the verb."""

import gzip
import json
import re
from pathlib import Path

import pytest
import typer
from tests.chats import rounds, user
from typer.testing import CliRunner

from memory_bank.audit.figures import percent
from memory_bank.audit.runs import Bill, RunAudit
from memory_bank.audit.traces import TraceFiles
from memory_bank.cli.audit import audit as verb

ORDERS = Path(__file__).parent / "orders.jsonl"

# what it says

GOOD = RunAudit("bank", 2, 10, 2_500, 10_000, 50, 45, {}, 0)


@pytest.mark.parametrize(
    ("changes", "beginning"),
    [
        ({}, "Take bank: "),
        ({"kept": 35}, "Take bank: "),
        ({"kept": 34}, "Take no memory: at 25.0% of the tokens bank keeps only 68.0% of the evidence"),
        ({"errors": {"ValueError": 3}}, "Take no memory: bank raises, breaks pairs"),
        ({"broken": 1}, "Take no memory: bank raises, breaks pairs"),
        ({"tokens": 10_001}, "Take no memory: bank raises, breaks pairs, or costs no less"),
        ({"tokens": 10_000}, "Memory changes nothing here: these runs are too short for a fold"),
        ({"steps": 0}, "Nothing can be advised: no trace has a model call after a tool's output."),
        ({"values": 0, "kept": 0}, "Take bank: "),
    ],
)
def test_the_sentence(changes, beginning):
    assert GOOD._replace(**changes).sentences(None)[-1].startswith(beginning)


def test_the_sentence_whole():
    [told] = GOOD.sentences(Bill("all", 2, 1.0, 0.4, 0.6))
    assert told == (
        "Take bank: over 2 traces and 10 model calls it would have saved 7,500 of 10,000 prompt tokens (75.0%) and "
        "kept 90.0% of the evidence older than the last interaction."
    )
    assert GOOD.sentences(Bill("all", 2, 1.0, 1.1, 1.1))[0].startswith("Take no memory")  # dearer in dollars
    assert "no call needed a value" in GOOD._replace(values=0, kept=0).sentences(None)[0]
    raised = GOOD._replace(errors={"RuntimeError": 14, "KeyError": 1}).sentences(None)
    assert raised[0] == "bank raised KeyError at 1 step, RuntimeError at 14 steps"


def test_a_share_is_100_only_when_it_is_whole():
    assert (percent(1), percent(0.99999), percent(0.4088)) == ("100.0", "99.9", "40.9")


# the verb


@pytest.fixture
def odd(tmp_path):
    """The room's traces under ids that are markup, with broken lines between."""
    lines = ORDERS.read_text(encoding="utf-8").splitlines()
    first = json.loads(lines[0]) | {"id": "<script>alert('&')</script>\x07\ud800"}
    file = tmp_path / "odd.jsonl.gz"
    text = "\n".join([json.dumps(first), "{", "[1]", *lines[1:], '{"id": 3}', "", "nonsense"]) + "\n"
    file.write_bytes(gzip.compress(text.encode()))
    return file


def test_broken_lines_are_skipped_counted_and_named(odd):
    told = []
    files = TraceFiles([odd, odd.parent / "none"], told.append)
    assert len(list(files)) == 10
    assert [re.search(r"line (\d+)", s)[1] for s in files.skipped] == ["2", "3", "13", "15"]
    assert files.unreadable == [str(odd.parent / "none")]
    assert [t.partition(":")[2] or t for t in told][0].endswith("and 3 more lines of it.")
    assert len(told) == 2  # a sentence a file


@pytest.fixture
def cli(tmp_path):
    file = tmp_path / "own.toml"
    file.write_text(
        'default_strategy = "local"\n[memory_strategies.local]\ntype = "memory_bank"\nembedding_model = "lexical"\n'
    )
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(verb)

    def run(*args):
        return CliRunner().invoke(app, [*(str(a) for a in args), "--config", str(file)])

    return run


def test_the_verb_begins_with_dollars_and_ends_in_the_sentence(cli, odd):
    done = cli(odd)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0].startswith("Without memory the input costs $")
    assert "skipped lines: 4" in lines
    assert any(line.startswith(("Take ", "Memory changes ")) for line in lines[-4:])
    report = json.loads(cli(odd, "--json", "--strategy", "keep_last_n").stdout.splitlines()[-1])
    assert (report["strategy"], report["traces"], report["values"]) == ("keep_last_n", 10, 14)
    assert report["sentences"][-1].startswith("Take ")
    assert report["bills"][0]["tool_calls"] == "all"


def test_nothing_to_measure_is_said_and_fails(cli, tmp_path):
    empty = tmp_path / "empty.jsonl"
    empty.write_text('{"id": "x", "messages": [{"role": "user", "content": "hi"}]}\n')
    done = cli(empty, "--strategy", "local")
    assert done.exit_code == 1
    assert "no tool call was read" in str(done.exception)
    assert cli(tmp_path / "none.jsonl").exit_code != 0
    assert cli(tmp_path / "folder").exit_code != 0


def test_a_strategy_that_cannot_be_tried_is_said_and_fails(cli, odd, tmp_path):
    assert "nonsense" in str(cli(odd, "--strategy", "nonsense").exception)
    (tmp_path / "own.toml").write_text(
        'default_strategy = "local"\n[memory_strategies.local]\n'
        'type = "memory_bank"\nembedding_model = "/no/such/folder"\n'
    )
    done = cli(odd)
    assert done.exit_code == 1
    assert "/no/such/folder" in str(done.exception)


def test_short_runs_gain_nothing_and_the_verb_says_so(cli, tmp_path):
    short = tmp_path / "short.jsonl"
    short.write_text(json.dumps({"id": "r", "messages": [user("Find it"), *rounds(3)]}) + "\n")
    done = cli(short, "--strategy", "memory_bank")
    assert done.exit_code == 0
    told = " ".join(done.stdout.split())
    assert "Memory changes nothing here: these runs are too short for a fold" in told
