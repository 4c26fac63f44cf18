"""The contract of the exit: odd sessions step by step, and what may not be worse in what leaves than in what came.

``odd_sessions`` are chats; ``as_items`` and ``as_blocks`` say the same in the other APIs. The check knows nothing of
``memory_bank.context.gate``.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from memory_bank.transcript.anthropic import cache_marks, message_errors
from memory_bank.transcript.pairing import pairing_errors
from memory_bank.transcript.responses import item_errors

Chat = list[Any]
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
KINDS = (
    "call", "call", "call", "parallel", "one id twice", "result twice", "pending", "orphan", "no arguments",
    "null", "no function", "an object", "a number", "custom", "legacy", "parts", "image after", "empty", "between",
    "question", "remark", "no id",
)  # fmt: skip
FOLDING = {
    "type": "memory_bank", "selection": "evidence", "observer_model": "extractive", "embedding_model": "lexical",
    "token_encoding": "approximate", "history_budget": 1_600, "refresh_after": 600,
}  # fmt: skip
"""A strategy that folds within a few turns."""


def _call(call_id: str, arguments: Any = "{}", **more: Any) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "look", "arguments": arguments}, **more}


def _output(n: int) -> str:
    rows = [{"order": f"ORD-{n}{i:02}", "state": "late" if i % 7 == n % 7 else "on time"} for i in range(24)]
    return json.dumps(rows)


def odd_turn(kind: str, n: int) -> Chat:
    """A turn of an agent, of one of KINDS; ``n`` makes its ids and outputs its own."""
    one, two = f"call_{n}", f"call_{n}b"
    calls: list[Any] = [_call(one, json.dumps({"n": n}))]
    results: Chat = [{"role": "tool", "tool_call_id": one, "content": _output(n)}]
    said: Any = None if n % 3 else f"I look at {n}."
    match kind:
        case "parallel" | "one id twice":
            second = two if kind == "parallel" else one
            calls.append(_call(second, json.dumps({"n": n, "page": 2})))
            results.insert(n % 2, {"role": "tool", "tool_call_id": second, "content": f"{_output(n)} again"})
        case "result twice":
            results *= 2
        case "pending":
            calls.append(_call(two))
        case "orphan":
            results.append({"role": "tool", "tool_call_id": "nobody", "content": _output(n)})
        case "no arguments":
            del calls[0]["function"]["arguments"]
        case "null" | "an object" | "a number":
            calls[0]["function"]["arguments"] = {"null": None, "an object": {"n": n}, "a number": n}[kind]
        case "no function":
            calls[0]["function"] = None
        case "custom":
            calls = [{"id": one, "type": "custom", "custom": {"name": "sql", "input": f"SELECT {n}"}}]
        case "legacy":
            legacy = {
                "role": "assistant",
                "content": said,
                "function_call": {"name": "look", "arguments": "{}"},
            }
            return [legacy, {"role": "function", "name": "look", "content": _output(n)}]
        case "parts":
            results[0]["content"] = [{"type": "text", "text": _output(n)}, {"type": "text", "text": "end"}]
            said = [{"type": "text", "text": f"Turn {n}."}]
        case "image after":
            results.append({"role": "user", "content": [{"type": "text", "text": "<tool_result>"}, IMAGE]})
        case "empty":
            results[0]["content"], said = "", ""
        case "between":
            results.insert(0, {"role": "user", "content": "Wait."})
        case "question":
            return [
                {"role": "assistant", "content": f"Which {n}?"},
                {"role": "user", "content": f"All of {n}."},
            ]
        case "remark":
            return [{"role": "assistant", "content": f"I begin with {n}."}, *odd_turn("call", n)]
        case "no id":
            del calls[0]["id"], results[0]["tool_call_id"]
    return [{"role": "assistant", "content": said, "tool_calls": calls}, *results]


def session(kinds: Sequence[str], *, system: bool = True, parts: bool = False) -> list[Chat]:
    """The list of an agent at each of its steps; ``parts``: the first prompt is a list with a picture."""
    prompt: Any = "Check every order."
    start: Chat = [{"role": "system", "content": "You are careful."}] if system else []
    start.append({"role": "user", "content": [{"type": "text", "text": prompt}, IMAGE] if parts else prompt})
    steps = [start]
    for n, kind in enumerate(kinds):
        steps.append([*steps[-1], *odd_turn(kind, n)])
    return steps


def odd_sessions() -> st.SearchStrategy[list[Chat]]:
    """Sessions of up to 14 turns of all kinds, with many ordinary calls among them."""
    kinds = st.lists(st.sampled_from(KINDS), min_size=4, max_size=9).map(lambda odd: [*odd, *["call"] * 5])
    mixed = kinds.flatmap(st.permutations)
    return st.builds(session, mixed, system=st.booleans(), parts=st.booleans())


def as_items(chat: Chat) -> Chat:
    """The same in the Responses API."""
    items: Chat = []
    for message in chat:
        role, content = message["role"], message.get("content")
        if role in ("tool", "function"):
            call_id = message.get("tool_call_id") or items[-1].get("call_id")
            text = content if isinstance(content, str) else json.dumps(content)
            items.append({"type": "function_call_output", "call_id": call_id, "output": text})
            continue
        if content:
            kind = "output_text" if role == "assistant" else "input_text"
            texts = [content] if isinstance(content, str) else [p.get("text", "a picture") for p in content]
            parts = [{"type": kind, "text": text} for text in texts]
            whole = content if isinstance(content, str) and role != "assistant" else parts
            items.append({"type": "message", "role": role, "content": whole})
        for call in message.get("tool_calls") or [
            {"function": f} for f in [message.get("function_call")] if f
        ]:
            body = call.get("function") or call.get("custom") or {}
            name, arguments = body.get("name", "look"), body.get("arguments", body.get("input"))
            made = {"type": "function_call", "call_id": call.get("id") or f"item_{len(items)}", "name": name}
            items.append(made if arguments is None else made | {"arguments": arguments})
    return items


def as_blocks(chat: Chat) -> Chat:
    """The same in the Messages API; its system prompt stands apart."""
    out: Chat = []
    for message in chat:
        role, content = message["role"], message.get("content")
        if role == "system":
            continue
        texts = [content] if isinstance(content, str) else [p.get("text", "picture") for p in content or ()]
        blocks: Chat = [{"type": "text", "text": text} for text in texts if text]
        if role in ("tool", "function"):
            call_id = message.get("tool_call_id") or out[-1]["content"][-1].get("id")
            blocks = [{"type": "tool_result", "tool_use_id": call_id, "content": blocks}]
        for call in message.get("tool_calls") or [
            {"function": f} for f in [message.get("function_call")] if f
        ]:
            body = call.get("function") or call.get("custom") or {}
            use = {
                "type": "tool_use",
                "id": call.get("id") or f"block_{len(out)}",
                "name": body.get("name", "look"),
            }
            given = body.get("arguments")
            blocks.append(use if given is None else use | {"input": {"given": given}})
        speaker = "assistant" if role == "assistant" else "user"
        if out and speaker == "user" == out[-1]["role"] and role == "tool":
            out[-1]["content"] += blocks
        elif blocks:
            out.append({"role": speaker, "content": blocks})
    return out


def roles(messages: Chat) -> list[str]:
    """Who speaks, calls and results aside; a text right before a call belongs to it, but in a chat."""
    said: list[str] = []
    for message in messages:
        content = message.get("content")
        kinds = {part.get("type") for part in content} if isinstance(content, list) else set()
        is_call = message.get("tool_calls") or message.get("function_call") or "tool_use" in kinds
        is_item = message.get("type") == "function_call"
        if said and said[-1] == "remark" and "output_text" in kinds:  # items of one turn
            continue
        if said and said[-1] == "remark":
            said[-1:] = [] if is_item or "tool_use" in kinds else ["assistant"]
        if message.get("role") == "user" and kinds != {"tool_result"}:
            said.append("user")
        elif message.get("role") == "assistant" and not is_call:
            said.append("remark" if kinds & {"text", "output_text"} else "assistant")
    return ["assistant" if role == "remark" else role for role in said]


def _errors(messages: Chat) -> Counter[str]:
    """What an API refuses in a list, without the places."""
    if any(
        "content" in m and isinstance(m["content"], list) and "tool_use" in str(m["content"])
        for m in messages
    ):
        found = message_errors(messages)
    elif any("type" in m for m in messages):
        found = item_errors(messages)
    else:
        found = pairing_errors(messages)
    return Counter(re.sub(r"(messages|content|tool_calls)[.\[]\d+[\].]?", "", error) for error in found)


def _is_empty(message: dict[str, Any]) -> bool:
    calls = message.get("tool_calls") or message.get("function_call")
    return not calls and message.get("content", "-") in ("", [], None)


def check_exit(sent: Chat, came: Chat) -> None:
    """Nothing in a list that leaves is worse than in the one that came."""
    assert all(isinstance(m, dict) and ("role" in m or "type" in m) for m in sent), "an entry is no message"
    assert _errors(sent) - _errors(came) == Counter(), "a pair is broken, or another rule of the API"
    own, now = roles(came), roles(sent)
    if all(a != b for a, b in pairwise(own)):
        assert all(a != b for a, b in pairwise(now)), f"roles do not alternate: {now}"
    assert sent[-1] == came[-1], "the last is not the last"
    if came[0].get("role") == "system":
        assert sent[0] is came[0], "the system message is not first"
    assert sum(map(_is_empty, sent)) <= sum(map(_is_empty, came)), "a content is empty"
    assert cache_marks(sent) <= max(4, cache_marks(came))
    for message in came:  # what the user says stays, to the letter
        content = message.get("content")
        if message.get("role") == "user" and isinstance(content, str):
            starts = (m.get("content") for m in sent if m.get("role") == "user")
            assert any(isinstance(c, str) and c.startswith(content) for c in starts), content
