"""The audit of logs: what compactions kept, what the bank would have kept."""

import json
import re

import pytest
import typer
from tests.audit.logged import (
    NEEDED,
    SOURCE,
    SUMMARY,
    ClaudeCode,
    claude_code_lines,
    codex_lines,
    write_lines,
)
from typer.testing import CliRunner

from memory_bank.audit.costs import Costs, named_counter
from memory_bank.audit.logs import (
    ANSWER,
    ASSIST,
    FULL,
    OWN,
    audit_logs,
    compactions_of,
    kept_by,
)
from memory_bank.audit.sessions import read_claude_code
from memory_bank.audit.traces import TraceFiles
from memory_bank.cli.audit import audit as verb
from memory_bank.config import Config


@pytest.fixture
def config():
    settings = {"type": "memory_bank", "selection": "evidence", "embedding_model": "lexical"}
    return Config(memory_strategies={"bank": settings})


@pytest.fixture
def costs():
    return Costs(named_counter("approximate"))


def measured(costs, lines, bank=None, assist=0):
    """For each compaction of a session: what each way keeps."""
    [session] = read_claude_code(lines, "x")
    return [
        {name: kept_by(way, c.needed_values(), costs) for name, way in c.ways(costs, bank, assist).items()}
        for c in compactions_of(session, set())
    ]


def test_a_compaction_by_hand(costs):
    [kept] = measured(costs, claude_code_lines())
    # The next calls take the account and copy its line, which also holds "169.75" and "entry_13".
    assert kept[FULL].bound == kept[FULL].present == kept[FULL].needed >= 1
    assert kept[OWN].present == 1
    assert kept[OWN].tokens == costs.of({"role": "user", "content": SUMMARY})
    assert not kept[ANSWER].failed

    def raises():
        raise RuntimeError

    assert kept_by(raises, [], costs).failed


def test_what_a_user_or_the_last_interaction_shows_is_no_need(costs):
    shown = ClaudeCode().user(f"Check {NEEDED}.")
    shown.lines += claude_code_lines()[2:]
    [row] = measured(costs, shown.lines)
    assert NEEDED in str(shown.lines[1])
    [first] = measured(costs, claude_code_lines())
    assert row[OWN].needed == first[OWN].needed - 1
    late = ClaudeCode().user("Go").call("a", "Bash", "x", command="ls")
    late.call("b", "Bash", f"see {NEEDED}", command="ls -l")
    late.compact("…").call("c", "Bash", "ok", command=f"ledger {NEEDED}")
    assert measured(costs, late.lines)[0][OWN].needed == 0


def test_a_compaction_without_calls_around_it_is_not_measured(costs):
    first, last = ClaudeCode().user("Go").compact("…"), ClaudeCode().user("Go")
    first.call("a", "Bash", "x", command="ls")
    last.call("a", "Bash", "x", command="ls").compact("…")
    assert [measured(costs, log.lines) for log in (first, last)] == [[], []]


def test_a_resumed_session_counts_its_compactions_once(tmp_path):
    files = [write_lines(tmp_path / f"{n}.jsonl", claude_code_lines()) for n in range(2)]
    read = TraceFiles(files, print)
    report = audit_logs(read, list(read), counter="approximate")
    assert (report.compactions, len(report.each)) == (2, 1)


# the verb


@pytest.fixture
def cli(tmp_path):
    file = tmp_path / "own.toml"
    file.write_text('[memory_strategies.memory_bank]\ntype = "memory_bank"\nselection = "evidence"\n'
                    'embedding_model = "lexical"\n')  # fmt: skip
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(verb)

    def run(*args):
        return CliRunner().invoke(app, [*(str(a) for a in args), "--config", str(file)])

    return run


def test_the_verb_says_it_in_plain_words_and_prints_no_contents(cli, tmp_path):
    write_lines(tmp_path / "logs" / "claude.jsonl", [*claude_code_lines(), "{broken"])
    write_lines(tmp_path / "logs" / "rollout.jsonl", codex_lines())
    done = cli(tmp_path / "logs")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert "skipped lines: 1" in lines
    assert "2 sessions (1 of Claude Code, 1 of Codex), 11 calls, 2 compactions." in lines
    assert any(line.startswith("The agent's own compaction kept ") for line in lines)
    assert any(line.startswith("The bank alone, in as many tokens") for line in lines)
    for secret in (NEEDED, "quarter", "Ledger", "posting"):
        assert secret not in done.output


