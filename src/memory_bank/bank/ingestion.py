"""Tool outputs as records; records stored in both stores, facts before insights."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from memory_bank.bank.retrieval import check_stores
from memory_bank.bank.stores import FactStore, InsightStore
from memory_bank.config import MemoryBankSettings
from memory_bank.models.observer import Observer
from memory_bank.records import InteractionRecord
from memory_bank.transcript.messages import Interaction

log = logging.getLogger("memory_bank.Ingestion")


def ingest_tool_outputs(
    tool_outputs: Sequence[tuple[str, Any, Any]],
    user_query: str,
    fact_store: FactStore,
    insight_store: InsightStore,
    llm_client: Any,
    observer_model: str,
    step_id: int,
) -> list[str]:
    """Store the tool outputs ``(tool_name, raw_input, raw_output)`` of one step; return their trace_ids.

    Each output becomes a record and gets one Observer call; the calls run concurrently, after the records are
    committed. A model that fails leaves an extractive summary. Raises RecordError, StorageError,
    EmbeddingError, and ConfigError for a client or a store that cannot be used.
    """
    check_stores(fact_store, insight_store)
    records = [
        InteractionRecord.create(step_id=step_id, tool_name=name, raw_input=raw_input, raw_output=raw_output)
        for name, raw_input, raw_output in tool_outputs
    ]
    observer = Observer.create(llm_client, MemoryBankSettings(observer_model=observer_model))
    fact_store.store_many(records)
    insight_store.add_many(observer.observe_all(records, user_query))
    log_ingested(records)
    return [r.trace_id for r in records]


def log_ingested(records: Iterable[InteractionRecord]) -> None:
    """Log each record that was stored, for debugging."""
    for record in records:
        log.debug("Ingested tool %r -> trace_id=%s", record.tool_name, record.trace_id)


def records_of(
    interactions: Iterable[Interaction], stored: Mapping[str, int], last_step: int
) -> tuple[list[InteractionRecord], int]:
    """The records of interactions that are not among those ``stored``, and the step of the latest.

    Each new interaction is a step; a late result belongs to the step of its interaction.
    """
    records: list[InteractionRecord] = []
    for interaction in interactions:
        ids = (*interaction.trace_ids, *interaction.earlier_ids)
        known = next((stored[t] for t in ids if t is not None and t in stored), None)
        step = last_step + 1 if known is None else known
        new = [
            pair.record(trace_id, step)
            for pair, trace_id in zip(interaction.pairs, interaction.trace_ids, strict=True)
            if pair.result is not None and trace_id is not None and trace_id not in stored
        ]
        if new and known is None:
            last_step += 1
        records += new
    return records, last_step
