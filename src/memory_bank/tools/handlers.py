"""The tools as a model sees them, and what they answer: always text, never an exception.

``get_record`` reads what was left out of a context. ``search_memory`` and ``list_records``, once tools of their own,
are answered still.
"""

from __future__ import annotations

import copy
import re
import time
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
from memory_bank.transcript.framing import framed_text
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
from memory_bank.transcript.quoting import Mark, fence, one_line, quote_lines, sendable, without_colours
from memory_bank.transcript.shortening import cut_at_edge, shorten

MAX_CHARS = 20_000
"""How much an answer quotes at most, unless the caller says otherwise."""
WHOLE_CHARS = 8_000
"""How much of an output that was asked for without lines, pattern or path; about 2,000 tokens."""
TOP_K = 5
PAGE = 50
"""Records on a page of a list."""
LONGEST_ARGUMENTS: dict[str, int] = {
    "record": 8_000, "query": 8_000, "trace_id": 200, "path": 1_000, "lines": 1_000, "pattern": 1_000,
    "tool": 1_000, "after": 200,
}  # fmt: skip
"""Characters of each argument at most, for every way in: tool calls, MCP and the HTTP API."""
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
        GET_RECORD,
        "Read what earlier tool calls returned, also what is no longer in view, before you repeat a call or guess.",
        record=("string", '"#12" or its mark; "#3 to #9" lists calls; other words search all outputs'),
        lines=("string?", '"94-132", "7", "-20": the last 20'),
        pattern=("string?", "regular expression"),
        path=("string?", "items[3].sku, items[*].sku"),
    )
]
"""The schema of the tool, in the form of the chat completions API."""
EARLIER_SCHEMAS: list[ToolSchema] = copy.deepcopy(TOOL_SCHEMAS)
"""The schemas for a session whose project has earlier sessions, which its searches reach."""
EARLIER_SCHEMAS[0]["function"]["description"] += (
    " Words search this project's earlier sessions, too: before you ask the user, or try again what failed."
)
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
    text or an object. ``max_chars`` limits what is quoted; up to 20,000, a whole output is limited to 8,000. A wrong
    call is answered by a sentence, never by an exception. Raises ConfigError where ``state`` is neither.

    Example:
        >>> handle_tool_call(state, "get_record", {"record": "#1", "path": "due"}).splitlines()[-2]
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
    tool = next((k for k in _HANDLERS if k == name or (ours and name.casefold().endswith(k))), None)
    parsed = parse_arguments(arguments)
    if tool is None:
        text = f"There is no memory tool {compact(name[:80])}: there are {', '.join(_HANDLERS)}."
    elif not isinstance(parsed, dict) or RAW in parsed:
        text = f"The arguments of {name} are no JSON object."
    elif isinstance(state, MemoryFiles) and tool != MEMORY_FILES:
        text = NOTHING_STORED
    else:
        return _answer(tool, state, parsed, max(0, max_chars), scope)
    return ToolAnswer(sendable(text), refused=True)


def memory_tools(state: Session | None, *, max_chars: int = MAX_CHARS) -> dict[str, Callable[..., str]]:
    """Return the tool as a function for agent frameworks, by its name, bound to a state.

    Example:
        >>> list(memory_tools(state))
        ['get_record']
    """

    def get_record(
        record: str, lines: str | None = None, pattern: str | None = None, path: str | None = None
    ) -> str:
        """Read what earlier tool calls returned, exactly: "#12" or its mark; other words search all outputs.

        "#3 to #9" lists calls. Of one, lines ("94-132"), pattern (a regular expression) or path (items[3].sku).
        """
        args = {"record": record, "lines": lines, "pattern": pattern, "path": path}
        return _answer(GET_RECORD, state, args, max_chars).text

    return {GET_RECORD: get_record}


def _answer(
    tool: str, state: Any, args: Mapping[str, Any], room: int, scope: Scope | None = None
) -> ToolAnswer:
    try:
        for name, longest in LONGEST_ARGUMENTS.items():
            value = args.get(name)
            if isinstance(value, (list, dict, bool)):
                raise RefusedCall(f"{name} is a text.")
            if isinstance(value, str) and len(value) > longest:
                raise RefusedCall(f"{name} has {len(value):,} characters: give at most {longest:,}.")
        handler, parameters = _HANDLERS[tool]
        for name in args:
            if name not in parameters:
                takes = ", ".join(parameters[:4] if tool == GET_RECORD else parameters)
                raise RefusedCall(f"{tool} has no parameter {compact(name[:80])}: it takes {takes}.")
        return _search(state, args, room, scope) if tool == SEARCH_MEMORY else handler(state, args, room)
    except RefusedCall as e:
        text = f"{e.sentence}\n{fence(quote_lines(e.quoted))}" if e.quoted else e.sentence
        return ToolAnswer(sendable(text), refused=not isinstance(e, NothingFound))
    except MemoryBankError as e:
        return ToolAnswer(f"The memory could not be read: {e}", refused=True)


