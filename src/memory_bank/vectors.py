"""Texts as unit vectors by any embedder; the results of the embedder are checked."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from memory_bank.closing import native_code
from memory_bank.errors import EmbeddingError, MemoryBankError
from memory_bank.ports import Embedder


def embedder_name(model: object) -> str:
    """The name that the bank stores for an embedder.

    Its ``name`` where the class (or the object itself) defines it as a string, else a ``model_name_or_path``
    (FlagEmbedding), else the name of its class.
    """
    has_name = inspect.getattr_static(model, "name", None) is not None
    for attribute in ("name", "model_name_or_path") if has_name else ("model_name_or_path",):
        value = getattr(model, attribute, None)
        if isinstance(value, str) and value:
            return value
    return type(model).__qualname__


def encode_documents(model: Embedder, texts: Sequence[str]) -> npt.NDArray[np.float32]:
    """Documents as float32 of shape (n, d), rows of length 1 (a zero row stays zero).

    For no texts the model is not called: shape (0, d), or (0, 0) where d is not known. Raises EmbeddingError
    when the model fails or returns anything but n rows of d finite numbers.
    """
    return _encoded(model, model.encode, texts)


def encode_queries(model: Embedder, texts: Sequence[str]) -> npt.NDArray[np.float32]:
    """As ``encode_documents``, for queries: by ``encode_queries`` where the model's class has it."""
    if callable(getattr(type(model), "encode_queries", None)):
        return _encoded(model, model.encode_queries, texts)  # type: ignore[attr-defined]
    return _encoded(model, model.encode, texts)


def _encoded(
    model: Embedder, encode: Callable[[list[str]], object], texts: Sequence[str]
) -> npt.NDArray[np.float32]:
    texts, n, name = list(texts), len(texts), embedder_name(model)
    if not texts:
        dimension = getattr(model, "dimension", None)
        return np.zeros((0, dimension if isinstance(dimension, int) else 0), dtype=np.float32)
    try:
        with native_code():
            answer = encode(texts)
    except MemoryBankError:
        raise
    except Exception as exc:
        raise EmbeddingError(
            f"the embedder {name!r} failed on {n} texts ({type(exc).__name__}): "
            "see the cause, or use another embedding model"
        ) from exc

    def invalid(reason: str) -> EmbeddingError:
        return EmbeddingError(
            f"the embedder {name!r} returned {reason} for {n} texts: its encode must take a list of strings and "
            "return an (n, d) array of finite numbers"
        )

    try:
        rows = np.asarray(answer, dtype=np.float64)
    except Exception as exc:
        raise invalid(f"a {type(answer).__name__} that is no array of numbers") from exc
    if rows.ndim != 2 or rows.shape[0] != n or rows.shape[1] == 0:
        raise invalid(f"an array of shape {rows.shape}")
    if bad := int((~np.isfinite(rows)).any(axis=1).sum()):
        raise invalid(f"{bad} rows with numbers that are not finite")
    # By the largest number first, so that squaring neither overflows nor vanishes.
    largest = np.abs(rows).max(axis=1, keepdims=True)
    rows = np.divide(rows, largest, out=np.zeros_like(rows), where=largest > 0)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    unit = np.divide(rows, norms, out=np.zeros_like(rows), where=norms > 0)
    return np.ascontiguousarray(unit, dtype=np.float32)


def choose_diverse(
    vectors: npt.NDArray[np.floating],
    relevance: npt.NDArray[np.floating],
    diversity: float,
    costs: Sequence[int],
    budget: int,
) -> list[int]:
    """The positions of items that are relevant and unlike one another, in order; their ``costs`` fit ``budget``.

    Maximal marginal relevance (Carbonell and Goldstein, SIGIR 1998), greedily: the next item is the one that
    fits with the greatest ``(1 - diversity) * relevance - diversity * similarity``, where similarity is the
    greatest to an item already chosen, at least 0. Of equal items (to 6 digits) the last is chosen. ``vectors`` have
    unit length; ``diversity``: 0 (relevance only) to 1; with ``costs`` of 1 each, ``budget`` is a number of items.
    """
    cost = np.asarray(costs)
    nearest = np.zeros_like(relevance)
    is_left = np.ones(len(cost), dtype=bool)
    chosen: list[int] = []
    while True:
        is_left &= cost <= budget
        if not is_left.any():
            return sorted(chosen)
        worth = ((1 - diversity) * relevance - diversity * nearest).astype(np.float64).round(6)
        worth[~is_left] = -np.inf
        best = len(worth) - 1 - int(np.argmax(worth[::-1]))
        is_left[best] = False
        chosen.append(best)
        budget -= costs[best]
        nearest = np.maximum(nearest, vectors @ vectors[best])
