"""Items as a chat for memory, and back: whole turns, the same objects, whatever the list holds."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from tests.chats import call as chat_call
from tests.chats import entries, result
from tests.examples import examples
from tests.items import (
    APART,
    BONDS,
    bad_items,
    call,
    good_items,
    hosted,
    output,
    rounds,
    thought,
    user,
    words,
)

from memory_bank import MemoryBankSettings, MemoryBankState, apply_memory_bank_strategy
from memory_bank.context.gate import broken_rule
from memory_bank.errors import HistoryError
from memory_bank.plan import Form
from memory_bank.processor import MemoryProcessor
from memory_bank.transcript.messages import Interaction, carries_only_media, parse_messages
from memory_bank.transcript.responses import (
    CALL_OF,
    HOSTED,
    OUTPUT_OF,
    WIRE,
    call_id_of,
    from_items,
    item_errors,
    item_type,
    stands_alone,
)

EVIDENCE = MemoryBankSettings(
    selection="evidence",
    observer_model="extractive",
    embedding_model="lexical",
    history_budget=60,
    refresh_after=0,
)
BY_EVIDENCE = {"memory_strategies": {"evidence": EVIDENCE}, "default_strategy": "evidence"}
SLOW = examples(60)


def rebuilt(items: list[Any], state: Any, strategy: MemoryBankSettings = EVIDENCE) -> list[Any]:
    chat = from_items(items)
    return chat.write(apply_memory_bank_strategy(chat.messages, None, strategy, state)[0].entries)


def again(items: list[Any]) -> list[Any]:
    return json.loads(json.dumps(items))


def is_host(item: Any, joined: Any) -> bool:
    """Whether an item is the user's message that memory joined."""
    if not isinstance(item, dict) or item.get("role") != "user":
        return False
    content = item.get("content")
    return not content or joined["content"][: len(content)] == content


def kept(items: list[Any], out: list[Any]) -> list[int]:
    """The positions of the items that are there, in the order in which they now stand."""
    at = {id(item): i for i, item in enumerate(items) if isinstance(item, dict)}
    there = {id(item) for item in out}
    found = []
    for item in out:
        if id(item) in at:
            found.append(at[id(item)])
        elif isinstance(item, dict):  # the user's message that memory joined
            found += [i for i, m in enumerate(items) if is_host(m, item) and id(m) not in there][:1]
    return found


def turns(items: list[Any]) -> list[list[str]]:
    """The types of the items of each interaction that memory sees."""
    chat = from_items(items)
    found = []
    for segment in parse_messages(chat.messages):
        if isinstance(segment, Interaction):
            stretch = range(segment.start, segment.stop)
            positions = sorted({place.message for p in stretch for place in chat.places[p]})
            found.append([item_type(items[p]) + ("!" if segment.fault else "") for p in positions])
    return found


# --- grouping

