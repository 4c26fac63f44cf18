"""The proxy as an ASGI application: model requests are sent with a rebuilt context, others unchanged."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import string
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, NamedTuple
from urllib.parse import quote

from anyio import CancelScope
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from memory_bank.errors import BodyError, MemoryBankError, UpstreamError
from memory_bank.service.failures import failure
from memory_bank.service.proxy.body import Body, MessageCache, parse_body, render_body
from memory_bank.service.proxy.chat import ChatDialect
from memory_bank.service.proxy.dialect import Dialect, Provider
from memory_bank.service.proxy.injection import Injection
from memory_bank.service.proxy.messages import CountTokensDialect, MessagesDialect
from memory_bank.service.proxy.rebuild import (
    MOST_REFUSED,
    MemoryResult,
    ModelRequest,
    Rebuilder,
    SessionWay,
    in_thread_if_large,
)
from memory_bank.service.proxy.responses import ResponsesDialect
from memory_bank.service.proxy.upstream import (
    Headers,
    Upstream,
    UpstreamAnswer,
    credential_of,
    request_headers,
)
from memory_bank.service.security.access import caller_of
from memory_bank.service.sessions import Rebuilt

log = logging.getLogger("memory_bank.Service")

DIALECTS: tuple[Dialect, ...] = (
    ChatDialect(), ResponsesDialect(), MessagesDialect(), CountTokensDialect(),
)  # fmt: skip
REFUSALS = frozenset({400, 413, 422})  # the statuses after which a request is sent again as it came
REFUSED = "upstream refused the rebuilt context"
SAFER = "in a safer form, since upstream refused another"
MARKS_REFUSED = "upstream refused cache marks"
UNTRIED = "thinking would be bound to a rebuilt context"
"""The reason of a request that begins a turn, while no rebuilt context was accepted in a turn of its model."""
FIRST_PAUSE, LONGEST_PAUSE = 5, 160
"""Requests of a session without memory after a refused context; each further one doubles them."""

Outcome = Literal["complete", "client_gone", "broken_off", "unreachable", "refused", "aborted"]
"""``broken_off``: upstream broke off its answer; ``unreachable``: it gave none; ``refused``: by the service;
``aborted``: the service ended or failed."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """What is recorded of one request and its answer: no contents, no keys.

    ``route``: a dialect's, or "other" for what only passes. ``seconds``: until the last byte of the answer's body.
    ``memory``: rebuilt, unchanged, passed or failed, "" for route "other", with its ``reason``;
    ``tokens`` of all that was sent upstream and ``full_tokens`` of the request as it came, tools included, as memory
    counts them; ``answered_tokens`` of what upstream did not refuse. ``input_tokens`` (with those
    read from a cache and written to it, None where caches are not reported) and ``output_tokens`` are those of
    upstream's usage. ``step`` is the step that the request is recorded as.
    """

    method: str
    route: str
    outcome: Outcome
    status: int | None
    seconds: float
    model: str | None = None
    streamed: bool = False
    namespace: str | None = None
    session: str | None = None
    memory: str = ""
    reason: str | None = None
    tokens: int | None = None
    full_tokens: int | None = None
    answered_tokens: int = 0
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    written_tokens: int | None = None
    received_bytes: int = 0
    step: Rebuilt | None = field(default=None, repr=False)


@dataclass(slots=True, eq=False)
class Proxy:
    """An ASGI application for all paths under ``/v1`` that are not the service's own.

    The body of a model request gets the context from memory; everything else, and the answer, passes byte by
    byte. A changed request that upstream refuses (REFUSALS) is sent again as it came, and once more without its
    thinking if that is refused too. If one of them is accepted, the session goes without memory for some requests
    and gets it in a safer form then (SessionWay), in this process; else nothing changes. Where only cache marks were
    refused, no request gets any from then on. ``proven``: models that accepted a change before thinking.

    ``upstreams`` are the model APIs by provider. ``cache`` keeps parsed messages, ``add_trace`` adds trace headers to
    a request for upstream, ``record`` is called with every finished exchange.
    """

    upstreams: Mapping[Provider, Upstream]
    rebuilder: Rebuilder
    injection: Injection
    cache: MessageCache
    add_trace: Callable[[Headers], Headers]
    record: Callable[[Exchange], None]
    proven: set[str] = field(default_factory=set)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _ProxiedRequest(self, scope, receive, send).run()


class _ProxiedRequest:
    """One request: read, sent upstream, answered."""

    def __init__(self, proxy: Proxy, scope: Scope, receive: Receive, send: Send) -> None:
        self.proxy = proxy
        self.scope = scope
        self.receive = receive
        self.send = send
        self.incoming = Request(scope, receive)
        self.caller = caller_of(self.incoming)
        self.dialect: Dialect | None = None
        self.upstream = proxy.upstreams["openai"]
        self.request: ModelRequest | None = None
        self.sent_tokens = self.answered_tokens = 0
        self.outcome: Outcome = "aborted"
        self.status: int | None = None
        self.received_bytes = 0
        self.body_was_read = asyncio.Event()
        self.usage = UsageReader()
        self.clock = time.perf_counter()

    async def run(self) -> None:
        """Handle the request until its answer is complete, or until one side gives up."""
        gone = CancelScope()
        watcher = asyncio.create_task(self._watch_client(gone))
        try:
            with gone:
                await self._handle()
            if gone.cancelled_caught:
                self.outcome = "client_gone"
        except ClientDisconnect:
            self.outcome = "client_gone"
        except MemoryBankError as e:
            if self.status is not None and isinstance(e, UpstreamError):
                self.outcome = "broken_off"  # the server closes the client's connection too
                log.warning("%s", e)
                return
            self.outcome = "unreachable" if isinstance(e, UpstreamError) else "refused"
            self.status = failure(e)[0]
            raise
        finally:
            watcher.cancel()
            self.proxy.record(self._exchange())

    async def _watch_client(self, scope: CancelScope) -> None:
        """Cancel the work for a client that disconnects after its request was read."""
        await self.body_was_read.wait()
        with suppress(MemoryBankError):  # a limit of the body's size
            while (await self.receive())["type"] != "http.disconnect":
                pass
        scope.cancel()

    async def _handle(self) -> None:
        path = self.scope["path"].removeprefix("/v1")
        if self.scope["method"] == "POST":
            self.dialect = next((d for d in DIALECTS if d.path == path), None)
        provider: Provider = "openai"
        if self.dialect is not None:
            provider = self.dialect.provider
        elif path.startswith("/messages/") or "anthropic-version" in self.incoming.headers:
            provider = "anthropic"
        self.upstream = self.proxy.upstreams[provider]
        key_header = b"x-api-key" if provider == "anthropic" else b"authorization"
        headers = request_headers(self.scope["headers"], self.upstream.key, key_header)
        if self.dialect is None:
            body: bytes | AsyncIterator[bytes] = b""
            if any(name in (b"content-length", b"transfer-encoding") for name, _ in self.scope["headers"]):
                body = self._stream()
            else:
                self.body_was_read.set()
            await self._relay(await self._send_upstream(headers, body), [])
            return
        data = b"".join([chunk async for chunk in self._stream()])
        request = self.request = await self._rebuild(self.dialect, data, headers)
        headers = [(n, v) for n, v in headers if n != b"accept-encoding"]
        headers.append((b"accept-encoding", b"identity"))
        answer = await self.proxy.injection.answer(request, partial(self._send_form, headers))
        memory, safe = self.request.memory, string.punctuation.replace("%", "")
        values = {
            "status": memory.status,
            "reason": memory.reason,
            "session": None if memory.session is None else quote(memory.session, safe=safe),
            "tokens": None if memory.tokens is None else f"{self.sent_tokens}/{memory.full_tokens}",
        }
        await self._relay(answer, [(f"x-memory-{n}".encode(), v.encode()) for n, v in values.items() if v])

    async def _send_form(self, headers: Headers, body: bytes, more: int) -> UpstreamAnswer:
        """The answer to a body of the request, or to another form of the request after upstream has refused it.

        Where all are refused, it is the answer to the request as it came.
        """
        request = self.request
        assert request is not None
        is_own = body == request.data
        answer = await self._send_upstream(headers, body, more + (request.memory.tokens or 0))
        if answer.status < 400 and not is_own:
            if request.is_rebuilt("goes on") and len(self.proxy.proven) < MOST_REFUSED:
                self.proxy.proven.add(request.model)
            way = self._way(request.memory)
            if way is not None and way.left == 0 and request.memory.status == "rebuilt":
                way.left = -1
                log.info(
                    "upstream accepted the safer form: session %s has memory again", request.memory.session
                )
        if answer.status not in REFUSALS:
            return answer
        tries: list[MemoryResult] = []
        is_stripped = request.memory.reason == REFUSED and request.memory.arrays
        if not (is_own or is_stripped):
            only_marks = request.memory.status == "unchanged" and not more
            tries.append(_unchanged(request, reason=MARKS_REFUSED if only_marks else REFUSED))
        if not is_stripped and request.dialect.without_thinking(request.value) is not None:
            tries.append(_unchanged(request, strips=True))
        what, original = "", None
        for memory in tries:
            error = await _read_error(answer)
            what = what or f"{request.dialect.route}, {answer.status}, {error}"
            if is_own or self.request is not request:
                original = original or answer
            self.request = replace(request, memory=memory)
            answer = await self._send_upstream(headers, self.request.render(), memory.tokens or 0)
            if answer.status < 400:
                self._refused(request, memory, what)
            if answer.status not in REFUSALS:
                return answer
        if tries:
            log.info("upstream refused a request (%s) as it came, too: nothing changes", what)
        if original is not None:
            await answer.aclose()
        return original or answer

    def _refused(self, request: ModelRequest, memory: MemoryResult, what: str) -> None:
        """Note that upstream refused a request and accepted this form of it."""
        if memory.reason == MARKS_REFUSED:
            self.proxy.rebuilder.marks_cache = False
            log.warning("upstream refused cache marks (%s): requests get none from now on", what)
            return
        if memory.session is None:
            return
        way = self._way(memory)
        strips = bool(memory.arrays) or (way is not None and way.strips)
        if way is not None and way.left > 0:  # it goes without memory already
            way.strips = strips
            return
        pause = FIRST_PAUSE if way is None else min(2 * way.pause, LONGEST_PAUSE)
        thinks = request.is_rebuilt("goes on") and request.model not in self.proxy.proven
        way = SessionWay(pause, pause, strips, thinks)
        self.proxy.rebuilder.ways[self.caller.namespace, memory.session] = way
        then = "while it thinks" if thinks else f"for {pause} requests, then in a safer form"
        refused = "upstream refused a context (%s), not the request as it came: no memory for session %s %s"
        log.warning(refused, what, memory.session, then)

    def _way(self, memory: MemoryResult) -> SessionWay | None:
        return self.proxy.rebuilder.ways.get((self.caller.namespace, memory.session or ""))

    async def _rebuild(self, dialect: Dialect, data: bytes, headers: Headers) -> ModelRequest:
        """The request with its context from memory."""
        caller, incoming = self.caller, self.incoming.headers
        request = ModelRequest(dialect, caller, data, incoming, credential_of(headers))
        try:
            body = await in_thread_if_large(data, read_body, data, dialect, self.proxy.cache)
        except BodyError as e:
            return replace(request, memory=MemoryResult("passed", str(e)))
        request = replace(request, body=body)
        memory = await self.proxy.rebuilder.rebuild(request, body)
        request = replace(request, memory=memory)
        if memory.status not in ("rebuilt", "unchanged"):
            return request
        way = self._way(memory)
        is_proven = request.model in self.proxy.proven
        if way is not None:
            waits = way.left > 0 or (way.thinks and request.thinks and not is_proven)
            way.left -= way.left > 0
            if waits or (way.strips and memory.status == "unchanged"):
                return replace(request, memory=_unchanged(request, strips=way.strips))
            request = replace(request, memory=replace(memory, reason=memory.reason or SAFER))
        if request.is_rebuilt("begins") and not is_proven:
            return replace(request, memory=_unchanged(request, reason=UNTRIED))
        return request

    async def _stream(self) -> AsyncIterator[bytes]:
        """The body as it arrives. Raises ClientDisconnect."""
        try:
            async for chunk in self.incoming.stream():
                if chunk:
                    self.received_bytes += len(chunk)
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
        answer = await self.upstream.send(
            self.scope["method"],
            path.removeprefix(b"/v1"),
            self.proxy.add_trace(headers),
            body,
            query=self.scope["query_string"],
        )
        self.answered_tokens += tokens if answer.status < 400 else 0
        return answer

    async def _relay(self, answer: UpstreamAnswer, added: Headers) -> None:
        """Send an answer to the client as it arrives."""
        try:
            self.status = answer.status
            headers = answer.headers + added
            await self.send({"type": "http.response.start", "status": answer.status, "headers": headers})
            async for chunk in answer.body:
                self.usage.feed(chunk)
                await self.send({"type": "http.response.body", "body": chunk, "more_body": True})
            await self.send({"type": "http.response.body", "body": b"", "more_body": False})
            self.outcome = "complete"
        finally:
            await answer.aclose()

    def _exchange(self) -> Exchange:
        request = self.request
        value = request.value if request else {}
        memory = request.memory if request else MemoryResult("passed")
        model = value.get("model")
        usage = self.usage.tokens() if request else NO_USAGE
        return Exchange(
            method=self.scope["method"],
            route=self.dialect.route if self.dialect else "other",
            outcome=self.outcome,
            status=self.status,
            seconds=time.perf_counter() - self.clock,
            model=model if isinstance(model, str) else None,
            streamed=value.get("stream") is True,
            namespace=self.caller.namespace,
            session=memory.session,
            memory=memory.status if request else "",
            reason=memory.reason,
            tokens=None if memory.tokens is None else self.sent_tokens,
            full_tokens=memory.full_tokens,
            answered_tokens=self.answered_tokens,
            input_tokens=usage.input,
            output_tokens=usage.output,
            cached_tokens=usage.cached,
            written_tokens=usage.written,
            received_bytes=self.received_bytes,
            step=memory.step,
        )


def read_body(data: bytes, dialect: Dialect, cache: MessageCache | None = None) -> Body:
    """Parse a model request so that its conversation and tools can be edited. Raises BodyError."""
    body = parse_body(data, dialect.key, "tools")
    return body if cache is None else cache.intern(body, dialect.key)


def _unchanged(request: ModelRequest, *, strips: bool = False, reason: str = REFUSED) -> MemoryResult:
    """The result for a request that is sent as it came; ``strips``: without its thinking."""
    stripped = request.dialect.without_thinking(request.value) if strips else None
    arrays = {} if stripped is None else {request.dialect.key: stripped}
    return replace(
        request.memory,
        status="unchanged",
        reason=reason,
        data=render_body(request.body, arrays) if arrays and request.body else None,
        arrays=arrays,
        tokens=request.memory.full_tokens,
        tools=None,
    )


async def _read_error(answer: UpstreamAnswer) -> str:
    """The type and code of a refusal's error where they are plain names; its connection is released."""
    try:
        error = json.loads(await answer.hold() or b"")["error"]
        found = [str(error.get(k) or "") for k in ("type", "code")]
        names = [n for n in found if re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", n)]
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
        names = []
    return "/".join(names) or "no type"


class ReportedUsage(NamedTuple):
    """Tokens in an answer's usage; None where it does not say. ``input`` includes ``cached`` and ``written``."""

    input: int | None
    output: int | None
    cached: int | None = None
    written: int | None = None


NO_USAGE = ReportedUsage(None, None)


class UsageReader:
    """Finds the token usage in an answer; ``feed`` keeps only the first and the last bytes."""

    KEPT = 16_384

    def __init__(self) -> None:
        self._head = self._tail = b""

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the answer."""
        self._head += chunk[: max(0, self.KEPT - len(self._head))]
        self._tail = (self._tail + chunk)[-self.KEPT :]

    def tokens(self) -> ReportedUsage:
        """The tokens of the last usage in the answer.

        A stream of the Messages API begins with the usage of the input and ends with that of the output.
        """
        last = next(_usages(self._tail, last_first=True), NO_USAGE)
        if last.input is None and last.output is not None:
            return next(_usages(self._head), NO_USAGE)._replace(output=last.output)
        return last


def _usages(text: bytes, *, last_first: bool = False) -> Iterator[ReportedUsage]:
    """The usages in a text that name tokens."""

    def count(values: object, *names: str) -> int | None:
        if not isinstance(values, dict):
            return None
        return next((v for n in names if type(v := values.get(n)) is int), None)

    ends = [match.end() for match in re.finditer(b'"usage":', text)]
    for at in reversed(ends) if last_first else ends:
        try:
            usage, _ = json.JSONDecoder().raw_decode(text[at:].decode("utf-8", "replace").lstrip())
        except (ValueError, RecursionError):
            continue
        if not isinstance(usage, dict):
            continue
        into = count(usage, "prompt_tokens", "input_tokens")
        read, written = (count(usage, f"cache_{kind}_input_tokens") for kind in ("read", "creation"))
        # the Messages API does not count these as input
        if into is not None and "prompt_tokens" not in usage:
            into += (read or 0) + (written or 0)
        details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
        cached = count(details, "cached_tokens") if read is None else read
        output = count(usage, "completion_tokens", "output_tokens")
        if (found := ReportedUsage(into, output, cached, written)) != NO_USAGE:
            yield found
