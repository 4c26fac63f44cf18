"""The scripts of examples/ run as their users run them."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_typed_history(tmp_path):
    path = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    ran = subprocess.run(
        [sys.executable, ROOT / "examples" / "typed_history.py"],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "after: 23 steps" in ran.stdout and "17 records" in ran.stdout
    assert "the whole is in memory: trace_id" in ran.stdout and "<retrieved-data" in ran.stdout
    assert list(tmp_path.iterdir()) == []
