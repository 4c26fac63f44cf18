"""Checks a change of one room in under a minute: style, types of what changed, the room's tests and its contracts.

make check ROOM=transcript

A room is a folder of the package, or ``top`` for the modules beside the folders. Its tests are those of the folder of
its name below tests/, without the long ones. Rooms that have none, or whose tests take longer, have theirs here.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests"
FILES = {
    "cli": (
        "backup bank_verbs care configurations connect doctor explain files keys mcp observe process "
        "replay_verb transfer wrong_use"
    ),
    "cli/run": "run",
    "service": "sessions holdout shared mcp mcp_agents mcp_files prefix_cache marks",
    "service/api": "api api_records requests values lives",
    "service/operations": "operations metrics telemetry logs observing costs",
    "service/page": "page page_on_the_api recorder timeline figures lives",
    "service/security": "gate authority redaction secrets_stay_out isolation proof limits rules caches quoted",
    "service/server": "running workers connections loading strategy_that_cannot_work",
    # what is promised of a request; the whole folder takes some minutes
    "service/proxy": "proxy/messages proxy/body proxy/routes proxy/refusals proxy/digests proxy/usage prefix_cache",
    "top": "config memory orchestrator processor prompts pricing closing face",
}
LEFT_OUT = {  # of a folder: what takes the longest and a change seldom breaks; `make test` has it
    "bank": "backup killed_steps postgres_faults postgres_state scope shared_session",
    "context": "fold_note handed_on logs rules strategies",
}
CONTRACTS = {  # promises over every API and strategy that a room keeps
    "bank": "context/stored_folds",
    "context": "integrations/prefix",
    "models": "bank/embedder",
    "selection": "context/evidence_strategy",
    "top": "context/strategy",
    "tools": "service/mcp",
    "transcript": "context/exit context/unchanged integrations/prefix",
}


def rooms() -> list[str]:
    folders = {p.parent.name for p in TESTS.parent.glob("src/memory_bank/*/__init__.py")}
    return sorted(folders | FILES.keys())


def tests_of(room: str) -> list[Path]:
    """The files and folders of a room's tests."""
    folder = room.partition("/")[0]
    above = TESTS / folder if folder in ("cli", "service") else TESTS
    own = [_file(above, name) for name in FILES[room].split()] if room in FILES else [TESTS / room]
    if room in LEFT_OUT:
        left_out = {_file(TESTS / room, name) for name in LEFT_OUT[room].split()}
        own = sorted({*(TESTS / room).glob("test_*.py")} - left_out)
    return [TESTS / "test_layers.py", *own, *(_file(TESTS, n) for n in CONTRACTS.get(room, "").split())]


def _file(folder: Path, name: str) -> Path:
    return (folder / name).with_name(f"test_{Path(name).name}.py")


def main(room: str) -> int:
    if room not in rooms():
        print(f"there is no room {room!r}: make check ROOM=one of {', '.join(rooms())}.", file=sys.stderr)
        return 2
    began = time.monotonic()
    for command in (
        "ruff check --quiet .",
        "ruff format --check --quiet .",
        "mypy",
        f"pytest -n 2 --dist loadfile --no-loadscope-reorder {' '.join(map(str, tests_of(room)))}",
    ):
        if subprocess.run([sys.executable, "-m", *command.split()], cwd=TESTS.parent).returncode:
            print(f"failed: {command.split()[0]}", file=sys.stderr)
            return 1
    print(f"{room}: checked in {time.monotonic() - began:.0f} s. Before it lands: make test")
    return 0


if __name__ == "__main__":
    sys.exit(main(" ".join(sys.argv[1:])))
