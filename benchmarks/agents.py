"""Whole agents with memory and without: requests, ids missing, bytes and dollars of the same task.

    python benchmarks/agents.py                  # by SDKs: three shops, two kinds of tools, two APIs; a few minutes
    python benchmarks/agents.py --all --json agents.json --readme                    # everything
    python benchmarks/agents.py --clients claude-code codex opencode --sizes 12 --tools shell

``--length 10`` makes the outputs as long as those that are shown in part. ``--frame`` puts around every output what
clients do: ``qwen-code``, ``codex``, ``openhands``, ``mcp`` and others.

An agent looks at every order of a customer, tracks every shipment and refunds two orders: 12 orders are 27 calls, 30
are 63, 60 are 123, with outputs of 2 to 3 kB and ids that differ by run. Its tools are those of the shop ("native"),
one shell ("shell"), or files that it lists, reads and writes, a report among them ("files"). The agents are loops of
the SDKs openai (chat, responses) and anthropic (messages: with cache marks at the system prompt and the last message,
as Claude Code sets them; unmarked: without; enabled, adaptive: with thinking of that type in every turn, which is
bound to nothing or to all before it), and coding agents from npm with their own shell (``--clients``).

The model is a scripted server that is strict about calls and results. It uses only ids that stand in its request. An
id that it needs and does not find counts as missing, once a step; it then asks ``get_record`` where that is offered
and the request names the record, and makes the look-up again where not. Each of these is a request more.

The server's prefix cache (``memory_bank.audit.costs.ScriptedCache``) decides what is charged at which price, and its
answers report that usage. Percentages are of the run without memory of the same agent and API.

``none``: no memory. ``memory``: `memory-bank serve` as it ships. ``in-process``: ``MemoryProcessor()`` in the agent's
own process. ``keep-last`` and ``masking``: the service with these strategies. ``compaction``: the agent's own, a
summary of about 1,500 tokens with the newest ids, asked for when a request had more than 16,000 tokens (a coding
agent's own: as it does it, with a limit of 16,000 tokens above its first request).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from agents_model import FRAMES, SUMMARISE, TOOLS, Shop, Upstream, run_tool
from clients import CLIENTS, Run, output_of_client, place_of, serving, version_of
from harness import about, command_line
from measuring.measure import PRICE_TABLES
from measuring.tables import markdown_table
from memory_bank import MemoryProcessor, load_config
from memory_bank.pricing import cost
from memory_bank.testing import ScriptedServer
from memory_bank.transcript import open_counter
from memory_bank.transcript.anthropic import message_errors
from memory_bank.transcript.responses import from_items

SIZES = (12, 30, 60)
KINDS = ("native", "shell", "files")
APIS = ("chat", "responses", "messages", "unmarked", "enabled", "adaptive")
THINKING = APIS[-2:]
SERVED = {"memory": "", "keep-last": "keep_last_n", "masking": "observation_masking"}
"""Strategies by the service, with the key of the configuration; none: as it ships."""
STRATEGIES = ("none", "memory", "in-process", "keep-last", "masking", "compaction")
MODEL = "scripted"
SYSTEM = "You are an agent of a shop. Work with the tools only, and check before you pay money back."
TASK = (
    "Look at all orders of the customer, track the shipment of every order, then refund the first and the fourth "
    "order. In the end give the customer's id and the ids of both refunds."
)
SHELL_TASK = (
    f"{TASK} The command is ./shop: list_orders, get_order ORDER, track SHIPMENT, refund ORDER PAYMENT."
)
COMPACT_AT = 16_000
"""Tokens of a request after which an agent summarises what it has."""
OPENCODE_LIMIT = {"context": 31_000, "input": 31_000, "output": 8_000}
OWN_COMPACTION: dict[str, tuple[dict[str, str], tuple[str, ...], dict[str, Any]]] = {
    "claude-code": (
        {"CLAUDE_CODE_AUTO_COMPACT_WINDOW": "100000", "CLAUDE_AUTOCOMPACT_PCT_OVERRIDE": "42"}, (), {},
    ),
    "codex": ({}, ("-c", "model_auto_compact_token_limit=30000"), {}),
    "opencode": ({}, (), {"provider": {"openai": {"models": {"gpt-5": {"limit": OPENCODE_LIMIT}}}}}),
}  # fmt: skip
"""Variables, arguments and opencode's file by which a coding agent compacts after about 16,000 tokens of its own."""


