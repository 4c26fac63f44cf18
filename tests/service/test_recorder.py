"""Steps are noted beside the requests: figures of all, nothing held up, nothing lost while a database is away."""

import threading
import time
from dataclasses import replace

import pytest
from tests.chats import FOLDING, parted
from tests.growth import cpu_seconds
from tests.service.processes import until
from tests.service.runs import orders

from memory_bank.bank.sqlite import Sqlite
from memory_bank.bank.steps import get_step, list_steps
from memory_bank.config import Config, load_config
from memory_bank.errors import StorageError
from memory_bank.service.page import recorder as recording
from memory_bank.service.page.recorder import DETAILED, LATEST, Recorder
from memory_bank.service.proxy.chat import ChatDialect
from memory_bank.service.sessions import Sessions


class Away(Sqlite):
    """A database that can be away."""

    away = False
    refused = 0

    def write(self, *, erasing=False):
        if self.away:
            self.refused += 1
            raise StorageError("the server went away; nothing was changed.")
        return super().write(erasing=erasing)


@pytest.fixture
def database(tmp_path):
    database = Away(tmp_path / "bank.db")
    yield database
    database.close()


@pytest.fixture
def recorder(database):
    recorder = Recorder(database, 100)
    yield recorder
    recorder.close(1)


@pytest.fixture
def sessions(database, recorder):
    config = Config(memory_strategies={"memory_bank": FOLDING})
    sessions = Sessions(database, config, rebuilt=recorder.take)
    yield sessions
    sessions.close()


def numbers(database, name="a"):
    return [s.number for s in list_steps(database, name, limit=5_000)]


def test_a_step_is_noted_with_its_figures_and_what_it_was_made_of(database, sessions, recorder):
    began = time.time()
    made = sessions.rebuild(None, "a", orders(40))
    assert recorder.drain(30)
    step, manifest, _ = get_step(database, "a", 1)
    assert (step.tokens, step.full_tokens, step.records) == (made.tokens, made.full_tokens, 40)
    assert (step.messages, step.status, step.strategy) == (82, "rebuilt", made.strategy)
    assert began <= step.created <= time.time()
    assert step.milliseconds == pytest.approx(made.milliseconds)
    assert manifest["plan"]["pieces"]
    sessions.rebuild(None, "b", orders(1))
    assert recorder.drain(30)
    assert list_steps(database, "b")[0].status == "unchanged"


def test_an_agent_that_goes_on_at_once_is_not_held_up_and_its_contexts_are_kept(database, sessions, recorder):
    made = [sessions.rebuild(None, "a", orders(n)) for n in range(1, 12)]
    assert recorder.drain(30)
    found = list_steps(database, "a")
    assert [s.records for s in found] == list(range(1, 12))
    assert all(s.detailed for s in found)
    manifests = [get_step(database, "a", n)[1] for n in range(1, 12)]
    assert [m["context_messages"] for m in manifests] == [len(parted(step.shown)) for step in made]
    assert all(m["plan"]["decisions"] or n == 0 for n, m in enumerate(manifests))
    assert not manifests[0]["explained"] and manifests[-1]["explained"]
    pieces = manifests[-2]["plan"]["pieces"]
    assert pieces and not any(p["values"] for p in pieces)  # these would be the reasons of a later step


def test_a_session_at_work_is_not_waited_for(database, sessions, recorder):
    made = sessions.rebuild(None, "a", orders(3))
    held = threading.Event()

    def work():
        with made.state.lock:
            held.set()
            recorder.drain(30)

    worker = threading.Thread(target=work)
    worker.start()
    assert held.wait(10)
    worker.join(30)
    assert numbers(database) == [1]
    _, manifest, _ = get_step(database, "a", 1)
    assert (manifest["plan"], manifest["explained"]) == (None, False)
    assert manifest["context_messages"] == len(parted(made.shown))


def test_under_overload_contents_are_dropped_and_figures_never(database, sessions, recorder):
    made = sessions.rebuild(None, "a", orders(3))
    recorder.drain(30)
    with made.state.lock:
        for _ in range(5 * DETAILED):
            recorder.take(made)
        held = recorder._detailed
    assert held <= DETAILED
    assert recorder.drain(60)
    assert numbers(database) == list(range(1, 5 * DETAILED + 2))
    assert recorder.lost == 0


def test_under_overload_the_last_step_of_each_session_and_every_fold_keep_their_contents(
    database, sessions, recorder
):
    made = {name: sessions.rebuild(None, name, orders(3)) for name in ("a", "b", "c")}
    recorder.drain(30)
    with database.write_lock, made["a"].state.lock:
        for turn in range(2 * DETAILED):
            for step in made.values():
                folds = turn % 50 == 7
                recorder.take(replace(step, changed="memory", changed_at=2) if folds else step)
        assert recorder._detailed <= DETAILED + 24
    assert recorder.drain(60)
    for name in made:
        found = list_steps(database, name, limit=5_000)
        assert len(found) == 2 * DETAILED + 1
        assert found[-1].detailed and all(s.detailed for s in found[-recorder.kept :] if s.changed)
        assert not all(s.detailed for s in found[-recorder.kept :])


