"""Export and import of sessions as JSON lines, one value a record, without loss.

An import is idempotent: each session is imported in one transaction or refused, and records that the bank has
stay as they are.
"""

from __future__ import annotations

import base64
import json
import math
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from memory_bank.bank.database import Database
from memory_bank.bank.embedder import bank_embedder, bind, embedder_of
from memory_bank.bank.rows import (
    FORGOTTEN,
    MARKS,
    InsightRow,
    RecordRow,
    check_same,
    from_row,
    insight_of,
    is_session_id,
    is_time,
    latest_insights,
    stored_text,
    to_row,
)
from memory_bank.bank.schema import (
    IDS,
    INSIGHT_OF_RECORD,
    JOB_OF_RECORD,
    LAST,
    NEXT_GENERATION,
    SESSION,
    count_of,
    in_parts,
    insights,
    jobs,
    of_session,
    records,
    sessions,
    spending,
)
from memory_bank.errors import EmbedderMismatchError, RecordError
from memory_bank.faults import fault_point
from memory_bank.ports import Embedder
from memory_bank.records import Insight, InteractionRecord
from memory_bank.transcript.jsontext import RAW, dump_value, is_deep
from memory_bank.vectors import embedder_name, encode_documents

FORMAT = 1
"""The version of the lines; a file with a higher one was written by a newer memory_bank."""
EXACT = "$utf8"
_JOB = ("created", "due", "attempts", "error")
_SPENT = ("day", "model", "calls", "prompt_tokens", "completion_tokens", "cost")
_MAX_SPENT = 2**40  # tokens, or money: sums over many sessions must not overflow
_BATCH = 256
_TWO_HALVES = re.compile("[\ud800-\udbff][\udc00-\udfff]")  # a JSON parser would join them

Line = dict[str, Any]
"""One JSON object of an export."""

_r, _i, _j, _s = records.c, insights.c, jobs.c, sessions.c
_this_session = _s.session_id == SESSION
_SESSION = sa.select(*_s).where(_this_session)
_ORDER = sa.select(_i.trace_id).where(of_session(insights)).order_by(_i.seq)
_SIZE = count_of(records).where(of_session(records))
_SPENDING = (
    sa.select(*(spending.c[name] for name in _SPENT))
    .where(of_session(spending))
    .order_by(spending.c.day, spending.c.model)
)
_RECORDS = (
    sa.select(
        *_r, _i.summary, _i.source, _i.redo, _i.embedding, *(_j[name].label(f"job_{name}") for name in _JOB)
    )
    .select_from(records.outerjoin(insights, INSIGHT_OF_RECORD).outerjoin(jobs, JOB_OF_RECORD))
    .where(of_session(records), _r.seq > LAST)
    .order_by(_r.seq)
    .limit(_BATCH)
)
_WITHOUT_RECORD = (
    sa.select(_i.seq, _i.trace_id, _i.summary, _i.source, _i.redo, _i.embedding)
    .where(of_session(insights), _i.seq > LAST, ~sa.exists(_r.seq).where(INSIGHT_OF_RECORD))
    .order_by(_i.seq)
    .limit(_BATCH)
)
_SAME = sa.select(*_r).where(of_session(records), _r.trace_id.in_(IDS))
_WITH_INSIGHT = sa.select(_i.trace_id).where(of_session(insights), _i.trace_id.in_(IDS))
_SET_MARK = (
    sa.update(records)
    .where(of_session(records), _r.trace_id == sa.bindparam("of"))
    .values(mark=sa.bindparam("new", type_=sa.String))
)
_OWNER = sa.select(_s.task, _s.agent_id).where(_this_session)


# Export


