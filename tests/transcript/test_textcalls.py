"""Calls written as text: read in the documented forms only, and written back so that the roles still alternate."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.chats import call, entries, result, say, system, user

from memory_bank.transcript.messages import Interaction, parse_messages
from memory_bank.transcript.textcalls import read_text_calls
from memory_bank.transcript.turns import ADDED, WHOLE

START = [system(), user("Fix the bug.")]


def smolagents(n: int, output: str) -> list[dict[str, Any]]:
    function = {"name": "get_order", "arguments": {"number": n}}
    calls = [{"id": f"call_{n}", "type": "function", "function": function}]
    return [
        {"role": "assistant", "content": [{"type": "text", "text": f"I look.\nCalling tools:\n{calls}"}]},
        {"role": "user", "content": [{"type": "text", "text": f"Observation:\n{output}"}]},
    ]


def bash(n: int, output: str) -> list[dict[str, Any]]:
    return [
        say(f"THOUGHT: look at {n}.\n\n```mswea_bash_command\ncat file{n}\n```"),
        user(f"<returncode>0</returncode>\n<output>\n{output}\n</output>"),
    ]


def react(n: int, output: str) -> list[dict[str, Any]]:
    return [
        say(f"Thought: I look.\nAction: get_order\nAction Input: {{'number': {n}}}"),
        user(f"Observation: {output}"),
    ]


FORMS = {"smolagents": smolagents, "bash": bash, "react": react}


def known(messages: list[Any]) -> Any:
    chat = read_text_calls(messages)
    assert chat is not None
    return chat


@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_read_as_calls_and_written_as_it_came(form: str) -> None:
    messages = [*START, *FORMS[form](1, '{"total": 7}'), *FORMS[form](2, "none")]
    chat = known(messages)
    assert chat.wire.form.name == form
    found = [s for s in parse_messages(chat.messages) if isinstance(s, Interaction)]
    assert [i.fault for i in found] == ["", ""]
    [first] = found[0].pairs
    assert first.tool_name == ("bash" if form == "bash" else "get_order")
    assert first.call is not None
    assert first.call.raw_input == ({"command": "cat file1"} if form == "bash" else {"number": 1})
    assert first.result is not None
    assert '{"total": 7}' in (first.result.output_text or "")
    written = chat.write(entries(chat, chat.messages))
    assert all(a is b for a, b in zip(written, messages, strict=True))


@pytest.mark.parametrize("form", FORMS)
def test_what_is_left_out_and_added_keeps_the_roles_alternating(form: str) -> None:
    messages = [*START, *(m for n in range(4) for m in FORMS[form](n, f"output {n}"))]
    chat = known(messages)
    left = entries(chat, [*chat.messages[:2], *chat.messages[-4:]])
    left[1] = (1, {ADDED: "What was read: output 0."})
    written = chat.write(left)
    assert [m["role"] for m in written] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert written[1]["content"] == "Fix the bug.\n\nWhat was read: output 0."
    assert written[2:] == messages[-4:]
    assert messages[1] == user("Fix the bug.")


@pytest.mark.parametrize("form", FORMS)
def test_a_shortened_call_keeps_its_form(form: str) -> None:
    messages = [*START, *FORMS[form](1, "a long output"), *FORMS[form](2, "none")]
    chat = known(messages)
    key, new = ("command", "cat …") if form == "bash" else ("number", 77)
    changes = {2: {0: json.dumps({key: new})}, 3: {WHOLE: "a quote"}}
    short = [(p, changes.get(p, {})) for p in range(len(messages))]
    again = known(chat.write(short) + FORMS[form](3, "x"))
    [pair] = next(s for s in parse_messages(again.messages) if isinstance(s, Interaction)).pairs
    assert pair.call.raw_input == {key: new}
    assert pair.result.output_text == ("<output>\na quote\n</output>" if form == "bash" else "a quote")


def test_several_calls_of_smolagents_are_one_with_one_output() -> None:
    calls = [
        {"id": f"c{n}", "function": {"name": name, "arguments": {"n": n}}} for n, name in enumerate("ab")
    ]
    chat = known([*START, say(f"Calling tools:\n{calls}"), user("Observation:\nboth")])
    [pair] = next(s for s in parse_messages(chat.messages) if isinstance(s, Interaction)).pairs
    assert pair.tool_name == "a+b"
    assert pair.call.raw_input == {
        "calls": [{"name": "a", "arguments": {"n": 0}}, {"name": "b", "arguments": {"n": 1}}]
    }


def test_code_and_errors_of_smolagents() -> None:
    function = {"name": "python_interpreter", "arguments": "print('x')"}
    calls = [{"id": "call_1", "type": "function", "function": function}]
    failed = [say(f"<code>print('x')</code>\nCalling tools:\n{calls}"), user("Call id: call_1\nError:\nno x")]
    chat = known([*START, say("no code"), user("Error:\nno code found"), *failed])
    [pair] = [p for s in parse_messages(chat.messages) if isinstance(s, Interaction) for p in s.pairs]
    assert (pair.call.raw_input, pair.result.output_text) == (
        {"code": "print('x')"},
        "Call id: call_1\nError:\nno x",
    )


def test_ids_are_not_repeated() -> None:
    chat = known([*START, *smolagents(1, "a"), *smolagents(1, "b")])
    ids = [m["tool_call_id"] for m in chat.messages if m["role"] == "tool"]
    assert len(set(ids)) == 2


@pytest.mark.parametrize(
    "messages",
    [
        [],
        START,
        [*START, say("There is no call here."), user("Observation: I see.")],
        [*START, *react(1, "x"), user("more"), say("Action: a\nAction Input: {}"), user("What do you mean?")],
        [*START, *bash(1, "x"), say("```bash\nls\n```"), user("I ran it, thanks.")],
        [*START, say("```bash\nls\n```\nor\n```bash\npwd\n```"), user("<output>\nx\n</output>")],
        [*START, say("Run this:\n```bash\nls\n```"), user("And then?")],
        [*START, *react(1, "x"), call(("c1", "f", {})), result("c1", "y")],
        [*START, say("Calling tools:\nall of them"), user("Observation:\nx")],
        [*START, say("Calling tools:\n" + "[" * 9_000), user("Observation:\nx")],
        [*START, say("Action: a\nAction Input: {}\nObservation: made up"), user("Observation: x")],
        [None, 7, {"role": "assistant"}, {"role": "user"}],
    ],
)
def test_what_does_not_hold_a_form_throughout_is_left_alone(messages: list[Any]) -> None:
    assert read_text_calls(messages) is None


def test_a_call_that_nothing_has_answered_yet_stays_text() -> None:
    messages = [*START, *react(1, "x"), react(2, "")[0]]
    assert known(messages).messages[-1] is messages[-1]
