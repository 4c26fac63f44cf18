"""The lexical embedder: the same everywhere, and near what is spelled alike."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.contracts.embedder import EmbedderContract
from tests.examples import first_short
from tests.growth import growth

from memory_bank.models.lexical import LexicalEmbedder

SUMMARIES = [
    "get_order_details for ORD-48213: the order of Mia Li is pending, 2 items, total 129.90, paid by card",
    "search_flights from JFK to SEA on 2024-05-20 returned HAT136, HAT045 and HAT201, cheapest 102 dollars",
    "list_directory of /workspace/reports returned summary.md, figures.xlsx and notes.txt",
    "get_user_details: user mia_li_3668 lives in San Francisco, e-mail mia.li@example.com, gold member",
    "send_message to channel general failed with PermissionError: the bot is not in the channel",
    "get_order_details for ORD-48214: the order of Ana Sorokin is delivered, 1 item, total 59.00",
]


def best(query: str, texts: list[str]) -> int:
    embedder = LexicalEmbedder()
    return int(np.argmax(embedder.encode(texts) @ embedder.encode_queries([query])[0]))


def similarity(a: str, b: str) -> float:
    rows = LexicalEmbedder().encode([a, b])
    return float(rows[0] @ rows[1])


class TestLexicalEmbedder(EmbedderContract):
    tolerance = 0.0

    def make_embedder(self) -> LexicalEmbedder:
        return LexicalEmbedder()


def test_two_processes_agree_whatever_their_hash_seed() -> None:
    code = (
        "import sys; from memory_bank.models.lexical import LexicalEmbedder;"
        "sys.stdout.buffer.write(LexicalEmbedder().encode(sys.argv[1:]).tobytes())"
    )
    said = [
        subprocess.run(
            [sys.executable, "-c", code, *SUMMARIES],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "4711")
    ]
    assert said[0] == said[1] == LexicalEmbedder().encode(SUMMARIES).tobytes()


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("ORD-48213", 0),
        ("ord-48214", 5),
        ("#ORD-48213", 0),
        ("what did flight HAT045 cost?", 1),
        ("mia_li_3668", 3),
        ("mia.li@example.com", 3),
        ("why was the message not sent, permissions?", 4),
        ("files in the reports folder", 2),
        ("figures.xlsx", 2),
        ("cheap flight to Seattle SEA", 1),
    ],
)
def test_finds_what_is_named(query: str, expected: int) -> None:
    assert best(query, SUMMARIES) == expected


@pytest.mark.parametrize(
    ("text", "related", "unrelated"),
    [
        ("the refund was issued", "refunds are issued by card", "the file was moved"),
        ("getUserDetails", "get_user_details", "list_directory"),
        ("the reservation was cancelled", "cancelling a reservation", "the weather was fine"),
        ("Größe der Straße", "größe", "farbe"),
        ("ユーザーの注文を取得しました", "注文", "天気"),
        ("cafe\u0301", "caf\u00e9", "tea"),
    ],
)
def test_related_is_nearer_than_unrelated(text: str, related: str, unrelated: str) -> None:
    assert similarity(text, related) > similarity(text, unrelated) + 0.1


def test_identifiers_that_differ_in_one_digit_are_told_apart() -> None:
    assert similarity("ORD-48213", "ORD-48214") < 0.5
    assert similarity("ORD-48213", "ord-48213.") > 0.99


def test_stop_words_say_little() -> None:
    assert similarity("the tool returned a result for you", "ORD-48213") < 0.2
    assert similarity("what is the status of ORD-48213", "ORD-48213") > 0.6


def test_nothing_gives_the_zero_vector() -> None:
    rows = LexicalEmbedder().encode(["", " \n", "!?…", "\ud800"])
    assert rows.shape == (4, LexicalEmbedder.dimension)
    assert not rows.any()


@pytest.mark.parametrize(
    "text", first_short(["ab " * 5_000_000, "a" * 20_000_000, "a-" * 5_000_000, "日本" * 5_000_000])
)
def test_a_huge_text_takes_no_time(text: str) -> None:
    def encode(chars: int) -> None:
        assert np.isfinite(LexicalEmbedder().encode([text[:chars]])[0]).all()

    assert growth(encode, len(text)) < 10  # only the head and the tail are read


def test_head_and_tail_of_a_huge_text_count() -> None:
    text = "alpha-1001 " + "filler words " * 20_000 + " omega-2002"
    for name in ("alpha-1001", "omega-2002"):
        assert similarity(text, name) > 0.05


@given(st.lists(st.text(st.characters(exclude_categories=[]), max_size=200), max_size=5))
def test_any_text_gives_a_row_of_norm_one_or_zero(texts: list[str]) -> None:
    rows = LexicalEmbedder().encode(texts)
    assert rows.shape == (len(texts), LexicalEmbedder.dimension)
    assert rows.dtype == np.float32
    assert np.isfinite(rows).all()
    norms = np.linalg.norm(rows, axis=1)
    assert np.all((np.abs(norms - 1) < 1e-5) | (norms == 0))
