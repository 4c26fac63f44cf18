"""Our tools offered to an agent that does not know of them: the proxy answers their calls itself, unseen."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Any

import anyio
from anyio import to_thread

from memory_bank.errors import BodyError, MemoryBankError, UpstreamError
from memory_bank.service.bodies import parse_body
from memory_bank.service.chatturns import ChatSpeech
from memory_bank.service.events import Splitter
from memory_bank.service.forwarding import Headers
from memory_bank.service.itemturns import ItemSpeech
from memory_bank.service.proxy import LARGE, Asked, Send
from memory_bank.service.sessions import Sessions
from memory_bank.service.turns import NOT_YET, Call, Speech, Spoken, Stream, total
from memory_bank.service.upstream import Answer
from memory_bank.tools import MAX_CHARS, handle_tool_call

log = logging.getLogger("memory_bank.Service")

ROUNDS = 8
"""So many turns of one request may be hidden; then our tools are taken away, and the model has to answer."""
LEAST_CHARS = 2_000
"""What each of many calls in one turn may quote at least."""

_SPEECHES: Mapping[str, Speech] = {"chat": ChatSpeech(), "responses": ItemSpeech()}
_FETCHED = b"x-memory-fetched"


class Injection:
    """A ``Turn`` of the proxy: offers our tools where there is something to fetch, and answers them.

    They are offered where memory acts on the request, its session has records, the client has no tools of
    their names, and the model may choose. A turn that calls them is answered here and upstream is asked
    again, with the turn and its results after what the request says; the client sees the last turn, and of
    the others only what was shown before such a call. Calls of the client's own tools in a hidden turn get
    the result that they are to be made again, so that every pair is whole and nothing has to be kept.
    ``timeout``: seconds that the memory has for the calls of one turn.
    """

    def __init__(self, sessions: Sessions, timeout: float) -> None:
        self.sessions = sessions
        self.timeout = timeout

    async def __call__(self, asked: Asked, send: Send) -> Answer:
        """See Turn."""
        speech = _SPEECHES.get(asked.dialect.route)
        tools = speech.offer(asked.body.value) if speech is not None and asked.body is not None else None
        if speech is None or tools is None or not await self._can_fetch(asked):
            return await send(asked.render())
        return await _Exchange(self, asked, send, speech, tools).answer()

    async def _can_fetch(self, asked: Asked) -> bool:
        """Whether the request's session has records. No failure of the memory keeps a request up."""
        session = asked.memory.session
        found = False
        if session is not None:
            with anyio.move_on_after(self.timeout):
                try:
                    found = await to_thread.run_sync(
                        self.sessions.has_records, asked.caller.namespace, session, abandon_on_cancel=True
                    )
                except MemoryBankError as e:
                    log.warning("no tools are offered, memory cannot be read: %s", type(e).__name__)
        return found

    def fetch(self, asked: Asked, calls: Sequence[Call]) -> list[str]:
        """In a thread: what answers the calls of a turn, in their order."""
        session = asked.memory.session
        assert session is not None
        room = max(LEAST_CHARS, MAX_CHARS // max(1, sum(call.ours for call in calls)))
        try:
            with self.sessions.reading(asked.caller.namespace, session) as state:
                return [
                    handle_tool_call(state, c.name, c.arguments, max_chars=room) if c.ours else NOT_YET
                    for c in calls
                ]
        except MemoryBankError as e:
            log.warning("memory could not be read for a call of its tools: %s", type(e).__name__)
            return [f"The memory could not be read: {e}" if c.ours else NOT_YET for c in calls]


class _InsteadError(Exception):
    """Before anything was given to the client, upstream answered with this instead."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.answer = answer


class _Exchange:
    """One request: its turns, hidden and shown."""

    def __init__(
        self, injection: Injection, asked: Asked, send: Send, speech: Speech, tools: list[Any]
    ) -> None:
        assert asked.body is not None
        self.injection = injection
        self.asked = asked
        self.send = send
        self.speech = speech
        self.tools = tools
        self.body: Mapping[str, Any] = asked.body.value
        self.hidden: list[Any] = []  # turns with their results, as they follow what the request says
        self.rounds = 0
        self.fetched = 0

    @property
    def may_hide(self) -> bool:
        return self.rounds < ROUNDS

    async def answer(self) -> Answer:
        """What the client is given."""
        usage: Mapping[str, Any] | None = None
        while True:
            answer = await self._ask()
            if not _is_readable(answer):
                answer.headers = [*answer.headers, *self._told()]
                return answer
            if _is_stream(answer):
                return await self._streamed(answer, usage)
            data = await _whole(answer)
            value = _object(data)
            spoken = self.speech.spoken(value, self.body) if value is not None else Spoken()
            if not (self.may_hide and spoken.is_ours):
                return _Given(answer, data if usage is None else _with_usage(data, usage), self._told())
            usage = total(usage, spoken.usage)
            await self._go_on(spoken)

    async def _ask(self) -> Answer:
        """Upstream's answer to the request, with the hidden turns so far."""
        arrays: dict[str, Sequence[Any]] = {}
        if self.may_hide:
            arrays["tools"] = self.tools
        if self.hidden:
            said = self.asked.memory.arrays.get(self.speech.key, self.body.get(self.speech.key))
            arrays[self.speech.key] = [*(said or ()), *self.hidden]
        try:
            if len(self.asked.data) < LARGE:
                body = self.asked.render(arrays)
            else:
                body = await to_thread.run_sync(self.asked.render, arrays)
        except BodyError as e:
            raise UpstreamError(f"a turn of the model's API cannot be sent back to it: {e}.") from None
        return await self.send(body)

    async def _go_on(self, spoken: Spoken) -> None:
        """Answer the calls of a turn that is hidden."""
        texts: list[str] | None = None
        with anyio.move_on_after(self.injection.timeout):
            texts = await to_thread.run_sync(
                self.injection.fetch, self.asked, spoken.calls, abandon_on_cancel=True
            )
        if texts is None:
            log.warning("memory took longer than %g s for a call of its tools", self.injection.timeout)
            texts = ["The memory did not answer in time." if c.ours else NOT_YET for c in spoken.calls]
        results = [self.speech.result(c, t) for c, t in zip(spoken.calls, texts, strict=True)]
        self.hidden += [*spoken.said, *(r for r in results if r is not None)]
        self.rounds += 1
        self.fetched += sum(call.ours for call in spoken.calls)

    async def _streamed(self, answer: Answer, usage: Mapping[str, Any] | None) -> Answer:
        """The answer as a stream, once its first bytes are there."""
        stream = self.speech.stream(self.body)
        stream.usage = usage
        relay = _Relay(answer)
        pieces = self._pieces(stream, relay)
        try:
            relay.first = await anext(pieces, None)
        except _InsteadError as e:
            e.answer.headers = [*e.answer.headers, *self._told()]
            return e.answer
        except BaseException:
            with anyio.CancelScope(shield=True):
                await pieces.aclose()
            raise
        return _Streamed(relay, pieces, self._told())

    async def _pieces(self, stream: Stream, relay: _Relay) -> AsyncGenerator[bytes, None]:
        """The bytes of all turns as one stream."""
        while True:
            answer, splitter = relay.answer, Splitter()
            try:
                try:
                    async for chunk in answer.body:
                        if out := b"".join(map(stream.feed, splitter.feed(chunk))):
                            yield out
                    out = b"".join(map(stream.feed, splitter.close()))
                except UpstreamError:
                    if out := stream.broken():
                        yield out
                    raise
            finally:
                await answer.aclose()
            last, spoken = stream.end(self.may_hide)
            if out + last:
                yield out + last
            if spoken is None:
                return
            await self._go_on(spoken)
            relay.answer = await self._ask()
            if not _is_stream(relay.answer) or not _is_readable(relay.answer):
                if not stream.has_sent:
                    raise _InsteadError(relay.answer)
                await relay.answer.aclose()
                raise UpstreamError(
                    f"the model's API answered a turn that fetches with status {relay.answer.status}, when "
                    "a part of the answer had been given."
                )

    def _told(self) -> Headers:
        return [(_FETCHED, str(self.fetched).encode())] if self.fetched else []


class _Relay:
    """The answer of upstream whose bytes are relayed at present, and the first of them."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.first: bytes | None = None


class _Given(Answer):
    """A whole answer. Its bytes are upstream's, but for the usage where turns were hidden."""

    def __init__(self, answer: Answer, data: bytes, told: Headers) -> None:
        kept = answer.headers
        if told:
            kept = [(n, v) for n, v in kept if n != b"content-length"]
            kept = [*kept, (b"content-length", str(len(data)).encode()), *told]
        super().__init__(answer.status, kept, _once(data))


class _Streamed(Answer):
    """A streamed answer that has begun. How long it gets nobody knows yet."""

    def __init__(self, relay: _Relay, pieces: AsyncGenerator[bytes, None], told: Headers) -> None:
        kept = [(n, v) for n, v in relay.answer.headers if n != b"content-length"]
        super().__init__(relay.answer.status, [*kept, *told], self._all(relay.first, pieces))
        self._pieces = pieces

    async def _all(self, first: bytes | None, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        if first is not None:
            yield first
        async for piece in pieces:
            yield piece

    async def aclose(self) -> None:
        """Let go of the answer that is on its way."""
        with anyio.CancelScope(shield=True):
            await self._pieces.aclose()


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def _whole(answer: Answer) -> bytes:
    """The bytes of an answer. Raises UpstreamError where they end too early."""
    try:
        return b"".join([chunk async for chunk in answer.body])
    finally:
        await answer.aclose()


def _is_readable(answer: Answer) -> bool:
    """Whether an answer is a success, and not packed."""
    return 200 <= answer.status < 300 and _header(answer, b"content-encoding") in (b"", b"identity")


def _is_stream(answer: Answer) -> bool:
    return _header(answer, b"content-type").startswith(b"text/event-stream")


def _header(answer: Answer, name: bytes) -> bytes:
    return next((value.strip().lower() for n, value in answer.headers if n == name), b"")


def _object(data: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _with_usage(data: bytes, hidden: Mapping[str, Any]) -> bytes:
    """The answer with the usage of hidden turns added to its own; all else keeps its bytes."""
    try:
        body = parse_body(data, "usage")
    except BodyError:
        return data
    usage = body.value.get("usage")
    if not isinstance(usage, dict):
        return data
    start, end = body.spans["usage"]
    written = json.dumps(total(hidden, usage), separators=(",", ":"))
    return f"{body.text[:start]}{written}{body.text[end:]}".encode()
