"""Each adapter with its framework, in a virtual environment of its own: versions and results of its tests.

``python benchmarks/integrations.py [NAME …]`` installs the extra, and what its tests need, under
``.venv-integrations/NAME`` (once), runs ``tests/integrations/test_NAME.py`` there and prints a table. ``--fresh``
makes the environments anew; ``--together`` only asks pip whether all extras install beside each other.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
HOME = ROOT / ".venv-integrations"
FRAMEWORKS = {  # the framework's distribution, and what the tests need besides the extra
    "langchain": ("langchain", ["langchain-openai", "deepagents"]),
    "openai_agents": ("openai-agents", []),
    "pydantic_ai": ("pydantic-ai-slim", ["pydantic-ai-slim[openai]"]),
    "smolagents": ("smolagents", ["smolagents[openai]"]),
    "anthropic": ("anthropic", []),
    "google_adk": ("google-adk", ["litellm", "mcp"]),
    "llama_index": ("llama-index-core", ["llama-index-llms-openai"]),
    "litellm": ("litellm", ["mcp"]),
}
PIP = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]


def extra_of(name: str) -> str:
    """The extra of a module."""
    return name.replace("_", "-")


def environment(folder: Path, packages: Sequence[str], *, fresh: bool = False) -> Path:
    """The interpreter of an environment with these packages, made when it is not there."""
    if fresh:
        shutil.rmtree(folder, ignore_errors=True)
    python = folder / "bin" / "python"
    if not (folder / ".ready").exists():
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, *PIP, *packages], check=True)
        (folder / ".ready").touch()
    return python


def check(name: str, *, fresh: bool) -> str:
    """A row of the table: framework, version, tests, seconds."""
    distribution, needed = FRAMEWORKS[name]
    packages = ["-e", f"{ROOT}[{extra_of(name)}]", *needed, "pytest", "pytest-xdist", "hypothesis"]
    python = environment(HOME / name, packages, fresh=fresh)
    shown = f"import importlib.metadata as m; print(m.version({distribution!r}))"
    version = subprocess.run([python, "-c", shown], capture_output=True, text=True, check=True).stdout.strip()
    began = time.perf_counter()
    tests = [f"tests/integrations/test_{name}.py", "tests/integrations/test_bridge.py"]
    run = subprocess.run(
        [python, "-m", "pytest", "-n", "0", *tests],
        cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    told = ", ".join(re.findall(r"\d+ (?:passed|failed|skipped|errors?)", run.stdout)) or "no test"
    if run.returncode:
        print(run.stdout, run.stderr, file=sys.stderr)
        told = f"failed: {told}"
    return f"| {distribution} | {version} | {told} | {time.perf_counter() - began:.0f} |"


def ask_pip() -> int:
    """Whether pip finds versions for all extras at once; it prints what it would install."""
    extras = ",".join(extra_of(name) for name in FRAMEWORKS)
    command = [
        sys.executable,
        *PIP[:3],
        "--dry-run",
        "--disable-pip-version-check",
        f"{ROOT}[{extras},service,mcp]",
    ]
    return subprocess.run(command, check=False).returncode


def main() -> int:
    """Run from the command line; 1 if a test failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(FRAMEWORKS)}; default: all")
    parser.add_argument("--fresh", action="store_true", help="make the environments anew")
    parser.add_argument("--together", action="store_true", help="ask pip whether all install together")
    asked = parser.parse_args()
    unknown = set(asked.names) - set(FRAMEWORKS)
    if unknown:
        parser.error(f"no adapter {', '.join(sorted(unknown))}: there are {', '.join(FRAMEWORKS)}")
    if asked.together:
        return ask_pip()
    print("| framework | version | tests | seconds |\n|---|---|---|---:|", flush=True)
    failed = 0
    for name in asked.names or FRAMEWORKS:
        row = check(name, fresh=asked.fresh)
        failed += "failed" in row
        print(row, flush=True)
    return min(1, failed)


if __name__ == "__main__":
    sys.exit(main())
