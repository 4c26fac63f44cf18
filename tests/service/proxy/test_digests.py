"""The digests of a conversation: what changes them and what does not, and which call ids look random."""

from __future__ import annotations

import copy
import json
import random
import string
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.chats import any_chats, call, good_chats, result, rounds, say, system, user
from tests.service.proxy.conversing import random_id

from memory_bank.service.proxy.api import RequestHistory
from memory_bank.service.proxy.identity import (
    LATEST,
    DigestChain,
    chain_seed,
    digest_chain,
    looks_random,
)

SEED = chain_seed(None, "sk-1")
CHAT = [system(), user(), *rounds(3)]


def chain(messages: Any, seed: bytes = SEED) -> DigestChain:
    found = digest_chain(seed, RequestHistory(list(messages)))
    assert found is not None
    return found


def whole(messages: Any) -> str:
    return chain(messages).whole


def test_a_beginning_is_known_in_what_goes_on_from_it() -> None:
    full = chain(CHAT)
    assert full.positions[full.whole] == len(CHAT)
    assert full.head == full.whole
    for n in (4, 6):
        part = chain(CHAT[:n])
        assert full.positions[part.whole] == n
        assert part.whole in full.ends
    assert full.ends[0] == full.whole


def test_the_head_ends_with_the_last_interaction() -> None:
    said = chain([*CHAT, say("There are three."), user("Sure?")])
    assert said.head == chain(CHAT).whole
    assert said.whole != said.head
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    pictured = chain([*CHAT, {"role": "user", "content": [image]}])
    assert pictured.head == pictured.whole  # the image is part of what the tool gave


SAME: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "order": lambda m: dict(reversed(list(m.items()))),
    "null": lambda m: {**m, "refusal": None, "name": None},
    "part": lambda m: m if m["content"] is None else {**m, "content": [{"type": "text", "text": m["content"]}]},
    "part with null": lambda m: m if m["content"] is None else {**m, "content": [{"text": m["content"], "type": "text", "annotations": None}]},
    "cached": lambda m: m if m["content"] is None else {**m, "content": [{"type": "text", "text": m["content"], "cache_control": {"type": "ephemeral"}}]},
    "marked": lambda m: {**m, "cache_control": {"type": "ephemeral"}},
    "absent": lambda m: {k: v for k, v in m.items() if v is not None},
}  # fmt: skip


@pytest.mark.parametrize("how", SAME)
def test_what_does_not_matter(how: str) -> None:
    assert whole([SAME[how](m) for m in CHAT]) == whole(CHAT)


DIFFERENT: dict[str, Callable[[Any], Any]] = {
    "text": lambda c: [c[0], user("Find the order"), *c[2:]],
    "role": lambda c: [{**c[0], "role": "developer"}, *c[1:]],
    "id": lambda c: json.loads(json.dumps(c).replace('"c1"', '"c9"')),
    "arguments": lambda c: json.loads(json.dumps(c).replace("{\\\"number\\\": 1}", "{\\\"number\\\":1}")),
    "empty for null": lambda c: [{**m, "content": ""} if m["content"] is None else m for m in c],
    "two parts": lambda c: [c[0], {"role": "user", "content": [{"type": "text", "text": t} for t in ("Find the ", "order and refund it")]}, *c[2:]],
    "unknown member": lambda c: [{**c[0], "vendor": 1}, *c[1:]],
    "number": lambda c: [{**c[0], "vendor": 1.0}, *c[1:]],
    "truth": lambda c: [{**c[0], "vendor": True}, *c[1:]],
    "left out": lambda c: [c[0], *c[2:]],
    "swapped": lambda c: [*c[:4], *c[6:], *c[4:6]],
    "a marker in a result": lambda c: [*c[:-1], {**c[-1], "content": {"cache_control": 1}}],
    "an empty result": lambda c: [*c[:-1], {**c[-1], "content": {}}],
    "a message as text": lambda c: [json.dumps(c[0]), *c[1:]],
}  # fmt: skip


def test_everything_else_matters() -> None:
    digests = {how: whole(change(copy.deepcopy(CHAT))) for how, change in DIFFERENT.items()}
    digests["as it was"] = whole(CHAT)
    assert len(set(digests.values())) == len(digests)


def test_lists_cannot_be_shifted_into_one_another() -> None:
    tail = rounds(1)
    lists = [
        [user("a"), user("b")], [user("ab")], [user("a"), user(""), user("b")], [user("a=b")],
        [{"role": "user", "content": "a", "x": "b"}], [user('a"},{"role":"user","content":"b')],
        [{"role": "user", "content": ["a"]}], [{"role": "user"}, user("ab")], [user("\ud83d\ude00")], [user("\U0001f600")],
    ]  # fmt: skip
    assert len({whole([*messages, *tail]) for messages in lists}) == len(lists)


