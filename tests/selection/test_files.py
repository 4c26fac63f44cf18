"""Files as the calls of a session leave them: edits are applied exactly, or the copy names the edit that is not in it."""

from __future__ import annotations

import json
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.chats import FOLDING, call, result, rounds, system, user
from tests.examples import examples

from memory_bank import Config, MemoryProcessor
from memory_bank.selection.cutting import cut_text
from memory_bank.selection.files import Files
from memory_bank.transcript.messages import message_text

PATH = "/app/handlers.py"
LINES = [f'def handler_{n}(request): return route_{n}("{n * 7919 % 10007}")' for n in range(1, 121)]


def numbered(lines, first=1):
    return "\n".join(f"{n:6d}\t{line}" for n, line in enumerate(lines, first))


class Session:
    """Calls on a file, numbered from 1; ``now(n)`` is the copy of a call."""

    def __init__(self):
        self.files, self.number = Files(), 0

    def add(self, tool, output="ok", **arguments):
        self.number += 1
        key = str(self.number)
        self.files.add(self.number, tool, json.dumps(arguments), output, failed=False, key=key)
        return self.number

    def read(self, lines=LINES, **part):
        return self.add("Read", numbered(lines, part.get("offset", 1)), file_path=PATH, **part)

    def edit(self, old, new, output="ok", **more):
        return self.add("Edit", output, file_path=PATH, old_string=old, new_string=new, **more)

    def now(self, number):
        return self.files.of_call(str(number))


def test_edits_are_in_the_copy_of_an_earlier_read_and_numbers_follow():
    s = Session()
    first = s.read()
    s.edit(f"{LINES[3]}\n{LINES[4]}", f"{LINES[3]}\n# new\n# and new\n{LINES[4]}")
    last = s.edit("return route_7(", "return safe_route_7(")
    after = [*LINES[:4], "# new", "# and new", *LINES[4:]]
    after[8] = after[8].replace("return route_7(", "return safe_route_7(")
    assert s.now(first).text == numbered(after)
    assert s.now(first).changes == [2, last] and not s.now(first).missing


def test_a_part_moves_with_an_edit_above_it_where_the_answer_shows_the_place():
    s = Session()
    part = s.read(LINES[59:80], offset=60, limit=21)
    shown = f"The file {PATH} has been updated:\n{numbered([*LINES[8:10], '# a', '# b', *LINES[10:14]], 9)}"
    s.edit(LINES[9], f"{LINES[9]}\n# a\n# b", shown)
    assert s.now(part).text == numbered(LINES[59:80], 62)
    s.edit(LINES[99], f"{LINES[99]}\n# c", numbered([*LINES[96:100], "# c", *LINES[100:103]], 99))
    assert s.now(part).text == numbered(LINES[59:80], 62) and s.now(part).changes == [2]


def test_what_may_be_in_a_part_and_cannot_be_found_is_missing():
    s = Session()
    part = s.read(LINES[59:80], offset=60, limit=21)
    edit = s.edit(f"{LINES[79]}\n{LINES[80]}", "# one line")  # over its end
    assert s.now(part).missing == [edit]
    s = Session()
    part = s.read(LINES[59:80], offset=60, limit=21)
    assert s.edit(LINES[3], f"{LINES[3]}\n# somewhere") in s.now(part).missing  # the numbers may have moved
    s = Session()
    part = s.read(LINES[59:80], offset=60, limit=21)
    s.edit(LINES[3], "# the same number of lines")
    assert not s.now(part).changes


def test_a_whole_read_tells_where_an_edit_is():
    s = Session()
    part = s.read(LINES[59:80], offset=60, limit=21)
    s.read()
    s.edit(LINES[3], f"{LINES[3]}\n# above")
    assert s.now(part).text == numbered(LINES[59:80], 61)


