"""Measures the CPU time of a request through the proxy, beside a bare relay, and of the library's import and steps.

    python benchmarks/overhead.py [--part proxy,cold,library] [--tokens 20000,150000] [--requests 20] [--rounds 2]
    python benchmarks/overhead.py --against PYTHON   # and the version that another interpreter imports, by turns
    python benchmarks/overhead.py --part proxy --peers   # and other proxies

``proxy``: an upstream that answers at once, and in front of it a process each: a relay of httpx and uvicorn that
parses no body, `memory-bank serve` with the strategy `no_strategy` and with the shipped one. ``--peers`` adds the
proxies of LiteLLM, which has no memory, and of Headroom, which compresses, as they ship; each is installed in an
environment of its own below ``.venv-integrations/peers`` (once, from PyPI). Agents whose histories have so many
tokens bring one more call with each request. CPU milliseconds of the process a request, with what it does after the
answer: the median of the rounds, in which the servers take turns, and resident memory at the end.
``cold``: the first request of a service that has just been started, of a session that its bank has.
``library``: a new interpreter whose modules are compiled, as those of an installed package are, from
``import memory_bank`` to its first context; ``Memory.context`` between folds.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from harness import Service, command_line, cpu_ms, print_head, print_row, resident_mb, words
from integrations import HOME
from integrations import environment as installed
from workload import beginning, interaction, request_of

PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
USAGE = {
    "prompt_tokens": 9,
    "completion_tokens": 9,
    "input_tokens": 9,
    "output_tokens": 9,
    "total_tokens": 18,
}
ANSWERS: dict[str, dict[str, Any]] = {
    "chat": {"choices": [{"index": 0, "message": {"role": "assistant", "content": "so"}, "finish_reason": "stop"}]},
    "responses": {
        "object": "response", "status": "completed", "output": [], "created_at": 0, "parallel_tool_calls": True,
        "tool_choice": "auto", "tools": [], "error": None, "incomplete_details": None, "instructions": None,
        "metadata": {}, "temperature": 1.0, "top_p": 1.0,
    },
    "messages": {"type": "message", "role": "assistant", "content": [], "stop_reason": "end_turn"},
}  # fmt: skip
PEERS = {  # the distribution of a proxy, its command, and what it needs of the environment
    "LiteLLM": (
        "litellm[proxy]",
        "{bin}/litellm --model openai/gpt-5 --api_base {url}/v1 --port {port}",
        {
            "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",  # or it does not start
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # or it asks the network
            "OPENAI_API_KEY": "k",
        },
    ),
    "Headroom": (
        "headroom-ai[proxy]",
        "{bin}/headroom proxy --port {port} --openai-api-url {url} --anthropic-api-url {url} --no-http2",
        {"HOME": "{folder}", "HEADROOM_TELEMETRY": "off", "HF_HUB_OFFLINE": "1"},
    ),
}
TOKENS = 480  # of a call and its result
REST = 0.5  # seconds for what is done after an answer
RELAY = """
import sys, {httpx} as httpx, uvicorn

class Relay:
    client = None

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            return
        self.client = self.client or httpx.AsyncClient(timeout=60)
        parts, more = [], True
        while more:
            message = await receive()
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
        headers = [(k, v) for k, v in scope["headers"] if k not in (b"host", b"content-length")]
        url = sys.argv[2] + scope["path"]
        async with self.client.stream("POST", url, content=b"".join(parts), headers=headers) as answer:
            await send(dict(type="http.response.start", status=answer.status_code, headers=answer.headers.raw))
            async for chunk in answer.aiter_raw():
                await send(dict(type="http.response.body", body=chunk, more_body=True))
        await send(dict(type="http.response.body"))

uvicorn.run(Relay(), port=int(sys.argv[1]), log_level="critical", lifespan="off")
"""
LIBRARY = """
import time
def cpu():
    return time.process_time() * 1000
began = cpu()
import memory_bank
imported = cpu()
from memory_bank import Memory
memory = Memory()
messages = [
    {"role": "user", "content": "Check the orders."},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "get", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "c1", "content": "fine"},
]
memory.context(messages)
print(imported - began, cpu() - began, int(open('/proc/self/statm').read().split()[1]) * 4096 / 1e6)
"""
BETWEEN = """
import sys, time
sys.path.insert(0, sys.argv[1])
import random, statistics
from integrations import HOME
from integrations import environment as installed
from workload import beginning, interaction
from memory_bank import Memory
rng, calls = random.Random(0), int(sys.argv[2])
messages = beginning("task") + [m for i in range(calls) for m in interaction(i, rng)]
memory, times = Memory(), []
memory.context(messages)
for i in range(calls, calls + 20):
    messages += interaction(i, rng)
    began, folds = time.thread_time(), memory.state.last_plan.fold
    memory.context(messages)
    if memory.state.last_plan.fold == folds:
        times.append(1000 * (time.thread_time() - began))
