"""Requests of recorded runs, changed at random, sent through the proxy to the strict scripted server.

Whatever comes, the service answers in time with what upstream says; a request that memory leaves alone
arrives to the byte, of a rebuilt one only messages or input differ, and no pair breaks that was whole. Not a
benchmark of its own: a part of proxy.py.
"""

from __future__ import annotations

import copy
import http.client
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memory_bank.lab.traces import Trace, read_traces
from memory_bank.service.proxy.routes import REFUSED
from memory_bank.testing import ScriptedServer, item_errors, pairing_errors, say
from memory_bank.transcript.anthropic import message_errors
from proxy_ends import Service, service

SHIPPED = Path(__file__).parents[1] / "examples" / "shop-refunds.jsonl"
THREADS = 8
SECONDS = 30.0
ODD: tuple[Any, ...] = (
    None, True, 0, -1, 1.5, 1e308, 2**70, "", " ", "\0", "\ud800", "\ud83d\ude00", "<|endoftext|>", "user",
    "tool", "assistant", "call_1", "{}", "[1", "#1", "x" * 20_000, [], {}, [[]], [None], [{"type": "text"}],
    {"type": "text", "text": "x"}, {"role": "tool"}, {"type": "item_reference", "id": "x"}, float("nan"),
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    {"type": "reasoning", "id": "rs_1", "summary": []},
)  # fmt: skip
KEYS = (
    "role", "content", "tool_calls", "tool_call_id", "name", "function_call", "type", "call_id", "output",
    "id", "arguments", "metadata", "prompt_cache_key", "stream", "model", "previous_response_id",
    "conversation", "text", "tool_use_id", "input", "thinking", "signature", "cache_control", "system", "thread",
)  # fmt: skip
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
COUNT = f"{MESSAGES}/count_tokens"
ROUTES = {"chat": CHAT, "responses": RESPONSES, "messages": MESSAGES}
"""The routes by name; one in four requests of the Messages API only counts its tokens."""
SESSIONS = ("", "a", "b/c", "%00", "%C3%A9", "x" * 400, "auto-1", "../..", "~", "a b")


@dataclass
class Asked:
    """One request: its path, headers and body."""

    path: str
    headers: list[tuple[str, str]]
    data: bytes


@dataclass
class Findings:
    """What was seen, and what should not have been."""

    statuses: Counter[int] = field(default_factory=Counter)
    memory: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    slowest: float = 0.0
    lock: Any = field(default_factory=threading.Lock, repr=False)

    def note(self, what: str, asked: Asked) -> None:
        """Something is wrong."""
        with self.lock:
            self.wrong.append(f"{what}: {asked.path} {asked.headers} {asked.data[:300]!r}")


# requests


def requests_of(traces: list[Trace], seed: int, count: int, routes: Sequence[str]) -> Iterator[Asked]:
    """Requests in the middle of the traces, most of them changed, of these routes by turns."""
    rng = random.Random(seed)
    for number in range(count):
        trace = rng.choice(traces)
        messages = copy.deepcopy(trace.messages[: _cut(trace.messages, rng)])
        route = ROUTES[routes[number % len(routes)]]
        if route == MESSAGES and rng.random() < 0.25:
            route = COUNT
        key = "input" if route == RESPONSES else "messages"
        body: dict[str, Any] = {"model": "scripted", key: messages, "temperature": 0.5}
        if route == RESPONSES:
            body[key] = items_of(messages)
        elif route != CHAT:
            body |= message_request(messages, rng)
        if rng.random() < 0.3:
            body["stream"] = rng.choice((True, False))
        if key == "input" and rng.random() < 0.5:
            body["instructions"] = "You are careful."
        for _ in range(rng.choice((0, 1, 1, 2, 3, 8))):
            if body:  # all of it may have been removed
                rng.choice(CHANGES)(body, key, rng)
        yield Asked(route, headers_of(rng), bytes_of(body, rng))


def _cut(messages: list[Any], rng: random.Random) -> int:
    """Where a request ends: mostly after whole turns."""
    most = min(len(messages), 60)
    whole = [i for i in range(1, most + 1) if i == len(messages) or messages[i].get("role") == "assistant"]
    return rng.choice(whole) if whole and rng.random() < 0.9 else rng.randrange(1, most + 1)


