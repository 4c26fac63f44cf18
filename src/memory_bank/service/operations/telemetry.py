"""Spans and metrics by OpenTelemetry's conventions for generative AI; without an SDK they cost little.

The names are those of the repository open-telemetry/semantic-conventions-genai (status: development), as
strings: the constants of the Python package are deprecated. No attribute has content.

The package opentelemetry-instrumentation-asgi does not fit: it puts every request's path and URL into span
attributes, and these contain session names.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from memory_bank import __version__
from memory_bank.errors import MissingExtraError
from memory_bank.service.security.access import stored_id

try:
    from opentelemetry import context, metrics, trace
    from opentelemetry.propagate import extract, inject
    from opentelemetry.propagators.textmap import Getter
    from opentelemetry.trace import Span, SpanKind, StatusCode
except ImportError:
    raise MissingExtraError("the service (opentelemetry-api)", "service") from None

if TYPE_CHECKING:
    from memory_bank.service.proxy.routes import Exchange

Headers = Iterable[tuple[bytes, bytes]]

PROVIDERS = {"chat": "openai", "responses": "openai", "messages": "anthropic"}
"""Routes of model calls, and whose API is spoken there, whoever answers."""
_LONGEST_NAME = 100
_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304)
_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)


class _HeaderGetter(Getter[Headers]):
    """Reads a trace's context from the headers of an ASGI scope."""

    def get(self, carrier: Headers, key: str) -> list[str] | None:
        wanted = key.lower().encode("latin-1")
        return [v.decode("latin-1") for n, v in carrier if n.lower() == wanted] or None

    def keys(self, carrier: Headers) -> list[str]:
        return [n.decode("latin-1") for n, _ in carrier]


_GETTER = _HeaderGetter()


class _Call:
    """The call upstream that a request makes, if it makes one: several of one request are one span."""

    __slots__ = ("span",)

    def __init__(self) -> None:
        self.span: Span | None = None


_call: ContextVar[_Call | None] = ContextVar("memory_bank_model_call", default=None)


