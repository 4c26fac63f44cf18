"""The documented functions that store tool outputs and retrieve them: as records, as values, as text."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from memory_bank.bank.stores import FactStore, InsightStore
from memory_bank.config import MemoryBankSettings
from memory_bank.errors import ConfigError
from memory_bank.models.observer import Observer
from memory_bank.ports import LLMClient
from memory_bank.records import NAMESPACE_END, Hit, InteractionRecord
from memory_bank.transcript.messages import Interaction, content_text, read, readable_output
from memory_bank.transcript.quoting import Mark, one_line, quote_lines
from memory_bank.transcript.shortening import Shortened, shorten
from memory_bank.transcript.transcript import View

log = logging.getLogger("memory_bank.Retrieval")
ingestion_log = logging.getLogger("memory_bank.Ingestion")

_TASK_CHARS = 1_500
_ACTION_CHARS = 900


def ingest_tool_outputs(
    tool_outputs: Sequence[tuple[str, Any, Any]],
    user_query: str,
    fact_store: FactStore,
    insight_store: InsightStore,
    llm_client: LLMClient | None,
    observer_model: str,
    step_id: int,
) -> list[str]:
    """Store the tool outputs ``(tool_name, raw_input, raw_output)`` of one step; return their trace_ids.

    Each output becomes a record and gets one Observer call; the calls run concurrently, after the records are
    committed. A model that fails leaves an extractive summary. Raises RecordError, StorageError,
    EmbeddingError, and ConfigError for a client or a store that cannot be used.

    Example:
        >>> outputs = extract_tool_outputs(messages)
        >>> len(ingest_tool_outputs(outputs, "Find it", FactStore(), InsightStore("lexical"), None, "extractive", 1))
        1
    """
    check_stores(fact_store, insight_store)
    records = [
        InteractionRecord.create(step_id=step_id, tool_name=name, raw_input=raw_input, raw_output=raw_output)
        for name, raw_input, raw_output in tool_outputs
    ]
    observer = Observer.create(llm_client, MemoryBankSettings(observer_model=observer_model))
    fact_store.store_many(records)
    insight_store.add_many(observer.observe_all(records, user_query), records=records)
    log_ingested(records)
    return [r.trace_id for r in records]


def log_ingested(records: Iterable[InteractionRecord]) -> None:
    """Log each record that was stored, for debugging."""
    for record in records:
        ingestion_log.debug("Ingested tool %r -> trace_id=%s", record.tool_name, record.trace_id)


def records_of(
    interactions: Iterable[Interaction], stored: Mapping[str, int], last_step: int
) -> tuple[list[InteractionRecord], int]:
    """The records of interactions that are not ``stored``, a step for each, and the step of the latest."""
    records: list[InteractionRecord] = []
    for interaction in interactions:
        ids = (*interaction.trace_ids, *interaction.earlier_ids)
        step_known = next((stored[t] for t in ids if t is not None and t in stored), None)
        step = last_step + 1 if step_known is None else step_known
        new = [
            pair.record(trace_id, step)
            for pair, trace_id in zip(interaction.pairs, interaction.trace_ids, strict=True)
            if pair.result is not None and trace_id is not None and trace_id not in stored
        ]
        if new and step_known is None:
            last_step += 1
        records += new
    return records, last_step


@dataclass(frozen=True, slots=True)
class Retrieved:
    """A retrieved record."""

    trace_id: str
    summary: str
    raw: Shortened
    score: float

    def as_dict(self) -> dict[str, str]:
        """The documented form: trace_id, summary, raw_data."""
        return {"trace_id": self.trace_id, "summary": self.summary, "raw_data": self.raw.text}


def retrieve_and_format(
    query: str, fact_store: FactStore, insight_store: InsightStore, top_k: int = 3, max_chars: int = 2_000
) -> list[dict[str, str]]:
    """The ``top_k`` records that fit a query best: ``[{"trace_id", "summary", "raw_data"}]``, best first.

    ``raw_data`` has at most ``max_chars`` characters; a shortened text ends with a mark and the trace_id.
    Raises ConfigError where a store is none, EmbeddingError, StorageError.

    Example:
        >>> found = retrieve_and_format("late orders", state.fact_store, state.insight_store, top_k=1)
        >>> found[0]["raw_data"]
        '{"order": "ORD-1", "due": "2026-03-01", "note": "late"}'
    """
    check_stores(fact_store, insight_store)
    ranking = insight_store.rank(query, limit=max(0, top_k))
    return [r.as_dict() for r in retrieve(ranking, fact_store, insight_store, top_k, max_chars)]


def check_stores(fact_store: object, insight_store: object) -> None:
    """Raises ConfigError unless the first is a fact store and the second an insight store."""
    stores = ("fact store", fact_store, "get_many"), ("insight store", insight_store, "get_insights")
    for title, store, method in stores:
        if not callable(getattr(store, method, None)):
            raise ConfigError(
                f"the {title} is a {type(store).__name__}: the arguments are in the order fact_store, insight_store, "
                "as a FactStore and an InsightStore."
            )


def retrieve(
    ranking: Sequence[Hit],
    fact_store: FactStore,
    insight_store: InsightStore,
    top_k: int,
    max_chars: int,
    cache: dict[tuple[str, int], Shortened] | None = None,
) -> list[Retrieved]:
    """The first ``top_k`` of a ranking with summary and raw data. ``cache`` holds raw data already shortened."""
    hits = ranking[: max(0, top_k)]
    cache = {} if cache is None else cache
    ids = [h.trace_id for h in hits]
    for record in fact_store.get_many([t for t in ids if (t, max_chars) not in cache]):
        cache[record.trace_id, max_chars] = raw_data(record, max_chars)
    insights = insight_store.get_insights(ids)
    retrieved = []
    for trace_id, score, *_ in hits:
        raw, insight = cache.get((trace_id, max_chars)), insights.get(trace_id)
        if raw is not None and insight is not None:  # else its fact is gone
            retrieved.append(Retrieved(trace_id, insight.summary, raw, score))
    log.debug("retrieved %d records", len(retrieved))
    return retrieved


def raw_data(record: InteractionRecord, max_chars: int) -> Shortened:
    """The raw output of a record in at most ``max_chars`` characters, cut by its structure."""
    value, text = readable_output(record)
    return shorten(value, max_chars, text=text, trace_id=record.trace_id)


def format_retrieved_memory(records: Sequence[dict[str, Any]]) -> str:
    """The documented text of retrieved records, "" without any.

    Lines of their data that look like the frame of this text get a backslash, so that a tool cannot forge a
    record.

    Example:
        >>> print(format_retrieved_memory([{"trace_id": "t1", "summary": "It is late.", "raw_data": "ORD-1"}]))
        ## Retrieved Context from Previous Steps
        <BLANKLINE>
        [RETRIEVED RECORD 1]
        Summary: It is late.
        Raw Data: ORD-1
        -------------------
    """
    blocks = [f"{Mark.CLASSIC}\n"] if records else []
    for i, record in enumerate(records, 1):
        blocks += [
            f"{Mark.CLASSIC_RECORD}{i}]\n{Mark.CLASSIC_SUMMARY}{quote_lines(record['summary'])}\n"
            f"{Mark.CLASSIC_DATA}{quote_lines(record['raw_data'])}\n{Mark.CLASSIC_RULE}"
        ]
    return "\n".join(blocks)


def session_name(session_id: str) -> str:
    """A session's name for texts: on one line, without the namespace of a service."""
    return one_line(session_id.rpartition(NAMESPACE_END)[2])


def query_of_view(view: View, kind: Literal["fixed", "task", "adaptive"], fixed: str) -> str:
    """The query: the ``fixed`` sentence, also without a task; the task; or it and the latest actions."""
    if kind == "fixed":
        return fixed
    query = view.task[:_TASK_CHARS].strip()
    if kind == "adaptive" and view.tail is not None:
        tail = view.tail
        actions = [tail.remark, *(f"{p.tool_name} {p.call.text}" for p in tail.pairs if p.call)]
        actions += [content_text(read(m, "content")) for m in view.messages[tail.stop :]]
        query = f"{query}\n{' '.join(' '.join(actions).split())[:_ACTION_CHARS]}"
    return query.strip() or fixed
