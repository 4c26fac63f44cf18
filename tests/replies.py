"""Faults of a scripted server, and an agent that calls tools through a client."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from memory_bank.testing import Reply


def raw(body: str | bytes | Sequence[str | bytes], status: int = 200, **headers: str) -> Reply:
    """A body that is sent unchanged: ``raw("")``, ``raw('{"choices": []}')``."""
    return Reply(raw=body, status=status, headers={k.replace("_", "-"): v for k, v in headers.items()})


def half() -> Reply:
    """A complete HTTP answer with truncated JSON."""
    return raw('{"id": "chatcmpl-half", "object": "chat.completion", "choices": [{"index": 0, "mess')


def cut(after: int = 0) -> Reply:
    """A fault: the connection is closed after ``after`` bytes of the body; 0: nothing is sent."""
    return Reply(content="this answer is not sent to its end " * 20, cut=after)


def run_agent(
    client: Any,
    model: str,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]],
    handlers: Mapping[str, Callable[..., str]],
    max_steps: int,
) -> list[dict[str, Any]]:
    """Let a model call tools until it answers without a call; returns the whole conversation."""
    messages = list(messages)
    for _ in range(max_steps):
        answer = client.chat.completions.create(model=model, messages=messages, tools=tools)
        said = answer.choices[0].message
        messages.append(said.model_dump(exclude_none=True))
        if not said.tool_calls:
            break
        for call in said.tool_calls:
            output = handlers[call.function.name](**json.loads(call.function.arguments or "{}"))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": output})
    return messages
