"""Logs of agents as messages: every client's lines, and what is wrong in them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.audit.logged import (
    SOURCE,
    SUMMARY,
    ClaudeCode,
    claude_code_lines,
    codex_lines,
    tool_use,
    write_lines,
)

from memory_bank.audit.sessions import LogFiles, log_files, log_format, read_claude_code, read_codex
from memory_bank.errors import ConfigError


def roles(session):
    return "".join({"assistant": "a", "tool": "t"}.get(m["role"], m["role"][0]) for m in session.messages)


def test_a_session_of_claude_code():
    [session] = read_claude_code(claude_code_lines(), "name")
    assert (session.id, session.client, roles(session)) == ("s-1", "Claude Code", "uatatatatata")
    assert session.compactions == [(5, SUMMARY)]
    first = session.messages[1]["tool_calls"][0]["function"]
    assert (first["name"], first["arguments"]) == ("Read", '{"file_path":"/shop/quarter.py"}')
    assert session.messages[2] == {"role": "tool", "tool_call_id": "a", "content": SOURCE}
    assert session.messages[-1]["content"] == "Done."


def test_parallel_calls_are_one_message_and_repeated_lines_count_once():
    log = ClaudeCode().user("Go")
    log.says("m", {"type": "text", "text": "Both."}, tool_use("a", "Read", file_path="x"))
    log.user([{"type": "tool_result", "tool_use_id": "a", "content": "1"}])
    log.says("m", tool_use("b", "Read", file_path="y"))  # written after the first result came
    log.user([{"type": "tool_result", "tool_use_id": "b", "content": "2"}, {"type": "text", "text": "hurry"}])
    [session] = read_claude_code([*log.lines, *log.lines], "name")
    assert roles(session) == "uattu"
    assert [c["id"] for c in session.messages[1]["tool_calls"]] == ["a", "b"]
    assert session.messages[1]["content"] == "Both."


def test_subagents_are_sessions_of_their_own_and_api_errors_are_left_out():
    log = ClaudeCode().user("Go").user("Look", isSidechain=True, agentId="x7")
    log.says("m1", {"type": "text", "text": "Seen."}, isSidechain=True, agentId="x7")
    log.says("m2", {"type": "text", "text": "overloaded"}, isApiErrorMessage=True)
    log.event("summary", leafUuid="u", summary="a title").event("queue-operation")
    sessions = read_claude_code(log.lines, "name")
    assert [(s.id, roles(s)) for s in sessions] == [("s-1", "u"), ("s-1/x7", "ua")]


def test_a_rollout_of_codex():
    [session] = read_codex(codex_lines(), "name")
    assert (session.id, session.client, roles(session)) == ("r-1", "Codex", "uatattatatata")
    assert session.compactions == [(6, SUMMARY)]
    assert session.messages[1]["content"] == "I read the file."
    assert [c["id"] for c in session.messages[3]["tool_calls"]] == ["b", "b2"]
    assert [m["content"] for m in session.messages[4:6]] == ["ok", "/shop"]


def test_an_old_rollout_without_envelopes():
    lines = [{"id": "r", "timestamp": "t", "instructions": None}, {"record_type": "state"}]
    lines += [line["payload"] for line in codex_lines() if line["type"] == "response_item"]
    [session] = read_codex(lines, "name")
    assert (session.id, roles(session)) == ("name", "uatattatatata")


@pytest.mark.parametrize(
    ("payload", "summary"),
    [
        ({"message": "short"}, "short"),
        ({"message": "", "replacement_history": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Check the postings of the quarter."}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "So far: nothing."}]},
        ]}, "So far: nothing."),
        ({"message": "", "replacement_history": [{"type": "compaction", "encrypted_content": "xyz"}]}, None),
    ],
)  # fmt: skip
def test_what_replaced_a_history_in_codex(payload, summary):
    [session] = read_codex(codex_lines(payload), "name")
    assert session.compactions == [(6, summary)]


def test_files_and_folders(tmp_path):
    claude = write_lines(
        tmp_path / "projects" / "-shop" / "s-1.jsonl", ["{broken", *claude_code_lines(), "", "[1]"]
    )
    codex = write_lines(tmp_path / "projects" / "2026" / "rollout-1.jsonl", codex_lines())
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    listed = write_lines(tmp_path / "projects" / "chat.json", [json.dumps(chat, indent=1)])
    runs = write_lines(tmp_path / "runs.jsonl", [{"id": "x", "messages": chat}, "{broken"])
    other = write_lines(tmp_path / "projects" / "settings.json", [{"theme": "dark"}])
    assert log_files([tmp_path / "projects", runs]) == [claude, codex, listed, other, runs]
    formats = [log_format(p) for p in (claude, codex, listed, other, runs)]
    assert formats == ["Claude Code", "Codex", "message list", None, None]
    told = []
    files = LogFiles([claude, codex, listed, other, runs, tmp_path / "none.jsonl"], told.append)
    assert [(s.client, len(s.messages)) for s in files] == [
        ("Claude Code", 12), ("Codex", 13), ("message list", 2), ("message list", 2),
    ]  # fmt: skip
    assert files.skipped == 3
    assert files.unknown == [str(other)]
    assert files.unreadable == [str(tmp_path / "none.jsonl")]
    assert len(told) == 1


def test_wrong_paths_are_one_sentence(tmp_path):
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(ConfigError, match=r"^[^\n]+: (check|name) [^\n]+\.$"):
            log_files([path])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["type", "message", "content", "id", "uuid", "role", "name", "input", "payload", "output", "call_id",
                         "replacement_history", "isSidechain", "isCompactSummary", "sessionId", "text", "tool_use_id"])
        | st.text(max_size=4),
        inner | st.sampled_from(["user", "assistant", "tool_use", "tool_result", "text", "message", "compacted",
                                 "response_item", "function_call", "function_call_output", "session_meta"]),
        max_size=5,
    ),
    max_leaves=20,
)  # fmt: skip


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["type", "message", "payload", "uuid", "sessionId", "isCompactSummary"]), JSON
        ),
        max_size=6,
    )
)
def test_no_line_makes_a_reader_raise(lines):
    for read in (read_claude_code, read_codex):
        for session in read(lines, "name"):
            assert all(isinstance(m["role"], str) for m in session.messages)
