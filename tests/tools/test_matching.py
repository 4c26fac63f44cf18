"""Identifiers of a query, and where an output contains a text."""

import json

import pytest
from tests.examples import first_short
from tests.growth import LINEAR, growth

from memory_bank.tools.search import find, identifiers_in, is_identifier, normal, place_of

IDENTIFIERS = (
    "A-1042", "4f3a9c1e-aaaa-4bbb-8ccc-1234567890ab", "a@b.io", "https://x.io/a", "/a/b.txt", "C:\\data\\x.txt", "1234567",
    "order_items", "#W2378156", "fDZjV8EAAAAJ", "getOrder", "2024-05-01T10:00:00Z", "A1:D25",
)  # fmt: skip
OTHERS = ("123", "5000", "1,234.50", "10:30", "25%", "Novato", "refund")


def test_what_is_an_identifier():
    assert [t for t in IDENTIFIERS if not is_identifier(t)] == [t for t in OTHERS if is_identifier(t)] == []


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("where is A-1042, of ann@x.io?", ["A-1042", "ann@x.io"]),
        ('{\\"id\\": \\"ORD-7\\"}', ["ORD-7"]),
        ("session:ab-12&cd-34", ["session:ab-12&cd-34", "ab-12", "cd-34"]),
        ("see src/a.py:12 at 10:00", ["src/a.py:12"]),
        ("two words, 12 parcels", []),
    ],
)
def test_identifiers_of_a_text(text, wanted):
    assert list(identifiers_in(text)) == wanted


@pytest.mark.parametrize(
    ("text", "value", "is_there"),
    [
        ("order ORD-7 is open", "ord-7", True),
        ("order ORD-71 is open", "ord-7", False),
        ("1,234.50", "234", False),
        ("12345", "1234", False),
        ("注文1234は", "1234", True),
        ('a \\"caf\\u00e9\\nbar\\"', "café bar", True),
        ("", "x", False),
        ("x", "", False),
    ],
)
def test_a_value_is_found_at_the_boundaries_of_its_token(text, value, is_there):
    assert (find(normal(text), value) >= 0) is is_there


def test_the_place_of_a_value_is_its_path_or_its_line():
    output = json.dumps({"rows": [{"id": "A-1"}, {"id": "A-2", "note": json.dumps({"of": "B-3"})}]})
    assert place_of(output, "a-2") == "rows[1].id"
    assert place_of(output, "b-3").startswith("rows[1].note")
    assert place_of("first\nsecond  A-2\n", "second a-2") == "line 2"
    assert place_of("first", "a-2") == ""


@pytest.mark.parametrize(
    "unit",
    first_short(
        ["word A-1 ", "a/b-c.d ", "{", "'", '="\\"', "/", "a.b-", "a:", "\\n", "[1,", "1.", "-", "@"], 3
    ),
)
def test_identifiers_are_found_in_linear_time(unit):
    def work(size: int) -> None:
        text = unit * (size // len(unit))
        list(identifiers_in(text))
        normal(text)

    assert growth(work, 96_000) < LINEAR
