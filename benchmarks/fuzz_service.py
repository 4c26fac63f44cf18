"""Sends odd requests to the service: no 5xx, no hang, nothing that the OpenAPI document does not allow.

    python benchmarks/fuzz_service.py --requests 20000
    python benchmarks/fuzz_service.py --requests 400 --seed 1

Starts ``memory-bank serve`` on a fresh database, brings a recorded run, and sends requests of three kinds:
made by schemathesis from the OpenAPI document, valid and invalid, most of them with names and ids that are
there; the recorded run with pieces of it removed, repeated and replaced; and bodies and paths that no
document describes (cut JSON, NaN, lone surrogates, huge numbers, deep nesting, quoted slashes, methods).
Every answer to the first is held against the document (status, headers, content type, shape), every error
against the one shape of errors. At the end the service must still answer, end when told to, and leave a
database that ``memory-bank bank verify`` finds clean. Prints a Markdown table; exit code 1 when anything was
found. ``--url`` takes a service that runs already.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

import requests
import schemathesis.openapi
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks

from proxy_ends import service
from proxy_fuzz import CHANGES

ROOT = Path(__file__).parents[1]
# What a document cannot say: that `after` names a session, a name is printable, `raw` goes without `path`.
UNFIT = ("positive_data_acceptance",)
ROUND = 15  # requests of one kind that are made in a row
NAMES = ["refunds", "a/b c%", "orders 7"]
NEW = [f"run {n}" for n in range(40)]  # what is tampered with is stored: each has a part of it
LATEST = 14  # messages of the recorded run that most mutations have
SHOWN = 12


@dataclass
class Run:
    """What became of the requests."""

    started: float = field(default_factory=time.monotonic)
    sent: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    slowest: float = 0.0
    hangs: int = 0
    found: dict[str, str] = field(default_factory=dict)  # what is wrong, with an example of it

    def note(self, what: str, example: str) -> None:
        """Keep the first example of something that is wrong."""
        self.found.setdefault(what, example[:600])

    def answered(self, kind: str, response: Any, seconds: float) -> None:
        """Count an answer; no fault of the client's may be one of the service's."""
        self.sent[kind] += 1
        self.statuses[response.status_code] += 1
        self.slowest = max(self.slowest, seconds)
        if response.status_code >= 500:
            self.note(f"{kind}: status {response.status_code}", response.text)


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[tuple[str, Path, subprocess.Popen[bytes]]]:
    """The service on a fresh database, with an upstream that nobody answers at; its log is service.log."""
    with (folder / "service.log").open("w") as log, service("http://127.0.0.1:9", folder, log) as served:
        yield f"http://127.0.0.1:{served.port}", folder / "bank.db", served.process


def recorded() -> list[dict[str, Any]]:
    """The messages of a recorded run."""
    line = (ROOT / "examples" / "shop-refunds.jsonl").read_text().splitlines()[0]
    messages: list[dict[str, Any]] = json.loads(line)["messages"]
    return messages


def brought(url: str, messages: list[dict[str, Any]], timeout: float) -> list[str]:
    """Store the run under each name; the trace_ids there are."""
    ids: list[str] = []
    for name in NAMES:
        answer = requests.post(
            f"{url}/v1/sessions/{quote(name, safe='')}/ingest", json={"messages": messages}, timeout=timeout
        )
        if answer.status_code != 200:
            raise SystemExit(f"nothing can be stored: {answer.text[:500]}")
        ids += answer.json()["trace_ids"]
    return ids


class ByDocument:
    """Requests made from the OpenAPI document, valid and invalid, checked against it."""

    def __init__(self, url: str, run: Run, ids: list[str], timeout: float, rng: random.Random) -> None:
        self.run, self.ids, self.timeout, self.rng = run, ids, timeout, rng
        load_all_checks()
        schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
        self.operations = [found.ok() for found in schema.get_all_operations()]
        self.unfit = CHECKS.get_by_names(UNFIT)
        self.unsent = CHECKS.get_by_names((*UNFIT, "negative_data_rejection"))

    def send(self, count: int) -> None:
        """So many requests to one operation."""
        operation = self.rng.choice(self.operations)
        mode = GenerationMode.POSITIVE if self.rng.random() < 0.6 else GenerationMode.NEGATIVE
        self.known = self.rng.random() < 0.8

        @seed(self.rng.getrandbits(64))
        @settings(
            max_examples=count,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(operation.as_strategy(generation_mode=mode))
        def sent(case: Any) -> None:
            self._one(case)

        with contextlib.suppress(Exception):  # an operation without parameters has no invalid requests
            sent()

    def _one(self, case: Any) -> None:
        kind = "by the document"
        if self.known:
            gone = case.method == "DELETE" or case.operation.path.endswith("/reset")
            known = {"name": NEW if gone else NAMES, "trace_id": [*self.ids, "1", "#2", self.ids[0][:8]]}
            for parameter in known.keys() & (case.path_parameters or {}).keys():
                case.path_parameters[parameter] = self.rng.choice(known[parameter])
        began = time.monotonic()
        try:
            response = case.call(timeout=self.timeout)
        except requests.exceptions.Timeout:
            self.run.hangs += 1
            self.run.note(f"{kind}: no answer in {self.timeout:g} s", case.as_curl_command())
            return
        except (requests.exceptions.InvalidHeader, requests.exceptions.InvalidURL):
            return  # the client does not even send it
        except requests.exceptions.RequestException as e:
            self.run.note(f"{kind}: {type(e).__name__}", case.as_curl_command())
            return
        self.run.answered(kind, response, time.monotonic() - began)
        try:
            sent = {key for key, _ in parse_qsl(urlsplit(response.request.url).query, True)}
            lacks = set(case.query or ()) - sent  # an empty list has no form in a URL
            case.validate_response(response, excluded_checks=self.unsent if lacks else self.unfit)
        except BaseException as e:
            for failure in getattr(e, "exceptions", [e]):
                title = getattr(failure, "title", type(failure).__name__)
                self.run.note(f"{case.operation.label}: {title}", f"{case.as_curl_command()} → {failure}")


class ByHand:
    """Recorded runs that were tampered with, and what no document describes."""

    def __init__(self, url: str, run: Run, messages: list[Any], timeout: float, rng: random.Random) -> None:
        self.url, self.run, self.messages, self.timeout, self.rng = url, run, messages, timeout, rng
        self.http = requests.Session()
        self.http.trust_env = False

    def mutated(self) -> None:
        """A recorded run with something wrong in it."""
        most = len(self.messages) if self.rng.random() < 0.1 else LATEST
        said = {"messages": json.loads(json.dumps(self.messages[: self.rng.randint(1, most)]))}
        for _ in range(self.rng.randint(1, 6)):
            if said:  # all of it may have been removed
                self.rng.choice(CHANGES)(said, "messages", self.rng)
        verb = self.rng.choice(["context", "ingest"])
        more = {"plan": False} if verb == "context" and self.rng.random() < 0.7 else {}
        body = json.dumps({**said, **more}, ensure_ascii=self.rng.random() < 0.5)
        self._send("recorded runs, mutated", "POST", f"{self._session()}/{verb}", _bytes(body))

    def odd(self) -> None:
        """What no document describes."""
        rng = self.rng
        what = rng.randrange(5)
        path, method, body, headers = (
            f"{self._session()}/{rng.choice(['context', 'ingest'])}",
            "POST",
            b"",
            {},
        )
        if what == 0:  # bodies
            body = rng.choice(ODD_BODIES)
        elif what == 1:  # cut bodies
            whole = _bytes(json.dumps({"messages": self.messages}))
            body = whole[: rng.randrange(len(whole))]
        elif what == 2:  # paths
            path = "/v1/" + "/".join(
                rng.choice(["sessions", "stats", "%2F", "%00", "%ff", "a" * 300, "records", "é", "%25", ""])
                for _ in range(rng.randint(1, 6))
            )
            method = rng.choice(["GET", "POST", "DELETE"])
            if not path.startswith(("/v1/sessions/", "/v1/stats/")):
                return  # that goes on to the model's API
        elif what == 3:  # methods
            method = rng.choice(["PUT", "PATCH", "OPTIONS", "HEAD", "TRACE", "ODD"])
            path = rng.choice([path, "/v1/sessions", "/v1/stats", self._session()])
        else:  # queries
            asked = [
                f"{rng.choice(PARAMETERS)}={quote(rng.choice(ODD_QUERIES), errors='surrogatepass')}"
                for _ in range(rng.randint(1, 3))
            ]
            path = f"{self._session()}/{rng.choice(['records', 'search', 'records/1'])}?{'&'.join(asked)}"
            method = "GET"
        if rng.random() < 0.2:
            headers["content-type"] = rng.choice(
                ["text/plain", "application/json; charset=utf-16", "x", "multipart/form-data"]
            )
        self._send("beside the document", method, path, body, headers)

    def _session(self) -> str:
        return f"/v1/sessions/{quote(self.rng.choice([*NAMES, *NEW, 'x' * 181, chr(0x2028)]), safe='')}"

    def _send(
        self, kind: str, method: str, path: str, body: bytes, headers: dict[str, str] | None = None
    ) -> None:
        began = time.monotonic()
        given = {"content-type": "application/json", **(headers or {})}
        try:
            made = requests.Request(method, self.url, headers=given, data=body).prepare()
            made.url = self.url + path  # as it is written here
            response = self.http.send(made, timeout=self.timeout, allow_redirects=False)
        except requests.exceptions.Timeout:
            self.run.hangs += 1
            self.run.note(f"{kind}: no answer in {self.timeout:g} s", f"{method} {path} {body[:300]!r}")
            return
        except requests.exceptions.RequestException as e:
            self.run.note(f"{kind}: {type(e).__name__}", f"{method} {path} {body[:300]!r}")
            return
        self.run.answered(kind, response, time.monotonic() - began)
        if response.status_code >= 400 and method != "HEAD":
            try:
                error = response.json()["error"]
                shaped = set(error) == {"message", "type", "param", "code"} and bool(error["message"])
            except (ValueError, KeyError, TypeError):
                shaped = False
            if not shaped:
                told = f"{method} {path} → {response.status_code} {response.text[:200]}"
                self.run.note(f"{kind}: an error in another shape", told)


ODD_TEXTS = [
    "\0",
    "\ud800",
    "\udfff",
    "\ufeff",
    "é中😀",
    "<|endoftext|>",
    "</retrieved-data>",
    "\\u0000",
    "%s{}",
    "A" * 5000,
]
ODD_QUERIES = [
    *ODD_TEXTS, "1", "-1", "9" * 30, "(a+)+$", "[", "*", "$..x", "1-99999999", "[*].*", "order", "ORD",
]  # fmt: skip
PARAMETERS = ["q", "limit", "after", "top_k", "path", "lines", "pattern", "raw", "max_chars"]


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


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


def fuzz(url: str, count: int, number: int, timeout: float, run: Run) -> None:
    """Send the requests."""
    rng = random.Random(number)
    messages = recorded()
    ids = brought(url, messages, timeout)
    document = ByDocument(url, run, ids, timeout, rng)
    hand = ByHand(url, run, messages, timeout, rng)
    silent = 0  # rounds in which nothing was answered
    while (left := count - run.sent.total()) > 0 and run.hangs < 20 and silent < 20:
        before = run.sent.total()
        round_ = min(ROUND, left)
        kind = rng.random()
        if kind < 0.6:
            document.send(round_)
        else:
            for _ in range(round_):
                hand.mutated() if kind < 0.8 else hand.odd()
        silent = silent + 1 if run.sent.total() == before else 0


def ended(process: subprocess.Popen[bytes], database: Path, run: Run) -> None:
    """The service must answer to the end, end when told to, and leave a clean database."""
    if process.poll() is not None:
        run.note("the service ended by itself", f"exit code {process.returncode}")
        return
    process.send_signal(signal.SIGTERM)
    try:
        code = process.wait(30)
        if code not in (0, -signal.SIGTERM, 143):
            run.note("the service did not end well", f"exit code {code}")
    except subprocess.TimeoutExpired:
        run.note("the service did not end", "30 s after SIGTERM")
        return
    done = subprocess.run(
        [sys.executable, "-m", "memory_bank", "bank", "verify", "--db", str(database)],
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        run.note("the database is not clean", done.stdout + done.stderr)


def report(run: Run) -> str:
    """The figures, and an example of everything that is wrong."""
    seconds = time.monotonic() - run.started
    server = sum(n for status, n in run.statuses.items() if status >= 500)
    statuses = ", ".join(f"{n:,} × {status}" for status, n in sorted(run.statuses.items()))
    rows = {kind: f"{n:,}" for kind, n in sorted(run.sent.items())} | {
        "**all**": f"{run.sent.total():,}",
        "statuses": statuses,
        "5xx": str(server),
        "without an answer in time": str(run.hangs),
        "the slowest answer": f"{run.slowest:.2f} s",
        "in all": f"{seconds:.0f} s",
    }
    lines = ["| requests | count |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())]
    for what, example in list(run.found.items())[:SHOWN]:
        lines += ["", f"FOUND {what}", f"  {example}"]
    return "\n".join(lines)


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--requests", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=20.0, help="seconds after which a request hangs")
    parser.add_argument("--url", help="a service that runs; it is written to")
    args = parser.parse_args()
    run = Run()
    if args.url:
        fuzz(args.url, args.requests, args.seed, args.timeout, run)
    else:
        with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as (url, database, process):
            fuzz(url, args.requests, args.seed, args.timeout, run)
            ended(process, database, run)
            if run.found:
                print((Path(folder) / "service.log").read_text()[-6000:], file=sys.stderr)
    print(report(run))
    return 1 if run.found else 0


if __name__ == "__main__":
    sys.exit(main())
