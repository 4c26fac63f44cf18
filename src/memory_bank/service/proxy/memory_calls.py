"""Calls of memory tools that a client does not know: they are answered here, and the client does not see them."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from typing import TypeVar

import anyio
from anyio import to_thread

from memory_bank.bank.lineage import Offer
from memory_bank.errors import MemoryBankError, UpstreamError
from memory_bank.models.usage import add_usage
from memory_bank.service.proxy.api import ModelToolCall, ModelTurn, TurnStream
from memory_bank.service.proxy.body import JsonObject, as_object, parse_object, with_members
from memory_bank.service.proxy.events import read_events
from memory_bank.service.proxy.exchange import Exchange
from memory_bank.service.proxy.send import send
from memory_bank.service.proxy.shared import Proxy
from memory_bank.service.proxy.upstream import UpstreamAnswer, after
from memory_bank.service.threads import limiter
from memory_bank.tools import MAX_CHARS, ToolAnswer, answer_tool_call
from memory_bank.tools.handlers import NOTHING_STORED

log = logging.getLogger("memory_bank.Service")

LEAST_CHARS = 2_000
"""Characters that each of many calls in one turn may return at least."""
NOT_YET = (
    "Not executed yet: in this turn only the memory tools were answered. Make this call again if it is still "
    "needed."
)
"""The result of a client's tool that was called in one turn with memory tools."""

T = TypeVar("T")


class _AnsweredInsteadError(Exception):
    """Upstream answered a later turn with an error before anything was sent to the client."""


async def read_memory(work: Callable[[], T], timeout: float) -> T:
    """The result of work in a thread of the tools. Raises what it raises, and TimeoutError after so many seconds."""
    with anyio.fail_after(timeout):
        return await to_thread.run_sync(work, abandon_on_cancel=True, limiter=limiter("tools"))


async def answer_memory_calls(proxy: Proxy, exchange: Exchange, answer: UpstreamAnswer) -> UpstreamAnswer:
    """The first answer without calls of memory tools; every other one is closed.

    A turn that calls them is answered here and upstream is asked again, with the turn and its results appended to
    the request; the client sees only the last turn, and what was streamed before such a call. Calls of the client's
    own tools in a hidden turn get the result ``NOT_YET``, so every call has a result and nothing has to be stored.
    """
    usage = JsonObject()
    while exchange.tools or exchange.hidden:
        if answer.is_stream:
            answer = await _joined(proxy, exchange, answer, usage)
        elif answer.is_readable and (data := await answer.hold()) is not None:
            value = parse_object(data)
            turn = exchange.api.read_answer(value, exchange.body.value)
            if exchange.may_hide and turn.calls_memory:
                usage = add_usage(usage, turn.usage)
                await _hide(proxy, exchange, turn)
                answer = await send(proxy, exchange)
                continue
            if own_usage := as_object(value.get("usage")) if usage else {}:
                answer.replace_body(with_members(data, {"usage": add_usage(usage, own_usage)}))
        if exchange.fetched:
            answer.headers = [*answer.headers, (b"x-memory-fetched", str(exchange.fetched).encode())]
        break
    return answer


async def _hide(proxy: Proxy, exchange: Exchange, turn: ModelTurn) -> None:
    """Answer the calls of a turn that the client does not get."""
    answers = await _call_tools(proxy, exchange, turn.calls)
    results = [exchange.api.result(c, a) for c, a in zip(turn.calls, answers, strict=True)]
    exchange.hidden += [*turn.messages, *exchange.api.join_results([r for r in results if r is not None])]
    messages = [{"role": "tool", "content": a.text} for a, r in zip(answers, results, strict=True) if r]
    count = exchange.counter.count_message
    exchange.hidden_tokens += await to_thread.run_sync(lambda: sum(map(count, [*turn.messages, *messages])))
    exchange.rounds += 1
    exchange.fetched += sum(call.is_memory for call in turn.calls)


async def _call_tools(proxy: Proxy, exchange: Exchange, calls: Sequence[ModelToolCall]) -> list[ToolAnswer]:
    """The results of the calls of a turn, in their order."""
    memory, session = proxy.rebuilder, exchange.session
    if session is None:
        return [ToolAnswer(NOTHING_STORED if call.is_memory else NOT_YET) for call in calls]
    room = max(LEAST_CHARS, MAX_CHARS // max(1, sum(call.is_memory for call in calls)))

    def read() -> list[ToolAnswer]:
        with memory.sessions.reading(exchange.namespace, session) as state:
            is_told = memory.identity.lineage.offer(state.session_id) is Offer.EARLIER
            if is_told and state.settings.scope == "auto":
                state.prepare(state.settings.model_copy(update={"scope": "project"}))
            asked = partial(answer_tool_call, state, max_chars=room)
            return [asked(str(c.name), c.arguments) if c.is_memory else ToolAnswer(NOT_YET) for c in calls]

    try:
        return await read_memory(read, memory.timeout)
    except MemoryBankError as e:
        kind, trouble = type(e).__name__, f"The memory could not be read: {e}"
    except TimeoutError:
        kind, trouble = f"no answer in {memory.timeout:g} s", "The memory did not answer in time."
    log.warning("memory could not be read for a call of its tools: %s", kind)
    return [ToolAnswer(trouble if call.is_memory else NOT_YET) for call in calls]


async def _joined(
    proxy: Proxy, exchange: Exchange, answer: UpstreamAnswer, usage: JsonObject
) -> UpstreamAnswer:
    """The streamed answers of all turns as one, once its first bytes are there."""
    turns = [answer]  # the last is that of the present turn
    pieces = _join(proxy, exchange, exchange.api.open_stream(exchange.body.value, usage=usage), turns)

    async def close() -> None:
        with anyio.CancelScope(shield=True):
            await pieces.aclose()

    try:
        first = await anext(pieces, b"")
    except _AnsweredInsteadError:
        return turns[-1]
    except BaseException:
        await close()
        raise
    joint = UpstreamAnswer(turns[-1].status, turns[-1].headers, pieces, close)
    joint.replace_body(after(first, pieces))
    return joint


async def _join(
    proxy: Proxy, exchange: Exchange, joined: TurnStream, turns: list[UpstreamAnswer]
) -> AsyncGenerator[bytes, None]:
    """The bytes of all turns as one stream."""
    while True:
        answer, joined.hides = turns[-1], exchange.may_hide
        try:
            try:
                async for events in read_events(answer.body):
                    if out := b"".join(map(joined.feed, events)):
                        yield out
            except UpstreamError:
                if out := joined.break_off():
                    yield out
                raise
        finally:
            await answer.aclose()
        last, turn = joined.end(joined.hides)
        if last:
            yield last
        if turn is None:
            return
        await _hide(proxy, exchange, turn)
        turns.append(answer := await send(proxy, exchange))
        if not answer.is_stream:
            if not joined.has_sent:
                raise _AnsweredInsteadError
            await answer.aclose()
            raise UpstreamError(
                f"the model's API answered the request after a memory call with status {answer.status}, "
                "when a part of the answer had been sent."
            )
