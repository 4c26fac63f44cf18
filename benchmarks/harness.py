"""What the benchmarks share: the command line, Markdown tables, and where a run was made."""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data"


def command_line(description: str | None) -> argparse.ArgumentParser:
    """A parser whose help is a module's docstring, as it is written."""
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def print_row(*cells: object) -> None:
    """Print a row of a Markdown table; numbers with separators of thousands."""
    shown = (f"{c:,}" if isinstance(c, int) and not isinstance(c, bool) else str(c) for c in cells)
    print(f"| {' | '.join(shown)} |", flush=True)


def print_head(*titles: str) -> None:
    """Print the head of a Markdown table."""
    print_row(*titles)
    print("|" + "---|" * len(titles), flush=True)


def about(**more: Any) -> dict[str, Any]:
    """Where something was measured: commit, Python, machine, cores; and more."""
    git = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False, cwd=ROOT)
    return {
        "commit": git.stdout.strip(),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        **more,
    }


def verdict(wrong: Iterable[object], most: int = 20) -> int:
    """Print what is wrong, a few of it; the exit code."""
    found = list(wrong)
    for what in found[:most]:
        print(f"- {what}")
    return 1 if found else 0
