"""Spans and metrics as an SDK receives them, and nothing of contents in them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from starlette.testclient import TestClient
from tests.chats import rounds, system, user

from memory_bank.bank.steps import StepFigures
from memory_bank.errors import StorageError
from memory_bank.models.usage import NO_USAGE, ReportedUsage
from memory_bank.service.app import create_app
from memory_bank.service.operations.telemetry import Telemetry, has_sdk
from memory_bank.service.proxy.exchange import OTHER, Exchange
from memory_bank.service.proxy.flow import DIALECTS
from memory_bank.service.security.access import stored_id
from memory_bank.testing import Reply, ScriptedServer

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
INCOMING = [(b"traceparent", f"00-{TRACE}-{PARENT}-01".encode()), (b"tracestate", b"v=1"), (b"host", b"x")]


def exchanged(**more: Any) -> Exchange:
    """What the proxy tells of a chat, with some of it otherwise."""
    chat = {
        "method": "POST",
        "api": DIALECTS[0],
        "outcome": "complete",
        "status": 200,
        "seconds": 1.5,
        "model": "gpt-4.1",
    }
    memory = {"session": "s", "memory": "rebuilt", "tokens": 100, "full_tokens": 900}
    return Exchange(**{**chat, **memory, "usage": ReportedUsage(120, 7, untold=None), **more})


class Seen:
    """A telemetry with an SDK behind it."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        meters = MeterProvider(metric_readers=[self.reader])
        self.telemetry = Telemetry(
            "http://up.example:4000/v1", tracer_provider=provider, meter_provider=meters
        )

    def spans(self) -> dict[str, Any]:
        return {s.name: s for s in self.exporter.get_finished_spans()}

    def figures(self) -> dict[str, list[tuple[dict[str, Any], float]]]:
        data = self.reader.get_metrics_data()
        return {
            metric.name: [(dict(p.attributes), p.sum) for p in metric.data.data_points]
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@pytest.fixture
def seen() -> Seen:
    return Seen()


def call(seen: Seen, headers: Any = INCOMING, exchange: Any = None) -> list[tuple[bytes, bytes]]:
    """One request through the proxy."""
    with seen.telemetry.request("POST", headers) as span:
        carried = seen.telemetry.carry(headers)
        seen.telemetry.exchanged(exchange or exchanged())
        seen.telemetry.answered(span, "POST", "/v1/chat/completions", 200)
    return carried


def test_what_a_call_is_told_by(seen: Seen) -> None:
    call(seen, exchange=exchanged(namespace="ns", session="Ada"))
    span = seen.spans()["chat gpt-4.1"]
    common = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-4.1",
        "server.address": "up.example",
        "server.port": 4000,
    }
    assert dict(span.attributes) == common | {
        "gen_ai.conversation.id": stored_id("ns", "Ada"),
        "gen_ai.conversation.compacted": True,
        "gen_ai.usage.input_tokens": 120,
        "gen_ai.usage.output_tokens": 7,
        "memory_bank.status": "rebuilt",
        "memory_bank.tokens.full": 900,
        "memory_bank.tokens.sent": 100,
        "http.request.method": "POST",
        "http.response.status_code": 200,
    }
    assert span.status.status_code is StatusCode.UNSET
    figures = seen.figures()
    assert figures["gen_ai.client.operation.duration"] == [(common, 1.5)]
    assert sorted(figures["gen_ai.client.token.usage"], key=lambda p: p[1]) == [
        ({**common, "gen_ai.token.type": "output"}, 7),
        ({**common, "gen_ai.token.type": "input"}, 120),
    ]


@pytest.mark.parametrize("memory", ["unchanged", "passed", "failed", "answered", ""])
def test_only_a_rebuilt_request_is_said_to_be_compacted(seen: Seen, memory: str) -> None:
    """The convention: true where the context was compacted, else no attribute."""
    call(seen, exchange=exchanged(memory=memory))
    assert "gen_ai.conversation.compacted" not in seen.spans()["chat gpt-4.1"].attributes


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({"status": 429}, "429"),
        ({"status": None, "outcome": "unreachable"}, "unreachable"),
        ({"outcome": "broken_off"}, "broken_off"),
        ({"outcome": "client_gone"}, None),
    ],
)
def test_failures(seen: Seen, more: Any, kind: str | None) -> None:
    call(seen, exchange=exchanged(**{"usage": NO_USAGE, **more}))
    span = seen.spans()["chat gpt-4.1"]
    assert span.attributes.get("error.type") == kind
    assert (span.status.status_code is StatusCode.ERROR) == (kind is not None)
    assert span.status.description is None
    ((attributes, _),) = seen.figures()["gen_ai.client.operation.duration"]
    assert attributes.get("error.type") == kind
    assert "gen_ai.client.token.usage" not in seen.figures()


