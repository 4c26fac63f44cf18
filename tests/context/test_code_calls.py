"""Calls that Codex writes as code are told as what they run; their files are followed, their failures seen."""

import json

import pytest

from memory_bank import InteractionRecord, Memory
from memory_bank.context.evidence import EvidenceMemory
from memory_bank.selection.model import load_model
from memory_bank.transcript import open_counter

PATCH = "*** Begin Patch\n*** Update File: src/rates.py\n@@\n-RATE = 'R-8841-KX'\n+RATE = 'R-9917-QP'\n*** End Patch"
RULES = "Never push to main. You must always run ./check first."
RATES = "RATE = 'R-8841-KX'\nLIMIT = 4\n" + "".join(f"# step {n}: SKU-{n * 7919}\n" for n in range(12))


def run(command):
    return f"const r = await tools.exec_command({{cmd: {json.dumps(command)}, max_output_tokens: 4000}});\ntext(r);\n"


def items(*made):
    """A conversation of the Responses API: the code of each call, and what its tool returned."""
    found = [{"type": "message", "role": "user", "content": "Change the rate, then read the log."}]
    for n, (code, output) in enumerate(made):
        head = {"type": "input_text", "text": "Script completed\nWall time 0.1 seconds\nOutput:\n"}
        parts = [head, {"type": "input_text", "text": output}]
        found += [
            {"type": "custom_tool_call", "call_id": f"c{n}", "name": "exec", "input": code},
            {"type": "custom_tool_call_output", "call_id": f"c{n}", "output": parts},
        ]
    return found


def folded(*made, **options):
    """The context of a run of these calls and a log, at its last step."""
    log = [
        (
            run(f"sed -n {n * 40 + 1},{n * 40 + 40}p log.txt"),
            "\n".join(f"job JOB-{n:03}{i:03} took {i * n % 97} ms" for i in range(40)),
        )
        for n in range(24)
    ]
    native = items(*made, *log)
    given = {
        "budget": 4_000,
        "refresh_after": 3_000,
        "strategy": "memory_bank",
        "token_encoding": "approximate",
    }
    with Memory(**given | options) as memory:
        for end in range(3, len(native), 2):
            memory.context(native[:end])
        return memory.context(native)


@pytest.mark.parametrize("layout", ["native", "block"])
def test_the_list_tells_what_was_run_and_what_failed(layout):
    failed = json.dumps({"chunk_id": "05a92a", "exit_code": 1, "output": "2 failed, 7 passed"})
    context = folded(
        (run("cat AGENTS.md"), RULES),
        (run("sed -n 1,80p src/rates.py"), RATES),
        (f"text(await tools.apply_patch({json.dumps(PATCH)}));", "{}"),
        (run("python -m pytest -q tests/test_rates.py"), failed),
        layout=layout,
    )
    told = "\n".join(
        part if isinstance(part := item["content"], str) else part[0]["text"]
        for item in context
        if item["type"] == "message"
    )
    listed = [line for line in told.split("\n") if line.startswith("#")]
    assert any("sed -n 41,80p log.txt" in line for line in listed), told
    assert not any("tools.exec_command" in line for line in listed)
    assert "failed last: python -m pytest -q tests/test_rates.py (#4)" in told
    assert RULES in json.dumps(context)  # quoted whole, as rules are
    for item in context:  # what stands in its place is code as the tool takes it
        if item["type"] == "custom_tool_call":
            assert item["input"].startswith(("const r = await tools.", "text(await tools.apply_patch("))


def test_what_was_read_of_a_file_is_followed_by_a_later_edit():
    memory = EvidenceMemory(open_counter("approximate"), load_model())
    patch = f"const patch = `{PATCH}`;\ntext(await tools.apply_patch(patch));"
    for step, (code, output) in enumerate([(run("cat src/rates.py"), RATES), (patch, "{}")], 1):
        memory.add(
            InteractionRecord(f"t{step}", step, "exec", {"_raw": code}, output, 0.0, None, code, output)
        )
    copy = memory.index.files.of_call("t1")
    assert copy is not None
    assert copy.applied == [2]
    assert copy.text == RATES.replace("R-8841-KX", "R-9917-QP")


def test_the_text_of_code_that_is_shown_and_has_an_error_is_no_failure():
    source = "error: str = ''\n" + "".join(f"def step_{n}(): raise ValueError({n})\n" for n in range(60))
    told = json.dumps(folded((run("cat src/errors.py"), source)))
    assert "cat src/errors.py" in told
    assert "failed last" not in told
