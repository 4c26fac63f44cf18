"""What coding agents do to a session of theirs: go back, compact, open a second window, start a sub-agent.

``python benchmarks/client_sessions.py [NAME …]`` runs coding agents, as ``clients.py`` installs them, each case once
without memory (as the service's control group) and once with it, before a scripted upstream. The model reads files
with payment ids by calls and names some ids in the end; an id that its request does not hold it reads again.
``--installed`` skips what is not installed.

A row tells the requests of both runs, how many payment ids stood in requests of a branch, window or agent that had
never read them ("undone"), whether all answers were right, whether the last request had memory, and the savings: by
the figures that the service recorded, and of the requests as they came and as upstream got them (tokens of their
tools as JSON, and of all other texts). "dollars" are those of the run with memory beside those without, from a prefix
cache that answers report.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agents_model import MarkedCache, parts_of
from clients import (
    CLIENTS,
    SHELLS,
    Orders,
    Run,
    install,
    output_of,
    output_of_client,
    place_of,
    serving,
    tool_names,
)
from harness import command_line
from measuring.measure import PRICE_TABLES
from memory_bank.pricing import Usage, cost
from memory_bank.testing import Reply, ScriptedServer, calls, fail, say
from memory_bank.transcript.harness import asks_for_summary, persons_text
from memory_bank.transcript.tokens import open_counter

ASKED = re.compile(r"Read the orders (\d+) to (\d+)\b.*?payment ids of the orders ([\d, ]+)")
AGENT = re.compile(r"First start an agent for this: <<(.+?)>>")
COUNTER = open_counter()
PATHS = {"chat": "/chat/completions", "responses": "/responses", "messages": "/messages"}
MODELS = ("scripted", "gpt-5", "claude-sonnet-4-5")


def task(first: int, last: int, *wanted: int, agent: str = "") -> str:
    """A prompt: orders to read, then ids to name; ``agent``: the prompt of a sub-agent that is started first."""
    start = f"First start an agent for this: <<{agent}>> Then go on. " if agent else ""
    return (
        f"{start}Read the orders {first} to {last} one after the other; order N is the file orders/N.json. "
        f"Then name the payment ids of the orders {', '.join(map(str, wanted))}."
    )


class Model:
    """The scripted model: works on the last task in its request, and notes which payment ids each request holds."""

    def __init__(self, orders: Orders, *, refuses: bool = False) -> None:
        self.orders = orders
        self.held: list[
            tuple[int, set[int]]
        ] = []  # of each request: its task's first order, ids of these orders
        self.wrong = 0
        self._refuses = refuses
        self._largest = 0
        self._read: dict[int, set[int]] = {}
        self._agents: set[int] = set()
        self._numbers = {orders.payment(n): n for n in range(1, 500)}

    def __call__(self, body: dict[str, Any]) -> Reply:
        """The next turn."""
        messages = body.get("messages") or body.get("input") or []
        offered = tool_names(body)
        shell = next((t for t in SHELLS if t in offered), None)
        tasks = tasks_of(messages)
        said = texts_of(messages[-1:]) if isinstance(messages, list) else []
        if asks_for_summary("\n".join([*said, *texts_of(messages, "system"), str(body.get("instructions"))])):
            asked = ASKED.search(tasks[-1]) if tasks else None
            return say(f"The orders were read, one after the other, for this: {asked[0] if asked else ''}.")
        if shell is None or not tasks:
            return say("Payments of orders")
        text = json.dumps(messages)
        asked = ASKED.search(AGENT.sub("", persons_text(tasks[-1]) or tasks[-1]))  # not what was handed on
        assert asked is not None
        first, last = int(asked[1]), int(asked[2])
        if self._is_refused(text):
            return fail(400, "messages: this order of blocks is not supported")
        held = self.ids_in(text)
        self.held.append((first, held))
        agent = AGENT.search(tasks[-1])
        if agent is not None and first not in self._agents:
            self._agents.add(first)
            return calls(
                ("Agent", {"description": "Read orders", "prompt": agent[1], "subagent_type": "claude"})
            )
        read = self._read.setdefault(first, set())
        read |= {n for n in map(int, re.findall(r"<order (\d+)>", text)) if first <= n <= last}
        wanted = [int(n) for n in re.findall(r"\d+", asked[3])]
        left = [n for n in range(first, last + 1) if n not in read] or [n for n in wanted if n not in held]
        if left:
            read.add(left[0])  # each order once, and once more where its id is missing in the end
            return calls((shell, SHELLS[shell](f"cat orders/{left[0]}.json")))
        return say("The payments are " + ", ".join(self.orders.payment(n) for n in wanted) + ".")

    def _is_refused(self, text: str) -> bool:
        """Whether to refuse this request: the first that is shorter than the longest before it."""
        is_short = len(text) < self._largest
        self._largest = max(self._largest, len(text))
        if self._refuses and is_short:
            self._refuses = False
            return True
        return False

    def ids_in(self, text: str) -> set[int]:
        """The orders whose payment ids stand in a text."""
        return {self._numbers[p] for p in re.findall(r"PAY-[A-Z0-9]{10}", text) if p in self._numbers}

    def undone(self, allowed: Callable[[int], Iterable[range]], came: Iterable[Any]) -> int:
        """How many ids stood in requests of a task that may not know them.

        ``allowed``: of a task's first order, the orders that it may know. It knows those that its client wrote into
        a request of its own, too (``came``): of two processes, the later one reads what the other has done.
        """
        own: dict[int, set[int]] = {}
        for body in came:
            messages = body.get("messages") or body.get("input") or []
            if tasks := tasks_of(messages):
                own.setdefault(first_of(tasks[-1]), set()).update(self.ids_in(json.dumps(messages)))
        return sum(
            n not in own.get(first, ()) and not any(n in r for r in allowed(first))
            for first, held in self.held
            for n in held
        )


def first_of(prompt: str) -> int:
    """The first order of a task."""
    asked = ASKED.search(AGENT.sub("", prompt))
    assert asked is not None
    return int(asked[1])


def tasks_of(messages: Any) -> list[str]:
    """The tasks in the user's messages; where a summary stands for them, those that it tells."""
    asked = [t for role in ("user", "assistant") for t in texts_of(messages, role) if ASKED.search(t)]
    return [t for t in texts_of(messages) if ASKED.search(t)] or asked


