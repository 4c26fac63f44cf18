"""Whole agents with memory and without: requests, ids missing, bytes and dollars of the same task.

    python benchmarks/agents.py                  # by SDKs: three shops, two kinds of tools, two APIs; a few minutes
    python benchmarks/agents.py --all --json agents.json --readme                    # everything
    python benchmarks/agents.py --clients claude-code codex opencode --sizes 12 --tools shell

An agent looks at every order of a customer, tracks every shipment and refunds two orders: 12 orders are 27 calls, 30
are 63, 60 are 123, with outputs of 2 to 3 kB and ids that differ by run. Its tools are those of the shop ("native"),
one shell ("shell"), or files that it lists, reads and writes, a report among them ("files"). The agents are loops of
the SDKs openai (chat, responses) and anthropic (messages with cache marks at the system prompt and the last message as
Claude Code sets them; unmarked without), and coding agents from npm with their shell (``--clients``).

The model is a scripted server that is strict about calls and results. It uses only ids that stand in its request. An
id that it needs and does not find counts as missing, once a step; it then asks ``get_record`` where that is offered
and the request names the record, and makes the look-up again where not. Each of these is a request more.

The server's prefix cache (``memory_bank.lab.costs.PrefixCache``) decides what is charged at which price, and its
answers report that usage. Percentages are of the run without memory of the same agent and API.

``none``: no memory. ``memory``: `memory-bank serve` as it ships. ``in-process``: ``MemoryProcessor()`` in the agent's
own process. ``keep-last`` and ``masking``: the service with these strategies. ``compaction``: the agent's own, a
summary of about 1,500 tokens with the newest ids, asked for when a request had more than 16,000 tokens (a coding
agent's own: as it does it, with a limit of 16,000 tokens above its first request).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from clients import CLIENTS, SHELLS, Run, output_of_client, place_of, serving, tool_names, version_of
from memory_bank import MemoryProcessor, load_config
from memory_bank.lab.costs import PRICE_TABLES, PrefixCache
from memory_bank.lab.tables import markdown_table
from memory_bank.pricing import Usage, cost
from memory_bank.testing import Reply, ScriptedServer, calls, say
from memory_bank.transcript import open_counter
from memory_bank.transcript.responses import from_items, to_items

ROOT = Path(__file__).resolve().parents[1]
SIZES = (12, 30, 60)
KINDS = ("native", "shell", "files")
APIS = ("chat", "responses", "messages", "unmarked")
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
SUMMARISE = "Write a summary of this conversation with everything that is needed to go on with the task."
SUMMARY_WORDS, SUMMARY_IDS = 1_000, 24
MOST_ATTEMPTS = 8
"""Requests by which the model tries to find the ids of one turn before it gives up."""
ID = re.compile(r"\b(?:ORD|PAY|SHP|REF|CUS)-[A-Z0-9]{6,}\b")
WORDS = (
    "parcel depot shelf customs fragile carton lane bay dock signed gate driver route scanned pallet night weekend "
    "label torn bonded hub van north late returned sorted"
).split()

Lookup = tuple[str, ...]
"""A verb of the shop and its arguments."""


class Shop:
    """The orders of a customer, with ids and texts that depend on the seed alone."""

    def __init__(self, seed: str, size: int) -> None:
        self.seed = seed
        self.customer = self._id("CUS", 0)
        self.orders, self.payments, self.shipments, self.refunds = (
            [self._id(kind, n) for n in range(size)] for kind in ("ORD", "PAY", "SHP", "REF")
        )

    def _rng(self, *what: object) -> random.Random:
        return random.Random(f"{self.seed} {what}")

    def _id(self, kind: str, number: int) -> str:
        return f"{kind}-" + "".join(self._rng(kind, number).choices("ABCDEFGHJKLMNPQRSTUVWXYZ23456789", k=8))

    def _text(self, words: int, *what: object) -> str:
        return " ".join(self._rng(*what).choices(WORDS, k=words))

    def answer(self, verb: str, *given: str) -> str:
        """The output of a call; an error for ids that do not exist or belong together."""
        try:
            return json.dumps(getattr(self, f"_{verb}")(*given), indent=1)
        except (AttributeError, TypeError, ValueError):
            return json.dumps({"error": f"{verb} {' '.join(given)}: no such thing"})

    def _list_orders(self) -> dict[str, Any]:
        rows = [
            {"order_id": o, "total": 10.5 * (i + 1), "status": "shipped", "note": self._text(20, "note", i)}
            for i, o in enumerate(self.orders)
        ]
        return {"customer_id": self.customer, "orders": rows}

    def _get_order(self, order: str) -> dict[str, Any]:
        i = self.orders.index(order)
        items = [
            {"sku": self._id("SKU", 10 * i + k), "count": k + 1, "text": self._text(28, "item", i, k)}
            for k in range(6)
        ]
        payment = {"payment_id": self.payments[i], "method": "card", "captured": True}
        return {
            "order_id": order, "customer_id": self.customer, "items": items, "payment": payment,
            "shipment_id": self.shipments[i], "history": [self._text(22, "past", i, k) for k in range(6)],
        }  # fmt: skip

    def _track(self, shipment: str) -> dict[str, Any]:
        i = self.shipments.index(shipment)
        events = [
            {"day": f"2026-05-{k + 1:02d}", "place": self._id("HUB", 20 * i + k), "text": self._text(20, "event", i, k)}
            for k in range(12)
        ]  # fmt: skip
        return {"shipment_id": shipment, "carrier": "Zephyr", "events": events}

    def _refund(self, order: str, payment: str) -> dict[str, Any]:
        i = self.orders.index(order)
        if payment != self.payments[i]:
            raise ValueError(payment)
        log = self._text(280, "refund", i)
        return {"refund_id": self.refunds[i], "order_id": order, "status": "done", "log": log}

    def _report(self, *ids: str) -> dict[str, Any]:
        return {"path": "report.md", "written": True, "ids": len(ids)}

    def turns(self, kind: str) -> list[list[Lookup]]:
        """The calls that the task takes, turn by turn; with files a report is written and written anew."""
        first, fourth = 0, 3
        refunds = [("refund", self.orders[i], self.payments[i]) for i in (first, fourth)]
        before = [self.customer, self.payments[first], self.payments[fourth]]
        after = [*before, self.refunds[first], self.refunds[fourth]]
        files = kind == "files"
        return [
            [("list_orders",)],
            *([("get_order", o)] for o in self.orders),
            *([[("report", *before)]] if files else []),
            *([("track", s)] for s in self.shipments),
            list(refunds),
            *([[("report", *after)]] if files else []),
        ]

    def final(self) -> tuple[str, ...]:
        """The ids of the answer."""
        return self.customer, self.refunds[0], self.refunds[3]

    def source(self, found: str) -> Lookup:
        """The call whose output shows an id first."""
        kind = found.partition("-")[0]
        if kind in ("CUS", "ORD"):
            return ("list_orders",)
        if kind == "REF":
            i = self.refunds.index(found)
            return ("refund", self.orders[i], self.payments[i])
        return ("get_order", self.orders[(self.payments if kind == "PAY" else self.shipments).index(found)])

    def write(self, folder: Path) -> None:
        """The command ./shop in a folder, for agents with a real shell: it prints outputs made beforehand."""
        folder.mkdir(parents=True)
        (folder / ".shop").mkdir()
        for verb, *given in {c for turn in self.turns("shell") for c in turn}:
            (folder / ".shop" / "_".join([verb, *given])).write_text(self.answer(verb, *given) + "\n")
        script = '#!/bin/sh\nIFS=_\ncat "$(dirname "$0")/.shop/$*"\n'
        (folder / "shop").write_text(script)
        (folder / "shop").chmod(0o755)


TOOLS: dict[str, dict[str, tuple[str, tuple[str, ...]]]] = {
    "native": {
        "list_orders": ("All orders of the customer", ()),
        "get_order": ("One order", ("order_id",)),
        "track": ("One shipment", ("shipment_id",)),
        "refund": ("Pay an order back", ("order_id", "payment_id")),
    },
    "shell": {"bash": ("Run a command", ("command",))},
    "files": {
        "list_files": ("The files of the orders, with what they hold", ()),
        "read_file": ("A file", ("path",)),
        "write_file": ("Write a file; one in refunds/ pays an order back", ("path", "content")),
    },
}
"""Tools by kind: description and parameters, all of them text."""
FOLDERS = {"get_order": "orders", "track": "shipments"}


def encode(kind: str, verb: str, *given: str) -> tuple[str, dict[str, Any]]:
    """A look-up as a call of a tool: its name and its arguments."""
    if kind == "native":
        return verb, dict(zip(TOOLS[kind][verb][1], given, strict=True))
    if kind == "shell":
        return "bash", {"command": shlex.join(["./shop", verb, *given])}
    if verb == "list_orders":
        return "list_files", {}
    if verb in FOLDERS:
        return "read_file", {"path": f"{FOLDERS[verb]}/{given[0]}.json"}
    if verb == "refund":
        content = json.dumps({"order_id": given[0], "payment_id": given[1]})
        return "write_file", {"path": f"refunds/{given[0]}.json", "content": content}
    lines = ["# Report", *(f"- {i}: checked against the order and its shipment" for i in given)]
    return "write_file", {"path": "report.md", "content": "\n".join(lines)}


def run_tool(shop: Shop, kind: str, tool: str, arguments: dict[str, Any]) -> str:
    """What a call of a tool returns."""
    if kind == "native":
        return shop.answer(tool, *arguments.values())
    if kind == "shell":
        return shop.answer(*shlex.split(arguments["command"])[1:])
    folder, _, name = arguments.get("path", "").partition("/")
    verb = {"orders": "get_order", "shipments": "track"}.get(folder)
    if verb:
        return shop.answer(verb, name.removesuffix(".json"))
    if folder == "refunds":
        return shop.answer("refund", *json.loads(arguments["content"]).values())
    return shop.answer("report", *ID.findall(arguments["content"])) if folder else shop.answer("list_orders")


class Upstream:
    """The scripted model of one run and its prefix cache: answers requests, counts what they took and lacked.

    ``kind`` and ``api``: of the agent; ``usage``: of every request; ``needed`` and ``missing``: ids by turn.
    """

    def __init__(self, shop: Shop, kind: str, api: str) -> None:
        self.shop, self.kind, self.api = shop, kind, api
        self.usage: list[Usage] = []
        self.needed: set[tuple[int, str]] = set()
        self.missing: set[tuple[int, str]] = set()
        self._turns = shop.turns(kind)
        self._at = 0
        self._attempts = 0
        self._asked: set[tuple[int, str]] = set()
        self._numbers: dict[Lookup, int] = {}  # the latest record of a look-up
        self._calls = 0
        self._rng = random.Random(shop.seed)
        self._counter = open_counter()
        self._tokens: dict[str, int] = {}
        self._cache = PrefixCache(self._counter)

    def __call__(self, body: dict[str, Any]) -> Reply:
        """The reply to a request, with the usage of the cache."""
        parts, marks = parts_of(body, self.api)
        used = self._cache.add([(p, self._count(p)) for p in parts], marks)
        reply = self._reply(parts[1:], tool_names(body))
        made = [reply.content or "", *(name + json.dumps(given) for name, given, *_ in reply.tool_calls)]
        used = replace(used, output=sum(map(self._counter.count_text, made)))
        self.usage.append(used)
        return replace(reply, usage=(used.input, used.output), cached=(used.cached, used.written))

    def _count(self, text: str) -> int:
        if text not in self._tokens:
            self._tokens[text] = self._counter.count_text(text) + 4
        return self._tokens[text]

    def _reply(self, parts: Sequence[str], offered: set[str]) -> Reply:
        text = "\n".join(parts)
        if is_summary_request(parts[-1]):
            return say(self._summary(text))
        tool = self._tool(offered)
        if tool is None:
            return say("Orders of a customer")  # a title
        turn = self._turns[self._at] if self._at < len(self._turns) else []
        ids = [i for _, *given in turn for i in given] if turn else [*self.shop.final()]
        lacking = self._lacking(ids, text)
        if not lacking or self._attempts > MOST_ATTEMPTS:
            self._at += 1
            self._attempts = 0
            return self._call(tool, turn) if turn and not lacking else say(self._answer(text))
        self._attempts += 1
        asked = self._record_calls(lacking, text, offered)
        if asked:
            return calls(*asked)
        return self._call(tool, self._lookups(lacking, text))

    def _lacking(self, ids: Iterable[str], text: str) -> list[str]:
        """The ids that do not stand in a request; they are counted once a turn."""
        found = {(self._at, i) for i in ids}
        self.needed |= found
        lacking = {i for _, i in found if i not in text}
        self.missing |= {(self._at, i) for i in lacking}
        return sorted(lacking)

    def _record_calls(
        self, lacking: Sequence[str], text: str, offered: set[str]
    ) -> list[tuple[str, Any, str]]:
        """Calls of get_record for the records of these ids that the request names, each once a turn."""
        made: dict[int, tuple[str, Any, str]] = {}
        for i in lacking if "get_record" in offered else ():
            number = self._numbers.get(self.shop.source(i), 0)
            if re.search(rf"#{number}\b", text) and (self._at, i) not in self._asked:
                self._asked.add((self._at, i))
                given = {"trace_id": f"#{number}", "path": None, "lines": None, "pattern": None}
                made[number] = ("get_record", given, self._call_id())
        return [*made.values()]

    def _lookups(self, lacking: Sequence[str], text: str) -> list[Lookup]:
        """The calls that bring these ids and whose own ids stand in the request."""
        made: dict[Lookup, None] = {}
        for i in lacking:
            source = self.shop.source(i)
            below = self._lacking(source[1:], text)
            made |= dict.fromkeys(self._lookups(below, text) if below else [source])
        return [*made]

    def _tool(self, offered: set[str]) -> str | None:
        """The tool to call: of the kind, or the shell of a coding agent."""
        own = [t for t in TOOLS[self.kind] if t in offered]
        return next((t for t in SHELLS if t in offered), None) if self.kind == "shell" else (own or [None])[0]

    def _call(self, tool: str, lookups: Iterable[Lookup]) -> Reply:
        made = []
        for lookup in lookups:
            name, arguments = encode(self.kind, *lookup)
            if self.kind == "shell":
                name, arguments = tool, SHELLS[tool](arguments["command"])
            self._calls += 1
            self._numbers[lookup] = self._calls
            made.append((name, arguments, self._call_id()))
        return calls(*made, content=None if self._at % 3 else f"Step {self._at} is done; on to the next one.")

    def _call_id(self) -> str:
        prefix, length = ("toolu_01", 22) if self.api in ("messages", "unmarked") else ("call_", 24)
        return prefix + "".join(
            self._rng.choices("abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789", k=length)
        )

    def _answer(self, text: str) -> str:
        customer, *refunds = (i if i in text else "unknown" for i in self.shop.final())
        return f"Refunds of {customer}: {' and '.join(refunds)}."

    def _summary(self, text: str) -> str:
        newest = list(dict.fromkeys(reversed(ID.findall(text))))[:SUMMARY_IDS]
        return " ".join(["Ids of the latest steps:", *newest, *self._rng.choices(WORDS, k=SUMMARY_WORDS)])


def is_summary_request(last: str) -> bool:
    """Whether a request's last part asks for a summary of the conversation."""
    return SUMMARISE in last


