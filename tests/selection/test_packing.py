"""What is packed: each value once, none that the context shows anyway, none in a part that is cut off."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples
from tests.selection.texts import ANY_TEXT, filled, words

from memory_bank.selection.index import EvidenceIndex, Selection
from memory_bank.selection.values import fold, stands_in


def chosen(
    index: EvidenceIndex,
    worth: dict[str, float],
    budget: int = 4_000,
    prices: Sequence[int] | None = None,
) -> Selection:
    """What is chosen of all records where some values, by their form, are worth something."""
    t = index.tables
    by_value = np.zeros(t.values.size)
    for form, gain in worth.items():
        by_value[t.ids[form]] = gain
    return index.choose(by_value, t.records.size, budget, prices or [20] * t.records.size)


def quotes(index: EvidenceIndex, selection: Selection) -> str:
    return fold("\n".join(index.quote(r, places, selection)[0] for r, places in selection.shown.items()))


NOTES = st.lists(
    st.sampled_from(["paid", "back", "after", "B-22", "C-303", "C-30", "late"]), max_size=30
).map(" ".join)
ROWS = st.lists(
    st.dictionaries(st.sampled_from(["id", "note", "text", "ref", "state"]), NOTES, min_size=1, max_size=5),
    min_size=1,
    max_size=5,
)
LINE = "and nothing else that could be of any use to anyone who reads it later on "


@examples(60)
@given(
    st.lists(
        ROWS.map(json.dumps) | ROWS.map(lambda rows: json.dumps(rows, indent=1)), min_size=1, max_size=4
    ),
    st.data(),
)
def test_a_value_that_was_chosen_stands_in_the_quote(outputs, data):
    """Short forms never cut it off."""
    index = filled(*outputs)
    if not index.tables.forms:
        return
    value = data.draw(st.sampled_from(list(index.tables.forms)))
    selection = chosen(index, {value: 1.0})
    assert stands_in(value, quotes(index, selection))


@examples(100)
@given(st.lists(ANY_TEXT | ROWS.map(json.dumps), min_size=1, max_size=4), st.randoms(), st.integers(10, 600))
def test_short_forms_show_the_values_that_they_are_said_to_show(outputs, random, budget):
    index = filled(*outputs)
    t = index.tables
    for segment in range(t.segments.size):
        form = index.short_form(segment)
        if form is not None:
            record = int(t.segments["record"][segment])
            place = segment - t.first_segment[record]
            text = fold(t.parsed[record].cut.segments[place].short())
            assert form.tokens <= t.segments["tokens"][segment]
            for candidate, is_shown in zip(t.parsed[record].candidates[place], form.shown, strict=True):
                assert stands_in(candidate.form, text) or not is_shown
    worth = {form: random.random() for form in t.forms}
    selection = chosen(index, worth, budget)
    spent = sum(words(index.quote(r, places, selection)[0]) for r, places in selection.shown.items())
    assert spent <= budget or len(selection.gains) == 1


def test_a_value_that_is_cut_off_is_not_shown_by_a_longer_one():
    note = "please look at this one again, and then at the older C-{}0"
    rows = [{"id": f"C-{n}03", "note": note.format(n), "state": "late"} for n in range(3, 9)]
    index = filled(json.dumps(rows))
    for value in ("c-30", "c-303"):
        assert stands_in(value, quotes(index, chosen(index, {value: 1.0})))
    assert chosen(index, {"c-303": 1.0}).short
    assert not chosen(index, {"c-30": 1.0}).short


@examples(60)
@given(st.integers(10, 99_999), st.sampled_from(["order_id", "query", "path"]), st.booleans())
def test_what_its_arguments_show_is_not_quoted_again_from_an_output(number, key, as_json):
    form = f"ord-{number}"
    output = (
        json.dumps({"id": form, "note": LINE * 4}) if as_json else f"found: {form} {LINE * 3}\n{LINE * 4}"
    )
    assert chosen(filled(("get", {"page": 1}, output)), {form: 1.0}).gains
    assert not chosen(filled(("get", {key: form}, output)), {form: 1.0}).gains


def test_a_value_that_an_opened_call_shows_is_worth_nothing_elsewhere():
    """Choosing another piece of the call shows its arguments."""
    index = filled(("get", {"order_id": "ORD-1"}, f"payment: PAY-77 {LINE}"), f"late: ORD-1 {LINE * 4}")
    both = chosen(index, {"ord-1": 1.0, "pay-77": 1.0})
    assert list(both.shown) == [0]
    assert list(chosen(index, {"ord-1": 1.0}).shown) == [1]


def test_a_long_argument_that_is_cut_off_shows_nothing():
    script = f"{'print(1)  ' * 20} look at ORD-4711 {'print(2)  ' * 20}"
    index = filled(("get", {"code": script}, f"found: ORD-4711 {LINE}"))
    assert chosen(index, {"ord-4711": 1.0}).gains


def test_what_the_list_of_calls_shows_is_worth_nothing():
    index = filled(*[f"ticket: TCK-{n}99 {LINE * 2}" for n in range(9)])
    anchor = ["Close the tickets."]

    def gain(listed: str) -> dict[int, float]:
        selection = index.select(
            anchor=anchor, tail_interaction=9, budget=4_000, prices=[20] * 9, listed=listed
        )
        return {int(index.tables.segments["record"][s]): g for s, g in selection.gains.items()}

    without, listed = gain(""), gain("#4 get → ticket=TCK-399\n")
    assert without[3] > 0
    assert listed.get(3, 0.0) < without[3]


def test_a_value_in_several_segments_is_chosen_once():
    index = filled(*[f"paid: PAY-5 {LINE * (n + 1)}" for n in range(4)])
    selection = chosen(index, {"pay-5": 1.0})
    assert len(selection.gains) == 1
    assert list(selection.shown) == [0]  # the shortest