def export_lines(database: Database, session_id: str | None = None) -> Iterator[Line]:
    """A session, or all sessions by name, as JSON values, from one snapshot of the bank.

    One value a record, oldest first, with its insight and its job; then the insights without a record. The
    first value of a session has, under ``session``, what belongs to the session and how many records and
    insights follow. A text in which JSON would join two lone surrogates is ``{"$utf8": base64}``.
    """
    with database.snapshot() as c:
        names = [session_id]
        if session_id is None:
            tables = (sessions, records, insights, spending)
            names = sorted(set(c.execute(sa.union(*(sa.select(t.c.session_id) for t in tables))).scalars()))
        for name in names:
            yield from _session_lines(c, str(name))


def record_line(session_id: str, record: InteractionRecord, insight: Insight | None) -> Line:
    """A record and its insight as one JSON value."""
    facts = {name: getattr(record, name) for name in record.__dataclass_fields__}
    for name, text in (("raw_input", record.input_text), ("raw_output", record.output_text)):
        if is_deep(facts[name]):  # deeper than json.dumps allows: the text instead
            facts[name] = {RAW: dump_value(facts[name]) if text is None else text}
    return {
        "session_id": session_id,
        **facts,
        "summary": insight.summary if insight else None,
        "summary_source": insight.source if insight else None,
        "redo": insight.redo if insight else None,
    }


def encode_text(text: str | None) -> str | Mapping[str, str] | None:
    """A text as a JSON value from which ``decode_text`` gives the same text."""
    if text is None or not _TWO_HALVES.search(text):
        return text
    return {EXACT: base64.b64encode(text.encode("utf-8", "surrogatepass")).decode()}


def decode_text(value: object) -> object:
    """The text of a value of ``encode_text``; other values unchanged. Raises ValueError."""
    if isinstance(value, dict) and set(value) == {EXACT} and isinstance(value[EXACT], str):
        return base64.b64decode(value[EXACT], validate=True).decode("utf-8", "surrogatepass")
    return value


def _session_lines(c: Connection, name: str) -> Iterator[Line]:
    order = {t: k for k, t in enumerate(c.execute(_ORDER, {"session": name}).scalars())}
    first: Line = {"session": _session_header(c, name, len(order))}
    for row in _pages(c, _RECORDS, name):
        yield {**_full_line(name, row, order), **first}
        first = {}
    for row in _pages(c, _WITHOUT_RECORD, name):
        line = {"session_id": name, "trace_id": row["trace_id"], "summary": encode_text(row["summary"])}
        line |= {"summary_source": row["source"], "redo": encode_text(row["redo"])}
        yield {**line, **_embedding_fields(row, order), **first}
        first = {}
    if first:
        yield {"session_id": name, **first}


def _session_header(c: Connection, name: str, n_insights: int) -> Line:
    row = c.execute(_SESSION, {"session": name}).mappings().first()
    embedder = embedder_of(c) if n_insights else None
    return {
        "format": FORMAT,
        "created": row["created"] if row else None,
        "task": encode_text(row["task"]) if row else None,
        "agent_id": row["agent_id"] if row else None,
        "embedder": {"name": embedder[0], "dimension": embedder[1]} if embedder else None,
        "records": c.execute(_SIZE, {"session": name}).scalar() or 0,
        "insights": n_insights,
        "spending": [list(row) for row in c.execute(_SPENDING, {"session": name})],
    }


def _pages(c: Connection, query: sa.Select[Any], name: str) -> Iterator[RowMapping]:
    last = -1
    while True:
        rows = c.execute(query, {"session": name, "last": last}).mappings().all()
        yield from rows
        if len(rows) < _BATCH:
            return
        last = rows[-1]["seq"]


def _full_line(name: str, row: RowMapping, order: dict[str, int]) -> Line:
    line = record_line(name, from_row(row), insight_of(row))
    for text in ("tool_name", "call_id", "input_text", "output_text", "summary", "redo"):
        line[text] = encode_text(line[text])
    if row["mark"] is not None:
        line["mark"] = row["mark"]
    for side in ("input", "output"):
        if not row[f"{side}_verbatim"] and not _is_reproducible(line[f"raw_{side}"], row[side]):
            line[f"{side}_json"] = encode_text(row[side])
    line |= _embedding_fields(row, order)
    job = None
    if row["job_created"] is not None:
        job = {name: row[f"job_{name}"] for name in _JOB}
        job["error"] = encode_text(job["error"])
    line["job"] = job
    return line


