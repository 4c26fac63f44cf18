"""Tools by which an agent reads what was left out of its context: search_memory, get_record, list_records."""

from memory_bank.tools.handlers import (
    MAX_CHARS,
    TOOL_SCHEMAS,
    ToolAnswer,
    answer_tool_call,
    handle_tool_call,
    memory_tools,
)
from memory_bank.transcript.messages import GET_RECORD, LIST_RECORDS, SEARCH_MEMORY, is_memory_tool

__all__ = [
    "GET_RECORD",
    "LIST_RECORDS",
    "MAX_CHARS",
    "SEARCH_MEMORY",
    "TOOL_SCHEMAS",
    "ToolAnswer",
    "answer_tool_call",
    "handle_tool_call",
    "is_memory_tool",
    "memory_tools",
]
