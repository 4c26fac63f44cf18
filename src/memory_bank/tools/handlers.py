"""The tools as a model sees them, and what they answer: always text, never an exception."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from memory_bank.bank.files import COMMANDS, MemoryFiles
from memory_bank.bank.listing import PREFIX, Outline, records_named
from memory_bank.bank.retrieval import raw_data, session_name
from memory_bank.bank.search import superseding
from memory_bank.bank.session import Session
from memory_bank.bank.stores import WiderScope
from memory_bank.errors import ConfigError, FileError, MemoryBankError, RecordError
from memory_bank.ports import Scope, ToolSchema
from memory_bank.records import InteractionRecord
from memory_bank.tools.search import search_session
from memory_bank.tools.selection import (
    MAX_HITS,
    NothingFound,
    PathSelection,
    RefusedCall,
    as_json,
    at_path,
    lay_out,
    quoted,
    select_lines,
)
from memory_bank.transcript.jsontext import RAW, compact, parse_arguments
from memory_bank.transcript.media import media_of
from memory_bank.transcript.messages import (
    GET_RECORD,
    LIST_RECORDS,
    MEMORY_FILES,
    SEARCH_MEMORY,
    is_memory_tool,
    parts_of,
    readable_output,
)
from memory_bank.transcript.quoting import Mark, fence, one_line, quote_lines, sendable
from memory_bank.transcript.shortening import cut_at_edge, shorten

MAX_CHARS = 20_000
"""How much an answer quotes at most, unless the caller says otherwise."""
TOP_K = 5
PAGE = 50
"""Records on a page of ``list_records``."""
LONGEST_ARGUMENTS: dict[str, int] = {
    "query": 8_000, "trace_id": 200, "path": 1_000, "lines": 1_000, "pattern": 1_000, "tool": 1_000, "after": 200
}  # fmt: skip
"""Characters of each argument at most, for every way in: tool calls, MCP and the HTTP API."""
_IDS_SHOWN = 5
NOTHING_STORED = "No tool output is stored in this session yet."


def _schema(name: str, description: str, **properties: tuple[str, str]) -> ToolSchema:
    """The schema of a tool; a parameter whose type ends in ``?`` may be null."""
    described: dict[str, dict[str, Any]] = {
        key: {"type": [kind[:-1], "null"] if kind.endswith("?") else kind}
        | ({"description": text} if text else {})
        for key, (kind, text) in properties.items()
    }
    parameters = {
        "type": "object", "properties": described, "required": list(described), "additionalProperties": False,
    }  # fmt: skip
    named: Any = {"name": name, "description": description, "strict": True, "parameters": parameters}
    return {"type": "function", "function": named}


TOOL_SCHEMAS: list[ToolSchema] = [
    _schema(
        SEARCH_MEMORY,
        "Search the outputs of your earlier tool calls, also those no longer in view, by words, names or ids.",
        query=("string", ""),
        top_k=("integer?", "1 to 20; null: 5"),
    ),
    _schema(
        GET_RECORD,
        "Get what an earlier tool call returned, whole or in part. Use it before you repeat a call or guess a value.",
        trace_id=("string", "#number or id of the record"),
        path=("string?", "items[3].sku, items[*].sku; null: all"),
        lines=("string?", '"10-25", "7", "-20": the last 20; null: all'),
        pattern=("string?", "regular expression; null: none"),
    ),
    _schema(
        LIST_RECORDS,
        "List your earlier tool calls, oldest first.",
        after=("integer?", "number of a call; null: from the first"),
        tool=("string?", "only this tool; null: all"),
    ),
]
"""The schemas of the tools, in the form of the chat completions API."""
FILES_SCHEMA = _schema(
    MEMORY_FILES,
    "Your own files below /memories, which outlive this conversation: view them before you begin, and write down "
    "what a later conversation will need. Parameters of other commands are null.",
    command=("string", "view shows a file with line numbers, or a folder; create makes a new file."),
    path=("string?", "A path such as /memories/notes.md."),
    view_range=("array?", "The first and the last line; -1 for the end."),
    file_text=("string?", "The content of a new file."),
    old_str=("string?", "A text that is in the file once."),
    new_str=("string?", "What takes its place."),
    insert_line=("integer?", "The line after which insert_text goes; 0 for the beginning."),
    insert_text=("string?", "The text to insert."),
    old_path=("string?", "What to rename."),
    new_path=("string?", "Its new path."),
)
"""The schema of the tool for files, which is offered only where it is asked for."""
_of_files: Any = FILES_SCHEMA["function"]["parameters"]["properties"]
_of_files["command"]["enum"] = list(COMMANDS)
_of_files["view_range"]["items"] = {"type": "integer"}


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """The answer to a call of one of our tools. ``refused``: it could not be answered, the text says why.

    ``records`` describes each record that the text is about, without anything a tool returned. ``parts``: those of a
    whole output that are not text, which the text names.
    """

    text: str
    refused: bool = False
    records: tuple[dict[str, Any], ...] = ()
    parts: tuple[dict[str, Any], ...] = ()


def handle_tool_call(
    state: Session | MemoryFiles, name: str, arguments: object, *, max_chars: int = MAX_CHARS
) -> str:
    """Return the text of the tool message that answers a call of one of our tools.

    ``state`` is a MemoryBankState; its own session and the ``scope`` of its latest step are visible, and
    ``#12`` is always a record of its own session; for ``memory_files`` a MemoryFiles will do. ``arguments`` is JSON
    text or an object. ``max_chars`` limits what is quoted. A wrong call is answered by a sentence, never by an
    exception. Raises ConfigError where ``state`` is neither.

    Example:
        >>> handle_tool_call(state, "get_record", {"trace_id": "#1", "path": "due"}).splitlines()[-2]
        '2026-03-01'
    """
    return answer_tool_call(state, name, arguments, max_chars=max_chars).text


def answer_tool_call(
    state: Any, name: str, arguments: Any, *, max_chars: int = MAX_CHARS, scope: Scope | None = None
) -> ToolAnswer:
    """As ``handle_tool_call``, with a description of the records and whether the call was refused.

    ``scope``, of ``search_memory`` alone: where it searches instead of the state's; every record names its session.
    """
    if not (isinstance(state, MemoryFiles) or hasattr(state, "fact_store")) or not isinstance(name, str):
        raise ConfigError(
            f"the arguments are (state, name, arguments): the first is a {type(state).__name__}, "
            "where a MemoryBankState is expected."
        )
    ours = is_memory_tool(name)
    known = next((k for k in _HANDLERS if k == name or (ours and name.casefold().endswith(k))), None)
    given = parse_arguments(arguments)
    if known is None:
        text = f"There is no memory tool {compact(name[:80])}: there are {', '.join(_HANDLERS)}."
    elif not isinstance(given, dict) or RAW in given:
        text = f"The arguments of {name} are no JSON object."
    elif isinstance(state, MemoryFiles) and known != MEMORY_FILES:
        text = NOTHING_STORED
    else:
        return _answer(known, state, given, max(0, max_chars), scope)
    return ToolAnswer(text, refused=True)


def memory_tools(state: Session | None, *, max_chars: int = MAX_CHARS) -> dict[str, Callable[..., str]]:
    """Return the tools as functions for agent frameworks, by name, bound to a state.

    Example:
        >>> list(memory_tools(state))
        ['search_memory', 'get_record', 'list_records']
    """

    def search_memory(query: str, top_k: int = TOP_K) -> str:
        """Search the outputs of earlier tool calls; gives ids, summaries and excerpts."""
        return _answer(SEARCH_MEMORY, state, {"query": query, "top_k": top_k}, max_chars).text

    def get_record(
        trace_id: str, path: str | None = None, lines: str | None = None, pattern: str | None = None
    ) -> str:
        """Get an earlier tool output exactly: whole, or a JSON path, a range of lines, a pattern in it."""
        given = {"trace_id": trace_id, "path": path, "lines": lines, "pattern": pattern}
        return _answer(GET_RECORD, state, given, max_chars).text

    def list_records(after: int | None = None, tool: str | None = None) -> str:
        """List earlier tool calls, oldest first: number, id, tool, size and arguments of each."""
        return _answer(LIST_RECORDS, state, {"after": after, "tool": tool}, max_chars).text

    return {SEARCH_MEMORY: search_memory, GET_RECORD: get_record, LIST_RECORDS: list_records}


def _answer(
    tool: str, state: Any, given: Mapping[str, Any], room: int, scope: Scope | None = None
) -> ToolAnswer:
    try:
        for name, longest in LONGEST_ARGUMENTS.items():
            value = given.get(name)
            if isinstance(value, (list, dict)) and name not in ("after", "tool"):  # they have own sentences
                raise RefusedCall(f"{name} is a text.")
            if isinstance(value, str) and len(value) > longest:
                raise RefusedCall(f"{name} has {len(value):,} characters: give at most {longest:,}.")
        handler, known = _HANDLERS[tool]
        for name in given:
            if name not in known:
                takes = ", ".join(known)
                raise RefusedCall(f"{tool} has no parameter {compact(name[:80])}: it takes {takes}.")
        return _search(state, given, room, scope) if tool == SEARCH_MEMORY else handler(state, given, room)
    except RefusedCall as e:
        text = f"{e.sentence}\n{fence(quote_lines(e.quoted))}" if e.quoted else e.sentence
        return ToolAnswer(text, refused=not isinstance(e, NothingFound))
    except MemoryBankError as e:
        return ToolAnswer(f"The memory could not be read: {e}", refused=True)


def _described(
    record: InteractionRecord | Outline, session_id: str | None = None, **more: Any
) -> dict[str, Any]:
    """What a program gets of a record; ``session_id`` None: it is the searched session's own."""
    described = {"trace_id": record.trace_id, "step_id": record.step_id}
    described |= {"tool_name": sendable(record.tool_name), **more}
    return described if session_id is None else {**described, "session": session_name(session_id)}


