"""The path of a proxied request, from arrival to record: ``handle``."""

from __future__ import annotations

import asyncio
import logging
import string
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial, reduce
from urllib.parse import quote

from anyio import CancelScope, to_thread
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from memory_bank.errors import BodyError, MemoryBankError, UpstreamError
from memory_bank.models.usage import ReportedUsage
from memory_bank.service.failures import failure
from memory_bank.service.proxy.api import Dialect
from memory_bank.service.proxy.body import SEAL, Body, decompressed, in_thread_if_large, without_member
from memory_bank.service.proxy.chat import ChatDialect
from memory_bank.service.proxy.exchange import OTHER, REFUSED, Exchange, SessionRefusals
from memory_bank.service.proxy.memory_calls import answer_memory_calls
from memory_bank.service.proxy.messages import MessagesDialect
from memory_bank.service.proxy.rebuild import COMPACTION
from memory_bank.service.proxy.responses import ResponsesDialect
from memory_bank.service.proxy.send import CONTEXT_MANAGEMENT, send, without_beta
from memory_bank.service.proxy.shared import Proxy
from memory_bank.service.proxy.summaries import expand, finish_summary, own_summary
from memory_bank.service.proxy.upstream import Headers, UpstreamAnswer, credential_of, request_headers

log = logging.getLogger("memory_bank.Service")

KEPT_BYTES = 2**20
"""Bytes of an answer that are kept until it is recorded."""
DIALECTS: tuple[Dialect, ...] = (
    ChatDialect(),
    ResponsesDialect(),
    MessagesDialect(),
    ResponsesDialect("compact", "/responses/compact"),
    MessagesDialect("count_tokens", "/messages/count_tokens", counts_only=True),
    ResponsesDialect("input_tokens", "/responses/input_tokens", counts_only=True),
)
"""The model APIs that the proxy knows."""


async def handle(scope: Scope, receive: Receive, respond: Send) -> None:
    """Answer a request, until its answer is complete or one side gives up, and record it.

    The body of a model request gets the context from memory; everything else, and the answer, passes byte by
    byte. A changed request that upstream refuses is sent once as it came. If that is accepted, the session goes
    without memory for some requests (SessionRefusals); else nothing changes. See ``send``.
    """
    proxy: Proxy = scope["app"].state.service.proxy
    incoming = Request(scope, receive)
    exchange = Exchange(scope["method"], scope["state"]["caller"].namespace)
    began, gone, body_was_read = time.perf_counter(), CancelScope(), asyncio.Event()
    watcher = asyncio.create_task(_watch_client(receive, body_was_read, gone))
    try:
        with gone:
            _read_head(proxy, exchange, incoming)
            if exchange.api is OTHER:
                answer = await _pass_on(proxy, exchange, incoming, body_was_read)
            else:
                data = await incoming.body()
                body_was_read.set()
                await _read_body(proxy, exchange, incoming, data)
                await _build(proxy, exchange)
                asks_summary = exchange.reason == COMPACTION
                summary = await own_summary(proxy, exchange) if asks_summary else None
                answer = summary or await send(proxy, exchange)
                if exchange.tools or exchange.hidden:
                    answer = await answer_memory_calls(proxy, exchange, answer)
                if asks_summary:
                    answer = await finish_summary(proxy, exchange, answer)
                answer.headers += _memory_headers(exchange)
            await _relay(exchange, answer, respond)
        if gone.cancelled_caught:
            exchange.outcome = "client_gone"
    except ClientDisconnect:
        exchange.outcome = "client_gone"
    except MemoryBankError as e:
        exchange.trouble = str(e)
        if exchange.status is not None and isinstance(e, UpstreamError):
            exchange.outcome = "broken_off"  # the server closes the client's connection too
            log.warning("%s", e)
            return
        exchange.outcome = "unreachable" if isinstance(e, UpstreamError) else "refused"
        exchange.status = failure(e)[0]
        raise
    finally:
        watcher.cancel()
        exchange.seconds = time.perf_counter() - began
        if exchange.readers:
            exchange.usage = reduce(ReportedUsage.plus, (reader.report() for reader in exchange.readers))
        proxy.record(exchange)


async def _watch_client(receive: Receive, body_was_read: asyncio.Event, gone: CancelScope) -> None:
    """Cancel the work for a client that disconnects after its request was read."""
    await body_was_read.wait()
    with suppress(MemoryBankError):  # a limit of the body's size
        while (await receive())["type"] != "http.disconnect":
            pass
    gone.cancel()


async def _stream(
    exchange: Exchange, incoming: Request, body_was_read: asyncio.Event
) -> AsyncIterator[bytes]:
    """The body of a request as it arrives. Raises ClientDisconnect."""
    try:
        async for chunk in incoming.stream():
            if chunk:
                exchange.received_bytes += len(chunk)
                yield chunk
    finally:
        body_was_read.set()


