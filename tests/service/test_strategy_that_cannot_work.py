"""A strategy that cannot work: `serve` refuses to start with one; a running service says that memory fails, once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.chats import rounds, system, user
from tests.cli.conftest import cli  # noqa: F401  a fixture
from tests.embedding_server import EmbeddingServer, hashed_embedding
from tests.service.processes import serve, until
from tests.service.proxied import Proxied, configured, proxied

from memory_bank.bank.session import MemoryBankState
from memory_bank.config import MemoryBankSettings, load_config
from memory_bank.models.lexical import LexicalEmbedder
from memory_bank.processor import apply_memory_bank_strategy
from memory_bank.service.server.startup import checked
from memory_bank.testing import Reply, ScriptedServer, say

BANK = "MEMORY_BANK_MEMORY_STRATEGIES__memory_bank__"
LLM = {f"{BANK}OBSERVER_MODEL": "gpt-4.1-mini", "OPENAI_API_KEY": "k"}
BROKEN_PROMPT = "=== user ===\nSummarise {{ output }}."


def refused(cli: Any, monkeypatch: Any, tmp_path: Path, env: dict[str, str], *options: Any) -> str:  # noqa: F811
    """The sentence with which `serve` refuses to start."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    done = cli("serve", "--port", "0", *options)
    assert (done.code, done.out) == (2, "")
    return str(done.sentence())


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({f"{BANK}EMBEDDING_MODEL": "/no/such/folder"}, 'set embedding_model = "lexical"'),
        ({f"{BANK}EMBEDDING_MODEL": "BAAI/no-such-model"}, 'set embedding_model = "lexical"'),
        ({f"{BANK}EMBEDDING_MODEL": "openai:e"}, "set OPENAI_API_KEY"),
        ({**LLM, f"{BANK}OBSERVER_PROMPT": "FOLDER/prompt.md"}, "the prompt lacks the placeholder"),
        ({f"{BANK}OBSERVER_MODEL": "m"}, "set OPENAI_API_KEY"),
    ],
)
def test_what_a_strategy_lacks_ends_the_start(
    cli: Any,  # noqa: F811
    monkeypatch: Any,
    tmp_path: Path,
    env: dict[str, str],
    says: str,
) -> None:
    (tmp_path / "prompt.md").write_text(BROKEN_PROMPT)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    env = {name: value.replace("FOLDER", str(tmp_path)) for name, value in env.items()}
    told = refused(cli, monkeypatch, tmp_path, env, "--upstream", "http://127.0.0.1:9/v1")
    assert ("the strategy 'memory_bank'" in told or "prompt.md" in told) and says in told
    assert not list(tmp_path.rglob("bank.db"))


def test_a_bank_of_another_embedder(cli: Any, monkeypatch: Any, tmp_path: Path) -> None:  # noqa: F811
    class Other(LexicalEmbedder):
        name = "other"

    with MemoryBankState.open(tmp_path / "b.db", "s", embedding_model=Other()) as state:
        local = MemoryBankSettings(observer_model="extractive", embedding_model="lexical")
        apply_memory_bank_strategy([system(), user(), *rounds(3, size=100)], None, local, state)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    done = cli(
        "serve",
        "--port",
        "0",
        "--db",
        tmp_path / "b.db",
        "--config",
        _strategy(tmp_path, "memory_bank_local"),
    )
    assert (done.code, done.out) == (1, "")
    assert "re-embed" in done.sentence()


def _strategy(tmp_path: Path, name: str) -> Path:
    file = tmp_path / "my.toml"
    file.write_text(f'default_strategy = "{name}"\n')
    return file


def test_a_model_that_the_api_does_not_know(cli: Any, monkeypatch: Any, tmp_path: Path) -> None:  # noqa: F811
    with ScriptedServer(models=("gpt-4.1", "gpt-4.1-nano")) as api:
        told = refused(cli, monkeypatch, tmp_path, LLM, "--upstream", api.base_url)
        assert "does not know the model 'gpt-4.1-mini': did you mean gpt-4.1" in told
        assert [r.path for r in api.requests] == ["/v1/models", "/v1/models/gpt-4.1-mini"]


def summaries_by(monkeypatch: Any, upstream: str, model: str = "gpt-4.1-mini") -> str:
    """What `serve` says of the summaries, with an Observer of this model."""
    of_service = {"MEMORY_BANK_SERVICE__UPSTREAM": upstream, "MEMORY_BANK_SERVICE__DATABASE": ":memory:"}
    for name, value in {**LLM, f"{BANK}OBSERVER_MODEL": model, **of_service}.items():
        monkeypatch.setenv(name, value)
    return str(checked(load_config())["observer"])