@pytest.mark.parametrize(
    "command",
    [f"sed -i 's/route_7/x/' {PATH}", "cd /app && sed -i.bak -e 's/a/b/' handlers.py", f"echo x >> {PATH}",
     f"cat new.py > {PATH}", f"python - <<'EOF'\nopen('{PATH}', 'w').write('x')\nEOF", f"mv {PATH} /tmp/x.py",
     f"git checkout -- {PATH}", f"black . && cp other.py {PATH}", f"cat <<EOF | tee {PATH}\n$x\nEOF"],
)  # fmt: skip
def test_a_command_that_changes_a_file_is_missing_in_earlier_copies(command):
    s = Session()
    first = s.read()
    assert s.now(first).changes == []
    changed = s.add("Bash", "", command=command)
    assert s.now(first).missing == [changed]


@pytest.mark.parametrize(
    "command",
    [f"cat {PATH}", "sed -n '1,20p' other.py > /dev/null", "grep -n x /app/handlers.py | head", "ls > /tmp/list",
     "python -c \"print('a > b')\"", f"cat '{PATH}", "echo 'x > /app/handlers.py'"],
)  # fmt: skip
def test_other_commands_change_no_copy(command):
    s = Session()
    first = s.read()
    s.add("Bash", "", command=command)
    assert s.now(first).changes == []


def test_commands_that_show_and_write_a_file():
    s = Session()
    text = "\n".join(LINES[:20])
    whole = s.add("Bash", text, command="cd /app && cat handlers.py")
    part = s.add("shell", text, command=["bash", "-lc", f"sed -n '1,20p' {PATH} | head -40"])
    written = s.add("Bash", "", command="cat > /app/new.py <<'EOF'\nx = 1\nEOF")
    s.edit(LINES[4], "# five")
    assert s.now(whole).text == s.now(part).text == text.replace(LINES[4], "# five")
    assert s.now(written) is None
    s.files.add(
        9, "Read", json.dumps({"file_path": "/app/new.py"}), "File unchanged since last read.", failed=False
    )
    answer = s.files.meant(
        "Read", json.dumps({"file_path": "/app/new.py"}), "File unchanged since last read."
    )
    assert [copy.text for copy in answer] == ["x = 1\n"]


def test_a_failed_edit_changes_nothing_and_a_written_file_is_a_copy():
    s = Session()
    first = s.add("Write", file_path=PATH, content="\n".join(LINES))
    s.files.add(
        2, "Edit", json.dumps({"file_path": PATH, "old_string": "x", "new_string": "y"}), "no", failed=True
    )
    assert s.now(first).changes == []
    s.number = 2
    s.edit(LINES[0], "# first")
    assert s.now(first).changes == [3] and s.now(first).text.startswith("# first\n")


def test_a_file_of_another_folder_is_another_file():
    s = Session()
    first = s.read()
    s.add("Edit", file_path="/lib/handlers.py", old_string=LINES[0], new_string="# no")
    assert s.now(first).changes == []
    s.add("Edit", file_path="app/handlers.py", old_string=LINES[0], new_string="# yes")
    assert s.now(first).changes == [3]


@examples(200)
@given(
    st.lists(st.integers(0, 9), min_size=3, max_size=30),
    st.lists(
        st.tuples(st.integers(0, 30), st.integers(1, 4), st.lists(st.integers(0, 9), max_size=4)), max_size=6
    ),
    st.sets(st.integers(0, 12), min_size=1),
    st.booleans(),
)
def test_a_quote_has_only_lines_of_the_file_as_it_is_now(content, edits, places, with_numbers):
    lines = [f"value_{n}_{at} = compute_the_value_of({n}, {at})" for at, n in enumerate(content)]
    s = Session()
    shown = numbered(lines) if with_numbers else "\n".join(lines)
    first = s.add("Read", shown, file_path=PATH)
    for turn, (at, count, new) in enumerate(edits):
        at = min(at, len(lines) - 1)
        old = lines[at : at + count]
        after = [f"edited_{n}_{turn}_{k} = None" for k, n in enumerate(new)]
        if "\n".join(lines).count("\n".join(old)) != 1 or not (after or len(lines) > len(old)):
            continue
        s.edit("\n".join(old), "\n".join(after))
        joined = "\n".join(lines).replace("\n".join(old), "\n".join(after))
        lines = joined.split("\n")
    copy, cut = s.now(first), cut_text(shown)
    assert copy.text == (numbered(lines) if with_numbers else "\n".join(lines))
    chosen = sorted(p for p in places if p < len(cut.segments))
    changed, kept = copy.quoted(cut, chosen)
    quote = changed.quote(kept)
    body = [line.rstrip() for line in quote.split("\n") if line.strip() and not line.startswith("…")]
    now = [line.rstrip() for line in copy.text.split("\n")]
    assert all(line in now for line in body)
    assert len(set(body)) == len(body)
    if len(chosen) == len(cut.segments):
        assert body == [line for line in now if line]


