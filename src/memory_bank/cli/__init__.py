"""The command line: thin verbs over the library."""

from __future__ import annotations


def main() -> None:
    """The entry point of ``memory-bank`` and ``python -m memory_bank``."""
    try:
        from memory_bank.cli.app import run

        run()
    except KeyboardInterrupt:  # while the program was still being loaded
        raise SystemExit(130) from None
