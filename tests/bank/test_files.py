"""Files below /memories: answers as those of Anthropic's SDK, apart by project and namespace, limited, erased."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from tests.contracts.stores import together

from memory_bank.bank.files import MOST_BYTES, MOST_FILES, MemoryFiles
from memory_bank.errors import ConfigError, FileError

RECORDED = [
    json.loads(line) for line in Path(__file__).with_name("memory_tool.jsonl").read_text().splitlines()
]
"""Commands, and what the SDK's own backend answered in an empty folder (tests/integrations/test_memory_files.py)."""


def answer(files, command):
    try:
        return files.run(command)
    except FileError as e:
        return f"error: {e}"


def view(files, path="/memories"):
    return answer(files, {"command": "view", "path": path})


def create(files, path, text=""):
    return answer(files, {"command": "create", "path": path, "file_text": text})


def test_answers_are_those_of_the_sdk(bank):
    assert len(RECORDED) > 100
    files = MemoryFiles(bank.database())
    assert [[command, answer(files, command)] for command, _ in RECORDED] == RECORDED


def test_a_project_and_a_namespace_see_only_their_own(bank):
    database = bank.database()
    places = [("default", None), ("other", None), ("default", "ns"), ("default", "NS"), ("other", "ns")]
    each = [MemoryFiles(database, project, namespace=namespace) for project, namespace in places]
    for number, files in enumerate(each):
        assert create(files, "/memories/a/same.md", f"of {number}").startswith("File created")
    for number, files in enumerate(each):
        assert view(files, "/memories/a/same.md").endswith(f"     1\tof {number}")
    each[0].run({"command": "delete", "path": "/memories/a"})
    each[1].run({"command": "delete", "path": "/memories/a"})
    each[2].run({"command": "rename", "old_path": "/memories/a", "new_path": "/memories/b"})
    shown = [view(files).split("\n", 2)[2:] for files in each]
    assert (
        shown
        == [[], [], ["4K\t/memories/b/\n4B\t/memories/b/same.md"]]
        + [["4K\t/memories/a/\n4B\t/memories/a/same.md"]] * 2
    )


def test_two_writers_at_once(bank):
    """Every insertion is kept, one of two files of a name is made, and a folder is made once."""
    count, answers = 8, []
    first, second = (MemoryFiles(bank.database()) for _ in range(2))
    create(first, "/memories/log", "")

    def write(files, name):
        for number in range(count):
            files.run(
                {
                    "command": "insert",
                    "path": "/memories/log",
                    "insert_line": 0,
                    "insert_text": f"{name} {number}",
                }
            )
            answers.append(create(files, f"/memories/new/{number}/x", name))

    together(lambda: write(first, "one"), lambda: write(second, "two"))
    lines = [line.split("\t")[1] for line in view(first, "/memories/log").split("\n")[1:]]
    assert sorted(filter(None, lines)) == sorted(
        f"{name} {n}" for name in ("one", "two") for n in range(count)
    )
    assert sorted(a.split(" ")[0] for a in answers) == ["File"] * count + ["error:"] * count
    assert view(second, "/memories/new").count("\n") == 1 + 2 * count


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ({"command": "peek"}, "Unknown command: peek"),
        ({"command": ["view"]}, "Unknown command: ['view']"),
        ({"command": "view"}, "view needs the parameter path, a text."),
        ({"command": "view", "path": 7}, "view needs the parameter path, a text."),
        ({"command": "insert", "path": "/memories/a", "insert_line": True, "insert_text": ""}, "a whole number."),
        ({"command": "view", "path": "/memories/a", "view_range": "1-2"}, "view_range is a list of two whole numbers"),
        ({"command": "view", "path": "/memories/a", "view_range": [1, "2"]}, "view_range is a list of two whole numbers"),
        ({"command": "view", "path": "/memories/\0"}, "only characters that can be printed"),
        ({"command": "view", "path": "/memories/a\n4K\t/memories/forged"}, "only characters that can be printed"),
        ({"command": "create", "path": "/memories/\u202egpj.exe", "file_text": ""}, "only characters that can be printed"),
        ({"command": "create", "path": "/memories/" + "n" * 256, "file_text": ""}, "each name in it 255"),
        ({"command": "create", "path": "/memories" + "/n" * 600, "file_text": ""}, "at most 1,000 bytes"),
        ({"command": "create", "path": "/memories/a/b", "file_text": ""}, "/memories/a is a file, nothing can be below it"),
        ({"command": "create", "path": "/memories/b", "file_text": "\ud800"}, "half a character"),
        ({"command": "create", "path": "/memories/b", "file_text": "é" * MOST_BYTES}, "at most 1,048,576 bytes in 1,000 files and folders"),
        ({"command": "rename", "old_path": "/memories/f", "new_path": "/memories/f/g/h"}, "cannot be moved into itself"),
        ({"command": "rename", "old_path": "/memories/f", "new_path": "/memories/" + "n/" * 490 + "m"}, "at most 1,000 bytes"),
    ],
)  # fmt: skip
def test_what_the_reference_does_not_answer_is_refused_in_a_sentence(database, command, sentence):
    files = MemoryFiles(database)
    create(files, "/memories/a", "text")
    create(files, "/memories/f/" + "x" * 30, "text")
    got = answer(files, command)
    assert got.startswith("error: ") and sentence in got and len(got) < 400


