"""A worker that holds jobs of several sessions holds them all until it has come to the last one."""

import threading
import time

from memory_bank import LexicalEmbedder
from memory_bank.bank.database import Database
from memory_bank.bank.facts import FactStore
from memory_bank.bank.jobs import JobQueue
from memory_bank.bank.worker import Worker
from memory_bank.models.observer import Observer
from memory_bank.testing.store_contracts import a_record


class Slow:
    """A model that takes its time, and counts."""

    def __init__(self):
        self.calls = 0

    def generate_plain(self, *, input_messages, model):
        self.calls += 1
        time.sleep(1.5)
        return "a summary"


def test_jobs_of_other_sessions_are_not_taken_meanwhile(bank_url):
    for session in ("a", "b", "c"):
        FactStore(Database(bank_url), session).store_many([a_record(1)], ["trace-00001"])
    model = Slow()
    worker = Worker(
        Database(bank_url), Observer(model, "m"), LexicalEmbedder(), lease=3.0
    )  # less than all three take
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
