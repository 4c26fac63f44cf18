"""JSON request bodies: parsed once, written back with the bytes of everything that did not change."""

from __future__ import annotations

import json
import re
import sys
import threading
import zlib
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias, TypeVar, cast

from memory_bank.errors import BodyError, MissingExtraError
from memory_bank.transcript.messages import same_objects
from memory_bank.transcript.turns import Derive, Make, Placed, derive_anew

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    try:
        from backports import zstd
    except ImportError:
        raise MissingExtraError("the service (bodies compressed with zstd)", "service") from None

JsonObject: TypeAlias = dict[str, Any]
"""A JSON object of a request or an answer, as some client or server wrote it."""

Span = tuple[int, int]
Edit = tuple[int, int, str]
"""A part of a text, from its start to its end, and what stands there instead."""
Elements = tuple[tuple[object, Span], ...]
"""The elements of an array, each with its start and end in the text."""

_BOM = "\ufeff"
_WINDOW = {int(zstd.DecompressionParameter.window_log_max): 23}  # 8 MiB, the most for HTTP: RFC 9659
_DECODERS: Mapping[str, Callable[[], Any]] = {
    "gzip": partial(zlib.decompressobj, 16 + zlib.MAX_WBITS),
    "zstd": partial(zstd.ZstdDecompressor, options=_WINDOW),
}  # by content-encoding
_whitespace = re.compile(r"[ \t\n\r]*")
_raw_decode = json.JSONDecoder().raw_decode
T = TypeVar("T")


def decompressed(data: bytes, coding: str, most: int) -> bytes | None:
    """A body without its content-encoding; None where that is unknown, it is broken, or has over ``most`` bytes."""
    try:
        decoder = _DECODERS[coding.strip().lower()]()
        plain: bytes = decoder.decompress(data, most + 1)
    except (KeyError, zlib.error, zstd.ZstdError):
        return None
    return plain if decoder.eof and not decoder.unused_data and len(plain) <= most else None


@dataclass(frozen=True, slots=True, eq=False)
class Body:
    """A parsed body: ``data`` as it came, ``value`` the object in it.

    ``render_body`` uses the rest: the decoded ``text``, the ``spans`` of the editable members (from the end of what
    is before, with the start of the value), the ``elements`` of those that are arrays, ``end``, the position at which
    a new member is inserted, and what is ``removed`` from the text.
    ``derive(element, make)`` returns ``make(element)``; a cached element always gives the same objects.
    """

    data: bytes
    value: JsonObject = field(default_factory=dict)
    text: str = ""
    spans: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    elements: Mapping[str, Elements] = field(default_factory=dict)
    end: int = 0
    removed: tuple[Edit, ...] = ()
    derive: Derive = derive_anew


def parse_body(data: bytes, *editable: str) -> Body:
    """Parse a body whose top-level members named in ``editable`` may be replaced by ``render_body``.

    Accepts what ``json.loads`` accepts, including a byte-order mark, escaped lone surrogates, NaN and long
    integers. An editable member may be missing or hold something other than an array.

    Raises BodyError for what cannot be edited safely: not UTF-8, not JSON, not an object, nested deeper than
    the parser goes, or with a duplicate of an editable member.
    """
    try:
        return _parse(data, data.decode("utf-8"), editable)
    except UnicodeDecodeError:
        raise BodyError("not UTF-8") from None
    except RecursionError:
        raise BodyError("nested too deeply") from None
    except (ValueError, IndexError) as error:
        raise error if isinstance(error, BodyError) else BodyError("not JSON") from None


