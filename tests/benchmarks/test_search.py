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
    _, head, _, *rows = capsys.readouterr().out.splitlines()
    assert [row.split(" | ")[1] for row in rows] == ["BM25", "BM25 + neighbours", "search"]
    assert all(row.count("|") == head.count("|") for row in rows)


@pytest.mark.long
def test_the_time_of_a_search_has_a_row_for_a_session_and_a_project(capsys):
    assert search.main(["--form", "speed"]) == 0
    _, head, _, *rows = capsys.readouterr().out.splitlines()
    assert len(rows) == 2
    assert all(row.count("|") == head.count("|") and "| 20 |" in row for row in rows)


def chats(tmp_path):
    """The same two turns and one question in the forms of LoCoMo, LongMemEval and BEAM."""
    texts = ["I moved to Ghent.", "How nice."]
    turns = [
        {"dia_id": f"D1:{n}", "speaker": s, "text": t}
        for n, (s, t) in enumerate(zip("AB", texts, strict=True))
    ]
    locomo = tmp_path / "locomo.json"
    talk = {"speaker_a": "A", "session_1_date_time": "8 May", "session_1": turns}
    asked = [{"question": "Where to?", "evidence": ["D1:0"]}, {"question": "Who?", "evidence": []}]
    locomo.write_text(json.dumps([{"conversation": talk, "qa": asked}]))
    eval_ = tmp_path / "longmemeval.json"
    said = [
        {"role": "user", "content": texts[0], "has_answer": True},
        {"role": "assistant", "content": texts[1]},
    ]
    eval_.write_text(json.dumps([{"question": "Where to?", "haystack_sessions": [said]}]))
    beam = tmp_path / "100K"
    (beam / "1" / "probing_questions").mkdir(parents=True)
    roles = zip(("user", "assistant"), (texts[0] + " ->-> 1,1", texts[1]), strict=True)
    said = [{"role": role, "id": n, "content": text} for n, (role, text) in enumerate(roles)]
    (beam / "1" / "chat.json").write_text(json.dumps([{"batch_number": 1, "turns": [said]}]))
    kinds = {
        "abstention": [{"question": "Who?"}],
        "knowledge_update": [{"question": "Where to?", "source_chat_ids": {"updated_info": [0]}}],
    }
    (beam / "1" / "probing_questions" / "probing_questions.json").write_text(json.dumps(kinds))
    return [locomo, eval_, beam]


def test_published_talks_of_people_are_read(tmp_path, capsys):
    files = chats(tmp_path)
    for path in files:
        (session,) = search.sessions_of(path, "asked", "all", 9)
        assert session.queries == [(2, "Where to?", [[0]])]
        assert [record.output_text for record in session.records] == ["I moved to Ghent.", "How nice."]
    search.measure(files[-1], "asked", "all", 9, "")
    *_, last = capsys.readouterr().out.splitlines()
    assert last.split(" | ")[:7] == ["| 100K, asked all", "search", "1", "100.0", "100.0", "100.0", "100.0"]
