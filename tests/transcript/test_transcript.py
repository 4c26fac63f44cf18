"""A conversation as it grows: cheap steps, and the same outcome as reading everything anew."""

import copy
import json

from hypothesis import given
from hypothesis import strategies as st
from tests.chats import any_chats, call, good_chats, result, rounds, say, system, user

from memory_bank.transcript.tokens import approximate_counter
from memory_bank.transcript.transcript import Transcript


def transcript() -> Transcript:
    return Transcript("s", approximate_counter())


class Counting:
    name, approximate, seen = "counting", True, 0

    def count_text(self, text):
        return 1

    def count_message(self, message):
        self.seen += 1
        return 1


def shape(view):
    return (
        [(e.start, e.stop, e.fault, e.trace_ids, e.tokens) for e in view.interactions],
        list(view.kept),
        view.tail_start,
        view.task,
        view.full_tokens,
    )


@given(any_chats(), st.data())
def test_growing_step_by_step_equals_reading_at_once(messages, data):
    growing = transcript()
    stops = sorted(data.draw(st.sets(st.integers(0, len(messages)), max_size=5)))
    for stop in [*stops, len(messages)]:
        view = growing.update(messages[:stop])
        growing.acknowledge()
        assert shape(view) == shape(transcript().update(messages[:stop]))


@given(any_chats(), any_chats(), st.data())
def test_a_fork_equals_reading_at_once(first, second, data):
    growing = transcript()
    growing.update(first)
    cut = data.draw(st.integers(0, len(first)))
    forked = first[:cut] + second
    assert shape(growing.update(forked)) == shape(transcript().update(forked))
    assert shape(growing.update(first)) == shape(transcript().update(first))


@given(good_chats())
def test_input_is_never_changed(messages):
    before = copy.deepcopy(messages)
    c = transcript()
    c.update(messages)
    c.update(messages)
    assert json.dumps(messages) == json.dumps(before)


def test_a_message_edited_in_place_is_noticed():
    messages = [user(), *rounds(3)]
    c = transcript()
    c.update(messages)
    messages[2]["content"] = "edited"
    assert shape(c.update(messages)) == shape(transcript().update(messages))
    messages[1]["tool_calls"][0]["function"]["arguments"] = '{"number": 99}'
    assert shape(c.update(messages)) == shape(transcript().update(messages))


def test_an_old_message_edited_in_place_is_noticed_in_time():
    messages = [user(), *rounds(400)]
    c = transcript()
    c.update(messages)
    messages[2]["content"] = "edited"
    for _ in range(4):
        view = c.update(messages)
    assert shape(view) == shape(transcript().update(messages))


@given(good_chats(), st.data())
def test_an_edited_prompt_equals_reading_at_once(messages, data):
    c = transcript()
    c.update(messages)
    for _ in range(3):
        i = data.draw(st.integers(0, len(messages) - 1))
        messages[i] = {
            **messages[i],
            "content": data.draw(st.sampled_from(["now", "", None, "later than now"])),
        }
        assert shape(c.update(messages)) == shape(transcript().update(messages))


def test_a_system_prompt_that_changes_at_every_step_costs_no_parsing():
    counter = Counting()
    c = Transcript("s", counter)
    messages = [system(), user(), *rounds(100)]
    c.update(messages)
    for i in range(10):
        c.update([system(f"It is {i} o'clock."), *messages[1:]])
    assert counter.seen == len(messages) + 10


def test_each_message_is_counted_once():
    counter = Counting()
    c = Transcript("s", counter)
    messages = [system(), user()]
    for i in range(50):
        messages += rounds(1, start=i)
        c.update(messages)
        c.update(json.loads(json.dumps(messages)))  # a client that sends its list as new objects
    assert counter.seen == len(messages)


def test_a_list_with_nothing_new_is_not_read_again():
    read, messages = transcript(), [user(), *rounds(3)]
    tail = read.update(messages).tail
    assert read.update(copy.deepcopy(messages)).tail is tail
    assert read.update(messages[:-2]).tail != tail
    assert read.update(messages).tail == tail


def test_a_view_names_what_is_new_and_the_tail_until_acknowledged():
    c = transcript()
    messages = [user(), *rounds(3)]
    assert len(c.update(messages).new) == 3
    assert len(c.update(messages).new) == 3  # not acknowledged: still new
    c.acknowledge()
    messages += rounds(1, start=3)
    assert [interaction.start for interaction in c.update(messages).new] == [5, 7]


def test_equal_calls_are_two_records_and_a_dropped_beginning_changes_no_id():
    same = [call(("a", "poll", {})), result("a", "pending")]
    messages = [user(), *copy.deepcopy(same), *copy.deepcopy(same), *rounds(1)]
    c = transcript()
    ids = [e.trace_ids[0] for e in c.update(messages).interactions]
    assert len(set(ids)) == 3
    shorter = [messages[0], *messages[3:]]
    assert [e.trace_ids[0] for e in c.update(shorter).interactions] == [ids[0], ids[2]]


def test_other_sessions_get_other_ids():
    messages = [user(), *rounds(1)]
    a, b = (Transcript(s, approximate_counter()).update(messages).interactions[0].trace_ids for s in "ab")
    assert a != b


def test_what_is_kept_and_what_is_tail():
    messages = [
        system(),
        user(),
        *rounds(2),
        say("Done so far."),
        user("Go on."),
        *rounds(1, start=2),
        say("hm"),
        user("?"),
    ]
    view = transcript().update(messages)
    assert [messages[p] for p in view.kept] == [system(), user(), say("Done so far."), user("Go on.")]
    assert view.tail_start == 8
    assert len(view.history) == 2


def test_a_broken_interaction_is_folded_as_a_whole():
    messages = [user(), call(("a", "x", {})), user("never mind"), *rounds(2)]
    view = transcript().update(messages)
    assert list(view.kept) == [0, 2]
    assert [(t.start, t.stop) for t in view.history] == [(1, 2), (3, 5)]
    assert view.interactions[0].trace_ids == (None,)


def test_values_nested_ten_thousand_deep_inside_a_message():
    deep = nested = {}
    for _ in range(10_000):
        nested["a"] = {}
        nested = nested["a"]
    turn = {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": deep}}]}
    messages = [user(), turn, result("a", [deep]), *rounds(1)]
    c = transcript()
    first = c.update(messages)
    assert shape(c.update(messages)) == shape(first)
    deep.clear()
