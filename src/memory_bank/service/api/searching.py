"""A session searched for a program: what holds the words to the letter, then what is similar."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memory_bank.assembly import MemoryBankState
from memory_bank.bank.database import Database
from memory_bank.bank.outlines import Outline, holding, outlines, whole
from memory_bank.errors import EmbeddingError
from memory_bank.provenance.identifiers import find, identifiers_in, normal, runs
from memory_bank.provenance.index import Source
from memory_bank.records import Ranking
from memory_bank.transcript.own import is_memory_tool

_LONGEST = 200  # characters of a text that is looked for to the letter
_RUNS = 4  # runs of letters and digits that the database looks for
_AT_ONCE = 50
_LOOKED_AT = 400  # records that may hold a text, looked at closely
_READ_WHOLE = 2 * 2**20  # bytes of an output that is looked at closely; a longer one counts as it is
_WIDE = 200  # where several sessions are searched, so many records are ranked


@dataclass(frozen=True, slots=True)
class Match:
    """A record found. ``holds`` is the text that its output has to the letter, ``place`` where (a JSON path,
    ``line 7``, or nothing); ``score`` its similarity in -1 to 1, None where it has no insight.
    """

    outline: Outline
    score: float | None
    holds: str | None = None
    place: str = ""


@dataclass(frozen=True, slots=True)
class Matches:
    """What was found, the best first; ``note`` says what could not be searched."""

    matches: list[Match]
    note: str = ""


def search_session(state: MemoryBankState, query: str, top_k: int) -> Matches:
    """Exact words first, the newest record before older ones; then by similarity.

    Exact words are looked for in the session itself, similarity goes as far as the state's scope. Raises
    EmbedderMismatchError, StorageError.
    """
    exact = _exact(state, query, top_k)
    ranking, note = _ranked(state, query)
    scores = {(h.session_id, h.trace_id): h.score for h in ranking}
    found = [
        Match(outline, scores.get((None, outline.trace_id)), text, place) for outline, text, place in exact
    ]
    there = {m.outline.trace_id for m in found}
    places = [at for at in scores if at[0] is not None or at[1] not in there]
    for start in range(0, len(places), _AT_ONCE):
        if len(found) >= top_k:
            break
        part = places[start : start + _AT_ONCE]
        by_place = _outlines(state.database, state.session_id, part)
        found += [Match(by_place[at], scores[at]) for at in part if at in by_place]
    return Matches(found[:top_k], note)


def _outlines(
    database: Database, session_id: str, places: Sequence[tuple[str | None, str]]
) -> dict[tuple[str | None, str], Outline]:
    found = {}
    for where in dict.fromkeys(session for session, _ in places):
        ids = [t for session, t in places if session == where]
        for outline in outlines(database, session_id if where is None else where, ids):
            if not is_ours(outline):
                found[where, outline.trace_id] = outline
    return found


def _ranked(state: MemoryBankState, query: str) -> tuple[Ranking, str]:
    try:
        if state.wider is not None:
            return state.wider.rank(query, limit=_WIDE), ""
        ranking: Ranking = state.insight_store.rank(query)
        return ranking, ""
    except EmbeddingError as e:
        return Ranking([], []), f"only exact words were looked for: {e}"


def _exact(state: MemoryBankState, query: str, limit: int) -> list[tuple[Outline, str, str]]:
    """The records that hold the query, or else an identifier in it, at token boundaries, with the place."""
    wanted = [query, *(token for token, _, _ in identifiers_in(query))]
    found: dict[str, tuple[Outline, str, str]] = {}
    forms = {normal(w): w for w in reversed(wanted) if len(w) <= _LONGEST}
    for form, text in reversed(forms.items()):
        for outline, place in _holders(state, form):
            if len(found) >= limit:
                break
            found.setdefault(outline.trace_id, (outline, text, place))
    return list(found.values())


def _holders(state: MemoryBankState, text: str) -> Iterator[tuple[Outline, str]]:
    longest = sorted(dict.fromkeys(runs(text)), key=len, reverse=True)[:_RUNS]
    if not longest:
        return
    groups = [_written(run) for run in longest]
    before, looked_at = None, 0
    while looked_at < _LOOKED_AT:
        part = holding(state.database, state.session_id, groups, _AT_ONCE, before)
        for outline in part:
            if is_ours(outline):
                continue
            if outline.output_bytes > _READ_WHOLE:
                yield outline, ""
                continue
            output = whole(state.database, outline, "output")
            source = Source("record", output, normal(output))
            if find(source.normal, text) >= 0:
                yield outline, source.place_of(text)
        if len(part) < _AT_ONCE:
            return
        looked_at += len(part)
        before = part[-1].seq


def _written(run: str) -> list[str]:
    """How a run of letters and digits, in normal form, may stand in a stored text; ASCII case is folded."""
    if run.isascii():
        return [run]
    forms = [run, run.upper()]
    forms += ["".join(c if c.isascii() else _escaped(c) for c in form) for form in forms]
    return list(dict.fromkeys(forms))


def _escaped(c: str) -> str:
    units = c.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))


def is_ours(outline: Outline) -> bool:
    """Whether a record is an answer of our own tools, which quote what other records hold."""
    head = outline.output_head.decode("utf-8", "replace") if outline.output_verbatim else None
    return is_memory_tool(outline.tool_name, head)
