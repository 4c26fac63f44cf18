"""The write way: tool outputs to records, records to facts, facts to insights; facts first."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from memory_bank.models.chat import as_chat_model
from memory_bank.models.observer import EXTRACTIVE, Observer
from memory_bank.ports import FactStorePort, InsightStorePort
from memory_bank.records import InteractionRecord
from memory_bank.transcript.own import is_memory_tool

log = logging.getLogger("memory_bank.Ingestion")

_AT_ONCE = 16  # records observed and stored together when insights are made again


def ingest_tool_outputs(
    tool_outputs: Sequence[tuple[str, Any, Any]],
    user_query: str,
    fact_store: FactStorePort,
    insight_store: InsightStorePort,
    llm_client: Any,
    observer_model: str,
    step_id: int,
) -> list[str]:
    """Store ``(tool_name, raw_input, raw_output)`` of one step in both stores; returns their trace_ids.

    Every output becomes a record of its own and gets one Observer call, parallel ones concurrently. The
    records are committed before the Observer is asked. Raises RecordError, StorageError, EmbeddingError,
    ConfigError (a client that cannot be used); a failing model raises nothing.
    """
    records = [
        InteractionRecord.create(step_id=step_id, tool_name=name, raw_input=raw_input, raw_output=raw_output)
        for name, raw_input, raw_output in tool_outputs
    ]
    observer = Observer(None if observer_model == EXTRACTIVE else as_chat_model(llm_client), observer_model)
    fact_store.store_many(records)
    insight_store.add_many(observer.observe_all(records, user_query))
    log.debug("ingested %d tool outputs of step %d", len(records), step_id)
    return [r.trace_id for r in records]


def observe_again(
    fact_store: FactStorePort, insight_store: InsightStorePort, observer: Observer, user_query: str
) -> tuple[int, int]:
    """Make the insights again that are marked for it, and those that are missing (none for our own tools).

    Returns how many were made and how many of them still carry a mark.
    """
    with_insight = set(insight_store.trace_ids())
    wanted = [i.trace_id for i in insight_store.to_redo()]
    wanted += [t for t in fact_store.steps() if t not in with_insight]
    made = marked = 0
    for start in range(0, len(wanted), _AT_ONCE):  # stored as they come: a stop loses no paid call but these
        found = fact_store.get_many(wanted[start : start + _AT_ONCE])
        batch = [r for r in found if not is_memory_tool(r.tool_name, r.output_text)]
        insights = observer.observe_all(batch, user_query)
        insight_store.add_many(insights)
        made += len(insights)
        marked += sum(1 for i in insights if i.redo)
    return made, marked
