"""The command line: thin verbs over the library."""

from __future__ import annotations

import atexit
import gc
import signal


def main(args: list[str] | None = None) -> None:
    """Run ``memory-bank`` with arguments, by default those of the process."""
    gc.set_threshold(50_000, 20, 50)  # a tenth of the start would be collections while modules are loaded
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)  # Python ends without a handler
    try:
        from memory_bank.cli.app import run

        run(args)
    except KeyboardInterrupt:  # while the program was still being loaded
        raise SystemExit(130) from None
