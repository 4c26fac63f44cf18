"""When the older history is folded, and to how many tokens, so that a run pays little more than without memory."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from memory_bank.bank.session import MemoryBankState
from memory_bank.config import MemoryBankSettings
from memory_bank.context.build import known_tokens
from memory_bank.pricing import Charge, Ratios
from memory_bank.transcript.transcript import View

FLOORS = {"careful": 5_000, "thrifty": 3_000}
"""Tokens of the smallest fold, by the setting ``fold``."""
WAITS = {"careful": 20_000, "thrifty": 16_000}
"""Tokens of older history before the first fold, by the setting ``fold``."""
USUAL_READ = 0.1
"""The price of a cached token that the bounds are made for, as a share of the input price."""
LEAST_SHARE, FOLD_SHARE, MOST_FOLD = 0.12, 0.15, 16_000
EXCESS = 0.04
"""What a fold may have cost above the full history, of that; 0.05 is promised, and counts differ a little."""
CARRIED = 40
"""About how many later steps carry what is added to a list after a compaction, until a fold takes it."""
LEAST_FOLD = 2_000
"""Tokens of the smallest fold with ``history_budget = "auto"`` where ``refresh_after`` is given."""


@dataclass(frozen=True, slots=True)
class FoldPrice:
    """What a fold may take at one step: ``size`` in tokens, ``room`` for it, and tokens to ``wait`` for at first.

    ``rest``: tokens of the context beside the fold.
    """

    size: int
    room: float
    rest: int
    wait: float


def price_fold(
    view: View, session: MemoryBankState, settings: MemoryBankSettings, *, older: int, rest: int
) -> FoldPrice:
    """The size of a fold that the prices allow at this step, of an older history of so many tokens.

    ``rest``: tokens of the context beside the fold.
    """
    ratios = session.prefix_cache.ratios
    head = view.tokens_before[view.interactions[0].start if view.interactions else view.tail_start]
    known = known_tokens(view, session.ledger)
    models = len({session.prefix_cache.model} | session.prefix_cache.models(settings.cache_retention))
    room = session.ledger.room(ratios, rest, min(head, known), view.full_tokens, known, EXCESS, models)
    size = fold_size(ratios, older, room, FLOORS[settings.fold])
    return FoldPrice(size, room, rest, first_fold(ratios, WAITS[settings.fold]))


def charge_whole(view: View, session: MemoryBankState, *, anyway: bool = False) -> bool:
    """Charge the full history in the place of the context that was just charged, if what was saved pays for that.

    ``anyway``: it is sent, whatever was saved.
    """
    ratios, ledger, known = session.prefix_cache.ratios, session.ledger, known_tokens(view, session.ledger)
    head = view.tokens_before[view.interactions[0].start if view.interactions else view.tail_start]
    whole = ledger.step(ratios, view.full_tokens, min(head, known), view.full_tokens, known).paid
    if pays := anyway or ledger.paid - ledger.last.paid + whole <= (1 + EXCESS) * ledger.full:
        ledger.settle(ledger.last, whole, ledger.last.full)
    return pays


def tokens_paid_for(session: MemoryBankState) -> int:
    """The tokens that may be added to every later request, so that what was saved pays for them."""
    saved = (1 + EXCESS) * session.ledger.full - session.ledger.paid
    return max(0, int(saved / _carried(session)))


def charge_added(session: MemoryBankState, tokens: int) -> None:
    """Charge tokens that were added to every later request: the client's own list has them from now on."""
    session.ledger.settle(Charge(0.0, 0.0), tokens * _carried(session), 0.0)


def _carried(session: MemoryBankState) -> float:
    """What a token costs, in input tokens, that later requests carry until a fold takes it."""
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
