"""The banks of these tests: in memory, in a file and in PostgreSQL, closed after each test."""

import threading
from contextlib import contextmanager

import pytest
import sqlalchemy
from sqlalchemy.engine import Engine
from tests.contracts.insights import NumbersEmbedder, NumbersStore

from memory_bank import MemoryBankSettings, MemoryBankState
from memory_bank.bank.database import Database
from memory_bank.bank.stores import FactStore


def local(**more):
    """Settings of a memory that asks no model."""
    plain = {"embedding_model": "lexical", "observer_model": "extractive", "token_encoding": "approximate"}
    return MemoryBankSettings(**{**plain, **more})


class Bank:
    """Opens databases of one bank, each as another process would; in memory there is but one."""

    def __init__(self, url):
        self.url = url
        self.open: list[Database] = []

    def database(self):
        if self.url or not self.open:
            self.open.append(Database(self.url))
        return self.open[-1]

    def facts(self, session_id="default"):
        return FactStore(self.database(), session_id)

    def store(self, session_id="default", project=None):
        database = self.database()
        database.open_session(session_id, project)
        return NumbersStore(NumbersEmbedder(), database, session_id)

    def state(self, session_id, project=None):
        return MemoryBankState("lexical", database=self.database(), session_id=session_id, project=project)

    def close(self):
        for database in self.open:
            database.close()


class Clock:
    """Says the time that a test sets."""

    def __init__(self):
        self.now = 4_000_000_000.0  # ahead of any real one

    def __call__(self):
        return self.now


@pytest.fixture(params=["memory", "SQLite", "PostgreSQL"])
def bank(request, tmp_path):
    url = {"memory": "", "SQLite": f"sqlite:///{tmp_path / 'bank.db'}"}.get(request.param)
    bank = Bank(request.getfixturevalue("postgres_url") if url is None else url)
    yield bank
    bank.close()


@pytest.fixture
def database(bank_url):
    """A database in a file; in long runs also one in PostgreSQL."""
    database = Database(bank_url)
    yield database
    database.close()


@contextmanager
def counted_commits():
    """The names of the threads that commit a transaction meanwhile, one for each."""
    commits = []

    def count(_):
        commits.append(threading.current_thread().name)

    sqlalchemy.event.listen(Engine, "commit", count)
    yield commits
    sqlalchemy.event.remove(Engine, "commit", count)
