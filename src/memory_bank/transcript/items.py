"""What the items of the Responses API are: messages, calls and what answers them, reasoning, references."""

from __future__ import annotations

from typing import Any

ROLES = frozenset({"user", "assistant", "system", "developer"})

OUTPUT_OF = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "computer_call": "computer_call_output",
    "local_shell_call": "local_shell_call_output",
    "shell_call": "shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
    "program": "program_output",
}
"""Calls, and the type of the item that answers each."""

CALL_OF = {output: call for call, output in OUTPUT_OF.items()}

HOSTED = frozenset(
    {"web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "mcp_call"}
)
"""Calls that the provider answers itself: what came back, where it is told, is in the same item."""


def item_type(item: Any) -> str:
    """The type of an item, ``message`` and ``item_reference`` also where they leave it out; else ``""``."""
    if not isinstance(item, dict):
        return ""
    kind = item.get("type")
    if isinstance(kind, str):
        return kind
    if kind is None and isinstance(item.get("role"), str):
        return "message"
    if kind is None and isinstance(item.get("id"), str) and item.keys() <= {"id", "type"}:
        return "item_reference"
    return ""


def call_id_of(item: dict[str, Any]) -> str | None:
    """The id that pairs a call with its output; None where there is none."""
    call_id = item.get("call_id")
    if call_id is None and item.get("type") in HOSTED | {"local_shell_call_output"}:
        call_id = item.get("id")
    return call_id if isinstance(call_id, str) else None


def is_by_client(item: Any) -> bool:
    """Whether this item comes from the client, and never from the model."""
    kind = item_type(item)
    if kind == "message":
        return bool(item.get("role") != "assistant")
    return kind == "mcp_approval_response" or (kind in CALL_OF and kind != "program_output")
