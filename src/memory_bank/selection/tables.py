"""Growable columns: numpy arrays that take new rows at the end."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Table:
    """Columns of equal length; `table[name]` is a view of the rows in use, not to be kept."""

    def __init__(self, **columns: tuple[str, float]) -> None:
        self._fill = {name: value for name, (_, value) in columns.items()}
        self._data: dict[str, Array] = {n: np.full(256, v, dtype=d) for n, (d, v) in columns.items()}
        self.size = 0

    def grow(self, rows: int) -> int:
        """Append `rows` rows of default values; the index of the first."""
        first, self.size = self.size, self.size + rows
        capacity = len(next(iter(self._data.values())))
        if self.size > capacity:
            capacity = max(self.size, 2 * capacity)
            for name, old in self._data.items():
                new = np.full(capacity, self._fill[name], dtype=old.dtype)
                new[:first] = old[:first]
                self._data[name] = new
        return first

    def __getitem__(self, name: str) -> Array:
        return self._data[name][: self.size]


class Interner:
    """Strings or tuples to consecutive numbers, with a table of counters beside them."""

    def __init__(self, **columns: tuple[str, float]) -> None:
        self.ids: dict[Any, int] = {}
        self.table = Table(**columns)

    def __call__(self, key: Any) -> int:
        number = self.ids.get(key)
        if number is None:
            number = self.ids[key] = self.table.grow(1)
        return number
