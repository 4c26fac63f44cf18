"""Sends odd requests to the service: whatever comes, it answers in time, with no fault of its own.

    python benchmarks/fuzz.py --requests 20000 [--seed 1]
    python benchmarks/fuzz.py --part proxy [--routes chat,responses,messages] [--requests 20000] [FILE.jsonl …]

Starts ``memory-bank serve`` on a fresh database. At the end it must still answer, end when told to, and leave a
database that ``memory-bank bank verify`` finds clean. Prints a Markdown table; exit code 1 when anything was found.

``api``: brings a recorded run, and sends requests made by schemathesis from the OpenAPI document, valid and invalid,
most of them with names and ids that are there; the recorded run with pieces of it removed, repeated and replaced;
and bodies and paths that no document describes (cut JSON, NaN, lone surrogates, huge numbers, deep nesting, quoted
slashes, methods). Every answer to the first is held against the document, every error against the one shape of
errors. ``--url`` takes a service that runs already.

``proxy``: requests of recorded runs by each route, changed at random, through the proxy to the strict scripted
server. Every answer is what upstream says; a request that memory leaves alone arrives to the byte, of a rebuilt one
only messages or input differ, and no pair breaks that was whole. A quarter of the Messages API's only count. With an
odd seed memory offers its tools, which are all else that may be added.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import http.client
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

import requests

from harness import ROOT, Service, command_line, print_head, print_row, verified, words
from memory_bank.audit.traces import Trace, read_traces
from memory_bank.service.proxy.exchange import THINKING_LEFT_OUT
from memory_bank.testing import ScriptedServer, item_errors, pairing_errors, say
from memory_bank.tools import TOOL_SCHEMAS
from memory_bank.transcript.anthropic import message_errors
from workload import request_of

SHIPPED = ROOT / "examples" / "shop-refunds.jsonl"


@dataclass
class Run:
    """What became of the requests, and an example of everything that is wrong."""

    sent: Counter[str] = field(default_factory=Counter)  # by kind, or by what memory did
    statuses: Counter[int] = field(default_factory=Counter)
    slowest: float = 0.0
    hangs: int = 0
    found: dict[str, str] = field(default_factory=dict)
    wrong: int = 0

    def note(self, what: str, example: str) -> None:
        """Count something that is wrong; its first example is kept."""
        self.wrong += 1
        self.found.setdefault(what, example[:4000])

    def answered(self, status: int, seconds: float) -> None:
        """Count an answer."""
        self.statuses[status] += 1
        self.slowest = max(self.slowest, seconds)

    def verdict(self) -> int:
        """Print what is wrong; the exit code."""
        for what, example in list(self.found.items())[:12]:
            print(f"\nFOUND {what}\n  {example}")
        return 1 if self.found else 0

    def shown_statuses(self) -> str:
        """How often each status came."""
        return ", ".join(f"{n:,} × {status}" for status, n in sorted(self.statuses.items()))


def end(served: Service, folder: str, run: Run) -> None:
    """The service must run to the end, end when told to, and leave a clean database and log."""
    if served.process.poll() is not None:
        run.note("the service ended by itself", f"exit code {served.process.returncode}")
        return
    try:
        code = served.stop(30)
        if code not in (0, -signal.SIGTERM, 143):
            run.note("the service did not end well", f"exit code {code}")
    except subprocess.TimeoutExpired:
        run.note("the service did not end", "30 s after SIGTERM")
        return
    _, *traced = Path(folder, "log").read_text(errors="replace").split("Traceback")
    if traced:
        run.note(f"{len(traced)} tracebacks in the log", traced[0])
    if told := verified(f"{folder}/bank.db"):
        run.note("the database is not clean", told)


# Changes of a body

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


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container in a value with a key in it, the uppermost ones first."""
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting and len(found) < 3000:
        at = waiting.pop(0)
        keys = list(at) if isinstance(at, dict) else range(len(at)) if isinstance(at, list) else ()
        found += [(at, k) for k in keys]
        waiting += [at[k] for k in keys]
    return found


