"""OpenAI-compatible embeddings, through the real client over loopback."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any

import numpy as np
import pytest
from tests.contracts.embedder import EmbedderContract
from tests.embedding_server import EmbeddingServer
from tests.replies import raw

from memory_bank.errors import EmbedderLoadError, EmbeddingError
from memory_bank.models.embedding import MAX_BATCH_BYTES, MAX_INPUT_BYTES, OpenAIEmbedder
from memory_bank.testing import Reply, fail

openai = pytest.importorskip("openai", reason="needs openai")


def vectors(texts: list[str]) -> Any:
    """Eight numbers a text; as OpenAI does it refuses texts that are empty or too long."""
    if any(not t or len(t.encode()) > MAX_INPUT_BYTES for t in texts):
        return fail(400, "'$.input' is invalid")
    return [[byte / 128 - 1 for byte in sha256(text.encode()).digest()[:8]] for text in texts]


def embedder(server: EmbeddingServer, timeout: float = 10.0) -> OpenAIEmbedder:
    client = openai.OpenAI(base_url=server.base_url, api_key="key", max_retries=0, timeout=timeout)
    return OpenAIEmbedder("m", client)


def inputs(server: EmbeddingServer) -> list[list[str]]:
    return [request.body["input"] for request in server.requests]


@pytest.fixture
def server() -> Iterator[EmbeddingServer]:
    with EmbeddingServer(embed=vectors) as server:
        yield server


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(variable, raising=False)


class TestOpenAIEmbedder(EmbedderContract):
    @pytest.fixture(autouse=True)
    def _server(self, server: EmbeddingServer) -> None:
        self.server = server

    def make_embedder(self) -> OpenAIEmbedder:
        return embedder(self.server)


def test_batches_by_count(server: EmbeddingServer) -> None:
    texts = [f"text {i}" for i in range(300)]
    rows = embedder(server).encode(texts)
    assert [len(batch) for batch in inputs(server)] == [128, 128, 44]
    np.testing.assert_allclose(rows, vectors(texts), rtol=1e-6)


def test_batches_by_bytes_and_cuts_inputs(server: EmbeddingServer) -> None:
    embedder(server).encode(["€" * 50_000] * 40 + ["x" * 1_000_000] * 40)
    assert len(server.requests) > 1
    for batch in inputs(server):
        sizes = [len(text.encode()) for text in batch]
        assert MAX_INPUT_BYTES - 4 < min(sizes) <= max(sizes) <= MAX_INPUT_BYTES
        assert sum(sizes) <= MAX_BATCH_BYTES


def test_empty_texts_are_not_sent(server: EmbeddingServer) -> None:
    assert embedder(server).encode([]).shape == (0, 0)
    model = embedder(server)
    rows = model.encode(["", "text", "  \n"])
    assert inputs(server) == [["text"]]
    assert [bool(row.any()) for row in rows] == [False, True, False]
    assert model.dimension == 8
    assert model.encode(["", ""]).shape == (2, 8)
    assert len(server.requests) == 1
    assert embedder(server).encode(["", ""]).shape == (2, 8)  # asks for the dimension


def test_key_and_base_url_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    def encode(key: str) -> None:
        with EmbeddingServer(embed=vectors, api_key=key) as server:
            monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
            OpenAIEmbedder("m").encode(["a"])

    encode("none")  # an endpoint of one's own needs no key
    monkeypatch.setenv("OPENAI_API_KEY", "from-environment")
    encode("from-environment")


def test_a_missing_key_says_the_ways_out() -> None:
    with pytest.raises(EmbedderLoadError, match="OPENAI_API_KEY") as caught:
        OpenAIEmbedder("text-embedding-3-small")
    assert 'embedding_model = "lexical"' in str(caught.value)
    with pytest.raises(EmbedderLoadError, match="lacks the model"):
        OpenAIEmbedder(" ")


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (fail(401, "secret text"), "API key"),
        (fail(429, "secret text"), "quota"),
        (fail(503, "secret text"), "HTTP 503"),
        (Reply("late", delay=30), "in time"),
    ],
)
def test_refusals(reply: Reply, said: str) -> None:
    with (
        EmbeddingServer(embed=lambda _: reply) as server,
        pytest.raises(EmbeddingError, match=said) as caught,
    ):
        embedder(server, timeout=0.5).encode(["secret text"])
    assert "openai:m" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value.__cause__, openai.OpenAIError)


def answer(*data: tuple[Any, Any]) -> Callable[[Any], Reply]:
    items = [{"object": "embedding", "index": i, "embedding": e} for i, e in data]
    return lambda _: raw(json.dumps({"object": "list", "data": items, "model": "m"}))


def test_the_order_is_the_index() -> None:
    with EmbeddingServer(embed=answer((1, [3.0]), (0, [4.0]))) as server:
        assert embedder(server).encode(["a", "b"]).tolist() == [[4.0], [3.0]]


@pytest.mark.parametrize(
    "reply",
    [
        answer(),
        answer((0, [1.0])),
        answer((0, [1.0]), (0, [1.0])),
        answer((0, [1.0]), (None, [1.0])),
        answer((0, [1.0]), (1, [1.0, 2.0])),
        answer((0, ["a"]), (1, ["b"])),
        lambda _: raw('{"data": [{"index": 0}, {"index": 1}]}'),
        lambda _: raw('["?"]'),
        lambda _: raw("text"),
    ],
)
def test_nonsense_is_an_embedding_error(reply: Callable[[Any], Reply]) -> None:
    with EmbeddingServer(embed=reply) as server, pytest.raises(EmbeddingError, match="openai:m"):
        embedder(server).encode(["a", "b"])
