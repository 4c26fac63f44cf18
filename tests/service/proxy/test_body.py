"""Bodies edited to the byte, whatever they look like."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.examples import examples

from memory_bank.errors import BodyError
from memory_bank.service.proxy.body import parse_body, render_body

NEW = {"role": "user", "content": "memory ünd \ud83d"}

TEXT = st.text(st.characters(exclude_categories=[]), max_size=8)
SCALAR = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(10**30, 10**40)
    | st.floats()
    | TEXT
    | st.sampled_from(["}", "]", ',"messages":[', "\\", '\\"', "\ufeff", "\u2028", "\x00"])
)
VALUE = st.recursive(
    SCALAR,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=10,
)


def blank(random: Random) -> str:
    return "".join(random.choice(" \t\r\n") for _ in range(random.choice([0, 0, 1, 3])))


def written(value: Any, random: Random) -> str:
    """JSON with blanks anywhere and letters escaped or not, as some other writer might have it."""
    if isinstance(value, str):
        literal = not any("\ud800" <= c <= "\udfff" for c in value) and random.random() < 0.5
        return json.dumps(value, ensure_ascii=not literal)
    if isinstance(value, dict):
        inner = (
            f"{written(k, random)}{blank(random)}:{blank(random)}{written(v, random)}"
            for k, v in value.items()
        )
        return "{" + blank(random) + f"{blank(random)},{blank(random)}".join(inner) + blank(random) + "}"
    if isinstance(value, list):
        inner = (written(v, random) for v in value)
        return "[" + blank(random) + f"{blank(random)},{blank(random)}".join(inner) + blank(random) + "]"
    return json.dumps(value)


def same(a: Any, b: Any) -> bool:
    return repr(a) == repr(b)  # NaN, -0.0 and the order of keys included


@given(
    messages=st.lists(VALUE, max_size=6),
    before=st.dictionaries(TEXT.filter(lambda k: k not in ("messages", "tools")), VALUE, max_size=3),
    after=st.dictionaries(TEXT.filter(lambda k: k not in ("messages", "tools")), VALUE, max_size=3),
    bom=st.booleans(),
    random=st.randoms(use_true_random=False),
    data=st.data(),
)
def test_what_is_not_changed_keeps_its_bytes(messages, before, after, bom, random, data) -> None:
    def members(of: dict[str, Any]) -> str:
        return "".join(
            f"{written(k, random)}:{blank(random)}{written(v, random)}{blank(random)}," for k, v in of.items()
        )

    pieces = [written(m, random) for m in messages]
    array = "[" + blank(random) + ",".join(p + blank(random) for p in pieces) + "]"
    tail = members(after)[:-1]
    head = (
        ("\ufeff" if bom else "")
        + blank(random)
        + "{"
        + members(before)
        + blank(random)
        + '"messages":'
        + blank(random)
    )
    foot = blank(random) + ("," + tail if tail else "") + "}" + blank(random)
    raw = (head + array + foot).encode()
    body = parse_body(raw, "messages", "tools")
    loaded = json.loads(raw)
    assert same(body.value, loaded)

    held = body.value["messages"]
    assert render_body(body, {"messages": held}) is raw
    assert render_body(body, {"messages": list(held)}) is raw
    assert render_body(body, {}) is raw

    kept = data.draw(st.lists(st.sampled_from(range(len(held))), unique=True) if held else st.just([]))
    at = data.draw(st.integers(0, len(kept)))
    edited = [held[i] for i in kept]
    edited.insert(at, NEW)
    new = render_body(body, {"messages": edited})
    assert same(
        json.loads(new),
        {
            **loaded,
            "messages": [
                *(loaded["messages"][i] for i in kept[:at]),
                NEW,
                *(loaded["messages"][i] for i in kept[at:]),
            ],
        },
    )
    assert new.startswith((head + "[").encode())
    assert new.endswith(("]" + foot).encode())
    if not any(
        isinstance(messages[i], (str, int, float, type(None))) for i in kept
    ):  # equal scalars may be one object
        own = json.dumps(NEW, separators=(",", ":"))
        parts = [pieces[i] for i in kept[:at]] + [own] + [pieces[i] for i in kept[at:]]
        assert new == (head + "[" + ",".join(parts) + "]" + foot).encode()

    with_tools = render_body(body, {"tools": [NEW]})
    assert same(json.loads(with_tools), {**loaded, "tools": [NEW]})
    assert with_tools.startswith(
        (head + array + foot).rstrip(" \t\r\n").removesuffix("}").rstrip(" \t\r\n").encode()
    )


@given(st.binary(max_size=30) | st.text(max_size=30).map(str.encode), st.integers(0, 80), st.integers(0, 10))
@example(b"", 0, 80)
@example(b"\xed\xa0\x80", 30, 0)
@examples(300)
def test_what_json_refuses_is_refused_and_nothing_else(noise: bytes, at: int, cut: int) -> None:
    good = b'\xef\xbb\xbf{"model": "m", "messages": [{"role": "user", "content": "\xc3\xa9\\ud800"}, [1, NaN]], "x": {}} \n'
    raw = good[:at] + noise + good[at + cut :]
    pairs: list[str] = []

    def counted(found: list[tuple[str, Any]]) -> dict[str, Any]:
        pairs[:] = [k for k, _ in found]  # the outermost object comes last
        return dict(found)

    try:
        text = raw.decode("utf-8").removeprefix("\ufeff")
        expected = json.loads(text, object_pairs_hook=counted)
    except (ValueError, RecursionError):
        expected = None
    if isinstance(expected, dict) and pairs.count("messages") < 2:
        body = parse_body(raw, "messages")
        assert same(body.value, expected)
        assert render_body(body, {}) is raw
    else:
        with pytest.raises(BodyError):
            parse_body(raw, "messages")


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "not JSON"),
        (b"  ", "not JSON"),
        (b"{", "not JSON"),
        (b'{"a"', "not JSON"),
        (b'{"a":', "not JSON"),
        (b'{"a":1', "not JSON"),
        (b'{"a":1,}', "not JSON"),
        (b'{"messages":[1,]}', "not JSON"),
        (b'{"messages":[1 2]}', "not JSON"),
        (b'{"messages":[', "not JSON"),
        (b'{"messages":["\n"]}', "not JSON"),
        (b'{"messages":[]} x', "not JSON"),
        (b'{"messages":[' + b"9" * 5000 + b"]}", "not JSON"),
        (b"[]", "not a JSON object"),
        (b'"x"', "not a JSON object"),
        (b'{"messages":[],"messages":[]}', "duplicate member messages"),
        (b'{"messages":[],"\\u006dessages":1}', "duplicate member messages"),
        (b'{"messages":[],"tools":1,"tools":2}', "duplicate member tools"),
        (b'{"messages":["\xff"]}', "not UTF-8"),
        ('{"messages":["x"]}'.encode("utf-16"), "not UTF-8"),
        (b'{"messages":' + b"[" * 200_000 + b"]" * 200_000 + b"}", "nested too deeply"),
        (b'{"x":' + b'{"a":' * 200_000 + b"1" + b"}" * 200_001, "nested too deeply"),
    ],
)
def test_what_cannot_be_edited_is_told_in_short_and_without_contents(raw: bytes, reason: str) -> None:
    with pytest.raises(BodyError) as caught:
        parse_body(raw, "messages", "tools")
    assert str(caught.value) == reason


def test_a_member_that_others_write_twice_is_read_as_json_does() -> None:
    raw = b'{"x": 1, "messages": [], "x": 2}'
    body = parse_body(raw, "messages")
    assert body.value == {"x": 2, "messages": []}
    assert render_body(body, {"messages": [NEW]}).endswith(b', "x": 2}')


def test_a_text_as_input_is_told_and_may_be_replaced() -> None:
    body = parse_body(b'{"input" : "hi", "model":"m"}', "input", "tools")
    assert body.value["input"] == "hi"
    assert render_body(body, {}) is body.data
    assert render_body(body, {"input": [1]}) == b'{"input" : [1], "model":"m"}'


def test_tools_are_added_to_and_created() -> None:
    own = {"type": "function", "name": "search_memory"}
    text = json.dumps(own, separators=(",", ":")).encode()
    body = parse_body(b'{"tools": [ {"name" : "\xc3\xa9"} , {} ], "messages": [1] }', "messages", "tools")
    added = [*body.value["tools"], own]
    assert (
        render_body(body, {"tools": added})
        == b'{"tools": [{"name" : "\xc3\xa9"},{},' + text + b'], "messages": [1] }'
    )
    assert render_body(body, {"messages": [], "tools": added}).endswith(b', "messages": [] }')
    for raw, expected in [
        (b"{}", b'{"tools":[%b]}'),
        (b" { } ", b' {"tools":[%b] } '),
        (b'{"messages": [ ]\n}', b'{"messages": [ ],"tools":[%b]\n}'),
        (b'{"tools": null}', b'{"tools": [%b]}'),
        (b'{"tools": []}', b'{"tools": [%b]}'),
    ]:
        assert render_body(parse_body(raw, "messages", "tools"), {"tools": [own]}) == expected % text
    both = render_body(parse_body(b'{"a":1}', "messages", "tools"), {"messages": [], "tools": [own]})
    assert both == b'{"a":1,"messages":[],"tools":[%b]}' % text


def test_what_cannot_be_written_is_told() -> None:
    body = parse_body(b'{"messages": [], "x": 1}', "messages")
    circle: list[Any] = []
    circle.append(circle)
    deep: list[Any] = []
    for _ in range(200_000):
        deep = [deep]
    for bad in ({1, 2}, circle, deep, 10**5000):
        with pytest.raises(BodyError, match="cannot be written"):
            render_body(body, {"messages": [bad]})
    with pytest.raises(KeyError):  # it was not named when the body was parsed
        render_body(body, {"x": [1]})
