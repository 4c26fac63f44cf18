"""Requests for a summary: answered from the bank, or upstream's answer completed; items of ours in later requests."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import anyio
from anyio import to_thread

from memory_bank.bank.database import Database
from memory_bank.bank.session import MemoryBankState
from memory_bank.context.compaction import what_is_known
from memory_bank.errors import MemoryBankError, UpstreamError
from memory_bank.service.proxy.answers import EventSplitter, as_object, rewrite_event
from memory_bank.service.proxy.body import JsonObject, render_body
from memory_bank.service.proxy.injection import MOST_BYTES, SendUpstream, parse_object
from memory_bank.service.proxy.rebuild import COMPLETED, ModelRequest, Rebuilder
from memory_bank.service.proxy.upstream import UpstreamAnswer, after
from memory_bank.service.security.access import public_name
from memory_bank.service.threads import limiter
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
        self._database = database

    @cached_property
    def _secret(self) -> bytes:
        return self._database.secret()

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

    def text(self, namespace: str | None, session_id: str, digest: str) -> str | None:
        """A text of a session of a namespace that a compaction was answered with. Raises StorageError."""
        return self._database.get_summary(namespace, session_id, digest)


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
    own, rest = _parts(elements[at], key)
    session_id = text = foreign = None
    try:
        if values := seals.read(own[-1]["encrypted_content"]):
            session_id, digest, foreign, where = values
            text = seals.text(namespace, session_id, digest)
            foreign = foreign if text and where == upstream else None
    except MemoryBankError as e:
        log.warning("a compaction item could not be read: %s", type(e).__name__)
    if text:
        request.compacted = public_name(namespace, str(session_id))
    made = [e for e in elements[:at] if not _is_replaced(e, key)]
    if foreign:
        made.append(foreign if key == "input" else {"role": "assistant", "content": [foreign]})
    said = {"role": "user", "content": f"{OPENING}{text}" if text else LOST}
    made.append({"type": "message", **said} if key == "input" else said)
    made += [{**as_object(elements[at]), "content": rest}] if rest else []
    return render_body(request.body, {key: [*made, *elements[at + 1 :]]})


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
    return kind in OUTPUT_OF or kind in CALL_OF or kind == "reasoning" or item.get("role") == "assistant"


class Compaction:
    """Answers a request for a summary of its session, as the setting ``compaction`` says; see ModelRequest.

    Where upstream does not know how to compact, the bank answers instead. ``upstream`` names it in our items.
    """

    def __init__(
        self, rebuilder: Rebuilder, seals: Seals, request: ModelRequest, send: SendUpstream, upstream: str
    ) -> None:
        self.sessions, self.timeout = rebuilder.sessions, rebuilder.timeout
        self.seals, self.request, self.send, self.upstream = seals, request, send, upstream
        self.by_item = request.dialect.is_compaction(request.value)

    async def answer(self) -> UpstreamAnswer:
        """The answer for the client; every other answer is closed."""
        request, mode, step = self.request, self.sessions.config.service.compaction, self.request.memory.step
        if mode == "pass" or step is None or step.control or not step.records:
            return await self.send(request.render(), 0)
        self.step = step
        if mode == "answer" and (own := await self._own()):
            return own
        answer = await self.send(request.render(), 0)
        if answer.status in UNKNOWN:
            return await self._own(answer) or answer
        if not answer.is_readable:
            return answer
        if self.by_item:
            return await self._with_item(answer)
        request.memory = replace(request.memory, reason=COMPLETED)
        return await self._with_text(answer)

    async def _known(self, lacking: str = "", *, users_words: bool = False) -> str:
        """What the bank knows beside a summary that it need not repeat; "" for nothing, also where it fails."""
        state, budget = self.step.state, self.sessions.config.service.compaction_tokens
        told = partial(what_is_known, state, budget, lacking=lacking, users_words=users_words)
        with anyio.move_on_after(self.timeout):
            return await self._in_thread(told) or ""
        log.warning("memory took longer than %g s for a summary", self.timeout)
        return ""

    async def _in_thread(self, work: Callable[[], str]) -> str | None:
        """What it returns; None where it fails, whose text may hold contents."""
        try:
            return await to_thread.run_sync(work, abandon_on_cancel=True, limiter=limiter("tools"))
        except Exception as e:
            log.warning("memory failed for a summary: %s", type(e).__name__)
            return None

    async def _own(
        self, instead_of: UpstreamAnswer | None = None, given: JsonObject | None = None
    ) -> UpstreamAnswer | None:
        """The answer of the bank, in the place of upstream's; ``given``: what that says. None where it knows nothing.

        A ``compaction`` of upstream is held by ours, which comes back with each later request.
        """
        request, memory, given = self.request, self.request.memory, given or {}
        route, is_messages = request.dialect.route, request.dialect.provider == "anthropic"
        items = given.get("content" if is_messages else "output") or ()
        foreign = next((i for i in items if as_object(i).get("type") == "compaction"), None)
        summary = str(as_object(foreign).get("content") or "")
        # Codex and /responses/compact keep the user's messages
        known = await self._known(summary, users_words=not self.by_item or is_messages)
        sealed = (
            await self._in_thread(partial(self._sealed, known, foreign)) if self.by_item and known else ""
        )
        if not known or sealed is None:
            return None
        text = f"{summary}{ADDED}{known}" if summary else known
        item = {"type": "compaction", "encrypted_content": sealed} if self.by_item else {}
        into, out, now = memory.full_tokens or 0, self.step.counter.count_text(known), int(time.time())
        number = secrets.token_hex(12)
        write: Callable[[JsonObject], list[bytes]]
        if is_messages:
            block = {**item, "content": text} if item else {"type": "text", "text": text}
            ends = "compaction" if item else "end_turn"
            made = events.message_of(f"msg_{number}", request.model, [block], ends, into, out)
            write = events.message_events
        elif route == "chat":
            said = {"role": "assistant", "content": text, "refusal": None}
            made = events.completion(f"chatcmpl-{number}", request.model, said, into, out, now)
            write = partial(events.chat_events, request=request.value)
        else:
            output = [item | {"id": f"cmp_{number}"} if item else events.text_item(f"msg_{number}", text)]
            made = events.response_of(f"resp_{number}", request.value, output, into, out) | {
                "created_at": now
            }
            write = events.response_events
        if route == "compact":
            users = [i for i in request.value["input"] if as_object(i).get("role") == "user"]
            made = {k: made[k] for k in ("id", "created_at", "usage")} | {"object": "response.compaction"}
            made["output"] = [*users, *output]
        if given.get("usage"):
            made["usage"] = given["usage"]
        if instead_of is not None:
            await instead_of.aclose()
        status: Any = memory.status if foreign else "answered"
        reason = COMPLETED if foreign else memory.reason
        request.memory = replace(memory, status=status, reason=reason)
        streamed = request.value.get("stream") is True and route != "compact"
        kind = b"text/event-stream" if streamed else b"application/json"
        answer = UpstreamAnswer(200, [(b"content-type", kind)], after(b""))
        answer.replace_body(b"".join(write(made)) if streamed else json.dumps(made).encode())
        return answer

    def _sealed(self, text: str, foreign: JsonObject | None) -> str:
        """Keep a text for later requests, and seal what names it."""
        generation = self.step.state.generation if isinstance(self.step.state, MemoryBankState) else None
        digest = self.sessions.database.add_summary(self.step.session_id, text, generation)
        return self.seals.seal(self.step.session_id, digest, foreign, self.upstream)

    async def _with_item(self, answer: UpstreamAnswer) -> UpstreamAnswer:
        """Upstream's answer in a form of ours, with its item in one of ours; the bank's where it has none."""
        streamed = answer.is_stream
        try:
            data = await answer.hold(MOST_BYTES)
        except UpstreamError as e:
            own = await self._own()
            if own is None:
                raise
            log.warning("upstream broke off a summary (%s): the bank answers", type(e).__name__)
            return own
        if data is None:
            return answer
        given = parse_object(data)
        if streamed:
            reader, splitter = self.request.dialect.open_stream(self.request.value), EventSplitter()
            for event in (*splitter.feed(data), *splitter.close()):
                reader.read(event.value or {})
            given = reader.answer()
        return await self._own(answer, given) or answer

    async def _with_text(self, answer: UpstreamAnswer) -> UpstreamAnswer:
        """Upstream's summary with what it lacks after its text."""
        if answer.is_stream:
            answer.replace_body(self._stream(answer.body))
            return answer
        data = await answer.hold(MOST_BYTES)
        given = parse_object(data or b"")
        holder, key = next(_texts(given), ({}, ""))
        if key and (known := await self._known(holder[key])):
            holder[key] += ADDED + known
            answer.replace_body(json.dumps(given).encode())
        return answer

    async def _stream(self, body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The events of a summary, with one more at the end of its text."""
        splitter, said, added = EventSplitter(), "", None
        async for chunk in body:
            out = b""
            for event in splitter.feed(chunk):
                value = event.value or {}
                said += _said(value)
                if added is None and said and _ends(value):
                    known = await self._known(said)
                    added = ADDED + known if known else ""
                    out += _one_more(value, added) if added else b""
                repeats = added and event.value and self.request.dialect.key == "input"
                out += rewrite_event(event, _with(value, said, f"{said}{added}")) if repeats else event.raw
            if out:
                yield out
        yield b"".join(event.raw for event in splitter.close())


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
    if end.get("type") == "content_block_stop":
        delta = {"type": "text_delta", "text": text}
        return b"".join(
            events.as_events([("content_block_delta", {"index": end.get("index"), "delta": delta})])
        )
    fields = {k: v for k, v in end.items() if k not in ("type", "text")} | {"delta": text}
    return b"".join(events.as_events([("response.output_text.delta", fields)]))


def _with(value: Any, text: str, new: str) -> Any:
    """A JSON value with another text wherever one stands."""
    if isinstance(value, dict):
        return {k: _with(v, text, new) for k, v in value.items()}
    if isinstance(value, list):
        return [_with(v, text, new) for v in value]
    return new if value == text else value
