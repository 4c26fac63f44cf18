"""A JSON request body, edited to the byte: what is not changed keeps the bytes in which it came."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from json.decoder import WHITESPACE, JSONDecoder, scanstring  # type: ignore[attr-defined]
from typing import Any

from memory_bank.errors import BodyError

_scan = JSONDecoder().scan_once  # type: ignore[attr-defined]
_BOM = "\ufeff"

Span = tuple[int, int]
Elements = tuple[tuple[Any, Span], ...]
"""The elements of an array, each with the place where it stands in the text."""


@dataclass(frozen=True, slots=True, eq=False)
class Body:
    """A body as it came (``data``) and the object it holds (``value``).

    The rest is for ``render_body``: the decoded text, where in it the values of the editable members stand,
    what those that are arrays hold, and the place for a new member.
    """

    data: bytes
    value: dict[str, Any]
    text: str
    spans: Mapping[str, Span]
    elements: Mapping[str, Elements]
    end: int


def parse_body(data: bytes, *editable: str) -> Body:
    """Parse a request's body once; the top-level members named may be edited by ``render_body``.

    Takes what ``json.loads`` takes: a byte-order mark, lone surrogates as escapes, NaN, long integers. A
    member may be missing, or be no array (the ``input`` of a response may be a text): look into ``value``.
    Raises BodyError for what cannot be edited safely: no UTF-8,
    no JSON, no object, nesting too deep to parse, a member to edit that stands there twice.
    """
    try:
        text = data.decode("utf-8")
        return _parse(data, text, frozenset(editable))
    except UnicodeDecodeError:
        raise BodyError("no UTF-8") from None
    except RecursionError:
        raise BodyError("nested too deep") from None
    except (ValueError, StopIteration, IndexError) as error:
        raise error if isinstance(error, BodyError) else BodyError("no JSON") from None


def _parse(data: bytes, text: str, editable: frozenset[str]) -> Body:
    value: dict[str, Any] = {}
    spans: dict[str, Span] = {}
    elements: dict[str, Elements] = {}
    at = _blank(text, 1 if text.startswith(_BOM) else 0)
    if text[at] != "{":
        raise BodyError("no JSON object")
    end = at + 1
    at = _blank(text, end)
    while text[at] != "}" or value:
        if text[at] != '"':
            raise ValueError("a member begins with its name")
        key, at = scanstring(text, at + 1, True)
        at = _blank(text, at)
        if text[at] != ":":
            raise ValueError("a colon follows the name")
        start = _blank(text, at + 1)
        if key in spans:
            raise BodyError(f"{key} stands there twice")
        if key in editable and text[start] == "[":
            elements[key], end = _array(text, start)
            value[key] = [element for element, _ in elements[key]]
        else:
            value[key], end = _scan(text, start)
        if key in editable:
            spans[key] = start, end
        at = _blank(text, end)
        if text[at] == "}":
            break
        if text[at] != ",":
            raise ValueError("a comma or a brace follows a value")
        at = _blank(text, at + 1)
    if _blank(text, at + 1) != len(text):
        raise ValueError("something follows the object")
    return Body(data, value, text, spans, elements, end)


def _array(text: str, start: int) -> tuple[Elements, int]:
    """The elements of the array that begins at ``start``, and where it ends."""
    found: list[tuple[Any, Span]] = []
    at = _blank(text, start + 1)
    if text[at] == "]":
        return (), at + 1
    while True:
        element, end = _scan(text, at)
        found.append((element, (at, end)))
        if text[end] not in ",]":  # a call for each element that is mostly in vain
            end = _blank(text, end)
        if text[end] == "]":
            return tuple(found), end + 1
        if text[end] != ",":
            raise ValueError("a comma or a bracket follows an element")
        at = _blank(text, end + 1)


def _blank(text: str, at: int) -> int:
    """The first position from ``at`` on that is no white space."""
    return WHITESPACE.match(text, at).end()  # type: ignore[no-any-return]


def render_body(body: Body, arrays: Mapping[str, Sequence[Any]]) -> bytes:
    """The body with these arrays in the place of what its members held; the same bytes where nothing changes.

    The members are of those named when the body was parsed. An element that is the very object that was
    parsed keeps its bytes, wherever it now stands, so it must not have been changed; a new one is written
    compactly in ASCII. A member that was not there comes last. All else stays to the byte. Raises BodyError
    when an element cannot be written.
    """
    edits: list[tuple[int, int, str]] = []
    added: list[str] = []
    for key, new in arrays.items():
        if key in body.elements and _are_same(body.elements[key], new):
            continue
        written = render_array(body, key, new)
        if key in body.value:
            edits.append((*body.spans[key], written))
        else:
            added.append(f"{json.dumps(key)}:{written}")
    if not edits and not added:
        return body.data
    if added:
        between = "," if body.value else ""
        edits.append((body.end, body.end, between + ",".join(added)))
    edits.sort()
    parts: list[str] = []
    at = 0
    for start, end, written in edits:
        parts += (body.text[at:start], written)
        at = end
    parts.append(body.text[at:])
    return "".join(parts).encode("utf-8")


def render_array(body: Body, member: str, new: Sequence[Any]) -> str:
    """An array that may stand in the place of a member, by the rules of ``render_body``. Raises BodyError."""
    return _written(body.text, body.elements.get(member, ()), new)


def _are_same(old: Elements, new: Sequence[Any]) -> bool:
    return len(old) == len(new) and all(a is b for (a, _), b in zip(old, new, strict=True))


def _written(text: str, old: Elements, new: Sequence[Any]) -> str:
    """An array as text."""
    kept: dict[int, deque[Span]] = {}
    for element, span in old:
        kept.setdefault(id(element), deque()).append(span)
    parts = []
    for element in new:
        spans = kept.get(id(element))
        if spans:
            start, end = spans.popleft() if len(spans) > 1 else spans[0]
            parts.append(text[start:end])
        else:
            parts.append(_dumped(element))
    return f"[{','.join(parts)}]"


def _dumped(element: Any) -> str:
    try:
        return json.dumps(element, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError):
        raise BodyError("an element cannot be written as JSON") from None