def _embedding_fields(row: RowMapping, order: dict[str, int]) -> Line:
    vector = row["embedding"]
    return {
        "embedding": None if vector is None else base64.b64encode(vector).decode(),
        "insight_order": None if vector is None else order.get(row["trace_id"]),
    }


def _is_reproducible(value: Any, text: str) -> bool:
    """Whether a value, after a round trip through JSON, is stored as this text."""
    try:
        return stored_text(json.loads(json.dumps(value))) == text
    except (ValueError, RecursionError):
        return False


# Import


@dataclass(frozen=True, slots=True)
class ImportedSession:
    """How many rows of a session were inserted; ``known`` counts the records that the bank had already."""

    session_id: str
    records: int
    known: int
    insights: int
    jobs: int


@dataclass(frozen=True, slots=True)
class RefusedSession:
    """A session that was not imported, and why; ``session_id`` is None if the line does not contain it."""

    session_id: str | None
    line: int
    reason: str


class _BrokenLine(ValueError):
    """A line that cannot be imported; the message says why."""


@dataclass(frozen=True, slots=True)
class _Header:
    """The values under ``session``: those of the session and how many records and insights follow."""

    created: float | None
    task: str | None
    agent_id: str | None
    embedder: tuple[str, int] | None
    records: int
    insights: int
    spending: list[list[Any]]


@dataclass(frozen=True, slots=True)
class _ReadInsight:
    """An insight of a line, its embedding, and its place among the session's insights."""

    place: int
    insight: Insight
    embedding: bytes


@dataclass(slots=True)
class _ReadSession:
    """The lines of one session, parsed and checked."""

    session_id: str
    line: int
    header: _Header
    rows: dict[str, RecordRow] = field(default_factory=dict)
    insights: list[_ReadInsight] = field(default_factory=list)
    jobs: dict[str, Line] = field(default_factory=dict)
    marks: dict[str, str] = field(default_factory=dict)

    def missing(self) -> str:
        """Which of the announced rows are missing, or ""."""
        for name, have, announced in (
            ("records", len(self.rows), self.header.records),
            ("insights", len(self.insights), self.header.insights),
        ):
            if have != announced:
                return f"it has {have:,} of {announced:,} {name}: the file is incomplete or was changed"
        return ""


def import_lines(
    database: Database, lines: Iterable[tuple[int, str | None]], model: Embedder | None = None
) -> Iterator[ImportedSession | RefusedSession]:
    """Import sessions from numbered lines (None: a line that cannot be read), each in one transaction.

    Rows that the bank has are not changed; a record that differs under its trace_id refuses its session. With
    a ``model``, summaries that another model embedded are embedded again. Raises EmbedderMismatchError if the
    bank was built with another embedder, EmbeddingError, StorageError; sessions yielded before are imported.
    """
    session: _ReadSession | None = None
    refused: set[str | None] = set()
    for number, text in lines:
        if text is not None and not text.strip():
            continue
        name: str | None = None
        try:
            value = _parse_line(text)
            name = _session_name(value)
            if session is not None and ("session" in value or name != session.session_id):
                ended, session = session, None
                yield _import_session(database, ended, model)
            if "session" in value:
                session = _ReadSession(name, number, _parse_header(value["session"]))
                refused.discard(name)
            if session is None:
                if name in refused:
                    continue
                raise _BrokenLine(f"the beginning of session {name!r} is missing before it")
            _add_line(session, value)
        except (_BrokenLine, RecordError) as e:
            if session is not None and name is None:
                if session.missing():
                    name = session.session_id
                else:  # the session is complete: the broken line belongs to none
                    yield _import_session(database, session, model)
            if name is not None or None not in refused:
                yield RefusedSession(name, number, str(e).rstrip("."))
            refused.add(name)
            session = None
    if session is not None:
        yield _import_session(database, session, model)


