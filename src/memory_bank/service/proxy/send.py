"""Sends a request upstream in the first of its forms that is not refused."""

from __future__ import annotations

import logging
import re
import time
from dataclasses import dataclass

from memory_bank.errors import BodyError, UpstreamError
from memory_bank.service.proxy.api import Dialect, EventKind, error_in
from memory_bank.service.proxy.body import (
    JsonObject,
    in_thread_if_large,
    parse_object,
    render_body,
    without_member,
)
from memory_bank.service.proxy.events import EventSplitter
from memory_bank.service.proxy.exchange import (
    CACHE_MARKS_REFUSED,
    IN_VAIN,
    OUTAGES,
    REFUSED,
    REFUSED_TOO,
    THINKING_LEFT_OUT,
    TOOLS_REFUSED,
    Exchange,
    SessionRefusals,
)
from memory_bank.service.proxy.shared import Proxy
from memory_bank.service.proxy.upstream import Headers, UpstreamAnswer, UsageReader, after
from memory_bank.service.security.access import stored_id

log = logging.getLogger("memory_bank.Service")

TEMPORARY = frozenset({401, 402, 407, 408, 429, 529})
"""Statuses that say nothing of the request's contents: the client's own request would get them as well."""
NO_ANSWER = 502
"""The status of an answer that breaks off, or is none of the API, before anything of it was sent."""
MOST_BUFFERED, LONGEST_BUFFERED = 2**20, 5.0
"""Bytes and seconds at the beginning of a stream in which an error is looked for."""
# the statuses of errors within an answer with status 200, by a part of their type, code or status
_STATUSES = (
    ("overloaded", 529),
    ("capacity", 529),
    ("rate_limit", 429),
    ("too_many_requests", 429),
    ("throttl", 429),
    ("resource_exhausted", 429),
    ("quota", 429),
    ("authentication", 401),
    ("billing", 402),
    ("timeout", 408),
    ("server_error", 500),
    ("api_error", 500),
    ("internal", 500),
    ("unavailable", 503),
)
CONTEXT_MANAGEMENT = "context_management"

UNKNOWN = re.compile(
    rb"context[_-]management(?!\W{1,9}(?:edits|\d(?!\W{1,5}type)))"
    rb"|compact[_-]2026[\d_-]++(?!\W{0,4}(?:trigger|instructions|pause|:))"
)
"""Is in the refusal of an upstream that does not know the member, its compaction or a beta; not in that of a wrong
edit."""

# of anthropic-beta, those that belong to the member
_BETAS = (b"context-management-2025-06-27", b"compact-2026-01-12")

THINKING_REFUSED = frozenset({400, 422})
"""Statuses with which a provider may refuse thinking that does not fit."""
CHANGED, OWN, UNTHINKING = "as memory changed it", "as it came", "without thinking"
"""The forms of a request, in the order in which they are tried."""


@dataclass(frozen=True, slots=True)
class FailedAnswer:
    """Why a request was not answered: a status, the type and code of the error, or the connection's ``error``."""

    status: int
    kind: str
    error: UpstreamError | None = None

    def is_refusal(self, accepted: bool) -> bool:
        """Return whether the request may be the cause; ``accepted``: upstream has taken this form of it before."""
        if self.status in TEMPORARY or (self.error is not None and self.error.passing):
            return False
        return not (accepted and self.status in OUTAGES)


@dataclass(frozen=True, slots=True, eq=False)
class Attempt:
    """A request that was sent: its ``answer``, None without one, and the ``failure`` if it was not accepted."""

    answer: UpstreamAnswer | None
    failure: FailedAnswer | None = None

    def result(self) -> UpstreamAnswer:
        """The answer. Raises UpstreamError where there is none."""
        if self.answer is None:
            assert self.failure is not None
            assert self.failure.error is not None
            raise self.failure.error
        return self.answer

    async def aclose(self) -> None:
        """Release the connection."""
        if self.answer is not None:
            await self.answer.aclose()