FC, FO, RS = "function_call", "function_call_output", "reasoning"


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([thought(), call("a"), call("b"), output("a"), output("b")], [[RS, FC, FC, FO, FO]]),
        ([call("a"), output("a"), call("b"), output("b")], [[FC, FO], [FC, FO]]),
        ([thought(), call("a"), output("a"), thought("rs_2"), call("b"), output("b")], [[RS, FC, FO], [RS, FC, FO]]),
        ([thought(), words("I look"), thought("rs_2"), call("a"), output("a")], [[RS, "message", RS, FC, FO]]),
        ([words("one"), thought(), words("two", "m"), call("a"), output("a")], [["message", RS, "message", FC, FO]]),
        ([words("one"), thought(), words("two", "m"), user(), call("a"), output("a")], [[FC, FO]]),
        ([thought(), call("a"), thought("rs_2"), call("b"), output("b"), output("a")], [[RS, FC, RS, FC, FO, FO]]),
        ([call("a"), words("done soon"), output("a"), words("done")], [[FC, "message", FO]]),
        ([call("a"), call("b"), output("a"), words("one"), output("b")], [[FC, FC, FO, "message", FO]]),
        ([thought(), hosted("web_search_call", "w"), thought("rs_2"), words("x")], [[RS, "web_search_call"]]),
        ([hosted("mcp_call", "w"), call("a"), output("a")], [["mcp_call", FC, FO]]),
        ([call("a"), hosted("mcp_call", "w"), call("b"), output("a"), output("b")], [[FC, "mcp_call", FC, FO, FO]]),
        ([hosted("mcp_call", "v"), thought(), hosted("mcp_call", "w")], [["mcp_call"], [RS, "mcp_call"]]),
        (
            [
                call("p", "program"), call("a", caller={"type": "program", "caller_id": "p"}), output("a"),
                call("b", caller={"type": "program", "caller_id": "p"}), output("b"), output("p", "program"),
                call("c"), output("c"),
            ],
            [["program", FC, FO, FC, FO, "program_output"], [FC, FO]],
        ),
        ([{"id": "rs_1"}, call("a"), output("a")], [["item_reference", FC, FO]]),
        ([call("a"), user("stop"), output("a")], [[FC + "!", "message!", FO + "!"]]),
        ([call("a"), user("stop")], [[FC + "!"]]),
        ([output("a")], [[FO + "!"]]),
        ([call("a"), {"type": "new_thing", "call_id": "a"}, output("a")], [[FC + "!", "new_thing!", FO + "!"]]),
        ([call("a"), APART[1], output("a")], [[FC + "!", "mcp_list_tools!", FO + "!"]]),
    ],
)  # fmt: skip
def test_items_are_grouped_into_turns(items: list[Any], expected: list[list[str]]) -> None:
    items = [user(), *items]
    assert turns(items) == expected
    chat = from_items(items)
    assert [id(i) for i in chat.write(entries(chat, chat.messages))] == [id(i) for i in items]


@pytest.mark.parametrize("kind", OUTPUT_OF)
def test_every_kind_of_call_is_a_pair_with_name_arguments_and_output(kind: str) -> None:
    items = [user(), call("a", kind), output("a", kind, "the answer")]
    (segment,) = (s for s in parse_messages(from_items(items).messages) if isinstance(s, Interaction))
    (pair,) = segment.pairs
    assert segment.fault == ""
    assert pair.call is not None and pair.result is not None
    assert pair.tool_name == items[1].get("name", kind)
    assert pair.call.text not in ("", "{}")
    assert "the answer" in pair.result.text or kind == "computer_call"


@pytest.mark.parametrize("kind", sorted(HOSTED))
def test_a_hosted_call_is_a_pair_of_its_own(kind: str) -> None:
    items = [user(), hosted(kind, "w", "the answer"), words("so it is")]
    chat = from_items(items)
    (segment,) = (s for s in parse_messages(chat.messages) if isinstance(s, Interaction))
    assert segment.fault == ""
    assert "the answer" in segment.pairs[0].result.text or kind == "image_generation_call"
    assert chat.write(entries(chat, chat.messages)) == items
    without = [m for m in chat.messages if m["role"] != "tool"]
    assert chat.write(entries(chat, without)) == [items[0], items[2]]


def test_every_type_of_item_that_the_client_library_knows_has_its_place() -> None:
    """An item of an unknown type binds the turn after it."""
    members = get_args(pytest.importorskip("openai.types.responses").ResponseInputItemParam)
    types = {t for member in members for t in _literals(get_type_hints(member)["type"])}
    assert len(types) > 20
    for kind in types - {*OUTPUT_OF, *CALL_OF, "message"}:
        assert "!" not in str(turns([user(), {"type": kind}, call("a"), output("a")])), kind
    assert "!" in str(turns([user(), {"type": "of_tomorrow"}, call("a"), output("a")]))


def _literals(hint: Any) -> set[Any]:
    if get_origin(hint) is Literal:
        return set(get_args(hint))
    return {t for inner in get_args(hint) for t in _literals(inner)}


def test_content_arguments_and_output_are_those_of_the_items() -> None:
    parts = [{"type": "input_text", "text": "x"}, {"type": "input_image", "image_url": "data:"}]
    items = [user(parts), words("I look"), call("a"), call("b", "custom_tool_call"), output("a", text="1"),
             {**output("b", "custom_tool_call"), "output": parts}]  # fmt: skip
    messages = from_items(items, "Be brief.").messages
    assert messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": items[1]["content"], "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "get_order", "arguments": '{"number": 1}'}},
            {"id": "b", "type": "custom", "custom": {"name": "run_sql", "input": "SELECT 1"}}]},
        {"role": "tool", "tool_call_id": "a", "content": "1"},
        {"role": "tool", "tool_call_id": "b", "content": parts},
    ]  # fmt: skip


