"""Text that the next call may copy: features of segments, labels from recorded runs, their place in the packing."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
from benchmarks.training.fitting import Samples, fit_copied
from benchmarks.training.train import CopiedText
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples
from tests.selection.texts import ANY_TEXT, filled

from memory_bank.selection.model import COPY_FEATURES, CurrentStep, describe_segments

LINE = "total = sum(row.amount for row in rows if row.paid)"


@examples(80)
@given(st.lists(st.tuples(ANY_TEXT, ANY_TEXT), min_size=1, max_size=4))
def test_every_segment_has_finite_features_and_a_chance(calls):
    index = filled(*[("t", arguments * 3, output, arguments[:200]) for arguments, output in calls])
    index.tables.set_anchor(["x"])
    for tail in range(len(calls) + 1):
        last = index.tables.segments_before(tail)
        x = describe_segments(CurrentStep(index.tables, tail), last)
        assert x.shape == (len(COPY_FEATURES), last) and np.isfinite(x).all()
        chance = index.model.copy_chance(x)
        assert ((chance >= 0) & (chance <= 1)).all()


def test_the_latest_copy_that_the_context_does_not_show_counts():
    call = json.dumps({"old": LINE, "new": "x"})
    index = filled(LINE, f"a line before it\n{LINE}", "nothing of it")
    copied = CopiedText([call])
    copied.follow(index)
    first = index.tables.first_segment
    assert copied.sources([call], index.tables.segments_before(2), "") == {first[1]}
    assert copied.sources([call], index.tables.segments_before(2), LINE) == set()  # the anchor shows it
    assert copied.sources([call], index.tables.segments_before(1), "") == set()  # the tail shows it


def test_arguments_are_compared_as_the_strings_in_them():
    index = filled(LINE, "nothing of it", "nothing")
    last = index.tables.segments_before(2)
    for call, found in ((json.dumps({"a": [LINE, "short"], "n": 3}), True), (LINE, True), (LINE[:23], False)):
        copied = CopiedText([call])
        copied.follow(index)
        assert bool(copied.sources([call], last, "")) is found, call


def test_the_fit_finds_what_is_copied():
    random = np.random.default_rng(0)
    x = random.random((4000, len(COPY_FEATURES))).astype(np.float32)
    y = x[:, 0] + 0.3 * random.random(4000) > 1
    weights = fit_copied([Samples(x, y, np.ones(4000, np.float32), *np.zeros((2, 4000), np.int64))])
    odds = x @ weights[:-1] + weights[-1]
    assert weights[0] == max(weights[:-1])
    assert odds[y].mean() > odds[~y].mean() + 2
    assert not len(fit_copied([]))


def test_text_that_is_likely_to_be_copied_is_shown_first():
    words = [f"word{chr(97 + n)}" for n in range(15)]
    outputs = [" ".join(words[n:] + words[:n]) + " and so on." for n in range(len(words))]
    index = filled(*outputs, "the last")
    weights = np.zeros(len(COPY_FEATURES) + 1, np.float32)
    chosen = {}
    for bias in (-30.0, 30.0):
        weights[-1] = bias
        index.model = replace(index.model, copied=weights.copy())
        chosen[bias] = index.select(anchor=["x"], tail_interaction=len(outputs), budget=300)
        assert index.tables.segments["copied"][: index.tables.segments_before(len(outputs))].min() >= 0
        assert chosen[bias].tokens <= 300
    assert not chosen[-30.0].shown
    assert chosen[30.0].shown


def test_of_equal_texts_one_is_shown():
    index = filled(
        *["alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi."] * 3, "the last"
    )
    index.model = replace(index.model, copied=np.array([0.0] * len(COPY_FEATURES) + [30], np.float32))
    assert len(index.select(anchor=["x"], tail_interaction=3, budget=300).shown) == 1
