"""A model's complete answers, as each API writes them, and the events of their streams."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

JsonObject = dict[str, Any]
Event = tuple[str, JsonObject]


def in_pieces(text: str) -> list[str]:
    """Split a text into at most 64 pieces of at least 8 characters."""
    size = max(8, -(-len(text) // 64))
    return [text[i : i + size] for i in range(0, len(text), size)]


def as_events(events: Iterable[Event]) -> list[bytes]:
    """Server-sent events with their names, one piece each."""
    return [
        f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode() for kind, fields in events
    ]


# Chat completions


def completion(
    answer_id: str, model: str, message: JsonObject, into: int, out: int, created: int = 0
) -> JsonObject:
    """A chat completion whose choice is ``message``; its usage is ``into`` tokens read and ``out`` written."""
    reason = "tool_calls" if message.get("tool_calls") else "stop"
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}
    usage = {"prompt_tokens": into, "completion_tokens": out, "total_tokens": into + out}
    head = {"id": answer_id, "object": "chat.completion", "created": created, "model": model}
    return {**head, "choices": [choice], "usage": usage}


def chat_events(answer: JsonObject, request: Mapping[str, Any]) -> list[bytes]:
    """A chat completion as a stream of events; the last has the usage if the request asks for it."""
    [choice] = answer["choices"]
    head = {k: answer[k] for k in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    deltas = [*((d, None) for d in _deltas(choice["message"])), ({}, choice["finish_reason"])]
    chunks = [{**head, "choices": [{"index": 0, "delta": d, "finish_reason": r}]} for d, r in deltas]
    options = request.get("stream_options")
    if isinstance(options, dict) and options.get("include_usage"):
        chunks = [{**chunk, "usage": None} for chunk in chunks]
        chunks.append({**head, "choices": [], "usage": answer["usage"]})
    return [f"data: {c}\n\n".encode() for c in [*map(json.dumps, chunks), "[DONE]"]]


def _deltas(message: JsonObject) -> Iterator[JsonObject]:
    yield {"role": "assistant", "content": None if message["content"] is None else ""}
    for name in ("reasoning_content", "content"):
        for piece in in_pieces(message.get(name) or ""):
            yield {name: piece}
    for i, call in enumerate(message.get("tool_calls", ())):
        first = {**call, "function": {"name": call["function"]["name"], "arguments": ""}}
        yield {"tool_calls": [{"index": i, **first}]}
        for piece in in_pieces(call["function"]["arguments"]):
            yield {"tool_calls": [{"index": i, "function": {"arguments": piece}}]}


# Responses

_DEFAULTS: JsonObject = {
    "object": "response", "created_at": 0, "status": "completed", "error": None, "incomplete_details": None,
    "instructions": None, "max_output_tokens": None, "metadata": {}, "model": "", "parallel_tool_calls": True,
    "previous_response_id": None, "reasoning": {"effort": None, "summary": None}, "temperature": 1.0,
    "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [], "top_p": 1.0, "truncation": "disabled",
    "user": None,
}  # fmt: skip
"""Members of a response; those of the request replace them."""


def text_item(item_id: str, text: str) -> JsonObject:
    """An assistant message as an item."""
    part = {"type": "output_text", "annotations": [], "logprobs": [], "text": text}
    return {"id": item_id, "type": "message", "status": "completed", "role": "assistant", "content": [part]}


def response_of(
    answer_id: str, request: Mapping[str, Any], output: list[JsonObject], into: int, out: int
) -> JsonObject:
    """A response to a request; ``into`` and ``out`` are the tokens of its usage."""
    usage = {
        "input_tokens": into, "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": out, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": into + out,
    }  # fmt: skip
    asked = {k: v for k, v in request.items() if k in _DEFAULTS and v is not None}
    members = {"id": answer_id, "output": output, "store": request.get("store") is not False, "usage": usage}
    return _DEFAULTS | asked | members


def response_events(response: JsonObject) -> list[bytes]:
    """The events of a response."""
    numbered = enumerate(_response_events(response))
    return as_events((kind, {"sequence_number": n, **fields}) for n, (kind, fields) in numbered)


def _response_events(response: JsonObject) -> Iterator[Event]:
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
        elif item["type"] == "compaction":
            begun, events = item, iter(())
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


# Messages


def message_of(
    answer_id: str, model: str, content: list[JsonObject], reason: str, into: int, out: int
) -> JsonObject:
    """A message of the Messages API; ``into`` and ``out`` are the tokens of its usage."""
    usage = {
        "input_tokens": into, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": out
    }  # fmt: skip
    return {
        "id": answer_id, "type": "message", "role": "assistant", "model": model, "content": content,
        "stop_reason": reason, "stop_sequence": None, "usage": usage,
    }  # fmt: skip


def message_events(message: JsonObject) -> list[bytes]:
    """The events of a message."""
    return as_events(_message_events(message))


def _message_events(message: JsonObject) -> Iterator[Event]:
    usage = message.get("usage") or {"output_tokens": 0}
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
            text, delta, member = block.get(kind, ""), f"{kind}_delta", kind
        if kind == "compaction":
            yield "content_block_start", {"index": index, "content_block": {"type": kind, "content": None}}
            yield "content_block_delta", {"index": index, "delta": {**block, "type": "compaction_delta"}}
            yield "content_block_stop", {"index": index}
            continue
        yield "content_block_start", {"index": index, "content_block": {**block, **empty}}
        for piece in in_pieces(text):
            yield "content_block_delta", {"index": index, "delta": {"type": delta, member: piece}}
        if kind == "thinking":
            signed = {"type": "signature_delta", "signature": block["signature"]}
            yield "content_block_delta", {"index": index, "delta": signed}
        yield "content_block_stop", {"index": index}
    ended = {"stop_reason": message.get("stop_reason"), "stop_sequence": None}
    spent = {k: usage[k] for k in ("output_tokens", "iterations") if k in usage}
    yield "message_delta", {"delta": ended, "usage": spent}
    yield "message_stop", {}


# Compactions
