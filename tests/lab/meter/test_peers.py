"""The peers' plugin functions without the peers: what they rewrite, and what they say when nothing is installed."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.benchmarks import importing
from tests.cli.conftest import environment

ROOT = Path(__file__).parents[3]
with importing():
    import peers

CHAT = [
    {"role": "user", "content": "long question"},
    {"role": "assistant", "tool_calls": [{"id": "c1", "function": {"name": "read", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "c1", "content": "long result"},
    {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "short"}]},
    {"role": "tool", "tool_call_id": "c3", "content": None},
]


def run(*args):
    return subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "peers.py", *map(str, args)],
        env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_each_result_is_rewritten_once_and_nothing_else_is_touched():
    asked = []

    def rewrite(call_id, text):
        asked.append((call_id, text))
        return f"preview {len(asked)}" if text.startswith("long") else text

    context = peers.once_per_result(rewrite)
    first = context(CHAT[:3])
    whole = context(CHAT)
    assert first == whole[:3]
    assert whole[2] == {**CHAT[2], "content": "preview 1"}
    assert [*whole[:2], *whole[3:]] == [*CHAT[:2], *CHAT[3:]]
    assert asked == [("c1", "long result"), ("c2", "short")]
    assert CHAT[2]["content"] == "long result"


def test_a_new_trace_starts_anew_and_an_exception_is_an_answer():
    starts = []

    def start():
        starts.append(len(starts))
        return lambda messages: messages[: 1 // (len(messages) - 1)]

    asked = ((1, CHAT[:2]), (1, CHAT[:1]), (2, CHAT[:2]))
    sent = [{"trace": n, "messages": messages, "options": {}} for n, messages in asked]
    out = io.StringIO()
    peers.serve(peers.Peer("toy", ("toy",), start, ()), io.StringIO("\n".join(map(json.dumps, sent))), out)
    answers = [json.loads(line) for line in out.getvalue().splitlines()]
    assert answers[0] == answers[2] == {"messages": CHAT[:1]}
    assert answers[1]["error"].startswith("ZeroDivisionError: ")
    assert starts == [0, 1]


@pytest.mark.parametrize(("peer", "package"), [("headroom", "headroom-ai"), ("strands", "strands-agents")])
def test_a_peer_that_is_not_installed_says_how_to_install_it(peer, package, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", f"import peers; peers.{peer}([], {{}})"],
        env=environment(PYTHONPATH=str(ROOT / "benchmarks"), PEERS_VENV=str(tmp_path)),
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    expected = f"peers.PeerError: {package} is not installed: run benchmarks/peers.py --peer {peer}."
    assert done.stderr.splitlines()[-1] == expected


def test_an_environment_without_the_package_is_named_and_left_out(tmp_path):
    python = peers.python_of(tmp_path / "strands")
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    done = run("orders", "--peer", "strands", "--venv", tmp_path)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("strands-agents==1.62.* is left out, it does not work, remove ")
    assert "No module named 'strands'" in done.stderr
