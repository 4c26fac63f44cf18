"""What an agent can act on: calls told, and copied text, on made-up traces whose shares are counted by hand."""

import json
import math

import pytest
from benchmarks.measuring.copies import SHORTEST, TextIndex, as_copied, covered, stretches
from benchmarks.measuring.stale import FileQuotes
from benchmarks.measuring.strategies import parse_strategy
from hypothesis import given
from hypothesis import strategies as st

from memory_bank.audit.traces import Trace
from tests.benchmarks import load

acting = load("acting")
PastCall, acting_figures, acting_turns = acting.PastCall, acting.acting_figures, acting.acting_turns
told, words_to_tell = acting.told, acting.words_to_tell
CODE = "def total(orders):\n    return sum(o.price for o in orders)\n"
NOTE = "The totals of March were computed twice, so I compare them."


def turn(i, name, said=None, **arguments):
    call = {"id": i, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
    return {"role": "assistant", "content": said, "tool_calls": [call]}


def result(i, text):
    return {"role": "tool", "tool_call_id": i, "content": text}


def trace():
    """Three interactions before the turn that copies from the first output (over a line end) and from the second
    call's own argument; the task's sentence is copied too, which needs no memory."""
    task = "Compare the totals of all orders in the shop's ledger."
    own = "select id, price from orders where price > 100"
    return Trace(
        "t",
        [
            {"role": "user", "content": task},
            turn("a", "read_file", path="shop/totals.py"), result("a", CODE),
            turn("b", "query_db", NOTE, sql=own), result("b", "3 rows"),
            turn("c", "send_email", to="ada@example.org"), result("c", "sent"),
            turn("d", "write_file", path="out.txt", text=f"{task} {own}\n{CODE}"), result("d", "ok"),
            {"role": "assistant", "content": "Done."},
        ],
    )  # fmt: skip


def test_the_needs_of_a_turn_by_hand():
    turns = acting_turns(trace())
    assert [t.position for t in turns] == [3 + 2, 7, 9]
    assert [len(t.past) for t in turns] == [1, 2, 3]
    write = turns[1]
    assert write.from_outputs == (CODE,)
    assert write.from_own == ("select id, price from orders where price > 100",)
    assert turns[2].from_outputs == turns[2].from_own == ()  # an answer copies nothing
    assert [t.silent for t in turns] == [(0, 1), (0, 1), (0, 1)]


def test_outcomes_that_say_nothing_are_counted(config, counter):
    messages = [*trace().messages[:-3], *[m for n in "efg" for m in (turn(n, "log", n=n), result(n, "ok"))]]
    strategy = parse_strategy("full", config)
    done = Trace("t", [*messages, {"role": "assistant", "content": "Done."}])
    f = acting.measure_acting([done], [strategy], counter=counter)[0].figures
    assert (f.outcomes, f.silent) == (5, 2 / 5)
    assert "say nothing: 40.0% of 5" in acting.METER.counts(f)


@pytest.mark.parametrize(
    ("toy", "outputs", "own", "lines", "told_all"),
    [
        ("whole", 1, 1, 1, 1),
        ("keep_last", 0, 0, 0, 0),
        ("keep_last?n=2", 0, 1, 0, (1 + 1 / 2 + 1 / 3) / 3),
        ("shorten?chars=33", 33 / 59, 1, 33 / 59, 1),
        ("raises", 0, 0, 0, 0),
    ],
)
def test_figures_by_hand(config, counter, toy, outputs, own, lines, told_all):
    strategy = parse_strategy(f"tests.benchmarks.toys:{toy}", config)
    f = acting.measure_acting([trace()], [strategy], counter=counter)[0].figures
    assert (f.characters_outputs, f.characters_own, f.characters_over_lines) == (59, 46, 59)
    assert (f.copied_outputs, f.copied_own, f.copied_over_lines) == (outputs, own, lines)
    assert f.copied == pytest.approx((outputs * 59 + own * 46) / 105)
    assert f.told == pytest.approx(told_all)
    assert f.exceptions == (3 if toy == "raises" else 0)


def test_the_price_is_what_stands_beyond_anchor_and_last_interaction(config, counter):
    strategies = [parse_strategy(n, config) for n in ("full", "tests.benchmarks.toys:keep_last")]
    full, last = (m.figures for m in acting.measure_acting([trace()], strategies, counter=counter))
    assert (full.share_of_history, last.share_of_history) == (1, 0)


def test_no_turn_no_share():
    f = acting_figures([])
    assert math.isnan(f.told)
    assert f.as_dict()["copied"] is None


# told


def test_what_changes_something():
    changing = [
        ("send_email", ["ada"]), ("sendEmail", ["ada"]), ("mail-send", []), ("Bash", ["ls -l && rm -r build"]),
        ("Bash", ["echo 1 > out.txt"]), ("Bash", ["cd shop\nsed -i s/a/b/ x"]),
        ("execute_sql", ["UPDATE orders SET price = 1"]), ("python", ["open('a.txt', 'w')"]),
    ]  # fmt: skip
    reading = [
        ("sender_info", []), ("get_posts", []), ("Bash", ["grep -n rm notes.txt"]), ("execute_sql", ["SELECT 1"]),
        ("python", ["open('a.txt')"]), ("lookup", ["rm -r build"]),  # runs no code
    ]  # fmt: skip
    assert [call for call in [*changing, *reading] if acting.changes_something(*call)] == changing


def test_a_call_is_told_by_its_name_and_its_rarest_value():
    gets = [PastCall("get", ("shop", f"order-{n}"), False) for n in (1, 2)]
    calls = [*gets, PastCall("put", (), True)]
    wanted = words_to_tell(calls)
    assert [values for _, values in wanted] == [("order-1",), ("order-2",), ()]
    assert told(wanted, ["#1 get order-1", "put: ok"]) == [True, False, True]
    assert told(wanted, ["#1 get", "order-1"]) == [False, False, False]  # not in one line


def test_equal_calls_need_a_second_value():
    calls = [PastCall("get", ("shop", "order-1"), False)] * 2
    assert [values for _, values in words_to_tell(calls)] == [("order-1", "shop")] * 2


def test_native_calls_are_lines_and_outputs_are_not():
    context = [turn("a", "get", "first\nsecond", order="A B"), result("a", "not this")]
    assert acting.lines_of(context) == ["get a b", "first", "second"]
    assert [c.values for c in acting.past_calls(context[0])] == [("A B",)]


# copied


def test_escapes_are_undone_at_any_depth():
    code = 'if x:\n    y = "é"  \n    return y'
    copied = as_copied(json.dumps(json.dumps({"code": code}))).strip('\\"{}')
    assert copied == 'code": "if x:\n    y = "é"\n    return y'


TEXTS = st.text(alphabet="ab \n", max_size=120)


@given(st.lists(TEXTS, max_size=6), TEXTS)
def test_stretches_stand_in_the_texts_and_are_as_long_as_can_be(texts, text):
    index = TextIndex()
    for t in texts:
        index.add(t)
    found = list(stretches(text, index))
    assert covered(text, index) == sum(map(len, found)) <= len(text)
    start = 0
    for stretch in found:
        assert len(stretch) >= SHORTEST
        assert any(stretch in t for t in texts)
        before = text.index(stretch, start)
        for i in range(start, before):
            assert not any(text[i : i + SHORTEST] in t for t in texts)
        start = before + len(stretch)
    assert not any(text[i : i + SHORTEST] in t for t in texts for i in range(start, len(text) - SHORTEST + 1))


def test_any_characters_can_be_looked_up():
    index = TextIndex()
    odd = "\ud800\x00é😀" * 10
    index.add(odd)
    assert covered(odd, index) == len(odd)
    assert covered("x" * 40, index) == 0


def test_quotes_of_edited_files_count_unless_they_say_so_or_are_up_to_date():
    lines = [f"     {n}\tvalue_of_line_{n} = {n}" for n in range(1, 9)]
    edit = turn(
        "e", "Edit", file_path="/a.py", old_string="value_of_line_2 = 2", new_string="changed = 2\nmore = 3"
    )
    run = [turn("r", "Read", file_path="/a.py"), result("r", "\n".join(lines)), edit, result("e", "ok")]
    files = FileQuotes()
    for message in run:
        files.add(message)

    def quoted(*shown, after=()):
        return files.quoted([run[0], result("r", "\n".join([*shown, "[… #1]"])), *after])

    assert quoted(lines[1]) == (0, 1)  # the line that went
    assert quoted(lines[4]) == (0, 1)  # its number went
    assert quoted(lines[0]) == (1, 1)
    assert quoted(lines[1], "[… #1, before edit #2]") == (1, 1)
    assert quoted(lines[4].replace("5", "6", 1)) == (1, 1)
    assert quoted(lines[4], after=[edit]) == (0, 0)  # the edit stands after it
    assert files.quoted(run[:2]) == (0, 0)  # as it came
