"""The Messages API of the scripted server: complete and as events, strict about pairs, thinking and cache marks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any

from memory_bank.testing.replies import JsonObject, Reply, as_events, fail, in_pieces
from memory_bank.transcript.anthropic import MOST_CACHE_MARKS, THINKING, cache_marks, message_errors

MESSAGES = "/v1/messages"
COUNT = "/v1/messages/count_tokens"

_KINDS = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large",
    429: "rate_limit_error", 529: "overloaded_error",
}  # fmt: skip


class ScriptedMessages:
    """Answers of the Messages API. ``number`` makes the ids.

    Thinking blocks are signed over the ``system``, ``tools`` and messages before them; a block that comes back
    after anything else is refused, unless the request says ``drop_block``.
    """

    def __init__(self, number: Callable[[str], str]) -> None:
        self._number = number

    def refusal(self, body: JsonObject, path: str) -> Reply | None:
        """The error for a request without its required members; None for a valid one."""
        if path == MESSAGES and not isinstance(body.get("max_tokens"), int):
            return fail(400, "max_tokens: Field required")
        if not isinstance(body.get("messages"), list) or not body["messages"]:
            return fail(400, "messages: at least one message is required")
        return None

    def errors(self, body: JsonObject) -> list[str]:
        """What the API would refuse: broken pairs, too many cache marks, thinking that does not fit."""
        messages, thinking = body["messages"], body.get("thinking") or {}
        errors = message_errors(messages)
        marks = cache_marks(body.get("system"), body.get("tools"), messages)
        if marks > MOST_CACHE_MARKS:
            errors.append(
                f"A maximum of {MOST_CACHE_MARKS} blocks with cache_control may be provided. Found {marks}."
            )
        if errors:
            return errors
        if not isinstance(thinking, dict):
            return ["thinking: Input should be an object"]
        binding = thinking.get("block_binding")
        if not isinstance(binding, dict) or binding.get("prefix_mismatch_behavior") != "drop_block":
            errors = [
                f"messages.{i}.content.{j}: `thinking` or `redacted_thinking` blocks cannot be used "
                "after a different prefix"
                for i, message in enumerate(messages)
                for j, block in enumerate(_blocks(message))
                if block.get("type") in THINKING
                and block.get("signature", block.get("data")) != _signature(body, i)
            ]
        last = messages[-1] if isinstance(messages[-1], dict) else {}
        if thinking.get("type") == "enabled" and any(b.get("type") == "tool_result" for b in _blocks(last)):
            turn: JsonObject = next((m for m in reversed(messages) if m.get("role") == "assistant"), {})
            first = next(iter(_blocks(turn)), {})
            if first.get("type") not in THINKING:
                errors.append(
                    f"messages.{messages.index(turn)}.content.0.type: Expected `thinking` or `redacted_thinking`, "
                    f"but found `{first.get('type')}`. When `thinking` is enabled, a final `assistant` message must "
                    "start with a thinking block."
                )
        return errors

    def render(self, reply: Reply, body: JsonObject, size: int, streamed: bool) -> list[bytes]:
        """The body of a reply: one piece, or one for each event."""
        message = self._message(reply, body, size)
        return as_events(list(_events(message))) if streamed else [json.dumps(message).encode()]

    def _message(self, reply: Reply, body: JsonObject, size: int) -> JsonObject:
        content: list[JsonObject] = []
        if reply.reasoning is not None:
            signature = _signature(body, len(body["messages"]))
            content.append({"type": "thinking", "thinking": reply.reasoning, "signature": signature})
        if reply.content is not None:
            content.append({"type": "text", "text": reply.content})
        for name, arguments, *given in reply.tool_calls:
            parsed = json.loads(arguments) if isinstance(arguments, str) else arguments
            made = given[0] if given else self._number("toolu_")
            content.append({"type": "tool_use", "id": made, "name": name, "input": parsed})
        into, out = reply.usage or (size // 4, len(json.dumps(content)) // 4)
        read, written = reply.cached or (0, 0)
        return {
            "id": self._number("msg_"),
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": content,
            "stop_reason": "tool_use" if reply.tool_calls else "end_turn",
            "stop_sequence": None,
            "usage": {
                "input_tokens": into - read - written,
                "cache_creation_input_tokens": written,
                "cache_read_input_tokens": read,
                "output_tokens": out,
            },
        }


def error_of(reply: Reply) -> bytes:
    """The JSON of an error in the shape of the Messages API."""
    kind = _KINDS.get(reply.status) or ("api_error" if reply.status >= 500 else "invalid_request_error")
    error = {"type": kind, "message": reply.content or ""}
    return json.dumps({"type": "error", "error": error}).encode()


def _signature(body: JsonObject, position: int) -> str:
    """The signature of thinking at a position: over what stands before it, without cache marks."""
    before = _unmarked([body.get("system") or None, body.get("tools") or None, body["messages"][:position]])
    return hashlib.sha256(json.dumps(before, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()


def _unmarked(value: Any) -> Any:
    """A value without cache marks, contents that are text as blocks."""
    if isinstance(value, dict):
        kept = {k: v for k, v in value.items() if k != "cache_control"}
        if isinstance(kept.get("content"), str):
            kept["content"] = [{"type": "text", "text": kept["content"]}]
        return {k: _unmarked(v) for k, v in kept.items()}
    return [_unmarked(v) for v in value] if isinstance(value, list) else value


def _blocks(message: Any) -> list[JsonObject]:
    content = message.get("content") if isinstance(message, dict) else None
    return [b for b in content if isinstance(b, dict)] if isinstance(content, list) else []


def _events(message: JsonObject) -> Iterator[tuple[str, JsonObject]]:
    usage = message["usage"]
    begun = {**message, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
    yield "message_start", {"message": begun}
    yield "ping", {}
    for index, block in enumerate(message["content"]):
        kind = block["type"]
        if kind == "tool_use":
            empty: JsonObject = {"input": {}}
            text, delta, member = json.dumps(block["input"]), "input_json_delta", "partial_json"
        else:
            empty = {"text": ""} if kind == "text" else {"thinking": "", "signature": ""}
            text, delta, member = block[kind], f"{kind}_delta", kind
        yield "content_block_start", {"index": index, "content_block": {**block, **empty}}
        for piece in in_pieces(text):
            yield "content_block_delta", {"index": index, "delta": {"type": delta, member: piece}}
        if kind == "thinking":
            signed = {"type": "signature_delta", "signature": block["signature"]}
            yield "content_block_delta", {"index": index, "delta": signed}
        yield "content_block_stop", {"index": index}
    ended = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield "message_delta", {"delta": ended, "usage": {"output_tokens": usage["output_tokens"]}}
    yield "message_stop", {}
