"""What every token counter must do. Import from tests only: it needs pytest."""

import pytest

from memory_bank.ports import TokenCounter

TEXTS = [
    "",
    "word",
    "<|endoftext|>",
    "a\ud800b",
    "nul\0nul",
    "中文 العربية 😀",
    "x" * 50_000,
    '{"a": [1, 2.5, null]}',
]


class TokenCounterContract:
    """Subclass it and override ``make_counter``."""

    def make_counter(self):
        """A counter."""
        raise NotImplementedError

    def test_it_says_what_it_is(self):
        counter = self.make_counter()
        assert isinstance(counter, TokenCounter)
        assert counter.name
        assert counter.approximate == (counter.name == "approximate")

    @pytest.mark.parametrize("text", TEXTS)
    def test_any_text_can_be_counted_the_same_way_every_time(self, text):
        counter = self.make_counter()
        count = counter.count_text(text)
        assert count == counter.count_text(text)
        assert (count == 0) == (text == "")
        assert count <= len(text.encode("utf-8", "surrogatepass")) + 1

    def test_more_text_costs_more(self):
        counter = self.make_counter()
        line = "The order ORD-48213 was shipped on 2026-03-11.\n"
        counts = [counter.count_text(line * n) for n in (1, 10, 100, 1_000)]
        assert counts == sorted(set(counts))
        assert 0.8 < counts[3] / (100 * counts[1]) < 1.2

    @pytest.mark.parametrize(
        "message",
        [
            {"role": "user", "content": "hello"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "x"}]},
            {"type": "function_call_output", "call_id": "a", "output": "x"},
            {},
            None,
            "text",
        ],
    )
    def test_any_message_costs_at_least_its_frame(self, message):
        assert self.make_counter().count_message(message) >= 4

    def test_content_and_calls_add_up(self):
        counter = self.make_counter()
        body = {"name": "find_order", "arguments": '{"id": 7}'}
        message = {"role": "assistant", "content": "Looking.", "tool_calls": [{"function": body}]}
        texts = ("Looking.", *body.values())
        assert counter.count_message(message) == 4 + sum(map(counter.count_text, texts))
