"""Both ends of the proxy while it is measured: an upstream that streams, and clients.

Both speak HTTP over plain asyncio protocols, so that they take little time themselves. Not a benchmark.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import multiprocessing
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from workload import interaction

PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages"}
EVENT = b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":0,"model":"m","choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}\n\n'  # noqa: E501
LAST = b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":0,"model":"m","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":9,"total_tokens":18}}\n\ndata: [DONE]\n\n'  # noqa: E501


def chunk(data: bytes) -> bytes:
    """One chunk of a body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class Upstream(asyncio.Protocol):
    """Streams as many events as the header ``x-events`` says, so many seconds apart as ``x-pause`` says."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.transport: Any = None
        self.wanted = -1
        self.head = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        self.received += data
        if self.wanted < 0:
            end = self.received.find(b"\r\n\r\n")
            if end < 0:
                return
            self.head = bytes(self.received[:end]).lower()
            self.wanted = end + 4 + int(self.told(b"content-length") or 0)
        if len(self.received) >= self.wanted:
            del self.received[: self.wanted]
            self.wanted = -1
            asyncio.get_running_loop().create_task(self.answer())

    def told(self, name: bytes) -> bytes:
        """The value of a header."""
        start = self.head.find(b"\r\n" + name + b":")
        return self.head[start + len(name) + 3 :].split(b"\r\n", 1)[0].strip() if start >= 0 else b""

    async def answer(self) -> None:
        """Send the events."""
        events, pause = int(self.told(b"x-events") or 1), float(self.told(b"x-pause") or 0)
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        self.transport.write(head + chunk(EVENT))
        for _ in range(events - 1):
            await asyncio.sleep(pause)
            if self.transport.is_closing():
                return
            self.transport.write(chunk(EVENT))
        self.transport.write(chunk(LAST) + b"0\r\n\r\n")


def serve_upstream(told: Any) -> None:
    """The upstream's process; it tells its port."""

    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(Upstream, "127.0.0.1", 0, backlog=1024)
        told.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run())


@dataclasses.dataclass
class Timed:
    """One request: seconds to the first byte of the answer's body and to its last; what memory said."""

    first: float
    total: float
    status: int
    memory: str
    events: int


class Client(asyncio.Protocol):
    """One connection; one request at a time."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.received = bytearray()
        self.done: asyncio.Future[Timed] | None = None
        self.first = 0.0
        self.began = 0.0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        if self.done is not None and not self.done.done():
            self.done.set_exception(ConnectionError("the connection broke"))

    async def ask(self, request: bytes) -> Timed:
        """Send a request; its times."""
        self.done = asyncio.get_running_loop().create_future()
        self.received.clear()
        self.first = 0.0
        self.began = time.perf_counter()
        self.transport.write(request)
        return await self.done

    def data_received(self, data: bytes) -> None:
        self.received += data
        body = self.received.find(b"\r\n\r\n") + 4
        if not self.first and body > 3 and len(self.received) > body:
            self.first = time.perf_counter() - self.began
        if self.done is None or self.done.done() or not self.first:
            return
        head = bytes(self.received[:body]).lower()
        if b"transfer-encoding: chunked" in head:
            if not self.received.endswith(b"0\r\n\r\n"):
                return
        elif len(self.received) - body < int(head.split(b"content-length:")[1].split(b"\r\n")[0]):
            return
        memory = head.split(b"x-memory-status:")[1].split(b"\r\n")[0] if b"x-memory-status:" in head else b""
        total = time.perf_counter() - self.began
        events = self.received.count(b"data: {")
        self.done.set_result(
            Timed(self.first, total, int(self.received[9:12]), memory.decode().strip(), events)
        )


class Agent:
    """An agent in the middle of its task: each request brings one more call and its result."""

    def __init__(self, session: str, past: int, named: bool = True) -> None:
        self.session, self.named = session, named
        self.rng = random.Random(session)
        self.messages: list[Any] = [
            {"role": "system", "content": "You support a web shop."},
            {"role": "user", "content": f"Check all orders of the week for wrong prices ({session})."},
        ]
        self.calls = 0
        self.grow(past)

    def grow(self, calls: int = 1) -> None:
        """So many more calls, whose ids are as random as those of providers."""
        for _ in range(calls):
            made = interaction(self.calls, self.rng)
            call_id = f"call_{self.rng.randbytes(12).hex()}"
            made[0]["tool_calls"][0]["id"] = made[1]["tool_call_id"] = call_id
            self.messages += made
            self.calls += 1

    def request(self, port: int, events: int, pause: float, route: str) -> bytes:
        """The request that asks what to do next."""
        said = {"messages": self.messages} if route == "chat" else message_request(self.messages)
        body = json.dumps({"model": "m", "stream": True, **said}).encode()
        head = (
            f"POST {PATHS[route]} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
            f"authorization: Bearer sk-bench\r\nx-events: {events}\r\nx-pause: {pause}\r\n"
            f"content-length: {len(body)}\r\n"
            + (f"x-memory-session: {self.session}\r\n" if self.named else "")
        )
        return head.encode() + b"\r\n" + body


def message_request(messages: list[Any]) -> dict[str, Any]:
    """An agent's chat messages as members of a request of the Messages API."""
    said: list[Any] = [{"role": "user", "content": messages[1]["content"]}]
    for message in messages[2:]:
        if message["role"] == "tool":
            result = {
                "type": "tool_result",
                "tool_use_id": message["tool_call_id"],
                "content": message["content"],
            }
            said.append({"role": "user", "content": [result]})
            continue
        calls = [
            {"type": "tool_use", "id": c["id"], "name": f["name"], "input": json.loads(f["arguments"])}
            for c in message["tool_calls"]
            for f in [c["function"]]
        ]
        said.append({"role": "assistant", "content": calls})
    return {"system": messages[0]["content"], "messages": said, "max_tokens": 1024}


