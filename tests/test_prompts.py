"""Prompts: files, placeholders, and values that look like placeholders."""

import re

import pytest

from memory_bank.config import load_config
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
    values = {"user_query": "Q", "tool_name": "T", "arguments": "A", "output": "O"}
    named = " ".join(f"{{{{ {name} }}}}" for name in values)
    file.write_bytes(f"\ufeff=== user ===\r\nhé {named}\r\n".encode())
    assert fill_prompt(load_prompt("observer", str(file)), values) == [
        {"role": "user", "content": "hé Q T A O"}
    ]
    with pytest.raises(PromptError, match=r"nowhere\.md cannot be read"):
        load_prompt("observer", str(tmp_path / "nowhere.md"))
    with pytest.raises(PromptError, match="nothing"):
        load_prompt("nothing")


VALUES = {"user_query": "Which?", "tool_name": "find", "arguments": "A", "output": "ORD-7"}


def test_one_text_is_the_system_prompt_and_one_with_placeholders_the_question(tmp_path):
    (tmp_path / "plain.md").write_text("You are an Observer.\nStay under {200} words.\n")
    system, user = fill_prompt(load_prompt("observer", str(tmp_path / "plain.md")), VALUES)
    assert system == {"role": "system", "content": "You are an Observer.\nStay under {200} words."}
    assert user["role"] == "user" and all(text in user["content"] for text in VALUES.values())
    (tmp_path / "asks.md").write_text("{{ user_query }}: {{ tool_name }}({{arguments}}) said {{ output }}")
    assert fill_prompt(load_prompt("observer", str(tmp_path / "asks.md")), VALUES) == [
        {"role": "user", "content": "Which?: find(A) said ORD-7"}
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "=== user ==="),
        (" \n", "=== user ==="),
        ("=== system ===\nSummarise.", "=== user ==="),
        ("=== user ===\nSummarise {{ output }}.", "lacks the placeholder {{ arguments }}"),
        ("Summarise {{ output }}.", "lacks the placeholder {{ arguments }}"),
        ("Summarise {{ ouput }}.", "placeholder"),
    ],
)
def test_a_prompt_that_cannot_be_filled_is_found_with_the_configuration(text, says, tmp_path):
    (tmp_path / "mine.md").write_text(text)
    file = tmp_path / "config.toml"
    file.write_text(
        f'[memory_strategies.mine]\ntype = "memory_bank"\nobserver_prompt = "{tmp_path}/mine.md"\n'
    )
    with pytest.raises(PromptError) as e:
        load_config(file)
    assert says in str(e.value) and str(tmp_path / "mine.md") in str(e.value) and "\n" not in str(e.value)
