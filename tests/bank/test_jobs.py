"""The queue: what is leased is held, what its holder left is taken over, and no clock leaves anything stuck."""

import pytest
from tests.bank.conftest import Clock
from tests.contracts.insights import NumbersEmbedder
from tests.contracts.stores import a_record, together

from memory_bank.bank.jobs import LONGEST_WAIT, JobQueue
from memory_bank.bank.listing import outlines
from memory_bank.bank.maintenance import verify
from memory_bank.bank.stores import FactStore, InsightStore
from memory_bank.records import Insight


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def queue(database, clock):
    """Three jobs."""
    wanted = [a_record(i) for i in range(3)]
    FactStore(database).store_many([*wanted, a_record(3)])
    queue = JobQueue(database, "default", clock=clock)
    queue.add([r.trace_id for r in wanted])
    return queue


def ids(jobs):
    return [j.trace_id for j in jobs]


def test_a_job_is_taken_once_and_the_longest_due_first(queue, clock):
    assert ids(queue.take("a", 2, 10)) == ["trace-00000", "trace-00001"]
    assert ids(queue.take("b", 2, 10)) == ["trace-00002"]
    assert queue.take("c", 2, 10) == []
    assert queue.open_count() == 3


def test_a_lease_is_taken_over_when_its_owner_died_and_brings_the_dead_nothing(queue, clock, database):
    (dead,) = queue.take("dead", 1, 10)
    clock.now += 9
    assert "trace-00000" not in ids(queue.take("b", 3, 100))
    clock.now += 2
    (taken,) = queue.take("c", 3, 100)
    assert (taken.trace_id, taken.attempts) == ("trace-00000", 2)
    insights = InsightStore(NumbersEmbedder(), database)
    insights.finish("dead", [(dead, Insight("trace-00000", "1"))])
    assert insights.size() == 0
    insights.finish("c", [(taken, Insight("trace-00000", "2"))])
    insights.finish("c", [(taken, Insight("trace-00000", "3"))])  # it is ended already
    assert insights.get_summary("trace-00000") == "2"
    assert queue.open_count() == 2


def test_a_lease_that_is_renewed_is_not_taken_over(queue, clock):
    held = queue.take("a", 3, 10)
    clock.now += 9
    queue.renew("a", held, 10)
    clock.now += 9
    assert queue.take("b", 3, 10) == []


def test_what_is_let_go_is_free_at_once_and_the_attempt_does_not_count(queue):
    queue.release("a", queue.take("a", 3, 10))
    assert [j.attempts for j in queue.take("b", 3, 10)] == [1, 1, 1]


def test_what_failed_waits_and_says_why(queue, clock):
    held = queue.take("a", 3, 10)
    for job in held:
        queue.give_back("a", job, "it is asleep", 60)
    assert queue.take("a", 3, 10) == []
    assert queue.wait() == pytest.approx(60, abs=0.01)
    clock.now += 60
    assert [j.attempts for j in queue.take("a", 3, 10)] == [2, 2, 2]
    assert [o.error for o in outlines(queue.database, "default", ids(held))] == ["it is asleep"] * 3


@pytest.mark.parametrize("back", [6, 1800, 86_400, 3_000_000_000])
def test_a_clock_that_jumps_back_leaves_nothing_stuck(queue, clock, back):
    queue.take("dead", 1, 10)  # leased in what is then the future
    (failed,) = queue.take("b", 1, 10)
    queue.give_back("b", failed, "no", 300)
    clock.now -= back
    found = ids(queue.take("c", 3, 10))
    assert {"trace-00000", "trace-00002"} <= set(found)  # the dead one's, and one never tried
    wait = queue.wait()
    assert wait is not None
    assert wait <= LONGEST_WAIT
    clock.now += LONGEST_WAIT
    assert "trace-00001" in found + ids(queue.take("d", 3, 10))  # the retry: after an hour at the latest


@pytest.mark.parametrize("back", [0, 1800, 86_400])
def test_nobody_waits_for_what_can_be_taken(queue, clock, back):
    clock.now -= back
    assert queue.wait() == 0


def test_an_empty_queue_has_nothing_to_wait_for(database):
    assert JobQueue(database).wait() is None
    assert JobQueue(database).take("a", 5, 10) == []


def test_two_who_take_at_once_never_hold_the_same_job(database):
    records = [a_record(i) for i in range(60)]
    FactStore(database).store_many(records, [r.trace_id for r in records])
    held = []

    def take(owner):
        queue = JobQueue(database, None if owner < "c" else "default")
        while taken := queue.take(owner, 4, 60):
            held.extend(ids(taken))

    together(*[lambda o=o: take(o) for o in "abcdef"])
    assert sorted(held) == [r.trace_id for r in records]


def test_records_and_jobs_are_noted_in_one_transaction_and_cleared_together(database):
    facts = FactStore(database)
    facts.store_many([a_record(0), a_record(1)], [a_record(1).trace_id])
    assert JobQueue(database).open_count() == 1
    facts.store_many([a_record(1)], [a_record(1).trace_id])  # again: noted once
    assert JobQueue(database).open_count() == 1
    assert "job" not in [defect.kind for defect in verify(database)]
    facts.clear()
    assert JobQueue(database).open_count() == 0
