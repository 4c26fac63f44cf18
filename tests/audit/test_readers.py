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
from tests.chats import call, result, user

from memory_bank.audit.sessions import log_files, read_claude_code, read_codex
from memory_bank.audit.traces import Trace, TraceFiles, read_traces
from memory_bank.errors import ConfigError, TraceFileError
from memory_bank.transcript import calls_of, content_text


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
    assert content_text(session.messages[1]["content"]) == "I read the file."
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
    told = []
    files = TraceFiles([claude, codex, listed, other, runs, tmp_path / "none.jsonl"], told.append)
    assert [(s.client, len(s.messages)) for s in files] == [
        ("Claude Code", 12), ("Codex", 13), (None, 2), (None, 2),
    ]  # fmt: skip
    assert len(files.skipped) == 4
    assert files.unknown == [str(other)]
    assert files.unreadable == [str(tmp_path / "none.jsonl")]
    assert len(told) == 4


CHAT = [
    user("Find it"),
    call(("c1", "find", {"q": "a"})),
    result("c1", "ORD-1"),
    {"role": "assistant", "content": "ORD-1"},
]
BLOCKS = [
    {"role": "user", "content": [{"type": "text", "text": "Find it"}]},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "find", "input": {"q": "a"}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "ORD-1"}]},
    {"role": "assistant", "content": [{"type": "text", "text": "ORD-1"}]},
]
SWE_AGENT = {
    "trajectory": [{"action": "find a", "observation": "ORD-1", "thought": ""}],
    "info": {"exit_status": "submitted"},
    "history": [
        {**user("Find it"), "agent": "main", "message_type": "observation"},
        {**call(("c1", "find", {"q": "a"})), "agent": "main", "message_type": "action", "thought": "Look"},
        {"role": "tool", "content": [{"type": "text", "text": "ORD-1"}], "tool_call_ids": ["c1"]},
    ],
}
META = {"tool_call_metadata": {"function_name": "find", "tool_call_id": "c1", "model_response": {"id": "x"}}}
OPENHANDS = [
    {"id": 0, "source": "agent", "action": "system", "args": {"content": "You are OpenHands"}},
    {"id": 1, "source": "user", "action": "message", "args": {"content": "Find it"}},
    {"id": 2, "source": "agent", "action": "run", "args": {"q": "a"}, **META},
    {"id": 3, "source": "environment", "observation": "agent_state_changed", "content": "", "cause": 99},
    {"id": 4, "source": "agent", "observation": "run", "content": "ORD-1", "cause": 2, **META},
]
UNNAMED = [{k: v for k, v in e.items() if k != "tool_call_metadata"} for e in OPENHANDS]
OPENHANDS_SDK = [
    {"id": "a", "kind": "MessageEvent", "source": "user", "llm_message": {"role": "user", "content": [{"type": "text", "text": "Find it"}]}},
    {"id": "b", "kind": "ActionEvent", "source": "agent", "tool_name": "find", "tool_call_id": "c1", "action": {"q": "a"}},
    {"id": "c", "kind": "ObservationEvent", "source": "environment", "tool_call_id": "c1", "action_id": "b",
     "observation": {"kind": "X", "content": [{"type": "text", "text": "ORD-1"}]}},
]  # fmt: skip
GEMINI_CALL = {"id": "c1", "name": "find", "args": {"q": "a"}, "status": "success",
               "result": [{"functionResponse": {"id": "c1", "name": "find", "response": {"output": "ORD-1"}}}]}  # fmt: skip
