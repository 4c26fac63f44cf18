"""Export and import of sessions and files as JSON lines, one value a stored row, without loss.

A line is ``{"session_id": NAME, KIND: {column: value}}``. The first of a session has the kind ``session``: what
belongs to it as a whole, and how many rows of each other kind follow. Files have lines ``{"file": {column: value}}``.
An import is idempotent: each session and file is imported in one transaction or refused, and rows that the bank has
stay as they are.
"""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from memory_bank.bank.database import Database
from memory_bank.bank.embedder import bank_embedder, bind, embed_all, embedder_of
from memory_bank.bank.files import ROOT, MemoryFiles, place_of
from memory_bank.bank.rows import (
    FORGOTTEN,
    Row,
    check_same,
    checks_of,
    from_row,
    is_name,
    is_session_id,
    is_trace_id,
    read_row,
)
from memory_bank.bank.schema import (
    HEAD_BYTES,
    IDS,
    NEXT_GENERATION,
    SET_SESSION,
    Embedding,
    ExactText,
    count_of,
    files,
    in_parts,
    insights,
    of_session,
    records,
    rows_by_id,
    sessions,
)
from memory_bank.bank.terms import terms_of
from memory_bank.bank.words import add_insights, move
from memory_bank.errors import ConfigError, EmbedderMismatchError, FileError, RecordError
from memory_bank.faults import fault_point
from memory_bank.models.lexical import LexicalEmbedder
from memory_bank.ports import Embedder
from memory_bank.records import NAMESPACE_END
from memory_bank.vectors import embedder_name

FORMAT = 2
"""The version of the lines; a file with a higher one was written by a newer memory_bank."""
EXACT = "$utf8"
_BATCH = 256
_TWO_HALVES = re.compile("[\ud800-\udbff][\udc00-\udfff]")  # a JSON parser would join them
_TABLES = {"record": records, "insight": insights}
_OF_SESSION = [
    sessions.c[name] for name in ("created", "title", "task", "note", "requests", "project", "namespace")
]
_LEFT_OUT = ("seq", "session_id", "terms")
_OLDER = ("job", "spending")
"""Kinds of lines in exports of older banks: an insight with a job waits, what calls cost is left out."""
_COLUMNS = {kind: [c for c in table.c if c.name not in _LEFT_OUT] for kind, table in _TABLES.items()}
_CHECKS = {kind: checks_of(columns) for kind, columns in _COLUMNS.items()}

Line = dict[str, Any]
"""One JSON object of an export."""


def export_lines(database: Database, session_id: str | None = None) -> Iterator[Line]:
    """A session, or all sessions and files, as JSON values from one snapshot; embeddings are base64."""
    with database.snapshot() as c:
        names = [session_id]
        if session_id is None:
            tables = (sessions, *_TABLES.values())
            names = sorted(set(c.execute(sa.union(*(sa.select(t.c.session_id) for t in tables))).scalars()))
        for name in names:
            session = {"session": name}
            yield {"session_id": name, "session": _header(c, session)}
            for kind, table in _TABLES.items():
                rows = sa.select(*_COLUMNS[kind]).where(of_session(table)).order_by(table.c.seq)
                for row in c.execute(rows, session, execution_options={"yield_per": _BATCH}):
                    yield {"session_id": name, kind: _written(_COLUMNS[kind], row)}
        every = sa.select(files).order_by(*files.primary_key)
        for row in () if session_id else c.execute(every, execution_options={"yield_per": _BATCH}):
            yield {"file": _written(files.c, row)}


def _header(c: Connection, session: dict[str, Any]) -> Line:
    row = c.execute(sa.select(*_OF_SESSION).where(of_session(sessions)), session).first()
    values = _written(_OF_SESSION, row or [None] * len(_OF_SESSION))
    counts = {k: c.execute(count_of(t).where(of_session(t)), session).scalar() for k, t in _TABLES.items()}
    embedder = embedder_of(c) if counts["insight"] else None
    named = dict(zip(("name", "dimension"), embedder, strict=True)) if embedder else None
    return {"format": FORMAT, **values, "embedder": named, "rows": counts}


def _written(columns: Iterable[sa.Column[Any]], row: Iterable[Any]) -> Line:
    written: dict[type, Callable[[Any], Any]] = {
        ExactText: encode_text, Embedding: lambda vector: base64.b64encode(vector).decode()
    }  # fmt: skip
    pairs = zip(columns, row, strict=True)
    return {c.name: written.get(type(c.type), lambda value: value)(v) for c, v in pairs}


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


@dataclass(frozen=True, slots=True)
class ImportedSession:
    """How many rows of a session were inserted; ``known`` counts the records that the bank had already."""

    session_id: str
    records: int
    known: int
    insights: int


@dataclass(frozen=True, slots=True)
class RefusedSession:
    """A session or file that was not imported, and why; ``session_id`` is None if the line does not contain it."""

    session_id: str | None
    line: int
    reason: str