@pytest.mark.parametrize(
    "command", ["stash", "stash pop", "checkout .", "checkout main", "reset --hard", "pull"]
)
def test_what_git_takes_back_is_not_told_as_it_was(command):
    s = Session()
    first = s.read()
    s.edit(LINES[4], "changed = 1")
    s.add("Bash", command=f"cd /app && git {command}")
    assert s.now(first).missing == [3]


@pytest.mark.parametrize(
    "command", ["stash list", "checkout -b new", "checkout -- other.py", "checkout src/other.py", "status"]
)
def test_what_git_does_not_touch_stays(command):
    s = Session()
    first = s.read()
    s.add("Bash", command=f"git {command}")
    assert s.now(first).changes == []


# -- hostile calls -------------------------------------------------------------
@pytest.mark.parametrize(
    "command",
    [
        "cat <<" + "a" * 10_000 + "\n" + "b\n" * 4_900,
        "<<a" * 3_300 + "\n" + "b\n" * 5_000,
        "<<ab\n" * 4_000,
        "<<a\n" * 2_500 + " " * 9_000,
    ],
)
def test_a_command_with_many_heredocs_takes_no_long(command):
    began = time.process_time()
    Session().add("Bash", command=command[:20_000])
    assert time.process_time() - began < 0.5


def test_replacements_that_would_fill_the_memory_are_not_applied():
    s = Session()
    first = s.add("Read", "x\n" * 100, file_path=PATH)
    edits = [{"old_string": "x", "new_string": "xx", "replace_all": True}] * 100
    s.add("MultiEdit", file_path=PATH, edits=edits)
    copy = s.now(first)
    assert (copy.text, copy.missing) == ("x\n" * 100, [2])


def test_a_patch_of_very_many_lines_takes_no_long():
    s = Session()
    first = s.read()
    began = time.process_time()
    s.add("apply_patch", input=f"*** Begin Patch\n*** Update File: {PATH}\n@@\n" + "\n" * 400_000)
    assert s.now(first).missing == [2]
    assert time.process_time() - began < 4


def test_a_file_that_is_read_and_edited_hundreds_of_times_takes_no_long():
    s, lines = Session(), LINES * 8
    first = s.add("Read", "\n".join(lines), file_path=PATH)
    for n in range(300):
        new = f"edited = {n}"
        s.edit(lines[n % 120], new) if n < 2 else s.add(
            "Edit", file_path=PATH, old_string="a", new_string=new
        )
        last = s.add("Read", "\n".join([*lines, f"edited = {n}"]), file_path=PATH)
    s.edit("edited = 299", "edited = 300")
    began = time.process_time()
    assert s.now(last).text.endswith("edited = 300")
    assert s.now(first).missing
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    ("tool", "key"),
    [("post_comment", "body"), ("web_search", "query"), ("Write", "content"), ("Bash", "command")],
)
def test_a_patch_that_is_only_told_or_written_down_changes_no_file(tool, key):
    s = Session()
    first = s.read()
    patch = f"*** Begin Patch\n*** Update File: {PATH}\n@@\n-{LINES[4]}\n+wrong = 1\n*** End Patch"
    s.add(tool, **{key: patch}, **({"file_path": "/app/notes.md"} if tool == "Write" else {}))
    copy = s.now(first)
    assert copy.changes == []
    assert "wrong" not in copy.text


# -- in a context -------------------------------------------------------------
SETTINGS = FOLDING | {"refresh_after": 4_000}


def read(number, lines=LINES):
    return [call((number, "Read", {"file_path": PATH})), result(number, numbered(lines))]


def edit(number, old, new):
    given = {"file_path": PATH, "old_string": old, "new_string": new}
    return [call((number, "Edit", given)), result(number, "The file has been updated.")]


