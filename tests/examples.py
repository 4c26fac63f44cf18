"""How many examples a property is shown by, and which cases only the long tests run (`make test-long`)."""

from __future__ import annotations

from collections.abc import Iterable
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
