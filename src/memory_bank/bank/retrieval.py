"""Ranked records with their summaries and their raw data, shortened; the documented text of them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from memory_bank.bank.stores import FactStore, InsightStore, WiderScope
from memory_bank.errors import ConfigError
from memory_bank.records import NAMESPACE_END, Hit, InteractionRecord
from memory_bank.transcript.messages import content_text, read, readable_output
from memory_bank.transcript.quoting import quote_lines
from memory_bank.transcript.shortening import Shortened, shorten
from memory_bank.transcript.transcript import View

log = logging.getLogger("memory_bank.Retrieval")

HEADING = "## Retrieved Context from Previous Steps"
_RULE = "-------------------"
_TASK_CHARS = 1_500
_ACTION_CHARS = 900


@dataclass(frozen=True, slots=True)
class Retrieved:
    """A retrieved record: its summary, its raw data as shown, whether that is shortened, and its score.

    For a record of another session ``session_id`` names it and ``record`` is the record; else both are None.
    """

    trace_id: str
    summary: str
    raw_data: str
    score: float
    cut: bool
    whole_chars: int
    session_id: str | None = None
    record: InteractionRecord | None = None

    def as_dict(self) -> dict[str, str]:
        """The documented form: trace_id, summary, raw_data; session_id only for a record of another session."""
        found = {"trace_id": self.trace_id, "summary": self.summary, "raw_data": self.raw_data}
        return found if self.session_id is None else {**found, "session_id": self.session_id}


def retrieve_and_format(
    query: str,
    fact_store: FactStore,
    insight_store: InsightStore,
    top_k: int,
    max_chars: int,
) -> list[dict[str, str]]:
    """The ``top_k`` records most similar to a query: ``[{"trace_id", "summary", "raw_data"}]``, best first.

    ``raw_data`` has at most ``max_chars`` characters; a shortened text ends with a note and the trace_id.
    Raises ConfigError where a store is none, EmbeddingError, StorageError.
    """
    check_stores(fact_store, insight_store)
    ranking = insight_store.rank(query, limit=max(0, top_k))
    return [r.as_dict() for r in retrieve(ranking, fact_store, insight_store, top_k, max_chars)]


def check_stores(fact_store: object, insight_store: object) -> None:
    """Raises ConfigError unless the first is a fact store and the second an insight store."""
    for what, given, method in (
        ("fact store", fact_store, "get_many"),
        ("insight store", insight_store, "get_insights"),
    ):
        if not callable(getattr(given, method, None)):
            raise ConfigError(
                f"the {what} is a {type(given).__name__}: the arguments are in the order fact_store, insight_store, "
                "as a FactStore and an InsightStore."
            )


def retrieve(
    ranking: Sequence[Hit],
    fact_store: FactStore,
    insight_store: InsightStore,
    top_k: int,
    max_chars: int,
    cache: dict[tuple[str, int], Shortened] | None = None,
    wider: WiderScope | None = None,
) -> list[Retrieved]:
    """The first ``top_k`` of a ranking with summary and raw data. ``cache`` holds raw data already shortened.

    ``wider`` is the scope that made a ranking over several sessions; other sessions' records are not cached.
    """
    hits = list(ranking[: max(0, top_k)])
    cache = {} if cache is None else cache
    own = [h.trace_id for h in hits if h.session_id is None]
    for record in fact_store.get_many([t for t in own if (t, max_chars) not in cache]):
        cache[record.trace_id, max_chars] = raw_data(record, max_chars)
    insights = insight_store.get_insights(own)
    elsewhere = [(h.session_id, h.trace_id) for h in hits if h.session_id is not None]
    others = wider.entries(elsewhere) if wider is not None and elsewhere else {}
    found = []
    for hit in hits:
        if hit.session_id is not None:
            other, insight = others.get((hit.session_id, hit.trace_id), (None, None))
            shown = None if other is None else raw_data(other, max_chars)
        else:
            other, insight = None, insights.get(hit.trace_id)
            shown = cache.get((hit.trace_id, max_chars))
        if shown is not None and insight is not None:  # else its fact is gone
            of = (hit.trace_id, insight.summary, shown.text, hit.score, shown.cut, shown.whole)
            found.append(Retrieved(*of, hit.session_id, other))
    log.debug("retrieved %d records", len(found))
    return found


def raw_data(record: InteractionRecord, max_chars: int) -> Shortened:
    """The raw output of a record in at most ``max_chars`` characters, cut by its structure."""
    value, text = readable_output(record)
    return shorten(value, max_chars, text=text, trace_id=record.trace_id)


def format_retrieved_memory(records: Sequence[dict[str, Any]]) -> str:
    """The documented text of retrieved records; for one with a ``session_id`` it names the session.

    Lines of their data that look like the frame of this text get a backslash, so that a tool cannot forge a
    record.
    """
    blocks = [f"{HEADING}\n"]
    for i, record in enumerate(records, 1):
        session = record.get("session_id")
        origin = "" if session is None else f"(session {session_name(session)}) "
        blocks += [
            f"[RETRIEVED RECORD {i}]\nSummary: {origin}{quote_lines(record['summary'])}\n"
            f"Raw Data: {quote_lines(record['raw_data'])}\n{_RULE}"
        ]
    return "\n".join(blocks)


def session_name(session_id: str) -> str:
    """A session's name for texts: on one line, without the namespace of a service."""
    return " ".join(session_id.rpartition(NAMESPACE_END)[2].split())


def query_of_view(view: View, kind: Literal["fixed", "task", "adaptive"], fixed: str) -> str:
    """What to search for at a step: the ``fixed`` sentence, the task, or the task and the latest actions.

    ``fixed`` is also used where there is no task.
    """
    if kind == "fixed":
        return fixed
    query = view.task[:_TASK_CHARS].strip()
    if kind == "adaptive" and view.tail is not None:
        tail = view.tail
        actions = [tail.note, *(f"{p.tool_name} {p.call.text}" for p in tail.pairs if p.call)]
        actions += [content_text(read(m, "content")) for m in view.messages[tail.stop :]]
        query = f"{query}\n{' '.join(' '.join(actions).split())[:_ACTION_CHARS]}"
    return query.strip() or fixed
