"""Conversations with a service's memory, as its proxy has them, without the proxy."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import sqlalchemy as sa
from tests.chats import call, result

from memory_bank.bank.database import Database
from memory_bank.bank.schema import sessions
from memory_bank.bank.stores import FactStore
from memory_bank.config import Config
from memory_bank.service.proxy.api import RequestHistory
from memory_bank.service.proxy.body import Body
from memory_bank.service.proxy.exchange import Exchange
from memory_bank.service.proxy.identity import Identity, SessionMatch, looks_random
from memory_bank.service.security.access import stored_id
from memory_bank.service.sessions import Sessions

MASKED = "[masked]"
Messages = list[dict[str, Any]]


def configured() -> Config:
    bank = {
        "type": "memory_bank",
        "embedding_model": "lexical",
        "observer_model": "extractive",
        "selection": "top_k",
    }
    return Config(memory_strategies={"bank": bank}, default_strategy="bank", service={"strategy": "bank"})


class World:
    """A service's memory: requests find their session, contexts are rebuilt in it."""

    def __init__(self, where: Database | str = "", namespace: str | None = None) -> None:
        self.database = where if isinstance(where, Database) else Database(where)
        self.identity = Identity(self.database)
        self.sessions = Sessions(self.database, configured())
        self.namespace = namespace

    def ask(
        self, messages: Messages, key: str | None = "sk-1", headers: Any = None, **body: Any
    ) -> SessionMatch | None:
        """As the proxy does it: find the session, rebuild in it, look whether it is still there."""
        messages = json.loads(json.dumps(messages))
        for _ in range(20):
            found = self.find(messages, key, headers, **body)
            if found is None:
                return None
            self.sessions.rebuild(self.namespace, found.name, messages)
            if self.identity.is_current(self.namespace, found):
                return found
        raise AssertionError("never at rest")

    def find(
        self, messages: Messages, key: str | None = "sk-1", headers: Any = None, **body: Any
    ) -> SessionMatch | None:
        exchange = Exchange(
            "POST",
            self.namespace,
            upstream_key=key,
            client_headers=headers or {},
            body=Body(b"", body),
        )
        for _ in range(20):
            found = self.identity.session_of(exchange, RequestHistory(list(messages)))
            if found is None or found.write is None:
                return found
            if self.database.submit(found.write, stored_id(self.namespace, found.name)):
                return found
        raise AssertionError("never at rest")

    def records(self, name: str) -> list[tuple[str | None, str | None]]:
        """(call id, output) of all records that the session shows, oldest first."""
        store = FactStore(self.database, stored_id(self.namespace, name))
        return [(r.call_id, r.output_text) for r in store.get_many(list(store.steps()))]

    def outputs(self, found: SessionMatch | None) -> list[str | None]:
        assert found is not None
        return [output for _, output in self.records(found.name)]

    def count(self) -> int:
        """How many sessions there are."""
        with self.database.read() as c:
            return c.execute(sa.select(sa.func.count()).select_from(sessions)).scalar_one()

    def close(self) -> None:
        self.sessions.close()
        self.database.close()


def random_id(n: object) -> str:
    """An id as providers make them, the same for the same ``n``."""
    for salt in range(9):
        made = f"call_{hashlib.sha256(f'{n}/{salt}'.encode()).hexdigest()[:24]}"
        if looks_random(made):
            return made
    raise AssertionError


def turn(call_id: str, output: str, tool: str = "count_items") -> Messages:
    """An interaction with one call."""
    return [call((call_id, tool, {"of": "all"})), result(call_id, output)]


def masked(messages: Messages, *ids: str) -> Messages:
    """With the results of some calls masked."""
    return [{**m, "content": MASKED} if m.get("tool_call_id") in ids else m for m in messages]
