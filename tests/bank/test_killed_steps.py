"""A process dies between a record and its summary: any other that uses the session, or the bank, makes it."""

import json
import os
import signal
import subprocess
import sys
import threading

import pytest
from tests.bank.conftest import local
from tests.chats import rounds, user
from tests.examples import first_short

from memory_bank import MemoryBankSettings, MemoryBankState, apply_memory_bank_strategy
from memory_bank.bank.database import Database
from memory_bank.bank.maintenance import verify
from memory_bank.bank.worker import Worker
from memory_bank.models.lexical import LexicalEmbedder
from memory_bank.models.observer import Observer
from memory_bank.testing import ScriptedModel

MESSAGES = [user("Which orders are late?"), *rounds(6, size=300)]
STEP = """
import json, sys
from tests.bank.test_killed_steps import Slow, apply, model, opened
url, way, steps = json.loads(sys.argv[1])
apply(opened(url, way), way, steps)
"""
SETTINGS = {
    "later": local(selection="evidence"),  # summaries are made once the answer is on its way
    "slow": local(),
    "inline": local(observer_model="m", observer_mode="inline"),
    "background": local(observer_model="m", observer_mode="background", observer_min_chars=200),
}


class Slow:
    """An embedder that does not answer at once: records are committed before it is asked."""

    def __init__(self):
        inner = LexicalEmbedder()
        self.name, self.encode = inner.name, inner.encode


def model():
    return ScriptedModel(lambda *_: "Summary by the model.")


def opened(url, way):
    embedder = Slow() if way in ("slow", "background") else LexicalEmbedder()
    return MemoryBankState.open(url, "s", embedder, defer=way == "later")


def apply(state, way, steps):
    return apply_memory_bank_strategy(MESSAGES[: 1 + 2 * steps], model(), SETTINGS[way], state)


def dies(url, way, steps, point):
    command = [sys.executable, "-c", STEP, json.dumps([url, way, steps])]
    env = {**os.environ, "MEMORY_BANK_FAULT": point}
    assert subprocess.run(command, env=env, timeout=60, check=False).returncode == -signal.SIGKILL


def sizes(state):
    return state.fact_store.size(), state.insight_store.size()


@pytest.mark.parametrize("way", first_short(SETTINGS))
def test_a_session_that_is_open_makes_what_another_process_left(bank_url, way):
    with opened(bank_url, way) as mine:
        apply(mine, way, 1)
        mine.finish()
        dies(bank_url, way, 3, "facts.stored:1")
        assert mine.pending > 0
        assert mine.flush() == 0
        assert sizes(mine) == (3, 3)
        dies(bank_url, way, 4, "facts.stored:1")
        if way in ("later", "slow"):  # no flush: the next step does it
            apply(mine, way, 5)
            mine.finish()
            assert sizes(mine) == (5, 5)
        assert mine.flush() == 0
        assert list(verify(mine.database)) == []
        assert sizes(mine)[0] == sizes(mine)[1]


@pytest.mark.parametrize("way", first_short(SETTINGS))
def test_a_worker_makes_what_a_dead_process_left(bank_url, way):
    with opened(bank_url, way) as mine:
        apply(mine, way, 1)
    dies(bank_url, way, 3, "facts.stored:1")
    database = Database(bank_url)
    observer = Observer.create(model(), MemoryBankSettings(observer_model="m", embedding_model="lexical"))
    worker = Worker(database, observer, LexicalEmbedder())
    assert worker.draft() == 2
    worker.run(threading.Event(), once=True)
    assert worker.open_count() == 0
    with opened(bank_url, "later") as state:
        apply(state, "later", 3)
        assert (*sizes(state), state.pending) == (3, 3, 0)
    database.close()


def test_a_model_is_not_asked_for_what_another_step_is_at_work_on(bank_url):
    asked = []

    def answer(messages, _model):
        asked.append(messages)
        if len(asked) == 2:  # while the first process waits for its model
            apply_memory_bank_strategy(MESSAGES[:7], other_model, SETTINGS["inline"], other)
        return "Summary by the model."

    other_model = model()
    with opened(bank_url, "inline") as mine, opened(bank_url, "inline") as other:
        apply_memory_bank_strategy(MESSAGES[:3], ScriptedModel(answer), SETTINGS["inline"], mine)
        apply_memory_bank_strategy(MESSAGES[:3], other_model, SETTINGS["inline"], other)
        apply_memory_bank_strategy(MESSAGES[:5], ScriptedModel(answer), SETTINGS["inline"], mine)
        assert (len(asked), len(other_model.calls)) == (2, 1)
        assert sizes(other) == (3, 3)


def test_what_is_forgotten_or_deleted_meanwhile_gets_no_summary(tmp_path):
    url = str(tmp_path / "bank.db")
    with opened(url, "later") as mine, opened(url, "later") as other:
        apply(mine, "later", 3)
        apply(other, "later", 3)
        first = next(iter(mine.steps))
        assert other.fact_store.forget(first)
        mine.finish()
        assert mine.fact_store.size() == 3
        assert mine.insight_store.get_insight(first) is None
        apply(mine, "later", 4)
        other.reset()
        mine.finish()
        assert sizes(mine) == (0, 0)
        assert mine.pending == 0
