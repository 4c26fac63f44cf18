"""Embeddings from OpenAI or a compatible endpoint, in batches, through the openai client."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from memory_bank.errors import EmbedderLoadError, EmbeddingError
from memory_bank.models.chat import explain

#: OpenAI reads at most 8,192 tokens of an input. A token is at least one byte, so this many bytes always fit.
MAX_INPUT_BYTES = 8_191
#: OpenAI takes at most 300,000 tokens in one request; as above, bytes are counted.
MAX_BATCH_BYTES = 300_000

_log = logging.getLogger("memory_bank.InsightStore")


class OpenAIEmbedder:
    """Texts to vectors by an OpenAI-compatible ``/embeddings`` endpoint.

    ``client`` is an ``openai.OpenAI`` to use as it is; without one, a client is made from ``base_url``
    (default OPENAI_BASE_URL, or OpenAI itself), ``api_key`` (default OPENAI_API_KEY; not needed with a
    ``base_url``) and ``timeout`` in seconds.

    A request holds at most ``batch_size`` texts and 300,000 bytes. Of a text the first 8,191 bytes of UTF-8
    are sent, which are never more than the 8,192 tokens that OpenAI reads; lone surrogates are replaced.
    Empty and blank texts are not sent, because the API refuses them: their row is zero. Threads may share an
    embedder.

    Raises EmbedderLoadError when there is no key.
    """

    def __init__(
        self,
        model: str,
        client: Any = None,
        base_url: str | None = None,
        api_key: str | None = None,
        batch_size: int = 128,
        timeout: float = 60.0,
    ) -> None:
        if not model.strip():
            raise EmbedderLoadError(
                'embedding_model = "openai:" lacks the model: write "openai:text-embedding-3-small", '
                'or set embedding_model = "lexical", which needs nothing'
            )
        self._model = model
        self._batch_size = max(1, batch_size)
        self._dimension: int | None = None
        self._client = client if client is not None else _client(model, base_url, api_key, timeout)

    @property
    def name(self) -> str:
        """The name that the bank stores: ``openai:`` and the model's name."""
        return f"openai:{self._model}"

    @property
    def dimension(self) -> int | None:
        """The length of a vector; None until the first answer."""
        return self._dimension

    def encode(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Embed texts: float32 of shape (n, d), one row for each text; (0, 0) for no texts.

        Raises EmbeddingError when the endpoint fails or does not return one vector for each text.
        """
        inputs = [_sendable(text) for text in texts]
        asked = [i for i, text in enumerate(inputs) if text]
        found = [self._ask(batch) for batch in self._batches([inputs[i] for i in asked])]
        if not found and texts and self._dimension is None:
            found = [self._ask(["-"])[:0]]  # only blank texts so far: how long is a row?
        width = {rows.shape[1] for rows in found} or {self._dimension or 0}
        if len(width) > 1:
            raise EmbeddingError(f"{self.name} answered with vectors of several lengths: {sorted(width)}")
        rows = np.zeros((len(inputs), width.pop()), dtype=np.float32)
        if asked:
            rows[asked] = np.concatenate(found)
        return rows

    def encode_queries(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """As ``encode``: the endpoint treats queries like other texts."""
        return self.encode(texts)

    def _batches(self, inputs: list[str]) -> Iterator[list[str]]:
        batch: list[str] = []
        size = 0
        for text in inputs:
            length = len(text.encode())
            if batch and (len(batch) == self._batch_size or size + length > MAX_BATCH_BYTES):
                yield batch
                batch, size = [], 0
            batch.append(text)
            size += length
        if batch:
            yield batch

    def _ask(self, batch: list[str]) -> npt.NDArray[np.float32]:
        """One request: the rows in the order of the batch."""
        import openai

        try:
            answer = self._client.embeddings.create(model=self._model, input=batch, encoding_format="float")
            order = [item.index for item in answer.data]
            vectors = [item.embedding for item in answer.data]
        except openai.OpenAIError as exc:
            raise EmbeddingError(explain(exc, self.name)) from exc
        except Exception as exc:
            raise EmbeddingError(
                f"{self.name} answered something that is no list of embeddings ({type(exc).__name__}): check "
                "that base_url is an OpenAI-compatible endpoint with /embeddings"
            ) from exc
        if sorted(i for i in order if isinstance(i, int)) != list(range(len(batch))):
            raise EmbeddingError(
                f"{self.name} answered {len(order)} embeddings that do not match the {len(batch)} texts "
                "sent: set a smaller batch_size or another embedding model"
            )
        try:
            rows = np.zeros((len(batch), len(vectors[0])), dtype=np.float32)
            rows[order] = np.array(vectors, dtype=np.float32)
        except (TypeError, ValueError) as exc:
            raise EmbeddingError(
                f"{self.name} answered embeddings that are no lists of numbers of one length: use another"
            ) from exc
        self._dimension = rows.shape[1]
        return rows


def _client(model: str, base_url: str | None, api_key: str | None, timeout: float) -> Any:
    import openai

    base_url = base_url or os.environ.get("OPENAI_BASE_URL") or None
    api_key = api_key or os.environ.get("OPENAI_API_KEY") or ("none" if base_url else None)
    if api_key is None:
        raise EmbedderLoadError(
            f'the embedding model "openai:{model}" needs an API key: set OPENAI_API_KEY (or OPENAI_BASE_URL '
            'for an endpoint of your own), or set embedding_model = "lexical", which needs nothing'
        )
    try:
        return openai.OpenAI(base_url=base_url, api_key=api_key, timeout=timeout)
    except Exception as exc:
        raise EmbedderLoadError(
            f'the client for "openai:{model}" cannot be made ({type(exc).__name__}): check base_url, or set '
            'embedding_model = "lexical", which needs nothing'
        ) from exc


def _sendable(text: str) -> str:
    """The text as the API takes it: whole characters within the byte limit, empty when it is blank."""
    data = text[:MAX_INPUT_BYTES].encode("utf-8", "replace")
    if len(data) > MAX_INPUT_BYTES or len(text) > MAX_INPUT_BYTES:
        _log.debug("of a text of %d characters the first %d bytes are embedded", len(text), MAX_INPUT_BYTES)
    sendable = data[:MAX_INPUT_BYTES].decode("utf-8", "ignore")
    return sendable if sendable.strip() else ""