@dataclasses.dataclass(frozen=True)
class Load:
    """What to ask: ``streams`` agents at once, each ``requests`` times, after ``past`` calls, at ``port``.

    With ``calls`` false nothing is called: each request is a question. ``route``: chat or messages. ``seed``
    names the sessions; the first request of each, which brings the past, is not timed.
    """

    port: int
    streams: int
    requests: int
    past: int
    seed: str
    events: int = 10
    pause: float = 0.01
    calls: bool = True
    route: str = "chat"
    named: bool = True


async def ask_all(load: Load) -> list[Timed]:
    """Run a load."""
    loop = asyncio.get_running_loop()
    start = loop.time()

    async def one(number: int) -> list[Timed]:
        agent = Agent(f"{load.seed}-{number}", load.past, load.named)
        _, client = await loop.create_connection(Client, "127.0.0.1", load.port)
        await known(client, agent, load)
        await asyncio.sleep(number * load.pause * load.events / load.streams)
        times = []
        for _ in range(load.requests):
            if load.calls:
                agent.grow()
            times.append(await client.ask(agent.request(load.port, load.events, load.pause, load.route)))
        client.transport.close()
        return times

    found = await asyncio.gather(*(one(i) for i in range(load.streams)))
    assert loop.time() >= start
    return [t for times in found for t in times]


async def known(client: Client, agent: Agent, load: Load) -> None:
    """Bring an agent's past, until memory has it."""
    for _ in range(100):
        timed = await client.ask(agent.request(load.port, 1, 0, load.route))
        if timed.memory != "failed":
            return
        await asyncio.sleep(0.2)
    raise RuntimeError("memory does not take the past of an agent")


def serve_load(jobs: Any) -> None:
    """The process of those who ask: takes loads, gives times."""
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            jobs.send(asyncio.run(ask_all(jobs.recv())))


@dataclasses.dataclass
class Ends:
    """Both ends, running."""

    upstream: int
    jobs: Any

    def run(self, load: Load) -> list[Timed]:
        """The times of a load."""
        self.jobs.send(load)
        found: list[Timed] = self.jobs.recv()
        return found


@contextlib.contextmanager
def both_ends() -> Iterator[Ends]:
    """An upstream and a load generator, each a process."""
    context = multiprocessing.get_context("spawn")
    told, tell = context.Pipe()
    ours, theirs = context.Pipe()
    started = [
        context.Process(target=serve_upstream, args=(tell,), daemon=True),
        context.Process(target=serve_load, args=(theirs,), daemon=True),
    ]
    for process in started:
        process.start()
    try:
        yield Ends(told.recv(), ours)
    finally:
        for process in started:
            process.terminate()
            process.join()


@dataclasses.dataclass
class Service:
    """``memory-bank serve``, running."""

    port: int
    process: subprocess.Popen[bytes]

    def rss(self) -> float:
        """Resident memory in MB."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@contextlib.contextmanager
def service(
    upstream: str, folder: str | Path, stderr: Any = subprocess.DEVNULL, **settings: object
) -> Iterator[Service]:
    """The service as users start it, on a database in ``folder``; ``settings`` are those of the service."""
    command = [sys.executable, "-m", "memory_bank", "serve", "--port", "0", "--upstream", upstream]
    command += ["--upstream-anthropic", upstream, "--db", str(Path(folder) / "bank.db")]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("OPENAI_", "MEMORY_BANK_"))}
    environment |= {f"MEMORY_BANK_SERVICE__{k.upper()}": str(v) for k, v in settings.items()}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=stderr)
    assert process.stdout is not None
    try:
        address = process.stdout.readline().decode().strip()  # said once requests are answered
        if not address:
            raise RuntimeError("the service did not start")
        yield Service(int(address.rpartition(":")[2]), process)
    finally:
        process.terminate()
        process.wait()
