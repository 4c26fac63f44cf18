"""Which file a call reads, writes or edits, so that earlier copies of its text can be told from the latest."""

from __future__ import annotations

import json
import re
from typing import Literal, NamedTuple

from memory_bank.selection.effects import word_set

Access = Literal["read", "write", "edit"]

_PATH_KEYS = ("file_path", "filepath", "filePath", "path", "filename", "file_name", "file", "notebook_path")
_PART_KEYS = word_set(
    "offset limit start end start_line end_line view_range head tail lines page pages start_page end_page sheet "
    "sheet_name range start_cell end_cell"
)
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_VERBS: dict[Access, frozenset[str]] = {
    "edit": word_set("edit replace insert patch update append modify multiedit"),
    "write": word_set("write create save overwrite put"),
    "read": word_set("read view open cat get load show"),
}
_OTHERS = word_set("list search grep glob find tree directory directories info delete remove move rename")


class FileAccess(NamedTuple):
    """A call that shows or makes the text of a file, or, where `part` is not "", of a part of it."""

    path: str
    access: Access
    part: str


def file_access(tool: str, arguments: str) -> FileAccess | None:
    """Return the file whose text a call shows or changes, by the tool's name and arguments; None for others."""
    words = {w.casefold() for w in _WORDS.findall(tool)}
    access = next((a for a, verbs in _VERBS.items() if words & verbs and not words & _OTHERS), None)
    if access is None:
        return None
    try:
        values = json.loads(arguments)
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict):
        return None
    command = values.get("command")  # editors with one tool for several commands
    if access == "edit" and command == "view":
        access = "read"
    elif access == "edit" and command == "create":
        access = "write"
    for key in _PATH_KEYS:
        path = values.get(key)
        if isinstance(path, str) and 0 < len(path) <= 400 and "\n" not in path:
            parts = sorted(f"{k}={v}" for k, v in values.items() if k in _PART_KEYS and v is not None)
            return FileAccess(path, access, " ".join(parts)[:200])
    return None