def folded(messages, **changes):
    processor = MemoryProcessor(Config(memory_strategies={"memory_bank": SETTINGS | changes}))
    return "\n".join(map(message_text, processor.apply_strategy(messages)[0]))


ASKING = [user("Which route does handler_50 return? Look at handler_50 and route_50, then at handler_51.")]


@pytest.mark.parametrize("layout", ["native", "block"])
def test_a_quote_of_a_file_has_later_edits_and_says_so(layout):
    new = f"# a line above\n{LINES[39]}"
    messages = [system(), *ASKING, *read("r"), *edit("e", LINES[39], new), *rounds(14, size=4_000, start=100)]
    context = folded(messages, layout=layout)
    quoted = re.findall(r"^ +(\d+)\t(.*)$", context, re.MULTILINE)
    lines = [*LINES[:39], "# a line above", *LINES[39:]]
    assert any(int(n) > 41 for n, _ in quoted)
    assert all(lines[int(n) - 1] == line for n, line in quoted)
    assert ("[… #1, with edit #2]" if layout == "native" else "(with edit #2)\n") in context


@pytest.mark.parametrize("layout", ["native", "block"])
def test_a_quote_of_a_file_whose_edit_is_not_known_says_before(layout):
    command = {"command": f"sed -i 's/route_5/path_5/' {PATH}"}
    changed = [call(("e", "Bash", command)), result("e", "")]
    messages = [system(), *ASKING, *read("r"), *changed, *rounds(14, size=4_000, start=100)]
    context = folded(messages, layout=layout)
    assert LINES[49] in context
    assert ("[… #1, before edit #2]" if layout == "native" else "(before edit #2)\n") in context
    assert "edit #" not in folded([m for m in messages if m not in changed], layout=layout)


@pytest.mark.parametrize(("search", "output"), [
    ({"name": "Grep", "pattern": "handler_"}, "src/app/routes.py:4:def handler_1():\nother.py:9:handler_1()"),
    ({"name": "mcp__x__search_files", "query": "handler_"}, '[{"type": "text", "text": "src/app/routes.py:4: handler_1"}]'),
    ({"name": "Bash", "command": "cd /repo && grep -n handler_ src/app/routes.py | head -3"}, "4:def handler_1():\n9:def handler_2():"),
    ({"name": "Bash", "command": "npx tsc --noEmit"}, "src/app/routes.py:4:9 - error TS2304: no name"),
], ids=["grep", "wrapped", "one file", "compiler"])  # fmt: skip
def test_numbered_lines_of_a_search_know_which_change_came_after_them(search, output):
    s = Session()
    early = s.edit(LINES[1], "# before the search")
    arguments = dict(search)
    found = s.add(arguments.pop("name"), output, **arguments)
    assert early < found
    assert not s.files.changed_since(str(found), output)
    s.add("Edit", file_path="/repo/src/app/views.py", old_string="a", new_string="b")
    assert not s.files.changed_since(str(found), output)
    later = s.add("Edit", file_path="/repo/src/app/routes.py", old_string="a", new_string="b")
    s.add("Edit", file_path="/repo/src/app/routes.py", old_string="b", new_string="c")
    assert s.files.changed_since(str(found), output) == later
    if "routes.py:" in output:
        assert not s.files.changed_since(str(found), "other.py:9:handler_1()")  # what a quote leaves out


@pytest.mark.parametrize("layout", ["native", "block"])
def test_a_quote_of_a_search_says_that_its_file_was_edited_later(layout):
    shown = "\n".join(f"{PATH}:{n}:{line}" for n, line in enumerate(LINES, 1))
    search = [call(("g", "Grep", {"pattern": "handler_"})), result("g", shown)]
    change = edit("e", LINES[39], "# other")
    messages = [system(), *ASKING, *search, *change, *rounds(14, size=4_000, start=100)]
    context = folded(messages, layout=layout)
    assert f"{PATH}:" in context
    assert ("#1, before edit #2]" if layout == "native" else "(before edit #2)\n") in context
    assert "edit #" not in folded([m for m in messages if m not in change], layout=layout)
