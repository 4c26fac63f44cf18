"""The banks of these tests: in memory, in a file and in PostgreSQL, closed after each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contracts.insights import NumbersEmbedder

from memory_bank import MemoryBankState
from memory_bank.bank.database import Database
from memory_bank.bank.stores import FactStore, InsightStore


class Bank:
    """Opens databases of one bank, each as another process would; in memory there is but one."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.open: list[Database] = []

    def database(self) -> Database:
        if self.url or not self.open:
            self.open.append(Database(self.url))
        return self.open[-1]

    def facts(self, session_id: str = "default") -> FactStore:
        return FactStore(self.database(), session_id)

    def store(self, session_id: str = "default", agent_id: str | None = None) -> InsightStore:
        database = self.database()
        database.open_session(session_id, agent_id)
        return InsightStore(NumbersEmbedder(), database, session_id)

    def state(self, session_id: str, agent_id: str | None = None) -> MemoryBankState:
        return MemoryBankState("lexical", database=self.database(), session_id=session_id, agent_id=agent_id)

    def close(self) -> None:
        for database in self.open:
            database.close()


class Clock:
    """Says the time that a test sets."""

    def __init__(self) -> None:
        self.now = 4_000_000_000.0  # ahead of any real one

    def __call__(self) -> float:
        return self.now


@pytest.fixture(params=["memory", "SQLite", "PostgreSQL"])
def bank(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bank]:
    url = {"memory": "", "SQLite": f"sqlite:///{tmp_path / 'bank.db'}"}.get(request.param)
    bank = Bank(request.getfixturevalue("postgres_url") if url is None else url)
    yield bank
    bank.close()


@pytest.fixture
def database(bank_url: str) -> Iterator[Database]:
    """A database in a file; in long runs also one in PostgreSQL."""
    database = Database(bank_url)
    yield database
    database.close()
