"""Calls that an agent writes as text: conversations in one of the forms below as chat messages, and back.

=============== ======================================================== ===================================
form            the assistant's message ends with                        the user's message after it begins
=============== ======================================================== ===================================
``smolagents``  ``Calling tools:`` and a list of calls                   ``Observation:``, or ``Error:``
``bash``        is one fenced block of ``bash``, ``sh``, ``shell`` or    ``<returncode>``, ``<output>`` or
                ``mswea_bash_command``, with words around it             ``<exception>``, and has ``<output``
``react``       ``Action: TOOL`` and ``Action Input: ARGUMENTS``         ``Observation:``
=============== ======================================================== ===================================

A form is recognised, never guessed: every message of the assistant that has it is answered in it, every answer
follows one, at least one does, and no message of the list has native calls. Other messages stay as they are.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from memory_bank.errors import HistoryError
from memory_bank.transcript.jsontext import compact
from memory_bank.transcript.messages import MessageKind, call_entry, content_text, is_text_part, kind_of, read

ChatMessage = dict[str, Any]

CALLING = "Calling tools:\n"


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """A call in a text: what stands before it (``lead``), between that and its arguments, and after these.

    ``arguments`` is the text of a JSON object. ``write`` gives other arguments as the form writes them.
    """

    lead: str
    head: str
    name: str
    arguments: str
    tail: str
    write: Callable[[str], str]
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class TextForm:
    """One form: how it writes a call, and how the answers to calls begin.

    ``answer`` matches the beginning of an answer up to the output. ``only_answer`` is as ``answer``, for
    beginnings that nothing but the answer to a call has. A shortened output stands in ``frame``.
    """

    name: str
    read_call: Callable[[str], WrittenCall | None]
    answer: re.Pattern[str]
    only_answer: re.Pattern[str]
    frame: str = "{}"


@dataclass(frozen=True, slots=True)
class TextChat:
    """A conversation whose calls are text, as chat ``messages`` with calls; ``write`` converts a context back.

    ``write`` raises HistoryError for a call or a result that the conversation does not have.
    """

    form: str
    messages: list[Any]
    write: Callable[[Sequence[Any]], list[Any]]


def read_text_calls(messages: Sequence[Any]) -> TextChat | None:
    """The conversation with its written calls as calls; None where it has none of the forms."""
    kinds = []
    for message in messages:
        kind = kind_of(message)
        if kind in (MessageKind.CALL, MessageKind.RESULT):
            return None
        kinds.append(kind)
    if MessageKind.SAY not in kinds:
        return None
    for form in FORMS:
        found = _calls_in(messages, kinds, form)
        if found:
            return _converted(messages, form, found)
    return None


def _calls_in(
    messages: Sequence[Any], kinds: Sequence[MessageKind], form: TextForm
) -> dict[int, WrittenCall] | None:
    """The answered calls by position; None where the conversation does not hold the form."""
    found: dict[int, WrittenCall] = {}
    for i, message in enumerate(messages):
        text = _text(message)
        if kinds[i] is MessageKind.SAY:
            call = None if text is None else form.read_call(text)
            if call is None or i + 1 == len(messages):
                continue
            answer = _text(messages[i + 1]) if kinds[i + 1] is MessageKind.USER else None
            if answer is None or form.answer.match(answer) is None:
                return None
            found[i] = call
        elif kinds[i] is MessageKind.USER and i - 1 not in found and form.only_answer.match(text or ""):
            return None
    return found


def _converted(messages: Sequence[Any], form: TextForm, found: Mapping[int, WrittenCall]) -> TextChat:
    out: list[Any] = []
    calls: dict[str, tuple[Any, WrittenCall]] = {}
    answers: dict[str, tuple[Any, int]] = {}
    sources: dict[int, Any] = {}
    for i, message in enumerate(messages):
        if i in found:
            call_id = found[i].call_id or f"text_{len(calls) + 1}"
            if call_id in calls:
                call_id = f"{call_id}_{len(calls) + 1}"
            calls[call_id] = message, found[i]
            made = call_entry(call_id, found[i].name, found[i].arguments)
            new: Any = {"role": "assistant", "content": found[i].lead or None, "tool_calls": [made]}
        elif i - 1 in found:
            text = _text(message) or ""
            match = form.answer.match(text)
            start = match.end() if match else 0
            answers[call_id] = message, start
            new = {"role": "tool", "tool_call_id": call_id, "content": text[start:]}
        else:
            new = message
        sources[id(new)] = message
        out.append(new)
    return TextChat(form.name, out, _Writer(form, out, calls, answers, sources).write)


@dataclass(frozen=True, slots=True)
class _Writer:
    """Writes a context as text messages. ``chat`` keeps the objects alive whose ids are in ``sources``."""

    form: TextForm
    chat: Sequence[Any]
    calls: Mapping[str, tuple[Any, WrittenCall]]
    answers: Mapping[str, tuple[Any, int]]
    sources: Mapping[int, Any]

    def write(self, context: Sequence[Any]) -> list[Any]:
        """A message that memory adds joins the user message beside it, so that the roles still alternate."""
        out: list[Any] = []
        joins_next = False
        for message in context:
            source = self.sources.get(id(message))
            is_added = source is None and "tool_calls" not in message and message.get("role") != "tool"
            new = self._changed(message) if source is None and not is_added else message
            new = new if source is None else source
            if (is_added or joins_next) and out and _is_user(out[-1]) and _is_user(new):
                out[-1] = _joined(out[-1], new)
            else:
                out.append(new)
            joins_next = is_added
        return out

    def _changed(self, message: ChatMessage) -> Any:
        """The text of a call or a result that was shortened."""
        if message.get("role") == "tool":
            source, start = self._known(self.answers, message.get("tool_call_id"))
            shown = self.form.frame.replace("{}", content_text(message.get("content")))
            return _with_text(source, (_text(source) or "")[:start] + shown)
        made = message["tool_calls"]
        source, call = self._known(self.calls, made[0].get("id") if len(made) == 1 else None)
        given = made[0]["function"]["arguments"]
        lead = content_text(message.get("content"))
        old = _text(source) or ""
        start = len(call.lead) + len(call.head)
        arguments = old[start : len(old) - len(call.tail)]
        if given != call.arguments:
            with suppress(ValueError, KeyError, TypeError):  # no longer of the form's shape: they stay
                arguments = call.write(given)
        return _with_text(source, lead + call.head + arguments + call.tail)

    @staticmethod
    def _known(natives: Mapping[str, tuple[Any, Any]], call_id: object) -> tuple[Any, Any]:
        found = natives.get(call_id) if isinstance(call_id, str) else None
        if found is None:
            raise HistoryError("the context holds a call or a result that the history does not have")
        return found


def _text(message: Any) -> str | None:
    """The text of a message that has nothing but text."""
    content = read(message, "content")
    if isinstance(content, str):
        return content
    if isinstance(content, (list, tuple)) and content and all(map(is_text_part, content)):
        return content_text(content)
    return None


def _with_text(message: Any, text: str) -> ChatMessage:
    content = [{"type": "text", "text": text}] if isinstance(message["content"], list) else text
    return {**message, "content": content}


def _is_user(message: Any) -> bool:
    return kind_of(message) is MessageKind.USER


def _joined(first: Any, second: Any) -> ChatMessage:
    """Two user messages as one."""
    texts = first["content"], second["content"]
    if all(isinstance(t, str) for t in texts):
        return {**first, "content": "\n\n".join(texts)}
    parts = [[{"type": "text", "text": t}] if isinstance(t, str) else list(t or ()) for t in texts]
    return {**first, "content": [*parts[0], *parts[1]]}


# The forms

_BASH = re.compile(r"```(?:bash|sh|shell|mswea_bash_command)[ \t]*\n(.*?)\n?```", re.S)
_ACTION = re.compile(r"^Action:[ \t]*([^\n()]+?)[ \t]*\n+Action Input:[ \t]*", re.M)
_OBSERVATION = re.compile(r"Observation:[ \t]*\n?")


def read_called(text: str) -> tuple[str, list[Any]] | None:
    """What stands before ``Calling tools:`` in a text, and the list of calls after it; None without such a list.

    The list is JSON or a Python literal, and its elements may be anything.
    """
    at = text.rfind(CALLING)
    listed = _literal(text[at + len(CALLING) :]) if at >= 0 else None
    return (text[:at], listed) if isinstance(listed, list) and listed else None


def _read_smolagents(text: str) -> WrittenCall | None:
    found = read_called(text)
    if found is None:
        return None
    lead, listed = found
    named: list[tuple[str, Any]] = []
    for call in listed:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            return None
        given = function.get("arguments")
        named.append((function["name"], {"code": given} if isinstance(given, str) else given))
    if len(named) == 1:
        name, arguments = named[0]
    else:  # their outputs are one text
        name = "+".join(dict.fromkeys(n for n, _ in named))
        arguments = {"calls": [{"name": n, "arguments": a} for n, a in named]}

    def write(changed: str) -> str:
        new = json.loads(changed)
        each = [c["arguments"] for c in new["calls"]] if len(named) > 1 else [new]
        rewritten = []
        for call, given in zip(listed, each, strict=True):
            is_code = isinstance(call["function"].get("arguments"), str)
            function = call["function"] | {"arguments": given["code"] if is_code else given}
            rewritten.append(call | {"function": function})
        return str(rewritten)

    call_id = listed[0].get("id")
    known = call_id if isinstance(call_id, str) and call_id else None
    return WrittenCall(lead, CALLING, name, compact(arguments), "", write, known)


def _read_bash(text: str) -> WrittenCall | None:
    found = list(_BASH.finditer(text))
    if len(found) != 1:
        return None
    [match] = found
    start, end = match.span(1)
    head = text[match.start() : start]

    def write(changed: str) -> str:
        return str(json.loads(changed)["command"])

    return WrittenCall(text[: match.start()], head, "bash", compact({"command": match[1]}), text[end:], write)


def _read_react(text: str) -> WrittenCall | None:
    found = list(_ACTION.finditer(text))
    if len(found) != 1 or "\nObservation:" in text:
        return None
    [match] = found
    written = text[match.end() :]
    given = _literal(written)
    is_object = isinstance(given, dict)
    arguments = compact(given if is_object else {"input": written.strip()})

    def write(changed: str) -> str:
        return changed if is_object else str(json.loads(changed)["input"])

    return WrittenCall(text[: match.start()], match[0], match[1].strip(), arguments, "", write)


def _literal(text: str) -> Any:
    """The value of JSON or of a Python literal; None for other text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


FORMS: tuple[TextForm, ...] = (
    TextForm(
        "smolagents", _read_smolagents, re.compile(r"Observation:[ \t]*\n?|(?=Call id: |Error:\n)"), _OBSERVATION
    ),
    TextForm(
        "bash", _read_bash, re.compile(r"(?=<(?:returncode|output|exception)>)(?=.*<output)", re.S),
        re.compile(r"<returncode>"), "<output>\n{}\n</output>",
    ),
    TextForm("react", _read_react, _OBSERVATION, _OBSERVATION),
)  # fmt: skip
"""The forms that are recognised, in this order."""
