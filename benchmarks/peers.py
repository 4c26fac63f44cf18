"""Measures two other tools with the same meter: Headroom and Strands Agents.

    python benchmarks/peers.py toolathlon_dev livemcpbench intercode_sql_gpt4 --jobs 2
    python benchmarks/peers.py run.jsonl.gz --peer strands --limit 20 --venv ~/.cache/peers

Each peer lives in an environment of its own under ``--venv`` (default ``.venv-peers``, ignored by git), made
at the first run; that needs pip and a package index, measuring needs neither network nor model. Prints the
tables of ``benchmarks/evidence.py``, then what was measured: versions, packages, size. A peer that does not
install is named with the reason and left out. Other options go to ``benchmarks/evidence.py``.

``headroom``: Headroom 0.42 as it comes: ``headroom.compress(messages, model="gpt-4o")`` without extras, so
without its text model, which is a download; offline, stateless by its own switches. Every step compresses the
whole history anew. Its native content detection needs ONNX Runtime, which its package does not bring: to
measure with it, ``.venv-peers/headroom/bin/python -m pip install 'onnxruntime>=1.24'``, and run again.

``strands``: the package's own ``ContextOffloader`` with its defaults (results over 2,500 tokens become a
preview of 1,000 and a reference), not a copy of its rule. An ``Agent`` with a model that is never asked
registers the plugin; each result passes once through the hooks that a finished tool call fires. The retrieval
tool's schema is not counted. Measured twice: with tokens as its base model class counts them, four characters
each, and with ``counter=o200k_base`` (tiktoken), as a model that counts its own would. livemcpbench was
recorded with results cut at 10,000 characters, 2,500 tokens by the former: nothing is over the limit there.

Both keep what they leave out in a store of their own, which the column "reachable" does not look into.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[1]
FOLDER = "PEERS_VENV"  # the environment variable that tells the plugin functions where the peers are

Message = dict[str, Any]
Context = Callable[[list[Message]], list[Message]]
Rewrite = Callable[[str, str], str]  # call id, result → what the prompt shows of it


@dataclass(frozen=True, slots=True)
class Peer:
    """A package to compare with: what pip is asked for, how a trace starts, its variants."""

    name: str
    wanted: tuple[str, ...]
    start: Callable[..., Context]
    variants: tuple[str, ...]

    @property
    def package(self) -> str:
        return self.wanted[0].partition("==")[0]


class PeerError(Exception):
    """A peer is not there or failed; one sentence that says what to do."""


# ---- inside a peer's environment: standard library and the peer only


def start_headroom() -> Context:
    """Headroom's one-function call."""
    from headroom import compress  # type: ignore[import-not-found]

    def context(messages: list[Message]) -> list[Message]:
        return list(compress(messages, model="gpt-4o").messages)

    return context


def start_strands(counter: str = "") -> Context:
    """The offloader's own hook, once for each result; what it made of a result stays, as in an agent."""
    from strands import Agent  # type: ignore[import-not-found]
    from strands.hooks.events import AfterToolCallEvent  # type: ignore[import-not-found]
    from strands.models import Model  # type: ignore[import-not-found]
    from strands.vended_plugins import context_offloader as offloader  # type: ignore[import-not-found]

    def never(*_: Any, **__: Any) -> Any:
        raise NotImplementedError("the model of the benchmark is never asked")

    methods = dict.fromkeys(sorted(Model.__abstractmethods__), never)
    if counter:
        import tiktoken

        encoding = tiktoken.get_encoding(counter)

        async def count_tokens(_: Any, messages: list[Any], *__: Any, **___: Any) -> int:
            texts = (b["text"] for m in messages for c in m["content"] for b in c["toolResult"]["content"])
            return sum(len(encoding.encode(text, disallowed_special=())) for text in texts)

        methods["count_tokens"] = count_tokens
    plugin = offloader.ContextOffloader(storage=offloader.InMemoryStorage())
    agent = Agent(model=type("Silent", (Model,), methods)(), plugins=[plugin], callback_handler=None)

    def rewrite(call_id: str, text: str) -> str:
        event = AfterToolCallEvent(
            agent=agent,
            selected_tool=None,
            tool_use={"toolUseId": call_id, "name": "tool", "input": {}},
            invocation_state={},
            result={"toolUseId": call_id, "status": "success", "content": [{"text": text}]},
        )
        asyncio.run(agent.hooks.invoke_callbacks_async(event))
        return "\n".join(block["text"] for block in event.result["content"])

    return once_per_result(rewrite)


def once_per_result(rewrite: Rewrite) -> Context:
    """A context with each tool result as ``rewrite`` made it when it first came; the rest is left."""
    seen: dict[tuple[str, str], str] = {}

    def context(messages: list[Message]) -> list[Message]:
        shown = []
        for message in messages:
            text = text_of(message.get("content")) if message.get("role") == "tool" else ""
            if text:
                key = (str(message.get("tool_call_id")), text)
                if key not in seen:
                    seen[key] = rewrite(*key)
                if seen[key] != text:
                    message = {**message, "content": seen[key]}
            shown.append(message)
        return shown

    return context


def text_of(content: Any) -> str:
    """The text of a message's content, a string or a list of parts."""
    if isinstance(content, list):
        return "\n".join(str(p["text"]) for p in content if isinstance(p, dict) and "text" in p)
    return content if isinstance(content, str) else ""