@dataclass(frozen=True)
class Turn:
    """What a model answered: messages for the history, its text, its calls (id, tool, arguments), input tokens."""

    added: list[Any]
    text: str
    calls: list[tuple[str, str, dict[str, Any]]]
    tokens: int


class ChatAgent:
    """An agent by the SDK openai and the Chat Completions API."""

    def __init__(self, url: str) -> None:
        import openai

        self.client: Any = openai.OpenAI(base_url=f"{url}/v1", api_key="sk-scripted", max_retries=0)

    def opening(self, task: str) -> list[Any]:
        """The history at the beginning."""
        return [{"role": "system", "content": SYSTEM}, self.said(task)]

    def said(self, text: str) -> Any:
        """A message of the user."""
        return {"role": "user", "content": text}

    def schema(self, name: str, description: str, parameters: dict[str, Any]) -> dict[str, Any]:
        """A tool."""
        function = {"name": name, "description": description, "parameters": parameters}
        return {"type": "function", "function": function}

    def rebuilt(self, history: list[Any], memory: MemoryProcessor) -> list[Any]:
        """The context that memory makes of a history."""
        return memory.apply_strategy(history, session_id="run")[0]

    def ask(self, history: list[Any], tools: list[Any]) -> Turn:
        """Ask the model."""
        answer = self.client.chat.completions.create(model=MODEL, messages=history, tools=tools)
        said = answer.choices[0].message
        made = [(c.id, c.function.name, json.loads(c.function.arguments)) for c in said.tool_calls or ()]
        added = [said.model_dump(exclude_none=True)]
        return Turn(added, said.content or "", made, answer.usage.prompt_tokens)

    def results(self, outputs: list[tuple[str, str]]) -> list[Any]:
        """Messages with the outputs of calls, by the ids of these."""
        return [{"role": "tool", "tool_call_id": i, "content": output} for i, output in outputs]


class ResponsesAgent(ChatAgent):
    """An agent by the SDK openai and the Responses API; it keeps the items itself."""

    def opening(self, task: str) -> list[Any]:
        return [self.said(task)]

    def schema(self, name: str, description: str, parameters: dict[str, Any]) -> dict[str, Any]:
        function = super().schema(name, description, parameters)["function"]
        return {"type": "function", **function, "strict": False}

    def rebuilt(self, history: list[Any], memory: MemoryProcessor) -> list[Any]:
        chat = from_items(history)
        context = super().rebuilt(chat.messages, memory)
        return chat.write(context.entries, context.since)

    def ask(self, history: list[Any], tools: list[Any]) -> Turn:
        answer = self.client.responses.create(
            model=MODEL, instructions=SYSTEM, input=history, tools=tools, store=False
        )
        items = [item.model_dump(exclude_none=True) for item in answer.output]
        asked = (i for i in items if i["type"] == "function_call")
        made = [(i["call_id"], i["name"], json.loads(i["arguments"])) for i in asked]
        return Turn(items, answer.output_text, made, answer.usage.input_tokens)

    def results(self, outputs: list[tuple[str, str]]) -> list[Any]:
        return [{"type": "function_call_output", "call_id": i, "output": output} for i, output in outputs]


