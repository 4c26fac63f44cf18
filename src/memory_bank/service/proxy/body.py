"""JSON request bodies: parsed once, written back with the bytes of everything that did not change."""

from __future__ import annotations

import hashlib
import json
import re
import sys
import threading
import zlib
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ParamSpec, TypeAlias, TypeVar
from weakref import WeakValueDictionary

from anyio import to_thread

from memory_bank.errors import BodyError, MissingExtraError
from memory_bank.transcript.messages import Interaction, latest_interactions, same_objects, shared_length
from memory_bank.transcript.turns import Conversation, Derive, Make, Placed, derive_anew

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    try:
        from backports import zstd
    except ImportError:
        raise MissingExtraError("the service (bodies compressed with zstd)", "service") from None

JsonObject: TypeAlias = dict[str, Any]
"""A JSON object of a request or an answer, as some client or server wrote it."""

HEAD = 6
"""Elements of an array by which a conversation is known: a random id of its first call is among them."""
SEAL, HOUR = "mbc1.", '"1h"'
"""Texts that a body may hold: how ``encrypted_content`` of ours begins, and the lifetime of some cache marks."""
Span = tuple[int, int]
Edit = tuple[int, int, bytes]
"""A part of a text, from its start to its end, and what stands there instead."""
Elements = tuple[tuple[object, Span], ...]
"""The elements of an array, each with its start and end in the text."""

_BOM = "\ufeff"
_WINDOW = {int(zstd.DecompressionParameter.window_log_max): 23}  # 8 MiB, the most for HTTP: RFC 9659
_DECODERS: Mapping[str, Callable[[], Any]] = {
    "gzip": partial(zlib.decompressobj, 16 + zlib.MAX_WBITS),
    "zstd": partial(zstd.ZstdDecompressor, options=_WINDOW),
}  # by content-encoding
_STATES = 8  # at the end of a list whose last messages change, such as by cache marks
_whitespace = re.compile(r"[ \t\n\r]*")
_raw_decode = json.JSONDecoder().raw_decode
T = TypeVar("T")
P = ParamSpec("P")


def decompressed(data: bytes, coding: str, most: int) -> bytes | None:
    """A body without its content-encoding; None where that is unknown, it is broken, or has over ``most`` bytes."""
    try:
        decoder = _DECODERS[coding.strip().lower()]()
        plain: bytes = decoder.decompress(data, most + 1)
    except (KeyError, zlib.error, zstd.ZstdError):
        return None
    return plain if decoder.eof and not decoder.unused_data and len(plain) <= most else None


