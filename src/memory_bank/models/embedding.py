"""Embedders by name, loaded once; embeddings from OpenAI or a compatible endpoint, through the openai client."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from memory_bank.closing import native_code
from memory_bank.errors import EmbedderLoadError, EmbeddingError, MissingExtraError
from memory_bank.models.chat import explain, kinds_of, openai_package
from memory_bank.models.flag import LEXICAL_ADVICE, FlagEmbedder
from memory_bank.models.lexical import LexicalEmbedder
from memory_bank.ports import NamedEmbedder

OPENAI_PREFIX = "openai:"
#: OpenAI reads at most 8,192 tokens of an input. A token is at least one byte, so this many bytes always fit.
MAX_INPUT_BYTES = 8_191
#: OpenAI takes at most 300,000 tokens in one request; as above, bytes are counted.
MAX_BATCH_BYTES = 300_000
#: Texts in one request.
MAX_BATCH = 128
#: Loaded models that are kept; of more, the one that was used least recently is dropped.
MAX_LOADED = 4

_log = logging.getLogger("memory_bank.InsightStore")
_lock = threading.Lock()


@lru_cache(MAX_LOADED)
def _loaded(spec: str) -> tuple[threading.Lock, list[NamedEmbedder]]:  # noqa: ARG001
    """One model: the first thread loads it into the list, the others wait."""
    return threading.Lock(), []


def load_embedder(spec: str) -> NamedEmbedder:
    """The embedder that a setting names.

    ``"lexical"`` is built in; ``"openai:NAME"`` calls an OpenAI-compatible endpoint (OPENAI_BASE_URL,
    OPENAI_API_KEY); anything else is a model name of the Hugging Face hub or a folder, for FlagEmbedding.
    Loaded models are shared by all threads and kept, up to four. An openai embedder holds no weights and is
    made at each call, so that it follows the environment.

    Raises EmbedderLoadError, with the cause and what to do, when the model cannot be loaded.

    Example:
        >>> load_embedder("lexical").encode(["Order ORD-1 is late."]).shape
        (1, 512)
    """
    spec = spec.strip()
    if spec.startswith(OPENAI_PREFIX):
        return OpenAIEmbedder(spec.removeprefix(OPENAI_PREFIX))
    path = os.path.expanduser(spec)
    key = os.path.realpath(path) if os.path.isdir(path) and spec != "lexical" else spec
    with _lock:
        loading, models = _loaded(key)
    with loading:
        if not models:
            with native_code():
                models.append(LexicalEmbedder() if spec == "lexical" else FlagEmbedder(spec))
        return models[0]


class OpenAIEmbedder:
    """Texts to vectors by an OpenAI-compatible ``/embeddings`` endpoint.

    ``client`` is an ``openai.OpenAI`` to use as it is; without one, a client is made for OPENAI_BASE_URL (or OpenAI
    itself) with OPENAI_API_KEY, which an endpoint of one's own may not need.

    A request holds at most 128 texts and 300,000 bytes. Of a text the first 8,191 bytes of UTF-8
    are sent, which are never more than the 8,192 tokens that OpenAI reads; lone surrogates are replaced.
    Empty and blank texts are not sent, because the API refuses them: their row is zero. Threads may share an
    embedder.

    Raises EmbedderLoadError when there is no key.
    """

    def __init__(self, model: str, client: Any = None) -> None:
        if not model.strip():
            raise EmbedderLoadError(
                'embedding_model = "openai:" lacks the model: write "openai:text-embedding-3-small", '
                f"or {LEXICAL_ADVICE}"
            )
        self.name = f"{OPENAI_PREFIX}{model}"
        self.dimension: int | None = None  # until the first answer
        self._model = model
        self._client = client if client is not None else _client(self.name)

    def encode(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Embed texts: float32 of shape (n, d), one row for each text; (0, 0) for no texts.

        Raises EmbeddingError when the endpoint fails or does not return one vector for each text.
        """
        inputs = [_sendable(text) for text in texts]
        asked = [i for i, text in enumerate(inputs) if text]
        batches = [self._ask(batch) for batch in self._batches([inputs[i] for i in asked])]
        if not batches and texts and self.dimension is None:
            batches = [self._ask(["-"])[:0]]  # only blank texts so far: how long is a row?
        width = {rows.shape[1] for rows in batches} or {self.dimension or 0}
        if len(width) > 1:
            raise EmbeddingError(f"{self.name} answered with vectors of several lengths: {sorted(width)}")
        rows = np.zeros((len(inputs), width.pop()), dtype=np.float32)
        if asked:
            rows[asked] = np.concatenate(batches)
        return rows

    def encode_queries(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """As ``encode``: the endpoint treats queries like other texts."""
        return self.encode(texts)

    def _batches(self, inputs: list[str]) -> Iterator[list[str]]:
        batch: list[str] = []
        size = 0
        for text in inputs:
            length = len(text.encode())
            if batch and (len(batch) == MAX_BATCH or size + length > MAX_BATCH_BYTES):
                yield batch
                batch, size = [], 0
            batch.append(text)
            size += length
        if batch:
            yield batch

    def _ask(self, batch: list[str]) -> npt.NDArray[np.float32]:
        try:
            answer = self._client.embeddings.create(model=self._model, input=batch, encoding_format="float")
            order = [item.index for item in answer.data]
            vectors = [item.embedding for item in answer.data]
        except Exception as exc:
            if "OpenAIError" in kinds_of(exc):
                raise EmbeddingError(explain(exc, self.name)) from exc
            raise EmbeddingError(
                f"{self.name} answered something that is no list of embeddings ({type(exc).__name__}): check "
                "that base_url is an OpenAI-compatible endpoint with /embeddings"
            ) from exc
        if sorted(i for i in order if isinstance(i, int)) != list(range(len(batch))):
            raise EmbeddingError(
                f"{self.name} answered {len(order)} embeddings that do not match the {len(batch)} texts "
                "sent: set another embedding model"
            )
        try:
            rows = np.zeros((len(batch), len(vectors[0])), dtype=np.float32)
            rows[order] = np.array(vectors, dtype=np.float32)
        except (TypeError, ValueError) as exc:
            raise EmbeddingError(
                f"{self.name} answered embeddings that are no lists of numbers of one length: use another"
            ) from exc
        self.dimension = rows.shape[1]
        return rows


def _client(name: str) -> Any:
    try:
        openai = openai_package()
    except MissingExtraError as exc:
        raise EmbedderLoadError(f"{exc}, or {LEXICAL_ADVICE}") from exc
    base_url = os.environ.get("OPENAI_BASE_URL") or None
    api_key = os.environ.get("OPENAI_API_KEY") or ("none" if base_url else None)
    if api_key is None:
        raise EmbedderLoadError(
            f'the embedding model "{name}" needs an API key: set OPENAI_API_KEY (or OPENAI_BASE_URL '
            f"for an endpoint of your own), or {LEXICAL_ADVICE}"
        )
    try:
        return openai.OpenAI(base_url=base_url, api_key=api_key, timeout=60.0)
    except Exception as exc:
        raise EmbedderLoadError(
            f'the client for "{name}" cannot be made ({type(exc).__name__}): check OPENAI_BASE_URL, '
            f"or {LEXICAL_ADVICE}"
        ) from exc


def _sendable(text: str) -> str:
    """The text as the API takes it: whole characters within the byte limit, empty when it is blank."""
    data = text[:MAX_INPUT_BYTES].encode("utf-8", "replace")
    if max(len(data), len(text)) > MAX_INPUT_BYTES:
        _log.debug("of a text of %d characters the first %d bytes are embedded", len(text), MAX_INPUT_BYTES)
    sendable = data[:MAX_INPUT_BYTES].decode("utf-8", "ignore")
    return sendable if sendable.strip() else ""
