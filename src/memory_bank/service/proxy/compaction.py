"""Requests for a summary: answered from the bank, or upstream's answer completed; items of ours in later requests."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from anyio import to_thread

from memory_bank.bank.database import Database
from memory_bank.bank.session import MemoryBankState
from memory_bank.context.compaction import what_is_known
from memory_bank.errors import MemoryBankError, UpstreamError
from memory_bank.service.proxy.answers import (
    MOST_BYTES,
    Event,
    as_object,
    parse_object,
    rewrite_event,
    rewritten,
)
from memory_bank.service.proxy.body import JsonObject, render_body, with_members
from memory_bank.service.proxy.clearing import COMPACT, edit_of, threshold_of, with_compaction
from memory_bank.service.proxy.injection import SendUpstream, read_memory
from memory_bank.service.proxy.rebuild import (
    COMPACTION,
    COMPLETED,
    THRESHOLD,
    MemoryResult,
    ModelRequest,
    Rebuilder,
)
from memory_bank.service.proxy.upstream import UpstreamAnswer, after
from memory_bank.service.security.access import public_name
from memory_bank.service.sessions import Rebuilt
from memory_bank.transcript import events
from memory_bank.transcript.responses import CALL_OF, OUTPUT_OF, item_type

log = logging.getLogger("memory_bank.Service")

UNKNOWN = frozenset({400, 404, 405, 413, 415, 422, 501})
"""Statuses with which an upstream refuses a compaction; the bank answers then."""
OPENING = "The following is a summary of the conversation so far, from the records that its memory keeps.\n\n"
LOST = (
    "The following is a summary of the conversation so far: it is not available, since what the client sent in its "
    "place was not made here, or was deleted since. Ask for what you need of the earlier conversation."
)
ADDED = "\n\nWhat the memory of this session holds besides:\n"
_BEGINNING = "mbc1."  # of the encrypted_content of ours: the version
_NONCE, _TAG = 12, 16  # bytes


class Seals:
    """Makes and reads ``encrypted_content``: values that nobody else can read, change or make."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @cached_property
    def _secret(self) -> bytes:
        return self.database.secret()

    def seal(self, *values: object) -> str:
        """The values (JSON) as a text."""
        nonce = secrets.token_bytes(_NONCE)
        data = self._hidden(nonce, json.dumps(values, separators=(",", ":")).encode())
        return _BEGINNING + base64.urlsafe_b64encode(nonce + self._tag(nonce + data) + data).decode()

    def read(self, sealed: str) -> list[Any] | None:
        """The values of a text; None for one that this bank has not made. Raises StorageError."""
        try:
            raw = base64.b64decode(sealed.removeprefix(_BEGINNING), b"-_", validate=True)
        except ValueError:
            return None
        nonce, tag, data = raw[:_NONCE], raw[_NONCE : _NONCE + _TAG], raw[_NONCE + _TAG :]
        if not hmac.compare_digest(tag, self._tag(nonce + data)):
            return None
        values: list[Any] = json.loads(self._hidden(nonce, data))
        return values

    def _tag(self, data: bytes) -> bytes:
        return hmac.digest(self._secret, b"tag" + data, "sha256")[:_TAG]

    def _hidden(self, nonce: bytes, data: bytes) -> bytes:
        stream = hashlib.shake_256(b"stream" + self._secret + nonce).digest(len(data))
        return bytes(a ^ b for a, b in zip(data, stream, strict=True))


def expand(request: ModelRequest, seals: Seals, upstream: str) -> bytes | None:
    """The body of a request with what our compaction items stand for; None without any. Sets ``compacted``.

    What came before such an item goes, as with the providers, but what the user and the client said. An item of a
    provider that ours holds comes back for the same ``upstream``. Raises BodyError.
    """
    key, namespace = request.dialect.key, request.caller.namespace
    elements = request.value.get(key)
    if _BEGINNING.encode() not in request.body.data or not isinstance(elements, list):
        return None
    found = (n for n in reversed(range(len(elements))) if _parts(elements[n], key)[0])
    if (at := next(found, -1)) < 0:
        return None
    own, _ = _parts(elements[at], key)
    session_id = text = foreign = None
    try:
        if values := seals.read(own[-1]["encrypted_content"]):
            session_id, digest, foreign, where = values
            text = seals.database.get_summary(namespace, session_id, digest)
            foreign = foreign if text and where == upstream else None
    except MemoryBankError as e:
        log.warning("a compaction item could not be read: %s", type(e).__name__)
    if text:
        request.compacted = public_name(namespace, str(session_id))
    made = _expanded(elements, at, f"{OPENING}{text}" if text else LOST, foreign)
    return render_body(replace(request.body, removed=()), {key: made})