def texts_of(messages: Any, role: str = "user") -> list[str]:
    """The texts of a role's messages that the client wrote, in their order."""
    found: list[str] = []
    for message in messages if isinstance(messages, list) else [{"role": "user", "content": messages}]:
        if message.get("role") == role:
            content = message.get("content")
            parts = content if isinstance(content, list) else [{"text": content}]
            found += [str(p["text"]) for p in parts if isinstance(p, dict) and p.get("text")]
    return found


def tokens_of_request(body: dict[str, Any]) -> int:
    """The tokens of a request's tools, as JSON, and of its other texts."""
    tools = json.dumps(body.get("tools") or [], ensure_ascii=False, separators=(",", ":"))
    return COUNTER.count_text(tools) + tokens_of({k: v for k, v in body.items() if k != "tools"})


def tokens_of(value: Any) -> int:
    """The tokens of all texts in a value."""
    if isinstance(value, str):
        return COUNTER.count_text(value)
    if isinstance(value, dict):
        return sum(map(tokens_of, value.values()))
    return sum(map(tokens_of, value)) if isinstance(value, list) else 0


@dataclass
class Work:
    """A client in a folder, with its service and model."""

    client: str
    run: Run
    answers: list[tuple[tuple[int, ...], str]] = field(default_factory=list)

    def ask(self, prompt: str, *options: str) -> str:
        """What the client prints for a prompt."""
        client = CLIENTS[self.client]
        run = dataclasses.replace(self.run, task=prompt)
        *command, _ = client.command(place_of(self.client), run)
        variables = run.environment(client.address) | client.variables
        if self.client == "claude-code":  # -p takes the next word as the prompt
            command = [*command[:-1], *options, command[-1], prompt]
        elif self.client == "codex":
            provider = f'{{name = "m", base_url = "{run.url}/v1", env_key = "OPENAI_API_KEY"}}'
            chosen = ["-c", f"model_providers.m={provider}", "-c", 'model_provider="m"', *options]
            command = [*command, *chosen, prompt]
        if self.client in ("claude-code", "codex"):
            printed = output_of(command, run.folder, variables)
        else:
            printed = output_of_client(client, place_of(self.client), run, *options)
        if found := ASKED.search(AGENT.sub("", prompt)):
            self.answers.append((tuple(map(int, re.findall(r"\d+", found[3]))), printed))
        return printed

    def end_of_turn(self, session: str) -> str:
        """The id of the last answer that Claude Code wrote into a session's log."""
        [log] = self.run.home.rglob(f"{session}.jsonl")
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        return str([x["uuid"] for x in lines if x.get("type") == "assistant"][-1])