@dataclass(slots=True)
class _ReadSession:
    session_id: str
    line: int
    header: Line  # the columns of its row
    counts: Mapping[str, int]  # of its lines, by kind
    embedder: tuple[str, int] | None
    rows: dict[str, dict[str, Line]] = field(default_factory=lambda: {kind: {} for kind in _TABLES})
    waiting: set[object] = field(default_factory=set)  # trace_ids with a job

    @classmethod
    def begin(cls, name: str, number: int, value: Any) -> _ReadSession:
        header = {
            "created": time.time(),
            **{k: v for k, v in _object(value, "beginning").items() if v is not None},
        }
        if owner := header.pop("agent_id", None):  # of exports before schema 10
            header["project"] = str(owner).rpartition(NAMESPACE_END)[2]
        format_: Any = header.get("format")
        counts = _object(header.get("rows"), "rows")
        named = _object(header.get("embedder", {}), "embedder")
        embedder: Any = (named.get("name"), named.get("dimension")) if named else None
        for member, figures in (("format", [format_]), ("rows", counts.values())):
            if any(type(n) is not int for n in figures):
                raise RecordError(f"its {member} is not valid")
        if embedder and (not is_name(embedder[0], 255) or type(embedder[1]) is not int):
            raise RecordError("its embedder is not valid")
        if format_ > FORMAT:
            raise RecordError(f"it was written by a newer memory_bank (format {format_}): upgrade")
        return cls(name, number, read_row(checks_of(_OF_SESSION), header, _decoded), counts, embedder)

    def missing(self) -> str:
        for kind, rows in self.rows.items():
            if len(rows) != (announced := self.counts.get(kind, 0)):
                return f"it has {len(rows):,} of {announced:,} {kind}s: the file is incomplete or was changed"
        return ""

    def add(self, line: Line) -> None:
        kind = next((k for k in (*_TABLES, *_OLDER) if k in line), None)
        if kind is None or not isinstance(line[kind], dict):
            raise RecordError("it is not a row of a session")
        if kind in _OLDER:
            if is_trace_id(line[kind].get("trace_id")):
                self.waiting.add(line[kind]["trace_id"])
            return
        row = read_row(_CHECKS[kind], line[kind], _decoded)
        vector = row.get("embedding") or b""
        usable = self.embedder is not None and len(vector) == 4 * self.embedder[1]
        if kind == "insight" and self.embedder is not None and self.embedder[0] == LexicalEmbedder.name:
            usable, vector = usable or not vector, b""  # exports of format 1 have one
            row["embedding"] = vector
        if kind == "insight" and not (usable and np.isfinite(np.frombuffer(vector, "<f4")).all()):
            raise RecordError("its embedding does not have the dimension of its embedder")
        if row.get("mark") in ("pinned", "excluded"):  # of an export before schema 8
            row["mark"] = None
        if row.get("mark") not in (None, FORGOTTEN):
            raise RecordError("its mark is not known")
        if row["trace_id"] in self.rows[kind]:
            raise RecordError(f"the {kind} {row['trace_id']} occurs twice")
        self.rows[kind][row["trace_id"]] = {"session_id": self.session_id, **row}


def _object(value: object, name: str) -> Line:
    if not isinstance(value, dict):
        raise RecordError(f"its {name} is not valid")
    return value


def _decoded(kind: Any, value: Any) -> Any:
    if isinstance(kind, ExactText):
        return decode_text(value)
    return base64.b64decode(str(value), validate=True) if isinstance(kind, Embedding) else value


def _write_file(database: Database, value: Any, number: int) -> bool | RefusedSession:
    try:
        row = read_row(checks_of(files.c), _object(value, "value"), _decoded)
        if not row["path"].startswith(f"{ROOT}/") or place_of(row["path"]) != row["path"]:
            raise RecordError("its path is not valid")
        project = MemoryFiles(database, row["project"], namespace=row["namespace"])
        return project.restore(row["path"], row["content"], row["changed"])
    except (RecordError, ConfigError, FileError) as e:
        return RefusedSession(None, number, str(e).rstrip("."))


def import_lines(
    database: Database, lines: Iterable[tuple[int, str | None]], model: Embedder | None = None
) -> Iterator[ImportedSession | bool | RefusedSession]:
    """Import sessions and files from numbered lines (None: one that cannot be read), each in one transaction.

    Of a file it yields whether it was new. Rows that the bank has are not changed; a record that differs under
    its trace_id refuses its session. With a ``model``, summaries that another model embedded are embedded again.
    Raises EmbedderMismatchError if the bank was built with another embedder, EmbeddingError, StorageError; what was
    yielded before is imported.
    """
    session: _ReadSession | None = None
    refused: set[str | None] = set()

    def ended(session: _ReadSession) -> ImportedSession | RefusedSession:
        try:
            if missing := session.missing():
                raise RecordError(missing)
            return _write_session(database, session, model)
        except RecordError as e:
            return RefusedSession(session.session_id, session.line, str(e).rstrip("."))

    for number, text in lines:
        if text is not None and not text.strip():
            continue
        name: str | None = None
        try:
            line = _parse_line(text)
            if "file" in line:
                yield _write_file(database, line["file"], number)
                continue
            if not is_session_id(line.get("session_id")):
                raise RecordError("it has no session_id")
            name = str(line["session_id"])
            if session is not None and ("session" in line or name != session.session_id):
                before, session = session, None
                yield ended(before)
            if "session" in line:
                session = _ReadSession.begin(name, number, line["session"])
                refused.discard(name)
            elif session is not None:
                session.add(line)
            elif name not in refused:
                raise RecordError(f"the beginning of session {name!r} is missing before it")
        except RecordError as e:
            if session is not None and name is None:
                if session.missing():
                    name = session.session_id
                else:  # the session is complete: the broken line belongs to none
                    yield ended(session)
            if name is not None or None not in refused:
                yield RefusedSession(name, number, str(e))
            refused.add(name)
            session = None
    if session is not None:
        yield ended(session)


