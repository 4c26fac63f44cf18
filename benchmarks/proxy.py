"""Measures what the proxy adds to a model's answer: to its first byte and its last, with streams and history.

    python benchmarks/proxy.py [--part streams,history,rss,load] [--rounds 5] [--agents 200] [--seconds 180]
                               [--workers 1]

An upstream that streams, `memory-bank serve` in front of it and those who ask are a process each; agents ask
the upstream itself and through the proxy by turns, in the same run, with the same requests. An agent has made
so many calls (outputs of about 1.5 kB) and brings one more with each request; `none` are questions without
any call, which memory leaves alone. Times are those from the request's first byte to the answer's first and
last, medians. Both ends speak HTTP over plain asyncio protocols, so that they take little time themselves.

``streams``: 1, 10 and 100 at once. ``history``: one stream after n calls, of the Chat Completions API and of the
Messages API. ``rss``: resident memory of the service over 10,000 requests whose sessions come and go, five
requests each, found by what their messages hold.
``load``: agents that ask without a pause for so many seconds, each with tasks of ``--calls`` calls, one after the
other and found by what their messages hold; their first tasks begin with 0 to ``--calls`` calls, so that sessions end
and begin at the same rate all the time. An answer takes ``--answer`` seconds. Beside the share that had memory,
why the others had none, and the times: those of the upstream alone, asked by as many agents at the same pace,
the requests a core-second (the CPU of all processes of the service), each worker's share of the requests, and
resident memory at twenty moments. An agent has one connection for all its requests.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import itertools
import json
import multiprocessing
import random
import socket
import statistics
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from harness import Service, command_line, print_head, print_row, words
from workload import beginning, interaction, request_of

PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages"}
CHUNK = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 0, "model": "m"}
WORD = CHUNK | {"choices": [{"index": 0, "delta": {"content": " word"}, "finish_reason": None}]}
USED = CHUNK | {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 9, "total_tokens": 18}}


def event(*values: object) -> bytes:
    """Server-sent events as one chunk of a body."""
    data = "".join(f"data: {v if isinstance(v, str) else json.dumps(v)}\n\n" for v in values).encode()
    return b"%x\r\n%b\r\n" % (len(data), data)


def header(head: bytes, name: bytes) -> bytes:
    """The value of a header in a head in lower case."""
    return head.partition(b"\r\n" + name + b":")[2].partition(b"\r\n")[0].strip()


class End(asyncio.Protocol):
    """One end of a connection."""

    def connection_made(self, transport: Any) -> None:
        self.transport, self.received = transport, bytearray()
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class Upstream(End):
    """Streams as many events as the header ``x-events`` says, so many seconds apart as ``x-pause`` says."""

    def data_received(self, data: bytes) -> None:
        self.received += data
        end = self.received.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self.received[:end]).lower()
        size = end + 4 + int(header(head, b"content-length") or 0)
        if len(self.received) >= size:
            del self.received[:size]
            asyncio.get_running_loop().create_task(self.answer(head))

    async def answer(self, head: bytes) -> None:
        """Send the events."""
        begun = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        self.transport.write(begun + event(WORD))
        for _ in range(int(header(head, b"x-events") or 1) - 1):
            await asyncio.sleep(float(header(head, b"x-pause") or 0))
            if self.transport.is_closing():
                return
            self.transport.write(event(WORD))
        self.transport.write(event(USED, "[DONE]") + b"0\r\n\r\n")


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
    """One request: seconds to the first byte of the answer's body and to its last; what memory said, and why."""

    first: float
    total: float
    status: int
    memory: str
    events: int
    reason: str = ""
    calls: int = 0


class Client(End):
    """One connection; one request at a time."""

    done: asyncio.Future[Timed] | None = None

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
        elif len(self.received) - body < int(header(head, b"content-length")):
            return
        total, status = time.perf_counter() - self.began, int(self.received[9:12])
        memory, events = header(head, b"x-memory-status").decode(), self.received.count(b"data: {")
        reason = header(head, b"x-memory-reason").decode()
        self.done.set_result(Timed(self.first, total, status, memory, events, reason))


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
    seconds: float = 0.0