def test_the_verb_as_json(cli, tmp_path):
    file = write_lines(tmp_path / "claude.jsonl", claude_code_lines(" ".join([SUMMARY] * 20)))
    done = cli(file, "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert [f["name"] for f in report["figures"]] == [OWN, ASSIST, ANSWER]
    own, assist, answer = report["figures"]
    assert own["values"] < 1
    assert own["values"] <= assist["values"]
    assert 0 < answer["tokens"] <= 1.5 * own["tokens"]
    assert answer["failures"] == 0
    assert report["sentences"][0] == "1 session (1 of Claude Code), 5 calls, 1 compaction."


def test_a_log_without_compactions_is_answered_in_dollars(cli, tmp_path):
    log = ClaudeCode().user("Go")
    for n in range(30):
        log.call(f"c{n}", "Read", f"line {n} " * 2_000, file_path=f"f{n}.py")
    done = cli(write_lines(tmp_path / "s.jsonl", log.lines))
    assert done.exit_code == 0, done.output
    assert re.match(r"Without memory the input costs \$[\d.]+,\swith\s\S+\s\$[\d.]+\s\(\d+%\)", done.stdout)
    assert re.search(r"^26 to 50 +1 +\$", done.stdout, re.M)


# what the bank would have kept


def long_lines(summary=SUMMARY):
    """As ``claude_code_lines``, with more of everything, twice."""
    log = ClaudeCode().user("Check the postings of the quarter.")
    for part in range(2):
        for n in range(6):
            rows = [{"id": f"ORD-{part}{n}{i:02}", "account": f"ACC-{n * 97 + i}"} for i in range(12)]
            log.call(f"a{part}{n}", "Bash", json.dumps(rows), command=f"orders --page {part}{n}")
        log.call(f"s{part}", "Bash", "open", command=f"show ORD-{part}105 ACC-102")
        log.call(f"r{part}", "Read", SOURCE, file_path=f"/shop/{part}.py")
        log.call(f"b{part}", "Bash", "ok", command="ls /shop").compact(f"{summary} Part {part}.")
        log.call(f"c{part}", "Bash", "paid", command=f"pay ORD-{part}105 ACC-102")
        log.call(f"d{part}", "Read", SOURCE, file_path=f"/shop/{part}.py")
    return log.lines


def test_assist_and_answer_keep_more_than_the_summary_at_their_stated_lengths(config, costs):
    rows = measured(costs, long_lines(" ".join([SUMMARY] * 30)), config.strategy("bank"), 400)
    assert len(rows) == 2
    for kept in rows:
        own, assist, answer, full = (kept[name] for name in (OWN, ASSIST, ANSWER, FULL))
        assert own.bound < assist.bound <= full.bound == full.needed
        assert own.bound < answer.bound
        assert own.tokens < assist.tokens <= own.tokens + 400 + 10
        assert 0.5 * own.tokens < answer.tokens <= own.tokens
        assert not any(k.failed for k in kept.values())


def test_a_summary_too_short_for_an_answer_and_no_room_beside_it(config, costs):
    [kept] = measured(costs, claude_code_lines(), config.strategy("bank"))
    assert kept[ANSWER].present == 0
    assert kept[ASSIST].present == kept[OWN].present


def test_the_verb_says_what_compactions_kept(cli, tmp_path):
    file = write_lines(tmp_path / "claude.jsonl", long_lines(" ".join([SUMMARY] * 30)))
    done = cli(file)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("Without memory the input costs $")
    told = " ".join(done.stdout.split())
    assert "This summary and what the bank adds to it (assist) would have kept " in told
    assert "The bank alone, in as many tokens as the summary (answer), would have kept " in told
    assert "ORD-" not in told
    report = json.loads(cli(file, "--json").stdout)
    assert [f["name"] for f in report["figures"]] == [OWN, ASSIST, ANSWER]
    assert [(row["number"], row["kept"][OWN]["tokens"] > 0) for row in report["each"]] == [
        (1, True),
        (2, True),
    ]
