"""Which values of a call may be evidence, and in which forms."""

import json
import time

import pytest

from memory_bank.lab.meter.text import call_values, forms_of, identifiers, is_trivial, leaves


@pytest.mark.parametrize(
    "value",
    ["", "ab", "12", "100", "2024", "1999", "-7", "25000", "1500", "0.5", "1.50", "true", "None", "NaN", "abc", "Error", " x ", "utf-8", "UTF-8"],
)  # fmt: skip
def test_trivial(value):
    assert is_trivial(value)


@pytest.mark.parametrize(
    "value", ["Abc", "123", "2124", "1501", "12.55", "a1b", "a b", "#12", "x_y", "ABC", "-345"]
)
def test_not_trivial(value):
    assert not is_trivial(value)


@pytest.mark.parametrize(
    ("value", "forms"),
    [
        ("12.0", ["12.0", "12"]),
        ("149.5", ["149.5", "149.50"]),
        ("149.50", ["149.50", "149.5"]),
        ("149.55", ["149.55"]),
        ("10.00", ["10.00"]),
        ("CUS-1", ["cus-1"]),
    ],
)
def test_forms(value, forms):
    assert list(forms_of(value)) == forms


def test_leaves_open_nested_json_and_leave_truth_out():
    value = {"a": [1, 2.50, True, None], "b": '{"c": "[\\"deep\\"]"}', "d": "{no json", "e": "  padded "}
    assert list(leaves(value)) == [
        ("1", True),
        ("2.5", True),
        ("deep", False),
        ("{no json", False),
        ("padded", False),
    ]


def test_leaves_of_what_is_very_deep_or_very_large():
    text = "[" * 100_000
    assert list(leaves(text)) == [(text, False)]
    deep: object = "end"
    for _ in range(50_000):
        deep = [deep]
    assert list(leaves(deep)) == [("end", False)]
    assert [t for t, _ in leaves(10**6000)] == [""]


@pytest.mark.parametrize(
    ("text", "token"),
    [
        ("see https://x.org/a?b=1 now", "https://x.org/a?b=1"),
        ("to a.b+c@x-y.org.", "a.b+c@x-y.org"),
        ("cat /srv/shop/out.txt;", "/srv/shop/out.txt"),
        ("on 2026-03-14T10:20:30 at", "2026-03-14T10:20:30"),
        ("WHERE name = 'Ada Quill'", "Ada Quill"),
        ("it is **North Depot** then", "North Depot"),
        ("x = ab12cd", "ab12cd"),
        ("order_items.total", "order_items"),
        ("getUserName()", "getUserName"),
        ("a DataFrameGroup", "DataFrameGroup"),
        ("np.linalg.norm(x)", "np.linalg.norm"),
        ("code #EU-WEST-1 here", "#EU-WEST-1"),
        ("version 1.22.3", "1.22.3"),
        ("id 88012", "88012"),
    ],
)
def test_identifiers(text, token):
    assert token in identifiers(text)


def test_words_are_no_identifiers():
    assert identifiers("open the file and print all of Them in 2024, 100 times") == []


@pytest.mark.parametrize("run", ["a", "A", "a.", "1", "a/", "x@", "-", "'a"])
def test_identifiers_of_long_runs_take_linear_time(run):
    def seconds(length: int) -> float:
        text = run * (length // len(run))
        start = time.process_time()
        identifiers(text)
        return time.process_time() - start

    short = min(seconds(20_000) for _ in range(3))
    assert seconds(400_000) < 100 * short + 0.1  # 20 times the length; quadratic: 400 times the time


def test_a_short_argument_that_an_output_showed_is_one_value_else_it_is_looked_into():
    arguments = [
        json.dumps({"title": "Report of ab12cd for Q3", "n": 4471, "short": "ab12cd", "word": "hello"})
    ]
    assert call_values(arguments, lambda _: False) == {"ab12cd": "token", "4471": "leaf"}
    assert call_values(arguments, lambda t: t.startswith("Report")) == {
        "Report of ab12cd for Q3": "leaf",
        "4471": "leaf",
    }


def test_arguments_that_are_no_json_are_text():
    assert call_values(["print('ab12cd', rows_left)"], lambda _: False) == {
        "ab12cd": "token",
        "rows_left": "token",
    }
    assert call_values([None, "", "{", {"id": "X-90"}], lambda t: t == "X-90") == {"X-90": "leaf"}
