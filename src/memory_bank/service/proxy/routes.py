"""The proxy as an ASGI application: model requests are sent with a rebuilt context, others unchanged."""

from __future__ import annotations

import asyncio
import logging
import string
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Literal
from urllib.parse import quote

from anyio import CancelScope, to_thread
from cachetools import LRUCache
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from memory_bank.errors import BodyError, MemoryBankError, UpstreamError
from memory_bank.models.usage import NO_USAGE, ReportedUsage
from memory_bank.service.failures import failure
from memory_bank.service.proxy import clearing
from memory_bank.service.proxy.body import (
    Body,
    MessageCache,
    decompressed,
    parse_body,
    render_body,
    without_member,
)
from memory_bank.service.proxy.clearing import CONTEXT_MANAGEMENT
from memory_bank.service.proxy.compaction import Compaction, Seals, expand
from memory_bank.service.proxy.dialects import DIALECTS, Dialect, Provider
from memory_bank.service.proxy.injection import Injection
from memory_bank.service.proxy.rebuild import (
    MemoryResult,
    ModelRequest,
    Rebuilder,
)
from memory_bank.service.proxy.refusals import (
    IN_VAIN,
    MARKS_REFUSED,
    MOST_SESSIONS,
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
from memory_bank.service.proxy.upstream import (
    Headers,
    Upstream,
    UpstreamAnswer,
    UsageReader,
    credential_of,
    request_headers,
)
from memory_bank.service.security.access import caller_of, stored_id
from memory_bank.service.sessions import Rebuilt
from memory_bank.service.threads import in_thread_if_large

log = logging.getLogger("memory_bank.Service")

THINKING_REFUSED = frozenset({400, 422})
"""Statuses with which a provider may refuse thinking that does not fit."""
KEPT_BYTES = 2**20
"""Bytes of an answer that are kept until it is recorded."""


@dataclass(slots=True)
class Exchange:
    """What is recorded of one request and its answer, filled in until that ends: no keys, no contents but ``kept``.

    ``route``: a dialect's, or "other" for what only passes. ``outcome``: upstream has ``broken_off`` its answer or is
    ``unreachable``, the service has ``refused`` the request, or has ended or failed (``aborted``).
    ``seconds``: until the last byte of the answer's body.
    ``memory``: rebuilt, unchanged, passed or failed, "" for route "other", with its ``reason``;
    ``tokens`` of all that was sent upstream and ``full_tokens`` of the request as it came, tools included, as memory
    counts them; ``answered_tokens`` of what upstream did not refuse, and ``usage`` of the answers to that, hidden
    turns included. ``step`` is the step that the request is recorded as. ``kept``: the beginning of the answer, in
    the form of ``dialect``. ``trouble``: why there is no answer, or only a part of one.
    """

    method: str
    route: str = "other"
    outcome: Literal["complete", "client_gone", "broken_off", "unreachable", "refused", "aborted"] = "aborted"
    status: int | None = None
    seconds: float = 0.0
    model: str | None = None
    streamed: bool = False
    namespace: str | None = None
    session: str | None = None
    memory: str = ""
    reason: str | None = None
    tokens: int | None = None
    full_tokens: int | None = None
    answered_tokens: int = 0
    usage: ReportedUsage = NO_USAGE
    received_bytes: int = 0
    step: Rebuilt | None = field(default=None, repr=False)
    dialect: Dialect | None = field(default=None, repr=False)
    kept: bytearray = field(default_factory=bytearray, repr=False)
    trouble: str | None = field(default=None, repr=False)


@dataclass(slots=True, eq=False)
class Proxy:
    """An ASGI application for all paths under ``/v1`` that are not the service's own.

    The body of a model request gets the context from memory; everything else, and the answer, passes byte by
    byte. A changed request that upstream refuses is sent once as it came. If that is accepted, the session goes
    without memory for some requests (SessionRefusals); else nothing changes. See ``_send_form``.

    ``upstreams`` are the model APIs by provider. ``cache`` keeps parsed messages, ``seals`` makes what
    compaction items hold, ``add_trace`` adds trace headers to
    a request for upstream, ``record`` is called with every finished exchange.
    """

    upstreams: Mapping[Provider, Upstream]
    rebuilder: Rebuilder
    cache: MessageCache
    seals: Seals
    add_trace: Callable[[Headers], Headers]
    record: Callable[[Exchange], None]
    refusals: LRUCache[tuple[str | None, str | None, str], SessionRefusals] = field(
        default_factory=lambda: LRUCache(MOST_SESSIONS)
    )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _ProxiedRequest(self, scope, receive, send).run()


class _MemberUnknownError(Exception):
    """Upstream has refused a request because it does not know ``context_management``."""


class _ProxiedRequest:
    """One request: read, sent upstream, answered."""

    def __init__(self, proxy: Proxy, scope: Scope, receive: Receive, send: Send) -> None:
        self.proxy = proxy
        self.scope = scope
        self.receive = receive
        self.send = send
        self.incoming = Request(scope, receive)
        self.caller = caller_of(self.incoming)
        self.exchange = Exchange(scope["method"], namespace=self.caller.namespace)
        self.request: ModelRequest | None = None
        self.sent_tokens = 0
        self.body_was_read = asyncio.Event()
        self.usages: list[UsageReader] = []  # of the answers that upstream did not refuse

    async def run(self) -> None:
        """Handle the request until its answer is complete, or until one side gives up."""
        began = time.perf_counter()
        exchange = self.exchange
        gone = CancelScope()
        watcher = asyncio.create_task(self._watch_client(gone))
        try:
            with gone:
                await self._handle()
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
            if self.request is not None:
                self._fill_in(self.request)
            self.proxy.record(exchange)
            vars(self).clear()  # cycles keep less until they are collected

    def _fill_in(self, request: ModelRequest) -> None:
        """Note what memory did for a model request, and the usage of its answer."""
        exchange, memory = self.exchange, request.memory
        named = isinstance(request.value.get("model"), str)
        exchange.model = self.proxy.rebuilder.sessions.redacted_text(request.model) if named else None
        exchange.streamed = request.value.get("stream") is True
        exchange.session, exchange.step, exchange.dialect = memory.session, memory.step, request.dialect
        exchange.memory, exchange.reason = memory.status, memory.reason
        exchange.tokens = None if memory.tokens is None else self.sent_tokens
        exchange.full_tokens = memory.full_tokens
        if self.usages:
            exchange.usage = reduce(ReportedUsage.plus, (reader.report() for reader in self.usages))

    async def _watch_client(self, scope: CancelScope) -> None:
        """Cancel the work for a client that disconnects after its request was read."""
        await self.body_was_read.wait()
        with suppress(MemoryBankError):  # a limit of the body's size
            while (await self.receive())["type"] != "http.disconnect":
                pass
        scope.cancel()

    async def _handle(self) -> None:
        path, dialect = self.scope["path"].removeprefix("/v1"), None
        if self.scope["method"] == "POST":
            dialect = next((d for d in DIALECTS if d.path == path), None)
        provider: Provider = "openai"
        if dialect is not None:
            provider, self.exchange.route = dialect.provider, dialect.route
        elif path.startswith("/messages/") or "anthropic-version" in self.incoming.headers:
            provider = "anthropic"
        self.upstream = self.proxy.upstreams[provider]
        key_header = b"x-api-key" if provider == "anthropic" else b"authorization"
        headers = request_headers(self.scope["headers"], self.upstream.key, key_header)
        if dialect is None:
            body: bytes | AsyncIterator[bytes] = b""
            if any(name in (b"content-length", b"transfer-encoding") for name, _ in self.scope["headers"]):
                body = self._stream()
            else:
                self.body_was_read.set()
            await self._relay(await self._send_upstream(headers, body), [])
            return
        data = b"".join([chunk async for chunk in self._stream()])
        if coding := self.incoming.headers.get("content-encoding"):
            most = self.proxy.rebuilder.sessions.config.service.max_body_bytes
            plain = await in_thread_if_large(data, decompressed, data, coding, most)
            if plain is not None:
                data, headers = plain, [(n, v) for n, v in headers if n != b"content-encoding"]
        await self._rebuild(dialect, data, credential_of(headers))
        assert self.request is not None
        headers = [(n, v) for n, v in headers if n != b"accept-encoding"]
        headers.append((b"accept-encoding", b"identity"))
        try:
            answer = await self._answer(self.request, headers)
        except _MemberUnknownError:
            log.warning("upstream does not know context_management: it is taken out from now on")
            request, arrays = self.request, self.request.memory.arrays
            self.proxy.rebuilder.passes.discard(provider)
            request.body = without_member(request.body, CONTEXT_MANAGEMENT)
            written = await in_thread_if_large(data, render_body, request.body, arrays) if arrays else None
            request.memory = replace(request.memory, data=written)
            answer = await self._answer(request, headers)
        memory, safe = self.request.memory, string.punctuation.replace("%", "")
        values = {
            "status": memory.status,
            "reason": memory.reason,
            "session": None if memory.session is None else quote(memory.session, safe=safe),
            "tokens": None if memory.tokens is None else f"{self.sent_tokens}/{memory.full_tokens}",
        }
        await self._relay(answer, [(f"x-memory-{n}".encode(), v.encode()) for n, v in values.items() if v])

    async def _answer(self, request: ModelRequest, headers: Headers) -> UpstreamAnswer:
        """The answer to a model request."""
        rebuilder, dialect = self.proxy.rebuilder, request.dialect
        if dialect.route != "chat" and dialect.provider not in rebuilder.passes:
            headers = clearing.without_beta(headers)
        send = partial(self._send_form, request, headers)
        compaction = Compaction(rebuilder, self.proxy.seals, request, send)
        self.injection = Injection(rebuilder.sessions, rebuilder.timeout, request, compaction.answer)
        return await self.injection.answer()

    async def _rebuild(self, dialect: Dialect, data: bytes, key: str | None) -> None:
        """Set the request with its context from memory, in the form in which upstream gets it first."""
        request = self.request = ModelRequest(dialect, self.caller, Body(data), self.incoming.headers, key)
        try:
            request.body = await in_thread_if_large(data, self._parsed, request, data)
            expanded = await to_thread.run_sync(expand, request, self.proxy.seals)
            if expanded is not None:
                request.body = await in_thread_if_large(data, self._parsed, request, expanded)
        except BodyError as e:
            request.memory = MemoryResult("passed", str(e))
            return
        memory = request.memory = await self.proxy.rebuilder.rebuild(request)
        refusals = self._refusals(request)
        if memory.step is not None and memory.step.changed_at is not None:
            refusals.accepted.discard("rebuilt")  # another form
        if not dialect.counts_only and (reason := refusals.waits()) is not None:
            tools = memory.tools if reason == REFUSED and refusals.tools else None
            request.memory = replace(_as_it_came(request, reason), tools=tools)

    def _parsed(self, request: ModelRequest, data: bytes) -> Body:
        """A body of the request, without the member that upstream does not know."""
        dialect = request.dialect
        body = parse_body(data, dialect.key, "tools", "thinking", CONTEXT_MANAGEMENT)
        if dialect.route != "chat" and dialect.provider not in self.proxy.rebuilder.passes:
            body = without_member(body, CONTEXT_MANAGEMENT)
        return self.proxy.cache.intern(body, dialect.key)

    async def _send_form(
        self, request: ModelRequest, headers: Headers, body: bytes, more: int
    ) -> UpstreamAnswer:
        """Upstream's answer to a body; one that memory changed and upstream refuses is sent once as it came.

        Where that is refused, too, the client gets the answer to its own request. Thinking that an earlier rebuilt
        context led to may be the reason: without it, the request is sent once more.
        """
        memory, refusals = request.memory, self._refusals(request)
        is_own, hides = body == request.body.data, bool(self.injection.hidden)
        reads = not is_own or refusals.in_vain > 0
        first = await self._attempt(request, headers, body, more + (memory.tokens or 0), reads=reads)
        if first.failure is None:
            refusals.in_vain = 0
            if not is_own:
                self._accepted(refusals, memory, hides)
            return first.result()
        may_not_know = request.dialect.route != "chat" and not (request.body.removed or hides)
        if CONTEXT_MANAGEMENT in request.value and may_not_know:
            said = (
                await first.answer.hold() if first.answer is not None and first.failure.status < 500 else None
            )
            if clearing.UNKNOWN.search(said or b""):
                raise _MemberUnknownError
        if not first.failure.is_refusal(memory.status in refusals.accepted and not hides):
            return first.result()
        own, last = first, first
        is_rebuilt = memory.status == "rebuilt" and not hides
        by_tools = hides or (more and not (memory.arrays and refusals.tools))
        reason = REFUSED if is_rebuilt else TOOLS_REFUSED if by_tools else MARKS_REFUSED
        if not is_own:
            await first.aclose()
            request.memory = _as_it_came(request, reason)
            own = last = await self._attempt(request, headers, request.body.data, memory.full_tokens or 0)
        members = request.dialect.without_thinking(request.value) if _may_be_thinking(own, refusals) else None
        if members is not None:
            data = render_body(request.body, members)
            last = await self._attempt(request, headers, data, memory.full_tokens or 0)
        refused = f"{request.dialect.route}, {first.failure.status}, {first.failure.kind}"
        if last.failure is not None:
            refusals.fails(own.failure)
            log.info("upstream refused a request (%s), as it came, too: nothing changes", refused)
            if last is not own:
                await last.aclose()
            if not is_own and request.memory.reason == reason:  # memory was not the cause
                request.memory = replace(request.memory, reason=REFUSED_TOO)
            return own.result()
        refusals.in_vain = 0
        if not is_own and (last is own or memory.status == "rebuilt"):
            self._refused(request.memory, refusals, reason, refused)
        if last is not own:
            await own.aclose()
            request.memory = replace(request.memory, reason=THINKING_LEFT_OUT)
        return last.result()

    async def _attempt(
        self, request: ModelRequest, headers: Headers, body: bytes, tokens: int, *, reads: bool = True
    ) -> Attempt:
        """Send a body; ``reads``: an answer with status 200 is read until it is known to be one."""
        try:
            answer = await self._send_upstream(headers, body, tokens)
        except UpstreamError as e:
            return Attempt(None, FailedAnswer(NO_ANSWER, "no answer", e))
        failure = None
        if reads or not 200 <= answer.status < 300:
            failure = await failure_of(answer, request.dialect, request.value)
        if failure is None:
            self.exchange.answered_tokens += tokens
            self.usages.append(reader := UsageReader(is_readable=answer.is_readable))
            answer.body = reader.reading(answer.body)
        return Attempt(answer if failure is None or failure.error is None else None, failure)

    def _accepted(self, refusals: SessionRefusals, memory: MemoryResult, hides: bool) -> None:
        """Note that upstream took a request that memory changed."""
        if memory.status == "rebuilt" and refusals.pause and not refusals.accepted:
            log.info("upstream accepted a context: session %s has memory again", memory.session)
        refusals.tools = refusals.tools or memory.tools is not None
        if not hides:
            refusals.accepted.add(memory.status)

    def _refused(self, memory: MemoryResult, refusals: SessionRefusals, reason: str, refused: str) -> None:
        """Note that upstream refused a request that memory changed, and accepted it as it came."""
        if reason == MARKS_REFUSED:
            self.proxy.rebuilder.unmarked[self.caller.namespace, memory.session] = True
            log.warning("%s (%s): session %s gets none from now on", MARKS_REFUSED, refused, memory.session)
        elif memory.session is None:  # a conversation that has not begun: only the tools were added
            refusals.tools = False
            refusals.pauses()
            log.warning("%s (%s): %d new conversations begin without", TOOLS_REFUSED, refused, refusals.pause)
        elif reason == TOOLS_REFUSED:
            self.proxy.rebuilder.untooled[stored_id(self.caller.namespace, memory.session)] = True
            log.warning("%s (%s): session %s gets none from now on", TOOLS_REFUSED, refused, memory.session)
        else:
            refusals.pauses()
            log.warning(
                "%s (%s), not the request as it came: session %s goes without memory for %d requests",
                REFUSED,
                refused,
                memory.session,
                refusals.pause,
            )

    def _refusals(self, request: ModelRequest) -> SessionRefusals:
        """How a model of upstream has taken the requests of a session; without one, of new conversations."""
        key = self.caller.namespace, request.memory.session, request.model
        return self.proxy.refusals.setdefault(key, SessionRefusals())

    async def _stream(self) -> AsyncIterator[bytes]:
        """The body as it arrives. Raises ClientDisconnect."""
        try:
            async for chunk in self.incoming.stream():
                if chunk:
                    self.exchange.received_bytes += len(chunk)
                    yield chunk
        finally:
            self.body_was_read.set()

    async def _send_upstream(
        self, headers: Headers, body: bytes | AsyncIterator[bytes], tokens: int = 0
    ) -> UpstreamAnswer:
        """Upstream's answer to a body; ``tokens`` are those of the body, for the figures of the request."""
        self.sent_tokens += tokens
        path: bytes = self.scope.get("raw_path") or b""
        if not path.startswith(b"/v1/"):
            path = quote(self.scope["path"]).encode()
        return await self.upstream.send(
            self.scope["method"],
            path.removeprefix(b"/v1"),
            self.proxy.add_trace(headers),
            body,
            query=self.scope["query_string"],
        )

    async def _relay(self, answer: UpstreamAnswer, added: Headers) -> None:
        """Send an answer to the client as it arrives."""
        try:
            self.exchange.status = answer.status
            headers = answer.headers + added
            await self.send({"type": "http.response.start", "status": answer.status, "headers": headers})
            async for chunk in answer.body:
                if self.request is not None:
                    self.exchange.kept += chunk[: KEPT_BYTES - len(self.exchange.kept)]
                await self.send({"type": "http.response.body", "body": chunk, "more_body": True})
            await self.send({"type": "http.response.body", "body": b"", "more_body": False})
            self.exchange.outcome = "complete"
        finally:
            await answer.aclose()


def _as_it_came(request: ModelRequest, reason: str) -> MemoryResult:
    """The result for a request that is sent as it came."""
    memory = request.memory
    is_built = memory.status in ("rebuilt", "unchanged")
    return replace(
        memory,
        status="unchanged" if is_built else memory.status,
        reason=reason if is_built or memory.reason is None else memory.reason,
        data=None,
        arrays={},
        tokens=request.memory.full_tokens,
        tools=None,
    )


def _may_be_thinking(own: Attempt, refusals: SessionRefusals) -> bool:
    """Whether a request may be refused for its thinking, and is worth another attempt."""
    failure = own.failure
    return failure is not None and failure.status in THINKING_REFUSED and refusals.in_vain < IN_VAIN