async def in_thread_if_large(data: bytes, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Do work on a body here, in a default thread if the body is large. Most of it is known from the one before."""
    if len(data) < 2**20:
        return work(*args, **kwargs)
    return await to_thread.run_sync(lambda: work(*args, **kwargs), abandon_on_cancel=True)


@dataclass(slots=True, eq=False)
class Memo:
    """Results computed of each message of a list, of which the next request's list has the beginning.

    ``chat``: what the list was read as. ``beside``: what else the latest request had, such as tools, and its text.
    """

    chat: Conversation[Any] | None = None
    beside: tuple[Sequence[object], str] = ((), "")
    _latest: tuple[Sequence[object], list[Interaction]] = ((), [])
    _lists: dict[str, tuple[Sequence[object], list[Any]]] = field(default_factory=dict)
    _digests: dict[str, tuple[bytes, Sequence[bytes], list[str], deque[Any]]] = field(default_factory=dict)

    def of_each(self, kind: str, messages: Sequence[object], compute: Callable[[object], T]) -> list[T]:
        """``compute(message)`` of each message; only new ones are computed."""
        known, results = self._lists.get(kind, ((), []))
        count = shared_length(known, messages)
        if not count == len(known) == len(messages):
            results = [*results[:count], *map(compute, messages[count:])]
            self._lists[kind] = messages, results
        return results

    def latest(self, messages: Sequence[object], count: int) -> list[Interaction]:
        """``latest_interactions`` of a list."""
        known, interactions = self._latest
        same = shared_length(known, messages)
        if not same == len(known) == len(messages):
            interactions = latest_interactions(messages, count, interactions if same == len(known) else ())
            self._latest = messages, interactions
        return interactions

    def digests(self, kind: str, seed: bytes, parts: Sequence[bytes]) -> list[str]:
        """SHA-256 of a seed and the first part, the first two parts and so on, as hexadecimal digits."""
        begun, known, digests, latest = self._digests.get(kind, (seed, (), [], deque()))
        count = shared_length(known, parts) if begun == seed else 0
        latest = latest.copy()
        back = len(digests) - count  # of which the states after the last parts are kept
        digests = digests[:count] if back < len(latest) else []
        for _ in range(min(back, len(latest))):
            latest.pop()
        state = latest[-1].copy() if digests else hashlib.sha256(seed)
        for part in parts[len(digests) :]:
            state.update(part)
            digests.append(state.hexdigest())
            latest.append(state.copy())
            if len(latest) > _STATES:
                latest.popleft()
        self._digests[kind] = seed, parts, digests, latest
        return digests


@dataclass(frozen=True, slots=True, eq=False)
class Body:
    """A parsed body: ``data`` as it came, ``value`` the object in it.

    ``render_body`` uses the rest: the decoded ``text``, the ``spans`` of the editable members (from the end of what
    is before, with the start of the value), the ``elements`` of those that are arrays, ``end``, the position at which
    a new member is inserted, and what is ``removed`` from the text.
    ``derive(element, make)`` returns ``make(element)``; a cached element always gives the same objects.
    ``memo``: what was computed of the messages of the conversation's earlier requests. ``holds``: which of SEAL and
    HOUR it may hold.
    """

    data: bytes
    value: JsonObject = field(default_factory=dict)
    text: str = ""
    spans: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    elements: Mapping[str, Elements] = field(default_factory=dict)
    end: int = 0
    removed: tuple[Edit, ...] = ()
    derive: Derive = derive_anew
    memo: Memo = field(default_factory=Memo)
    holds: Collection[str] = (SEAL, HOUR)


Known = Callable[[str, str, Elements], Elements]
"""The elements of a member in a text that an earlier body had, from the first ones on; these, where it had none."""


def parse_body(data: bytes, *editable: str, known: Known | None = None) -> Body:
    """Parse a body whose top-level members named in ``editable`` may be replaced by ``render_body``.

    ``known(member, text, elements)`` is asked once an array has HEAD elements; what it returns is not parsed again.

    Accepts what ``json.loads`` accepts, including a byte-order mark, escaped lone surrogates, NaN and long
    integers. An editable member may be missing or hold something other than an array.

    Raises BodyError for what cannot be edited safely: not UTF-8, not JSON, not an object, nested deeper than
    the parser goes, or with a duplicate of an editable member.
    """
    try:
        return _parse(data, data.decode("utf-8"), editable, known)
    except UnicodeDecodeError:
        raise BodyError("not UTF-8") from None
    except RecursionError:
        raise BodyError("nested too deeply") from None
    except (ValueError, IndexError) as error:
        raise error if isinstance(error, BodyError) else BodyError("not JSON") from None


def _parse(data: bytes, text: str, editable: Sequence[str], known: Known | None) -> Body:
    value: JsonObject = {}
    spans: dict[str, tuple[int, int, int]] = {}
    elements: dict[str, Elements] = {}
    at = _skip(text, 1 if text.startswith(_BOM) else 0)
    if text[at] != "{":
        raise BodyError("not a JSON object")
    last = at + 1  # the end of the last member
    at = _skip(text, last)
    while text[at] != "}":
        if value:
            if text[at] != ",":
                raise ValueError("expected a comma or }")
            at = _skip(text, at + 1)
        if text[at] != '"':
            raise ValueError("expected a member's name")
        key, at = _raw_decode(text, at)
        at = _skip(text, at)
        if text[at] != ":":
            raise ValueError("expected a colon")
        at = _skip(text, at + 1)
        if key in spans:
            raise BodyError(f"duplicate member {key}")
        before = last
        if key in editable and text[at] == "[":
            elements[key], last = _parse_array(text, at, key, known)
            value[key] = [element for element, _ in elements[key]]
        else:
            value[key], last = _raw_decode(text, at)
        if key in editable:
            spans[key] = before, at, last
        at = _skip(text, last)
    if _skip(text, at + 1) != len(text):
        raise ValueError("expected the end")
    return Body(data, value, text, spans, elements, last)


def _parse_array(text: str, start: int, key: str, known: Known | None) -> tuple[Elements, int]:
    """The elements of an array that begins at ``start``, and the position after it; see ``parse_body``."""
    elements: list[tuple[object, Span]] = []
    at = _skip(text, start + 1)
    while text[at] != "]":
        if elements:
            if text[at] != ",":
                raise ValueError("expected a comma or ]")
            at = _skip(text, at + 1)
        element, end = _raw_decode(text, at)
        elements.append((element, (at, end)))
        if len(elements) == HEAD and known is not None:
            elements[:] = known(key, text, tuple(elements))
            end = elements[-1][1][1]
        at = _skip(text, end)
    return tuple(elements), at + 1


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
    added: list[bytes] = []
    for key, new in members.items():
        if not isinstance(new, (list, tuple)):
            text = json.dumps(new, separators=(",", ":")).encode()
        elif key in body.elements and same_objects(body.value[key], new):
            continue
        else:
            text = render_array(body, key, new)
        if key in body.value:
            edits.append((*body.spans[key][1:], text))
        else:
            added.append(b"%b:%b" % (json.dumps(key).encode(), text))
    if added:
        edits.append((body.end, body.end, b",".join([b""] * bool(body.value) + added)))
    return _edited(body, edits) if edits else body.data


def _edited(body: Body, edits: Iterable[Edit]) -> bytes:
    """The text of a body with parts of it replaced, and without what was removed."""
    parts, at = list[bytes](), 0
    for start, end, text in sorted([*edits, *body.removed]):
        parts += (body.text[at:start].encode(), text)
        at = end
    return b"".join([*parts, body.text[at:].encode()])


def without_member(body: Body, name: str) -> Body:
    """The body as it is sent without an editable member; ``value`` still has it, everything else keeps its bytes."""
    if name not in body.spans:
        return body
    start, _, end = body.spans[name]
    if body.text[start - 1] == "{":  # it is the first: the comma after it goes, too
        at = _skip(body.text, end)
        end = at + 1 if body.text[at] == "," else end
    body = replace(body, removed=((start, end, b""),))
    return replace(body, data=_edited(body, ()))


def with_members(data: bytes, members: Mapping[str, object]) -> bytes:
    """A JSON object with members set; all else keeps its bytes, and so does what ``parse_body`` cannot read."""
    try:
        return render_body(parse_body(data, *members), members) if members else data
    except BodyError:
        return data


def render_array(body: Body, member: str, new: Sequence[object]) -> bytes:
    """The bytes of an array that may replace a member, as ``render_body`` writes it. Raises BodyError."""
    elements, text = body.elements.get(member, ()), body.text
    same = shared_length(body.value[member] if elements else (), new)
    parts = [text[start:end].encode() for _, (start, end) in elements[:same]]
    places = {id(element): span for element, span in elements[same:]}
    for element in new[same:]:
        if span := places.get(id(element)):
            parts.append(text[span[0] : span[1]].encode())
            continue
        try:
            parts.append(json.dumps(element, separators=(",", ":")).encode())
        except (TypeError, ValueError, RecursionError):
            raise BodyError("an element cannot be written as JSON") from None
    parts[:1] = [b"[" + part for part in parts[:1]] or [b"["]  # the whole is copied once
    parts[-1] += b"]"
    return b",".join(parts)


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


@dataclass(slots=True, eq=False, weakref_slot=True)
class _CachedMessage:
    """A message of a conversation, and the chat messages that were made of it."""

    message: object
    derived: list[Placed] | None = None


@dataclass(slots=True, eq=False)
class _Conversation:
    """The array of a conversation's latest request: the body's text, and the messages with their places in that."""

    text: str = ""
    elements: Elements = ()
    values: Sequence[object] = ()
    memo: Memo = field(default_factory=Memo)
    by_id: dict[int, _CachedMessage] = field(default_factory=dict)
    holds: set[str] = field(default_factory=set)
    chars: int = 0  # that count for it: as they came, and as they were read

    def derive(self, message: Any, make: Make) -> list[Placed]:
        """Return ``make(message)``; while the message is cached, ``make`` is called once.

        The chat messages that it makes are kept with the message. They must not be modified.
        """
        entry = self.by_id.get(id(message))
        if entry is None or entry.message is not message:
            return make(message)
        if entry.derived is None:
            entry.derived = make(message)
        return entry.derived


class MessageCache:
    """The messages of each conversation's latest request, with what was computed from them.

    An agent sends its whole history with each request. The messages with which an earlier request of the conversation
    began are not parsed again, and others of equal text give the same object, which is never modified; those of
    another member or ``provider``, whose API reads them in its way, give another one. At most ``chars`` characters
    are kept, where each message counts ``ENTRY`` more for its objects; the least recently used conversations are
    dropped, and one with a message of more than ``LONGEST`` is not kept. Thread-safe.
    """

    CHARS = 32_000_000
    LONGEST = 1_000_000
    ENTRY = 500

    def __init__(self, chars: int = CHARS) -> None:
        self._limit = chars
        self._chars = 0
        self._by_head: OrderedDict[tuple[str, str, str], _Conversation] = OrderedDict()
        self._by_text: WeakValueDictionary[tuple[str, str, str], _CachedMessage] = WeakValueDictionary()
        self._lock = threading.Lock()

    def _known(self, provider: str, member: str, text: str, head: Elements) -> Elements:
        """The elements, from ``head`` on, with which an array begins like that of an earlier request."""
        start = head[0][1][0]
        with self._lock:
            conversation = self._by_head.get(
                (provider, member, text[start : head[-1][1][1]]), _Conversation()
            )
            known, elements = conversation.text, conversation.elements
        moved = start - elements[0][1][0] if elements else 0
        same, differs = 0, len(elements) + 1
        while differs - same > 1:
            middle = (same + differs) // 2
            begin = elements[same - 1][1][1] if same else start - moved
            if text.startswith(known[begin : elements[middle - 1][1][1]], begin + moved):
                same = middle
            else:
                differs = middle
        if same < len(head):
            return head
        if not moved:
            return elements[:same]
        return tuple((m, (begin + moved, end + moved)) for m, (begin, end) in elements[:same])

    def parse(self, data: bytes, key: str, *editable: str, provider: str = "") -> Body:
        """``parse_body`` with cached objects as elements of the member ``key``; no object occurs twice among them.

        Raises BodyError.
        """
        body = parse_body(data, key, *editable, known=partial(self._known, provider))
        elements = body.elements.get(key)
        if not elements:
            return body
        came: list[object] = body.value[key]
        text, start = body.text, elements[0][1][0]
        head = provider, key, text[start : elements[:HEAD][-1][1][1]]
        with self._lock:
            conversation = self._by_head.get(head, _Conversation())
            same = shared_length(conversation.values, came)
            if not all(type(message) is dict for message in came[same:]):
                return body
            if self._by_head.pop(head, None):
                self._chars -= conversation.chars
            values, known = (
                came[:same],
                conversation.by_id,
            )  # what is known stays until equal texts were sought
            if same < len(known):
                conversation.by_id = {id(message): known[id(message)] for message in values}
            by_id = conversation.by_id
            for message, span in elements[same:]:
                place = provider, key, text[slice(*span)]
                entry = self._by_text.get(place)
                if entry is None or id(entry.message) in by_id:
                    entry = _CachedMessage(message)
                    self._by_text.setdefault(place, entry)
                by_id[id(entry.message)] = entry
                values.append(entry.message)
            new = zip(values[same:], (span for _, span in elements[same:]), strict=True)
            elements = (*elements[:same], *new)
            since = elements[same - 1][1][1] if same else 0
            conversation.holds |= {part for part in (SEAL, HOUR) if text.find(part, since) >= 0}
            holds = {part for part in (SEAL, HOUR) if text.find(part, 0, start) >= 0} | conversation.holds
            conversation.text, conversation.elements, conversation.values = text, elements, values
            conversation.chars = 2 * len(text) + self.ENTRY * len(values)
            longest = max((end - begin for _, (begin, end) in elements[same:]), default=0)
            if longest <= self.LONGEST and conversation.chars <= self._limit:
                self._by_head[head] = conversation
                self._chars += conversation.chars
            while self._chars > self._limit:
                self._chars -= self._by_head.popitem(last=False)[1].chars
        return replace(
            body,
            value={**body.value, key: values},
            elements={**body.elements, key: elements},
            derive=conversation.derive,
            memo=conversation.memo,
            holds=holds,
        )
