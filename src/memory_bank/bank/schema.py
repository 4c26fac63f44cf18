"""The tables of a bank, and the parts of SQL statements that several modules share.

A change to a table needs a new VERSION, and an entry at the end of MIGRATIONS. New columns may be NULL.
"""

from __future__ import annotations

import logging
import struct
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Dialect, RowMapping
from sqlalchemy.types import LargeBinary, TypeDecorator, TypeEngine, UserDefinedType

from memory_bank.records import NAMESPACE_END

log = logging.getLogger("memory_bank.Database")
T = TypeVar("T")
VERSION = "11"
WITHOUT = ("failed", "refused")
"""The statuses of steps that went without memory: it failed, its context broke a rule of the gate, or it is paused
because upstream refused an earlier context."""
_TELL_EACH = 5.0  # seconds, how far a long migration is
HEAD_BYTES = 20
"""Bytes of the header of a row in ``words.terms``; the layout is ``terms.HEAD``."""


class ExactText(TypeDecorator[str]):
    """Text stored as UTF-8 bytes, so that lone surrogates and NUL, which SQL text refuses, are kept."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> bytes | None:  # noqa: ARG002  the signature of the base class
        return None if value is None else value.encode("utf-8", "surrogatepass")

    def process_result_value(self, value: bytes | None, dialect: Dialect | None) -> str | None:  # noqa: ARG002
        if value is None:
            return None
        data = bytes(value)
        if data[:1] == _PACKED:
            try:
                data = zlib.decompress(data[1:])
            except zlib.error as e:
                raise ValueError(f"a packed text is damaged: {e}") from None
        return data.decode("utf-8", "surrogatepass")


_PACKED = b"\xff"  # begins a text that is compressed; no UTF-8 has this byte


class PackedText(ExactText):
    """As ExactText, compressed where that is shorter; for texts of which no part is read alone."""

    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> bytes | None:
        data = super().process_bind_param(value, dialect)
        return None if data is None else packed(data)


def packed(data: bytes) -> bytes:
    """The bytes of a text as PackedText stores them."""
    return min(_PACKED + zlib.compress(data), data, key=len)


class Vector(UserDefinedType[str]):
    """The type of pgvector, of any dimension, in its text form ``[1,0.5]``."""

    cache_ok = True

    def get_col_spec(self, **_: object) -> str:
        return "vector"


class Embedding(TypeDecorator[bytes]):
    """float32, little-endian: bytes in SQLite, a ``vector`` in PostgreSQL. Lossless; no bytes: there is none."""

    impl = LargeBinary
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(Vector() if dialect.name == "postgresql" else LargeBinary())

    def process_bind_param(self, value: bytes | None, dialect: Dialect) -> bytes | str | None:
        if value is None or dialect.name != "postgresql":
            return value
        return None if not value else f"[{','.join(map(repr, struct.unpack(f'<{len(value) // 4}f', value)))}]"

    def process_result_value(self, value: bytes | str | None, dialect: Dialect) -> bytes | None:  # noqa: ARG002
        if value is None or not isinstance(value, str):
            return bytes(value or b"")
        numbers = [*map(float, value[1:-1].split(","))]
        return struct.pack(f"<{len(numbers)}f", *numbers)


metadata = sa.MetaData()


_serial = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def _of_records(name: str, *columns: sa.Column[Any] | sa.Index) -> sa.Table:
    """A table with at most one row for each record of a session; AUTOINCREMENT never reuses a number."""
    return sa.Table(
        name,
        metadata,
        sa.Column("seq", _serial, primary_key=True, autoincrement=True),
        sa.Column("session_id", sa.String(255), nullable=False),
        sa.Column("trace_id", sa.String(64), nullable=False),
        *columns,
        sa.UniqueConstraint("trace_id", "session_id"),
        sa.Index(f"ix_{name}_session_id_seq", "session_id", "seq"),
        sqlite_autoincrement=True,
    )


schema_version = sa.Table("schema_version", metadata, sa.Column("version_num", sa.String(32), nullable=False))

bank = sa.Table(  # key-value pairs of the bank as a whole: its embedder, its counters
    "bank",
    metadata,
    sa.Column("key", sa.String(64), primary_key=True),
    sa.Column("value", ExactText, nullable=False),
)

sessions = sa.Table(
    "sessions",
    metadata,
    sa.Column("session_id", sa.String(255), primary_key=True),
    sa.Column("created", sa.Float, nullable=False),
    sa.Column("generation", sa.Integer, nullable=False),  # incremented when rows are deleted
    sa.Column("title", ExactText),  # the name that a person gave it
    sa.Column("task", ExactText),  # what the user asked for; part of the Observer's prompt
    sa.Column("note", ExactText),  # that a model wrote at the latest fold; deleted with any content
    sa.Column("summaries", ExactText),  # JSON: texts for compactions, by digest; deleted as the note is
    sa.Column(
        "requests", ExactText
    ),  # JSON: what its user said, each with the number of records before it; so, too
    sa.Column("namespace", sa.String(64)),  # a service's tenant; NULL without keys
    sa.Column("head", sa.String(64)),  # digest of its conversation up to the end of the last interaction
    sa.Column("head_calls", ExactText),  # JSON: digests of its newest calls, to recognise an edited one
    sa.Column("forked_from", sa.String(255)),  # the session that it is a fork of
    sa.Column("project", ExactText),  # searches may cross the sessions of one project
    sa.Column("client", ExactText),  # what sent its first request
    sa.Column("control", sa.Boolean),  # whether chance left it without memory; NULL: it was not drawn
    sa.Column("deleted", sa.Float(53)),  # when a service deleted it; a later write sets NULL again
    sa.Column("asked", sa.Float(53)),  # when its latest context was made
    sa.Column("paid", sa.Float(53)),  # for its contexts so far, in input tokens; see ``pricing.Ledger``
    sa.Column("would_pay", sa.Float(53)),  # what the full history would have cost
    sa.Column("sent", sa.LargeBinary),  # digests of the messages of the latest context, DIGEST bytes each
    sa.Column("came", sa.LargeBinary),  # and of those that it was made of; deleted with any content
    sa.Column("in_vain", sa.BigInteger),  # tokens of the older history when a fold would have removed nothing
    sa.Column("cache", sa.String(1024)),  # JSON: what the provider reported of its prefix cache
    sa.Index("ix_sessions_namespace", "namespace", "created"),
)
PROJECT = sa.Index("ix_sessions_project", sessions.c.project)
PRESENT = sa.Index("ix_sessions_present", sessions.c.namespace, sessions.c.deleted, sessions.c.session_id)
"""By which the sessions of a namespace are listed without reading their rows, which are long."""

records = _of_records(
    "records",
    sa.Column("step_id", sa.Integer, nullable=False),
    sa.Column("call_id", ExactText),
    sa.Column("tool_name", ExactText, nullable=False),
    sa.Column("input", ExactText, nullable=False),
    sa.Column("input_verbatim", sa.Boolean, nullable=False),  # the text as received, or a value as JSON
    sa.Column("output", ExactText, nullable=False),
    sa.Column("output_verbatim", sa.Boolean, nullable=False),
    sa.Column("timestamp", sa.Float, nullable=False),
    sa.Column("mark", sa.String(16)),  # "forgotten": a person had its content deleted; else NULL
)

insights = _of_records(
    "insights",
    sa.Column("summary", PackedText, nullable=False),
    sa.Column("embedding", Embedding),  # of unit length; none where words alone are compared
    sa.Column("source", sa.String(255), nullable=False),
    sa.Column("redo", ExactText),  # why the summary has to be made again
    sa.Column("terms", sa.LargeBinary, nullable=False),  # what ``terms.terms_of`` begins with
    sa.Column("due", sa.Float(53)),  # when the Observer's model is to be asked for a better one; NULL: never
    sa.Column("attempts", sa.Integer),  # how often it was asked
)
waits = insights.c.due.is_not(None)
"""The condition that an insight waits for the Observer's model."""
WAITING = sa.Index(
    "ix_insights_due", insights.c.due, sqlite_where=waits
)  # PostgreSQL's condition: postgres.py

