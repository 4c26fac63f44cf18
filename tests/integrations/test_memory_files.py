"""The memory tool of Anthropic's SDK: its folder of the file system and our bank answer alike, to the byte."""

from __future__ import annotations

import asyncio
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples

from memory_bank.testing import ScriptedServer, call, say

pytest.importorskip("anthropic", reason="needs anthropic")

from anthropic import AsyncAnthropic
from anthropic.lib.tools import ToolError
from anthropic.lib.tools._beta_builtin_memory_tool import BetaLocalFilesystemMemoryTool
from tests.bank.test_files import RECORDED

from memory_bank.integrations.anthropic import AsyncMemoryFilesTool, MemoryFilesTool

names = st.sampled_from(["a", "b", "a.md", "B", ".hidden", "deep er", "ü%2e", "..", ".", ""])
paths = st.lists(names, max_size=4).map(lambda parts: "/".join(["/memories", *parts]))
odd_paths = paths | st.sampled_from(
    ["/etc/passwd", "memories/a", "/memoriesx/a", "/memories/../memories/a", "..", ""]
)
texts = st.text(alphabet="ab\n\r\té😀", max_size=12)
numbers = st.integers(-3, 9)
commands = st.one_of(
    st.fixed_dictionaries(
        {"command": st.just("view"), "path": odd_paths},
        optional={"view_range": st.lists(numbers, max_size=3)},
    ),
    st.fixed_dictionaries({"command": st.just("create"), "path": odd_paths, "file_text": texts}),
    st.fixed_dictionaries(
        {
            "command": st.just("str_replace"),
            "path": paths,
            "old_str": texts.map(lambda t: t[:2]),
            "new_str": texts,
        }
    ),
    st.fixed_dictionaries(
        {"command": st.just("insert"), "path": paths, "insert_line": numbers, "insert_text": texts}
    ),
    st.fixed_dictionaries({"command": st.just("delete"), "path": odd_paths}),
    st.fixed_dictionaries({"command": st.just("rename"), "old_path": paths, "new_path": odd_paths}),
)


def answer(tool, command):
    """The text for the model; "failed" where the reference fails with an error of the file system."""
    try:
        return tool.call(command)
    except ToolError as e:
        return f"error: {e.content}"
    except OSError:
        return "failed"


def compare(made):
    with tempfile.TemporaryDirectory() as folder:
        reference, ours = BetaLocalFilesystemMemoryTool(folder), MemoryFilesTool()
        look = {"command": "view", "path": "/memories"}
        for command in made:
            expected, got = answer(reference, command), answer(ours, command)
            assert got.startswith("error: ") if expected == "failed" else got == expected, command
            assert answer(ours, look) == answer(reference, look), command


@examples(150)
@given(st.lists(commands, max_size=25))
def test_any_commands(made):
    compare(made)


def test_the_example_of_the_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs/howto/memory-tools.md").read_text()
    [code] = re.findall(r"<!-- run by: test_the_example_of_the_page -->\n```python\n(.*?)```", page, re.S)
    commands = [
        {"command": "create", "path": "/memories/a.md", "file_text": "CUS-7"},
        {"command": "create", "path": "/memories/a.md", "file_text": "again"},
        {"command": "view", "path": "/memories/a.md"},
    ]
    with ScriptedServer([*(call("memory", **c) for c in commands), say("CUS-7 does.")]) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.base_url.removesuffix("/v1"))
        monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
        exec(compile(code, "memory-tools.md", "exec"), {})
        assert server.refused == []
        last = server.requests[-1].body
    assert "CUS-7 does." in capsys.readouterr().out
    assert last["tools"] == [{"type": "memory_20250818", "name": "memory"}]
    results = [
        m["content"][0] for m in last["messages"] if m["role"] == "user" and isinstance(m["content"], list)
    ]
    assert [(r["content"], r.get("is_error", False)) for r in results] == [
        ("File created successfully at: /memories/a.md", False),
        ("File /memories/a.md already exists", True),
        ("Here's the content of /memories/a.md with line numbers:\n     1\tCUS-7", False),
    ]


def test_the_asynchronous_tool_works_on_the_same_files(tmp_path):
    place = tmp_path / "bank.db"

    async def talk(server, tool):
        client = AsyncAnthropic(base_url=server.base_url.removesuffix("/v1"), api_key="k", max_retries=0)
        said = [{"role": "user", "content": "go"}]
        runner = client.beta.messages.tool_runner(
            model="scripted", max_tokens=99, messages=said, tools=[tool], thread=False
        )
        await runner.until_done()

    create = call("memory", command="create", path="/memories/a", file_text="x")
    with ScriptedServer([create, say("ok")]) as server:
        tool = AsyncMemoryFilesTool(place, "p", cache_control={"type": "ephemeral"})
        asyncio.run(talk(server, tool))
        assert server.requests[0].body["tools"][0]["cache_control"] == {"type": "ephemeral"}
    files = MemoryFilesTool(place, "p")
    assert answer(files, {"command": "view", "path": "/memories/a"}).endswith("\tx")


def test_what_is_recorded_is_what_the_sdk_answers(tmp_path):
    """The record with which test_files compares the bank where the SDK is not installed."""
    reference = BetaLocalFilesystemMemoryTool(str(tmp_path))
    assert [[command, answer(reference, command)] for command, _ in RECORDED] == RECORDED
    compare([command for command, _ in RECORDED])
