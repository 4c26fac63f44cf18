"""The values that messages are parsed into: calls, results, interactions and what stands between them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from memory_bank.records import content_key
from memory_bank.transcript.content import content_text, read, verbatim_text
from memory_bank.transcript.jsontext import compact, dump_value, parse_arguments, parse_output, plain


class Kind(StrEnum):
    """What a message is to the parser."""

    SYSTEM = "system"
    USER = "user"
    SAY = "say"  # the assistant speaks and calls nothing
    CALL = "call"  # the assistant calls tools
    RESULT = "result"
    REASONING = "reasoning"
    OTHER = "other"  # no message we know; kept as it came


_SELF_ANSWERED = frozenset(
    {"web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "mcp_call"}
)


def kind_of(message: Any) -> Kind:
    """Classify a chat message or a Responses item by role, calls and type. Never raises."""
    role = read(message, "role")
    if role == "assistant":
        has_calls = bool(read(message, "tool_calls")) or _is_call_body(read(message, "function_call"))
        return Kind.CALL if has_calls else Kind.SAY
    if role in ("tool", "function"):
        return Kind.RESULT
    if role == "user":
        return Kind.USER
    if role in ("system", "developer"):
        return Kind.SYSTEM
    if role is None:
        item = read(message, "type")
        if item == "reasoning":
            return Kind.REASONING
        if isinstance(item, str):
            if item == "function_call" or item.endswith("_call"):
                return Kind.CALL
            if item.endswith("_call_output"):
                return Kind.RESULT
    return Kind.OTHER


def _is_call_body(value: Any) -> bool:
    return value is not None and isinstance(read(value, "name"), str)


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call as the assistant made it; ``arguments`` as they came (text, object, nothing)."""

    call_id: str | None
    name: str
    arguments: Any

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
    """What came back for a call; ``extra`` holds the contents of user messages that carry its images."""

    call_id: str | None
    content: Any
    name: str | None = None
    extra: tuple[Any, ...] = ()

    @property
    def output_text(self) -> str | None:
        """The output to the letter where it is text and nothing else, or None."""
        return None if self.extra else verbatim_text(self.content)

    @property
    def raw_output(self) -> Any:
        """The output's JSON value; ``{"_raw": text}`` where text is no JSON."""
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


@dataclass(frozen=True, slots=True)
class Pair:
    """A call with its result; either may be missing in a broken history."""

    call: Call | None
    result: Result | None

    @property
    def tool_name(self) -> str:
        """The tool's name; ``"unknown"`` for a result without a call."""
        if self.call is not None:
            return self.call.name
        return (self.result.name if self.result else None) or "unknown"

    def before_images(self) -> list[Pair]:
        """The pair as it was before each message that brought images for its result."""
        if self.result is None:
            return []
        extra = self.result.extra
        return [replace(self, result=replace(self.result, extra=extra[:n])) for n in range(len(extra))]

    def content_key(self) -> bytes:
        """What identifies the pair in its session: call id, name, arguments and output."""
        call, result = self.call, self.result
        call_id = (call.call_id if call else None) or (result.call_id if result else None) or ""
        output = result.output_text if result else None
        if output is None:
            output = dump_value(result.raw_output) if result else ""
        arguments = "" if call is None else call.text
        return content_key(
            *(t.encode("utf-8", "surrogatepass") for t in (call_id, self.tool_name, arguments, output))
        )


@dataclass(frozen=True, slots=True)
class Interaction:
    """An assistant turn with its calls, all their results and what rides with them; never split.

    ``messages`` are the originals, in order, from position ``start`` of the list. ``fault`` is empty when
    every call is answered once, directly after the turn; else it says what is wrong.

    A ``Transcript`` also fills in ``trace_ids``, one for each pair (None where there is no result),
    ``earlier_ids``, which its records may have had before a user message brought their images, and
    ``tokens``, the tokens of its messages. They are empty in what ``parse_messages`` returns.
    """

    start: int
    messages: tuple[Any, ...]
    pairs: tuple[Pair, ...]
    fault: str = ""
    trace_ids: tuple[str | None, ...] = ()
    earlier_ids: tuple[str, ...] = ()
    tokens: int = 0

    @property
    def record_ids(self) -> frozenset[str]:
        """The trace_ids of its records, and those they had before their images came."""
        return frozenset(t for t in (*self.trace_ids, *self.earlier_ids) if t)

    @property
    def stop(self) -> int:
        """The position after its last message."""
        return self.start + len(self.messages)

    @property
    def note(self) -> str:
        """What the assistant said in this turn, beside its calls."""
        return "\n".join(
            t
            for m in self.messages
            if read(m, "role") == "assistant" and (t := content_text(read(m, "content")))
        )


@dataclass(frozen=True, slots=True)
class Utterance:
    """One message outside any interaction: system, user, assistant text, or something unknown."""

    start: int
    message: Any
    kind: Kind

    @property
    def messages(self) -> tuple[Any, ...]:
        """The message alone."""
        return (self.message,)

    @property
    def stop(self) -> int:
        """The position after it."""
        return self.start + 1


Segment = Interaction | Utterance


def calls_of(message: Any) -> list[Call]:
    """The calls of an assistant message or a Responses item, in order."""
    item = read(message, "type")
    if read(message, "role") is None and isinstance(item, str):
        name = read(message, "name") or item
        arguments = read(message, "arguments")
        if arguments is None:
            arguments = read(message, "input")
        if arguments is None:
            arguments = read(message, "action")
        return [Call(_id(read(message, "call_id") or read(message, "id")), str(name), arguments)]
    calls = []
    tool_calls = read(message, "tool_calls")
    for call in tool_calls if isinstance(tool_calls, (list, tuple)) else ():
        body = read(call, "function")
        if body is None:
            body = read(call, "custom")
        if body is None:
            body = call
        arguments = read(body, "arguments")
        if arguments is None:
            arguments = read(body, "input")
        calls.append(Call(_id(read(call, "id")), str(read(body, "name") or "unknown"), arguments))
    legacy = read(message, "function_call")
    if _is_call_body(legacy):
        calls.append(Call(None, str(read(legacy, "name")), read(legacy, "arguments")))
    return calls


def own_result(message: Any) -> Result | None:
    """The result that a hosted tool's item carries within itself, or None."""
    item = read(message, "type")
    if read(message, "role") is not None or not isinstance(item, str) or item not in _SELF_ANSWERED:
        return None
    output = read(message, "output")
    if output is None:
        output = read(message, "results")
    return Result(_id(read(message, "call_id") or read(message, "id")), output, str(item))


def result_of(message: Any) -> Result:
    """The result in a tool message, a legacy function message or a ``*_call_output`` item."""
    call_id = read(message, "tool_call_id")
    if call_id is None:
        call_id = read(message, "call_id")
    content = read(message, "content")
    if content is None and read(message, "role") is None:
        content = read(message, "output")
    name = read(message, "name")
    return Result(_id(call_id), content, name if isinstance(name, str) else None)


def _id(value: Any) -> str | None:
    return value if isinstance(value, str) or value is None else str(value)