def goes_back(work: Work) -> None:
    """Orders of 200 are read, and undone."""
    session = str(uuid.uuid4())
    work.ask(task(101, 112, 101), "--session-id", session)
    end = work.end_of_turn(session)
    work.ask(task(201, 212, 201), "--resume", session)
    work.ask(task(301, 312, 102, 301), "--resume", session, "--resume-session-at", end)


def two_windows(work: Work) -> None:
    """Two processes go on with one session at once."""
    session = str(uuid.uuid4())
    work.ask(task(101, 108, 101), "--session-id", session)
    prompts = [task(201, 212, 102, 201), task(301, 312, 103, 301)]
    with ThreadPoolExecutor(2) as both:
        list(both.map(lambda prompt: work.ask(prompt, "--resume", session), prompts))


def same_id(work: Work) -> None:
    """Two windows that share an id from their beginning, and no history."""
    session = str(uuid.uuid4())
    work.ask(task(101, 112, 101), "--session-id", session)
    for log in work.run.home.rglob(f"{session}.jsonl"):
        log.unlink()
    work.ask(task(301, 312, 301, 302), "--session-id", session)


def compacts(work: Work) -> None:
    """The summary says nothing of the ids that are asked for after it."""
    session = str(uuid.uuid4())
    work.ask(task(101, 114, 101), "--session-id", session)
    work.ask("/compact", "--resume", session)
    work.ask(task(201, 204, 102, 105, 201), "--resume", session)


def sub_agent(work: Work) -> None:
    """A sub-agent reads other orders than the agent that started it."""
    work.ask(task(101, 112, 101, agent=task(301, 308, 301)), "--allowedTools", "Bash", "Agent")


def refused(work: Work) -> None:
    """The first short context is refused."""
    work.ask(task(101, 130, 101, 104))


def a_run(work: Work) -> None:
    """Nothing but a task, long enough for a fold that pays."""
    work.ask(task(101, 142, 101, 104))


def compacts_itself(work: Work) -> None:
    """Codex compacts where its context passes a limit."""
    work.ask(task(101, 126, 101, 104), "-c", "model_auto_compact_token_limit=22000")


def opencode_compacts(work: Work) -> None:
    """opencode compacts at 32,000 of its model's 272,000 tokens."""
    settings = {"compaction": {"auto": True, "reserved": 240_000}}
    (work.run.folder / "opencode.json").write_text(json.dumps(settings))
    work.ask(task(101, 142, 101, 104))


def qwen_compacts(work: Work) -> None:
    """qwen-code compacts at a share of its model's window."""
    settings = {"model": {"chatCompression": {"contextPercentageThreshold": 0.2}}}
    (work.run.home / ".qwen").mkdir()
    (work.run.home / ".qwen" / "settings.json").write_text(json.dumps(settings))
    work.ask(task(101, 142, 101, 104))


def _branches(*known: tuple[int, int]) -> Callable[[int], list[range]]:
    """A task knows the orders of its own hundred, and of those that these pairs allow it."""
    return lambda first: [range(h, h + 100) for h in [first - 1, *(b - 1 for a, b in known if a == first)]]


CASES: dict[str, tuple[str, str, Callable[[Work], None], Callable[[int], list[range]]]] = {
    "goes-back": ("claude-code", "--resume-session-at", goes_back, _branches((201, 101), (301, 101))),
    "two-windows": ("claude-code", "two windows", two_windows, _branches((201, 101), (301, 101))),
    "same-id": ("claude-code", "two windows, one id from the start", same_id, _branches()),
    "compacts": ("claude-code", "/compact", compacts, _branches((201, 101))),
    "sub-agent": ("claude-code", "a sub-agent", sub_agent, _branches((101, 301))),
    "refused": ("claude-code", "a context is refused", refused, _branches()),
    "opencode": ("opencode", "memory tools are added", a_run, _branches()),
    "codex-compacts": ("codex", "its own compaction", compacts_itself, _branches()),
    "opencode-compacts": ("opencode", "its own compaction", opencode_compacts, _branches()),
    "qwen-compacts": ("qwen-code", "its own compaction", qwen_compacts, _branches()),
}


@dataclass
class Figures:
    """What became of a run."""

    requests: int
    undone: int
    right: bool
    memory: str
    tokens: int
    full: int
    arrived: int
    came: int
    sessions: int
    errors: list[str]
    output: str
    paid: float


