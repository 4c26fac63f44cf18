"""Ctrl-C where it does no harm."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def between_steps() -> Iterator[Callable[[], None]]:
    """Ctrl-C waits until the function that is given here is called, which raises KeyboardInterrupt then.

    Python raises it anywhere else: in the middle of a database driver, too, which then complains of it. A
    second Ctrl-C ends at once. Where SIGINT is ignored (a job in the background) it stays so.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield lambda: None
        return
    came = False

    def note(_number: int, _frame: Any) -> None:
        nonlocal came
        if came:
            raise KeyboardInterrupt
        came = True

    def look() -> None:
        if came:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, note)
    try:
        yield look
        look()
    finally:
        signal.signal(signal.SIGINT, before)
