"""How an answer of our own tools is told from others: it is no news, for it quotes what the bank has."""

from __future__ import annotations

from memory_bank.transcript.own import GET_RECORD, LIST_RECORDS, SEARCH_MEMORY, is_memory_tool

__all__ = ["GET_RECORD", "LIST_RECORDS", "SEARCH_MEMORY", "is_memory_tool"]