def parts_of(body: dict[str, Any], api: str) -> tuple[list[str], list[int] | None]:
    """A request as texts in the order of the provider's prefix: tools, system, messages; and its cache marks.

    A part is a message, an item, or a block of the Messages API.
    """
    parts = [flat(body.get("tools"))]
    if api == "chat":
        return [*parts, *map(flat, body["messages"])], None
    if api == "responses":
        given = body["input"] if isinstance(body["input"], list) else [body["input"]]
        return [*parts, flat(body.get("instructions")), *map(flat, given)], None
    marks = [1] if any("cache_control" in t for t in body.get("tools") or ()) else []
    for role, content in (
        ("system", body.get("system") or ""),
        *((m["role"], m["content"]) for m in body["messages"]),
    ):
        for block in content if isinstance(content, list) else [content]:
            parts.append(f"{role} {flat(block)}")
            if isinstance(block, dict) and "cache_control" in block:
                marks.append(len(parts))
    return parts, marks


def flat(value: Any) -> str:
    """The texts of a JSON value with their names, in order, without cache marks."""
    if isinstance(value, dict):
        return "\n".join(f"{k}: {flat(v)}" for k, v in value.items() if k != "cache_control")
    return "\n".join(map(flat, value)) if isinstance(value, list) else str(value)


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

        self.client: Any = openai.OpenAI(
            base_url=f"{url}/v1", api_key="sk-scripted", max_retries=0, timeout=120
        )

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
        return Turn(
            [said.model_dump(exclude_none=True)], said.content or "", made, answer.usage.prompt_tokens
        )

    def results(self, outputs: list[tuple[str, str]]) -> list[Any]:
        """Messages with the outputs of calls, by the ids of these."""
        return [{"role": "tool", "tool_call_id": i, "content": output} for i, output in outputs]