@pytest.mark.parametrize("spelled", ["gpt-4.1-mini", "gpt-4-1-mini"])
@pytest.mark.parametrize("models", [("gpt-4.1-mini", "x"), ()])
def test_a_model_that_the_api_knows_or_may_know(
    monkeypatch: Any, spelled: str, models: tuple[str, ...]
) -> None:
    with ScriptedServer(models=models) as api:
        assert f"by {spelled}" in summaries_by(monkeypatch, api.base_url, spelled)
        assert {r.path for r in api.requests} <= {"/v1/models", f"/v1/models/{spelled}"}


def test_an_api_that_cannot_be_asked_is_no_reason(monkeypatch: Any) -> None:
    assert "by gpt-4.1-mini" in summaries_by(monkeypatch, "http://127.0.0.1:9/v1")
    with ScriptedServer(api_key="another") as api:
        assert "by gpt-4.1-mini" in summaries_by(monkeypatch, api.base_url)


def test_a_file_that_only_sets_prices_has_memory(tmp_path: Path) -> None:
    """As the documentation shows it; before, it had the classic bank, and memory failed for every request."""
    file = tmp_path / "my.toml"
    file.write_text('prices = { "gpt-4.1-mini" = { prompt = 0.4, completion = 1.6, cached = 0.1 } }\n')
    with (
        ScriptedServer(lambda _: say("ok")) as upstream,
        serve("--config", file, "--db", tmp_path / "b.db", "--upstream", upstream.base_url) as service,
    ):
        until(lambda: "strategy  memory_bank, summaries: by extraction" in service.log)
        body = {"model": "gpt-4.1-mini", "messages": [system(), user(), *rounds(40, size=2_000)]}
        answer = service.ask("/v1/chat/completions", "POST", body)
        assert (answer.status, answer.headers["x-memory-status"]) == (200, "rebuilt")


# a running service


SECRET = "sk-live-do-not-log"


@contextmanager
def failing_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Proxied, list[bool], Callable[[int], bytes]]]:
    """A service whose embedder's endpoint is down, while the flag is true, and ``step(n)`` to send a request."""
    down = [True]

    def embed(texts: list[str]) -> Any:
        return (
            Reply(content=SECRET, status=500, headers={"x-should-retry": "false"})
            if down[0]
            else hashed_embedding(texts)
        )

    with EmbeddingServer(lambda _: say("ok"), embed=embed) as api:
        monkeypatch.setenv("OPENAI_BASE_URL", api.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        strategy = {"type": "memory_bank", "observer_model": "extractive", "embedding_model": "openai:e"}
        config = configured(
            {"it": strategy}, upstream=api.base_url, database=str(folder / "b.db"), strategy="it"
        )
        with proxied(api.base_url, folder / "b.db", config) as p:

            def step(n: int) -> bytes:
                body = {"model": "m", "messages": [system(), user(), *rounds(n, size=400)]}
                answer = p.ask("/v1/chat/completions", "POST", body)
                assert answer.status == 200
                return b"%b %b" % (
                    answer.header(b"x-memory-status"),
                    answer.header(b"x-memory-reason") or b"",
                )

            yield p, down, step


def test_memory_that_fails_is_told_once_and_again_when_it_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The embedder's endpoint is down, then well again: /health, the page's line, the log."""
    with failing_memory(tmp_path, monkeypatch) as (p, down, step):

        def page() -> Any:
            return p.ask("/v1/sessions").json()["trouble"]

        def health() -> Any:
            return p.ask("/health").json()

        assert health()["parts"]["memory"]["ok"] and page() is None
        assert [step(n) for n in (3, 4)] == [b"failed embedder_unavailable"] * 2
        assert page() is None  # two requests are no rule
        assert [step(n) for n in (5, 6)] == [b"failed embedder_unavailable"] * 2
        assert page().startswith("Memory fails, requests continue without it: EmbeddingError: openai:e ")
        told = until(lambda: health() if not health()["parts"]["memory"]["ok"] else None)
        assert told["status"] == "degraded" and told["parts"]["memory"]["trouble"] == page()
        assert p.ask("/health?live").json()["status"] == "ok"
        counted = 'memory_bank_without_memory_total{reason="embedder_unavailable"} 4.0'
        assert counted in p.ask("/metrics").body.decode().splitlines()
        assert p.ask("/v1/stats").json()["without_memory"] == {"embedder_unavailable": 4}
        assert sum("memory failed" in line for line in p.lines) == 1
        down[0] = False
        assert step(7) in (b"rebuilt ", b"unchanged ")
        assert page() is None
        until(lambda: health()["parts"]["memory"]["ok"])
        assert sum("memory works again, after 4 requests without it" in line for line in p.lines) == 1
        down[0] = True
        step(8)
        assert sum("memory failed" in line for line in p.lines) == 2
        assert SECRET not in "\n".join(p.lines) + json.dumps(told)
