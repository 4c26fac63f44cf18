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


def test_only_what_an_earlier_run_returned_answers(tmp_path):
    file = tmp_path / "runs.jsonl"
    runs = run_of("alpha", "beta"), run_of("beta", "gamma"), run_of("gamma", "alpha")
    file.write_text("".join(json.dumps(r) + "\n" for r in runs))
    command = [sys.executable, "benchmarks/earlier.py", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)
    name, asked, *shares = [
        cell.strip() for cell in done.stdout.strip().splitlines()[-1].strip("|").split("|")
    ]
    assert (name, asked) == ("runs", "4")  # of the second and the third run
    assert shares[:4] == ["75.0"] * 4  # all but gamma, which the second run is the first to read
    assert shares[4] == "0.0"  # a search and a read say more than such a file
    assert all(int(n.replace(",", "")) > 50 for n in shares[5:])