class MessagesAgent(ChatAgent):
    """An agent by the SDK anthropic, streamed. ``marked``: the system prompt and the last message are cached."""

    marked = True
    thinking = ""

    def __init__(self, url: str) -> None:
        import anthropic

        self.client = anthropic.Anthropic(base_url=url, api_key="sk-scripted", max_retries=0)

    def opening(self, task: str) -> list[Any]:
        return [self.said(task)]

    def schema(self, name: str, description: str, parameters: dict[str, Any]) -> dict[str, Any]:
        return {"name": name, "description": description, "input_schema": parameters}

    def ask(self, history: list[Any], tools: list[Any]) -> Turn:
        system: list[Any] = [{"type": "text", "text": SYSTEM}]
        if self.marked:
            mark = {"cache_control": {"type": "ephemeral"}}
            last = history[-1]["content"]
            blocks = [{"type": "text", "text": last}] if isinstance(last, str) else list(last)
            history = [*history[:-1], {**history[-1], "content": [*blocks[:-1], {**blocks[-1], **mark}]}]
            system = [{**system[0], **mark}]
        asked = {"model": MODEL, "max_tokens": 4000, "system": system, "messages": history, "tools": tools}
        if self.thinking:
            budget = {"budget_tokens": 1_024} if self.thinking == "enabled" else {}
            asked["thinking"] = {"type": self.thinking, **budget}
        with self.client.messages.stream(**asked) as stream:
            answer = stream.get_final_message()
        kept = {"type", "text", "id", "name", "input", "thinking", "signature", "data"}
        blocks = [b.model_dump(include=kept, exclude_none=True) for b in answer.content]
        used = answer.usage
        tokens = used.input_tokens + used.cache_read_input_tokens + used.cache_creation_input_tokens
        text = "".join(b.get("text", "") for b in blocks)
        made = [(b["id"], b["name"], b["input"]) for b in blocks if b["type"] == "tool_use"]
        return Turn([{"role": "assistant", "content": blocks}], text, made, tokens)

    def results(self, outputs: list[tuple[str, str]]) -> list[Any]:
        blocks = [{"type": "tool_result", "tool_use_id": i, "content": output} for i, output in outputs]
        return [{"role": "user", "content": blocks}]


class UnmarkedAgent(MessagesAgent):
    """The same without cache marks."""

    marked = False


class EnabledAgent(MessagesAgent):
    """The same with a model that thinks with a budget, and binds its thinking to nothing."""

    thinking = "enabled"


class AdaptiveAgent(MessagesAgent):
    """The same with a model that thinks as it likes, and binds its thinking to all that stands before it."""

    thinking = "adaptive"


THINKS_WITH_BUDGET = "claude-code-enabled"
"""Claude Code as it is with a model that thinks with a budget (``enabled``), and not as it likes (``adaptive``)."""
CODING = ("claude-code", THINKS_WITH_BUDGET, "codex", "opencode", "qwen-code")
AGENTS = dict(
    zip(
        APIS,
        (ChatAgent, ResponsesAgent, MessagesAgent, UnmarkedAgent, EnabledAgent, AdaptiveAgent),
        strict=True,
    )
)


def run_agent(agent: ChatAgent, shop: Shop, kind: str, strategy: str, frame: str = "none") -> str:
    """Do the task, with a frame around every output; the agent's answer."""
    memory = MemoryProcessor() if strategy == "in-process" else None
    opening = agent.opening(shop.head + (SHELL_TASK if kind == "shell" else TASK))
    history = list(opening)
    tools = []
    for name, (told, names) in TOOLS[kind].items():
        parameters = {"properties": {p: {"type": "string"} for p in names}, "required": list(names)}
        tools.append(agent.schema(name, told, {"type": "object", **parameters}))
    while True:
        turn = agent.ask(agent.rebuilt(history, memory) if memory else history, tools)
        if not turn.calls:
            return turn.text
        outputs = [(i, FRAMES[frame](run_tool(shop, kind, tool, given))) for i, tool, given in turn.calls]
        latest = turn.added + agent.results(outputs)
        history += latest
        if strategy == "compaction" and turn.tokens > COMPACT_AT:
            summary = agent.ask([*history, agent.said(SUMMARISE)], tools).text
            history = [*opening, agent.said(f"Summary of what was done:\n{summary}"), *latest]


