"""When the older history is folded, and to how many tokens, so that a run pays little more than without memory."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from memory_bank.bank.session import MemoryBankState
from memory_bank.config import MemoryBankSettings
from memory_bank.context.build import beginnings
from memory_bank.pricing import EXCESS, Charge, Ratios
from memory_bank.transcript.transcript import View

FLOORS = {"careful": 5_000, "thrifty": 3_000}
"""Tokens of the smallest fold, by the setting ``fold``."""
WAITS = {"careful": 20_000, "thrifty": 16_000}
"""Tokens of older history before the first fold, by the setting ``fold``."""
USUAL_READ = 0.1
"""The price of a cached token that the bounds are made for, as a share of the input price."""
LEAST_SHARE, FOLD_SHARE, MOST_FOLD = 0.12, 0.15, 16_000
CARRIED = 40
"""About how many later steps carry what is added to a list after a compaction, until a fold takes it."""
LEAST_FOLD = 2_000
"""Tokens of the smallest fold with ``history_budget = "auto"`` where ``refresh_after`` is given."""


@dataclass(frozen=True, slots=True)
class FoldPrice:
    """The limits of a fold at one step: ``size`` in tokens, ``room`` for it, and tokens to ``wait`` for at first."""

    size: int
    room: float
    wait: float


def price_fold(
    view: View, session: MemoryBankState, settings: MemoryBankSettings, *, older: int, rest: int, models: int
) -> FoldPrice:
    """The size of a fold that the prices allow at this step, of an older history of so many tokens.

    ``rest``: tokens of the context beside the fold. ``models``: how many have a cache that the fold is written to.
    """
    ratios, ledger, step = session.prefix_cache.ratios, session.ledger, _step(view, session, rest)
    paid, full = ledger.paid + models * step.paid, ledger.full + models * step.full
    room = ((1 + EXCESS) * full - paid) / (models * ratios.write)
    size = fold_size(ratios, older, room, FLOORS[settings.fold])
    return FoldPrice(size, room, first_fold(ratios, WAITS[settings.fold]))


def _step(view: View, session: MemoryBankState, tokens: int) -> Charge:
    """The cost of a step with so many tokens of messages of which a cache has the head at most."""
    common, first, marked = (view.tokens_before[n] for n in beginnings(view, session.ledger))
    ratios, shared = session.prefix_cache.ratios, min(first, common)
    return session.ledger.step(ratios, tokens, shared, view.full_tokens, common, marked)


def charge_whole(view: View, session: MemoryBankState, *, anyway: bool = False) -> bool:
    """Charge the full history instead of the context just charged, if what was saved pays for it, or ``anyway``."""
    ledger, whole = session.ledger, _step(view, session, view.full_tokens).paid
    if pays := anyway or whole - ledger.last.paid <= ledger.saved:
        ledger.settle(ledger.last, whole, ledger.last.full)
    return pays


def tokens_paid_for(session: MemoryBankState) -> int:
    """The tokens that may be added to every later request, so that what was saved pays for them."""
    return max(0, int(session.ledger.saved / _carried(session)))


def charge_added(session: MemoryBankState, tokens: int) -> None:
    """Add the price of tokens that stand in the client's own list, and so in each later request, to the ledger."""
    session.ledger.settle(Charge(0.0, 0.0), tokens * _carried(session), 0.0)


def _carried(session: MemoryBankState) -> float:
    """The cost, in input tokens, of a token that later requests carry until a fold takes it."""
    read, write = session.prefix_cache.ratios
    return write + CARRIED * read


def fold_size(ratios: Ratios, older: int, room: float, floor: int) -> int:
    """The tokens of a fold: a share of the older history between two bounds, smaller where cached tokens are cheap.

    >>> fold_size(Ratios(0.1, 1.25), 100_000, 13_000, 5_000), fold_size(Ratios(0.025, 1), 100_000, 0, 5_000)
    (13000, 6000)
    """
    scale = min(1.0, sqrt(max(0.0, ratios.read) / USUAL_READ))
    share = max(scale * LEAST_SHARE * older, min(FOLD_SHARE * older, room))
    return int(min(MOST_FOLD, max(scale * floor, share)))


def first_fold(ratios: Ratios, wait: int) -> float:
    """The tokens of older history from which a first fold may come: fewer where cached tokens are dear."""
    return wait if ratios.read <= USUAL_READ else wait * USUAL_READ / ratios.read


def fold_budget(budget: int | float | str, older: int) -> int:
    """Return the tokens of a fold of an older history of so many tokens; ``budget`` as in the settings."""
    if budget == "auto":
        return int(min(max(LEAST_FOLD, FOLD_SHARE * older), MOST_FOLD))
    return int(older * budget) if isinstance(budget, float) else int(budget)
