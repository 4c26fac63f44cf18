"""How a stored record's trace_id was derived from its content, and what it would be in another session."""

from __future__ import annotations

import uuid
from collections import defaultdict

from memory_bank.records import InteractionRecord, content_key, derive_trace_id
from memory_bank.transcript.jsontext import RAW, compact, dump_value

EQUALS = 1_024
"""So many equal calls of one session are told apart when an id is checked."""


def is_derived(trace_id: str) -> bool:
    """Whether an id is one that a conversation derives."""
    try:
        return uuid.UUID(trace_id).version == 5 and len(trace_id) == 36
    except ValueError:
        return False


def derivation(
    session_id: str, record: InteractionRecord, output: str, likely: int = 0
) -> tuple[bytes, int] | None:
    """The content key and the ordinal of which a record's id is the hash in its session, or None.

    ``output`` is the text stored for it; ``likely`` is the ordinal tried first. What a conversation hashed is
    stored but for two things: arguments that came as an object may have been none at all, or no object; and
    the id that a result had under a call without one.
    """
    keys = _keys(record, output)
    for ordinal in (likely, *range(EQUALS)):
        for key in keys:
            if derive_trace_id(session_id, key, ordinal) == record.trace_id:
                return key, ordinal
    return None


def _keys(record: InteractionRecord, output: str) -> list[bytes]:
    arguments = [record.input_text or ""]
    if record.input_text is None:
        arguments = [compact(record.raw_input)]
        if record.raw_input == {}:
            arguments.append("")
        if isinstance(record.raw_input, dict) and set(record.raw_input) == {RAW}:
            arguments.append(compact(record.raw_input[RAW]))
    outputs = [output]
    if record.output_text is None:
        outputs.append(dump_value(record.raw_output))
    contents = [(record.call_id or "", record.tool_name, a or "", o) for a in arguments for o in outputs]
    return list(
        dict.fromkeys(content_key(*(t.encode("utf-8", "surrogatepass") for t in c)) for c in contents)
    )


class Rederiving:
    """The trace_ids that the records of one session, given oldest first, have in another one.

    Those that are no hash of their content (made by hand, imported) stay what they are.
    """

    def __init__(self, session_id: str, other: str) -> None:
        self._session_id = session_id
        self._other = other
        self._next: defaultdict[bytes, int] = defaultdict(int)

    def __call__(self, record: InteractionRecord, output: str) -> str:
        """The trace_id of a record; ``output`` is the text stored for it."""
        if not is_derived(record.trace_id):
            return record.trace_id
        likely = max((self._next[key] for key in _keys(record, output)), default=0)
        found = derivation(self._session_id, record, output, likely)
        if found is None:
            return record.trace_id
        key, ordinal = found
        self._next[key] = ordinal + 1
        return derive_trace_id(self._other, key, ordinal)
