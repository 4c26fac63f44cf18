"""Sessions taken in as ``transfer`` writes them: each as a whole or not at all, and never twice."""

from __future__ import annotations

import base64
import json
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from memory_bank.bank.catalog import bank_embedder
from memory_bank.bank.database import Database
from memory_bank.bank.embedder import bind
from memory_bank.bank.payload import Row, check_same, is_session_id, latest_insights, to_row
from memory_bank.bank.schema import insights, jobs, records, sessions, spending
from memory_bank.bank.transfer import EXACT, FORMAT, JOB, SPENT, decode_text
from memory_bank.errors import EmbedderMismatchError, RecordError
from memory_bank.faults import fault_point
from memory_bank.ports import Embedder
from memory_bank.records import Insight, InteractionRecord
from memory_bank.vectors import embedder_name, encode_documents

_AT_ONCE = 256
_mine = records.c.session_id == sa.bindparam("session")
_ids: Any = sa.bindparam("ids", expanding=True)
_SAME = sa.select(*records.c).where(_mine, records.c.trace_id.in_(_ids))
_MADE = sa.select(insights.c.trace_id).where(
    insights.c.session_id == sa.bindparam("session"), insights.c.trace_id.in_(_ids)
)
_SESSION = sessions.c.session_id == sa.bindparam("session")


@dataclass(frozen=True, slots=True)
class Imported:
    """A session that is in the bank now: what was new in it, and how many records were there already."""

    session_id: str
    records: int
    known: int
    insights: int
    jobs: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A session of which nothing was taken in, and why; None where the line does not say whose it is."""

    session_id: str | None
    line: int
    reason: str


class _BrokenLine(ValueError):
    """What is wrong with a line, in words."""


@dataclass
class _Bundle:
    """One session as its lines tell it."""

    session_id: str
    line: int
    head: dict[str, Any]
    rows: dict[str, Row] = field(default_factory=dict)
    insights: list[tuple[int, Insight, bytes]] = field(default_factory=list)
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def dimension(self) -> int | None:
        embedder = self.head["embedder"]
        return embedder["dimension"] if embedder else None

    def missing(self) -> str:
        """What the file should have held of it, or ""."""
        for name, have in (("records", len(self.rows)), ("insights", len(self.insights))):
            if have != self.head[name]:
                return f"it has {have:,} of {self.head[name]:,} {name}: the file is cut or was changed"
        return ""


def import_lines(
    database: Database, lines: Iterable[tuple[int, str | None]], model: Embedder | None = None
) -> Iterator[Imported | Refused]:
    """Take in sessions from numbered lines (None: a line that cannot be read), each in one transaction.

    What is there already stays as it is; a record that differs under its trace_id refuses its session. With a
    ``model``, summaries that another one embedded are embedded anew. Raises EmbedderMismatchError where the
    bank was built with another embedder, EmbeddingError, StorageError; sessions told by then are in.
    """
    bundle: _Bundle | None = None
    refused: set[str | None] = set()
    for number, text in lines:
        if text is not None and not text.strip():
            continue
        name: str | None = None
        try:
            value = _object(text)
            name = _name(value)
            if bundle is not None and ("session" in value or name != bundle.session_id):
                ended, bundle = bundle, None
                yield _finish(database, ended, model)
            if "session" in value:
                bundle = _Bundle(name, number, _head(value["session"]))
                refused.discard(name)
            if bundle is None:
                if name in refused:
                    continue
                raise _BrokenLine(f"the beginning of session {name!r} is missing before it")
            _take(bundle, value)
        except (_BrokenLine, RecordError) as e:
            if bundle is not None and name is None:
                if bundle.missing():
                    name = bundle.session_id
                else:  # it is complete: what is broken belongs to nobody
                    yield _finish(database, bundle, model)
            if name is not None or None not in refused:
                yield Refused(name, number, str(e).rstrip("."))
            refused.add(name)
            bundle = None
    if bundle is not None:
        yield _finish(database, bundle, model)


def _object(text: str | None) -> dict[str, Any]:
    if text is None:
        raise _BrokenLine("the file cannot be read beyond it")
    try:
        value = json.loads(text)
    except RecursionError:
        raise _BrokenLine("it is nested too deeply") from None
    except ValueError:
        raise _BrokenLine("it is no JSON") from None
    if not isinstance(value, dict):
        raise _BrokenLine("it is no JSON object: use `memory-bank export` without --json")
    return value


def _name(value: dict[str, Any]) -> str:
    name = value.get("session_id")
    if not is_session_id(name):
        raise _BrokenLine("it has no session_id")
    return str(name)


def _head(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not _is_count(value.get("format")):
        raise _BrokenLine("it has no format")
    if value["format"] > FORMAT:
        raise _BrokenLine(f"it was written by a newer memory_bank (format {value['format']}): upgrade")
    embedder = value.get("embedder")
    created = value.get("created")
    if embedder is not None and not (
        isinstance(embedder, dict)
        and isinstance(embedder.get("name"), str)
        and _is_count(embedder.get("dimension"))
    ):
        raise _BrokenLine("its embedder is none")
    if not (_is_count(value.get("records")) and _is_count(value.get("insights"))):
        raise _BrokenLine("it does not say how many records follow")
    if not (created is None or _is_number(created)):
        raise _BrokenLine("its time is no number")
    agent = value.get("agent_id")
    if not (agent is None or is_session_id(agent)):
        raise _BrokenLine("its agent_id is none")
    spent = value.get("spending") or []
    if not isinstance(spent, list) or not all(map(_is_spent, spent)):
        raise _BrokenLine("its spending is none")
    return {**value, "embedder": embedder, "spending": spent, "task": _text(value, "task")}


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_spent(value: Any) -> bool:
    if not isinstance(value, list) or len(value) != len(SPENT):
        return False
    day, model, *counts, cost = value
    return (
        isinstance(day, str) and len(day) == 10 and is_session_id(day) and is_session_id(model)
        and all(_is_count(n) for n in counts) and _is_number(cost)
    )  # fmt: skip


def _text(value: dict[str, Any], key: str) -> str | None:
    try:
        text = decode_text(value.get(key))
    except ValueError:
        raise _BrokenLine(f"its {key} is no {EXACT}") from None
    if text is not None and not isinstance(text, str):
        raise _BrokenLine(f"its {key} is no text")
    return text


def _take(bundle: _Bundle, value: dict[str, Any]) -> None:
    """A line's record, insight and job. Raises _BrokenLine, RecordError."""
    trace_id = value.get("trace_id")
    if "trace_id" not in value and "session" in value:
        return  # a session without records
    if "step_id" in value:
        row = _row(bundle.session_id, value)
        if trace_id in bundle.rows:
            raise _BrokenLine(f"the record {trace_id} was there before")
        bundle.rows[row["trace_id"]] = row
        if value.get("job") is not None:
            bundle.jobs[row["trace_id"]] = _job(value["job"])
    summary = _text(value, "summary")
    if summary is None:
        return
    insight = Insight(trace_id, summary, value.get("summary_source"), _text(value, "redo"))  # type: ignore[arg-type]
    latest_insights([insight])
    place = value.get("insight_order")
    if not _is_count(place):
        raise _BrokenLine("its insight has no order")
    assert isinstance(place, int)
    bundle.insights.append((place, insight, _vector(value.get("embedding"), bundle.dimension)))


