"""What the earlier sessions of a project would have answered: benchmarks/earlier.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.chats import call, result, system, user

ROOT = Path(__file__).parents[2]


def run_of(*files):
    messages = [system(), user("Mend it.")]
    for n, name in enumerate(files):
        text = "\n".join(f"def {name}_{i}(argument): return argument + {i}" for i in range(9))
        messages += [call((f"c{n}", "read_file", {"path": f"src/{name}.py"})), result(f"c{n}", text)]
    return {"id": "-".join(files), "task": "Mend it.", "messages": messages}


def printed(file):
    command = [sys.executable, "benchmarks/earlier.py", str(file)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120).stdout


def row_of(printed, number):
    """The only row of a table."""
    row = printed.strip().split("\n\n")[number].splitlines()[-1]
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_a_failure_that_an_earlier_run_cured_is_told_apart_and_searched_for(tmp_path):
    def run(name, *commands):
        messages = [system(), user("Mend it.")]
        for n, (command, output) in enumerate(commands):
            messages += [call((f"{name}{n}", "Bash", {"command": command})), result(f"{name}{n}", output)]
        return {"id": name, "task": "Mend it.", "messages": messages}

    text = "\n".join(f"def {n}_of_a_file(argument): return argument" for n in ("alpha", "beta", "gamma"))
    failed = "Traceback (most recent call last):\nModuleNotFoundError: No module named 'shop'"
    tests = ("pytest tests/test_shop.py", failed), ("PYTHONPATH=src pytest tests/test_shop.py", "1 passed")
    other = ("make docs", "Exit code 2\nmake: *** No rule to make target 'docs'"), ("make docs pages", "done")
    runs = run("a", ("cat a.py", text), *tests), run("b", ("cat a.py", text), *tests, *other)
    file = tmp_path / "runs.jsonl"
    file.write_text("".join(json.dumps(r) + "\n" for r in runs))
    name, count, *shares = row_of(printed(file), 1)
    assert (name, count, shares[0]) == ("runs", "2", "50.0")  # the first run cured one of them
    assert shares[-1] == "50.0"  # its search finds that cure among ten results


def test_only_what_an_earlier_run_returned_answers(tmp_path):
    file = tmp_path / "runs.jsonl"
    runs = run_of("alpha", "beta"), run_of("beta", "gamma"), run_of("gamma", "alpha")
    file.write_text("".join(json.dumps(r) + "\n" for r in runs))
    done = printed(file)
    name, asked, *shares = row_of(done, 0)
    assert (name, asked) == ("runs", "4")  # of the second and the third run
    assert shares[:4] == ["75.0"] * 4  # all but gamma, which the second run is the first to read
    assert shares[4] == "0.0"  # a search and a read say more than such a file
    assert all(int(n.replace(",", "")) > 50 for n in shares[5:])