@dataclass
class Row:
    """What became of a run; ``told``: why there was none. ``dollars``: by price table, at 1 for a million tokens."""

    size: int
    kind: str
    agent: str
    strategy: str
    seed: str
    frame: str = "none"
    told: str = ""
    requests: int = 0
    missing: int = 0
    needed: int = 0
    sent: int = 0
    tokens: int = 0
    cached: int = 0
    dollars: dict[str, float] = field(default_factory=dict)
    right: bool = False
    refused: int = 0
    seconds: float = 0.0
    head: int = 0
    length: int = 1

    @property
    def calls(self) -> int:
        """The calls that the task takes."""
        return 2 * self.size + (5 if self.kind == "files" else 3)


def measure(row: Row, api: str, run: Callable[[str, Shop, Path], str]) -> Row:
    """Fill a row by ``run``: from the address of the API, the shop and a folder to the agent's answer."""
    shop = Shop(row.seed, row.size, row.head, row.length)
    model = Upstream(shop, row.kind, api)
    began = time.perf_counter()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agents-")))
        names = ("scripted", "gpt-5", "claude-sonnet-4-5")
        server = stack.enter_context(ScriptedServer(model, models=names, strict=api != "enabled"))
        url = server.base_url.removesuffix("/v1")
        if row.strategy in SERVED:
            key = SERVED[row.strategy]
            changed = {"strategy": key} if key else {}
            url, _ = stack.enter_context(serving(server, folder / "bank.db", **changed))
        answer = run(url, shop, folder)
    paths = ("/chat/completions", "/responses", "/messages")
    asked = [r for r in server.requests if r.method == "POST" and r.path.partition("?")[0].endswith(paths)]
    row.requests, row.sent = len(asked), sum(len(r.data) for r in asked)
    row.needed, row.missing = len(model.needed), len(model.missing)
    row.tokens, row.cached = sum(u.input for u in model.usage), sum(u.cached for u in model.usage)
    row.dollars = {name: sum(cost(u, p) for u in model.usage) for name, p in PRICE_TABLES.items()}
    loose = (
        asked if api == "enabled" else []
    )  # a server that is not strict checks no signatures, and no pairs
    row.refused = len(server.refused) + sum(bool(message_errors(r.body["messages"])) for r in loose)
    row.right = all(i in answer for i in shop.final())
    row.seconds = time.perf_counter() - began
    return row


def run_sdk(row: Row) -> Row:
    """The row of an agent by an SDK."""
    try:
        agent = AGENTS[row.agent]
        return measure(
            row,
            row.agent,
            lambda url, shop, _: run_agent(agent(url), shop, row.kind, row.strategy, row.frame),
        )
    except ImportError as e:
        return replace(row, told=f"{e.name} is not installed")


def run_coding(row: Row, name: str) -> Row:
    """The row of a coding agent from npm, with its own shell."""
    with_budget = name == THINKS_WITH_BUDGET
    name = name.removesuffix("-enabled")
    place, client, arguments, file = place_of(name), CLIENTS[name], (), {}
    if with_budget:
        variables = {"ANTHROPIC_MODEL": "claude-sonnet-4-5", "MAX_THINKING_TOKENS": "4000"}
        client = replace(client, variables=client.variables | variables, name="Claude Code, enabled")
    if not (place / ".ready").exists():
        return replace(row, told=f"not installed: benchmarks/clients.py {name} installs it")
    row = replace(row, agent=f"{client.shown} {version_of(name)}")
    if row.strategy == "compaction":
        variables, arguments, file = OWN_COMPACTION[name]
        client = replace(client, variables=client.variables | variables)

    def run(url: str, shop: Shop, folder: Path) -> str:
        home, work = folder / "home", folder / "work"
        shop.write(work)
        home.mkdir()
        if file:
            (work / "opencode.json").write_text(json.dumps(file))
        return output_of_client(client, place, Run(home, work, url, SHELL_TASK), *arguments)

    return measure(row, "enabled" if with_budget else client.route, run)


