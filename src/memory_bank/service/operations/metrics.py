"""Prometheus metrics of the service, summed over its workers. Labels have no names, keys or content."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from memory_bank import __version__
from memory_bank.errors import MissingExtraError

try:
    import prometheus_client
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
    from prometheus_client.core import GaugeMetricFamily
    from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
except ImportError:
    raise MissingExtraError("the service (prometheus-client)", "service") from None

SHARED = "PROMETHEUS_MULTIPROC_DIR"
"""The environment variable with the folder that the workers of one service share."""

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_SLOW = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Metrics:
    """The metrics of one worker; ``scrape`` returns those of all workers."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"memory_bank_{name}", text, labels, registry=registry)

        def seconds(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            name = f"memory_bank_{name}_seconds"
            return Histogram(name, f"Seconds {text}.", labels, buckets=buckets, registry=registry)

        def gauge(name: str, text: str, *labels: str, mode: Any = "livesum") -> Gauge:
            return Gauge(f"memory_bank_{name}", text, labels, registry=registry, multiprocess_mode=mode)

        self.requests = counter("requests", "Requests answered.", "method", "route", "status")
        self.request_seconds = seconds("request", "from a request to the end of its answer", _SLOW, "route")
        self.first_byte_seconds = seconds(
            "first_byte", "from a request to the first byte of its answer", _SLOW, "route"
        )
        self.running = gauge("requests_running", "Requests in progress.")
        self.step_seconds = seconds("step", "that memory took for one step", _FAST)
        self.tokens = counter("tokens", "Tokens of requests: as they came, and of all that was sent.", "kind")
        self.memory = counter("memory", "Model calls by what memory did.", "status")
        self.without = counter("without_memory", "Model calls that went without memory.", "reason")
        self.usage = counter("model_tokens", "Tokens by the provider's usage reports.", "kind")
        self.cost = counter("model_cost", "Cost of model calls: of the full history, and as sent.", "kind")
        self.untold = counter("untold_costs", "Model calls whose cost is not known.", "reason")
        self.sessions = gauge("sessions_held", "Sessions held in memory.")
        self.database_errors = counter("database_errors", "Database operations that failed.")
        self.upstream_errors = counter("upstream_errors", "Requests without a response from upstream.")
        gauge("build_info", "Version of memory_bank.", "version", mode="max").labels(__version__).set(1)
        for kind in ("full", "sent"):
            self.tokens.labels(kind)

    def scrape(self, waiting: tuple[int, float] | None) -> bytes:
        """All metrics in Prometheus' text format.

        ``waiting``: the records that wait for the Observer in the whole bank, and the age of the oldest in seconds;
        None where the database is unavailable.
        """
        counted, state = self._registry, CollectorRegistry()
        if os.environ.get(SHARED):
            counted = CollectorRegistry()
            MultiProcessCollector(counted)  # type: ignore[no-untyped-call]
        state.register(_State(waiting))
        return generate_latest(counted) + generate_latest(state)


class _State(NamedTuple):
    """Whether the database answers and what waits in it, as it is passed to ``scrape``."""

    waiting: tuple[int, float] | None

    def collect(self) -> Iterator[Metric]:
        up = float(self.waiting is not None)
        yield GaugeMetricFamily("memory_bank_database_up", "Whether the database answers.", up)
        if self.waiting is not None:
            count, oldest = self.waiting
            yield GaugeMetricFamily("memory_bank_queue_records", "Records that wait for the Observer.", count)
            yield GaugeMetricFamily("memory_bank_queue_oldest_seconds", "Age of the oldest of them.", oldest)


def forget_worker(pid: int, folder: str) -> None:
    """Remove a dead worker's gauges; its counters stay."""
    mark_process_dead(pid, folder)  # type: ignore[no-untyped-call]
