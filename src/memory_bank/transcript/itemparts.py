"""An item of the Responses API as a part of a chat: a call, what came back for it, or new ones of them."""

from __future__ import annotations

from typing import Any

from memory_bank.transcript.content import content_text
from memory_bank.transcript.items import CALL_OF, HOSTED, OUTPUT_OF, call_id_of, item_type
from memory_bank.transcript.jsontext import compact

_ARGUMENTS = {
    "computer_call": ("action", "actions"),
    "local_shell_call": ("action",),
    "shell_call": ("action",),
    "apply_patch_call": ("operation",),
    "web_search_call": ("action",),
}
_NAMED = {
    "program": {"code": "code"},
    "file_search_call": {"queries": "queries"},
    "code_interpreter_call": {"code": "code"},
    "image_generation_call": {"prompt": "revised_prompt"},
}


def tool_call(item: dict[str, Any]) -> dict[str, Any]:
    """A call as an entry of ``tool_calls``. Tools without a name of their own are named by their type."""
    kind = item_type(item)
    head = {"id": call_id_of(item)}
    if kind == "custom_tool_call":
        return {**head, "type": "custom", "custom": {"name": _name(item), "input": item.get("input")}}
    if kind in ("function_call", "mcp_call"):
        arguments = item.get("arguments")
    elif kind in _NAMED:
        arguments = compact({k: item[v] for k, v in _NAMED[kind].items() if item.get(v) is not None})
    else:
        found: Any = next((item[k] for k in _ARGUMENTS.get(kind, ()) if item.get(k) is not None), {})
        if kind == "web_search_call" and isinstance(found, dict):  # its sources are what came back
            found = {k: v for k, v in found.items() if k != "sources"}
        arguments = compact(found)
    return {**head, "type": "function", "function": {"name": _name(item), "arguments": arguments}}


def _name(item: dict[str, Any]) -> str:
    name = item.get("name")
    return name if isinstance(name, str) and name else item_type(item)


def tool_message(item: dict[str, Any]) -> dict[str, Any]:
    """What came back for a call, as a tool message: of an output item, or of a call that holds its own."""
    message: dict[str, Any] = {"role": "tool", "tool_call_id": call_id_of(item), "content": _output(item)}
    if message["tool_call_id"] is None:
        name = item.get("name")
        if item_type(item) in HOSTED:
            name = _name(item)
        if isinstance(name, str):
            message["name"] = name
    return message


def _output(item: dict[str, Any]) -> Any:
    kind = item_type(item)
    if kind == "computer_call_output":
        return [item.get("output")]
    if kind == "apply_patch_call_output" and item.get("output") is None:
        return compact({"status": item.get("status")})
    if kind == "program_output":
        return item.get("result")
    if kind == "image_generation_call":
        image = item.get("result")
        return [{"type": "input_image", "image_url": image}] if image else _failure(item)
    if kind == "code_interpreter_call":
        return [_code_output(o) for o in item.get("outputs") or ()] or ""
    if kind == "file_search_call":
        return compact(item["results"]) if item.get("results") else ""
    if kind == "web_search_call":
        action = item.get("action")
        sources = action.get("sources") if isinstance(action, dict) else None
        return compact(sources) if sources else ""
    output = item.get("output")
    return _failure(item) if output is None and kind in HOSTED else output


def _failure(item: dict[str, Any]) -> str:
    error = item.get("error")
    return "" if error is None else error if isinstance(error, str) else compact({"error": error})


def _code_output(output: Any) -> Any:
    if isinstance(output, dict) and output.get("type") == "logs":
        return {"type": "input_text", "text": content_text(output.get("logs"))}
    if isinstance(output, dict) and output.get("type") == "image":
        return {"type": "input_image", "image_url": output.get("url")}
    return output


def with_output(item: dict[str, Any], content: Any) -> dict[str, Any]:
    """The item with other words in its output; as it is where its output cannot be words."""
    kind = item_type(item)
    text = content_text(content)
    if kind in ("function_call_output", "custom_tool_call_output"):
        return {**item, "output": content}
    if kind in ("local_shell_call_output", "apply_patch_call_output", "mcp_call"):
        return {**item, "output": text}
    if kind == "shell_call_output":
        given = item.get("output")
        first = given[0] if isinstance(given, list) and given else {}
        outcome = first.get("outcome") if isinstance(first, dict) else None
        chunk = {"stdout": text, "stderr": "", "outcome": outcome or {"type": "exit", "exit_code": 0}}
        return {**item, "output": [chunk]}
    if kind == "code_interpreter_call":
        return {**item, "outputs": [{"type": "logs", "logs": text}]}
    return item


def answer_to(call: dict[str, Any], content: Any) -> dict[str, Any] | None:
    """A new output item for a call that had none; None where its output cannot be words."""
    kind = item_type(call)
    if kind not in ("function_call", "custom_tool_call"):
        return None
    return {"type": OUTPUT_OF[kind], "call_id": call_id_of(call), "output": content}


def call_for(output: dict[str, Any], name: str) -> dict[str, Any] | None:
    """A new call item for an output that had none; None where nothing is known of such a call."""
    kind = CALL_OF.get(item_type(output))
    head = {"type": kind, "call_id": call_id_of(output), "name": name}
    if kind == "function_call":
        return {**head, "arguments": "{}"}
    return {**head, "input": ""} if kind == "custom_tool_call" else None
