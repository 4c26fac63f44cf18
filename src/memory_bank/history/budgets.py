"""Choosing what fits a budget: the newest items, relevant and diverse items, the longest text.

Pure functions over costs, vectors and texts. The prunings of typed histories and the policies of contexts use
them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from memory_bank.transcript.shortening import shorten_text

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


def newest_within(costs: Sequence[int], budget: int, most: int | None = None) -> int:
    """How many of the last items cost at most ``budget`` together, ``most`` at most.

    Args:
        costs: of the items, the oldest first; none is negative.

    Example:
        >>> newest_within([5, 1, 2, 3], 6)
        3
    """
    count = 0
    limit = len(costs) if most is None else min(most, len(costs))
    while count < limit and costs[-count - 1] <= budget:
        count += 1
        budget -= costs[-count]
    return count


def choose_diverse(
    vectors: npt.NDArray[np.floating],
    relevance: npt.NDArray[np.floating],
    diversity: float,
    costs: Sequence[int],
    budget: int,
) -> list[int]:
    """The positions of the items that are relevant and not all alike, in order; at most ``budget`` in cost.

    Maximal marginal relevance (Carbonell and Goldstein, SIGIR 1998), greedily: the next item is the one that
    fits with the greatest ``(1 - diversity) * relevance - diversity * similarity``, where similarity is the
    greatest to an item already chosen, at least 0. Of equal items (to 6 digits) the last is chosen.

    Args:
        vectors: one unit vector an item.
        relevance: one number an item, such as its similarity to the query.
        diversity: 0 (relevance only) to 1.
        costs: of the items; 1 each, and ``budget`` is their number.
    """
    import numpy as np

    cost = np.asarray(costs)
    nearest = np.zeros_like(relevance)
    is_left = np.ones(len(cost), dtype=bool)
    chosen: list[int] = []
    while True:
        is_left &= cost <= budget
        if not is_left.any():
            return sorted(chosen)
        worth = ((1 - diversity) * relevance - diversity * nearest).astype(np.float64).round(6)
        worth[~is_left] = -np.inf
        best = len(worth) - 1 - int(np.argmax(worth[::-1]))
        is_left[best] = False
        chosen.append(best)
        budget -= costs[best]
        nearest = np.maximum(nearest, vectors @ vectors[best])


def fit_text(text: str, budget: int, count: Callable[[str], int]) -> str:
    """The text in at most ``budget`` tokens, cut between lines and words; each cut says how much is missing.

    Args:
        count: returns the tokens of a text.

    Returns:
        The text itself where it fits; "" where the budget is too small for any part of it.
    """
    if budget <= 0:
        return ""
    if count(text) <= budget:
        return text
    low, high = 0, min(len(text), budget * 8)
    best = ""
    while low < high:  # the longest that fits, to within 8 characters
        middle = (low + high + 1) // 2
        shown = shorten_text(text, middle)
        if count(shown) <= budget:
            low, best = middle, shown
        else:
            high = middle - 1
        if high - low < 8:
            break
    return best