class ResponsesAgent(ChatAgent):
    """An agent by the SDK openai and the Responses API; it keeps the items itself."""

    def opening(self, task: str) -> list[Any]:
        return [self.said(task)]

    def schema(self, name: str, description: str, parameters: dict[str, Any]) -> dict[str, Any]:
        return {
            "type": "function",
            "name": name,
            "description": description,
            "parameters": parameters,
            "strict": False,
        }

    def rebuilt(self, history: list[Any], memory: MemoryProcessor) -> list[Any]:
        chat = from_items(history)
        return to_items(super().rebuilt(chat.messages, memory), chat)

    def ask(self, history: list[Any], tools: list[Any]) -> Turn:
        answer = self.client.responses.create(
            model=MODEL, instructions=SYSTEM, input=history, tools=tools, store=False
        )
        items = [item.model_dump(exclude_none=True) for item in answer.output]
        made = [
            (i["call_id"], i["name"], json.loads(i["arguments"]))
            for i in items
            if i["type"] == "function_call"
        ]
        return Turn(items, answer.output_text, made, answer.usage.input_tokens)

    def results(self, outputs: list[tuple[str, str]]) -> list[Any]:
        return [{"type": "function_call_output", "call_id": i, "output": output} for i, output in outputs]


class MessagesAgent(ChatAgent):
    """An agent by the SDK anthropic, streamed. ``marked``: the system prompt and the last message are cached."""

    marked = True

    def __init__(self, url: str) -> None:
        import anthropic

        self.client = anthropic.Anthropic(base_url=url, api_key="sk-scripted", max_retries=0, timeout=120)

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
        with self.client.messages.stream(**asked) as stream:
            answer = stream.get_final_message()
        blocks = [
            b.model_dump(include={"type", "text", "id", "name", "input"}, exclude_none=True)
            for b in answer.content
        ]
        used = answer.usage
        tokens = (
            used.input_tokens + (used.cache_read_input_tokens or 0) + (used.cache_creation_input_tokens or 0)
        )
        text = "".join(b.get("text", "") for b in blocks)
        made = [(b["id"], b["name"], b["input"]) for b in blocks if b["type"] == "tool_use"]
        return Turn([{"role": "assistant", "content": blocks}], text, made, tokens)

    def results(self, outputs: list[tuple[str, str]]) -> list[Any]:
        blocks = [{"type": "tool_result", "tool_use_id": i, "content": output} for i, output in outputs]
        return [{"role": "user", "content": blocks}]