async def send(proxy: Proxy, exchange: Exchange) -> UpstreamAnswer:
    """Upstream's answer to a request: as memory changed it, and where that is refused once as it came.

    Where that is refused, too, the client gets the answer to its own request. Thinking that an earlier rebuilt
    context led to may be the reason: without it, the request is sent once more. Raises UpstreamError.
    """
    api, refusals, memory = exchange.api, exchange.refusals, exchange.memory
    # beside its context, memory adds its tools and hidden turns
    hides, added = bool(exchange.hidden), exchange.hidden_tokens + exchange.tool_tokens * exchange.may_hide
    tokens = added + (exchange.context_tokens or 0)
    if hides or (added and not (exchange.arrays and refusals.tools)):
        reason = TOOLS_REFUSED
    else:
        reason = CACHE_MARKS_REFUSED
    if memory == "rebuilt" and not hides:
        reason = REFUSED
    with_tools = exchange.tools is not None
    data = exchange.body.data
    try:
        if exchange.arrays or exchange.tools or hides:
            data = await in_thread_if_large(data, exchange.render)
    except BodyError as e:
        if hides:
            raise UpstreamError(f"a turn of the model's API cannot be sent back to it: {e}.") from None
        exchange.goes_as_it_came(str(e))
    form = first = OWN if data == exchange.body.data else CHANGED
    attempts: dict[str, Attempt] = {}
    while True:
        if exchange.tokens is not None:
            exchange.tokens += tokens
        answer, failure, usage = None, None, UsageReader()
        headers, query = proxy.add_trace(exchange.headers), exchange.query
        try:
            answer = await proxy.upstreams[api.provider].send(
                exchange.method, exchange.path, headers, data, query=query, usage=usage
            )
            # an answer with status 200 is read until it is known to be one
            if form != first or first == CHANGED or refusals.in_vain or not 200 <= answer.status < 300:
                failure = await failure_of(answer, api, exchange.body.value)
        except UpstreamError as e:
            failure = FailedAnswer(NO_ANSWER, "no answer", e)
        last = attempts[form] = Attempt(answer if failure is None or failure.error is None else None, failure)
        if failure is None:
            break
        if form == first:
            if await _is_member_unknown(exchange, last):
                log.warning("upstream does not know context_management: it is taken out from now on")
                proxy.rebuilder.passes.discard(api.provider)
                exchange.headers = without_beta(exchange.headers)
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
        members = api.without_thinking(exchange.body.value) if thinks else None
        if members is None:
            break
        form, data, tokens = UNTHINKING, render_body(exchange.body, members), exchange.full_tokens or 0
    if last.answer is not None and last.failure is None:
        exchange.answered_tokens += tokens
        exchange.readers.append(usage)
    if form == CHANGED:
        refusals.accepts(memory, exchange.session, with_tools=with_tools, hides=hides)
        return last.result()
    told = attempts[first].failure
    refused = "" if told is None else f"{api.route}, {told.status}, {told.kind}"
    original = attempts[OWN]
    if last.failure is not None:
        refusals.fails(original.failure.status if original.failure else NO_ANSWER)
        log.info("upstream refused a request (%s), as it came, too: nothing changes", refused)
        if form == UNTHINKING:
            await last.aclose()
        if first == CHANGED and exchange.reason == reason:  # memory was not the cause
            exchange.reason = REFUSED_TOO
        return original.result()
    refusals.in_vain = 0
    if first == CHANGED and (form == OWN or memory == "rebuilt"):
        _learn_refusal(proxy, exchange, refusals, reason, refused)
    if form == UNTHINKING:
        await original.aclose()
        exchange.reason = THINKING_LEFT_OUT
    return last.result()


