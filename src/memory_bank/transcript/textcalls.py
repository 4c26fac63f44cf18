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
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from memory_bank.transcript.chat import ChatWire
from memory_bank.transcript.jsontext import compact
from memory_bank.transcript.messages import MessageKind, call_entry, content_text, is_text_part, kind_of, read
from memory_bank.transcript.quoting import sendable
from memory_bank.transcript.turns import (
    WHOLE,
    Change,
    ChatMessage,
    Conversation,
    Derive,
    PartPlace,
    derive_anew,
)

CALLING = "Calling tools:\n"
_TEXT = r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'|(?:String\.raw)?`(?:[^`\\]|\\.)*`'
_IN_CODE = re.compile(
    rf"(?P<text>{_TEXT})|//[^\n]*|/\*.*?\*/|(?P<broken>[\"'`]|/\*)"
    r"|(?<=[(,=:!&|?{};])\s*+/(?![*/])(?:[^/\\\n\[]|\\.|\[(?:[^\]\\\n]|\\.){0,99}\]){1,200}/"
    r"|(?<![\w$.])tools\.(?P<call>[\w$]+)\("
    rf"|(?<![\w$.])(?:(?:const|let|var)\s++(?P<made>[\w$]++)(?=\s*+=\s*+(?P<given>{_TEXT})"
    r"(?=\s*+(?:[;,\w$}]|\Z))|)|(?P<set>[\w$]++)(?=\s*+(?:[-+*/%&|^?]{0,3}=(?!=)|\)?\s*+=>)))",
    re.S,
)
"""The pieces of code: texts, comments and patterns, in which are no calls; calls; and names with what they get."""
_MOST_CODE = 50_000  # characters
_TOKEN = re.compile(
    rf"({_TEXT})|([a-zA-Z_$][\w$]*+)(?=\s*:)|([{{}}\[\],:)]|-?\d+(?:\.\d+)?|[\w$]+)|\s+", re.S
)
_COMMANDS = {"exec_command": "{}", "apply_patch": "apply_patch <<'PATCH'\n{}\nPATCH"}
_BY_NUMBER = re.compile(r"(?<!\\)(?:\\\\)*\\[xubfv\d]")  # characters by their numbers, and rare escapes


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """A call in a text, from ``start`` to ``end``, with its arguments at ``span``.

    ``arguments`` is the text of a JSON object. ``write`` gives other arguments as the form writes them.
    """

    start: int
    span: tuple[int, int]
    end: int
    name: str
    arguments: str
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


def read_text_calls(
    messages: Sequence[Any], derive: Derive = derive_anew, kinds: Sequence[MessageKind] | None = None
) -> Conversation[Any] | None:
    """The conversation with its written calls as calls; None where it has none of the forms.

    ``kinds``: of each message, where the caller has them.
    """
    kinds = kinds or [kind_of(message) for message in messages]
    if MessageKind.SAY not in kinds or MessageKind.CALL in kinds or MessageKind.RESULT in kinds:
        return None
    chats = (_read_form(messages, kinds, form, derive) for form in FORMS)
    return next((chat for chat in chats if chat is not None), None)


def _read_form(
    messages: Sequence[Any], kinds: Sequence[MessageKind], form: TextForm, derive: Derive
) -> Conversation[Any] | None:
    """The conversation with the answered calls of a form; None where it does not hold the form."""
    chat: Conversation[Any] = Conversation(messages, TextWire(form), derive=derive)
    ids: dict[str, None] = {}
    is_answer = False
    for i, message in enumerate(messages):
        text, new, places = _text(message), message, [PartPlace(i, WHOLE)]
        call = form.read_call(text) if kinds[i] is MessageKind.SAY and text is not None else None
        if is_answer:
            output = (text or "")[_start(form, message) :]
            new = {"role": "tool", "tool_call_id": next(reversed(ids)), "content": output}
            places, is_answer = [PartPlace(i, WHOLE, WHOLE)], False
        elif kinds[i] is MessageKind.USER and form.only_answer.match(text or ""):
            return None
        elif call is not None and text is not None and i + 1 < len(messages):
            answer = _text(messages[i + 1]) if kinds[i + 1] is MessageKind.USER else None
            if answer is None or form.answer.match(answer) is None:
                return None
            call_id = call.call_id or f"text_{len(ids) + 1}"
            if call_id in ids:
                call_id = f"{call_id}_{len(ids) + 1}"
            ids[call_id], is_answer = None, True
            entry = call_entry(call_id, call.name, call.arguments)
            text_of_turn = f"{text[: call.start]}{text[call.end :]}"
            new = {"role": "assistant", "content": text_of_turn or None, "tool_calls": [entry]}
            places = [PartPlace(i, 0, 0), PartPlace(i, WHOLE, WHOLE)]
        chat.add(new, places, i)
    return chat if ids else None