class UnmarkedAgent(MessagesAgent):
    """The same without cache marks."""

    marked = False


CODING = ("claude-code", "codex", "opencode")
AGENTS = dict(zip(APIS, (ChatAgent, ResponsesAgent, MessagesAgent, UnmarkedAgent), strict=True))


def run_agent(agent: ChatAgent, shop: Shop, kind: str, strategy: str) -> str:
    """Do the task; the agent's answer."""
    memory = MemoryProcessor() if strategy == "in-process" else None
    opening = agent.opening(SHELL_TASK if kind == "shell" else TASK)
    history = list(opening)
    tools = [
        agent.schema(name, told, {
            "type": "object", "properties": {p: {"type": "string"} for p in names}, "required": list(names),
        })
        for name, (told, names) in TOOLS[kind].items()
    ]  # fmt: skip
    while True:
        turn = agent.ask(agent.rebuilt(history, memory) if memory else history, tools)
        if not turn.calls:
            return turn.text
        latest = turn.added + agent.results(
            [(i, run_tool(shop, kind, t, given)) for i, t, given in turn.calls]
        )
        history += latest
        if strategy == "compaction" and turn.tokens > COMPACT_AT:
            summary = agent.ask([*history, agent.said(SUMMARISE)], tools).text
            history = [*opening, agent.said(f"Summary of what was done:\n{summary}"), *latest]