def _parse_line(text: str | None) -> Line:
    if text is None:
        raise _BrokenLine("the file cannot be read after it")
    try:
        value = json.loads(text)
    except RecursionError:
        raise _BrokenLine("it is nested too deeply") from None
    except ValueError:
        raise _BrokenLine("it is not JSON") from None
    if not isinstance(value, dict):
        raise _BrokenLine("it is not a JSON object: use `memory-bank bank export` without --json")
    return value


def _session_name(value: Line) -> str:
    name = value.get("session_id")
    if not is_session_id(name):
        raise _BrokenLine("it has no session_id")
    return str(name)


def _parse_header(value: Any) -> _Header:
    if not isinstance(value, dict) or not _is_count(value.get("format")):
        raise _BrokenLine("it has no format")
    if value["format"] > FORMAT:
        raise _BrokenLine(f"it was written by a newer memory_bank (format {value['format']}): upgrade")
    embedder, created, agent = value.get("embedder"), value.get("created"), value.get("agent_id")
    if embedder is not None and not (
        isinstance(embedder, dict)
        and isinstance(embedder.get("name"), str)
        and _is_count(embedder.get("dimension"))
    ):
        raise _BrokenLine("its embedder is not valid")
    if not (_is_count(value.get("records")) and _is_count(value.get("insights"))):
        raise _BrokenLine("it does not say how many records follow")
    if not (created is None or is_time(created)):
        raise _BrokenLine("its time is not a number of Unix seconds")
    if not (agent is None or is_session_id(agent)):
        raise _BrokenLine("its agent_id is not valid")
    spent = value.get("spending") or []
    if not isinstance(spent, list) or not all(map(_is_spending_row, spent)):
        raise _BrokenLine("its spending is not valid")
    return _Header(
        created=None if created is None else float(created),
        task=_text(value, "task"),
        agent_id=agent,
        embedder=None if embedder is None else (embedder["name"], embedder["dimension"]),
        records=value["records"],
        insights=value["insights"],
        spending=spent,
    )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_spending_row(value: object) -> bool:
    if not isinstance(value, list) or len(value) != len(_SPENT):
        return False
    day, model, *counts, cost = value
    return (
        isinstance(day, str) and len(day) == 10 and is_session_id(day) and is_session_id(model)
        and all(_is_count(n) and n < _MAX_SPENT for n in counts) and _is_number(cost) and abs(cost) < _MAX_SPENT
    )  # fmt: skip


def _text(value: Line, key: str) -> str | None:
    try:
        text = decode_text(value.get(key))
    except ValueError:
        raise _BrokenLine(f"its {key} is not a valid {EXACT}") from None
    if text is not None and not isinstance(text, str):
        raise _BrokenLine(f"its {key} is not text")
    return text


def _add_line(session: _ReadSession, value: Line) -> None:
    """Add the record, the insight and the job of a line. Raises _BrokenLine, RecordError."""
    trace_id = value.get("trace_id")
    if "trace_id" not in value and "session" in value:
        return  # a session without records
    if "step_id" in value:
        row = _parse_record(session.session_id, value)
        if trace_id in session.rows:
            raise _BrokenLine(f"the record {trace_id} occurs twice")
        session.rows[row["trace_id"]] = row
        if value.get("mark") is not None:
            if value["mark"] not in MARKS:
                raise _BrokenLine("its mark is not known")
            session.marks[row["trace_id"]] = value["mark"]
        if value.get("job") is not None:
            session.jobs[row["trace_id"]] = _parse_job(value["job"])
    summary = _text(value, "summary")
    if summary is None:
        return
    insight = Insight(trace_id, summary, value.get("summary_source"), _text(value, "redo"))  # type: ignore[arg-type]
    latest_insights([insight])  # checks the types
    place = value.get("insight_order")
    if not isinstance(place, int) or not _is_count(place):
        raise _BrokenLine("its insight has no order")
    embedding = _parse_embedding(value.get("embedding"), session.header.embedder)
    session.insights.append(_ReadInsight(place, insight, embedding))


