"""A reference agent: a loop that calls tools, with a hook for memory."""

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
    """Let a model call tools until it answers without a call; returns the whole conversation.

    - ``client``: an ``openai.OpenAI``.
    - ``messages``: the conversation so far; not modified.
    - ``tools``: function definitions; ``handlers``: the functions by name, called with keyword arguments. An
      exception of a tool is sent to the model as a JSON error.
    - ``prepare``: called with the conversation before every model call; returns the messages to send.
    - ``max_steps``: the number of model calls after which the loop ends, with tool results last.

    Raises ModelError when the model answers without a choice, and what the client raises.
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
    """The tool's result as text; its exception as a JSON error."""
    try:
        result = handlers[call.function.name](**json.loads(call.function.arguments or "{}"))
        return result if isinstance(result, str) else json.dumps(result)
    except Exception as error:
        return json.dumps({"error": f"{type(error).__name__}: {error}"})
