"""JSON values that nobody can change, and back: what immutable steps hold and histories hand out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from memory_bank.transcript.jsontext import plain

Json = dict[str, Any]
"""A JSON object."""


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise TypeError("this value belongs to a history and cannot be changed: copy.deepcopy gives one that can")


class FrozenDict(dict[str, Any]):
    """A dict that refuses changes; equal to a plain one, written by ``json``, plain again by deepcopy."""

    __slots__ = ()
    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self))

    def __deepcopy__(self, memo: Any) -> Json:
        return {k: thaw(v) for k, v in self.items()}

    def __reduce__(self) -> Any:
        return FrozenDict, (dict(self),)


class FrozenList(list[Any]):
    """A list that refuses changes; equal to a plain one, written by ``json``, plain again by deepcopy."""

    __slots__ = ()
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(len(self))

    def __deepcopy__(self, memo: Any) -> list[Any]:
        return [thaw(v) for v in self]

    def __reduce__(self) -> Any:
        return FrozenList, (list(self),)


def freeze(value: Any) -> Any:
    """A copy that cannot be changed: dicts and lists frozen, tuples as lists, SDK objects as dicts.

    What nests deeper than Python can walk becomes its text.
    """
    try:
        return _freeze(value)
    except RecursionError:
        return _freeze(plain(value))


def _freeze(value: Any) -> Any:
    if value is None or isinstance(value, (str, int, float, bool, FrozenDict, FrozenList)):
        return value
    if isinstance(value, Mapping):
        return FrozenDict((k if isinstance(k, str) else str(k), _freeze(v)) for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return FrozenList(_freeze(v) for v in value)
    return _freeze(plain(value))


def thaw(value: Any) -> Any:
    """A plain copy of a frozen value."""
    if isinstance(value, dict):
        return {k: thaw(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [thaw(v) for v in value]
    return value