def _described(
    record: InteractionRecord | Outline, session_id: str | None = None, **members: Any
) -> dict[str, Any]:
    """The members of a record for a program; ``session_id`` None: it is the searched session's own."""
    described = {"trace_id": record.trace_id, "step_id": record.step_id}
    described |= {"tool_name": sendable(record.tool_name), **members}
    return described if session_id is None else {**described, "session": session_name(session_id)}


def _of_session(session_id: str | None) -> str:
    return "" if session_id is None else f" of the session {session_name(session_id)}"


def _search(state: Any, args: Mapping[str, Any], room: int, scope: Scope | None = None) -> ToolAnswer:
    query = str(args.get("query") or "").strip()
    if not query:
        raise RefusedCall("search_memory needs a query: words, or an id that you look for.")
    asked = args.get("top_k")
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
    matches = [(m, record) for m, record in zip(result.matches, records, strict=True) if record is not None]
    if not matches:
        raise NothingFound(_nothing(state, query, trouble))
    excerpt = min(700, max(80, room // len(matches) - 400))
    tasks = searched.tasks({m.outline.session_id for m, _ in matches})
    numbers = (
        {} if scope else {m.outline.trace_id: f"#{m.outline.number}" for m, _ in matches if not m.session_id}
    )
    blocks, described = [], []
    for number, (m, record) in enumerate(matches, 1):
        o = m.outline
        session_id = state.session_id if scope and m.session_id is None else m.session_id
        where = f"step {o.step_id}{_of_session(session_id)}"
        if session_id is not None:
            task, days = one_line(tasks.get(session_id, "")), int((time.time() - record.timestamp) / 86_400)
            where += f" ({compact(cut_at_edge(task, 60))}, " if task else " ("
            where += f"{days} day{'' if days == 1 else 's'} ago)" if days > 0 else "today)"
        named = f"trace_id {o.trace_id}," if session_id else f"#{o.number}"
        lines = [
            f"[{number}] {named} {one_line(o.tool_name)}, {where}, {m.reason_with(numbers)}",
            f"{Mark.ARGUMENTS}{quote_lines(shorten(record.raw_input, 200).text)}",
            f"{Mark.OUTPUT}{quote_lines(raw_data(record, excerpt).text)}",
        ]
        if o.summary is not None:
            lines.insert(2, f"{Mark.SUMMARY}{quote_lines(cut_at_edge(o.summary, excerpt, marked=True))}")
        blocks.append("\n".join(lines))
        described.append(_described(o, session_id, score=round(m.score, 4), newer=m.newer))
    count = f"{len(matches)} of {size:,} records{trouble}"
    how = f"{GET_RECORD} with its trace_id and session" if scope else f'{GET_RECORD}("#n")'
    hint = f"[{count}. An output exactly: {how}.]"
    return ToolAnswer(fence("\n\n".join(blocks)) + f"\n{hint}", records=tuple(described))


def _nothing(state: Any, query: str, trouble: str = "") -> str:
    calls = f'"#1 to #{size}"' if (size := state.fact_store.size()) > 1 else '"#1"'
    hint = f"try other words, a name or an id as a tool wrote it, or {calls} for the calls"
    return f"Nothing matches {compact(query[:80])}{trouble}: {hint}."


def _get(state: Any, args: Mapping[str, Any], room: int) -> ToolAnswer:
    """A record, or part of it, by what a context calls it; a list of several; what words find."""
    asked = args.get("record") if args.get("trace_id") is None else args["trace_id"]
    words = "" if asked is None else str(asked).strip()
    if not words.strip("\"'`[]()<>#"):
        raise RefusedCall(
            f'{GET_RECORD} needs a record: "#12", as a context names it, or words that its output has.'
        )
    numbers, of_mark = _numbers_in(words)
    lines, pattern, path = (args.get(k) or None for k in ("lines", "pattern", "path"))
    if len(numbers) > 1 or (numbers and len(numbers[0]) > 1):
        if lines or pattern or path:
            raise RefusedCall(f"lines, pattern and path are of one record: give one number of {words[:60]}.")
        return _page(state, numbers, room)
    lines = lines or (None if pattern or path else of_mark)
    is_exact = args.get("trace_id") is not None or numbers or _ID.search(words)
    entry = _find_record(state, words) if is_exact or " " not in words else None
    if entry is None and is_exact:
        raise RefusedCall(_unknown(state, words))
    if entry is None and not (lines or pattern or path):
        return _search(state, {"query": words}, room)
    if entry is None:  # the part is of the output that fits best
        matches = search_session(state, words, 1).matches
        entry = _find_record(state, matches[0].outline.trace_id) if matches else None
        if entry is None:
            raise NothingFound(_nothing(state, words) if state.fact_store.size() else NOTHING_STORED)
    record, session_id, named = entry
    text = record.output_text if record.output_text is not None else compact(record.raw_output)
    parts: tuple[dict[str, Any], ...] = ()
    whole = not (path or lines or pattern)
    if whole or (record.output_text is None and not path):
        text = readable_output(record)[1]
        if whole and record.output_text is None:
            parts = tuple(p for p in parts_of(record.raw_output) if isinstance(p, dict) and media_of(p))
    if whole and room <= MAX_CHARS:
        room = min(room, WHOLE_CHARS)
    if not path and (lines or pattern or len(text) > room):  # as a context numbers its lines
        text = framed_text(text)
    chosen = at_path(text, None if path is None else str(path), as_json)
    part = f"{len(text):,} characters"
    if chosen.values is not None:
        part = f"at {chosen.values[0].path}" if chosen.single else f"{len(chosen.values):,} values at {path}"
    if lines is None and pattern is None:
        text, hint, part = _beginning(named, chosen, room, part)
    else:
        text, hint, part = _some_lines(chosen, lines, None if pattern is None else str(pattern), room, part)
    arguments = record.input_text if record.input_text is not None else compact(record.raw_input)
    newer = superseding(state.database, session_id or state.session_id, record.trace_id)
    newer_line = f"{Mark.SUPERSEDED}{newer}, a later result of the same call\n" if newer else ""
    answer = fence(
        f"{Mark.TOOL}{one_line(record.tool_name)}\n{Mark.STEP}{record.step_id}{_of_session(session_id)}\n"
        f"{Mark.TRACE_ID}{record.trace_id}\n{newer_line}"
        f"{Mark.ARGUMENTS}{quote_lines(shorten(record.raw_input, 2_000, text=arguments).text)}\n"
        f"{Mark.OUTPUT_OF}{one_line(part)}):\n{quote_lines(text)}"
    )
    described = (_described(record, session_id, newer=newer),)
    return ToolAnswer(f"{answer}\n{hint}" if hint else answer, records=described, parts=parts)


def record_named(state: Any, asked: Any) -> InteractionRecord:
    """The record of a trace_id, of its beginning, or of a number (``#12``). Raises RecordError, StorageError."""
    wanted = str(asked if asked is not None else "").strip()
    try:
        if entry := _find_record(state, wanted) if wanted else None:
            return entry[0]
        raise RefusedCall(_unknown(state, wanted))
    except RefusedCall as e:
        raise RecordError(e.sentence) from None


_ID = re.compile(r"(?:trace_id[=: \"']{1,3}|\A)([0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12})", re.I)
_AT_NUMBER = re.compile(
    r"[^\w#]*(?:(?:calls|call|record|output|result|note before|get_record)\b[^\w#]{0,3})?#\s?(?=\d)", re.I
)
_IN_MARK = re.compile(r"\[\s?(?:…|\.\.\.)[^\[\]#]{0,400}#\s?(?=\d)")
_RUN = re.compile(r"(\d{1,9})(?:\s?(?:to|-|–|…)\s?#?\s?(\d{1,9}))?[,;… and]*#?")
_LINES_IN = re.compile(r"\blines?\W{1,3}(\d{1,9}(?:\s?(?:-|–|to)\s?\d{1,9})?)")


def _numbers_in(asked: str) -> tuple[list[range], str | None]:
    """The numbers of records that a text names as a context does, and the lines of a mark that names them.

    A text that begins with a number (``#12 get_order``, ``Calls #3 to #9``), or a mark, alone or at its line's end.
    """
    numbers: list[range] = []
    begin = _IN_MARK.search(asked) or _AT_NUMBER.match(asked)
    if begin is None:
        return numbers, None
    at = begin.end()
    while (run := _RUN.match(asked, at)) and len(numbers) < PAGE:
        first = int(run[1])
        numbers.append(range(first, max(first, int(run[2] or first)) + 1))
        if not run[0].endswith("#"):
            break
        at = run.end()
    lines = _LINES_IN.search(asked, begin.end())
    return numbers, lines and lines[1]


def _find_record(state: Any, asked: str) -> tuple[InteractionRecord, str | None, str] | None:
    """The record that is asked for, its session if it is another one, its name. Raises RefusedCall: several fit."""
    numbers, named, wider = _numbers_in(asked)[0], _ID.search(asked), state.wider
    wanted = f"#{numbers[0][0]}" if numbers else named[1] if named else asked.strip("\"'`[]()<>#….")
    outlines, places = records_named(state.database, state.session_id, wanted), list[tuple[str, str]]()
    if len(outlines) == 1 and (record := state.fact_store.get(outlines[0].trace_id)) is not None:
        return record, None, f"#{outlines[0].number}"
    if wider is not None and not outlines:
        begins = wider.elsewhere(wanted.casefold(), beginning=True) if len(wanted) >= PREFIX else []
        places = wider.elsewhere(wanted)[:1] or begins
        for (session_id, trace_id), (other, _) in wider.entries(places[: len(places) == 1]).items():
            return other, session_id, trace_id
    several = [o.trace_id for o in outlines] or [f"{t} (session {session_name(s)})" for s, t in places]
    if len(several) > 1:
        fits = f"fits {len(several)} records: {', '.join(several[:5])}"
        raise RefusedCall(f"The trace_id {wanted} {fits}. Give more of it.")
    return None


def _unknown(state: Any, asked: str) -> str:
    """Why there is no record of a number or an id, and which there are."""
    numbers, size = _numbers_in(asked)[0], state.fact_store.size()
    name = f"#{numbers[0][0]}" if numbers else f"with the trace_id {compact(asked[:80])}"
    there = f"#1 to #{size}" + ("" if state.wider is None else "; words find those of other sessions")
    return f"There is no record {name}: this session has {there}." if size else NOTHING_STORED


def _fitting(rows: Iterable[str], room: int) -> list[str]:
    """As many rows as fit into the room with their ends of line; the first one always, cut if it is too long."""
    fitting: list[str] = []
    for row in rows:
        room -= len(row) + 1
        if room < 0 and fitting:
            break
        fitting.append(row if room >= 0 else cut_at_edge(row, room + len(row) + 1, marked=True))
    return fitting


def _beginning(name: str, chosen: PathSelection, room: int, part: str) -> tuple[str, str, str]:
    """The text, or its beginning, a hint on how to get the rest (without the tool's text), and what it is."""
    text, value = chosen.text, chosen.value
    if len(text) <= room:
        return text, "", part
    head = text[: text.rfind("\n", room // 2, room) + 1] or cut_at_edge(text, room)
    layout = lay_out(text, value)
    at = 1 if layout.by_path else min(layout.count, head.count("\n") + 1)
    of = f"of {layout.count:,} lines{', one a value' if layout.by_path else ''}"
    ways = [f'lines="{at}-{min(layout.count, at + 199)}" ({of})', "pattern="]
    if isinstance(value, dict):
        keys = ", ".join(quoted(k) for k in islice(value, 12))
        part += f", with the keys {keys}{', …' if len(value) > 12 else ''}"
        ways.append("path=")
    elif isinstance(value, list):
        ways.append(f'path="[0]" to "[{len(value) - 1}]"')
    hint = (
        f"[Shown are the first {len(head):,} of {len(text):,} characters. The rest: "
        f'{GET_RECORD}("{name}") with {" or ".join(ways)}.]'
    )
    return head, hint, part


def _some_lines(
    chosen: PathSelection, lines: Any, pattern: str | None, room: int, where: str
) -> tuple[str, str, str]:
    """The selected lines of ``where`` as text, a hint if some are left out, and what they are."""
    layout = lay_out(without_colours(chosen.text), chosen.value)
    selected = select_lines(layout, lines, pattern)
    part = f"lines {lines} of {layout.count:,}" if lines is not None else f"{layout.count:,} lines"
    if selected.hits is not None:
        if not selected.hits:
            raise NothingFound(
                f"No line matches the pattern {compact(pattern[:80] if pattern else '')} in {part} ({where}); "
                "(?i) at its beginning ignores case."
            )
        plus = " or more" if len(selected.hits) == MAX_HITS else ""
        part = f"{len(selected.hits):,}{plus} matching line{'s' if len(selected.hits) > 1 else ''} in {part}"
    numbers: list[int] = []

    def rows() -> Iterator[str]:
        for n, line, matches in selected:
            apart = pattern is not None and bool(numbers) and n != numbers[-1] + 1
            numbers.append(n)
            yield f"{'--' + chr(10) if apart else ''}{n}{':' if matches else '-'} {line}"

    texts = _fitting(rows(), room)
    hint = ""
    if len(numbers) > len(texts):
        last, next_ = numbers[-2:]
        hint = f'[Shown up to line {last}; go on with lines="{next_}-{selected.last}".]'
    described = (part, where if chosen.single else "", layout.difference)
    return "\n".join(texts), hint, ", ".join(d for d in described if d)


def _list(state: Any, args: Mapping[str, Any], room: int) -> ToolAnswer:
    number = str(args.get("after") or 0).strip().removeprefix("#")
    if not number.isascii() or not number.isdigit():
        raise RefusedCall("after is the number of the record after which the list begins, or null.")
    after = min(int(number[:12]), 10**9)
    return _page(state, [range(after + 1, 2 * 10**9)], room, str(args.get("tool") or ""))


def _page(state: Any, numbers: Sequence[range], room: int, tool: str = "") -> ToolAnswer:
    """The calls of some numbers, of one ``tool`` if it is given, one a line."""
    outlines: list[Outline] = []
    for run in numbers:
        page = state.fact_store.page(run[0] - 1, min(len(run), PAGE + 1 - len(outlines)), tool or None)
        outlines += [o for o in page if o.number in run]
    total = state.fact_store.size()
    of = f" of a tool {compact(tool[:80])}" if tool else ""
    if not outlines:
        none = f"There is no record{of} after #{numbers[0][0] - 1}: this session has #1 to #{total}."
        raise NothingFound(none if total else NOTHING_STORED)
    rows = _fitting(
        (
            f"#{o.number} {one_line(o.tool_name)}, step {o.step_id}, "
            f"{o.output_bytes:,} bytes, arguments: {cut_at_edge(one_line(o.arguments), 160, marked=True)}"
            for o in outlines[:PAGE]
        ),
        room,
    )
    listed = outlines[: len(rows)]
    last, end = listed[-1].number, min(numbers[-1][-1], total)
    rest = f"{LIST_RECORDS} with after={last}" if tool else f'{GET_RECORD}("#{last + 1} to #{end}")'
    beyond = f" More: {rest}." if len(outlines) > len(listed) else ""
    count = f"{len(listed)} record{'s' if len(listed) > 1 else ''}{of}, up to #{last} of #{total}"
    hint = f'[{count}.{beyond} An output exactly: {GET_RECORD}("#n").]'
    described = tuple({"number": o.number, **_described(o, output_bytes=o.output_bytes)} for o in listed)
    return ToolAnswer(fence("\n".join(rows)) + f"\n{hint}", records=described)


def _files(state: Any, args: Mapping[str, Any], room: int) -> ToolAnswer:
    """The answer of Anthropic's memory tool; a longer answer is cut."""
    files = state if isinstance(state, MemoryFiles) else state.files
    if files is None:
        raise RefusedCall("No files are kept here: the setting memory_files is off.")
    try:
        text = files.run(args)
    except FileError as e:
        return ToolAnswer(cut_at_edge(sendable(str(e)), room, marked=True), refused=True)
    if len(text) > room:
        text = cut_at_edge(text, room, marked=True) + "\n[This is not all: view_range shows other lines.]"
    return ToolAnswer(quote_lines(text))


_HANDLERS: dict[str, tuple[Callable[..., ToolAnswer], tuple[str, ...]]] = {
    SEARCH_MEMORY: (_search, ("query", "top_k")),
    GET_RECORD: (_get, (*TOOL_SCHEMAS[0]["function"]["parameters"]["properties"], "trace_id")),
    LIST_RECORDS: (_list, ("after", "tool")),
    MEMORY_FILES: (_files, tuple(FILES_SCHEMA["function"]["parameters"]["properties"])),
}
"""The tools, with their arguments. Programs name a record by ``trace_id``, and so did the tool before."""