def test_records_are_those_of_the_same_chat() -> None:
    """A session that goes on through the other API finds its records again."""
    items = [user(), *rounds(3, reasoning=False)]
    made = [
        chat_call((i["call_id"], i["name"], i["arguments"]))
        if "name" in i
        else result(i["call_id"], i["output"])
        for i in items[1:]
    ]
    with MemoryBankState() as state:
        apply_memory_bank_strategy([user(), *made], None, EVIDENCE, state)
        apply_memory_bank_strategy(from_items(items).messages, None, EVIDENCE, state)
        assert state.fact_store.size() == 3


def test_text_is_an_input_too_and_nothing_else() -> None:
    chat = from_items("hello", instructions="Be brief.")
    assert [m["content"] for m in chat.messages] == ["Be brief.", "hello"]
    assert chat.write(entries(chat, chat.messages)) == [{"role": "user", "content": "hello"}]
    with pytest.raises(HistoryError, match="not dict"):
        from_items({"role": "user"})


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"input": "x", "store": True, "background": True, "prompt": {"id": "p"}}, None),
        ({"input": "x", "previous_response_id": None, "conversation": None}, None),
        ({"input": "x", "previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": [], "conversation": {"id": "conv_1"}}, "conversation"),
    ],
)
def test_what_the_provider_holds_is_told(body: dict[str, Any], reason: str | None) -> None:
    assert stands_alone(body) == reason


# --- there and back


@given(good_items() | bad_items())
def test_without_a_change_the_items_come_back(items: list[Any]) -> None:
    chat = from_items(items, "Be brief.")
    back = chat.write(entries(chat, chat.messages))
    assert len(back) == len(items)
    assert all(a is b for a, b in zip(back, items, strict=True))
    assert from_items(again(items), "Be brief.").messages == chat.messages


@given(good_items() | bad_items(), bad_items(), st.data())
def test_what_two_lists_begin_with_is_read_once(
    items: list[Any], others: list[Any], data: st.DataObject
) -> None:
    """Read on after an earlier list, a list is what it is when it is read alone."""
    stop, shared = (data.draw(st.integers(0, len(items))) for _ in range(2))
    prompt = data.draw(st.sampled_from(["Be brief.", None]))
    earlier = from_items(items[:stop], "Be brief.")
    for now in (items, [*items[:shared], *others]):
        chat, alone = from_items(now, prompt, earlier=earlier), from_items(now, prompt)
        assert chat == alone
        earlier = chat


def test_an_output_joins_its_turn_also_where_another_turn_had_begun() -> None:
    begun = [user(), call("a"), call("b"), output("a")]
    earlier = from_items([*begun, thought(), call("c")])
    now = [*begun, output("b")]
    assert from_items(now, earlier=earlier) == from_items(now)


def test_a_list_that_goes_on_costs_its_new_items() -> None:
    items = [user(), *(item for n in range(50) for item in (call(f"c{n}"), output(f"c{n}")))]
    earlier = from_items(items[:-2], "Be brief.")
    chat = from_items(items, "Be brief.", earlier=earlier)
    assert sum(a is not b for a, b in zip(chat.messages, earlier.messages, strict=False)) <= 2


def check(items: list[Any], out: list[Any]) -> None:
    """Nothing that a rebuilt list may not do."""
    positions = kept(items, out)
    there = set(positions)
    assert positions == sorted(there)
    new = [i for i in out if not any(i is item for item in items)]
    assert all(i["role"] == "user" for i in new) and len(new) <= 1
    for i, item in enumerate(items):
        kind = item_type(item)
        if kind == "reasoning" and i + 1 < len(items):
            assert (i in there) == (i + 1 in there)
        if i not in there and isinstance(item, dict):
            assert (
                kind in OUTPUT_OF
                or kind in CALL_OF
                or kind in HOSTED | {"reasoning", "message", "item_reference"}
            )
            assert kind != "message" or item["role"] == "assistant" or carries_only_media(item)
    left_out = [items[i] for i in range(len(items)) if i not in there and isinstance(items[i], dict)]
    calls = Counter((item_type(i), call_id_of(i)) for i in left_out if item_type(i) in OUTPUT_OF)
    outputs = Counter((CALL_OF[item_type(i)], call_id_of(i)) for i in left_out if item_type(i) in CALL_OF)
    assert calls == outputs


