"""The FactStore in SQL: every tool call raw, by trace_id."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from memory_bank.bank.database import Database
from memory_bank.bank.jobs import add_jobs, clear_jobs
from memory_bank.bank.rows import (
    ARGUMENT_BYTES,
    RecordRow,
    check_same,
    from_row,
    is_trace_id,
    text_of,
    to_rows,
)
from memory_bank.bank.schema import records, sessions
from memory_bank.errors import RecordConflictError
from memory_bank.faults import fault_point
from memory_bank.records import InteractionRecord, RecordLine

_AT_ONCE = 500  # ids in one query

# Statements are built once: building one costs more than running it.
_t = records.c
_mine = _t.session_id == sa.bindparam("session")
_BY_IDS = sa.select(*_t).where(_mine, _t.trace_id.in_(sa.bindparam("ids", expanding=True)))
_STEPS = sa.select(_t.trace_id, _t.step_id).where(_mine).order_by(_t.seq)
_numbered = (
    sa.select(_t.seq, sa.func.row_number().over(order_by=_t.seq).label("number")).where(_mine).subquery()
)
_PAGE = (
    sa.select(
        _numbered.c.number,
        _t.trace_id,
        _t.step_id,
        _t.tool_name,
        sa.func.substr(sa.type_coerce(_t.input, sa.LargeBinary), 1, ARGUMENT_BYTES, type_=sa.LargeBinary),
        sa.func.length(sa.type_coerce(_t.output, sa.LargeBinary)),
    )
    .join(_numbered, _numbered.c.seq == _t.seq)
    .where(_numbered.c.number > sa.bindparam("after"))
    .order_by(_numbered.c.number)
    .limit(sa.bindparam("limit"))
)
_PAGE_OF_TOOL = _PAGE.where(_t.tool_name == sa.bindparam("tool"))
_SIZE = sa.select(sa.func.count()).select_from(records).where(_mine)
_CLEAR = sa.delete(records).where(_mine)
_NEXT_GENERATION = (
    sa.update(sessions)
    .where(sessions.c.session_id == sa.bindparam("session"))
    .values(generation=sessions.c.generation + 1)
)


class _Inserting:
    """The write of ``store_many``; those of several threads are one INSERT."""

    __slots__ = ("rows", "store", "to_observe")

    def __init__(self, store: FactStore, rows: dict[str, RecordRow], to_observe: Collection[str]) -> None:
        self.store = store
        self.rows = rows
        self.to_observe = to_observe

    def __call__(self, c: sa.Connection) -> None:
        self.store.insert(c, self.rows, self.to_observe)

    def merged(self, c: sa.Connection, operations: Sequence[_Inserting]) -> None:
        """See Mergeable. The sessions are locked."""
        database = self.store.database
        rows = [row for operation in operations for row in operation.rows.values()]
        if database.insert_new(c, records, rows) != len(rows):
            raise RecordConflictError("some are there already: one by one, to see which")
        for operation in operations:
            if operation.to_observe:
                add_jobs(c, database, operation.store.session_id, list(operation.to_observe))
        fault_point("facts.executed")


class FactStore:
    """Raw records of one session in a database; ``FactStore()`` alone keeps them in memory.

    Every call that touches the database may raise StorageError. Raises ConfigError for a session_id that no
    database takes.
    """

    def __init__(self, database: Database | None = None, session_id: str = "default") -> None:
        self.database = database or Database()
        self.session_id = session_id
        self.database.open_session(session_id)

    def store(self, record: InteractionRecord) -> None:
        """Store a record durably; an equal one again changes nothing.

        Raises RecordConflictError, RecordError, StorageError.
        """
        self.store_many([record])

    def store_many(self, batch: Sequence[InteractionRecord], to_observe: Collection[str] = ()) -> None:
        """Store records in one transaction: all or none. Raises as ``store``.

        ``to_observe``: trace_ids of those that a model is to summarise, noted in the same transaction.
        """
        rows = to_rows(batch, self.session_id)
        if not rows:
            return
        self.database.submit(_Inserting(self, rows, to_observe), self.session_id)
        fault_point("facts.stored")

    def insert(self, c: sa.Connection, rows: dict[str, RecordRow], to_observe: Collection[str] = ()) -> None:
        """Within a write: the rows (of ``to_rows``) that are not there. Raises RecordConflictError."""
        new = list(rows.values())
        if self.database.insert_new(c, records, new, self.session_id) != len(rows):  # some are there already
            for old in self._found(c, list(rows)):
                check_same(rows[old["trace_id"]], old)
        if to_observe:
            add_jobs(c, self.database, self.session_id, list(to_observe))
        fault_point("facts.executed")

    def get(self, trace_id: str) -> InteractionRecord | None:
        """The record, or None."""
        found = self.get_many([trace_id])
        return found[0] if found else None

    def get_many(self, trace_ids: Sequence[str]) -> list[InteractionRecord]:
        """The records found, in the order asked for; missing ids are skipped."""
        wanted = [t for t in dict.fromkeys(trace_ids) if is_trace_id(t)]
        if not wanted:
            return []
        with self.database.read() as c:
            found = {row["trace_id"]: row for row in self._found(c, wanted)}
        return [from_row(found[t]) for t in trace_ids if t in found]

    def _found(self, c: sa.Connection, ids: list[str]) -> Iterator[Any]:
        for start in range(0, len(ids), _AT_ONCE):
            asked = {"session": self.session_id, "ids": ids[start : start + _AT_ONCE]}
            yield from c.execute(_BY_IDS, asked).mappings().all()

    def steps(self) -> dict[str, int]:
        """The step_id of every record by trace_id, oldest first."""
        with self.database.read() as c:
            return dict(c.execute(_STEPS, {"session": self.session_id}).all())

    def page(self, after: int = 0, limit: int = 50, tool: str | None = None) -> list[RecordLine]:
        """The records of a number above ``after``, oldest first; of one tool, where it is named."""
        asked = {"session": self.session_id, "after": after, "limit": limit}
        with self.database.read() as c:
            if tool is None:
                rows = c.execute(_PAGE, asked).all()
            else:
                rows = c.execute(_PAGE_OF_TOOL, {**asked, "tool": tool}).all()
        return [RecordLine(n, t, step, name, text_of(head), size) for n, t, step, name, head, size in rows]

    def clear(self) -> None:
        """Remove every record of the session."""
        with self.database.write() as c:
            self.database.lock_session(c, self.session_id)
            c.execute(_CLEAR, {"session": self.session_id})
            clear_jobs(c, self.session_id)
            c.execute(_NEXT_GENERATION, {"session": self.session_id})

    def size(self) -> int:
        """How many records there are."""
        with self.database.read() as c:
            return c.execute(_SIZE, {"session": self.session_id}).scalar() or 0
