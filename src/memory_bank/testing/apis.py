"""The APIs of the scripted server: what each refuses, and how it writes a reply, complete or as events."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any

from memory_bank.testing.replies import JsonObject, Reply, fail
from memory_bank.transcript import events
from memory_bank.transcript.anthropic import MOST_CACHE_MARKS, THINKING, cache_marks, message_errors
from memory_bank.transcript.messages import call_entry
from memory_bank.transcript.pairing import pairing_errors
from memory_bank.transcript.responses import ROLES, item_errors, item_type

CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
COUNT = "/v1/messages/count_tokens"


class Api:
    """The base of the APIs; ``number`` makes the next id with a prefix. Each has three methods more:

    ``refusal``: the error for a request that is not valid, or None; ``errors``: what a provider would refuse in a
    valid one: at ``most`` so many, each with ``prefix`` and ``param``; ``render``: the body of a reply to a request
    of so many bytes, one piece or one for each event.
    """

    prefix, most = "", 1
    param: str | None = "input"

    def __init__(self, number: Callable[[str], str]) -> None:
        self.number = number

    def error_body(self, reply: Reply) -> bytes:
        """The JSON of an error."""
        kind, code = "server_error" if reply.status >= 500 else "invalid_request_error", None
        if reply.status == 429:
            kind, code = "requests", "rate_limit_exceeded"
        error = {
            "message": reply.content or "",
            "type": kind,
            "param": reply.param,
            "code": reply.code or code,
        }
        return json.dumps({"error": error}).encode()


# Chat completions


class ScriptedChat(Api):
    """Answers of the Chat Completions API."""

    prefix, most, param = "Invalid 'messages': ", 5, "messages"

    def refusal(self, body: JsonObject, path: str) -> Reply | None:  # noqa: ARG002
        if isinstance(body.get("messages"), list) and body["messages"]:
            return None
        return fail(400, f"{self.prefix}expected an array with minimum length 1", param=self.param)

    def errors(self, body: JsonObject) -> list[str]:
        return pairing_errors(body["messages"])

    def render(self, reply: Reply, body: JsonObject, size: int, streamed: bool) -> list[bytes]:
        calls = []
        for name, arguments, *ids in reply.tool_calls:
            text = arguments if isinstance(arguments, str) else json.dumps(arguments)
            calls.append(call_entry(ids[0] if ids else self.number("call_"), name, text))
        chars = len(reply.content or "") + sum(len(c["function"]["arguments"]) for c in calls)
        into, out = reply.usage or (size // 4, chars // 4)
        message: JsonObject = {"role": "assistant", "content": reply.content, "refusal": None}
        if reply.reasoning is not None:
            message["reasoning_content"] = reply.reasoning
        if calls:
            message["tool_calls"] = calls
        answer = events.completion(self.number("chatcmpl-"), body["model"], message, into, out)
        if reply.cached is not None:
            answer["usage"]["prompt_tokens_details"] = {"cached_tokens": reply.cached[0]}
        return events.chat_events(answer, body) if streamed else [json.dumps(answer).encode()]


# Responses

_PARTS = {
    True: ("output_text", "refusal"),  # of the assistant
    False: ("input_text", "input_image", "input_file", "input_audio"),
}


class ScriptedResponses(Api):
    """Answers of the Responses API. Responses are not kept: what a request continues by id is not checked."""

    def __init__(self, number: Callable[[str], str]) -> None:
        super().__init__(number)
        self._needs: dict[str, str] = {}  # the reasoning item that must precede an item

    def refusal(self, body: JsonObject, path: str) -> Reply | None:  # noqa: ARG002
        value = body.get("input")
        if value is not None and not isinstance(value, (str, list)):
            got = f"Invalid type for 'input': expected a string or an array, but got {type(value).__name__}."
            return fail(400, got, param="input", code="invalid_type")
        if value is None and not (_goes_on(body) or body.get("prompt")):
            missing = "Missing required parameter: 'input'."
            return fail(400, missing, param="input", code="missing_required_parameter")
        return None

    def errors(self, body: JsonObject) -> list[str]:
        items = _items(body.get("input"))
        wrong = [e for i, item in enumerate(items) if (e := _wrong_message(i, item))]
        if _goes_on(body) or any(item_type(item) == "item_reference" for item in items):
            return wrong
        seen, lacking = set(), []  # items that were made with reasoning and are sent back without it
        for item in items:
            if isinstance(item, dict) and isinstance(item_id := item.get("id"), str):
                seen.add(item_id)
                if (needed := self._needs.get(item_id, item_id)) not in seen:
                    lacking.append(
                        f"Item '{item_id}' of type '{item_type(item)}' was provided "
                        f"without its required 'reasoning' item: '{needed}'."
                    )
        return wrong + item_errors(items) + lacking

    def render(self, reply: Reply, body: JsonObject, size: int, streamed: bool) -> list[bytes]:
        response = self._response(reply, body, size)
        if not streamed:
            return [json.dumps(response).encode()]
        return events.response_events(response)

    def _response(self, reply: Reply, body: JsonObject, size: int) -> JsonObject:
        """The response that a reply makes."""
        output = self._output(reply, body)
        chars = sum(len(str(i.get("arguments") or i.get("input") or "")) for i in output)
        thought = len(reply.reasoning or "") // 4
        into, out = reply.usage or (size // 4, (chars + len(reply.content or "")) // 4 + thought)
        cached, written = reply.cached or (0, 0)
        response = events.response_of(self.number("resp_"), body, output, into, out)
        response["usage"]["input_tokens_details"] = {"cached_tokens": cached, "cache_write_tokens": written}
        response["usage"]["output_tokens_details"] = {"reasoning_tokens": thought}
        if response["store"] and output and output[0]["type"] == "reasoning":
            self._needs.update((item["id"], output[0]["id"]) for item in output[1:])
        return response

    def _output(self, reply: Reply, body: JsonObject) -> list[JsonObject]:
        output: list[JsonObject] = []

        def add(prefix: str, kind: str, **fields: Any) -> None:
            output.append({"id": self.number(prefix), "type": kind, **fields})

        if reply.reasoning is not None:
            summary = [{"type": "summary_text", "text": reply.reasoning}] if reply.reasoning else []
            digest = base64.b64encode(hashlib.sha512(reply.reasoning.encode("utf-8", "replace")).digest())
            add("rs_", "reasoning", summary=summary, encrypted_content=digest.decode())
        if reply.content is not None:
            output.append(events.text_item(self.number("msg_"), reply.content))
        free = {t.get("name") for t in _tools(body) if t.get("type") == "custom"}
        for name, arguments, *ids in reply.tool_calls:
            text = arguments if isinstance(arguments, str) else json.dumps(arguments)
            call_id = ids[0] if ids else self.number("call_")
            members = {"status": "completed", "call_id": call_id, "name": name}
            if name in free:
                add("ctc_", "custom_tool_call", **members, input=text)
            else:
                add("fc_", "function_call", **members, arguments=text)
        return output


def _items(items: Any) -> list[Any]:
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    return items if isinstance(items, list) else []


def _tools(body: JsonObject) -> Iterator[JsonObject]:
    items = (i for i in _items(body.get("input")) if item_type(i) == "additional_tools")
    holders: list[Any] = [body, *items]
    while holders:
        for tool in holders.pop().get("tools") or ():
            if isinstance(tool, dict):
                yield tool
                holders.append(tool)


def _goes_on(body: JsonObject) -> bool:
    """Return whether a request continues what a server holds."""
    return bool(body.get("previous_response_id") or body.get("conversation"))


def _wrong_message(i: int, item: Any) -> str | None:
    """The error in a message item; None for a valid one, and for other items."""
    if item_type(item) != "message":
        return None
    role = item.get("role")
    if role not in ROLES:
        supported = "'assistant', 'system', 'developer', and 'user'"
        return f"Invalid value: '{role}'. Supported values are: {supported}."
    for key in ("tool_calls", "tool_call_id", "function_call", "name"):
        if key in item:
            return f"Unknown parameter: 'input[{i}].{key}'."
    content = item.get("content")
    if not isinstance(content, (str, list)):
        return f"Invalid type for 'input[{i}].content': expected a string or an array of parts."
    allowed = _PARTS[role == "assistant"]
    for part in content if isinstance(content, list) else ():
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in allowed:
            return f"Invalid value: '{kind}'. Supported values are: {', '.join(map(repr, allowed))}."
    return None


# Messages

_KINDS = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large",
    429: "rate_limit_error", 529: "overloaded_error",
}  # fmt: skip


class ScriptedMessages(Api):
    """Answers of the Messages API.

    Thinking blocks are signed over the ``system``, ``tools`` and messages before them; a block that comes back
    after anything else is refused, unless the request says ``drop_block``.
    """

    param = None

    def refusal(self, body: JsonObject, path: str) -> Reply | None:
        if path == MESSAGES and not isinstance(body.get("max_tokens"), int):
            return fail(400, "max_tokens: Field required")
        if not isinstance(body.get("messages"), list) or not body["messages"]:
            return fail(400, "messages: at least one message is required")
        return None

    def errors(self, body: JsonObject) -> list[str]:
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
        content: list[JsonObject] = []
        if reply.reasoning is not None:
            signature = _signature(body, len(body["messages"]))
            content.append({"type": "thinking", "thinking": reply.reasoning, "signature": signature})
        if reply.content is not None:
            content.append({"type": "text", "text": reply.content})
        for name, arguments, *ids in reply.tool_calls:
            parsed = json.loads(arguments) if isinstance(arguments, str) else arguments
            call_id = ids[0] if ids else self.number("toolu_")
            content.append({"type": "tool_use", "id": call_id, "name": name, "input": parsed})
        into, out = reply.usage or (size // 4, len(json.dumps(content)) // 4)
        read, written = reply.cached or (0, 0)
        reason = "tool_use" if reply.tool_calls else "end_turn"
        message = events.message_of(
            self.number("msg_"), body["model"], content, reason, into - read - written, out
        )
        message["usage"] |= {"cache_creation_input_tokens": written, "cache_read_input_tokens": read}
        return events.message_events(message) if streamed else [json.dumps(message).encode()]

    def error_body(self, reply: Reply) -> bytes:
        kind = _KINDS.get(reply.status) or ("api_error" if reply.status >= 500 else "invalid_request_error")
        error = {"type": kind, "message": reply.content or ""}
        return json.dumps({"type": "error", "error": error}).encode()


def _signature(body: JsonObject, position: int) -> str:
    """The signature of thinking at a position: over what stands before it, without cache marks."""
    before = _unmarked([body.get("system") or None, body.get("tools") or None, body["messages"][:position]])
    return hashlib.sha256(json.dumps(before, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()


def _unmarked(value: Any) -> Any:
    """A value without cache marks; contents that are a text become one block."""
    if isinstance(value, dict):
        members = {k: v for k, v in value.items() if k != "cache_control"}
        if isinstance(members.get("content"), str):
            members["content"] = [{"type": "text", "text": members["content"]}]
        return {k: _unmarked(v) for k, v in members.items()}
    return [_unmarked(v) for v in value] if isinstance(value, list) else value


def _blocks(message: Any) -> list[JsonObject]:
    content = message.get("content") if isinstance(message, dict) else None
    return [b for b in content if isinstance(b, dict)] if isinstance(content, list) else []
