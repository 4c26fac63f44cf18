"""Figures for Prometheus: what they count, that workers add up, and that nothing else is in them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.parser import text_string_to_metric_families

from memory_bank.service.operations.metrics import Metrics, forget_worker

WORKER = """
import os, sys
from memory_bank.service.operations.metrics import Metrics
m = Metrics()
m.requests.labels("GET", "/x", "200").inc(int(sys.argv[1]))
m.request_seconds.labels("/x").observe(0.2)
m.sessions.set(int(sys.argv[1]))
m.tokens.labels("full").inc(100)
print(os.getpid())
if len(sys.argv) > 2:
    sys.stdout.write(m.scrape((4, 2.5)).decode())
"""


def values(text: str) -> dict[str, float]:
    found = {}
    for family in text_string_to_metric_families(text):
        for s in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sorted(s.labels.items()))
            found[f"{s.name}{{{labels}}}" if labels else s.name] = s.value
    return found


def test_one_process() -> None:
    m = Metrics()
    m.requests.labels("GET", "/x", "200").inc()
    m.memory.labels("rebuilt").inc()
    m.tokens.labels("sent").inc(7)
    m.sessions.set(3)
    m.step_seconds.observe(0.02)
    found = values(m.scrape((5, 1.5)).decode())
    assert found["memory_bank_requests_total{method=GET,route=/x,status=200}"] == 1
    assert found["memory_bank_memory_total{status=rebuilt}"] == 1
    assert found["memory_bank_tokens_total{kind=sent}"] == 7
    assert found["memory_bank_tokens_total{kind=full}"] == 0
    assert found["memory_bank_sessions_held"] == 3
    assert found["memory_bank_step_seconds_count"] == 1
    assert (found["memory_bank_queue_records"], found["memory_bank_queue_oldest_seconds"]) == (5, 1.5)
    assert found["memory_bank_database_up"] == 1
    assert not any("_created" in name for name in found)


def test_the_dashboard_asks_for_metrics_and_labels_that_there_are() -> None:
    text = (Path(__file__).parents[2] / "docs/assets/grafana.json").read_text()
    asked = [t["expr"] for panel in json.loads(text)["panels"] for t in panel["targets"]]
    m = Metrics()
    there: dict[str, set[str]] = {
        "memory_bank_queue_records": set(),
        "memory_bank_queue_oldest_seconds": set(),
    }
    there["memory_bank_database_up"] = set()
    for metric in vars(m).values():
        if isinstance(metric, MetricWrapperBase):
            name, labels = metric._name, set(metric._labelnames)
            there |= {f"{name}{end}": labels for end in ("", "_total", "_bucket")}
    for expression in asked:
        for name in re.findall(r"memory_bank_\w+", expression):
            assert name in there, expression
        labels = set(re.findall(r"by \((\w+)\)", expression)) | set(re.findall(r"{(\w+)=", expression))
        assert labels - {"le"} <= there[name], expression


def test_a_database_that_is_away() -> None:
    found = values(Metrics().scrape(None).decode())
    assert found["memory_bank_database_up"] == 0
    assert "memory_bank_queue_records" not in found


def test_two_applications_in_one_process_count_apart() -> None:
    one, two = Metrics(), Metrics()
    one.database_errors.inc()
    assert values(one.scrape(None).decode())["memory_bank_database_errors_total"] == 1
    assert values(two.scrape(None).decode())["memory_bank_database_errors_total"] == 0


@pytest.mark.long
def test_workers_add_up_and_one_that_died_holds_nothing(tmp_path: Path) -> None:
    env = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}

    def worker(*args: object) -> list[str]:
        import os

        done = subprocess.run(
            [sys.executable, "-c", WORKER, *map(str, args)], env=os.environ | env, capture_output=True, text=True,
            check=True,
        )  # fmt: skip
        return done.stdout.split("\n", 1)

    first, _ = worker(2)
    _, text = worker(5, "scrape")
    found = values(text)
    assert found["memory_bank_requests_total{method=GET,route=/x,status=200}"] == 7
    assert found["memory_bank_request_seconds_count{route=/x}"] == 2
    assert found["memory_bank_sessions_held"] == 7
    assert found["memory_bank_queue_records"] == 4
    forget_worker(int(first), str(tmp_path))
    _, text = worker(1, "scrape")
    found = values(text)
    assert found["memory_bank_requests_total{method=GET,route=/x,status=200}"] == 8
    assert found["memory_bank_sessions_held"] == 6
    assert found["memory_bank_tokens_total{kind=full}"] == 300
