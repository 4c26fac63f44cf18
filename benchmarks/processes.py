"""Measures what a bank's sessions cost where several services take their requests by turns, without stickiness.

    python benchmarks/processes.py [--services 1,3] [--sessions 2] [--turns 45] [--kind sqlite] [--api chat]

Agents ask `memory-bank serve` round robin, and a scripted upstream logs what arrives. A request costs what a provider
with a prefix cache charges for it: the beginning that it shares with the session's request before at 0.1 of the input
price, all else at 1.25 (``--price``), in tokens of ``--encoding``; beside it, what the same histories cost without
memory. A context that does not begin as the one before is ``broken``: with a fold it has to be. Exit code 1 where
several services cost over 2% more than the first of ``--services``, or break a prefix more often.
"""

from __future__ import annotations

import json
import random
import sys
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from harness import Service, command_line, print_head, print_row, verdict
from memory_bank.pricing import Ratios, common_length
from memory_bank.testing import ScriptedServer, say
from memory_bank.transcript.tokens import open_counter
from workload import Message, banks, beginning, interaction, request_of

PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}


def lists(api: str, turns: int) -> list[list[Message]]:
    """The messages of each request of one agent."""
    rng, messages, asked = random.Random(7), beginning("the week"), []
    for turn in range(turns):
        messages = [*messages, *interaction(turn, rng)]
        asked.append(messages)
    return [request_of(api, m) for m in asked]


def ask(port: int, api: str, session: str, body: Message) -> None:
    """One request of a session to a service."""
    data = json.dumps({"model": "claude-sonnet-4-5", **body}).encode()
    headers = {"content-type": "application/json", "x-memory-session": session, "authorization": "Bearer key"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{PATHS[api]}", data, headers)
    with urllib.request.urlopen(request, timeout=120) as answer:
        answer.read()


def paid(requests: Sequence[Sequence[Any]], ratios: Ratios, encoding: str) -> tuple[float, int]:
    """What the requests of a session cost in input tokens, and how many did not begin as the one before."""
    count, before, total, broken = open_counter(encoding).count_message, list[Any](), 0.0, 0
    for messages in requests:
        same = common_length(before, messages)
        total += ratios.price(sum(map(count, messages)), sum(map(count, messages[:same])))
        broken, before = broken + (same < len(before)), list(messages)
    return total, broken


def measured(number: int, where: str, options: Any) -> tuple[float, int]:
    """What all sessions cost with so many services, and how many contexts were broken."""
    key = "input" if options.api == "responses" else "messages"
    bodies = lists(options.api, options.turns)
    with ExitStack() as stack:
        upstream = stack.enter_context(ScriptedServer(lambda _: say("ok")))
        settings = {"inject_tools": "false", "cache_markers": "off"}
        services = [stack.enter_context(Service(where, upstream.base_url, **settings)) for _ in range(number)]
        turn, sent = 0, dict[str, list[Any]]()
        for body in bodies:
            for session in (f"s{n}" for n in range(options.sessions)):
                ask(services[turn % number].port, options.api, session, body)
                sent.setdefault(session, []).append(upstream.requests[-1].body[key])
                turn += 1
    costs = [paid(requests, options.price, options.encoding) for requests in sent.values()]
    return sum(c for c, _ in costs), sum(b for _, b in costs)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_line(__doc__)
    parser.add_argument("--services", type=lambda t: [*map(int, t.split(","))], default=[1, 3])
    parser.add_argument("--sessions", type=int, default=2)
    parser.add_argument("--turns", type=int, default=45)
    parser.add_argument("--kind", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--api", choices=PATHS, default="chat")
    parser.add_argument(
        "--price", type=lambda t: Ratios(*map(float, t.split("/"))), default=Ratios(0.1, 1.25)
    )
    parser.add_argument("--encoding", default="o200k_base")
    options = parser.parse_args(arguments)
    key = "input" if options.api == "responses" else "messages"
    whole, _ = paid([b[key] for b in lists(options.api, options.turns)], options.price, options.encoding)
    whole *= options.sessions
    print_head("services", "tokens paid", "of no memory", "broken", "contexts")
    print_row("no memory", round(whole), "100.0%", 0, options.sessions * options.turns)
    found, wrong = [], []
    with banks([options.kind]) as (new, _):
        for number in options.services:
            cost, broken = measured(number, new(options.kind), options)
            print_row(
                number, round(cost), f"{100 * cost / whole:.1f}%", broken, options.sessions * options.turns
            )
            found.append((cost, broken))
            if cost > 1.02 * found[0][0] or broken > found[0][1]:
                wrong.append(
                    f"{number} services cost {cost / found[0][0]:.3f} times as much, {broken} broken"
                )
    return verdict(wrong)


if __name__ == "__main__":
    sys.exit(main())
