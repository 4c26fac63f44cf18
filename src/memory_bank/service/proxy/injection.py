"""Memory tools offered to an agent that does not know them; the proxy answers their calls itself."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

import anyio
from anyio import to_thread

from memory_bank.errors import BodyError, MemoryBankError, UpstreamError
from memory_bank.service.proxy.body import JsonObject, parse_body
from memory_bank.service.proxy.dialect import ModelToolCall, ModelTurn, TurnStream, add_usage, as_object
from memory_bank.service.proxy.events import EventSplitter
from memory_bank.service.proxy.routes import LARGE, ModelRequest, SendUpstream
from memory_bank.service.proxy.upstream import Headers, UpstreamAnswer
from memory_bank.service.sessions import Sessions, count_once
from memory_bank.service.threads import limiter
from memory_bank.tools import MAX_CHARS, ToolAnswer, answer_tool_call
from memory_bank.transcript.jsontext import compact
from memory_bank.transcript.tokens import open_counter

log = logging.getLogger("memory_bank.Service")

ROUNDS = 8
"""Hidden turns of one request; after them the memory tools are no longer offered."""
LEAST_CHARS = 2_000
"""Characters that each of many calls in one turn may return at least."""
MOST_BYTES = 16 * 2**20
"""Bytes of an answer that are held until it is known whether it calls a memory tool; a longer one passes."""
NOT_YET = (
    "Not executed yet: in this turn only the memory tools were answered. Make this call again if it is still "
    "needed."
)
"""The result of a client's tool that was called in one turn with memory tools."""


