"""Each adapter with its framework, in a virtual environment of its own: versions and results of its tests.

``python benchmarks/integrations.py [NAME …]`` installs the extra, and what its tests need, under
``.venv-integrations/NAME`` (once), runs ``tests/integrations/test_NAME.py`` and the contract of all adapters,
``test_sent.py``, there and prints a table. ``--fresh`` makes the environments anew.

``--together`` installs nothing of them: it asks uv which versions it finds for each framework beside
``memory_bank[service,mcp]`` and for all frameworks at once, and tells those that are older than without. Names
are distributions then; the default is every framework that a page of the documentation names.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
import venv
from collections.abc import Sequence
from pathlib import Path

from harness import command_line

ROOT = Path(__file__).parents[1]
HOME = ROOT / ".venv-integrations"
FRAMEWORKS = {  # the framework's distribution, and what the tests need besides the extra
    "langchain": (
        "langchain",
        ["langchain-openai", "langchain-anthropic", "langchain-google-genai", "deepagents"],
    ),
    "openai_agents": ("openai-agents", []),
    "pydantic_ai": ("pydantic-ai-slim", ["pydantic-ai-slim[anthropic,google,openai]"]),
    "smolagents": ("smolagents", ["smolagents[openai]"]),
    "anthropic": ("anthropic", []),
    "google_adk": ("google-adk", ["anthropic", "litellm", "mcp"]),
    "llama_index": ("llama-index-core", ["llama-index-llms-google-genai", "llama-index-llms-openai"]),
    "litellm": ("litellm", ["mcp"]),
}
PIP = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
TOGETHER = (
    "openai-agents", "langchain", "langgraph", "deepagents", "pydantic-ai", "smolagents", "llama-index",
    "google-adk", "litellm", "anthropic", "claude-agent-sdk", "crewai", "autogen-agentchat", "ag2", "agno",
    "haystack-ai", "dspy", "mini-swe-agent", "openhands-sdk",
)  # fmt: skip
"""The distributions of ``--together``."""
NEWEST_PYTHON = "3.12"
"""The Python for which versions are searched: OpenHands needs it."""


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
    tests = [f"tests/integrations/test_{test}.py" for test in (name, "bridge", "sent")]
    run = subprocess.run(
        [python, "-m", "pytest", "-n", "0", *tests],
        cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    told = ", ".join(re.findall(r"\d+ (?:passed|failed|skipped|errors?)", run.stdout)) or "no test"
    if run.returncode:
        print(run.stdout, run.stderr, file=sys.stderr)
        told = f"failed: {told}"
    return f"| {distribution} | {version} | {told} | {time.perf_counter() - began:.0f} |"


NEED_MCP_1 = ("crewai", "openhands-sdk")
"""Frameworks beside which the extra ``mcp`` must be left out."""


def own_requirements(beside: str = "") -> list[str]:
    """What memory_bank[service,mcp] needs; beside a framework that needs mcp 1, memory_bank[service]."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    own = [*project["dependencies"], *optional["service"]]
    return own if beside in NEED_MCP_1 else [*own, *optional["mcp"]]


def find_versions(requirements: Sequence[str]) -> dict[str, str]:
    """The versions that uv finds for requirements and all they need; empty where there are none.

    Raises OSError where the package index does not answer.
    """
    uv = environment(HOME / "uv", ["uv"]).with_name("uv")
    asked = [
        uv,
        "pip",
        "compile",
        "--quiet",
        "--no-annotate",
        "--no-header",
        "--python-version",
        NEWEST_PYTHON,
        "-",
    ]
    done = subprocess.run(
        asked, input="\n".join(requirements), capture_output=True, text=True, check=False, cwd=ROOT
    )
    if done.returncode and "No solution found" not in done.stderr:
        raise OSError(done.stderr.strip())
    return dict(re.findall(r"^([\w.-]+)==(\S+)", done.stdout, re.M))


def install_together(names: Sequence[str]) -> int:
    """Print the table of ``--together``; the number of frameworks that are older beside memory_bank than alone."""
    older = 0
    newest: dict[str, str] = {}
    print("| framework | newest | beside memory_bank | mcp | openai |\n|---|---|---|---|---|", flush=True)
    for name in names:
        newest[name] = find_versions([name]).get(name, "none")
        found = find_versions([name, *own_requirements(name)])
        older += found.get(name) != newest[name]
        told = found.get(name, "none"), found.get("mcp", "none"), found.get("openai", "none")
        print(f"| {name} | {newest[name]} | {' | '.join(told)} |", flush=True)
    for title, needed in (("without", []), ("with", own_requirements())):
        found = find_versions([*needed, *names])
        changed = [f"{n} {found[n]}" for n in names if found and found[n] != newest[n]]
        told = "no versions" if not found else f"older: {', '.join(changed) or 'none'}"
        print(f"\nAll {len(names)} at once, {title} memory_bank: {told}.", flush=True)
    return older


def main() -> int:
    """Run from the command line; 1 if a test failed."""
    parser = command_line(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(FRAMEWORKS)}; default: all")
    parser.add_argument("--fresh", action="store_true", help="make the environments anew")
    parser.add_argument("--together", action="store_true", help="ask uv what installs together")
    asked = parser.parse_args()
    if asked.together:
        return min(1, install_together(asked.names or TOGETHER))
    unknown = set(asked.names) - set(FRAMEWORKS)
    if unknown:
        parser.error(f"no adapter {', '.join(sorted(unknown))}: there are {', '.join(FRAMEWORKS)}")
    print("| framework | version | tests | seconds |\n|---|---|---|---:|", flush=True)
    failed = 0
    for name in asked.names or FRAMEWORKS:
        row = check(name, fresh=asked.fresh)
        failed += "failed" in row
        print(row, flush=True)
    return min(1, failed)


if __name__ == "__main__":
    sys.exit(main())