def _expanded(elements: list[Any], at: int, text: str, foreign: JsonObject | None = None) -> list[Any]:
    """A conversation with a text for its compaction item at a position, and for all that this stands for."""
    # a provider's block keeps its place before what the model said after it, which may be bound to it
    key = "input" if item_type(elements[at]) == "compaction" else "messages"
    made, later = [e for e in elements[:at] if not _is_replaced(e, key)], elements[at + 1 :]
    said, held = {"role": "user", "content": text}, [] if foreign is None else [foreign]
    if key == "input":
        return [*made, *held, {"type": "message", **said}, *later]
    rest = _parts(elements[at], key)[1]
    spoken = [{**elements[at], "content": [*held, *rest]}] if held or rest else []
    if not held:
        return [*made, said, *spoken, *later]
    begun = [e for e in elements[:at][:1] if as_object(e).get("role") == "user"]  # a conversation begins so
    answered = 1 if rest else 0
    return [*(made or begun), *spoken, *later[:answered], said, *later[answered:]]


def _parts(element: object, key: str) -> tuple[list[Any], list[Any]]:
    """The compaction items of ours in an element of a conversation, and its other parts."""
    content = [element] if key == "input" else as_object(element).get("content")
    parts = content if isinstance(content, list) else []
    own = [p for p in parts if str(as_object(p).get("encrypted_content")).startswith(_BEGINNING)]
    return own, [p for p in parts if p not in own] if own else []


def _is_replaced(element: object, key: str) -> bool:
    """Whether a later compaction stands for an element of a conversation."""
    item, kind = as_object(element), item_type(element)
    if key != "input":
        return item.get("role") != "system"
    made = kind in ("reasoning", "compaction") or item.get("role") == "assistant" or _parts(element, key)[0]
    return bool(made) or kind in OUTPUT_OF or kind in CALL_OF


