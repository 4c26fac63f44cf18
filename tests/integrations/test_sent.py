"""One contract for every API and every adapter: what is sent is what the plan shows, and costs what it says.

A form says how a conversation is written in an API or a framework, how it is rebuilt, and how it is read again. A
form whose framework is not installed is skipped; ``benchmarks/integrations.py`` runs this file with each of them.
"""

from __future__ import annotations

import importlib
import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples, first_short
from tests.integrations.test_bridge import Native, NativeWire

from memory_bank import MemoryBankState, MemoryProcessor, Plan
from memory_bank.context.build import render
from memory_bank.integrations.bridge import Bridge
from memory_bank.transcript.anthropic import from_anthropic
from memory_bank.transcript.messages import Interaction, calls_of, message_text, parse_messages
from memory_bank.transcript.pairing import pairing_errors
from memory_bank.transcript.responses import from_items
from memory_bank.transcript.textcalls import read_text_calls
from memory_bank.transcript.tokens import open_counter

SYSTEM = "You check the orders of a shop."
BANK = {
    "type": "memory_bank",
    "selection": "evidence",
    "observer_model": "extractive",
    "embedding_model": "lexical",
}
STRATEGIES = {
    "small": {**BANK, "history_budget": 600, "refresh_after": 0},
    "native": {**BANK, "history_budget": 2_500, "layout": "native", "refresh_after": 0},
    "cached": {**BANK, "history_budget": 3_000, "layout": "native", "refresh_after": 1_000},
    "masking": {"type": "observation_masking"},
    "truncation": {"type": "truncation"},
}
COUNT = open_counter().count_message
MARK = re.compile(r"\b[war]\d+x\d+x?\d*\b")
"""What tells words, arguments and results apart: no two have the same, see ``_text``."""
NUMBER = re.compile(r"number-(\d+)")
_sessions = count()


@dataclass(frozen=True)
class Called:
    """A call of a conversation and its result, which may have a picture."""

    call_id: str
    name: str
    arguments: dict[str, str]
    result: str
    picture: bool = False

    def parts(self, text: str, picture: Any) -> Any:
        """The result as a text, or as a text of a type and a picture."""
        return [{"type": text, "text": self.result}, picture] if self.picture else self.result


@dataclass(frozen=True)
class Turn:
    """A turn: what the agent said, its calls, and what the user said after their results."""

    words: str
    calls: tuple[Called, ...]
    after: str = ""


Pick = Callable[[Sequence[Any]], Any]


def _text(kind: str, number: int, words: int) -> str:
    rng = random.Random(f"{kind} {number}")
    known = ["alpha", "beta", "order", "refund", "late", "check", "value", "table"]
    said = (
        f"{rng.choice(known)} {kind}{number}x{k}" if k % 8 == 0 else rng.choice(known) for k in range(words)
    )
    return " ".join(said)


def conversation(pick: Pick, *, parallel: bool) -> list[Turn]:
    """Turns with 0 to 250 words and one to three calls, whose ids may repeat, with long and short arguments."""
    repeats, turns, number = pick([False, True]), [], 0
    noted: list[str] = []
    for at in range(pick([6, 18, 30])):
        calls = []
        for place in range(pick([1, 1, 2, 3]) if parallel else 1):
            arguments = {"number": f"number-{number}"}
            if size := pick([0, 0, 20, 120]):
                arguments["query"] = _text("a", number, size)
            if noted and pick([False, True]):
                arguments["ticket"] = pick(noted)  # a value that only the agent's words tell
            told = {"order": f"ORD-{50_000 + 37 * number}", "note": _text("r", number, pick([3, 40, 200]))}
            call_id = f"call_{place}" if repeats else f"call_{number}"
            name = ["get_order", "refund_order", "find_customer"][number % 3]
            calls.append(Called(call_id, name, arguments, json.dumps(told), pick([False] * 5 + [True])))
            number += 1
        words = _text("w", at, pick([0, 0, 12, 60, 250]))
        if words and pick([False, True]):
            noted.append(f"TCK-{7_000 + 13 * at}")
            words += f"\nThe customer's ticket is {noted[-1]}, which the next refund needs."
        turns.append(Turn(words, tuple(calls), pick(["", "", "", "", f"Go on with {at}."])))
    return turns


Rebuild = Callable[[list[Any], str, dict[str, Any]], tuple[list[Any], Plan]]
"""From natives, the name of a strategy and what is kept between the steps: the natives that are sent, and the plan."""


