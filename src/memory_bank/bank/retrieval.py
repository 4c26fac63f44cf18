"""The read way: a query to ranked records, each with its summary and its raw data, shortened."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memory_bank.ports import FactStorePort, InsightStorePort, WiderScopePort
from memory_bank.records import NAMESPACE_END, Hit, InteractionRecord, Ranking
from memory_bank.transcript.interactions import Interaction
from memory_bank.transcript.shortening import Shortened, shorten

log = logging.getLogger("memory_bank.Retrieval")

HEADING = "## Retrieved Context from Previous Steps"
_RULE = "-------------------"
_MIMICRY = re.compile(
    r"^(?=\s*(?:\[RETRIEVED RECORD|-{19}|## Retrieved Context|(?:Summary|Raw Data): ))", re.M
)
_TASK_CHARS = 1_500
_DOING_CHARS = 900


@dataclass(frozen=True, slots=True)
class Retrieved:
    """A record brought back: summary, raw data as shown, whether that was shortened, and its score.

    ``session_id`` names another session that it is of, ``record`` is then the record; both None for its own.
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
        """The documented form: trace_id, summary, raw_data; session_id, where it is another session's."""
        told = {"trace_id": self.trace_id, "summary": self.summary, "raw_data": self.raw_data}
        return told if self.session_id is None else {**told, "session_id": self.session_id}


def retrieve_and_format(
    query: str,
    fact_store: FactStorePort,
    insight_store: InsightStorePort,
    top_k: int,
    max_chars: int,
) -> list[dict[str, str]]:
    """The ``top_k`` records most similar to a query: ``[{"trace_id", "summary", "raw_data"}]``, best first.

    ``raw_data`` has at most ``max_chars`` characters; what is shortened says so and carries its trace_id.
    """
    ranking = insight_store.rank(query, limit=max(0, top_k))
    return [r.as_dict() for r in retrieve(ranking, fact_store, insight_store, top_k, max_chars)]


def retrieve(
    ranking: Ranking,
    fact_store: FactStorePort,
    insight_store: InsightStorePort,
    top_k: int,
    max_chars: int,
    cache: dict[tuple[str, int], Shortened] | None = None,
    wider: WiderScopePort | None = None,
) -> list[Retrieved]:
    """The first ``top_k`` of a ranking with summary and raw data. ``cache`` keeps raw data once shortened.

    ``wider`` made the ranking, where it spans several sessions; of their records nothing is kept.
    """
    hits = list(ranking[: max(0, top_k)])
    cache = {} if cache is None else cache
    own = [h.trace_id for h in hits if h.session_id is None]
    for record in fact_store.get_many([t for t in own if (t, max_chars) not in cache]):
        cache[record.trace_id, max_chars] = raw_data(record, max_chars)
    insights = insight_store.get_insights(own)
    elsewhere = [(h.session_id, h.trace_id) for h in hits if h.session_id is not None]
    entries = wider.entries(elsewhere) if wider is not None and elsewhere else {}
    found = []
    for hit in hits:
        if hit.session_id is not None:
            other, insight = entries.get((hit.session_id, hit.trace_id), (None, None))
            if other is not None and insight is not None:
                found.append(_of_another(hit, other, insight.summary, max_chars))
            continue
        shown, insight = cache.get((hit.trace_id, max_chars)), insights.get(hit.trace_id)
        if shown is not None and insight is not None:  # else its fact is gone
            found.append(
                Retrieved(hit.trace_id, insight.summary, shown.text, hit.score, shown.cut, shown.whole)
            )
    log.debug("retrieved %d records", len(found))
    return found


def _of_another(hit: Hit, record: InteractionRecord, summary: str, max_chars: int) -> Retrieved:
    shown = raw_data(record, max_chars)
    return Retrieved(
        hit.trace_id, summary, shown.text, hit.score, shown.cut, shown.whole, hit.session_id, record
    )


def raw_data(record: InteractionRecord, max_chars: int) -> Shortened:
    """The raw output of a record in at most ``max_chars`` characters, cut by its structure."""
    return shorten(record.raw_output, max_chars, text=record.output_text, trace_id=record.trace_id)


def format_retrieved_memory(records: Sequence[dict[str, Any]]) -> str:
    """The documented text of retrieved records; one with a ``session_id`` says whose session it is of.

    Lines in their data that look like the frame of this text are set off by a backslash, so that a tool
    cannot forge another record.
    """
    blocks = [
        f"[RETRIEVED RECORD {i}]\nSummary: {_origin(r)}{_inert(r['summary'])}\n"
        f"Raw Data: {_inert(r['raw_data'])}\n{_RULE}"
        for i, r in enumerate(records, 1)
    ]
    return "\n".join([f"{HEADING}\n", *blocks])


def _origin(record: Mapping[str, Any]) -> str:
    session_id = record.get("session_id")
    return "" if session_id is None else f"(session {session_name(session_id)}) "


def session_name(session_id: str) -> str:
    """A session's name as it stands in texts: on one line, without the namespace of a service."""
    return " ".join(session_id.rpartition(NAMESPACE_END)[2].split())


def _inert(text: str) -> str:
    return _MIMICRY.sub(r"\\", text)


def retrieval_query(
    kind: str, fixed: str, task: str, tail: Interaction | None, spoken: Collection[str] = ()
) -> str:
    """What is searched for: the fixed sentence, the task, or (``adaptive``) task and latest doings.

    ``spoken`` is what was said after the last interaction.
    """
    if kind == "fixed":
        return fixed
    query = task[:_TASK_CHARS].strip()
    if kind == "adaptive" and tail is not None:
        doings = [tail.note]
        doings += [f"{p.tool_name} {p.call.text}" for p in tail.pairs if p.call]
        doings += list(spoken)
        query = f"{query}\n{' '.join(' '.join(doings).split())[:_DOING_CHARS]}"
    return query.strip() or fixed
