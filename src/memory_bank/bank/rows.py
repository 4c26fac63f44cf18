"""Records and insights as rows of a table and back, without any loss; the checks of what can be stored."""

from __future__ import annotations

import json
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from operator import itemgetter
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import RowMapping

from memory_bank.bank.schema import HEAD_BYTES, Embedding, ExactText, records
from memory_bank.errors import RecordConflictError, RecordError
from memory_bank.records import Insight, InteractionRecord, call_key, derive_trace_id
from memory_bank.transcript.jsontext import RAW, compact, dump_value, parse_arguments, parse_output

EQUALS = 1_024
"""The most equal calls of one session that ``derivation`` tries."""
FORGOTTEN = "forgotten"
"""The mark of a record whose content was deleted."""
_MAX_ID = 64
_MAX_SOURCE = 255
_MAX_STEP = 2**31 - 1
_MAX_TIME = 8_640_000_000_000  # seconds: the last time that a browser can show


Row = RowMapping | dict[str, Any]
"""The columns of a record or of an insight, by name."""
_content = itemgetter("call_id", "tool_name", "input", "input_verbatim", "output", "output_verbatim")


def to_rows(batch: Iterable[InteractionRecord], session_id: str) -> dict[str, dict[str, Any]]:
    """The rows of records by trace_id, in their order; equal records once.

    Raises RecordError for a value that cannot be stored, RecordConflictError for two different records with
    one trace_id.
    """
    rows: dict[str, dict[str, Any]] = {}
    for record in batch:
        row = to_row(record, session_id)
        check_same(row, rows.setdefault(row["trace_id"], row))
    return rows


def to_row(record: InteractionRecord, session_id: str) -> dict[str, Any]:
    """The row of a record. Raises RecordError for values that neither JSON nor the database can hold."""
    if not isinstance(record, InteractionRecord):
        raise RecordError(f"a {type(record).__name__} is not a record: use InteractionRecord.create.")
    subject = f"of tool {str(record.tool_name)[:80]!r}"
    _check_id(record.trace_id, f"the record {subject}")
    step, input_text, output_text = record.step_id, record.input_text, record.output_text
    if not _fits(records.c.step_id.type)(step):
        raise RecordError(f"the step_id {subject} must be a whole number of at most {_MAX_STEP:,}.")
    if not is_time(record.timestamp):
        raise RecordError(f"the timestamp {subject} must be Unix seconds, at most {_MAX_TIME:,}.")
    for field in ("tool_name", "call_id", "input_text", "output_text"):
        if field == "tool_name" or getattr(record, field) is not None:
            _check_text(getattr(record, field), f"the {field} {subject}")
    return {
        "session_id": session_id,
        "trace_id": record.trace_id,
        "step_id": step,
        "call_id": record.call_id,
        "tool_name": record.tool_name,
        "input": _dump(record.raw_input, f"raw_input {subject}") if input_text is None else input_text,
        "input_verbatim": input_text is not None,
        "output": _dump(record.raw_output, f"raw_output {subject}") if output_text is None else output_text,
        "output_verbatim": output_text is not None,
        "timestamp": float(record.timestamp),
    }


def from_row(row: Row) -> InteractionRecord:
    """The record of a row; the parsed values are new with every call."""
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


def insight_of(row: Row) -> Insight | None:
    """The insight of a row of records joined with insights; None for a record without one."""
    if row["summary"] is None:
        return None
    return Insight(row["trace_id"], row["summary"], row["source"], row["redo"])


def check_same(a: Row, b: Row) -> None:
    """Raise RecordConflictError unless two rows have the same content; step and timestamp may differ."""
    if a is not b and _content(a) != _content(b):
        raise RecordConflictError(
            f"another record has the trace_id {b['trace_id']}: facts are never overwritten, "
            "store yours under a new trace_id."
        )


def latest_insights(batch: Iterable[Insight]) -> list[Insight]:
    """Keep the last insight of each trace_id, in order of first appearance. Raises RecordError for an invalid one."""
    latest: dict[str, Insight] = {}
    for insight in batch:
        if not isinstance(insight, Insight):
            raise RecordError(f"a {type(insight).__name__} is not an Insight.")
        _check_id(insight.trace_id, "an insight")
        subject = f"of the insight {insight.trace_id}"
        _check_text(insight.summary, f"the summary {subject}")
        if insight.redo is not None:
            _check_text(insight.redo, f"the redo {subject}")
        if not is_name(insight.source, _MAX_SOURCE):
            raise RecordError(f"the source {subject} must be a text of 1 to {_MAX_SOURCE} plain characters.")
        latest.pop(insight.trace_id, None)
        latest[insight.trace_id] = insight
    return list(latest.values())


def is_trace_id(value: object) -> bool:
    """Return whether a value is a valid trace_id: text of 1 to 64 characters without NUL and lone surrogates."""
    return is_name(value, _MAX_ID)


