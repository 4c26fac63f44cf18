"""Answers to the client: calls of memory tools that it does not know are answered here, what is ours is put in."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import anyio
from anyio import to_thread

from memory_bank.errors import BodyError, MemoryBankError, UpstreamError
from memory_bank.models.usage import add_usage
from memory_bank.service.proxy.answers import (
    ModelToolCall,
    ModelTurn,
    TurnStream,
    as_object,
    parse_object,
    read_events,
)
from memory_bank.service.proxy.body import JsonObject, with_members
from memory_bank.service.proxy.rebuild import ModelRequest
from memory_bank.service.proxy.upstream import UpstreamAnswer, after
from memory_bank.service.sessions import Sessions, count_once
from memory_bank.service.threads import in_thread_if_large, limiter
from memory_bank.tools import MAX_CHARS, ToolAnswer, answer_tool_call
from memory_bank.tools.handlers import NOTHING_STORED
from memory_bank.transcript.jsontext import compact
from memory_bank.transcript.tokens import open_counter

log = logging.getLogger("memory_bank.Service")

ROUNDS = 8
"""Hidden turns of one request; after them the memory tools are no longer offered."""
LEAST_CHARS = 2_000
"""Characters that each of many calls in one turn may return at least."""
NOT_YET = (
    "Not executed yet: in this turn only the memory tools were answered. Make this call again if it is still "
    "needed."
)
"""The result of a client's tool that was called in one turn with memory tools."""

T = TypeVar("T")
SendUpstream = Callable[[bytes, int], Awaitable[UpstreamAnswer]]
"""Sends a body upstream and returns the answer; if upstream refuses the body, sends another form of the request.

The number: tokens of the body besides memory's context, those of added tools and hidden turns."""


class _AnsweredInsteadError(Exception):
    """Upstream answered a later turn with an error before anything was sent to the client."""


async def read_memory(work: Callable[[], T], timeout: float) -> T:
    """What work in a thread of the tools returns. Raises what it raises, and TimeoutError after so many seconds."""
    with anyio.fail_after(timeout):
        return await to_thread.run_sync(work, abandon_on_cancel=True, limiter=limiter("tools"))


