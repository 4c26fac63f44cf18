"""What stands behind the agents of ``agents.py``: the shop, its tools, the scripted model and its prefix cache."""

from __future__ import annotations

import json
import random
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from clients import SHELLS, tool_names
from memory_bank.audit.costs import Part, ScriptedCache
from memory_bank.pricing import Usage
from memory_bank.testing import Reply, calls, say
from memory_bank.transcript import TokenCounter, open_counter

SUMMARISE = "Write a summary of this conversation with everything that is needed to go on with the task."
ASKS_SUMMARY = re.compile(
    rf"{SUMMARISE}|create a detailed summary of|CONTEXT CHECKPOINT COMPACTION|anchored summary", re.I
)
"""The last part of a request for a summary, by the agents of SDKs, Claude Code, Codex and opencode."""
SUMMARY_WORDS, SUMMARY_IDS = 1_000, 24
THOUGHT_WORDS = 120
MOST_ATTEMPTS = 8
"""Requests by which the model tries to find the ids of one turn before it gives up."""
ID = re.compile(r"\b(?:ORD|PAY|SHP|REF|CUS)-[A-Z0-9]{6,}\b")
WORDS = [
    "parcel", "depot", "shelf", "customs", "fragile", "carton", "lane", "bay", "dock", "signed", "gate", "driver",
    "route", "scanned", "pallet", "night", "weekend", "label", "torn", "bonded", "hub", "van", "north", "late",
]  # fmt: skip

Lookup = tuple[str, ...]
"""A verb of the shop and its arguments."""


class Shop:
    """The orders of a customer, with ids and texts that depend on the seed alone.

    ``head``: so many words that stand before the task. ``length``: how many times the words of an output come.
    """

    def __init__(self, seed: str, size: int, head: int = 0, length: int = 1) -> None:
        self.seed = seed
        self.length = length
        self.head = " ".join(self._rng("head").choices(WORDS, k=head)) + "\n" if head else ""
        self.customer = self._id("CUS", 0)
        self.orders, self.payments, self.shipments, self.refunds = (
            [self._id(kind, n) for n in range(size)] for kind in ("ORD", "PAY", "SHP", "REF")
        )

    def _rng(self, *what: object) -> random.Random:
        return random.Random(f"{self.seed} {what}")

    def _id(self, kind: str, number: int) -> str:
        return f"{kind}-" + "".join(self._rng(kind, number).choices("ABCDEFGHJKLMNPQRSTUVWXYZ23456789", k=8))

    def _text(self, words: int, *what: object) -> str:
        return " ".join(self._rng(*what).choices(WORDS, k=words * self.length))

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
        days = [f"2026-05-{k + 1:02d}" for k in range(12)]
        events = [
            {"day": day, "place": self._id("HUB", 20 * i + k), "text": self._text(20, "event", i, k)}
            for k, day in enumerate(days)
        ]
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
FRAMES: dict[str, Callable[[str], str]] = {
    "none": lambda text: text,
    "qwen-code": lambda text: (
        f"Command: ./shop\nDirectory: (root)\nOutput: {text}\nError: (none)\nExit Code: 0\nSignal: (none)\n"
        f"Background PIDs: (none)\nProcess Group PGID: {3000 + len(text)}"
    ),
    "codex": lambda text: (
        f"Chunk ID: {len(text):06x}\nWall time: 0.{len(text):04d} seconds\nProcess exited with code 0\n"
        f"Original token count: {len(text) // 4}\nOutput:\n{text}"
    ),
    "openhands": lambda text: (
        f"{text}\n[The command completed with exit code 0.]\n[Current working directory: /workspace]\n"
        "[Command finished with exit code 0]"
    ),
    "mini-swe-agent": lambda text: f"<returncode>0</returncode>\n<output>\n{text}\n</output>",
    "line-after": lambda text: f"{text}\nexit code: 0",
    "fence": lambda text: f"Here are the results:\n```json\n{text}\n```",
    "stdout": lambda text: json.dumps({"stdout": f"{text}\n", "stderr": "", "exit_code": 0}),
    "mcp": lambda text: json.dumps([{"type": "text", "text": text}]),
    "mcp-stdout": lambda text: FRAMES["mcp"](FRAMES["stdout"](text)),
}
"""What clients put around an output."""
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


class MarkedCache(ScriptedCache):
    """The same by the marks of the Messages API: only the prefixes that they end are written, and read."""

    LOOKBACK = 20
    """Parts before a mark at which a kept prefix is found."""

    def __init__(self, counter: TokenCounter) -> None:
        super().__init__(counter)
        self._kept: set[int] = set()  # hashes of prefixes that end at a mark

    def add_marked(self, parts: Sequence[Part], marks: Sequence[int]) -> Usage:
        """The usage of the next request; ``marks`` are the numbers of parts that the prefixes to keep have.

        What stands after the last mark is neither read nor written.
        """
        sizes = list(accumulate((tokens for _, tokens in parts), initial=0))
        prefixes = list(accumulate((text for text, _ in parts), lambda h, text: hash((h, text)), initial=0))
        places = {p for mark in marks for p in range(max(1, mark - self.LOOKBACK + 1), mark + 1)}
        read = max((sizes[p] for p in places if prefixes[p] in self._kept), default=0)
        ends = [m for m in marks if m and sizes[m] >= self.minimum]
        self._kept.update(prefixes[m] for m in ends)
        return Usage(sizes[-1], read, max(0, max((sizes[m] for m in ends), default=0) - read))


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
        self._cache = MarkedCache(self._counter)

    def __call__(self, body: dict[str, Any]) -> Reply:
        """The reply to a request, with the usage of the cache."""
        parts, marks = parts_of(body, self.api)
        counted = [(p, self._count(p)) for p in parts]
        used = self._cache.add(counted) if marks is None else self._cache.add_marked(counted, marks)
        reply = self._reply(parts[1:], tool_names(body))
        if body.get("thinking"):
            reply = replace(reply, reasoning=" ".join(self._rng.choices(WORDS, k=THOUGHT_WORDS)))
        made = [name + json.dumps(given) for name, given, *_ in reply.tool_calls]
        made += [reply.reasoning or "", reply.content or ""]
        used = replace(used, output=sum(map(self._counter.count_text, made)))
        self.usage.append(used)
        return replace(reply, usage=(used.input, used.output), cached=(used.cached, used.written))

    def _count(self, text: str) -> int:
        if text not in self._tokens:
            self._tokens[text] = self._counter.count_text(text) + 4
        return self._tokens[text]

    def _reply(self, parts: Sequence[str], offered: set[str]) -> Reply:
        text = "\n".join(parts)
        if ASKS_SUMMARY.search(parts[-1]):
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
                given = {"record": f"#{number}", "path": None, "lines": None, "pattern": None}
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
        prefix, length = ("toolu_01", 22) if self.api not in ("chat", "responses") else ("call_", 24)
        return prefix + "".join(
            self._rng.choices("abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789", k=length)
        )

    def _answer(self, text: str) -> str:
        customer, *refunds = (i if i in text else "unknown" for i in self.shop.final())
        return f"Refunds of {customer}: {' and '.join(refunds)}."

    def _summary(self, text: str) -> str:
        newest = list(dict.fromkeys(reversed(ID.findall(text))))[:SUMMARY_IDS]
        return " ".join(["Ids of the latest steps:", *newest, *self._rng.choices(WORDS, k=SUMMARY_WORDS)])


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
    system = {"role": "system", "content": body.get("system") or ""}
    for role, content in ((m["role"], m["content"]) for m in (system, *body["messages"])):
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