words = sa.Table(  # the terms of insights that are in no block yet
    "words",
    metadata,
    sa.Column("seq", _serial, primary_key=True, autoincrement=False),  # of the insight
    sa.Column("namespace", sa.String(64), nullable=False),  # "": that of a service without keys
    sa.Column("session_id", sa.String(255), nullable=False),
    sa.Column("terms", sa.LargeBinary, nullable=False),  # see ``terms.terms_of``
    sa.Index("ix_words_namespace", "namespace", "session_id"),
)

blocks = sa.Table(  # the terms of many insights of a namespace, by term; see ``words.seal``
    "blocks",
    metadata,
    sa.Column("namespace", sa.String(64), primary_key=True),
    sa.Column(
        "bucket", sa.Integer, primary_key=True
    ),  # the first bits of its terms; -1: the rows of the block
    sa.Column("first", sa.BigInteger, primary_key=True),  # `seq` of the block's first insight
    sa.Column("body", sa.LargeBinary, nullable=False),
)

block_sessions = sa.Table(  # which blocks have insights of a session
    "block_sessions",
    metadata,
    sa.Column("session_id", sa.String(255), primary_key=True),
    sa.Column("first", sa.BigInteger, primary_key=True),
    sa.Column("last", sa.BigInteger, nullable=False),
)

