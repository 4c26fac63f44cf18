"""The values that a bank stores and returns: records of tool calls, insights, search hits, costs; short reprs."""

from __future__ import annotations

import hashlib
import reprlib
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

NAMESPACE_END = "␟"
"""Separates namespace and name in a session_id of the service; no name contains it."""


_REPR_CHARS = 280


def brief(value: object, parts: Mapping[str, object]) -> str:
    """A repr of at most 280 characters, with the beginning of each part that is not empty."""
    listed = ", ".join(f"{k}={reprlib.repr(v)}" for k, v in parts.items() if v not in (None, "", ()))
    text = f"{type(value).__name__}({listed})"
    return text if len(text) <= _REPR_CHARS else f"{text[: _REPR_CHARS - 2]}…)"


class Brief:
    """The base of dataclasses with such a repr; they are made with ``repr=False``."""

    __slots__ = ()

    def __repr__(self) -> str:
        instance: Any = self
        return brief(self, {f.name: getattr(self, f.name) for f in fields(instance)})


@dataclass(frozen=True, slots=True, repr=False)
class InteractionRecord(Brief):
    """One tool call: its arguments and its output.

    ``raw_input`` and ``raw_output`` are JSON values (dict, list, str, int, float, bool, None). Where the
    arguments or the output arrived as text, ``input_text`` and ``output_text`` hold exactly that text, and
    the raw values are what it parses to (``{"_raw": text}`` where it is not JSON).

    Example:
        >>> InteractionRecord.create(1, "get_order", {"order": "ORD-1"}, {"due": "2026-03-01"}).raw_output
        {'due': '2026-03-01'}
    """

    trace_id: str
    step_id: int
    tool_name: str
    raw_input: Any
    raw_output: Any
    timestamp: float = field(default_factory=time.time)
    call_id: str | None = None
    input_text: str | None = None
    output_text: str | None = None

    @classmethod
    def create(
        cls,
        step_id: int,
        tool_name: str,
        raw_input: Any,
        raw_output: Any,
        *,
        call_id: str | None = None,
        input_text: str | None = None,
        output_text: str | None = None,
    ) -> InteractionRecord:
        """Make a record with a random trace_id (a 36-character UUID) and the present time (Unix seconds)."""
        trace_id, now = str(uuid.uuid4()), time.time()
        return cls(trace_id, step_id, tool_name, raw_input, raw_output, now, call_id, input_text, output_text)


@dataclass(frozen=True, slots=True, repr=False)
class Insight(Brief):
    """The summary of one record.

    ``source`` is ``"extractive"`` or ``"llm:MODEL"``; ``redo`` is the reason why the summary is to be made
    again, or None when it is final.

    Example:
        >>> Insight("a-trace-id", "Order ORD-1 is due on 2026-03-01.").source
        'extractive'
    """

    trace_id: str
    summary: str
    source: str = "extractive"
    redo: str | None = None


class Hit(NamedTuple):
    """A record found by a search: its trace_id and how well it fits, 0 to 1, comparable within the search.

    ``session_id`` is None for a record of the session that searched. ``why``: it has ``words`` of the query, a near
    ``neighbour`` of it has, or its summary's ``similarity`` to the query; "" where nothing fits. ``newer`` is the
    session_id (as above) and trace_id of the latest record of the same call, which returned something else.
    """

    trace_id: str
    score: float
    session_id: str | None = None
    why: str = ""
    newer: tuple[str | None, str] | None = None


def project_key(kind: str, place: str) -> str | None:
    """The key of a project: the last part of its place, for people, and a digest; None for a place without a name.

    ``kind`` says what the place is, so that no folder of a prompt has the key of a remote.
    """
    name = "".join(c for c in place.rpartition("/")[2] if c.isprintable() and c != NAMESPACE_END).strip()
    return f"{name[:120]}@{content_key(kind, place).hex()[:12]}" if name else None


def content_key(*parts: str | bytes) -> bytes:
    """A 32-byte key of some texts or byte strings, length-prefixed so that no two lists share one."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.digest()


def call_key(call_id: str | None, tool_name: str, arguments: str, output: str) -> bytes:
    """The identity of an answered call among the calls of its session; arguments and output as text."""
    return content_key(call_id or "", tool_name, arguments, output)


def derive_trace_id(session_id: str, key: bytes, ordinal: int) -> str:
    """The trace_id of the call with a ``call_key``: the same call in the same session has the same id.

    ``ordinal`` counts equals: a call that is made twice, with the same outcome, is two records.
    """
    digest = content_key(session_id, key, ordinal.to_bytes(8, "big"))
    return str(uuid.UUID(bytes=digest[:16], version=5))