def _start(form: TextForm, answer: Any) -> int:
    match = form.answer.match(_text(answer) or "")
    return match.end() if match else 0


class TextWire(ChatWire):
    """See Wire. The call that a message ends with is its part 0, the words besides are the part WHOLE."""

    def __init__(self, form: TextForm) -> None:
        self.form = form

    def write(self, native: Any, change: Change) -> Any | None:
        old = _text(native) or ""
        if kind_of(native) is MessageKind.USER:
            shown = self.form.frame.replace("{}", change[WHOLE])
            return _with_text(native, old[: _start(self.form, native)] + shown)
        call = self.form.read_call(old)
        if call is None or change.get(0, "") is None:
            return None
        lead, after = old[: call.start], old[call.end :]
        if WHOLE in change:
            lead, after = change[WHOLE] or "", ""
            if lead and not lead.endswith("\n"):
                lead += "\n"  # a form may have to begin a line
        arguments = old[slice(*call.span)]
        if 0 in change:
            with suppress(ValueError, KeyError, TypeError):  # no longer of the form's shape: they stay
                arguments = call.write(change[0])
        head, tail = old[call.start : call.span[0]], old[call.span[1] : call.end]
        return _with_text(native, f"{lead}{head}{arguments}{tail}{after}")

    def say(self, message: ChatMessage) -> Any:
        return message


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


# The forms

_BASH = re.compile(r"```(?:bash|sh|shell|mswea_bash_command)[ \t]*\n(.*?)\n?```", re.S)
_ACTION = re.compile(r"^Action:[ \t]*+([^\n()]*[^\n() \t])[ \t]*\n++Action Input:[ \t]*+", re.M)
_OBSERVATION = re.compile(r"Observation:[ \t]*\n?")


def read_called(text: str) -> tuple[str, list[Any]] | None:
    """The text before ``Calling tools:``, and the list of calls after it; None without such a list.

    The list is JSON or a Python literal, and its elements may be anything.
    """
    at = text.rfind(CALLING)
    listed = _literal(text[at + len(CALLING) :]) if at >= 0 else None
    return (text[:at], listed) if isinstance(listed, list) and listed else None


def joined_calls(calls: Sequence[tuple[str, Any]]) -> tuple[str, str]:
    """Join the calls of a turn whose outputs are one text: the name of the joined call, and its arguments as JSON.

    Arguments that are a text are code.
    """
    arguments = [(n, {"code": a} if isinstance(a, str) else a) for n, a in calls]
    if len(arguments) == 1:
        return arguments[0][0], compact(arguments[0][1])
    named = [{"name": n, "arguments": a} for n, a in arguments]
    return "+".join(dict.fromkeys(n for n, _ in arguments)), compact({"calls": named})


def parted_calls(arguments: Any, before: Sequence[Any]) -> list[Any]:
    """Split the edited arguments of joined calls into one text for each call; ``before`` are those before the edit.

    Raises KeyError, TypeError or ValueError where they do not have that form.
    """
    each = [call["arguments"] for call in arguments["calls"]] if len(before) > 1 else [arguments]
    return [new["code"] if isinstance(old, str) else new for new, old in zip(each, before, strict=True)]


def _read_smolagents(text: str) -> WrittenCall | None:
    called = read_called(text)
    if called is None:
        return None
    lead, listed = called
    named: list[tuple[str, Any]] = []
    for call in listed:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            return None
        named.append((function["name"], function.get("arguments")))
    name, arguments = joined_calls(named)

    def write(changed: str) -> str:
        new = json.loads(changed)
        functions = [call["function"] for call in listed]
        each = parted_calls(new, [function.get("arguments") for function in functions])
        changed_calls = zip(listed, functions, each, strict=True)
        return str([call | {"function": f | {"arguments": a}} for call, f, a in changed_calls])

    call_id = listed[0].get("id")
    own_id = call_id if isinstance(call_id, str) and call_id else None
    start, end = len(lead), len(text)
    return WrittenCall(start, (start + len(CALLING), end), end, name, arguments, write, own_id)


def _read_bash(text: str) -> WrittenCall | None:
    blocks = list(_BASH.finditer(text))
    if len(blocks) != 1:
        return None
    [match] = blocks
    arguments = compact({"command": match[1]})

    def write(changed: str) -> str:
        return str(json.loads(changed)["command"])

    return WrittenCall(match.start(), match.span(1), match.end(), "bash", arguments, write)


