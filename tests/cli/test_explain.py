"""``memory-bank lab explain``: the manifest as text, JSON and page."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.chats import call, result, say, user

ROOT = Path(__file__).parents[2]


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert not any(name in ("src", "href", "onclick") for name, _ in attrs)


@pytest.fixture(scope="module")
def odd_trace(tmp_path_factory) -> Path:
    rows = [{"order_id": f"ORD-{i}", "note": "<script>alert(1)</script> [bold]"} for i in range(200)]
    messages = [user("Refund ORD-7 <b>now</b>")]
    for i in range(5):
        messages += [
            call((f"c{i}", f"<i>list{i}</i>", {"page": i})),
            result(f"c{i}", json.dumps(rows[i * 40 : i * 40 + 40])),
        ]
    messages.append(say("done"))
    file = tmp_path_factory.mktemp("t") / "odd.jsonl"
    file.write_text(json.dumps({"id": "odd", "messages": messages}) + "\n")
    return file


def test_text_names_every_past_interaction(cli, tmp_path):
    done = cli("lab", "explain", ROOT / "examples" / "log-hunt.jsonl", "--config", _config(tmp_path, 4_000))
    assert done.code == 0, done.err
    assert "shown in part" in done.out
    assert re.search(r"tokens instead of", done.out)


def test_json_tells_pieces_reasons_and_near_misses(cli, odd_trace):
    done = cli("lab", "explain", odd_trace, "--step", 5, "--json", "--config", _config(odd_trace.parent, 300))
    manifest = json.loads(done.out)
    assert len(manifest["decisions"]) == 3
    assert manifest["pieces"]
    piece = manifest["pieces"][0]
    assert {"trace_id", "text", "score", "values"} <= set(piece)
    assert piece["values"][0]["features"]
    assert manifest["near_misses"]


def _config(folder: Path, budget: int) -> Path:
    file = folder / "c.toml"
    file.write_text(
        '[memory_strategies.memory_bank]\ntype = "memory_bank"\nselection = "evidence"\nembedding_model = "lexical"\n'
        f'observer_model = "extractive"\nhistory_budget = {budget}\nrefresh_after = 0\n'
    )
    return file


@pytest.mark.parametrize("strategy", ["memory_bank", "memory_bank_local"])
def test_the_page_is_self_contained_and_escapes_everything(cli, odd_trace, tmp_path, strategy):
    page = tmp_path / "page.html"
    done = cli("lab", "explain", odd_trace, "--html", page, "--strategy", strategy)
    assert done.code == 0, done.err
    text = page.read_text()
    assert "<script>" not in text
    assert "&lt;i&gt;list" in text
    assert {"table", "style"} <= set(Page(text).tags)
    assert "http" not in text


def test_a_run_without_a_model_call_is_one_sentence(cli, tmp_path):
    file = tmp_path / "runs.jsonl"
    file.write_text(json.dumps({"id": "a", "messages": [user("hello")]}))
    done = cli("lab", "explain", file)
    assert done.code == 1
    assert done.err == "memory-bank: the run a has no model call: choose another run with --id.\n"