@SLOW
@given(good_items(max_turns=14))
def test_a_rebuilt_list_is_whole_at_every_step(items: list[Any]) -> None:
    ends = [i + 1 for i, item in enumerate(items) if item_type(item) in CALL_OF] + [len(items)]
    with MemoryBankState() as state:
        for end in ends[-6:]:
            now = again(items[:end])
            out = rebuilt(now, state)
            check(now, out)
            if not item_errors(now):
                assert item_errors(out) == []
                event("shorter" if len(out) < len(now) else "as it came")
        assert item_errors(items) == []
        answered = sum(item_type(i) in CALL_OF or item_type(i) in HOSTED for i in items)
        assert state.fact_store.size() <= answered


@SLOW
@given(bad_items())
def test_a_broken_list_is_not_broken_further(items: list[Any]) -> None:
    chat = from_items(items)
    form = Form(chat, lambda written: from_items(written).messages)
    with MemoryBankState() as state:
        out = MemoryProcessor(BY_EVIDENCE, lambda: state).rebuild(chat.messages, form=form).sent
    positions = kept(items, out)
    assert positions == sorted(set(positions))
    assert broken_rule(out, items, WIRE) == ""


def test_memory_takes_the_place_of_older_turns() -> None:
    items = [{"role": "developer", "content": "Be careful."}, user(), *rounds(12)]
    with MemoryBankState() as state:
        out = rebuilt(items, state, EVIDENCE.model_copy(update={"history_budget": 400}))
        assert len(out) < 12
        assert out[0] == items[0]
        assert out[1]["role"] == "user" and "retrieved-data" in out[1]["content"]
        assert out[1]["content"].startswith(items[1]["content"])
        assert [id(i) for i in out[-3:]] == [id(i) for i in items[-3:]]
        assert state.fact_store.size() == 12
        assert item_errors(out) == []


@pytest.mark.parametrize("bond", [*BONDS[2:], *APART])
def test_what_only_the_provider_reads_is_never_left_out(bond: dict[str, Any]) -> None:
    bond = {**bond, "id": "x_1"}
    items = [user(), *rounds(4), bond, *rounds(9, reasoning=False)]
    with MemoryBankState() as state:
        out = rebuilt(items, state)
        assert len(out) < len(items) / 2
        assert any(i is bond for i in out)
        after = items.index(bond) + 1
        assert any(i is items[after] for i in out) == (bond["type"] == "thinking_of_tomorrow")


def test_references_go_with_the_turn_after_them() -> None:
    """Vercel's ai sends reasoning that the provider keeps as a reference before each call."""
    items = [user()]
    for i in range(12):
        items += [
            {"type": "item_reference", "id": f"rs_{i}"},
            *rounds(12, reasoning=False)[2 * i : 2 * i + 2],
        ]
    with MemoryBankState() as state:
        out = rebuilt(items, state)
        assert len(out) < 12
        assert item_errors(out) == []
        assert [id(i) for i in out[-3:]] == [id(i) for i in items[-3:]]
    alone = [user(), {"id": "rs_1"}, user("and?")]
    assert [m["role"] for m in from_items(alone).messages] == ["user", "item", "user"]


# --- what strategies write anew


def test_a_shortened_output_is_a_copy_of_its_item() -> None:
    last = output(
        "c9",
        text=json.dumps({"rows": [{"n": n, "note": ""} for n in range(500)]}, indent=2),
        status="completed",
    )
    items = [user(), *rounds(3), thought("rs_9"), call("c9", id="fc_9"), last]
    with MemoryBankState() as state:
        out = rebuilt(items, state, EVIDENCE)
    assert [id(i) for i in out[-3:-1]] == [id(i) for i in items[-3:-1]]
    assert out[-1] == {**last, "output": out[-1]["output"]}
    assert out[-1]["output"] == json.dumps({"rows": [{"n": n} for n in range(500)]}, separators=(",", ":"))


