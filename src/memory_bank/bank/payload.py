"""How a record's values become text in a store and values again, to the letter."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from memory_bank.errors import RecordConflictError, RecordError
from memory_bank.records import Insight, InteractionRecord
from memory_bank.transcript.jsontext import dump_value, parse_arguments, parse_output

Row = dict[str, Any]

ARGUMENT_BYTES = 1_000
"""How much of a record's arguments stands in a list."""
_MAX_ID = 64
_MAX_SOURCE = 255
_MAX_STEP = 2**31 - 1


def to_rows(batch: Iterable[InteractionRecord], session_id: str) -> dict[str, Row]:
    """The columns of some records by trace_id, in their order; equal records once.

    Raises RecordError for what cannot be stored, RecordConflictError where two differ under one trace_id.
    """
    rows: dict[str, Row] = {}
    for record in batch:
        row = to_row(record, session_id)
        check_same(row, rows.setdefault(row["trace_id"], row))
    return rows


def to_row(record: InteractionRecord, session_id: str) -> Row:
    """The columns of a record. Raises RecordError for values that JSON, or a store, cannot hold."""
    if not isinstance(record, InteractionRecord):
        raise RecordError(f"a {type(record).__name__} is no record: make one with InteractionRecord.create.")
    what = f"of tool {str(record.tool_name)[:80]!r}"
    _check_id(record.trace_id, f"the record {what}")
    step, when = record.step_id, record.timestamp
    if not isinstance(step, int) or isinstance(step, bool) or abs(step) > _MAX_STEP:
        raise RecordError(f"the step_id {what} must be a whole number of at most {_MAX_STEP:,}.")
    if not isinstance(when, (int, float)) or isinstance(when, bool) or not math.isfinite(when):
        raise RecordError(f"the timestamp {what} must be a finite number of Unix seconds.")
    _check_text(record.tool_name, f"the tool_name {what}")
    for field in ("call_id", "input_text", "output_text"):
        if getattr(record, field) is not None:
            _check_text(getattr(record, field), f"the {field} {what}")
    input_text, output_text = record.input_text, record.output_text
    return {
        "session_id": session_id,
        "trace_id": record.trace_id,
        "step_id": step,
        "call_id": record.call_id,
        "tool_name": record.tool_name,
        "input": _dump(record.raw_input, f"raw_input {what}") if input_text is None else input_text,
        "input_verbatim": input_text is not None,
        "output": _dump(record.raw_output, f"raw_output {what}") if output_text is None else output_text,
        "output_verbatim": output_text is not None,
        "timestamp": float(when),
    }


def from_row(row: Mapping[Any, Any]) -> InteractionRecord:
    """The record of some columns (a mapping); every call makes values of its own."""
    input_, output = row["input"], row["output"]
    return InteractionRecord(
        trace_id=row["trace_id"],
        step_id=row["step_id"],
        tool_name=row["tool_name"],
        raw_input=parse_arguments(input_) if row["input_verbatim"] else _load(input_),
        raw_output=parse_output(output) if row["output_verbatim"] else _load(output),
        timestamp=row["timestamp"],
        call_id=row["call_id"],
        input_text=input_ if row["input_verbatim"] else None,
        output_text=output if row["output_verbatim"] else None,
    )


def check_same(a: Mapping[Any, Any], b: Mapping[Any, Any]) -> None:
    """Raise RecordConflictError unless two rows say the same; step and time of storing do not count."""
    if a is b or all(a[k] == b[k] for k in _CONTENT):
        return
    raise RecordConflictError(
        f"another record has the trace_id {b['trace_id']}: facts are never overwritten, "
        "store yours under a new trace_id."
    )


_CONTENT = ("call_id", "tool_name", "input", "input_verbatim", "output", "output_verbatim")


def latest_insights(batch: Iterable[Insight]) -> list[Insight]:
    """The last insight of every trace_id, in the order of these last ones. Raises RecordError."""
    latest: dict[str, Insight] = {}
    for insight in batch:
        if not isinstance(insight, Insight):
            raise RecordError(f"a {type(insight).__name__} is no Insight.")
        _check_id(insight.trace_id, "an insight")
        what = f"of the insight {insight.trace_id}"
        _check_text(insight.summary, f"the summary {what}")
        if insight.redo is not None:
            _check_text(insight.redo, f"the mark {what}")
        if not _is_name(insight.source, _MAX_SOURCE):
            raise RecordError(f"the source {what} must be a text of 1 to {_MAX_SOURCE} plain characters.")
        latest.pop(insight.trace_id, None)
        latest[insight.trace_id] = insight
    return list(latest.values())


def is_trace_id(value: Any) -> bool:
    """Whether a store can hold such a trace_id: text of 1 to 64 characters, no NUL, no lone surrogates."""
    return _is_name(value, _MAX_ID)


def is_session_id(value: Any) -> bool:
    """Whether a store can hold such a session_id: as a trace_id, of 1 to 255 characters."""
    return _is_name(value, 255)


def _is_name(value: Any, at_most: int) -> bool:
    if not isinstance(value, str) or not 0 < len(value) <= at_most:
        return False
    return "\0" not in value and (value.isascii() or not any("\ud800" <= c <= "\udfff" for c in value))


def _check_id(trace_id: Any, what: str) -> None:
    if not is_trace_id(trace_id):
        raise RecordError(
            f"{what} needs a trace_id of 1 to {_MAX_ID} characters without NUL and lone surrogates."
        )


def _check_text(value: Any, what: str) -> None:
    if not isinstance(value, str):
        raise RecordError(f"{what} must be text, not a {type(value).__name__}.")


def _dump(value: Any, what: str) -> str:
    try:
        text = dump_value(value, what)
        if "\\ud" in text:  # escaped, two lone surrogates side by side would come back as one letter
            text = json.dumps(value, ensure_ascii=False)
    except RecordError:
        raise
    except RecursionError:
        return text  # nested too deep for the C encoder: escaped as it is
    except ValueError:  # an integer beyond Python's conversion limit
        raise RecordError(f"{what} holds a number too long to be written: pass it as text.") from None
    return text


def stored_text(value: Any) -> str:
    """The text under which a value is stored that did not come as text. Raises RecordError."""
    return _dump(value, "the value")


def text_of(head: Any) -> str:
    """The text of a stored value's first bytes; a character that is cut in two becomes U+FFFD."""
    return bytes(head).decode("utf-8", "replace")


def _load(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # deeper than the parser goes: as text, complete
        return parse_output(text)
