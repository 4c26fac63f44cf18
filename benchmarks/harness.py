"""What the benchmarks share: the command line, Markdown tables, where a run was made, and a running service."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from memory_bank.transcript import open_counter

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data"


def command_line(description: str | None) -> argparse.ArgumentParser:
    """A parser whose help is a module's docstring, as it is written."""
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def words(text: str) -> list[str]:
    """The type of an option that takes several names with commas."""
    return text.split(",")


def print_row(*cells: object) -> None:
    """Print a row of a Markdown table; numbers with separators of thousands."""
    shown = (f"{c:,}" if isinstance(c, int) and not isinstance(c, bool) else str(c) for c in cells)
    print(f"| {' | '.join(shown)} |", flush=True)


def print_head(*titles: str) -> None:
    """Print the head of a Markdown table."""
    print_row(*titles)
    print("|" + "---|" * len(titles), flush=True)


def print_counter(name: str = "") -> None:
    """Print by which counter a meter counts tokens, the shipped one by default: the figures of two differ."""
    counted = open_counter(name) if name else open_counter()
    differs = "; no vocabulary: figures differ from those by tiktoken" if counted.approximate else ""
    print(f"Tokens are counted by {counted.name}{differs}.", flush=True)


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


def cpu_ms(pid: int) -> float:
    """CPU milliseconds that a process has used in all its threads, also those that have ended."""
    return 1000 * time.clock_gettime((~pid << 3) | 2)  # clock_getcpuclockid(3)


def resident_mb(pid: int) -> float:
    """Resident memory of a process in MB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


class Service:
    """``memory-bank serve`` as users start it, on a database; ``settings`` are those of the service.

    It keeps its ``port`` when it is started again. ``with`` starts it and ends it. ``source``: the folder of another
    package memory_bank.
    """

    def __init__(
        self, database: str | Path, upstream: str, *options: str, stderr: Any = subprocess.DEVNULL,
        python: str = sys.executable, source: Path | None = None, **settings: object,
    ) -> None:  # fmt: skip
        self.port = 0
        self.process: subprocess.Popen[bytes]
        self._command = [python, "-m", "memory_bank", "serve", "--upstream", upstream]
        self._command += ["--upstream-anthropic", upstream, "--db", str(database), *options]
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("OPENAI_", "MEMORY_BANK_"))}
        self._environment = kept | {f"MEMORY_BANK_SERVICE__{k.upper()}": str(v) for k, v in settings.items()}
        if source is not None:
            self._environment["PYTHONPATH"] = str(source)
        self._stderr = stderr

    def start(self, **variables: str) -> None:
        """Start it and wait until it answers, or has ended; ``variables`` of its environment."""
        command = [*self._command, "--port", str(self.port)]
        environment = self._environment | variables
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=self._stderr)
        assert self.process.stdout is not None
        address = self.process.stdout.readline().decode().strip()  # said once requests are answered
        self.port = int(address.rpartition(":")[2]) if address else self.port

    def stop(self, seconds: float | None = None) -> int:
        """SIGTERM; its exit code."""
        self.process.terminate()
        return self.process.wait(seconds)

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()

    def rss(self) -> float:
        """Resident memory of its processes in MB."""
        return sum(map(resident_mb, (self.process.pid, *self.workers())))

    def cpu(self) -> float:
        """CPU seconds of its processes, those of workers that have died left out."""
        return sum(map(cpu_ms, (self.process.pid, *self.workers()))) / 1000

    def answered(self) -> list[int]:
        """The requests that each worker has counted in the file of its metrics."""
        from prometheus_client.mmap_dict import MmapedDict  # of the extra `service`

        counts = []
        for pid in self.workers():
            variables = Path(f"/proc/{pid}/environ").read_text().split("\0")
            folder = next(v.partition("=")[2] for v in variables if v.startswith("PROMETHEUS_MULTIPROC_DIR="))
            values: Any = MmapedDict.read_all_values_from_file(f"{folder}/counter_{pid}.db")
            named = "memory_bank_requests_total"
            counts.append(int(sum(value for key, value, *_ in values if json.loads(key)[1] == named)))
        return counts

    def workers(self) -> list[int]:
        """The ids of its worker processes, where it has several."""
        pid, workers = self.process.pid, []
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                    workers.append(int(child))
        return workers

    def __enter__(self) -> Service:
        self.start()
        if not self.port:
            raise RuntimeError("the service did not start")
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


def verified(database: str | Path) -> str:
    """What ``memory-bank bank verify`` finds wrong; "" for nothing."""
    command = [sys.executable, "-m", "memory_bank", "bank", "verify", "--db", str(database)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return f"{done.stdout}{done.stderr}"[-600:] if done.returncode else ""
