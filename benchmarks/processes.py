"""Measures what a bank's sessions cost where several services take their requests by turns, without stickiness.

    python benchmarks/processes.py [--services 1,3] [--sessions 2] [--turns 45] [--calls 1] [--kind sqlite]
    python benchmarks/processes.py --kind postgres --sessions 50 --turns 24 --calls 3 --agents 50 --faults
    python benchmarks/processes.py --kind postgres --services 2 --sessions 3 --turns 120 --agents 3 --beside eaad532a

Agents ask `memory-bank serve` round robin, and a scripted upstream logs what arrives. A request costs what the list
price of ``--model`` says of its input, in tokens of ``--encoding``: the beginning that it shares with one of the
session's eight requests before is read from the provider's cache, all else is written to it; beside it, what the
same histories cost without memory. Answers report both, ``--untold``: nothing of the cache. A context that does not
begin as the one before is ``broken``: with a fold it has to be. One that is not, byte for byte, what the first of
``--services`` sent ``differs``. Such contexts are ``later`` once a request of their session was answered without
memory, was asked again, or had the newest answer of a service that was killed, which may not have stored what the
answer cost: what is decided there (a fold) may come at another turn. With ``--nameless`` agents name no session: the
services know a conversation again, each further session that one has is ``forked``, and contexts are not compared:
the seal of memory's text, which has tokens, differs with the name that a session is given. In the end the bank's
records are compared with what the tools said: those ``lost``, those stored ``twice``, and those ``refused``, which
are not in the bank and every answer to a request that had them says why. The reasons are printed in the end.

With ``--forks TURN`` each session is forked at that turn: beside the conversation another one under the same name
goes on from three turns before, in calls of its own, in a session whose name the service gives: its contexts are not
compared either. Contexts that show what only the other one has are ``foreign``.

Exit code 1 where a context differs or is foreign, a session forks by itself, a record is lost or twice, and without
faults also where several services cost over 2% more than the first, break a prefix more often though no request went
without memory, or refuse a record. In an upgrade contexts may differ; a record that is refused in its end, or an
answer without memory in its last stage, is wrong.
"""

from __future__ import annotations

import io
import itertools
import json
import random
import re
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa

from harness import ROOT, Service, command_line, print_head, print_row, verdict, verified
from memory_bank.bank.database import Database
from memory_bank.bank.schema import records
from memory_bank.pricing import Ratios, common_length, known_price
from memory_bank.testing import ScriptedServer, say
from memory_bank.transcript.tokens import open_counter
from workload import Message, Postgres, banks, beginning, interaction, request_of

PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
CACHED = 8  # requests of a session that its provider's cache holds
ATTEMPTS = 20  # of a request, at the services by turns
BACK = 3  # turns that a fork undoes
FORK = "+"  # ends the name of a conversation that is a fork
Sent = dict[str, list[list[str]]]  # by session, the messages of its contexts, as JSON text


class Figures(NamedTuple):
    """What a run cost, and what was wrong with it."""

    paid: float
    broken: int
    differ: int
    later: int
    forked: int
    lost: int
    twice: int
    refused: int
    foreign: int


def turns_of(session: str, turns: int, calls: int, fork: int = 0) -> list[list[Message]]:
    """The messages of each request of one agent, with so many calls a turn; of a fork those from its turn on."""
    trunk = session.removesuffix(FORK)
    is_fork = trunk != session
    messages = turns_of(trunk, fork - BACK, calls)[-1] if is_fork else beginning(session)
    rng, numbers, asked = random.Random(session), itertools.count(is_fork * turns * calls), []
    for _ in range(turns - fork * is_fork):
        made = [interaction(next(numbers), rng) for _ in range(calls)]
        said = {**made[0][0], "tool_calls": [c for turn, _ in made for c in turn["tool_calls"]]}
        messages = [*messages, said, *(result for _, result in made)]
        asked.append(messages)
    return asked


def ask(port: int, api: str, session: str | None, body: Message) -> Mapping[str, str]:
    """The headers of the answer of a service to a request of a session, which it is told or not."""
    data = json.dumps(body).encode()
    headers = {"content-type": "application/json", "authorization": "Bearer key"}
    headers |= {"x-memory-session": session} if session else {}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{PATHS[api]}", data, headers)
    with urllib.request.urlopen(request, timeout=120) as answer:
        answer.read()
        return answer.headers


