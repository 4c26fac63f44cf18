"""Live suites against the scripted server: who loses an id fails its case; an endpoint that goes away."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from benchmarks.experiments.live import Book, RecordedTools, recorded_calls, same_arguments
from benchmarks.experiments.plan import SuiteSettings, book_cases, page_code
from tests.benchmarks.experiments.agents import Careful, Turn, plan_of_trip, trip
from tests.benchmarks.experiments.conftest import results_of

from memory_bank.audit.traces import Trace
from memory_bank.testing import ScriptedServer, fail, say

pytest.importorskip("openai", reason="needs the extra openai")

FUNCTIONS = """
name = "live"
strategies = ["full", "truncation", "keep_last_n?n=2", "memory_bank_local?top_k=8"]
counter = "approximate"
[[models]]
name = "scripted"
[[suites]]
kind = "complex_func"
name = "trips"
files = ["trips.jsonl"]
"""
BOOK = """
name = "book"
strategies = ["full", "truncation", "keep_last_n?n=6"]
counter = "approximate"
[[models]]
name = "scripted"
[[suites]]
kind = "overflow"
name = "book"
pages = 12
page_tokens = 200
lag = 4
context_limit = 2000
"""


@pytest.fixture
def bench(verbs, tmp_path, monkeypatch):
    def run(text: str, server: ScriptedServer, *args: str):
        (tmp_path / "experiment.toml").write_text(text)
        with open(tmp_path / "trips.jsonl", "w") as f:
            f.writelines(json.dumps(trip(n)) + "\n" for n in range(3))
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "x")
        config, out = tmp_path / "experiment.toml", tmp_path / "out"
        return verbs("bench", "--config", str(config), "--out", str(out), *args)

    return run


def careful() -> Careful:
    tasks = dict(plan_of_trip(trip(n)) for n in range(3))
    settings = SuiteSettings(kind="overflow", pages=12, page_tokens=200, lag=4)
    for case in book_cases(settings):
        turns: list[Turn] = [
            [("read_page", {"page": n, **({"code": page_code(case.id, n - 4)} if n > 4 else {})})]
            for n in range(1, 13)
        ]
        tasks[case.task] = (turns, page_code(case.id, 12))
    return Careful(tasks)


def test_a_strategy_that_loses_an_id_fails_its_case(bench, tmp_path):
    with ScriptedServer(careful()) as server:
        done = bench(FUNCTIONS, server, "--json")
        assert server.refused == []
    rows = {row["strategy"]: row for row in done.json()}
    found = {k: r["success"] for k, r in rows.items()}
    # with two interactions the booking lacks the place of four steps ago
    assert found == {"full": 1, "truncation": 0, "keep_last_n?n=2": 0, "memory_bank_local?top_k=8": 1}
    assert rows["full"]["call accuracy"] == 1.0
    assert rows["keep_last_n?n=2"]["call accuracy"] == pytest.approx(5 / 6)
    assert rows["full"]["cached"] > rows["keep_last_n?n=2"]["cached"]
    lost = next(r for r in results_of(tmp_path / "out") if r["strategy"] == "keep_last_n?n=2")
    assert [c["verdict"] for t in lost["turns"] for c in t["calls"]] == ["right"] * 5 + ["wrong"]
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("<circle") == 4
    assert "book: wrong" in page


def test_a_book_is_read_until_the_context_breaks(bench, tmp_path):
    with ScriptedServer(careful()) as server:
        rows = {row["strategy"]: row for row in bench(BOOK, server, "--json").json()}
    results = {r["strategy"]: r for r in results_of(tmp_path / "out")}
    ended = {k: r["ended"] for k, r in results.items()}
    assert ended == {"full": "overflow", "truncation": "wrong calls", "keep_last_n?n=6": "answered"}
    assert rows["keep_last_n?n=6"]["success"] == 1.0
    assert rows["keep_last_n?n=6"]["largest"] <= 2000 < rows["full"]["largest"]
    assert results["truncation"]["score"]["correct"] == 4
    assert 4 < results["full"]["score"]["correct"] < 12


def test_an_endpoint_that_refuses_the_length_ends_the_case_only(bench, tmp_path):
    agent = careful()

    def limited(body):
        refusal = fail(400, "This model's maximum context length is 2000 tokens.")
        return refusal if len(json.dumps(body["messages"])) > 8_000 else agent(body)

    with ScriptedServer(limited) as server:
        assert bench(BOOK.replace("context_limit = 2000", ""), server).code == 0
    ended = {r["strategy"]: r["ended"] for r in results_of(tmp_path / "out")}
    assert (ended["full"], ended["truncation"]) == ("overflow", "wrong calls")


@pytest.mark.long
def test_an_endpoint_that_goes_down_keeps_what_is_done(bench, tmp_path):
    agent = careful()

    def dying(body):
        if agent.asked == 12:
            threading.Thread(target=server.close).start()
            return fail(503)
        return agent(body)

    with ScriptedServer(dying) as server:
        down = bench(FUNCTIONS, server)
    assert down.code == 1
    assert "scripted" in down.sentence()
    kept = results_of(tmp_path / "out")
    assert 0 < len(kept) < 12
    assert (tmp_path / "out" / "table.md").exists()
    again = careful()
    with ScriptedServer(again) as server:
        assert bench(FUNCTIONS, server, "--jobs", "2").code == 0
    lines = results_of(tmp_path / "out")
    assert lines[: len(kept)] == kept
    assert len(lines) == 12 == len({line["unit"] for line in lines})
    assert again.asked == sum(len(r["turns"]) for r in lines[len(kept) :])


def test_completeness_is_what_the_judge_says(bench, tmp_path):
    agent = careful()

    def both(body):
        if body["model"] != "judge":
            return agent(body)
        known = "BOOK-" in body["messages"][-1]["content"].split("<answer>")[1]
        return say(json.dumps({"completeness": 2 if known else 0}))

    with ScriptedServer(both) as server:
        done = bench(FUNCTIONS + '[suites.judge]\nname = "judge"\n', server, "--json")
    rows = {row["strategy"]: row["completeness"] for row in done.json()}
    assert rows["full"] == 2.0
    assert rows["truncation"] == 0.0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (FUNCTIONS.replace('[[models]]\nname = "scripted"', ""), "needs a model"),
        (FUNCTIONS.replace('"full"', '"oracle"'), "oracle"),
        (FUNCTIONS.replace('name = "scripted"', 'name = "scripted"\napi_key_env = "NO_SUCH_KEY"'), "NO_SUCH_KEY"),
        (BOOK.replace("pages = 12", "pages = -1"), "pages"),
    ],
)  # fmt: skip
def test_what_a_live_suite_lacks_is_one_sentence(bench, tmp_path: Path, text, says):
    with ScriptedServer([]) as server:
        done = bench(text, server)
    assert done.code == 2
    assert says in done.sentence()
    assert not (tmp_path / "out").exists()


def test_calls_are_compared_by_value():
    equal = [
        ({"a": 1}, {"a": "1"}), ({"a": 1.0, "b": None}, {"a": 1}), ({"a": "New York "}, {"a": "new york"}),
        ({"a": [1, {"b": True}]}, {"a": [1, {"b": "true"}]}),
    ]  # fmt: skip
    other = [
        ({"a": "007"}, {"a": "7"}), ({"a": "12345678901234567890"}, {"a": "12345678901234567891"}),
        ({"a": 1}, {"a": 1, "b": 2}), ({"a": 1}, "a=1"),
    ]  # fmt: skip
    assert [pair for pair in [*equal, *other] if same_arguments(*pair)] == equal


def test_parallel_calls_in_any_order_each_counted_once():
    case = trip(1)
    desk = RecordedTools(Trace(case["id"], case["messages"]))
    due = recorded_calls(Trace(case["id"], case["messages"]))
    for name, arguments, output in [due[2], due[2], due[1], due[0]]:
        assert desk.call(name, arguments) == output
    assert (desk.calls, desk.correct, desk.wrong) == (6, 3, 0)
    assert "error" in desk.call("search_cars", {"location_id": "unknown"})
    assert desk.wrong == 1
    assert not desk.succeeded("done")


def test_odd_calls_of_a_book_are_refused():
    book = Book("b", SuiteSettings(kind="overflow", pages=3, lag=1))
    for arguments in (None, "x", {}, {"page": "1"}, {"page": 0}, {"page": 4}, {"page": 2}, {"page": True}):
        assert "error" in json.loads(book.call("read_page", arguments)), arguments
    assert book.correct == 0
