"""``python -m benchmarks bench`` on recorded runs: the matrix, the file of results, going on, and what is refused."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from benchmarks.experiments.plan import (
    CostSettings,
    Experiment,
    ModelSettings,
    SuiteSettings,
    load_experiment,
    plan_experiment,
)
from benchmarks.experiments.report import markdown, report_lines
from benchmarks.experiments.run import Results, run_experiment
from benchmarks.measuring.measure import measure
from benchmarks.measuring.strategies import parse_strategy
from tests.benchmarks.experiments.conftest import REPLAY, results_of
from tests.cli.conftest import environment

from memory_bank.config import load_config
from memory_bank.errors import ConfigError

ROOT = Path(__file__).parents[3]
NAME, COUNTER, STRATEGIES = (
    'name = "small"',
    'counter = "approximate"',
    '["full", "truncation", "keep_last_n?n=2"]',
)


def plan_of(path):
    return plan_experiment(load_experiment(path), lambda told: None)


def open_results(path: Path, plan, name: str = "results.jsonl") -> Results:
    return Results(path.parent / name, {"experiment": plan.hash, "about": {}, "settings": {}})


def lines_of(path: Path, name: str = "results.jsonl", jobs: int = 1):
    """The lines of an experiment, done."""
    plan = plan_of(path)
    with open_results(path, plan, name) as results:
        run_experiment(plan, results, jobs=jobs)
        assert set(results.done) == {u.id for u in plan.units}
        return report_lines(plan, results.done)


@pytest.fixture
def bench(verbs, tmp_path):
    """Run the verb on an experiment; its results go to the folder ``out``."""
    return lambda path, *more: verbs("bench", "--config", str(path), "--out", str(tmp_path / "out"), *more)


def test_the_command_writes_results_and_a_table(bench, experiment, tmp_path):
    path = experiment()
    done = bench(path)
    assert (done.code, done.err) == (0, "")
    lines = results_of(tmp_path / "out")
    assert len(lines) == 12 == len({line["unit"] for line in lines})
    header = json.loads((tmp_path / "out" / "results.jsonl").read_text().splitlines()[0])
    assert header["settings"]["strategies"]["keep_last_n?n=2"] == {"type": "keep_last_n", "n": 2}
    assert {"commit", "version", "seeds", "machine"} <= set(header["about"])
    table = (tmp_path / "out" / "table.md").read_text().splitlines()
    assert [row.split(" | ")[0] for row in table[4:]] == ["| full", "| truncation", "| keep_last_n?n=2"]
    by_name = {row["strategy"]: row for row in bench(path, "--json").json()}
    assert by_name["full"]["evidence"] == 1.0
    assert by_name["truncation"]["evidence"] == 0.0
    assert by_name["truncation"]["tokens"] < by_name["full"]["tokens"]


def test_figures_are_those_of_the_instrument(experiment):
    path = experiment()
    line = lines_of(path)[2]
    traces = [u.case for u in plan_of(path).units if u.strategy.name == "full"]
    [outcome] = measure(traces, [parse_strategy("keep_last_n?n=2", load_config())], counter="approximate")
    ours, theirs = (
        {k: v for k, v in f.as_dict().items() if k not in ("ms", "ms_p95")}
        for f in (line.figures, outcome.figures)
    )
    assert ours == theirs


def test_a_longer_prefix_is_cheaper(experiment):
    full, truncation, keep = lines_of(experiment())

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
    tables = [markdown(lines_of(path, f"{jobs}.jsonl", jobs)) for jobs in (1, 2)]
    one, two = ([row.rsplit(" | ", 3)[0] for row in table.splitlines()] for table in tables)  # without times
    assert one == two


def test_it_goes_on_after_a_crash_and_does_no_unit_twice(bench, experiment, tmp_path):
    path, out = experiment(), tmp_path / "out"
    assert bench(path).code == 0
    whole = (out / "results.jsonl").read_bytes().splitlines(keepends=True)
    (out / "results.jsonl").write_bytes(b"".join(whole[:6]) + whole[6][: len(whole[6]) // 2])
    assert bench(path).code == 0
    assert (out / "results.jsonl").read_bytes().startswith(b"".join(whole[:6]))
    lines = results_of(out)
    assert len(lines) == 12 == len({line["unit"] for line in lines})
    before = (out / "table.md").read_text()
    assert bench(path).code == 0
    assert results_of(out) == lines
    assert (out / "table.md").read_text() == before


@pytest.fixture
def started(experiment, tmp_path):
    """Start the verb in a process, with a toy strategy and two jobs; the same command each time."""

    def start(toy: str, code: str, runs: int) -> subprocess.Popen[str]:
        text = REPLAY.replace('["full"', f'["{toy}:act", "full"').replace(NAME, f"{NAME}\njobs = 2")
        (tmp_path / f"{toy}.py").write_text(code)
        command = [
            sys.executable,
            "-m",
            "benchmarks",
            "bench",
            "--config",
            str(experiment(text, runs=runs)),
        ]
        env = environment(PYTHONPATH=f"{ROOT / 'src'}:{ROOT}:{tmp_path}")
        return subprocess.Popen(
            [*command, "--out", str(tmp_path / "out")], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )  # fmt: skip

    return start


@pytest.mark.long
def test_ctrl_c_keeps_what_is_done(started, tmp_path):
    slow = "import time\ndef act(messages, state):\n    time.sleep(0.15)\n    return messages\n"
    process, results = started("toy_slow", slow, 8), tmp_path / "out" / "results.jsonl"
    deadline = time.monotonic() + 60
    while not (results.exists() and results.read_bytes().count(b"\n") > 3) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert len(err.splitlines()) == 1
    assert "of 32 units are kept" in err
    kept = results_of(tmp_path / "out")
    assert 0 < len(kept) < 32
    assert (tmp_path / "out" / "table.md").exists()
    again = started("toy_slow", slow, 8)
    _, err = again.communicate(timeout=120)
    assert again.returncode == 0, err
    lines = results_of(tmp_path / "out")
    assert lines[: len(kept)] == kept
    assert len(lines) == 32 == len({line["unit"] for line in lines})


@pytest.mark.long
def test_a_worker_that_is_killed_ends_it_in_one_sentence(started, tmp_path):
    done = started("toy_dying", "import os\ndef act(messages, state):\n    os._exit(9)\n", 4)
    _, err = done.communicate(timeout=120)
    assert done.returncode == 1
    assert len(err.splitlines()) == 1
    assert "a worker process died" in err
    assert (tmp_path / "out" / "table.md").exists()


@pytest.mark.long
def test_two_runs_do_not_write_one_file(bench, experiment, tmp_path):
    path = experiment()
    (tmp_path / "out").mkdir()
    with open_results(path, plan_of(path), "out/results.jsonl"):
        refused = bench(path)
    assert refused.code == 2
    assert "another run" in refused.sentence()


def test_the_results_of_another_experiment_are_left_alone(bench, experiment, tmp_path):
    path, out = experiment(), tmp_path / "out"
    assert bench(path).code == 0
    before, table = (out / "results.jsonl").read_bytes(), (out / "table.md").read_bytes()
    path.write_text(REPLAY.replace("n=2", "n=3"))
    refused = bench(path)
    assert refused.code == 2
    assert "another experiment" in refused.sentence()
    assert (out / "results.jsonl").read_bytes() == before
    assert (out / "table.md").read_bytes() == table
    for text in ("something else\n", "without an end of line", '{"a": 1}', '{"a": 1}\n'):
        (out / "results.jsonl").write_text(text)
        assert "no results file" in bench(path).sentence()
        assert (out / "results.jsonl").read_text() == text
    (out / "results.jsonl").write_text('{"experiment":"a')  # a crash in the first line
    assert bench(path).code == 0


def test_several_suites_have_a_table_over_all(bench, experiment, tmp_path):
    text = REPLAY + '[[suites]]\nkind = "replay"\nname = "again"\nfiles = ["runs.jsonl"]\n'
    assert bench(experiment(text)).code == 0
    table = (tmp_path / "out" / "table.md").read_text().splitlines()
    assert table[0] == "## evidence / tokens / cache-priced / ms"
    assert table[2] == "| strategy | orders | again | mean |"
    assert [cell.split(" / ")[0] for cell in table[4].split(" | ")] == ["| full", "100.0", "100.0", "100.0"]


def test_samples_seeds_and_selection(experiment):
    seeded = REPLAY.replace(NAME, f"{NAME}\nbenchmark_sample_size = 2\nseeds = [1, 2, 3]")
    plan = plan_of(experiment(seeded, runs=9))
    drawn = {s: {u.case.id for u in plan.units if u.place["seed"] == s} for s in (1, 2, 3)}
    assert {len(cases) for cases in drawn.values()} == {2}
    assert len(set(map(frozenset, drawn.values()))) > 1
    assert plan.hash == plan_of(experiment(seeded, runs=9)).hash
    chosen = REPLAY.replace(NAME, f'{NAME}\nselected_test_cases = ["run-1"]\nseeds = [1, 2]')
    found = {(u.case.id, u.place["seed"]) for u in plan_of(experiment(chosen)).units}
    assert found == {("run-1", 1)}  # nothing in a replay depends on the seed


def test_below_a_threshold_the_context_goes_through_as_it_came(experiment):
    path = experiment(REPLAY.replace(COUNTER, f"{COUNTER}\nthresholds = [0, 320, 100000]"))
    lines = {line.label: line for line in lines_of(path)}
    assert lines["truncation @ 100000"].figures.tokens == lines["full @ 0"].figures.tokens
    at = [lines[f"truncation @ {t}"].figures.tokens for t in (0, 320, 100000)]
    assert at[0] < at[1] < at[2]


def test_a_strategy_with_a_threshold_of_its_own_gets_that_one_set(experiment):
    text = REPLAY.replace(STRATEGIES, '["progressive_summarization"]')
    path = experiment(text.replace(COUNTER, f"{COUNTER}\nthresholds = [0, 700]"))
    assert {u.strategy.settings().compact_threshold for u in plan_of(path).units} == {1, 700}
    lines = {line.label: line for line in lines_of(path)}
    early, late = (lines[f"progressive_summarization @ {t}"].figures.tokens for t in (0, 700))
    assert early <= late


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (COUNTER, "jbos = 2", "jobs"),
        ("price_per_million", "price_per_milion", "price_per_million"),
        ('kind = "replay"', 'kind = "replya"', "replay"),
        ('files = ["runs.jsonl"]', 'file = ["runs.jsonl"]', "files"),
        ('files = ["runs.jsonl"]', 'files = ["none*.jsonl"]', "no cases"),
        ('files = ["runs.jsonl"]', 'files = ["none.jsonl"]', "cannot be read"),
        (STRATEGIES, '["truncaton"]', "truncation"),
        (STRATEGIES, "[]", "strategies"),
        ('["full",', '["full", "full",', "twice"),
        ("n=2", "n=-2", "n: "),
        (NAME, f'{NAME}\nselected_test_cases = ["rum-1"]', "run-1"),
        (NAME, f"{NAME}\nbenchmark_sample_size = 0", "benchmark_sample_size"),
        (NAME, f"{NAME}\nthresholds = [-1]", "thresholds"),
        (NAME, 'name = "small', "TOML"),
        ("cached_discount = 0.75", "cached_discount = 1.5", "cached_discount"),
        ("[cost]", '[[models]]\nname = "m"\n[[models]]\nname = "m"\n[cost]', "twice"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_sentence(bench, experiment, tmp_path, old, new, says):
    done = bench(experiment(REPLAY.replace(old, new)))
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
    text = (ROOT / "docs" / "howto" / "experiments.md").read_text()
    tables = (Experiment, SuiteSettings, ModelSettings, CostSettings)
    named = {name for table in tables for name in table.model_fields}
    named -= {"folder", "suites", "models", "cost", "judge"}
    assert [name for name in sorted(named) if f"`{name}`" not in text] == []
    assert all(f"`{part}`" in text for part in ("[[suites]]", "[[models]]", "[cost]", "[suites.judge]"))


def test_the_shipped_experiments_can_be_read():
    assert plan_of(ROOT / "examples" / "experiment.toml").units
    assert len(load_experiment(ROOT / "benchmarks" / "experiment_all.toml").suites) == 10