def _of_session(session_id: str | None) -> str:
    return "" if session_id is None else f" of the session {session_name(session_id)}"


def _search(state: Any, given: Mapping[str, Any], room: int, scope: Scope | None = None) -> ToolAnswer:
    query = str(given.get("query") or "").strip()
    if not query:
        raise RefusedCall("search_memory needs a query: words, or an id that you look for.")
    asked = given.get("top_k")
    try:
        top_k = TOP_K if asked is None else max(1, min(20, int(asked)))
    except (TypeError, ValueError, OverflowError):
        raise RefusedCall("top_k is a whole number from 1 to 20.") from None
    searched = WiderScope(state.database, state.session_id, scope or state.scope)
    if not (size := searched.size()):
        raise NothingFound(NOTHING_STORED)
    result = search_session(state, query, top_k, scope=scope, by_agent=scope is None)
    trouble = "" if result.trouble is None else "; the embedder failed, so only words were compared"
    places = [(m.outline.session_id, m.outline.trace_id) for m in result.matches]
    unread = searched.entries([at for at, m in zip(places, result.matches, strict=True) if m.record is None])
    records = [m.record or unread.get(at, (None,))[0] for at, m in zip(places, result.matches, strict=True)]
    found = [(m, record) for m, record in zip(result.matches, records, strict=True) if record is not None]
    if not found:
        raise NothingFound(
            f"Nothing matches {compact(query[:80])}{trouble}: try other words, a name or "
            f"an id as a tool wrote it, or {LIST_RECORDS}."
        )
    excerpt = min(700, max(80, room // len(found) - 400))
    blocks, described = [], []
    for number, (m, record) in enumerate(found, 1):
        o = m.outline
        session_id = state.session_id if scope and m.session_id is None else m.session_id
        where = f"step {o.step_id}{_of_session(session_id)}"
        lines = [
            f"[{number}] trace_id {o.trace_id}, {one_line(o.tool_name)}, {where}, {m.reason}",
            f"{Mark.ARGUMENTS}{quote_lines(shorten(record.raw_input, 200).text)}",
            f"{Mark.OUTPUT}{quote_lines(raw_data(record, excerpt).text)}",
        ]
        if o.summary is not None:
            lines.insert(2, f"{Mark.SUMMARY}{quote_lines(cut_at_edge(o.summary, excerpt, marked=True))}")
        blocks.append("\n".join(lines))
        described.append(_described(o, session_id, score=round(m.score, 4), newer=m.newer))
    count = f"{len(found)} of {size:,} records{trouble}"
    named = "its trace_id and session" if scope else "its trace_id"
    note = f"[{count}. An output exactly: {GET_RECORD} with {named}.]"
    return ToolAnswer(fence("\n\n".join(blocks)) + f"\n{note}", records=tuple(described))


def _get(state: Any, given: Mapping[str, Any], room: int) -> ToolAnswer:
    record, session_id = _record(state, given.get("trace_id"))
    path, lines, pattern = (given.get(k) or None for k in ("path", "lines", "pattern"))
    text = record.output_text if record.output_text is not None else compact(record.raw_output)
    parts: tuple[dict[str, Any], ...] = ()
    whole = not (path or lines or pattern)
    if whole or (record.output_text is None and not path):
        text = readable_output(record)[1]
        if whole and record.output_text is None:
            parts = tuple(p for p in parts_of(record.raw_output) if isinstance(p, dict) and media_of(p))
    chosen = at_path(text, None if path is None else str(path), as_json)
    what = f"{len(text):,} characters"
    if chosen.found is not None:
        what = f"at {chosen.found[0].path}" if chosen.single else f"{len(chosen.found):,} values at {path}"
    if lines is None and pattern is None:
        shown, note, what = _beginning(record.trace_id, chosen, room, what)
    else:
        shown, note, what = _some_lines(chosen, lines, None if pattern is None else str(pattern), room, what)
    arguments = record.input_text if record.input_text is not None else compact(record.raw_input)
    newer = superseding(state.database, session_id or state.session_id, record.trace_id)
    newer_line = f"{Mark.SUPERSEDED}{newer}, a later result of the same call\n" if newer else ""
    answer = fence(
        f"{Mark.TOOL}{one_line(record.tool_name)}\n{Mark.STEP}{record.step_id}{_of_session(session_id)}\n"
        f"{Mark.TRACE_ID}{record.trace_id}\n{newer_line}"
        f"{Mark.ARGUMENTS}{quote_lines(shorten(record.raw_input, 2_000, text=arguments).text)}\n"
        f"{Mark.OUTPUT_OF}{one_line(what)}):\n{quote_lines(shown)}"
    )
    described = (_described(record, session_id, newer=newer),)
    return ToolAnswer(f"{answer}\n{note}" if note else answer, records=described, parts=parts)


def record_named(state: Any, asked: Any) -> InteractionRecord:
    """The record of a trace_id, of its beginning, or of a number (``#12``). Raises RecordError, StorageError."""
    try:
        return _record(state, asked)[0]
    except RefusedCall as e:
        raise RecordError(e.sentence) from None


def _record(state: Any, asked: Any) -> tuple[InteractionRecord, str | None]:
    """The record that is asked for, and its session if that is another one. Raises RefusedCall."""
    wanted = str(asked if asked is not None else "").strip().strip("\"'`[]()<>#").removeprefix("trace_id=")
    if not wanted:
        raise RefusedCall(
            "get_record needs a trace_id: it stands beside every record, or is found by search_memory."
        )
    facts, wider = state.fact_store, state.wider
    found = records_named(state.database, state.session_id, wanted.rstrip("…."))
    if len(found) == 1 and (record := facts.get(found[0].trace_id)) is not None:
        return record, None
    known = list(facts.steps())
    if known and re.fullmatch(r"\d{1,5}", wanted):  # contexts name records by number: #12
        raise RefusedCall(f"There is no record #{int(wanted)}: this session has #1 to #{len(known)}.")
    folded = wanted.casefold().rstrip("….")
    enough = len(folded) >= PREFIX
    fitting = [t for t in known if t.casefold().startswith(folded)]
    if wider is not None and not fitting:
        places = wider.elsewhere(wanted)[:1] or (wider.elsewhere(folded, beginning=True) if enough else [])
        if len(places) > 1:
            named = [f"{t} (session {session_name(s)})" for s, t in places[:_IDS_SHOWN]]
            raise RefusedCall(_ambiguous(wanted, len(places), _and_more(named, len(places))))
        for (session_id, _), (other, _) in wider.entries(places).items():
            return other, session_id
    if not known:
        raise RefusedCall(NOTHING_STORED)
    if fitting and enough:
        raise RefusedCall(_ambiguous(wanted, len(fitting), _named(state, fitting)))
    if fitting:
        raise RefusedCall(
            f"A trace_id needs at least {PREFIX} characters; with {wanted} begin {_named(state, fitting)}."
        )
    near = difflib.get_close_matches(folded, known[-2_000:], _IDS_SHOWN, 0.5)
    if not near:
        starts = {t[: len(folded)]: t for t in known[-2_000:]}
        near = [starts[c] for c in difflib.get_close_matches(folded, starts, _IDS_SHOWN, 0.5)]
    hint = f"the {'nearest' if near else 'latest'} are {_named(state, near or known[::-1])}"
    where = "this session" if wider is None else "this session or of those it may search"
    raise RefusedCall(f"No record of {where} has the trace_id {compact(wanted[:80])}: {hint}.")


def _ambiguous(wanted: str, count: int, named: str) -> str:
    return f"The trace_id {wanted} fits {count} records: {named}. Give more of it."


def _named(state: Any, ids: Sequence[str]) -> str:
    found = state.fact_store.get_many(list(ids[:_IDS_SHOWN]))
    named = [f"{r.trace_id} ({cut_at_edge(one_line(r.tool_name), 80)}, step {r.step_id})" for r in found]
    return _and_more(named, len(ids))


def _and_more(named: Sequence[str], count: int) -> str:
    return ", ".join(named) + (f" and {count - _IDS_SHOWN} more" if count > _IDS_SHOWN else "")


def _fitting(rows: Iterable[str], room: int) -> list[str]:
    """As many rows as fit into the room with their ends of line; the first one always, cut if it is too long."""
    fitting: list[str] = []
    for row in rows:
        room -= len(row) + 1
        if room < 0 and fitting:
            break
        fitting.append(row if room >= 0 else cut_at_edge(row, room + len(row) + 1, marked=True))
    return fitting


def _beginning(trace_id: str, chosen: PathSelection, room: int, what: str) -> tuple[str, str, str]:
    """The text, or its beginning, a note on how to get the rest (without the tool's text), and what is shown."""
    text, value = chosen.text, chosen.value
    if len(text) <= room:
        return text, "", what
    head = text[: text.rfind("\n", room // 2, room) + 1] or cut_at_edge(text, room)
    layout = lay_out(text, value)
    at = 1 if layout.by_path else min(layout.count, head.count("\n") + 1)
    of = f"of {layout.count:,} lines{', one a value' if layout.by_path else ''}"
    ways = [f'lines="{at}-{min(layout.count, at + 199)}" ({of})']
    if isinstance(value, dict):
        shown = ", ".join(quoted(k) for k in islice(value, 12))
        what += f", with the keys {shown}{', …' if len(value) > 12 else ''}"
        ways.append("path=")
    elif isinstance(value, list):
        ways.append(f'path="[0]" to "[{len(value) - 1}]"')
    note = (
        f"[Shown are the first {len(head):,} of {len(text):,} characters. The rest: "
        f'{GET_RECORD} with trace_id="{trace_id}" and {" or ".join([*ways, "pattern="])}.]'
    )
    return head, note, what


def _some_lines(
    chosen: PathSelection, lines: Any, pattern: str | None, room: int, where: str
) -> tuple[str, str, str]:
    """The selected lines of ``where`` as text, a note if some are left out, and what they are."""
    layout = lay_out(chosen.text, chosen.value)
    selected = select_lines(layout, lines, pattern)
    what = f"lines {lines} of {layout.count:,}" if lines is not None else f"{layout.count:,} lines"
    if selected.hits is not None:
        if not selected.hits:
            raise NothingFound(
                f"No line matches the pattern {compact(pattern[:80] if pattern else '')} in {what} ({where}); "
                "(?i) at its beginning ignores case."
            )
        more = " or more" if len(selected.hits) == MAX_HITS else ""
        what = f"{len(selected.hits):,}{more} matching line{'s' if len(selected.hits) > 1 else ''} in {what}"
    numbers: list[int] = []

    def rows() -> Iterator[str]:
        for n, line, matches in selected:
            apart = pattern is not None and bool(numbers) and n != numbers[-1] + 1
            numbers.append(n)
            yield f"{'--' + chr(10) if apart else ''}{n}{':' if matches else '-'} {line}"

    shown = _fitting(rows(), room)
    note = ""
    if len(numbers) > len(shown):
        last, next_ = numbers[-2:]
        note = f'[Shown up to line {last}; go on with lines="{next_}-{selected.last}".]'
    described = (what, where if chosen.single else "", layout.note)
    return "\n".join(shown), note, ", ".join(d for d in described if d)


def _list(state: Any, given: Mapping[str, Any], room: int) -> ToolAnswer:
    tool = given.get("tool")
    number = str(given.get("after") or 0).strip().removeprefix("#")
    if isinstance(given.get("after"), bool) or not number.isascii() or not number.isdigit():
        raise RefusedCall(
            "after is the number of the record after which the page begins, or null for the first."
        )
    if tool is not None and not isinstance(tool, str):
        raise RefusedCall("tool is the name of a tool, or null for all.")
    tool, after = tool or None, min(int(number[:12]), 10**9)
    found: list[Outline] = state.fact_store.page(after, PAGE + 1, tool)
    total: int = state.fact_store.size()
    if not total:
        raise NothingFound(NOTHING_STORED)
    if not found and tool is not None:
        where = f" after #{after}" if after else ""
        raise NothingFound(
            f"No record{where} is of a tool {compact(tool[:80])}; {LIST_RECORDS} without tool lists all."
        )
    if not found:
        raise NothingFound(f"There is no record after #{after}: this session has #1 to #{total}.")
    rows = _fitting(
        (
            f"#{o.number} trace_id {o.trace_id}, {one_line(o.tool_name)}, step {o.step_id}, "
            f"{o.output_bytes:,} bytes, arguments: {cut_at_edge(one_line(o.arguments), 160, marked=True)}"
            for o in found[:PAGE]
        ),
        room,
    )
    shown = found[: len(rows)]
    last = shown[-1].number
    of = f" of {compact(tool[:80])}" if tool else ""
    more = f" More: {LIST_RECORDS} with after={last}." if len(found) > len(shown) else ""
    note = (
        f"[{len(shown)} record{'s' if len(shown) > 1 else ''}{of}, up to #{last} of #{total}.{more} "
        f"An output exactly: {GET_RECORD} with its trace_id.]"
    )
    described = tuple({"number": o.number, **_described(o, output_bytes=o.output_bytes)} for o in shown)
    return ToolAnswer(fence("\n".join(rows)) + f"\n{note}", records=described)


def _files(state: Any, given: Mapping[str, Any], room: int) -> ToolAnswer:
    """What Anthropic's memory tool answers; a longer answer is cut."""
    files = state if isinstance(state, MemoryFiles) else state.files
    if files is None:
        raise RefusedCall("No files are kept here: the setting memory_files is off.")
    try:
        text = files.run(given)
    except FileError as e:
        return ToolAnswer(cut_at_edge(sendable(str(e)), room, marked=True), refused=True)
    if len(text) > room:
        text = cut_at_edge(text, room, marked=True) + "\n[This is not all: view_range shows other lines.]"
    return ToolAnswer(quote_lines(text))


_HANDLERS = {
    schema["function"]["name"]: (handler, tuple(schema["function"]["parameters"]["properties"]))
    for schema, handler in zip([*TOOL_SCHEMAS, FILES_SCHEMA], (_search, _get, _list, _files), strict=True)
}
