"""What a check comes to: for each argument value where it came from, as frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from memory_bank.errors import ProvenanceError


class Origin(StrEnum):
    """Where a value came from."""

    RECORD = "record"  # an earlier tool output
    USER = "user"
    SYSTEM = "system"
    SCHEMA = "schema"  # the tools' own descriptions
    AGENT = "agent"  # the agent's earlier words and calls, nothing else
    COMPOSED = "composed"  # of parts that are known
    TRIVIAL = "trivial"
    WRITTEN = "written"  # prose, code, computed numbers, names of new things: an agent's own work
    NOWHERE = "nowhere"


@dataclass(frozen=True, slots=True)
class Place:
    """A record (or another source) and the place in it: a JSON path, ``line N``, or nothing.

    ``session_id`` names another session that the record is of.
    """

    role: str
    place: str = ""
    trace_id: str | None = None
    tool: str | None = None
    step: int | None = None
    session_id: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """JSON values; ``session_id`` only where it is another session's."""
        origin = {} if self.session_id is None else {"session_id": self.session_id}
        return {
            **origin,
            "role": self.role,
            "place": self.place,
            "trace_id": self.trace_id,
            "tool": self.tool,
            "step": self.step,
        }

    def phrase(self) -> str:
        """``get_orders, step 3`` or ``the user``."""
        if self.tool is None:
            return {
                "system": "the system prompt",
                "schema": "the tool schema",
                "agent": "the agent itself",
            }.get(self.role, f"the {self.role}")
        return f"{self.tool}, step {self.step}" + (" of another session" if self.session_id else "")


@dataclass(frozen=True, slots=True)
class Nearest:
    """The nearest real value, the edits between, and where it stands."""

    value: str
    distance: int
    place: Place

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {"value": self.value, "distance": self.distance, **self.place.as_dict()}


@dataclass(frozen=True, slots=True)
class ValueReport:
    """One value: the argument's path, the value, its kind, its origin and its place, if it has one.

    ``unknown`` are the parts that stand nowhere. ``token`` says that the value is one token of a longer text.
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
        """JSON values."""
        return {
            "path": self.path,
            "value": self.value,
            "kind": self.kind,
            "origin": str(self.origin),
            "place": self.place.as_dict() if self.place else None,
            "nearest": self.nearest.as_dict() if self.nearest else None,
            "unknown": list(self.unknown),
            "token": self.token,
        }

    def sentence(self) -> str:
        """One sentence for people and models."""
        head = f"{self.path or 'the argument'} = {_short(self.value)}"
        if self.origin is Origin.NOWHERE:
            said = f"{head} stands nowhere in this session"
            if self.nearest:
                said += f": did you mean {_short(self.nearest.value)}, from {self.nearest.place.phrase()}?"
            return said if said.endswith("?") else f"{said}."
        if self.place is not None:
            where = f" ({self.place.place})" if self.place.place else ""
            return f"{head} comes from {self.place.phrase()}{where}."
        return f"{head} is {self.origin}."


@dataclass(frozen=True, slots=True)
class CallReport:
    """One tool call: every value of its arguments with its origin."""

    name: str
    values: tuple[ValueReport, ...]

    @property
    def alarms(self) -> tuple[ValueReport, ...]:
        """The values that came from nowhere."""
        return tuple(v for v in self.values if v.origin is Origin.NOWHERE)

    @property
    def ok(self) -> bool:
        """Whether every value came from somewhere."""
        return not self.alarms

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {"name": self.name, "ok": self.ok, "values": [v.as_dict() for v in self.values]}

    def sentence(self) -> str:
        """What is wrong with the call, or that nothing is."""
        alarms = self.alarms
        if not alarms:
            return f"Every identifier in the call of {self.name} is known."
        return f"In the call of {self.name}, " + " ".join(a.sentence() for a in alarms)


def blocked(report: CallReport) -> ProvenanceError:
    """The error of a call that was blocked; its message names arguments only."""
    paths = ", ".join(a.path or "the argument" for a in report.alarms)
    return ProvenanceError(
        f"the call of {report.name} was blocked: {paths} came from nowhere in this session; "
        "look at error.report.",
        report,
    )


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
