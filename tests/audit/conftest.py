"""The room's own traces, and a counter that needs no vocabulary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memory_bank.audit.traces import Trace, message_texts, read_traces
from memory_bank.config import Config

ORDERS = Path(__file__).parent / "orders.jsonl"


class QuarterCounter:
    """Four characters a token, four tokens a frame: what the reference meter counts without tiktoken."""

    name = "quarter"
    approximate = True

    def count_text(self, text: str) -> int:
        return len(text) // 4

    def count_message(self, message: Any) -> int:
        return 4 + sum(map(self.count_text, message_texts(message)))


@pytest.fixture
def counter() -> QuarterCounter:
    return QuarterCounter()


@pytest.fixture(scope="session")
def traces() -> list[Trace]:
    found = [t for t in read_traces(ORDERS) if isinstance(t, Trace)]
    assert len(found) == 10
    return found


@pytest.fixture(scope="session")
def config() -> Config:
    local = {"type": "memory_bank", "embedding_model": "lexical", "observer_model": "extractive"}
    return Config(memory_strategies={"local": local, "none": {"type": "no_strategy"}})
