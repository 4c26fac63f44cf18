"""FactStores in SQL: the contract in memory and in a file, and what is peculiar to SQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.contracts.stores import FactStoreContract, a_record

from memory_bank.bank.database import Database
from memory_bank.bank.rows import from_row, to_row
from memory_bank.bank.stores import FactStore
from memory_bank.records import InteractionRecord


class TestFactsInMemory(FactStoreContract):
    shared = True

    @pytest.fixture(autouse=True)
    def _bank(self) -> Iterator[None]:
        self.database = Database()
        yield
        self.database.close()

    def make_store(self, session_id: str = "default") -> FactStore:
        return FactStore(self.database, session_id)

    def second(self, store: FactStore) -> FactStore:
        return FactStore(self.database, store.session_id)


class TestFactsInAFile(FactStoreContract):
    durable = shared = True

    @pytest.fixture(autouse=True)
    def _bank(self, tmp_path: Path) -> Iterator[None]:
        self.file = tmp_path / "bank.db"
        self.open = [Database(self.file)]
        yield
        for database in self.open:
            database.close()

    def make_store(self, session_id: str = "default") -> FactStore:
        return FactStore(self.open[0], session_id)

    def second(self, store: FactStore) -> FactStore:
        self.open.append(Database(self.file))
        return FactStore(self.open[-1], store.session_id)

    def reopen(self, store: FactStore) -> FactStore:
        store.database.close()
        return self.second(store)


def test_a_store_alone_keeps_its_records_in_memory() -> None:
    one, two = FactStore(), FactStore()
    one.store(a_record(1))
    assert (one.size(), two.size()) == (1, 0)


any_text = st.text(st.characters(exclude_categories=()))  # lone surrogates too
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | any_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(any_text, inner, max_size=4),
    max_leaves=12,
)


@given(json_values, json_values)
def test_any_json_value_survives_the_row(raw_input: Any, raw_output: Any) -> None:
    record = InteractionRecord("t", 1, "tool", raw_input, raw_output)
    assert repr(from_row(to_row(record, "s"))) == repr(record)


@given(any_text, any_text)
def test_any_text_survives_the_database(arguments: str, output: str) -> None:
    store = FactStore()
    store.store(a_record(1, tool_name=output, input_text=arguments, output_text=output))
    found = store.get("trace-00001")
    assert found is not None
    assert (found.tool_name, found.input_text, found.output_text) == (output, arguments, output)


def test_values_nested_too_deep_for_the_parser_come_back_as_text() -> None:
    deep: Any = []
    for _ in range(10_000):
        deep = [deep]
    store = FactStore()
    store.store(a_record(1, raw_output=deep))
    found = store.get("trace-00001")
    assert found is not None
    assert found.raw_output == {"_raw": "[" * 10_001 + "]" * 10_001}
