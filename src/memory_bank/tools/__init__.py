"""Tools by which an agent reads what was left out of its context, and one for files of its own, ``memory_files``."""

from memory_bank.tools.handlers import (
    EARLIER_SCHEMAS,
    FILES_SCHEMA,
    MAX_CHARS,
    TOOL_SCHEMAS,
    ToolAnswer,
    answer_tool_call,
    handle_tool_call,
    memory_tools,
)
from memory_bank.transcript.messages import (
    GET_RECORD,
    LIST_RECORDS,
    MEMORY_FILES,
    SEARCH_MEMORY,
    is_memory_tool,
)

__all__ = [
    "EARLIER_SCHEMAS",
    "FILES_SCHEMA",
    "GET_RECORD",
    "LIST_RECORDS",
    "MAX_CHARS",
    "MEMORY_FILES",
    "SEARCH_MEMORY",
    "TOOL_SCHEMAS",
    "ToolAnswer",
    "answer_tool_call",
    "handle_tool_call",
    "is_memory_tool",
    "memory_tools",
]
