"""One normal form, whole tokens only; which values of a call may be evidence, and in which forms."""

import json
import time

import pytest

from memory_bank.audit.text import call_values, forms_of, identifiers, is_trivial, leaves, normalise

# texts


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_escapes_are_undone_however_nested(depth):
    text = 'say "Net 30"\nto Zoë\tat C:/x'
    for _ in range(depth):
        text = json.dumps(text)
    assert 'say "net 30" to zoë at c:/x' in normalise(text)


def test_normal_forms():
    forms = {
        "": "", " \n\t ": " ", " A  b\n": " a b ", r"a\\\\b": "a\\b", r"\/path\/to": "/path/to", "Straße": "strasse",
        "x\u00a0y": "x y", r"\\u00e9": "é",
    }  # fmt: skip
    assert {text: normalise(text) for text in forms} == forms


STANDS = [
    ("645", "a 645 b"), ("645", "645"), ("645", "=645,"), ("645", "645."), ("645.99", "x=645.99,"), ("-645", "-645"),
    ("user_id", "user_id-2"), ("#W12", "#W12"), ("W12", "#W12"), ("a b", "a\n  b"), ("é1", "É1"),
    ("東京駅", "到着 東京駅 です"), ("/a/b", "x/a/b"),  # a value that begins with a sign has no boundary on that side
]  # fmt: skip
STANDS_NOT = [
    ("645", "645.99"), ("645", "1645"), ("645", "6455"), ("645", "1,645"), ("645", "12.645"), ("645.9", "645.99"),
    ("user_id", "user_id_2"), ("user", "superuser"), ("#W12", "#W123"), ("", "a"),
]  # fmt: skip


@pytest.mark.parametrize(("found", "cases"), [(True, STANDS), (False, STANDS_NOT)])
def test_boundaries(found, cases):
    assert [c for c in cases if normalise(c[1]).holds([normalise(c[0])]) is not found] == []


def test_places_and_their_limit():
    assert normalise("ab ab abab ab").places(normalise("ab"), 9) == [0, 3, 11]
    assert normalise("ab ab ab").places(normalise("ab"), 2) == [0, 3]


# values


def test_what_is_trivial():
    trivial = ["", "ab", "12", "100", "2024", "1999", "-7", "25000", "1500", "0.5", "1.50", "true", "None", "NaN", "abc",
               "Error", " x ", "utf-8", "UTF-8"]  # fmt: skip
    telling = ["Abc", "123", "2124", "1501", "12.55", "a1b", "a b", "#12", "x_y", "ABC", "-345"]
    assert [v for v in [*trivial, *telling] if is_trivial(v)] == trivial


def test_forms():
    forms = {
        "12.0": ["12.0", "12"], "149.5": ["149.5", "149.50"], "149.50": ["149.50", "149.5"], "149.55": ["149.55"],
        "10.00": ["10.00"], "CUS-1": ["cus-1"],
    }  # fmt: skip
    assert {value: list(forms_of(value)) for value in forms} == forms


def test_leaves_open_nested_json_and_leave_truth_out():
    value = {"a": [1, 2.50, True, None], "b": '{"c": "[\\"deep\\"]"}', "d": "{no json", "e": "  padded "}
    words = [("deep", False), ("{no json", False), ("padded", False)]
    assert list(leaves(value)) == [("1", True), ("2.5", True), *words]


def test_leaves_of_what_is_very_deep_or_very_large():
    text = "[" * 100_000
    assert list(leaves(text)) == [(text, False)]
    deep: object = "end"
    for _ in range(50_000):
        deep = [deep]
    assert list(leaves(deep)) == [("end", False)]
    assert [t for t, _ in leaves(10**6000)] == [""]


def test_identifiers():
    tokens = {
        "see https://x.org/a?b=1 now": "https://x.org/a?b=1", "to a.b+c@x-y.org.": "a.b+c@x-y.org",
        "cat /srv/shop/out.txt;": "/srv/shop/out.txt", "on 2026-03-14T10:20:30 at": "2026-03-14T10:20:30",
        "WHERE name = 'Ada Quill'": "Ada Quill", "it is **North Depot** then": "North Depot", "x = ab12cd": "ab12cd",
        "order_items.total": "order_items", "getUserName()": "getUserName", "a DataFrameGroup": "DataFrameGroup",
        "np.linalg.norm(x)": "np.linalg.norm", "code #EU-WEST-1 here": "#EU-WEST-1", "version 1.22.3": "1.22.3",
        "id 88012": "88012",
    }  # fmt: skip
    assert [text for text, token in tokens.items() if token not in identifiers(text)] == []
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
    given = {"title": "Report of ab12cd for Q3", "n": 4471, "short": "ab12cd", "word": "hello"}
    arguments = [json.dumps(given)]
    assert call_values(arguments, lambda _: False) == {"ab12cd": "token", "4471": "leaf"}
    shown = call_values(arguments, lambda t: t.startswith("Report"))
    assert shown == {"Report of ab12cd for Q3": "leaf", "4471": "leaf"}
    code = call_values(["print('ab12cd', rows_left)"], lambda _: False)  # no JSON is text
    assert code == {"ab12cd": "token", "rows_left": "token"}
    assert call_values([None, "", "{", {"id": "X-90"}], lambda t: t == "X-90") == {"X-90": "leaf"}
