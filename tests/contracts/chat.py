"""The contract of the port ChatModel, to be subclassed by the tests of every chat model."""

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest

from memory_bank.models.chat import reply_text

MESSAGES = [
    {"role": "system", "content": "You are terse."},
    {"role": "user", "content": "Naïve question: 数 “12”?\n\t<|endoftext|>"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "count", "arguments": '{"of": "things"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": '{"n": 12}'},
]


class ChatModelContract:
    """Subclass as ``class TestMine(ChatModelContract)`` and give ``make_model``."""

    failure: type[Exception] = Exception
    """What a model raises when it fails."""

    def make_model(self, replies):
        """A new model that gives these replies in turn: a str is text, None no text, an Exception fails."""
        raise NotImplementedError("a ChatModelContract needs make_model")

    def received(self, model):
        """The (messages, model name) of each call as they arrived; by default those of ``.calls``."""
        if not hasattr(model, "calls"):
            pytest.skip(f"{type(model).__name__} does not show what it received: override received()")
        return [(list(call.messages), call.model) for call in model.calls]

    def test_the_text_of_the_answer_comes_back(self):
        model = self.make_model(["first\nline", "zweite — 二"])
        assert reply_text(model.generate_plain(input_messages=MESSAGES, model="m")) == "first\nline"
        assert reply_text(model.generate_plain(input_messages=MESSAGES, model="m")) == "zweite — 二"

    def test_messages_and_model_name_arrive_as_given(self):
        model = self.make_model(["yes"])
        model.generate_plain(input_messages=copy.deepcopy(MESSAGES), model="some/model-1")
        assert self.received(model) == [(MESSAGES, "some/model-1")]

    def test_messages_are_not_changed(self):
        model = self.make_model(["yes"])
        messages = copy.deepcopy(MESSAGES)
        model.generate_plain(input_messages=messages, model="m")
        assert messages == MESSAGES

    @pytest.mark.parametrize("nothing", ["", None])
    def test_an_empty_reply_is_seen_as_empty(self, nothing):
        model = self.make_model([nothing])
        assert reply_text(model.generate_plain(input_messages=MESSAGES, model="m")) == ""

    def test_an_error_raises_and_the_next_call_is_answered(self):
        model = self.make_model([RuntimeError("scripted"), "well again"])
        with pytest.raises(self.failure):
            model.generate_plain(input_messages=MESSAGES, model="m")
        assert reply_text(model.generate_plain(input_messages=MESSAGES, model="m")) == "well again"

    def test_eight_threads_are_all_answered(self):
        expected = [f"answer {i}" for i in range(32)]
        model = self.make_model(list(expected))

        def ask(i):
            return reply_text(
                model.generate_plain(input_messages=[{"role": "user", "content": str(i)}], model="m")
            )

        with ThreadPoolExecutor(8) as pool:
            assert sorted(pool.map(ask, range(32))) == sorted(expected)