def _read_react(text: str) -> WrittenCall | None:
    actions = list(_ACTION.finditer(text))
    if len(actions) != 1 or "\nObservation:" in text:
        return None
    [match] = actions
    written = text[match.end() :]
    value = _literal(written)
    is_object = isinstance(value, dict)
    arguments = compact(value if is_object else {"input": written.strip()})

    def write(changed: str) -> str:
        return changed if is_object else str(json.loads(changed)["input"])

    span = match.end(), len(text)
    return WrittenCall(match.start(), span, span[1], match[1].strip(), arguments, write)


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


def plain_arguments(tool: str, arguments: str) -> str:
    """Return the arguments of a call without the code around them, where Codex calls tools in code (``exec``).

    Commands and patches become one shell command. A single call of another tool becomes its arguments, with its name
    under ``tool``. Arguments of all other calls, and code that computes its arguments, are returned unchanged.
    """
    if tool != "exec" or len(arguments) > _MOST_CODE or "tools." not in arguments:
        return arguments
    read = _calls_in_code(arguments)
    commands, value, room = list[str](), None, _MOST_CODE
    for name, at, texts in read:
        value = _script_value(arguments, at, texts, room)
        command = value.get("cmd") if isinstance(value, dict) and name == "exec_command" else value
        if isinstance(command, str) and name in _COMMANDS:
            commands.append(_COMMANDS[name].format(command))
        elif len(read) > 1:
            return arguments
        room -= len(commands[-1]) if commands else 0
    plain = arguments
    if len(read) == len(commands) > 0:
        plain = compact(value if isinstance(value, dict) and len(read) == 1 else {"cmd": "\n".join(commands)})
    elif len(read) == 1 and read[0][0] not in _COMMANDS and isinstance(value, dict):
        plain = compact({"tool": read[0][0], **value})
    return plain if sendable(plain) == plain else arguments


def _calls_in_code(code: str) -> list[tuple[str, int, Mapping[str, str]]]:
    """Each tool call in code: its name, where its arguments begin, the constants of the code; [] if it is broken."""
    calls, texts, times = list[tuple[str, int]](), dict[str, str](), Counter[str]()
    for piece in _IN_CODE.finditer(code):
        _, has_value, rest = (piece["text"] or "").rpartition("${")
        if piece["broken"] or (
            has_value and piece[0][-1] == "`" and ("tools." in piece[0] or "}" not in rest)
        ):
            return []
        if piece["call"]:
            calls.append((piece["call"], piece.end()))
        if name := piece["made"] or piece["set"]:
            times[name] += 1
            texts[name] = piece["given"] or ""
    constants = {name: text for name, text in texts.items() if text and times[name] == 1}
    return [(name, at, constants) for name, at in calls]


def _script_value(code: str, at: int, texts: Mapping[str, str], room: int) -> Any:
    """The value that is written out at a place of JavaScript, ``texts`` by their names; None for others.

    None, too, for one of more than ``room`` characters.
    """
    written, depth = list[str](), 0
    while token := _TOKEN.match(code, at):
        at, (text, name, other) = token.end(), token.groups()
        if token.lastindex is None:  # space
            continue
        if written and depth <= 0:
            with suppress(ValueError, RecursionError):
                return json.loads("".join(written)) if other in (",", ")") else None
            break
        if other in ("}", "]") and written[-1:] == [","]:
            written.pop()
        if written[-1:] == ["{"] and other in texts:  # {cmd}
            written.append(f'"{other}":')
        if (text := texts.get(other, text)) and (name := _script_text(text)) is None:
            break
        room -= len(other if name is None else name)
        if room < 0:
            break
        written.append(other if name is None else json.dumps(name))
        depth += (other in ("{", "[")) - (other in ("}", "]"))
    return None


def _script_text(text: str) -> str | None:
    """The value of a text in JavaScript; None for another value, and one with values in it."""
    if text.startswith("String.raw"):
        text = text.removeprefix("String.raw").replace("\\", "\\\\")
    if text[:1] not in ("'", '"', "`") or (text[0] == "`" and "${" in text):
        return None
    with suppress(ValueError):
        return str(json.loads(text))
    if _BY_NUMBER.search(text):
        return None
    escapes = {"n": "\n", "t": "\t", "r": "\r", "\n": ""}
    return re.sub(r"\\(.)", lambda escape: escapes.get(escape[1], escape[1]), text[1:-1], flags=re.S)
