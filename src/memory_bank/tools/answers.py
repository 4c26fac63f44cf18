"""An answer of one of our tools: its text, whether it is a refusal, and which records it is about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memory_bank.bank.retrieval import session_name
from memory_bank.records import InteractionRecord
from memory_bank.tools.selection import Refused
from memory_bank.transcript.jsontext import compact


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call is answered with. ``refused``: it could not be met, and the text says why.

    ``records`` has the figures of each record that the text is about, without anything a tool said.
    """

    text: str
    refused: bool = False
    records: tuple[dict[str, Any], ...] = ()


def figures(record: InteractionRecord, session_id: str | None, **more: Any) -> dict[str, Any]:
    """What a program is told of a record; ``session_id`` None: of the session that was asked."""
    name = sendable(record.tool_name)
    told = {"trace_id": record.trace_id, "step_id": record.step_id, "tool_name": name, **more}
    return told if session_id is None else {**told, "session": session_name(session_id)}


def sendable(text: str) -> str:
    """A text without lone surrogates, which no client can send."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def of_session(session_id: str | None) -> str:
    """How a text names the session of a record that is another's."""
    return "" if session_id is None else f" of the session {session_name(session_id)}"


def check_names(given: Mapping[str, Any], known: Sequence[str], tool: str) -> None:
    """Raise Refused where a call has a parameter that the tool has not."""
    unknown = [k for k in given if k not in known]
    if unknown:
        raise Refused(f"{tool} has no parameter {compact(unknown[0][:80])}: it takes {', '.join(known)}.")
