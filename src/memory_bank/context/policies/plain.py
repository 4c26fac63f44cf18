"""no_strategy, truncation, keep_last_n: policies that need no memory."""

from __future__ import annotations

from memory_bank.bank.session import Session
from memory_bank.plan import Choice, Shown
from memory_bank.transcript.transcript import View


def choose_all(view: View, session: Session) -> Choice:
    """Keep all messages."""
    return Choice(unchanged="the strategy keeps everything")


def choose_last(view: View, session: Session, *, n: int) -> Choice:
    """Keep what is never dropped and the last ``n`` interactions."""
    if len(view.history) < n:
        return Choice(unchanged="there are no older interactions")
    whole = [e for e in view.history[len(view.history) - n + 1 :] if not e.fault]
    return Choice(whole=whole, reasons=Shown(whole))
