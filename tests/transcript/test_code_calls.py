"""The code that Codex runs, read as what its calls are given."""

from __future__ import annotations

import json
import time

import pytest

from memory_bank.transcript.textcalls import plain_arguments

PATCH = '*** Begin Patch\n*** Update File: a.py\n@@\n-x = "1"\n+x = "2"\n*** End Patch'
PATCHED = {"cmd": f"apply_patch <<'PATCH'\n{PATCH}\nPATCH"}


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        ('const r = await tools.exec_command({cmd: "cat a\\nls"});\ntext(r.output);', {"cmd": "cat a\nls"}),
        (
            'await tools.exec_command({"workdir": "/a b", max_tokens: 300, "cmd": \'ls \\\'a\\\'\', tty: false,})',
            {"workdir": "/a b", "max_tokens": 300, "cmd": "ls 'a'", "tty": False},
        ),
        ("tools.exec_command({cmd: `ls\n$HOME`})", {"cmd": "ls\n$HOME"}),
        ('tools.exec_command({cmd:"\\u00e9 \\ud83d\\ude00"})', {"cmd": "é 😀"}),
        ('let c = "ls"; tools.exec_command({cmd: c})', {"cmd": "ls"}),
        ('const cmd = "ls";\ntools.exec_command({cmd, workdir: "/a"})', {"cmd": "ls", "workdir": "/a"}),
        ('Promise.all([tools.exec_command({cmd: "a"}), tools.exec_command({cmd: "b"})])', {"cmd": "a\nb"}),
        (f"const patch = {json.dumps(PATCH)};\ntext(await tools.apply_patch(patch));", PATCHED),
        (f"const p = `{PATCH}`;\nawait tools.apply_patch(p)", PATCHED),
        (r"tools.exec_command({cmd: 'grep a\\x41 \d'})", {"cmd": r"grep a\x41 d"}),
        (r"tools.exec_command({cmd: String.raw`grep \bx`})", {"cmd": r"grep \bx"}),
        ("tools.apply_patch(String.raw`a\\n`)", {"cmd": "apply_patch <<'PATCH'\na\\n\nPATCH"}),
        ("// it's\ntools.exec_command({cmd: 'ls'})", {"cmd": "ls"}),
        ("const p = /['\"]/;\ntools.exec_command({cmd: 'ls'})", {"cmd": "ls"}),
        ("tools.exec_command({cmd: 'ls'}); /* or\ntools.exec_command({cmd: 'rm a'}) */", {"cmd": "ls"}),
        (
            """tools.exec_command({cmd: "grep tools.exec_command({cmd:'a'}) b"})""",
            {"cmd": "grep tools.exec_command({cmd:'a'}) b"},
        ),
        ("const r = await tools.exec_command({cmd: 'ls'});\ntext(`${r.code} a`, `b ${r.x}`)", {"cmd": "ls"}),
        ("const c = 'ls'\nconst r = await tools.exec_command({cmd: c})\nif (r == c) text(r)", {"cmd": "ls"}),
        ("const c = 'é'; tools.exec_command({cmd: c, a: c, b: c})", {"cmd": "é", "a": "é", "b": "é"}),
        (
            'text(await tools.mcp__shop__order({id: "O-1", parts: [{n: 1}, "b"]}))',
            {"tool": "mcp__shop__order", "id": "O-1", "parts": [{"n": 1}, "b"]},
        ),
    ],
)
def test_what_is_written_out_is_read(code, arguments):
    assert json.loads(plain_arguments("exec", code)) == arguments


@pytest.mark.parametrize(
    "code",
    [
        r"tools.exec_command({cmd: 'rm a\x41'})",  # not what stands there
        "tools.exec_command({cmd: `ls ${folder}`})",
        'tools.exec_command({cmd: "ls " + folder})',
        'tools.apply_patch("a" + b)',
        "tools.exec_command({cmd: made(1)})",
        "tools.exec_command({cmd: 1})",
        'tools.exec_command({cmd: "ls"}); tools.write_stdin({session_id: 1, chars: "y"})',
        'tools.exec_command({cmd: "ls"}); tools.exec_command({cmd})',
        '{"command": "ls"}',
        "tools.exec_command(",
        "tools.clock__curr_time()",
        "",
        r'tools.exec_command({cmd: "a \ud800"})',  # no client can send it
        "// tools.apply_patch('p')",
        "/* a/b tools.exec_command({cmd: 'rm a'}) */",
        "f(/* a/ tools.exec_command({cmd: 'rm a'}) */)",
        """const doc = "tools.apply_patch('p')"; text(doc)""",
        "text(`tools.exec_command({cmd: 'rm a'})`)",
        "const p = /tools.exec_command({cmd:'rm a'})/; text(p)",
        """{"command": "echo tools.exec_command({cmd:'rm a'})"}""",
        "my.tools.exec_command({cmd: 'ls'})",
        "const r = `${await tools.exec_command({cmd: 'a'})}`; tools.exec_command({cmd: 'b'})",
        "let c = 'ls'; c = made(c); tools.exec_command({cmd: c})",
        "let c = 'ls'; c += ' a'; tools.exec_command({cmd: c})",
        "const c = 'ls'; for (const c of cs) tools.exec_command({cmd: c})",
        "const c = 'ls'; cs.map((c) => tools.exec_command({cmd: c}))",
        "const c = 'ls ' + folder; tools.exec_command({cmd: c})",
        "const c = 'ls '.repeat(2); tools.exec_command({cmd: c})",
        "const c = 'ls'\n + folder; tools.exec_command({cmd: c})",
        "tools.exec_command({cmd: 'ls'}); text('",
        "tools.exec_command({cmd: 'ls'}); /* and",
    ],
)
def test_other_code_stays_as_it_is(code):
    assert plain_arguments("exec", code) == code


def test_a_text_of_another_tool_is_not_read():
    for text in (f"{PATCH}\n+tools.exec_command({{cmd: 'ls'}})", "tools.exec_command({cmd: 'ls'})"):
        assert plain_arguments("apply_patch", text) == text


@pytest.mark.parametrize(
    "part",
    ["tools.exec_command({", "a: b, ", 'tools.exec_command({cmd: "\\', "const a = `", "tools.apply_patch('",
     "{a:", "[", '"a",', " ", "\\", '\\"', "(/[a", "=/*", "const a = '\\'", "a\n", "a ", "`${a}`", "tools.a(["],
)  # fmt: skip
def test_broken_code_takes_linear_time(part):
    began = time.process_time()
    plain_arguments("exec", f"tools.exec_command({{{part * (50_000 // len(part))}")
    assert time.process_time() - began < 2


@pytest.mark.parametrize("use", ["tools.a([{}])", "{}"])
def test_a_long_text_that_is_used_many_times_is_not_read(use):
    text = "x" * 25_000
    uses = {"tools.a([{}])": use.format("A," * 12_000), "{}": "tools.exec_command({cmd: A});" * 800}[use]
    code = f"const A = '{text}'; {uses}"
    began = time.process_time()
    assert plain_arguments("exec", code) == code
    assert time.process_time() - began < 0.5
