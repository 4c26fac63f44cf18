"""Replies of a scripted server, faults included, and the functions that make them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

JsonObject: TypeAlias = dict[str, Any]  # a JSON object of a request or an answer


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer of the server, or one fault.

    - ``tool_calls``: ``(name, arguments)`` or ``(name, arguments, id)``; arguments are a dict, or text sent
      unchanged. Without an id the server makes a unique one.
    - ``usage``: (prompt, completion) tokens; None gives a quarter of the characters.
    - ``cached``: of the prompt's tokens, those (read from, written to) a prefix cache; None: a chat does not say.
    - ``status``: 400 or more sends an error in OpenAI's shape: ``content`` is its message, with ``param`` and
      ``code``.
    - ``delay``: seconds before the first byte; ``pause``: seconds between the pieces of a streamed answer.
    - ``raw``: the body; of a list, each element is one piece of a streamed answer.
    - ``cut``: close the connection after that many bytes of the body; 0 sends nothing.
    - ``reasoning``: an item before the answer in the Responses API, ``reasoning_content`` in a chat.
    """

    content: str | None = None
    tool_calls: Sequence[tuple[str, Any] | tuple[str, Any, str]] = ()
    usage: tuple[int, int] | None = None
    status: int = 200
    delay: float = 0
    raw: str | bytes | Sequence[str | bytes] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: int | None = None
    pause: float = 0
    reasoning: str | None = None
    param: str | None = None
    code: str | None = None
    cached: tuple[int, int] | None = None


def say(text: str | None) -> Reply:
    """A text answer."""
    return Reply(content=text)


def call(_tool: str, /, **arguments: Any) -> Reply:
    """A turn that calls one tool: ``call("search", query="x")``."""
    return Reply(tool_calls=((_tool, arguments),))


def calls(*tool_calls: tuple[str, Any] | tuple[str, Any, str], content: str | None = None) -> Reply:
    """A turn that calls several tools at once: ``calls(("search", {"query": "x"}), ("now", {}))``."""
    return Reply(content=content, tool_calls=tool_calls)


def fail(
    status: int,
    message: str = "scripted failure",
    retry_after: float | None = None,
    *,
    param: str | None = None,
    code: str | None = None,
) -> Reply:
    """An HTTP error in OpenAI's shape; ``retry_after`` in seconds becomes the header Retry-After."""
    headers = {} if retry_after is None else {"Retry-After": f"{retry_after:g}"}
    return Reply(content=message, status=status, headers=headers, param=param, code=code)


def as_json(body: object) -> Reply:
    """A JSON body."""
    return Reply(raw=json.dumps(body))