def _parse(data: bytes, text: str, editable: Sequence[str]) -> Body:
    value: JsonObject = {}
    spans: dict[str, tuple[int, int, int]] = {}
    elements: dict[str, Elements] = {}
    start = _skip(text, 1 if text.startswith(_BOM) else 0)
    if text[start] != "{":
        raise BodyError("not a JSON object")
    last = start + 1  # the end of the last member

    def member(at: int) -> int:
        nonlocal last
        before = last
        if text[at] != '"':
            raise ValueError("expected a member's name")
        key, at = _raw_decode(text, at)
        at = _skip(text, at)
        if text[at] != ":":
            raise ValueError("expected a colon")
        at = _skip(text, at + 1)
        if key in spans:
            raise BodyError(f"duplicate member {key}")
        if key in editable and text[at] == "[":
            found: list[tuple[object, Span]] = []

            def element(at: int) -> int:
                element, end = _raw_decode(text, at)
                found.append((element, (at, end)))
                return end

            last = _each(text, at, "]", element)
            elements[key] = tuple(found)
            value[key] = [element for element, _ in found]
        else:
            value[key], last = _raw_decode(text, at)
        if key in editable:
            spans[key] = before, at, last
        return last

    if _skip(text, _each(text, start, "}", member)) != len(text):
        raise ValueError("expected the end")
    return Body(data, value, text, spans, elements, last)


def _each(text: str, start: int, closing: str, read: Callable[[int], int]) -> int:
    """Call ``read``, which returns an end, at each start between brackets; the position after them."""
    at = _skip(text, start + 1)
    if text[at] == closing:
        return at + 1
    while True:
        at = _skip(text, read(at))
        if text[at] == closing:
            return at + 1
        if text[at] != ",":
            raise ValueError(f"expected a comma or {closing}")
        at = _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    """The first position from ``at`` on that holds no white space."""
    match = _whitespace.match(text, at)
    assert match is not None
    return match.end()


def render_body(body: Body, members: Mapping[str, object]) -> bytes:
    """The body with these arrays and other values as its members; the same bytes object when nothing changes.

    The members must be among those named to ``parse_body``. An element that is the object that was parsed
    keeps its bytes, wherever it now stands (it must not have been modified); any other element is written as
    compact ASCII. A member that was missing is added at the end. Everything else keeps its bytes.

    Raises BodyError for an element that cannot be written as JSON.
    """
    edits: list[Edit] = []
    added: list[str] = []
    for key, new in members.items():
        if not isinstance(new, (list, tuple)):
            text = json.dumps(new, separators=(",", ":"))
        elif key in body.elements and same_objects([e for e, _ in body.elements[key]], new):
            continue
        else:
            text = render_array(body, key, new)
        if key in body.value:
            edits.append((*body.spans[key][1:], text))
        else:
            added.append(f"{json.dumps(key)}:{text}")
    if added:
        edits.append((body.end, body.end, ("," if body.value else "") + ",".join(added)))
    return _edited(body, edits) if edits else body.data


def _edited(body: Body, edits: Iterable[Edit]) -> bytes:
    """The text of a body with parts of it replaced, and without what was removed."""
    parts: list[str] = []
    at = 0
    for start, end, text in sorted([*edits, *body.removed]):
        parts += (body.text[at:start], text)
        at = end
    return "".join([*parts, body.text[at:]]).encode("utf-8")


def without_member(body: Body, name: str) -> Body:
    """The body as it is sent without an editable member; ``value`` still has it, everything else keeps its bytes."""
    if name not in body.spans:
        return body
    start, _, end = body.spans[name]
    if body.text[start - 1] == "{":  # it is the first: the comma after it goes, too
        at = _skip(body.text, end)
        end = at + 1 if body.text[at] == "," else end
    body = replace(body, removed=((start, end, ""),))
    return replace(body, data=_edited(body, ()))


def with_members(data: bytes, members: Mapping[str, object]) -> bytes:
    """A JSON object with members set; all else keeps its bytes, and so does what ``parse_body`` cannot read."""
    try:
        return render_body(parse_body(data, *members), members) if members else data
    except BodyError:
        return data


def render_array(body: Body, member: str, new: Sequence[object]) -> str:
    """The text of an array that may replace a member, as ``render_body`` writes it. Raises BodyError."""
    kept: dict[int, deque[Span]] = {}
    for element, span in body.elements.get(member, ()):
        kept.setdefault(id(element), deque()).append(span)
    parts: list[str] = []
    for element in new:
        spans = kept.get(id(element))
        if spans:
            start, end = spans.popleft() if len(spans) > 1 else spans[0]
            parts.append(body.text[start:end])
            continue
        try:
            parts.append(json.dumps(element, separators=(",", ":")))
        except (TypeError, ValueError, RecursionError):
            raise BodyError("an element cannot be written as JSON") from None
    return f"[{','.join(parts)}]"


