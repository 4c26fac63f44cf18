"""The thread: every call is told in few tokens, changes first, and nothing disappears silently."""

import json
import re

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.chats import JSON, TEXT

from memory_bank.selection.plans import decisions_in, plan_in_call, plan_in_note
from memory_bank.selection.thread import Thread, ranges, thread_room


def count(text: str) -> int:
    return (len(text) + 3) // 4


def thread(*calls: tuple[str, object, str], notes: dict[int, str] | None = None) -> Thread:
    made = Thread(count)
    for n, (tool, arguments, output) in enumerate(calls, 1):
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        note = (notes or {}).get(n, "")
        made.add(number=n, interaction=n, tool=tool, arguments=text, output=output, note=note)
    return made


REFUNDS = [
    ("issue_refund", {"order": f"ORD-{n}", "reason": "late"}, f'{{"refund_id": "R{n}"}}') for n in range(9)
]
LOOKS = [("get_order", {"id": f"ORD-{n}"}, '{"state": "late"}') for n in range(9)]


def test_changes_stand_on_their_own_lines_and_look_ups_share_one():
    text = thread(*LOOKS, *REFUNDS).tell(99, 500).text
    assert "#10 issue_refund order=ORD-0, reason=late → refund_id=R0\n" in text
    assert "\nget_order #1 to #9 id=ORD-0; ORD-1; ORD-2;" in text


def test_what_distinguishes_a_call_is_told_not_its_first_argument():
    calls = [("find", {"city": "Oslo", "limit": 10, "street": f"Elm {n}"}, "[]") for n in range(5)]
    assert "find #1 to #5 street=Elm 0; Elm 1" in thread(*calls).tell(99, 200).text


def test_values_that_differ_late_are_shown_so_far():
    calls = [
        ("Read", {"path": f"/a/very/long/path/of/the/whole/repository/{n}.py"}, "x") for n in ("one", "two")
    ]
    assert "Read #1, #2 path=/a/very/long/path/of/the…/one.py; /a/very/long/path/of/the…/two.py" in (
        thread(*calls).tell(99, 200).text
    )
    words = [
        ("find", {"text": "the whole list of the customers in " + city}, "x") for city in ("Oslo", "Bonn")
    ]
    text = thread(*words).tell(99, 200).text
    assert "customers in Oslo" in text
    assert "customers in Bonn" in text


def test_changes_are_told_before_look_ups_and_the_rest_is_counted():
    made = thread(*REFUNDS, *[("get_order", {"id": f"ORD-{n}"}, "{}") for n in range(400)])
    told = made.tell(999, 160)
    assert set(range(1, 10)) <= told.told
    assert len(told.told) < 409
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
    assert made.changed(5) == [1, 2, 3, 4]


def test_the_latest_plan_and_decisions_stay_as_they_were_written():
    todo = {
        "todos": [
            {"content": "Check ORD-1", "status": "completed"},
            {"content": "Refund", "status": "pending"},
        ]
    }
    notes = {
        2: "I looked at both. The root cause is the carrier's delay, not the shop.\nNext I look at ORD-3."
    }
    made = thread(("TodoWrite", {"todos": []}, "ok"), ("TodoWrite", todo, "ok"), *LOOKS, notes=notes)
    text = made.tell(99, 600).text
    assert "- [x] Check ORD-1\n- [ ] Refund\n" in text
    assert "The root cause is the carrier's delay, not the shop.\n" in text
    assert "Next I look" not in text


def test_plans_of_other_shapes():
    assert plan_in_call("update_plan", '{"plan": [{"step": "a b", "status": "in_progress"}]}') == "- [~] a b"
    assert plan_in_call("get_order", '{"plan": ["a"]}') == ""
    assert plan_in_note("Plan:\n1. [x] one\n2. [ ] two\nwell") == "- [x] one\n- [ ] two"
    assert list(decisions_in("Short. I decided to use version 1.2.3 instead of 2.0 here.")) == [
        "I decided to use version 1.2.3 instead of 2.0 here."
    ]


def test_ranges():
    assert ranges([1, 2, 4, 5, 6, 9]) == "#1, #2, #4 to #6, #9"
    assert ranges(range(1, 40, 2)) == "#1, #3, #5, …, #37, #39"


def test_the_room_of_the_thread():
    assert thread_room(4000, 5) == 800
    assert thread_room(3000, 5) == 700
    assert thread_room(4000, 60) == 840
    assert thread_room(40_000, 5) == 8_000
    assert thread_room(2000, 500) == 500  # at most a quarter
    assert thread_room(500, 5) == 125


_CALLS = st.lists(
    st.tuples(st.sampled_from(["get_order", "send_email", "bash", "x"]), TEXT | JSON.map(json.dumps), TEXT),
    max_size=30,
)


@settings(max_examples=150)
@given(_CALLS, st.integers(0, 400), st.sets(st.integers(1, 30)))
def test_the_thread_keeps_its_room_and_names_what_it_says_it_tells(calls, room, shown):
    made = thread(*calls)
    told = made.tell(99, room, shown)
    assert told.tokens == count(told.text) <= room
    assert not told.told & shown
    if room >= 60 + 40 * len(calls):
        assert told.told == set(range(1, len(calls) + 1)) - shown
    hidden = set(range(1, len(calls) + 1)) - shown
    if room >= 20 and hidden:
        assert f"#{min(hidden)}" in told.text
        assert f"#{max(hidden)}" in told.text
