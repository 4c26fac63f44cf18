"""The audit: candidates, the choice, its sentence, the page and the verb."""

import gzip
import itertools
import json
import math
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import typer
from tests.chats import rounds, user
from typer.testing import CliRunner

from memory_bank.audit.measure import COLUMNS, Figures, Measurement, figures_of
from memory_bank.audit.pages import (
    HEIGHT,
    WIDTH,
    PageSection,
    PlotPoint,
    figures_page,
    frontier,
    plot_of,
)
from memory_bank.audit.replay import Strategy
from memory_bank.audit.runs import BUDGETS, NO_MEMORY, advice, audit, choose, plan_audit
from memory_bank.audit.tables import percent
from memory_bank.audit.traces import TraceFiles
from memory_bank.cli.audit import audit as verb
from memory_bank.config import Config, load_config
from memory_bank.errors import EmbedderLoadError, UnknownStrategyError
from memory_bank.pages import render

ORDERS = Path(__file__).parent / "orders.jsonl"
TOYS = "tests.audit.toys:"


# candidates


def names(tried):
    return [s.name for s in tried.strategies]


def test_every_memory_of_the_configuration_after_none():
    models = {"a": "lexical", "b": "/no/such/folder", "c": "openai:text-embedding-3-small"}
    banks = {k: {"type": "memory_bank", "embedding_model": model} for k, model in models.items()}
    config = Config(memory_strategies={**banks, "none": {"type": "no_strategy"}})
    tried = plan_audit(config)
    assert names(tried) == ["no memory", "a"]
    assert [note.split(" was not tried: ")[0] for note in tried.notes] == ["b", "c"]
    named = names(plan_audit(config, ["a", "a?top_k=8", "oracle", "a"]))
    assert named == ["no memory", "a", "a?top_k=8", "oracle"]
    with pytest.raises(EmbedderLoadError):
        plan_audit(config, ["b"])
    with pytest.raises(UnknownStrategyError):
        plan_audit(config, ["d"])


def test_a_budget_is_for_strategies_that_heed_one(config):
    tried = plan_audit(config, ["local"], [500])
    assert names(tried) == ["no memory", "local"]
    assert "changed nothing" in tried.notes[0]
    bank = {"type": "memory_bank", "embedding_model": "lexical", "history_budget": 3000}
    own = Config(
        memory_strategies={k: {**bank, "selection": v} for k, v in (("e", "evidence"), ("t", "top_k"))}
    )
    expected = [f"e?history_budget={b}" for b in sorted({3000, *BUDGETS})]
    assert names(plan_audit(own)) == ["no memory", *expected, "t"]
    by_itself = [f"memory_bank?history_budget={b}" for b in ("auto", *BUDGETS)]
    assert names(plan_audit(load_config(), ["memory_bank"])) == ["no memory", *by_itself]
    assert names(plan_audit(own, ["e"], [7])) == ["no memory", "e?history_budget=7"]
    both = plan_audit(own, ["e?keep_recent=1", "e?history_budget=5"], [7]).strategies[1:]
    assert [s.name for s in both] == ["e?keep_recent=1&history_budget=7", "e?history_budget=5"]
    settings = both[0].config.strategy("e")
    assert (settings.keep_recent, settings.history_budget) == (1, 7)


# the choice


def outcome(name, dollars=None, **figures):
    empty = figures_of([])
    changed = {
        "traces": 2, "steps": 10, "values_old": 50, "bound_old": 0.9, "tokens": 100.0, "full_tokens": 1000.0,
        "exceptions": 0, "broken": 0, "dollars": empty.dollars if dollars is None else dollars, **figures,
    }  # fmt: skip
    changed["share_of_full"] = changed["tokens"] / 1000
    kind = "full" if name == NO_MEMORY.name else "oracle" if name == "oracle" else "configured"
    return Measurement(Strategy(name, kind), Figures(empty.by_name | changed, {}), ())


FULL = outcome("no memory", bound_old=1.0, tokens=1000.0)


@pytest.mark.parametrize(
    ("tried", "taken"),
    [
        ([outcome("a"), outcome("b", bound_old=0.91, tokens=300)], "a"),  # within two points: the cheaper
        ([outcome("a"), outcome("b", bound_old=0.93, tokens=300)], "b"),
        ([outcome("a", exceptions=1), outcome("b", bound_old=0.8, tokens=300)], "b"),
        ([outcome("a", broken=1)], "no memory"),
        ([outcome("a", tokens=1000)], "no memory"),  # never dearer than full
        ([outcome("a", dollars={"x": 1.1, "y": 2.0})], "no memory"),  # nor at every price of a prefix cache
        ([outcome("a", dollars={"x": 0.9, "y": 2.0})], "a"),
        ([outcome("a", bound_old=0.69)], "no memory"),
        ([outcome("a", bound_old=0.70)], "a"),
        ([outcome("oracle", bound_old=1.0, tokens=10)], "no memory"),
        ([outcome("a"), outcome("b")], "a"),
        ([], "no memory"),
    ],
)
def test_the_choice(tried, taken):
    assert choose([FULL, *tried]).strategy.name == taken


