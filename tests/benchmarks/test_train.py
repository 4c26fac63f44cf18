"""What the evidence model is fitted to: the values that the calls which a fold serves take from it."""

import json
from pathlib import Path

import numpy as np
import pytest
from benchmarks.train_held_out import sets_in
from benchmarks.training.train import HORIZON, LATER, collect, replay_steps

from memory_bank.audit.traces import Trace
from memory_bank.selection.index import EvidenceIndex
from memory_bank.selection.model import FEATURE_NAMES, Model
from tests.chats import call, result, user


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


@pytest.mark.long
def test_a_model_is_written_only_when_it_wins(verbs, tmp_path):
    lines = []
    for i in range(30):  # runs in which the next call always takes the last row's code
        messages = [user("Open every item of the list, one after another.")]
        for n in range(6):
            rows = [{"title": f"thing {r}", "code": f"Q{i}{n}{r}-zz"} for r in range(12)]
            arguments = {"code": f"Q{i}{n - 2}{11}-zz"} if n > 1 else {}
            messages += [call((f"c{n}", "open", arguments)), result(f"c{n}", json.dumps(rows))]
        lines.append(json.dumps({"id": f"t{i}", "messages": messages}))
    file = tmp_path / "runs.jsonl"
    file.write_text("\n".join(lines))
    model = tmp_path / "model.json"
    done = verbs("train", file, "--out", model, "--json")
    assert done.code == 0, done.err
    figures = json.loads(done.out)
    assert figures["new"] < figures["present"]
    again = verbs("train", file, "--out", tmp_path / "second.json", "--against", model)
    assert again.code == 1
    assert "does not win" in again.out
    assert not (tmp_path / "second.json").exists()
    few = tmp_path / "few.jsonl"
    few.write_text(lines[0])
    done = verbs("train", few, "--out", tmp_path / "x.json")
    assert done.code == 1
    assert "too few calls" in done.err


def test_the_set_that_is_reported_on_trains_no_model(tmp_path: Path):
    for name, size in (("small.jsonl", 1), ("passed_dev.jsonl.gz", 9), ("long.jsonl.gz", 5)):
        (tmp_path / name).write_bytes(bytes(size))
    assert [path.name for path in sets_in(tmp_path)] == ["long.jsonl.gz", "small.jsonl"]
