"""A conversation with tool calls as a request of each model API."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tests import blocks, chats, items

PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
NUMBER = {"type": "object", "properties": {"number": {"type": "integer"}}}
GET_ORDER = {"type": "function", "function": {"name": "get_order", "parameters": NUMBER}}


def body_of(
    api: str,
    outputs: Sequence[Any],
    tools: Sequence[Any] = (GET_ORDER,),
    name: str = "get_order",
    **members: Any,
) -> dict[str, Any]:
    """A request of an API after one call of a tool for each output; ``tools`` are those of the chat API."""
    turns: list[Any] = [chats.user("Check the orders.")]
    for n, output in enumerate(outputs):
        call_id, arguments = f"c{n}", {"number": n}
        if api == "messages":
            turns += [
                blocks.turn(blocks.use(call_id, name, **arguments)),
                blocks.user(blocks.answer(call_id, output)),
            ]
        elif api == "responses":
            made = items.call(call_id, name=name, arguments=json.dumps(arguments))
            turns += [made, items.output(call_id, text=output)]
        else:
            turns += [chats.call((call_id, name, arguments)), chats.result(call_id, output)]
    functions = [tool["function"] for tool in tools]
    if api == "messages":
        own = [{"name": f["name"], "description": "d", "input_schema": f["parameters"]} for f in functions]
        return {
            "model": "m",
            "max_tokens": 99,
            "system": "You check.",
            "messages": turns,
            "tools": own,
            **members,
        }
    turns.insert(0, chats.system("You check."))
    if api == "responses":
        return {
            "model": "m",
            "input": turns,
            "tools": [{"type": "function", **f} for f in functions],
            **members,
        }
    return {"model": "m", "messages": turns, "tools": [*tools], **members}
