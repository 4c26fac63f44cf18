"""How many examples a property is shown by, and which cases only the long tests run (`make test-long`)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import settings

_IN_FULL = 100  # examples of the profile "long" where a test names no number; "short" has fewer of everything


def examples(number: int, **more: Any) -> settings:
    """Hypothesis settings: ``number`` examples in the long tests, a share of them in `make test`."""
    return settings(max_examples=max(3, number * settings().max_examples // _IN_FULL), **more)


def first_short(cases: Iterable[Any], number: int = 1) -> list[Any]:
    """Cases for ``parametrize``: the first ``number`` in `make test`, the others in the long tests."""
    return [c if i < number else pytest.param(c, marks=pytest.mark.long) for i, c in enumerate(cases)]


def in_turn(name: str, cases: Iterable[Any], number: int = 1) -> Callable[[Any], Any]:
    """``parametrize`` for several tests: `make test` runs ``number`` cases of each, the next test has the next ones.

    For what does not depend on the case alone, such as the pauses of memory for every API. The long tests run all.
    """
    given, starts = list(cases), itertools.count(0, number)

    def mark(test: Any) -> Any:
        start = next(starts)
        short = {(start + n) % len(given) for n in range(number)}
        shown = [
            c if i in short else pytest.param(*_values(c), marks=pytest.mark.long, id=getattr(c, "id", None))
            for i, c in enumerate(given)
        ]
        return pytest.mark.parametrize(name, shown)(test)

    return mark


def _values(case: Any) -> tuple[Any, ...]:
    return case.values if hasattr(case, "marks") else (case,)
