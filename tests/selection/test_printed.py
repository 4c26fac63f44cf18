"""Printed objects are read as rows; whatever is not one stays text."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory_bank.selection.candidates import find_candidates, words_of
from memory_bank.selection.cutting import cut_text
from memory_bank.selection.parsing import load_printed


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[('a', b'int', None, 3)]", [["a", "int", None, "3"]]),
        ("[('it\\'s', Decimal('1.50'))]", [["it's", "1.50"]]),
        ("[(datetime.date(2020, 1, 31), -1.5)]", [["datetime.date(2020, 1, 31)", "-1.5"]]),
        ("{'a': {'b': [1, 2]}, 'c': \"x\"}", {"a": {"b": ["1", "2"]}, "c": "x"}),
        ("[('x', 1), ('y', 2), ('z', 3), ('cut o", [["x", "1"], ["y", "2"], ["z", "3"]]),
    ],
)
def test_read(text, value):
    assert load_printed(text) == value


@pytest.mark.parametrize("text", ["", "[1, 2]", "['a'", "[('a']", "[('a',)] rows", "('a' 'b'", "[[" * 5000])
def test_not_an_object(text):
    with pytest.raises(ValueError, match=r"object|deep"):
        load_printed(text)


SCALAR = st.one_of(st.integers(), st.text(max_size=20), st.none(), st.booleans())


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.text(max_size=10), SCALAR, SCALAR), min_size=1, max_size=8))
def test_every_printed_row_is_read(rows):
    read = load_printed(repr(rows))
    assert [len(row) for row in read] == [3] * len(rows)


def test_rows_of_a_database_are_lean():
    rows = [("Template_ID", b"int", "NO", "PRI", None, ""), ("Version_Number", b"int", "NO", "", None, "")]
    pieces = cut_text(repr(rows))
    assert (
        "\n".join(s.text for s in pieces.segments)
        == "Template_ID | int | NO | PRI\nVersion_Number | int | NO"
    )
    assert [s.text for s in cut_text("[('dogs',), ('owners',)]").segments] == ["dogs, owners"]


def test_an_unfinished_wrapper_is_unfolded():
    inner = json.dumps({"cells": [{"address": f"A{i}", "value": f"Bob {i}"} for i in range(40)]})
    pieces = cut_text(json.dumps({"type": "text", "text": inner}, separators=(",", ":"))[:-30])
    found = {c.form for s in pieces.segments for c in find_candidates(s)}
    assert {"bob 1", "bob 38"} <= found


def test_words_are_compared_without_humps_and_plurals():
    assert words_of("PetTypes countries") == ["pet", "type", "country"]
