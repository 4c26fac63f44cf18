"""Observing in the background, end to end: steps return at once, summaries come later, budgets hold."""

import threading
import time
from typing import Any

import pytest
from tests.chats import call, result, user
from tests.contracts.stores import to_redo, together

from memory_bank import MemoryBankSettings, MemoryBankState, apply_memory_bank_strategy
from memory_bank.bank.worker import Worker
from memory_bank.models.lexical import LexicalEmbedder
from memory_bank.models.observer import Observer
from memory_bank.testing import ScriptedModel

Message = dict[str, Any]

SETTINGS = MemoryBankSettings(
    embedding_model="lexical", observer_model="m", observer_mode="background", token_encoding="approximate"
)


def messages(n, size=300):
    """A conversation of ``n`` calls, each with a word of its own in its output."""
    said = [user("find the parts")]
    for i in range(n):
        said += [call((f"c{i}", "find", {"i": i})), result(f"c{i}", f"zebra{i} " + "part " * (size // 5))]
    return said


class Gate:
    """A model that answers when it is let."""

    def __init__(self):
        self.open = threading.Event()
        self.model = ScriptedModel(self._answer)

    def _answer(self, _messages, _model):
        self.open.wait(60)
        return "by the model"


@pytest.fixture
def gate():
    gate = Gate()
    yield gate
    gate.open.set()


@pytest.fixture
def state(bank_url):
    with MemoryBankState.open(bank_url, "s", "lexical") as state:
        yield state


def sources(state):
    found = state.insight_store.get_insights(state.insight_store.trace_ids())
    return sorted(i.source for i in found.values())


def test_a_step_does_not_wait_for_the_model_and_finds_by_extraction_meanwhile(state, gate):
    for n in (1, 2, 3):  # would wait for ever
        context, _ = apply_memory_bank_strategy(messages(n), gate.model, SETTINGS, state)
    assert "zebra0" in str(context)  # brought back while its summary is not ready
    assert sources(state) == ["extractive"] * 3
    assert state.insight_store.search("zebra1", 1) == [list(state.steps)[1]]
    assert state.pending == 3
    assert state.flush(0.05) == 3
    gate.open.set()
    assert state.flush(60) == 0
    assert state.pending == 0
    assert sources(state) == ["llm:m"] * 3
    assert {i.summary for i in state.insight_store.get_insights(list(state.steps)).values()} == {
        "by the model"
    }


def test_what_was_pending_when_a_process_ended_is_observed_by_another(bank_url, gate):
    with MemoryBankState.open(bank_url, "s", "lexical") as first:
        apply_memory_bank_strategy(messages(3), gate.model, SETTINGS, first)
    with MemoryBankState.open(bank_url, "s", "lexical") as second:
        assert second.pending == 3
        observer = Observer.create(ScriptedModel(lambda _m, _n: "later"), SETTINGS)
        worker = Worker(second.database, observer, LexicalEmbedder(), clock=lambda: time.time() + 600)
        worker.run(threading.Event(), once=True)  # ten minutes later: no call of the other lasts so long
        assert second.flush(60) == 0
        assert sources(second) == ["llm:m"] * 3


def test_off_sends_and_summarises_nothing(state):
    model = ScriptedModel([])
    settings = SETTINGS.model_copy(update={"observer_mode": "off"})
    context, _ = apply_memory_bank_strategy(messages(4), model, settings, state)
    assert model.calls == []
    assert state.insight_store.size() == 0
    assert state.fact_store.size() == 4
    assert (state.pending, state.flush(1)) == (0, 0)
    assert context[-1] == messages(4)[-1]


def test_small_outputs_are_not_sent(state):
    model = ScriptedModel(lambda _m, _n: "by the model")
    settings = SETTINGS.model_copy(update={"observer_min_chars": 200})
    apply_memory_bank_strategy(messages(2, size=50) + messages(3)[5:], model, settings, state)
    assert state.flush(60) == 0
    assert len(model.calls) == 1
    assert sources(state) == ["extractive", "extractive", "llm:m"]


def test_a_reset_while_the_model_is_asked_leaves_an_empty_session(state, gate):
    apply_memory_bank_strategy(messages(2), gate.model, SETTINGS, state)
    state.reset()
    gate.open.set()
    assert state.flush(60) == 0
    state._insights.stop(30)
    assert state.insight_store.size() == 0
    assert state.fact_store.size() == 0


@pytest.mark.parametrize("mode", ["inline", "background"])
def test_a_budget_that_is_used_up_leaves_extraction_and_says_so(state, mode):
    model = ScriptedModel(lambda _m, _n: "by the model")
    settings = SETTINGS.model_copy(
        update={
            "observer_mode": mode,
            "observer_calls_per_day": 2,
        }
    )
    apply_memory_bank_strategy(messages(5), model, settings, state)
    assert state.flush(60) == 0
    assert len(model.calls) == 2
    assert sources(state) == ["extractive"] * 3 + ["llm:m"] * 2
    reasons = {i.redo for i in to_redo(state.insight_store)}
    assert reasons == {"the Observer's limit is reached (2 calls a day)"}


def test_a_budget_of_the_day_holds_for_eight_sessions_at_once(bank_url):
    model = ScriptedModel(lambda _m, _n: "by the model")
    settings = SETTINGS.model_copy(update={"observer_calls_per_day": 9})
    states = [MemoryBankState.open(bank_url, f"s{k}", "lexical") for k in range(8)]

    def run(state):
        for n in (1, 2, 3):
            apply_memory_bank_strategy(messages(n), model, settings, state)
        assert state.flush(60) == 0

    together(*[lambda s=s: run(s) for s in states])
    assert len(model.calls) == 9
    assert sum(sources(s).count("llm:m") for s in states) == 9
    for state in states:
        state.close()