def test_what_only_passes_through_is_no_model_call(seen: Seen) -> None:
    call(seen, exchange=exchanged(method="GET", api=OTHER, model=None, session=None, memory=""))
    span = seen.spans()["GET"]
    assert span.kind is SpanKind.CLIENT
    assert not any(k.startswith("gen_ai") for k in span.attributes)
    assert seen.reader.get_metrics_data() is None


def test_several_calls_of_one_request_are_one_span(seen: Seen) -> None:
    with seen.telemetry.request("POST", INCOMING):
        first, second = seen.telemetry.carry(INCOMING), seen.telemetry.carry(INCOMING)
        seen.telemetry.exchanged(exchanged())
    assert first == second
    assert len(seen.exporter.get_finished_spans()) == 2


def test_an_exchange_that_never_went_upstream_has_no_span_but_figures(seen: Seen) -> None:
    with seen.telemetry.request("POST", []):
        seen.telemetry.exchanged(exchanged(status=401, outcome="refused"))
    assert list(seen.spans()) == ["POST"]
    assert "gen_ai.client.operation.duration" in seen.figures()


def test_requests_beside_one_another_keep_their_traces(seen: Seen) -> None:
    async def one(n: int) -> tuple[int, bytes]:
        headers = [(b"traceparent", f"00-{n:032x}-{PARENT}-01".encode())]
        with seen.telemetry.request("POST", headers):
            await asyncio.sleep(0)
            carried = await asyncio.create_task(sent(headers))  # as a stream is sent in a task of its own
            seen.telemetry.exchanged(exchanged())
        return n, dict(carried)[b"traceparent"]

    async def sent(headers: Any) -> list[tuple[bytes, bytes]]:
        await asyncio.sleep(0)
        return seen.telemetry.carry(headers)

    async def all_() -> list[tuple[int, bytes]]:
        return await asyncio.gather(*(one(n) for n in range(1, 20)))

    for n, value in asyncio.run(all_()):
        assert f"{n:032x}".encode() in value
    assert len(seen.exporter.get_finished_spans()) == 2 * 19


def test_work_on_memory(seen: Seen) -> None:
    with seen.telemetry.request("POST", INCOMING):
        with seen.telemetry.memory("delete_memory", "ns/s") as span:
            span.set_attribute("gen_ai.memory.record.count", 3)
        seen.telemetry.stepped(StepFigures("ns/s", 0.0, 900, 300, 4, 12, "rebuilt", "memory_bank", 40.0))
    deleted, searched = seen.spans()["delete_memory"], seen.spans()["search_memory"]
    assert dict(deleted.attributes) == {
        "gen_ai.operation.name": "delete_memory",
        "gen_ai.provider.name": "memory_bank",
        "gen_ai.conversation.id": "ns/s",
        "gen_ai.memory.store.id": "ns/s",
        "gen_ai.memory.record.count": 3,
    }
    assert searched.attributes["gen_ai.memory.record.count"] == 12
    assert searched.attributes["memory_bank.strategy"] == "memory_bank"
    assert searched.attributes["memory_bank.tokens.full"] == 900
    assert searched.attributes["memory_bank.tokens.sent"] == 300
    assert round((searched.end_time - searched.start_time) / 1e6) == 40
    assert {deleted.context.trace_id, searched.context.trace_id} == {int(TRACE, 16)}


def test_of_an_error_only_the_type_is_told(seen: Seen) -> None:
    with pytest.raises(StorageError), seen.telemetry.memory("search_memory", "s"):
        raise StorageError("words that may be a secret")
    span = seen.spans()["search_memory"]
    assert (span.attributes["error.type"], span.status.status_code) == ("StorageError", StatusCode.ERROR)
    assert list(span.events) == []
    assert "secret" not in span.to_json()


def test_hostile_headers_and_names(seen: Seen) -> None:
    for value in (
        b"",
        b"00-zz-zz-01",
        b"\xff\xfe",
        b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-00",
        b"x" * 9000,
    ):
        call(seen, [(b"traceparent", value), (b"tracestate", value), (b"baggage", b"k=v;;=,=" + value)])
    call(seen, exchange=exchanged(model="m" * 5000 + "\n"))
    (long,) = [n for n in seen.spans() if n.startswith("chat m")]
    assert len(long) == len("chat ") + 100