def _parse_record(session_id: str, value: Line) -> RecordRow:
    fields: Line = {
        name: _text(value, name) for name in ("tool_name", "call_id", "input_text", "output_text")
    }
    for name in ("trace_id", "step_id", "raw_input", "raw_output", "timestamp"):
        fields[name] = value.get(name)
    row = to_row(InteractionRecord(**fields), session_id)  # checks the types
    input_json, output_json = _text(value, "input_json"), _text(value, "output_json")
    if input_json is not None and not row["input_verbatim"]:
        _check_json(value.get("raw_input"), input_json, "input_json")
        row["input"] = input_json
    if output_json is not None and not row["output_verbatim"]:
        _check_json(value.get("raw_output"), output_json, "output_json")
        row["output"] = output_json
    return row


def _check_json(value: Any, text: str, name: str) -> None:
    """Raise _BrokenLine unless a text is JSON of this value."""
    try:
        parsed = json.loads(text)
        same = is_deep(parsed) or json.dumps(parsed) == json.dumps(value)
    except RecursionError:  # as deep values are, whose text stands in both places
        same = value == {RAW: text}
    except ValueError:
        same = False
    if not same:
        raise _BrokenLine(f"its {name} is not the JSON text of its {name.replace('json', 'value')}")


def _parse_job(value: Any) -> Line:
    if not isinstance(value, dict) or not (
        is_time(value.get("created")) and is_time(value.get("due")) and _is_count(value.get("attempts"))
    ):
        raise _BrokenLine("its job is not valid")
    return {**{name: value.get(name) for name in _JOB}, "error": _text(value, "error")}


def _parse_embedding(value: Any, embedder: tuple[str, int] | None) -> bytes:
    try:
        data = base64.b64decode(value, validate=True)
    except (ValueError, TypeError):
        raise _BrokenLine("its embedding is not base64") from None
    if embedder is None or len(data) != 4 * embedder[1] or not np.isfinite(np.frombuffer(data, "<f4")).all():
        raise _BrokenLine("its embedding does not have the dimension of its embedder")
    return data


def _import_session(
    database: Database, session: _ReadSession, model: Embedder | None
) -> ImportedSession | RefusedSession:
    reason = session.missing()
    if not reason:
        try:
            return _write_session(database, session, model)
        except RecordError as e:
            reason = str(e).rstrip(".")
    return RefusedSession(session.session_id, session.line, reason)


