"""Sessions on their way between banks: as JSON values, a line a record, nothing lost, in either direction."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from memory_bank.bank.database import Database
from memory_bank.bank.payload import from_row, stored_text
from memory_bank.bank.schema import bank, insights, jobs, records, sessions, spending
from memory_bank.records import Insight, InteractionRecord
from memory_bank.transcript.jsontext import RAW, dump_value, is_deep

FORMAT = 1
"""Of the lines; a file of a higher one was written by a newer memory_bank."""
EXACT = "$utf8"
JOB = ("created", "due", "attempts", "error")
SPENT = ("day", "model", "calls", "prompt_tokens", "completion_tokens", "cost")

_BATCH = 256
_TWO_HALVES = re.compile("[\ud800-\udbff][\udc00-\udfff]")  # JSON would make one letter of them

_r, _i, _j = records.c, insights.c, jobs.c
_mine = _r.session_id == sa.bindparam("session")
_SESSION = sa.select(*sessions.c).where(sessions.c.session_id == sa.bindparam("session"))
_EMBEDDER = sa.select(bank.c.key, bank.c.value)
_ORDER = sa.select(_i.trace_id).where(_i.session_id == sa.bindparam("session")).order_by(_i.seq)
_SIZE = sa.select(sa.func.count()).select_from(records).where(_mine)
_SPENT = (
    sa.select(*(spending.c[name] for name in SPENT))
    .where(spending.c.session_id == sa.bindparam("session"))
    .order_by(spending.c.day, spending.c.model)
)
_RECORDS = (
    sa.select(
        *_r, _i.summary, _i.source, _i.redo, _i.embedding, *(_j[name].label(f"job_{name}") for name in JOB)
    )
    .select_from(
        records.outerjoin(
            insights, (_i.trace_id == _r.trace_id) & (_i.session_id == _r.session_id)
        ).outerjoin(jobs, (_j.trace_id == _r.trace_id) & (_j.session_id == _r.session_id))
    )
    .where(_mine, _r.seq > sa.bindparam("last"))
    .order_by(_r.seq)
    .limit(_BATCH)
)
_BARE = (
    sa.select(_i.seq, _i.trace_id, _i.summary, _i.source, _i.redo, _i.embedding)
    .where(
        _i.session_id == sa.bindparam("session"),
        _i.seq > sa.bindparam("last"),
        ~sa.exists().where(_r.trace_id == _i.trace_id, _r.session_id == _i.session_id),
    )
    .order_by(_i.seq)
    .limit(_BATCH)
)


def export_lines(database: Database, session_id: str | None = None) -> Iterator[dict[str, Any]]:
    """A session, or all of them by name, as JSON values: as they were at one moment.

    One value a record, oldest first, with its insight and its open job; then insights without a record. The
    first value of a session carries, under ``session``, what belongs to it as a whole and how much follows.
    A text in which JSON would join two lone surrogates is ``{"$utf8": base64}``.
    """
    with database.snapshot() as c:
        for name in [session_id] if session_id is not None else _names(c):
            yield from _session_lines(c, name)


def record_line(session_id: str, record: InteractionRecord, insight: Insight | None) -> dict[str, Any]:
    """A record and its insight as they are shown: one JSON value."""
    facts = {name: getattr(record, name) for name in record.__dataclass_fields__}
    for name, text in (("raw_input", record.input_text), ("raw_output", record.output_text)):
        if is_deep(facts[name]):  # of what json.dumps cannot nest, the text says all
            facts[name] = {RAW: dump_value(facts[name]) if text is None else text}
    return {
        "session_id": session_id,
        **facts,
        "summary": insight.summary if insight else None,
        "summary_source": insight.source if insight else None,
        "redo": insight.redo if insight else None,
    }


def encode_text(text: str | None) -> Any:
    """A text as a JSON value that comes back to the letter."""
    if text is None or not _TWO_HALVES.search(text):
        return text
    return {EXACT: base64.b64encode(text.encode("utf-8", "surrogatepass")).decode()}


def decode_text(value: Any) -> Any:
    """The text of such a value; anything else as it is. Raises ValueError."""
    if isinstance(value, dict) and set(value) == {EXACT} and isinstance(value[EXACT], str):
        return base64.b64decode(value[EXACT], validate=True).decode("utf-8", "surrogatepass")
    return value


def _names(c: Connection) -> list[str]:
    tables = (sessions, records, insights, spending)
    return sorted(set(c.execute(sa.union(*(sa.select(t.c.session_id) for t in tables))).scalars()))


def _session_lines(c: Connection, name: str) -> Iterator[dict[str, Any]]:
    asked = {"session": name}
    order = {t: k for k, t in enumerate(c.execute(_ORDER, asked).scalars())}
    first: dict[str, Any] = {"session": _head(c, name, len(order))}
    for row in _pages(c, _RECORDS, name):
        yield {**_record(name, row, order), **first}
        first = {}
    for row in _pages(c, _BARE, name):
        line = {"session_id": name, "trace_id": row["trace_id"], "summary": encode_text(row["summary"])}
        line |= {"summary_source": row["source"], "redo": encode_text(row["redo"])}
        yield {**line, **_embedded(row, order), **first}
        first = {}
    if first:
        yield {"session_id": name, **first}


def _head(c: Connection, name: str, n_insights: int) -> dict[str, Any]:
    row = c.execute(_SESSION, {"session": name}).mappings().first()
    known = dict(c.execute(_EMBEDDER).all()) if n_insights else {}
    embedder = None
    if "embedder" in known and str(known.get("dimension", "")).isdecimal():
        embedder = {"name": known["embedder"], "dimension": int(known["dimension"])}
    return {
        "format": FORMAT,
        "created": row["created"] if row else None,
        "task": encode_text(row["task"]) if row else None,
        "agent_id": row["agent_id"] if row else None,
        "embedder": embedder,
        "records": c.execute(_SIZE, {"session": name}).scalar() or 0,
        "insights": n_insights,
        "spending": [list(spent) for spent in c.execute(_SPENT, {"session": name})],
    }


def _pages(c: Connection, query: sa.Select[Any], name: str) -> Iterator[Mapping[Any, Any]]:
    last = -1
    while True:
        rows = c.execute(query, {"session": name, "last": last}).mappings().all()
        yield from rows
        if len(rows) < _BATCH:
            return
        last = rows[-1]["seq"]


def _record(name: str, row: Mapping[Any, Any], order: dict[str, int]) -> dict[str, Any]:
    record = from_row(row)
    insight = None
    if row["summary"] is not None:
        insight = Insight(row["trace_id"], row["summary"], row["source"], row["redo"])
    line = record_line(name, record, insight)
    for field in ("tool_name", "call_id", "input_text", "output_text", "summary", "redo"):
        line[field] = encode_text(line[field])
    for side in ("input", "output"):
        if not row[f"{side}_verbatim"] and not _comes_back(line[f"raw_{side}"], row[side]):
            line[f"{side}_json"] = encode_text(row[side])
    line |= _embedded(row, order)
    job = None
    if row["job_created"] is not None:
        job = {field: row[f"job_{field}"] for field in JOB}
        job["error"] = encode_text(job["error"])
    line["job"] = job
    return line


def _embedded(row: Mapping[Any, Any], order: dict[str, int]) -> dict[str, Any]:
    vector = row["embedding"]
    return {
        "embedding": None if vector is None else base64.b64encode(vector).decode(),
        "insight_order": None if vector is None else order.get(row["trace_id"]),
    }


def _comes_back(value: Any, text: str) -> bool:
    """Whether a value, written as JSON and read again, is stored as this very text."""
    try:
        return stored_text(json.loads(json.dumps(value))) == text
    except (ValueError, RecursionError):
        return False
