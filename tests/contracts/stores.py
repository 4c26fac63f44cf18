"""What several test files need of stores: records, and threads that begin together."""

import dataclasses
import threading
from contextlib import contextmanager

import sqlalchemy as sa

from memory_bank.bank.schema import insights
from memory_bank.records import InteractionRecord


def a_record(n, **changes):
    """The n-th test record, always with the same content; ``changes`` replace fields."""
    record = InteractionRecord(
        f"trace-{n:05}",
        n // 3 + 1,
        f"tool_{n % 4}",
        {"n": n},
        {"rows": [n, str(n)]},
        1_700_000_000.0 + n,
        f"call_{n}",
    )
    return dataclasses.replace(record, **changes)


def let_wait(database, trace_ids, attempts=0, redo=None):
    """Let the insights of these records wait for the Observer's model."""
    with database.write() as c:
        waits = sa.update(insights).where(insights.c.trace_id.in_(trace_ids))
        c.execute(waits.values(due=0.0, attempts=attempts, redo=redo))


@contextmanager
def before_statements(seen):
    """``seen`` is called before each statement of any database, as SQLAlchemy's event ``before_cursor_execute``."""
    sa.event.listen(sa.Engine, "before_cursor_execute", seen)
    try:
        yield
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", seen)


@contextmanager
def another_program(url):
    """A connection in a transaction, as of a program that knows nothing of the bank's schema."""
    engine = sa.create_engine(url)
    try:
        with engine.begin() as c:
            yield c
    finally:
        engine.dispose()


def together(*jobs):
    """Run jobs in threads that start at the same time; raises the first error."""
    start, errors = threading.Barrier(len(jobs)), []

    def run(job):
        start.wait()
        try:
            job()
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=run, args=[job]) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def to_redo(insights):
    """The insights of a store that are to be made again, oldest first."""
    return [i for i in insights.get_insights(insights.trace_ids()).values() if i.redo is not None]
