"""Where a value stands: JSON paths and line numbers of a tool's output, in the form that get_record takes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from memory_bank.transcript.jsontext import RAW, compact, is_deep, parse_output

_PLAIN_KEY = re.compile(r"[^\W\d][\w-]*\Z")
_INNER_JSON = 2  # shortest text that can be an object or a list


def join_key(path: str, key: str) -> str:
    """The path of an object's member: ``a.b``, or ``a["odd key"]`` where the key has other characters."""
    if _PLAIN_KEY.match(key):
        return f"{path}.{key}" if path else key
    return f"{path}[{compact(key)}]"


def inner_json(text: str) -> Any:
    """The object or list that a text holds as JSON (MCP text parts do), or None."""
    start = text[:64].lstrip()[:1]
    if start not in ("{", "[") or len(text) < _INNER_JSON:
        return None
    value = parse_output(text)
    if not isinstance(value, (dict, list)) or (isinstance(value, dict) and list(value) == [RAW]):
        return None
    return value


def leaves(value: Any, path: str = "", key: str = "") -> Iterator[tuple[str, str, Any]]:
    """``(path, key, leaf)`` of every scalar in a JSON value, in order; JSON in text is gone into.

    ``key`` is the name of the innermost member. Too deep values are one leaf, their JSON text.
    """
    if isinstance(value, (dict, list)) and is_deep(value):
        yield path, key, compact(value)
        return
    yield from _leaves(value, path, key)


def _leaves(value: Any, path: str, key: str) -> Iterator[tuple[str, str, Any]]:
    if isinstance(value, str):
        value = inner if (inner := inner_json(value)) is not None else value
    if isinstance(value, dict):
        for name, child in value.items():
            yield from _leaves(child, join_key(path, str(name)), str(name))
    elif isinstance(value, (list, tuple)):
        for i, child in enumerate(value):
            yield from _leaves(child, f"{path}[{i}]", key)
    else:
        yield path, key, value