def test_under_overload_what_a_provider_said_of_an_error_is_kept(database, sessions, recorder):
    made = [sessions.rebuild(None, "a", orders(n)) for n in range(1, 9)]
    assert recorder.drain(60)
    with database.write_lock, made[0].state.lock:
        for n, step in enumerate(made):
            error, said = ("status 429", b'{"error": {"message": "Too fast"}}') if n == 3 else (None, b"{}")
            recorder.take_outcome(step, (said, ChatDialect()), error=error)
            for _ in range(DETAILED // 2):
                recorder.take_outcome(made[-1], (b"{}", ChatDialect()), error=None)
    assert recorder.drain(60)
    assert [s.error for s in list_steps(database, "a") if s.error] == ["Too fast"]


def test_very_many_folds_are_bounded_and_the_last_one_stays(database, sessions, recorder):
    made = replace(sessions.rebuild(None, "a", orders(3)), changed="memory", changed_at=2)
    recorder.drain(30)
    with database.write_lock, made.state.lock:
        for _ in range(3 * LATEST):
            recorder.take(made)
        assert recorder._detailed <= LATEST
    assert recorder.drain(60)
    assert list_steps(database, "a", limit=5_000)[-1].detailed


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


def test_a_step_that_cannot_be_written_costs_no_later_one(database, sessions, recorder, told, monkeypatch):
    def fails(*_):
        raise ValueError("secret")

    with monkeypatch.context() as patched:
        patched.setattr(recording, "add_steps", fails)
        sessions.rebuild(None, "a", orders(2))
        assert recorder.drain(30)
    sessions.rebuild(None, "a", orders(3))
    assert recorder.drain(30)
    assert (numbers(database), recorder.lost) == ([1], 1)
    (warning,) = [r.getMessage() for r in told if r.levelname == "WARNING"]
    assert warning == "1 steps could not be recorded for the page (ValueError)"


def test_patience_ends(database, sessions, told):
    recorder = Recorder(database, 100, patience=0.3)
    made = sessions.rebuild(None, "a", orders(3))
    database.away = True
    recorder.take(made)
    assert recorder.drain(30)
    assert recorder.lost == 1
    database.away = False
    recorder.take(made)
    recorder.close()
    assert any("1 steps could not be recorded" in r.getMessage() for r in told)


def test_too_many_that_wait_are_let_go_the_oldest_first(database, sessions, recorder, monkeypatch):
    made = sessions.rebuild(None, "a", orders(3))
    assert recorder.drain(30)
    monkeypatch.setattr(recording, "WAITING", 50)
    recorder = Recorder(database, 0)
    database.away = True
    for n in range(200):
        recorder.take(replace(made, tokens=n))
    lost = recorder.lost
    assert lost > 0
    database.away = False
    assert recorder.drain(30)
    found = [s.tokens for s in list_steps(database, "a", limit=500)][1:]  # the first is the session's own
    assert len(found) == 200 - lost
    assert found == sorted(found) and found[-1] == 199
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
    recorder = Recorder(database, 100, patience=600)
    made = sessions.rebuild(None, "a", orders(3))
    database.away = True
    for _ in range(5):
        recorder.take(made)
    began = time.monotonic()
    recorder.close(0.5)
    assert time.monotonic() - began < 60
    assert recorder.lost == 5
    database.away = False


def test_nothing_is_kept_of_contents_where_nothing_is_to_be(database):
    recorder = Recorder(database, 0)
    sessions = Sessions(database, load_config(), rebuilt=recorder.take)
    sessions.rebuild(None, "a", orders(3))
    recorder.close(30)
    assert [s.detailed for s in list_steps(database, "a")] == [False]
    sessions.close()


def test_what_cannot_be_told_costs_no_figures_and_says_nothing_of_contents(
    database, sessions, recorder, told
):
    made = sessions.rebuild(None, "a", orders(3))
    assert recorder.drain(30)
    recorder.take(replace(made, shown=[object()] * 3 + ["a secret"], messages=7, plan=made.plan))
    broken = replace(made, shown=None, messages=8)
    recorder.take(broken)
    assert recorder.drain(30)
    assert [s.messages for s in list_steps(database, "a")][-2:] == [7, 8]
    said = "\n".join(r.getMessage() for r in told)
    assert "could not be recorded (TypeError)" in said
    assert "secret" not in said
