"""The making of a context: the plan, the messages rendered from it, and their comparison with those that came."""

from memory_bank.context.compaction import handed_on, what_is_known

__all__ = ["handed_on", "what_is_known"]
