"""The Responses API of the scripted server: complete, as events, and stored."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

from memory_bank.testing.replies import JsonObject, Reply, as_events, as_json, fail, in_pieces
from memory_bank.transcript.responses import ROLES, item_errors, item_type

RESPONSES = "/v1/responses"
CONVERSATIONS = "/v1/conversations"

Item = JsonObject
Event = tuple[str, JsonObject]

_PARTS = {
    True: ("output_text", "refusal"),  # of the assistant
    False: ("input_text", "input_image", "input_file", "input_audio"),
}

_DEFAULTS: JsonObject = {
    "object": "response", "created_at": 0, "status": "completed", "error": None, "incomplete_details": None,
    "instructions": None, "max_output_tokens": None, "metadata": {}, "model": "", "parallel_tool_calls": True,
    "previous_response_id": None, "reasoning": {"effort": None, "summary": None}, "temperature": 1.0,
    "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [], "top_p": 1.0, "truncation": "disabled",
    "user": None,
}  # fmt: skip
"""Members of a response; those of the request replace them."""


class ScriptedResponses:
    """The responses, items and conversations of a server; ``number`` makes an id with a prefix."""

    def __init__(self, number: Callable[[str], str]) -> None:
        self._number = number
        self._lock = threading.Lock()
        self._made: dict[str, JsonObject] = {}  # responses by id
        self._after: dict[str, list[Item]] = {}  # all items up to the end of a response
        self._conversations: dict[str, list[Item]] = {}
        self._items: dict[str, Item] = {}
        self._needs: dict[str, str] = {}  # the reasoning item that must precede an item

    def answer(self, method: str, path: str) -> Reply | None:
        """The answer to a request for stored responses or conversations; None for any other path."""
        if (method, path) == ("POST", CONVERSATIONS):
            made = self._number("conv_")
            self._conversations[made] = []
            return as_json({"id": made, "object": "conversation", "created_at": 0, "metadata": {}})
        head, _, response_id = path.rpartition("/")
        if head != RESPONSES or method not in ("GET", "DELETE"):
            return None
        if response_id not in self._made:
            return fail(404, f"Response with id '{response_id}' not found.", param="response_id")
        if method == "GET":
            return as_json(self._made[response_id])
        del self._made[response_id], self._after[response_id]
        return as_json({"id": response_id, "object": "response", "deleted": True})

    def refusal(self, body: JsonObject, path: str) -> Reply | None:  # noqa: ARG002
        """The error for a request without input or with unknown ids; None for a valid one."""

        previous, conversation = body.get("previous_response_id"), _conversation(body)
        given = body.get("input")

        def wrong_type(name: str, wanted: str, value: Any) -> Reply:
            told = f"Invalid type for '{name}': expected {wanted}, but got {type(value).__name__}."
            return fail(400, told, param=name, code="invalid_type")

        for name, named in (("previous_response_id", previous), ("conversation", conversation)):
            if not isinstance(named, (str, type(None))):
                return wrong_type(name, "a string", named)
        if previous is not None and conversation is not None:
            both = "'previous_response_id' or 'conversation'"
            return fail(400, f"Mutually exclusive parameters. Ensure you are only providing one of: {both}.")
        if previous is not None and previous not in self._after:
            told = f"Previous response with id '{previous}' not found."
            return fail(400, told, param="previous_response_id", code="previous_response_not_found")
        if conversation is not None and conversation not in self._conversations:
            return fail(404, f"Conversation with id '{conversation}' not found.", param="conversation")
        if given is None and not (previous or conversation or body.get("prompt")):
            told = "Missing required parameter: 'input'."
            return fail(400, told, param="input", code="missing_required_parameter")
        if not isinstance(given, (str, list, type(None))):
            return wrong_type("input", "a string or an array", given)
        for item in _items(given):
            if item_type(item) == "item_reference" and self._items.get(str(item.get("id"))) is None:
                return fail(404, f"Item with id '{item.get('id')}' not found.", param="input")
        return None

    def errors(self, body: JsonObject) -> list[str]:
        """What a provider would refuse in a request's items, together with the stored ones before them."""
        wrong = [e for i, item in enumerate(_items(body.get("input"))) if (e := _wrong_message(i, item))]
        items = self._said(body)
        seen, lacking = set(), []  # items that were made with reasoning and are sent back without it
        for item in items:
            if isinstance(item, dict) and isinstance(own := item.get("id"), str):
                seen.add(own)
                if (needed := self._needs.get(own, own)) not in seen:
                    lacking.append(
                        f"Item '{own}' of type '{item_type(item)}' was provided "
                        f"without its required 'reasoning' item: '{needed}'."
                    )
        return wrong + item_errors(items) + lacking

    def render(self, reply: Reply, body: JsonObject, size: int, streamed: bool) -> list[bytes]:
        """The body of a reply: one piece, or one for each event."""
        response = self._response(reply, body, size)
        if not streamed:
            return [json.dumps(response).encode()]
        numbered = enumerate(_events(response))
        return as_events([(kind, {"sequence_number": n, **fields}) for n, (kind, fields) in numbered])

    def _said(self, body: JsonObject) -> list[Item]:
        """All items of a request: the stored ones, then its own with references resolved."""
        before = self._after.get(body.get("previous_response_id") or "", [])
        before = before or self._conversations.get(_conversation(body) or "", [])
        own = _items(body.get("input"))
        return before + [self._items.get(i["id"], i) if item_type(i) == "item_reference" else i for i in own]

    def _response(self, reply: Reply, body: JsonObject, size: int) -> JsonObject:
        """The response that a reply makes, kept unless the request says otherwise."""
        output = self._output(reply, body)
        said = sum(len(str(i.get("arguments") or i.get("input") or "")) for i in output)
        thought = len(reply.reasoning or "") // 4
        into, out = reply.usage or (size // 4, (said + len(reply.content or "")) // 4 + thought)
        cached, written = reply.cached or (0, 0)
        response = {
            **_DEFAULTS,
            **{k: v for k, v in body.items() if k in _DEFAULTS and v is not None},
            "id": self._number("resp_"),
            "output": output,
            "store": body.get("store") is not False,
            "usage": {
                "input_tokens": into,
                "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": written},
                "output_tokens": out,
                "output_tokens_details": {"reasoning_tokens": thought},
                "total_tokens": into + out,
            },
        }
        if response["store"]:
            with self._lock:
                items = [*self._said(body), *output]
                self._made[response["id"]] = response
                self._after[response["id"]] = items
                if (conversation := _conversation(body)) is not None:
                    self._conversations[conversation] = items
                self._items.update((item["id"], item) for item in output)
                if output and output[0]["type"] == "reasoning":
                    self._needs.update((item["id"], output[0]["id"]) for item in output[1:])
        return response

    def _output(self, reply: Reply, body: JsonObject) -> list[Item]:
        """A reply as items: reasoning, message, calls."""
        output: list[Item] = []
        if reply.reasoning is not None:
            summary = [{"type": "summary_text", "text": reply.reasoning}] if reply.reasoning else []
            hidden = base64.b64encode(hashlib.sha512(reply.reasoning.encode("utf-8", "replace")).digest())
            item = {"type": "reasoning", "summary": summary, "encrypted_content": hidden.decode()}
            output.append({"id": self._number("rs_"), **item})
        if reply.content is not None:
            part = {"type": "output_text", "annotations": [], "logprobs": [], "text": reply.content}
            item = {"type": "message", "status": "completed", "role": "assistant", "content": [part]}
            output.append({"id": self._number("msg_"), **item})
        free = {t.get("name") for t in _tools(body) if t.get("type") == "custom"}
        for name, arguments, *given in reply.tool_calls:
            text = arguments if isinstance(arguments, str) else json.dumps(arguments)
            call_id = given[0] if given else self._number("call_")
            made = {"status": "completed", "call_id": call_id, "name": name}
            if name in free:
                output.append({"id": self._number("ctc_"), "type": "custom_tool_call", **made, "input": text})
            else:
                output.append({"id": self._number("fc_"), "type": "function_call", **made, "arguments": text})
        return output