def test_whose_conversation_it_is_is_in_every_digest() -> None:
    seeds = [
        chain_seed(None, None), chain_seed(None, ""), chain_seed("", None), chain_seed(None, "k"), chain_seed("k", None),
        chain_seed("k", "k"), chain_seed(None, "k", "c"), chain_seed(None, "k", ""), chain_seed("c", "k"), chain_seed("kc", ""),
    ]  # fmt: skip
    chains = [chain(CHAT, s) for s in seeds]
    assert len({c.whole for c in chains}) == len(seeds)
    ids = [user(), call((random_id(1), "f", {})), result(random_id(1), "x")]
    assert len({chain(ids, s).latest[0].digest for s in seeds}) == len(seeds)


@given(any_chats())
def test_any_list_has_a_chain_or_none(messages: list[Any]) -> None:
    found = digest_chain(SEED, RequestHistory(list(messages)))
    if found is None:
        return
    assert found.positions[found.whole] == len(messages)
    assert found.positions[found.head] <= len(messages)
    assert 0 < len(found.latest) <= LATEST
    assert found.latest[-1].stop == found.positions[found.head]
    for turn in found.latest:
        turn.calls()
    again = chain(copy.deepcopy(messages))
    assert again.ends == found.ends


@given(good_chats(), st.data())
def test_every_beginning_is_among_the_positions(messages: list[Any], data: st.DataObject) -> None:
    n = data.draw(st.integers(1, len(messages)))
    part, full = (digest_chain(SEED, RequestHistory(m)) for m in (messages[:n], messages))
    if part is None or full is None:
        return
    assert full.positions[part.whole] == n
    assert part.head in full.positions


def test_a_message_nested_beyond_the_encoder_is_told_apart_too() -> None:
    def deep(leaf: str) -> Any:
        value: Any = leaf
        for _ in range(3000):
            value = [value]
        return value

    lists = [[{"role": "user", "content": deep(leaf)}, *CHAT] for leaf in "ab"]
    assert whole(lists[0]) != whole(lists[1])


def test_results_are_compared_with_their_calls() -> None:
    i = random_id(1)
    one, other, again = (
        chain([user(), call((i, "f", {})), result(i, text)]).latest[0]
        for text in ("long output", "out", "long output")
    )
    assert one.digest == other.digest
    assert one.calls() == again.calls()
    assert one.calls()[0].call == other.calls()[0].call
    assert one.calls()[0].whole != other.calls()[0].whole
    assert one.calls()[0].size > other.calls()[0].size


# ----------------------------------------------------------------------

LETTERS = string.ascii_letters + string.digits
SMALL = string.ascii_lowercase + string.digits
HEX = "0123456789abcdef"


@pytest.mark.parametrize(
    "made",
    ["call_1", "call_0001", "call_12", "__fake_id__", "", None, "functions.get_weather:0", "step0001", "0", "123456789",
     "call_getOrderItemsForUser1", "call_get_order_v2_item10", "call_12345xyz", "call_abc123", "call_abc123def456",
     "call_1700000000123", "00000000-0000-0000-0000-000000000001", "order-2026-11-20T10:00:00Z", "toolu_01",
     "aaaaaaaaaaaaaaaaaaaa", "a1a1a1a1a1a1a1a1", "call_00000000000000000000000a"],
)  # fmt: skip
def test_counters_words_and_times_are_not_random(made: str | None) -> None:
    assert not looks_random(made)


@pytest.mark.parametrize(
    "made",
    ["call_DdmO9pD3xa9XTPNJ32zg2hcA", "toolu_01A09q90qw90lq917835lq9", "D681PevKs", "call_i6f1b2qv",
     "550e8400-e29b-41d4-a716-446655440000", "chatcmpl-tool-0a3f6c1f9b5d4be0a4a1d1f1c9a7b3e5",
     "call_0_b5e1c7a4-4c1b-4d57-9a0e-0f6d2c8f6a11", "fc_67ccfcdd16748190a91872c75d38539e"],
)  # fmt: skip
def test_ids_that_providers_make_are_random(made: str) -> None:
    assert looks_random(made)


def test_the_name_of_the_tool_makes_no_id_random() -> None:
    name = "get9Xa3Bq7Zt1"
    assert looks_random(f"call_{name}_1")
    assert not looks_random(f"call_{name}_1", name)


@pytest.mark.parametrize(
    ("prefix", "alphabet", "length"),
    [
        ("call_", LETTERS, 24),
        ("toolu_01", LETTERS, 22),
        ("call_", SMALL, 24),
        ("call_", HEX, 24),
        ("", LETTERS, 9),
    ],
)
def test_few_random_ids_are_taken_for_others(prefix: str, alphabet: str, length: int) -> None:
    dice = random.Random(6)
    made = [prefix + "".join(dice.choices(alphabet, k=length)) for _ in range(2000)]
    assert sum(map(looks_random, made)) > 0.94 * len(made)
    assert all(looks_random(str(uuid.UUID(int=dice.getrandbits(128), version=4))) for _ in range(20))