def _read_head(proxy: Proxy, exchange: Exchange, incoming: Request) -> None:
    """Take the API and the headers of a request, and where it goes. Raises NotAuthorizedError."""
    scope = incoming.scope
    path = scope["path"].removeprefix("/v1")
    if scope["method"] == "POST":
        exchange.api = next((d for d in DIALECTS if d.path == path), OTHER)
    if exchange.api is not OTHER:
        exchange.provider = exchange.api.provider
    elif path.startswith("/messages/") or "anthropic-version" in incoming.headers:
        exchange.provider = "anthropic"
    key_header = b"x-api-key" if exchange.provider == "anthropic" else b"authorization"
    exchange.headers = request_headers(scope["headers"], proxy.upstreams[exchange.provider].key, key_header)
    raw: bytes = scope.get("raw_path") or b""
    raw = raw if raw.startswith(b"/v1/") else quote(scope["path"]).encode()
    exchange.path, exchange.query = raw.removeprefix(b"/v1"), scope["query_string"]


async def _pass_on(
    proxy: Proxy, exchange: Exchange, incoming: Request, body_was_read: asyncio.Event
) -> UpstreamAnswer:
    """Upstream's answer to a request that asks for no turn of a model."""
    stream = _stream(exchange, incoming, body_was_read)
    has_body = any(name in (b"content-length", b"transfer-encoding") for name, _ in incoming.headers.raw)
    body = stream if has_body else b"".join([chunk async for chunk in stream])
    upstream, headers = proxy.upstreams[exchange.provider], proxy.add_trace(exchange.headers)
    return await upstream.send(exchange.method, exchange.path, headers, body, query=exchange.query)


async def _read_body(proxy: Proxy, exchange: Exchange, incoming: Request, data: bytes) -> None:
    """Take the body of a model request. Where it cannot be edited, its reason says so."""
    exchange.received_bytes = len(data)
    exchange.client_headers, exchange.upstream_key = incoming.headers, credential_of(exchange.headers)
    dropped = {b"accept-encoding"}
    if coding := incoming.headers.get("content-encoding"):
        most = proxy.rebuilder.sessions.config.service.max_body_bytes
        plain = await to_thread.run_sync(decompressed, data, coding, most)
        if plain is not None:
            data = plain
            dropped.add(b"content-encoding")
    exchange.headers = [(n, v) for n, v in exchange.headers if n not in dropped]
    exchange.headers.append((b"accept-encoding", b"identity"))
    exchange.body = Body(data)
    exchange.memory = "passed"
    knows = exchange.api.route == "chat" or exchange.provider in proxy.rebuilder.passes
    if not knows:
        exchange.headers = without_beta(exchange.headers)

    parse = partial(proxy.cache.parse, provider=exchange.provider)
    editable = exchange.api.key, "tools", "thinking", CONTEXT_MANAGEMENT
    try:
        exchange.body = await in_thread_if_large(data, parse, data, *editable)
        has_own = SEAL in exchange.body.holds
        if has_own and (expanded := await to_thread.run_sync(expand, exchange, proxy.seals)):
            exchange.body = await in_thread_if_large(data, parse, expanded, *editable)
        if not knows and CONTEXT_MANAGEMENT in exchange.body.spans:
            exchange.body = await in_thread_if_large(data, without_member, exchange.body, CONTEXT_MANAGEMENT)
    except BodyError as e:
        exchange.passes(str(e))
    model = exchange.body.value.get("model")
    exchange.model = model if isinstance(model, str) else None
    exchange.streamed = exchange.body.value.get("stream") is True


async def _build(proxy: Proxy, exchange: Exchange) -> None:
    """Put the context from memory into a request, unless upstream has refused the last ones of its session."""
    if exchange.reason is not None:  # it cannot be edited
        return
    await proxy.rebuilder.rebuild(exchange)
    key = exchange.namespace, exchange.session, exchange.model or ""
    refusals = exchange.refusals = proxy.refusals.setdefault(key, SessionRefusals())
    if exchange.step is not None and exchange.step.changed_at is not None:
        refusals.accepted.discard("rebuilt")  # another form
    if not exchange.api.counts_only and (reason := refusals.waits()) is not None:
        tools = exchange.tools if reason == REFUSED and refusals.tools else None
        exchange.goes_as_it_came(reason)
        exchange.tools = tools


def _memory_headers(exchange: Exchange) -> Headers:
    """The headers that say what memory did."""
    session, tokens = exchange.session, exchange.tokens
    values = {
        "status": exchange.memory,
        "reason": exchange.reason,
        "session": session and quote(session, string.punctuation.replace("%", ""), errors="replace"),
        "tokens": None if tokens is None else f"{tokens}/{exchange.full_tokens}",
    }
    return [(f"x-memory-{n}".encode(), v.encode()) for n, v in values.items() if v]


async def _relay(exchange: Exchange, answer: UpstreamAnswer, respond: Send) -> None:
    """Send an answer to the client as it arrives."""
    try:
        exchange.status = answer.status
        await respond({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
        async for chunk in answer.body:
            if exchange.api is not OTHER:
                exchange.kept += chunk[: KEPT_BYTES - len(exchange.kept)]
            await respond({"type": "http.response.body", "body": chunk, "more_body": True})
        await respond({"type": "http.response.body", "body": b"", "more_body": False})
        exchange.outcome = "complete"
    finally:
        await answer.aclose()
