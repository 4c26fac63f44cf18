"""What the Responses API refuses in its input."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_bank.transcript.responses import HOSTED, OUTPUT_OF, item_errors

USER: dict[str, Any] = {"role": "user", "content": "q"}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": []}


def call(call_id: str = "c", kind: str = "function_call", **more: Any) -> dict[str, Any]:
    return {"type": kind, "call_id": call_id, **more}


def output(call_id: str = "c", kind: str = "function_call_output", **more: Any) -> dict[str, Any]:
    return {"type": kind, "call_id": call_id, "output": "x", **more}


@pytest.mark.parametrize(
    "items",
    [
        [],
        [USER],
        [USER, THOUGHT, call("a"), call("b"), USER, output("b"), output("a")],
        [call(), output(), call(), output()],
        [THOUGHT, {**THOUGHT, "id": "rs_2"}, {"role": "assistant", "content": "x"}],
        [
            {"type": "local_shell_call", "id": "l", "call_id": "c"},
            {"type": "local_shell_call_output", "id": "c"},
        ],
        [call(kind="program"), call("d", caller={"type": "program", "caller_id": "c"}), output("d")],
        [call(**{"async": True}), USER],
        [{"type": kind, "id": kind} for kind in sorted(HOSTED)],
        [THOUGHT, {"type": "item_reference", "id": "fc_1"}, {"id": "rs_1"}],
        [{"type": "never_seen_before"}],
        *([call(kind=kind), output(kind=answer)] for kind, answer in OUTPUT_OF.items()),
    ],
)
def test_what_is_whole_passes(items: list[Any]) -> None:
    assert item_errors(items) == []


@pytest.mark.parametrize(
    ("items", "errors"),
    [
        ([call()], ["No tool output found for function call c."]),
        ([call(kind="custom_tool_call"), output()], [
            "No tool call found for function call output with call_id c.",
            "No tool output found for custom tool call c."]),
        ([output(), call()], [
            "No tool call found for function call output with call_id c.",
            "No tool output found for function call c."]),
        ([call(), call(), output()], ["No tool output found for function call c."]),
        ([call(), output(), output()], ["No tool call found for function call output with call_id c."]),
        ([THOUGHT], ["Item 'rs_1' of type 'reasoning' was provided without its required following item."]),
        ([call(), THOUGHT, output()], [
            "Item 'rs_1' of type 'reasoning' was provided without its required following item."]),
        ([{**USER, "id": "m"}, {**USER, "id": "m"}], [
            "Duplicate item found with id m. Remove duplicate items from your input and try again."]),
        ("q", ["Invalid type for 'input': expected an array, but got str."]),
        ([1], ["Invalid value for 'input[0]': expected an item with a type or a role."]),
    ],
)  # fmt: skip
def test_what_is_broken_is_told_in_the_words_of_the_provider(items: Any, errors: list[str]) -> None:
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
def test_it_never_raises(items: Any) -> None:
    assert all(isinstance(e, str) and e for e in item_errors(items))
