"""Embedders by name, and vectors one can rely on."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from tests.embedding_server import EmbeddingServer

from memory_bank.errors import EmbedderLoadError, EmbeddingError, MissingExtraError
from memory_bank.models.embedding import OpenAIEmbedder, load_embedder
from memory_bank.models.lexical import LexicalEmbedder
from memory_bank.ports import Embedder, NamedEmbedder
from memory_bank.vectors import embedder_name, encode_documents, encode_queries


class Returns:
    """An embedder that returns what it was told to."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def encode(self, texts: list[str]) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class AskedByAttribute:
    """Answers every attribute, as mocks and proxies do; only ``encode`` is its own."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args: "not an array"

    def encode(self, texts: list[str]) -> Any:
        return [[3.0, 4.0]] * len(texts)


class KnowsQueries(AskedByAttribute):
    def encode_queries(self, texts: list[str]) -> Any:
        return [[0.0, 2.0]] * len(texts)


class Named(AskedByAttribute):
    name = "named-v2"


class NamedLater(AskedByAttribute):
    def __init__(self) -> None:
        self.name = "named-later"


class Flag(AskedByAttribute):
    model_name_or_path = "BAAI/bge-small-en-v1.5"


def test_load_lexical_once() -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(load_embedder, ["lexical", " lexical "] * 8))
    assert isinstance(found[0], LexicalEmbedder)
    assert all(model is found[0] for model in found)
    assert isinstance(found[0], Embedder)
    assert isinstance(found[0], NamedEmbedder)


def test_load_openai(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openai", reason="needs the extra openai")
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with EmbeddingServer(embed=lambda texts: [[3.0, 4.0]] * len(texts)) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        model = load_embedder("openai:text-embedding-3-small")
        assert isinstance(model, OpenAIEmbedder) and isinstance(model, NamedEmbedder)
        assert model.name == "openai:text-embedding-3-small"
        assert encode_documents(model, ["one", "two"]).shape == (2, 2)


@pytest.mark.parametrize("spec", ["", "  ", "./no/such/folder", "~nobody/x", "we ird", "a\0b"])
def test_what_names_nothing_says_the_ways_out(spec: str) -> None:
    with pytest.raises(EmbedderLoadError, match="no folder") as caught:
        load_embedder(spec)
    assert 'embedding_model = "lexical"' in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_the_extra_its_name_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "FlagEmbedding", None)
    with pytest.raises(EmbedderLoadError, match=r"pip install '\.\[bge\]'") as caught:
        load_embedder("BAAI/bge-small-en-v1.5")
    assert 'embedding_model = "lexical"' in str(caught.value)
    assert isinstance(caught.value.__cause__, MissingExtraError)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (LexicalEmbedder(), "lexical-v1"),
        (Named(), "named-v2"),
        (NamedLater(), "named-later"),
        (Flag(), "BAAI/bge-small-en-v1.5"),
        (AskedByAttribute(), "AskedByAttribute"),
    ],
)
def test_names(model: Any, name: str) -> None:
    assert embedder_name(model) == name


@pytest.mark.parametrize(
    "answer",
    [
        [[3, 4], [0, 0]],
        np.array([[3, 4], [0, 0]], dtype=np.float16),
        np.array([[3e300, 4e300], [0, 0]]),
        np.array([[3e-300, 4e-300], [0, 0]]),
    ],
)
def test_rows_become_float32_of_length_one_and_zero_stays_zero(answer: Any) -> None:
    rows = encode_documents(Returns(answer), ["a", "b"])
    assert rows.dtype == np.float32
    np.testing.assert_allclose(rows, [[0.6, 0.8], [0, 0]], rtol=1e-6)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "shape"),
        ("text", "str"),
        ([[1.0]], r"shape \(1, 1\)"),
        ([[], []], r"shape \(2, 0\)"),
        ([[1.0], [1.0, 2.0]], "list"),
        ([[1.0], [float("nan")]], "1 rows .* not finite"),
        ({"a": 1}, "dict"),
    ],
)
def test_nonsense_is_named(answer: Any, said: str) -> None:
    for encode in (encode_documents, encode_queries):
        with pytest.raises(EmbeddingError, match=said) as caught:
            encode(Returns(answer), ["secret text", "b"])
        assert "Returns" in str(caught.value)
        assert "secret" not in str(caught.value)


def test_a_failing_embedder_is_an_embedding_error() -> None:
    with pytest.raises(EmbeddingError, match=r"'Returns' failed on 1 texts .*KeyError") as caught:
        encode_documents(Returns(KeyError("secret text")), ["secret text"])
    assert "secret" not in str(caught.value)
    assert isinstance(caught.value.__cause__, KeyError)
    ours = EmbedderLoadError("as it is")
    with pytest.raises(EmbedderLoadError, match="as it is"):
        encode_documents(Returns(ours), ["a"])


def test_queries_go_their_own_way_only_where_the_class_has_one() -> None:
    np.testing.assert_allclose(encode_queries(KnowsQueries(), ["a"]), [[0, 1]])
    np.testing.assert_allclose(encode_documents(KnowsQueries(), ["a"]), [[0.6, 0.8]])
    np.testing.assert_allclose(encode_queries(AskedByAttribute(), ["a"]), [[0.6, 0.8]])
