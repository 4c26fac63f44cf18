"""The fuzz of the service, in short: it finds nothing, and it can tell."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from fastapi.responses import JSONResponse
from tests.service.api_server import configured, serving

FUZZ = Path(__file__).parents[2] / "benchmarks" / "fuzz_service.py"
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


def test_it_tells_of_a_service_that_is_wrong():
    def wrong(app):
        async def answer(request):
            return JSONResponse({"sums": -1}, 200 if "x" in request.url.path else 500)

        app.router.add_route("/v1/stats", answer)
        app.router.routes.insert(0, app.router.routes.pop())
        app.router.add_route("/v1/sessions/{name}", answer, methods=["GET"])
        app.router.routes.insert(0, app.router.routes.pop())

    with serving(configured(":memory:"), wrong) as url:
        done = fuzzed("--requests", 300, "--url", url)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FOUND by the document: status 500" in done.stdout
    assert "FOUND GET /v1/sessions/{name}: Response violates schema" in done.stdout