class Telemetry:
    """Spans and metrics of the service.

    ``upstream`` is the base URL of the model's API, ``anthropic`` that of the Messages API if it is another.

    ``tracer_provider`` and ``meter_provider`` replace those of the process.
    """

    def __init__(
        self,
        upstream: str,
        anthropic: str = "",
        *,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
    ) -> None:
        self._tracer = trace.get_tracer("memory_bank", __version__, tracer_provider)
        meter = metrics.get_meter("memory_bank", __version__, meter_provider)
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage",
            unit="{token}",
            description="Number of input and output tokens used.",
            explicit_bucket_boundaries_advisory=_TOKENS,
        )
        self._duration = meter.create_histogram(
            "gen_ai.client.operation.duration",
            unit="s",
            description="GenAI operation duration.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._server = _server(upstream)
        self._servers = {"openai": self._server, "anthropic": _server(anthropic or upstream)}

    @contextmanager
    def request(self, method: str, headers: Headers) -> Iterator[Span]:
        """The span of a request to this service, in the trace that its headers name."""
        parent = extract(headers, getter=_GETTER)
        span = self._tracer.start_span(method, parent, SpanKind.SERVER, {"http.request.method": method})
        token = context.attach(trace.set_span_in_context(span, parent))
        call = _Call()
        known = _call.set(call)
        try:
            yield span
        finally:
            if call.span is not None:
                call.span.end()
            _call.reset(known)
            context.detach(token)
            span.end()

    def answered(self, span: Span, method: str, route: str, status: int) -> None:
        """Complete the span of an answered request."""
        if not span.is_recording():
            return
        span.update_name(f"{method} {route}")
        span.set_attribute("http.route", route)
        span.set_attribute("http.response.status_code", status)
        if status >= 500:
            _failed(span, str(status))

    def carry(self, headers: Headers) -> list[tuple[bytes, bytes]]:
        """Begin the span of the call upstream; returns the headers with its trace context."""
        call = _call.get()
        carrier: dict[str, str] = {}
        if call is None:
            inject(carrier)
        else:
            if call.span is None:
                call.span = self._tracer.start_span("POST", kind=SpanKind.CLIENT, attributes=self._server)
            inject(carrier, trace.set_span_in_context(call.span))
        ours = [(k.encode("latin-1"), v.encode("latin-1")) for k, v in carrier.items()]
        names = {n for n, _ in ours}
        return [*((n, v) for n, v in headers if n.lower() not in names), *ours]

    def exchanged(self, exchange: Exchange) -> None:
        """Complete the span of the call upstream and record its metrics, in the context of its request."""
        call = _call.get()
        span = call.span if call is not None else None
        error = _error_of(exchange)
        provider = PROVIDERS.get(exchange.route)
        model_call = provider is not None
        server = self._servers.get(provider or "openai", self._server)
        attributes: dict[str, Any] = {}
        if model_call:
            model = (exchange.model or "")[:_LONGEST_NAME]
            attributes = {
                "gen_ai.operation.name": "chat",
                "gen_ai.provider.name": provider,
                "gen_ai.request.model": model,
            }
            figures = {**attributes, **server}
            if error is not None:
                figures["error.type"] = error
            self._duration.record(exchange.seconds, figures)
            for kind, count in (("input", exchange.input_tokens), ("output", exchange.output_tokens)):
                if count is not None:
                    self._tokens.record(count, {**figures, "gen_ai.token.type": kind})
        if call is None or span is None:
            return
        if span.is_recording():
            if model_call:
                span.update_name(f"chat {model}")
                name = exchange.session
                attributes |= _without_none(
                    {
                        "gen_ai.conversation.id": name and stored_id(exchange.namespace, name),
                        "gen_ai.usage.input_tokens": exchange.input_tokens,
                        "gen_ai.usage.output_tokens": exchange.output_tokens,
                        "memory_bank.status": exchange.memory or None,
                        "memory_bank.tokens.full": exchange.full_tokens,
                        "memory_bank.tokens.sent": exchange.tokens,
                    }
                )
            else:
                span.update_name(exchange.method)
            span.set_attributes(
                {
                    **attributes,
                    **server,
                    "http.request.method": exchange.method,
                    **_without_none({"http.response.status_code": exchange.status}),
                }
            )
            if error is not None:
                _failed(span, error)
        span.end()
        call.span = None

    @contextmanager
    def memory(self, operation: str, session: str | None = None) -> Iterator[Span]:
        """A span around an operation such as ``search_memory``, ``create_memory`` or ``delete_memory``.

        Of an error only the type is recorded.
        """
        span = self._tracer.start_span(operation, attributes=_memory(operation, session))
        with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
            try:
                yield span
            except Exception as e:
                _failed(span, type(e).__name__)
                raise

    def stepped(
        self, session: str, strategy: str, records: int, milliseconds: float, full_tokens: int, tokens: int
    ) -> None:
        """Record the span of a context that has just been built, with the tokens before and after."""
        end = time.time_ns()
        span = self._tracer.start_span(
            "search_memory",
            attributes=_memory("search_memory", session),
            start_time=end - int(milliseconds * 1e6),
        )
        if span.is_recording():
            span.set_attribute("gen_ai.memory.record.count", records)
            span.set_attribute("memory_bank.strategy", strategy)
            span.set_attribute("memory_bank.tokens.full", full_tokens)
            span.set_attribute("memory_bank.tokens.sent", tokens)
        span.end(end)


def _server(url: str) -> dict[str, Any]:
    """The attributes of an upstream."""
    parts = urlsplit(url)
    port = {} if parts.port is None else {"server.port": parts.port}
    return {"server.address": parts.hostname or "", **port}


def _memory(operation: str, session: str | None) -> dict[str, Any]:
    return {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "memory_bank",
        **_without_none({"gen_ai.conversation.id": session, "gen_ai.memory.store.id": session}),
    }


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in values.items() if v is not None}


def _error_of(exchange: Exchange) -> str | None:
    """The kind of a failure in one word, or None."""
    if exchange.outcome not in ("complete", "client_gone"):
        return exchange.outcome
    return str(exchange.status) if exchange.status is not None and exchange.status >= 400 else None


def _failed(span: Span, kind: str) -> None:
    span.set_attribute("error.type", kind)
    span.set_status(StatusCode.ERROR)
