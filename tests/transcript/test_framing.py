"""An output is read as what it holds, whatever a client puts around it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples
from tests.selection.texts import ANY_TEXT

from memory_bank import InteractionRecord
from memory_bank.models.extraction import extract_summary
from memory_bank.selection.effects import is_failure
from memory_bank.selection.thread import outcome
from memory_bank.selection.values import parse_record
from memory_bank.transcript.framing import content_of, frame_of

ORDER = {
    "order_id": "ORD-7KQ2",
    "items": [{"sku": f"SKU-{n}X", "text": "blue parcel by the gate " * 3} for n in range(4)],
    "payment": {"payment_id": "PAY-88XY7", "captured": True},
    "shipment_id": "SHP-5T1Z",
}
TEXT = json.dumps(ORDER, indent=1)

FRAMES = {
    "none": "{}",
    "qwen-code": "Command: ./shop\nDirectory: (root)\nOutput: {}\nError: (none)\nExit Code: 0\nSignal: (none)\n"
    "Background PIDs: (none)\nProcess Group PGID: 48213",
    "Gemini CLI": "Command: python3 - <<E\nprint(1)\nE\nDirectory: /repo\nStdout: {}\nStderr: (empty)\nExit Code: 0",
    "mini-swe-agent": "<returncode>0</returncode>\n<output>\n{}\n</output>",
    "Codex": "Chunk ID: 48213\nWall time: 0.4821 seconds\nProcess exited with code 0\nOriginal token count: 4821\n"
    "Output:\n{}",
    "line after": "{}\nexit code: 0",
    "line before": "Output:\n{}",
    "OpenHands": "{}\n[The command completed with exit code 0.]\n[Current working directory: /w]\n"
    "[Python interpreter: /usr/bin/python]\n[Command finished with exit code 0]",
    "SWE-agent": "OBSERVATION:\n{}\n(Open file: n/a)\n(Current directory: /repo)\nbash-$",
    "Cline": "[execute_command for './shop'] Result:\nCommand executed.\nOutput:\n{}",
    "Aider": "I ran this command:\n\n./shop\n\nAnd got this output:\n\n```\n{}\n```\n",
    "smolagents": "Observation:\nExecution logs:\n{}\nLast output from code snippet:\nNone",
    "fence": "```json\n{}\n```",
    "tags": '<function_results>\n<tool_name>sh</tool_name>\n<stdout exit="0">{}</stdout><stderr></stderr>\n'
    "</function_results>",
    "sentence": "Here are the results of your call.\n\n{}\n\nTell me if more is needed.",
    "timing": "{}\n\nreal\t0m4.821s\nuser\t0m0.011s\nsys\t0m0.004s",
    "truncated": "{}\n... [output truncated, 4821 more lines] ...",
    "prompt": "$ ./shop\n{}\n$ ",
    "HTTP": "HTTP/1.1 200 OK\nContent-Type: application/json\nX-Request-Id: 4821-3\n\n{}",
    "a remark": "{}\n\n<system-reminder>\nNothing to do in 4821-3.\n</system-reminder>",
    "unknown lines": "%% runner\n{}\n%% end",
}
JSON_FRAMES = {
    "stdout": lambda text: json.dumps({"stdout": text, "stderr": "", "exit_code": 0}),
    "metadata": lambda text: json.dumps(
        {"output": text, "metadata": {"exit_code": 0, "duration_seconds": 4.8}}
    ),
    "MCP": lambda text: json.dumps([{"type": "text", "text": text}]),
    "MCP result": lambda text: json.dumps({"content": [{"type": "text", "text": text}], "isError": False}),
    "JSON-RPC": lambda text: json.dumps({"jsonrpc": "2.0", "id": 3, "result": {"content": [{"text": text}]}}),
    "a string": json.dumps,
    "Python": lambda text: repr({"stdout": text, "returncode": 0}),
    "printed call": lambda text: (
        f"CompletedProcess(args=['./shop'], returncode=0, stdout={text!r}, stderr='')"
    ),
    "printed message": lambda text: f"content={text!r} name='shell' tool_call_id='c1'",
    "line numbers": lambda text: "\n".join(f"{n:6d}\t{line}" for n, line in enumerate(text.split("\n"), 1)),
}
ALL = {
    **{name: (lambda text, frame=frame: frame.replace("{}", text)) for name, frame in FRAMES.items()},
    **JSON_FRAMES,
}
PAIRS = [(a, b) for a in ("qwen-code", "Codex", "line after", "fence", "stdout", "MCP") for b in JSON_FRAMES]


@pytest.mark.parametrize("frame", ALL.values(), ids=ALL)
def test_a_frame_hides_no_structure_and_no_outcome(frame):
    text = frame(TEXT)
    assert content_of(text).value == ORDER
    assert outcome(text) == outcome(TEXT)
    assert not is_failure(text)


@pytest.mark.parametrize(("outer", "inner"), PAIRS)
def test_frames_in_one_another_are_taken_off(outer, inner):
    assert content_of(ALL[outer](ALL[inner](TEXT))).value == ORDER


@pytest.mark.parametrize("frame", ALL.values(), ids=ALL)
def test_the_lines_of_a_frame_hold_no_values_and_the_content_all_of_its_own(frame):
    framed, plain = (
        {c.form for found in parse_record(1, text, len).candidates for c in found}
        for text in (frame(TEXT), TEXT)
    )
    assert {"ord-7kq2", "pay-88xy7", "shp-5t1z", "sku-3x"} <= framed & plain
    assert not [form for form in framed if "4821" in form]


@pytest.mark.parametrize("frame", ALL.values(), ids=ALL)
def test_a_failure_is_one_in_every_frame(frame):
    assert is_failure(frame('{"error": "no such order: ORD-7KQ2", "code": 404}'))


@pytest.mark.parametrize("name", [name for name in ALL if name not in ("unknown lines", "sentence")])
def test_a_traceback_is_a_failure_in_every_known_frame(name):
    trace = "\n".join(["Traceback (most recent call last):", *["  File x.py, line 3, in order"] * 8])
    assert is_failure(ALL[name](f"{trace}\nValueError: ORD-7KQ2"))


@pytest.mark.parametrize(
    "text",
    [
        "Command: x\nDirectory: (root)\nOutput: a\nError: (none)\nExit Code: 2\nProcess Group PGID: 7",
        "Chunk ID: a1\nWall time: 0.2 seconds\nProcess exited with code 1\nOutput:\nx",
        "x\n[The command completed with exit code 127.]\n[Current working directory: /w]",
        "<returncode>1</returncode>\n<output>\nx\n</output>",
        '{"stdout": "", "stderr": "sh: no shop", "exit_code": 127}',
        '[{"type": "text", "text": "{\\"stdout\\": \\"x\\", \\"returncode\\": 1}"}]',
        "x\nexit status 3",
    ],
)
def test_an_exit_code_of_a_frame_reports_a_failure(text):
    assert is_failure(text)
    assert outcome(text)[0].startswith("error: ")


@pytest.mark.parametrize(
    "text",
    [
        "order_id: ORD-7KQ2\nitems:\n  - sku: SKU-1X\n    n: 1\n  - sku: SKU-2X\n    n: 2\npayment:\n  payment_id: PAY-88XY7",
        "order_id: ORD-7KQ2\nitems.0.sku: SKU-1X\nitems.1.sku: SKU-2X\npayment.payment_id: PAY-88XY7\nqty: 1",
        "| key | value |\n|---|---|\n| order_id | ORD-7KQ2 |\n| payment_id | PAY-88XY7 |",
        " order_id | payment_id\n----------+-----------\n ORD-7KQ2 | PAY-88XY7\n(1 row)",
        "order_id,payment_id,text\nORD-7KQ2,PAY-88XY7,some words about it that are long",
        "**Order ID**: ORD-7KQ2\n**Payment ID**: PAY-88XY7\nSome words that follow the two identifiers above.",
        "order_id = ORD-7KQ2\npayment_id = PAY-88XY7\nnote = the parcel stands at the northern gate",
    ],
)
@pytest.mark.parametrize("frame", ["none", "qwen-code", "OpenHands", "stdout", "sentence", "line numbers"])
def test_lines_of_keys_and_values_tell_their_ids_as_an_object_does(text, frame):
    told, values = outcome(ALL[frame](text))
    assert values[:2] == ["ORD-7KQ2", "PAY-88XY7"] and "SKU" not in told


RUNS = {  # of Codex: as it frames them, and the object that its code gets
    "unified": lambda code, text: (
        f"Chunk ID: 6d1f\nWall time: 0.05 seconds\nProcess exited with code {code}\nOutput:\n{text}"
    ),
    "shell": lambda code, text: f"Exit code: {code}\nWall time: 0.1 seconds\nOutput:\n{text}",
    "metadata": lambda code, text: json.dumps(
        {"output": text, "metadata": {"exit_code": code, "duration_seconds": 0.1}}
    ),
    "object": lambda code, text: json.dumps(
        {
            "chunk_id": "6d1f",
            "wall_time_seconds": 0.05,
            "exit_code": code,
            "original_token_count": 4,
            "output": text,
        }
    ),
}
RUNS["code"] = lambda code, text: (
    f"Script completed\nWall time 0.1 seconds\nOutput:\n\n{RUNS['object'](code, text)}"
)


@pytest.mark.parametrize("frame", RUNS.values(), ids=RUNS)
@pytest.mark.parametrize(
    ("code", "text", "told"),
    [
        (1, "", "error: exit code 1"),
        (2, "Starting\nuploading 12 files\nserver says no\n", "error: exit code 2: server says no"),
        (1, "cat: a.txt: No such file or directory\n", "error: cat: a.txt: No such file or directory"),
        (1, "denied", "error: exit code 1: denied"),
        (0, "", ""),
    ],
)
def test_a_run_that_failed_is_told_with_its_exit_code_or_its_error(frame, code, text, told):
    output = frame(code, text)
    assert is_failure(output, "exec", '{"cmd": "./deploy"}') is (code > 0)
    assert outcome(output, ends=True)[0] == told


@pytest.mark.parametrize(
    ("output", "told"),
    [
        ("Script failed\nWall time 0.1 seconds\nOutput:\n\nScript error:\nTypeError: no tool", "error: TypeError: no tool"),
        ("apply_patch verification failed: Failed to find expected lines in /a.py:\nfoo\nbar",
         "error: apply_patch verification failed: Failed to find expected lines in /a.py:"),
        ("unsupported call: shell", "error: unsupported call: shell"),
        ("execution error: Io(NotFound)", "error: execution error: Io(NotFound)"),
        ('exec_command failed for `x`: CreateProcess { message: "Rejected(\\"rejected by user\\")" }', "rejected by the user"),
        ("Chunk ID: a\nWall time: 10.0 seconds\nProcess running with session ID 42\nOutput:\nVITE ready\n",
         "Process running with session ID 42; VITE ready"),
        ("Script running with cell ID 3\nWall time 10.0 seconds\nOutput:\n\n", "Script running with cell ID 3"),
    ],
)  # fmt: skip
def test_what_codex_says_of_a_call_is_told(output, told):
    assert outcome(output, failed=is_failure(output, "exec", '{"cmd": "x"}'), ends=True)[0] == told


def test_an_object_of_the_domain_is_no_frame():
    for value in (
        {"id": "ORD-7KQ2", "content": {"a": 1}},
        {"status": "shipped", "data": {"id": 7}},
        {"result": "REF-123"},
        {"duration": 120, "text": {"a": 1}, "flight": "LH-400"},
    ):
        assert content_of(json.dumps(value)).value == value


def test_a_text_that_is_all_frame_is_kept():
    text = "Process Group PGID: 4821\nexit code: 0"
    assert frame_of(text)[:2] == (0, len(text))
    assert outcome("Chunk ID: a\nProcess exited with code 1\nOutput:\n")[0].startswith("error: ")


def test_a_summary_says_what_the_content_is():
    for name in ("stdout", "qwen-code", "MCP"):
        record = InteractionRecord.create(1, "sh", {}, {"_raw": ALL[name](TEXT)})
        assert "Returned an object with 4 fields: order_id" in extract_summary(record)


def test_the_record_keeps_the_frame():
    text = ALL["qwen-code"](TEXT)
    assert parse_record(1, text, len).cut.sources[0] == text


@examples(300)
@given(ANY_TEXT, st.sampled_from(sorted(ALL)))
def test_any_text_is_read_and_the_content_stands_in_it(text, name):
    text = ALL[name](text)
    frame = frame_of(text)
    assert 0 <= frame.start <= frame.stop <= len(text)
    content_of(text)
    parse_record(1, text, len)


PIECES = ("{", '{"a":', '[{"type":"text","text":"', "<stdout>", "</stdout>", "```\n", "Output: ", "exit code: 0\n",
          "1\t{\n", "| ", "$ a\n", "\\\"", "<system-reminder>", "HTTP/1.1 200 OK\n", "a: ", " ", "\t", "(took ")  # fmt: skip


@pytest.mark.parametrize("piece", PIECES)
def test_repetitions_of_a_frames_parts_are_read(piece):
    for times in (60, 2_000):
        for text in (piece * times, f"Output: {piece * times}\nexit code: 1", f"x {piece}\n" * times):
            outcome(text)
            parse_record(1, text, len)
