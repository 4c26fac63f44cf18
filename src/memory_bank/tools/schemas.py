"""The tools as a model sees them."""

from __future__ import annotations

from typing import Any

from memory_bank.context.fetched import GET_RECORD, LIST_RECORDS, SEARCH_MEMORY


def _schema(name: str, description: str, properties: dict[str, Any]) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    function = {"name": name, "description": description, "strict": True, "parameters": parameters}
    return {"type": "function", "function": function}


def _optional(type_: str, description: str) -> dict[str, Any]:
    return {"type": [type_, "null"], "description": description}


TOOL_SCHEMAS: list[dict[str, Any]] = [
    _schema(
        SEARCH_MEMORY,
        "Search the outputs of your earlier tool calls, also those no longer in view. "
        "Finds exact ids and words as well as what is similar. Gives trace_ids, summaries and excerpts.",
        {
            "query": {"type": "string", "description": "What you look for: words, a name, an id."},
            "top_k": _optional("integer", "How many records, 1 to 20; null for 5."),
        },
    ),
    _schema(
        GET_RECORD,
        "Get what an earlier tool call returned, exactly: whole, or the part selected by "
        "path, lines or pattern. Use it before you repeat a call or guess a value.",
        {
            "trace_id": {
                "type": "string",
                "description": "The record's id, or at least its first 6 characters.",
            },
            "path": _optional(
                "string", 'A JSON path: items[3].sku, items[*].sku, items[2:5], ["odd key"]; null for all.'
            ),
            "lines": _optional("string", 'Lines: "10-25", "7", "-20" for the last 20; null for all.'),
            "pattern": _optional(
                "string", "A regular expression; matching lines come with one line around; null for none."
            ),
        },
    ),
    _schema(
        LIST_RECORDS,
        "List your earlier tool calls, oldest first, a page at a time: number, trace_id, tool, step, size "
        "and arguments of each.",
        {
            "after": _optional("integer", "The number after which the page begins; null for the first page."),
            "tool": _optional("string", "Only calls of this tool; null for all."),
        },
    ),
]
