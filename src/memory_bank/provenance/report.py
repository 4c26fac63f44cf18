"""The result of a check: where each argument value of a call came from, as immutable values."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

from memory_bank.records import Brief


class Origin(StrEnum):
    """Where a value came from."""

    RECORD = "record"  # an earlier tool output
    USER = "user"
    SYSTEM = "system"
    SCHEMA = "schema"  # the tools' own descriptions
    AGENT = "agent"  # only the agent's earlier words and calls
    COMPOSED = "composed"  # from known parts
    TRIVIAL = "trivial"
    WRITTEN = "written"  # by the agent: prose, code, computed numbers, names of new things
    NOWHERE = "nowhere"


@dataclass(frozen=True, slots=True)
class Place:
    """A source and the JSON path, ``line N`` or "" in it; ``session_id`` names another session."""

    role: str
    place: str = ""
    trace_id: str | None = None
    tool: str | None = None
    step: int | None = None
    session_id: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """The place as a JSON object, with ``session_id`` only for another session."""
        return {k: v for k, v in asdict(self).items() if k != "session_id" or v is not None}

    def phrase(self) -> str:
        """The source in words: ``get_orders, step 3`` or ``the user``."""
        if self.tool is not None:
            return f"{self.tool}, step {self.step}" + (" of another session" if self.session_id else "")
        named = {"system": "the system prompt", "schema": "the tool schema", "agent": "the agent itself"}
        return named.get(self.role, f"the {self.role}")


@dataclass(frozen=True, slots=True)
class Nearest:
    """The nearest known value, its distance in edits, and its place."""

    value: str
    distance: int
    place: Place

    def as_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return {"value": self.value, "distance": self.distance, **self.place.as_dict()}


@dataclass(frozen=True, slots=True, repr=False)
class ValueReport(Brief):
    """One argument value and its origin.

    ``path``: in the arguments, such as ``items[0].id``. ``kind``: such as "code" or "e-mail". ``place``: where the
    value is, if a source holds it. ``nearest``: the nearest known value, for an alarm. ``unknown``: the parts of the
    value that no source holds. ``token``: whether the value is one token of a longer text.
    """

    path: str
    value: Any
    kind: str
    origin: Origin
    place: Place | None = None
    nearest: Nearest | None = None
    unknown: tuple[str, ...] = ()
    token: bool = False

    def as_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            **{f.name: getattr(self, f.name) for f in fields(self)},
            "origin": str(self.origin),
            "place": self.place.as_dict() if self.place else None,
            "nearest": self.nearest.as_dict() if self.nearest else None,
            "unknown": list(self.unknown),
        }

    def sentence(self) -> str:
        """The origin in one sentence, for people and models."""
        head = f"{self.path or 'the argument'} = {_short(self.value)}"
        if self.origin is Origin.NOWHERE and self.nearest:
            where = self.nearest.place.phrase()
            return f"{head} is not in this session: did you mean {_short(self.nearest.value)}, from {where}?"
        if self.origin is Origin.NOWHERE:
            return f"{head} is not in this session."
        if self.place is not None:
            where = f" ({self.place.place})" if self.place.place else ""
            return f"{head} comes from {self.place.phrase()}{where}."
        return f"{head} is {self.origin}."


@dataclass(frozen=True, slots=True, repr=False)
class CallReport(Brief):
    """One tool call: every value in its arguments with its origin.

    Example:
        >>> report = check_call(("refund", {"order_id": "ORD-4711"}), state, messages)  # a CallReport
        >>> report.ok, report.alarms[0].path, report.sentence()[:33], report.as_dict()["name"]
        (False, 'order_id', 'In the call of refund, order_id =', 'refund')
    """

    name: str
    values: tuple[ValueReport, ...]

    @property
    def alarms(self) -> tuple[ValueReport, ...]:
        """The values without a source."""
        return tuple(v for v in self.values if v.origin is Origin.NOWHERE)

    @property
    def ok(self) -> bool:
        """Whether there are no alarms."""
        return not self.alarms

    def as_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return {"name": self.name, "ok": self.ok, "values": [v.as_dict() for v in self.values]}

    def sentence(self) -> str:
        """The alarms in one sentence each, or that there are none."""
        if self.ok:
            return f"Every identifier in the call of {self.name} is known."
        return f"In the call of {self.name}, " + " ".join(a.sentence() for a in self.alarms)


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
