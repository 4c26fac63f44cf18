"""The worker: models that fail in every way, retries, two at once, and what is reset under its hands."""

import logging
import re
import threading

import pytest
from tests.bank.conftest import Clock
from tests.chats import call, result, system, user
from tests.cli.conftest import cli  # noqa: F401  a fixture
from tests.contracts.stores import a_record, together
from tests.replies import cut, half, raw

from memory_bank.bank.session import MemoryBankState
from memory_bank.bank.stores import FactStore, InsightStore, clear_insights
from memory_bank.bank.worker import LONGEST_WAIT, Worker, observe_again, waiting_since
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
    FactStore(database, session).store_many(records)
    insights = InsightStore(LexicalEmbedder(), database, session)
    insights.add_many(list(map(Observer().extract, records)), waiting=[r.trace_id for r in records])
    return insights


def left(database):
    """How many records wait for the model."""
    return waiting_since(database)[0]


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


def test_every_record_ends_with_the_models_summary(database):
    insights = stored(database, 10)
    other = stored(database, 3, "other")
    worker = work(database, ScriptedModel(lambda _m, _n: "by the model"))
    assert worker.progress.observed == 13
    assert insights.size() == 10
    assert other.size() == 3
    insight = insights.get_insight("trace-00004")
    assert (insight.summary, insight.source, insight.redo) == ("by the model", "llm:m", None)
    assert left(database) == 0


def test_drafts_of_a_second_worker_leave_what_the_first_works_on(database):
    insights = stored(database, 3)
    records = FactStore(database, "default").get_many(insights.trace_ids())
    second = Worker(database, observer_of(ScriptedModel(["no one asks"])), LexicalEmbedder())
    taken = []

    def answer(_messages, _number):
        """While the model is asked, another worker, which found no insights, makes drafts of all and looks for work."""
        drafts = list(map(Observer().extract, records))
        insights.add_many(drafts, waiting=[r.trace_id for r in records], only_wanted=True)
        taken.append(second.step())
        return "by the model"

    worker = work(database, ScriptedModel(answer), concurrency=3)
    assert (worker.progress.observed, taken, left(database)) == (3, [0, 0, 0], 0)


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
    assert left(database) == 0
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
        waits.append(worker.wait())
        clock.now += waits[-1] or 0.0
    assert waits == [pytest.approx(w, abs=0.01) for w in (2, 4, 8, 16)] + [None]


def test_workers_at_once_never_ask_for_the_same_record_twice(database):
    stored(database, 40)
    asked = ScriptedModel(lambda _m, _n: "by the model")
    workers = []
    together(*[lambda: workers.append(work(database, asked)) for _ in range(4)])
    assert len(asked.calls) == 40
    assert sum(w.progress.observed for w in workers) == 40
    assert left(database) == 0


def test_a_worker_that_is_too_late_costs_one_call_and_changes_nothing(database):
    insights = stored(database)
    clock = Clock()

    def late(_messages, _model):
        clock.now += 1_000  # another worker takes the record meanwhile
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
    assert left(database) == 0


def test_what_is_stored_again_after_a_reset_is_observed_anew(database):
    insights = stored(database)
    facts = FactStore(database)

    def reset(_messages, _model):
        facts.clear()
        insights.clear()
        stored(database)
        return "of the first"

    model = ScriptedModel([reset, "of the second"])
    work(database, model)
    assert insights.get_summary("trace-00000") == "of the first"  # a trace_id has one content
    assert left(database) == 0


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


def test_an_embedder_that_fails_lets_the_record_wait_and_the_summary_is_not_paid_for_twice(
    database,
):
    insights = stored(database)
    worker = Worker(database, observer_of(ScriptedModel(["a"])), Refusing())
    with pytest.raises((EmbeddingError, StorageError)):
        worker.step()
    assert worker.wait() == 0
    assert worker.step() == 1
    assert insights.get_summary("trace-00000") == "a"


def test_what_a_dead_worker_took_is_taken_when_its_time_is_over_and_the_attempt_counts(database):
    insights = stored(database, 3)
    clock = Clock()

    class Killed(BaseException):
        pass

    class Dead(Worker):
        def abandon(self):
            """A killed process cannot."""

    def die(_messages, _model):
        raise Killed

    dead = Dead(database, observer_of(ScriptedModel(die), concurrency=1), LexicalEmbedder(), clock=clock)
    with pytest.raises(Killed):
        dead.step()
    model = ScriptedModel(lambda _m, _n: "by the model")
    other = Worker(database, observer_of(model), LexicalEmbedder(), clock=clock, attempts=1)
    assert other.step() == 2
    assert other.step() == 0
    clock.now += LONGEST_WAIT
    assert other.step() == 1
    assert len(model.calls) == 3
    assert insights.get_insight("trace-00000").source == "llm:m"


def test_what_is_let_go_is_free_at_once_and_the_attempt_does_not_count(database):
    stored(database)
    worker = Worker(database, observer_of(ScriptedModel([KeyboardInterrupt])), LexicalEmbedder())
    with pytest.raises(KeyboardInterrupt):
        worker.step()
    assert worker.wait() == 0
    assert [o.attempts for o in FactStore(database).page()] == [0]


@pytest.mark.parametrize("back", [6, 1800, 86_400, 3_000_000_000])
def test_a_clock_that_jumps_back_leaves_nothing_stuck(database, back):
    stored(database, 2)
    clock = Clock()
    failing = observer_of(ScriptedModel([RuntimeError("no")]), concurrency=1)
    assert (
        Worker(database, failing, LexicalEmbedder(), clock=clock).step() == 1
    )  # due in what is then the future
    clock.now -= back
    worker = Worker(database, observer_of(ScriptedModel(["a", "b"])), LexicalEmbedder(), clock=clock)
    done = worker.step()
    assert done >= 1  # the one never tried
    wait = worker.wait()
    assert wait is None or wait <= LONGEST_WAIT
    clock.now += LONGEST_WAIT
    assert done + worker.step() == 2


def test_a_record_that_was_deleted_meanwhile_does_not_wait_for_ever(database):
    stored(database, 2)
    FactStore(database).clear()
    work(database, ScriptedModel([]))
    assert left(database) == 0


def test_what_is_marked_to_be_made_again_waits_when_it_is_asked_for(database):
    insights = stored(database, 2)
    work(database, ScriptedModel([""] * 2), attempts=1)
    assert left(database) == 0
    assert (observe_again(database, "other"), observe_again(database), left(database)) == (0, 2, 2)
    work(database, ScriptedModel(["better"] * 2))
    assert [i.redo for i in insights.get_insights(insights.trace_ids()).values()] == [None, None]


@pytest.mark.parametrize("every", [False, True])
def test_records_without_an_insight_get_one_where_their_session_has_insights(database, every):
    insights = stored(database, 2)
    FactStore(database).store_many([a_record(i) for i in (2, 3)])
    FactStore(database, "never").store_many([a_record(9)])  # by a strategy that makes none
    worker = Worker(database, observer_of(ScriptedModel(lambda _m, _n: "by the model")), LexicalEmbedder())
    assert worker.draft(every=every) == 2 + every
    assert (insights.size(), left(database)) == (4, 4 + every)
    worker.run(threading.Event(), once=True)
    assert {i.summary for i in insights.get_insights(insights.trace_ids()).values()} == {"by the model"}
