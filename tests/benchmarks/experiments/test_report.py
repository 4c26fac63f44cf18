"""The report in a real browser: the plot, every row, and the way to a case."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SHARED = Path(__file__).parents[4] / "shared" / "data"


class Page(HTMLParser):
    """What a test asks of a page: elements with their attributes, and which <details> stand open around ids."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open_around: dict[str, list[bool]] = {}
        self._details: list[bool] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        own = dict(attrs)
        self.elements.append((tag, own))
        if tag == "details":
            self._details.append("open" in own)
        if own.get("id"):
            self.open_around[own["id"]] = list(self._details)

    def handle_endtag(self, tag):
        if tag == "details":
            self._details.pop()

    def links(self, prefix: str) -> list[str]:
        found = [a["href"] for t, a in self.elements if t == "a" and (a.get("href") or "").startswith(prefix)]
        return [href for href in found if href]


def browse(profile: Path, address: str, *options: str) -> str:
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
               f"--user-data-dir={profile}", "--virtual-time-budget=2000", *options, address]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def report(verbs, experiment, tmp_path) -> Path:
    done = verbs("bench", "--config", str(experiment()), "--out", str(tmp_path / "out"))
    assert done.code == 0
    return tmp_path / "out" / "report.html"


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here")
@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared traces are not beside the repository")
def test_one_command_over_the_shared_sets(verbs, tmp_path):
    files = sorted(SHARED.glob("*.jsonl.gz"))
    suites = [f'[[suites]]\nkind = "replay"\nfiles = ["{f}"]\n' for f in files]
    head = 'strategies = ["full", "truncation", "keep_last_n", "observation_masking"]\nbenchmark_sample_size = 2\n'
    (tmp_path / "e.toml").write_text(head + 'counter = "approximate"\n' + "".join(suites))
    assert verbs("bench", "--config", str(tmp_path / "e.toml"), "--out", str(tmp_path / "out")).code == 0
    address = (tmp_path / "out" / "report.html").as_uri()
    page = Page(browse(tmp_path / "profile", address, "--dump-dom"))
    assert [t for t, _ in page.elements].count("svg") == len(files)
    rows = [link for link in page.links("#line-") if "case" not in link]
    assert rows == [f"#line-{n}" for n in range(4 * len(files))]
    case = page.links("#line-5-case-")[-1]
    assert Page(browse(tmp_path / "profile", address + case, "--dump-dom")).open_around[case[1:]] == [
        True,
        True,
    ]


def test_the_page_loads_nothing_and_says_what_made_it(report):
    text = report.read_text()
    assert not re.search(r"<script|<link|src=|url\(|@import", text)
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "prefers-color-scheme: dark" in text
    assert "price_per_million" in text
    assert "keep_last_n" in text
    page = Page(text)
    ids = [a["id"] for _, a in page.elements if a.get("id")]
    assert len(ids) == len(set(ids))
    assert {href[1:] for href in page.links("#")} <= set(ids)


@pytest.mark.long
def test_a_browser_shows_the_plot_every_row_and_a_case(report, tmp_path):
    if CHROMIUM is None:
        pytest.skip("there is no chromium here")
    profile = tmp_path / "profile"
    page = Page(browse(profile, report.as_uri(), "--dump-dom"))
    tags = [t for t, _ in page.elements]
    assert tags.count("svg") == 1
    assert tags.count("circle") == 3  # a point a strategy
    assert page.links("#line-")[:3] == ["#line-0", "#line-1", "#line-2"]
    assert not any(page.open_around["line-1"])
    shown = Page(browse(profile, report.as_uri() + "#line-1", "--dump-dom"))  # the link of the second row
    assert shown.open_around["line-1"] == [True]
    case = shown.links("#line-1-case-")[0]
    opened = Page(browse(profile, report.as_uri() + case, "--dump-dom"))
    assert opened.open_around[case[1:]] == [True, True]
    picture = tmp_path / "page.png"
    browse(profile, report.as_uri(), f"--screenshot={picture}", "--window-size=1000,900")
    assert picture.stat().st_size > 10_000