@dataclass(frozen=True)
class Form:
    """An API or a framework. ``dump``: all text of natives that is sent. ``parallel``: whether a turn may have several calls."""

    write: Callable[[Sequence[Turn]], list[Any]]
    rebuild: Rebuild
    read: Callable[[list[Any]], list[Any]]
    dump: Callable[[list[Any]], str] = lambda natives: json.dumps(natives)
    parallel: bool = True


def by_bridge(read: Callable[[Sequence[Any], str | None], Any]) -> dict[str, Any]:
    def rebuild(natives: list[Any], key: str, kept: dict[str, Any]) -> tuple[list[Any], Plan]:
        bridge = kept.setdefault("bridge", None) or Bridge(
            read, config={"memory_strategies": STRATEGIES}, strategy=key
        )
        kept["bridge"] = bridge
        sent = bridge.rebuild(natives, "s", system=SYSTEM)
        return sent, bridge.state("s").last_plan

    return {"rebuild": rebuild, "read": lambda natives: read(natives, SYSTEM).messages}


def by_processor(natives: list[Any], key: str, kept: dict[str, Any]) -> tuple[list[Any], Plan]:
    if not kept:
        state = MemoryBankState(session_id="s")
        kept["processor"] = MemoryProcessor({"memory_strategies": STRATEGIES}, lambda session_id: state)
    sent, tokens = kept["processor"].apply_strategy(natives, key, session_id="s")
    plan = kept["processor"].state(key, "s").last_plan
    assert plan.tokens == tokens
    return sent, plan


def by_service(dialect: str) -> Rebuild:
    """As the proxy rebuilds a request."""

    def rebuild(natives: list[Any], key: str, kept: dict[str, Any]) -> tuple[list[Any], Plan]:
        from memory_bank.bank.database import Database
        from memory_bank.config import Config
        from memory_bank.service.proxy.body import parse_body
        from memory_bank.service.sessions import ProxiedRequest, Sessions

        kind = getattr(importlib.import_module("memory_bank.service.proxy.flow"), dialect)()
        if not kept:
            kept["sessions"] = Sessions(
                Database(),
                Config(memory_strategies=STRATEGIES, default_strategy="small", service={"strategy": "small"}),
            )
        body = parse_body(json.dumps({kind.key: natives}).encode(), kind.key)
        history = kind.history(body)
        request = ProxiedRequest(history=history)
        step = kept["sessions"].rebuild(None, "s", history.messages, strategy=key, request=request)
        assert step.tokens == step.plan.tokens
        sent = body.value[kind.key] if step.unchanged else step.written
        own = {id(item): native for item, native in zip(body.value[kind.key], natives, strict=True)}
        return [own.get(id(item), item) for item in sent], step.plan

    return rebuild


# The APIs

URL = "data:image/gif;base64,R0lGODlhAQABAAAAACw="
CHAT_PICTURE = {"type": "image_url", "image_url": {"url": URL}}
PICTURE = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/gif", "data": "R0lGODlhAQABAAAAACw="},
}


def chat(turns: Sequence[Turn]) -> list[Any]:
    out: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Check the orders."}]
    for turn in turns:
        calls = [
            {
                "id": c.call_id,
                "type": "function",
                "function": {"name": c.name, "arguments": json.dumps(c.arguments)},
            }
            for c in turn.calls
        ]
        out.append({"role": "assistant", "content": turn.words or None, "tool_calls": calls})
        answers = [
            {"role": "tool", "tool_call_id": c.call_id, "content": c.parts("text", CHAT_PICTURE)}
            for c in turn.calls
        ]
        out += answers
        out += [{"role": "user", "content": turn.after}] if turn.after else []
    return out


def messages(turns: Sequence[Turn]) -> list[Any]:
    out: list[Any] = [{"role": "user", "content": "Check the orders."}]
    for turn in turns:
        said = [{"type": "text", "text": turn.words}] if turn.words else []
        uses = [
            {"type": "tool_use", "id": c.call_id, "name": c.name, "input": c.arguments} for c in turn.calls
        ]
        answers = [
            {"type": "tool_result", "tool_use_id": c.call_id, "content": c.parts("text", PICTURE)}
            for c in turn.calls
        ]
        after = [{"type": "text", "text": turn.after}] if turn.after else []
        out += [
            {"role": "assistant", "content": [*said, *uses]},
            {"role": "user", "content": [*answers, *after]},
        ]
    return out