def test_limits_hold_for_every_way_to_write():
    files = MemoryFiles()
    create(files, "/memories/full", "ab" + "x" * (MOST_BYTES - 2))
    edits = [
        {"command": "insert", "path": "/memories/full", "insert_line": 0, "insert_text": ""},
        {"command": "str_replace", "path": "/memories/full", "old_str": "ab", "new_str": "abc"},
    ]
    assert all("delete or shorten some first" in answer(files, edit) for edit in edits)
    assert view(files).endswith("1M\t/memories/full")
    files.run({"command": "str_replace", "path": "/memories/full", "old_str": "ab", "new_str": ""})
    for number in range(MOST_FILES - 1):
        create(files, f"/memories/{number}")
    assert "at most 1,048,576 bytes in 1,000 files and folders" in create(files, "/memories/one/more")
    assert "edited" in answer(
        files, {"command": "insert", "path": "/memories/7", "insert_line": 0, "insert_text": "x"}
    )
    with pytest.raises(ConfigError, match="the name of a project"):
        MemoryFiles(None, "a\0b")


def test_what_must_not_be_stored_is_not(tmp_path):
    """Also where a secret is put together by several commands; what was deleted is not in the file any more."""
    files = MemoryFiles(
        tmp_path / "bank.db", redact=lambda text: text.replace("hunter2", "[redacted: password]")
    )
    create(files, "/memories/hunter2.md", "the password is hunter2\nhunter")
    files.run(
        {
            "command": "str_replace",
            "path": "/memories/hunter2.md",
            "old_str": "is hunter2\nhunter",
            "new_str": "was hunter2\nhunter",
        }
    )
    answers = [view(files), view(files, "/memories/hunter2.md")]
    files.run(
        {"command": "str_replace", "path": "/memories/hunter2.md", "old_str": "\nhunter", "new_str": "\nhunt"}
    )
    files.run(
        {
            "command": "str_replace",
            "path": "/memories/hunter2.md",
            "old_str": "\nhunt",
            "new_str": "\nhunter" + "2",
        }
    )
    answers.append(view(files, "/memories/hunter2.md"))
    create(files, "/memories/marker", "a mark to be found")
    files.database.close()
    stored = [path.read_bytes() for path in tmp_path.iterdir()]
    assert not any("hunter2" in text for text in answers) and not any(b"hunter2" in data for data in stored)
    assert any(b"a mark to be found" in data for data in stored)
    files.run({"command": "delete", "path": "/memories/marker"})
    files.database.close()
    assert not any(b"a mark to be found" in path.read_bytes() for path in tmp_path.iterdir())


@pytest.mark.parametrize("old", ["a" * 25_000, "a", "", "a" * 250_000 + "b", "ab" * 5_000])
def test_a_replacement_in_a_text_that_repeats_itself_is_linear_and_its_answer_bounded(old):
    files = MemoryFiles()
    create(files, "/memories/a", "a" * 500_000 + "\n")
    began = time.process_time()
    got = answer(files, {"command": "str_replace", "path": "/memories/a", "old_str": old, "new_str": "x"})
    assert time.process_time() - began < 3  # minutes, where each place is compared in full
    assert got.startswith("error: No replacement was performed")
    assert len(got) < 5_000
    assert len(old) <= 2_000 or f"[… {len(old) - 2_000:,} characters]" in got


def test_the_first_places_of_a_text_are_named():
    files = MemoryFiles()
    create(files, "/memories/a", "x\n" * 300)
    got = answer(files, {"command": "str_replace", "path": "/memories/a", "old_str": "x", "new_str": "y"})
    assert f"in lines: {', '.join(map(str, range(1, 201)))}, …. Please" in got


@pytest.mark.parametrize(
    ("parameter", "command"),
    [
        ("path", {"command": "view"}),
        ("file_text", {"command": "create", "path": "/memories/b"}),
        ("old_str", {"command": "str_replace", "path": "/memories/a", "new_str": ""}),
        ("new_str", {"command": "str_replace", "path": "/memories/a", "old_str": "text"}),
        ("insert_text", {"command": "insert", "path": "/memories/a", "insert_line": 0}),
        ("path", {"command": "delete"}),
        ("old_path", {"command": "rename", "new_path": "/memories/b"}),
        ("new_path", {"command": "rename", "old_path": "/memories/a"}),
    ],
)
def test_an_argument_without_bound_is_refused_before_it_is_read(parameter, command):
    read = []
    files = MemoryFiles(redact=lambda text: read.append(text) or text)
    create(files, "/memories/a", "text")
    got = answer(files, {**command, parameter: "/memories/" + "é" * 2**20})
    assert "at most 1,0" in got and len(got) < 300
    assert max(map(len, read)) < 2**20
    assert view(files, "/memories/a").endswith("text")
