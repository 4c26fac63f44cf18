"""A session of one real client goes on in another: the next answer needs no second look, and nothing undone is told."""

from __future__ import annotations

import sys
from itertools import permutations
from pathlib import Path

import pytest
from tests.benchmarks import importing

from memory_bank.testing import ScriptedServer

pytest.importorskip("uvicorn", reason="needs the service")
with importing():
    import client_sessions
    import clients

OPTIONS = {  # of each client, after its prompt
    "claude-code": ("claude", ["-p"], ["--allowedTools", "Bash"]),
    "codex": ("codex", ["exec"], ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]),
    "opencode": ("opencode", ["run"], ["--model", "openai/gpt-5"]),
}


def ready(client: str) -> bool:
    return (clients.place_of(client) / ".ready").exists()


@pytest.mark.parametrize(("first", "second"), [*permutations(OPTIONS, 2)])
def test_what_one_client_read_another_need_not_read_again(first: str, second: str, tmp_path: Path) -> None:
    for name in (first, second):
        if not ready(name):
            pytest.skip(f"{name} is not installed: `python benchmarks/clients.py {name}` installs it")
    orders, work = clients.Orders(f"{first} {second}"), tmp_path / "work"
    orders.write(work)
    (tmp_path / "home").mkdir()
    (tmp_path / "other").mkdir()
    model, bank = client_sessions.Model(orders), tmp_path / "bank.db"
    with ScriptedServer(model, models=client_sessions.MODELS) as server:
        with clients.serving(server, bank) as (url, _):
            began = clients.Run(tmp_path / "home", work, url, client_sessions.task(1, 4, 2))
            told = clients.output_of_client(clients.CLIENTS[first], clients.place_of(first), began)
        assert orders.payment(2) in told, told
        program, verb, options = OPTIONS[second]
        command = [str(clients.place_of(second) / "node_modules" / ".bin" / program), *verb]
        command += [client_sessions.task(5, 5, 1, 3), *options]
        client, asked = clients.CLIENTS[second], len(model.held)
        variables = began.environment(client.address) | client.variables
        variables |= {
            "HOME": str(tmp_path / "other"),
            "OPENAI_BASE_URL": server.base_url,
            "ANTHROPIC_BASE_URL": server.base_url.removesuffix("/v1"),
            "MEMORY_BANK_SERVICE__PORT": "0",
        }
        run = [sys.executable, "-m", "memory_bank", "run", "--db", str(bank), "--from", "latest", "--"]
        told = clients.output_of([*run, *command], work, variables)
    assert f"The payments are {orders.payment(1)}, {orders.payment(3)}." in told, told
    requests = [held for task, held in model.held[asked:] if task == 5]
    assert requests[0] >= {1, 2, 3, 4}  # before its first call
    assert len(requests) == 2, requests  # order 5 is read, and no other again