@dataclass
class Row:
    """What became of a run: ``told`` says why there is none. ``dollars``: for a million runs, by price table."""

    size: int
    kind: str
    agent: str
    strategy: str
    seed: str
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

    @property
    def calls(self) -> int:
        """The calls that the task takes."""
        return 2 * self.size + (5 if self.kind == "files" else 3)


def measure(row: Row, run: Callable[[ScriptedServer, Upstream, Shop, Path], str], api: str) -> Row:
    """Fill a row by a run, which returns the agent's answer."""
    shop = Shop(row.seed, row.size)
    upstream = Upstream(shop, row.kind, api)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="agents-") as folder:
        with ScriptedServer(upstream, models=(MODEL, "gpt-5", "claude-sonnet-4-5")) as server:
            answer = run(server, upstream, shop, Path(folder))
    paths = ("/chat/completions", "/responses", "/messages")
    asked = [r for r in server.requests if r.method == "POST" and r.path.partition("?")[0].endswith(paths)]
    row.requests, row.sent = len(asked), sum(len(r.data) for r in asked)
    row.needed, row.missing = len(upstream.needed), len(upstream.missing)
    row.tokens, row.cached = sum(u.input for u in upstream.usage), sum(u.cached for u in upstream.usage)
    row.dollars = {name: sum(cost(u, p) for u in upstream.usage) for name, p in PRICE_TABLES.items()}
    row.refused = len(server.refused)
    row.right = all(i in answer for i in shop.final())
    row.seconds = time.perf_counter() - began
    return row


