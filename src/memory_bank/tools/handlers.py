"""What search_memory and get_record answer: text for a tool message, never an exception."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from memory_bank.context.fetched import GET_RECORD, SEARCH_MEMORY, is_memory_tool
from memory_bank.context.render import fence
from memory_bank.errors import EmbeddingError, MemoryBankError
from memory_bank.history.jsontext import compact, parse_arguments
from memory_bank.history.shortening import cut_at_edge, shorten
from memory_bank.ports import WiderScopePort
from memory_bank.provenance.check import index_of
from memory_bank.provenance.kinds import identifiers_in
from memory_bank.provenance.texts import normal
from memory_bank.records import Insight, InteractionRecord, Ranking
from memory_bank.retrieval import raw_data, session_name
from memory_bank.tools.lines import Layout, chosen_lines, lay_out, matching_lines
from memory_bank.tools.selection import Refused, as_json, parse_exact, select, written

MAX_CHARS = 20_000
_TOP_K = 5
_MOST = 20
_WIDE = 200  # where several sessions are searched, so many records are ranked
_PREFIX = 6
_NUMBER = re.compile(r"\d{1,5}")
_EXCERPT = 700
_ARGUMENT_CHARS = 2_000
_IDS_TOLD = 5
_KEYS_TOLD = 12


def handle_tool_call(state: Any, name: str, arguments: Any, *, max_chars: int = MAX_CHARS) -> str:
    """The text of the tool message that answers a call of ``search_memory`` or ``get_record``.

    ``state`` is a MemoryBankState: visible are its session and what the ``scope`` of its latest step adds;
    ``#12`` is always the session's own. ``arguments`` is JSON text or an object. ``max_chars`` limits
    what is quoted. What is wrong with a call comes back as a sentence, never as an exception.
    """
    handler = _HANDLERS.get(name)
    if handler is None:
        handler = _HANDLERS.get(_last_part(name)) if is_memory_tool(name) else None
    if handler is None:
        return f"There is no memory tool {compact(name)}: there are {SEARCH_MEMORY} and {GET_RECORD}."
    given = parse_arguments(arguments)
    if not isinstance(given, dict) or "_raw" in given:
        return f"The arguments of {name} are no JSON object."
    return _answered(handler, state, given, max(0, max_chars))


def memory_tools(state: Any, *, max_chars: int = MAX_CHARS) -> dict[str, Callable[..., str]]:
    """The two tools as functions for agent frameworks, bound to a state, by name."""

    def search_memory(query: str, top_k: int = _TOP_K) -> str:
        """Search the outputs of earlier tool calls; gives ids, summaries and excerpts."""
        return _answered(_search, state, {"query": query, "top_k": top_k}, max_chars)

    def get_record(
        trace_id: str, path: str | None = None, lines: str | None = None, pattern: str | None = None
    ) -> str:
        """Get an earlier tool output exactly: whole, or a JSON path, a range of lines, a pattern in it."""
        given = {"trace_id": trace_id, "path": path, "lines": lines, "pattern": pattern}
        return _answered(_get, state, given, max_chars)

    return {SEARCH_MEMORY: search_memory, GET_RECORD: get_record}


def _answered(
    handler: Callable[[Any, Mapping[str, Any], int], str], state: Any, given: Mapping[str, Any], room: int
) -> str:
    try:
        return handler(state, given, room)
    except Refused as e:
        return str(e)
    except MemoryBankError as e:
        return f"The memory could not be read: {e}"


def _last_part(name: str) -> str:
    return next((known for known in _HANDLERS if name.endswith(known)), name)


def _asked(given: Mapping[str, Any], known: Sequence[str], tool: str) -> None:
    unknown = [k for k in given if k not in known]
    if unknown:
        raise Refused(f"{tool} has no parameter {compact(unknown[0])}: it takes {', '.join(known)}.")


# get_record


def _get(state: Any, given: Mapping[str, Any], room: int) -> str:
    _asked(given, ("trace_id", "path", "lines", "pattern"), GET_RECORD)
    record, session_id = _record(state, given.get("trace_id"))
    text = record.output_text if record.output_text is not None else compact(record.raw_output)
    value = parse_exact(text)
    said = f"{len(text):,} characters"
    path, lines, pattern = (given.get(k) or None for k in ("path", "lines", "pattern"))
    if path is not None and str(path).strip() not in ("", "$"):
        text, value, said = _at_path(text, value, str(path))
    if lines is None and pattern is None:
        shown, note = _beginning(record, text, value, room)
    else:
        shown, note, said = _some_lines(lay_out(text, value), lines, pattern, room, said)
    return _quoted(record, session_id, said, shown) + (f"\n{note}" if note else "")


def _record(state: Any, asked: Any) -> tuple[InteractionRecord, str | None]:
    """The record, and the session that it is of where that is another one."""
    wanted = str(asked if asked is not None else "").strip().strip("\"'`[]()<>#").removeprefix("trace_id=")
    if not wanted:
        raise Refused(
            "get_record needs a trace_id: it stands beside every record, or is found by search_memory."
        )
    record: InteractionRecord | None = state.fact_store.get(wanted)
    if record is not None:
        return record, None
    known = list(state.fact_store.steps())
    if _NUMBER.fullmatch(wanted):  # as the context names records: #12
        number = int(wanted)
        if not 0 < number <= len(known):
            raise Refused(f"There is no record #{number}: this session has #1 to #{len(known)}.")
        return cast(InteractionRecord, state.fact_store.get(known[number - 1])), None
    folded = wanted.casefold().rstrip("….")
    fitting = [t for t in known if t.casefold().startswith(folded)]
    if len(folded) >= _PREFIX and len(fitting) == 1:
        record = state.fact_store.get(fitting[0])
        if record is not None:
            return record, None
    if state.wider is not None and not fitting:
        found = _elsewhere(state.wider, wanted, folded)
        if found is not None:
            return found
    if not known:
        raise Refused("No tool output is stored in this session yet.")
    if len(folded) >= _PREFIX and fitting:
        raise Refused(
            f"The trace_id {wanted} fits {len(fitting)} records: {_told(state, fitting)}. Give more of it."
        )
    if fitting:
        raise Refused(
            f"A trace_id needs at least {_PREFIX} characters; with {wanted} begin {_told(state, fitting)}."
        )
    near = difflib.get_close_matches(folded, known[-2_000:], _IDS_TOLD, 0.5)
    if not near:
        cut = {t[: len(folded)]: t for t in known[-2_000:]}
        near = [cut[c] for c in difflib.get_close_matches(folded, cut, _IDS_TOLD, 0.5)]
    hint = f"the nearest are {_told(state, near)}" if near else f"the latest are {_told(state, known[::-1])}"
    where = "this session" if state.wider is None else "this session or of those it may search"
    raise Refused(f"No record of {where} has the trace_id {compact(wanted[:80])}: {hint}.")


def _elsewhere(wider: WiderScopePort, wanted: str, folded: str) -> tuple[InteractionRecord, str] | None:
    """The record of another session in scope; of several with that very trace_id the newest."""
    places = wider.elsewhere(wanted)[:1]
    if not places and len(folded) >= _PREFIX:
        places = wider.elsewhere(folded, beginning=True)
    if len(places) > 1:
        told = ", ".join(f"{t} (session {session_name(s)})" for s, t in places[:_IDS_TOLD])
        more = f" and {len(places) - _IDS_TOLD} more" if len(places) > _IDS_TOLD else ""
        raise Refused(f"The trace_id {wanted} fits {len(places)} records: {told}{more}. Give more of it.")
    for (session_id, _), (record, _) in wider.entries(places).items():
        return record, session_id
    return None


def _told(state: Any, ids: Sequence[str]) -> str:
    found = state.fact_store.get_many(list(ids[:_IDS_TOLD]))
    told = ", ".join(f"{r.trace_id} ({r.tool_name}, step {r.step_id})" for r in found)
    return told + (f" and {len(ids) - _IDS_TOLD} more" if len(ids) > _IDS_TOLD else "")


def _at_path(text: str, value: Any, path: str) -> tuple[str, Any, str]:
    if value is None:
        lines = text.count("\n") + 1
        raise Refused(
            f"The output is no JSON object or list, so it has no paths: it has {lines:,} lines; "
            "select by lines or pattern."
        )
    found = select(value, path)
    if len(found) == 1 and not any(mark in path for mark in ("*", ":")):
        only = found[0].value
        shown = written(only)
        return shown, parse_exact(shown) if isinstance(only, str) else only, f"at {found[0].path}"
    rows = "\n".join(f"{f.path} = {as_json(f.value)}" for f in found)
    return rows, None, f"{len(found):,} values at {path}"


def _beginning(record: InteractionRecord, text: str, value: Any, room: int) -> tuple[str, str]:
    if len(text) <= room:
        return text, ""
    head = text[: text.rfind("\n", room // 2, room) + 1] if "\n" in text[room // 2 : room] else ""
    head = head or cut_at_edge(text, room)
    layout = lay_out(text, value)
    count = len(layout.lines)
    at = 1 if layout.by_path else min(count, head.count("\n") + 1)
    ways = [
        f'lines="{at}-{min(count, at + 199)}" (of {count:,} lines{", one a value" if layout.by_path else ""})'
    ]
    if isinstance(value, dict):
        keys = ", ".join(compact(k) for k in list(value)[:_KEYS_TOLD])
        ways.append(f"path= (keys: {keys}{', …' if len(value) > _KEYS_TOLD else ''})")
    elif isinstance(value, list):
        ways.append(f'path="[0]" to "[{len(value) - 1}]"')
    ways.append("pattern=")
    return head, (
        f"[Shown are the first {len(head):,} of {len(text):,} characters. The rest: "
        f'{GET_RECORD} with trace_id="{record.trace_id}" and {" or ".join(ways)}.]'
    )


def _some_lines(layout: Layout, spec: Any, pattern: Any, room: int, said: str) -> tuple[str, str, str]:
    count = len(layout.lines)
    numbers = chosen_lines(spec, count) if spec is not None else list(range(1, count + 1))
    told = f"lines {spec} of {count:,}" if spec is not None else f"{count:,} lines"
    hits: set[int] = set()
    if pattern is not None:
        found = matching_lines(str(pattern), [layout.lines[n - 1] for n in numbers])
        if not found:
            raise Refused(
                f"No line matches the pattern {compact(str(pattern)[:80])} in {told} ({said}); "
                "(?i) at its beginning ignores case."
            )
        hits = {numbers[i] for i in found}
        within = set(numbers)
        numbers = sorted({m for n in hits for m in (n - 1, n, n + 1) if m in within})
        told = f"{len(hits):,} matching line{'s' if len(hits) > 1 else ''} in {told}"
    rows: list[str] = []
    used, last, left = 0, None, 0
    for n in numbers:
        row = f"{n}{':' if not hits or n in hits else '-'} {layout.lines[n - 1]}"
        if hits and last is not None and n != last + 1:
            row = f"--\n{row}"
        used += len(row) + 1
        if used > room and rows:
            left = n
            break
        rows.append(row if used <= room else cut_at_edge(row, room, marked=True))
        last = n
    note = f'[Shown up to line {last}; go on with lines="{left}-{numbers[-1]}".]' if left else ""
    said = ", ".join(s for s in (told, said if said.startswith(("at ", "values")) else "", layout.note) if s)
    return "\n".join(rows), note, said


def _quoted(record: InteractionRecord, session_id: str | None, said: str, shown: str) -> str:
    arguments = record.input_text if record.input_text is not None else compact(record.raw_input)
    arguments = shorten(record.raw_input, _ARGUMENT_CHARS, text=arguments).text
    return fence(
        f"tool: {record.tool_name}\nstep: {record.step_id}{_of(session_id)}\n"
        f"trace_id: {record.trace_id}\n"
        f"arguments: {arguments}\noutput ({said}):\n{shown}"
    )


def _of(session_id: str | None) -> str:
    return "" if session_id is None else f" of the session {session_name(session_id)}"


# search_memory


def _search(state: Any, given: Mapping[str, Any], room: int) -> str:
    _asked(given, ("query", "top_k"), SEARCH_MEMORY)
    query = str(given.get("query") or "").strip()
    if not query:
        raise Refused("search_memory needs a query: words, or an id that you look for.")
    top_k = _number(given.get("top_k"))
    wider: WiderScopePort | None = state.wider
    size: int = state.fact_store.size() if wider is None else wider.size()
    if not size:
        raise Refused("No tool output is stored in this session yet.")
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
        raise Refused(f"Nothing was found for {compact(query[:80])}{trouble}.")
    found = found[:top_k]
    excerpt = min(_EXCERPT, max(80, room // len(found) - 400))
    own = [f.record.trace_id for f in found if f.session_id is None]
    summaries = state.insight_store.get_insights(own) if state.insight_store else {}
    blocks = []
    for i, f in enumerate(found, 1):
        r, where = f.record, f.session_id
        holds = exact.get(r.trace_id) if where is None else None
        why = f"similarity {scores[where, r.trace_id]:.2f}" if holds is None else f'holds "{holds}"'
        insight = summaries.get(r.trace_id) if where is None else f.insight
        lines = [
            f"[{i}] trace_id {r.trace_id}, {r.tool_name}, step {r.step_id}{_of(where)}, {why}",
            f"arguments: {shorten(r.raw_input, 200).text}",
        ]
        if insight is not None:
            lines.append(f"summary: {cut_at_edge(insight.summary, excerpt, marked=True)}")
        lines.append(f"output: {raw_data(r, excerpt).text}")
        blocks.append("\n".join(lines))
    told = f"{len(found)} of {len(ranked) if wider is None else size:,} records{trouble}"
    note = f"[{told}. An output exactly: {GET_RECORD} with its trace_id.]"
    return fence("\n\n".join(blocks)) + f"\n{note}"


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
        return max(1, min(_MOST, int(value))) if value is not None else _TOP_K
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
                    found[source.trace_id] = f'{text}" at {place}'.rstrip('"') if place else text
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


_HANDLERS: dict[str, Callable[[Any, Mapping[str, Any], int], str]] = {
    SEARCH_MEMORY: _search,
    GET_RECORD: _get,
}
