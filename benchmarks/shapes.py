"""Shapes of conversations that clients bring: dollars beside no memory, prefixes, refusals, records of others.

``python benchmarks/shapes.py [NAME …]`` sends each shape once to a scripted upstream and once through the service as
it ships. A shape is a list of requests, which do not depend on the answers. **$**: of no memory, by the prefix cache
of ``agents.py`` for each model, at listed prices (of OpenAI and Anthropic); **worst**: the same
after the request at which it is largest. **prefix**: requests that do not begin as the conversation's one before,
without and with memory. **foreign**: requests that hold a value which only another conversation, or an undone part of
the same one, has read. **last**: what became of the last request.
"""

from __future__ import annotations

import json
import re
import sqlite3
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

from agents_model import MarkedCache, parts_of
from clients import serving
from harness import command_line
from measuring.tables import markdown_table
from memory_bank.pricing import cost, known_price
from memory_bank.testing import Reply, ScriptedServer, calls, say
from memory_bank.transcript import open_counter
from memory_bank.transcript.tokens import MEDIA_TOKENS

PATHS = {"chat": "/chat/completions", "responses": "/responses", "messages": "/messages"}
MODELS = {"chat": "gpt-5", "responses": "gpt-5", "messages": "claude-sonnet-4-5"}
MARKS: dict[str, Sequence[str]] = {
    "none": (),
    "tools": ("tools",),
    "system": ("system",),
    "head": ("tools", "system"),
    "task": ("system", "task"),
    "before": ("system", "before"),
}
"""Where clients may mark a request of the Messages API in the place of the system prompt and the end."""
CHEAP = {"chat": "gpt-5-mini", "responses": "gpt-5-mini", "messages": "claude-haiku-4-5"}
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
FILE = "data:text/plain;base64,YWJj"
UNREAD = re.compile(r"^(?:(?:tool_)?(?:call|use)_id|id|signature|data|url|image_url|file_data): .*\n?", re.M)
WORDS = (
    "order",
    "parcel",
    "depot",
    "lane",
    "carrier",
    "weight",
    "city",
    "street",
    "invoice",
    "late",
    "stock",
    "shelf",
)
SYSTEM = "You are an agent of a shop. " + "Check what you are told before you pay. " * 60
NAMED = {"x-claude-code-session-id": "0199aaaa-bbbb-4ccc-8ddd-eeeeffff0000"}
COUNTER = open_counter()


@dataclass(frozen=True)
class Asked:
    """A request of a conversation; ``pause``: seconds before it; ``undone``: values that it must not hold.

    ``times``: so often it is sent at once.
    """

    talk: str
    api: str
    body: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict)
    pause: int = 0
    undone: tuple[str, ...] = ()
    times: int = 1


