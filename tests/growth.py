"""How work grows with its input, in CPU time of this thread: what else runs on the machine does not count."""

import time
from collections.abc import Callable


def cpu_seconds(work: Callable[[], object], times: int = 1) -> float:
    """The CPU time of this thread that ``work`` takes, the least of several runs."""
    return min(_cpu_seconds(work) for _ in range(times))


def _cpu_seconds(work: Callable[[], object]) -> float:
    start = time.thread_time()
    work()
    return time.thread_time() - start


def growth(work: Callable[[int], object], small: int, large: int) -> float:
    """How many times as long ``work(large)`` takes as ``work(small)``; less than a millisecond counts as one."""
    work(small)  # caches and imports
    return cpu_seconds(lambda: work(large)) / max(1e-3, cpu_seconds(lambda: work(small), 3))
