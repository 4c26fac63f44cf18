"""What our tools answer: text for a tool message, never an exception; and get_record itself."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from memory_bank.bank.retrieval import session_name
from memory_bank.context.fetched import GET_RECORD, LIST_RECORDS, SEARCH_MEMORY, is_memory_tool
from memory_bank.context.render import fence
from memory_bank.errors import MemoryBankError
from memory_bank.ports import WiderScopePort
from memory_bank.records import InteractionRecord
from memory_bank.tools.answers import Answer, check_names, figures, of_session
from memory_bank.tools.lines import Layout, chosen_lines, lay_out, matching_lines
from memory_bank.tools.listing import list_page
from memory_bank.tools.searching import TOP_K, search
from memory_bank.tools.selection import Nothing, Refused, as_json, parse_exact, select, written
from memory_bank.transcript.jsontext import compact, parse_arguments
from memory_bank.transcript.shortening import cut_at_edge, shorten

MAX_CHARS = 20_000
_PREFIX = 6
_NUMBER = re.compile(r"\d{1,5}")
_ARGUMENT_CHARS = 2_000
_IDS_TOLD = 5
_KEYS_TOLD = 12


def handle_tool_call(state: Any, name: str, arguments: Any, *, max_chars: int = MAX_CHARS) -> str:
    """The text of the tool message that answers a call of one of our tools.

    ``state`` is a MemoryBankState: visible are its session and what the ``scope`` of its latest step adds;
    ``#12`` is always the session's own. ``arguments`` is JSON text or an object. ``max_chars`` limits
    what is quoted. What is wrong with a call comes back as a sentence, never as an exception.
    """
    return answer_tool_call(state, name, arguments, max_chars=max_chars).text


def answer_tool_call(state: Any, name: str, arguments: Any, *, max_chars: int = MAX_CHARS) -> Answer:
    """As ``handle_tool_call``, with the figures of the records, and whether the call was refused."""
    handler = _HANDLERS.get(name)
    if handler is None:
        handler = _HANDLERS.get(_last_part(name)) if is_memory_tool(name) else None
    if handler is None:
        told = f"There is no memory tool {compact(name[:80])}: there are {', '.join(_HANDLERS)}."
        return Answer(told, refused=True)
    given = parse_arguments(arguments)
    if not isinstance(given, dict) or "_raw" in given:
        return Answer(f"The arguments of {name} are no JSON object.", refused=True)
    return _answered(handler, state, given, max(0, max_chars))


def memory_tools(state: Any, *, max_chars: int = MAX_CHARS) -> dict[str, Callable[..., str]]:
    """The tools as functions for agent frameworks, bound to a state, by name."""

    def search_memory(query: str, top_k: int = TOP_K) -> str:
        """Search the outputs of earlier tool calls; gives ids, summaries and excerpts."""
        return _answered(search, state, {"query": query, "top_k": top_k}, max_chars).text

    def get_record(
        trace_id: str, path: str | None = None, lines: str | None = None, pattern: str | None = None
    ) -> str:
        """Get an earlier tool output exactly: whole, or a JSON path, a range of lines, a pattern in it."""
        given = {"trace_id": trace_id, "path": path, "lines": lines, "pattern": pattern}
        return _answered(_get, state, given, max_chars).text

    def list_records(after: int | None = None, tool: str | None = None) -> str:
        """List earlier tool calls, oldest first: number, id, tool, size and arguments of each."""
        return _answered(list_page, state, {"after": after, "tool": tool}, max_chars).text

    return {SEARCH_MEMORY: search_memory, GET_RECORD: get_record, LIST_RECORDS: list_records}


def _answered(handler: _Handler, state: Any, given: Mapping[str, Any], room: int) -> Answer:
    try:
        return handler(state, given, room)
    except Refused as e:
        return Answer(str(e), refused=not isinstance(e, Nothing))
    except MemoryBankError as e:
        return Answer(f"The memory could not be read: {e}", refused=True)


def _last_part(name: str) -> str:
    return next((known for known in _HANDLERS if name.casefold().endswith(known)), name)


# get_record


def _get(state: Any, given: Mapping[str, Any], room: int) -> Answer:
    check_names(given, ("trace_id", "path", "lines", "pattern"), GET_RECORD)
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
    quoted = _quoted(record, session_id, said, shown) + (f"\n{note}" if note else "")
    return Answer(quoted, records=(figures(record, session_id),))


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
            raise Nothing(
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
        f"tool: {record.tool_name}\nstep: {record.step_id}{of_session(session_id)}\n"
        f"trace_id: {record.trace_id}\n"
        f"arguments: {arguments}\noutput ({said}):\n{shown}"
    )


_Handler = Callable[[Any, Mapping[str, Any], int], Answer]
_HANDLERS: dict[str, _Handler] = {SEARCH_MEMORY: search, GET_RECORD: _get, LIST_RECORDS: list_page}
