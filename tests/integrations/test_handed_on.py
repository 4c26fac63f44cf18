"""A session of one real client goes on in another: the next answer needs no second look, and nothing undone is told."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from tests.benchmarks import importing

from memory_bank.testing import Reply, ScriptedServer, calls, say
from memory_bank.transcript.harness import persons_text

pytest.importorskip("uvicorn", reason="needs the service")
with importing():
    import client_sessions
    import clients

OPTIONS = {  # of each client, after its prompt
    "claude-code": ("claude", ["-p"], ["--allowedTools", "Bash", "Read", "Edit", "Write"]),
    "codex": ("codex", ["exec"], ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]),
    "opencode": ("opencode", ["run"], ["--model", "openai/gpt-5"]),
    "opencode-messages": ("opencode", ["run"], ["--model", "anthropic/claude-sonnet-4-5"]),
}
PREPARE, RELEASE = "Prepare the release of the shop.", "Make the release of the shop."
NEXT = "./release"
MEMORY_BANK = sys.executable, "-m", "memory_bank"


class Release:
    """The scripted model of two tasks in a folder: a release is prepared with edits of which some are undone, then made.

    ``held`` has the values that stood in each request of the second task.
    """

    def __init__(self, folder: Path, seed: str) -> None:
        dice = random.Random(seed)
        self.values = {
            name: f"{name.upper()}-{''.join(dice.choices('ABCDEFGHJKLMNPQRSTUVWXYZ23456789', k=10))}"
            for name in (*self.NEEDED, *self.UNDONE)
        }
        self.folder, self.held, self._done = folder, list[set[str]](), 0
        self._steps = [*self._prepared()]

    NEEDED = ("rate", "limit", "state", "note", "order", "port")
    """What the next call takes, as it is in the end."""
    UNDONE = (
        "triedrate",
        "firstlimit",
        "secondlimit",
        "oldstate",
        "oldnote",
        "draft",
        "firstport",
        "secondport",
    )
    """What an edit took back, or replaced; what a look-up showed before; what was written over or removed."""

    def _prepared(self) -> Iterator[tuple[str, ...]]:
        v = self.values
        yield "read", "rates.py"
        yield "edit", "rates.py", f'RATE = "{v["rate"]}"', f'RATE = "{v["triedrate"]}"'
        yield "edit", "rates.py", f'RATE = "{v["triedrate"]}"', f'RATE = "{v["rate"]}"'
        yield "run", "cat state.txt"
        yield "read", "limits.py"
        yield "edit", "limits.py", f'LIMIT = "{v["firstlimit"]}"', f'LIMIT = "{v["secondlimit"]}"'
        yield "run", f"cat > notes.md <<'EOF'\n# Notes\n\nThe note is {v['oldnote']}.\nEOF"
        yield "run", f"cat > draft.md <<'EOF'\n# Draft\n\nThe draft is {v['draft']}.\nEOF"
        yield "edit", "limits.py", f'LIMIT = "{v["secondlimit"]}"', f'LIMIT = "{v["limit"]}"'
        yield "run", "cat ports.cfg"
        for old, new in (("firstport", "secondport"), ("secondport", "port")):
            yield "run", f"sed -i 's/port = {v[old]}/port = {v[new]}/' ports.cfg"
            yield "run", "grep -n port ports.cfg"
        yield "run", "./advance"
        yield "run", "rm draft.md"
        yield "run", "cat state.txt"
        yield "run", f"cat > notes.md <<'EOF'\n# Notes\n\nThe note is {v['note']}.\nEOF"
        yield "read", "orders.json"

    def write(self) -> None:
        """The files of the folder as the first task finds them."""
        v, folder = self.values, self.folder
        folder.mkdir(parents=True)
        lines = "\n".join(
            f"def step_{n}(order):\n    return order.total * {n} + {n * n}\n" for n in range(12)
        )
        (folder / "rates.py").write_text(f'"""Rates."""\n\nRATE = "{v["rate"]}"\n\n{lines}')
        (folder / "limits.py").write_text(f'"""Limits."""\n\nLIMIT = "{v["firstlimit"]}"\n\n{lines}')
        (folder / "ports.cfg").write_text(f"[ports]\nport = {v['firstport']}\n")
        (folder / "state.txt").write_text(f"The state is {v['oldstate']}.\n")
        rows = [{"sku": f"SKU-{n}", "count": n} for n in range(40)]
        (folder / "orders.json").write_text(json.dumps({"order": v["order"], "rows": rows}) + "\n")
        given = " ".join(v[name] for name in self.NEEDED)
        for name, does in (
            ("advance", f"echo 'The state is {v['state']}.' > state.txt\necho advanced"),
            ("release", f'[ "$*" = "{given}" ] && echo RELEASED || echo "cannot release $*"'),
        ):
            (folder / name).write_text(f'#!/bin/sh\ncd "$(dirname "$0")"\n{does}\n')
            (folder / name).chmod(0o755)

    def __call__(self, body: dict[str, Any]) -> Reply:
        """The next turn."""
        messages = body.get("messages") or body.get("input") or []
        offered = clients.tool_names(body)
        shell = next((t for t in clients.SHELLS if t in offered), None)
        said = [persons_text(t) for t in client_sessions.texts_of(messages)]
        task = next((t for t in reversed(said) if PREPARE in t or RELEASE in t), "")
        if shell is None or not task:
            return say("The release of a shop")
        if PREPARE in task:
            self._done += 1
            if self._done > len(self._steps):
                return say("The release is prepared.")
            return self._call(offered, shell, *self._steps[self._done - 1])
        text = json.dumps(messages, ensure_ascii=False)
        self.held.append({name for name, value in self.values.items() if value in text})
        if len(self.held) > 1:
            return say("It is released." if "RELEASED" in text else "It cannot be released.")
        known = [v if (v := self.values[name]) in text else "unknown" for name in self.NEEDED]
        return self._call(offered, shell, "run", " ".join([NEXT, *known]))

    def _call(self, offered: set[str], shell: str, verb: str, what: str, *texts: str) -> Reply:
        """A call of the tool that a client offers for it."""
        path = str(self.folder / what)
        if verb == "run":
            return calls((shell, clients.SHELLS[shell](what)))
        if verb == "read":
            for tool, name in (("Read", "file_path"), ("read", "filePath")):
                if tool in offered:
                    return calls((tool, {name: path}))
            return calls((shell, clients.SHELLS[shell](f"cat {what}")))
        old, new = texts
        if "Edit" in offered:
            return calls(("Edit", {"file_path": path, "old_string": old, "new_string": new}))
        if "edit" in offered:
            return calls(("edit", {"filePath": path, "oldString": old, "newString": new}))
        patch = f"*** Begin Patch\n*** Update File: {what}\n@@\n-{old}\n+{new}\n*** End Patch"
        if "apply_patch" in offered:
            return calls(("apply_patch", {"patchText": patch}))
        given = json.dumps(patch) if self._done % 2 else f"`{patch}`"  # as models write it, too
        return calls((shell, f"const patch = {given};\ntext(await tools.apply_patch(patch));\n"))


def ask(name: str, prompt: str, work: Path, server: ScriptedServer, *options: str) -> str:
    """What a client prints that `memory-bank run` starts in a folder, on the bank beside it."""
    client, place = clients.CLIENTS[name], clients.place_of(name.removesuffix("-messages"))
    if not (place / ".ready").exists():
        pytest.skip(f"{name} is not installed: `python benchmarks/clients.py {name}` installs it")
    program, verb, given = OPTIONS[name]
    home = work.with_name(f"home of {name}")
    home.mkdir(exist_ok=True)
    variables = clients.Run(home, work, server.base_url.removesuffix("/v1")).environment(client.address)
    variables |= client.variables | {"MEMORY_BANK_SERVICE__PORT": "0"}
    run = [*MEMORY_BANK, "run", "--db", str(work.with_name("bank.db")), *options, "--"]
    binary = place / "node_modules" / ".bin" / program
    return clients.output_of([*run, str(binary), *verb, prompt, *given], work, variables)


@pytest.mark.parametrize(("first", "second"), [*permutations(OPTIONS, 2)])
def test_what_one_client_read_another_need_not_read_again(first: str, second: str, tmp_path: Path) -> None:
    orders, work = clients.Orders(f"{first} {second}"), tmp_path / "work"
    orders.write(work)
    model = client_sessions.Model(orders)
    with ScriptedServer(model, models=client_sessions.MODELS) as server:
        told = ask(first, client_sessions.task(1, 4, 2), work, server)
        assert orders.payment(2) in told, told
        asked = len(model.held)
        told = ask(second, client_sessions.task(5, 5, 1, 3), work, server, "--from", "latest")
    assert f"The payments are {orders.payment(1)}, {orders.payment(3)}." in told, told
    requests = [held for task, held in model.held[asked:] if task == 5]
    assert requests[0] >= {1, 2, 3, 4}  # before its first call
    assert len(requests) == 2, requests  # order 5 is read, and no other again


@pytest.mark.parametrize(("first", "second"), [*permutations(OPTIONS, 2)])
def test_the_next_call_is_possible_and_nothing_undone_is_told(
    first: str, second: str, tmp_path: Path
) -> None:
    """One client edits files, takes edits back and looks again; the other calls what needs all values at its first turn."""
    model = Release(tmp_path / "work", f"{first} {second}")
    model.write()
    with ScriptedServer(model, models=client_sessions.MODELS) as server:
        told = ask(first, PREPARE, model.folder, server)
        assert "The release is prepared." in told, told
        for name in ("rate", "limit"):
            assert model.values[name] in (model.folder / f"{name}s.py").read_text(), told
        handoff = [*MEMORY_BANK, "handoff", "latest", "--db", str(tmp_path / "bank.db")]
        printed = subprocess.run(handoff, cwd=model.folder, capture_output=True, text=True, check=True).stdout
        assert {n for n, value in model.values.items() if value in printed} == {*model.NEEDED}
        told = ask(second, RELEASE, model.folder, server, "--from", "latest")
    assert model.held[0] == {*model.NEEDED}  # before its first call
    assert "It is released." in told, told
