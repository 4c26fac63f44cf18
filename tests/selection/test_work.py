"""How the work of the selection grows, what is kept from step to step, and what bounds it."""

from __future__ import annotations

import json
import sys
from collections import Counter
from functools import partial

import pytest
from tests.chats import call, result, user
from tests.examples import first_short
from tests.growth import LINEAR, growth
from tests.selection.texts import filled

from memory_bank import MemoryProcessor
from memory_bank.selection import thread
from memory_bank.selection.cutting import LONGEST_KEY
from memory_bank.selection.values import fold, forms_in, parse_record, stands_in

ODD = {
    "rows": lambda n: json.dumps([{"id": f"A-{i}", "name": "Ann Lee"} for i in range(n // 33)]),
    "a long key": lambda n: json.dumps({"k" * (n // 2): [f"id-{i}" for i in range(n // 24)]}),
    "nested keys": lambda n: '{"a":' * (n // 5),
    "hyphens": lambda n: "a-" * (n // 2),
    "labels": lambda n: "key: value\n" * (n // 11),
    "escapes": lambda n: '\\"' * (n // 2),
    "calls": lambda n: "f(" * (n // 2),
}
UNITS = ("'", '="\\"', "{", "/", "a.b-", "word A-1 ", "x", "\\n", "[1,", "a/b-c.d ")


@pytest.mark.parametrize("kind", [*ODD, *first_short(UNITS, 2)])
def test_parsing_and_indexing_an_output_is_linear_in_its_size(kind):
    def work(size: int) -> None:
        text = ODD[kind](size) if kind in ODD else kind * (size // len(kind))
        filled(("get", text[:3_000], text, text[:3_000]), count=len)

    assert growth(work, 64_000) < LINEAR


@pytest.mark.parametrize("unit", ["\\", '\\"', "\\\\n", "\\a", "'", "[{", "a.", "1,", "\\u005c"])
def test_the_values_of_arguments_are_found_in_linear_time(unit):
    assert growth(lambda n: forms_in(unit * (n // len(unit))), 256_000) < LINEAR


@pytest.mark.parametrize(
    "output",
    [
        json.dumps({"k" * 9_000: [f"id-{i}" for i in range(900)]}),
        json.dumps({"k" * 9_000: {"a": [{"k" * 9_000: f"id-{i}"} for i in range(9)]}}),
        f"| {'k' * 9_000} | b |\n|---|---|\n" + "".join(f"| id-{i} | x-{i} |\n" for i in range(300)),
        json.dumps([["k" * 9_000, "b"], *([f"id-{i}", i] for i in range(300))]),
    ],
)
def test_a_long_key_is_not_kept_with_each_of_its_values(output):
    record = parse_record(1, output, len)
    assert max(len(c.key) for found in record.candidates for c in found) <= LONGEST_KEY
    assert max(len(key) for s in record.cut.segments for key, _, _ in s.cells) <= LONGEST_KEY


def test_what_a_thread_keeps_does_not_change_what_it_tells():
    def add(to: thread.Thread, number: int) -> None:
        arguments = json.dumps({"path": f"/src/a/{number % 7}.py", "n": number // 3, "mode": "x" * 40})
        tool = ("read_file", "write_file", "run")[number % 3]
        to.add(number=number, interaction=number, tool=tool, arguments=arguments, output=f"ok {number}")

    growing = thread.Thread(len)
    for number in range(1, 60):
        add(growing, number)
        shown = {n for n in range(1, number) if n % (1 + number % 5) == 1}
        new = thread.Thread(len)
        for n in range(1, number + 1):
            add(new, n)
        for room in (300, 900, 4000):
            assert growing.tell(number, room, shown) == new.tell(number, room, shown)


def test_values_are_compared_with_the_anchor_as_a_search_does():
    output = "A-17, /src/a-b.py x.y@z.org #tag 2024-01-05 (Ann Lee) snake_case B-170 99.5 src q1"
    tables = filled(("get", {"path": "src/a-b.py", "n": 995.5}, output)).tables
    for anchor in (
        ["a-17 ann lee"],
        ["see /src/a-b.py.", "x.y@z.org99.5"],
        ["#tag B-1700 snake_case", "Ann\n Lee 99.5"],
        [""],
    ):
        tables.set_anchor(anchor)
        text, forms = fold("\n".join(anchor)), {form for text in anchor for form in forms_in(text)}
        assert tables.values["visible"].tolist() == [f in forms or stands_in(f, text) for f in tables.forms]


def test_a_turn_that_stays_as_it_was_is_shortened_once():
    processor = MemoryProcessor()
    messages = [user("Check the orders.")]

    def run() -> None:
        for n in range(60):
            rows = json.dumps([{"order": f"O-{n}-{i}", "total": i} for i in range(30)])
            messages.extend([call((f"c{n}", "get_orders", {"page": f"P-{n}"})), result(f"c{n}", rows)])
            processor.apply_strategy(messages)

    assert called_by(run)["shorten_turn"]
    assert not called_by(lambda: processor.apply_strategy(messages))["shorten_turn"]


def called_by(work) -> Counter[str]:
    """How often ``work`` calls the Python functions of a name."""
    count = Counter()

    def note(frame, event, _arg) -> None:
        if event == "call":
            count[frame.f_code.co_name] += 1

    before = sys.getprofile()
    sys.setprofile(note)
    work()
    sys.setprofile(before)
    return count


def calls_of(work) -> int:
    """How many Python functions ``work`` calls."""
    return called_by(work).total()


def test_a_late_step_takes_at_most_about_twice_the_work_of_an_early_one():
    """Counted in calls of functions: no time. A step between two folds, and the mean of some with their folds."""
    processor = MemoryProcessor()
    messages = [user("Check the orders.")]
    work, folds, before = [], [], 0
    for n in range(240):
        rows = json.dumps([{"order": f"O-{n}-{i}", "total": i, "note": "as agreed"} for i in range(10)])
        messages += [call((f"c{n}", "get_orders", {"page": f"P-{n}"})), result(f"c{n}", rows)]
        work.append(calls_of(partial(processor.apply_strategy, messages)))
        tokens = processor.state("memory_bank").last_plan.tokens
        folds.append(tokens < before)
        before = tokens
    between = [w for w, fold in zip(work, folds, strict=True) if not fold]
    early, late = between[80:130], between[-50:]  # some folds each
    assert sum(late) / sum(early) < 2.2
    assert sum(work[-60:]) / sum(work[30:90]) < 2.5
    assert any(folds[-60:]) and any(folds[30:90])


def test_the_texts_of_a_list_that_are_counted_are_bounded():
    """However long the session is: calls beyond MOST_NAMED are counted."""
    texts = []

    def count(text: str) -> int:
        texts.append(text)
        return len(text)

    def counted(calls: int) -> int:
        told = thread.Thread(count)
        for number in range(1, calls + 1):
            arguments = json.dumps({"order": f"ORD-{number}"})
            output = json.dumps({"refund_id": f"R-{number}"})
            tool = ("issue_refund", "get_order")[number % 2]
            told.add(number=number, interaction=number, tool=tool, arguments=arguments, output=output)
        texts.clear()
        told.tell(calls + 1, 4_000, (), 4_000)
        return len(texts)

    assert counted(3_000) <= counted(1_500) + 2 <= 4 * thread.MOST_NAMED
