"""The worker: models that fail in every way, retries, two at once, and what is reset under its hands."""

import logging
import re
import threading
import time

import pytest
import sqlalchemy as sa
from tests.bank.conftest import Clock
from tests.chats import call, result, system, user
from tests.cli.conftest import cli  # noqa: F401  a fixture
from tests.contracts.stores import a_record, together
from tests.replies import cut, half, raw

from memory_bank.bank.database import Database
from memory_bank.bank.jobs import JobQueue
from memory_bank.bank.schema import jobs
from memory_bank.bank.session import MemoryBankState
from memory_bank.bank.stores import FactStore, InsightStore, clear_insights
from memory_bank.bank.worker import Worker
from memory_bank.config import MemoryBankSettings
from memory_bank.errors import EmbeddingError, StorageError
from memory_bank.models.chat import OpenAIChat
from memory_bank.models.lexical import LexicalEmbedder
from memory_bank.models.observer import Observer
from memory_bank.processor import apply_memory_bank_strategy
from memory_bank.testing import ScriptedModel, ScriptedServer, fail, say


def stored(database, n=1, session="default"):
    """So many records to be observed; the insights of their session."""
    records = [a_record(i) for i in range(n)]
    FactStore(database, session).store_many(records, [r.trace_id for r in records])
    return InsightStore(LexicalEmbedder(), database, session)


def observer_of(chat, **settings):
    """An Observer with some ``observer_`` settings."""
    given = {f"observer_{name}": value for name, value in settings.items()}
    return Observer.create(chat, MemoryBankSettings(observer_model="m", **given))


def work(database, chat, *, session=None, **more):
    """A worker that has ended all jobs."""
    limits = {"timeout": more.pop("timeout", 30.0), "concurrency": more.pop("concurrency", 4)}
    observer = observer_of(chat, **limits)
    worker = Worker(database, observer, LexicalEmbedder(), session, first_retry=0.0, **more)
    worker.run(threading.Event(), once=True)
    return worker


def test_every_job_ends_with_the_models_summary(database):
    insights = stored(database, 10)
    other = stored(database, 3, "other")
    worker = work(database, ScriptedModel(lambda _m, _n: "by the model"))
    assert worker.progress.observed == 13
    assert insights.size() == 10
    assert other.size() == 3
    insight = insights.get_insight("trace-00004")
    assert (insight.summary, insight.source, insight.redo) == ("by the model", "llm:m", None)
    assert JobQueue(database).open_count() == 0


