"""The benchmarks of a bank under load, in short: nothing lost, nothing twice, nothing stuck, and they can tell."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import environment

ROOT = Path(__file__).parents[1]
pytestmark = [pytest.mark.long, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and forks")]


def bench(name: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / name), *args],
        env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=600,
    )  # fmt: skip


def cells(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The last row of the table."""
    rows = [line for line in done.stdout.splitlines() if line.startswith("| ")]
    return [cell.strip() for cell in rows[-1].strip("|").split("|")]


def test_soak() -> None:
    done = bench(
        "faults.py",
        "--part",
        "soak",
        "--seconds",
        "15",
        "--processes",
        "2",
        "--sessions",
        "4",
        "--database",
        "sqlite",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    row = cells(done)
    assert int(row[3].replace(",", "")) > 20
    assert row[6] == "0"  # errors
    assert row[10:] == ["0", "0", "0", "0", "0, 0"]


def test_faults() -> None:
    done = bench("faults.py", "--kills", "12", "--database", "sqlite", "--jobs", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    row = cells(done)
    assert row[2] == "12"
    assert row[4:] == ["0", "0", "0", "0", "0, 0"]


def test_services_that_are_killed() -> None:
    """Two services answer for each session; summaries are made once an answer is on its way."""
    options = "--part services --kills 3 --database sqlite --way context --strategy evidence --agents 2"
    done = bench("faults.py", *options.split())
    assert done.returncode == 0, done.stdout + done.stderr
    row = cells(done)
    assert row[3] == "3"
    assert row[7:] == ["0", "0", "0", "0", "0, 0", "0", "0"]  # lost, twice, bare, stuck, out of order, …


def test_services_whose_streams_are_cut_and_whose_workers_are_killed() -> None:
    for options in (
        "--way stream --services 2 --kills 3",
        "--way proxy,stream --services 1 --workers 2 --kills 4",
    ):
        more = " --part services --database sqlite --strategy evidence --agents 2"
        done = bench("faults.py", *(options + more).split())
        assert done.returncode == 0, done.stdout + done.stderr
        assert cells(done)[7:] == ["0", "0", "0", "0", "0, 0", "0", "0"]


def test_attacks_are_chosen_by_kind_and_by_parts_of_their_names() -> None:
    done = bench("attacks.py", "--only", "json", "--scale", "0.01")
    names = [line.split(" | ")[1] for line in done.stdout.splitlines()[2:] if line.startswith("| ")]
    assert len(names) > 1
    assert all("json" in name.lower() for name in names)
    done = bench("attacks.py", "--only", "json,nothing of that name")
    assert done.returncode == 2
    assert "'nothing of that name' is no kind" in done.stderr


def test_the_checks_see_what_is_wrong(tmp_path: Path) -> None:
    script = """
import sys
sys.path.insert(0, sys.argv[1])
import sqlite3, workload
from memory_bank.bank.database import Database
from memory_bank.processor import apply_memory_bank_strategy as step
where = sys.argv[2]
with workload.open_state(where, "a") as state:
    step(workload.conversation("a", 5), None, workload.settings_for("extractive"), state)
bank = Database(where)
assert not workload.check_session(bank, "a", 5).wrong + workload.check_bank(bank).wrong
assert workload.check_session(bank, "a", 6).lost
def spoil(sql):
    c = sqlite3.connect(where); c.execute(sql); c.commit(); c.close()
spoil("UPDATE records SET output = x'00' WHERE seq = 1")
assert workload.check_session(bank, "a", 5).lost == 1
spoil("INSERT INTO records SELECT 999, session_id, 'x', step_id, call_id, tool_name, input, input_verbatim, output,"
      " output_verbatim, timestamp, mark FROM records WHERE seq = 2")
found = workload.check_session(bank, "a", 5)
assert (found.twice, found.disordered) == (1, 1), found
spoil("UPDATE insights SET trace_id = 'nobody', due = 0 WHERE seq = 2")
found = workload.check_bank(bank)
assert (found.stuck, found.orphaned, found.unsummarised) == (1, 1, 2), found
"""
    args = [sys.executable, "-c", script, str(ROOT / "benchmarks"), str(tmp_path / "bank.db")]
    done = subprocess.run(args, env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
