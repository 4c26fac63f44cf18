"""The fuzz of the service, in short: it finds nothing, and it can tell."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.chats import FOLDING
from tests.service import serving

pytestmark = pytest.mark.long


FUZZ = Path(__file__).parents[2] / "benchmarks" / "fuzz.py"
REQUESTS = 300


def fuzzed(*args: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(FUZZ), *map(str, args)], capture_output=True, text=True, timeout=300
    )


def test_odd_requests_find_no_500_no_hang_and_nothing_undocumented():
    done = fuzzed("--requests", REQUESTS, "--seed", 7)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| 5xx | 0 |" in done.stdout
    assert "| without an answer in time | 0 |" in done.stdout
    assert f"| **all** | {REQUESTS:,} |" in done.stdout


class Wrong:
    """ASGI middleware: what was refused fails, and what is asked for has another shape."""

    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http" or scope["path"] == "/openapi.json":
            await self.app(scope, receive, send)
            return
        body = [b'{"sums": -1}', b""]

        async def changed(message):
            if message["type"] == "http.response.start":
                headers = [(b"content-type", b"application/json")]
                status = {422: 500}.get(message["status"], message["status"])
                self.right = scope["method"] != "GET" or status != 200
                message = message if self.right else {**message, "headers": headers}
                message = {**message, "status": status}
            elif not self.right:
                message = {**message, "body": body.pop(0), "more_body": False}
            await send(message)

        await self.app(scope, receive, changed)


def test_it_tells_of_a_service_that_is_wrong():
    config = serving.configured({"memory_bank": FOLDING}, database=":memory:", redact_secrets=False)
    with serving.serving(config, prepare=lambda app: app.add_middleware(Wrong)) as served:
        done = fuzzed("--requests", 300, "--url", served.url)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FOUND by the document: status 500" in done.stdout
    assert "Response violates schema" in done.stdout