def _row(session_id: str, value: dict[str, Any]) -> Row:
    told: Any = {name: _text(value, name) for name in ("tool_name", "call_id", "input_text", "output_text")}
    told |= {
        name: value.get(name) for name in ("trace_id", "step_id", "raw_input", "raw_output", "timestamp")
    }
    record = InteractionRecord(**told)  # to_row looks at each
    row = to_row(record, session_id)
    for side in ("input", "output"):
        text = _text(value, f"{side}_json")
        if text is not None and not row[f"{side}_verbatim"]:
            row[side] = text
    return row


def _job(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not (
        _is_number(value.get("created")) and _is_number(value.get("due")) and _is_count(value.get("attempts"))
    ):
        raise _BrokenLine("its job is none")
    return {**{name: value.get(name) for name in JOB}, "error": _text(value, "error")}


def _vector(value: Any, dimension: int | None) -> bytes:
    try:
        data = base64.b64decode(value, validate=True)
    except (ValueError, TypeError):
        raise _BrokenLine("its embedding is no base64") from None
    if dimension is None or len(data) != 4 * dimension or not np.isfinite(np.frombuffer(data, "<f4")).all():
        raise _BrokenLine("its embedding is not of its embedder's dimension")
    return data


# ----------------------------------------------------------------------


def _finish(database: Database, bundle: _Bundle, model: Embedder | None) -> Imported | Refused:
    missing = bundle.missing()
    if missing:
        return Refused(bundle.session_id, bundle.line, missing)
    try:
        return _store(database, bundle, model)
    except RecordError as e:
        return Refused(bundle.session_id, bundle.line, str(e).rstrip("."))


def _store(database: Database, bundle: _Bundle, model: Embedder | None) -> Imported:
    name = bundle.session_id
    with database.read() as c:
        known = _known(c, _MADE, name, [i.trace_id for _, i, _ in bundle.insights])
    fresh = [entry for entry in sorted(bundle.insights, key=lambda e: e[0]) if entry[1].trace_id not in known]
    embedder, vectors = _vectors(bundle, fresh, model)
    made = [
        {
            "session_id": name, "trace_id": i.trace_id, "summary": i.summary, "embedding": vector,
            "source": i.source, "redo": i.redo,
        }
        for (_, i, _), vector in zip(fresh, vectors, strict=True)
    ]  # fmt: skip
    with database.write() as c:
        if made:
            _bind(c, database, embedder, name)
        new_session = _open(c, database, bundle)
        database.lock_session(c, name)
        _check_owner(c, bundle)
        there = {row["trace_id"]: row for row in _rows(c, name, list(bundle.rows))}
        for trace_id, row in there.items():
            check_same(bundle.rows[trace_id], row)
        rows = [row for trace_id, row in bundle.rows.items() if trace_id not in there]
        known = _known(c, _MADE, name, [str(row["trace_id"]) for row in made])
        made = [row for row in made if row["trace_id"] not in known]
        waiting = [(t, job) for t, job in bundle.jobs.items() if t not in there]
        waiting.sort(key=lambda entry: entry[1]["created"])
        _insert(c, records, rows)
        _insert(c, insights, made)
        _insert(c, jobs, [{"session_id": name, "trace_id": t, **job} for t, job in waiting])
        for spent in bundle.head["spending"]:
            row = {"session_id": name, **dict(zip(SPENT, spent, strict=True))}
            c.execute(database.insert_or_ignore(spending), row)
        if not new_session and (rows or made):
            c.execute(
                sa.update(sessions).where(_SESSION).values(generation=sessions.c.generation + 1),
                {"session": name},
            )
        fault_point("import.executed")
    return Imported(name, len(rows), len(there), len(made), len(waiting))


def _insert(c: Connection, table: sa.Table, rows: list[dict[str, Any]]) -> None:
    for start in range(0, len(rows), _AT_ONCE):
        c.execute(sa.insert(table), rows[start : start + _AT_ONCE])


def _rows(c: Connection, name: str, ids: list[str]) -> Iterator[Any]:
    for start in range(0, len(ids), _AT_ONCE):
        part = ids[start : start + _AT_ONCE]
        yield from c.execute(_SAME, {"session": name, "ids": part}).mappings().all()


def _known(c: Connection, query: sa.Select[Any], name: str, ids: list[str]) -> set[str]:
    found: set[str] = set()
    for start in range(0, len(ids), _AT_ONCE):
        found |= set(c.execute(query, {"session": name, "ids": ids[start : start + _AT_ONCE]}).scalars())
    return found


def _open(c: Connection, database: Database, bundle: _Bundle) -> bool:
    """Make the session where it is not there; whether it was made."""
    head = bundle.head
    created = time.time() if head.get("created") is None else float(head["created"])
    row = {"session_id": bundle.session_id, "created": created, "generation": 0}
    row |= {"task": head["task"], "agent_id": head.get("agent_id")}
    return c.execute(database.insert_or_ignore(sessions), [row]).rowcount == 1


def _check_owner(c: Connection, bundle: _Bundle) -> None:
    """Give a session its agent and task where it has none. Raises RecordError where it is another agent's."""
    asked = {"session": bundle.session_id}
    task, agent = c.execute(sa.select(sessions.c.task, sessions.c.agent_id).where(_SESSION), asked).one()
    ours = bundle.head.get("agent_id")
    if agent is not None and ours is not None and agent != ours:
        raise RecordError("the session belongs to another agent in this bank: import it into another bank")
    new = {}
    if agent is None and ours is not None:
        new["agent_id"] = ours
    if not task and bundle.head["task"]:
        new["task"] = bundle.head["task"]
    if new:
        c.execute(sa.update(sessions).where(_SESSION).values(new), asked)


def _vectors(
    bundle: _Bundle, fresh: list[tuple[int, Insight, bytes]], model: Embedder | None
) -> tuple[tuple[str, int], list[bytes]]:
    """The embeddings of the insights and whose they are; made anew where another model was named."""
    if not fresh:
        return ("", 0), []
    of_file = bundle.head["embedder"]
    if model is None or embedder_name(model) == of_file["name"]:
        return (of_file["name"], of_file["dimension"]), [vector for _, _, vector in fresh]
    vectors: list[bytes] = []
    for start in range(0, len(fresh), _AT_ONCE):
        made = encode_documents(model, [i.summary for _, i, _ in fresh[start : start + _AT_ONCE]])
        vectors += [v.astype("<f4").tobytes() for v in made]
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
            f"{known[0] if known else 'NAME'} to embed its summaries anew."
        ) from None