def change(body: Any, key: str, rng: random.Random) -> None:
    """Change something in a body whose messages stand under a key."""
    said, odd = body.get(key), copy.deepcopy(rng.choice(ODD))
    kind = rng.randrange(9)
    if kind == 0:  # any value is another
        at, k = rng.choice(places(body))
        at[k] = odd
    elif kind == 1:  # any member or element is missing
        at, k = rng.choice(places(body)[1:] or [(body, next(iter(body)))])
        del at[k]
    elif kind == 2:  # any object or list has one more
        at, _ = rng.choice(places(body))
        if isinstance(at, dict):
            at[rng.choice(KEYS)] = odd
        else:
            at.insert(rng.randrange(len(at) + 1), odd)
    elif isinstance(said, list) and len(said) > 1:
        a, b = rng.randrange(len(said)), rng.randrange(len(said))
        if kind == 3:  # two change places
            said[a], said[b] = said[b], said[a]
        elif kind == 4:  # a stretch comes twice
            said[b:b] = copy.deepcopy(said[a : a + rng.randrange(1, 5)])
        elif kind == 5:  # a stretch is missing, as where a client compacts its history
            del said[a : a + rng.randrange(1, 6)]
        elif kind == 6:  # somebody speaks in between
            role = rng.choice(("user", "system", "developer", "assistant", "tool", "function", "critic", 3))
            said.insert(a, {"role": role, "content": odd})
        elif kind == 7:  # a text is given in parts
            if isinstance(said[a], dict) and isinstance(text := said[a].get("content"), str):
                halves = text[: len(text) // 2], text[len(text) // 2 :]
                said[a]["content"] = [{"type": "text", "text": half} for half in halves]
        else:  # all calls have the same id, or none
            given = rng.choice(("same", None, 7, ""))
            for message in (m for m in said if isinstance(m, dict)):
                calls = message.get("tool_calls")
                for call in calls if isinstance(calls, list) else ():
                    if isinstance(call, dict):
                        call["id"] = given
                message |= dict.fromkeys(message.keys() & {"tool_call_id", "call_id"}, given)


# The API

# What a document cannot say: that `after` names a session, a name is printable, `raw` goes without `path`.
UNFIT = ("positive_data_acceptance",)
ROUND = 15  # requests of one kind that are made in a row
NAMES = ["refunds", "a/b c%", "orders 7"]
NEW = [f"run {n}" for n in range(40)]  # what is tampered with is stored: each has a part of it
LATEST = 14  # messages of the recorded run that most mutations have
ODD_QUERIES = [
    "\0", "\ud800", "\udfff", "\ufeff", "é中😀", "<|endoftext|>", "</retrieved-data>", "\\u0000", "%s{}", "A" * 5000,
    "1", "-1", "9" * 30, "(a+)+$", "[", "*", "$..x", "1-99999999", "[*].*", "order", "ORD",
]  # fmt: skip
PARAMETERS = ["q", "limit", "after", "top_k", "path", "lines", "pattern", "raw", "max_chars"]
SEGMENTS = ["sessions", "stats", "%2F", "%00", "%ff", "a" * 300, "records", "é", "%25", ""]
ODD_BODIES = [
    b"", b"null", b"[]", b'"text"', b"{", b"\xff\xfe", b"\xef\xbb\xbf{}", b"[" * 100_000, b'{"a":' * 50_000,
    b'{"messages": NaN}', b'{"messages": []}', b'{"messages": [NaN, Infinity]}',
    b'{"messages": [], "messages": []}', b'{"messages": [' + b"9" * 5000 + b"]}", "{}".encode("utf-16"),
    b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
    b'{"messages": [{"role": "user", "content": "\xed\xa0\x80"}]}',
    b'{"messages": [{"role": "user", "content": ' + b"[" * 800 + b"]" * 800 + b"}]}",
    b'{"messages": [{"role": "tool", "content": {"a": NaN, "b": 1e999, "c": ' + b"9" * 400 + b"}}]}",
    b'{"tool_outputs": [{"tool_name": "\\ud800", "raw_output": "\\udfff\\u0000"}]}',
    b'{"tool_outputs": [{"tool_name": "t", "raw_output": ' + b"[" * 500 + b"]" * 500 + b"}]}",
    b'{"tool_outputs": [{"tool_name": "t", "raw_output": NaN, "call_id": "\\ud83d"}], "task": "\\ud800"}',
]  # fmt: skip


class Api:
    """Requests to the API of a service."""

    def __init__(self, url: str, run: Run, timeout: float, rng: random.Random) -> None:
        import schemathesis.openapi
        from schemathesis.checks import CHECKS, load_all_checks

        self.url, self.run, self.timeout, self.rng = url, run, timeout, rng
        self.messages: list[Any] = json.loads(SHIPPED.read_text().splitlines()[0])["messages"]
        self.ids: list[str] = []
        for name in NAMES:  # the run is stored under each
            at = f"{url}/v1/sessions/{quote(name, safe='')}/ingest"
            answer = requests.post(at, json={"messages": self.messages}, timeout=timeout)
            if answer.status_code != 200:
                raise SystemExit(f"nothing can be stored: {answer.text[:500]}")
            self.ids += answer.json()["trace_ids"]
        self.http = requests.Session()
        self.http.trust_env = False
        load_all_checks()
        schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
        self.operations = [found.ok() for found in schema.get_all_operations()]
        self.unfit = CHECKS.get_by_names(UNFIT)
        self.unsent = CHECKS.get_by_names((*UNFIT, "negative_data_rejection"))

    def asked(self, kind: str, ask: Callable[[], Any], shown: Callable[[], str]) -> Any:
        """The answer to a request; None where there is none. No fault of the client's may be the service's."""
        began = time.monotonic()
        try:
            response = ask()
        except requests.exceptions.Timeout:
            self.run.hangs += 1
            self.run.note(f"{kind}: no answer in {self.timeout:g} s", shown())
            return None
        except (requests.exceptions.InvalidHeader, requests.exceptions.InvalidURL):
            return None  # the client does not even send it
        except requests.exceptions.RequestException as e:
            self.run.note(f"{kind}: {type(e).__name__}", shown())
            return None
        self.run.sent[kind] += 1
        self.run.answered(response.status_code, time.monotonic() - began)
        if response.status_code >= 500:
            self.run.note(f"{kind}: status {response.status_code}", response.text)
        return response

    def by_document(self, count: int) -> None:
        """So many requests to one operation, valid or invalid ones, checked against the document."""
        from hypothesis import HealthCheck, Phase, given, seed, settings
        from schemathesis import GenerationMode

        operation = self.rng.choice(self.operations)
        mode = GenerationMode.POSITIVE if self.rng.random() < 0.6 else GenerationMode.NEGATIVE
        is_known = self.rng.random() < 0.8

        @seed(self.rng.getrandbits(64))
        @settings(
            max_examples=count, deadline=None, database=None, phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(operation.as_strategy(generation_mode=mode))
        def sent(case: Any) -> None:
            if is_known:
                gone = case.method == "DELETE" or case.operation.path.endswith("/reset")
                known = {"name": NEW if gone else NAMES, "trace_id": [*self.ids, "1", "#2", self.ids[0][:8]]}
                for parameter in known.keys() & (case.path_parameters or {}).keys():
                    case.path_parameters[parameter] = self.rng.choice(known[parameter])
            call = lambda: case.call(timeout=self.timeout)  # noqa: E731
            response = self.asked("by the document", call, case.as_curl_command)
            if response is None or (response.status_code == 431 and len(response.request.url) > 60_000):
                return  # a head that is too large is refused before its route is looked up
            try:
                keys = {key for key, _ in parse_qsl(urlsplit(response.request.url).query, True)}
                lacks = set(case.query or ()) - keys  # an empty list has no form in a URL
                case.validate_response(response, excluded_checks=self.unsent if lacks else self.unfit)
            except BaseException as e:
                for failure in getattr(e, "exceptions", [e]):
                    title = getattr(failure, "title", type(failure).__name__)
                    self.run.note(f"{case.operation.label}: {title}", f"{case.as_curl_command()} → {failure}")

        with contextlib.suppress(Exception):  # an operation without parameters has no invalid requests
            sent()

    def mutated(self) -> None:
        """A recorded run with something wrong in it."""
        most = len(self.messages) if self.rng.random() < 0.1 else LATEST
        said = {"messages": copy.deepcopy(self.messages[: self.rng.randint(1, most)])}
        for _ in range(self.rng.randint(1, 6)):
            if said:  # all of it may have been removed
                change(said, "messages", self.rng)
        verb = self.rng.choice(["context", "ingest"])
        more = {"plan": False} if verb == "context" and self.rng.random() < 0.7 else {}
        body = json.dumps({**said, **more}, ensure_ascii=self.rng.random() < 0.5)
        data = body.encode("utf-8", "surrogatepass")
        self._send("recorded runs, mutated", "POST", f"{self._session()}/{verb}", data)

    def odd(self) -> None:
        """What no document describes."""
        rng = self.rng
        what, method, body = rng.randrange(5), "POST", b""
        path = f"{self._session()}/{rng.choice(['context', 'ingest'])}"
        if what == 0:
            body = rng.choice(ODD_BODIES)
        elif what == 1:
            body = json.dumps({"messages": self.messages}).encode()
            body = body[: rng.randrange(len(body))]
        elif what == 2:
            path = "/v1/" + "/".join(rng.choice(SEGMENTS) for _ in range(rng.randint(1, 6)))
            method = rng.choice(["GET", "POST", "DELETE"])
            if not path.startswith(("/v1/sessions/", "/v1/stats/")):
                return  # that goes on to the model's API
        elif what == 3:
            method = rng.choice(["PUT", "PATCH", "OPTIONS", "HEAD", "TRACE", "ODD"])
            path = rng.choice([path, "/v1/sessions", "/v1/stats", self._session()])
        else:
            asked = [
                f"{rng.choice(PARAMETERS)}={quote(rng.choice(ODD_QUERIES), errors='surrogatepass')}"
                for _ in range(rng.randint(1, 3))
            ]
            path = f"{self._session()}/{rng.choice(['records', 'search', 'records/1'])}?{'&'.join(asked)}"
            method = "GET"
        types = ["text/plain", "application/json; charset=utf-16", "x", "multipart/form-data"]
        self._send("beside the document", method, path, body, rng.choice(types) if rng.random() < 0.2 else "")

    def _session(self) -> str:
        return f"/v1/sessions/{quote(self.rng.choice([*NAMES, *NEW, 'x' * 181, chr(0x2028)]), safe='')}"

    def _send(self, kind: str, method: str, path: str, body: bytes, content_type: str = "") -> None:
        headers = {"content-type": content_type or "application/json"}

        def ask() -> Any:
            made = requests.Request(method, self.url, headers=headers, data=body).prepare()
            made.url = self.url + path  # as it is written here
            return self.http.send(made, timeout=self.timeout, allow_redirects=False)

        response = self.asked(kind, ask, lambda: f"{method} {path} {body[:300]!r}")
        if response is not None and response.status_code >= 400 and method != "HEAD":
            try:
                error = response.json()["error"]
                shaped = set(error) == {"message", "type", "param", "code"} and bool(error["message"])
            except (ValueError, KeyError, TypeError):
                shaped = False
            if not shaped:
                told = f"{method} {path} → {response.status_code} {response.text[:200]}"
                self.run.note(f"{kind}: an error in another shape", told)


def api_part(args: argparse.Namespace) -> int:
    """Send odd requests to the API."""
    run, rng, began = Run(), random.Random(args.seed), time.monotonic()
    count = args.requests or 2_000

    def send(url: str) -> None:
        api, silent = Api(url, run, args.timeout, rng), 0  # rounds in which nothing was answered
        while (left := count - run.sent.total()) > 0 and run.hangs < 20 and silent < 20:
            before, kind = run.sent.total(), rng.random()
            if kind < 0.6:
                api.by_document(min(ROUND, left))
            for _ in range(min(ROUND, left) if kind >= 0.6 else 0):
                api.mutated() if kind < 0.8 else api.odd()
            silent = silent + 1 if run.sent.total() == before else 0

    if args.url:
        send(args.url)
    else:
        with tempfile.TemporaryDirectory() as folder, open(f"{folder}/log", "wb") as log:
            served = Service(f"{folder}/bank.db", "http://127.0.0.1:9", stderr=log)  # nobody answers there
            served.start()
            send(f"http://127.0.0.1:{served.port}")
            end(served, folder, run)
            if run.found:
                print(Path(folder, "log").read_text()[-6000:], file=sys.stderr)
    print_head("requests", "count")
    for kind, n in sorted(run.sent.items()):
        print_row(kind, n)
    print_row("**all**", run.sent.total())
    print_row("statuses", run.shown_statuses())
    print_row("5xx", sum(n for status, n in run.statuses.items() if status >= 500))
    print_row("without an answer in time", run.hangs)
    print_row("the slowest answer", f"{run.slowest:.2f} s")
    print_row("in all", f"{time.monotonic() - began:.0f} s")
    return run.verdict()


# The proxy

SECONDS = 30.0
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
ERRORS: dict[str, Callable[[Any], list[str]]] = {
    "chat": pairing_errors, "responses": item_errors, "messages": message_errors,
}  # fmt: skip
SESSIONS = ("", "a", "b/c", "%00", "%C3%A9", "x" * 400, "auto-1", "../..", "~", "a b")


@dataclass
class Asked:
    """One request: its route, path, headers and body."""

    route: str
    path: str
    headers: list[tuple[str, str]]
    data: bytes


def requests_of(traces: list[Trace], seed: int, count: int, routes: list[str]) -> Iterator[Asked]:
    """Requests in the middle of the traces, most of them changed, of these routes by turns."""
    rng = random.Random(seed)
    for number in range(count):
        said = rng.choice(traces).messages
        most = min(len(said), 60)
        whole = [i for i in range(1, most + 1) if i == len(said) or said[i].get("role") == "assistant"]
        cut = rng.choice(whole) if whole and rng.random() < 0.9 else rng.randrange(1, most + 1)
        route = routes[number % len(routes)]
        counts, thinks = (route == "messages" and rng.random() < p for p in (0.25, 0.15))
        body: dict[str, Any] = {"model": "scripted", "temperature": 0.5}
        body |= request_of(route, copy.deepcopy(said[:cut]), signed=thinks)
        if thinks:
            body["thinking"] = rng.choice(({"type": "adaptive"}, {"type": "enabled", "budget_tokens": 1024}))
        if route == "messages" and body["messages"] and rng.random() < 0.3:
            marked = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}
            rng.choice(body["messages"])["content"].append(marked)
        if rng.random() < 0.3:
            body["stream"] = rng.choice((True, False))
        if route == "responses" and rng.random() < 0.5:
            body["instructions"] = "You are careful."
        for _ in range(rng.choice((0, 1, 1, 2, 3, 8))):
            if body:  # all of it may have been removed
                change(body, "input" if route == "responses" else "messages", rng)
        path = PATHS[route] + "/count_tokens" * counts
        yield Asked(route, path, headers_of(rng), bytes_of(body, rng))


def headers_of(rng: random.Random) -> list[tuple[str, str]]:
    """What a client may say of itself."""
    headers = [("authorization", f"Bearer sk-{rng.randrange(3)}")]
    if rng.random() < 0.5:
        headers.append(("x-memory-session", f"fuzz-{rng.randrange(40)}"))
    for share, name, values in (
        (0.05, "x-memory-session", SESSIONS),
        (0.05, "x-memory-strategy", ("truncation", "no such", "observation_masking")),
        (0.1, "content-type", ("text/plain", "multipart/form-data; boundary=x", "")),
    ):
        if rng.random() < share and name not in dict(headers):
            headers.append((name, rng.choice(values)))
    return headers


def bytes_of(body: Any, rng: random.Random) -> bytes:
    """The body as JSON, sometimes broken."""
    text = json.dumps(body, ensure_ascii=rng.random() < 0.7, indent=rng.choice((None, None, 1)))
    data = text.encode("utf-8", "surrogatepass")
    at, how = rng.randrange(len(data)), rng.random()
    broken = (
        data[:at], data[:at] + rng.randbytes(3) + data[at:], data[:at] + data[at + rng.randrange(1, 9) :],
        b'{"messages": [], ' + data[1:], b"\xef\xbb\xbf" + data,
        data[:-1] + b', "deep": ' + b"[" * 3000 + b"]" * 3000 + b"}",
        rng.choice((b"", b"[]", b"null", b"\x00", data * 2)),
    )  # fmt: skip
    return data if how < 0.9 else rng.choice(broken)


def untooled(body: Any) -> Any:
    """The object of a request without the tools of memory, which stand after the client's own."""
    if isinstance(tools := body.get("tools"), list):
        own = [schema["function"]["name"] for schema in TOOL_SCHEMAS]
        last = [t for t in tools[-len(own) :] if isinstance(t, dict)]
        if [t.get("function", t).get("name") for t in last] == own:
            rest = {"tools": tools[: -len(own)]}
            return {k: v for k, v in body.items() if k != "tools"} | (rest if rest["tools"] else {})
    return body


def unmarked(data: bytes) -> Any:
    """A body without what memory adds to it: its tools, and cache marks on the Messages API; texts are blocks."""
    try:
        body = untooled(json.loads(data.decode("utf-8-sig")))
        given = body.get("messages")
    except (ValueError, TypeError, AttributeError, RecursionError):
        return data
    messages = [m for m in given if isinstance(m, dict)] if isinstance(given, list) else []
    for message in messages:
        if isinstance(message.get("content"), str):
            message["content"] = [{"type": "text", "text": message["content"]}]
        blocks = message.get("content")
        for block in blocks if isinstance(blocks, list) else ():
            if isinstance(block, dict):
                block.pop("cache_control", None)
    return body


def faults_in(asked: Asked, came: list[Any], status: int, memory: str, reason: str) -> Iterator[str]:
    """What is wrong with what arrived upstream, beside what was sent.

    A refused request is sent again as it came, and then without its thinking; the client gets the answer to the last
    that was accepted, or to its own.
    """
    if not came:
        yield f"upstream was not asked ({status})"
        return
    if status >= 500:
        yield f"status {status}"
    if reason == "unforeseen":
        yield "memory failed as nobody foresaw"
    if memory != "rebuilt":
        if all(g.data != asked.data and unmarked(g.data) != unmarked(asked.data) for g in came):
            yield f"{memory}, yet other bytes"
        if status < 300 and reason != THINKING_LEFT_OUT and unmarked(came[-1].data) != unmarked(asked.data):
            yield f"{memory}, yet other bytes were answered"
        return
    got = came[-1]
    key = "input" if asked.route == "responses" else "messages"
    before, after = (untooled(json.loads(data.decode("utf-8-sig"))) for data in (asked.data, got.data))
    old, new = before.pop(key), after.pop(key)
    if json.dumps(before) != json.dumps(after):
        yield "more than what was said differs"
    errors = ERRORS[asked.route]
    if errors(new) and not errors(old):
        yield f"a pair broke: {errors(new)[:2]}"


def proxy_part(args: argparse.Namespace) -> int:
    """Send changed requests of recorded runs through the proxy."""
    files = args.files or [SHIPPED]
    traces = [t for file in files for t in read_traces(file) if isinstance(t, Trace) and t.messages]
    run, lock = Run(), threading.Lock()
    arrived: dict[str, list[Any]] = {}
    count = (args.requests or 20_000) * len(args.routes)

    def send(number: int, asked: Asked) -> None:
        began = time.perf_counter()
        try:
            with contextlib.closing(
                http.client.HTTPConnection("127.0.0.1", served.port, timeout=SECONDS)
            ) as connection:
                connection.putrequest("POST", asked.path)
                own = ("x-fuzz", str(number)), ("content-length", str(len(asked.data)))
                for name, value in (*asked.headers, *own):
                    connection.putheader(name, value)
                connection.endheaders(asked.data)
                answer = connection.getresponse()
                answer.read()
                memory, reason = (answer.headers.get(f"x-memory-{k}", "") for k in ("status", "reason"))
                wrong = []
        except (OSError, http.client.HTTPException) as e:
            wrong = [f"no whole answer: {type(e).__name__}"]
        with lock:
            if not wrong:
                run.answered(answer.status, time.perf_counter() - began)
                while upstream.requests:
                    request = upstream.requests.pop(0)
                    arrived.setdefault(request.headers.get("x-fuzz", ""), []).append(request)
                run.sent[f"{memory}: {reason}" if reason else memory] += 1
                wrong = list(faults_in(asked, arrived.pop(str(number), []), answer.status, memory, reason))
            for what in wrong:
                run.note(what, f"{asked.path} {asked.headers} {asked.data[:300]!r}")

    upstream = ScriptedServer(lambda _: say("so it is"))
    with tempfile.TemporaryDirectory() as folder, upstream, open(f"{folder}/log", "wb") as log:
        settings = {"memory_timeout": SECONDS, "inject_tools": str(args.seed % 2 == 1).lower()}
        served = Service(f"{folder}/bank.db", upstream.base_url, stderr=log, **settings)
        served.start()
        began = time.perf_counter()
        with ThreadPoolExecutor(8) as pool:
            waiting = threading.Semaphore(64)  # requests are made as they are sent

            def sent(number: int, asked: Asked) -> None:
                try:
                    send(number, asked)
                except Exception as e:
                    run.note(f"it cannot be checked: {e!r}", f"{asked.data[:300]!r}")
                finally:
                    waiting.release()

            for number, asked in enumerate(requests_of(traces, args.seed, count, args.routes)):
                waiting.acquire()
                pool.submit(sent, number, asked)
        seconds = time.perf_counter() - began
        end(served, folder, run)
    print_head("requests", "traces", "statuses (upstream's own)", "slowest (s)", "seconds", "wrong")
    shown = run.shown_statuses(), f"{run.slowest:.1f}", f"{seconds:.0f}"
    print_row(run.statuses.total(), len(traces), *shown, run.wrong)
    for what, n in run.sent.most_common():
        print(f"<!-- memory {what or 'was not asked'}: {n:,} -->")
    return run.verdict()


def main() -> int:
    """Run from the command line."""
    parser = command_line(__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="traces for the part proxy")
    parser.add_argument("--part", choices=("api", "proxy"), default="api")
    parser.add_argument("--requests", type=int, help="default: 2,000 to the api, 20,000 by each route")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--routes", type=words, default=",".join(PATHS), help="of the part proxy")
    parser.add_argument("--timeout", type=float, default=20.0, help="seconds after which a request hangs")
    parser.add_argument("--url", help="a service that runs; it is written to")
    args = parser.parse_args()
    return api_part(args) if args.part == "api" else proxy_part(args)


if __name__ == "__main__":
    sys.exit(main())
