"""Counting tokens: exact where there is a vocabulary, labelled where there is none, never raising."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.chats import any_chats, call, result, user
from tests.contracts.counter import TokenCounterContract
from tests.growth import LINEAR, growth

from memory_bank.transcript.tokens import (
    MessageCounter,
    approximate_count,
    approximate_counter,
    encoding_counter,
    open_counter,
)

counter = approximate_counter()


class TestApproximate(TokenCounterContract):
    def make_counter(self):
        return approximate_counter()


class TestTiktoken(TokenCounterContract):
    """A real tiktoken encoding: the smallest there is, bytes as tokens, since no vocabulary can be fetched."""

    def make_counter(self):
        import tiktoken

        encoding = tiktoken.Encoding(
            "bytes",
            pat_str=r"[\s\S]",
            mergeable_ranks={bytes([i]): i for i in range(256)},
            special_tokens={"<|endoftext|>": 256},
        )
        return MessageCounter("bytes", False, encoding_counter(encoding))


@given(any_chats())
def test_any_message_can_be_counted(messages):
    for message in messages:
        assert counter.count_message(message) >= 4


@pytest.mark.parametrize("text", ["<|endoftext|>", "\ud800", "\0", "中文字符", "a" * 100])
def test_odd_text_counts(text):
    assert counter.count_text(text) > 0
    assert open_counter("o200k_base").count_text(text) > 0


def test_without_a_vocabulary_the_count_is_labelled(monkeypatch, tmp_path):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    found = open_counter("r50k_base")
    assert (found.name, found.approximate) == ("approximate", True)


@given(st.text() | st.text('aZ09 -_{"\n€é\ud800'))
def test_an_estimate_counts_parts_of_words_and_runs_of_signs(text):
    words = re.findall(r"[A-Za-z]{1,8}|[0-9]{1,3}", text)
    signs = re.findall(r"[!-/:-@\[-`{-~]+", text)
    beyond = re.findall(r"[^\x00-\x7f]", text)
    tokens = len(words) + 1.1 * len(signs) + 0.5 * text.count("\n") + 0.8 * len(beyond)
    assert approximate_count(text) == (max(1, round(tokens)) if text else 0)


def test_an_unknown_encoding_is_approximate():
    assert open_counter("no_such_encoding").approximate


def test_a_vocabulary_is_held_without_its_table_unless_the_program_has_it(monkeypatch):
    """The table of o200k_base takes 24 MB; what a program gets of tiktoken itself has it."""
    import tiktoken
    from tiktoken import registry

    ranks = {bytes([i]): i for i in range(256)} | {b"ab": 256}
    opened = []

    def construct(name):
        opened.append(name)
        return {"name": name, "pat_str": r"[\s\S]+", "mergeable_ranks": dict(ranks), "special_tokens": {}}

    assert tiktoken.list_encoding_names()
    for name in ("with-memory", "with-program"):
        monkeypatch.setitem(registry.ENCODING_CONSTRUCTORS, name, lambda name=name: construct(name))
    theirs = tiktoken.get_encoding("with-program")
    for name in ("with-memory", "with-program"):
        counter = open_counter(name)
        assert (counter.name, counter.count_text("abab c")) == (name, 4)
    assert opened == ["with-program", "with-memory"]
    assert theirs._mergeable_ranks == tiktoken.get_encoding("with-memory")._mergeable_ranks == ranks


def test_calls_and_results_cost():
    assert counter.count_message(call(("a", "find", {"q": "x" * 400}))) > 50
    assert counter.count_message(result("a", "x " * 100)) > 90
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:" + "A" * 10_000}}]}
    assert counter.count_message(image) < 1_000
    assert counter.count_message(user("")) == 4


def test_what_a_model_thought_in_a_chat_costs_once():
    turn, thought = call(("a", "find", {})), "so " * 200
    plain = counter.count_message(turn)
    assert counter.count_message(turn | {"reasoning_content": thought}) > plain + 190
    details = [{"type": "reasoning.text", "text": thought, "signature": "x" * 900}]
    both = counter.count_message(turn | {"reasoning": thought, "reasoning_details": details})
    assert plain + 190 < both < plain + 250


def test_what_is_no_thought_costs_nothing():
    class Array:  # as numpy's
        def __bool__(self):
            raise ValueError

    turn = call(("a", "find", {}))
    for odd in (Array(), 5, {"a": 1}, None, "", []):
        assert counter.count_message(turn | {"reasoning": odd}) == counter.count_message(turn)


def test_a_hundred_megabytes_cost_little():
    def count(words):
        assert 0.95 * words < counter.count_text("word " * words) < 1.05 * words

    assert growth(count, 20_000_000) < LINEAR


@given(st.text(max_size=200))
def test_chunks_change_little(text):
    whole = text * 200
    chunked = MessageCounter("x", True, approximate_count).count_text(whole)
    assert abs(chunked - approximate_count(whole)) <= 0.05 * approximate_count(whole) + 10


UNKNOWN_PARTS = [
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x" * 4000},
    {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c1", "id": "fc_1"},
    {"type": "thinking", "thinking": "abc", "signature": "z" * 4000},
    {"type": "tool_use", "id": "x", "name": "y", "input": {}},
    {"type": "refusal", "refusal": "no"},
    {"type": "tool_result", "tool_use_id": "x", "content": [{"type": "text", "text": "words"}]},
    {"type": "of_tomorrow"},
    {"type": 7},
]


@pytest.mark.parametrize("part", UNKNOWN_PARTS)
def test_a_part_of_unknown_type_counts_its_text(part):
    """As if it were an image, it would count 765 tokens."""
    counter = open_counter("approximate")
    assert 4 < counter.count_message({"role": "assistant", "content": [part]}) < 60


@pytest.mark.parametrize(
    "kind", ["image", "image_url", "input_image", "input_file", "document", "input_audio"]
)
def test_images_and_files_count_the_same(kind):
    counter = open_counter("approximate")
    assert counter.count_message({"role": "user", "content": [{"type": kind, "data": "A" * 9999}]}) == 769


def test_a_document_of_text_counts_its_text():
    part = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "word " * 10}}
    assert open_counter("approximate").count_message({"role": "user", "content": [part]}) == 14