class Agent:
    """An agent in the middle of its task: each request brings one more call and its result."""

    def __init__(self, session: str, load: Load) -> None:
        self.session, self.load = session, load
        self.rng = random.Random(session)
        self.messages = beginning(session)
        self.calls = 0
        self.grow(load.past)

    def grow(self, calls: int = 1) -> None:
        """So many more calls, whose ids are as random as those of providers."""
        for _ in range(calls):
            made = interaction(self.calls, self.rng)
            call_id = f"call_{self.rng.randbytes(12).hex()}"
            made[0]["tool_calls"][0]["id"] = made[1]["tool_call_id"] = call_id
            self.messages += made
            self.calls += 1

    def request(self, events: int, pause: float) -> bytes:
        """The request that asks what to do next."""
        route = self.load.route
        body = json.dumps({"model": "m", "stream": True, **request_of(route, self.messages)}).encode()
        head = (
            f"POST {PATHS[route]} HTTP/1.1\r\nhost: 127.0.0.1:{self.load.port}\r\n"
            f"content-type: application/json\r\nauthorization: Bearer sk-bench\r\nx-events: {events}\r\n"
            f"x-pause: {pause}\r\ncontent-length: {len(body)}\r\n"
            + (f"x-memory-session: {self.session}\r\n" if self.load.named else "")
        )
        return head.encode() + b"\r\n" + body