def items(turns: Sequence[Turn]) -> list[Any]:
    out: list[Any] = [{"role": "user", "content": "Check the orders."}]
    for at, turn in enumerate(turns):
        if turn.words:
            part = {"type": "output_text", "text": turn.words, "annotations": []}
            out.append({"type": "message", "id": f"msg_{at}", "role": "assistant", "content": [part]})
        for c in turn.calls:
            call = {"type": "function_call", "call_id": c.call_id, "name": c.name}
            out.append(call | {"arguments": json.dumps(c.arguments)})
        for c in turn.calls:
            output = c.parts("input_text", {"type": "input_image", "image_url": URL})
            out.append({"type": "function_call_output", "call_id": c.call_id, "output": output})
        out += [{"role": "user", "content": turn.after}] if turn.after else []
    return out


def as_text(write: Callable[[str, Called], tuple[str, str]]) -> Callable[[Sequence[Turn]], list[Any]]:
    def written(turns: Sequence[Turn]) -> list[Any]:
        out: list[Any] = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": "Check the orders."},
        ]
        for turn in turns:
            made, answer = write(f"{turn.words}\n" if turn.words else "", turn.calls[0])
            out += [{"role": "assistant", "content": made}, {"role": "user", "content": answer}]
        return out

    return written


def smolagents_text(said: str, call: Called) -> tuple[str, str]:
    function = {"name": call.name, "arguments": call.arguments}
    calls = [{"id": call.call_id, "type": "function", "function": function}]
    return f"{said}Calling tools:\n{calls}", f"Observation:\n{call.result}"


