"""What goes into the prompt: the plan, its repairs, and the messages rendered from it."""

from memory_bank.context.compaction import what_is_known

__all__ = ["what_is_known"]