class Run:
    """Agents that ask services on a bank by turns; ``sent``: what arrived upstream.

    ``reasons``: why answers were made without memory, ``stored``: the latest turn of a session whose answer was not,
    ``without``: the turns whose answers were, ``again``: the first turn that was asked again, or of a
    service killed meanwhile, ``asked``: the service of each session's newest turn, ``names``: whose conversation a
    session of the bank is.
    """

    def __init__(self, number: int, where: str, options: Any) -> None:
        self.where, self.options, self.sent = where, options, Sent()
        self.reasons, self.stored = Counter[str](), dict[str, int]()
        self.without, self.services = dict[str, list[int]](), list[Service]()
        self.again, self.asked = dict[str, int](), dict[str, tuple[int, Service]]()
        self.sessions = sessions_of(options)
        self.names = {} if options.nameless else {s: s for s in self.sessions if not s.endswith(FORK)}
        self._number, self._turns, self._lock = number, itertools.count(), threading.Lock()

    def _arrived(self, body: Message) -> Any:
        messages = [json.dumps(m) for m in body.get("input") or body["messages"]]
        with self._lock:
            before = self.sent.setdefault(body["user"], [])
            before.append(messages)
            whole, known = shared_tokens(before[-CACHED - 1 : -1], messages, self.options.encoding)
        cached = None if self.options.untold else (known, whole - known)
        return replace(say("ok"), usage=(whole, 2), cached=cached)

    def _ask(self, session: str, turn: int) -> None:
        body = {
            "model": self.options.model,
            "user": session,  # by which the upstream tells conversations apart
            **request_of(self.options.api, self.sessions[session][turn - self.options.turns]),
        }
        for attempt in range(ATTEMPTS):
            services = self.services
            service = services[next(self._turns) % len(services)]
            with self._lock:
                self.asked[session] = turn, service
            try:
                named = None if self.options.nameless else session.removesuffix(FORK)
                told = ask(service.port, self.options.api, named, body)
                break
            except OSError:  # also an answer with an error
                if attempt == ATTEMPTS - 1:
                    raise
                time.sleep(0.2)
        reason = told["x-memory-reason"]
        name = told["x-memory-session"] or session
        with self._lock:
            if attempt:
                self.again.setdefault(session, turn)
            if self.names.setdefault(name, session) != session:
                reason = "the answer is of another session"
            if reason is None:
                self.stored[session] = turn
            else:
                self.reasons[reason] += 1
                self.without.setdefault(session, []).append(turn)

    def play(self, events: Mapping[int, Callable[[Run], None]], source: Path | None = None) -> None:
        """Ask all turns of all sessions; ``events``: by turn what happens within it; ``source``: of an upgrade."""
        settings = {"inject_tools": "false", "cache_markers": "off", "memory_timeout": 60}
        with ExitStack() as stack:
            upstream = stack.enter_context(ScriptedServer(self._arrived))

            def start(source: Path | None = None) -> list[Service]:
                new = (
                    Service(self.where, upstream.base_url, source=source, **settings)
                    for _ in range(self._number)
                )
                return [stack.enter_context(service) for service in new]

            def join(run: Run) -> None:
                run.services = [*older, *start()]

            def leave(run: Run) -> None:
                run.services = run.services[self._number :]
                for service in older:
                    service.stop()

            older = self.services = start(source)
            if source is not None:
                first, last = stages(self.options.turns)["both"]
                events = {first: join, last - 1: leave}
            agents = stack.enter_context(ThreadPoolExecutor(self.options.agents))
            for turn in range(self.options.turns):
                begun = [s for s, of in self.sessions.items() if turn >= self.options.turns - len(of)]
                asked = [agents.submit(self._ask, session, turn) for session in begun]
                if turn in events:
                    time.sleep(0.3)  # within some steps
                    events[turn](self)
                for one in asked:
                    one.result()
                upstream.requests.clear()

    def figures(self, first: Sent) -> Figures:
        """What the run cost, beside the contexts of the first run."""
        costs, turns = self.costs(), self.options.turns
        others = list[bool]()
        for session, requests in self.sent.items():
            since = min([*self.without.get(session, []), self.again.get(session, turns)])
            is_given = self.options.nameless or session.endswith(FORK)  # its name, and so its seal
            others += [
                turn >= since
                for turn in range(turns - len(self.sessions[session]), turns)
                if not is_given and first[session][turn - turns] not in requests
            ]
        bank = Database(self.where)
        rows = bank.rows(sa.select(records.c.session_id, records.c.call_id, records.c.output))
        bank.close()
        stored = [(self.names.get(r["session_id"]), r["call_id"], r["output"]) for r in rows]
        forked = len({r["session_id"] for r in rows}) - len({session for session, _, _ in stored})
        there = set(stored)
        said = dict[tuple[str, str, str], int]()  # by record, the turn that first has it
        for session, requests in self.sessions.items():
            for turn, messages in enumerate(requests, turns - len(requests)):
                for m in messages:
                    if m["role"] == "tool":
                        said.setdefault((session, m["tool_call_id"], m["content"]), turn)
        missing = [(call[0], turn) for call, turn in said.items() if call not in there]
        lost = sum(turn <= self.stored.get(session, -1) for session, turn in missing)
        twice = len(stored) - len({(session, call_id) for session, call_id, _ in stored})
        later = sum(others)
        figures = len(others) - later, later, forked, lost, twice, len(missing) - lost
        return Figures(*costs, *figures, self.foreign())

    def foreign(self) -> int:
        """How many contexts show an order that another conversation of their session alone has."""
        orders = {s: set(re.findall(r"ORD-\d+", json.dumps(of[-1]))) for s, of in self.sessions.items()}
        foreign = 0
        for session, requests in self.sent.items():
            other = session.removesuffix(FORK) if session.endswith(FORK) else session + FORK
            alone = orders.get(other, set()) - orders[session]
            foreign += sum(not alone.isdisjoint(re.findall(r"ORD-\d+", "".join(m))) for m in requests)
        return foreign

    def costs(self, first: int = 0, last: int | None = None) -> tuple[float, int]:
        """What the contexts from one turn to before another cost, and how many are broken."""
        each = [one for s in self.sent.values() for one in dollars(s, self.options)[first:last]]
        return sum(paid for paid, _ in each), sum(broken for _, broken in each)


