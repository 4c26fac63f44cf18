"""Which calls of agents' logs read files, and which read them again."""

import pytest
from benchmarks.measuring.rereads import count_rereads, file_read

from memory_bank.audit.costs import Costs, named_counter
from memory_bank.audit.sessions import read_claude_code
from tests.audit.logged import ClaudeCode


@pytest.fixture
def costs():
    return Costs(named_counter("approximate"))


READS = [
    ("Read", {"file_path": "a.py", "limit": 3}, "a.py"), ("read_file", {"path": "a.py"}, "a.py"),
    ("ReadFile", {"path": "a.py"}, "a.py"), ("view", {"path": "a.py"}, "a.py"), ("spread", {"path": "a.py"}, ""),
    ("Write", {"file_path": "a.py"}, ""), ("Bash", {"command": "cat a.py"}, "a.py"),
    ("Bash", {"command": "cd x && head -n 20 a.py"}, "a.py"),
    ("Bash", {"command": "sed -n '10,20p' a.py | grep x"}, "a.py"), ("Bash", {"command": "sed -i s/a/b/ a.py"}, ""),
    ("Bash", {"command": "cat a.py > b.py"}, ""), ("Bash", {"command": "cat a.py b.py"}, ""),
    ("Bash", {"command": "cat 'a"}, ""), ("shell", {"command": ["bash", "-lc", "nl a.py"]}, "a.py"),
    ("shell", {"command": ["cat", "a b.py"]}, "a b.py"), ("exec_command", {"cmd": "cat a.py"}, "a.py"),
    ("Read", "a.py", ""),
]  # fmt: skip


def test_which_calls_read_a_file():
    assert [file_read(name, arguments) for name, arguments, _ in READS] == [path for *_, path in READS]


def test_a_file_is_read_again_when_half_of_its_lines_were_read_before(costs):
    one, two = ("\n".join(f"{i}\tline {i} of {part}" for i in range(10)) for part in ("one", "two"))
    log = ClaudeCode().user("Go").call("a", "Read", one, file_path="x").call("b", "Read", two, file_path="x")
    log.call("c", "Read", one, file_path="y").call("d", "Read", f"{one}\n{two}", file_path="x")
    log.compact("…").call("e", "Read", one, file_path="x").call("f", "Read", one, file_path="x")
    [session] = read_claude_code(log.lines, "x")
    found = count_rereads(session, costs)
    assert (found.reads, found.again, found.after_compaction) == (6, 3, 1)
    assert found.tokens_again > 0
