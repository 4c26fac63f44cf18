"""Measures what a bank's sessions cost where several services take their requests by turns, without stickiness.

    python benchmarks/processes.py [--services 1,3] [--sessions 2] [--turns 45] [--calls 1] [--kind sqlite]
    python benchmarks/processes.py --kind postgres --sessions 50 --turns 24 --calls 3 --agents 50 --faults

Agents ask `memory-bank serve` round robin, and a scripted upstream logs what arrives. A request costs what the list
price of ``--model`` says of its input, in tokens of ``--encoding``: the beginning that it shares with the session's
request before is read from the provider's cache, all else is written to it; beside it, what the same histories cost
without memory. A context that does not begin as the one before is ``broken``: with a fold it has to be. One that is
not, byte for byte, what the first of ``--services`` sent ``differs``; once a request of its session was answered
without memory, what is decided there (a fold) may come a turn later, and such contexts are ``later``. In the end the
bank's records are compared with what the tools said: those ``lost``, those stored ``twice``, and those ``refused``,
which are not in the bank and every answer to a request that had them says why. The reasons are printed in the end.

With ``--faults`` there is one more run of the last of ``--services``: one dies by SIGKILL after a third of the turns,
for good; on PostgreSQL the server ends at once after a half, within a turn, and starts again, and after two thirds
all its connections are cut. A request that fails is sent to the next service.

Exit code 1 where a context differs, a record is lost or twice, and without faults also where several services cost
over 2% more than the first, break a prefix more often though no request went without memory, or refuse a record.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, NamedTuple

import sqlalchemy as sa

from harness import Service, command_line, print_head, print_row, verdict
from memory_bank.bank.database import Database
from memory_bank.bank.schema import records
from memory_bank.pricing import Ratios, common_length, known_price
from memory_bank.testing import ScriptedServer, say
from memory_bank.transcript.tokens import open_counter
from workload import Message, Postgres, banks, beginning, interaction, request_of

PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
ATTEMPTS = 20  # of a request, at the services by turns
Sent = dict[str, list[list[str]]]  # by session, the messages of its contexts, as JSON text


class Figures(NamedTuple):
    """What a run cost, and what was wrong with it."""

    paid: float
    broken: int
    differ: int
    later: int
    lost: int
    twice: int
    refused: int


def turns_of(session: str, turns: int, calls: int) -> list[list[Message]]:
    """The messages of each request of one agent, with so many calls a turn."""
    rng, numbers, messages, asked = random.Random(session), itertools.count(), beginning(session), []
    for _ in range(turns):
        made = [interaction(next(numbers), rng) for _ in range(calls)]
        said = {**made[0][0], "tool_calls": [c for turn, _ in made for c in turn["tool_calls"]]}
        messages = [*messages, said, *(result for _, result in made)]
        asked.append(messages)
    return asked


def ask(port: int, api: str, session: str, body: Message) -> Mapping[str, str]:
    """The headers of the answer of a service to a request of a session."""
    data = json.dumps(body).encode()
    headers = {"content-type": "application/json", "x-memory-session": session, "authorization": "Bearer key"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{PATHS[api]}", data, headers)
    with urllib.request.urlopen(request, timeout=120) as answer:
        answer.read()
        return answer.headers


class Run:
    """Agents that ask services on a bank by turns; ``sent``: what arrived upstream.

    ``reasons``: why answers were made without memory, ``stored``: the latest turn of a session whose answer was not,
    ``without``: the first whose answer was.
    """

    def __init__(self, number: int, where: str, options: Any) -> None:
        self.where, self.options, self.sent = where, options, Sent()
        self.reasons, self.stored, self.without = Counter[str](), dict[str, int](), dict[str, int]()
        self.sessions = {
            f"s{n}": turns_of(f"s{n}", options.turns, options.calls) for n in range(options.sessions)
        }
        self._number, self._turns, self._lock = number, itertools.count(), threading.Lock()
        self._services: list[Service] = []

    def _arrived(self, body: Message) -> Any:
        messages = [json.dumps(m) for m in body.get("input") or body["messages"]]
        session = next(
            found[1] for m in messages if (found := re.search(r"Check all orders of (s\d+) for", m))
        )
        with self._lock:
            self.sent.setdefault(session, []).append(messages)
        return say("ok")

    def _ask(self, session: str, turn: int) -> None:
        body = {
            "model": self.options.model,
            **request_of(self.options.api, self.sessions[session][turn]),
        }
        for attempt in range(ATTEMPTS):
            service = self._services[next(self._turns) % len(self._services)]
            try:
                told = ask(service.port, self.options.api, session, body)
                break
            except OSError:  # also an answer with an error
                if attempt == ATTEMPTS - 1:
                    raise
                time.sleep(0.2)
        reason = told["x-memory-reason"]
        if reason is None and told["x-memory-session"] != session:
            reason = "the answer is of another session"
        with self._lock:
            if reason is None:
                self.stored[session] = turn
            else:
                self.reasons[reason] += 1
                self.without.setdefault(session, turn)

    def play(self, faults: dict[int, Callable[[list[Service]], None]]) -> None:
        """Ask all turns of all sessions; ``faults``: by turn what happens within it."""
        settings = {"inject_tools": "false", "cache_markers": "off", "memory_timeout": 60}
        with ExitStack() as stack:
            upstream = stack.enter_context(ScriptedServer(self._arrived))
            self._services = [
                stack.enter_context(Service(self.where, upstream.base_url, **settings))
                for _ in range(self._number)
            ]
            agents = stack.enter_context(ThreadPoolExecutor(self.options.agents))
            for turn in range(self.options.turns):
                asked = [agents.submit(self._ask, session, turn) for session in self.sessions]
                if turn in faults:
                    time.sleep(0.3)  # within some steps
                    faults[turn](self._services)
                for one in asked:
                    one.result()
                upstream.requests.clear()

    def figures(self, first: Sent) -> Figures:
        """What the run cost, beside the contexts of the first run."""
        costs = [dollars(requests, self.options) for requests in self.sent.values()]
        others = [
            turn >= self.without.get(session, self.options.turns)
            for session, requests in self.sent.items()
            for turn in range(self.options.turns)
            if first[session][turn] not in requests
        ]
        bank = Database(self.where)
        rows = bank.rows(sa.select(records.c.session_id, records.c.call_id, records.c.output))
        bank.close()
        stored = [(r["session_id"], r["call_id"], r["output"]) for r in rows]
        there = set(stored)
        said = {
            (session, m["tool_call_id"], m["content"]): at // self.options.calls
            for session, turns in self.sessions.items()
            for at, m in enumerate(m for m in turns[-1] if m["role"] == "tool")
        }
        missing = [(call[0], turn) for call, turn in said.items() if call not in there]
        lost = sum(turn <= self.stored.get(session, -1) for session, turn in missing)
        twice = len(stored) - len({(session, call_id) for session, call_id, _ in stored})
        paid, broken = sum(c for c, _ in costs), sum(b for _, b in costs)
        later = sum(others)
        return Figures(paid, broken, len(others) - later, later, lost, twice, len(missing) - lost)


def dollars(requests: Sequence[Sequence[str]], options: Any) -> tuple[float, int]:
    """What the requests of a session cost, and how many did not begin as the one before."""
    price, _ = known_price({}, options.model) or sys.exit(f"no price is known of {options.model}")
    ratios = Ratios(
        (price.cached or price.prompt) / price.prompt, (price.cache_write or price.prompt) / price.prompt
    )
    count, before, total, broken = open_counter(options.encoding).count_message, list[str](), 0.0, 0
    tokens: dict[str, int] = {}
    for messages in requests:
        tokens.update((m, count(json.loads(m))) for m in messages if m not in tokens)
        same = common_length(before, messages)
        whole, known = (sum(map(tokens.__getitem__, part)) for part in (messages, messages[:same]))
        total += ratios.price(whole, known) * price.prompt / 1e6
        broken, before = broken + (same < len(before)), [*messages]
    return total, broken


def faults_of(turns: int, server: Postgres | None) -> dict[int, Callable[[list[Service]], None]]:
    """What happens within which turn."""

    def kill(services: list[Service]) -> None:
        services.pop().kill()

    faults: dict[int, Callable[[list[Service]], None]] = {turns // 3: kill}
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
    parser.add_argument("--faults", action="store_true", help="one more run, in which processes die")
    parser.add_argument("--model", default="claude-sonnet-4-5")
    parser.add_argument("--encoding", default="o200k_base")
    options = parser.parse_args(arguments)
    whole, contexts = 0.0, options.sessions * options.turns
    for n in range(options.sessions):
        bodies = (request_of(options.api, m) for m in turns_of(f"s{n}", options.turns, options.calls))
        histories = [[json.dumps(m) for m in b.get("input") or b["messages"]] for b in bodies]
        whole += dollars(histories, options)[0]
    print_head("services", "dollars", "of no memory", *Figures._fields[1:], "contexts")
    print_row("no memory", f"{whole:.2f}", "100.0%", *[0] * 6, contexts)
    first, runs, said, wrong = Sent(), list[Figures](), list[str](), []
    plans = [(number, False) for number in options.services]
    with banks([options.kind], fsync=False) as (new, server):
        for number, has_faults in plans + [(options.services[-1], True)] * options.faults:
            run = Run(number, new(options.kind), options)
            run.play(faults_of(options.turns, server) if has_faults else {})
            first = first or run.sent
            runs.append(of := run.figures(first))
            name = f"{number}{', with faults' * has_faults}"
            print_row(name, f"{of.paid:.2f}", f"{100 * of.paid / whole:.1f}%", *of[1:], contexts)
            said += [f"{name}: {number} answers without memory: {why}" for why, number in run.reasons.items()]
            if of.lost or of.twice or (of.refused and not has_faults):
                wrong.append(f"{name}: {of.lost} records lost, {of.twice} twice, {of.refused} refused")
            breaks = of.broken > runs[0].broken and not run.reasons
            if of.differ or (not has_faults and (of.paid > 1.02 * runs[0].paid or breaks)):
                cost = of.paid / runs[0].paid
                wrong.append(f"{name} cost {cost:.3f} times as much, {of.broken} broken, {of.differ} differ")
    print("\n".join(said), end="\n" * bool(said))
    return verdict(wrong)


if __name__ == "__main__":
    sys.exit(main())
