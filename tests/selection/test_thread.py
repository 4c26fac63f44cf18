"""The thread: every call is told in few tokens, changes first, and nothing disappears silently."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.chats import JSON, TEXT
from tests.examples import examples

from memory_bank.selection.thread import (
    Thread,
    decisions_in,
    outcome,
    plan_in_call,
    plan_in_text,
    ranges,
    thread_room,
)


def count(text: str) -> int:
    return (len(text) + 3) // 4


def thread(*calls: tuple[str, object, str], notes: dict[int, str] | None = None) -> Thread:
    made = Thread(count)
    for n, (tool, arguments, output) in enumerate(calls, 1):
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        note = (notes or {}).get(n, "")
        made.add(number=n, interaction=n, tool=tool, arguments=text, output=output, remark=note)
    return made


REFUNDS = [
    ("issue_refund", {"order": f"ORD-{n}", "reason": "late"}, f'{{"refund_id": "R{n}"}}') for n in range(9)
]
LOOKS = [("get_order", {"id": f"ORD-{n}"}, '{"state": "late"}') for n in range(9)]


def test_changes_stand_on_their_own_lines_and_look_ups_share_one():
    text = thread(*LOOKS, *REFUNDS).tell(99, 500).text
    assert "#10 issue_refund order=ORD-0, reason=late → refund_id=R0\n" in text
    assert "\n#1 to #9 get_order id=ORD-0; ORD-1; ORD-2;" in text


def test_what_distinguishes_a_call_is_told_not_its_first_argument():
    calls = [("find", {"city": "Oslo", "limit": 10, "street": f"Elm {n}"}, "[]") for n in range(5)]
    assert "#1 to #5 find street=Elm 0; Elm 1" in thread(*calls).tell(99, 200).text


def test_places_of_parts_that_were_read_stand_behind_their_file():
    places = [("a/app.py", 1), ("a/app.py", 40), ("b/errors.py", 7), ("a/app.py", 80), ("a/app.py", 1)]
    calls = [("Read", {"file_path": path, "offset": line, "limit": 30}, "x") for path, line in places]
    text = thread(*calls, ("Read", {"file_path": "c/main.py"}, "x")).tell(99, 200).text
    line = next(line for line in text.split("\n") if " Read " in line)
    assert line.count("a/app.py") == 1 and "c/main.py" in line
    assert re.search(r"a/app\.py, .*offset=40; offset=80; b/errors\.py; c/main\.py", line)


def test_values_that_differ_late_are_shown_so_far():
    paths = [f"/a/very/long/path/of/the/whole/repository/{n}.py" for n in ("one", "two")]
    text = thread(*[("Read", {"path": path}, "x") for path in paths]).tell(99, 200).text
    assert "#1, #2 Read path=/a/very/long/path/of/the…/one.py; /a/very/long/path/of/the…/two.py" in text
    texts = ["the whole list of the customers in " + city for city in ("Oslo", "Bonn")]
    text = thread(*[("find", {"text": each}, "x") for each in texts]).tell(99, 200).text
    assert "customers in Oslo" in text and "customers in Bonn" in text


def test_changes_are_told_before_look_ups_and_the_rest_is_counted():
    made = thread(*REFUNDS, *[("get_order", {"id": f"ORD-{n}"}, "{}") for n in range(400)])
    told = made.tell(999, 160)
    assert set(range(1, 10)) <= told.named
    assert len(told.named) < 409
    assert re.search(r"besides ×\d+ #10 to #\d+", told.text)


def test_an_error_is_told_with_its_words():
    text = thread(("send_email", {"to": "a@b.c"}, "Error: mailbox is full")).tell(9, 100).text
    assert "#1 send_email to=a@b.c → error: mailbox is full" in text


def test_calls_shown_elsewhere_and_later_calls_are_left_out():
    made = thread(*REFUNDS)
    text = made.tell(5, 300, shown={1, 2}).text
    assert "ORD-1" not in text
    assert "#3 issue_refund" in text
    assert "#5" not in text


def test_the_latest_plan_and_decisions_stay_as_they_were_written():
    items = [("Check ORD-1", "completed"), ("Refund", "pending")]
    todo = {"todos": [{"content": content, "status": status} for content, status in items]}
    decision = "The root cause is the carrier's delay, not the shop.\n"
    notes = {2: f"I looked at both. {decision}Next I look at ORD-3."}
    made = thread(("TodoWrite", {"todos": []}, "ok"), ("TodoWrite", todo, "ok"), *LOOKS, notes=notes)
    text = made.tell(99, 600).text
    assert "- [x] Check ORD-1\n- [ ] Refund\n" in text
    assert decision in text and "Next I look" not in text


def test_items_that_are_done_share_a_line_where_the_plan_is_too_long_for_its_room():
    items = [
        {"step": f"Step {n} of the work", "status": "completed" if n < 7 else "pending"} for n in range(1, 10)
    ]
    made = thread(("update_plan", {"plan": items}, "ok"), *LOOKS)
    assert "- [x] Step 3 of the work\n" in made.tell(99, 900).text
    text = made.tell(99, 300).text
    assert "- [x] 1 to 6 done, the last: Step 6 of the work\n- [ ] Step 7 of the work\n" in text


def test_tasks_that_calls_make_and_change_one_by_one_are_one_plan_and_take_no_lines():
    calls = [
        ("TaskCreate", {"subject": f"Part {n}"}, f"Task #{n} created successfully: Part {n}")
        for n in range(1, 6)
    ]
    calls += [
        ("TaskUpdate", {"taskId": str(n), "status": "completed"}, f"Updated task #{n}") for n in range(1, 5)
    ]
    calls += [("TaskUpdate", {"taskId": "5", "status": "in_progress"}, "Updated task #5 status")]
    made = thread(*calls)
    text = made.tell(99, 600).text
    assert "The agent's latest plan:\n- [x] 1 to 4 done\n- [~] 5. Part 5\n" in text
    assert text.count("TaskUpdate") == 1 and text.count("TaskCreate") == 1
    assert "- [ ] 5. Part 5" in made.tell(10, 600).text  # as it was then
    gone = thread(*calls, ("TaskUpdate", {"taskId": "5", "status": "deleted"}, "Updated")).tell(99, 600).text
    assert "Part 5\n" not in gone.partition("plan:")[2]


def test_the_state_of_the_task_tells_files_and_what_failed_last():
    def edit(n: int, path: str) -> tuple[str, object, str]:
        text = {"file_path": path, "old_string": f"a{n}", "new_string": "b"}
        return "Edit", text, f"The file {path} has been updated."

    calls = [
        ("Write", {"file_path": "/tmp/try.py", "content": "x"}, "File created successfully at: /tmp/try.py"),
        *[edit(n, "/w/src/cart.py") for n in range(3)],
        ("bash", {"command": "sed -i 's/a/b/' src/price.py"}, ""),
        ("bash", {"command": "cd /w && make lint"}, "Exit code 2\nmake: *** [lint] Error 2"),
        ("bash", {"command": "pytest -q 2>&1 | tail -3"}, "1 failed, 6 passed in 0.3s"),
        ("bash", {"command": "pytest -q"}, "7 passed in 0.3s"),
    ]
    text = thread(*calls).tell(99, 900).text
    assert "The state of the task:\nfiles changed: try.py (made), cart.py ×3, price.py\n" in text
    assert "failed last: make lint (#6)\n" in text and "failed last: pytest" not in text
    assert "failed last: pytest -q (#7)" in thread(*calls[:7]).tell(99, 900).text


def test_a_file_that_was_read_before_it_was_written_was_not_made():
    calls = [
        ("get_file", {"path": "about.md"}, "# About"),
        ("get_file", {"path": "new.md"}, "Error: no such file"),
        *(("write_file", {"path": path, "content": "# New"}, "written") for path in ("about.md", "new.md")),
    ]
    assert "files changed: about.md, new.md (made)\n" in thread(*calls).tell(99, 900).text


def test_a_line_names_the_file_of_a_call_before_its_other_arguments():
    calls = [("get_file", {"path": "pages/of/the/site/about.md"}, "# About")] * 2
    given = {key: f"a-long-{key}-of-a-home" for key in ("owner", "repo", "branch")} | {
        "path": "pages/of/the/site/about.md"
    }
    calls += [("put_file", given | {"content": f"{n} of a text that goes on"}, "done") for n in range(3)]
    lines = [line for line in thread(*calls).tell(99, 2_000).text.split("\n") if " put_file " in line]
    assert len(lines) == 3 and all("/about.md" in line for line in lines)


@pytest.mark.parametrize(
    ("command", "stays"),
    [
        ("make build && pytest -q", False),
        ("pytest -q", False),
        ("cd /w; rm -rf out; pytest -q 2>&1 | tail -3", False),
        ("make build", True),
        ("pytest -q tests/test_cart.py", True),
        ("python -c 'import cart; cart.run() && pytest -q'", True),
    ],
)
def test_a_list_of_commands_no_longer_failed_last_when_its_last_command_has_run_well(command, stays):
    calls = [
        ("bash", {"command": "make build && pytest -q"}, "1 failed, 6 passed in 0.3s"),
        ("bash", {"command": command}, "done in 0.3s"),
    ]
    text = thread(*calls).tell(99, 900).text
    assert ("failed last: make build && pytest -q (#1)" in text) == stays


def test_the_message_of_a_commit_makes_no_file():
    commit = "git commit -m \"$(cat <<'EOF'\nFix it\n\nCo-Authored-By: A <a@a.example>\nEOF\n)\""
    calls = [("bash", {"command": c}, "") for c in ("echo 1 > a.txt", "echo 2 > b.txt", commit)]
    assert "files changed: a.txt (made), b.txt (made)\n" in thread(*calls).tell(99, 900).text


def test_files_of_one_name_are_told_with_the_folders_that_differ():
    calls = [
        ("Write", {"file_path": f"/w/{name}/scripts/run.sh", "content": name}, "File created successfully")
        for name in ("a", "b")
    ]
    assert (
        "files changed: a/scripts/run.sh (made), b/scripts/run.sh (made)\n"
        in thread(*calls).tell(99, 900).text
    )


def test_a_numbered_plan_and_what_is_left_are_told_where_no_plan_has_states():
    said = "The remaining steps are:\n\n1. Read the ledger\n2. Pay both\n\nI begin."
    text = thread(*LOOKS, notes={2: said}).tell(99, 600).text
    assert "The agent's latest plan:\n- Read the ledger\n- Pay both\n" in text
    assert "- the second refund\n" in thread(*LOOKS, notes={2: "Left: the second refund"}).tell(99, 600).text
    todo = {"todos": [{"content": "Check all", "status": "pending"}]}
    text = thread(("TodoWrite", todo, "ok"), *LOOKS, notes={2: said}).tell(99, 600).text
    assert "- [ ] Check all\n" in text and "Pay both" not in text


def test_sentences_that_begin_with_a_pronoun_are_not_quoted():
    assert list(
        decisions_in("It is not the shop, because the carrier lost it. The cause is the carrier.")
    ) == ["The cause is the carrier."]


def test_plans_of_other_shapes():
    assert plan_in_call("update_plan", '{"plan": [{"step": "a b", "status": "in_progress"}]}') == "- [~] a b"
    assert plan_in_call("get_order", '{"plan": ["a"]}') == ""
    assert plan_in_text("Plan:\n1. [x] one\n2. [ ] two\nwell") == "- [x] one\n- [ ] two"
    assert list(decisions_in("Short. I decided to use version 1.2.3 instead of 2.0 here.")) == [
        "I decided to use version 1.2.3 instead of 2.0 here."
    ]


def test_ranges():
    assert ranges([1, 2, 4, 5, 6, 9]) == "#1, #2, #4 to #6, #9"
    assert ranges(range(1, 40, 2)) == "#1, #3, #5, …, #37, #39"


@pytest.mark.parametrize(
    ("budget", "calls", "room"),
    [(4000, 5, 800), (3000, 5, 700), (4000, 60, 840), (40_000, 5, 8_000), (2000, 500, 500), (500, 5, 125)],
)
def test_the_room_of_the_thread_is_at_most_a_quarter(budget, calls, room):
    assert thread_room(budget, calls) == room


_CALLS = st.lists(
    st.tuples(st.sampled_from(["get_order", "send_email", "bash", "x"]), TEXT | JSON.map(json.dumps), TEXT),
    max_size=30,
)


@examples(150)
@given(_CALLS, st.integers(0, 400), st.sets(st.integers(1, 30)))
def test_the_thread_keeps_its_room_and_names_what_it_says_it_tells(calls, room, shown):
    made = thread(*calls)
    told = made.tell(99, room, shown)
    assert told.tokens == count(told.text) <= room
    assert not told.named & shown
    if room >= 60 + 40 * len(calls):
        assert told.named == set(range(1, len(calls) + 1)) - shown
    hidden = set(range(1, len(calls) + 1)) - shown
    if room >= 20 and hidden:
        assert f"#{min(hidden)}" in told.text
        assert f"#{max(hidden)}" in told.text


# outcomes

LINES = [{"sku": f"SKU-{n}0071", "count": n} for n in range(9)]
UUID = "1879e1f3-c444-45fa-9e5b-ae644e57a0b1"
OTHERS = {"when": "2026-03-01", "at": "2026-03-01T17:54:23Z", "took": "40000ms", "who": "Ann Lee 2"}


@pytest.mark.parametrize(
    ("output", "told"),
    [
        (
            {"state": "open", "name": "Ann", "count": 3, "ticket_id": "TCK-17"},
            "state=open, ticket_id=TCK-17, name=Ann",
        ),
        ({"order": "<order 7>", "payment": "PAY-U6FJHRHDFD", "lines": LINES}, "payment=PAY-U6FJHRHDFD"),
        ({"id": UUID, "state": "open"}, f"state=open, id={UUID}"),
        ("Paid by: ann@example.com\n" + "a line\n" * 9, "Paid by=ann@example.com"),
        ({**OTHERS, "lines": LINES}, "lines: 9 items"),
        (
            "Order shipped\nTracking number: TRK-90017\nState: on its way\n" + "by the door\n" * 20,
            "State=on its way, Tracking number=TRK-90017",
        ),
        ("State: on its way\n" + "by the door\n" * 20, "State: on its way (21 lines)"),
    ],
)
def test_an_outcome_tells_the_state_first_then_ids_by_key_or_spelling_and_labels_beside_an_id(output, told):
    assert outcome(output if isinstance(output, str) else json.dumps(output))[0] == told


def test_outcomes_do_not_repeat_what_earlier_ones_or_the_arguments_told():
    def found(n: int) -> str:
        order = {"order_id": f"ORD-{n}", "customer_id": "CUS-7", "payment_id": f"PAY-{n}", "state": "open"}
        return json.dumps(order)

    made = thread(*[("get_order", {"order_id": f"ORD-{n}"}, found(n)) for n in range(3)])
    assert made.outcome_of(1) == "state=open, customer_id=CUS-7, payment_id=PAY-0"
    assert made.outcome_of(2) == "payment_id=PAY-1"
    assert made.outcome_of(3) == "payment_id=PAY-2"
    # another tool tells them again
    other = thread(("get_order", {}, found(1)), ("find_order", {}, found(1)))
    assert other.outcome_of(1) == other.outcome_of(2)


FOUND = st.dictionaries(
    st.sampled_from(["id", "order_id", "state", "note", "ref"]),
    st.sampled_from(["A-1", "B-22", "open", "C-3"]),
)


@examples(80)
@given(st.lists(st.tuples(st.sampled_from(["get_order", "find"]), FOUND, FOUND), max_size=12), st.booleans())
def test_no_value_is_told_by_two_outcomes_of_a_tool(calls, labels):
    def text(found: dict[str, str]) -> str:
        lines = "".join(f"{k}: {v}\n" for k, v in found.items()) + "nothing else to tell\n" * 30
        return lines if labels else json.dumps(found)

    made = thread(*[(tool, arguments, text(found)) for tool, arguments, found in calls])
    seen: dict[str, list[str]] = {}
    for n, (tool, arguments, _) in enumerate(calls, 1):
        values = [part.partition("=")[2] for part in made.outcome_of(n).split(", ") if "=" in part]
        ids = [any(map(str.isdigit, v)) for v in values]
        if labels or all(ids[: sum(ids)]):
            assert not set(values) & set(arguments.values())
            assert not set(values) & set(seen.get(tool, ()))
        seen.setdefault(tool, []).extend(values)


def test_calls_that_brought_back_ids_have_room_of_their_own():
    looks = [("find", {"page": n}, json.dumps({"match_id": f"M-{n:03}"})) for n in range(20)]
    made = thread(*LOOKS, *looks)
    assert "M-0" not in made.tell(99, 90).text
    told = made.tell(99, 90, extra=300)
    assert told.text.count("match_id=M-0") >= 15
    assert "match_id=M-019" in told.text  # the newest first
    assert told.tokens <= 390


@examples(100)
@given(_CALLS, st.integers(0, 400), st.integers(0, 300), st.sets(st.integers(1, 30)))
def test_what_was_told_first_has_its_lines_still_when_other_calls_are_shown_elsewhere(
    calls, room, ids, shown
):
    made = thread(*calls)
    first = made.tell(99, room, (), ids)
    assert count(first.text) == first.tokens <= room + ids
    assert first.lines <= first.named
    then = made.tell(99, room, shown, ids, first)
    assert count(then.text) == then.tokens <= room + ids
    assert not (then.named | then.lines) & shown
    assert made.tell(99, room, shown, ids, first) == then


def test_an_id_that_the_list_told_is_not_lost_when_other_calls_are_shown_elsewhere():
    """By one tool, with commands that only differ late."""

    def shop(command: str, found: str) -> tuple[str, object, str]:
        return "bash", {"command": f"shop {command}"}, found + "\n" + "x\n" * 9

    calls = []
    for n in range(12):
        calls.append(shop(f"get-order --order_id ORD-{n}", f"Customer id: CUS-{n:03}"))
        calls.append(shop(f"get-payment --payment_id PAY-{n}", f"Charge id: CHG-{n:03}"))
    calls += [
        shop(f"issue-refund --charge_id CHG-{n:03}", f"Refund id: RFD-{n} State: done") for n in range(12)
    ]
    made = thread(*calls)
    for ids in range(100, 600, 100):
        first = made.tell(99, 400, (), ids)
        then = made.tell(99, 400, set(range(1, 20, 2)), ids, first)
        for n in range(1, 37):
            if n in first.lines and n not in range(1, 20, 2):
                assert n in then.lines
