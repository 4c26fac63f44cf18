"""The page on the API runs as it stands, and its answers are those of the service."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "http-api.md").read_text()
END = "= end of an answer ="


def within(told: Any, real: Any, place: str = "") -> None:
    """All that the page tells of an answer is in the real one; "…" stands for anything."""
    if told == "…" or told == ["…"]:
        assert real, place
    elif isinstance(told, dict):
        assert isinstance(real, dict), place
        for key, value in told.items():
            assert key in real, f"{place}.{key}"
            within(value, real[key], f"{place}.{key}")
    elif isinstance(told, list) and told:
        assert len(told) == len(real), place
        for i, value in enumerate(told):
            within(value, real[i], f"{place}[{i}]")
    else:
        assert told == real, place


def test_every_command_runs_and_every_answer_is_what_it_says(tmp_path):
    program = tmp_path / "bin" / "memory-bank"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m memory_bank "$@"\n')
    program.chmod(0o755)
    script = ["set -e"]
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.S):
        for line in block.splitlines():
            assert line.startswith(("$ ", "> "))
            script.append(line[2:])
            if line.startswith("$ curl -s $M") or line.startswith('$ curl -s "$M'):
                script.append(f"echo; echo '{END}'")
    env = os.environ | {"PATH": f"{program.parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr + (tmp_path / "log").read_text()
    answers = [a.strip() for a in done.stdout.split(END)[:-1]]
    answers = [a for a in answers if a]  # raw=1 goes to a file
    told = [json.loads(t) for t in re.findall(r"```json\n(.*?)```", PAGE, re.S)]
    assert len(told) == len(answers) >= 12
    for expected, answer in zip(told, answers, strict=True):
        real = json.loads(answer)
        within(expected, real, answer[:80])
        if expected.get("unchanged") is True:  # how many tokens depends on whether there is a vocabulary
            assert real["tokens"] == real["full_tokens"] == real["report"]["tokens"]
    assert (tmp_path / "output.bin").read_text() == "In transit with Zephyr-9.\nDue on Monday."
    assert json.loads((tmp_path / "openapi.json").read_text())["openapi"].startswith("3.1")


def test_the_page_names_every_route_of_the_api():
    from memory_bank.service.api import memory, records, sessions

    paths = {r.path for m in (memory, records, sessions) for r in m.router.routes}
    for path in paths:
        part = path.removeprefix("/v1").replace("{name}", "refunds-17").split("/{")[0]
        assert part in PAGE, path
