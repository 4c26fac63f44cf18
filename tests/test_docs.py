"""The README runs: its agent loop against the scripted server, its commands in a shell."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from memory_bank.testing import ScriptedServer, call, calls, say

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.S)


def test_the_agent_loop_and_the_look_into_the_bank(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    orders = [{"order_id": f"ORD-{i}", "due": "2026-03-01"} for i in range(60)]
    script = [
        call("list_orders", customer="CUS-7"),
        calls(("get_order", {"id": "ORD-1"}), ("get_order", {"id": "ORD-2"})),
        call("get_order", id="ORD-3"),
        say("ORD-1 is late."),
        say("Nothing else is."),  # the orchestrator's
    ]
    with ScriptedServer(script) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "x")
        scope = {
            "TOOLS": [
                {"type": "function", "function": {"name": n, "parameters": {"type": "object"}}}
                for n in ("list_orders", "get_order")
            ],
            "run_tool": lambda name, arguments: json.dumps(orders if name == "list_orders" else arguments),
        }
        for code in [code for language, code in BLOCKS if language == "python"]:
            exec(compile(code, "README.md", "exec"), scope)
        assert server.refused == []
        last = server.requests[-2].body["messages"]
    assert "[RETRIEVED RECORD 1]" in json.dumps(last)
    assert [m["role"] for m in last] == ["user", "user", "assistant", "tool"]
    out = capsys.readouterr().out
    assert "ORD-1 is late." in out
    assert "kept" in out


def test_the_page_on_histories_runs_from_the_agent_loop_to_the_exact_fetch(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "history.md").read_text(), re.S)
    assert len(blocks) >= 8
    script = [call("get_order", id=f"ORD-{i}") for i in range(7)] + [say("ORD-1 is late.")]
    with ScriptedServer(script) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "x")
        scope = {
            "TOOLS": [
                {"type": "function", "function": {"name": "get_order", "parameters": {"type": "object"}}}
            ],
            "run_tool": lambda name, arguments: json.dumps({"asked": arguments, "lines": ["x" * 50] * 40}),
        }
        for code in blocks:
            exec(compile(code, "docs/history.md", "exec"), scope)
        assert server.refused == []
        last = server.requests[-1].body["messages"]
    assert "the whole is in memory: trace_id" in json.dumps(last)
    scope["state"].close()
    out = capsys.readouterr().out
    assert "It waits for the carrier." in out
    assert "tool: get_order" in out


COMMANDS = [
    line[2:].split("#")[0].strip()
    for language, block in BLOCKS
    if language == "console"
    for line in block.splitlines()
    if line.startswith("$ memory-bank")
]


def test_the_commands_of_the_readme_run_in_their_order(tmp_path):
    assert len(COMMANDS) >= 8
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    for command in COMMANDS:
        line = command.replace("memory-bank", f"{sys.executable} -m memory_bank", 1)
        done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"{command}: {done.stderr}"


def test_the_page_on_the_service_runs_as_it_stands(tmp_path):
    pytest.importorskip("fastapi", reason="needs the extra service")
    blocks = re.findall(r"```console\n(.*?)```", (ROOT / "docs" / "operations.md").read_text(), re.S)
    lines = [line[2:] for block in blocks for line in block.splitlines()]
    assert len(lines) >= 9
    program = tmp_path / "bin" / "memory-bank"  # as a program, so that it can be timed and sent a signal
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m memory_bank "$@"\n')
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    running = subprocess.Popen(
        ["bash", "-e", "-c", "\n".join(lines)], cwd=tmp_path, env=os.environ | {"PATH": path},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        out, err = running.communicate(timeout=120)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
    assert running.returncode == 0, err
    assert '"status":"ok"' in out
    assert "memory_bank_database_up 1.0" in out
    assert "did you mean port?" in err


DOCS = ("history", "mcp", "operations", "page", "security", "service")


@pytest.mark.parametrize(
    "name",
    ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", *(f"docs/{n}.md" for n in DOCS)],
)
def test_links_lead_somewhere(name):
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", (ROOT / name).read_text()):
        assert ((ROOT / name).parent / target).exists(), target


def tree_of(text: str) -> set[str]:
    """The paths that an annotated tree names, relative to the package; folders end in a slash."""
    [block] = re.findall(r"```\nsrc/memory_bank/\n(.*?)```", text, re.S)
    found: set[str] = set()
    folders: list[str] = []
    for line in block.splitlines():
        lead, names = re.fullmatch(r"((?:│ )*)[├└] ((?:[\w./]+(?:, (?=\w+\.py))?)+) .*", line).groups()  # type: ignore[union-attr]
        folder = "".join(folders[: len(lead) // 2])
        for name in names.split(", "):
            found.add(folder + name)
            if name.endswith("/"):
                folders[len(lead) // 2 :] = [name]
    return found


def test_the_tree_in_architecture_names_every_folder_and_nothing_else():
    package = ROOT / "src" / "memory_bank"
    named = tree_of((ROOT / "ARCHITECTURE.md").read_text())
    there = {
        f"{p.relative_to(package)}/" if p.is_dir() else str(p.relative_to(package))
        for p in package.rglob("*")
        if "__pycache__" not in p.parts
        and (p.is_dir() or (p.parent == package and p.name not in ("__init__.py", "__main__.py", "py.typed")))
    }
    assert there - named == set(), "not in the tree"
    assert named - there == set(), "in the tree, but not there"
    assert (ROOT / "ARCHITECTURE.md").read_text().count("\n") <= 200


DECISIONS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))


def test_decisions_are_numbered_records_and_all_in_the_index():
    index = (ROOT / "docs" / "decisions" / "index.md").read_text()
    assert [int(p.name[:4]) for p in DECISIONS] == list(range(1, len(DECISIONS) + 1))
    for path in DECISIONS:
        title, *parts = re.findall(r"^#+ (.*)", path.read_text(), re.M)
        assert parts == ["Context", "Decision", "Consequence"], path.name
        number, name = title.split(". ", 1)
        assert f"| {number} | [{name}]({path.name}) |" in index
