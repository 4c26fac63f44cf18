"""The one search over a session: records that contain the query's words exactly, then similar ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from memory_bank.bank.listing import Outline, holding, outlines, whole
from memory_bank.bank.schema import in_parts
from memory_bank.errors import EmbeddingError
from memory_bank.provenance.identifiers import find, identifiers_in, normal, runs
from memory_bank.provenance.index import place_of
from memory_bank.records import Hit

_MAX_EXACT_CHARS = 200  # longer texts are not searched for exactly
_RUNS = 4  # runs of letters and digits, the longest, that the database filters by
_MAX_WANTED = 20  # identifiers of a query that are searched for exactly
_BATCH = 50
_MAX_EXAMINED = 400  # records whose outputs are compared with one text
_MAX_READ = 2 * 2**20  # bytes; a longer output counts as a match without being read
_MAX_RANKED = 200  # records ranked when the scope has several sessions


@dataclass(frozen=True, slots=True)
class SearchMatch:
    """A record that was found.

    ``holds`` is the text that its output contains exactly, ``place`` where: a JSON path, ``line 7``, or "".
    ``score`` is the similarity of its insight, -1 to 1; None without an insight. ``session_id`` is None for a
    record of the searched session, else the id of the session that has it.
    """

    outline: Outline
    score: float | None
    session_id: str | None = None
    holds: str | None = None
    place: str = ""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Matches, best first; ``candidates`` counts the records they were chosen from.

    ``embedded`` is False where the session has no embedder. ``trouble`` is the embedder's error. In both
    cases only exact words were searched.
    """

    matches: list[SearchMatch]
    candidates: int
    embedded: bool = True
    trouble: EmbeddingError | None = None


def search_session(state: Any, query: str, top_k: int) -> SearchResult:
    """Search a session (a ``MemoryBankState``): exact matches first, the newest first, then by similarity.

    Exact words, the query or an identifier in it, are searched in the session itself; similarity covers the
    state's scope. Answers of our own tools are never found: they quote other records. Raises
    EmbedderMismatchError, StorageError.
    """
    tokens = dict.fromkeys(token for token, _, _ in identifiers_in(query))
    wanted = [w for w in (query, *islice(tokens, _MAX_WANTED)) if len(w) <= _MAX_EXACT_CHARS]
    exact: dict[str, SearchMatch] = {}
    for form, text in reversed({normal(w): w for w in reversed(wanted)}.items()):
        for outline, place in _holders(state, form):
            if len(exact) >= top_k:
                break
            exact.setdefault(outline.trace_id, SearchMatch(outline, None, None, text, place))
    trouble, embedded = None, state.insight_store is not None
    ranking: list[Hit] = []
    try:
        if embedded:
            limit = None if state.scope == "session" else _MAX_RANKED
            ranking = state.insight_store.rank(query, limit=limit, scope=state.scope)
    except EmbeddingError as e:
        trouble = e
    scores = {(hit.session_id, hit.trace_id): hit.score for hit in ranking}
    found = [replace(m, score=scores.get((None, trace_id))) for trace_id, m in exact.items()]
    similar = [at for at in scores if at[0] is not None or at[1] not in exact]
    for batch in in_parts(similar, _BATCH):
        if len(found) >= top_k:
            break
        loaded = {
            (where, outline.trace_id): outline
            for where in dict.fromkeys(session for session, _ in batch)
            for outline in outlines(
                state.database, where or state.session_id, [t for s, t in batch if s == where]
            )
            if not outline.is_own_answer
        }
        found += [SearchMatch(loaded[at], scores[at], at[0]) for at in batch if at in loaded]
    return SearchResult(found[:top_k], len(exact) + len(similar), embedded, trouble)


def _holders(state: Any, text: str) -> Iterator[tuple[Outline, str]]:
    """The records whose outputs contain a text (in normal form) at token boundaries, with the place."""
    longest = sorted(dict.fromkeys(runs(text)), key=len, reverse=True)[:_RUNS]
    groups = [_stored_forms(run) for run in longest]
    before, examined = None, 0
    while longest and examined < _MAX_EXAMINED:
        batch = holding(state.database, state.session_id, groups, _BATCH, before)
        for outline in batch:
            if outline.is_own_answer:
                continue
            if outline.output_bytes > _MAX_READ:
                yield outline, ""
                continue
            output = whole(state.database, outline, "output")
            if find(normal(output), text) >= 0:
                yield outline, place_of(output, text)
        if len(batch) < _BATCH:
            return
        examined += len(batch)
        before = batch[-1].seq


def _stored_forms(run: str) -> list[str]:
    """How a run in normal form may be written in a stored text; the database folds the case of ASCII."""
    if run.isascii():
        return [run]
    forms = [run, run.upper()]
    for form in tuple(forms):
        escaped = form.encode("utf-16-be", "surrogatepass").hex()
        units = [escaped[i : i + 4] for i in range(0, len(escaped), 4)]
        forms.append("".join(chr(int(u, 16)) if u < "0080" else f"\\u{u}" for u in units))
    return list(dict.fromkeys(forms))
