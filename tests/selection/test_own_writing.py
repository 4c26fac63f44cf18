"""What the agent wrote is evidence too: notes and long arguments are records; of a file, the latest copy counts."""

from __future__ import annotations

import json

import pytest
from tests.selection.texts import filled

from memory_bank.selection.effects import FileAccess, file_access
from memory_bank.selection.index import LONG_ARGUMENTS, EvidenceIndex

SCRIPT = "".join(
    f"def step_{i}(rows):\n    return [r for r in rows if r.code == 'K-{i}77']\n\n" for i in range(12)
)


def written() -> EvidenceIndex:
    wrote = (
        "write_file",
        {"path": "a.py", "content": SCRIPT},
        "ok",
        "I write a script that filters the rows first.",
    )
    return filled(
        wrote, ("run", {"path": "a.py"}, "12 rows of K-477 were found"), ("look", {"x": 1}, "nothing")
    )


def test_long_arguments_are_a_record_after_their_output():
    index = written()
    kinds = [(p.kind, p.trace_id) for p in index.tables.parsed]
    assert kinds == [("note", ""), ("output", "t0"), ("arguments", "t0"), ("output", "t1"), ("output", "t2")]
    assert len(index.tables.parsed[2].arguments) > LONG_ARGUMENTS


def test_the_script_that_the_agent_wrote_is_quoted_with_its_lines():
    chosen = written().select(anchor=["x"], tail_interaction=2, budget=2000)
    assert 2 in chosen.shown
    assert "def step_4(rows):\n    return [r for r in rows if r.code == 'K-477']" in chosen.text


def test_a_long_argument_is_a_source_of_its_own():
    cut = written().tables.parsed[2].cut
    assert cut.sources[1] == SCRIPT
    assert cut.paths[1] == "" or cut.paths[1] == "content"


def test_values_of_outputs_are_not_counted_in_arguments():
    mail = {"to": "ann@example.org", "body": "About the order A-1042 and B-2077. " * 8}
    t = filled("order A-1042 of ann@example.org", ("mail", mail, "sent")).tables
    own = {t.forms[v] for s in range(t.first_segment[2], t.segments.size) for v in t.values_of(s)}
    assert "b-2077" in own and not own & {"a-1042", "ann@example.org"}


@pytest.mark.parametrize(
    ("later", "stale"),
    [
        (("read_file", {"path": "a.py"}, SCRIPT), 1.0),
        (("write_file", {"path": "a.py", "content": "x = 1\n" * 60}, "ok"), 1.0),
        (("create_or_update_file", {"path": "a.py", "content": "x = 1\n" * 60}, "ok"), 1.0),
        (("edit_file", {"path": "a.py", "old": "step_1", "new": "step_2"}, "ok"), 0.5),
        (("edit_file", {"path": "a.py", "old": "step_1", "new": "step_2"}, "Error: no such text"), 0.0),
        (("read_file", {"path": "b.py"}, SCRIPT), 0.0),
        (("read_file", {"path": "a.py", "offset": 5, "limit": 2}, "x"), 0.0),
        (("grep", {"path": "a.py"}, "x"), 0.0),
    ],
)
def test_a_later_copy_of_a_file_makes_earlier_ones_stale(later, stale):
    index = filled(("read_file", {"path": "a.py"}, SCRIPT), later)
    assert index.tables.records["stale"][0] == stale
    index.select(anchor=["x"], tail_interaction=2, budget=300)
    assert index.tables.segments["factor"][0] == pytest.approx({0.0: 1, 0.5: 0.65, 1.0: 0.05}[stale])
    assert not index.tables.records["stale"][1:].any()


def test_of_a_file_the_latest_copy_is_quoted():
    again = ("read_file", {"path": "a.py"}, SCRIPT)
    index = filled(again, again, ("run", {"name": "step_4"}, "K-477"), "nothing")
    chosen = index.select(anchor=["x"], tail_interaction=3, budget=300)
    assert 1 in chosen.shown and 0 not in chosen.shown


@pytest.mark.parametrize(
    ("tool", "arguments", "access"),
    [
        ("Read", {"file_path": "/a/b.py"}, FileAccess("/a/b.py", "read", "")),
        ("filesystem-write_file", {"path": "x.md", "content": "y"}, FileAccess("x.md", "write", "")),
        ("str_replace_editor", {"command": "view", "path": "x"}, FileAccess("x", "read", "")),
        ("str_replace_editor", {"command": "str_replace", "path": "x"}, FileAccess("x", "edit", "")),
        ("view", {"path": "x", "view_range": [1, 9]}, FileAccess("x", "read", "view_range=[1, 9]")),
        ("list_directory", {"path": "x"}, None),
        ("read_file", {"path": 3}, None),
        ("send_email", {"path": "x"}, None),
    ],
)
def test_the_file_of_a_call(tool, arguments, access):
    assert file_access(tool, json.dumps(arguments)) == access


@pytest.mark.parametrize("arguments", ["", "{", "[]", "null", '{"path": "a\\nb"}', "[" * 100_000])
def test_arguments_of_any_kind_name_no_file(arguments):
    assert file_access("read_file", arguments) is None
