"""Steps are noted beside the requests: figures of all, nothing held up, nothing lost while a database is away."""

import time
from dataclasses import replace

import pytest
from tests.chats import FOLDING
from tests.growth import cpu_seconds
from tests.service.processes import until
from tests.service.runs import orders

from memory_bank.bank.folds import stored_folds
from memory_bank.bank.sqlite import Sqlite
from memory_bank.bank.steps import get_step, list_steps, steps_shown
from memory_bank.config import Config, load_config
from memory_bank.errors import StorageError
from memory_bank.service.page.recorder import ANSWERS, Recorder
from memory_bank.service.proxy.chat import ChatDialect
from memory_bank.service.sessions import Sessions


class Away(Sqlite):
    """A database that can be away, or broken."""

    away = broken = False
    refused = 0

    def write(self, **options):
        if self.broken:
            raise ValueError("secret")
        if self.away:
            self.refused += 1
            raise StorageError("the server went away; nothing was changed.")
        return super().write(**options)


@pytest.fixture
def database(tmp_path):
    database = Away(tmp_path / "bank.db")
    yield database
    database.close()


@pytest.fixture
def recorder(database):
    recorder = Recorder(database, 100)
    yield recorder
    recorder.close(60)


@pytest.fixture
def sessions(database, recorder):
    config = Config(memory_strategies={"memory_bank": FOLDING})
    sessions = Sessions(database, config, rebuilt=recorder.take)
    yield sessions
    sessions.close()


def numbers(database, name="a"):
    return [s.number for s in list_steps(database, name, limit=5_000)]


def test_a_step_is_noted_with_its_figures_and_what_its_context_showed(database, sessions, recorder):
    began = time.time()
    made = sessions.rebuild(None, "a", orders(40))
    assert recorder.drain(30)
    step, answer = get_step(database, "a", 1)
    assert (step.tokens, step.full_tokens, step.records) == (made.tokens, made.full_tokens, 40)
    assert (step.messages, step.status, step.strategy) == (82, "rebuilt", made.strategy)
    assert began <= step.created <= time.time()
    assert step.milliseconds == pytest.approx(made.milliseconds)
    [shown] = steps_shown(database, "a")
    assert [*stored_folds(database, "a", [step.fold]).values()][0][1] is None  # explained after the answer
    sessions.finish(made)
    [(_, why)] = stored_folds(database, "a", [step.fold]).values()
    assert (step.fold, answer, why.records) == (1, None, 40)
    assert why.pieces and list(why.pieces) == list(made.plan.choice.reasons.pieces())
    assert shown.fates["kept"][-1][-1] == 40
    sessions.rebuild(None, "b", orders(1))
    assert recorder.drain(30)
    assert list_steps(database, "b")[0].status == "unchanged"


def test_an_agent_that_goes_on_at_once_is_not_held_up_and_every_step_is_explained(
    database, sessions, recorder
):
    made = [sessions.rebuild(None, "a", orders(n)) for n in range(1, 12)]
    sessions.finish(made[-1])
    assert recorder.drain(30)
    assert [s.records for s in list_steps(database, "a")] == list(range(1, 12))
    found = steps_shown(database, "a")
    stored = stored_folds(database, "a", [s.fold for s in found])
    for step, shown in zip(made, found, strict=True):
        why = stored[shown.fold][1] if shown.fold else None
        for decision in step.plan.decisions:
            [number] = [list(step.state.steps).index(t) + 1 for t in decision.trace_ids]
            assert shown.of(number, why)[0] == decision.fate