async def ask_for(load: Load) -> list[Timed]:
    """Run a load for so many seconds: tasks of ``requests`` calls each, one after the other, by each agent."""
    loop = asyncio.get_running_loop()
    until = loop.time() + load.seconds

    async def one(number: int) -> list[Timed]:
        times: list[Timed] = []
        _, client = await loop.create_connection(Client, "127.0.0.1", load.port)
        await asyncio.sleep(number * min(5.0, load.seconds / 10) / load.streams)
        for task in itertools.count():
            agent = Agent(f"{load.seed}-{number}-{task}", load)
            if task == 0:  # as many are at each point of their task from the beginning on
                agent.grow(number * load.requests // load.streams)
            while agent.calls < load.requests and loop.time() < until:
                agent.grow()
                request = agent.request(load.events, load.pause)
                times.append(dataclasses.replace(await client.ask(request), calls=agent.calls))
            if loop.time() >= until:
                client.transport.close()
                return times
        raise AssertionError

    return [t for times in await asyncio.gather(*(one(i) for i in range(load.streams))) for t in times]


async def ask_all(load: Load) -> list[Timed]:
    """Run a load."""
    loop = asyncio.get_running_loop()

    async def one(number: int) -> list[Timed]:
        agent = Agent(f"{load.seed}-{number}", load)
        _, client = await loop.create_connection(Client, "127.0.0.1", load.port)
        for _ in range(100):  # until memory has the past
            if (await client.ask(agent.request(1, 0))).memory != "failed":
                break
            await asyncio.sleep(0.2)
        else:
            raise RuntimeError("memory does not take the past of an agent")
        await asyncio.sleep(number * load.pause * load.events / load.streams)
        times = []
        for _ in range(load.requests):
            if load.calls:
                agent.grow()
            times.append(await client.ask(agent.request(load.events, load.pause)))
        client.transport.close()
        return times

    found = await asyncio.gather(*(one(i) for i in range(load.streams)))
    return [t for times in found for t in times]


def serve_load(jobs: Any) -> None:
    """The process of those who ask: takes loads, gives times."""
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            load = jobs.recv()
            jobs.send(asyncio.run(ask_for(load) if load.seconds else ask_all(load)))


class Ends:
    """An upstream, the service between, on a database of its own, and those who ask; a process each."""

    def __init__(self, upstream: int, jobs: Any, served: Service) -> None:
        self.upstream, self._jobs, self.served = upstream, jobs, served

    def run(self, load: Load) -> list[Timed]:
        """The times of a load."""
        self.start(load)
        return self.finish()

    def start(self, load: Load) -> None:
        """Begin a load, whose times ``finish`` waits for."""
        self._jobs.send(load)

    def finish(self) -> list[Timed]:
        """The times of the load that was begun."""
        found: list[Timed] = self._jobs.recv()
        return found

    def by_turns(self, load: Load, rounds: int) -> tuple[list[Timed], list[Timed]]:
        """The same load on both ways, one after the other, several times."""
        bare: list[Timed] = []
        ours: list[Timed] = []
        for i in range(rounds):
            turns = [(bare, self.upstream), (ours, self.served.port)]
            for times, port in turns if i % 2 else reversed(turns):
                times += self.run(dataclasses.replace(load, port=port, seed=f"{load.seed}-{i}"))
        wrong = [t for t in bare + ours if t.status != 200 or t.events != load.events + 1]
        if wrong:
            raise RuntimeError(f"{len(wrong)} answers are not whole: {wrong[0]}")
        return bare, ours


@contextlib.contextmanager
def both_ends(workers: int = 1) -> Iterator[Ends]:
    """Both ends, and the service of so many workers between them."""
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
        upstream = told.recv()
        url = f"http://127.0.0.1:{upstream}/v1"
        with (
            tempfile.TemporaryDirectory() as folder,
            Service(f"{folder}/bank.db", url, "--workers", str(workers)) as served,
        ):
            yield Ends(upstream, ours, served)
    finally:
        for process in started:
            process.terminate()
            process.join()


COLUMNS = (
    "requests", "first byte, bare (ms)", "through the proxy", "later by", "p95 bare", "p95 proxy", "whole, bare (ms)",
    "through the proxy", "later by", "memory",
)  # fmt: skip


def cells(bare: list[Timed], ours: list[Timed]) -> list[str]:
    """First byte and whole, bare and through the proxy."""

    def median(times: list[Timed], what: str) -> float:
        return 1000 * statistics.median(getattr(t, what) for t in times)

    def p95(times: list[Timed]) -> float:
        return 1000 * statistics.quantiles([t.first for t in times], n=20)[-1]

    (first, our_first), (total, our_total) = (
        [median(t, w) for t in (bare, ours)] for w in ("first", "total")
    )
    kinds = sorted({t.memory for t in ours})
    share = ", ".join(f"{sum(t.memory == k for t in ours) / len(ours):.0%} {k}" for k in kinds)
    return [
        f"{len(ours):,}", f"{first:.2f}", f"{our_first:.2f}", f"**{our_first - first:+.2f}**", f"{p95(bare):.2f}",
        f"{p95(ours):.2f}", f"{total:.1f}", f"{our_total:.1f}", f"{our_total - total:+.1f}", share,
    ]  # fmt: skip


def streams_part(ends: Ends, rounds: int) -> None:
    """Streams at once."""
    print_head("streams", "past calls", *COLUMNS)
    for n, pause in ((1, 0.005), (10, 0.02), (100, 0.1)):
        for past, shown in ((0, "none"), (10, "10 to 30" if n == 1 else "10 to 14")):
            load = Load(0, n, max(4, 20 // n), past, f"streams-{n}-{past}", pause=pause, calls=past > 0)
            print_row(n, shown, *cells(*ends.by_turns(load, rounds)))


def history_part(ends: Ends, rounds: int, points: list[int]) -> None:
    """One stream after more and more calls, of both APIs."""
    print_head("past calls", "route", *COLUMNS)
    for past in points:
        for route in PATHS:
            load = Load(0, 1, 20, past, f"history-{route}-{past}", pause=0.005, route=route)
            print_row(past, route, *cells(*ends.by_turns(load, rounds)))


def rss_part(ends: Ends, requests: int) -> None:
    """Resident memory while sessions come and go."""
    print_head("requests", "resident memory (MB)")
    print_row(0, f"{ends.served.rss():.0f}")
    each, streams, done = 5, 10, 0
    while done < requests:
        for i in range(max(1, requests // 10 // (each * streams))):
            seed, port = f"rss-{done}-{i}", ends.served.port
            load = Load(port, streams, each - 1, 4, seed, events=2, pause=0.0, named=False)
            if any(t.status != 200 for t in ends.run(load)):
                raise RuntimeError("an answer is not whole")
            done += each * streams
        print_row(done, f"{ends.served.rss():.0f}")


def load_part(ends: Ends, agents: int, seconds: float, calls: int, answer: float) -> None:
    """Many agents for a while, without a pause."""
    load = Load(ends.served.port, agents, calls, 0, "load", 10, answer / 10, named=False, seconds=seconds)
    curve, cpu = [ends.served.rss()], ends.served.cpu()
    ends.start(load)
    for _ in range(20):
        time.sleep(seconds / 20)
        curve.append(ends.served.rss())
    ours = ends.finish()
    cpu = ends.served.cpu() - cpu
    bare = ends.run(dataclasses.replace(load, port=ends.upstream, seconds=seconds / 6))
    print_head("", "requests", "a second", "with memory", *(f"p{p} first byte (ms)" for p in (50, 90, 99)))
    # before its first call has a result, a conversation has nothing that could be remembered
    for name, times in (("upstream alone", bare), ("through the proxy", ours)):
        first = statistics.quantiles([1000 * t.first for t in times], n=100)
        share = sum(t.memory in ("rebuilt", "unchanged") for t in times) / len(times)
        rate = len(times) / (seconds if times is ours else seconds / 6)
        print_row(
            name, len(times), f"{rate:.0f}", f"{share:.1%}", *(f"{first[p - 1]:.0f}" for p in (50, 90, 99))
        )
    why = collections.Counter((t.memory, t.reason, "new" if t.calls == 1 else "begun") for t in ours)
    print_head("memory", "reason", "session", "requests")
    for (memory, reason, kind), count in why.most_common():
        print_row(memory, reason, kind, count)
    print(f"requests a core-second: {len(ours) / cpu:.1f} ({1000 * cpu / len(ours):.1f} ms of CPU each)")
    if counts := ends.served.answered():
        print("shares of the workers:", ", ".join(f"{count / sum(counts):.1%}" for count in counts))
    print("resident memory (MB):", ", ".join(f"{mb:.0f}" for mb in curve))
    wrong = sum(t.status != 200 or t.events != load.events + 1 for t in ours)
    print("answers that are not whole:", wrong)


def main() -> None:
    """Run and print the tables."""
    parser = command_line(__doc__)
    parser.add_argument("--part", type=words, default="streams,history,rss,load")
    parser.add_argument("--history", type=words, default="10,30,100,300,1000", help="calls, in that part")
    parser.add_argument("--rounds", type=int, default=5, help="of bare and proxy, in turns")
    parser.add_argument("--requests", type=int, default=10_000, help="of the part rss")
    parser.add_argument("--agents", type=int, default=200, help="of the part load")
    parser.add_argument("--seconds", type=float, default=180.0, help="of the part load")
    parser.add_argument("--workers", type=int, default=1, help="of the service, in the part load")
    parser.add_argument("--calls", type=int, default=30, help="of a task, in the part load")
    parser.add_argument(
        "--answer", type=float, default=1.0, help="seconds that an answer takes, in the part load"
    )
    args = parser.parse_args()
    parts = {
        "streams": lambda ends: streams_part(ends, args.rounds),
        "history": lambda ends: history_part(ends, args.rounds, list(map(int, args.history))),
        "rss": lambda ends: rss_part(ends, args.requests),
        "load": lambda ends: load_part(ends, args.agents, args.seconds, args.calls, args.answer),
    }
    for part in (part for part in parts if part in args.part):
        with both_ends(args.workers if part == "load" else 1) as ends:
            parts[part](ends)


if __name__ == "__main__":
    main()