@dataclass(eq=False)
class Injection:
    """Answers a model request; where its memory has ``tools``, these are offered and their calls answered.

    A turn that calls them is answered here and upstream is asked again, with the turn and its results appended to
    the request; the client sees only the last turn, and what was streamed before such a call. Calls of the client's
    own tools in a hidden turn get the result ``NOT_YET``, so every call has a result and nothing has to be
    stored. ``timeout``: seconds for the calls of one turn.
    """

    sessions: Sessions
    timeout: float
    request: ModelRequest
    send: SendUpstream
    hidden: list[object] = field(default_factory=list)  # turns and results, appended to the request
    hidden_tokens: int = 0
    tool_tokens: int = 0
    rounds: int = 0
    fetched: int = 0

    @property
    def tools(self) -> list[object] | None:
        """The request's tools with those of memory; None where these are not offered, or no longer."""
        return self.request.memory.tools

    async def answer(self) -> UpstreamAnswer:
        """The answer for the client; every other answer is closed."""
        request, usage = self.request, JsonObject()
        if self.tools is not None:
            step = request.memory.step
            self.counter = open_counter() if step is None else step.counter
            added = self.tools[len(request.value.get("tools") or ()) :]
            self.tool_tokens = count_once(self.counter.count_text, compact(added))
        while True:
            answer = await self._ask()
            if not (self.tools or self.hidden):
                return answer
            if answer.is_stream:
                answer = await self._stream(answer, usage)
            elif answer.is_readable and (data := await answer.hold()) is not None:
                given = parse_object(data)
                turn = request.dialect.read_answer(given, request.value)
                if self._may_hide() and turn.calls_memory:
                    usage = add_usage(usage, turn.usage)
                    await self._hide(turn)
                    continue
                if own := as_object(given.get("usage")) if usage else {}:
                    answer.replace_body(with_members(data, {"usage": add_usage(usage, own)}))
            if self.fetched:
                answer.headers = [*answer.headers, (b"x-memory-fetched", str(self.fetched).encode())]
            return answer

    def _may_hide(self) -> bool:
        """Whether another turn may be hidden."""
        return self.tools is not None and self.rounds < ROUNDS

    async def _ask(self) -> UpstreamAnswer:
        """Upstream's answer to the request with the hidden turns so far."""
        request, may_hide = self.request, self._may_hide()
        arrays: dict[str, Sequence[object]] = {"tools": self.tools} if may_hide and self.tools else {}
        if self.hidden:
            key = request.dialect.key
            arrays[key] = [*request.memory.arrays.get(key, request.value.get(key) or ()), *self.hidden]
        try:
            body = await in_thread_if_large(request.body.data, request.render, arrays)
        except BodyError as e:
            raise UpstreamError(f"a turn of the model's API cannot be sent back to it: {e}.") from None
        return await self.send(body, self.hidden_tokens + (self.tool_tokens if may_hide else 0))

    async def _hide(self, turn: ModelTurn) -> None:
        """Answer the calls of a turn that the client does not get."""
        answers = await self._call_tools(turn.calls)
        results = [self.request.dialect.result(c, a) for c, a in zip(turn.calls, answers, strict=True)]
        self.hidden += [*turn.messages, *(r for r in results if r is not None)]
        said = [{"role": "tool", "content": a.text} for a, r in zip(answers, results, strict=True) if r]
        count = self.counter.count_message
        self.hidden_tokens += await to_thread.run_sync(lambda: sum(map(count, [*turn.messages, *said])))
        self.rounds += 1
        self.fetched += sum(call.is_memory for call in turn.calls)

    async def _call_tools(self, calls: Sequence[ModelToolCall]) -> list[ToolAnswer]:
        """The results of the calls of a turn, in their order."""
        namespace, session = self.request.caller.namespace, self.request.memory.session
        if session is None:
            return [ToolAnswer(NOTHING_STORED if call.is_memory else NOT_YET) for call in calls]
        room = max(LEAST_CHARS, MAX_CHARS // max(1, sum(call.is_memory for call in calls)))

        def read() -> list[ToolAnswer]:
            with self.sessions.reading(namespace, session) as state:
                asked = partial(answer_tool_call, state, max_chars=room)
                return [
                    asked(str(c.name), c.arguments) if c.is_memory else ToolAnswer(NOT_YET) for c in calls
                ]

        try:
            return await read_memory(read, self.timeout)
        except MemoryBankError as e:
            kind, trouble = type(e).__name__, f"The memory could not be read: {e}"
        except TimeoutError:
            kind, trouble = f"no answer in {self.timeout:g} s", "The memory did not answer in time."
        log.warning("memory could not be read for a call of its tools: %s", kind)
        return [ToolAnswer(trouble if call.is_memory else NOT_YET) for call in calls]

    async def _stream(self, answer: UpstreamAnswer, usage: JsonObject) -> UpstreamAnswer:
        """The answer as a stream, once its first bytes are there."""
        joined = self.request.dialect.open_stream(self.request.value, usage=usage)
        self.read = answer  # the answer of the present turn
        pieces = self._join(joined)

        async def close() -> None:
            with anyio.CancelScope(shield=True):
                await pieces.aclose()

        try:
            first = await anext(pieces, b"")
        except _AnsweredInsteadError:
            return self.read
        except BaseException:
            await close()
            raise
        joint = UpstreamAnswer(self.read.status, self.read.headers, pieces, close)
        joint.replace_body(after(first, pieces))
        return joint

    async def _join(self, joined: TurnStream) -> AsyncGenerator[bytes, None]:
        """The bytes of all turns as one stream."""
        while True:
            joined.hides = self._may_hide()
            try:
                try:
                    async for events in read_events(self.read.body):
                        if out := b"".join(map(joined.feed, events)):
                            yield out
                except UpstreamError:
                    if out := joined.break_off():
                        yield out
                    raise
            finally:
                await self.read.aclose()
            last, turn = joined.end(joined.hides)
            if last:
                yield last
            if turn is None:
                return
            await self._hide(turn)
            self.read = await self._ask()
            if not self.read.is_stream:
                if not joined.has_sent:
                    raise _AnsweredInsteadError
                await self.read.aclose()
                raise UpstreamError(
                    f"the model's API answered the request after a memory call with status {self.read.status}, "
                    "when a part of the answer had been sent."
                )
