"""Terms of texts, and BM25 over them, beside a plain reference."""

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_bank import InteractionRecord
from memory_bank.bank.terms import LENGTH, SATURATION, Postings, bm25, heads_of, terms_of, terms_of_query


def scored(query, texts):
    stored = [terms_of(text, None) for text in texts]
    lengths = heads_of(stored)["length"].astype(float)
    return bm25(terms_of_query(query), Postings.of(stored), lengths)


def found(query, *texts):
    """The numbers of the texts that have a term of a query, best first."""
    scores, most = scored(query, texts)
    assert 0 <= max(scores) <= most + 1e-9
    return [n for n in np.argsort(-scores, kind="stable").tolist() if scores[n] > 0]


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("close", "the account was closed"), ("closing files", "a File"), ("queries", "one query"),
        ("planned", "a plan"), ("refunds", "REFUNDED"), ("user name", "userName"), ("userName", "username"),
        ("id", "user_id"), ("app.py", "src/app.py"), ("48213", "ORD-48213"), ("ÄRGER", "mit Ärger"),
        ("東京", "駅は東京です"), ("line two", '{"text":"line one\\nline two"}'), ("ord-7", "x" * 10**5 + " ORD-7 " + "y" * 10**5),
        ("ｆｕｌｌ", "full"), ("call", "tool call"),
    ],
)  # fmt: skip
def test_words_meet_in_any_form(query, text):
    assert found(query, text, "nothing of it") == [0]


@pytest.mark.parametrize(
    ("query", "text"),
    [("status", "stat"), ("cat", "catalogue"), ("7712", "77123"), ("", "text"), ("…", "—")],
)
def test_other_words_do_not(query, text):
    assert found(query, text) == []


def test_a_whole_name_counts_more_than_its_words():
    assert found("ORD-48213", "48213 and ord, not that order", "it is ORD-48213, the order")[0] == 1


def test_what_every_text_has_is_not_asked_for_unless_nothing_else_is():
    assert found("what was the refund", "what was the", "refund") == [1]
    assert found("what was the", "what was the", "refund") == [0]


WORD = st.sampled_from(["red", "blue", "green", "x1", "x2"])
TEXTS = st.lists(st.lists(WORD, max_size=12).map(" ".join), min_size=1, max_size=12)


@given(TEXTS, st.lists(WORD, min_size=1, max_size=4))
def test_scores_are_those_of_the_formula(texts, query):
    scores, _ = scored(" ".join(query), texts)
    counts = [[text.split().count(word) for word in sorted(set(query))] for text in texts]
    lengths = [len(text.split()) for text in texts]
    mean = max(1.0, sum(lengths) / len(texts))
    for n in range(len(texts)):
        expected = 0.0
        for i, count in enumerate(counts[n]):
            df = sum(each[i] > 0 for each in counts)
            idf = math.log(1 + (len(texts) - df + 0.5) / (df + 0.5))
            norm = SATURATION * (1 - LENGTH + LENGTH * lengths[n] / mean)
            expected += idf * count * (SATURATION + 1) / (count + norm)
        assert scores[n] == pytest.approx(expected, rel=0.05)  # weights are stored in one byte


@given(st.text(max_size=300))
def test_any_text_has_terms_and_finds_itself(text):
    stored = terms_of(text, None)
    assert len(stored) % 5 == 0 and stored == terms_of(text, None)
    if re.search(r"[^\W_]", text.casefold()) and len(terms_of_query(text)):
        assert found(text, text) == [0]


def test_the_same_call_has_the_same_state_and_a_failed_one_has_none():
    def state(tool, arguments, output):
        return heads_of([terms_of("", InteractionRecord.create(1, tool, arguments, output))])[0]

    one = state("get_order", {"id": 7, "limit": 5}, {"status": "open"})
    assert (
        one["call"] == state("get_order", {"limit": 5, "id": 7, "timeout": 9}, {"status": "shipped"})["call"]
    )
    assert one["output"] != state("get_order", {"id": 7}, {"status": "shipped"})["output"]
    assert one["call"] != state("get_order", {"id": 8}, {"status": "open"})["call"]
    assert state("get_order", {"id": 7}, {"error": "timeout"})["call"] == 0