def sessions_of(options: Any) -> dict[str, list[list[Message]]]:
    """The messages of each request, by conversation."""
    names = [f"s{n}{end}" for n in range(options.sessions) for end in ("", FORK)[: 1 + bool(options.forks)]]
    return {name: turns_of(name, options.turns, options.calls, options.forks) for name in names}


def dollars(requests: Sequence[Sequence[str]], options: Any) -> list[tuple[float, bool]]:
    """What each request of a session cost, and whether it did not begin as the one before."""
    price, _ = known_price({}, options.model) or sys.exit(f"no price is known of {options.model}")
    ratios = Ratios(
        (price.cached or price.prompt) / price.prompt, (price.cache_write or price.prompt) / price.prompt
    )
    found = []
    for at, messages in enumerate(requests):
        kept = requests[max(0, at - CACHED) : at]
        broken = bool(kept) and common_length(kept[-1], messages) < len(kept[-1])
        dollars = ratios.price(*shared_tokens(kept, messages, options.encoding)) * price.prompt / 1e6
        found.append((dollars, broken))
    return found


def shared_tokens(kept: Sequence[Sequence[str]], messages: Sequence[str], encoding: str) -> tuple[int, int]:
    """The tokens of a request, and of what it begins with as one that the provider's cache holds."""
    tokens = [message_tokens(m, encoding) for m in messages]
    return sum(tokens), sum(tokens[: max((common_length(before, messages) for before in kept), default=0)])


@cache
def message_tokens(message: str, encoding: str) -> int:
    """The tokens of a message, which is JSON."""
    return open_counter(encoding).count_message(json.loads(message))