class Injection:
    """A ``Responder`` that offers the memory tools and answers their calls.

    They are offered where the request's memory has ``tools``. A turn that
    calls them is answered here and upstream is asked again, with the turn and its results appended to the
    request; the client sees only the last turn, and what was streamed before such a call. Calls of the client's
    own tools in a hidden turn get the result ``NOT_YET``, so every call has a result and nothing has to be
    stored. ``timeout``: seconds for the calls of one turn.
    """

    def __init__(self, sessions: Sessions, timeout: float) -> None:
        self.sessions = sessions
        self.timeout = timeout

    async def __call__(self, request: ModelRequest, send: SendUpstream) -> UpstreamAnswer:
        """See Responder."""
        tools = request.memory.tools
        if tools is None:
            return await send(request.render(), 0)
        return await _Rounds(self, request, send, tools).answer()

    async def call_tools(self, request: ModelRequest, calls: Sequence[ModelToolCall]) -> list[ToolAnswer]:
        """The results of the calls of a turn, in their order."""
        answers: list[ToolAnswer] | None = None
        with anyio.move_on_after(self.timeout):
            answers = await to_thread.run_sync(
                self._call_tools, request, calls, abandon_on_cancel=True, limiter=limiter("tools")
            )
        if answers is None:
            log.warning("memory took longer than %g s for a call of its tools", self.timeout)
            answers = _answered(calls, "The memory did not answer in time.")
        return answers

    def _call_tools(self, request: ModelRequest, calls: Sequence[ModelToolCall]) -> list[ToolAnswer]:
        session = request.memory.session
        assert session is not None
        room = max(LEAST_CHARS, MAX_CHARS // max(1, sum(call.is_memory for call in calls)))
        try:
            with self.sessions.reading(request.caller.namespace, session) as state:
                return [
                    answer_tool_call(state, c.name, c.arguments, max_chars=room)
                    if c.is_memory
                    else ToolAnswer(NOT_YET)
                    for c in calls
                ]
        except MemoryBankError as e:
            log.warning("memory could not be read for a call of its tools: %s", type(e).__name__)
            return _answered(calls, f"The memory could not be read: {e}")


def _answered(calls: Sequence[ModelToolCall], trouble: str) -> list[ToolAnswer]:
    return [ToolAnswer(trouble if call.is_memory else NOT_YET) for call in calls]


class _AnsweredInsteadError(Exception):
    """Upstream answered a later turn with an error before anything was sent to the client."""

    def __init__(self, answer: UpstreamAnswer) -> None:
        super().__init__()
        self.answer = answer


class _Rounds:
    """The turns of one request, up to the one that the client gets."""

    def __init__(
        self, injection: Injection, request: ModelRequest, send: SendUpstream, tools: list[object]
    ) -> None:
        assert request.body is not None
        self.injection = injection
        self.request = request
        self.dialect = request.dialect
        self.send = send
        self.tools = tools
        self.value: JsonObject = request.body.value
        self.hidden: list[object] = []  # turns and results, appended to the request
        self.counter = open_counter() if request.memory.step is None else request.memory.step.counter
        added = tools[len(self.value.get("tools") or ()) :]
        self.hidden_tokens, self.tool_tokens = 0, count_once(self.counter.count_text, compact(added))
        self.rounds = 0
        self.fetched = 0

    @property
    def may_hide(self) -> bool:
        """Whether another turn may be hidden."""
        return self.rounds < ROUNDS

    async def answer(self) -> UpstreamAnswer:
        """The answer for the client."""
        usage: JsonObject | None = None
        while True:
            answer = await self._ask()
            if not _is_readable(answer):
                answer.headers = [*answer.headers, *self._headers()]
                return answer
            if _is_stream(answer):
                return await self._stream(answer, usage)
            data, rest = await _read(answer)
            if rest is not None:
                return _LongAnswer(answer, data, rest, self._headers())
            value = _parse_object(data)
            turn = ModelTurn() if value is None else self.dialect.read_answer(value, self.value)
            if not (self.may_hide and turn.calls_memory):
                data = data if usage is None else _add_to_usage(data, usage)
                headers, added = answer.headers, self._headers()
                if added:
                    headers = [(n, v) for n, v in headers if n != b"content-length"]
                    headers += [(b"content-length", str(len(data)).encode()), *added]
                return UpstreamAnswer(answer.status, headers, _single(data))
            usage = add_usage(usage, turn.usage)
            await self._hide(turn)

    async def _ask(self) -> UpstreamAnswer:
        """Upstream's answer to the request with the hidden turns so far."""
        arrays: dict[str, Sequence[object]] = {"tools": self.tools} if self.may_hide else {}
        if self.hidden:
            key = self.dialect.key
            arrays[key] = [*self.request.memory.arrays.get(key, self.value.get(key) or ()), *self.hidden]
        try:
            if len(self.request.data) < LARGE:
                body = self.request.render(arrays)
            else:
                body = await to_thread.run_sync(self.request.render, arrays)
        except BodyError as e:
            raise UpstreamError(f"a turn of the model's API cannot be sent back to it: {e}.") from None
        return await self.send(body, self.hidden_tokens + (self.tool_tokens if self.may_hide else 0))

    async def _hide(self, turn: ModelTurn) -> None:
        """Answer the calls of a turn that the client does not get."""
        answers = await self.injection.call_tools(self.request, turn.calls)
        results = [self.dialect.result(c, a) for c, a in zip(turn.calls, answers, strict=True)]
        self.hidden += [*turn.messages, *(r for r in results if r is not None)]
        said = [{"role": "tool", "content": a.text} for a, r in zip(answers, results, strict=True) if r]
        count = self.counter.count_message
        self.hidden_tokens += await to_thread.run_sync(lambda: sum(map(count, [*turn.messages, *said])))
        self.rounds += 1
        self.fetched += sum(call.is_memory for call in turn.calls)

    async def _stream(self, answer: UpstreamAnswer, usage: JsonObject | None) -> UpstreamAnswer:
        """The answer as a stream, once its first bytes are there."""
        joined = self.dialect.open_stream(self.value)
        joined.usage = usage
        source = _Source(answer)
        pieces = self._join(joined, source)
        try:
            first = await anext(pieces, b"")
        except _AnsweredInsteadError as e:
            e.answer.headers = [*e.answer.headers, *self._headers()]
            return e.answer
        except BaseException:
            with anyio.CancelScope(shield=True):
                await pieces.aclose()
            raise
        return _JoinedAnswer(source.answer, first, pieces, self._headers())

    async def _join(self, joined: TurnStream, source: _Source) -> AsyncGenerator[bytes, None]:
        """The bytes of all turns as one stream."""
        while True:
            answer, splitter = source.answer, EventSplitter()
            try:
                try:
                    async for chunk in answer.body:
                        if out := b"".join(map(joined.feed, splitter.feed(chunk))):
                            yield out
                    out = b"".join(map(joined.feed, splitter.close()))
                except UpstreamError:
                    if out := joined.break_off():
                        yield out
                    raise
            finally:
                await answer.aclose()
            last, turn = joined.end(self.may_hide)
            if out + last:
                yield out + last
            if turn is None:
                return
            await self._hide(turn)
            answer = source.answer = await self._ask()
            if not (_is_stream(answer) and _is_readable(answer)):
                if not joined.has_sent:
                    raise _AnsweredInsteadError(answer)
                await answer.aclose()
                raise UpstreamError(
                    f"the model's API answered the request after a memory call with status {answer.status}, "
                    "when a part of the answer had been sent."
                )

    def _headers(self) -> Headers:
        return [(b"x-memory-fetched", str(self.fetched).encode())] if self.fetched else []


class _Source:
    """The answer of upstream that a joined stream is reading."""

    def __init__(self, answer: UpstreamAnswer) -> None:
        self.answer = answer


class _JoinedAnswer(UpstreamAnswer):
    """A joined stream that has begun; its length is not known."""

    def __init__(
        self, answer: UpstreamAnswer, first: bytes, pieces: AsyncGenerator[bytes, None], added: Headers
    ) -> None:
        headers = [(n, v) for n, v in answer.headers if n != b"content-length"]
        super().__init__(answer.status, [*headers, *added], self._all(first, pieces))
        self._pieces = pieces

    async def _all(self, first: bytes, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        if first:
            yield first
        async for piece in pieces:
            yield piece

    async def aclose(self) -> None:
        """Release the answer that is being read."""
        with anyio.CancelScope(shield=True):
            await self._pieces.aclose()


async def _single(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def _read(answer: UpstreamAnswer) -> tuple[bytes, AsyncIterator[bytes] | None]:
    """The bytes of an answer, and the rest of one that is too long to be held. Raises UpstreamError."""
    chunks: list[bytes] = []
    size = 0
    body = aiter(answer.body)
    try:
        async for chunk in body:
            chunks.append(chunk)
            size += len(chunk)
            if size > MOST_BYTES:
                return b"".join(chunks), body
    except BaseException:
        await answer.aclose()
        raise
    await answer.aclose()
    return b"".join(chunks), None


class _LongAnswer(UpstreamAnswer):
    """An answer that passes as it is: its beginning has been read."""

    def __init__(
        self, answer: UpstreamAnswer, begun: bytes, rest: AsyncIterator[bytes], added: Headers
    ) -> None:
        super().__init__(answer.status, [*answer.headers, *added], self._all(begun, rest))
        self._answer = answer

    async def _all(self, begun: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        yield begun
        async for piece in rest:
            yield piece

    async def aclose(self) -> None:
        """Release the answer that is being read."""
        await self._answer.aclose()


def _is_readable(answer: UpstreamAnswer) -> bool:
    """Whether an answer is a success and not compressed."""
    return 200 <= answer.status < 300 and answer.header(b"content-encoding") in (b"", b"identity")


def _is_stream(answer: UpstreamAnswer) -> bool:
    return answer.header(b"content-type").startswith(b"text/event-stream")


def _parse_object(data: bytes) -> JsonObject | None:
    try:
        return as_object(json.loads(data))
    except (ValueError, RecursionError):
        return None


def _add_to_usage(data: bytes, hidden: JsonObject) -> bytes:
    """A complete answer with the usage of hidden turns added to its own; everything else keeps its bytes."""
    try:
        body = parse_body(data, "usage")
    except BodyError:
        return data
    usage = as_object(body.value.get("usage"))
    if usage is None:
        return data
    start, end = body.spans["usage"]
    text = json.dumps(add_usage(hidden, usage), separators=(",", ":"))
    return f"{body.text[:start]}{text}{body.text[end:]}".encode()