def items_of(messages: list[Any]) -> list[Any]:
    """Chat messages as items of the Responses API."""
    items: list[Any] = []
    for i, m in enumerate(messages):
        if m.get("role") == "tool":
            items.append(
                {"type": "function_call_output", "call_id": m.get("tool_call_id"), "output": m.get("content")}
            )
            continue
        if m.get("content"):
            items.append({"role": m["role"], "content": m["content"]})
        calls = m.get("tool_calls") or []
        if calls and i % 3 == 0:
            items.append({"type": "reasoning", "id": f"rs_{i}", "summary": []})
        for c in calls:
            function = c.get("function", {})
            items.append(
                {
                    "type": "function_call",
                    "call_id": c.get("id"),
                    "name": function.get("name"),
                    "arguments": function.get("arguments"),
                }
            )
    return items


def message_request(messages: list[Any], rng: random.Random) -> dict[str, Any]:
    """Chat messages as members of a request of the Messages API."""
    thinks = rng.random() < 0.15
    blocks: list[tuple[str, list[Any]]] = []
    for i, m in enumerate(messages[1:] if messages[0].get("role") == "system" else messages):
        role, text = "assistant" if m.get("role") == "assistant" else "user", m.get("content")
        made: list[Any] = []
        if m.get("role") == "tool":
            made.append({"type": "tool_result", "tool_use_id": m.get("tool_call_id"), "content": text})
        elif text:
            made.append({"type": "text", "text": text})
        calls = m.get("tool_calls") or []
        if calls and thinks:
            made.insert(0, {"type": "thinking", "thinking": "so", "signature": f"sig{i}"})
        for c in calls:
            function = c.get("function", {})
            try:
                given = json.loads(function.get("arguments") or "{}")
            except ValueError:
                given = {}
            made.append({"type": "tool_use", "id": c.get("id"), "name": function.get("name"), "input": given})
        if blocks and blocks[-1][0] == role:
            blocks[-1][1].extend(made)
        else:
            blocks.append((role, made))
    request: dict[str, Any] = {"messages": [{"role": r, "content": made} for r, made in blocks]}
    if thinks:
        kind = rng.choice(("adaptive", "enabled"))
        request["thinking"] = {"type": kind, **({"budget_tokens": 1024} if kind == "enabled" else {})}
    if blocks and rng.random() < 0.3:
        rng.choice(blocks)[1].append({"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}})
    system = {"system": messages[0]["content"]} if messages[0].get("role") == "system" else {}
    return {**request, **system, "max_tokens": 1024}


def headers_of(rng: random.Random) -> list[tuple[str, str]]:
    """What a client may say of itself."""
    headers = [("authorization", f"Bearer sk-{rng.randrange(3)}")]
    if rng.random() < 0.5:
        headers.append(("x-memory-session", f"fuzz-{rng.randrange(40)}"))
    elif rng.random() < 0.1:
        headers.append(("x-memory-session", rng.choice(SESSIONS)))
    if rng.random() < 0.03:
        headers.append(("x-memory-agent", rng.choice(SESSIONS)))
    if rng.random() < 0.05:
        headers.append(
            ("x-memory-strategy", rng.choice(("truncation", "semantic", "no such", "hierarchical")))
        )
    if rng.random() < 0.1:
        headers.append(("content-type", rng.choice(("text/plain", "multipart/form-data; boundary=x", ""))))
    return headers


def bytes_of(body: Any, rng: random.Random) -> bytes:
    """The body as JSON, sometimes broken."""
    text = json.dumps(body, ensure_ascii=rng.random() < 0.7, indent=rng.choice((None, None, 1)))
    data = text.encode("utf-8", "surrogatepass")
    how = rng.random()
    if how < 0.9:
        return data
    at = rng.randrange(len(data))
    if how < 0.92:
        return data[:at]
    if how < 0.94:
        return data[:at] + rng.randbytes(3) + data[at:]
    if how < 0.96:
        return data[:at] + data[at + rng.randrange(1, 9) :]
    if how < 0.97:
        return b'{"messages": [], ' + data[1:]
    if how < 0.98:
        return b"\xef\xbb\xbf" + data
    if how < 0.99:
        return data[:-1] + b', "deep": ' + b"[" * 3000 + b"]" * 3000 + b"}"
    return rng.choice((b"", b"[]", b"null", b"\x00", data * 2))


# changes of a body


def places(value: Any, found: list[tuple[Any, Any]] | None = None) -> list[tuple[Any, Any]]:
    """Every container in a value with a key in it, the uppermost ones first."""
    found = [] if found is None else found
    waiting = [value]
    while waiting and len(found) < 3000:
        at = waiting.pop(0)
        inner = (
            list(at.items()) if isinstance(at, dict) else list(enumerate(at)) if isinstance(at, list) else []
        )
        found += [(at, k) for k, _ in inner]
        waiting += [v for _, v in inner]
    return found


def replace_one(body: Any, _key: str, rng: random.Random) -> None:
    """Any value is another."""
    at, k = rng.choice(places(body))
    at[k] = copy.deepcopy(rng.choice(ODD))


def remove_one(body: Any, _key: str, rng: random.Random) -> None:
    """Any member or element is missing."""
    at, k = rng.choice(places(body)[1:] or [(body, next(iter(body)))])
    del at[k]


def add_one(body: Any, _key: str, rng: random.Random) -> None:
    """Any object has one member more."""
    at, _ = rng.choice(places(body))
    if isinstance(at, dict):
        at[rng.choice(KEYS)] = copy.deepcopy(rng.choice(ODD))
    else:
        at.insert(rng.randrange(len(at) + 1), copy.deepcopy(rng.choice(ODD)))


def of_list(change: Callable[[list[Any], random.Random], None]) -> Callable[[Any, str, random.Random], None]:
    """A change of what was said."""

    def changed(body: Any, key: str, rng: random.Random) -> None:
        said = body.get(key)
        if isinstance(said, list) and len(said) > 1:
            change(said, rng)

    return changed


def swap(said: list[Any], rng: random.Random) -> None:
    """Two change places."""
    a, b = rng.randrange(len(said)), rng.randrange(len(said))
    said[a], said[b] = said[b], said[a]


def repeat(said: list[Any], rng: random.Random) -> None:
    """A stretch comes twice."""
    a = rng.randrange(len(said))
    part = copy.deepcopy(said[a : a + rng.randrange(1, 5)])
    at = rng.randrange(len(said) + 1)
    said[at:at] = part


def drop(said: list[Any], rng: random.Random) -> None:
    """A stretch is missing, as where a client compacts its history."""
    a = rng.randrange(len(said))
    del said[a : a + rng.randrange(1, 6)]


def interrupt(said: list[Any], rng: random.Random) -> None:
    """Somebody speaks in between."""
    role = rng.choice(("user", "system", "developer", "assistant", "tool", "function", "critic", 3))
    said.insert(rng.randrange(len(said) + 1), {"role": role, "content": rng.choice(ODD)})


def parts(said: list[Any], rng: random.Random) -> None:
    """A text is given in parts."""
    message = rng.choice(said)
    if isinstance(message, dict) and isinstance(message.get("content"), str):
        text = message["content"]
        half = len(text) // 2
        message["content"] = [{"type": "text", "text": text[:half]}, {"type": "text", "text": text[half:]}]


def same_ids(said: list[Any], rng: random.Random) -> None:
    """All calls have the same id, or none."""
    given = rng.choice(("same", None, 7, ""))
    for message in said:
        if isinstance(message, dict):
            for call in message.get("tool_calls") if isinstance(message.get("tool_calls"), list) else ():
                if isinstance(call, dict):
                    call["id"] = given
            for name in ("tool_call_id", "call_id"):
                if name in message:
                    message[name] = given


CHANGES: tuple[Callable[[Any, str, random.Random], None], ...] = (
    replace_one,
    remove_one,
    add_one,
    *map(of_list, (swap, repeat, drop, interrupt, parts, same_ids)),
)


# what must hold


def unmarked(data: bytes) -> Any:
    """A body without cache marks, texts as blocks: memory marks requests of the Messages API that have no mark."""
    try:
        body = json.loads(data.decode("utf-8-sig"))
        messages = [m for m in body["messages"] if isinstance(m, dict)]
    except (ValueError, TypeError, KeyError, RecursionError):
        return data
    for message in messages:
        if isinstance(message.get("content"), str):
            message["content"] = [{"type": "text", "text": message["content"]}]
        blocks = message.get("content")
        for block in blocks if isinstance(blocks, list) else ():
            if isinstance(block, dict):
                block.pop("cache_control", None)
    return body


def check(asked: Asked, got: Any, status: int, headers: dict[str, str], found: Findings) -> None:
    """What arrived upstream, beside what was sent."""
    memory, reason = headers.get("x-memory-status", ""), headers.get("x-memory-reason", "")
    with found.lock:
        found.memory[f"{memory}: {reason}" if reason else memory] += 1
    if got is None:
        found.note(f"upstream was not asked ({status})", asked)
        return
    if status >= 500:
        found.note(f"status {status}", asked)
    if reason == "unforeseen":
        found.note("memory failed as nobody foresaw", asked)
    if memory != "rebuilt":
        if got.data != asked.data and reason != REFUSED and unmarked(got.data) != unmarked(asked.data):
            found.note(f"{memory}, yet other bytes", asked)
        return
    key = "input" if asked.path == RESPONSES else "messages"
    before, after = json.loads(asked.data.decode("utf-8-sig")), json.loads(got.data.decode("utf-8-sig"))
    errors = {CHAT: pairing_errors, RESPONSES: item_errors}.get(asked.path, message_errors)
    old, new = before.pop(key), after.pop(key)
    if json.dumps(before) != json.dumps(after):
        found.note("more than what was said differs", asked)
    if errors(new) and not errors(old):
        found.note(f"a pair broke: {errors(new)[:2]}", asked)


def send(port: int, asked: Asked, number: int) -> tuple[int, dict[str, str], bytes]:
    """One request on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    try:
        connection.putrequest("POST", asked.path)
        for name, value in (
            *asked.headers,
            ("x-fuzz", str(number)),
            ("content-length", str(len(asked.data))),
        ):
            connection.putheader(name, value)
        connection.endheaders(asked.data)
        answer = connection.getresponse()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def run(served: Service, upstream: ScriptedServer, asked: Iterator[Asked], found: Findings) -> None:
    """Send them all, several at a time."""
    arrived: dict[str, Any] = {}
    numbered = enumerate(asked)
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                number, one = next(numbered, (-1, None))
            if one is None:
                return
            began = time.perf_counter()
            try:
                status, headers, _ = send(served.port, one, number)
            except (OSError, http.client.HTTPException) as e:
                found.note(f"no whole answer: {type(e).__name__}", one)
                continue
            with found.lock:
                found.statuses[status] += 1
                found.slowest = max(found.slowest, time.perf_counter() - began)
                while upstream.requests:
                    request = upstream.requests.pop()
                    arrived[request.headers.get("x-fuzz", "")] = request
                got = arrived.pop(str(number), None)
            check(one, got, status, headers, found)

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@contextmanager
def logged(upstream: str, folder: str) -> Iterator[tuple[Service, Path]]:
    """The service, and the file of its log."""
    file = Path(folder) / "log"
    with file.open("wb") as log, service(upstream, folder, log, memory_timeout=SECONDS) as served:
        yield served, file


def fuzz_part(files: list[Path], count: int, seed: int, routes: Sequence[str]) -> int:
    """Run; 1 when anything is wrong."""
    traces = [
        t for file in files or [SHIPPED] for t in read_traces(file) if isinstance(t, Trace) and t.messages
    ]
    found = Findings()
    with tempfile.TemporaryDirectory() as folder, ScriptedServer(lambda _: say("so it is")) as upstream:
        with logged(upstream.base_url, folder) as (served, log):
            began = time.perf_counter()
            run(served, upstream, requests_of(traces, seed, count * len(routes), routes), found)
            seconds = time.perf_counter() - began
            if served.process.poll() is not None:
                found.wrong.append("the service has ended")
        _, *traced = log.read_text(errors="replace").split("Traceback")
        verified = subprocess.run(
            [sys.executable, "-m", "memory_bank", "bank", "verify", "--db", f"{folder}/bank.db"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if verified.returncode:
            found.wrong.append(f"verify: {verified.stdout[-300:]}{verified.stderr[-300:]}")
    if traced:
        found.wrong.append(f"{len(traced)} tracebacks in the log, the first of them:{traced[0][:4000]}")
    statuses = ", ".join(f"{n:,} × {s}" for s, n in sorted(found.statuses.items()))
    print(
        "| requests | traces | statuses (upstream's own) | slowest (s) | seconds | wrong |\n"
        "|---|---|---|---|---|---|"
    )
    print(
        f"| {sum(found.statuses.values()):,} | {len(traces):,} | {statuses} | {found.slowest:.1f} | "
        f"{seconds:.0f} | {len(found.wrong)} |"
    )
    for what, n in found.memory.most_common():
        print(f"<!-- memory {what or 'was not asked'}: {n:,} -->")
    for what in found.wrong[:20]:
        print(what)
    return 1 if found.wrong else 0