def run_sdk(row: Row) -> Row:
    """A row of an agent by an SDK."""

    def run(server: ScriptedServer, _upstream: Upstream, shop: Shop, folder: Path) -> str:
        with ExitStack() as stack:
            url = server.base_url.removesuffix("/v1")
            if row.strategy in SERVED:
                served = serving(server, folder / "bank.db", **_strategy(row.strategy))
                url, _ = stack.enter_context(served)
            return run_agent(AGENTS[row.agent](url), shop, row.kind, row.strategy)

    try:
        return measure(row, run, row.agent)
    except ImportError as e:
        return replace(row, told=f"{e.name} is not installed")


def _strategy(strategy: str) -> dict[str, str]:
    """The setting of the service for a strategy; nothing for the shipped one."""
    return {"strategy": SERVED[strategy]} if SERVED[strategy] else {}


def run_client(row: Row, name: str) -> Row:
    """A row of a coding agent from npm, with its own shell."""
    client = CLIENTS[name]
    if not (place_of(name) / ".ready").exists():
        return replace(row, told=f"not installed: python benchmarks/clients.py {name} installs it")
    row.agent = f"{client.shown} {version_of(name)}"

    def run(server: ScriptedServer, _upstream: Upstream, shop: Shop, folder: Path) -> str:
        shop.write(folder / "work")
        (folder / "home").mkdir()
        with ExitStack() as stack:
            url = server.base_url.removesuffix("/v1")
            if row.strategy in SERVED:
                served = serving(server, folder / "bank.db", **_strategy(row.strategy))
                url, _ = stack.enter_context(served)
            return output_of_client(
                client, place_of(name), Run(folder / "home", folder / "work", url, SHELL_TASK)
            )

    return measure(row, run, client.route)


def share(rows: Sequence[Row], base: Sequence[Row], value: Callable[[Row], float]) -> str:
    """A sum over rows in percent of that of the rows without memory."""
    total = sum(map(value, base))
    return f"{100 * sum(map(value, rows)) / total:.0f}%" if total else "–"


TITLES = ("calls", "tools", "agent", "strategy", "requests", "of none", "ids missing", "of needed", "MB", "of none",
          "cached", *(f"$ {name}" for name in PRICE_TABLES), "right", "4xx", "s")  # fmt: skip
README = (
    "agent",
    "calls",
    "strategy",
    "requests",
    "ids missing a run",
    "bytes",
    *(f"$ {n}" for n in PRICE_TABLES),
)
SHOWN = {
    "none": "no memory", "memory": "**memory_bank, by the proxy**", "in-process": "**memory_bank, in process**",
    "keep-last": "keep the last 5 interactions", "masking": "older outputs masked",
    "compaction": "the agent's own compaction",
}  # fmt: skip