print(statistics.median(times))
"""


class Upstream(asyncio.Protocol):
    """Answers each request at once."""

    def connection_made(self, transport: Any) -> None:
        self.transport, self.received = transport, bytearray()

    def data_received(self, data: bytes) -> None:
        self.received += data
        head, end, body = self.received.partition(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
        if end and len(body) >= size:
            route = next((r for r, path in PATHS.items() if path[3:].encode() in head[:80]), "chat")
            answer = json.dumps({"id": "a1", "model": "m", **ANSWERS[route], "usage": USAGE}).encode()
            self.received.clear()
            self.transport.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
                % (len(answer), answer)
            )


def serve_upstream(told: Any) -> None:
    """The upstream's process; it tells its port."""

    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(Upstream, "127.0.0.1", 0)
        told.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    with suppress(KeyboardInterrupt):
        asyncio.run(run())


@contextmanager
def upstream() -> Iterator[str]:
    """The URL of an upstream in a process of its own."""
    told, tell = multiprocessing.Pipe()
    process = multiprocessing.Process(target=serve_upstream, args=(tell,), daemon=True)
    process.start()
    yield f"http://127.0.0.1:{told.recv()}"
    process.terminate()


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@contextmanager
def started(
    command: list[str], port: int, environment: dict[str, str] | None = None
) -> Iterator[tuple[int, int]]:
    """The port and the process of a server that is not ours."""
    nothing = subprocess.DEVNULL
    process = subprocess.Popen(command, stdout=nothing, stderr=nothing, env=environment)
    try:
        for _ in range(600):
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", port)).close()
                break
            time.sleep(0.1)
        yield port, process.pid
    finally:
        process.terminate()
        process.wait()