def share(rows: Sequence[Row], base: Sequence[Row], value: Callable[[Row], float]) -> str:
    """A sum over rows in percent of that of the rows without memory."""
    total = sum(map(value, base))
    return f"{100 * sum(map(value, rows)) / total:.0f}%" if total else "–"


TITLES = ("calls", "tools", "agent", "frame", "strategy", "requests", "of none", "ids missing", "of needed", "MB",
          "of none", "cached", *(f"$ {name}" for name in PRICE_TABLES), "right", "refused", "s")  # fmt: skip
README = ("agent", "calls", "strategy", "requests", "ids missing a run", "bytes",
          *(f"$ {name}" for name in PRICE_TABLES))  # fmt: skip
SHOWN = {
    "none": "no memory", "memory": "**memory_bank, by the proxy**", "in-process": "**memory_bank, in process**",
    "keep-last": "keep the last 5 interactions", "masking": "older outputs masked",
    "compaction": "the agent's own compaction",
}  # fmt: skip


def cells(rows: Sequence[Row], base: Sequence[Row]) -> list[str]:
    """The figures of runs that differ by their ids alone, as the mean of a run."""
    if rows[0].told:
        return [rows[0].told, *[""] * (len(TITLES) - 6)]
    n = len(rows)
    return [
        f"{sum(r.requests for r in rows) / n:.0f}",
        share(rows, base, lambda r: r.requests),
        f"{sum(r.missing for r in rows) / n:.1f}",
        f"{100 * sum(r.missing for r in rows) / max(1, sum(r.needed for r in rows)):.1f}%",
        f"{sum(r.sent for r in rows) / n / 1e6:.2f}",
        share(rows, base, lambda r: r.sent),
        f"{100 * sum(r.cached for r in rows) / max(1, sum(r.tokens for r in rows)):.0f}%",
        *(share(rows, base, lambda r, t=table: r.dollars[t]) for table in PRICE_TABLES),
        "yes" if all(r.right for r in rows) else "no",
        str(sum(r.refused for r in rows)),
        f"{sum(r.seconds for r in rows) / n:.0f}",
    ]


def readme(rows: Sequence[Row]) -> str:
    """The table of the page: agents by SDKs together, coding agents one by one; means over tools and APIs."""
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        if not row.told:
            groups.setdefault(("SDKs" if row.agent in APIS else row.agent, row.size), []).append(row)
    lines = []
    for (agent, _), own in groups.items():
        for strategy in dict.fromkeys(r.strategy for r in own):
            mine = [r for r in own if r.strategy == strategy]
            base = [r for r in own if r.strategy == "none"]
            figures = [lambda r: r.requests, lambda r: r.sent]
            figures += [lambda r, t=table: r.dollars[t] for table in PRICE_TABLES]
            requests, *shares = (share(mine, base, figure) for figure in figures)
            missing = f"{sum(r.missing for r in mine) / len(mine):.1f}"
            lines.append([agent, str(min(r.calls for r in own)), SHOWN[strategy], requests, missing, *shares])
    return markdown_table(README, lines)


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """The commit, the machine and what was run with."""
    config = load_config()
    served = config.service.strategy or config.default_strategy
    return about(
        counter=open_counter().name,
        seeds=[f"run-{i}" for i in range(args.runs)],
        served=served,
        settings={
            key: config.strategy(key).model_dump(mode="json") for key in {served, config.default_strategy}
        },
        compact_at=COMPACT_AT,
        prices={n: p.model_dump() for n, p in PRICE_TABLES.items()},
        **{"in-process": config.default_strategy},
    )


