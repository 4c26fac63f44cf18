"""The tokens and the cost that a provider reports with an answer, read from every form that providers use."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import reduce
from typing import Any, NamedTuple

from memory_bank.pricing import Usage
from memory_bank.transcript import read

_MOST = 2**40  # counts above it are taken for errors

# The names of a count. Several may stand in one usage, some of them as zeros: the largest count is taken.
_INPUT = (
    "input_tokens",
    "inputTokens",
    "inputTokenCount",
)  # the tokens of _READ and _CREATED stand beside these
_PROMPT = ("prompt_tokens", "promptTokenCount", "prompt_token_count", "promptTokens", "prompt_eval_count")
_OUTPUT = (
    "completion_tokens", "output_tokens", "candidatesTokenCount", "candidates_token_count", "outputTokens",
    "outputTokenCount", "completionTokens", "eval_count",
)  # fmt: skip
_TOTAL = ("total_tokens", "totalTokenCount", "total_token_count", "totalTokens")
_DETAILS = ("prompt_tokens_details", "input_tokens_details", "prompt_token_details", "input_token_details")
_OUTPUT_DETAILS = ("completion_tokens_details", "output_tokens_details", "output_token_details")
_CACHED = (  # tokens of the input
    "cached_tokens", "prompt_cache_hit_tokens", "cachedContentTokenCount", "cached_content_token_count",
    "num_cached_tokens", "cached_input_tokens", "cachedInputTokens",
)  # fmt: skip
_CACHED_DETAILS = ("cached_tokens", "cache_read_tokens", "cache_read_input_tokens", "cache_read")
_READ = ("cache_read_input_tokens", "cacheReadInputTokens", "cacheReadInputTokenCount", "cache_read_tokens")
_WRITTEN = ("cache_write_tokens", "cache_creation_tokens")
_WRITTEN_DETAILS = (*_WRITTEN, "cached_creation_tokens", "cache_creation_input_tokens", "cache_creation")
_CREATED = ("cache_creation_input_tokens", "cacheWriteInputTokens", "cacheWriteInputTokenCount")
_FIVE_MINUTES, _HOUR = "ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens"
_THOUGHTS = ("thoughtsTokenCount", "thoughts_token_count")
_TOOL_PROMPTS = ("toolUsePromptTokenCount", "tool_use_prompt_token_count")
_COSTS = ("cost", "cost_usd", "total_cost", "estimated_cost")


class ReportedUsage(NamedTuple):
    """The figures of a usage; None where it does not say.

    ``input`` includes the ``cached`` tokens and the ``written`` ones, ``written`` those that are kept for an hour
    (``written_hour``). ``billed``: the cost in dollars, where the provider names it. ``untold``: why the tokens
    cannot be known.
    """

    input: int | None = None
    output: int | None = None
    cached: int | None = None
    written: int | None = None
    written_hour: int | None = None
    billed: float | None = None
    untold: str | None = "the answer has no usage"

    @property
    def tokens(self) -> Usage | None:
        """The counts, 0 where the usage does not say; None where they cannot be known."""
        if self.untold is not None:
            return None
        return Usage(
            self.input or 0, self.cached or 0, self.written or 0, self.output or 0, self.written_hour or 0
        )

    def plus(self, other: ReportedUsage) -> ReportedUsage:
        """The usage of both; untold, or without a bill, where one of them is."""
        bills = self.billed, other.billed
        into, output, *cache = (_sum(*pair) for pair in zip(self[:5], other[:5], strict=True))
        bill = None if None in bills else sum(b for b in bills if b is not None)
        return ReportedUsage(into, output, cache[0], cache[1], cache[2], bill, self.untold or other.untold)


NO_USAGE = ReportedUsage()


class _UnreadableError(Exception):
    """A count is not the number of some tokens."""


def read_usage(usage: object) -> ReportedUsage:
    """Read the usage of an answer, a dict or an SDK's object. Never raises.

    Which tokens of a prefix cache a count of input includes follows from the names, and from the total where there
    is one: OpenAI's includes them, that of the Messages API does not, and gateways mix both.
    """
    if usage is None:
        return NO_USAGE
    spent = read(usage, "iterations")  # of a message with a compaction: no other figure counts that
    parts = spent if isinstance(spent, list) and spent else [usage]
    try:
        return reduce(ReportedUsage.plus, map(_read_tokens, parts))._replace(billed=_billed(usage))
    except _UnreadableError as e:
        return ReportedUsage(untold=f"a figure in the usage cannot be one ({e})")


def _read_tokens(usage: object) -> ReportedUsage:
    details = _details(usage, _DETAILS)
    into, prompt, output = (_count(usage, *names) for names in (_INPUT, _PROMPT, _OUTPUT))
    hit, miss = (_count(usage, f"prompt_cache_{kind}_tokens") for kind in ("hit", "miss"))
    if prompt is None and miss is not None:
        prompt = (hit or 0) + miss
    into = _most(into, prompt)
    cached = _most(_count(usage, *_CACHED), _count(details, *_CACHED_DETAILS))
    five, hour = _lifetimes(usage, details)
    written = _most(_count(usage, *_WRITTEN), _count(details, *_WRITTEN_DETAILS))
    beside_read, created = _count(usage, *_READ), _count(usage, *_CREATED)
    if five or hour:
        created = _most(created, (five or 0) + (hour or 0))
    if into is None and output is None:
        silent = cached is None and beside_read is None
        return NO_USAGE if silent else ReportedUsage(untold="the usage has no count of input tokens")
    total = _count(usage, *_TOTAL)
    if (thoughts := _count(usage, *_THOUGHTS)) is not None:
        output = (output or 0) + thoughts
    into = None if into is None else into + (_count(usage, *_TOOL_PROMPTS) or 0)
    read_, written_ = _most(cached, beside_read), _most(written, created)
    cache = (read_ or 0) + (written_ or 0)
    # Of names that leave the cache out, only the total shows that a gateway counts it in, and the other way round.
    is_beside = details is None and bool(beside_read or created) and not prompt
    if into is not None and cache and total is not None:
        if total == into + cache + (output or 0):
            is_beside = True
        elif total == into + (output or 0):
            is_beside = False
    if into is not None and is_beside:
        into += cache
    if into is not None and total is not None and total > into + (output or 0):
        output = _with_reasoning(usage, output or 0, total - into - (output or 0))
    untold = None
    if into is None:
        untold = "the usage has no count of input tokens"
    elif cache > into:
        untold = "the usage counts more cached tokens than input tokens"
    elif not into:
        untold = "the usage counts no input tokens"
    return ReportedUsage(into, output, read_, written_, hour, untold=untold)


def _with_reasoning(usage: object, output: int, rest: int) -> int:
    """The output tokens with ``rest`` of the total, where these are reasoning that the output leaves out."""
    details = _details(usage, _OUTPUT_DETAILS)
    reasoning = _most(_count(details, "reasoning_tokens"), _count(usage, "reasoning_tokens"))
    return output + rest if reasoning in (None, rest) else output


def _lifetimes(usage: object, details: object) -> tuple[int | None, int | None]:
    """The tokens written to the cache for five minutes and for an hour."""
    of_messages = read(usage, "cache_creation")
    of_gateways = read(details, "cache_creation_token_details")
    of_bedrock = read(usage, "cacheDetails")
    named = [_most(_count(of_messages, name), _count(of_gateways, name)) for name in (_FIVE_MINUTES, _HOUR)]
    for entry in of_bedrock if isinstance(of_bedrock, (list, tuple)) else ():
        at = int(read(entry, "ttl") == "1h")
        named[at] = (named[at] or 0) + (_count(entry, "inputTokens") or 0)
    return named[0], named[1]


def _billed(usage: object) -> float | None:
    """The cost in dollars that a gateway names in its usage."""
    for name in _COSTS:
        named = read(usage, name)
        named = read(named, "total_cost") if isinstance(named, Mapping) else named
        amount = _number(named, name)
        if amount is not None:
            break
    else:
        ticks = _number(read(usage, "cost_in_usd_ticks"), "cost_in_usd_ticks")
        return None if ticks is None else ticks / 1e10
    # with a key of one's own at the provider, the gateway's cost is only its fee
    inference = read(read(usage, "cost_details"), "upstream_inference_cost")
    paid = _number(inference, "upstream_inference_cost") or 0.0
    own_key = read(usage, "is_byok")
    return amount + paid if own_key is True or (own_key is not False and paid > amount) else amount


def _number(value: object, name: str) -> float | None:
    """A number of zero or more, also as text; None for null. Raises _UnreadableError."""
    if value is None or value == "" or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise _UnreadableError(name) from None
    if isinstance(value, bool) or not math.isfinite(number) or number < 0:
        raise _UnreadableError(name)
    return number


def _count(holder: object, *names: str) -> int | None:
    """The largest count of tokens under these names; None where there is none. Raises _UnreadableError."""
    largest = None
    for name in () if holder is None else names:
        if (number := _number(read(holder, name), name)) is None:
            continue
        if number > _MOST:
            raise _UnreadableError(name)
        largest = _most(largest, round(number))
    return largest


def _details(usage: object, names: tuple[str, ...]) -> object:
    """The object of one of these names; None where there is none."""
    candidates = (read(usage, name) for name in names)
    return next((d for d in candidates if d is not None and not isinstance(d, (int, float, str, list))), None)


def _sum(*counts: int | None) -> int | None:
    return sum(numbers) if (numbers := [n for n in counts if n is not None]) else None


def _most(*counts: int | None) -> int | None:
    return max((n for n in counts if n is not None), default=None)


# The usages of a request


def usages_of(answer: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The usages in an answer or in an event of a stream, at the places where providers put them."""
    choices = answer.get("choices")
    places = [answer, *(answer.get(name) for name in ("message", "response", "x_groq"))]
    for place in [*places, *(choices if isinstance(choices, list) else ())]:
        if isinstance(place, Mapping):
            for name in ("usage", "usageMetadata", "usage_metadata"):
                if isinstance(usage := place.get(name), Mapping):
                    yield usage


def merge_usage(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The usage of a stream after a later event, whose counts are those so far; zeros and nulls in it say nothing."""
    return _joined(one, other, lambda old, new: old if _is_nothing(new) and old is not None else new)


def add_usage(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The sum of two usages, including that of their details."""
    return _joined(one, other, _added)


def _joined(
    one: Mapping[str, Any], other: Mapping[str, Any], join: Callable[[Any, Any], Any]
) -> dict[str, Any]:
    """The members of two usages, those of both joined, also within their details."""
    joined = dict(one)
    for name, value in other.items():
        old = joined.get(name)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            joined[name] = _joined(old, value, join)
        else:
            joined[name] = join(old, value) if name in joined else value
    return joined


def _is_nothing(value: object) -> bool:
    try:
        return not value or (isinstance(value, str) and float(value) == 0)
    except ValueError:
        return False


def _added(old: Any, new: Any) -> Any:
    """The sum of two numbers or lists; the new value of others, if there is one."""
    if isinstance(old, list) and isinstance(new, list):
        return old + new
    with suppress(_UnreadableError):
        one, other = _number(old, ""), _number(new, "")
        if one is not None and other is not None:
            return int(one + other) if (one + other).is_integer() else one + other
    return old if new is None else new