def cells(rows: Sequence[Row], base: Sequence[Row]) -> list[str]:
    """The figures of runs that differ by their ids alone, as the mean of a run."""
    if rows[0].told:
        return [rows[0].told, *[""] * (len(TITLES) - 5)]
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
    """The README's table: agents by SDKs together, coding agents one by one; means over tools and APIs."""
    lines = []
    groups = {
        (r.agent if r.agent not in APIS else "SDKs", r.size, r.strategy): None for r in rows if not r.told
    }
    for agent, size, strategy in groups:
        own = [
            r
            for r in rows
            if not r.told and r.size == size and (r.agent == agent or r.agent in APIS and agent == "SDKs")
        ]
        mine = [r for r in own if r.strategy == strategy]
        keys = {(r.kind, r.agent, r.seed) for r in mine}
        base = [r for r in own if r.strategy == "none" and (r.kind, r.agent, r.seed) in keys]
        missing = f"{sum(r.missing for r in mine) / len(mine):.1f}"
        told = [missing, share(mine, base, lambda r: r.sent)]
        told += [share(mine, base, lambda r, t=table: r.dollars[t]) for table in PRICE_TABLES]
        number = f"{min(r.calls for r in mine)}"
        lines.append([agent, number, SHOWN[strategy], share(mine, base, lambda r: r.requests), *told])
    return markdown_table(README, lines)


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """The commit, the machine and what was run with."""
    git = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False, cwd=ROOT)
    config = load_config()
    return {
        "commit": git.stdout.strip(), "python": platform.python_version(), "machine": platform.machine(),
        "cores": os.cpu_count(), "counter": open_counter().name, "seeds": [f"run-{i}" for i in range(args.runs)],
        "served": config.service.strategy or config.default_strategy, "in-process": config.default_strategy,
        "settings": {
            key: config.strategy(key).model_dump(mode="json")
            for key in {config.service.strategy or config.default_strategy, config.default_strategy}
        },
        "compact_at": COMPACT_AT,
        "prices": {n: p.model_dump() for n, p in PRICE_TABLES.items()},
    }  # fmt: skip


def planned(args: argparse.Namespace) -> list[tuple[list[Row], Callable[[Row], Row]]]:
    """The rows to measure, those that differ by their ids alone together, and what measures them."""
    seeds = [f"run-{i}" for i in range(args.runs)]
    sdk = [
        ([Row(n, kind, api, s, seed) for seed in seeds], run_sdk)
        for n in args.sizes for kind in args.tools for api in args.apis for s in args.strategies
        if not args.clients or args.all
    ]  # fmt: skip
    coding = [
        ([Row(n, "shell", CLIENTS[name].shown, s, seed) for seed in seeds], partial(run_client, name=name))
        for n in args.sizes for name in args.clients for s in ("none", "memory", "compaction") if s in args.strategies
    ]  # fmt: skip
    return [*sdk, *coding]


def main() -> int:
    """Run from the command line; 1 if an agent did not finish its task or was refused a request."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--sizes", nargs="+", type=int, default=SIZES, metavar="N", help="orders of the shops"
    )
    parser.add_argument("--tools", nargs="+", choices=KINDS, default=KINDS[:2])
    parser.add_argument("--apis", nargs="+", choices=APIS, default=("chat", "messages"))
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=STRATEGIES)
    parser.add_argument("--clients", nargs="*", choices=CODING, default=(), metavar="NAME",
                        help=f"coding agents instead of SDKs, of {', '.join(CODING)}")  # fmt: skip
    parser.add_argument("--all", action="store_true", help="all tools, APIs and coding agents")
    parser.add_argument("--runs", type=int, default=1, help="runs of each row, with other ids")
    parser.add_argument("--json", type=Path, help="write every run with commit and settings")
    parser.add_argument("--readme", action="store_true", help="print the table of the README too")
    args = parser.parse_args()
    if min(args.sizes) < 4:
        parser.error("a shop has at least 4 orders: the fourth is refunded")
    if args.all:
        args.tools, args.apis, args.clients = KINDS, APIS, CODING
    about = settings(args)
    for name in ("commit", "machine", "cores", "counter", "seeds", "served", "in-process"):
        print(f"{name}: {about[name]}")
    print("\n" + markdown_table(TITLES, []), flush=True)
    done: list[Row] = []
    bases: dict[tuple[int, str, str], list[Row]] = {}
    for rows, run in planned(args):
        rows = [run(row) for row in rows]
        first = rows[0]
        if first.strategy == "none":
            bases[first.size, first.kind, first.agent] = rows
        base = bases.get((first.size, first.kind, first.agent), [])
        shown = [str(first.calls), first.kind, first.agent, first.strategy, *cells(rows, base)]
        print(f"| {' | '.join(shown)} |", flush=True)
        done += rows
    if args.readme:
        print("\n" + readme(done))
    if args.json:
        args.json.write_text(json.dumps(about | {"rows": [asdict(r) for r in done]}, indent=1))
    return int(any(not r.told and (not r.right or r.refused) for r in done))


if __name__ == "__main__":
    sys.exit(main())
