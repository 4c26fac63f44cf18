"""Chats for tests: builders of messages, and hypothesis strategies for good and bad lists."""

import json
from typing import Any

from hypothesis import strategies as st

from memory_bank.config import load_config
from memory_bank.pricing import Charge, PrefixCache
from memory_bank.transcript.messages import MARK

FOLDING = load_config().strategy("memory_bank").model_dump() | {"history_budget": 4_000, "refresh_after": 0}
"""A strategy that folds at every step, as ``memory_bank`` does for a provider without a prefix cache."""


def user(text: str = "Find the order and refund it") -> dict[str, Any]:
    return {"role": "user", "content": text}


def system(text: str = "You are a careful agent.") -> dict[str, Any]:
    return {"role": "system", "content": text}


def say(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def call(*calls: tuple[str, str, Any], text: str | None = None) -> dict[str, Any]:
    """An assistant turn with calls of (id, name, arguments)."""
    return {
        "role": "assistant",
        "content": text,
        "tool_calls": [
            {
                "id": i,
                "type": "function",
                "function": {"name": n, "arguments": a if isinstance(a, str) else json.dumps(a)},
            }
            for i, n, a in calls
        ],
    }


def result(call_id: str, content: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def rounds(n: int, size: int = 40, start: int = 0) -> list[dict[str, Any]]:
    """n interactions with one call each; outputs are JSON of about ``size`` characters."""
    out = []
    for i in range(start, start + n):
        body = json.dumps({"order_id": f"ORD-{1000 + i}", "note": "x" * size, "n": i})
        out += [call((f"c{i}", "get_order", {"number": i})), result(f"c{i}", body)]
    return out


def report(cache: PrefixCache, standing: int, cached: int | None) -> None:
    """An answer that reports so many cached tokens, to a request with ``standing`` tokens of the one before."""
    cache.answered(Charge(0.0, 0.0, standing, before=(0, 0)), cached)


def entries(chat: Any, context: list[Any]) -> list[tuple[int | None, Any]]:
    """The entries of a context that keeps some messages of a conversation and has new ones."""
    at = {id(message): (position, {}) for position, message in enumerate(chat.messages)}
    return [at.get(id(message), (None, message)) for message in context]


def parted(context: list[Any]) -> list[Any]:
    """The messages of a context, the memory that a message of the user ends with as a message of its own."""
    out: list[Any] = []
    for message in context:
        content = message.get("content") if isinstance(message, dict) else None
        is_list = isinstance(content, list)
        texts = [p.get("text") if isinstance(p, dict) else None for p in content] if is_list else [content]
        said, found, memory = str(texts[-1] if texts else "").rpartition(f"\n\n{MARK}")
        if is_list and len(texts) > 1 and str(texts[-1]).startswith(MARK):
            out += [{**message, "content": content[:-1]}, {"role": "user", "content": texts[-1]}]
        elif isinstance(content, str) and found:
            out += [{**message, "content": said}, {"role": "user", "content": MARK + memory}]
        else:
            out.append(message)
    return out


# --- hypothesis

TEXT = st.text(
    alphabet=st.sampled_from('abcXYZ 019_-{}[]":,\\\n\t\0é中\ud83d\ude00\ud800\udfff\ufeff'), max_size=40
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda c: st.lists(c, max_size=4) | st.dictionaries(TEXT, c, max_size=4),
    max_leaves=12,
)
IDS = st.sampled_from(["a", "b", "c", "__fake_id__"])
NAMES = st.sampled_from(["find", "get_order", "run_sql"])
OUTPUTS = TEXT | JSON.map(json.dumps) | st.none() | st.just("")
PARTS = st.lists(
    st.fixed_dictionaries({"type": st.just("text"), "text": TEXT})
    | st.just({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}})
    | st.just({"type": "file", "file": {"filename": "a.pdf", "file_data": "AAAA"}}),
    max_size=3,
)
CONTENTS = OUTPUTS | PARTS


@st.composite
def good_chats(draw: st.DrawFn, max_rounds: int = 8) -> list[dict[str, Any]]:
    """Lists that a provider accepts: whole pairs, ids used again in later turns, users in between."""
    messages: list[dict[str, Any]] = []
    if draw(st.booleans()):
        messages.append({"role": draw(st.sampled_from(["system", "developer"])), "content": draw(TEXT)})
    messages.append({"role": "user", "content": draw(TEXT | PARTS)})
    for _ in range(draw(st.integers(0, max_rounds))):
        what = draw(st.sampled_from(["call", "call", "call", "say", "user", "legacy"]))
        if what == "call":
            ids = draw(st.lists(IDS, min_size=1, max_size=3, unique=True))
            arguments = [draw(OUTPUTS.filter(lambda x: x is not None)) for _ in ids]
            messages.append(
                call(
                    *((i, draw(NAMES), a) for i, a in zip(ids, arguments, strict=True)),
                    text=draw(st.none() | TEXT),
                )
            )
            messages += [result(i, draw(CONTENTS)) for i in draw(st.permutations(ids))]
        elif what == "legacy":
            name = draw(NAMES)
            messages.append(
                {
                    "role": "assistant",
                    "content": None,
                    "function_call": {"name": name, "arguments": draw(TEXT)},
                }
            )
            messages.append({"role": "function", "name": name, "content": draw(TEXT)})
        else:
            messages.append({"role": what if what == "user" else "assistant", "content": draw(TEXT | PARTS)})
    return messages


def _odd_messages() -> st.SearchStrategy[Any]:
    item = st.sampled_from(
        [
            {"type": "function_call", "call_id": "a", "name": "find", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "a", "output": "found"},
            {"type": "reasoning", "id": "r1", "summary": []},
            {"type": "web_search_call", "id": "w1", "action": {"query": "x"}},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hm"}]},
            {"role": "tool", "content": "no id"},
            {"role": "assistant", "tool_calls": "nonsense"},
            {"role": "assistant", "tool_calls": [None, 3, {}]},
            {
                "role": "assistant",
                "tool_calls": [{"id": "x", "type": "custom", "custom": {"name": "grep", "input": "a b"}}],
            },
            {"role": ["odd"]},
            {},
            None,
            "text",
            7,
        ]
    )
    return (
        item
        | JSON
        | st.dictionaries(st.sampled_from(["role", "content", "tool_calls", "type", "id"]), JSON, max_size=4)
    )


@st.composite
def any_chats(draw: st.DrawFn) -> list[Any]:
    """Any list at all: good ones with messages dropped, doubled, swapped or replaced by anything."""
    messages: list[Any] = list(draw(good_chats()))
    for _ in range(draw(st.integers(0, 4))):
        i = draw(st.integers(0, len(messages)))
        what = draw(st.sampled_from(["drop", "double", "odd", "swap"]))
        if what == "drop" and i < len(messages):
            del messages[i]
        elif what == "double" and i < len(messages):
            messages.insert(i, messages[i])
        elif what == "swap" and 0 < i < len(messages):
            messages[i - 1], messages[i] = messages[i], messages[i - 1]
        else:
            messages.insert(i, draw(_odd_messages()))
    return messages
