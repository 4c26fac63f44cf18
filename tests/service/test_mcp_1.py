"""The MCP server with mcp 1, which some frameworks ask for: tests of test_mcp.py and of the command, with its client."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mcp")
pytest.importorskip("mcp_types", reason="the client of mcp 1 is given the types of mcp 2")

ROOT = Path(__file__).parents[2]
PLACE = ROOT / ".venv-integrations" / "mcp-1"
CHOSEN = (
    "offers or answers_are or which_session or mistakes or resources or cursors or anothers or goes_away "
    "or bodies or service_has or gone_is_told or a_client_works or ends_cleanly or odd_lines"
)
"""The tests that depend on the library; all others pass as well."""


@pytest.fixture(scope="module")
def packages() -> Path:
    """A folder with mcp 1 and what it needs, which Python finds before the installed packages."""
    if not (PLACE / ".ready").exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        done = subprocess.run(
            [*command, "--retries", "0", "--upgrade", "--target", str(PLACE), "mcp>=1.30,<2"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            pytest.skip("the package index has no mcp 1")
        (PLACE / ".ready").touch()
    return PLACE


def test_the_server_answers_as_with_mcp_2(packages: Path) -> None:
    path = os.pathsep.join(map(str, (packages, ROOT / "src", ROOT)))
    files = ["tests/service/test_mcp.py", "tests/cli/test_mcp.py", "-k", CHOSEN]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-n", "0", "-p", "no:cacheprovider", *files],
        cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    shown = "import importlib.metadata as m; print(m.version('mcp'))"
    version = subprocess.run(
        [sys.executable, "-c", shown],
        capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert version.stdout.startswith("1.")
    assert " passed" in done.stdout.splitlines()[-1]
