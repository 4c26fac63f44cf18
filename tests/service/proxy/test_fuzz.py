"""The benchmarks of the proxy, in short: requests changed at random, and the tables."""

from __future__ import annotations

import sys

import pytest
from tests.test_soak import bench, cells

pytestmark = [pytest.mark.long, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]


@pytest.mark.parametrize("seed", ["0", "1"])  # without and with memory's tools
@pytest.mark.parametrize("route", ["chat", "responses", "messages"])
def test_whatever_comes(route: str, seed: str) -> None:
    done = bench("fuzz.py", "--part", "proxy", "--requests", "60", "--routes", route, "--seed", seed)
    assert done.returncode == 0, done.stdout + done.stderr
    row = cells(done)
    assert row[0] == "60"
    assert row[-1] == "0"
    memory = [line for line in done.stdout.splitlines() if line.startswith("<!-- memory")]
    assert any("rebuilt" in line for line in memory)
    assert any("passed" in line for line in memory)


def test_the_tables() -> None:
    done = bench("proxy.py", "--part", "history,rss", "--requests", "50", "--rounds", "1", "--history", "110")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("| 110 |")]
    assert [row.split("|")[2].strip() for row in rows] == ["chat", "messages"]
    assert all("rebuilt" in row for row in rows)
    assert cells(done)[0] == "50"
