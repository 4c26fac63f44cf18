"""A worker renews the leases of all jobs that it has taken, also those of the sessions that follow."""

import threading
import time

import sqlalchemy as sa
from tests.contracts.stores import a_record

from memory_bank import LexicalEmbedder
from memory_bank.bank.database import Database
from memory_bank.bank.jobs import JobQueue
from memory_bank.bank.schema import jobs
from memory_bank.bank.stores import FactStore
from memory_bank.bank.worker import Worker
from memory_bank.config import MemoryBankSettings
from memory_bank.models.observer import Observer


class UntilRenewed:
    """A model that answers when the leases of all jobs have been renewed, and counts its calls."""

    def __init__(self, database):
        self.calls = 0
        self.database = database

    def leases(self):
        with self.database.read() as c:
            return dict(c.execute(sa.select(jobs.c.seq, jobs.c.expires)).all())

    def generate_plain(self, *, input_messages, model):
        self.calls += 1
        before = self.leases()
        while any(expires <= before[seq] for seq, expires in self.leases().items()):
            time.sleep(0.02)
        return "a summary"


def test_jobs_of_other_sessions_are_not_taken_meanwhile(bank_url):
    for session in ("a", "b", "c"):
        FactStore(Database(bank_url), session).store_many([a_record(1)], ["trace-00001"])
    model = UntilRenewed(Database(bank_url))
    worker = Worker(
        Database(bank_url),
        Observer.create(model, MemoryBankSettings(observer_model="m")),
        LexicalEmbedder(),
        lease=2.5,
    )
    thread = threading.Thread(target=worker.step)
    other, taken = JobQueue(Database(bank_url)), []
    thread.start()
    while not model.calls:
        time.sleep(0.01)
    while thread.is_alive():
        taken += other.take("another", 8, 60)
        time.sleep(0.1)
    assert taken == []
    assert (model.calls, worker.progress.observed, other.open_count()) == (3, 3, 0)
