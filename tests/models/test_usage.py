"""The forms in which providers report the tokens and the cost of an answer."""

import json
import re
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_bank.config import Price
from memory_bank.models.usage import NO_USAGE, add_usage, merge_usage, read_usage, usages_of
from memory_bank.pricing import Usage, cost, costs

SAME = Usage(1000, 800, 0, 50)  # 1,000 tokens of input, 800 of them from the cache, 50 of output
WROTE = Usage(1000, 700, 200, 50)
OPENAI = {"prompt_tokens": 1000, "completion_tokens": 50, "total_tokens": 1050}
RESPONSES = {"input_tokens": 1000, "output_tokens": 50, "total_tokens": 1050}
MESSAGES = {"input_tokens": 100, "cache_read_input_tokens": 700, "output_tokens": 50}

FORMS = {
    "openai chat": ({**OPENAI, "prompt_tokens_details": {"cached_tokens": 800}}, SAME),
    "openai responses": ({**RESPONSES, "input_tokens_details": {"cached_tokens": 800}}, SAME),
    "openai writes": (
        {**OPENAI, "prompt_tokens_details": {"cached_tokens": 700, "cache_write_tokens": 200}}, WROTE,
    ),
    "responses writes": (
        {**RESPONSES, "input_tokens_details": {"cached_tokens": 700, "cache_write_tokens": 200}}, WROTE,
    ),
    "no cache": (OPENAI, Usage(1000, 0, 0, 50)),
    "null details": ({**OPENAI, "prompt_tokens_details": None}, Usage(1000, 0, 0, 50)),
    "null count": ({**OPENAI, "prompt_tokens_details": {"cached_tokens": None}}, Usage(1000, 0, 0, 50)),
    "kimi": ({**OPENAI, "cached_tokens": 800}, SAME),
    "deepseek": ({**OPENAI, "prompt_cache_hit_tokens": 800, "prompt_cache_miss_tokens": 200}, SAME),
    "deepseek and details": (
        {**OPENAI, "prompt_cache_hit_tokens": 800, "prompt_cache_miss_tokens": 200,
         "prompt_tokens_details": {"cached_tokens": 0}}, SAME,
    ),
    "deepseek alone": (
        {"prompt_cache_hit_tokens": 800, "prompt_cache_miss_tokens": 200, "completion_tokens": 50}, SAME,
    ),
    "mistral": ({**OPENAI, "num_cached_tokens": 800, "prompt_audio_seconds": {}}, SAME),
    "mistral details": ({**OPENAI, "prompt_token_details": {"cached_tokens": 800}}, SAME),
    "vllm": ({**OPENAI, "prompt_tokens_details": {"cached_tokens": 800}, "completion_tokens_details": None}, SAME),
    "groq": ({**OPENAI, "queue_time": 0.1, "prompt_time": 0.2, "prompt_tokens_details": {"cached_tokens": 800}}, SAME),
    "ollama": ({"prompt_eval_count": 1000, "eval_count": 50}, Usage(1000, 0, 0, 50)),
    "floats": ({"prompt_tokens": 1000.0, "completion_tokens": 50.0, "cached_tokens": 800.0}, SAME),
    "texts": ({"prompt_tokens": "1000", "completion_tokens": "50", "cached_tokens": "800.0"}, SAME),
    "messages": ({**MESSAGES, "cache_creation_input_tokens": 200}, WROTE),
    "messages, nothing cached": ({"input_tokens": 1000, "output_tokens": 50}, Usage(1000, 0, 0, 50)),
    "an hour": (
        {**MESSAGES, "cache_creation_input_tokens": 200,
         "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 200}},
        Usage(1000, 700, 200, 50, 200),
    ),
    "both lifetimes": (
        {**MESSAGES, "cache_creation": {"ephemeral_5m_input_tokens": 50, "ephemeral_1h_input_tokens": 150}},
        Usage(1000, 700, 200, 50, 150),
    ),
    "a gateway to messages": (
        {**OPENAI, "prompt_tokens_details": {"cached_tokens": 700}, "cache_read_input_tokens": 700,
         "cache_creation_input_tokens": 200}, WROTE,
    ),
    "a gateway, an hour": (
        {**OPENAI, "prompt_tokens_details": {
            "cached_tokens": 700, "cache_creation_tokens": 200,
            "cache_creation_token_details": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 200}}},
        Usage(1000, 700, 200, 50, 200),
    ),
    "a gateway that leaves the cache out": (
        {"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 1050,
         "cache_read_input_tokens": 700, "cache_creation_input_tokens": 200}, WROTE,
    ),
    "a gateway that counts the cache in": ({**RESPONSES, "cache_read_input_tokens": 800}, SAME),
    "details that leave the cache out": (
        {"prompt_tokens": 200, "completion_tokens": 50, "total_tokens": 1050, "prompt_tokens_details": {"cached_tokens": 800}},
        SAME,
    ),
    "two names, one of them zero": (
        {**OPENAI, "input_tokens": 0, "output_tokens": 0, "prompt_tokens_details": {"cached_tokens": 800}}, SAME,
    ),
    "bedrock": (
        {"inputTokens": 100, "outputTokens": 50, "totalTokens": 1050, "cacheReadInputTokens": 700,
         "cacheWriteInputTokens": 200}, WROTE,
    ),
    "bedrock, an hour": (
        {"inputTokens": 100, "outputTokens": 50, "cacheReadInputTokens": 700, "cacheWriteInputTokens": 200,
         "cacheDetails": [{"ttl": "1h", "inputTokens": 150}, {"ttl": "5m", "inputTokens": 50}]},
        Usage(1000, 700, 200, 50, 150),
    ),
    "gemini": (
        {"promptTokenCount": 1000, "candidatesTokenCount": 20, "thoughtsTokenCount": 30, "totalTokenCount": 1050,
         "cachedContentTokenCount": 800, "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 1000}]}, SAME,
    ),
    "gemini as openai": ({"prompt_tokens": 1000, "completion_tokens": 20, "total_tokens": 1050}, Usage(1000, 0, 0, 50)),
    "reasoning beside the output": (
        {"prompt_tokens": 1000, "completion_tokens": 20, "total_tokens": 1050,
         "completion_tokens_details": {"reasoning_tokens": 30}, "prompt_tokens_details": {"cached_tokens": 800}}, SAME,
    ),
    "reasoning in the output": (
        {**OPENAI, "completion_tokens_details": {"reasoning_tokens": 30}, "cached_tokens": 800}, SAME,
    ),
    "a compaction": (
        {"input_tokens": 1, "output_tokens": 1, "iterations": [
            {"input_tokens": 50, "cache_read_input_tokens": 700, "output_tokens": 20},
            {"input_tokens": 50, "cache_creation_input_tokens": 200, "output_tokens": 30}]}, WROTE,
    ),
}  # fmt: skip

UNTOLD = {
    "nothing": (None, "has no usage"),
    "an empty one": ({}, "has no usage"),
    "no counts": ({"total_cost": None, "prompt_tokens": None, "completion_tokens": None}, "has no usage"),
    "zeros": ({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}, "counts no input tokens"),
    "output alone": ({"completion_tokens": 5}, "no count of input tokens"),
    "more cached than input": (
        {"prompt_tokens": 100, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 900}},
        "more cached tokens than input tokens",
    ),
    "negative input": ({"prompt_tokens": -5, "completion_tokens": 5}, r"\(prompt_tokens\)"),
    "negative cached": ({**OPENAI, "prompt_tokens_details": {"cached_tokens": -1}}, r"\(cached_tokens\)"),
    "words": ({"prompt_tokens": "many", "completion_tokens": 5}, r"\(prompt_tokens\)"),
    "true": ({"prompt_tokens": True, "completion_tokens": 5}, r"\(prompt_tokens\)"),
    "not a number": ({"prompt_tokens": float("nan")}, r"\(prompt_tokens\)"),
    "without end": ({"prompt_tokens": "inf"}, r"\(prompt_tokens\)"),
    "too many": ({"prompt_tokens": 1e30}, r"\(prompt_tokens\)"),
    "a negative bill": ({**OPENAI, "cost": -1}, r"\(cost\)"),
}


