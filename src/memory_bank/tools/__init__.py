"""Tools by which an agent fetches what was left out of its context, exactly."""

from memory_bank.context.fetched import GET_RECORD, LIST_RECORDS, SEARCH_MEMORY, is_memory_tool
from memory_bank.tools.answers import Answer
from memory_bank.tools.handlers import MAX_CHARS, answer_tool_call, handle_tool_call, memory_tools
from memory_bank.tools.schemas import TOOL_SCHEMAS

__all__ = [
    "GET_RECORD",
    "LIST_RECORDS",
    "MAX_CHARS",
    "SEARCH_MEMORY",
    "TOOL_SCHEMAS",
    "Answer",
    "answer_tool_call",
    "handle_tool_call",
    "is_memory_tool",
    "memory_tools",
]
