"""Shortened outputs: they fit, keep their structure, say what is missing, cut nothing in two."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.chats import JSON, TEXT

from memory_bank.transcript.jsontext import compact, parse_output
from memory_bank.transcript.shortening import cut_at_edge, shorten

ROWS = [
    {"id": f"ORD-{i:05}", "name": f"Customer number {i}", "total": i * 1.5, "note": "n" * 60}
    for i in range(400)
]


@given(TEXT | JSON.map(json.dumps), st.integers(0, 120))
def test_it_always_fits(text, room):
    s = shorten(parse_output(text), room, text=text, trace_id="0" * 36)
    assert len(s.text) <= room or not s.cut
    assert s.cut == (len(s.text) < len(text) and s.text != compact(parse_output(text))) or len(text) <= room


@given(JSON, st.integers(0, 400))
def test_values_without_text_fit_too(value, room):
    assert len(shorten(value, room).text) <= max(room, 0)


def test_what_fits_stays_as_it_came():
    text = '{ "a" :  1.00 }'
    assert shorten(parse_output(text), 100, text=text).text == text


def test_a_list_keeps_whole_items_and_counts_the_rest():
    s = shorten(ROWS, 2_000, trace_id="abc")
    body, note = s.text.rsplit("\n", 1)
    items = json.loads(body)
    assert items[:2] == ROWS[:2]
    assert re.fullmatch(r"… \d+ more items", items[-1])
    assert len(items) - 1 + int(items[-1].split()[1]) == 400
    assert "trace_id abc" in note
    assert f"{len(compact(ROWS)):,} characters" in note


def test_an_object_keeps_its_keys():
    value = {"status": "ok", "total": 400, "rows": ROWS, "next": "page-2"}
    shown = json.loads(shorten(value, 1_500).text.rsplit("\n", 1)[0])
    assert {"status", "total", "rows", "next"} <= set(shown)
    assert shown["next"] == "page-2"


def test_json_inside_a_text_part_keeps_its_structure():
    value = {"type": "text", "text": json.dumps(ROWS)}
    shown = json.loads(shorten(value, 1_500).text.rsplit("\n", 1)[0])
    assert shown["text"][0]["id"] == "ORD-00000"


def test_lines_of_text_stay_whole():
    lines = [f"2026-03-11 12:00:{i:02} service request req-{i:04} took {i} ms" for i in range(300)]
    s = shorten(None, 1_000, text="\n".join(lines), trace_id="abc")
    shown = [line for line in s.text.split("\n") if not line.startswith("[")]
    assert set(shown) <= set(lines)
    assert shown[0] == lines[0]
    assert shown[-1] == lines[-1]
    gap = int(re.search(r"\[… ([\d,]+) more lines …\]", s.text).group(1).replace(",", ""))
    assert gap == 300 - len(shown)


@given(st.integers(1, 300))
def test_no_identifier_number_or_surrogate_pair_is_cut(room):
    text = (
        "order ORD-48213-XY for user_42@example.com total 1234567.89 emoji 😀 path /srv/data/file_7.csv " * 5
    )
    whole = set(re.split(r"[\s]+", text))
    cut = cut_at_edge(text, room)
    assert set(re.split(r"\s+", cut.strip())) <= whole | {""}
    cut.encode("utf-8")


def test_one_long_word_is_cut_where_it_must_be():
    assert len(shorten(None, 500, text="x" * 100_000).text) > 300


@pytest.mark.parametrize("size", [10**7])
def test_a_line_of_ten_million_characters(size):
    assert len(shorten(parse_output("x " * (size // 2)), 2_000, text="x " * (size // 2)).text) <= 2_000


def test_nesting_beyond_recursion():
    deep = "[" * 900 + "1" + "]" * 900
    assert len(shorten(parse_output(deep), 200, text=deep).text) <= 200


@pytest.mark.parametrize("items", [1, 2, 3, 40])
def test_a_list_whose_first_item_is_too_long_shows_a_part_of_it(items):
    value = {"content": [{"type": "text", "text": f"order ORD-1 {'is late and so on ' * 300}"}] * items}
    shown = json.loads(shorten(value, 400).text.rsplit("\n", 1)[0])
    assert shown["content"][0]["type"] == "text"
    assert shown["content"][0]["text"].startswith("order ORD-1 is late")
    if items <= 3:
        assert len(shown["content"]) == items  # each in part, none replaced by a count
        assert all(item["text"].startswith("order ORD-1") for item in shown["content"])


@given(st.integers(60, 2_000), st.integers(1, 3))
def test_nothing_that_can_be_shown_in_part_is_replaced_by_a_count(room, depth):
    value: object = "word " * 2_000
    for _ in range(depth):
        value = [value]
    assert "word word" in shorten(value, room).text


@pytest.mark.parametrize("place", ["first", "middle", "last"])
@pytest.mark.parametrize("room", [300, 2_000])
def test_a_line_that_is_too_long_is_shown_in_part(place, room):
    lines = [f"line {i}" for i in range(8)]
    at = {"first": 0, "middle": 4, "last": 8}[place]
    lines.insert(at, "giant " * 5_000)
    shown = shorten(None, room, text="\n".join(lines))
    assert "giant giant" in shown.text
    assert len(shown.text) <= room
    assert all(f"line {i}" in shown.text for i in range(8))
    assert "more lines" not in shown.text
