"""JSON as tools write it: text to values and back without errors or loss, and the walk over a value."""

from __future__ import annotations

import json
import math
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from memory_bank.errors import RecordError

RAW = "_raw"  # the key under which text that is not JSON is kept
_MAX_DEPTH = 200  # deeper values are handled as text
PATH_CHARS = 400  # characters of a path at most: of a longer one the end is shown, after an ellipsis
_KEY_CHARS = 200  # of a key in a path; of a longer one the beginning is shown, before an ellipsis
_PLAIN_KEY = re.compile(r"[^\W\d][\w-]*\Z")


def parse_output(text: str) -> Any:
    """A tool's text as JSON value, or ``{"_raw": text}`` where it is none, too deep or has too long integers."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {RAW: text}
    return {RAW: text} if is_deep(value) else value


_LEXEME = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[\]{}]', re.S)
_CUT_ESCAPE = re.compile(r"(?<!\\)(?:\\\\)*(\\(?:u[\da-fA-F]{0,3})?)\Z")
_CUT_NUMBER = re.compile(r"(?<=[\s:,\[])[-+.\w]+\Z")
_WENT_ON = re.compile(r"""\s*[}\]]|.*(?:["}]\s*[}\]]|[\]\w]\s*})\s*\Z""", re.S)
"""The text after an error in JSON that was not cut, but is wrong, such as by a comma or an escape: it has its end."""
_LEAST_CUT = 500  # characters of a text that may be JSON without its end
_MOST_AFTER = 2_000  # characters of what a client says after JSON that it has cut


def complete_json(text: str) -> tuple[str, str] | None:
    """Complete JSON that was cut off: the JSON with its end, the text after the cut; None for other text. Linear."""
    try:
        json.loads(text)
        return None
    except RecursionError:
        return None
    except ValueError as e:
        at, error = getattr(e, "pos", 0), str(e)
    if at < len(text) // 2 and not error.startswith("Unterminated"):
        return None
    in_string = error.startswith(("Unterminated", "Invalid"))
    at = len(text) if error.startswith("Unterminated") else at
    body, rest = text[:at], text[at:]
    closing: list[str] = []
    for lexeme in _LEXEME.finditer(body):
        if (bracket := lexeme[0][0]) in "{[":
            closing.append("}" if bracket == "{" else "]")
        elif bracket in "}]" and closing:
            closing.pop()
    if not closing or len(rest) > _MOST_AFTER or len(text) < _LEAST_CUT or _WENT_ON.match(rest):
        return None
    if in_string:
        cut = _CUT_ESCAPE.search(body)
        body, rest = f'{body[: cut.start(1)] if cut else body}"', rest.lstrip("\\")
    else:
        body = body.rstrip()
        if cut := _CUT_NUMBER.search(body):  # a number that may go on
            body, rest = body[: cut.start()].rstrip(), cut[0] + rest
        body = f'{body}"…"' if body.endswith(":") else body.removesuffix(",")
    end = "".join(reversed(closing))
    for whole in (body + end, f'{body}:"…"{end}'):  # the name of a member, perhaps, whose value is missing
        try:
            json.loads(whole)
        except (ValueError, RecursionError):
            continue
        return whole, rest
    return None


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
    """Return whether a JSON value nests deeper than ``limit``, without recursion."""
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(limit):
        children = (c for node in level for c in (node.values() if isinstance(node, dict) else node))
        level = [child for child in children if isinstance(child, (dict, list))]
        if not level:
            return False
    return True


def is_raw(value: object) -> bool:
    """Return whether a value is ``{"_raw": …}``, which stands for text that is not JSON."""
    return isinstance(value, dict) and list(value) == [RAW]


def inner_json(text: str) -> Any:
    """The object or list that a text holds as JSON (text parts of MCP do), or None."""
    if text[:64].lstrip()[:1] not in ("{", "["):
        return None
    value = parse_output(text)
    return value if isinstance(value, (dict, list)) and not is_raw(value) else None


class Leaf(NamedTuple):
    """A scalar in a JSON value; ``key`` is the innermost member's name around it, ``depth`` counts the containers."""

    value: Any
    key: str
    depth: int
    trail: _Trail | None

    @property
    def path(self) -> str:
        """Its path, as ``get_record`` accepts it: ``items[3].sku``; cut if it is long."""
        steps: list[str | int] = []
        trail, used = self.trail, 0
        while trail is not None and used <= PATH_CHARS:
            trail, step = trail
            steps.append(step)
            used += min(len(step), _KEY_CHARS) + 1 if isinstance(step, str) else 3
        path = "…" if trail is not None else ""
        for step in reversed(steps):
            path = join_key(path, step)
        return path


_Trail = tuple["_Trail | None", str | int]  # the way to a container, and the key or index of a node there


def leaves(
    value: object,
    *,
    opened: Callable[[str], Any] | None = None,
    breadth_first: bool = False,
    with_empty: bool = False,
) -> Iterator[Leaf]:
    """The scalars of a JSON value, in order, without recursion; ``breadth_first``: the shallow ones first.

    ``opened`` (``inner_json``, for example) returns the value that a text holds as JSON, or None; the scalars
    of that value then take the place of the text. ``with_empty``: empty objects and lists are leaves too.
    """
    pending = deque([iter([Leaf(value, "", 0, None)])])
    while pending:
        node = next(pending[-1], None)
        if node is None:
            pending.pop()
            continue
        if opened is not None and isinstance(node.value, str) and (inner := opened(node.value)) is not None:
            node = node._replace(value=inner)
        if not isinstance(node.value, (dict, list, tuple)) or (with_empty and not node.value):
            yield node
        elif breadth_first:
            pending.appendleft(_children(node))
        else:
            pending.append(_children(node))


def _children(node: Leaf) -> Iterator[Leaf]:
    container, key, depth, trail = node.value, node.key, node.depth + 1, node.trail
    if isinstance(container, dict):
        return (Leaf(child, str(k), depth, (trail, str(k))) for k, child in container.items())
    return (Leaf(child, key, depth, (trail, i)) for i, child in enumerate(container))


def join_key(path: str, key: str | int) -> str:
    """The path of a member or an item, ``a.b``, ``a["odd key"]``, ``a[0]``; long keys and paths are cut."""
    if isinstance(key, int):
        path = f"{path}[{key}]"
    elif len(key) <= _KEY_CHARS and _PLAIN_KEY.match(key):
        path = f"{path}.{key}" if path else key
    else:
        path = f"{path}[{compact(key if len(key) <= _KEY_CHARS else key[:_KEY_CHARS] + '…')}]"
    return path if len(path) <= PATH_CHARS else f"…{path[-PATH_CHARS + 1 :]}"


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


class _Written(str):
    """Text that is JSON already."""


def flat_text(value: Any) -> str:
    """JSON text of a value of any depth, written without recursion."""
    out: list[str] = []
    stack: list[Any] = [value]
    while stack:
        node = stack.pop()
        if isinstance(node, _Written):
            out.append(node)
        elif isinstance(node, (Mapping, list, tuple)):
            is_object = isinstance(node, Mapping)
            start, end = "{}" if is_object else "[]"
            parts: list[Any] = []
            for key in node if is_object else range(len(node)):
                name = f"{json.dumps(str(key), ensure_ascii=False)}:" if is_object else ""
                parts += [_Written(f"{',' if parts else start}{name}"), node[key]]
            stack.append(_Written(end if parts else start + end))
            stack.extend(reversed(parts))
        else:
            scalar = node if isinstance(node, (str, int, float, bool, type(None))) else str(node)
            out.append(json.dumps(scalar, ensure_ascii=False))
    return "".join(out)


def dump_value(value: Any, subject: str = "the value") -> str:
    """JSON text that ``json.loads`` reads back as an equal value, NaN and lone surrogates included.

    Raises RecordError for what JSON cannot hold (sets, bytes, keys that are not text, a value that contains
    itself, …).
    """
    text = None
    try:
        text = json.dumps(value, ensure_ascii=False)  # escaped, two lone surrogates would become one letter
    except ValueError as e:
        if "Circular" in str(e):
            raise RecordError(f"{subject} contains itself: pass JSON values only.") from None
    except (RecursionError, TypeError):
        pass  # too deep for the encoder, or something that the walk below names
    stack = [value]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            if not all(isinstance(k, str) for k in node):
                raise RecordError(f"{subject} has a key that is no text: pass JSON values only.")
            stack.extend(node.values())
        elif isinstance(node, (list, tuple)):
            stack.extend(node)
        elif not (node is None or isinstance(node, (str, int, float))):
            raise RecordError(
                f"{subject} holds a {type(node).__name__}: pass JSON values only "
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
    """Return whether a JSON value is a finite number (true and false are not)."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
