"""Input items of the Responses API for tests: builders, and hypothesis strategies for good and bad lists."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from memory_bank.transcript.responses import HOSTED, OUTPUT_OF

Item = dict[str, Any]
WORDS = st.text(  # no two surrogates side by side: JSON makes one letter of them
    st.sampled_from('abc XYZ09_-{}"\n中\U0001f600\ud83d'), max_size=20
)


def user(text: Any = "Find the order and refund it") -> Item:
    return {"role": "user", "content": text}


def words(text: str, item_id: str = "msg_1") -> Item:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "id": item_id, "role": "assistant", "status": "completed", "content": [part]}


def thought(item_id: str = "rs_1") -> Item:
    return {"type": "reasoning", "id": item_id, "summary": [], "encrypted_content": "gAAA"}


def call(call_id: str, kind: str = "function_call", **more: Any) -> Item:
    """A call that a client answers, of any kind."""
    fields: dict[str, Item] = {
        "function_call": {"name": "get_order", "arguments": '{"number": 1}'},
        "custom_tool_call": {"name": "run_sql", "input": "SELECT 1"},
        "computer_call": {
            "action": {"type": "screenshot"},
            "pending_safety_checks": [],
            "status": "completed",
        },
        "local_shell_call": {"action": {"type": "exec", "command": ["ls"], "env": {}}, "status": "completed"},
        "shell_call": {"action": {"commands": ["ls"]}, "status": "completed"},
        "apply_patch_call": {"operation": {"type": "delete_file", "path": "a"}, "status": "completed"},
        "program": {"code": "await f()", "fingerprint": "f"},
    }
    return {"type": kind, "call_id": call_id, **fields[kind], **more}


def output(call_id: str, kind: str = "function_call", text: str = "done", **more: Any) -> Item:
    """What answers a call of a kind."""
    fields: dict[str, Any] = {
        "computer_call": {"output": {"type": "computer_screenshot", "image_url": "data:image/png;base64,AA"}},
        "shell_call": {
            "output": [{"stdout": text, "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]
        },
        "apply_patch_call": {"output": text, "status": "completed"},
        "program": {"result": text, "status": "completed"},
    }
    return {"type": OUTPUT_OF[kind], "call_id": call_id, **fields.get(kind, {"output": text}), **more}


def hosted(kind: str, item_id: str, text: str = "found") -> Item:
    """A call that the provider has answered."""
    fields: dict[str, Item] = {
        "web_search_call": {
            "action": {"type": "search", "query": "q", "sources": [{"type": "url", "url": text}]}
        },
        "file_search_call": {"queries": ["q"], "results": [{"file_id": "f", "text": text}]},
        "code_interpreter_call": {
            "code": "1+1",
            "container_id": "c",
            "outputs": [{"type": "logs", "logs": text}],
        },
        "image_generation_call": {"result": "AAAA", "revised_prompt": "a cat"},
        "mcp_call": {"name": "lookup", "server_label": "s", "arguments": "{}", "output": text},
    }
    return {"type": kind, "id": item_id, "status": "completed", **fields[kind]}


APART: list[Item] = [
    {"type": "compaction", "encrypted_content": "gAAA"},
    {"type": "mcp_list_tools", "server_label": "s", "tools": [{"name": "lookup", "input_schema": {}}]},
    {"type": "tool_search_call", "arguments": {"q": "orders"}, "execution": "server"},
    {"type": "tool_search_output", "tools": [], "execution": "server"},
    {"type": "additional_tools", "role": "developer", "tools": []},
    {"type": "configuration_update", "reasoning": {"effort": "low"}},
    {"type": "mcp_approval_request", "name": "lookup", "server_label": "s", "arguments": "{}"},
    {
        "type": "mcp_call",
        "name": "lookup",
        "server_label": "s",
        "arguments": "{}",
        "approval_request_id": "r",
    },
    {"type": "mcp_approval_response", "approve": True, "approval_request_id": "r"},
]
BONDS: list[Item] = [{"type": "item_reference"}, {}, {"type": "thinking_of_tomorrow", "blob": "x"}]


def rounds(n: int, size: int = 300, reasoning: bool = True) -> list[Item]:
    """n turns of one call each; outputs are JSON of about ``size`` characters."""
    items: list[Item] = []
    for i in range(n):
        body = json.dumps({"order_id": f"ORD-{1000 + i}", "note": "x y " * (size // 4), "n": i})
        items += [thought(f"rs_{i}")] if reasoning else []
        items += [call(f"c{i}", id=f"fc_{i}"), output(f"c{i}", text=body)]
    return items


@st.composite
def good_items(draw: st.DrawFn, max_turns: int = 8) -> list[Item]:
    """Lists that a provider accepts; every item has an ``id`` of its own, or is the client's."""
    items: list[Item] = []
    made = 0

    def fresh(item: Item, prefix: str) -> Item:
        nonlocal made
        made += 1
        return {**item, "id": f"{prefix}_{made}"}

    def thoughts() -> list[Item]:
        return [fresh(thought(), "rs") for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2])))]

    def spoken() -> list[Item]:
        return [fresh(words(draw(WORDS)), "msg")] if draw(st.integers(0, 3)) == 0 else []

    def call_turn() -> None:
        kinds = draw(st.lists(st.sampled_from([*["function_call"] * 6, *OUTPUT_OF]), min_size=1, max_size=3))
        used = [draw(st.sampled_from(["a", "b", f"call_{made}_{i}"])) + str(i) for i in range(len(kinds))]
        pairs = list(zip(used, kinds, strict=True))
        items.extend([*thoughts(), *spoken(), *thoughts()])
        for call_id, kind in pairs:
            items.append(fresh(call(call_id, kind), "fc"))
            if draw(st.integers(0, 5)) == 0:
                items.append(fresh(hosted(draw(st.sampled_from(sorted(HOSTED))), ""), "ws"))
            elif draw(st.integers(0, 7)) == 0:
                items.extend(spoken())
        if draw(st.integers(0, 9)) == 0:
            items.append(dict(draw(st.sampled_from(APART))))
        for call_id, kind in draw(st.permutations(pairs)):
            items.append(output(call_id, kind, draw(WORDS) + "z" * draw(st.sampled_from([0, 30, 400]))))
            if draw(st.integers(0, 11)) == 0:
                items.append(user("wait"))

    def program_turn() -> None:
        number = made
        items.extend([*thoughts(), fresh(call(f"p{number}", "program"), "prog")])
        for i in range(draw(st.integers(0, 2))):
            caller = {"type": "program", "caller_id": f"p{number}"}
            items.append(fresh(call(f"p{number}_{i}", caller=caller), "fc"))
            items.append(output(f"p{number}_{i}", caller=caller))
        items.append(fresh(output(f"p{number}", "program"), "prog"))

    if draw(st.booleans()):
        items.append({"role": draw(st.sampled_from(["system", "developer"])), "content": draw(WORDS)})
    items.append(
        user(
            draw(
                WORDS
                | st.just([{"type": "input_text", "text": "look"}, {"type": "input_image", "image_url": "x"}])
            )
        )
    )
    for _ in range(draw(st.integers(0, max_turns))):
        what = draw(st.sampled_from(["call"] * 5 + ["say", "user", "hosted", "program", "apart", "bond"]))
        if what == "call":
            call_turn()
        elif what == "program":
            program_turn()
        elif what == "user":
            items.append(user(draw(WORDS)))
        elif what == "say":
            items.extend([*thoughts(), fresh(words(draw(WORDS)), "msg")])
        elif what == "hosted":
            items.extend([*thoughts(), fresh(hosted(draw(st.sampled_from(sorted(HOSTED))), ""), "ws")])
        elif what == "apart":
            items.append(fresh(draw(st.sampled_from(APART)), "apart"))
        else:
            items.append(fresh(draw(st.sampled_from(BONDS)), "bond"))
    if items[-1].get("type") == "reasoning":
        items.append(fresh(words("so"), "msg"))
    return items


ODD = (
    st.none()
    | st.integers()
    | WORDS
    | st.dictionaries(
        st.sampled_from(["type", "id", "role", "call_id", "output", "content", "name", "caller", "action"]),
        st.sampled_from(
            [
                None,
                1,
                "a0",
                "user",
                "assistant",
                "function_call",
                "function_call_output",
                "reasoning",
                "mcp_call",
                [],
                {},
                ["x"],
            ]
        ),
        max_size=5,
    )
)


@st.composite
def bad_items(draw: st.DrawFn) -> list[Any]:
    """Good lists cut, shuffled, doubled, and with anything in between."""
    items: list[Any] = list(draw(good_items(max_turns=5)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(items)))
        what = draw(st.sampled_from(["drop", "drop", "odd", "double", "move"]))
        if what == "odd":
            items.insert(at, draw(ODD))
        elif at < len(items) and what == "drop":
            del items[at]
        elif at < len(items) and what == "double":
            items.insert(draw(st.integers(0, len(items))), json.loads(json.dumps(items[at])))
        elif at < len(items):
            items.insert(draw(st.integers(0, len(items) - 1)), items.pop(at))
    return items