def is_time(value: object) -> bool:
    """Return whether a value is a number of Unix seconds that can be written as a date."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= _MAX_TIME


def is_session_id(value: object) -> bool:
    """Return whether a value is a valid session_id: as a trace_id, of 1 to 255 characters."""
    return is_name(value, 255)


def is_name(value: object, at_most: int) -> bool:
    """Return whether a value is a text of 1 to ``at_most`` characters without NUL and lone surrogates."""
    if not isinstance(value, str) or not 0 < len(value) <= at_most:
        return False
    return "\0" not in value and (value.isascii() or not any("\ud800" <= c <= "\udfff" for c in value))


def _check_id(trace_id: object, subject: str) -> None:
    if not is_trace_id(trace_id):
        raise RecordError(
            f"{subject} needs a trace_id of 1 to {_MAX_ID} characters without NUL and lone surrogates."
        )


def _check_text(value: object, subject: str) -> None:
    if not isinstance(value, str):
        raise RecordError(f"{subject} must be text, not a {type(value).__name__}.")


def _dump(value: Any, subject: str) -> str:
    try:
        text = dump_value(value, subject)
        if "\\ud" in text:  # json.loads joins two adjacent escaped surrogates to one character
            text = json.dumps(value, ensure_ascii=False)
    except RecordError:
        raise
    except RecursionError:
        return text  # too deep for the C encoder of the second call: keep the escaped text
    except ValueError:  # an integer beyond Python's conversion limit
        raise RecordError(f"{subject} holds a number too long to be written: pass it as text.") from None
    return text


def checks_of(columns: Iterable[sa.Column[Any]]) -> list[tuple[Any, ...]]:
    """Each column as (name, type, whether it may be NULL, function that checks a value)."""
    return [(c.name, c.type, bool(c.nullable), _fits(c.type)) for c in columns]


def read_row(
    checks: Iterable[tuple[Any, ...]], given: Mapping[str, Any], decode: Callable[[Any, Any], Any]
) -> dict[str, Any]:
    """The values of a row as they are stored, of a line of an export or of the bytes of a table.

    ``decode`` returns a value of a column's type, or raises TypeError or ValueError. Raises RecordError.
    """
    row: dict[str, Any] = {}
    for name, kind, nullable, fits in checks:
        try:
            value = row[name] = decode(kind, given.get(name))
        except (TypeError, ValueError):
            raise RecordError(f"its {name} is not readable") from None
        if not (fits(value) or (value is None and nullable)):
            raise RecordError(f"its {name} is not valid")
    for side in ("input", "output"):
        if side in row and not row[f"{side}_verbatim"]:
            try:
                json.loads(row[side])
            except RecursionError:  # nested deeper than the parser allows: kept as text
                continue
            except ValueError:
                raise RecordError(f"its {side} should be JSON and is not") from None
    return row


@cache
def _fits(kind: Any) -> Callable[[Any], bool]:
    """A check of values for a column's type: may one be stored, and is it small enough for sums over sessions?"""
    if isinstance(kind, ExactText):
        return lambda value: isinstance(value, str)
    if isinstance(kind, Embedding):
        return lambda value: isinstance(value, bytes)
    if isinstance(kind, sa.LargeBinary):
        return lambda value: isinstance(value, bytes) and len(value) == HEAD_BYTES
    if isinstance(kind, sa.String):
        return lambda value: is_name(value, kind.length or 0)
    if isinstance(kind, sa.Boolean):
        return lambda value: value is True or value is False
    if isinstance(kind, sa.Integer):  # BigInteger is one
        most = 2**40 if isinstance(kind, sa.BigInteger) else _MAX_STEP
        return lambda value: type(value) is int and abs(value) <= most
    return is_time


def _load(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # nested deeper than the parser allows: the text itself
        return parse_output(text)


# Trace ids that a conversation derived from the content of its calls


def is_derived(trace_id: str) -> bool:
    """Return whether an id has the form of ids derived from content (UUID version 5)."""
    try:
        return len(trace_id) == 36 and trace_id[14] == "5" and uuid.UUID(trace_id).version == 5
    except ValueError:
        return False


def derivation(row: Row, session_id: str, likely: int = 0) -> tuple[bytes, int] | None:
    """The content key and the ordinal whose hash is a record's id in its session; None if there is none.

    ``likely`` is the ordinal tried first. The hashed content is the stored one with two exceptions: arguments stored
    as an object may have been missing or not an object, and the call id may have come from the result only.
    """
    keys = _content_keys(row)
    for ordinal in (likely, *range(EQUALS)):
        for key in keys:
            if derive_trace_id(session_id, key, ordinal) == row["trace_id"]:
                return key, ordinal
    return None


def _content_keys(row: Row) -> list[bytes]:
    arguments, outputs = [row["input"]], [row["output"]]
    if not row["input_verbatim"]:
        value = _load(row["input"])
        arguments = [compact(value)]
        if value == {}:
            arguments.append("")
        if isinstance(value, dict) and set(value) == {RAW}:
            arguments.append(compact(value[RAW]))
    if not row["output_verbatim"]:
        outputs.append(dump_value(_load(row["output"])))
    keys = [call_key(row["call_id"], row["tool_name"], a or "", o) for a in arguments for o in outputs]
    return list(dict.fromkeys(keys))


def rederived(rows: Iterable[Row], session_id: str, other: str) -> Iterator[tuple[str, str]]:
    """A session's trace_ids, oldest first, each with its one in another session; those not derived stay the same."""
    next_: defaultdict[bytes, int] = defaultdict(int)
    for row in rows:
        trace_id = row["trace_id"]
        if is_derived(trace_id):
            likely = max((next_[key] for key in _content_keys(row)), default=0)
            derived = derivation(row, session_id, likely)
            if derived is not None:
                key, ordinal = derived
                next_[key] = ordinal + 1
                yield trace_id, derive_trace_id(other, key, ordinal)
                continue
        yield trace_id, trace_id