@pytest.mark.parametrize(("usage", "tokens"), FORMS.values(), ids=FORMS)
def test_every_form_is_read(usage, tokens):
    assert read_usage(usage).tokens == tokens
    assert read_usage(usage).untold is None
    as_objects = json.loads(json.dumps(usage), object_hook=lambda members: SimpleNamespace(**members))
    assert read_usage(as_objects).tokens == tokens


@pytest.mark.parametrize(("usage", "reason"), UNTOLD.values(), ids=UNTOLD)
def test_a_usage_that_cannot_be_read_says_why(usage, reason):
    found = read_usage(usage)
    assert found.tokens is None
    assert re.search(reason, found.untold)


@pytest.mark.parametrize(
    ("members", "billed"),
    [
        ({"cost": 0.0123}, 0.0123),
        ({"cost": "0.0123"}, 0.0123),
        ({"cost": 0}, 0.0),
        ({"cost": None}, None),
        ({"cost": {"input_tokens_cost": 0.01, "total_cost": 0.0123}}, 0.0123),
        ({"estimated_cost": 0.0123}, 0.0123),
        ({"cost_in_usd_ticks": 123_000_000}, 0.0123),
        ({"cost": 0.01, "is_byok": False, "cost_details": {"upstream_inference_cost": 0.01}}, 0.01),
        ({"cost": 0.01, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.2}}, 0.21),
        ({"cost": 0.95, "cost_details": {"upstream_inference_cost": 19}}, 19.95),  # their documentation
        ({"cost": 0.01, "cost_details": {"upstream_inference_cost": None}}, 0.01),
    ],
)
def test_a_bill_in_the_usage(members, billed):
    assert read_usage({**OPENAI, **members}).billed == pytest.approx(billed)


