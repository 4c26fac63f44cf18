"""``memory-bank lab replay``: good files, bad files, banks, outputs."""

import gzip
import json
import os
import subprocess

import pytest
from tests.cli.conftest import COMMAND, ODD, environment, line, run_of, write


def records(cli, db):
    return [json.loads(entry) for entry in cli.bank(db, "export").out.splitlines()]


def test_summary_as_json(cli, two):
    summary = cli("lab", "replay", two, "--json").json()
    assert (summary["strategy"], summary["traces"], summary["steps"]) == ("memory_bank", 2, 10)
    assert summary["mean_full_tokens"] > 0
    assert summary["ratio"] == pytest.approx(summary["mean_context_tokens"] / summary["mean_full_tokens"])
    assert summary["broken_pairs"] == 0
    assert summary["skipped_lines"] == summary["unreadable_files"] == []
    assert (summary["embedder"], summary["observer"]) == ("lexical-v1", "extractive")
    assert summary["token_counter"] in ("approximate", "o200k_base")


def test_summary_for_people(cli, two):
    done = cli("lab", "replay", two)
    assert (done.code, done.err) == (0, "")
    for label in ("traces", "steps", "mean full tokens", "mean context tokens", "ratio"):
        assert label in done.out


def test_no_strategy_changes_nothing_and_says_what_counted(cli, two):
    summary = cli("lab", "replay", two, "--strategy", "no_strategy", "--json").json()
    assert summary["ratio"] == 1
    assert summary["token_counter"]


def test_plain_and_packed_files_together(cli, two, tmp_path):
    packed = write(tmp_path / "more.jsonl.gz", line("three", run_of("gamma")))
    unnamed = tmp_path / "no-suffix"
    unnamed.write_bytes(packed.read_bytes())
    assert cli("lab", "replay", two, packed, unnamed, "--json").json()["traces"] == 4


def test_broken_lines_are_skipped_counted_and_named(cli, tmp_path):
    good = line("one", run_of("alpha"))
    lines = [good, "{oops", "[1]", '{"id": 1}', "[" * 100_000, "", '{"messages": {}}', "\ufeff" + good, good]
    file = write(tmp_path / "broken.jsonl", *lines)
    done = cli("lab", "replay", file, "--json")
    assert done.code == 0
    assert done.json()["traces"] == 2
    numbers = [told.split("line ")[1].split(":")[0] for told in done.json()["skipped_lines"]]
    assert numbers == ["2", "3", "4", "5", "7", "8"]
    [said] = done.err.splitlines()
    assert said.endswith(", and 5 more lines of it.")
    assert "skipped lines        6" in cli("lab", "replay", file).out


def test_messages_that_are_no_messages(cli, tmp_path):
    odd = [1, None, "x", [], {"role": "assistant"}, {"content": "q"}, {"role": 5, "content": {"a": 1}}]
    odd += [{"role": "assistant", "tool_calls": "zzz"}, {"role": "assistant", "tool_calls": [1, {"id": 4}]}]
    odd += [{"role": "tool", "content": "orphan"}, {"role": "assistant", "content": 3.5}]
    file = write(tmp_path / "odd.jsonl", line("odd", odd), line(None, run_of("a")), line("none", []))
    done = cli("lab", "replay", file, "--json")
    assert (done.code, done.json()["traces"]) == (0, 3)


@pytest.mark.parametrize("lines", [(), (line("a", [{"role": "user", "content": "hi"}]),)])
def test_a_file_without_calls_is_an_error(cli, tmp_path, lines):
    for verb in (("lab", "replay"), ("audit",)):
        done = cli(*verb, write(tmp_path / "empty.jsonl", *lines), "--json")
        assert (done.code, done.out) == (1, "")
        assert "no tool call was read from" in done.err
        assert ("nothing is in it" in done.err) == (not lines)


