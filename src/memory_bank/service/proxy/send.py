"""Sends a request upstream in the first of its forms that is not refused."""

from __future__ import annotations

import logging

from memory_bank.errors import BodyError, UpstreamError
from memory_bank.service.proxy import clearing
from memory_bank.service.proxy.body import render_body, without_member
from memory_bank.service.proxy.clearing import CONTEXT_MANAGEMENT
from memory_bank.service.proxy.exchange import Exchange
from memory_bank.service.proxy.refusals import (
    IN_VAIN,
    MARKS_REFUSED,
    NO_ANSWER,
    REFUSED,
    REFUSED_TOO,
    THINKING_LEFT_OUT,
    TOOLS_REFUSED,
    Attempt,
    FailedAnswer,
    SessionRefusals,
    failure_of,
)
from memory_bank.service.proxy.shared import Proxy
from memory_bank.service.proxy.upstream import UpstreamAnswer, UsageReader
from memory_bank.service.security.access import stored_id
from memory_bank.service.threads import in_thread_if_large

log = logging.getLogger("memory_bank.Service")

THINKING_REFUSED = frozenset({400, 422})
"""Statuses with which a provider may refuse thinking that does not fit."""
CHANGED, OWN, UNTHINKING = "as memory changed it", "as it came", "without thinking"
"""The forms of a request, in the order in which they are tried."""


async def send(proxy: Proxy, exchange: Exchange) -> UpstreamAnswer:
    """Upstream's answer to a request: as memory changed it, and where that is refused once as it came.

    Where that is refused, too, the client gets the answer to its own request. Thinking that an earlier rebuilt
    context led to may be the reason: without it, the request is sent once more. Raises UpstreamError.
    """
    api, refusals, memory = exchange.api, proxy.refusals_of(exchange), exchange.memory
    hides, tokens = bool(exchange.hidden), exchange.added_tokens + (exchange.context_tokens or 0)
    if hides or (exchange.added_tokens and not (exchange.arrays and refusals.tools)):
        reason = TOOLS_REFUSED
    else:
        reason = MARKS_REFUSED
    if memory == "rebuilt" and not hides:
        reason = REFUSED
    with_tools = exchange.tools is not None
    try:
        data = await in_thread_if_large(exchange.body.data, exchange.render)
    except BodyError as e:
        if hides:
            raise UpstreamError(f"a turn of the model's API cannot be sent back to it: {e}.") from None
        exchange.goes_as_it_came(str(e))
        data = exchange.body.data
    form = first = OWN if data == exchange.body.data else CHANGED
    attempts: dict[str, Attempt] = {}
    while True:
        if exchange.tokens is not None:
            exchange.tokens += tokens
        answer, failure = None, None
        try:
            answer = await proxy.upstreams[api.provider].send(
                exchange.method, exchange.path, proxy.add_trace(exchange.headers), data, query=exchange.query
            )
            # an answer with status 200 is read until it is known to be one
            if form != first or first == CHANGED or refusals.in_vain or not 200 <= answer.status < 300:
                failure = await failure_of(answer, api, exchange.value)
        except UpstreamError as e:
            failure = FailedAnswer(NO_ANSWER, "no answer", e)
        last = attempts[form] = Attempt(answer if failure is None or failure.error is None else None, failure)
        if failure is None:
            break
        if form == first:
            if await _is_member_unknown(exchange, last):
                log.warning("upstream does not know context_management: it is taken out from now on")
                proxy.rebuilder.passes.discard(api.provider)
                exchange.headers = clearing.without_beta(exchange.headers)
                exchange.body = without_member(exchange.body, CONTEXT_MANAGEMENT)
                data = await in_thread_if_large(exchange.body.data, exchange.render)
                continue
            if not failure.is_refusal(memory in refusals.accepted and not hides):
                return last.result()
        if form == CHANGED:
            await last.aclose()
            exchange.goes_as_it_came(reason)
            form, data, tokens = OWN, exchange.body.data, exchange.full_tokens or 0
            continue
        thinks = form == OWN and failure.status in THINKING_REFUSED and refusals.in_vain < IN_VAIN
        members = api.without_thinking(exchange.value) if thinks else None
        if members is None:
            break
        form, data, tokens = UNTHINKING, render_body(exchange.body, members), exchange.full_tokens or 0
    if last.answer is not None and last.failure is None:
        exchange.answered_tokens += tokens
        exchange.readers.append(reader := UsageReader(is_readable=last.answer.is_readable))
        last.answer.body = reader.reading(last.answer.body)
    if form == CHANGED:
        refusals.accepts(memory, exchange.session, with_tools=with_tools, hides=hides)
        return last.result()
    told = attempts[first].failure
    refused = "" if told is None else f"{api.route}, {told.status}, {told.kind}"
    own = attempts[OWN]
    if last.failure is not None:
        refusals.fails(own.failure)
        log.info("upstream refused a request (%s), as it came, too: nothing changes", refused)
        if form == UNTHINKING:
            await last.aclose()
        if first == CHANGED and exchange.reason == reason:  # memory was not the cause
            exchange.reason = REFUSED_TOO
        return own.result()
    refusals.in_vain = 0
    if first == CHANGED and (form == OWN or memory == "rebuilt"):
        _note_refusal(proxy, exchange, refusals, reason, refused)
    if form == UNTHINKING:
        await own.aclose()
        exchange.reason = THINKING_LEFT_OUT
    return last.result()


async def _is_member_unknown(exchange: Exchange, attempt: Attempt) -> bool:
    """Whether upstream refused a request because it does not know ``context_management``."""
    answer, failure = attempt.answer, attempt.failure
    may_be = exchange.route != "chat" and not (exchange.body.removed or exchange.hidden)
    if CONTEXT_MANAGEMENT not in exchange.value or not may_be or answer is None or failure is None:
        return False
    return failure.status < 500 and bool(clearing.UNKNOWN.search(await answer.hold() or b""))


def _note_refusal(
    proxy: Proxy, exchange: Exchange, refusals: SessionRefusals, reason: str, refused: str
) -> None:
    """Note that upstream refused a request that memory changed, and accepted it as it came."""
    session = exchange.session
    if reason == MARKS_REFUSED:
        proxy.rebuilder.unmarked[exchange.namespace, session] = True
        log.warning("%s (%s): session %s gets none from now on", MARKS_REFUSED, refused, session)
    elif session is None:  # a conversation that has not begun: only the tools were added
        refusals.tools = False
        refusals.pauses()
        log.warning("%s (%s): %d new conversations begin without", TOOLS_REFUSED, refused, refusals.pause)
    elif reason == TOOLS_REFUSED:
        proxy.rebuilder.untooled[stored_id(exchange.namespace, session)] = True
        log.warning("%s (%s): session %s gets none from now on", TOOLS_REFUSED, refused, session)
    else:
        refusals.pauses()
        log.warning(
            "%s (%s), not the request as it came: session %s goes without memory for %d requests",
            REFUSED,
            refused,
            session,
            refusals.pause,
        )
