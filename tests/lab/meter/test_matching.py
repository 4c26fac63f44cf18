"""One normal form, whole tokens only."""

import json

import pytest

from memory_bank.lab.meter.text import normalise


def stands(value: str, text: str) -> bool:
    return normalise(text).holds([normalise(value)])


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_escapes_are_undone_however_nested(depth):
    text = 'say "Net 30"\nto Zoë\tat C:/x'
    for _ in range(depth):
        text = json.dumps(text)
    assert 'say "net 30" to zoë at c:/x' in normalise(text)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("", ""),
        (" \n\t ", " "),
        (" A  b\n", " a b "),
        (r"a\\\\b", "a\\b"),
        (r"\/path\/to", "/path/to"),
        ("Straße", "strasse"),
        ("x\u00a0y", "x y"),
        (r"\\u00e9", "é"),
    ],
)
def test_normal_forms(text, normal):
    assert normalise(text) == normal


@pytest.mark.parametrize(
    ("value", "text", "found"),
    [
        ("645", "a 645 b", True),
        ("645", "645", True),
        ("645", "=645,", True),
        ("645", "645.", True),
        ("645", "645.99", False),
        ("645", "1645", False),
        ("645", "6455", False),
        ("645", "1,645", False),
        ("645", "12.645", False),
        ("645.99", "x=645.99,", True),
        ("645.9", "645.99", False),
        ("-645", "-645", True),
        ("user_id", "user_id_2", False),
        ("user_id", "user_id-2", True),
        ("user", "superuser", False),
        ("#W12", "#W12", True),
        ("#W12", "#W123", False),
        ("W12", "#W12", True),
        ("/a/b", "x/a/b", True),  # a value that begins with a sign has no boundary on that side
        ("a b", "a\n  b", True),
        ("é1", "É1", True),
        ("", "a", False),
        ("東京駅", "到着 東京駅 です", True),
    ],
)
def test_boundaries(value, text, found):
    assert stands(value, text) is found


def test_places_and_their_limit():
    assert normalise("ab ab abab ab").places(normalise("ab"), 9) == [0, 3, 11]
    assert normalise("ab ab ab").places(normalise("ab"), 2) == [0, 3]
    assert normalise("aXa").places(normalise(""), 3) == []
