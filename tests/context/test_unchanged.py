"""An answer that only refers to an earlier result stands with the newest copy of the file once that result is gone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.chats import FOLDING, call, result, rounds, system, user
from tests.examples import examples

from memory_bank import Config, MemoryProcessor
from memory_bank.context.policies.evidence import restored_copies
from memory_bank.transcript.harness import refers_to_earlier
from memory_bank.transcript.messages import message_text

PATH = "/app/handlers.py"
LINES = [
    f'def handler_{n}(request): return route_{n}(request.path, "{n * 7919 % 10007}")' for n in range(1, 161)
]
NUMBERED = "\n".join(f"{n:6d}\t{line}" for n, line in enumerate(LINES, 1))
CLAUDE_CODE = "Wasted call — file unchanged since your last Read. Refer to that earlier tool_result instead."
EDITED = f"The file {PATH} has been updated successfully. (file state is current in your context — no need to Read it back)"
ANSWERS = [
    CLAUDE_CODE,
    "File unchanged since last read. The content from the earlier Read tool_result in this conversation is still "
    "current — refer to that instead of re-reading.",
    f"{PATH} has not been modified since you last read it; its contents are already in your context.",
    "The file has not changed since the previous read. See the earlier output.",
    "[[NOTE] This file read has been removed to save space in the context window. Refer to the latest file read for "
    "the most up to date version of this file.]",
    "This file was already read earlier in this conversation. Do not read it again.",
    "No changes since your last read of this file.",
    "Content identical to the previous read.",
    "<system-reminder>File not modified since last read; same as the previous result.</system-reminder>",
    "File already in context; not re-reading.",
    "Contents are the same as above.",
    "Skipped: identical to earlier output.",
    "[Duplicate of an earlier read; content omitted]",
    "No changes detected since last read.",
    "File is up to date with your last read; nothing new to show.",
    "[File content omitted: same content was returned by an earlier read_file call]",
    f"[cached] {PATH} is unchanged, use the content from your previous read.",
    "This is a duplicate read. The content was returned earlier.",
    "Note: you already have the latest version of this file.",
    "This file is already within our conversation.",
]


def read(number: str, output: str, **part: int) -> list[dict]:
    return [call((number, "Read", {"file_path": PATH, **part})), result(number, output)]


def edit(number: str, old: str, new: str, output: str = "The file has been updated.") -> list[dict]:
    given = {"file_path": PATH, "old_string": old, "new_string": new}
    return [call((number, "Edit", given)), result(number, output)]


OLDER = rounds(14, size=4_000, start=100)
OPENING = [system(), user("Fix the handlers."), *read("r1", NUMBERED), *OLDER]


SETTINGS = FOLDING | {"refresh_after": 4_000}


def folded(messages: list[dict]) -> tuple[MemoryProcessor, list]:
    processor = MemoryProcessor(Config(memory_strategies={"memory_bank": SETTINGS}))
    return processor, processor.apply_strategy(messages)[0]


def newest(context: list) -> str:
    return message_text(context[-1])


@pytest.mark.parametrize("answer", ANSWERS)
def test_the_file_stands_after_the_answer_when_a_fold_has_removed_it(answer):
    assert refers_to_earlier(answer)
    _, context = folded([*OPENING, *read("r2", answer)])
    assert len(context) < len(OPENING)
    assert newest(context).startswith(answer)
    assert NUMBERED in newest(context)


@pytest.mark.parametrize(
    "answer",
    ["ok", "The file has been updated.", '{"order_id": "ORD-1", "changed": false}', "Refund REF-1 is done.", "3 files read",
     "\n".join(["unchanged since your last Read"] * 40), "Order unchanged", "The file /app/x.py has been created.", "Name set to the same as above.",
     "You already have an account.", "Nothing changed.", "File saved. No changes needed.", "Duplicate order found.",
     "The balance is the same as before."],
)  # fmt: skip
def test_other_answers_refer_to_nothing(answer):
    assert not refers_to_earlier(answer)
    _, context = folded([*OPENING, *read("r2", answer)])
    assert newest(context) == answer


def test_between_two_folds_what_was_sent_stays_as_it_was_sent():
    messages = [*OPENING, *read("r2", CLAUDE_CODE)]
    processor, before = folded(messages)
    for n in range(4):
        messages += [*rounds(1, start=200 + n), *(read(f"s{n}", CLAUDE_CODE) if n % 2 else [])]
        context = processor.apply_strategy(messages)[0]
        assert context[: len(before)] == before
        before = context
    assert sum(NUMBERED in message_text(m) for m in before) == 1


def test_nothing_is_added_while_the_file_is_there():
    messages = [system(), user("Fix the handlers."), *read("r1", NUMBERED), *read("r2", CLAUDE_CODE)]
    assert folded(messages)[1] == messages
    processor, _ = folded([*OPENING, *rounds(1)])
    processor.apply_strategy([*OPENING, *rounds(1), *read("r2", NUMBERED)])
    context = processor.apply_strategy(
        [*OPENING, *rounds(1), *read("r2", NUMBERED), *read("r3", CLAUDE_CODE)]
    )[0]
    assert newest(context) == CLAUDE_CODE


def test_later_edits_are_in_the_copy_with_its_line_numbers():
    changes = edit("e1", "return route_7(", "return safe_route_7(")
    _, context = folded([*OPENING, *changes, *rounds(6, size=4_000, start=300), *read("r2", CLAUDE_CODE)])
    assert NUMBERED.replace("return route_7(", "return safe_route_7(") in newest(context)


def test_an_edit_that_needs_no_reading_back_brings_the_file_once():
    first = edit("e1", "return route_7(", "return safe_route_7(", EDITED)
    _, context = folded([*OPENING, *first])
    assert "return safe_route_7(" in newest(context) and LINES[100] in newest(context)
    _, context = folded([*OPENING, *first, *edit("e2", "return route_8(", "return safe_route_8(", EDITED)])
    assert newest(context) == EDITED


def test_an_edit_that_is_not_exact_is_told():
    changes = edit("e1", "no such text", "x")
    _, context = folded([*OPENING, *changes, *rounds(6, size=4_000, start=300), *read("r2", CLAUDE_CODE)])
    assert "1 later edits are not in it" in newest(context) and NUMBERED in newest(context)


def test_a_written_file_and_one_of_another_tool_are_copies_too():
    text = "\n".join(LINES)
    written = [call(("w1", "Write", {"file_path": PATH, "content": text})), result("w1", "Created.")]
    start = [system(), user("Fix the handlers."), *written, *OLDER]
    assert text in newest(folded([*start, *read("r2", CLAUDE_CODE)])[1])
    command = {"command": f"cat {PATH}"}
    shown = [call(("b1", "shell", command)), result("b1", text)]
    again = [call(("b2", "shell", command)), result("b2", "Output unchanged since the last call.")]
    assert text in newest(folded([system(), user("Fix."), *shown, *OLDER, *again])[1])


def test_a_search_and_replace_diff_is_applied():
    diff = f"------- SEARCH\n{LINES[4]}\n=======\nnew line 5\n+++++++ REPLACE\n"
    text = "\n".join(LINES)
    messages = [system(), user("Fix."), call(("a", "read_file", {"path": PATH})), result("a", text),
                call(("b", "replace_in_file", {"path": PATH, "diff": diff})), result("b", "Saved."), *OLDER,
                call(("c", "read_file", {"path": PATH})), result("c", CLAUDE_CODE)]  # fmt: skip
    assert text.replace(LINES[4], "new line 5") in newest(folded(messages)[1])


UPDATE = f"*** Update File: {PATH}\n"
HUNK = f" {LINES[3]}\n-{LINES[4]}\n+new line 5\n+and another\n {LINES[5]}\n"
BEGIN, END = "*** Begin Patch\n", "*** End Patch\n"
UNIFIED = f"@@ -4,3 +4,4 @@ def x\n{HUNK}"
V4A = f"{BEGIN}{UPDATE}@@\n{HUNK}{END}"
PATCHES = {
    "apply_patch": ("apply_patch", {"input": V4A}),
    "a command": ("shell", {"command": ["apply_patch", V4A]}),
    "a here document": ("shell", {"command": f"apply_patch <<'EOF'\n{V4A}EOF"}),
    "with a head": ("apply_patch", {"patch": f"{BEGIN}{UPDATE}@@ {LINES[1]}\n{HUNK}{END}"}),
    "without marks": ("apply_patch", {"input": f"{BEGIN}{UPDATE}{HUNK}{END}"}),
    "a relative path": ("apply_patch", {"input": V4A.replace(PATH, "handlers.py")}),
    "an operation": ("apply_patch", {"type": "update_file", "path": PATH, "diff": f"@@\n{HUNK}"}),
    "with others": (
        "apply_patch",
        {"input": f"{BEGIN}*** Add File: /app/a.py\n+x = 1\n{UPDATE}@@\n{HUNK}*** Delete File: /app/b.py\n{END}"},
    ),
    "a unified diff": ("patch", {"diff": f"--- a{PATH}\n+++ b{PATH}\n{UNIFIED}"}),
    "git apply": ("bash", {"command": f"git apply <<'EOF'\n--- a{PATH}\n+++ b{PATH}\n{UNIFIED}EOF"}),
    "of a path": ("apply_diff", {"path": PATH, "diff": UNIFIED}),
    "Roo": (
        "apply_diff",
        {"path": PATH, "diff": f"<<<<<<< SEARCH\n:start_line:5\n-------\n{LINES[4]}\n=======\nnew line 5\nand another\n>>>>>>> REPLACE"},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "numbered"), [(name, n % 2 == 1) for n, name in enumerate(PATCHES)])
def test_a_patch_is_applied(name, numbered):
    tool, given = PATCHES[name]
    lines = [*LINES[:4], "new line 5", "and another", *LINES[5:]]
    text, after = "\n".join(LINES), "\n".join(lines)
    if numbered:
        text, after = NUMBERED, "\n".join(f"{n:6d}\t{line}" for n, line in enumerate(lines, 1))
    messages = [
        system(),
        user("Fix."),
        *read("r1", text),
        call(("p", tool, given)),
        result("p", "Done!"),
        *OLDER,
    ]
    assert after in newest(folded([*messages, *read("r2", CLAUDE_CODE)])[1])
    failed = [*messages[: -len(OLDER) - 1], result("p", "Error: the patch does not apply"), *OLDER]
    assert text in newest(folded([*failed, *read("r2", CLAUDE_CODE)])[1])


def test_a_patch_that_does_not_fit_is_told_and_one_that_moves_or_adds_a_file_is_followed():
    def newest_after(patch, path):
        messages = [
            *OPENING[:4],
            call(("p", "apply_patch", {"input": f"{BEGIN}{patch}{END}"})),
            result("p", "Done!"),
            *OLDER,
        ]
        again = [call(("r2", "Read", {"file_path": path})), result("r2", CLAUDE_CODE)]
        return newest(folded([*messages, *again])[1])

    assert "1 later edits are not in it" in newest_after(f"{UPDATE}@@\n-no such line\n+x\n", PATH)
    moved = newest_after(f"{UPDATE}*** Move to: /app/moved.py\n@@\n{HUNK}", "/app/moved.py")
    assert "new line 5" in moved and LINES[100] in moved
    assert "x = 1\ny = 2" in newest_after("*** Add File: /app/new.py\n+x = 1\n+y = 2\n", "/app/new.py")
    assert newest_after(f"*** Delete File: {PATH}\n", PATH) == CLAUDE_CODE


def test_the_answer_does_not_make_the_real_copy_stale():
    messages = [*OPENING, *read("r2", CLAUDE_CODE), *rounds(14, size=4_000, start=400)]
    processor, _ = folded(messages)
    tables = processor.state("memory_bank").cache("evidence").memory.index.tables
    assert float(tables.records["stale"][0]) == 0


def test_the_record_keeps_the_answer_as_it_came():
    processor, _ = folded([*OPENING, *read("r2", CLAUDE_CODE)])
    state = processor.state("memory_bank")
    assert state.fact_store.get(list(state.steps)[-1]).output_text == CLAUDE_CODE


@examples(60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["Read", "Edit", "Write", "shell"]),
            st.dictionaries(
                st.sampled_from(
                    ["file_path", "old_string", "new_string", "content", "edits", "diff", "offset"]
                ),
                st.one_of(
                    st.just(PATH),
                    st.text(max_size=8),
                    st.integers(),
                    st.none(),
                    st.lists(st.none(), max_size=2),
                ),
            ),
            st.sampled_from([CLAUDE_CODE, EDITED, NUMBERED[:400], "", "a\nb"]),
        ),
        max_size=8,
    )
)
def test_any_calls_are_read(calls):
    messages = [user("Fix.")]
    for n, (tool, arguments, output) in enumerate(calls):
        messages += [call((f"c{n}", tool, arguments)), result(f"c{n}", output)]
    processor = MemoryProcessor()
    processor.apply_strategy(messages)
    view = processor.state("memory_bank").transcript.update(messages)
    for fold in range(len(calls) + 1):
        restored_copies(view, fold, lambda message: len(str(message)))
