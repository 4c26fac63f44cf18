"""OpenAI-compatible embeddings, through the real client over loopback."""

from __future__ import annotations

from typing import Any

import numpy as np
import openai
import pytest
from tests.contracts.embedder import EmbedderContract

from memory_bank.errors import EmbedderLoadError, EmbeddingError
from memory_bank.models.embedding import MAX_BATCH_BYTES, MAX_INPUT_BYTES, OpenAIEmbedder


def text_vector(text: str) -> Any:
    from hashlib import sha256

    return [byte / 128 - 1 for byte in sha256(text.encode()).digest()[:8]]


@pytest.fixture
def client(embedding_server: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=embedding_server.base_url, api_key="key", max_retries=0, timeout=10)


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(variable, raising=False)


class TestOpenAIEmbedder(EmbedderContract):
    @pytest.fixture(autouse=True)
    def _server(self, client: openai.OpenAI) -> None:
        self.client = client

    def make_embedder(self) -> OpenAIEmbedder:
        return OpenAIEmbedder("text-embedding-3-small", self.client)


def test_batches_by_count(embedding_server: Any, client: openai.OpenAI) -> None:
    texts = [f"text {i}" for i in range(25)]
    rows = OpenAIEmbedder("m", client, batch_size=10).encode(texts)
    assert [len(request["input"]) for request in embedding_server.requests] == [10, 10, 5]
    np.testing.assert_allclose(rows, [text_vector(text) for text in texts], rtol=1e-6)


def test_batches_by_bytes_and_cuts_inputs(embedding_server: Any, client: openai.OpenAI) -> None:
    OpenAIEmbedder("m", client).encode(["€" * 50_000] * 40 + ["x" * 1_000_000] * 40)
    assert len(embedding_server.requests) > 1
    for request in embedding_server.requests:
        sizes = [len(text.encode()) for text in request["input"]]
        assert max(sizes) <= MAX_INPUT_BYTES
        assert min(sizes) > MAX_INPUT_BYTES - 4
        assert sum(sizes) <= MAX_BATCH_BYTES


def test_the_order_is_the_index(embedding_server: Any, client: openai.OpenAI) -> None:
    embedding_server.reply = lambda answer: {**answer, "data": answer["data"][::-1]}
    texts = ["one", "two", "three"]
    rows = OpenAIEmbedder("m", client).encode(texts)
    np.testing.assert_allclose(rows, [text_vector(text) for text in texts], rtol=1e-6)


def test_empty_texts_are_not_sent(embedding_server: Any, client: openai.OpenAI) -> None:
    assert OpenAIEmbedder("m", client).encode([]).shape == (0, 0)
    model = OpenAIEmbedder("m", client)
    rows = model.encode(["", "text", "  \n"])
    assert [request["input"] for request in embedding_server.requests] == [["text"]]
    assert [bool(row.any()) for row in rows] == [False, True, False]
    assert model.dimension == 8
    assert model.encode(["", ""]).shape == (2, 8)
    assert len(embedding_server.requests) == 1
    assert OpenAIEmbedder("m", client).encode(["", ""]).shape == (2, 8)  # asks for the dimension


def test_key_and_base_url_from_the_environment(
    embedding_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", embedding_server.base_url)
    OpenAIEmbedder("m").encode(["an endpoint of one's own needs no key"])
    monkeypatch.setenv("OPENAI_API_KEY", "from-environment")
    OpenAIEmbedder("m").encode(["a"])
    OpenAIEmbedder("m", base_url=embedding_server.base_url, api_key="given").encode(["a"])
    keys = [headers["authorization"] for headers in embedding_server.headers]
    assert keys == ["Bearer none", "Bearer from-environment", "Bearer given"]


def test_a_missing_key_says_the_ways_out() -> None:
    with pytest.raises(EmbedderLoadError, match="OPENAI_API_KEY") as caught:
        OpenAIEmbedder("text-embedding-3-small")
    assert 'embedding_model = "lexical"' in str(caught.value)
    with pytest.raises(EmbedderLoadError, match="lacks the model"):
        OpenAIEmbedder(" ", api_key="key")


@pytest.mark.parametrize(
    ("status", "said"), [(401, "API key"), (429, "quota"), (503, "HTTP 503"), (0, "in time")]
)
def test_refusals(embedding_server: Any, client: openai.OpenAI, status: int, said: str) -> None:
    embedding_server.status = status  # 0: no answer
    with pytest.raises(EmbeddingError, match=said) as caught:
        OpenAIEmbedder("m", client.with_options(timeout=0.5)).encode(["secret text"])
    assert "openai:m" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value.__cause__, openai.OpenAIError)


def one(index: Any, embedding: Any) -> dict[str, Any]:
    return {"object": "embedding", "index": index, "embedding": embedding}


@pytest.mark.parametrize(
    "data",
    [
        None,
        [one(0, [1.0])],
        [one(0, [1.0]), one(0, [1.0])],
        [one(0, [1.0]), one(None, [1.0])],
        [one(0, [1.0]), one(1, [1.0, 2.0])],
        [one(0, ["a"]), one(1, ["b"])],
        [{"index": 0}, {"index": 1}],
        "no object",
    ],
)
def test_nonsense_is_an_embedding_error(embedding_server: Any, client: openai.OpenAI, data: Any) -> None:
    embedding_server.reply = lambda answer: ["?"] if data == "no object" else {**answer, "data": data}
    with pytest.raises(EmbeddingError, match="openai:m"):
        OpenAIEmbedder("m", client).encode(["a", "b"])
