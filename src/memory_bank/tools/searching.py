"""search_memory: the records that hold a query to the letter, then those that are similar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memory_bank.bank.retrieval import raw_data
from memory_bank.context.fetched import GET_RECORD, SEARCH_MEMORY, is_memory_tool
from memory_bank.context.render import fence
from memory_bank.errors import EmbeddingError
from memory_bank.ports import WiderScopePort
from memory_bank.provenance.check import index_of
from memory_bank.provenance.identifiers import identifiers_in, normal
from memory_bank.records import Insight, InteractionRecord, Ranking
from memory_bank.tools.answers import Answer, check_names, figures, of_session
from memory_bank.tools.selection import Nothing, Refused
from memory_bank.transcript.jsontext import compact
from memory_bank.transcript.shortening import cut_at_edge, shorten

TOP_K = 5
_MOST = 20
_WIDE = 200  # where several sessions are searched, so many records are ranked
_EXCERPT = 700


def search(state: Any, given: Mapping[str, Any], room: int) -> Answer:
    """The answer to ``search_memory``. Raises Refused."""
    check_names(given, ("query", "top_k"), SEARCH_MEMORY)
    query = str(given.get("query") or "").strip()
    if not query:
        raise Refused("search_memory needs a query: words, or an id that you look for.")
    top_k = _number(given.get("top_k"))
    wider: WiderScopePort | None = state.wider
    size: int = state.fact_store.size() if wider is None else wider.size()
    if not size:
        raise Nothing("No tool output is stored in this session yet.")
    exact = _exact(state, query)
    similar, trouble = _similar(state, query)
    scores = {(h.session_id, h.trace_id): h.score for h in similar}
    ranked = list(dict.fromkeys([*((None, t) for t in exact), *scores]))
    found: list[_Found] = []
    for start in range(0, len(ranked), 50):
        for one in _fetched(state, wider, ranked[start : start + 50]):
            if not is_memory_tool(one.record.tool_name, one.record.output_text):
                found.append(one)
        if len(found) >= top_k:
            break
    if not found:
        raise Nothing(f"Nothing was found for {compact(query[:80])}{trouble}.")
    found = found[:top_k]
    excerpt = min(_EXCERPT, max(80, room // len(found) - 400))
    own = [f.record.trace_id for f in found if f.session_id is None]
    summaries = state.insight_store.get_insights(own) if state.insight_store else {}
    blocks = []
    for i, f in enumerate(found, 1):
        r, where = f.record, f.session_id
        holds = exact.get(r.trace_id) if where is None else None
        why = f"similarity {scores[where, r.trace_id]:.2f}" if holds is None else f"holds {holds}"
        insight = summaries.get(r.trace_id) if where is None else f.insight
        lines = [
            f"[{i}] trace_id {r.trace_id}, {r.tool_name}, step {r.step_id}{of_session(where)}, {why}",
            f"arguments: {shorten(r.raw_input, 200).text}",
        ]
        if insight is not None:
            lines.append(f"summary: {cut_at_edge(insight.summary, excerpt, marked=True)}")
        lines.append(f"output: {raw_data(r, excerpt).text}")
        blocks.append("\n".join(lines))
    told = f"{len(found)} of {len(ranked) if wider is None else size:,} records{trouble}"
    note = f"[{told}. An output exactly: {GET_RECORD} with its trace_id.]"
    told_of = [
        figures(f.record, f.session_id, score=None if score is None else round(score, 4))
        for f in found
        for score in [scores.get((f.session_id, f.record.trace_id))]
    ]
    return Answer(fence("\n\n".join(blocks)) + f"\n{note}", records=tuple(told_of))


@dataclass(frozen=True, slots=True)
class _Found:
    """A record found; of another session with that and its insight."""

    record: InteractionRecord
    session_id: str | None = None
    insight: Insight | None = None


def _fetched(
    state: Any, wider: WiderScopePort | None, places: Sequence[tuple[str | None, str]]
) -> list[_Found]:
    """The records at ``(session_id or None, trace_id)``, in that order."""
    at: dict[tuple[str | None, str], _Found] = {
        (None, r.trace_id): _Found(r) for r in state.fact_store.get_many([t for s, t in places if s is None])
    }
    others = [(s, t) for s, t in places if s is not None]
    if wider is not None and others:
        at.update(((s, t), _Found(r, s, i)) for (s, t), (r, i) in wider.entries(others).items())
    return [at[place] for place in places if place in at]


def _number(value: Any) -> int:
    try:
        return max(1, min(_MOST, int(value))) if value is not None else TOP_K
    except (TypeError, ValueError, OverflowError):
        raise Refused(f"top_k is a whole number from 1 to {_MOST}.") from None


def _exact(state: Any, query: str) -> dict[str, str]:
    """The records that hold the query, or an identifier of it, to the letter, with the place."""
    index = index_of(state)
    found: dict[str, str] = {}
    with index.lock:
        wanted = [query, *(token for token, _, _ in identifiers_in(query))]
        for text in dict.fromkeys(normal(w) for w in wanted if len(w) <= 200):
            for source in index.holders(text, _MOST):
                own = source.role == "record" and source.session_id is None  # others' are found by similarity
                if own and source.trace_id is not None and source.trace_id not in found:
                    place = source.place_of(text)
                    found[source.trace_id] = f'"{text}" at {place}' if place else f'"{text}"'
    return found


def _similar(state: Any, query: str) -> tuple[Ranking, str]:
    nothing = Ranking([], [])
    if state.insight_store is None:
        return nothing, "; without an embedder only exact words are found"
    try:
        if state.wider is not None:
            return state.wider.rank(query, limit=_WIDE), ""
        return state.insight_store.rank(query), ""
    except EmbeddingError:
        return nothing, "; the embedder failed, so only exact words were looked for"
