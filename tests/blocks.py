"""Messages of Anthropic's Messages API for tests: builders, and hypothesis strategies for good and bad lists."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

Message = dict[str, Any]
MARK = {"cache_control": {"type": "ephemeral"}}


def text(words: str, **more: Any) -> Message:
    return {"type": "text", "text": words, **more}


def thought(words: str = "hm", signature: str = "sig") -> Message:
    return {"type": "thinking", "thinking": words, "signature": signature}


def use(call_id: str, name: str = "get_order", **arguments: Any) -> Message:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def answer(call_id: str, content: Any = "done", **more: Any) -> Message:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **more}


def user(*content: Any) -> Message:
    if len(content) == 1 and isinstance(content[0], str):
        return {"role": "user", "content": content[0]}
    return {"role": "user", "content": [text(c) if isinstance(c, str) else c for c in content]}


def turn(*blocks: Any) -> Message:
    return {"role": "assistant", "content": [text(b) if isinstance(b, str) else b for b in blocks]}


def system(words: str) -> Message:
    return {"role": "system", "content": words}


SERVER_TOOL = [
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "q"}},
    {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
]
OPAQUE = [
    *SERVER_TOOL,
    {"type": "mcp_tool_use", "id": "mcptoolu_1", "name": "lookup", "server_name": "s", "input": {}},
    {"type": "compaction", "content": "a summary"},
    {"type": "of_tomorrow", "blob": "x"},
]


def rounds(n: int, size: int = 40, start: int = 0) -> list[Message]:
    """Turns with one call each, and their results."""
    out = []
    for i in range(start, start + n):
        out += [turn(use(f"toolu_{i}", number=i)), user(answer(f"toolu_{i}", f"result {i} " * size))]
    return out


@st.composite
def good_messages(draw: st.DrawFn, max_rounds: int = 6) -> list[Message]:
    """Lists that the API accepts: turns with thinking, several calls, provider's tools, words of user and system."""
    words = st.text("ab cd", min_size=1, max_size=20)
    out = [user(draw(words))]
    if draw(st.booleans()):
        out.append(system("Be brief."))
    for i in range(draw(st.integers(0, max_rounds))):
        ids = [f"toolu_{i}_{k}" for k in range(draw(st.integers(0, 3)))]
        blocks: list[Any] = [thought()] if draw(st.booleans()) else []
        blocks += [text(draw(words))] if draw(st.booleans()) or not ids else []
        blocks += draw(st.sampled_from([[], [], [], SERVER_TOOL, [OPAQUE[-1]]]))
        blocks += [use(call_id, number=i) for call_id in ids]
        out.append(turn(*blocks))
        order = draw(st.permutations(ids))
        contents = st.sampled_from(["x" * 300, "", [text("a list of parts", **MARK)], "{}"])
        said: list[Any] = [answer(call_id, draw(contents)) for call_id in order]
        said += [text(draw(words))] if draw(st.booleans()) or not ids else []
        out.append(user(*said))
        if draw(st.integers(0, 5)) == 0:
            out.append(system("A reminder."))
    return out


def _blocks() -> st.SearchStrategy[Any]:
    ids = st.sampled_from(["toolu_1", "toolu_2", "", None, 7])
    return st.one_of(
        st.builds(lambda i: {"type": "tool_use", "id": i, "name": "f", "input": {}}, ids),
        st.builds(lambda i: {"type": "tool_result", "tool_use_id": i, "content": "r"}, ids),
        st.sampled_from([*OPAQUE, text("a"), text(""), thought(), {}, {"type": None}, None, "text", 7, []]),
    )


def any_messages() -> st.SearchStrategy[list[Any]]:
    """Lists of anything that may be posted in the place of messages."""
    content = st.one_of(st.lists(_blocks(), max_size=5), st.sampled_from(["hello", "", None, 7, {}]))
    message = st.builds(
        lambda role, c: {"role": role, "content": c},
        st.sampled_from(["user", "assistant", "system", "tool", None]),
        content,
    )
    return st.lists(st.one_of(message, st.sampled_from([None, "x", {}, [], 7])), max_size=8)