def test_what_calls_cost():
    price = Price(prompt=2, completion=10, cached=0.2, cache_write=2.5)
    assert cost(Usage(1000, 700, 200, 50, 200), price) == pytest.approx(
        (100 * 2 + 700 * 0.2 + 200 * 4 + 50 * 10) / 1e6
    )
    assert cost(Usage(1000, 700, 200, 50), price) == pytest.approx(
        (100 * 2 + 700 * 0.2 + 200 * 2.5 + 50 * 10) / 1e6
    )
    sent, full = Usage(1000, output=10), Usage(2000, output=10)
    assert costs(sent, full, None) is None
    assert costs(sent, full, price) == (cost(sent, price), cost(full, price))
    paid, in_full = costs(sent, full, None, billed=3.0)
    assert paid == 3.0
    assert 5 < in_full < 6
    assert costs(Usage(), Usage(), None, billed=3.0) == (3.0, 3.0)


# a usage of any form, with the tokens that it reports

_counts = st.integers(0, 10**6)


@st.composite
def usages(draw):
    cached, written, fresh, output = (draw(_counts) for _ in range(4))
    hour = draw(st.integers(0, written))
    fresh += 1
    total, tokens = fresh + cached + written, Usage(fresh + cached + written, cached, written, output)
    form = draw(st.sampled_from(["openai", "top", "deepseek", "messages", "bedrock", "gemini"]))
    if form in ("top", "deepseek", "gemini"):  # these do not charge for writing
        total, tokens = fresh + cached, Usage(fresh + cached, cached, 0, output)
    if form == "openai":
        one, two = draw(st.sampled_from([("prompt", "completion"), ("input", "output")]))
        details = {"cached_tokens": cached, "cache_write_tokens": written}
        usage = {f"{one}_tokens": total, f"{two}_tokens": output, f"{one}_tokens_details": details}
        usage |= draw(st.sampled_from([{}, {"total_tokens": total + output}]))
    elif form == "top":
        usage = {"prompt_tokens": total, "completion_tokens": output, "cached_tokens": cached}
    elif form == "deepseek":
        usage = {"prompt_tokens": total, "completion_tokens": output}
        usage |= {"prompt_cache_hit_tokens": cached, "prompt_cache_miss_tokens": fresh}
    elif form == "gemini":
        usage = {"promptTokenCount": total, "candidatesTokenCount": output, "cachedContentTokenCount": cached}
    elif form == "bedrock":
        usage = {"inputTokens": fresh, "outputTokens": output}
        usage |= {"cacheReadInputTokens": cached, "cacheWriteInputTokens": written}
        usage |= draw(st.sampled_from([{}, {"totalTokens": total + output}]))
    else:
        usage = {"input_tokens": fresh, "output_tokens": output, "cache_read_input_tokens": cached}
        usage["cache_creation_input_tokens"] = written
        if draw(st.booleans()):
            lifetimes = {"ephemeral_5m_input_tokens": written - hour, "ephemeral_1h_input_tokens": hour}
            usage["cache_creation"] = lifetimes
            tokens = Usage(total, cached, written, output, hour)
    written_as = draw(st.sampled_from([int, float, str]))
    usage = {k: written_as(v) if type(v) is int else v for k, v in usage.items()}
    nulls = draw(
        st.lists(st.sampled_from(["cost", "cached_input_tokens", "prompt_token_details", "service"]))
    )
    return {**dict.fromkeys(nulls), **usage}, tokens


@given(usages())
def test_any_form_is_read_as_it_was_meant(case):
    usage, tokens = case
    assert read_usage(usage).tokens == tokens
    zeros = {k: 0 if not isinstance(v, dict) else None for k, v in usage.items()}
    for later in ({}, zeros, dict.fromkeys(usage), dict.fromkeys(usage, "0"), usage):
        assert read_usage(merge_usage(usage, later)).tokens == tokens
        assert read_usage(merge_usage(later, usage)).tokens == tokens
    doubled = read_usage(add_usage(usage, usage)).tokens
    assert doubled.input == 2 * tokens.input
    assert (doubled.cached, doubled.written_hour) == (2 * tokens.cached, 2 * tokens.written_hour)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
        ["usage", "input_tokens", "prompt_tokens", "output_tokens", "cached_tokens", "cache_creation", "iterations",
         "prompt_tokens_details", "cost", "total_tokens", "cost_details", "choices", "response", "cacheDetails"]
    ), inner, max_size=6),
)  # fmt: skip


@given(_json, _json)
def test_any_value_is_read_or_says_why(one, other):
    found = read_usage(one)
    assert (found.tokens is None) == (found.untold is not None)
    if found.tokens is not None:
        used = found.tokens
        assert 0 <= used.cached + used.written <= used.input
        assert 0 <= used.written_hour <= used.written
        assert used.output >= 0
    if isinstance(one, dict) and isinstance(other, dict):
        read_usage(merge_usage(one, other))
        read_usage(add_usage(one, other))
        list(usages_of(one))


def test_two_usages_add_up():
    one, other = read_usage({**OPENAI, "cost": 0.5}), read_usage(MESSAGES)
    assert one.plus(other).tokens == Usage(1800, 700, 0, 100)
    assert one.plus(one).billed == 1.0
    assert one.plus(other).billed is None
    assert one.plus(NO_USAGE).untold == NO_USAGE.untold
