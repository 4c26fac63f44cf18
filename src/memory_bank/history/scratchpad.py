"""AgentMemory: an agent's own notes (values, observations, failures), all of bounded size."""

from __future__ import annotations

import base64
import datetime as dt
import json
import uuid
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping
from decimal import Decimal
from pathlib import PurePath
from typing import Any

from memory_bank.errors import HistoryError, RecordError
from memory_bank.history.steps import ScratchpadStep, cut, positive, type_name
from memory_bank.transcript.jsontext import compact, dump_value

_TAG = "$type"  # the key under which JSON names the type of a value that JSON does not have
_KEPT: dict[type, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    dt.datetime: (dt.datetime.isoformat, dt.datetime.fromisoformat),
    dt.date: (dt.date.isoformat, dt.date.fromisoformat),
    dt.time: (dt.time.isoformat, dt.time.fromisoformat),
    dt.timedelta: (lambda v: [v.days, v.seconds, v.microseconds], lambda v: dt.timedelta(*v)),
    bytes: (lambda v: base64.b64encode(v).decode(), base64.b64decode),
    complex: (str, complex),
    Decimal: (str, Decimal),
    uuid.UUID: (str, uuid.UUID),
    PurePath: (str, PurePath),
    tuple: (lambda v: [_packed(i) for i in v], lambda v: tuple(map(_unpacked, v))),
    set: (lambda v: sorted(map(_packed, v), key=compact), lambda v: set(map(_unpacked, v))),
    frozenset: (lambda v: sorted(map(_packed, v), key=compact), lambda v: frozenset(map(_unpacked, v))),
    dict: (
        lambda v: [[_packed(k), _packed(i)] for k, i in v.items()],
        lambda v: {_unpacked(k): _unpacked(i) for k, i in v},
    ),
}
"""Types that are written as other JSON values: how they are written and read. A datetime is also a date."""


