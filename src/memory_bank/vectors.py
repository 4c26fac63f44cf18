"""Texts to unit vectors: whatever an embedder returns is checked here, once."""

from __future__ import annotations

from typing import Any

import numpy as np

from memory_bank.errors import EmbeddingError, MemoryBankError
from memory_bank.ports import Embedder

Array = np.ndarray[Any, Any]
_TIE = 1e-6  # scores closer than this are equal


def embedder_name(model: Any) -> str:
    """What a bank writes down of an embedder: its ``name``, its model's name or folder, or its class."""
    for attribute in ("name", "model_name_or_path"):
        value = getattr(model, attribute, None)
        if isinstance(value, str) and value:
            return value
    return type(model).__qualname__


def encode_documents(model: Embedder, texts: list[str]) -> Array:
    """Unit vectors, float32 of shape (n, d); a zero vector stays zero. Raises EmbeddingError."""
    return _checked(model, model.encode, texts)


def encode_queries(model: Embedder, texts: list[str]) -> Array:
    """As ``encode_documents``, through ``encode_queries`` where the embedder's class defines it."""
    own = callable(getattr(type(model), "encode_queries", None))
    return _checked(model, model.encode_queries if own else model.encode, texts)  # type: ignore[attr-defined]


def _checked(model: Any, encode: Any, texts: list[str]) -> Array:
    name = embedder_name(model)
    try:
        answer = encode(texts)
    except MemoryBankError:
        raise
    except Exception as e:
        raise EmbeddingError(f"the embedder {name} failed with {type(e).__name__}: {e}") from e
    try:
        vectors = np.asarray(answer, dtype=np.float32)
    except (TypeError, ValueError):
        raise EmbeddingError(
            f"the embedder {name} returned a {type(answer).__name__}, not an array of numbers."
        ) from None
    if vectors.ndim != 2 or vectors.shape[0] != len(texts) or vectors.shape[1] == 0:
        raise EmbeddingError(
            f"the embedder {name} returned shape {vectors.shape} for {len(texts)} texts: (n, d) is expected."
        )
    if not np.isfinite(vectors).all():
        raise EmbeddingError(f"the embedder {name} returned numbers that are not finite.")
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: Array = vectors / np.where(norms > 0, norms, 1)
    return unit


def order_by_score(scores: Array, rows: Array) -> tuple[Array, Array]:
    """Rows and scores, best first; scores within 1e-6 are ties: the larger row, the newer, first."""
    order = np.lexsort((-rows, -np.round(scores / _TIE)))
    return rows[order], scores[order]
