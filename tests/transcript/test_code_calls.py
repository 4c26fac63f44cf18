"""Commands in the code that Codex runs, read as commands of a shell."""

from __future__ import annotations

import json
import time

import pytest

from memory_bank.transcript.textcalls import commands_in_code

PATCH = '*** Begin Patch\n*** Update File: a.py\n@@\n-x = "1"\n+x = "2"\n*** End Patch'
PATCHED = f"apply_patch <<'PATCH'\n{PATCH}\nPATCH"


@pytest.mark.parametrize(
    ("code", "command"),
    [
        ('const r = await tools.exec_command({cmd: "cat a\\nls"});\ntext(r.output);', "cat a\nls"),
        ('await tools.exec_command({"workdir": "/a b", max_tokens: 300, "cmd": \'ls \\\'a\\\'\'})', "ls 'a'"),
        ("tools.exec_command({cmd: `ls\n$HOME`})", "ls\n$HOME"),
        ('tools.exec_command({cmd:"\\u00e9 \\ud83d\\ude00"})', "é 😀"),
        ('let c = "ls"; tools.exec_command({cmd: c})', "ls"),
        ('Promise.all([tools.exec_command({cmd: "a"}), tools.exec_command({cmd: "b"})])', "a\nb"),
        (f"const patch = {json.dumps(PATCH)};\ntext(await tools.apply_patch(patch));", PATCHED),
        (f"const p = `{PATCH}`;\nawait tools.apply_patch(p)", PATCHED),
        (r"tools.exec_command({cmd: 'rm a\x41'})", ""),  # not what stands there
        (r"tools.exec_command({cmd: 'grep a\\x41 \d'})", r"grep a\x41 d"),
        (r"tools.exec_command({cmd: String.raw`grep \bx`})", r"grep \bx"),
        ("tools.apply_patch(String.raw`a\\n`)", "apply_patch <<'PATCH'\na\\n\nPATCH"),
        ("tools.exec_command({cmd: `ls ${folder}`})", ""),
        ("tools.exec_command({cmd: made(1)})", ""),
        ('{"command": "ls"}', ""),
        ("tools.exec_command(", ""),
        ("", ""),
    ],
)
def test_commands_that_are_written_out_are_read(code, command):
    assert commands_in_code(code) == command


@pytest.mark.parametrize(
    "part",
    ["tools.exec_command({", "a: b, ", 'tools.exec_command({cmd: "\\', "const a = `", "tools.apply_patch('"],
)
def test_broken_code_takes_linear_time(part):
    began = time.process_time()
    commands_in_code(f"tools.exec_command({{{part * (50_000 // len(part))}")
    assert time.process_time() - began < 2
