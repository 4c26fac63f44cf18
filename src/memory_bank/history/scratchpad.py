"""AgentMemory: an agent's own notes (values, observations, failures), all of bounded size."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import MutableMapping
from typing import Any

from memory_bank.errors import HistoryError, RecordError
from memory_bank.history.steps import cut, positive
from memory_bank.transcript.jsontext import compact, dump_value


class AgentMemory:
    """Named values, observations and failures that an agent writes down for itself.

    At most ``max_items`` values are kept (the one stored longest ago is dropped first), ``max_observations`` and
    ``max_failures``; each has at most ``max_chars`` characters as JSON: of a longer text the beginning is kept, a
    longer value is refused. Raises HistoryError for a limit below 1.
    """

    def __init__(
        self, *, max_items: int = 100, max_observations: int = 50, max_failures: int = 20, max_chars: int = 2_000
    ) -> None:  # fmt: skip
        limits = {"max_items": max_items, "max_observations": max_observations, "max_failures": max_failures}
        self.limits = {name: positive(n, name) for name, n in {**limits, "max_chars": max_chars}.items()}
        self._items: dict[str, str] = {}  # as JSON
        self._observations: deque[str] = deque(maxlen=max_observations)
        self._failures: deque[str] = deque(maxlen=max_failures)

    def __repr__(self) -> str:
        counts = f"{len(self._items)} values, {len(self._observations)} observations"
        return f"<AgentMemory: {counts}, {len(self._failures)} failures>"

    def store(self, key: str, value: object) -> None:
        """Store a JSON value under a name; it replaces an older one, and a tuple comes back as a list.

        Raises HistoryError for a name that is not text, and for a value that is not JSON or too large.
        """
        if not isinstance(key, str) or not key:
            raise HistoryError("a value is stored under a name: store('order_id', value).")
        subject, most = f"the value {key[:60]!r}", self.limits["max_chars"]
        try:
            text = dump_value(value, subject)
        except RecordError as e:
            raise HistoryError(f"{subject} cannot be stored: {e}") from e
        if len(text) > most:
            advice = f"store at most {most:,} (max_chars), or what names it (an id, a file)."
            raise HistoryError(f"{subject} has {len(text):,} characters: {advice}")
        self._items.pop(key, None)
        self._items[key] = text
        while len(self._items) > self.limits["max_items"]:
            del self._items[next(iter(self._items))]

    def recall(self, key: str, default: object = None) -> Any:
        """A copy of the value stored under a name, or the default."""
        return json.loads(self._items[key]) if key in self._items else default

    def observe(self, text: object) -> None:
        """Add an observation; a long text is cut and says so."""
        self._add(self._observations, text)

    def fail(self, text: object) -> None:
        """Add a failure (a text or an exception), so that it is not tried again."""
        self._add(self._failures, text)

    def _add(self, entries: deque[str], text: object) -> None:
        if isinstance(text, BaseException):
            text = f"{type(text).__name__}: {text}"
        entries.append(cut(text if isinstance(text, str) else compact(text), self.limits["max_chars"]))

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
            ("Stored", [f"{k} = {compact(self.recall(k))}" for k in self._items]),
            ("Observed", self.observations[-5:]),
            ("Failed", self.failures[-3:]),
        ]
        return "\n".join(f"{head}:\n" + "\n".join(f"- {row}" for row in rows) for head, rows in parts if rows)

    def clear(self) -> None:
        """Remove everything."""
        self._items.clear()
        self._observations.clear()
        self._failures.clear()

    def to_json(self) -> str:
        """The pad with its limits as JSON."""
        lists = {"observations": self.observations, "failures": self.failures}
        return dump_value({"limits": self.limits, "items": {k: self.recall(k) for k in self._items}, **lists})

    @classmethod
    def from_json(cls, text: str) -> AgentMemory:
        """A pad from ``to_json``. Raises HistoryError for anything else."""
        try:
            values = json.loads(text)
            memory = cls(**values["limits"])
            for key, value in values["items"].items():
                memory.store(key, value)
            for item in values["observations"]:
                memory.observe(item)
            for item in values["failures"]:
                memory.fail(item)
        except HistoryError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as e:
            raise HistoryError("this is not a scratchpad: give the text that to_json() returned.") from e
        return memory

    def inject(self, namespace: MutableMapping[str, Any], name: str = "memory") -> None:
        """Make the pad available to code that an agent writes: ``memory.store("id", 7)``.

        Raises HistoryError where the namespace has something else under that name.
        """
        if namespace.setdefault(name, self) is not self:
            raise HistoryError(f"the namespace already has a {name!r}: inject the pad under another name.")
