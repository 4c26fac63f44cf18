"""Our own tools' names and the mark of their answers: they are no news, for they quote what the bank has."""

from __future__ import annotations

import re

MARK = "<retrieved-data seal="
MARKS = (MARK, f'{{"result":"{MARK}', f'{{"result": "{MARK}')
"""How an answer of ours begins: as text, or as what MCP calls structured content, written as JSON."""
SEARCH_MEMORY = "search_memory"
GET_RECORD = "get_record"
LIST_RECORDS = "list_records"
_OURS = re.compile(
    r"(?:.*(?:memory[_-]?bank|\bmemory)(?:__|[-._/:]))?(?:search_memory|get_record|list_records)\Z",
    re.I | re.S,
)


def is_memory_tool(name: str, output: str | None = None) -> bool:
    """Whether a tool of this name is one of ours, also under a prefix (``memory_bank__get_record``).

    With ``output``, whether it also answers as ours do: an application may have a get_record of its own.
    """
    if not isinstance(name, str) or not _OURS.match(name):
        return False
    return output is None or output.startswith(MARKS)
