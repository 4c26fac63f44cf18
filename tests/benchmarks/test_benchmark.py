"""The benchmarks run, write what they say, and fail where they leave the reference meter."""

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.cli.conftest import environment

pytestmark = pytest.mark.long


ROOT = Path(__file__).parents[2]
HERE = ROOT / "tests" / "audit"  # where orders.jsonl is
TOY = "tests.benchmarks.toys:keep_last?n=2"


def bench(*args, command="evidence.py"):
    return subprocess.run(
        [sys.executable, ROOT / "benchmarks" / command, *map(str, args)],
        env=environment(PYTHONPATH=f"{ROOT / 'src'}{os.pathsep}{ROOT}"), cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_tables_json_and_page(tmp_path):
    results, page = tmp_path / "r.json", tmp_path / "p.html"
    done = bench("orders", "--data-dir", HERE, "--strategy", TOY, "--strategy", "full", "--counter", "approximate",
                 "--json", results, "--html", page)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"| {TOY} | 78.6 |" in done.stdout
    assert "## orders: 10 traces, 33 steps, 28 values (14 old)" in done.stdout
    written = json.loads(results.read_text())
    assert written["results"]["orders"]["full"]["recall"] == 1
    assert {"commit", "settings", "seed", "machine", "counter"} <= set(written)
    assert ET.fromstring(page.read_text().removeprefix("<!DOCTYPE html>\n")) is not None


# A stand-in for the reference meter: its package and the one function that is asked.
METER = """
def evaluate(spec, path, limit=None, jobs=2, pool=None):
    assert spec == "tests.benchmarks.toys:keep_last?n=2"
    return {"ER": 0.8929, "ERb": 0.8929, "ERb_old": %s, "ratio": 0.7, "hist_ratio": 0.4655}
"""


@pytest.mark.parametrize(("bound_old", "code"), [(0.7857, 0), (0.77, 1)])
def test_a_point_apart_from_the_reference_is_a_failure(tmp_path, bound_old, code):
    (tmp_path / "evbench").mkdir()
    (tmp_path / "evbench" / "run.py").write_text(METER % bound_old)
    done = bench("orders", "--data-dir", HERE, "--strategy", TOY, "--compare-reference", tmp_path)
    assert done.returncode == code, done.stdout + done.stderr
    assert ("apart by more than a point: orders" in done.stdout) == bool(code)


def test_wrong_use_is_one_sentence(tmp_path):
    for args in (["nope"], ["--data-dir", tmp_path], ["orders", "--data-dir", HERE, "--strategy", "nope"]):
        done = bench(*args)
        assert done.returncode == 1
        assert len(done.stderr.splitlines()) == 1


def test_acting_tables_lines_page_and_plot(tmp_path):
    lines, page, plot = tmp_path / "l.jsonl", tmp_path / "p.html", tmp_path / "p.svg"
    baselines = ("--baseline", TOY.replace("n=2", "n=1"), "--baseline", "full")
    options = ("--counter", "approximate", "--lines", lines, "--html", page, "--svg", plot)
    done = bench("orders", "--data-dir", HERE, "--strategy", TOY, *baselines, *options, command="acting.py")
    assert done.returncode == 0, done.stderr
    assert "## orders: 10 traces, " in done.stdout
    rows = {row["strategy"]: row for row in map(json.loads, lines.read_text().splitlines())}
    assert list(rows) == [TOY, TOY.replace("n=2", "n=1"), "full"]
    assert rows["full"]["told"] == rows["full"]["told_changing"] == 1
    assert rows["full"]["set"] == "orders"
    assert {"commit", "settings", "machine"} <= set(rows["full"]["about"])
    gains = done.stdout.split("points over the baselines at equal tokens")[1]
    assert [line.split(" | ")[0] for line in gains.splitlines()[2:]] == [f"| {TOY}"]
    assert page.read_text().count("<svg") == 6
    assert ET.fromstring(plot.read_text()) is not None


def test_budgets_as_shares_of_the_older_history(tmp_path):
    lines = tmp_path / "l.jsonl"
    at = ("--at", 0.1, "--at", 0.25, "--limit", 2, "--counter", "approximate", "--lines", lines)
    done = bench("orders", "--data-dir", HERE, "--strategy", "memory_bank", "--strategy", "full", *at)
    assert done.returncode == 0, done.stderr
    tried = [json.loads(line)["strategy"] for line in lines.read_text().splitlines()]
    assert tried == ["memory_bank?history_budget=0.1", "memory_bank?history_budget=0.25", "full"]
    assert bench("orders", "--data-dir", HERE, "--at", 2).returncode == 2


def test_dollars_by_length(tmp_path):
    """A row for each length, with the mean and the dearest run at each price; a run below a fold costs hardly less."""
    done = bench(ROOT / "examples" / "shop-refunds.jsonl", ROOT / "examples" / "invoice-check.jsonl", "--strategy",
                 "memory_bank?token_encoding=approximate", "--price", "0.1/1.25", "--weeks", 5,
                 command="lengths.py")  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = dict(re.findall(r"^\| ([a-z\d ]+) \| (\d+ \| \S+ \| \S+) \|$", done.stdout, re.M))
    assert list(rows) == ["over 100", "51 to 100", "26 to 50", "11 to 25", "up to 10"]
    assert rows["26 to 50"] in ("1 | 100% | 100%", "1 | 99% | 99%")
    assert rows["up to 10"].startswith("0 |")
    assert 40 < int(re.search(r"(\d+)%", rows["over 100"])[1]) < 75
    weeks = re.findall(r"^\| ([\d,]+) \| (\d+)% \| (as measured|A/A) \| (\S+) \|", done.stdout, re.M)
    assert len(weeks) == 12
    assert {true for *_, kind, true in weeks if kind == "A/A"} == {"1.00"}
    assert all(0.4 < float(true) < 1 for *_, kind, true in weeks if kind == "as measured")