def planned(args: argparse.Namespace) -> list[tuple[list[Row], Callable[[Row], Row]]]:
    """The rows to measure, those that differ by their ids alone together, and what measures them."""
    seeds = [f"run-{i}" for i in range(args.runs)]
    sdk = [
        ([Row(n, kind, api, s, seed, frame=frame, head=args.head, length=args.length) for seed in seeds], run_sdk)
        for n in args.sizes for kind in args.tools for api in args.apis for frame in args.frame
        for s in args.strategies
        if not args.clients or args.all
        if s != "in-process" or api not in THINKING  # without a request, nothing says how a model thinks
    ]  # fmt: skip
    coding = [
        ([Row(n, "shell", name, s, seed, length=args.length) for seed in seeds], partial(run_coding, name=name))
        for n in args.sizes for name in args.clients for s in ("none", "memory", "compaction") if s in args.strategies
    ]  # fmt: skip
    return [*sdk, *coding]


def main() -> int:
    """Run from the command line; 1 if an agent did not finish its task or was refused a request."""
    parser = command_line(__doc__)
    parser.add_argument(
        "--sizes", nargs="+", type=int, default=SIZES, metavar="N", help="orders of the shops"
    )
    parser.add_argument("--tools", nargs="+", choices=KINDS, default=KINDS[:2])
    parser.add_argument("--apis", nargs="+", choices=APIS, default=("chat", "messages"))
    parser.add_argument(
        "--strategies", nargs="+", choices=STRATEGIES, default=[s for s in STRATEGIES if s != "in-process"]
    )
    parser.add_argument("--clients", nargs="*", choices=CODING, default=(), metavar="NAME",
                        help=f"coding agents instead of SDKs, of {', '.join(CODING)}")  # fmt: skip
    parser.add_argument("--head", type=int, default=0, metavar="N", help="words of the SDKs' task before it")
    parser.add_argument("--length", type=int, default=1, metavar="N", help="times the words of every output")
    parser.add_argument("--frame", nargs="+", choices=[*FRAMES, "all"], default=["none"], metavar="NAME",
                        help=f"what stands around every output: {', '.join(FRAMES)}, all")  # fmt: skip
    parser.add_argument("--all", action="store_true", help="all tools, APIs, strategies and coding agents")
    parser.add_argument("--runs", type=int, default=1, help="runs of each row, with other ids")
    parser.add_argument("--json", type=Path, help="write every run with commit and settings")
    parser.add_argument(
        "--readme", action="store_true", help="print the table of docs/benchmarks/agents.md too"
    )
    args = parser.parse_args()
    if min(args.sizes) < 4:
        parser.error("a shop has at least 4 orders: the fourth is refunded")
    if args.all:
        args.tools, args.apis, args.clients, args.strategies = KINDS, APIS, CODING, STRATEGIES
    if "all" in args.frame:
        args.frame = list(FRAMES)
    made = settings(args)
    for name in ("commit", "machine", "cores", "counter", "seeds", "served", "in-process"):
        print(f"{name}: {made[name]}")
    print("\n" + markdown_table(TITLES, []), flush=True)
    done: list[Row] = []
    bases: dict[tuple[int, str, str, str], list[Row]] = {}
    for rows, run in planned(args):
        rows = [run(row) for row in rows]
        first = rows[0]
        if first.strategy == "none":
            bases[first.size, first.kind, first.agent, first.frame] = rows
        base = bases.get((first.size, first.kind, first.agent, first.frame), [])
        shown = [str(first.calls), first.kind, first.agent, first.frame, first.strategy, *cells(rows, base)]
        print(f"| {' | '.join(shown)} |", flush=True)
        done += rows
    if args.readme:
        print("\n" + readme(done))
    if args.json:
        args.json.write_text(json.dumps(made | {"rows": [asdict(r) for r in done]}, indent=1))
    return int(any(not r.told and (not r.right or r.refused) for r in done))


if __name__ == "__main__":
    sys.exit(main())
