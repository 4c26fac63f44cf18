"""JSON outputs in their dense form: no value is changed, and each can be found."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_bank.transcript.dense import CUT_OFF, JsonPart, longest_text, opened, read_output, without_text

KEYS = st.sampled_from(["id", "name", "type", "text", "content", "status", "é", "a b", ""])
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=12), st.just("open")
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=6),
        st.dictionaries(KEYS, inner, max_size=5),
        st.lists(
            st.fixed_dictionaries({"status": st.sampled_from(["open", "open", "shut", ""]), "of": inner}),
            min_size=4,
        ),
    ),
    max_leaves=30,
)


def is_empty(value):
    return value is None or value in ("", [], {})


def without_empty(value):
    """A value without empty members of objects."""
    if isinstance(value, dict):
        kept = {k: without_empty(v) for k, v in value.items()}
        return {k: v for k, v in kept.items() if v is False or v == 0 or not is_empty(v)}
    return [without_empty(v) for v in value] if isinstance(value, list) else value


def restored(value):
    """A dense value with what its lists say once put back into every item."""
    if isinstance(value, dict):
        return {k: restored(v) for k, v in value.items()}
    if not isinstance(value, list):
        return value
    if value and isinstance(value[0], dict) and any("but those that say otherwise" in k for k in value[0]):
        ((head, common),) = value[0].items()
        assert head == f"all {len(value) - 1} items, but those that say otherwise"
        value = [{**common, **item} for item in value[1:]]
    return [restored(v) for v in value]


@given(
    st.one_of(st.lists(VALUES, max_size=6), st.dictionaries(KEYS, VALUES, min_size=1)),
    st.sampled_from([None, 2]),
)
def test_every_value_is_there_and_nothing_else(value, indent):
    text = json.dumps(value, indent=indent)
    output = read_output(text)
    if output.path == "":
        assert without_empty(restored(json.loads(output.text))) == without_empty(value)
    again = read_output(output.text)
    assert again.text == output.text
    assert not any("\ud800" <= c <= "\udfff" for c in output.text)


def test_numbers_stand_as_they_were_written_and_members_in_their_order():
    text = (
        '{\n "z": 19.90, "a": 1e5, "n": [12345678901234567890, -0.0, 1E-7, NaN],\n "z": "\\u00e9\\/\\ud800" }'
    )
    assert (
        read_output(text).text
        == '{"z":19.90,"a":1e5,"n":[12345678901234567890,-0.0,1E-7,NaN],"z":"é/\\ud800"}'
    )


def test_what_most_items_have_in_common_is_said_once():
    rows = [{"id": n, "type": "file", "owner": {"login": "ann", "site": None}, "note": ""} for n in range(10)]
    rows[3] = {**rows[3], "type": "", "note": "late"}
    rows[4]["owner"] = {"login": "bob"}
    text = read_output(json.dumps(rows)).text
    head, *items = json.loads(text)
    assert head == {"all 10 items, but those that say otherwise": {"type": "file", "owner": {"login": "ann"}}}
    assert items[2:5] == [
        {"id": 2},
        {"id": 3, "type": "", "note": "late"},
        {"id": 4, "owner": {"login": "bob"}},
    ]


def test_a_member_that_some_items_lack_is_not_said_once():
    rows = [{"id": n, "type": "file" * 20} for n in range(10)]
    del rows[5]["type"]
    assert json.loads(read_output(json.dumps(rows)).text) == rows


PART = {"type": "text", "text": '{\n  "id": 7,\n  "note": null\n}'}


@pytest.mark.parametrize(
    ("wrapped", "path"),
    [
        (PART, "text"),
        ([PART], "[0].text"),
        ({**PART, "annotations": None, "meta": None}, "text"),
        ({"content": [PART], "isError": False}, "content[0].text"),
        (
            {"content": [PART], "structuredContent": {"id": 7, "note": None}, "isError": False},
            "content[0].text",
        ),
        ({"content": [PART], "structuredContent": {"result": PART["text"]}}, "content[0].text"),
        ([{"type": "text", "text": json.dumps([PART])}], "[0].text[0].text"),
    ],
)
def test_wrappers_of_mcp_are_taken_off(wrapped, path):
    output = read_output(json.dumps(wrapped))
    assert output.text == '{"id":7}'
    assert output.path == path
    exact = read_output(json.dumps(wrapped), to_the_letter=True)
    assert exact.text == PART["text"]


def test_several_parts_stand_one_after_the_other():
    output = read_output(json.dumps([PART, {"type": "text", "text": "Done."}]))
    assert (output.text, output.path) == ('{"id":7}\nDone.', None)


@pytest.mark.parametrize(
    "other",
    [
        {**PART, "annotations": {"audience": ["user"]}},
        [PART, {"type": "image", "data": "iVBOR", "mimeType": "image/png"}],
        {"content": [PART], "isError": True},
        {"content": [PART], "structuredContent": {"other": 1}},
        {"type": "text", "text": 3},
        {"type": "text", "text": "a", "lang": "en"},
    ],
)
def test_a_wrapper_that_says_more_stays(other):
    assert json.loads(read_output(json.dumps(other)).text) == other


@pytest.mark.parametrize(
    "text", ["", "not json", '{"a": ', "[" * 50_000, "[" * 300 + "]" * 300, '"text"', "7", "[1] then"]
)
def test_other_texts_stay_as_they_are(text):
    assert read_output(text).text == text


# -- a part of JSON


def rows_of(count):
    return [
        {
            "id": f"ITM-{n:04}-{n * 7919 % 9973:04}",
            "kind": "file",
            "price": n * 10,
            "text": f"A long story of {n}. " * 20,
        }
        for n in range(count)
    ]


def worth_by_name(**names):
    """A worth of so much for each text under a name, little for others."""
    return lambda name, texts: dict.fromkeys(texts, names.get(name, 0.001))


def shortened(value, room, **worth):
    return JsonPart(read_output(json.dumps(value)).value, worth_by_name(**worth)).shown(room)


def test_every_row_has_the_same_few_members_those_of_most_worth():
    text = shortened({"total": 100, "items": rows_of(100)}, 5_000, id=1, price=0.5)
    shown, without = text.rsplit("\n", 1)
    assert without == "(without items.text)"
    value = json.loads(shown)
    head, *rows = value["items"]
    assert head == {"… 100 items as rows of": ["id", "kind", "price"]}
    assert rows == [[row["id"], row["kind"], row["price"]] for row in rows_of(100)]
    assert value["total"] == 100
    assert len(text) <= 5_000
    only = json.loads(shortened({"items": rows_of(100)}, 2_400, id=1, price=0.5).split("\n(without")[0])
    assert only == {"items": {"id": [row["id"] for row in rows_of(100)]}}


def test_what_two_members_say_counts_once():
    rows = [{"entered": {"text": f"Row {n}"}, "shown": f"Row {n}", "owner": f"Ann {n}"} for n in range(50)]
    text = shortened(rows, 1_700, text=1, shown=1.1, owner=0.5)
    assert json.loads(text.split("\n(without")[0])[0] == {"… 50 items as rows of": ["shown", "owner"]}


def test_where_no_member_of_every_item_fits_there_is_no_part():
    assert shortened(rows_of(1_000), 3_000) == ""


@given(VALUES, st.integers(0, 300))
def test_a_part_is_json_of_about_the_length(value, room):
    text = shortened({"it": value}, room)
    json.loads(text.split("\n(without")[0] or "0")
    assert "\ud800" not in text


def test_words_and_numbers_are_never_cut():
    value = [
        {"id": f"{n:02}{'x' * 90}", "n": 12345678901234567890123 + n, "text": "some words " * 30}
        for n in range(20)
    ]
    for room in (1_000, 3_000, 5_000):
        for word in re.findall(r"xx+|\d{9,}", shortened(value, room)):
            assert word == "x" * 90 or int(word) in range(12345678901234567890123, 12345678901234567890143)


def test_the_cells_of_a_sheet_are_rows():
    cells = [
        {
            "address": f"{'AB'[c]}{r}",
            "value": f"{r}/{c}",
            "row": r,
            "column": c + 1,
            "validation": {"on": False},
        }
        for r in range(1, 7)
        for c in range(2)
    ]
    output = opened(read_output(json.dumps({"sheet": "S", "cells": cells})))
    assert json.loads(output.text) == {
        "sheet": "S",
        "cells": [{"row": r, "A": f"{r}/0", "B": f"{r}/1"} for r in range(1, 7)],
    }
    cut = opened(read_output(json.dumps(cells)[:-60] + " … (cut)"))
    assert '{"row":6,"A":"6/0"}' in cut.text


def test_json_in_a_string_is_opened():
    inner = json.dumps([{"name": f"n{n}"} for n in range(30)])
    output = opened(read_output(json.dumps({"history": [inner]})))
    assert json.loads(output.text) == {"history": [json.loads(inner)]}


# -- JSON whose end is missing

LONG = {
    "page": "one",
    "items": [{"id": f"ITM-{n}", "text": 'a \\ "b"\né\t', "n": -n * 1.5, "e": []} for n in range(40)],
}
NOTE = "\n\n(The output was cut: the whole is in out.json)"


@pytest.mark.parametrize("note", ["", NOTE])
@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("wrapped", [True, False])
def test_json_that_was_cut_off_is_shown_densely_with_all_that_it_holds(note, ascii_only, wrapped):
    text = json.dumps(LONG, indent=2, ensure_ascii=ascii_only)
    text = json.dumps({"type": "text", "text": text}) if wrapped else text
    for at in range(len(text) // 2, len(text) - 40, 13):
        output = read_output(text[:at] + note)
        assert output.value is not None
        assert output.rest.strip().endswith(note.strip())
        assert len(output.text) < at * 0.8
        for number in range(15):
            assert f"ITM-{number}" in output.text
        shown = json.loads(output.text[: len(output.text) - len(output.rest.strip())])
        items = [dict(item) for item in shown["items"]]
        assert [i["id"] for i in items if i.get("id", "").startswith("ITM-1")][:5] == [
            f"ITM-{n}" for n in (1, *range(10, 14))
        ]
        numbers = [item["n"] for item in items if isinstance(item.get("n"), float)]
        assert numbers == [-n * 1.5 for n in range(len(numbers))]


@pytest.mark.parametrize(
    "text",
    ["[INFO] " + "log line\n" * 500, '{"a": 1}\n{"b": 2}', '["a", "b" ' + "x" * 5_000, '{"a":1', "[1, 2"],
)
def test_what_is_no_json_that_was_cut_off_stays(text):
    assert read_output(text).text == text


@pytest.mark.parametrize("wrapped", [True, False])
@pytest.mark.parametrize("to_the_letter", [True, False])
def test_what_was_cut_off_without_a_word_does_not_look_whole(wrapped, to_the_letter):
    whole = json.dumps(LONG, indent=2)
    for inner in (whole, "It was late. " * 200):
        text = json.dumps([{"type": "text", "text": inner}]) if wrapped else inner
        for at in range(len(text) // 2, len(text) - 40, 11):
            shown = read_output(text[:at], to_the_letter=to_the_letter).text
            assert shown == text[:at] or shown.endswith(CUT_OFF)
            assert read_output(shown, to_the_letter=to_the_letter).text == shown
    assert read_output(whole[:3_000] + NOTE).text.count(CUT_OFF) == 0


@pytest.mark.parametrize(
    "wrong",
    [
        r'"find": "\d+\s"}',
        '"said": "one\ntwo"}',
        '"n": 1,}',
        '"list": [1, 2,]}',
        '"a": undefined, "b": 2}',
        '"a": b}',
    ],
)
def test_json_that_is_wrong_near_its_end_and_was_not_cut_stays(wrong):
    text = f'{{"page": "{"word " * 200}", {wrong}'
    assert read_output(text).text == text
    assert read_output(f"{text}\n").text == f"{text}\n"


def test_the_longest_text_is_found_and_replaced():
    value = read_output(
        json.dumps({"ok": True, "page": {"title": "Hello", "a b": "word " * 99}, "url": "u"})
    ).value
    text, path = longest_text(value)
    assert (text, path) == ("word " * 99, 'page["a b"]')
    beside = JsonPart(without_text(value, text, "…"), worth_by_name()).shown(999)
    assert beside == '{"ok":true,"page":{"title":"Hello","a b":"…"},"url":"u"}'
    assert longest_text([1]) == ("", "")


def test_a_wrapper_with_two_members_of_one_name_stays():
    text = '{"content":[{"type":"text","text":"ORD-1"}],"content":[{"type":"text","text":"ORD-2"}]}'
    assert read_output(text).text == text


@pytest.mark.parametrize("parts", [["a\ud800"], ["a\ud800", "b"]])
@pytest.mark.parametrize("exact", [False, True])
def test_a_text_in_wrappers_can_be_sent(parts, exact):
    output = read_output(json.dumps([{"type": "text", "text": p} for p in parts]), to_the_letter=exact)
    assert output.text.encode() == "\n".join(["a\\ud800", *parts[1:]]).encode()


def test_deep_and_wide_values_take_no_long():
    tables = {"s": "word " * 4_000}
    for depth in range(14):
        tables = {"a": [tables, *({"a": f"{depth} {n} word " * 30} for n in range(4))]}
    deep = [{"a": n, "b": str(n) * 3} for n in range(30_000)]
    for _ in range(90):
        deep = {"a": deep}
    wide = [{f"a{n}": (n * 7 + row * 31) % 97 for n in range(900)} for row in range(300)]
    for value in (
        tables,
        deep,
        wide,
        {"a_" * 100_000: [1] * 100},
        [{"a_" * 20_000 + "b": n} for n in range(9)],
    ):
        assert len(shortened([value] * 4, 16_000)) < 10**6