def serve(peer: Peer, lines: IO[str], out: IO[str]) -> None:
    """Answer requests, a line of JSON each: trace, messages, options; a new trace starts the peer anew."""
    contexts: dict[str, tuple[int, Context]] = {}  # by options: the trace and its context
    for line in lines:
        request = json.loads(line)
        try:
            key = json.dumps(request["options"])
            if key not in contexts or contexts[key][0] != request["trace"]:
                contexts[key] = request["trace"], peer.start(**request["options"])
            answer: dict[str, Any] = {"messages": contexts[key][1](request["messages"])}
        except Exception as e:  # told to the meter, which counts it
            answer = {"error": f"{type(e).__name__}: {e}"}
        out.write(json.dumps(answer) + "\n")
        out.flush()


# ---- in the meter's environment


class Worker:
    """A peer at work in its own environment, one for each measuring process."""

    def __init__(self, peer: Peer) -> None:
        python = python_of(Path(os.environ.get(FOLDER) or ROOT / ".venv-peers") / peer.name)
        if not python.is_file():
            raise PeerError(f"{peer.package} is not installed: run benchmarks/peers.py --peer {peer.name}.")
        self._peer, self._traces = peer, 0
        self._process = subprocess.Popen(
            [python, "-I", __file__, "--serve", peer.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "HEADROOM_OFFLINE": "1", "HEADROOM_STATELESS": "1"},
        )

    def ask(self, messages: Sequence[Message], state: dict[str, Any], options: Any) -> list[Message]:
        """The peer's context. Raises PeerError when the peer raises or ends."""
        if "trace" not in state:
            self._traces += 1
            state["trace"] = self._traces
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            request = {"trace": state["trace"], "messages": messages, "options": options}
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended: nothing is there to read
        line = self._process.stdout.readline()
        if not line:
            raise PeerError(f"{self._peer.package} has ended: remove its environment and install it anew.")
        answer = json.loads(line)
        if "error" in answer:
            raise PeerError(f"{self._peer.package} raised {answer['error']}")
        return list(answer["messages"])


_workers: dict[tuple[int, str], Worker] = {}  # by process, for a fork must not share pipes


def _ask(name: str, messages: list[Message], state: dict[str, Any], **options: Any) -> list[Message]:
    key = (os.getpid(), name)
    if key not in _workers:
        _workers[key] = Worker(PEERS[name])
    return _workers[key].ask(messages, state, options)


def headroom(messages: list[Message], state: dict[str, Any]) -> list[Message]:
    """The strategy ``peers:headroom``. Raises PeerError when it is not installed."""
    return _ask("headroom", messages, state)


def strands(messages: list[Message], state: dict[str, Any], counter: str = "") -> list[Message]:
    """The strategy ``peers:strands``. Raises PeerError when it is not installed."""
    return _ask("strands", messages, state, counter=counter)


PEERS = {
    "headroom": Peer("headroom", ("headroom-ai==0.42.*",), start_headroom, ("",)),
    "strands": Peer(
        "strands", ("strands-agents==1.62.*", "tiktoken"), start_strands, ("", "?counter=o200k_base")
    ),
}


def python_of(folder: Path) -> Path:
    """The interpreter of an environment."""
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def install(peer: Peer, folder: Path) -> str:
    """Make a peer's environment where there is none, and say what is in it. Raises PeerError."""
    python = python_of(folder)
    made = not python.is_file()
    try:
        if made:
            print(f"installing {' and '.join(peer.wanted)} …", file=sys.stderr)
            venv.create(folder, with_pip=True)
            _run(python, "-m", "pip", "install", "--quiet", *peer.wanted)
        version, packages = json.loads(_run(python, "-I", __file__, "--tell", peer.name))
    except (OSError, ValueError, subprocess.SubprocessError) as e:
        if made:
            shutil.rmtree(folder, ignore_errors=True)  # so that the next run tries again
        lines = (getattr(e, "stderr", None) or str(e)).strip().splitlines()
        again = "" if made else f", remove {folder} to install it anew"
        raise PeerError(f"{peer.wanted[0]} is left out, it does not work{again}: {lines[-1]}") from e
    size = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file() and not p.is_symlink())
    return f"{peer.package} {version}, {packages} packages, {size / 1e6:,.0f} MB"


def _run(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=1800).stdout


def main() -> int:
    """Install, measure, say what was measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--peer", action="append", choices=list(PEERS), help="default: both")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv-peers", help="their environments")
    parser.add_argument("--serve", choices=list(PEERS), help=argparse.SUPPRESS)
    parser.add_argument("--tell", choices=list(PEERS), help=argparse.SUPPRESS)
    args, rest = parser.parse_known_args()
    if args.serve:
        out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # what a peer prints must not stand among the answers
        serve(PEERS[args.serve], sys.stdin, out)
        return 0
    if args.tell:
        PEERS[args.tell].start()
        packages = {p.name: p.version for p in metadata.distributions()}
        print(json.dumps([packages[PEERS[args.tell].package], len(packages)]))
        return 0
    folder = args.venv.expanduser().resolve()
    told: dict[str, str] = {}
    for name in args.peer or PEERS:
        try:
            told[name] = install(PEERS[name], folder / name)
        except PeerError as e:
            print(e, file=sys.stderr)
    if not told:
        return 1
    strategies = [f"--strategy=peers:{name}{v}" for name in told for v in PEERS[name].variants]
    command = [sys.executable, str(ROOT / "benchmarks" / "evidence.py"), *rest, *strategies]
    code = subprocess.run(command, env={**os.environ, FOLDER: str(folder)}, check=False).returncode
    if code == 0:
        print("\n" + "\n".join(f"{name}: {what}" for name, what in told.items()))
    return code


if __name__ == "__main__":
    sys.exit(main())
