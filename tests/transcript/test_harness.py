"""What clients write by themselves is not the task, and their requests for a summary are known."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.chats import call, result, system, user

from memory_bank import MemoryBankState, MemoryProcessor
from memory_bank.transcript.harness import (
    COMPACTION_PROMPTS,
    HARNESS_TAGS,
    SUMMARY_OPENINGS,
    asks_for_summary,
    folder_of,
    persons_text,
    project_of_place,
)
from memory_bank.transcript.messages import parse_messages, task_text

ENVIRONMENT = "<environment_context>\n<cwd>/x</cwd>\n</environment_context>"
TASK = "Refund order 7"


@pytest.mark.parametrize("tag", HARNESS_TAGS)
def test_blocks_of_a_harness_are_not_the_persons(tag):
    block = f"<{tag}>\nwhatever\n</{tag}>"
    assert persons_text(block) == ""
    assert persons_text(f"{block}\n\n{ENVIRONMENT}\n{TASK}\n") == TASK
    assert persons_text(f"{TASK} {block}").startswith(TASK)


@pytest.mark.parametrize("opening", SUMMARY_OPENINGS)
def test_a_clients_summary_is_not_the_persons(opening):
    assert persons_text(f"{opening} to date: all is well") == ""


def test_what_a_person_writes_stays():
    for text in (TASK, "<b>bold</b>", "<environment_context> is what?", "", "# AGENTS.md says what?"):
        assert persons_text(text) == text
    assert (
        persons_text(f"# AGENTS.md instructions for /x\n\n<INSTRUCTIONS>\nbe kind\n</INSTRUCTIONS>\n{TASK}")
        == TASK
    )


@given(st.text(st.sampled_from("<>/ab system-reminder\n"), max_size=200))
def test_no_text_breaks_it(text):
    assert len(persons_text(text)) <= len(text)


def test_many_unclosed_blocks_take_linear_time():
    began = time.process_time()
    persons_text("<system-reminder>" * 100_000)
    persons_text("<system-reminder></system-reminder>" * 30_000 + "<system-reminder>" * 30_000)
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    "messages",
    [
        [user(TASK)],
        [user(ENVIRONMENT), user(TASK)],
        [user(f"{ENVIRONMENT}\n{TASK}")],
        [user([{"type": "text", "text": ENVIRONMENT}, {"type": "text", "text": TASK}])],
        [system("s"), user("  "), user(TASK), user("and then?")],
    ],
)
def test_the_task_is_what_the_person_asked(messages):
    assert task_text(parse_messages(messages)) == TASK


def test_a_list_without_a_task():
    assert task_text(parse_messages([user(ENVIRONMENT), user(f"{SUMMARY_OPENINGS[0]}. And so on")])) is None


def turn(i):
    call_id = f"call_Zq9aB7xK2mP{i}"
    return [call((call_id, "get", {"i": i})), result(call_id, "x" * 50)]


@pytest.mark.parametrize("summary", ["Here is a summary of the conversation to date: …", "We refunded much."])
def test_a_shorter_history_does_not_replace_the_task(tmp_path, summary):
    with MemoryBankState.open(tmp_path / "bank.db", "s") as state:
        processor = MemoryProcessor(None, lambda session_id: state)
        processor.apply_strategy([user(TASK), *turn(1)], session_id="s")
        processor.apply_strategy([user(summary), *turn(1), *turn(2)], session_id="s")
        assert state.database.get_session("s", "task") == TASK
    with MemoryBankState.open(tmp_path / "bank.db", "s") as state:
        processor = MemoryProcessor(None, lambda session_id: state)
        processor.apply_strategy([user(summary), *turn(3)], session_id="s")
        assert state.database.get_session("s", "task") == TASK
        state.reset()
        processor.apply_strategy([user("Another"), *turn(4)], session_id="s")
        assert state.database.get_session("s", "task") == "Another"


@pytest.mark.parametrize("prompt", COMPACTION_PROMPTS)
def test_requests_for_a_summary(prompt):
    assert asks_for_summary(f"You must obey. {prompt} … " + "x" * 20_000)
    assert asks_for_summary("x" * 20_000 + f" {prompt} the conversation.")
    assert not asks_for_summary("Summarise the orders of today.")


@pytest.mark.parametrize(
    ("said", "project"),
    [
        ("You code.\nWorking directory: /home/me/my shop\nIs git: yes", "my shop"),
        ("<environment_context>\n  <cwd>/home/me/shop</cwd>\n</environment_context>", "shop"),
        ("# Current Working Directory (/home/me/shop) Files", "shop"),
        ("I'm currently working in the directory: /home/me/shop.js", "shop.js"),
        ("Primary working directory: C:\\Users\\me\\shop\nPlatform: win32", "shop"),
        ("Your current working directory is `/srv/shop/`.", "shop"),
        ("Workspace Path: ~/code/a-b\n", "a-b"),
        ("Working directory: /", None),
        ("The working directory is where you look first.", None),
        ("cwd: shop", None),
        ("", None),
        ("working directory: /" + "a" * 1_000_000, None),
    ],
)
def test_the_project_is_the_folder_that_a_client_names(said, project):
    """Its name for people, and a digest of the whole path: two folders of one name are two projects."""
    folder = folder_of(said)
    key = folder and project_of_place(folder)
    assert (key and key.rpartition("@")[0]) == project
    assert key is None or re.fullmatch(r"[0-9a-f]{12}", key.rpartition("@")[2])


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("/home/me/shop", "/home/me/shop/", True),
        ("/home/me/shop", "/home/you/shop", False),
        ("/home/me/shop", "/home/me/shop/.claude/worktrees/fix-1", True),
        ("/home/me/shop", "/home/me/shop/.worktrees/fix-1/src", True),
        ("/home/me/shop", "/home/me/worktrees/shop", False),
        ("/home/me/.codex/worktrees/a1b2/shop", "/home/me/.codex/worktrees/c3d4/shop", True),
        ("/home/me/.codex/worktrees/a1b2/shop", "/home/me/.codex/worktrees/a1b2/mail", False),
        ("C:\\work\\shop", "C:/work/shop", True),
    ],
)
def test_worktrees_of_a_folder_are_one_project(one, other, same):
    keys = {project_of_place(folder_of(f"<cwd>{folder}</cwd>")) for folder in (one, other)}
    assert None not in keys
    assert len(keys) == (1 if same else 2)
