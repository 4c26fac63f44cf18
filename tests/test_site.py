"""The documentation site as it is built: its search, its tabs, what is copied from it."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from memory_bank import __version__
from tests import browser
from tests.browser import Browser, Page

pytest.importorskip("material", reason="needs the extra docs")
pytest.importorskip("fastapi", reason="needs the extra service")
pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[1]
GLOSSARY = re.findall(
    r"^\| (.+?) \| .* \| \[.*\]\(([\w/-]+)\.md.*\) \|$", (ROOT / "docs/glossary.md").read_text(), re.M
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, timeout=600)
    return folder


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    if reason := browser.why_not():
        pytest.skip(reason)
    running = Browser()
    yield running
    running.close()


def test_every_word_of_the_glossary_is_in_the_index_of_its_page(site: Path) -> None:
    entries = json.loads((site / "search/search_index.json").read_text())["docs"]
    words = {e["location"]: e["tags"] for e in entries if e.get("tags")}
    assert len(GLOSSARY) > 20
    for phrases, page in GLOSSARY:
        assert set(phrases.split(", ")) <= set(words[f"{page}.html"]), page


def found(page: Page, words: str) -> list[str]:
    """The pages that the search finds, best first."""
    page.js("document.querySelector('.md-search-result__list').replaceChildren()")
    page.js(
        "(field => { field.focus(); field.value = " + json.dumps(words) + "; "
        "field.dispatchEvent(new Event('keyup', {bubbles: true})) })(document.querySelector('.md-search__input'))"
    )
    page.wait("document.querySelector('.md-search-result__item a') != null")
    links = page.js(
        "[...document.querySelectorAll('.md-search-result__item > a')].map(a => new URL(a.href).pathname)"
    )
    return [link.strip("/").removesuffix(".html") for link in links]


def test_the_search_finds_a_page_by_words_from_elsewhere(address: str, chromium: Browser) -> None:
    page = chromium.page(f"{address}/index.html")
    expected = {
        "compression": "concepts", "summarization": "concepts", "context window": "concepts",
        "prompt caching": "benchmarks/prefix-cache", "vector store": "classic", "RAG": "evidence",
        "LangChain": "howto/frameworks", "token cost": "howto/page", "truncate": "howto/strategies",
        "Redis": "howto/postgresql", "async": "howto/asyncio", "Docker": "howto/docker", "Codex": "howto/connect",
        "SSE": "howto/streaming", "PII": "redaction", "dashboard": "howto/page",
    }  # fmt: skip
    missed = {
        words: pages for words, right in expected.items() if right not in (pages := found(page, words)[:2])
    }
    assert missed == {}


def test_a_command_is_copied_without_its_prompt(address: str, chromium: Browser) -> None:
    page = chromium.page(f"{address}/howto/connect.html", width=390, height=844)
    copied = page.js(
        "(code => { code.setAttribute('data-md-copying', ''); return code.innerText })"
        "([...document.querySelectorAll('.tabbed-block code')].find(c => c.innerText.includes('run -- claude')))"
    )
    assert copied.strip() == "memory-bank run -- claude"


def test_the_tabs_of_a_page_and_the_version(site: Path) -> None:
    html = (site / "howto/connect.html").read_text()
    for client in ("Claude Code", "Codex", "opencode", "openai (Python)", "openai (Node)", "Anthropic", "LangChain",
                   "LlamaIndex", "Vercel ai"):  # fmt: skip
        assert re.search(rf"<label for=[^>]+>{re.escape(client)}</label>", html), client
    assert __version__ in html


def test_long_signatures_are_wrapped(site: Path) -> None:
    signatures = re.findall(
        r'class="doc-signature[^>]*>(.*?)</div>', (site / "reference/library.html").read_text(), re.S
    )
    lines = [re.sub(r"<[^>]+>", "", line) for shown in signatures for line in shown.splitlines()]
    assert len(signatures) > 50
    assert [line for line in lines if len(line.replace("&#39;", "'").replace("&quot;", '"')) > 100] == []
