"""Measures what the proxy adds to a model's answer: to its first byte and its last, with streams and history.

    python benchmarks/proxy.py [--part streams,history,rss] [--rounds 5]
    python benchmarks/proxy.py --part fuzz [--requests 20000] [--seed 1] [FILE.jsonl …]

An upstream that streams, `memory-bank serve` in front of it and those who ask are a process each; agents ask
the upstream itself and through the proxy by turns, in the same run, with the same requests. An agent has made
so many calls (outputs of about 1.5 kB) and brings one more with each request; `none` are questions without
any call, which memory leaves alone. Times are those from the request's first byte to the answer's first and
last, medians.

``streams``: 1, 10 and 100 at once. ``history``: one stream after n calls, of the Chat Completions API and of the
Messages API. ``rss``: resident memory of the service over 10,000 requests whose sessions come and go, five
requests each, found by what their messages hold. ``fuzz``: requests of recorded runs, changed at random, against
the strict scripted server: whatever comes, the service answers in time, with no status of its own, and breaks no
pair that was whole.
"""

from __future__ import annotations

import dataclasses
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness import command_line
from proxy_ends import PATHS, Ends, Load, Service, Timed, both_ends, service

STREAMS = (1, 10, 100)
HISTORY = (10, 30, 100, 300, 1000)


def main() -> None:
    """Run and print the tables."""
    parser = command_line(__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="traces for the part fuzz")
    parser.add_argument("--part", default="streams,history,rss", help="streams, history, rss, fuzz")
    parser.add_argument("--history", default=",".join(map(str, HISTORY)), help="calls, in that part")
    parser.add_argument("--rounds", type=int, default=5, help="of bare and proxy, in turns")
    parser.add_argument(
        "--requests", type=int, default=0, help="of rss (10,000), of each route in fuzz (20,000)"
    )
    parser.add_argument("--routes", default="chat,responses,messages", help="of the part fuzz")
    parser.add_argument("--seed", type=int, default=1, help="of the part fuzz")
    args = parser.parse_args()
    chosen = args.part.split(",")
    if "streams" in chosen:
        with serving() as (ends, served):
            streams_part(ends, served, args.rounds)
    if "history" in chosen:
        with serving() as (ends, served):
            history_part(ends, served, args.rounds, [int(n) for n in args.history.split(",")])
    if "rss" in chosen:
        with serving() as (ends, served):
            rss_part(ends, served, args.requests or 10_000)
    if "fuzz" in chosen:
        from proxy_fuzz import fuzz_part

        sys.exit(fuzz_part(args.files, args.requests or 20_000, args.seed, args.routes.split(",")))


@contextmanager
def serving() -> Iterator[tuple[Ends, Service]]:
    """Both ends, and the service between them on a database of its own."""
    with (
        both_ends() as ends,
        tempfile.TemporaryDirectory() as folder,
        service(f"http://127.0.0.1:{ends.upstream}/v1", folder) as served,
    ):
        yield ends, served


def by_turns(ends: Ends, served: Service, load: Load, rounds: int) -> tuple[list[Timed], list[Timed]]:
    """The same load on both ways, one after the other, several times."""
    bare: list[Timed] = []
    ours: list[Timed] = []
    for i in range(rounds):
        turns = [(bare, ends.upstream), (ours, served.port)]
        for times, port in turns if i % 2 else reversed(turns):
            times += ends.run(dataclasses.replace(load, port=port, seed=f"{load.seed}-{i}"))
    wrong = [t for t in bare + ours if t.status != 200 or t.events != load.events + 1]
    if wrong:
        raise RuntimeError(f"{len(wrong)} answers are not whole: {wrong[0]}")
    return bare, ours


def median(times: list[Timed], what: str) -> float:
    """In ms."""
    return 1000 * statistics.median(getattr(t, what) for t in times)


def p95(times: list[Timed], what: str) -> float:
    """In ms."""
    return 1000 * statistics.quantiles([getattr(t, what) for t in times], n=20)[-1]


def row(bare: list[Timed], ours: list[Timed]) -> str:
    """First byte and whole, bare and through the proxy."""
    kinds = sorted({t.memory for t in ours})
    share = ", ".join(f"{sum(t.memory == k for t in ours) / len(ours):.0%} {k}" for k in kinds)
    first, total = (median(ours, w) - median(bare, w) for w in ("first", "total"))
    return (
        f"{len(ours):,} | {median(bare, 'first'):.2f} | {median(ours, 'first'):.2f} | **{first:+.2f}** | "
        f"{p95(bare, 'first'):.2f} | {p95(ours, 'first'):.2f} | {median(bare, 'total'):.1f} | "
        f"{median(ours, 'total'):.1f} | {total:+.1f} | {share} |"
    )


COLUMNS = (
    "requests | first byte, bare (ms) | through the proxy | later by | p95 bare | p95 proxy | "
    "whole, bare (ms) | through the proxy | later by | memory |"
)
RULE = "---|" * 10


def streams_part(ends: Ends, served: Service, rounds: int) -> None:
    """Streams at once."""
    print(f"| streams | past calls | {COLUMNS}\n|---|---|{RULE}")
    for n in STREAMS:
        pause = {1: 0.005, 10: 0.02}.get(n, 0.1)
        for past, calls in ((0, False), (10, True)):
            load = Load(0, n, max(4, 20 // n), past, f"streams-{n}-{past}", pause=pause, calls=calls)
            done = row(*by_turns(ends, served, load, rounds))
            print(
                f"| {n} | {'10 to 30' if calls and n == 1 else 'none' if not calls else '10 to 14'} | {done}",
                flush=True,
            )


def history_part(ends: Ends, served: Service, rounds: int, points: list[int]) -> None:
    """One stream after more and more calls, of both APIs."""
    print(f"| past calls | route | {COLUMNS}\n|---|---|{RULE}")
    for past in points:
        for route in PATHS:
            load = Load(0, 1, 20, past, f"history-{route}-{past}", pause=0.005, route=route)
            print(f"| {past:,} | {route} | {row(*by_turns(ends, served, load, rounds))}", flush=True)


def rss_part(ends: Ends, served: Service, requests: int) -> None:
    """Resident memory while sessions come and go."""
    print("| requests | resident memory (MB) |\n|---|---|")
    print(f"| 0 | {served.rss():.0f} |")
    each, streams, done = 5, 10, 0
    while done < requests:
        for i in range(max(1, requests // 10 // (each * streams))):
            load = Load(
                served.port, streams, each - 1, 4, f"rss-{done}-{i}", events=2, pause=0.0, named=False
            )
            if any(t.status != 200 for t in ends.run(load)):
                raise RuntimeError("an answer is not whole")
            done += each * streams
        print(f"| {done:,} | {served.rss():.0f} |", flush=True)


if __name__ == "__main__":
    main()