class Compaction:
    """Answers a request for a summary of its session, as the setting ``compaction`` says; see ModelRequest.

    Where upstream does not know how to compact, the bank answers instead. ``upstream`` names it in our items. A
    request with a threshold is compacted by upstream, or here where that does not get its ``context_management``.
    """

    def __init__(
        self, rebuilder: Rebuilder, seals: Seals, request: ModelRequest, send: SendUpstream, upstream: str
    ) -> None:
        self.sessions, self.timeout = rebuilder.sessions, rebuilder.timeout
        self.seals, self.request, self.send, self.upstream = seals, request, send, upstream
        self.is_messages = request.dialect.provider == "anthropic"
        self.by_item = request.dialect.is_compaction(request.value)
        step = request.memory.step
        knows = step is not None and step.records and not step.control
        self.mode = self.sessions.config.service.compaction if knows else "pass"
        self.budget = self.sessions.config.service.compaction_tokens
        self.found: list[tuple[object, object]] = []  # upstream's compactions, with ours that hold them
        self.block: JsonObject | None = None  # what is known of a streamed one

    @property
    def step(self) -> Rebuilt:
        """The step of a request of whose session the bank knows something."""
        assert self.request.memory.step is not None
        return self.request.memory.step

    async def lead(self) -> JsonObject | UpstreamAnswer | None:
        """Compact a request above its client's threshold: what its answer begins with, or an answer of that alone.

        The model answers to what the item or block stands for. None where there is nothing to do.
        """
        request, memory, threshold = self.request, self.request.memory, threshold_of(self.request.value)
        is_here = request.manages and request.body.removed and memory.reason != COMPACTION
        if not is_here or self.mode == "pass" or threshold is None or (memory.full_tokens or 0) <= threshold:
            return None
        self.budget = min(self.budget, threshold // 2)
        if (edit_of(request.value, COMPACT) or {}).get("pause_after_compaction") is True:
            self.by_item = True
            return await self._own(with_compaction({"input_tokens": 0, "output_tokens": 0, "iterations": []}))
        known = await self._known(users_words=True)
        item = await self._item(known) if known else None
        if item is not None:
            request.memory = await to_thread.run_sync(self._compacted, item, f"{OPENING}{known}")
        return item

    def _compacted(self, item: JsonObject, text: str) -> MemoryResult:
        """The request with a text for the conversation up to our item, as its later requests have it."""
        request, memory, key = self.request, self.request.memory, self.request.dialect.key
        elements = [
            *request.value[key],
            {"role": "assistant", "content": [item]} if self.is_messages else item,
        ]
        made = _expanded(elements, len(elements) - 1, text)
        body = replace(request.body, value={**request.value, key: made})
        plan, count = self.step.plan, self.step.counter.count_message
        tokens = self.step.full_tokens - plan.full_tokens if plan else 0  # of the tools
        return replace(
            memory,
            status="rebuilt",
            reason=THRESHOLD,
            arrays={key: made},
            data=render_body(request.body, {key: made}),
            tokens=tokens + sum(map(count, request.dialect.history(body).messages)),
            step=replace(self.step, sent_context=None),
        )

    async def answer(self, body: bytes, more: int) -> UpstreamAnswer:
        """Upstream's answer to a body, in a form of ours where it holds a compaction; any other is closed."""
        request = self.request
        if request.memory.reason != COMPACTION or self.mode == "pass":
            answer = await self.send(body, more)
            stays = request.manages and not request.body.removed and threshold_of(request.value) is not None
            if stays and self.mode != "pass" and answer.is_readable:
                await self._put_into_ours(answer)
            return answer
        if self.mode == "answer" and (own := await self._own()):
            return own
        answer = await self.send(body, more)
        if answer.status in UNKNOWN:
            return await self._own(instead_of=answer) or answer
        if not answer.is_readable:
            return answer
        if self.by_item:
            return await self._with_item(answer)
        request.memory = replace(request.memory, reason=COMPLETED)
        return await self._with_text(answer)

    async def _known(self, lacking: str = "", *, users_words: bool = False) -> str:
        """What the bank knows beside a summary that it need not repeat; "" for nothing, also where it fails."""
        told = partial(what_is_known, self.step.state, self.budget, lacking=lacking, users_words=users_words)
        return await self._read(told) or ""

    async def _read(self, work: Callable[[], str]) -> str | None:
        """What it returns; None where it fails, whose text may hold contents, or takes too long."""
        try:
            return await read_memory(work, self.timeout)
        except Exception as e:
            log.warning("memory failed for a summary: %s", type(e).__name__)
            return None

    async def _own(
        self, usage: JsonObject | None = None, instead_of: UpstreamAnswer | None = None
    ) -> UpstreamAnswer | None:
        """The answer of the bank, in the place of upstream's; None where it knows nothing."""
        request, memory, route = self.request, self.request.memory, self.request.dialect.route
        # Codex and /responses/compact keep the user's messages
        known = await self._known(users_words=not self.by_item or self.is_messages)
        item = await self._item(known) if self.by_item and known else None
        if not known or (self.by_item and item is None):
            return None
        counts = memory.full_tokens or 0, self.step.counter.count_text(known)
        number, now = secrets.token_hex(12), int(time.time())
        write: Callable[[JsonObject], list[bytes]]
        if self.is_messages:
            ends = "compaction" if item else "end_turn"
            block = item or {"type": "text", "text": known}
            made = events.message_of(f"msg_{number}", request.model, [block], ends, *counts)
            write = events.message_events
        elif route == "chat":
            said = {"role": "assistant", "content": known, "refusal": None}
            made = events.completion(f"chatcmpl-{number}", request.model, said, *counts, now)
            write = partial(events.chat_events, request=request.value)
        else:
            output = [item or events.text_item(f"msg_{number}", known)]
            made = events.response_of(f"resp_{number}", request.value, output, *counts) | {"created_at": now}
            write = events.response_events
        if route == "compact":
            users = [i for i in request.value["input"] if as_object(i).get("role") == "user"]
            made = {k: made[k] for k in ("id", "created_at", "usage")} | {"object": "response.compaction"}
            made["output"] = [*users, *output]
        made["usage"] = usage or made["usage"]
        if instead_of is not None:
            await instead_of.aclose()
        reason = memory.reason if memory.reason == COMPACTION else THRESHOLD
        request.memory = replace(memory, status="answered", reason=reason)
        streamed = request.value.get("stream") is True and route != "compact"
        kind = b"text/event-stream" if streamed else b"application/json"
        answer = UpstreamAnswer(200, [(b"content-type", kind)], after(b""))
        answer.replace_body(b"".join(write(made)) if streamed else json.dumps(made).encode())
        return answer

    async def _item(self, known: str, foreign: JsonObject | None = None) -> JsonObject | None:
        """An item or block that names what the bank knows and holds one of upstream; None where it cannot be kept."""
        sealed = await self._read(partial(self._sealed, known, foreign))
        if sealed is None:
            return None
        summary, item = _summary(foreign), {"type": "compaction", "encrypted_content": sealed}
        own = {"content": f"{summary}{ADDED}{known}" if summary else known}
        return item | (own if self.is_messages else {"id": f"cmp_{secrets.token_hex(12)}"})

    async def _ours(self, part: Any) -> Any:
        """A part of upstream's answer, in one of ours if it is a compaction and the bank knows more."""
        summary = _summary(part)
        is_failed = self.is_messages and not summary
        if as_object(part).get("type") != "compaction" or is_failed:
            return part
        known = await self._known(summary, users_words=self.is_messages)
        if not known or (item := await self._item(known, part)) is None:
            return part
        self.found.append((part, item))
        return item

    async def _put_into_ours(self, answer: UpstreamAnswer) -> None:
        """Put the compactions in an answer of upstream into ours; a stream is changed as it is read."""
        if answer.is_stream:
            answer.replace_body(rewritten(answer.body, self._held_by_ours))
        elif data := await answer.hold():
            key = "content" if self.is_messages else "output"
            parts = [await self._ours(p) for p in parse_object(data).get(key) or ()]
            answer.replace_body(with_members(data, {key: parts}) if self.found else data)

    async def _held_by_ours(self, event: Event) -> bytes:
        """An event with upstream's compaction in one of ours; the pieces of a block come as one, at its end."""
        value = event.value or {}
        kind, block, item = value.get("type"), as_object(value.get("content_block")), value.get("item")
        if kind == "content_block_start" and block.get("type") == "compaction":
            self.block = block
        elif kind == "content_block_delta" and self.block is not None:
            delta = as_object(value.get("delta"))
            self.block |= {k: v for k, v in delta.items() if k != "type" and v is not None}
            return b""
        elif kind == "content_block_stop" and self.block is not None:
            delta = {**await self._ours(self.block), "type": "compaction_delta"}
            self.block = None
            told = events.as_events([("content_block_delta", {"index": value.get("index"), "delta": delta})])
            return told[0] + event.raw
        elif kind == "response.output_item.done":
            ours = await self._ours(item)
            return event.raw if ours is item else rewrite_event(event, {**value, "item": ours})
        elif self.found and isinstance(output := as_object(value.get("response")).get("output"), list):
            ours = [next((o for p, o in self.found if p == i), i) for i in output]
            return rewrite_event(event, {**value, "response": {**value["response"], "output": ours}})
        return event.raw

    def _sealed(self, text: str, foreign: JsonObject | None) -> str:
        """Keep a text for later requests, and seal what names it."""
        generation = self.step.state.generation if isinstance(self.step.state, MemoryBankState) else None
        digest = self.sessions.database.add_summary(self.step.session_id, text, generation)
        return self.seals.seal(self.step.session_id, digest, foreign, self.upstream)

    async def _with_item(self, answer: UpstreamAnswer) -> UpstreamAnswer:
        """Upstream's answer with its item in one of ours; the bank's where it has none."""
        try:
            if await answer.hold() is None:
                return answer
        except UpstreamError as e:
            if (own := await self._own()) is None:
                raise
            log.warning("upstream broke off a summary (%s): the bank answers", type(e).__name__)
            return own
        await self._put_into_ours(answer)
        await answer.hold()
        if not self.found:
            return await self._own(instead_of=answer) or answer
        self.request.memory = replace(self.request.memory, reason=COMPLETED)
        return answer

    async def _with_text(self, answer: UpstreamAnswer) -> UpstreamAnswer:
        """Upstream's summary with what it lacks after its text."""
        if answer.is_stream:
            answer.replace_body(rewritten(answer.body, self._completed()))
            return answer
        data = await answer.hold()
        given = parse_object(data or b"")
        holder, key = next(_texts(given), ({}, ""))
        if key and (known := await self._known(holder[key])):
            holder[key] += ADDED + known
            answer.replace_body(json.dumps(given).encode())
        return answer

    def _completed(self) -> Callable[[Event], Awaitable[bytes]]:
        """Writes the events of a summary, with one more at the end of its text; a very long one stays as it is."""
        pieces: list[str] = []
        said, added, size = "", "", 0
        repeats = self.request.dialect.key == "input"

        async def write(event: Event) -> bytes:
            nonlocal said, added, size
            value, size, out = event.value or {}, size + len(event.raw), b""
            if size > MOST_BYTES and not said:
                return event.raw
            if not said:
                pieces.append(_said(value))
            if not said and _ends(value) and (said := "".join(pieces)):
                known = await self._known(said)
                added = ADDED + known if known else ""
                out = _one_more(value, added) if added else b""
            changed = repeats and added and event.value
            return out + (
                rewrite_event(event, _with(value, said, f"{said}{added}")) if changed else event.raw
            )

        return write


def _summary(part: object) -> str:
    """The text in a compaction of upstream; "" where it is none, or cannot be read."""
    return str(as_object(part).get("content") or "")


def _texts(answer: JsonObject) -> Iterator[tuple[JsonObject, str]]:
    """The objects of an answer that hold its texts, the last first, each with the name of the member."""
    for choice in answer.get("choices") or ():
        if isinstance(as_object(as_object(choice).get("message")).get("content"), str):
            yield choice["message"], "content"
    for item in reversed([*(answer.get("output") or ()), answer]):
        for part in reversed(as_object(item).get("content") or []):
            if as_object(part).get("type") in ("text", "output_text") and isinstance(part.get("text"), str):
                yield part, "text"


def _choice(event: JsonObject) -> JsonObject:
    choices = event.get("choices")
    return as_object(choices[0]) if isinstance(choices, list) and choices else {}


def _said(event: JsonObject) -> str:
    """The text that an event adds to an answer of any API."""
    delta = event.get("delta")
    if isinstance(delta, str):
        return delta if event.get("type") == "response.output_text.delta" else ""
    return str(as_object(delta).get("text") or as_object(_choice(event).get("delta")).get("content") or "")


def _ends(event: JsonObject) -> bool:
    """Whether an event ends the text of an answer."""
    ends = event.get("type") in ("response.output_text.done", "content_block_stop")
    return ends or bool(_choice(event).get("finish_reason"))


def _one_more(end: JsonObject, text: str) -> bytes:
    """An event that adds a text, before the one that ends it."""
    if "choices" in end:
        choice = {**_choice(end), "delta": {"content": text}, "finish_reason": None}
        return b"data: " + json.dumps({**end, "choices": [choice]}).encode() + b"\n\n"
    fields = {k: v for k, v in end.items() if k not in ("type", "text")}
    kind, fields["delta"] = "response.output_text.delta", text
    if end.get("type") == "content_block_stop":
        kind, fields["delta"] = "content_block_delta", {"type": "text_delta", "text": text}
    return events.as_events([(kind, fields)])[0]


def _with(value: Any, text: str, new: str) -> Any:
    """A JSON value with another text wherever one stands."""
    if isinstance(value, dict):
        return {k: _with(v, text, new) for k, v in value.items()}
    if isinstance(value, list):
        return [_with(v, text, new) for v in value]
    return new if value == text else value
