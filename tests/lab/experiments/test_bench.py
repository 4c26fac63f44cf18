"""The bench verb on recorded runs: the matrix, the file of results, going on, and what is refused."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cli.conftest import environment
from tests.lab.experiments.conftest import REPLAY, results_of

from memory_bank.errors import ConfigError
from memory_bank.lab.experiments.plan import (
    CostSettings,
    Experiment,
    ModelSettings,
    SuiteSettings,
    load_experiment,
    plan_experiment,
)
from memory_bank.lab.experiments.report import markdown, report_lines
from memory_bank.lab.experiments.run import Results, run_experiment


def plan_of(path):
    return plan_experiment(load_experiment(path), lambda told: None)


def open_results(path: Path, plan, name: str = "results.jsonl") -> Results:
    return Results(path.parent / name, {"experiment": plan.hash, "about": {}, "settings": {}})


def test_the_command_writes_results_and_a_table(cli, experiment, tmp_path):
    path = experiment()
    done = cli("lab", "bench", "--config", str(path), "--out", str(tmp_path / "out"))
    assert (done.code, done.err) == (0, "")
    lines = results_of(tmp_path / "out")
    assert len(lines) == 12 == len({line["unit"] for line in lines})
    header = json.loads((tmp_path / "out" / "results.jsonl").read_text().splitlines()[0])
    assert header["settings"]["strategies"]["keep_last_n?n=2"] == {"type": "keep_last_n", "n": 2}
    assert {"commit", "version", "seeds", "machine"} <= set(header["about"])
    table = (tmp_path / "out" / "table.md").read_text()
    assert [row.split(" | ")[0] for row in table.splitlines()[4:]] == [
        "| full",
        "| truncation",
        "| keep_last_n?n=2",
    ]
    rows = cli("lab", "bench", "--config", str(path), "--out", str(tmp_path / "out"), "--json").json()
    by_name = {row["strategy"]: row for row in rows}
    assert by_name["full"]["evidence"] == 1.0
    assert by_name["truncation"]["evidence"] == 0.0
    assert by_name["truncation"]["tokens"] < by_name["full"]["tokens"]


def test_figures_are_those_of_the_instrument(experiment):
    from memory_bank.config import load_config
    from memory_bank.lab.meter.measure import measure
    from memory_bank.lab.replay import parse_strategy

    path = experiment()
    plan = plan_of(path)
    with open_results(path, plan) as results:
        run_experiment(plan, results)
        line = report_lines(plan, results.done)[2]
    traces = [u.case for u in plan.units if u.strategy.name == "full"]
    [outcome] = measure(traces, [parse_strategy("keep_last_n?n=2", load_config())], counter="approximate")
    untimed = {"ms", "ms_p95"}
    ours, theirs = line.figures.as_dict(), outcome.figures.as_dict()
    assert {k: v for k, v in ours.items() if k not in untimed} == {
        k: v for k, v in theirs.items() if k not in untimed
    }


def test_a_longer_prefix_is_cheaper(experiment):
    path = experiment()
    plan = plan_of(path)
    with open_results(path, plan) as results:
        run_experiment(plan, results)
        full, truncation, keep = report_lines(plan, results.done)

    def total(line, name):
        return sum(line.numbers("bill", name))

    assert total(full, "tokens") > total(keep, "tokens") > total(truncation, "tokens")
    for line in (full, truncation, keep):
        tokens, cached = total(line, "tokens"), total(line, "cached")
        assert 0 <= cached < tokens
        assert total(line, "plain") == pytest.approx(tokens * 2e-6)
        assert total(line, "priced") == pytest.approx((tokens - 0.75 * cached) * 2e-6)
    share = [total(x, "cached") / total(x, "tokens") for x in (full, keep)]
    assert share[0] > share[1]


@pytest.mark.long
def test_several_processes_find_the_same(experiment):
    path = experiment()
    plan = plan_of(path)
    tables = []
    for jobs in (1, 2):
        with open_results(path, plan, f"{jobs}.jsonl") as results:
            run_experiment(plan, results, jobs=jobs)
            assert set(results.done) == {u.id for u in plan.units}
            untimed = [
                row.rsplit(" | ", 3)[0] for row in markdown(report_lines(plan, results.done)).splitlines()
            ]
            tables.append(untimed)
    assert tables[0] == tables[1]


def test_it_goes_on_after_a_crash_and_does_no_unit_twice(cli, experiment, tmp_path):
    path, out = experiment(), tmp_path / "out"
    args = ("lab", "bench", "--config", str(path), "--out", str(out))
    assert cli(*args).code == 0
    whole = (out / "results.jsonl").read_bytes().splitlines(keepends=True)
    (out / "results.jsonl").write_bytes(b"".join(whole[:6]) + whole[6][: len(whole[6]) // 2])
    assert cli(*args).code == 0
    assert (out / "results.jsonl").read_bytes().startswith(b"".join(whole[:6]))
    lines = results_of(out)
    assert len(lines) == 12 == len({line["unit"] for line in lines})
    before = (out / "table.md").read_text()
    assert cli(*args).code == 0
    assert results_of(out) == lines
    assert (out / "table.md").read_text() == before


@pytest.mark.long
def test_ctrl_c_keeps_what_is_done(experiment, tmp_path):
    text = REPLAY.replace('["full"', '["toy_slow:slow", "full"').replace(
        'name = "small"', 'name = "small"\njobs = 2'
    )
    (tmp_path / "toy_slow.py").write_text(
        "import time\ndef slow(messages, state):\n    time.sleep(0.15)\n    return messages\n"
    )
    path, out = experiment(text, runs=8), tmp_path / "out"
    command = [sys.executable, "-m", "memory_bank", "lab", "bench", "--config", str(path), "--out", str(out)]
    source = Path(__file__).parents[3] / "src"
    env = environment(PYTHONPATH=f"{source}:{tmp_path}")
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    results = out / "results.jsonl"
    deadline = time.monotonic() + 60
    while not (results.exists() and results.read_bytes().count(b"\n") > 3) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert len(err.splitlines()) == 1
    assert "of 32 units are kept" in err
    kept = results_of(out)
    assert 0 < len(kept) < 32
    assert (out / "table.md").exists()
    again = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert again.returncode == 0, again.stderr
    lines = results_of(out)
    assert lines[: len(kept)] == kept
    assert len(lines) == 32 == len({line["unit"] for line in lines})


@pytest.mark.long
def test_a_worker_that_is_killed_ends_it_in_one_sentence(experiment, tmp_path):
    text = REPLAY.replace('["full"', '["full", "toy_dying:die"').replace(
        'name = "small"', 'name = "small"\njobs = 2'
    )
    (tmp_path / "toy_dying.py").write_text("import os\ndef die(messages, state):\n    os._exit(9)\n")
    path, out = experiment(text), tmp_path / "out"
    command = [sys.executable, "-m", "memory_bank", "lab", "bench", "--config", str(path), "--out", str(out)]
    source = Path(__file__).parents[3] / "src"
    env = environment(PYTHONPATH=f"{source}:{tmp_path}")
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "a worker process died" in done.stderr
    assert (out / "table.md").exists()


@pytest.mark.long
def test_two_runs_do_not_write_one_file(cli, experiment, tmp_path):
    path = experiment()
    plan = plan_of(path)
    (tmp_path / "out").mkdir()
    with open_results(path, plan, "out/results.jsonl"):
        refused = cli("lab", "bench", "--config", str(path), "--out", str(tmp_path / "out"))
    assert refused.code == 2
    assert "another run" in refused.sentence()


def test_the_results_of_another_experiment_are_left_alone(cli, experiment, tmp_path):
    path, out = experiment(), tmp_path / "out"
    assert cli("lab", "bench", "--config", str(path), "--out", str(out)).code == 0
    before = (out / "results.jsonl").read_bytes()
    table = (out / "table.md").read_bytes()
    path.write_text(REPLAY.replace("n=2", "n=3"))
    refused = cli("lab", "bench", "--config", str(path), "--out", str(out))
    assert refused.code == 2
    assert "another experiment" in refused.sentence()
    assert (out / "results.jsonl").read_bytes() == before
    assert (out / "table.md").read_bytes() == table
    for text in ("something else\n", "without an end of line", '{"a": 1}', '{"a": 1}\n'):
        (out / "results.jsonl").write_text(text)
        assert "no results file" in cli("lab", "bench", "--config", str(path), "--out", str(out)).sentence()
        assert (out / "results.jsonl").read_text() == text
    (out / "results.jsonl").write_text('{"experiment":"a')  # a crash in the first line
    assert cli("lab", "bench", "--config", str(path), "--out", str(out)).code == 0


def test_several_suites_have_a_table_over_all(cli, experiment, tmp_path):
    text = REPLAY + '[[suites]]\nkind = "replay"\nname = "again"\nfiles = ["runs.jsonl"]\n'
    done = cli("lab", "bench", "--config", str(experiment(text)), "--out", str(tmp_path / "out"))
    assert done.code == 0
    table = (tmp_path / "out" / "table.md").read_text().splitlines()
    assert table[0] == "## evidence / tokens / cache-priced / ms"
    assert table[2] == "| strategy | orders | again | mean |"
    assert [cell.split(" / ")[0] for cell in table[4].split(" | ")] == ["| full", "100.0", "100.0", "100.0"]


def test_samples_seeds_and_selection(experiment):
    seeded = REPLAY.replace('name = "small"', 'name = "small"\nbenchmark_sample_size = 2\nseeds = [1, 2, 3]')
    plan = plan_of(experiment(seeded, runs=9))
    drawn = {s: {u.case.id for u in plan.units if u.place["seed"] == s} for s in (1, 2, 3)}
    assert {len(cases) for cases in drawn.values()} == {2}
    assert len(set(map(frozenset, drawn.values()))) > 1
    assert plan.hash == plan_of(experiment(seeded, runs=9)).hash
    chosen = REPLAY.replace(
        'name = "small"', 'name = "small"\nselected_test_cases = ["run-1"]\nseeds = [1, 2]'
    )
    plan = plan_of(experiment(chosen))
    assert {(u.case.id, u.place["seed"]) for u in plan.units} == {
        ("run-1", 1)
    }  # nothing in a replay depends on the seed


def test_below_a_threshold_the_context_goes_through_as_it_came(experiment):
    path = experiment(
        REPLAY.replace('counter = "approximate"', 'counter = "approximate"\nthresholds = [0, 320, 100000]')
    )
    plan = plan_of(path)
    with open_results(path, plan) as results:
        run_experiment(plan, results)
        lines = {line.label: line for line in report_lines(plan, results.done)}
    assert lines["truncation @ 100000"].figures.tokens == lines["full @ 0"].figures.tokens
    at = [lines[f"truncation @ {t}"].figures.tokens for t in (0, 320, 100000)]
    assert at[0] < at[1] < at[2]


def test_a_strategy_with_a_threshold_of_its_own_gets_that_one_set(experiment):
    path = experiment(
        REPLAY.replace('["full", "truncation", "keep_last_n?n=2"]', '["progressive_summarization"]').replace(
            'counter = "approximate"', 'counter = "approximate"\nthresholds = [0, 700]'
        )
    )
    plan = plan_of(path)
    settings = [u.strategy.config.strategy(u.strategy.target).compact_threshold for u in plan.units]
    assert set(settings) == {1, 700}
    with open_results(path, plan) as results:
        run_experiment(plan, results)
        lines = {line.label: line for line in report_lines(plan, results.done)}
    early, late = (lines[f"progressive_summarization @ {t}"].figures.tokens for t in (0, 700))
    assert early <= late


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('counter = "approximate"', "jbos = 2", "jobs"),
        ("price_per_million", "price_per_milion", "price_per_million"),
        ('kind = "replay"', 'kind = "replya"', "replay"),
        ('files = ["runs.jsonl"]', 'file = ["runs.jsonl"]', "files"),
        ('files = ["runs.jsonl"]', 'files = ["none*.jsonl"]', "no cases"),
        ('files = ["runs.jsonl"]', 'files = ["none.jsonl"]', "cannot be read"),
        ('["full", "truncation", "keep_last_n?n=2"]', '["truncaton"]', "truncation"),
        ('["full", "truncation", "keep_last_n?n=2"]', "[]", "strategies"),
        ('["full",', '["full", "full",', "twice"),
        ("n=2", "n=-2", "n: "),
        ('name = "small"', 'name = "small"\nselected_test_cases = ["rum-1"]', "run-1"),
        ('name = "small"', 'name = "small"\nbenchmark_sample_size = 0', "benchmark_sample_size"),
        ('name = "small"', 'name = "small"\nthresholds = [-1]', "thresholds"),
        ('name = "small"', 'name = "small', "TOML"),
        ("cached_discount = 0.75", "cached_discount = 1.5", "cached_discount"),
        ("[cost]", '[[models]]\nname = "m"\n[[models]]\nname = "m"\n[cost]', "twice"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_sentence(cli, experiment, tmp_path, old, new, says):
    path = experiment(REPLAY.replace(old, new))
    done = cli("lab", "bench", "--config", str(path), "--out", str(tmp_path / "out"))
    assert done.code in (1, 2)
    assert says in done.sentence()
    assert not (tmp_path / "out").exists()


def test_an_experiment_without_cases_and_one_that_is_not_there(tmp_path):
    path = tmp_path / "e.toml"
    path.write_text('strategies = ["full"]')
    with pytest.raises(ConfigError, match="no cases"):
        load_experiment(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_experiment(tmp_path / "none.toml")


def test_every_setting_is_documented():
    root = Path(__file__).parents[3]
    text = (root / "docs" / "howto" / "experiments.md").read_text()
    tables = (Experiment, SuiteSettings, ModelSettings, CostSettings)
    named = {name for table in tables for name in table.model_fields} - {
        "folder",
        "suites",
        "models",
        "cost",
        "judge",
    }
    assert [name for name in sorted(named) if f"`{name}`" not in text] == []
    assert all(f"`{part}`" in text for part in ("[[suites]]", "[[models]]", "[cost]", "[suites.judge]"))


def test_the_shipped_experiments_can_be_read():
    root = Path(__file__).parents[3]
    assert plan_of(root / "examples" / "experiment.toml").units
    assert len(load_experiment(root / "benchmarks" / "experiment_all.toml").suites) == 10
