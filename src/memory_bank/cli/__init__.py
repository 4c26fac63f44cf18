"""The command line: thin verbs over the library."""

from __future__ import annotations

import gc


def main() -> None:
    """The entry point of ``memory-bank`` and ``python -m memory_bank``."""
    gc.set_threshold(50_000, 20, 50)  # a tenth of the start would be collections while modules are loaded
    try:
        from memory_bank.cli.app import run

        run()
    except KeyboardInterrupt:  # while the program was still being loaded
        raise SystemExit(130) from None
