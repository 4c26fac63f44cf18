"""What came back from a call: two hundred forms of outputs, each with the right answer.

Half of ``outcomes.jsonl`` (``blind``) was written before its author had read the rules. All of it is invented.
"""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.chats import JSON, TEXT

from memory_bank.selection.effects import is_failure
from memory_bank.selection.outcomes import outcome
from memory_bank.selection.thread import Thread, shown_value

FORMS = [json.loads(line) for line in Path(__file__).with_name("outcomes.jsonl").read_text().splitlines()]


def listed(tool: str, arguments: str, output: str) -> Thread:
    """The list of a call."""
    made = Thread(lambda text: (len(text) + 3) // 4)
    made.add(number=1, interaction=1, tool=tool, arguments=arguments, output=output)
    return made


def test_there_are_two_hundred_forms():
    assert len(FORMS) == 200
    assert sum(form["blind"] for form in FORMS) >= 100


@pytest.mark.parametrize("form", FORMS, ids=[f"{n}-{form['tool']}" for n, form in enumerate(FORMS, 1)])
def test_a_form_is_seen_as_failure_or_not_and_told_in_the_words_that_matter(form):
    tool, arguments, output = form["tool"], json.dumps(form["input"]), form["output"]
    assert is_failure(output, tool, arguments) == form["failed"]
    made = listed(tool, arguments, output)
    outcome = made.outcome_of(1)
    assert outcome.startswith(("error: ", "cancelled by", "rejected by")) == form["failed"]
    line = (
        f"{made.tell(9, 400, extra=400).text} {outcome}".casefold()
    )  # what the arguments tell is not said again
    assert [words for words in form["tells"] if " ".join(words.split()).casefold() not in line] == []


@given(
    st.sampled_from(["bash", "get_order", "Read", "run_sql"]),
    TEXT | JSON.map(json.dumps),
    TEXT | JSON.map(json.dumps),
)
def test_anything_has_an_outcome_of_one_short_line(tool, arguments, output):
    line = listed(tool, arguments, output).outcome_of(1)
    assert "\n" not in line and len(line) <= 200


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (r"D:\work\projects\segmentation\src\models\unet.py", r"D:\work\projects\segment…\unet.py"),
        ("com.example.shop.orders.service.OrderController", "com.example.shop.orders.….OrderController"),
        ("sed -i 's/old_name/new_name/g' src/shop/orders.py", "sed -i 's/old_name/new_n… src/shop/orders.py"),
        ("A sentence with a point. And another one. And one more.", "A sentence with a point. And…"),
    ],
)
def test_the_names_in_long_values_stay_whole(value, shown):
    assert shown_value(value, 32) == shown


def test_a_long_output_is_told_in_time():
    text = "line of nothing\n" * 200_000
    assert outcome(text, ends=True)[0] == "line of nothing (200,000 lines)"
    assert not is_failure(text, "bash", '{"command": "make"}')
    assert is_failure(
        "a" * 500_000 + "\nTraceback (most recent call last):\n  x\nValueError: y", "bash", "{}"
    )


def test_a_long_name_of_a_member_takes_no_long():
    assert outcome(json.dumps({"a_" * 30_000: 1, "status": "sent"}))[0] == "status=sent"


@pytest.mark.parametrize(
    ("output", "told"),
    [
        ({"canDrive": False}, "canDrive=false"),
        ({"success": True}, "ok"),
        ([{"number of rows inserted": 15}], "number of rows inserted=15"),
        ([{"name": "Ada"}], "1 item: Ada"),
        ("package store\n\nfunc short(id string) {\n\tshortID := toolID[:12]\n\tuserID = parse(m[1])\n}\n" + "// x\n" * 30,
         "package store (36 lines)"),
        ({"messages": {"USR002": ["At 3"], "USR003": ["Read it"]}}, "messages: 2 items"),
        ({"text": "Error: ENOENT: no such file", "isError": True}, "error: ENOENT: no such file"),
        ("success: true\nmatched_tools:\n- server_name: news\n  tool: top\n" + "  x: y z\n" * 9, "matched_tools: (13 lines)"),
        ("=== STDOUT ===\nBYD: 106.60\nTotal value 59659.45 at close\n=== EXECUTION INFO ===\nReturn code: 0\n"
         "Execution time: 0.046 seconds\nTimeout limit: 30 seconds", "Total value 59659.45 at close (6 lines)"),
    ],
)  # fmt: skip
def test_an_outcome_says_what_came_of_a_call(output, told):
    text = output if isinstance(output, str) else json.dumps(output)
    assert listed("execute" if "STDOUT" in text else "route", "{}", text).outcome_of(1) == told


@pytest.mark.parametrize(
    "told", ["too many errors", "undefined: store", "declared and not used: x", '"fmt" imported and not used']
)
def test_a_build_that_fails_in_a_pipe_is_a_failure(told):
    output = f"# a.example/cli\ncli/resume.go:52:13: {told}"
    assert is_failure(output, "Bash", '{"command": "go build ./... 2>&1 | head -50"}')
    assert not is_failure(output, "Bash", '{"command": "cat build.log"}')