@pytest.mark.parametrize("kind", [*OUTPUT_OF, *sorted(HOSTED)])
def test_masked_outputs_of_every_kind_are_still_valid_items(kind: str) -> None:
    long = "many words " * 200
    turn = [hosted(kind, "w", long)] if kind in HOSTED else [call("c0", kind), output("c0", kind, long)]
    items = [user(), *turn, *rounds(3)]
    settings = {"memory_strategies": {"mask": {"type": "observation_masking", "max_length": 50, "keep_last": 1}},
                "default_strategy": "mask"}  # fmt: skip
    processor = MemoryProcessor(settings)
    chat = from_items(items)
    out = chat.write(processor.apply_strategy(chat.messages, "mask", None, None)[0].entries)
    assert [item_type(i) for i in out] == [item_type(i) for i in items]
    assert item_errors(out) == []
    masked = out[len(turn)]
    assert masked.keys() == items[len(turn)].keys()
    if kind in ("computer_call", "program", "image_generation_call", "web_search_call", "file_search_call"):
        assert masked is items[len(turn)]  # no words, or none that a client may write
    else:
        assert "[masked" in json.dumps(masked) and long not in json.dumps(masked)
    processor.reset_state()


# --- what the API refuses

BARE: dict[str, Any] = {"type": "function_call", "call_id": "c"}
ANSWER: dict[str, Any] = {"type": "function_call_output", "call_id": "c", "output": "x"}
SHELL = [
    {"type": "local_shell_call", "id": "l", "call_id": "c"},
    {"type": "local_shell_call_output", "id": "c"},
]
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": []}
LOST = "No tool output found for function call c."
ORPHAN = "No tool call found for function call output with call_id c."
ALONE = "Item 'rs_1' of type 'reasoning' was provided without its required following item."


@pytest.mark.parametrize(
    ("items", "errors"),
    [
        ([], []),
        ([user()], []),
        ([user(), THOUGHT, call("a"), call("b"), user(), output("b"), output("a")], []),
        ([BARE, ANSWER, BARE, ANSWER], []),
        ([THOUGHT, {**THOUGHT, "id": "rs_2"}, {"role": "assistant", "content": "x"}], []),
        (SHELL, []),
        ([call("p", "program"), call("d", caller={"type": "program", "caller_id": "p"}), output("d")], []),
        ([{**BARE, "async": True}, user()], []),
        ([{"type": kind, "id": kind} for kind in sorted(HOSTED)], []),
        ([THOUGHT, {"type": "item_reference", "id": "fc_1"}, {"id": "rs_1"}], []),
        ([{"type": "never_seen_before"}], []),
        *(([{**BARE, "type": kind}, {**ANSWER, "type": answer}], []) for kind, answer in OUTPUT_OF.items()),
        ([BARE], [LOST]),
        ([{**BARE, "type": "custom_tool_call"}, ANSWER], [ORPHAN, "No tool output found for custom tool call c."]),
        ([ANSWER, BARE], [ORPHAN, LOST]),
        ([BARE, BARE, ANSWER], [LOST]),
        ([BARE, ANSWER, ANSWER], [ORPHAN]),
        ([THOUGHT], [ALONE]),
        ([BARE, THOUGHT, ANSWER], [ALONE]),
        ([{**user(), "id": "m"}, {**user(), "id": "m"}], [
            "Duplicate item found with id m. Remove duplicate items from your input and try again."]),
        ("q", ["Invalid type for 'input': expected an array, but got str."]),
        ([1], ["Invalid value for 'input[0]': expected an item with a type or a role."]),
    ],
)  # fmt: skip
def test_what_is_broken_is_said_in_the_words_of_the_provider(items: Any, errors: list[str]) -> None:
    assert item_errors(items) == errors


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.sampled_from(sorted(OUTPUT_OF)),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["type", "id", "call_id", "role", "async"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(ODD)
def test_the_check_never_raises(items: Any) -> None:
    assert all(isinstance(e, str) and e for e in item_errors(items))
