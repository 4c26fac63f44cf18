"""Runs many agents for long: memory and handles stay flat, and nothing is lost when workers are killed.

    python benchmarks/soak.py    (10 minutes on each database)
    python benchmarks/soak.py --seconds 20 --processes 2 --sessions 4 --database sqlite

Processes of agents, each with sessions in threads on one database: a session applies the strategy to a
growing conversation, with an Observer in the background whose model takes a few milliseconds; after 40
turns the next session begins. At the same time two workers (a ``Worker`` without a session) take jobs of all
sessions; one of them is killed by SIGKILL, in turns, every two seconds, and replaced. At the end a worker
whose clock is ahead ends what the dead held, and everything acknowledged is compared to the letter.
Resident memory and open handles are those of the agents' processes, after a fifth of the time and at the
end (Linux). Prints a Markdown table; exit code 1 when anything is lost, twice or stuck, or has grown:
memory by more than a quarter and 32 MB, handles by more than 30.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import workload
from harness import command_line, print_head, print_row
from memory_bank.bank.database import Database
from memory_bank.bank.worker import Worker
from memory_bank.errors import StorageError
from memory_bank.models.lexical import LexicalEmbedder
from memory_bank.models.observer import Observer
from memory_bank.processor import apply_memory_bank_strategy
from workload import Found

TURNS = 40
WORKERS = 2
KILL_EVERY = 2.0


@dataclass
class Sample:
    """What the agents' processes hold."""

    megabytes: float = 0.0
    handles: int = 0


@dataclass
class Run:
    """What a run came to."""

    database: str
    seconds: float = 0.0
    steps: int = 0
    errors: int = 0
    kills: int = 0
    begun: Sample = field(default_factory=Sample)
    ended: Sample = field(default_factory=Sample)
    found: Found = field(default_factory=Found)

    @property
    def grown(self) -> bool:
        """Whether memory or handles are not flat."""
        more = self.ended.megabytes - self.begun.megabytes
        return more > max(32.0, self.begun.megabytes / 4) or self.ended.handles > self.begun.handles + 30


def agent(where: str, name: str, sessions: int, think: float, tell: int) -> None:
    """A process of agents: tells ``SESSION STEPS`` after every step, ``!`` for an error and a new attempt."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    database, embedder = Database(where), LexicalEmbedder()
    settings, model = workload.settings_for("background"), workload.ForgetfulModel(0.005)

    def converse(k: int) -> None:
        for n in itertools.count():
            session = f"{name}.{k}.{n}"
            state = workload.open_state(database, session, embedder)
            messages = workload.beginning(session)
            for i in range(1, TURNS + 1):
                messages += workload.turn(session, i, workload.calls_of(session, i, True))
                while not stop.is_set():
                    try:
                        apply_memory_bank_strategy(messages, model, settings, state)
                        os.write(tell, f"{session} {i}\n".encode())
                        break
                    except StorageError:
                        os.write(tell, b"!\n")
                if stop.wait(random.random() * think):
                    break
            state._insights.stop()  # not closed: the sessions share the database
            if stop.is_set():
                return

    threads = [threading.Thread(target=converse, args=(k,), daemon=True) for k in range(sessions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(0.2)
    database.close()


def worker(where: str, _tell: int) -> None:
    """A process that works at the jobs of all sessions until it is killed."""
    observer = Observer.create(workload.ForgetfulModel(0.005), workload.settings_for("background"))
    Worker(Database(where), observer, LexicalEmbedder()).run(threading.Event())


class Listener:
    """Notes what the agents acknowledge."""

    def __init__(self) -> None:
        self.acknowledged: dict[str, int] = {}
        self.steps = 0
        self.errors = 0
        self._threads: list[threading.Thread] = []

    def listen(self, reader: int) -> None:
        """Follow one pipe to its end."""
        thread = threading.Thread(target=self._follow, args=(reader,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _follow(self, reader: int) -> None:
        with open(reader) as pipe:
            for line in pipe:
                if line == "!\n":
                    self.errors += 1
                    continue
                session, step = line.split()
                self.acknowledged[session] = int(step)
                self.steps += 1

    def join(self) -> None:
        """Until all pipes have ended."""
        for thread in self._threads:
            thread.join()


def sample(pids: list[int]) -> Sample:
    """Memory and handles of some processes."""
    total = Sample()
    for pid in pids:
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{pid}/status").read_text()
            total.megabytes += int(status.split("VmRSS:")[1].split()[0]) / 1024
            total.handles += len(os.listdir(f"/proc/{pid}/fd"))
    return total


def soak(kind: str, where: str, args: argparse.Namespace) -> Run:
    """One database."""
    run, listener = Run(kind), Listener()
    # All children before the first thread, but for the workers that replace the killed: those open nothing
    # that the parent's threads (which only read pipes) hold.
    crew = [
        workload.forked(lambda tell, n=n: agent(where, f"{kind}{n}", args.sessions, args.think, tell))  # type: ignore[misc]
        for n in range(args.processes)
    ]
    workers = [workload.forked(lambda tell: worker(where, tell)) for _ in range(WORKERS)]
    pids = [pid for pid, _ in crew]
    for _, reader in crew:
        listener.listen(reader)
    began = time.monotonic()
    next_kill, sampled = KILL_EVERY, False
    while (now := time.monotonic() - began) < args.seconds:
        time.sleep(0.1)
        if not sampled and now >= args.seconds / 5:
            run.begun, sampled = sample(pids), True
        if now >= next_kill:
            pid, reader = workers.pop(0)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(reader)
            run.kills += 1
            workers.append(workload.forked(lambda tell: worker(where, tell)))
            next_kill = now + KILL_EVERY
    run.ended = sample(pids)
    run.seconds, run.steps = time.monotonic() - began, listener.steps
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
    statuses = [os.waitpid(pid, 0)[1] for pid in pids]
    for pid, reader in workers:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reader)
    listener.join()
    run.errors = listener.errors + sum(status != 0 for status in statuses)
    with contextlib.closing(Database(where)) as database:
        workload.work_off(database, LexicalEmbedder())
        for session, steps in listener.acknowledged.items():
            run.found.add(workload.check_session(database, session, steps, True))
        run.found.add(workload.check_bank(database))
    return run


def main() -> None:
    """Run and print the table."""
    parser = command_line(__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="on each database")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--sessions", type=int, default=16, help="in each process")
    parser.add_argument(
        "--think", type=float, default=0.2, help="seconds an agent takes at most between steps"
    )
    parser.add_argument("--database", default="sqlite,postgres")
    args = parser.parse_args()
    workload.warm_up()
    bad = False
    titles = (
        "database",
        "agents",
        "seconds",
        "steps",
        "steps/s",
        "workers killed",
        "errors",
        "MB",
        "handles",
    )
    print_head(*titles, *Found.TITLES)
    kinds = args.database.split(",")
    with workload.banks(kinds) as (new, _):
        for kind in kinds:
            where = new(kind)
            Database(where).close()
            run = soak(kind, where, args)
            print_row(
                kind, f"{args.processes} × {args.sessions}", round(run.seconds), run.steps,
                round(run.steps / run.seconds), run.kills, run.errors,
                f"{run.begun.megabytes:,.0f} → {run.ended.megabytes:,.0f}",
                f"{run.begun.handles} → {run.ended.handles}", *run.found.cells(),
            )  # fmt: skip
            bad = bad or run.found.wrong > 0 or run.grown
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