class Caching:
    """A model behind a prefix cache: its answers report what of each request was read from it and written to it."""

    def __init__(self, model: Model, api: str) -> None:
        self.model, self.api, self.used = model, api, list[Usage]()
        self._cache = MarkedCache(COUNTER)

    def __call__(self, body: dict[str, Any]) -> Reply:
        """The model's turn."""
        reply = self.model(body)
        if reply.status != 200 or not (body.get("messages") or body.get("input")):
            return reply
        texts, marks = parts_of(body, self.api)
        parts = [(text, COUNTER.count_text(text)) for text in texts]
        used = self._cache.add(parts) if marks is None else self._cache.add_marked(parts, marks)
        self.used.append(used)
        return dataclasses.replace(reply, usage=(used.input, 30), cached=(used.cached, used.written))

    def paid(self) -> float:
        """What all requests cost."""
        return sum(
            cost(u, PRICE_TABLES["0.1/1.25" if self.api == "messages" else "0.1/1"]) for u in self.used
        )


def measure(name: str, *, holdout: float) -> Figures:
    """A case, with memory or (``holdout`` 1) as the service's control group."""
    client, _, act, allowed = CASES[name]
    orders = Orders(name)
    bodies: list[bytes] = []
    model, route = Model(orders, refuses=name == "refused" and not holdout), CLIENTS[client].route
    caching = Caching(model, route)
    with tempfile.TemporaryDirectory(prefix="session-") as place:
        folder = Path(place)
        (folder / "home").mkdir()
        (folder / "work" / "orders").mkdir(parents=True)
        for n in (n for h in (100, 200, 300) for n in range(h + 1, h + 61)):
            (folder / "work" / "orders" / f"{n}.json").write_text(orders.text(n) + "\n")
        with (
            ScriptedServer(caching, models=MODELS) as server,
            serving(server, folder / "bank.db", bodies, holdout=holdout) as (url, recorded),
        ):
            work = Work(client, Run(folder / "home", folder / "work", url))
            act(work)
            asked = [e for e in recorded if e.api.route == route]
            arrived = [r for r in server.requests if r.path.split("?")[0].endswith(PATHS[route])]
    own = [json.loads(body) for body in bodies if body]
    right = all(orders.payment(n) in printed for wanted, printed in work.answers for n in wanted)
    counted = [e for e in asked if e.tokens is not None]
    return Figures(
        requests=len(arrived),
        undone=model.undone(allowed, own),
        right=right,
        memory=f"{asked[-1].memory} {asked[-1].reason or ''}".strip() if asked else "none",
        tokens=sum(e.tokens for e in counted),
        full=sum(e.full_tokens for e in counted),
        arrived=sum(tokens_of_request(r.body) for r in arrived),
        came=sum(map(tokens_of_request, own)),
        sessions=len({e.session for e in asked if e.session}),
        errors=[*server.refused, *(str(e.status) for e in asked if e.status != 200)],
        output="\n".join(printed for _, printed in work.answers),
        paid=caching.paid(),
    )


HEAD = (
    "| client | case | requests without | with memory | undone ids | right answers | sessions | last request "
    "| saved by the figures | in truth | dollars | errors |\n"
    "|---|---|---:|---:|---:|---|---:|---|---:|---:|---:|---:|"
)


def main() -> int:
    """Run from the command line; 1 where a case is not as it should be."""
    parser = command_line(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CASES)}; default: all")
    parser.add_argument("--installed", action="store_true", help="only clients that are installed already")
    asked = parser.parse_args()
    if unknown := set(asked.names) - set(CASES):
        parser.error(f"no case {', '.join(sorted(unknown))}: there are {', '.join(CASES)}")
    print(HEAD, flush=True)
    failed = 0
    for name in asked.names or CASES:
        client, shown, _, _ = CASES[name]
        if asked.installed and not (place_of(client) / ".ready").exists():
            continue
        install(client)
        without, with_memory = measure(name, holdout=1.0), measure(name, holdout=0.0)
        saved = with_memory.full - with_memory.tokens
        in_truth = 1 - with_memory.arrived / with_memory.came
        print(
            f"| {CLIENTS[client].shown} | {shown} | {without.requests} | {with_memory.requests} "
            f"| {with_memory.undone} | {'yes' if with_memory.right else 'no'} | {with_memory.sessions} "
            f"| {with_memory.memory} | {saved / with_memory.full:.1%} of {with_memory.full:,} "
            f"| {in_truth:.1%} of {with_memory.came:,} | {with_memory.paid / without.paid:.0%} "
            f"| {len(with_memory.errors)} |",
            flush=True,
        )
        if (
            with_memory.undone
            or not with_memory.right
            or with_memory.requests > without.requests + (name == "refused")
        ):
            failed += 1
            print(with_memory.output[-2000:], *with_memory.errors[:5], sep="\n", file=sys.stderr)
    return min(1, failed)


if __name__ == "__main__":
    sys.exit(main())
