"""The meter of the search: what it asks of runs, shells, talks and facts that change."""

import gzip
import json

import pytest

from tests.benchmarks import load

search = load("search")


def test_facts_change_and_the_latest_statement_is_wanted():
    session = search.facts_of(3, "odd")
    assert session.queries == search.facts_of(3, "odd").queries
    for known, question, (statements,) in session.queries:
        assert known == len(session.records)
        assert statements == sorted(statements)
        assert len(statements) > 1
        assert question.endswith("?")
    questions = {
        q.split()[0] + q.split()[1]
        for part in ("even", "odd")
        for _, q, _ in search.facts_of(0, part).queries
    }
    assert len(questions) > 5


def call(name, arguments, output, text="", number=0):
    function = {"name": name, "arguments": json.dumps(arguments)}
    yield {
        "role": "assistant",
        "content": text,
        "tool_calls": [{"id": f"c{number}", "type": "function", "function": function}],
    }
    yield {"role": "tool", "tool_call_id": f"c{number}", "content": output}


@pytest.fixture
def runs(tmp_path):
    """A run in which a shell shows an id that a later call takes, and a dialogue in which the user says a value."""
    messages = [{"role": "user", "content": "Find out why it fails."}]
    for n in range(9):
        messages += call("Bash", {"command": f"cat {n}.log"}, f"request REQ-{n}0{n}77 failed", number=n)
    messages += call("Read", {"path": "x"}, "nothing", number=10)
    text = "Now I look at the third request that failed."
    messages += call("Bash", {"command": "trace REQ-30377"}, "ok", text, number=11)
    talk = [
        {"role": "user", "content": "I want to go to Lafayette."},
        {"role": "assistant", "content": "Fine."},
    ]
    talk += call("FindBus", {"to_city": "Lafayette", "riders": 2}, "[]", number=1)
    path = tmp_path / "runs.jsonl.gz"
    with gzip.open(path, "wt") as file:
        for name, each in (("a", messages), ("b", talk)):
            file.write(json.dumps({"id": name, "task": "t", "messages": each}) + "\n")
    return path


def test_what_is_asked_of_each_form(runs):
    shell, *_ = search.sessions_of(runs, "shell", "all", 9)
    assert [(known, wanted) for known, _, wanted in shell.queries] == [(9, [[3]])]
    run, *_ = search.sessions_of(runs, "runs", "all", 9)
    assert [(known, wanted) for known, _, wanted in run.queries] == [(10, [[3]])]
    (talk,) = search.sessions_of(runs, "talk", "all", 9)
    (asked,) = [(query, wanted) for _, query, wanted in talk.queries if "city" in query]
    assert asked[0] == "Which to city for find bus: 2?"
    assert [talk.records[n].output_text for n in asked[1][0]] == ["I want to go to Lafayette."]


@pytest.mark.parametrize("arguments", [["--form", "facts", "--limit", "1"], ["--form", "shell"]])
def test_every_ranking_has_a_row(runs, capsys, arguments):
    files = [] if "facts" in arguments else [str(runs)]
    assert search.main([*files, *arguments]) == 0
    head, _, *rows = capsys.readouterr().out.splitlines()
    assert [row.split(" | ")[1] for row in rows] == ["BM25", "BM25 + neighbours", "search"]
    assert all(row.count("|") == head.count("|") for row in rows)
