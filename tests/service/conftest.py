"""What the tests of the service share."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from memory_bank.config import Config

# Without the extras service and mcp there is nothing to test here.
if not all(
    map(find_spec, ("fastapi", "uvicorn", "httpx2", "mcp", "opentelemetry", "prometheus_client", "regex"))
):
    collect_ignore_glob = ["test_*.py", "*/test_*.py"]


@pytest.fixture
def configured(tmp_path: Path) -> Callable[..., Config]:
    """``configured(strategies=…, **service)``: as that of ``serving``, with a database and an upstream."""
    from tests.service import serving

    settings = {"database": str(tmp_path / "bank.db"), "upstream": "http://127.0.0.1:9/v1"}
    return lambda strategies=None, **service: serving.configured(strategies, **{**settings, **service})


@pytest.fixture
def held() -> Iterator[Any]:
    """An upstream that keeps each request until it is let go."""
    from tests.service.proxied import Held

    with Held() as upstream:
        yield upstream


class Lines(logging.Handler):
    """Log records as they came."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def told() -> Iterator[list[logging.LogRecord]]:
    """The records of our loggers, from DEBUG on."""
    ours, handler = logging.getLogger("memory_bank"), Lines()
    level = ours.level
    ours.addHandler(handler)
    ours.setLevel(logging.DEBUG)
    yield handler.records
    ours.removeHandler(handler)
    ours.setLevel(level)