async def _is_member_unknown(exchange: Exchange, attempt: Attempt) -> bool:
    """Return whether upstream refused a request because it does not know ``context_management``."""
    answer, failure = attempt.answer, attempt.failure
    may_be = exchange.api.route != "chat" and not (exchange.body.removed or exchange.hidden)
    if CONTEXT_MANAGEMENT not in exchange.body.value or not may_be or answer is None or failure is None:
        return False
    return failure.status < 500 and bool(UNKNOWN.search(await answer.hold() or b""))


def _learn_refusal(
    proxy: Proxy, exchange: Exchange, refusals: SessionRefusals, reason: str, refused: str
) -> None:
    """Leave out what upstream refused of a request that it accepted as it came: memory, its tools or cache marks."""
    session = exchange.session
    if reason == CACHE_MARKS_REFUSED:
        proxy.rebuilder.refusing_marks[exchange.namespace, session] = True
        log.warning("%s (%s): session %s gets none from now on", CACHE_MARKS_REFUSED, refused, session)
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


def without_beta(headers: Headers) -> Headers:
    """The headers without the betas of ``context_management``; other betas stay."""
    remaining = [
        (n, b",".join(t for t in v.split(b",") if t.strip() not in _BETAS) if n == b"anthropic-beta" else v)
        for n, v in headers
    ]
    return [(n, v) for n, v in remaining if v.strip() or n != b"anthropic-beta"]


async def failure_of(answer: UpstreamAnswer, dialect: Dialect, request: JsonObject) -> FailedAnswer | None:
    """Why an answer is none, read until it shows something of the model; its body gives the same bytes after that."""
    try:
        if not 200 <= answer.status < 300:
            value = parse_object(await answer.hold() or b"")
            return FailedAnswer(answer.status, _kind(error_in(value) or {}))
        if not answer.is_readable:
            return None
        json_type = answer.kind.startswith(b"application/json")
        if answer.is_stream or (request.get("stream") is True and not json_type):
            value, has_begun = await _first_event(answer, dialect, request)
        else:
            data = await answer.hold()
            value = parse_object(data or b"")
            has_begun = data is None or dialect.answer_key in value
    except UpstreamError as e:
        return FailedAnswer(NO_ANSWER, "broken off", e)
    if (error := error_in(value)) is not None:
        return FailedAnswer(_status(error), _kind(error))
    return None if has_begun else FailedAnswer(NO_ANSWER, "no answer")


async def _first_event(
    answer: UpstreamAnswer, dialect: Dialect, request: JsonObject
) -> tuple[JsonObject, bool]:
    """The first event of a stream that shows something of the model, or an error; whether there is one."""
    body, splitter, reader = answer.body, EventSplitter(), dialect.open_stream(request)
    buffered, until = bytearray(), time.monotonic() + LONGEST_BUFFERED

    def event_in(chunk: bytes) -> JsonObject | None:
        events = splitter.feed(chunk) if chunk else splitter.close()
        for value in (e.value for e in events if e.value is not None):
            if error_in(value) is not None or reader.read(value) is not EventKind.SILENT:
                return value
        return None

    value, passes = None, False
    try:
        async for chunk in body:
            buffered += chunk
            passes = len(buffered) > MOST_BUFFERED or time.monotonic() > until
            if (value := event_in(chunk)) is not None or passes:
                break
        else:
            value = event_in(b"")
    except BaseException:
        await answer.aclose()
        raise
    answer.body = after(bytes(buffered), body)
    return value or {}, value is not None or passes


def _status(error: JsonObject) -> int:
    """The status of an error within an answer with status 200; 400 where it names none."""
    for code in (error.get("code"), error.get("status")):
        if re.fullmatch(r"[45]\d\d", str(code)):
            return int(str(code))
    names = f"{error.get('type')} {error.get('code')} {error.get('status')}".lower()
    return next((status for part, status in _STATUSES if part in names), 400)


def _kind(error: JsonObject) -> str:
    """The type and code of an error where they are plain names."""
    names = [str(error.get(k) or "") for k in ("type", "code")]
    return "/".join(n for n in names if re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", n)) or "no type"