def as_object(value: object) -> JsonObject:
    """The value if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def parse_object(data: bytes) -> JsonObject:
    """The JSON object in an answer, an empty one where there is none."""
    try:
        return as_object(json.loads(data))
    except (ValueError, RecursionError):
        return {}


def objects_of(value: object) -> list[JsonObject]:
    """The JSON objects in a value, if it is a list."""
    return [v for v in value if isinstance(v, dict)] if isinstance(value, list) else []


@dataclass(slots=True, eq=False)
class _CachedMessage:
    """A message and the results that were computed from it, by kind."""

    message: object
    chars: int = 0  # that count for it
    results: dict[str, object] = field(default_factory=dict)
    derived: list[Placed] | None = None


class MessageCache:
    """Parsed messages of the latest requests, by their JSON text, with results computed from them.

    An agent sends its whole history with each request, so most messages repeat. Equal texts give the same
    object, which is never modified, and what depends on the message alone (its digest, its redacted form) is
    computed once; those of another member, of an API that reads them in its own way, give another object. At most
    ``chars`` characters of text are kept, where each message counts ``ENTRY`` more for its objects; the least
    recently used are dropped. Thread-safe.
    """

    CHARS = 16_000_000
    LONGEST = 1_000_000
    ENTRY = 500

    def __init__(self, chars: int = CHARS) -> None:
        self._limit = chars
        self._chars = 0
        self._by_text: OrderedDict[tuple[str, str], _CachedMessage] = OrderedDict()  # by member and text
        self._by_id: dict[int, _CachedMessage] = {}
        self._lock = threading.Lock()

    def intern(self, body: Body, key: str) -> Body:
        """The body with cached objects as elements of its member ``key``; no object occurs twice in it."""
        elements = body.elements.get(key)
        if not elements:
            return body
        with self._lock:
            used: set[int] = set()
            known: list[tuple[object, Span]] = []
            for message, span in elements:
                text = body.text[slice(*span)]
                if isinstance(message, dict) and len(text) <= self.LONGEST:
                    entry = self._by_text.get((key, text))
                    if entry is None:
                        entry = _CachedMessage(message, len(text) + self.ENTRY)
                        self._by_text[key, text] = self._by_id[id(message)] = entry
                        self._chars += entry.chars
                    if id(entry.message) not in used:
                        self._by_text.move_to_end((key, text))
                        message = entry.message
                        used.add(id(message))
                known.append((message, span))
            while self._chars > self._limit:
                _, entry = self._by_text.popitem(last=False)
                self._chars -= entry.chars
                del self._by_id[id(entry.message)]
                for made, _ in entry.derived or ():
                    del self._by_id[id(made)]
        return replace(
            body,
            value={**body.value, key: [value for value, _ in known]},
            elements={**body.elements, key: tuple(known)},
            derive=self.derive,
        )

    def result(self, kind: str, message: object, compute: Callable[[object], T]) -> T:
        """``compute(message)``, called once for each kind as long as the message is cached."""
        entry = self._by_id.get(id(message))
        if entry is None or entry.message is not message:
            return compute(message)
        if kind not in entry.results:
            entry.results[kind] = compute(message)
        return cast("T", entry.results[kind])

    def derive(self, message: Any, make: Make) -> list[Placed]:
        """Return ``make(message)``; while the message is cached, ``make`` is called once.

        The chat messages that it makes are kept with the message. They must not be modified, and ``result`` keeps
        what is computed from them.
        """
        entry = self._by_id.get(id(message))
        if entry is None or entry.message is not message:
            return make(message)
        if entry.derived is None:
            made = make(message)
            with self._lock:
                if self._by_id.get(id(message)) is not entry or entry.derived is not None:
                    return made
                entry.derived = made
                self._chars += entry.chars
                entry.chars *= 2
                self._by_id.update((id(m), _CachedMessage(m)) for m, _ in made)
        return entry.derived
