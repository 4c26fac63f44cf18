"""Tools by which an agent fetches what was left out of its context, exactly."""

from memory_bank.context.fetched import GET_RECORD, SEARCH_MEMORY, is_memory_tool
from memory_bank.tools.handlers import MAX_CHARS, handle_tool_call, memory_tools
from memory_bank.tools.schemas import TOOL_SCHEMAS

__all__ = [
    "GET_RECORD",
    "MAX_CHARS",
    "SEARCH_MEMORY",
    "TOOL_SCHEMAS",
    "handle_tool_call",
    "is_memory_tool",
    "memory_tools",
]