class Talk:
    """A conversation of an agent as an API has it; its outputs hold values that begin with its name."""

    def __init__(self, api: str, name: str = "A", tools: int = 2, **headers: str) -> None:
        self.api, self.name, self.headers = api, name, headers
        self.rng, self.numbers = Random(f"{api}{name}"), count(1)
        self.messages: list[Any] = []
        self.tools = [self.tool(f"look_{n}") for n in range(tools)]
        self.system = SYSTEM
        self.more: dict[str, Any] = {}
        self.kept: dict[str, str] = {}  # of its cache marks
        self.said("Look at all parcels of the customer, one after the other.")

    def tool(self, name: str) -> dict[str, Any]:
        """A tool's definition."""
        schema = {"type": "object", "properties": {"parcel": {"type": "integer"}}}
        told = "Reads a parcel and all that is known of it. " * 12
        if self.api == "messages":
            return {"name": name, "description": told, "input_schema": schema}
        function = {"name": name, "description": told, "parameters": schema}
        return (
            {"type": "function", "function": function}
            if self.api == "chat"
            else {"type": "function", **function}
        )

    def said(self, text: str) -> None:
        """A message of the user."""
        self.messages.append({"role": "user", "content": self.words(text)})

    def answered(self, text: str) -> None:
        """A message of the model."""
        self.messages.append({"role": "assistant", "content": self.words(text)})

    def words(self, text: str) -> Any:
        """A text as a content."""
        return [{"type": "text", "text": text}] if self.api == "messages" else text

    def output(self, words: int = 400) -> str:
        """A tool's output."""
        n, rng = next(self.numbers), self.rng
        lines = (f"{rng.choice(WORDS)} {rng.choice(WORDS)}: {rng.getrandbits(20)}" for _ in range(words // 4))
        return "\n".join([f"parcel {n} id {self.name}-{n:04}-{rng.getrandbits(32):08x}", *lines])

    def call_id(self) -> str:
        """An id as providers make them."""
        return "call_" + "".join(
            self.rng.choices("abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789", k=24)
        )

    def turn(
        self,
        calls: int = 1,
        text: str = "",
        content: Callable[[str], Any] = str,
        order: int = 1,
        **extra: Any,
    ) -> None:
        """A turn of calls with results, ``order`` -1: the last first; ``extra``: of the assistant's message."""
        made = [(self.call_id(), f"look_{n % len(self.tools)}", {"parcel": n}) for n in range(calls)]
        outputs = [(i, content(self.output())) for i, _, _ in made][::order]
        if self.api == "chat":
            of = [
                {"id": i, "type": "function", "function": {"name": n, "arguments": json.dumps(a)}}
                for i, n, a in made
            ]
            self.messages.append({"role": "assistant", "content": text or None, "tool_calls": of, **extra})
            self.messages += [{"role": "tool", "tool_call_id": i, "content": o} for i, o in outputs]
        elif self.api == "responses":
            if text:
                part = {"type": "output_text", "text": text}
                self.messages.append({"type": "message", "role": "assistant", "content": [part]})
            self.messages += [
                {"type": "function_call", "call_id": i, "name": n, "arguments": json.dumps(a)}
                for i, n, a in made
            ]
            self.messages += [{"type": "function_call_output", "call_id": i, "output": o} for i, o in outputs]
        else:
            said = [{"type": "text", "text": text}] if text else []
            uses = [{"type": "tool_use", "id": i, "name": n, "input": a} for i, n, a in made]
            self.messages.append({"role": "assistant", "content": [*extra.get("thinking", ()), *said, *uses]})
            results = [
                o | {"tool_use_id": i} if isinstance(o, dict) else
                {"type": "tool_result", "tool_use_id": i, "content": o}
                for i, o in outputs
            ]  # fmt: skip
            self.messages.append({"role": "user", "content": results})

    def asked(self, pause: int = 0, undone: tuple[str, ...] = (), **more: Any) -> Asked:
        """The next request, with cache marks where the API has them."""
        messages = [*self.messages]
        body: dict[str, Any] = {"model": MODELS[self.api], "tools": [*self.tools], **self.more}
        if self.api == "chat":
            body["messages"] = [{"role": "system", "content": self.system}, *messages]
        elif self.api == "responses":
            body |= {"instructions": self.system, "input": messages}
        else:
            mark = {"cache_control": {"type": "ephemeral", **self.kept}}
            last = messages[-1]["content"]
            messages[-1] = {**messages[-1], "content": [*last[:-1], {**last[-1], **mark}]}
            system = [{"type": "text", "text": self.system, **mark}]
            body |= {"max_tokens": 4000, "system": system, "messages": messages}
        body = json.loads(json.dumps(body | more))
        return Asked(self.name, self.api, body, self.headers, pause, undone)


Shape = Iterator[Asked]


def plain(api: str) -> Shape:
    talk = Talk(api)
    for n in range(60):
        talk.turn(text="" if n % 3 else f"I look at {n}.")
        yield talk.asked()


def server_held(api: str) -> Shape:
    """`previous_response_id` and `store`: the provider holds what came before."""
    talk = Talk(api)
    for n in range(40):
        at = len(talk.messages)
        talk.turn()
        new = [i for i in talk.messages[at:] if i["type"] == "function_call_output"]
        held = {"previous_response_id": f"resp_{n}", "store": True}
        yield talk.asked(**(held | {"input": new} if n else {"store": True}))


def stored(api: str) -> Shape:
    """`store: true`, and all items all the same."""
    talk = Talk(api)
    talk.more = {"store": True}
    for _ in range(60):
        talk.turn()
        yield talk.asked()


def subagents(api: str) -> Shape:
    """An agent and four of its own kind at once, under one id; two have the same prompt."""
    talks = [Talk(api, name, **NAMED) for name in "ABCDE"]
    for talk, prompt in zip(talks[1:4], "xyx", strict=True):
        talk.system, talk.messages = f"You search. {SYSTEM}", []
        talk.said(f"Search for {prompt}.")
    for n in range(60):
        for talk in talks if n < 40 else talks[:1]:
            talk.turn()
            yield talk.asked()


def other_tools(api: str) -> Shape:
    """Tools that change now and then: added in the end, in the middle, taken away."""
    talk = Talk(api, tools=3)
    for n in range(60):
        if n in (8, 20, 33):
            talk.tools = [*talk.tools, talk.tool(f"more_{n}")]
        if n in (27, 45):
            talk.tools = [talk.tools[0], talk.tool(f"between_{n}"), *talk.tools[2:]]
        if n == 52:
            talk.tools = talk.tools[:2]
        talk.turn()
        yield talk.asked()


def always_other_tools(api: str) -> Shape:
    """Tools that change at each request."""
    talk = Talk(api)
    for n in range(40):
        talk.turn()
        talk.tools = [*talk.tools[:2], talk.tool(f"more_{n}")]
        yield talk.asked()


def signed(api: str) -> Shape:
    """OpenRouter's `reasoning_details`, signed and encrypted."""
    talk = Talk(api)
    for n in range(60):
        details = [
            {"type": "reasoning.text", "text": talk.output(60), "signature": f"sig{n}" * 20, "index": 0},
            {"type": "reasoning.encrypted", "data": f"enc{n}" * 40, "id": f"rs_{n}", "index": 1},
        ]
        talk.turn(text="" if n % 3 else f"I look at {n}.", reasoning="I think.", reasoning_details=details)
        yield talk.asked()


def hours(api: str) -> Shape:
    """50 turns of the user with five calls each; now and then a pause of ten minutes."""
    talk = Talk(api)
    for turn in range(50):
        for n in range(5):
            yield talk.asked(pause=600 if n == 0 and turn % 7 == 6 else 0)
            talk.turn(text=f"I look at {n}." if n == 2 else "")
        yield talk.asked()
        talk.answered(f"Turn {turn} is done: " + talk.output(40))
        talk.said(f"Now look at group {turn}. " + talk.output(20))


def rewinds(api: str) -> Shape:
    """Turns of the user of four calls; every fifth is undone and asked in other words, sometimes far back."""
    talk, undone, places = Talk(api), list[str](), list[int]()
    for turn in range(25):
        places.append(len(talk.messages))
        for _ in range(4):
            talk.turn()
            yield talk.asked(undone=tuple(undone))
        talk.answered(f"Turn {turn} is done.")
        if turn % 5 == 4:
            back = places[-1 if turn % 2 else -3]
            gone = json.dumps(talk.messages[back:])
            undone += [w for w in gone.replace("\\n", " ").split() if w.startswith("A-")]
            del talk.messages[back:]
            talk.answered(f"Turn {turn} is undone.")
        talk.said(f"Now look at group {turn}.")


def branches(api: str) -> Shape:
    """Two branches of a conversation of 50 calls, which is folded by then, take turns."""
    talk = Talk(api)
    for _ in range(50):
        talk.turn()
        yield talk.asked()
    other = deepcopy(talk)
    other.rng = Random(f"{api} other")
    for n in range(80):
        branch = (talk, other)[n % 2]
        if n < 2:
            branch.answered("The first ones are done.")
            branch.said(f"Now look at the others, from the {('left', 'right')[n]}.")
        branch.turn()
        yield branch.asked()


def edited(api: str) -> Shape:
    """A text of the user near the beginning is edited in place every 15 requests."""
    talk = Talk(api)
    for n in range(60):
        talk.turn()
        if n % 15 == 14:
            talk.messages[0] = {"role": "user", "content": talk.words(f"Look at all parcels, version {n}.")}
        yield talk.asked()


def compacted(api: str) -> Shape:
    """A client's own summary in the middle, twice; then it goes on."""
    talk = Talk(api, **NAMED)
    for n in range(70):
        talk.turn()
        yield talk.asked()
        if n % 25 == 24:
            text = "This session is being continued from a previous conversation that ran out of context. "
            text += talk.output(120)
            talk.messages = []
            talk.said(text)


def parallel(api: str) -> Shape:
    """Ten calls at once, their results in any order."""
    talk = Talk(api)
    for n in range(12):
        talk.turn(calls=10, order=-1 if n % 2 else 1)
        yield talk.asked()


def wide(api: str) -> Shape:
    """Sixty calls at once."""
    talk = Talk(api)
    for _ in range(8):
        talk.turn(calls=60, content=lambda output: output[:600])
        yield talk.asked()


def forks(api: str) -> Shape:
    """A conversation of 40 calls goes on from its 10th, 20th and 30th call in other words, each time for 20 calls."""
    talk, places = Talk(api), list[int]()
    for _ in range(40):
        places.append(len(talk.messages))
        talk.turn()
        yield talk.asked()
    for at in (10, 20, 30):
        fork = deepcopy(talk)
        fork.rng = Random(f"{api} {at}")
        del fork.messages[places[at] :]
        fork.answered("The first ones are done.")
        fork.said(f"Now look at group {at}.")
        for _ in range(20):
            fork.turn()
            yield fork.asked()


def lookups(api: str) -> Shape:
    """With ``--fetch 5`` the model asks memory at every fifth request for what the context shows."""
    talk = Talk(api)
    talk.system = SYSTEM * 10
    for _ in range(120):
        talk.turn()
        yield talk.asked()


def odd_results(api: str) -> Shape:
    """Results without a content, empty, null, as errors."""
    talk, kinds = Talk(api), count()

    def content(output: str) -> Any:
        kind = next(kinds) % 6
        if api == "messages":
            error = {"is_error": True}
            odd = {1: {}, 2: {"content": ""}, 3: {"content": [], **error}, 4: {"content": output, **error}}
            return {"type": "tool_result", **odd[kind]} if kind in odd else output
        return {1: "", 2: []}.get(kind, output) if api == "chat" else {1: ""}.get(kind, output)

    for _ in range(40):
        talk.turn(calls=2, content=content)
        yield talk.asked()


def media(api: str) -> Shape:
    """Images and documents in results."""
    talk, kinds = Talk(api), count()

    def content(output: str) -> Any:
        kind = next(kinds) % 4
        if api == "messages":
            source = {"type": "base64", "media_type": "image/png", "data": PNG}
            text = {"type": "text", "text": output}
            plain = {"type": "text", "media_type": "text/plain", "data": output}
            document = {"type": "document", "source": plain}
            parts = {1: [text, {"type": "image", "source": source}], 2: [document], 3: [text, document]}
            return parts.get(kind, output)
        if api == "responses":
            image = {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"}
            file = {"type": "input_file", "filename": "a.txt", "file_data": FILE}
            text = {"type": "input_text", "text": output}
            return {1: [text, image], 2: [file], 3: [text, file]}.get(kind, output)
        return [{"type": "text", "text": output}, {"type": "text", "text": "end"}] if kind == 1 else output

    for n in range(50):
        talk.turn(content=content)
        if api == "chat" and n % 5 == 4:
            url = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
            talk.messages.append({"role": "user", "content": [url]})
        yield talk.asked()


def long_marked(api: str) -> Shape:
    """Outputs that are shown in part, and marks that move in place: at the last block of the two latest messages."""
    talk = Talk(api)
    mark = {"cache_control": {"type": "ephemeral"}}
    for n in range(30):
        talk.turn(content=lambda output: output + talk.output(4000))
        asked = talk.asked()
        for message in asked.body["messages"][-3 - 2 * (n % 4) : -1 : 2]:
            if isinstance(message["content"], list):
                message["content"][-1] |= mark
        while json.dumps(asked.body).count("cache_control") > 4:
            next(m for m in asked.body["messages"] if "cache_control" in str(m))["content"][-1].pop(
                "cache_control"
            )
        yield asked


def models(api: str) -> Shape:
    """The user changes the model twice; a helper of a cheap model asks under the same id in between."""
    talk, helper = Talk(api, "A", **NAMED), Talk(api, "B", **NAMED)
    helper.more, helper.system, helper.messages = {"model": CHEAP[api]}, f"You search. {SYSTEM}", []
    helper.said("Search for x.")
    for n in range(80):
        talk.turn()
        talk.more = {"model": CHEAP[api]} if 30 <= n < 45 else {}
        yield talk.asked()
        if n % 3 == 0 and n < 60:
            helper.turn()
            yield helper.asked()


def alternating(api: str) -> Shape:
    """A conversation whose requests go to two models in turn."""
    talk = Talk(api)
    for n in range(60):
        talk.turn()
        talk.more = {"model": CHEAP[api]} if n % 2 else {}
        yield talk.asked()


def at_times(api: str) -> Shape:
    """A conversation whose every eighth request goes to a cheap model."""
    talk = Talk(api)
    for n in range(80):
        talk.turn()
        talk.more = {"model": CHEAP[api]} if n % 8 == 7 else {}
        yield talk.asked()


def dated(api: str) -> Shape:
    """A prompt that tells the day, which is another one every 20 requests."""
    talk = Talk(api)
    for n in range(80):
        talk.system = f"Today is day {n // 20}. {SYSTEM}"
        talk.turn()
        yield talk.asked(pause=30_000 if n and n % 20 == 0 else 0)


def timed(api: str) -> Shape:
    """A prompt that tells the second: no prefix stands."""
    talk = Talk(api)
    for n in range(40):
        talk.system = f"{SYSTEM} It is second {n}."
        talk.turn()
        yield talk.asked()


def hour_away(api: str) -> Shape:
    """A conversation that goes on after an hour, twice."""
    talk = Talk(api)
    for n in range(60):
        talk.turn()
        yield talk.asked(pause=3_600 if n in (25, 40) else 0)


def sliding(api: str) -> Shape:
    """A window that drops the oldest turns: it has the first message and the 25 newest turns."""
    talk = Talk(api)
    for _ in range(80):
        at = len(talk.messages)
        talk.turn()
        if len(talk.messages) > 1 + 25 * (len(talk.messages) - at):
            del talk.messages[1 : 1 + len(talk.messages) - at]
        yield talk.asked()


def tools_by_turns(api: str) -> Shape:
    """Tools of which another set is there at every third request."""
    talk = Talk(api, tools=6)
    tools = talk.tools
    for n in range(60):
        talk.tools = tools[: 3 + n // 3 % 4]
        talk.turn()
        yield talk.asked()


def several_keys(api: str) -> Shape:
    """A conversation with a name, whose requests come with three keys of one account by turns."""
    talk = Talk(api, **NAMED)
    for n in range(60):
        talk.turn()
        talk.headers = {**NAMED, "authorization": f"Bearer sk-{n % 3}"}
        yield talk.asked()


def thinking(api: str) -> Shape:
    """900 words of thinking in each turn; of text on the Messages API, where a server signs its thinking."""
    talk = Talk(api)
    for _ in range(40):
        words = talk.output(900)
        talk.turn(**{"text" if api == "messages" else "reasoning_content": words})
        yield talk.asked()


def short(api: str) -> Shape:
    """Twelve conversations of three requests, whose outputs are long."""
    for n in range(12):
        talk = Talk(api, f"T{n}")
        talk.messages = []
        talk.said(f"Look at the parcels of customer {n}.")
        for _ in range(3):
            talk.turn(content=lambda output, talk=talk: output + talk.output(6_000))
            yield talk.asked()


def huge_task(api: str) -> Shape:
    """A first message of about 150,000 tokens."""
    talk = Talk(api)
    talk.said("Here is all that is known. " + talk.output(75_000))
    for _ in range(30):
        talk.turn()
        yield talk.asked()


def tiny(api: str) -> Shape:
    """Outputs of three tokens."""
    talk = Talk(api)
    for n in range(200):
        talk.turn(content=lambda _, n=n: f"ok {n}")
        yield talk.asked()


def for_an_hour(api: str) -> Shape:
    """Marks with a ttl of an hour, and pauses of ten minutes."""
    talk = Talk(api)
    talk.kept = {"ttl": "1h"}
    for n in range(60):
        talk.turn()
        yield talk.asked(pause=600 if n % 6 == 5 else 0)


def again(api: str) -> Shape:
    """Requests that are sent again, also with the piece of an answer that was broken off, and two at once."""
    talk = Talk(api)
    for n in range(60):
        talk.turn()
        yield talk.asked(times=2 if n % 5 == 4 else 1)
        if n % 5 == 2:
            yield talk.asked()
        if n % 10 == 6:
            talk.answered("I look at")
            talk.said("Go on, please.")
            yield talk.asked()
            del talk.messages[-2:]


EVERY, CHATS = ("chat", "responses", "messages"), ("chat", "messages")
SHAPES: dict[str, tuple[Callable[[str], Shape], tuple[str, ...]]] = {
    "plain": (plain, EVERY),
    "server-held": (server_held, ("responses",)),
    "stored": (stored, ("responses",)),
    "sub-agents": (subagents, CHATS),
    "other tools": (other_tools, EVERY),
    "always other tools": (always_other_tools, ("messages",)),
    "reasoning_details": (signed, ("chat",)),
    "hours": (hours, EVERY),
    "rewinds": (rewinds, EVERY),
    "branches": (branches, EVERY),
    "edited": (edited, CHATS),
    "compacted": (compacted, EVERY),
    "parallel": (parallel, EVERY),
    "wide": (wide, EVERY),
    "forks": (forks, EVERY),
    "lookups": (lookups, EVERY),
    "odd results": (odd_results, EVERY),
    "media": (media, EVERY),
    "marks in place": (long_marked, ("messages",)),
    "models": (models, CHATS),
    "alternating": (alternating, CHATS),
    "cheap at times": (at_times, CHATS),
    "dated": (dated, CHATS),
    "timed": (timed, CHATS),
    "hour away": (hour_away, CHATS),
    "sliding": (sliding, CHATS),
    "tools by turns": (tools_by_turns, CHATS),
    "several keys": (several_keys, CHATS),
    "thinking": (thinking, CHATS),
    "short": (short, CHATS),
    "huge task": (huge_task, CHATS),
    "tiny": (tiny, CHATS),
    "for an hour": (for_an_hour, ("messages",)),
    "again": (again, EVERY),
}


class Upstream:
    """Answers each request with the usage of a prefix cache, and keeps what came."""

    def __init__(self, tells: str = "all", fetch: int = 0, *, late: bool = False) -> None:
        self.tells, self.late = tells, late  # it calls it where the context has a fold
        self.fetch, self.fetched = fetch, 0  # each so many requests it calls get_record, where it may
        self.api = "chat"
        self.dollars = 0.0
        self.came: list[dict[str, Any]] = []
        self.caches: dict[str, MarkedCache] = {}  # by model
        self._tokens: dict[str, int] = {}
        self._lock = threading.Lock()

    def __call__(self, body: dict[str, Any]) -> Reply:
        with self._lock:
            return self._answer(body)

    def _answer(self, body: dict[str, Any]) -> Reply:
        parts, marks = parts_of(body, self.api)
        counted = [(p, self._count(p)) for p in parts]
        cache = self.caches.setdefault(body["model"], MarkedCache(COUNTER))
        used = cache.add(counted) if marks is None else cache.add_marked(counted, marks)
        if self.tells == "none":
            used = replace(used, cached=0, written=0)
        hour = used.written if '"1h"' in json.dumps(body) else 0
        price, _ = known_price({}, body["model"]) or (None, "")
        assert price is not None
        self.dollars += cost(replace(used, output=20, written_hour=hour), price)
        self.came.append(body)
        cached = {"nothing": None, "zeros": (0, 0)}.get(self.tells, (used.cached, used.written))
        asks = self.fetch and len(self.came) % self.fetch == 0 and '"get_record"' in json.dumps(body["tools"])
        asks = asks and (not self.late or "seal=" in json.dumps(body.get("input") or body["messages"]))
        self.fetched += bool(asks)
        reply = calls(("get_record", {"record": f"#{self.fetched}"})) if asks else say("Go on.")
        return replace(reply, usage=(used.input, 20), cached=cached)

    def _count(self, text: str) -> int:
        """Tokens of a part, without ids, which no model reads; of an image or file what memory counts."""
        if text not in self._tokens:
            read = UNREAD.sub("", text)
            self._tokens[text] = COUNTER.count_text(read) + 4 + MEDIA_TOKENS * (PNG in text or FILE in text)
        return self._tokens[text]


@dataclass
class Run:
    """What became of a shape: dollars after each request, broken prefixes, foreign values, refusals."""

    dollars: list[float]
    breaks: int
    foreign: int
    refused: int
    last: str = ""


def status_of(request: urllib.request.Request) -> int:
    """The status of the answer to a request."""
    try:
        with urllib.request.urlopen(request) as answer:
            answer.read()
            return int(answer.status)
    except urllib.error.HTTPError as e:
        print(request.full_url, e.code, e.read()[:300], file=sys.stderr)
        return e.code


def marked(value: Any, mark: Mapping[str, Any], places: Sequence[str]) -> Any:
    """A body with no cache marks but at some places."""

    def bare(part: Any) -> Any:
        if isinstance(part, dict):
            return {k: bare(v) for k, v in part.items() if k != "cache_control"}
        return [*map(bare, part)] if isinstance(part, list) else part

    body = bare(value)
    messages = body["messages"]
    task = messages[:1][-1]["content"]
    before = next((m["content"] for m in messages[-3::-2]), task)  # where a request of an agent ended
    ends = {"tools": body["tools"], "system": body["system"], "task": task, "before": before}
    for place in places:
        ends[place][-1]["cache_control"] = mark
    return body


def run(shape: Shape, memory: bool, options: Any) -> Run:
    """Send all requests of a shape."""
    model = Upstream(options.tells, options.fetch, late=options.late)
    dollars, breaks, foreign, failed = [], 0, 0, 0
    before: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as folder, ScriptedServer(model) as server:
        bank, recorded, url = Path(folder) / "bank.db", [], server.base_url
        closing = serving(server, bank) if memory else None
        if closing is not None:
            base, recorded = closing.__enter__()
            url = f"{base}/v1"
        for asked in shape:
            if asked.pause:
                if '"1h"' not in json.dumps(asked.body):
                    model.caches.clear()
                if closing is not None:
                    time.sleep(0.2)  # the request before is stored after its answer
                    with sqlite3.connect(bank) as c:
                        c.execute("UPDATE sessions SET asked = asked - ?", (asked.pause,))
            model.api, known = asked.api, len(model.came)
            if options.stream:
                asked.body["stream"] = True
            if asked.api == "messages" and options.marks != "own":
                mark = asked.body["system"][-1]["cache_control"]
                asked = replace(asked, body=marked(asked.body, mark, MARKS[options.marks]))
            headers = {"content-type": "application/json", "authorization": "Bearer sk-1", **asked.headers}
            data = json.dumps(asked.body).encode()
            request = urllib.request.Request(url + PATHS[asked.api], data, headers)
            with ThreadPoolExecutor(asked.times) as threads:
                statuses = [*threads.map(status_of, [request] * asked.times)]
            failed += sum(status != 200 for status in statuses)
            dollars.append(model.dollars)
            for body in model.came[known:]:
                parts = parts_of(body, asked.api)[0]
                previous = before.get(asked.talk, [])
                breaks += parts[: len(previous)] != previous
                before[asked.talk] = parts
                text = json.dumps(body)
                others = (f"{o}-0" for o in "ABCDE" if o != asked.talk)
                foreign += any(o in text for o in others) or any(u in text for u in asked.undone)
        if closing is not None:
            closing.__exit__(None, None, None)
        last = recorded[-1] if recorded else None
        told = f"{last.memory}{': ' + last.reason if last.reason else ''}" if last else ""
        return Run(dollars, breaks, foreign, failed + len(server.refused), told)


TITLES = ("shape", "API", "requests", "$", "worst", "prefix", "foreign", "refused", "last")


def main() -> int:
    """Run from the command line; 1 where a request was refused, held foreign values, or a run cost 5% more."""
    parser = command_line(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--apis", nargs="+", default=[*PATHS], choices=[*PATHS])
    parser.add_argument(
        "--tells",
        default="all",
        choices=("all", "nothing", "zeros", "none"),
        help="what answers report of the cache: all, nothing (chats), zeros, or that there is none",
    )
    parser.add_argument(
        "--stream", action="store_true", help="chats do not ask for the usage of their streams"
    )
    parser.add_argument(
        "--marks", default="own", choices=("own", *MARKS), help="what clients of the Messages API mark"
    )
    parser.add_argument("--fetch", type=int, default=0, help="the model asks memory at each so many requests")
    parser.add_argument("--late", action="store_true", help="and only once the context shows a fold")
    parser.add_argument("--model", help="of chats and responses")
    args = parser.parse_args()
    MODELS.update(dict.fromkeys(("chat", "responses"), args.model) if args.model else {})
    print(markdown_table(TITLES, []), flush=True)
    is_bad = False
    for name in args.names or SHAPES:
        shape, apis = SHAPES[name]
        for api in (a for a in apis if a in args.apis):
            none, with_memory = (run(shape(api), m, args) for m in (False, True))
            pairs = list(zip(with_memory.dollars, none.dollars, strict=True))
            worst = max(ours / theirs for ours, theirs in pairs)
            is_bad |= worst > 1.05 or with_memory.foreign > 0 or with_memory.refused > none.refused
            cells = [
                name, api, len(pairs), f"{100 * pairs[-1][0] / pairs[-1][1]:.0f}%", f"{100 * worst:.1f}%",
                f"{none.breaks} / {with_memory.breaks}", with_memory.foreign,
                f"{none.refused} / {with_memory.refused}", with_memory.last,
            ]  # fmt: skip
            print(f"| {' | '.join(map(str, cells))} |", flush=True)
    return int(is_bad)


if __name__ == "__main__":
    sys.exit(main())
