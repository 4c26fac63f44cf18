"""How work grows with its input, in CPU time of this thread: what else runs on the machine does not count."""

import gc
import time
from collections.abc import Callable

LINEAR = 200
"""Less than this is linear growth for 32 times the input: quadratic work would take about 1,000 times as long."""


def cpu_seconds(work: Callable[[], object], times: int = 1) -> float:
    """The CPU time of this thread that ``work`` takes, the least of several runs."""
    return min(_cpu_seconds(work) for _ in range(times))


def _cpu_seconds(work: Callable[[], object]) -> float:
    start = time.thread_time()
    work()
    return time.thread_time() - start


def growth(work: Callable[[int], object], large: int) -> float:
    """How many times as long ``work(large)`` takes as with a 32nd of it; a millisecond is the least that counts.

    Without garbage collection, whose cost depends on everything else that the process holds.
    """
    small = large // 32
    work(small)  # caches and imports
    gc.disable()
    try:
        return cpu_seconds(lambda: work(large)) / max(1e-3, cpu_seconds(lambda: work(small), 5))
    finally:
        gc.enable()
