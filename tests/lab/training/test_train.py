"""What the evidence model is fitted to: the values that the calls which a fold serves take from it."""

import json

import numpy as np
from tests.chats import call, result, user

from memory_bank.lab.traces import Trace
from memory_bank.lab.training.train import HORIZON, LATER, collect, replay_steps
from memory_bank.selection.index import EvidenceIndex
from memory_bank.selection.model import FEATURE_NAMES, Model


def trace(after: int, *, shown_again: int | None = None) -> Trace:
    """A run whose first call finds an id that the call ``after`` that many interactions takes, and no other id.

    ``shown_again``: the interaction after the first one whose output has the id, too.
    """
    messages = [user("Close the ticket.")]
    for n in range(after + 1):
        found = "nothing here"
        arguments: dict[str, str] = {}
        if n in (0, shown_again):
            found = json.dumps({"ticket_id": "TCK-48213"})
        if n == after:
            arguments = {"ticket_id": "TCK-48213"}
        messages += [call((f"c{n}", "look", arguments)), result(f"c{n}", found)]
    return Trace("one", messages)


def weights(run: Trace) -> list[float]:
    """The weight of the id, and of the parts of it, at each step at which it is needed, oldest first."""
    values = collect([run]).values
    needed = values.y > 0
    found = [set(values.w[needed & (values.step == step)].tolist()) for step in np.unique(values.step)]
    assert all(len(of_step) == 1 for of_step in found)
    return [w for of_step in found for w in of_step]


def test_a_value_that_is_needed_five_interactions_later_is_needed_now():
    # the steps from interaction 2 on have the first output among the older history; the last one takes the id itself
    assert np.allclose(weights(trace(after=7)), [LATER**n for n in (5, 4, 3, 2, 1, 0)])


def test_a_value_that_an_output_shows_in_between_is_not_needed_now():
    # steps 2 and 3 come before the output of interaction 3; from step 5 on the older history has it
    assert np.allclose(weights(trace(after=7, shown_again=3)), [LATER**n for n in (2, 1, 0)])


def test_what_is_needed_after_the_horizon_is_not_needed_now():
    found = weights(trace(after=HORIZON + 4))
    assert len(found) == HORIZON
    assert np.allclose(found[0], LATER ** (HORIZON - 1))


def test_a_step_serves_the_interactions_of_the_horizon():
    zero, none = np.zeros(len(FEATURE_NAMES), np.float32), np.zeros((0, 1), np.float32)
    index = EvidenceIndex(Model(zero, 0.0, none.astype(np.int32), none, none, 0.0, 0.0))
    steps = list(replay_steps(trace(after=30).messages, index))
    assert [len(s.later) for s in steps] == [min(HORIZON, 31 - n) for n in range(31)]
    assert all(s.later[0][0] == s.arguments for s in steps)
