"""JSON outputs in their dense form: no value is changed, and each can be found."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_bank.transcript.dense import longest_text, read_output, shorten_json, without_text

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


def shortened(value, room):
    return shorten_json(read_output(json.dumps(value)).value, room)


def test_every_row_has_the_same_few_members():
    text = shortened({"total": 100, "items": rows_of(100)}, 6_000)
    value = json.loads(text)
    note, head, *rows = value["items"]
    assert note == "… 100 items, of each without: text"
    assert head == {"all 100 items, but those that say otherwise": {"kind": "file"}}
    assert [row["id"] for row in rows] == [row["id"] for row in rows_of(100)]
    assert {frozenset(row) for row in rows} == {frozenset({"id", "price"})}
    assert value["total"] == 100
    assert len(text) <= 6_600


def test_rows_are_left_out_in_the_middle_where_one_member_is_too_much():
    rows = json.loads(shortened(rows_of(1_000), 3_000))
    ids = [row["id"] for row in rows if isinstance(row, dict) and "id" in row]
    assert ids[0] == "ITM-0000-0000"
    assert ids[-1].startswith("ITM-0999")
    (gap,) = (row for row in rows[1:] if isinstance(row, str))
    assert gap == f"… {1_000 - len(ids):,} items"


@given(VALUES, st.integers(0, 300))
def test_a_part_is_json_of_about_the_length(value, room):
    value = {"it": value}
    text = shortened(value, room)
    json.loads(text)
    assert "\ud800" not in text
    assert shorten_json(read_output(json.dumps(value)).value, 10**6) == read_output(json.dumps(value)).text


def test_words_and_numbers_are_never_cut():
    value = [
        {"id": f"{n:02}{'x' * 90}", "n": 12345678901234567890123 + n, "text": "some words " * 30}
        for n in range(20)
    ]
    for room in (100, 1_000, 3_000):
        for item in json.loads(shortened(value, room)):
            if isinstance(item, dict) and len(item) != 1:
                assert item in [{k: v for k, v in whole.items() if k in item} for whole in value]


def test_the_longest_text_is_found_and_replaced():
    value = read_output(
        json.dumps({"ok": True, "page": {"title": "Hello", "a b": "word " * 99}, "url": "u"})
    ).value
    text, path = longest_text(value)
    assert (text, path) == ("word " * 99, 'page["a b"]')
    assert (
        shorten_json(without_text(value, text, "…"), 999)
        == '{"ok":true,"page":{"title":"Hello","a b":"…"},"url":"u"}'
    )
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
        assert len(shorten_json(read_output(json.dumps([value] * 4)).value, 16_000)) < 10**6
