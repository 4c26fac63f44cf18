"""Kills services under load, and checks that nothing is lost, stored twice or left undone.

    python benchmarks/service_faults.py --kills 60 --database sqlite,postgres --way context,proxy [--seed 0]

Agents in threads send their growing conversations, each request to the next of several services that share
one database, by ``POST /v1/sessions/{name}/context`` (``--way context``) or through the proxy (``--way
proxy``). What fails they send again. Meanwhile one service after the other dies by SIGKILL, at random moments
or at one of the fault points of ``memory_bank.faults``, and is started again at its port. A step is
acknowledged by its 200 (through the proxy: where the header says that memory did its part). In the end

1. every acknowledged record is compared with what the tool said, to the letter; none may be there twice or
   out of order, no answer may have held a broken pair of call and result,
2. a worker whose clock is ahead of the dead ones' leases ends all jobs: none may be left, every record must
   have its insight,
3. ``memory-bank bank verify`` must find nothing.

Prints a Markdown table; exit code 1 when anything is wrong.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import workload
from harness import command_line, print_head, print_row, verdict
from memory_bank import faults
from memory_bank.bank.database import Database
from memory_bank.models.lexical import LexicalEmbedder
from memory_bank.testing import ScriptedServer, say
from memory_bank.transcript.pairing import pairing_errors
from workload import Found

STEPS = 10
PATIENCE = 300.0
PAUSE = 0.05  # seconds between two steps of an agent
RANDOM = "(at random)"
STRATEGIES = {
    "observed": {
        "type": "memory_bank",
        "observer_model": "scripted",
        "observer_mode": "background",
        "embedding_model": "lexical",
        "token_encoding": "approximate",
        "retrieval_query": "adaptive",
    },
    "evidence": {
        "type": "memory_bank",
        "selection": "evidence",
        "history_budget": 500,
        "refresh_after": 0,
        "observer_model": "extractive",
        "embedding_model": "lexical",
        "token_encoding": "approximate",
    },
}


@dataclasses.dataclass
class Run:
    """What is done to which bank, and what came of it."""

    kind: str
    way: str
    strategy: str
    kills: int = 0
    requests: int = 0
    again: int = 0  # requests that failed and were sent again
    found: Found = dataclasses.field(default_factory=Found)
    broken: int = 0  # pairs in answers
    trouble: list[str] = dataclasses.field(default_factory=list)


class Service:
    """One service at one port, started again after each death."""

    def __init__(self, where: str, config: Path, upstream: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = int(free.getsockname()[1])
        self._command = [
            *(sys.executable, "-m", "memory_bank", "serve", "--port", str(self.port), "--db", where),
            *("--config", str(config), "--upstream", upstream),
        ]
        self._process: subprocess.Popen[str] | None = None

    def start(self, fault: str = "") -> None:
        """Start it and wait until it answers; with a fault it may die before."""
        env = {**os.environ, "OPENAI_API_KEY": "k", **({"MEMORY_BANK_FAULT": fault} if fault else {})}
        self._process = subprocess.Popen(
            self._command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def died(self, seconds: float) -> bool:
        """Whether it dies by itself within so many seconds."""
        assert self._process is not None
        try:
            return self._process.wait(seconds) == -signal.SIGKILL
        except subprocess.TimeoutExpired:
            return False

    def kill(self) -> None:
        """SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """SIGTERM; its exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(PATIENCE)


class Load:
    """Agents that go on until they are told to stop."""

    def __init__(self, run: Run, ports: list[int], seed: int) -> None:
        self.run = run
        self.acknowledged: dict[str, int] = {}
        self._ports = itertools.cycle(ports)
        self._seed = seed
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def start(self, count: int) -> None:
        """Let so many agents work."""
        self._threads = [threading.Thread(target=self._agent, args=(k,), daemon=True) for k in range(count)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let each end its step."""
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE)
            if thread.is_alive():
                self.run.trouble.append("an agent does not end")

    def _agent(self, k: int) -> None:
        try:
            for n in itertools.count():
                session = f"s{self._seed}/{k}-{n}"
                for i in range(1, STEPS + 1):
                    self._step(session, workload.conversation(session, i, parallel=True))
                    self.acknowledged[session] = i
                    if self._stop.wait(PAUSE):
                        return
        except Exception as e:
            self.run.trouble.append(f"an agent ended by {type(e).__name__}: {e}")

    def _step(self, session: str, messages: list[dict[str, Any]]) -> None:
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            with self._lock:
                port = next(self._ports)
                self.run.requests += 1
            with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
                if self._asked(port, session, messages):
                    return
            with self._lock:
                self.run.again += 1
            time.sleep(0.1)
        raise TimeoutError("no service answers")

    def _asked(self, port: int, session: str, messages: list[dict[str, Any]]) -> bool:
        """Send a step; whether it is acknowledged."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        try:
            if self.run.way == "context":
                path, body = f"/v1/sessions/{quote(session, safe='')}/context", {"messages": messages}
            else:
                path, body = "/v1/chat/completions", {"model": "scripted", "messages": messages}
            headers = {"content-type": "application/json", "x-memory-session": session}
            connection.request("POST", path, json.dumps(body), headers)
            answer = connection.getresponse()
            told = answer.read()
            if self.run.way == "proxy":
                return answer.status == 200 and answer.headers["x-memory-status"] in ("rebuilt", "unchanged")
            if answer.status == 200:
                self.run.broken += len(pairing_errors(json.loads(told)["messages"]))
            return answer.status == 200
        finally:
            connection.close()


def killed(run: Run, services: list[Service], kills: int, rng: random.Random) -> None:
    """Kill one service after the other, and start it again."""
    points = [RANDOM, *faults.POINTS]
    if run.strategy != "observed":
        points = [p for p in points if not p.startswith("jobs.")]
    for n in range(kills):
        service = services[n % len(services)]
        point = points[n % len(points)]
        if point == RANDOM:
            time.sleep(rng.random() * 0.5)
            service.kill()
        else:
            service.kill()  # the one that has none
            service.start(f"{point}:{rng.randrange(1, 30)}")
            if not service.died(5.0):  # it was not passed so often
                service.kill()
        run.kills += 1
        service.start()


def checked(run: Run, where: str, acknowledged: dict[str, int]) -> None:
    """What is wrong in the end."""
    database = Database(where)
    try:
        for session, steps in sorted(acknowledged.items()):
            run.found.add(workload.check_session(database, session, steps, parallel=True))
        workload.work_off(database, LexicalEmbedder())
        run.found.add(workload.check_bank(database))
    finally:
        database.close()


def tried(
    run: Run, where: str, folder: Path, *, kills: int, services: int = 2, load: int = 4, seed: int = 0
) -> Run:
    """Kill services of one bank under load, and look at what is left."""
    config = folder / "service.toml"
    settings = STRATEGIES[run.strategy]
    lines = ['default_strategy = "it"', "[service]", "shutdown_timeout = 10.0", "[memory_strategies.it]"]
    config.write_text("\n".join([*lines, *(f"{k} = {json.dumps(v)}" for k, v in settings.items())]))
    with ScriptedServer(lambda _body: say(workload.SUMMARY)) as upstream:
        those = [Service(where, config, upstream.base_url) for _ in range(services)]
        agents_at_work = Load(run, [s.port for s in those], seed)
        try:
            for service in those:
                service.start()
            agents_at_work.start(load)
            killed(run, those, kills, random.Random(f"{seed}/{run.kind}/{run.way}/{run.strategy}"))
            agents_at_work.stop()
            codes = [service.stop() for service in those]
            if any(codes):
                run.trouble.append(f"the services ended with {codes}")
        finally:
            for service in those:
                with contextlib.suppress(Exception):
                    service.kill()
        run.broken += len(upstream.refused)
    if not agents_at_work.acknowledged:
        run.trouble.append("nothing was acknowledged")
    checked(run, where, agents_at_work.acknowledged)
    return run


def main() -> None:
    """Run and print the table."""
    parser = command_line(__doc__)
    parser.add_argument("--kills", type=int, default=60, help="over all databases, ways and strategies")
    parser.add_argument("--database", default="sqlite,postgres")
    parser.add_argument("--way", default="context")
    parser.add_argument("--strategy", default=",".join(STRATEGIES))
    parser.add_argument("--services", type=int, default=2, help="that share the bank")
    parser.add_argument("--agents", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    kinds = args.database.split(",")
    plans = list(itertools.product(kinds, args.way.split(","), args.strategy.split(",")))
    runs = []
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, workload.banks(kinds, fsync=False) as (new, _):
        for kind, way, strategy in plans:
            run = Run(kind, way, strategy)
            each = max(1, args.kills // len(plans))
            counts = {"kills": each, "services": args.services, "load": args.agents, "seed": args.seed}
            runs.append(tried(run, new(kind), Path(folder), **counts))
    print_head(
        "database", "way", "strategy", "kills", "requests", "again", *Found.TITLES, "broken pairs", "verify"
    )
    for r in runs:
        found = (*r.found.cells(), r.broken, r.found.unsound)
        print_row(r.kind, r.way, r.strategy, r.kills, r.requests, r.again, *found)
    print(f"\n{sum(r.kills for r in runs)} kills, {time.monotonic() - began:.0f} s")
    sys.exit(verdict(r for r in runs if r.trouble or r.broken or r.found.wrong))


if __name__ == "__main__":
    main()