calls = sa.Table(  # of the Observer's model, by session and day (UTC)
    "calls",
    metadata,
    sa.Column("session_id", sa.String(255), primary_key=True),
    sa.Column("day", sa.String(10), primary_key=True),
    sa.Column("calls", sa.Integer, nullable=False),
    sa.Index("ix_calls_day", "day"),
)

api_keys = sa.Table(  # keys of a service; the rows of revoked keys stay
    "api_keys",
    metadata,
    sa.Column("key_id", sa.String(32), primary_key=True),
    sa.Column("name", ExactText, nullable=False),
    sa.Column("digest", sa.String(64), nullable=False),  # SHA-256 of the key; the key itself is not stored
    sa.Column("namespace", sa.String(64)),  # NULL: the sessions of a service without keys
    sa.Column("operator", sa.Boolean, nullable=False),  # may read the figures of the whole service
    sa.Column("created", sa.Float(53), nullable=False),
    sa.Column("revoked", sa.Float(53)),
    sa.Column("requests_per_minute", sa.Integer),  # NULL: the limit in the service's settings
    sa.Column("max_body_bytes", sa.BigInteger),
    sa.UniqueConstraint("digest"),
)

lineage = sa.Table(  # digests of conversations and the session each belongs to; the newest are kept
    "lineage",
    metadata,
    sa.Column("digest", sa.String(64), primary_key=True),  # of all messages of a request, or of a call id
    sa.Column("session_id", sa.String(255), primary_key=True),
    sa.Column("number", sa.Integer, nullable=False),  # numbers the rows of a session
    sa.Column("before", sa.BigInteger, nullable=False),  # `seq` of the session's newest record at that time
    sa.Index("ix_lineage_session_id_number", "session_id", "number"),
)

folds = sa.Table(  # what stands in the place of a session's older history; rows are never changed
    "folds",
    metadata,
    sa.Column("session_id", sa.String(255), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),  # the first writer of a number wins
    sa.Column("created", sa.Float(53), nullable=False),
    sa.Column("made_for", sa.String(32), nullable=False),  # digest of the settings and of the counter's name
    sa.Column("past", sa.Integer, nullable=False),  # interactions that it is about
    sa.Column("about", sa.String(32), nullable=False),  # digest of these
    sa.Column("count", sa.Integer, nullable=False),  # of past interactions then, those kept whole included
    sa.Column("growth", sa.BigInteger, nullable=False),  # tokens that may follow before the next fold
    sa.Column("tokens", sa.BigInteger, nullable=False),  # of its memory message
    sa.Column("body", sa.LargeBinary, nullable=False),  # zlib, JSON: what is shown
    sa.Column("why", sa.LargeBinary),  # zlib, JSON: for the page
)