def test_without_old_evidence_the_cheapest_is_taken():
    nothing = {"values_old": 0, "bound_old": math.nan}
    none = [outcome(n, tokens=t, **nothing) for n, t in (("no memory", 1000.0), ("a", 100.0), ("b", 50.0))]
    best = choose(none)
    assert best.strategy.name == "b"
    assert "no call needed a value from before its last interaction" in advice(none, best)


def test_the_sentence():
    best = outcome("evidence?history_budget=2000&top_k=3", bound_old=0.912, tokens=250)
    told = advice([FULL, best], best)
    assert told == (
        "Take evidence with history_budget 2000 and top_k 3: over 2 traces and 10 model calls it would have saved "
        "7,500 of 10,000 prompt tokens (75.0%) and kept 91.2% of the evidence older than the last interaction."
    )
    poor = outcome("a", bound_old=0.4)
    kept = "Take no memory: of those tried, a keeps most, at 10.0% of the tokens, but"
    assert advice([FULL, poor], FULL).startswith(kept)
    assert "raises, breaks pairs" in advice([FULL, outcome("a", broken=2)], FULL)
    assert advice([FULL], FULL) == "Nothing can be advised: no strategy with memory was tried."
    assert advice([outcome("no memory", steps=0)], FULL)
    assert "\n" not in told


def test_a_share_is_100_only_when_it_is_whole():
    assert (percent(1), percent(0.99999), percent(0.4088)) == ("100.0", "99.9", "40.9")


# the audit of files


@pytest.fixture
def odd(tmp_path):
    """The room's traces under ids that are markup, with broken lines between."""
    lines = ORDERS.read_text(encoding="utf-8").splitlines()
    first = json.loads(lines[0]) | {"id": "<script>alert('&')</script>\x07\ud800"}
    file = tmp_path / "odd.jsonl.gz"
    text = "\n".join([json.dumps(first), "{", "[1]", *lines[1:], '{"id": 3}', "", "nonsense"]) + "\n"
    file.write_bytes(gzip.compress(text.encode()))
    return file


def audited(paths, plan, tell=lambda _: None):
    files = TraceFiles(paths, tell)
    return audit(files, list(files), plan, counter="approximate")


def test_broken_lines_are_skipped_counted_and_named(odd, config):
    told = []
    tried = plan_audit(config, [TOYS + "keep_last?n=2"])
    report = audited([odd, odd.parent / "none"], tried, told.append)
    assert report.traces == 10
    assert [re.search(r"line (\d+)", s)[1] for s in report.skipped_lines] == ["2", "3", "13", "15"]
    assert report.unreadable_files == (str(odd.parent / "none"),)
    assert [t.partition(":")[2] or t for t in told][0].endswith("and 3 more lines of it.")
    assert len(told) == 2  # a sentence a file
    assert report.advised == TOYS + "keep_last?n=2"
    assert [(x["values"], x["kept"]) for x in report.losses] == [(5, 2)]
    assert json.loads(json.dumps(report.as_dict(), allow_nan=False))["strategies"][1]["values_old"] == 14


def test_what_was_raised_is_noted(traces, config):
    report = audited([ORDERS], plan_audit(config, [TOYS + "raises_late"]))
    assert report.notes == (f"{TOYS}raises_late raised RuntimeError at 14 steps",)
    assert report.advised == "no memory"


def elements(page):
    body = page.removeprefix("<!DOCTYPE html>\n")
    return list(ET.fromstring(body).iter())


def test_the_page_is_well_formed_self_contained_and_escaped(odd, config):
    tried = plan_audit(config, [TOYS + "keep_last?n=2", TOYS + "shorten", "oracle"])
    page = audited([odd], tried).as_html()
    tags = {e.tag.split("}")[-1] for e in elements(page)}
    assert {"svg", "table", "circle"} <= tags
    assert not tags & {"script", "link", "img", "iframe", "object", "image", "use"}
    assert not re.search(r"(?:src|href)=|url\(|@import", page)
    addresses = set(re.findall(r"https?://[^\"]+", page))
    assert addresses == {"http://www.w3.org/2000/svg"}  # the name of SVG, not loaded
    assert "&lt;script&gt;alert(&#39;&amp;&#39;)" in page
    assert "prefers-color-scheme: dark" in page
    page.encode("utf-8")
    assert len([e for e in elements(page) if e.tag.endswith("circle")]) == 4


def test_a_page_without_points():
    page = figures_page("<t>\x00\x1b", "", [PageSection("<h>", [("x", figures_of([]))])], [("empty", [])])
    assert elements(page)
    assert "<t>" not in page
    assert "&lt;t&gt;\ufffd\ufffd" in page


