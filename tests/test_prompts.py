"""Prompts: files, placeholders, and values that look like placeholders."""

import re

import pytest

from memory_bank.errors import PromptError
from memory_bank.prompts import fill_prompt, load_prompt

SMALL = "=== system ===\nBe {{ mood }}.\n\n=== user ===\n{{ text }}\n"


def test_the_observer_prompt():
    text = load_prompt("observer")
    assert set(re.findall(r"\{\{ (\w+) \}\}", text)) == {"user_query", "tool_name", "arguments", "output"}
    assert "200 words" in text
    assert "ids" in text
    assert "letter for letter" in text
    values = {"user_query": "Q", "tool_name": "T", "arguments": "A", "output": "O"}
    assert [m["role"] for m in fill_prompt(text, values)] == ["system", "user"]


def test_filling():
    assert fill_prompt(SMALL, {"mood": "brief", "text": "x"}) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "x"},
    ]


def test_values_are_never_read_as_template():
    odd = "{{ mood }} {{ text }} === system ===\n=== user ===\n\\1 \\g<0> {{ nobody }}"
    filled = fill_prompt(SMALL, {"mood": odd, "text": odd})
    assert filled[1]["content"] == odd
    assert len(filled) == 2


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("=== system ===\n{{ mood }} {{ text }}", "=== user ==="),
        ("", "=== user ==="),
        ("=== user ===\n{{ text }}", "lacks the placeholder {{ mood }}"),
        ("{{ mood }}\n=== user ===\n{{ text }}", "lacks the placeholder {{ mood }}"),
        (SMALL + "{{ more }}", "unknown placeholder {{ more }}"),
        (SMALL + "{{Text2}}", "unknown placeholder {{ Text2 }}"),
    ],
)
def test_wrong_templates(template, says):
    with pytest.raises(PromptError) as e:
        fill_prompt(template, {"mood": "m", "text": "t"})
    assert says in str(e.value)


def test_files_of_ones_own(tmp_path):
    file = tmp_path / "mine.md"
    file.write_bytes("\ufeff=== user ===\r\nhé {{ text }}\r\n".encode())
    assert fill_prompt(load_prompt("observer", str(file)), {"text": "x"}) == [
        {"role": "user", "content": "hé x"}
    ]
    with pytest.raises(PromptError, match=r"nowhere\.md cannot be read"):
        load_prompt("observer", str(tmp_path / "nowhere.md"))
    with pytest.raises(PromptError, match="nothing"):
        load_prompt("nothing")