def stages(turns: int) -> dict[str, tuple[int, int]]:
    """The first turn of each stage of an upgrade, and the one after its last."""
    return {
        "older": (0, turns // 4),
        "both": (turns // 4, turns * 3 // 4),
        "present": (turns * 3 // 4, turns),
    }


def sources_of(commit: str, folder: Path) -> Path:
    """The package memory_bank as a commit has it, put into a folder."""
    archive = subprocess.run(
        ["git", "archive", commit, "src", "prompts"], cwd=ROOT, capture_output=True, check=False
    )
    if archive.returncode:
        sys.exit(f"this repository has no commit {commit}: {archive.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as packed:
        packed.extractall(folder, filter="data")
    return folder / "src"


def upgrade(run: Run, whole: Sequence[float]) -> tuple[list[str], list[str]]:
    """What there is to say of an upgrade, and what is wrong; ``whole``: by turn, what it costs without memory."""
    said, wrong, bare = list[str](), list[str](), 0
    for stage, (first, last) in stages(run.options.turns).items():
        (paid, broken), full = run.costs(first, last), sum(whole[first:last])
        bare = sum(first <= turn < last for turns in run.without.values() for turn in turns)
        said.append(
            f"{stage}: {(last - first) * len(run.sessions)} contexts, {bare} without memory, {broken} broken, "
            f"{100 * paid / full:.1f}% of the dollars of no memory"
        )
    if bare:
        wrong.append(f"{bare} answers without memory once the older services had ended")
    if defects := verified(run.where):
        wrong.append(f"bank verify: {defects}")
    return said, wrong


def faults_of(turns: int, server: Postgres | None) -> dict[int, Callable[[Run], None]]:
    """What happens within which turn."""

    def kill(run: Run) -> None:
        *run.services, dead = run.services
        dead.kill()
        for session, (turn, service) in run.asked.items():
            if service is dead:
                run.again.setdefault(session, turn)

    faults: dict[int, Callable[[Run], None]] = {turns // 3: kill}
    if server is not None:
        faults |= {turns // 2: lambda _: server.restart(), turns * 2 // 3: lambda _: server.cut()}
    return faults


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_line(__doc__)
    parser.add_argument("--services", type=lambda t: [*map(int, t.split(","))], default=[1, 3])
    parser.add_argument("--sessions", type=int, default=2)
    parser.add_argument("--turns", type=int, default=45)
    parser.add_argument("--calls", type=int, default=1, help="of a turn")
    parser.add_argument("--agents", type=int, default=1, help="that ask at the same time")
    parser.add_argument("--kind", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--api", choices=PATHS, default="chat")
    parser.add_argument(
        "--forks", type=int, metavar="TURN", default=0, help="at which each session is forked"
    )
    parser.add_argument("--untold", action="store_true", help="answers tell nothing of the cache")
    parser.add_argument("--nameless", action="store_true", help="agents name no session")
    parser.add_argument("--faults", action="store_true", help="one more run, in which processes die")
    parser.add_argument("--beside", metavar="COMMIT", help="one more run: an upgrade from this commit")
    parser.add_argument("--model", default="claude-sonnet-4-5")
    parser.add_argument("--encoding", default="o200k_base")
    options = parser.parse_args(arguments)
    if options.forks and (options.beside or not BACK < options.forks < options.turns):
        parser.error(f"--forks takes a turn after the first {BACK}, and no --beside.")
    whole, contexts = [0.0] * options.turns, 0
    for requests in sessions_of(options).values():
        bodies = (request_of(options.api, messages) for messages in requests)
        histories = [[json.dumps(m) for m in b.get("input") or b["messages"]] for b in bodies]
        for turn, (paid, _) in enumerate(dollars(histories, options), options.turns - len(requests)):
            whole[turn] += paid
        contexts += len(requests)
    print_head("services", "dollars", "of no memory", *Figures._fields[1:], "contexts")
    print_row("no memory", f"{sum(whole):.2f}", "100.0%", *[0] * 8, contexts)
    first, runs, said, wrong = Sent(), list[Figures](), list[str](), []
    plans = [(number, "") for number in options.services]
    plans += [(options.services[-1], "faults")] * options.faults
    plans += [(options.services[-1], "upgrade")] * bool(options.beside)
    with banks([options.kind], fsync=False) as (new, server), tempfile.TemporaryDirectory() as folder:
        for number, what in plans:
            is_upgrade = what == "upgrade"
            where = server.new("template0") if server and is_upgrade else new(options.kind)
            run = Run(number, where, options)
            run.play(
                faults_of(options.turns, server) if what == "faults" else {},
                sources_of(options.beside, Path(folder)) if is_upgrade else None,
            )
            first = first or run.sent
            runs.append(of := run.figures(first))
            name = f"{number}, {what}".rstrip(", ")
            print_row(name, f"{of.paid:.2f}", f"{100 * of.paid / sum(whole):.1f}%", *of[1:], contexts)
            said += [f"{name}: {number} answers without memory: {why}" for why, number in run.reasons.items()]
            if of.forked or of.lost or of.twice or of.foreign or (of.refused and what != "faults"):
                wrong.append(
                    f"{name}: {of.forked} forked, {of.lost} records lost, {of.twice} twice, {of.refused} refused, "
                    f"{of.foreign} contexts foreign"
                )
            if is_upgrade:
                for kept, found in zip((said, wrong), upgrade(run, whole), strict=True):
                    kept += [f"{name}: {one}" for one in found]
                continue
            breaks = of.broken > runs[0].broken and not run.reasons
            if of.differ or (not what and (of.paid > 1.02 * runs[0].paid or breaks)):
                cost = of.paid / runs[0].paid
                wrong.append(f"{name} cost {cost:.3f} times as much, {of.broken} broken, {of.differ} differ")
    print("\n".join(said), end="\n" * bool(said))
    return verdict(wrong)


if __name__ == "__main__":
    sys.exit(main())
