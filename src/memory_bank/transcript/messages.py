"""Messages of every API as interactions: what a message says, what it calls, and what belongs together.

A message is a dict or an SDK object of the Chat Completions API (legacy functions included), or an item of
the Responses API. Nothing inside a list of messages makes a function of this module raise.
"""

from __future__ import annotations

import operator
import re
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from memory_bank.errors import MessagesError
from memory_bank.records import Brief, InteractionRecord, call_key
from memory_bank.transcript.harness import persons_text
from memory_bank.transcript.jsontext import compact, dump_value, parse_arguments, parse_output, plain
from memory_bank.transcript.media import media_of, without_base64
from memory_bank.transcript.quoting import Mark

_TEXT_TYPES = frozenset({"text", "input_text", "output_text", "refusal", "summary_text", "reasoning_text"})
HOSTED = frozenset(
    {"web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "mcp_call"}
)
"""Types of Responses items that the provider answers itself: call and result are one item."""
BETWEEN = "a message stands between a call and its result"
# How frameworks introduce the image of a tool in a user message that follows the tool's result.
_MEDIA_BEGINNINGS = ("<tool_result", "This is file ", "Observation:")


def read(obj: object, key: str) -> Any:
    """A field of a dict or of an SDK object; None when it is absent."""
    if type(obj) is dict or isinstance(obj, Mapping):  # nearly always a dict; the check for Mapping is slow
        return obj.get(key)
    try:
        return getattr(obj, key, None)
    except Exception:  # a property of a foreign object may raise anything
        return None


# What a content says


def content_text(content: object) -> str:
    """The readable text of a content: strings as they are, text parts joined, other parts named."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if isinstance(content, (list, tuple)):
        return "\n".join(part_text(part) for part in content)
    return compact(plain(content))


def content_with(content: Any, text: str, kind: str = "text") -> Any:
    """A content with a text after it: of a list the parts stay as they are. ``kind``: the type of a text part."""
    if isinstance(content, (list, tuple)):
        kinds = (
            read(part, "type")
            for part in reversed(content)
            if is_text_part(part) and not isinstance(part, str)
        )
        return [*content, {"type": next(kinds, kind), "text": text}]
    return f"{content}\n\n{text}" if content else text


def message_text(message: object) -> str:
    """The readable text of a message's content."""
    return content_text(read(message, "content"))


def part_text(part: object) -> str:
    """The text of one content part; ``[image/png, 84 kB, "chart.png"]``, ``[image]`` and so on for other parts."""
    if isinstance(part, str):
        return part
    text = read(part, "text")
    if text is None:
        text = read(part, "refusal")
    if isinstance(text, str):
        return text
    media = media_of(part)
    if media is not None:
        return media.line
    kind = read(part, "type")
    if not isinstance(kind, str):
        return compact(plain(part))
    return f"[{kind.removeprefix('input_').removesuffix('_url')}]"


def readable_output(record: InteractionRecord) -> tuple[Any, str]:
    """A record's output for reading, as a value and as text: images and other data are named, not quoted."""
    value, text = record.raw_output, record.output_text
    if text is None:
        whole = text = compact(value)
        parts = parts_of(value) if isinstance(value, (dict, list)) else []
        are_parts = [not isinstance(p, str) and (is_text_part(p) or media_of(p) is not None) for p in parts]
        if any(are_parts):
            named = zip(parts, are_parts, strict=True)
            text = "\n".join(part_text(p) if k or isinstance(p, str) else compact(p) for p, k in named)
    else:
        whole = text
    text = without_base64(text)
    return value if text == whole else parse_output(text), text


def parts_of(value: Any) -> list[Any]:
    """The content parts of an output, and of the messages that brought its images."""
    if isinstance(value, dict) and value.keys() == {"content", "attached"}:
        return [part for content in (value["content"], *value["attached"]) for part in parts_of(content)]
    return value if isinstance(value, list) else [value]


def is_text_part(part: object) -> bool:
    """Return whether a content part carries text and nothing else."""
    if isinstance(part, str):
        return True
    kind = read(part, "type")
    return isinstance(kind, str) and kind in _TEXT_TYPES and isinstance(read(part, "text"), str)


def carries_only_media(message: object) -> bool:
    """Return whether a user message holds nothing that the user said: only images or files of a tool's result."""
    content = read(message, "content")
    if not isinstance(content, (list, tuple)) or all(map(is_text_part, content)):
        return False
    texts = [part_text(p) for p in content if read(p, "type") in ("text", "input_text") or isinstance(p, str)]
    return all(not t.strip() or t.lstrip().startswith(_MEDIA_BEGINNINGS) for t in texts)


# Our own tools

MARK = f"{Mark.OPENING} seal="
MARKS = (MARK, f'{{"result":"{MARK}', f'{{"result": "{MARK}')
"""How an answer of the memory tools begins: as text, or as MCP's structured content, written as JSON."""
SEARCH_MEMORY = "search_memory"
GET_RECORD = "get_record"
LIST_RECORDS = "list_records"
MEMORY_FILES = "memory_files"
_MEMORY_TOOL = re.compile(
    r"(?:.*(?:memory[_-]?bank|\bmemory)(?:__|[-._/:]))?(?:search_memory|get_record|list_records|memory_files)\Z",
    re.I | re.S,
)


def is_memory_tool(name: str, output: str | None = None) -> bool:
    """Return whether a tool of this name is a memory tool of this library, also under a prefix.

    An example of a prefix is ``memory_bank__get_record``. With ``output``, whether it also answers as they
    do: an application may have a ``get_record`` of its own. Answers of memory tools are not summarised,
    because they quote the bank.

    Example:
        >>> is_memory_tool("memory_bank__get_record"), is_memory_tool("get_order")
        (True, False)
    """
    if not isinstance(name, str) or not _MEMORY_TOOL.match(name):
        return False
    return output is None or output.startswith(MARKS)


def record_tool(tools: object) -> str:
    """The name of ``get_record`` among a request's tools, of any API and in namespaces; "" where it is not."""
    for tool in tools if isinstance(tools, (list, tuple)) else ():
        name = read(read(tool, "function") or read(tool, "custom") or tool, "name")
        if isinstance(name, str) and name.casefold().endswith(GET_RECORD) and is_memory_tool(name):
            return name
        if inner := record_tool(read(tool, "tools")):
            return inner
    return ""


def in_full(tool: str) -> str:
    """The part of a heading above a list of calls that names ``record_tool``; "" without one."""
    part = 'with lines="8-40" or pattern="…" a part of it'
    return f' ({tool}("#n") returns one, {part}; other words search all outputs)' if tool else ""


def with_hint(text: str, hint: str) -> str:
    """A context's text with another hint in its first line on how to fetch a record; unchanged without a hint."""
    heading, line, rest = text.partition("\n")
    return re.sub(r' \(\S+\("#n"\) returns one[^()]*\)', lambda _: hint, heading) + line + rest


# Kinds of messages, calls and results


class MessageKind(StrEnum):
    """The kind of a message for the parser."""

    SYSTEM = "system"
    USER = "user"
    SAY = "say"  # an assistant message without calls
    CALL = "call"  # an assistant message or item that calls tools
    RESULT = "result"
    REASONING = "reasoning"
    OTHER = "other"  # of an unknown kind; kept as it came


_KINDS = {
    "user": MessageKind.USER, "system": MessageKind.SYSTEM, "developer": MessageKind.SYSTEM,
    "tool": MessageKind.RESULT, "function": MessageKind.RESULT,
}  # fmt: skip


def kind_of(message: object) -> MessageKind:
    """Classify a chat message or a Responses item by role, calls and type."""
    role = read(message, "role")
    if role == "assistant":
        has_calls = bool(read(message, "tool_calls")) or _legacy_call(message) is not None
        return MessageKind.CALL if has_calls else MessageKind.SAY
    item = read(message, "type") if role is None else None
    if not isinstance(item, str):
        return _KINDS.get(role, MessageKind.OTHER) if isinstance(role, str) else MessageKind.OTHER
    if item.endswith("_call_output"):
        return MessageKind.RESULT
    if item.endswith("_call"):
        return MessageKind.CALL
    return MessageKind.REASONING if item == "reasoning" else MessageKind.OTHER


def _legacy_call(message: object) -> Any:
    """The ``function_call`` of a message, where it has a name; None else."""
    legacy = read(message, "function_call")
    return legacy if legacy is not None and isinstance(read(legacy, "name"), str) else None


SIGNATURES = ("extra_content", "provider_specific_fields", "thought_signature")
"""Members of a chat's call that hold Gemini's signature of a turn: of Google itself, LiteLLM and other gateways."""
SIGNED_ID = "__thought__"
"""The text before Gemini's signature in the ids of calls that LiteLLM makes."""


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call as the assistant made it; ``arguments`` as they came (text, object, nothing).

    ``signed``: it has the signature of its turn, without which the provider refuses the turn.
    """

    call_id: str | None
    name: str
    arguments: object
    signed: bool = False

    @property
    def raw_input(self) -> Any:
        """The arguments as an object; ``{"_raw": …}`` where they are none."""
        return parse_arguments(self.arguments)

    @property
    def text(self) -> str:
        """The arguments as text."""
        if isinstance(self.arguments, str):
            return self.arguments
        return "" if self.arguments is None else compact(plain(self.arguments))


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a call; ``extra`` holds the contents of user messages that carry its images."""

    call_id: str | None
    content: Any
    name: str | None = None
    extra: tuple[Any, ...] = ()

    @property
    def output_text(self) -> str | None:
        """The exact output where it is text and nothing else, or None."""
        content = self.content
        if isinstance(content, (list, tuple)) and len(content) == 1 and is_text_part(content[0]):
            content = content[0]
            if isinstance(content, Mapping) and set(content) <= {"type", "text"}:
                content = content["text"]
        return content if isinstance(content, str) and not self.extra else None

    @property
    def raw_output(self) -> Any:
        """The output's JSON value; ``{"_raw": text}`` where text is not JSON."""
        text = self.output_text
        if text is not None:
            return parse_output(text)
        if self.extra:
            return {"content": plain(self.content), "attached": [plain(e) for e in self.extra]}
        return plain(self.content)

    @property
    def text(self) -> str:
        """The output as readable text; parts that are not text are named."""
        return "\n".join(content_text(c) for c in (self.content, *self.extra))


def call_entry(call_id: object, name: object, arguments: Any, signed: bool = False) -> dict[str, Any]:
    """Return a call as an entry of ``tool_calls``. ``signed``: the provider has signed it (see Call)."""
    entry = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
    return {**entry, SIGNATURES[-1]: True} if signed else entry


def calls_of(message: object) -> list[Call]:
    """The calls of an assistant message or a Responses item, in order."""
    item = read(message, "type")
    if read(message, "role") is None and isinstance(item, str):
        arguments = _first_given(message, "arguments", "input", "action")
        call_id = read(message, "call_id") or read(message, "id")
        return [Call(_id(call_id), str(read(message, "name") or item), arguments)]
    calls = []
    tool_calls, details = read(message, "tool_calls"), read(message, "reasoning_details")
    signed = [read(d, "id") for d in details] if isinstance(details, (list, tuple)) else []
    for call in tool_calls if isinstance(tool_calls, (list, tuple)) else ():
        body = _first_given(call, "function", "custom")
        body = call if body is None else body
        arguments = _first_given(body, "arguments", "input")
        call_id, signature = read(call, "id"), _first_given(call, *SIGNATURES)
        is_signed = signature is not None or (
            call_id is not None and (call_id in signed or SIGNED_ID in str(call_id))
        )
        calls.append(Call(_id(call_id), str(read(body, "name") or "unknown"), arguments, is_signed))
    if (legacy := _legacy_call(message)) is not None:
        calls.append(Call(None, str(read(legacy, "name")), read(legacy, "arguments")))
    return calls


def result_of(message: object) -> Result:
    """The result in a tool message, a legacy function message or a ``*_call_output`` item."""
    content = read(message, "content")
    if content is None and read(message, "role") is None:
        content = read(message, "output")
    name = read(message, "name")
    call_id = _id(_first_given(message, "tool_call_id", "call_id"))
    return Result(call_id, content, name if isinstance(name, str) else None)


def _first_given(obj: object, *keys: str) -> Any:
    for key in keys:
        value = read(obj, key)
        if value is not None:
            return value
    return None


def _id(value: object) -> str | None:
    return value if isinstance(value, str) or value is None else str(value)


def same_objects(one: Sequence[object], other: Sequence[object]) -> bool:
    """Return whether two lists hold the very same objects."""
    return len(one) == len(other) and all(map(operator.is_, one, other))


def shared_length(a: Sequence[object], b: Sequence[object]) -> int:
    """How many of the very same objects two lists begin with."""
    if all(map(operator.is_, a, b)):
        return min(len(a), len(b))
    return next(i for i, (one, other) in enumerate(zip(a, b, strict=False)) if one is not other)


def runs_of(numbers: Iterable[int]) -> list[list[int]]:
    """The first and the last of each run of numbers that follow one another."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return runs


# Interactions


@dataclass(frozen=True, slots=True)
class Pair:
    """A call with its result; either may be missing in a broken history.

    ``call_at``: the position of the call's message in the interaction, and its number there; ``result_at``: that of
    the result's message.
    """

    call: Call | None
    result: Result | None
    call_at: tuple[int, int] | None = None
    result_at: int | None = None

    @property
    def tool_name(self) -> str:
        """The tool's name; ``"unknown"`` for a result without a call."""
        if self.call is not None:
            return self.call.name
        return (self.result.name if self.result else None) or "unknown"

    def record(self, trace_id: str, step_id: int, timestamp: float | None = None) -> InteractionRecord:
        """The record of an answered call; ``timestamp`` is by default the present time."""
        call, result = self.call, self.result
        assert result is not None
        return InteractionRecord(
            trace_id,
            step_id,
            self.tool_name,
            call.raw_input if call else {},
            result.raw_output,
            time.time() if timestamp is None else timestamp,
            call_id=call.call_id if call else result.call_id,
            input_text=call.arguments if call and isinstance(call.arguments, str) else None,
            output_text=result.output_text,
        )

    def content_key(self) -> bytes:
        """The identity of the pair in its session: call id, name, arguments and output."""
        call, result = self.call, self.result
        call_id = (call.call_id if call else None) or (result.call_id if result else None)
        output = result.output_text if result else ""
        if output is None:
            output = dump_value(result.raw_output) if result else ""
        return call_key(call_id, self.tool_name, call.text if call else "", output)


@dataclass(frozen=True, slots=True, repr=False)
class Interaction(Brief):
    """An assistant turn with its calls, all their results and the messages among them; never split.

    ``messages`` are the originals, in order, from position ``start`` of the list. ``fault`` is empty when
    every call is answered once, directly after the turn; else it says what is wrong.

    A ``Transcript`` also fills in ``trace_ids``, one for each pair (None where there is no result,
    or one that masks a recorded output),
    ``earlier_ids``, which its records may have had before a user message brought their images, and
    ``tokens``, the tokens of its messages. They are empty in what ``parse_messages`` returns.

    ``stop`` is the position after its last message, ``record_ids`` has the trace_ids of its records, earlier ones,
    too. It ``stays`` where no strategy may leave it out: a message that is none of its own stands among its messages.
    """

    start: int
    messages: tuple[Any, ...]
    pairs: tuple[Pair, ...]
    fault: str = ""
    trace_ids: tuple[str | None, ...] = ()
    earlier_ids: tuple[str, ...] = ()
    tokens: int = 0
    stop: int = field(init=False, repr=False, compare=False)
    stays: bool = field(init=False, repr=False, compare=False)
    record_ids: frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", self.start + len(self.messages))
        object.__setattr__(self, "stays", BETWEEN in self.fault)
        object.__setattr__(self, "record_ids", frozenset({*self.trace_ids, *self.earlier_ids} - {None, ""}))

    @property
    def remark(self) -> str:
        """The assistant's words in this turn, besides its calls."""
        return "\n".join(
            t for m in self.messages if read(m, "role") == "assistant" and (t := message_text(m))
        )


@dataclass(frozen=True, slots=True)
class Utterance:
    """One message outside any interaction: system, user, assistant text, or of an unknown kind."""

    start: int
    message: Any
    kind: MessageKind
    messages = property(lambda self: (self.message,), doc="The message alone.")
    stop = property(lambda self: self.start + 1, doc="The position after it.")


Segment = Interaction | Utterance


def check_messages(messages: object) -> Sequence[Any]:
    """The messages, when they are a list or a tuple; raises MessagesError otherwise, as for a string."""
    if not isinstance(messages, (list, tuple)):
        raise MessagesError(
            f"messages must be a list of chat messages, not {type(messages).__name__}: "
            "pass the list that you would send to the model."
        )
    return messages


def check_shape(messages: object) -> None:
    """Raise MessagesError for no list, and, in the first eight, for LangChain's messages and Gemini's contents."""
    for message in check_messages(messages)[:8]:
        role, kind, parts = (read(message, key) for key in ("role", "type", "parts"))
        if not isinstance(role, str) and isinstance(kind, str) and kind in ("human", "ai"):
            raise MessagesError(
                "these are LangChain messages: use the middleware of memory_bank.integrations.langchain, or convert "
                "them with langchain_core.messages.convert_to_openai_messages."
            )
        is_gemini = role in ("user", "model") and isinstance(parts, (list, tuple))
        if is_gemini and read(message, "content") is None:
            raise MessagesError(
                "these are Gemini contents: use the plugin of memory_bank.integrations.google_adk, or pass chat "
                "messages with role and content."
            )


def parse_messages(messages: object, start: int = 0) -> list[Segment]:
    """Parse messages, the first at position ``start``, into segments. Raises MessagesError for no list."""
    parser = Parser(start)
    for message in check_messages(messages):
        parser.feed(message)
    return parser.closed + parser.pending()


def latest_interactions(
    messages: Sequence[object], count: int, earlier: Sequence[Interaction] = ()
) -> list[Interaction]:
    """Return at most the last ``count`` interactions of a list, at a cost that does not grow with the list.

    ``earlier``: those of its beginning, which are not parsed again, but for the last one, which may go on.
    """
    start, calls = len(messages), 0
    while start:
        kind = kind_of(messages[start - 1])
        if calls > count and kind not in (MessageKind.CALL, MessageKind.REASONING):
            break  # in the Responses API, the calls of one turn are several items, with reasoning among them
        start -= 1
        calls += kind is MessageKind.CALL
    unchanged = [i for i in earlier[:-1] if i.stop > start]
    start = earlier[-1].start if unchanged else start
    segments = parse_messages(messages[start:], start)
    return [*unchanged, *(s for s in segments if isinstance(s, Interaction))][-count:]


def extract_tool_outputs(messages: object) -> list[tuple[str, Any, Any]]:
    """``(tool_name, raw_input, raw_output)`` of every answered call of the last interaction.

    Output that is not JSON becomes ``{"_raw": text}``; without an interaction the list is empty. Raises
    MessagesError when ``messages`` is no list.

    Example:
        >>> extract_tool_outputs(messages)
        [('get_order', {'order': 'ORD-1'}, {'order': 'ORD-1', 'due': '2026-03-01', 'note': 'late'})]
    """
    interactions = [s for s in parse_messages(messages) if isinstance(s, Interaction)]
    return [
        (pair.tool_name, pair.call.raw_input if pair.call else {}, pair.result.raw_output)
        for interaction in interactions[-1:]
        for pair in interaction.pairs
        if pair.result is not None
    ]


def task_text(segments: Iterable[Segment]) -> str | None:
    """The person's task: the text of the first user message that is not a client's own, None without one.

    Blocks that a client puts into user messages, and its summaries, are left out.
    """
    messages = (s.message for s in segments if isinstance(s, Utterance) and s.kind is MessageKind.USER)
    return next(filter(None, map(persons_words, messages)), None)


def persons_words(message: object) -> str:
    """The text of a user message without the parts that the client put there."""
    content = read(message, "content")
    parts = content if isinstance(content, (list, tuple)) else [content_text(content)]
    return "\n".join(filter(None, [persons_text(part_text(part)) for part in parts]))


@dataclass(slots=True, eq=False)
class Parser:
    """Groups messages into segments, one message at a time; ``closed`` segments are final.

    An assistant turn with calls opens an interaction. Assistant text and reasoning directly before it belong
    to it, and so do its results in any order, and a user message that only carries the images of its results.
    A message in a place where a provider would refuse it stays where it came and gives the interaction a
    fault.
    """

    position: int = 0
    closed: list[Segment] = field(default_factory=list)
    _lead: list[Utterance] = field(default_factory=list)  # may belong to the call that follows
    _open: _OpenInteraction | None = None
    # after an unanswered call: part of it if a result still comes
    _between: list[Utterance] = field(default_factory=list)

    def feed(self, message: object) -> None:
        """Parse the next message."""
        kind = kind_of(message)
        utterance = Utterance(self.position, message, kind)
        self.position += 1
        turn = None if self._lead else self._open
        if kind is MessageKind.CALL:
            self._feed_call(utterance)
        elif kind is MessageKind.RESULT:
            if turn is not None and self._between and turn.match(result_of(message)) is not None:
                turn.messages.extend(between.message for between in self._between)
                turn.faults[BETWEEN] = None
                self._between = []
            if turn is None or self._between:  # a result without a call stays with the turn that it follows
                self._close()
                self._open = turn = _OpenInteraction(utterance.start, read(message, "role") is None)
            turn.add_result(message)
        elif kind in (MessageKind.SAY, MessageKind.REASONING):
            if kind is MessageKind.SAY and self._lead and self._lead[-1].kind is MessageKind.SAY:
                self._close()  # the earlier text stands alone
            self._lead.append(utterance)
        elif (
            turn is not None
            and turn.has_results
            and not self._between
            and kind is MessageKind.USER
            and carries_only_media(message)
        ):
            turn.attach(message)
        elif turn is not None and turn.unanswered:
            self._between.append(utterance)
        else:
            self._close()
            self.closed.append(utterance)

    def pending(self) -> list[Segment]:
        """The segments that are not final yet, as they would be if nothing followed."""
        built: list[Segment] = [] if self._open is None else [self._open.build()]
        return [*built, *self._between, *self._lead]

    def _feed_call(self, call: Utterance) -> None:
        is_item, lead = read(call.message, "role") is None, self._lead
        self._lead = []
        if (
            self._open is None
            or not (is_item and self._open.is_item)
            or self._open.has_results  # parallel calls are several items before the first result
            or self._between
            or any(utterance.kind is not MessageKind.REASONING for utterance in lead)
        ):
            self._close()
            self._open = _OpenInteraction(lead[0].start if lead else call.start, is_item)
        self._open.messages.extend(utterance.message for utterance in lead)
        self._open.add_call(call.message)

    def _close(self) -> None:
        self.closed.extend(self.pending())
        self._open, self._between, self._lead = None, [], []


@dataclass(slots=True)
class _OpenInteraction:
    """The interaction being parsed."""

    start: int
    is_item: bool
    messages: list[object] = field(default_factory=list)
    has_results: bool = False
    unanswered: dict[int, None] = field(default_factory=dict)  # numbers of calls
    faults: dict[str, None] = field(default_factory=dict)
    _pairs: list[Pair] = field(default_factory=list)  # those of calls
    _orphans: list[Pair] = field(default_factory=list)
    # calls by ("id", id) and ("name", name), oldest first
    _queues: dict[tuple[str, str | None], deque[int]] = field(default_factory=dict)
    _last_answered: int | None = None

    def add_call(self, message: object) -> None:
        """Add a message with calls."""
        position = len(self.messages)
        self.messages.append(message)
        kind = read(message, "type") if self.is_item else None
        is_hosted = isinstance(kind, str) and kind in HOSTED  # it holds its own result
        for number, call in enumerate(calls_of(message)):
            if is_hosted:
                result = Result(call.call_id, _first_given(message, "output", "results"), kind)
                self._pairs.append(Pair(call, result, (position, number), position))
                continue
            i = len(self._pairs)
            self._pairs.append(Pair(call, None, (position, number)))
            self.unanswered[i] = None
            for key in (("id", call.call_id), ("name", call.name)):
                self._queues.setdefault(key, deque()).append(i)

    def match(self, result: Result) -> int | None:
        """The unanswered call that a result is for: by id, else by name, else, without an id, the first."""
        if result.call_id is None and result.name is None:
            return next(iter(self.unanswered), None)
        key = ("id", result.call_id) if result.call_id is not None else ("name", result.name)
        queue = self._queues.get(key)
        while queue and queue[0] not in self.unanswered:
            queue.popleft()
        return queue[0] if queue else None

    def add_result(self, message: object) -> None:
        """Add a result, of a call that waits for it or of none."""
        position = len(self.messages)
        self.messages.append(message)
        self.has_results = True
        result = result_of(message)
        i = self.match(result)
        if i is None:
            self._orphans.append(Pair(None, result, None, position))
            self.faults["a result has no call"] = None
            return
        self._pairs[i] = replace(self._pairs[i], result=result, result_at=position)
        del self.unanswered[i]
        self._last_answered = i

    def attach(self, message: object) -> None:
        """Add a user message that carries the images of the results."""
        self.messages.append(message)
        if self._last_answered is not None:
            pair = self._pairs[self._last_answered]
            assert pair.result is not None
            extra = (*pair.result.extra, read(message, "content"))
            self._pairs[self._last_answered] = replace(pair, result=replace(pair.result, extra=extra))

    def build(self) -> Interaction:
        """The interaction as it would be if nothing followed."""
        faults = dict(self.faults)
        ids = [p.call.call_id for p in self._pairs if p.call is not None and p.call.call_id is not None]
        if len(ids) > len(set(ids)):
            faults = {"two calls share an id": None} | faults
        if self.unanswered:
            faults["a call has no result"] = None
        return Interaction(
            self.start, tuple(self.messages), (*self._pairs, *self._orphans), "; ".join(faults)
        )
