"""A reference agent: the loop that calls tools, with the one line where memory comes in."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from memory_bank.errors import ModelError

Messages = list[dict[str, Any]]


def run_agent(
    client: Any,
    model: str,
    messages: Messages,
    tools: list[dict[str, Any]],
    handlers: Mapping[str, Callable[..., Any]],
    *,
    prepare: Callable[[Messages], Messages] | None = None,
    max_steps: int = 50,
) -> Messages:
    """Let a model call tools until it answers in words; returns the full conversation, the answer last.

    ``client`` is an ``openai.OpenAI``, ``tools`` are its function definitions, ``handlers`` the functions by
    name, called with the arguments as keywords. Before every model call ``prepare`` is given the conversation
    and returns what the model shall see of it; the conversation itself stays whole. After ``max_steps`` model
    calls the loop ends as it is, with tool results last. What a tool raises goes to the model as text.
    ``messages`` is not changed.

    Raises what the client raises, ModelError when the model answers with no choice at all.
    """
    messages = list(messages)
    options: dict[str, Any] = {"tools": tools} if tools else {}
    for _ in range(max_steps):
        shown = prepare(messages) if prepare else messages
        answer = client.chat.completions.create(model=model, messages=shown, **options)
        if not answer.choices:
            raise ModelError(f"the model {model!r} answered with no choice: try again or use another model")
        said = answer.choices[0].message
        messages.append(said.model_dump(exclude_none=True))
        if not said.tool_calls:
            break
        for call in said.tool_calls:
            messages.append({"role": "tool", "tool_call_id": call.id, "content": _output(call, handlers)})
    return messages


def _output(call: Any, handlers: Mapping[str, Callable[..., Any]]) -> str:
    """What the tool returned, as text; what it raised, as a JSON error."""
    try:
        result = handlers[call.function.name](**json.loads(call.function.arguments or "{}"))
        return result if isinstance(result, str) else json.dumps(result)
    except Exception as error:
        return json.dumps({"error": f"{type(error).__name__}: {error}"})
