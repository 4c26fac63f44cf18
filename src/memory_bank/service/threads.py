"""Threads for blocking work, one limit for each kind of work: none waits for another kind's threads.

The proxy reads bodies in the default threads; everything that a caller can make long has its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, ParamSpec, TypeVar

from anyio import CapacityLimiter, to_thread
from anyio.lowlevel import RunVar

T = TypeVar("T")
P = ParamSpec("P")

Kind = Literal["api", "long", "tools"]
"""``api``: requests of the HTTP API; ``long``: those that may take many seconds; ``tools``: calls of the
memory tools, by MCP or by a model that the proxy has offered them to."""

_THREADS: dict[Kind, int] = {"api": 20, "long": 2, "tools": 8}
_LIMITERS: RunVar[dict[Kind, CapacityLimiter]] = RunVar("memory_bank.threads")


def limiter(kind: Kind) -> CapacityLimiter:
    """The limiter of a kind of work; each event loop has its own."""
    try:
        return _LIMITERS.get()[kind]
    except LookupError:
        _LIMITERS.set({each: CapacityLimiter(threads) for each, threads in _THREADS.items()})
        return _LIMITERS.get()[kind]


async def in_thread(kind: Kind, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run blocking work in one of the threads of its kind."""
    return await to_thread.run_sync(lambda: work(*args, **kwargs), limiter=limiter(kind))
