"""Several services that take a session's requests by turns cost what one does."""

import argparse
import json
import subprocess

import pytest

from memory_bank.bank.database import Database
from tests.benchmarks import load
from tests.postgres import why_not

processes = load("processes")


@pytest.mark.long
@pytest.mark.parametrize("untold", [[], ["--untold"]])
def test_three_services_cost_what_one_does(untold, capsys):
    given = ["--sessions", "1", "--turns", "80", "--services", "1,3", "--encoding", "approximate"]
    assert processes.main([*given, *untold]) == 0
    none, one, three = (row.split(" | ") for row in capsys.readouterr().out.splitlines()[2:])
    assert one[4:] == three[4:]
    assert int(one[3]) >= 1  # a fold
    assert float(one[2].rstrip("%")) < float(none[2].rstrip("%"))


@pytest.mark.long
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@pytest.mark.parametrize("nameless", [[], ["--nameless"]])
def test_services_that_die_lose_no_record_and_fork_no_session(kind, nameless, capsys):
    if kind == "postgres" and (reason := why_not()):
        pytest.skip(reason)
    given = ["--kind", kind, "--sessions", "3", "--turns", "12", "--calls", "8", "--agents", "3", "--faults"]
    given += [
        "--untold"
    ]  # what an answer of a killed process reported may be lost: a fold may come at another step
    assert processes.main([*given, *nameless, "--services", "3", "--encoding", "approximate"]) == 0
    *_, with_faults = (r.split(" | ") for r in capsys.readouterr().out.splitlines() if r.startswith("|"))
    assert with_faults[6:9] == ["0"] * 3  # forked, lost, twice
    assert int(with_faults[3]) >= 3  # folds


@pytest.mark.long
@pytest.mark.parametrize("nameless", [[], ["--nameless"]])
def test_forks_are_the_same_on_three_services_and_show_nothing_of_each_other(nameless, capsys):
    given = ["--sessions", "1", "--turns", "48", "--calls", "3", "--forks", "40", "--untold"]
    assert processes.main([*given, *nameless, "--encoding", "approximate"]) == 0
    none, one, three = (row.split(" | ") for row in capsys.readouterr().out.splitlines()[2:])
    assert one[4:] == three[4:]
    assert int(one[3]) >= 2  # folds before and after the fork
    assert float(one[2].rstrip("%")) < float(none[2].rstrip("%"))


def test_an_order_of_the_other_conversation_makes_a_context_foreign(tmp_path):
    options = argparse.Namespace(turns=6, calls=1, sessions=1, forks=5, nameless=False)
    run = processes.Run(1, str(tmp_path / "bank.db"), options)
    for session in run.sessions:
        run.sent[session] = [[json.dumps(m) for m in messages] for messages in run.sessions[session]]
    assert [len(run.sent[session]) for session in ("s0", "s0+")] == [6, 1]
    assert run.foreign() == 0
    run.sent["s0+"].append(run.sent["s0"][1])  # what both have
    assert run.foreign() == 0
    run.sent["s0+"].append(run.sent["s0"][-1])
    assert run.foreign() == 1


@pytest.mark.long
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_an_upgrade_beside_services_of_an_older_schema_loses_nothing(kind, capsys):
    commit = "eaad532a"  # the last of schema 10
    there = subprocess.run(
        ["git", "cat-file", "-e", commit], cwd=processes.ROOT, check=False, stderr=subprocess.DEVNULL
    )
    if reason := "this checkout has no history" if there.returncode else kind == "postgres" and why_not():
        pytest.skip(reason)
    given = ["--kind", kind, "--sessions", "2", "--turns", "80", "--agents", "2", "--beside", commit]
    assert processes.main([*given, "--services", "1", "--encoding", "approximate"]) == 0
    said = capsys.readouterr().out.splitlines()
    (row,) = (line.split(" | ") for line in said if line.startswith("| 1, upgrade"))
    assert row[6:10] == ["0"] * 4  # forked, lost, twice, refused
    older, both, present = (line for line in said if " contexts, " in line)
    assert ", 0 without memory" in older and ", 0 without memory" in present
    assert ", 0 without memory" not in both  # an older one that is left behind passes on


def test_a_record_that_an_answer_did_not_promise_is_told_from_a_lost_one(tmp_path):
    """Of three turns the first was answered with memory, then the bank was away; none of them is stored."""
    where = str(tmp_path / "bank.db")
    Database(where).close()
    options = argparse.Namespace(
        turns=3,
        calls=2,
        sessions=1,
        forks=0,
        encoding="approximate",
        model="claude-sonnet-4-5",
        nameless=False,
    )
    run = processes.Run(1, where, options)
    run.stored["s0"] = 0
    assert run.figures(run.sent)[3:] == (0, 0, 2, 0, 4, 0)