def test_under_overload_answers_are_dropped_and_figures_and_errors_never(database, sessions, recorder):
    made = [sessions.rebuild(None, "a", orders(n)) for n in range(1, 9)]
    assert recorder.drain(60)
    with database.write_lock:
        for n, step in enumerate(made):
            error, said = ("status 429", b'{"error": {"message": "Too fast"}}') if n == 3 else (None, b"{}")
            recorder.take(replace(step, error=error), (said, ChatDialect()))
            for _ in range(ANSWERS // 2):
                recorder.take(made[-1], (b"{}", ChatDialect()))
        for _ in range(5 * ANSWERS):
            recorder.take(made[0])
    assert recorder.drain(60)
    assert [s.error for s in list_steps(database, "a", limit=5_000) if s.error] == ["Too fast"]
    assert numbers(database) == list(range(1, 9 * ANSWERS + 17))
    assert recorder.lost == 0


def test_taking_a_step_costs_next_to_nothing_however_slow_the_rest(database, sessions, recorder):
    made = sessions.rebuild(None, "a", orders(3))
    with database.write_lock, made.state.lock:  # neither can be written nor looked at

        def take() -> None:
            for _ in range(1000):
                recorder.take(made)

        began = time.monotonic()
        assert cpu_seconds(take) < 1.0  # a few microseconds each; the bound is for slow machines
        assert time.monotonic() - began < 60  # it waits for neither
    assert recorder.drain(60)


def test_a_database_that_is_away_is_waited_for_and_told_of_once(database, sessions, recorder, told):
    made = sessions.rebuild(None, "a", orders(3))
    assert recorder.drain(30)
    database.away = True
    for _ in range(20):
        recorder.take(made)
    until(lambda: database.refused >= 3)
    for _ in range(20):
        recorder.take(made)
    assert not recorder.drain(0.1)
    database.away = False
    assert recorder.drain(30)
    assert numbers(database) == list(range(1, 42))
    said = [r.getMessage() for r in told if "wait to be recorded" in r.getMessage()]
    assert len(said) == 1


def test_a_step_that_cannot_be_written_costs_no_later_one(database, sessions, recorder, told):
    made = sessions.rebuild(None, "a", orders(2))
    assert recorder.drain(30)
    database.broken = True
    recorder.take(made)
    assert recorder.drain(30)
    database.broken = False
    sessions.rebuild(None, "a", orders(3))
    assert recorder.drain(30)
    assert (numbers(database), recorder.lost) == ([1, 2], 1)
    (warning,) = [r.getMessage() for r in told if r.levelname == "WARNING"]
    assert warning == "1 steps could not be recorded for the page (ValueError)"


def test_patience_ends(database, sessions, told):
    recorder = Recorder(database, 100)
    recorder.patience = 0.3
    made = sessions.rebuild(None, "a", orders(3))
    database.away = True
    recorder.take(made)
    assert recorder.drain(30)
    assert recorder.lost == 1
    database.away = False
    recorder.take(made)
    recorder.close()
    assert any("1 steps could not be recorded" in r.getMessage() for r in told)


def test_too_many_that_wait_are_let_go_the_oldest_first(database, sessions, recorder):
    made = sessions.rebuild(None, "a", orders(3))
    assert recorder.drain(30)
    recorder = Recorder(database, 0)
    recorder.most = 50
    database.away = True
    for n in range(200):
        recorder.take(replace(made, tokens=n))
    lost = recorder.lost
    assert lost > 0
    database.away = False
    assert recorder.drain(30)
    stored = [s.tokens for s in list_steps(database, "a", limit=500)][1:]  # the first is the session's own
    assert len(stored) == 200 - lost
    assert stored == sorted(stored) and stored[-1] == 199
    recorder.close()


def test_what_waits_is_written_when_it_ends(database, sessions, recorder):
    made = sessions.rebuild(None, "a", orders(3))
    for _ in range(30):
        recorder.take(made)
    recorder.close(30)
    assert numbers(database) == list(range(1, 32))
    recorder.take(made)  # too late: never an error
    assert recorder.lost == 1


def test_closing_does_not_wait_for_a_database_that_is_away(database, sessions):
    recorder = Recorder(database, 100)
    recorder.patience = 600
    made = sessions.rebuild(None, "a", orders(3))
    database.away = True
    for _ in range(5):
        recorder.take(made)
    began = time.monotonic()
    recorder.close(0.5)
    assert time.monotonic() - began < 60
    assert recorder.lost == 5
    database.away = False


def test_nothing_is_kept_of_answers_where_nothing_is_to_be(database):
    recorder = Recorder(database, 0)
    sessions = Sessions(database, load_config(), rebuilt=recorder.take)
    step = sessions.rebuild(None, "a", orders(3))
    said = b'{"choices": [{"message": {"role": "assistant", "content": "Yes."}}]}'
    recorder.take(replace(step, seconds=1.0), (said, ChatDialect()))
    recorder.close(30)
    assert [get_step(database, "a", n)[1] for n in (1, 2)] == [None, None]
    sessions.close()


def test_an_answer_that_cannot_be_read_costs_no_figures_and_says_nothing_of_contents(
    database, sessions, recorder, told
):
    made = sessions.rebuild(None, "a", orders(3))
    assert recorder.drain(30)
    recorder.take(replace(made, seconds=8.0), (b'{"error": "a secret"}', 7))
    assert recorder.drain(30)
    assert [s.seconds for s in list_steps(database, "a")] == [None, 8.0]
    said = "\n".join(r.getMessage() for r in told)
    assert "the answer of a step could not be recorded (AttributeError)" in said
    assert "secret" not in said
