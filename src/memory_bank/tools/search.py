"""The one search: records that fit a query by words or similarity, of a session or a wider scope."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, takewhile
from typing import Any

import numpy as np

from memory_bank.bank.listing import Outline, outlines, without_insight
from memory_bank.bank.stores import WiderScope
from memory_bank.bank.terms import Postings, bm25, heads_of, is_question, terms_of, terms_of_query
from memory_bank.errors import EmbeddingError
from memory_bank.ports import Scope
from memory_bank.records import Brief, Hit, InteractionRecord
from memory_bank.tools.matching import find, identifiers_in, normal, place_of, runs
from memory_bank.transcript.jsontext import compact

_MAX_EXACT_CHARS = 200  # longer texts are not searched for exactly
_MAX_WANTED = 20  # identifiers of a query that are searched for exactly
_MAX_EXAMINED = 400  # records without an insight that are looked at
_MAX_READ = 2 * 2**20  # bytes of an output in which a place is looked for


@dataclass(frozen=True, slots=True, repr=False)
class SearchMatch(Brief):
    """A record that was found.

    ``why`` it was: see ``Hit``; also "holds", for an output that contains the text ``holds`` exactly, at ``place``: a
    JSON path, or ``line 7``. ``score`` is how well it fits, 0 to 1. ``session_id`` is None for a record of the
    searched session, else the id of the session that has it. ``newer`` is the trace_id of the latest record of the
    same call, which returned something else. ``record`` is None where the output is over 2 MiB.
    """

    outline: Outline
    score: float
    session_id: str | None
    why: str
    holds: str | None = None
    place: str = ""
    newer: str | None = None
    record: InteractionRecord | None = None

    @property
    def reason(self) -> str:
        """Why it was found, and whether it is superseded, in words."""
        said = {"neighbour": "beside a record that fits", "similarity": "similar in meaning"}
        why = said.get(self.why, "has words of the query")
        if self.holds is not None:
            why = f'holds "{normal(self.holds)}"' + (f" at {self.place}" if self.place else "")
        newer = f"; superseded by {self.newer}, a later result of the same call" if self.newer else ""
        return why + newer


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Matches, best first; ``trouble`` is the embedder's error, where only words were compared."""

    matches: list[SearchMatch]
    trouble: EmbeddingError | None = None


def search_session(
    state: Any, query: str, top_k: int, *, scope: Scope | None = None, by_agent: bool = True
) -> SearchResult:
    """Search a session (a ``MemoryBankState``), or a ``scope``, by default the state's, for what fits a query.

    Best first, but records whose output contains the whole query before all others, then, if it is short, those that
    contain an identifier of it, and before an output the later one of the same call. ``by_agent``: the records of the
    latest step, which an agent has in view, come last. Of records without an insight the session's newest 400 are
    found, by words. Answers of our own tools are never found: they quote other records. Raises EmbedderMismatchError,
    StorageError.
    """
    if not (isinstance(query, str) and isinstance(top_k, int)):
        raise TypeError("a search takes words, a name or an id as str, and top_k as int")
    scope = scope or state.scope
    tokens = dict.fromkeys(identifiers_in(query))
    wanted = [w for w in (query, *islice(tokens, _MAX_WANTED)) if len(w) <= _MAX_EXACT_CHARS]
    forms = {normal(w): w for w in reversed(wanted)}
    step, steps = state.step_count, reversed(state.steps.items())
    last = {t for t, _ in takewhile(lambda item: item[1] == step, steps)} if by_agent else set()
    trouble, hits = None, list[Hit]()
    if (store := state.insight_store) is not None:
        ranked = partial(store.rank, query, limit=top_k + len(last), scope=scope)
        try:
            hits = ranked(only_alike=True)
        except EmbeddingError as e:
            trouble, hits = e, ranked(only_words=True)
    if store is None or store.size() != state.fact_store.size():
        hits = sorted([*hits, *_without_insight(state, query)], key=lambda hit: -hit.score)
    hits = sorted((h for h in hits if h.why), key=lambda h: h.session_id is None and h.trace_id in last)
    found = [_with_place(match, forms) for match in _loaded(state, scope, _newest_first(hits)[:top_k])]
    whole_query = wanted[0] if wanted and wanted[0] == query else None
    if is_question(terms_of_query(query)):
        latest = {m.newer for m in found if m.holds is not None}  # before what they supersede
        found.sort(key=lambda m: m.holds is None and m.outline.trace_id not in latest)
    found.sort(key=lambda m: whole_query is None or m.holds != whole_query)
    return SearchResult(found, trouble)


def _without_insight(state: Any, query: str) -> list[Hit]:
    """The session's records that have no insight yet, or will have none, as far as they have words of the query."""
    bare = list(without_insight(state.database, state.session_id))[-_MAX_EXAMINED:]
    if not bare:
        return []
    stored = [terms_of("", record) for record in state.fact_store.get_many(bare)]
    lengths = heads_of(stored)["length"].astype(np.float64)
    scores, most = bm25(terms_of_query(query), Postings.of(stored), lengths)
    newest_first = reversed([*zip(bare, scores.tolist(), strict=True)])
    return [Hit(trace_id, score / most, None, "words") for trace_id, score in newest_first if score > 0]


def _newest_first(hits: Sequence[Hit]) -> list[Hit]:
    """The hits, before each the latest record of the same call, where that returned something else."""
    known = {(hit.session_id, hit.trace_id): hit for hit in hits}
    ordered: dict[tuple[str | None, str], Hit] = {}
    for hit in hits:
        if hit.newer is not None:
            latest = Hit(hit.newer[1], hit.score, hit.newer[0], hit.why)
            ordered.setdefault(hit.newer, known.get(hit.newer, latest))
        ordered.setdefault((hit.session_id, hit.trace_id), hit)
    return list(ordered.values())


def _loaded(state: Any, scope: Scope, hits: Sequence[Hit]) -> list[SearchMatch]:
    """The hits with their records; those deleted meanwhile are left out."""
    places = [(hit.session_id or state.session_id, hit.trace_id) for hit in hits]
    there = {
        (session_id, outline.trace_id): outline
        for session_id in dict.fromkeys(session_id for session_id, _ in places)
        for outline in outlines(state.database, session_id, [t for s, t in places if s == session_id])
        if not outline.is_own_answer
    }
    read = [place for place, outline in there.items() if outline.output_bytes <= _MAX_READ]
    entries = WiderScope(state.database, state.session_id, scope).entries(read)
    found = {at: record for at, (record, _) in entries.items()}
    return [
        SearchMatch(
            there[at], h.score, h.session_id, h.why, newer=h.newer and h.newer[1], record=found.get(at)
        )
        for h, at in zip(hits, places, strict=True)
        if at in there
    ]


def _with_place(match: SearchMatch, forms: dict[str, str]) -> SearchMatch:
    """A match with the text that its output contains exactly: the query, or the first of its identifiers."""
    if (record := match.record) is None:
        return match
    output = compact(record.raw_output) if record.output_text is None else record.output_text
    folded, plain = output.casefold(), None
    for form, text in reversed(forms.items()):
        if form.isascii() and not all(run in folded for run in runs(form)):
            continue
        plain = plain or normal(output)
        if find(plain, form) >= 0:
            return replace(match, why="holds", holds=text, place=place_of(output, form))
    return match
