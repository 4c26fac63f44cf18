"""A meter says by which counter it counts tokens: without a vocabulary its figures are others."""

import subprocess
import sys

import pytest

from tests.benchmarks import FOLDER, importing

with importing():
    import harness


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("", "Tokens are counted by "),
        (
            "approximate",
            "Tokens are counted by approximate; no vocabulary: figures differ from those by tiktoken.\n",
        ),
    ],
)
def test_the_counter_is_named_in_one_line(name, line, capsys):
    harness.print_counter(name)
    printed = capsys.readouterr().out
    assert printed.startswith(line)
    assert printed.count("\n") == 1


@pytest.mark.long  # a process each
@pytest.mark.parametrize("meter", ["derivable", "lengths", "evidence", "acting"])
def test_a_meter_begins_with_its_counter(meter, tmp_path):
    run = (
        '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": null, "tool_calls": '
        '[{"id": "c", "type": "function", "function": {"name": "t", "arguments": "{}"}}]}, '
        '{"role": "tool", "tool_call_id": "c", "content": "ok"}, {"role": "assistant", "content": "b"}]}'
    )
    (tmp_path / "run.jsonl").write_text(run + "\n")
    command = [sys.executable, FOLDER / f"{meter}.py", tmp_path / "run.jsonl"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.lstrip().startswith("Tokens are counted by "), done.stderr
