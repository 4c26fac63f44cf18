"""JSON as tools write it: text to values and back, never failing and never losing a character."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from memory_bank.errors import RecordError

RAW = "_raw"  # the key under which text that is not JSON is kept
_MAX_DEPTH = 200  # deeper values are handled as text


def parse_output(text: str) -> Any:
    """What a tool's text means: its JSON value, or ``{"_raw": text}`` where it is not JSON.

    Too deep, integers beyond Python's conversion limit, a byte-order mark: not JSON either.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {RAW: text}
    return {RAW: text} if is_deep(value) else value


def parse_arguments(arguments: Any) -> Any:
    """The arguments of a call as an object: parsed text, ``{}`` for none, ``{"_raw": …}`` for all else."""
    if isinstance(arguments, Mapping):
        return plain(arguments)
    if arguments is None:
        return {}
    if isinstance(arguments, str):
        if not arguments.strip():
            return {}
        value = parse_output(arguments)
        return value if isinstance(value, dict) else {RAW: arguments}
    return {RAW: plain(arguments)}


def is_deep(value: Any, limit: int = _MAX_DEPTH) -> bool:
    """Whether a JSON value nests deeper than ``limit``; looks at containers only, without recursion."""
    level = [value]
    for _ in range(limit):
        level = [
            child
            for node in level
            if isinstance(node, (dict, list))
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, (dict, list))
        ]
        if not level:
            return False
    return True


def plain(value: Any) -> Any:
    """A JSON value of whatever a client put there: SDK objects as dicts, tuples as lists, else text."""
    try:
        return _plain(value)
    except RecursionError:
        return {RAW: flat_text(value)}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, Mapping):
        return {k if isinstance(k, str) else str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        dumped = dump(exclude_none=True)
        return _plain(dumped) if isinstance(dumped, Mapping) else str(value)
    return str(value)


class _Literal:
    """Text that goes out as it is, on the stack among values."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


def flat_text(value: Any) -> str:
    """JSON text of a value of any depth, written without recursion."""
    out: list[str] = []
    stack: list[Any] = [value]
    while stack:
        node = stack.pop()
        if isinstance(node, _Literal):
            out.append(node.text)
        elif isinstance(node, Mapping):
            stack.append(_Literal("}"))
            for i, (k, v) in enumerate(reversed(list(node.items()))):
                if i:
                    stack.append(_Literal(","))
                stack.append(v)
                stack.append(_Literal(json.dumps(str(k), ensure_ascii=False) + ":"))
            stack.append(_Literal("{"))
        elif isinstance(node, (list, tuple)):
            stack.append(_Literal("]"))
            for i, v in enumerate(reversed(node)):
                if i:
                    stack.append(_Literal(","))
                stack.append(v)
            stack.append(_Literal("["))
        else:
            scalar = node if isinstance(node, (str, int, float, bool, type(None))) else str(node)
            out.append(json.dumps(scalar, ensure_ascii=False))
    return "".join(out)


def dump_value(value: Any, what: str = "the value") -> str:
    """JSON text that ``json.loads`` reads back as an equal value, NaN and lone surrogates included.

    Raises RecordError for what JSON cannot hold (sets, bytes, keys that are not text, a value that contains
    itself, …).
    """
    text = None
    try:
        text = json.dumps(value, ensure_ascii=False)  # escaped, two lone surrogates would become one letter
    except ValueError as e:
        if "Circular" in str(e):
            raise RecordError(f"{what} contains itself: pass JSON values only.") from None
    except (RecursionError, TypeError):
        pass  # too deep for the encoder, or something that the walk below names
    stack = [value]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            if not all(isinstance(k, str) for k in node):
                raise RecordError(f"{what} has a key that is no text: pass JSON values only.")
            stack.extend(node.values())
        elif isinstance(node, (list, tuple)):
            stack.extend(node)
        elif not (node is None or isinstance(node, (str, int, float, bool))):
            raise RecordError(
                f"{what} holds a {type(node).__name__}: pass JSON values only "
                "(dict, list, str, int, float, bool, None)."
            )
    return flat_text(value) if text is None else text


def compact(value: Any) -> str:
    """JSON text for reading: no blanks, no escapes of letters that need none."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    except (RecursionError, ValueError):
        return flat_text(value)


def is_number(value: Any) -> bool:
    """Whether a JSON value is a finite number (true and false are not)."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