def test_a_cut_file_gives_what_is_whole_and_the_other_files_are_played(cli, two, tmp_path):
    lines = "".join(line(f"t{i}", run_of(f"p{i}", 1)) + "\n" for i in range(40))
    cut = tmp_path / "cut.jsonl.gz"
    packed = gzip.compress(lines.encode())
    cut.write_bytes(packed[: len(packed) * 3 // 4])
    done = cli("lab", "replay", cut, two, "--json")
    assert done.code == 1
    assert "cut.jsonl.gz cannot be read beyond line" in done.sentence()
    assert done.json()["unreadable_files"] == [str(cut)]
    assert done.json()["traces"] > 5


def test_a_bank_that_is_none(cli, two):
    done = cli("lab", "replay", two, "--db", two)
    assert (done.code, done.out) == (1, "")
    assert done.sentence()


def test_out_has_a_line_a_step_whatever_the_messages_hold(cli, tmp_path):
    messages = run_of("odd", 3, ODD)
    file = write(tmp_path / "odd.jsonl", line("o\x1b[31m", messages))
    out = tmp_path / "out.jsonl"
    assert cli("lab", "replay", file, "--out", out).code == 0
    steps = [json.loads(each) for each in out.read_bytes().decode("ascii").splitlines()]
    assert [s["step"] for s in steps] == [1, 2, 3, 4]
    assert {s["id"] for s in steps} == {"o\x1b[31m"}
    assert all(s["tokens"] > 0 for s in steps)
    assert steps[0]["messages"] == messages[:2]
    assert steps[3]["messages"][-1] == messages[-2]


def test_ids_that_repeat_share_no_memory(cli, tmp_path):
    file = write(tmp_path / "same.jsonl", line("x", run_of("alpha")), line("x", run_of("beta")))
    out = tmp_path / "out.jsonl"
    cli("lab", "replay", file, "--out", out)
    steps = [json.loads(each) for each in out.read_text().splitlines()]
    assert "alpha" in json.dumps(steps[4]["messages"])
    assert not any("alpha" in json.dumps(s["messages"]) for s in steps[5:])


def test_ids_that_repeat_in_a_bank_are_sessions_of_their_own(cli, tmp_path):
    same = line("x", run_of("alpha"))
    file = write(tmp_path / "same.jsonl", same, line("x", run_of("beta")), same)
    db = tmp_path / "bank.db"
    out = tmp_path / "out.jsonl"
    cli("lab", "replay", file, "--db", db, "--out", out)
    sessions = cli.bank(db, "sessions", "--json").json()["sessions"]
    assert {s["session_id"]: s["records"] for s in sessions} == {"x": 4, "x#2": 4}
    steps = [json.loads(each) for each in out.read_text().splitlines()]
    assert not any("alpha" in json.dumps(s["messages"]) for s in steps[5:10])


def test_a_second_run_stores_nothing_twice_and_says_so(cli, two, bank):
    before = records(cli, bank)
    summary = cli("lab", "replay", two, "--db", bank, "--json").json()
    assert summary["continued"] == 2
    assert records(cli, bank) == before
    assert "continued sessions   2" in cli("lab", "replay", two, "--db", bank).out


def test_long_and_odd_ids_are_sessions_of_their_own(cli, tmp_path):
    ids = ["a" * 400, "a" * 399, "nul\0", "nul\x01", "", "\ud800"]
    file = write(tmp_path / "ids.jsonl", *(line(i, run_of(f"n{n}", 1)) for n, i in enumerate(ids)))
    db = tmp_path / "bank.db"
    assert cli("lab", "replay", file, "--db", db).code == 0
    sessions = cli.bank(db, "sessions", "--json").json()["sessions"]
    assert len(sessions) == 6
    assert "ids.jsonl:5" in {s["session_id"] for s in sessions}


def test_a_full_disk_is_one_sentence(cli, two):
    done = cli("lab", "replay", two, "--out", "/dev/full")
    assert done.code == 1
    assert "No space left" in done.sentence()


def test_a_bar_on_a_terminal_only(cli, two):
    assert cli("lab", "replay", two).err == ""
    pty = pytest.importorskip("pty")
    ours, terminal = pty.openpty()
    done = subprocess.run(
        [*COMMAND, "lab", "replay", str(two), "--json"],
        env=environment(TERM="xterm"), stdout=subprocess.PIPE, stderr=terminal, timeout=60,
    )  # fmt: skip
    assert json.loads(done.stdout)["traces"] == 2
    shown = os.read(ours, 65_536).decode()
    assert "replayed" in shown and "traces" in shown