def test_labels_stay_in_the_drawing_and_off_each_other():
    points = [
        PlotPoint(f"strategy number {i}", 0.1 + 0.01 * (i % 3), 0.5 + 0.01 * i, 0.4, 0.9) for i in range(9)
    ]
    root = ET.fromstring(render("plot.svg", plot=plot_of([*points, PlotPoint("dear", 1.4, 0.0, 0, 0)])))
    boxes = []
    for g in (g for g in root if g.tag.endswith("}g")):
        text = next(e for e in g if e.tag.endswith("text"))
        width, x, y = len(text.text) * 6.6, float(text.get("x")), float(text.get("y"))
        left = x if text.get("text-anchor") == "start" else x - width
        boxes.append((left, y - 11, left + width, y + 3))
    assert all(b[0] >= 0 and b[2] <= WIDTH and b[1] >= 0 and b[3] <= HEIGHT for b in boxes)
    pairs = itertools.combinations(boxes, 2)
    assert not any(a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3] for a, b in pairs)


def test_the_frontier_leaves_out_what_is_beaten():
    a, b, c = PlotPoint("a", 0.1, 0.5, 0, 0), PlotPoint("b", 0.2, 0.4, 0, 0), PlotPoint("c", 0.3, 0.9, 0, 0)
    assert frontier([c, b, a]) == [a, c]


def test_every_column_says_what_it_means():
    assert len({c.title for c in COLUMNS}) == len(COLUMNS)
    assert all(c.meaning for c in COLUMNS)
    assert {c.cell(figures_of([])) for c in COLUMNS} == {"–", "0"}


# the verb


@pytest.fixture
def cli(tmp_path):
    file = tmp_path / "own.toml"
    file.write_text('[memory_strategies.local]\ntype = "memory_bank"\nembedding_model = "lexical"\n')
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(verb)

    def run(*args):
        return CliRunner().invoke(app, [*(str(a) for a in args), "--config", str(file)])

    return run


def test_the_verb_ends_in_the_sentence(cli, odd):
    done = cli(odd, "--strategy", "local?top_k=9", "--strategy", TOYS + "shorten", "--budget", 5)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("Without memory the input costs $")
    assert "what is older" not in done.stdout  # what the figures mean
    done = cli(odd, "--strategy", "local?top_k=9", "--strategy", TOYS + "shorten", "--budget", 5, "--explain")
    lines = done.stdout.splitlines()
    assert any(line.startswith("Take ") for line in lines[-5:])
    assert "skipped lines: 4" in lines
    assert any(line.startswith("none of the strategies has a history_budget") for line in lines)
    at = next(n for n, line in enumerate(lines) if line.startswith("strategy"))
    assert [line.split()[0] for line in lines[at : at + 4]] == [
        "strategy",
        "no",
        "local?top_k=9",
        TOYS + "shorten",
    ]
    assert "what is older" in done.stdout


def test_the_verb_as_json_with_a_page(cli, odd, tmp_path):
    page = tmp_path / "page.html"
    done = cli(odd, "--json", "--html", page, "--jobs", 2, "--strategy", TOYS + "keep_last?n=2")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["advised"] == TOYS + "keep_last?n=2"
    assert report["sentence"].startswith("Take ")
    assert elements(page.read_text(encoding="utf-8"))


def test_nothing_to_measure_is_said_and_fails(cli, tmp_path):
    empty = tmp_path / "empty.jsonl"
    empty.write_text('{"id": "x", "messages": [{"role": "user", "content": "hi"}]}\n')
    done = cli(empty, "--strategy", "local")
    assert done.exit_code == 1
    assert "no tool call was read" in str(done.exception)
    assert cli(tmp_path / "none.jsonl").exit_code != 0
    assert cli(tmp_path / "folder").exit_code != 0


def test_no_strategy_that_can_be_tried_is_said_and_fails(cli, odd, tmp_path):
    (tmp_path / "own.toml").write_text(
        '[memory_strategies.local]\ntype = "memory_bank"\nembedding_model = "/no/such/folder"\n'
    )
    done = cli(odd)
    assert done.exit_code == 1
    assert "local was not tried" in done.stdout
    assert done.stdout.endswith("Nothing can be advised: no strategy with memory was tried.\n")


def test_short_runs_gain_nothing_and_the_verb_says_so(cli, tmp_path):
    short = tmp_path / "short.jsonl"
    short.write_text(json.dumps({"id": "r", "messages": [user("Find it"), *rounds(3)]}) + "\n")
    done = cli(short, "--strategy", "memory_bank")
    assert done.exit_code == 0
    told = " ".join(done.stdout.split())
    assert "Memory changes nothing here: these runs are too short for a fold" in told