def _parse_line(text: str | None) -> Line:
    if text is None:
        raise RecordError("the file cannot be read after it")
    try:
        value = json.loads(text)
    except RecursionError:
        raise RecordError("it is nested too deeply") from None
    except ValueError:
        raise RecordError("it is not JSON") from None
    if not isinstance(value, dict):
        raise RecordError("it is not a JSON object: use `memory-bank bank export` without --json")
    return value


def _write_session(database: Database, session: _ReadSession, model: Embedder | None) -> ImportedSession:
    name, header = session.session_id, session.header
    rows = {kind: list(by_id.values()) for kind, by_id in session.rows.items()}
    mine = {"session": name}

    def known(c: Connection, table: sa.Table, new: Sequence[Line]) -> dict[str, RowMapping]:
        query = sa.select(table).where(of_session(table), table.c.trace_id.in_(IDS))
        return rows_by_id(c, query, name, [row["trace_id"] for row in new])

    with database.read() as c:
        there = known(c, insights, rows["insight"])
    summaries = [row for row in rows["insight"] if row["trace_id"] not in there]
    embedder = session.embedder
    if summaries and model is not None and embedder and embedder_name(model) != embedder[0]:
        vectors, dimension = embed_all(model, [row["summary"] for row in summaries])
        for row, vector in zip(summaries, vectors, strict=True):
            row["embedding"] = vector
        embedder = embedder_name(model), dimension
    with database.write() as c:
        if summaries and embedder:
            _bind(c, database, embedder, name)
        is_new = database.insert_new(c, sessions, [{**header, "session_id": name, "generation": 0}]) == 1
        database.lock_session(c, name)
        before = c.execute(sa.select(sessions).where(of_session(sessions)), mine).mappings().one()
        for key in ("project", "namespace"):
            if None not in (before[key], header[key]) and before[key] != header[key]:
                raise RecordError(
                    f"the session belongs to another {key} in this bank: import it into another bank"
                )
        values = {key: before[key] or header[key] for key in ("task", "title", "project", "namespace")}
        if before["namespace"] != values["namespace"]:
            move(c, name, values["namespace"])
        c.execute(SET_SESSION.values(values), mine)
        stored, there = known(c, records, rows["record"]), known(c, insights, summaries)
        contents: dict[str, Row] = {**known(c, records, summaries)}
        contents |= {row["trace_id"]: row for row in rows["record"]}
        for row in summaries:
            content = contents.get(row["trace_id"])
            row["due"] = 0.0 if row["trace_id"] in session.waiting else row["due"]
            row["terms"] = terms_of(row["summary"], None if content is None else from_row(content))
        for row in rows["record"]:
            old = stored.get(row["trace_id"])
            if old is not None and old["mark"] != FORGOTTEN:
                check_same(row, old)
        inserted = []
        for table, rows_of, old_rows in ((records, rows["record"], stored), (insights, summaries, there)):
            fresh = [row for row in rows_of if row["trace_id"] not in old_rows]
            inserted.append(len(fresh))
            for part in in_parts(fresh, _BATCH):
                if table is insights:
                    c.execute(sa.insert(table), [{**row, "terms": row["terms"][:HEAD_BYTES]} for row in part])
                    add_insights(database, c, part)
                else:
                    database.insert_new(c, table, part)
        if not is_new and (any(inserted) or any(before[k] != v for k, v in values.items())):
            c.execute(NEXT_GENERATION, mine)
        fault_point("import.executed")
    facts, added = inserted
    return ImportedSession(name, facts, len(stored), added)


def _bind(c: Connection, database: Database, embedder: tuple[str, int], session_id: str) -> None:
    try:
        bind(c, database, *embedder)
    except EmbedderMismatchError:
        current = bank_embedder(database)
        ours = f"{current[0]} ({current[1]} dimensions)" if current else "another one"
        raise EmbedderMismatchError(
            f"{database.name} was built with {ours}, the embeddings of session {session_id!r} are of "
            f"{embedder[0]} ({embedder[1]} dimensions): give --embedding-model "
            f"{current[0] if current else 'NAME'} to embed its summaries again."
        ) from None
