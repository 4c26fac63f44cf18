"""How a record's values become text in a store and values again, to the letter."""

from __future__ import annotations

import json
from typing import Any

from memory_bank.history.jsontext import dump_value, parse_arguments, parse_output
from memory_bank.records import InteractionRecord


def to_row(record: InteractionRecord, session_id: str) -> dict[str, Any]:
    """The columns of a record. Raises RecordError for values that JSON cannot hold."""
    what = f"of tool {record.tool_name!r}"
    input_text, output_text = record.input_text, record.output_text
    return {
        "session_id": session_id,
        "trace_id": record.trace_id,
        "step_id": record.step_id,
        "call_id": record.call_id,
        "tool_name": record.tool_name,
        "input": dump_value(record.raw_input, f"raw_input {what}") if input_text is None else input_text,
        "input_verbatim": input_text is not None,
        "output": dump_value(record.raw_output, f"raw_output {what}") if output_text is None else output_text,
        "output_verbatim": output_text is not None,
        "timestamp": record.timestamp,
    }


def from_row(row: Any) -> InteractionRecord:
    """The record of some columns (a mapping)."""
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


def _load(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # deeper than the parser goes: as text, complete
        return parse_output(text)


def same_fact(a: dict[str, Any], b: Any) -> bool:
    """Whether two rows say the same; step and time of storing do not count."""
    return all(
        a[k] == b[k]
        for k in ("call_id", "tool_name", "input", "input_verbatim", "output", "output_verbatim")
    )
