"""The FactStore in SQL: every tool call raw, by trace_id."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from memory_bank.errors import RecordConflictError
from memory_bank.records import InteractionRecord
from memory_bank.stores.database import Database
from memory_bank.stores.payload import from_row, same_fact, to_row
from memory_bank.stores.schema import records, sessions

_AT_ONCE = 500  # ids in one query


class FactStore:
    """Raw records of one session in a database; ``FactStore()`` alone keeps them in memory."""

    def __init__(self, database: Database | None = None, session_id: str = "default") -> None:
        self.database = database or Database()
        self.session_id = session_id
        self.database.open_session(session_id)

    def store(self, record: InteractionRecord) -> None:
        """Store a record durably; an equal one again changes nothing.

        Raises RecordConflictError, RecordError, StorageError.
        """
        self.store_many([record])

    def store_many(self, batch: Sequence[InteractionRecord]) -> None:
        """Store records in one transaction: all or none."""
        if not batch:
            return
        rows = {r.trace_id: to_row(r, self.session_id) for r in reversed(batch)}
        rows = dict(reversed(rows.items()))
        with self.database.write() as c:
            for start in range(0, len(rows), _AT_ONCE):
                ids = list(rows)[start : start + _AT_ONCE]
                for old in c.execute(self._select().where(records.c.trace_id.in_(ids))).mappings():
                    if not same_fact(rows[old["trace_id"]], old):
                        raise RecordConflictError(
                            f"another record has the trace_id {old['trace_id']}: facts are never overwritten, "
                            "store yours under a new trace_id."
                        )
                    del rows[old["trace_id"]]
            if rows:
                c.execute(sa.insert(records), list(rows.values()))

    def get(self, trace_id: str) -> InteractionRecord | None:
        """The record, or None."""
        found = self.get_many([trace_id])
        return found[0] if found else None

    def get_many(self, trace_ids: Sequence[str]) -> list[InteractionRecord]:
        """The records found, in the order asked for; missing ids are skipped."""
        wanted = list(dict.fromkeys(trace_ids))
        found: dict[str, InteractionRecord] = {}
        with self.database.read() as c:
            for start in range(0, len(wanted), _AT_ONCE):
                query = self._select().where(records.c.trace_id.in_(wanted[start : start + _AT_ONCE]))
                found.update((row["trace_id"], from_row(row)) for row in c.execute(query).mappings())
        return [found[t] for t in trace_ids if t in found]

    def steps(self) -> dict[str, int]:
        """The step_id of every record by trace_id, oldest first."""
        query = (
            sa.select(records.c.trace_id, records.c.step_id)
            .where(records.c.session_id == self.session_id)
            .order_by(records.c.seq)
        )
        with self.database.read() as c:
            return {trace_id: step for trace_id, step in c.execute(query)}

    def clear(self) -> None:
        """Remove every record of the session."""
        with self.database.write() as c:
            c.execute(sa.delete(records).where(records.c.session_id == self.session_id))
            c.execute(
                sa.update(sessions)
                .where(sessions.c.session_id == self.session_id)
                .values(generation=sessions.c.generation + 1)
            )

    def size(self) -> int:
        """How many records there are."""
        query = (
            sa.select(sa.func.count()).select_from(records).where(records.c.session_id == self.session_id)
        )
        with self.database.read() as c:
            return c.execute(query).scalar() or 0

    def _select(self) -> sa.Select[tuple[object, ...]]:
        return sa.select(*records.c).where(records.c.session_id == self.session_id)