def _events(response: JsonObject) -> Iterator[Event]:
    start = {**response, "status": "in_progress", "output": [], "usage": None}
    yield "response.created", {"response": start}
    yield "response.in_progress", {"response": start}
    for i, item in enumerate(response["output"]):
        where = {"item_id": item["id"], "output_index": i}
        if item["type"] == "reasoning":
            begun = {**item, "summary": []}
            events = _part_events(item["summary"], where, "summary_index", "reasoning_summary")
        elif item["type"] == "message":
            begun = {**item, "status": "in_progress", "content": []}
            events = _part_events(item["content"], {**where, "logprobs": []}, "content_index", "content")
        else:
            field = "input" if "input" in item else "arguments"
            name = "custom_tool_call_input" if field == "input" else "function_call_arguments"
            begun = {**item, "status": "in_progress", field: ""}
            events = _piecewise(f"response.{name}", where, field, item[field])
        yield "response.output_item.added", {"output_index": i, "item": begun}
        yield from events
        yield "response.output_item.done", {"output_index": i, "item": item}
    yield "response.completed", {"response": response}


def _piecewise(name: str, where: JsonObject, field: str, text: str) -> Iterator[Event]:
    for piece in in_pieces(text):
        yield f"{name}.delta", {**where, "delta": piece}
    yield f"{name}.done", {**where, field: text}


def _part_events(parts: list[JsonObject], where: JsonObject, index: str, name: str) -> Iterator[Event]:
    """The events of an item's parts, each of them added, written and done."""
    text = "output_text" if name == "content" else f"{name}_text"
    for i, part in enumerate(parts):
        here = {**where, index: i}
        yield f"response.{name}_part.added", {**here, "part": {**part, "text": ""}}
        yield from _piecewise(f"response.{text}", here, "text", part["text"])
        yield f"response.{name}_part.done", {**here, "part": part}


def _items(given: Any) -> list[Any]:
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    return given if isinstance(given, list) else []


def _tools(body: JsonObject) -> Iterator[JsonObject]:
    """The tools of a request: its member ``tools``, those of ``additional_tools`` items, and what namespaces hold."""
    items = (i for i in _items(body.get("input")) if item_type(i) == "additional_tools")
    holders: list[Any] = [body, *items]
    while holders:
        for tool in holders.pop().get("tools") or ():
            if isinstance(tool, dict):
                yield tool
                holders.append(tool)


def _conversation(body: JsonObject) -> Any:
    given = body.get("conversation")
    return given.get("id") if isinstance(given, dict) else given


def _wrong_message(i: int, item: Any) -> str | None:
    """What is wrong with a message item; None for a valid one, and for other items."""
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
