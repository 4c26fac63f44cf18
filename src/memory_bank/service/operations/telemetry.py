"""Spans and metrics by OpenTelemetry's conventions for generative AI, where an SDK takes them (``has_sdk``).

The names are those of the repository open-telemetry/semantic-conventions-genai (status: development), as
strings: the constants of the Python package are deprecated. No attribute has content.

The package opentelemetry-instrumentation-asgi does not fit: it puts every request's path and URL into span
attributes, and these contain session names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from memory_bank import __version__
from memory_bank.bank.steps import StepFigures
from memory_bank.errors import MissingExtraError
from memory_bank.service.security.access import stored_id

try:
    from opentelemetry import context, metrics, trace
    from opentelemetry.propagate import extract, inject
    from opentelemetry.trace import Span, SpanKind, StatusCode
except ImportError:
    raise MissingExtraError("the service (opentelemetry-api)", "service") from None

if TYPE_CHECKING:
    from memory_bank.service.proxy.exchange import Exchange

Headers = Iterable[tuple[bytes, bytes]]

PROVIDERS = {"chat": "openai", "responses": "openai", "messages": "anthropic"}
"""Routes of model calls, and whose API is spoken there, whoever answers."""

_call: ContextVar[list[Span] | None] = ContextVar("memory_bank_model_call", default=None)
"""The span of the call upstream that a request makes, once it makes one: several of one request are one span."""


def has_sdk(*providers: object) -> bool:
    """Return whether a provider is not the API's own, which records nothing; by default of the process's two."""
    both = providers or (trace.get_tracer_provider(), metrics.get_meter_provider())
    modules = trace.__name__, metrics.__name__
    return not all(type(provider).__module__.startswith(modules) for provider in both)


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

        def histogram(name: str, unit: str, text: str, buckets: Sequence[float]) -> metrics.Histogram:
            options: Any = {"unit": unit, "description": text, "explicit_bucket_boundaries_advisory": buckets}
            return meter.create_histogram(f"gen_ai.client.{name}", **options)

        tokens, seconds = [4**n for n in range(12)], [0.01 * 2**n for n in range(14)]
        self._tokens = histogram("token.usage", "{token}", "Number of input and output tokens used.", tokens)
        self._duration = histogram("operation.duration", "s", "GenAI operation duration.", seconds)
        self._servers = {"openai": _server(upstream), "anthropic": _server(anthropic or upstream)}

    @contextmanager
    def request(self, method: str, headers: Headers) -> Iterator[Span]:
        """The span of a request to this service, in the trace that its headers name."""
        carrier: dict[str, list[str]] = {}
        for name, value in headers:
            carrier.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        parent = extract(carrier)
        span = self._tracer.start_span(method, parent, SpanKind.SERVER, {"http.request.method": method})
        token = context.attach(trace.set_span_in_context(span, parent))
        calls: list[Span] = []
        reset_token = _call.set(calls)
        try:
            yield span
        finally:
            for call in calls:
                call.end()
            _call.reset(reset_token)
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
        calls = _call.get()
        if calls == []:
            calls.append(self._tracer.start_span("POST", kind=SpanKind.CLIENT))
        carrier: dict[str, str] = {}
        inject(carrier, trace.set_span_in_context(calls[0]) if calls else None)
        ours = [(k.encode("latin-1"), v.encode("latin-1")) for k, v in carrier.items()]
        names = {n for n, _ in ours}
        return [*((n, v) for n, v in headers if n.lower() not in names), *ours]

    def exchanged(self, exchange: Exchange) -> None:
        """Complete the span of the call upstream and record its metrics, in the context of its request."""
        error: str | None = None  # the kind of a failure in one word
        if exchange.outcome not in ("complete", "client_gone"):
            error = exchange.outcome
        elif exchange.status is not None and exchange.status >= 400:
            error = str(exchange.status)
        provider = PROVIDERS.get(exchange.api.route)
        server = self._servers[provider or "openai"]
        name, attributes = exchange.method, {**server, "http.request.method": exchange.method}
        attributes |= _without_none({"http.response.status_code": exchange.status})
        if provider is not None:
            model = (exchange.model or "")[:100]
            name = f"chat {model}"
            call = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": provider}
            call |= {"gen_ai.request.model": model}
            figures = {**call, **server, **_without_none({"error.type": error})}
            self._duration.record(exchange.seconds, figures)
            for kind, count in (("input", exchange.usage.input), ("output", exchange.usage.output)):
                if count is not None:
                    self._tokens.record(count, {**figures, "gen_ai.token.type": kind})
            session = exchange.session
            figures_of_memory = {
                "gen_ai.conversation.id": session and stored_id(exchange.namespace, session),
                # never false: "if and only if" the context was compacted
                "gen_ai.conversation.compacted": exchange.memory == "rebuilt" or None,
                "gen_ai.usage.input_tokens": exchange.usage.input,
                "gen_ai.usage.output_tokens": exchange.usage.output,
                "memory_bank.status": exchange.memory or None,
                "memory_bank.tokens.full": exchange.full_tokens,
                "memory_bank.tokens.sent": exchange.tokens,
            }
            attributes |= call | _without_none(figures_of_memory)
        for span in _call.get() or ():
            span.update_name(name)
            span.set_attributes(attributes)
            if error is not None:
                _failed(span, error)

    @contextmanager
    def memory(self, operation: str, session: str | None = None) -> Iterator[Span]:
        """A span around an operation such as ``search_memory``; of an error only the type is recorded."""
        span = self._tracer.start_span(operation, attributes=_memory(operation, session))
        with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
            try:
                yield span
            except Exception as e:
                _failed(span, type(e).__name__)
                raise

    def stepped(self, step: StepFigures) -> None:
        """Record the span of a context that was built, with the tokens before and after."""
        end = int(step.created * 1e9)
        attributes = {
            **_memory("search_memory", step.session_id),
            "gen_ai.memory.record.count": step.records,
            "memory_bank.strategy": step.strategy,
            "memory_bank.tokens.full": step.full_tokens,
            "memory_bank.tokens.sent": step.tokens,
        }
        began = end - int(step.milliseconds * 1e6)
        self._tracer.start_span("search_memory", attributes=attributes, start_time=began).end(end)


def _server(url: str) -> dict[str, Any]:
    """The attributes of an upstream."""
    parts = urlsplit(url)
    return {"server.address": parts.hostname or "", **_without_none({"server.port": parts.port})}


def _memory(operation: str, session: str | None) -> dict[str, Any]:
    return {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "memory_bank",
        **_without_none({"gen_ai.conversation.id": session, "gen_ai.memory.store.id": session}),
    }


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in values.items() if v is not None}


def _failed(span: Span, kind: str) -> None:
    span.set_attribute("error.type", kind)
    span.set_status(StatusCode.ERROR)