class Agent:
    """An agent with a history of so many tokens, whose requests bring one more call each."""

    def __init__(self, name: str, route: str, tokens: int) -> None:
        self.name, self.route = name, route
        self.rng, self.calls, self.messages = random.Random(name), 0, beginning(name)
        for _ in range(tokens // TOKENS):
            self.grow()

    def grow(self) -> None:
        """One more call."""
        call, result = interaction(self.calls, self.rng)
        call["tool_calls"][0]["id"] = result["tool_call_id"] = f"call_{self.rng.randbytes(12).hex()}"
        self.messages += [call, result]
        self.calls += 1

    def ask(self, port: int) -> str:
        """Send the history; what memory did."""
        body = json.dumps({"model": "gpt-5", **request_of(self.route, self.messages)}).encode()
        head = {
            "content-type": "application/json",
            "authorization": "Bearer k",
            "x-memory-session": self.name,
        }
        request = urllib.request.Request(f"http://127.0.0.1:{port}{PATHS[self.route]}", body, head)
        with urllib.request.urlopen(request, timeout=120) as answer:
            answer.read()
            return str(answer.headers.get("x-memory-status", ""))

    def ask_until_known(self, port: int) -> None:
        """Send the history until memory has it."""
        for _ in range(50):
            if self.ask(port) != "failed":
                return
            time.sleep(0.2)
        raise RuntimeError("memory does not take the history")


def cost(agent: Agent, port: int, pid: int, requests: int) -> tuple[float, set[str]]:
    """CPU milliseconds a request, after one that brought the history."""
    agent.ask_until_known(port)
    time.sleep(REST)
    began, memory = cpu_ms(pid), set()
    for _ in range(requests):
        agent.grow()
        memory.add(agent.ask(port))
    time.sleep(REST)
    return (cpu_ms(pid) - began) / requests, memory


def ours(stack: ExitStack, url: str, strategy: str, python: str) -> tuple[int, int]:
    """The port and the process of `memory-bank serve`."""
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    service = stack.enter_context(
        Service(f"{folder}/bank.db", f"{url}/v1", python=python, strategy=strategy, memory_timeout=30)
    )
    return service.port, service.process.pid


def version_of(python: Path, distribution: str) -> str:
    """The version of a distribution that an interpreter has."""
    shown = f"import importlib.metadata as m; print(m.version({distribution.partition('[')[0]!r}))"
    return subprocess.run([python, "-c", shown], capture_output=True, text=True, check=True).stdout.strip()


def proxy_part(
    sizes: list[int], routes: list[str], requests: int, rounds: int, against: str | None, *, peers: bool
) -> None:
    """CPU of a request."""
    with ExitStack() as stack:
        url = stack.enter_context(upstream())
        httpx = "httpx2"
        relay = [sys.executable, "-c", RELAY.format(httpx=httpx)]
        port = free_port()
        servers = {"bare relay": stack.enter_context(started([*relay, str(port), url], port))}
        for name, python in {"": sys.executable, " (against)": against}.items():
            if python:
                servers[f"ours, no strategy{name}"] = ours(stack, url, "no_strategy", python)
                servers[f"ours, memory{name}"] = ours(stack, url, "memory_bank", python)
        for name, (distribution, command, environment) in PEERS.items() if peers else ():
            python = installed(HOME / "peers" / name.lower(), [distribution])
            port = free_port()
            values = {
                "bin": python.parent,
                "url": url,
                "port": port,
                "folder": stack.enter_context(tempfile.TemporaryDirectory()),
            }
            made = [part.format(**values) for part in command.split()]
            own = os.environ | {key: value.format(**values) for key, value in environment.items()}
            server = stack.enter_context(started(made, port, own))
            servers[f"{name} {version_of(python, distribution)}"] = server
        print_head(
            "CPU ms a request", "API", *(f"{size:,} tokens" for size in sizes), "memory", "resident MB"
        )
        found: dict[tuple[str, str, int], list[float]] = {}
        memory: dict[tuple[str, str], set[str]] = {}
        for turn in range(rounds):
            for route in routes:
                for size in sizes:
                    for name, (port, pid) in servers.items():
                        ms, said = cost(Agent(f"{route}-{size}-{turn}", route, size), port, pid, requests)
                        found.setdefault((name, route, size), []).append(ms)
                        memory.setdefault((name, route), set()).update(said)
        for name, (_, pid) in servers.items():
            for route in routes:
                cells = (f"{statistics.median(found[name, route, size]):.1f}" for size in sizes)
                print_row(
                    name, route, *cells, ", ".join(sorted(memory[name, route])), f"{resident_mb(pid):.0f}"
                )


def cold_part(sizes: list[int], against: str | None) -> None:
    """CPU of the first request after a start."""
    print_head("CPU ms of the first request", *(f"{size:,} tokens" for size in sizes))
    with upstream() as url:
        for name, python in {"ours": sys.executable, "ours (against)": against}.items():
            cells = []
            for size in sizes if python else ():
                agent = Agent("cold", "chat", size)
                with tempfile.TemporaryDirectory() as folder:
                    bank, settings = f"{folder}/bank.db", {"python": str(python), "memory_timeout": 30}
                    with Service(bank, f"{url}/v1", **settings) as service:
                        agent.ask_until_known(service.port)
                        time.sleep(3 * REST)
                    with Service(bank, f"{url}/v1", **settings) as service:
                        Agent("other", "chat", 2_000).ask_until_known(service.port)
                        time.sleep(REST)
                        agent.grow()
                        began = cpu_ms(service.process.pid)
                        memory = agent.ask(service.port)
                        time.sleep(2 * REST)
                        cells.append(f"{cpu_ms(service.process.pid) - began:.0f} ({memory})")
            if python:
                print_row(name, *cells)


def library_part(rounds: int, against: str | None) -> None:
    """Import, and steps between folds."""
    print_head(
        "library", "import (CPU ms)", "to the first context", "resident MB", "a step at 30 calls", "at 5,000"
    )

    compiled = tempfile.TemporaryDirectory()
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": compiled.name}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def run(python: str, script: str, *args: str) -> list[float]:
        command = [python, "-c", script, *args]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        return [float(value) for value in done.stdout.split()]

    for name, python in {"ours": sys.executable, "ours (against)": against}.items():
        if python:
            run(python, LIBRARY)
            begun = zip(*(run(python, LIBRARY) for _ in range(rounds)), strict=True)
            steps = [run(python, BETWEEN, str(Path(__file__).parent), calls)[0] for calls in ("30", "5000")]
            first, context, mb = map(statistics.median, begun)
            print_row(name, f"{first:.0f}", f"{context:.0f}", f"{mb:.0f}", *(f"{ms:.1f}" for ms in steps))
    compiled.cleanup()


def main() -> None:
    """Run and print the tables."""
    parser = command_line(__doc__)
    parser.add_argument("--part", type=words, default="proxy,cold,library")
    parser.add_argument("--tokens", type=words, default="20000,150000", help="of the histories")
    parser.add_argument("--apis", type=words, default="chat,responses,messages")
    parser.add_argument("--requests", type=int, default=20, help="of an agent")
    parser.add_argument("--rounds", type=int, default=2, help="in which the servers take turns")
    parser.add_argument("--peers", action="store_true", help="other proxies, too")
    parser.add_argument("--against", help="an interpreter that imports another version")
    args = parser.parse_args()
    part, apis = (words(v) if isinstance(v, str) else v for v in (args.part, args.apis))
    sizes = [int(n) for n in (words(args.tokens) if isinstance(args.tokens, str) else args.tokens)]
    if "proxy" in part:
        proxy_part(sizes, apis, args.requests, args.rounds, args.against, peers=args.peers)
    if "cold" in part:
        cold_part(sizes, args.against)
    if "library" in part:
        library_part(args.rounds, args.against)


if __name__ == "__main__":
    main()
