"""AgentMemory: an agent's own notes (values, observations, failures), all of bounded size."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import MutableMapping
from typing import Any

from memory_bank.errors import HistoryError, RecordError
from memory_bank.history.steps import ScratchpadStep, cut
from memory_bank.history.values import freeze, positive, thaw
from memory_bank.transcript.jsontext import compact, dump_value

_OBSERVATIONS_SHOWN = 5
_FAILURES_SHOWN = 3


class AgentMemory:
    """Named values, observations and failures that an agent writes down for itself.

    Args:
        max_items: the number of values; the one stored longest ago is dropped first.
        max_observations: the number of observations; the oldest is dropped first.
        max_failures: the number of failures; the oldest is dropped first.
        max_chars: the characters of each of them as text.

    Raises:
        HistoryError: a limit is below 1.
    """

    def __init__(
        self,
        max_items: int = 100,
        max_observations: int = 50,
        max_failures: int = 20,
        max_chars: int = 2_000,
    ) -> None:
        self.limits = {
            "max_items": positive(max_items, "max_items"),
            "max_observations": positive(max_observations, "max_observations"),
            "max_failures": positive(max_failures, "max_failures"),
            "max_chars": positive(max_chars, "max_chars"),
        }
        self._items: dict[str, Any] = {}
        self._observations: deque[str] = deque(maxlen=max_observations)
        self._failures: deque[str] = deque(maxlen=max_failures)

    def __repr__(self) -> str:
        return (
            f"<AgentMemory: {len(self._items)} values, {len(self._observations)} observations, "
            f"{len(self._failures)} failures>"
        )

    def store(self, key: str, value: object) -> None:
        """Store a JSON value under a name; it replaces an older one.

        Raises HistoryError for a name that is not text, and for a value that is not JSON or too large.
        """
        if not isinstance(key, str) or not key:
            raise HistoryError("a value is stored under a name: store('order_id', value).")
        try:
            size = len(dump_value(value, f"the value {key!r}"))
        except RecordError as e:
            raise HistoryError(str(e)) from e
        if size > self.limits["max_chars"]:
            raise HistoryError(
                f"the value {key[:60]!r} has {size:,} characters: store at most "
                f"{self.limits['max_chars']:,}, or what names it (an id, a file)."
            )
        self._items.pop(key, None)
        self._items[key] = freeze(value)
        while len(self._items) > self.limits["max_items"]:
            del self._items[next(iter(self._items))]

    def recall(self, key: str, default: object = None) -> Any:
        """A copy of the value stored under a name, or the default."""
        return thaw(self._items[key]) if key in self._items else default

    def observe(self, text: object) -> None:
        """Add an observation; a long text is cut and says so."""
        self._observations.append(self._short(text))

    def fail(self, text: object) -> None:
        """Add a failure (a text or an exception), so that it is not tried again."""
        self._failures.append(self._short(text))

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
            ("Stored", [f"{k} = {compact(v)}" for k, v in self._items.items()]),
            ("Observed", self.observations[-_OBSERVATIONS_SHOWN:]),
            ("Failed", self.failures[-_FAILURES_SHOWN:]),
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
        return dump_value(
            {
                "limits": self.limits,
                "items": thaw(self._items),
                "observations": self.observations,
                "failures": self.failures,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> AgentMemory:
        """A pad from ``to_json``. Raises HistoryError for anything else."""
        try:
            given = json.loads(text)
            memory = cls(**given["limits"])
            for key, value in given["items"].items():
                memory.store(key, value)
            for item in given["observations"]:
                memory.observe(item)
            for item in given["failures"]:
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
        if namespace.get(name, self) is not self:
            raise HistoryError(f"the namespace already has a {name!r}: inject the pad under another name.")
        namespace[name] = self

    def _short(self, text: object) -> str:
        if isinstance(text, BaseException):
            text = f"{type(text).__name__}: {text}"
        return cut(text if isinstance(text, str) else compact(text), self.limits["max_chars"])