FAULTS = {
    "429": (fail(429), "(HTTP 429"),
    "500": (fail(500), "(HTTP 500"),
    "half a JSON": (half(), "gave no usable answer"),
    "no JSON": (raw("<html>"), "gave no usable answer"),
    "a connection that is cut": (cut(40), "the chat model 'm'"),
    "nothing": (say(""), "the model's reply was empty"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_tried_again_and_the_last_one_leaves_extraction_with_the_reason(database, fault, caplog):
    insights = stored(database)
    reply, reason = FAULTS[fault]
    with ScriptedServer([reply] * 3) as server, caplog.at_level(logging.WARNING):
        client = pytest.importorskip("openai").OpenAI(base_url=server.base_url, api_key="x", max_retries=0)
        worker = work(database, OpenAIChat(client), attempts=3)
        assert len(server.requests) == 3
    assert (worker.progress.retried, worker.progress.extracted, worker.progress.observed) == (2, 1, 0)
    insight = insights.get_insight("trace-00000")
    assert insight.source == "extractive" and reason in (insight.redo or "")
    assert insight.summary
    assert JobQueue(database).open_count() == 0
    assert "extractive summaries stay" in caplog.text


@pytest.mark.parametrize("durable", [True, False])
def test_the_warning_names_a_command_only_where_it_makes_the_summary_again(durable, tmp_path, caplog, cli):  # noqa: F811
    state = MemoryBankState.open(tmp_path / "b.db", "s") if durable else MemoryBankState("lexical")
    settings = {"observer_model": "m", "embedding_model": "lexical", "observer_min_chars": 0}
    chat = [system(), user(), call(("c1", "get_order", {"id": 7})), result("c1", "ORD-7 is late")]
    with caplog.at_level(logging.WARNING), state:
        apply_memory_bank_strategy(chat, ScriptedModel([""]), settings, state)
        assert state.insight_store.get_insight(next(iter(state.steps))).redo
    command = re.search("`memory-bank (.+?)`", caplog.text)
    assert (command is not None) == durable
    if command is not None:
        assert cli(*command[1].split(), "--help").code == 0


def test_a_fault_that_passes_costs_nothing_but_time(database):
    insights = stored(database)
    worker = work(database, ScriptedModel([RuntimeError("no"), "", "at last"]))
    assert (worker.progress.retried, worker.progress.observed) == (2, 1)
    assert insights.get_summary("trace-00000") == "at last"


def test_a_model_that_hangs_is_given_up(database):
    insights = stored(database)
    ever = threading.Event()
    try:
        work(database, ScriptedModel(lambda _m, _n: ever.wait(60) and "late"), timeout=0.05, attempts=2)
    finally:
        ever.set()
    insight = insights.get_insight("trace-00000")
    assert insight.redo == "the model did not answer within 0.05 s"


def test_ten_megabytes_are_cut(database):
    insights = stored(database)
    work(database, ScriptedModel(["word " * 2_000_000]))
    summary = insights.get_summary("trace-00000")
    assert summary is not None
    assert 1_000 < len(summary) <= 4_000


def test_retries_wait_longer_each_time(database):
    stored(database)
    clock = Clock()
    observer = observer_of(ScriptedModel([RuntimeError] * 5))
    worker = Worker(database, observer, LexicalEmbedder(), clock=clock, first_retry=2.0, attempts=5)
    waits = []
    while worker.step():
        waits.append(worker.queue.wait())
        clock.now += waits[-1] or 0.0
    assert waits == [pytest.approx(w, abs=0.01) for w in (2, 4, 8, 16)] + [None]


def test_two_workers_never_end_the_same_job_twice(database):
    stored(database, 40)
    asked = ScriptedModel(lambda _m, _n: "by the model")
    workers = []
    together(*[lambda: workers.append(work(database, asked)) for _ in range(4)])
    assert len(asked.calls) == 40
    assert sum(w.progress.observed for w in workers) == 40
    assert JobQueue(database).open_count() == 0


def test_who_lost_its_lease_ends_nothing(database):
    insights = stored(database)
    clock = Clock()

    def late(_messages, _model):
        clock.now += 1_000  # the lease ends meanwhile, and another worker takes the job
        other = Worker(database, observer_of(ScriptedModel(["first"])), LexicalEmbedder(), clock=clock)
        assert other.step() == 1
        return "second"

    slow = Worker(database, observer_of(ScriptedModel(late)), LexicalEmbedder(), clock=clock)
    assert slow.step() == 1
    assert insights.get_summary("trace-00000") == "first"


def test_a_session_that_is_reset_while_it_is_observed_gets_nothing(database):
    insights = stored(database)
    facts = FactStore(database)

    def reset(_messages, _model):
        facts.clear()
        clear_insights(database, "default")
        return "too late"

    work(database, ScriptedModel(reset))
    assert insights.size() == 0
    assert JobQueue(database).open_count() == 0


def test_what_is_stored_again_after_a_reset_is_observed_anew(database):
    insights = stored(database)
    facts = FactStore(database)

    def reset(_messages, _model):
        facts.clear()
        facts.store_many([a_record(0)], ["trace-00000"])
        return "of the first"

    model = ScriptedModel([reset, "of the second"])
    work(database, model)
    assert insights.get_summary("trace-00000") == "of the second"
    assert len(model.calls) == 2


class Refusing(LexicalEmbedder):
    """An embedder that fails, once."""

    def __init__(self):
        super().__init__()
        self.failures = 1

    def encode(self, texts):
        if self.failures:
            self.failures -= 1
            raise RuntimeError("no")
        return super().encode(texts)


def test_an_embedder_that_fails_gives_the_jobs_back_and_the_summary_is_not_paid_for_twice(
    database,
):
    insights = stored(database)
    worker = Worker(database, observer_of(ScriptedModel(["a"])), Refusing())
    with pytest.raises((EmbeddingError, StorageError)):
        worker.step()
    assert JobQueue(database).wait() == 0
    assert worker.step() == 1
    assert insights.get_summary("trace-00000") == "a"


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
    worker = Worker(Database(bank_url), observer_of(model, timeout=3), LexicalEmbedder(), lease=0.5)
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
