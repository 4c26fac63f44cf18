"""What installs beside memory_bank: no framework gets an older version for it, where the docs' extras are taken."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.benchmarks import importing

with importing():
    import integrations


pytestmark = pytest.mark.long


@pytest.mark.parametrize("name", ["crewai", "openhands-sdk", "openai-agents"])
def test_a_framework_keeps_its_newest_version(name: str) -> None:
    try:
        newest = integrations.find_versions([name])
        beside = integrations.find_versions([name, *integrations.own_requirements(name)])
    except (OSError, subprocess.CalledProcessError) as e:
        pytest.skip(f"no package index, or no uv: {e}")
    if name not in newest:
        pytest.skip(f"the package index has no {name}")
    assert beside[name] == newest[name]
    assert beside["mcp"].split(".")[0] == ("1" if name in integrations.NEED_MCP_1 else "2")


@pytest.mark.short
def test_the_page_tells_every_framework() -> None:
    page = (Path(__file__).parents[2] / "docs" / "howto" / "frameworks.md").read_text()
    rows = page.split("## What installs together")[1]
    for name in integrations.TOGETHER:
        assert f"| {name} | " in rows