GEMINI_ENTRIES = [
    {"id": "1", "type": "user", "content": "Find it"},
    {"id": "2", "type": "gemini", "content": ""},
    {"id": "2", "type": "gemini", "content": "", "toolCalls": [GEMINI_CALL]},
]
CONTENTS = [
    {"role": "user", "parts": [{"text": "Find it"}]},
    {"role": "model", "parts": [{"functionCall": {"name": "find", "args": {"q": "a"}}}]},
    {"role": "user", "parts": [{"functionResponse": {"name": "find", "response": {"output": "ORD-1"}}}]},
]
FORMS = {
    "messages": [{"id": "x", "messages": CHAT}],
    "history": [{"history": CHAT}],
    "a list a line": [CHAT],
    "a message a line": CHAT,
    "a message a line, in an envelope": [{"type": "message", "message": m} for m in CHAT],
    "a growing list": [{"messages": CHAT[:n]} for n in range(1, 5)],
    "a growing message": [
        CHAT[0],
        *({"id": "m", **CHAT[1], "content": "Look"[:n]} for n in range(5)),
        *CHAT[2:],
    ],
    "blocks": [{"messages": BLOCKS}],
    "blocks, one a line": BLOCKS,
    "Cline": [BLOCKS],
    "SWE-agent": [SWE_AGENT],
    "OpenHands": [OPENHANDS],
    "OpenHands, one a line": OPENHANDS,
    "OpenHands, of an evaluation": [{"instance_id": "x", "history": OPENHANDS}],
    "OpenHands without metadata": [UNNAMED],
    "OpenHands SDK": OPENHANDS_SDK,
    "OpenHands SDK, a list": [{"events": OPENHANDS_SDK}],
    "Gemini CLI": [{"sessionId": "s", "projectHash": "h", "messages": GEMINI_ENTRIES}],
    "Gemini CLI, one a line": [{"sessionId": "s", "projectHash": "h", "kind": "main"}, *GEMINI_ENTRIES],
    "Gemini CLI, a checkpoint": [CONTENTS],
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("indent", [None, 1])
def test_every_form_is_read(name, indent, tmp_path):
    lines = FORMS[name]
    if indent and len(lines) > 1:  # a document is the list of what others write one a line
        lines = [lines] if name != "a growing list" else lines[-1:]
    file = tmp_path / "run.json"
    file.write_text("\ufeff" + "\n".join(json.dumps(line, indent=indent) for line in lines))
    [run] = (r for r in read_traces(file) if isinstance(r, Trace))
    [only] = [c for m in run.messages if m["role"] == "assistant" for c in calls_of(m)]
    [output] = [m for m in run.messages if m["role"] == "tool"]
    assert json.loads(only.text) == {"q": "a"}
    assert (output["tool_call_id"], content_text(output["content"])) == (only.call_id, "ORD-1")
    assert any(content_text(m.get("content")) == "Find it" for m in run.messages)


def test_a_list_of_runs_is_several(tmp_path):
    file = write_lines(tmp_path / "runs.json", [json.dumps([{"id": "a", "messages": CHAT}, CHAT], indent=1)])
    assert [(r.id, len(r.messages)) for r in read_traces(file)] == [("a", 4), ("runs.json:1/2", 4)]


def test_growing_lines_of_claude_code_count_once():
    log = ClaudeCode().user("Go")
    for text in ("L", "Look", "Look here"):
        log.says("m", {"type": "text", "text": text}, tool_use("a", "Read", file_path="x"))
    [session] = read_claude_code(log.lines, "name")
    assert session.messages[1]["content"] == "Look here"
    assert len(session.messages[1]["tool_calls"]) == 1


@pytest.mark.parametrize(
    "lines", [[{"theme": "dark"}] * 3_000, [{"type": "x"}] * 3_000, ["{"] * 3_000, [[1]] * 3_000]
)
def test_a_file_of_something_else_is_one_sentence(lines, tmp_path):
    told = []
    files = TraceFiles([write_lines(tmp_path / "a.jsonl", lines)], told.append)
    with pytest.raises(TraceFileError, match="no run was read"):
        list(files)
    [sentence] = told
    assert "and 2,999 more lines of it" in sentence


def test_runs_without_a_call_are_nothing_to_measure(tmp_path):
    files = TraceFiles([write_lines(tmp_path / "a.jsonl", [{"messages": [user("hi")]}])], print)
    assert len(list(files)) == 1
    with pytest.raises(TraceFileError, match="no tool call was read from"):
        files.check_calls()


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