class AgentMemory:
    """Named values, observations and failures that an agent writes down for itself.

    At most ``max_items`` values are kept (the one stored longest ago is dropped first), ``max_observations`` and
    ``max_failures``; each has at most ``max_chars`` characters as JSON: of a longer text the beginning is kept, a
    longer value is refused. Raises HistoryError for a limit below 1.
    """

    def __init__(
        self, *, max_items: int = 100, max_observations: int = 50, max_failures: int = 20, max_chars: int = 2_000
    ) -> None:  # fmt: skip
        given = {"max_items": max_items, "max_observations": max_observations, "max_failures": max_failures}
        self.limits = {name: positive(n, name) for name, n in {**given, "max_chars": max_chars}.items()}
        self._items: dict[str, Any] = {}
        self._observations: deque[str] = deque(maxlen=max_observations)
        self._failures: deque[str] = deque(maxlen=max_failures)

    def __repr__(self) -> str:
        counts = f"{len(self._items)} values, {len(self._observations)} observations"
        return f"<AgentMemory: {counts}, {len(self._failures)} failures>"

    def store(self, key: str, value: object) -> None:
        """Store a value under a name; it replaces an older one.

        Kept as they are: None, numbers, text, bytes, lists, tuples, sets, dicts with keys of any of these types,
        dates and times, Decimals, UUIDs, paths. Subclasses become the type that they are of (a named tuple a
        tuple), a time zone its offset. Raises HistoryError for a name that is not text, and for a value of any
        other type or too large.
        """
        if not isinstance(key, str) or not key:
            raise HistoryError("a value is stored under a name: store('order_id', value).")
        what, most = f"the value {key[:60]!r}", self.limits["max_chars"]
        try:
            packed = _packed(value)
            size = len(dump_value(packed, what))
        except (RecordError, TypeError) as e:
            raise HistoryError(f"{what} cannot be stored: {e}") from e
        except RecursionError:
            raise HistoryError(f"{what} contains itself, or nests too deep: store parts of it.") from None
        if size > most:
            advice = f"store at most {most:,} (max_chars), or what names it (an id, a file)."
            raise HistoryError(f"{what} has {size:,} characters: {advice}")
        self._items.pop(key, None)
        self._items[key] = packed
        while len(self._items) > self.limits["max_items"]:
            del self._items[next(iter(self._items))]

    def recall(self, key: str, default: object = None) -> Any:
        """A copy of the value stored under a name, or the default."""
        return _unpacked(self._items[key]) if key in self._items else default

    def observe(self, text: object) -> None:
        """Add an observation; a long text is cut and says so."""
        self._add(self._observations, text)

    def fail(self, text: object) -> None:
        """Add a failure (a text or an exception), so that it is not tried again."""
        self._add(self._failures, text)

    def _add(self, held: deque[str], text: object) -> None:
        if isinstance(text, BaseException):
            text = f"{type(text).__name__}: {text}"
        held.append(cut(text if isinstance(text, str) else compact(text), self.limits["max_chars"]))

    @property
    def keys(self) -> list[str]:
        """The names of the stored values, the oldest first."""
        return list(self._items)

    @property
    def observations(self) -> list[str]:
        """The observations, the oldest first."""
        return list(self._observations)

    @property
    def failures(self) -> list[str]:
        """The failures, the oldest first."""
        return list(self._failures)

    def to_context(self) -> str:
        """The pad as text for a prompt: all values, the last 5 observations, the last 3 failures."""
        parts = [
            ("Stored", [f"{k} = {compact(_unpacked(v, to_read=True))}" for k, v in self._items.items()]),
            ("Observed", self.observations[-5:]),
            ("Failed", self.failures[-3:]),
        ]
        return "\n".join(f"{head}:\n" + "\n".join(f"- {row}" for row in rows) for head, rows in parts if rows)

    def to_step(self) -> ScratchpadStep:
        """The pad as a step of a history."""
        return ScratchpadStep(self.to_context())

    def clear(self) -> None:
        """Remove everything."""
        self._items.clear()
        self._observations.clear()
        self._failures.clear()

    def to_json(self) -> str:
        """The pad with its limits as JSON."""
        lists = {"observations": self.observations, "failures": self.failures}
        return dump_value({"limits": self.limits, "items": self._items, **lists})

    @classmethod
    def from_json(cls, text: str) -> AgentMemory:
        """A pad from ``to_json``. Raises HistoryError for anything else."""
        try:
            given = json.loads(text)
            memory = cls(**given["limits"])
            for key, value in given["items"].items():
                memory.store(key, _unpacked(value))
            for item in given["observations"]:
                memory.observe(item)
            for item in given["failures"]:
                memory.fail(item)
        except HistoryError:
            raise
        except (ValueError, ArithmeticError, TypeError, KeyError, AttributeError, RecursionError) as e:
            raise HistoryError("this is not a scratchpad: give the text that to_json() returned.") from e
        return memory

    def inject(self, namespace: MutableMapping[str, Any], name: str = "memory") -> None:
        """Make the pad available to code that an agent writes: ``memory.store("id", 7)``.

        Raises HistoryError where the namespace has something else under that name.
        """
        if namespace.setdefault(name, self) is not self:
            raise HistoryError(f"the namespace already has a {name!r}: inject the pad under another name.")


def _packed(value: object) -> Any:
    """A value as JSON that ``_unpacked`` reads. Raises TypeError for a type that is not kept."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, (int, float)):
        return int.__int__(value) if isinstance(value, int) else float.__float__(value)
    if isinstance(value, list):
        return [_packed(v) for v in value]
    if isinstance(value, Mapping):
        if all(isinstance(k, str) for k in value) and _TAG not in value:
            return {str(k): _packed(v) for k, v in value.items()}
        return {_TAG: "dict", "value": _KEPT[dict][0](value)}
    for kept, (write, _) in _KEPT.items():
        if isinstance(value, kept):
            return {_TAG: kept.__name__, "value": write(value)}
    raise TypeError(
        f"it holds a {type_name(value)}, which a scratchpad cannot give back; store its data, or a name for it."
    )


_READERS = {kind.__name__: read for kind, (_, read) in _KEPT.items()}


def _unpacked(packed: Any, *, to_read: bool = False) -> Any:
    """The value that ``_packed`` was given; ``to_read``: as plain JSON for people and models."""
    if isinstance(packed, list):
        return [_unpacked(v, to_read=to_read) for v in packed]
    if not isinstance(packed, dict):
        return packed
    kind = packed.get(_TAG)
    if kind is None:
        return {k: _unpacked(v, to_read=to_read) for k, v in packed.items()}
    if not to_read:
        return _READERS[kind](packed["value"])
    if kind == "timedelta":
        return str(_unpacked(packed))
    value = _unpacked(packed["value"], to_read=True)
    return {k if isinstance(k, str) else compact(k): v for k, v in value} if kind == "dict" else value