def test_a_chat_through_the_service(seen: Seen, configured: Any) -> None:
    """From the client's trace to the model's API: one trace, and nothing in it of what was said."""
    messages = [system("be secret"), user("a secret task"), *rounds(12, size=3_000)]
    with ScriptedServer([Reply("a secret answer", usage=(120, 7))]) as upstream:
        app = create_app(configured(upstream=upstream.base_url))
        app.tracing = seen.telemetry
        with TestClient(app) as client:
            answer = client.post(
                "/v1/chat/completions",
                json={"model": "scripted", "messages": messages},
                headers={"traceparent": f"00-{TRACE}-{PARENT}-01", "authorization": "Bearer sk-secret-key"},
            )
            assert answer.status_code == 200, answer.text
    spans = seen.spans()
    assert set(spans) == {"POST /v1/chat/completions", "search_memory", "chat scripted"}
    server, chat = spans["POST /v1/chat/completions"], spans["chat scripted"]
    assert f"{server.parent.span_id:016x}" == PARENT
    assert {s.context.trace_id for s in spans.values()} == {int(TRACE, 16)}
    assert chat.parent.span_id == spans["search_memory"].parent.span_id == server.context.span_id
    assert upstream.requests[0].headers["traceparent"] == f"00-{TRACE}-{chat.context.span_id:016x}-01"
    assert chat.attributes["gen_ai.usage.input_tokens"] == 120
    assert chat.attributes["memory_bank.status"] == answer.headers["x-memory-status"]
    told = f"{chat.attributes['memory_bank.tokens.sent']}/{chat.attributes['memory_bank.tokens.full']}"
    assert told == answer.headers["x-memory-tokens"]
    assert chat.attributes["gen_ai.conversation.id"] == answer.headers["x-memory-session"]
    assert sorted(v for _, v in seen.figures()["gen_ai.client.token.usage"]) == [7, 120]
    assert not any("secret" in s.to_json() or "ORD-" in s.to_json() for s in spans.values())


def test_what_the_api_does_with_memory(seen: Seen, configured: Any) -> None:
    app = create_app(configured())
    app.tracing = seen.telemetry
    outputs = [{"tool_name": "find", "raw_input": {"a": "secret"}, "raw_output": "a secret"}]
    with TestClient(app) as client:
        assert client.post("/v1/sessions/s/ingest", json={"tool_outputs": outputs}).status_code == 200
        assert client.get("/v1/sessions/s/search?q=secret").json()["hits"]
        assert client.delete("/v1/sessions/s").status_code < 300
    spans = seen.spans()
    for operation in ("create_memory", "search_memory", "delete_memory"):
        assert spans[operation].attributes["gen_ai.memory.store.id"] == "s"
    assert spans["search_memory"].parent.span_id == spans["GET /v1/sessions/{name}/search"].context.span_id
    assert not any("a secret" in s.to_json() for s in spans.values())


def test_an_sdk_is_told_from_the_api_itself() -> None:
    own = trace.NoOpTracerProvider(), trace.ProxyTracerProvider(), metrics.NoOpMeterProvider()
    assert not has_sdk(*own, metrics.get_meter_provider())
    assert has_sdk(*own, TracerProvider())
    assert has_sdk(*own, MeterProvider())


def test_a_service_without_an_sdk_sends_the_clients_trace_on(configured: Any) -> None:
    trace_ = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "v=1", "baggage": "k=a secret"}
    with ScriptedServer([Reply("Done.")]) as upstream:
        app = create_app(configured(upstream=upstream.base_url))
        assert app.tracing is None
        with TestClient(app) as client:
            body = {"model": "scripted", "messages": [user("a task")]}
            given = trace_ | {"authorization": "Bearer k"}
            assert client.post("/v1/chat/completions", json=body, headers=given).status_code == 200
    assert trace_.items() <= dict(upstream.requests[0].headers).items()


def test_without_an_sdk_what_came_goes_on() -> None:
    telemetry = Telemetry("https://api.openai.com/v1", tracer_provider=trace.NoOpTracerProvider())
    with telemetry.request("POST", INCOMING) as span:
        assert dict(telemetry.carry(INCOMING)) == dict(INCOMING)
        telemetry.exchanged(exchanged())
        telemetry.answered(span, "POST", "/x", 200)
        telemetry.stepped(StepFigures("s", 0.0, 2, 1, 1, 1, "rebuilt", "memory_bank", 1.0))
    with telemetry.request("POST", [(b"host", b"x")]):
        assert telemetry.carry([(b"host", b"x")]) == [(b"host", b"x")]
    assert telemetry.carry(INCOMING) == INCOMING  # outside of any request
