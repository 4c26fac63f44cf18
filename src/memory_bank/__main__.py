"""``python -m memory_bank``: the command line."""

from memory_bank.cli import main

main()