def bash_text(said: str, call: Called) -> tuple[str, str]:
    command = " ".join(call.arguments.values())
    words = said.split("\n")[0]
    before, after = words[: len(words) // 2], words[len(words) // 2 :]
    return (
        f"{before}\n```bash\n{command}\n```\n{after}",
        f"<returncode>0</returncode>\n<output>\n{call.result}\n</output>",
    )


def react_text(said: str, call: Called) -> tuple[str, str]:
    return (
        f"{said}Action: {call.name}\nAction Input: {json.dumps(call.arguments)}",
        f"Observation: {call.result}",
    )


def read_text(natives: list[Any]) -> list[Any]:
    found = read_text_calls(natives)
    return natives if found is None else found.messages


# The frameworks


def langchain() -> Form:
    core = importlib.import_module("langchain_core.messages")
    wire = importlib.import_module("memory_bank.integrations.langchain").WIRE

    def write(turns: Sequence[Turn]) -> list[Any]:
        out: list[Any] = [core.HumanMessage("Check the orders.")]
        for turn in turns:
            calls = [{"id": c.call_id, "name": c.name, "args": c.arguments} for c in turn.calls]
            thought = [{"type": "reasoning", "reasoning": "so"}, {"type": "text", "text": turn.words}]
            content: Any = thought if turn.words and len(turn.calls) == 2 else turn.words
            out.append(core.AIMessage(content=content, tool_calls=calls))
            for c in turn.calls:
                out.append(
                    core.ToolMessage(c.parts("text", CHAT_PICTURE), tool_call_id=c.call_id, name=c.name)
                )
            out += [core.HumanMessage(turn.after)] if turn.after else []
        return out

    read = by_bridge(wire.read_all)
    return Form(write, dump=lambda natives: "".join(n.model_dump_json() for n in natives), **read)


def openai_agents() -> Form:
    module = importlib.import_module("memory_bank.integrations.openai_agents")
    return Form(items, **by_bridge(module.read_items))


def pydantic_ai() -> Form:
    parts = importlib.import_module("pydantic_ai.messages")
    wire = importlib.import_module("memory_bank.integrations.pydantic_ai").WIRE

    def write(turns: Sequence[Turn]) -> list[Any]:
        out: list[Any] = [parts.ModelRequest(parts=[parts.UserPromptPart("Check the orders.")])]
        for turn in turns:
            said = [parts.TextPart(turn.words)] if turn.words else []
            calls = [parts.ToolCallPart(c.name, c.arguments, c.call_id) for c in turn.calls]
            image = parts.BinaryContent(b"GIF89a", media_type="image/gif")
            answers: list[Any] = [
                parts.ToolReturnPart(c.name, [c.result, image] if c.picture else c.result, c.call_id)
                for c in turn.calls
            ]
            answers += [parts.UserPromptPart(turn.after)] if turn.after else []
            out += [
                parts.ModelResponse(parts=[parts.ThinkingPart("so"), *said, *calls]),
                parts.ModelRequest(parts=answers),
            ]
        return out

    def dump(natives: list[Any]) -> str:
        return re.sub(r'"timestamp":"[^"]*"', "", parts.ModelMessagesTypeAdapter.dump_json(natives).decode())

    read = by_bridge(wire.read_all)
    return Form(write, dump=dump, **read)


def smolagents() -> Form:
    memory = importlib.import_module("smolagents.memory")
    timing = importlib.import_module("smolagents.monitoring").Timing(0.0)
    wire = importlib.import_module("memory_bank.integrations.smolagents").WIRE

    def write(turns: Sequence[Turn]) -> list[Any]:
        out: list[Any] = [memory.TaskStep("Check the orders.")]
        for at, turn in enumerate(turns):
            calls = [memory.ToolCall(c.name, c.arguments, c.call_id) for c in turn.calls]
            [c] = turn.calls
            step = memory.ActionStep(
                at, timing, tool_calls=calls, model_output=turn.words or None, observations=c.result
            )
            step.observations_images = ["picture"] if c.picture else None
            out.append(step)
        return out

    def dump(natives: list[Any]) -> str:
        return str([m.content for step in natives for m in step.to_messages()])

    read = by_bridge(wire.read_all)
    return Form(write, dump=dump, parallel=False, **read)


def anthropic() -> Form:
    module = importlib.import_module("memory_bank.integrations.anthropic")
    return Form(messages, **by_bridge(module.read_request))


def google_adk() -> Form:
    types = importlib.import_module("google.genai.types")
    module = importlib.import_module("memory_bank.integrations.google_adk")

    def write(turns: Sequence[Turn]) -> list[Any]:
        out = [types.Content(role="user", parts=[types.Part(text="Check the orders.")])]
        for turn in turns:
            made = [types.Part(text=turn.words)] if turn.words else []
            made += [
                types.Part(function_call=types.FunctionCall(id=c.call_id, name=c.name, args=c.arguments))
                for c in turn.calls
            ]
            answers = [
                types.Part(
                    function_response=types.FunctionResponse(
                        id=c.call_id, name=c.name, response={"result": c.result}
                    )
                )
                for c in turn.calls
            ]
            answers += [types.Part(text=turn.after)] if turn.after else []
            out += [types.Content(role="model", parts=made), types.Content(role="user", parts=answers)]
        return out

    read = by_bridge(module.read_contents)
    return Form(write, dump=lambda natives: "".join(n.model_dump_json() for n in natives), **read)


def llama_index() -> Form:
    core = importlib.import_module("llama_index.core.base.llms.types")
    wire = importlib.import_module("memory_bank.integrations.llama_index").WIRE

    def write(turns: Sequence[Turn]) -> list[Any]:
        out = [core.ChatMessage(role="user", content="Check the orders.")]
        for turn in turns:
            blocks: list[Any] = [core.TextBlock(text=turn.words)] if turn.words else []
            blocks += [
                core.ToolCallBlock(tool_call_id=c.call_id, tool_name=c.name, tool_kwargs=c.arguments)
                for c in turn.calls
            ]
            out.append(core.ChatMessage(role="assistant", blocks=blocks))
            for c in turn.calls:
                named = {"tool_call_id": c.call_id, "name": c.name}
                out.append(core.ChatMessage(role="tool", content=c.result, additional_kwargs=named))
            out += [core.ChatMessage(role="user", content=turn.after)] if turn.after else []
        return out

    read = by_bridge(wire.read_all)
    return Form(write, dump=lambda natives: "".join(n.model_dump_json() for n in natives), **read)


def natives() -> Form:
    """The framework of test_bridge, in which the results of a turn are one message."""

    def write(turns: Sequence[Turn]) -> list[Any]:
        out = [Native("user", "Check the orders.")]
        for turn in turns:
            made = tuple((c.call_id, c.name, json.dumps(c.arguments)) for c in turn.calls)
            results = tuple((c.call_id, c.result) for c in turn.calls)
            out += [Native("assistant", turn.words, made), Native("tool", turn.after, results=results)]
        return out

    return Form(write, dump=str, **by_bridge(NativeWire().read_all))


def litellm() -> Form:
    wire = importlib.import_module("memory_bank.integrations.litellm").WIRE
    return Form(chat, **by_bridge(wire.read_all))


def _service(write: Any, dialect: str, read: Any, *, parallel: bool = True) -> Callable[[], Form]:
    def form() -> Form:
        importlib.import_module("memory_bank.service.sessions")
        return Form(write, by_service(dialect), read, parallel=parallel)

    return form


CHEAP: dict[str, Callable[[], Form]] = {
    "bridge": natives,
    "chat": lambda: Form(chat, by_processor, lambda natives: natives),
    "messages": lambda: Form(messages, by_processor, lambda natives: from_anthropic(natives).messages),
    "proxy-chat": _service(chat, "ChatDialect", lambda natives: natives),
    "proxy-messages": _service(messages, "MessagesDialect", lambda n: from_anthropic(n).messages),
    "proxy-responses": _service(items, "ResponsesDialect", lambda n: from_items(n).messages),
    **{
        f"proxy-text-{write.__name__.removesuffix('_text')}": _service(
            as_text(write), "ChatDialect", read_text, parallel=False
        )
        for write in (smolagents_text, bash_text, react_text)
    },
}
FRAMEWORKS = {
    f.__name__: f
    for f in (langchain, openai_agents, pydantic_ai, smolagents, anthropic, google_adk, llama_index, litellm)
}
FORMS = {**CHEAP, **FRAMEWORKS}


def opened(name: str) -> Form:
    try:
        return FORMS[name]()
    except ImportError as e:
        pytest.skip(f"{name}: {e}")


# The contract


def calls_and_results(chat_messages: list[Any]) -> Iterator[tuple[str, str, str, str, str]]:
    """Number, name, arguments, result and words of each call."""
    for turn in parse_messages(chat_messages):
        if isinstance(turn, Interaction):
            assert turn.fault == ""
            for pair in turn.pairs:
                arguments = pair.call.text
                yield NUMBER.findall(arguments)[0], pair.call.name, arguments, pair.result.text, turn.remark


def check(form: Form, turns: list[Turn], key: str) -> None:
    """Rebuild a conversation step by step, and check what is sent."""
    kept: dict[str, Any] = {}
    for stop in sorted({1, len(turns) // 2, len(turns) - 1, len(turns)}):
        natives = form.write(turns[:stop])
        before = form.dump(natives)
        sent, plan = form.rebuild(natives, key, kept)
        assert form.dump(natives) == before
        again = form.read(sent)
        planned = render(plan)
        assert not pairing_errors(again)
        assert plan.rule == ""
        if plan.memory is not None and plan.host is not None:
            host, heard = form.read(natives)[plan.host], " ".join(map(message_text, again))
            joined = f"{message_text(host)} {plan.memory['content']}"
            assert " ".join(joined.split()) in " ".join(heard.split())
        assert plan.tokens == sum(map(COUNT, again))
        assert set(MARK.findall(form.dump(sent))) <= set(MARK.findall(str(planned)))
        budget = STRATEGIES[key].get("history_budget")
        if budget:
            budget += STRATEGIES[key]["refresh_after"]
        if budget and not plan.unchanged:
            shortened = sum(
                p.call is not None
                for t in parse_messages(again)
                if isinstance(t, Interaction)
                for p in t.pairs
            )
            assert plan.tokens - plan.kept_tokens <= budget + 8 * shortened

        originals = {number: call for number, *call in calls_and_results(form.read(natives))}
        for number, name, arguments, result, words in calls_and_results(again):
            own = originals[number]
            assert name == own[0]
            assert set(MARK.findall(arguments)) <= set(MARK.findall(own[1]))
            assert set(MARK.findall(result)) <= set(MARK.findall(own[2]))
            assert set(MARK.findall(words)) <= set(MARK.findall(own[3]))
        planned_calls = [(c.name, c.text) for m in planned for c in calls_of(m)]
        assert [(c.name, json.loads(c.text)) for m in again for c in calls_of(m)] == [
            (name, json.loads(text)) for name, text in planned_calls
        ]
        said = [message_text(m).strip() for m in planned if m["role"] == "assistant"]
        assert [message_text(m).strip() for m in again if m["role"] == "assistant"] == said
        same = {id(n) for n in natives}
        assert all(id(n) in same for n in sent if any(n == native for native in natives))


@pytest.mark.parametrize("seed", first_short(range(2)))
@pytest.mark.parametrize("key", first_short(STRATEGIES))
@pytest.mark.parametrize("name", FORMS)
def test_what_is_sent_is_what_the_plan_shows(name: str, key: str, seed: int) -> None:
    form = opened(name)
    check(form, conversation(random.Random(seed).choice, parallel=form.parallel), key)


@pytest.mark.parametrize("name", CHEAP)
@examples(12)
@given(data=st.data())
def test_what_is_sent_is_what_the_plan_shows_of_any_conversation(name: str, data: st.DataObject) -> None:
    form = opened(name)
    turns = conversation(lambda options: data.draw(st.sampled_from(options)), parallel=form.parallel)
    check(form, turns, data.draw(st.sampled_from(sorted(STRATEGIES))))