steps = sa.Table(  # cost and composition of a session's contexts; old answers are deleted
    "steps",
    metadata,
    sa.Column("session_id", sa.String(255), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("created", sa.Float(53), nullable=False),
    sa.Column("full_tokens", sa.BigInteger, nullable=False),
    sa.Column("tokens", sa.BigInteger, nullable=False),
    sa.Column("messages", sa.Integer, nullable=False),  # of the full history
    sa.Column("records", sa.Integer, nullable=False),  # stored at that time
    sa.Column("status", sa.String(32), nullable=False),
    sa.Column("strategy", sa.String(255), nullable=False),
    sa.Column("milliseconds", sa.Float(53), nullable=False),
    sa.Column("fold", sa.Integer),  # the number of the fold that its context shows
    sa.Column("fates", ExactText),  # JSON: by fate, numbers of records; the others are as the fold has them
    sa.Column("answer", sa.LargeBinary),  # of the model: zlib, JSON
    sa.Column("seconds", sa.Float(53)),  # until the end of the answer
    sa.Column("http_status", sa.Integer),  # of the answer
    sa.Column("error", ExactText),  # what the provider or the connection to it said
    sa.Column("reason", ExactText),  # why memory failed or was paused
    sa.Column("changed_at", sa.Integer),  # position of the first message that differs from the step before
    sa.Column("changed", sa.String(16)),  # what that message is: "memory", or its role
    sa.Column("model", ExactText),  # that the request names
    sa.Column("input_tokens", sa.BigInteger),  # as the provider counts, all; NULL without its usage
    sa.Column("cached_tokens", sa.BigInteger),
    sa.Column("written_tokens", sa.BigInteger),
    sa.Column("output_tokens", sa.BigInteger),
    sa.Column("full_input_tokens", sa.BigInteger),  # of the full history, as `pricing.full_usage` estimates
    sa.Column("full_cached_tokens", sa.BigInteger),
    sa.Column("full_written_tokens", sa.BigInteger),
    sa.Column("written_hour_tokens", sa.BigInteger),  # of those written, what the cache keeps for an hour
    sa.Column("full_written_hour_tokens", sa.BigInteger),
    sa.Column("billed", sa.Float(53)),  # the cost that the provider named, in dollars
    sa.Column("untold", ExactText),  # why the tokens are not known
)

USED = tuple(
    steps.c[name]
    for name in (
        "input_tokens", "cached_tokens", "written_tokens", "output_tokens",
        "full_input_tokens", "full_cached_tokens", "full_written_tokens",
        "written_hour_tokens", "full_written_hour_tokens",
    )
)  # fmt: skip
"""The usage that the provider reported of a step, and the estimate for the full history."""
_SUMMED = {  # the columns of ``sums``, and what they sum over steps
    "steps": "count(*)", "reported": "count(full_input_tokens)", "errors": "count(error)",
    "without_memory": f"sum(CASE WHEN status IN {WITHOUT} THEN 1 ELSE 0 END)",
    **{name: f"coalesce(sum({name}), 0)" for name in (*(c.name for c in USED), "tokens", "full_tokens", "billed")},
}  # fmt: skip

sums = sa.Table(  # of each session's rows, kept as they are written, so that no total counts them
    "sums",
    metadata,
    sa.Column("session_id", sa.String(255), primary_key=True),
    sa.Column("model", ExactText, primary_key=True),  # of the steps; "": not known, or no steps
    sa.Column("untold", ExactText, primary_key=True),  # why their tokens are not known; "": they are
    sa.Column("is_billed", sa.Boolean, primary_key=True),
    *(
        sa.Column(
            name, sa.Float(53) if name == "billed" else sa.BigInteger, nullable=False, server_default="0"
        )
        for name in ("records", "insights", *_SUMMED)
    ),
    sa.Column("last", sa.Float(53)),  # when the latest of the steps began
    sqlite_with_rowid=False,
)

files = sa.Table(  # what an agent keeps below /memories, by a memory tool
    "files",
    metadata,
    sa.Column("namespace", sa.String(64), primary_key=True),  # "default": that of a service without keys
    sa.Column("project", sa.String(255), primary_key=True),
    sa.Column("path", sa.String(1024), primary_key=True),
    sa.Column("content", ExactText),  # NULL: a folder
    sa.Column("changed", sa.Float(53), nullable=False),
)


def _compact(c: Connection) -> None:
    """Bring insights to schema 9: terms go into a table, summaries are compressed, vectors of words are dropped.

    What is damaged stays so: ``bank verify`` names it.
    """
    from memory_bank.models.lexical import LexicalEmbedder  # what it imports takes time

    if c.dialect.name == "postgresql":
        c.exec_driver_sql("ALTER TABLE insights ALTER COLUMN embedding DROP NOT NULL")
    else:  # what is deleted later is to leave no copy
        c.exec_driver_sql("PRAGMA secure_delete=ON")
    by_words = (
        c.execute(sa.select(bank.c.value).where(bank.c.key == "embedder")).scalar() == LexicalEmbedder.name
    )
    stored = [
        sa.column(col.name, sa.LargeBinary() if isinstance(col.type, ExactText) else col.type)
        for col in insights.c
    ]
    raw, seq = sa.table(insights.name, *stored), insights.c.seq
    owner = sa.func.coalesce(sessions.c.namespace, "").label("namespace")
    query = sa.select(raw, owner).outerjoin(sessions, sessions.c.session_id == raw.c.session_id)
    query = query.where(raw.c.seq > sa.bindparam("after")).order_by(raw.c.seq).limit(1_000)
    last, done, told = -(2**62), 0, time.monotonic()
    total = c.execute(count_of(insights)).scalar_one()
    while rows := [dict(row) for row in c.execute(query, {"after": last}).mappings()]:
        last = rows[-1]["seq"]
        c.execute(sa.delete(insights).where(seq.between(rows[0]["seq"], last)))
        c.execute(sa.insert(words), [{c.name: row[c.name] for c in words.c} for row in rows])
        for row in rows:
            row["terms"], row["summary"] = row["terms"][:HEAD_BYTES], packed(row["summary"])
            row["embedding"] = b"" if by_words else row["embedding"]
            del row["namespace"]
        c.execute(sa.insert(raw), rows)
        done += len(rows)
        if time.monotonic() - told > _TELL_EACH:
            told = time.monotonic()
            log.warning("the bank is brought to schema 9: %s of %s summaries", f"{done:,}", f"{total:,}")


def _agents_are_projects(c: Connection) -> None:
    """Store the agent of each session as its project: searches reached all sessions of an agent, now of a project."""
    agents = sa.table("sessions", sa.column("session_id"), sa.column("agent_id"))
    named = sa.select(*agents.c).where(agents.c.agent_id.is_not(None))
    project = SET_SESSION.values(project=sa.bindparam("owner"))
    for session_id, agent_id in c.execute(named).all():
        c.execute(project, {"session": session_id, "owner": agent_id.rpartition(NAMESPACE_END)[2]})


_KEY = "session_id, model, untold, is_billed"


def _add(dialect: str, table: str, where: str, sign: int = 1, rows: str = "") -> str:
    """The statement that adds rows of a table, or ``rows`` like them, to ``sums``, or with -1 takes them away."""
    none, newer = "''::bytea" if dialect == "postgresql" else "x''", "sums.last > excluded.last"
    key, sums, last = f"session_id, {none}, {none}, false", {table: "count(*)"}, "NULL"
    if table == "steps":
        key = f"session_id, coalesce(model, {none}), coalesce(untold, {none}), billed IS NOT NULL"
        sums, last = _SUMMED, "max(created)"
    values = ", ".join(f"{sign} * {value}" for value in sums.values())
    added = ", ".join(f"{name} = sums.{name} + excluded.{name}" for name in sums)
    return (
        f"INSERT INTO sums ({_KEY}, {', '.join(sums)}, last) SELECT {key}, {values}, {last} FROM {rows or table}"
        f" WHERE {where} GROUP BY 1, 2, 3, 4 ON CONFLICT ({_KEY}) DO UPDATE SET {added},"
        f" last = CASE WHEN {newer} OR excluded.last IS NULL THEN sums.last ELSE excluded.last END"
    )


def triggers(dialect: str) -> Iterator[str]:
    """The statements that create the triggers by which ``sums`` follow the rows, whichever process writes them.

    PostgreSQL's are one for each statement: it reads every version of a row that a transaction has changed so often.
    ``restore`` knows SQLite's by their text: if that changes, it must know this one, too.
    """
    counted = {*_SUMMED, "model", "untold", "status", "error"}
    update = f"UPDATE OF {', '.join(c.name for c in steps.c if c.name in counted)}"
    changes = [("BEFORE", "DELETE", "OLD", -1), ("AFTER", "INSERT", "NEW", 1)]
    of_steps = [*changes, ("BEFORE", update, "OLD", -1), ("AFTER", update, "NEW", 1)]
    for table in ("records", "insights", "steps"):
        key, events = ("number", of_steps) if table == "steps" else ("seq", changes)
        for moment, event, row, sign in events:
            name = f"sums_{table}_{moment}_{event.split()[0]}".lower()
            if dialect == "postgresql":
                add = _add(dialect, table, "true", sign, "changed")
                create = (
                    f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT"
                )
                yield f"{create} AS $$BEGIN {add}; RETURN NULL; END$$"
                yield (
                    f"CREATE TRIGGER {name} AFTER {event.split()[0]} ON {table} REFERENCING {row} TABLE AS changed"
                    f" FOR EACH STATEMENT EXECUTE FUNCTION {name}()"
                )
            else:
                add = _add(dialect, table, f"session_id = {row}.session_id AND {key} = {row}.{key}", sign)
                yield f"CREATE TRIGGER {name} {moment} {event} ON {table} BEGIN {add}; END"


def keep_sums(c: Connection) -> None:
    """Within a write that creates tables, let the database keep ``sums``."""
    for statement in triggers(c.dialect.name):
        c.exec_driver_sql(statement)


def recount(c: Connection, session_id: str | None = None) -> None:
    """Within a write, make the sums of a session, or of all, anew from its rows."""
    every = sa.delete(sums)
    c.execute(every if session_id is None else every.where(sums.c.session_id == session_id))
    mine = {} if session_id is None else {"session": session_id}
    for table in ("records", "insights", "steps"):
        where = "session_id = :session" if mine else "1 = 1"
        c.execute(sa.text(_add(c.dialect.name, table, where)), mine)


MIGRATIONS: dict[str, list[sa.Column[Any] | sa.Table | sa.Index | str | Callable[[Connection], None]]] = {
    "2": [sessions.c.title, *(steps.c[n] for n in ("answer", "seconds", "http_status", "error", "reason"))],
    "3": ["DROP TABLE IF EXISTS models"],
    "4": [steps.c[n] for n in ("written_hour_tokens", "full_written_hour_tokens", "billed", "untold")],
    "5": [sessions.c.project, sessions.c.client],
    "6": [
        *(sessions.c[n] for n in ("asked", "paid", "would_pay", "sent", "came", "in_vain", "cache")),
        folds,
    ],
    "7": [
        "UPDATE records SET mark = NULL WHERE mark <> 'forgotten'",
        "UPDATE steps SET manifest = NULL",
        *(steps.c.fold, steps.c.fates, folds.c.why),
        insights.c.due,
        insights.c.attempts,
        WAITING,
        "UPDATE insights SET due = 0, attempts = 0 WHERE EXISTS (SELECT 1 FROM jobs WHERE"
        " jobs.trace_id = insights.trace_id AND jobs.session_id = insights.session_id)",
        calls,
        "INSERT INTO calls (session_id, day, calls)"
        " SELECT session_id, day, sum(calls) FROM spending GROUP BY session_id, day",
        "DROP TABLE jobs",
        "DROP TABLE spending",
    ],
    "8": [words, blocks, block_sessions, _compact],
    "9": [
        sessions.c.requests,
        PRESENT,
        sums,
        _agents_are_projects,
        "DROP INDEX IF EXISTS ix_sessions_agent_id",
        PROJECT,
        sessions.c.control,
        "UPDATE sessions SET control = TRUE WHERE EXISTS (SELECT 1 FROM steps"
        " WHERE steps.session_id = sessions.session_id AND steps.status = 'control')",
        "UPDATE sessions SET control = FALSE WHERE control IS NULL"
        " AND created >= (SELECT min(created) FROM sessions WHERE control)",
    ],
    "10": [keep_sums, recount],
}
"""The steps from a version of a bank to the next: missing columns and tables, statements, functions. Append only."""

# Parts of statements. Statements are built once, at import: building one costs more than running it.

SESSION: sa.BindParameter[str] = sa.bindparam("session")
IDS: sa.BindParameter[Sequence[str]] = sa.bindparam("ids", expanding=True)
LAST: sa.BindParameter[int] = sa.bindparam("last")

INSIGHT_OF_RECORD = (insights.c.trace_id == records.c.trace_id) & (
    insights.c.session_id == records.c.session_id
)
HAS_CONTENT = records.c.mark.is_distinct_from("forgotten")
"""The condition that a record was not forgotten."""
SET_SESSION = sa.update(sessions).where(sessions.c.session_id == SESSION)
NEXT_GENERATION = SET_SESSION.values(generation=sessions.c.generation + 1)
_NO_CONTENT = NEXT_GENERATION.values(note=None, summaries=None, requests=None, sent=None, came=None)
_NO_FOLDS = sa.delete(folds).where(folds.c.session_id == SESSION)
_UNTOLD = sa.update(steps).where(steps.c.session_id == SESSION).values(fold=None, fates=None)

NO_LEDGER: dict[str, None] = dict.fromkeys(("asked", "paid", "would_pay", "in_vain"))
"""The sums of a session without records."""


def content_deleted(c: Connection, session: Mapping[str, str]) -> None:
    """Within a write, raise a session's generation, and delete what was made of its content: folds, notes."""
    for statement in (_NO_CONTENT, _NO_FOLDS, _UNTOLD):
        c.execute(statement, session)


def of_session(table: sa.Table) -> sa.ColumnElement[bool]:
    """The condition that a row belongs to the session of the parameter ``session``."""
    return table.c.session_id == SESSION


def of_namespace(namespace: str | None) -> sa.ColumnElement[bool]:
    """The condition that a session is in a namespace."""
    return sessions.c.namespace.is_(None) if namespace is None else sessions.c.namespace == namespace


def count_of(table: sa.FromClause) -> sa.Select[int]:
    """A statement that counts the rows of a table."""
    return sa.select(sa.func.count()).select_from(table)


def sum_of(column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """The sum of a column; 0 for no rows."""
    return sa.func.coalesce(sa.func.sum(column), 0)


def as_bytes(column: sa.ColumnElement[Any]) -> sa.ColumnElement[bytes]:
    """A text column as its stored bytes, without decoding."""
    return sa.type_coerce(column, sa.LargeBinary)


def byte_length(column: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
    """The length of a stored text in bytes."""
    return sa.func.length(as_bytes(column), type_=sa.Integer)


def first_bytes(column: sa.ColumnElement[Any], size: int) -> sa.ColumnElement[bytes]:
    """The first bytes of a stored text."""
    return sa.func.substr(as_bytes(column), 1, size, type_=sa.LargeBinary)


def like_prefix(text: str) -> str:
    """The LIKE pattern, with the escape character ``/``, of texts that begin with ``text``."""
    return text.replace("/", "//").replace("%", "/%").replace("_", "/_") + "%"


def rows_by_id(
    c: Connection, query: sa.Select[Any], session_id: str, trace_ids: Sequence[str]
) -> dict[str, RowMapping]:
    """The rows of a session by trace_id, of a statement with the parameters ``session`` and ``ids``."""
    parts = (c.execute(query, {"session": session_id, "ids": p}).mappings() for p in in_parts(trace_ids))
    return {row["trace_id"]: row for rows in parts for row in rows}


def in_parts(values: Sequence[T], size: int = 500) -> Iterator[Sequence[T]]:
    """The values in slices of at most ``size``."""
    return (values[start : start + size] for start in range(0, len(values), size))