def _write_session(database: Database, session: _ReadSession, model: Embedder | None) -> ImportedSession:
    name, header = session.session_id, session.header
    with database.read() as c:
        known = _ids_with_insight(c, name, [i.insight.trace_id for i in session.insights])
    new = [i for i in sorted(session.insights, key=lambda i: i.place) if i.insight.trace_id not in known]
    embedder, vectors = _embeddings(header, new, model)
    summaries: list[InsightRow] = [
        {
            "session_id": name, "trace_id": i.insight.trace_id, "summary": i.insight.summary,
            "embedding": vector, "source": i.insight.source, "redo": i.insight.redo,
        }
        for i, vector in zip(new, vectors, strict=True)
    ]  # fmt: skip
    with database.write() as c:
        if summaries and embedder is not None:
            _bind(c, database, embedder, name)
        created = time.time() if header.created is None else header.created
        row = {"session_id": name, "created": created, "generation": 0}
        row |= {"task": header.task, "agent_id": header.agent_id}
        is_new = c.execute(database.insert_or_ignore(sessions), [row]).rowcount == 1
        database.lock_session(c, name)
        _set_owner(c, session)
        stored = {row["trace_id"]: row for row in _stored_rows(c, name, list(session.rows))}
        for trace_id, old in stored.items():
            if old["mark"] != FORGOTTEN:
                check_same(session.rows[trace_id], old)
        rows = [row for trace_id, row in session.rows.items() if trace_id not in stored]
        known = _ids_with_insight(c, name, [row["trace_id"] for row in summaries])
        summaries = [row for row in summaries if row["trace_id"] not in known]
        waiting = [(t, job) for t, job in session.jobs.items() if t not in stored]
        waiting.sort(key=lambda item: item[1]["created"])
        _insert(c, records, rows)
        for trace_id, mark in session.marks.items():
            if trace_id not in stored:
                c.execute(_SET_MARK, {"session": name, "of": trace_id, "new": mark})
        _insert(c, insights, summaries)
        _insert(c, jobs, [{"session_id": name, "trace_id": t, **job} for t, job in waiting])
        for spent in header.spending:
            values = {"session_id": name, **dict(zip(_SPENT, spent, strict=True))}
            c.execute(database.insert_or_ignore(spending), values)
        if not is_new and (rows or summaries):
            c.execute(NEXT_GENERATION, {"session": name})
        fault_point("import.executed")
    return ImportedSession(name, len(rows), len(stored), len(summaries), len(waiting))


def _insert(c: Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    for start in range(0, len(rows), _BATCH):
        c.execute(sa.insert(table), rows[start : start + _BATCH])


def _stored_rows(c: Connection, name: str, ids: list[str]) -> Iterator[RowMapping]:
    for part in in_parts(ids):
        yield from c.execute(_SAME, {"session": name, "ids": part}).mappings().all()


def _ids_with_insight(c: Connection, name: str, ids: list[str]) -> set[str]:
    found: set[str] = set()
    for part in in_parts(ids):
        found |= set(c.execute(_WITH_INSIGHT, {"session": name, "ids": part}).scalars())
    return found


def _set_owner(c: Connection, session: _ReadSession) -> None:
    """Set agent and task of a session that has none. Raises RecordError if another agent owns it."""
    name, header = {"session": session.session_id}, session.header
    task, agent = c.execute(_OWNER, name).one()
    if agent is not None and header.agent_id is not None and agent != header.agent_id:
        raise RecordError("the session belongs to another agent in this bank: import it into another bank")
    new = {}
    if agent is None and header.agent_id is not None:
        new["agent_id"] = header.agent_id
    if not task and header.task:
        new["task"] = header.task
    if new:
        c.execute(sa.update(sessions).where(_this_session).values(new), name)


def _embeddings(
    header: _Header, new: list[_ReadInsight], model: Embedder | None
) -> tuple[tuple[str, int] | None, list[bytes]]:
    """The embedder of the insights and their embeddings; computed again if the model is another one."""
    if not new or model is None or header.embedder is None or embedder_name(model) == header.embedder[0]:
        return header.embedder, [i.embedding for i in new]
    vectors: list[bytes] = []
    for start in range(0, len(new), _BATCH):
        encoded = encode_documents(model, [i.insight.summary for i in new[start : start + _BATCH]])
        vectors += [v.astype("<f4").tobytes() for v in encoded]
    return (embedder_name(model), len(vectors[0]) // 4), vectors


def _bind(c: Connection, database: Database, embedder: tuple[str, int], session_id: str) -> None:
    try:
        bind(c, database, *embedder)
    except EmbedderMismatchError:
        known = bank_embedder(database)
        ours = f"{known[0]} ({known[1]} dimensions)" if known else "another one"
        raise EmbedderMismatchError(
            f"{database.name} was built with {ours}, the embeddings of session {session_id!r} are of "
            f"{embedder[0]} ({embedder[1]} dimensions): give --embedding-model "
            f"{known[0] if known else 'NAME'} to embed its summaries again."
        ) from None
