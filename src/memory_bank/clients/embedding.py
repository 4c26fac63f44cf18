"""Embedders by name, and vectors one can rely on: every embedder is loaded and asked through here."""

from __future__ import annotations

import inspect
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from memory_bank.clients.flag import FlagEmbedder
from memory_bank.clients.lexical import LexicalEmbedder
from memory_bank.clients.openai_embeddings import OpenAIEmbedder
from memory_bank.errors import EmbeddingError, MemoryBankError
from memory_bank.ports import NamedEmbedder

OPENAI_PREFIX = "openai:"

#: So many loaded models are kept; the one not asked for the longest goes first.
MAX_LOADED = 4


class _Loading:
    """A place for one model: whoever comes first loads it, the others wait."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.model: NamedEmbedder | None = None


_loaded: OrderedDict[str, _Loading] = OrderedDict()
_loaded_lock = threading.Lock()


def load_embedder(spec: str) -> NamedEmbedder:
    """The embedder that a setting names.

    ``"lexical"`` is built in; ``"openai:NAME"`` asks an OpenAI-compatible endpoint (OPENAI_BASE_URL,
    OPENAI_API_KEY); anything else is a model name of the Hugging Face hub or a folder, for FlagEmbedding.
    Models are kept for the life of the process and shared: asking twice, from any thread, loads once. An
    openai embedder holds no weights and is made anew, so that it follows the environment.

    Raises EmbedderLoadError, with the cause and the ways out, when the model cannot be loaded.
    """
    spec = spec.strip()
    if spec.startswith(OPENAI_PREFIX):
        return OpenAIEmbedder(spec.removeprefix(OPENAI_PREFIX))
    path = os.path.expanduser(spec)
    key = os.path.realpath(path) if os.path.isdir(path) and spec != "lexical" else spec
    with _loaded_lock:
        place = _loaded.setdefault(key, _Loading())
        _loaded.move_to_end(key)
        while len(_loaded) > MAX_LOADED:
            _loaded.popitem(last=False)
    with place.lock:
        if place.model is None:
            place.model = LexicalEmbedder() if spec == "lexical" else FlagEmbedder(spec)
        return place.model


def embedder_name(model: Any) -> str:
    """The name the bank writes down for an embedder of any make.

    Its ``name`` where the class (or the object itself) defines it as a string, else a ``model_name_or_path``
    (FlagEmbedding), else the name of its class.
    """
    own = inspect.getattr_static(model, "name", None) is not None
    for attribute in ("name", "model_name_or_path") if own else ("model_name_or_path",):
        value = getattr(model, attribute, None)
        if isinstance(value, str) and value:
            return value
    return type(model).__qualname__


def encode_documents(model: Any, texts: Sequence[str]) -> npt.NDArray[np.float32]:
    """The texts to be found, as float32 of shape (n, d), rows of length 1 (a zero row stays zero).

    For no texts the model is not asked: shape (0, d), or (0, 0) where d is not known. Raises EmbeddingError
    when the model fails or returns anything but n rows of d finite numbers.
    """
    return _encoded(model, model.encode, texts)


def encode_queries(model: Any, texts: Sequence[str]) -> npt.NDArray[np.float32]:
    """As ``encode_documents``, for queries: by ``encode_queries`` where the model's class has it."""
    if callable(getattr(type(model), "encode_queries", None)):
        return _encoded(model, model.encode_queries, texts)
    return _encoded(model, model.encode, texts)


def _encoded(model: Any, encode: Callable[[list[str]], Any], texts: Sequence[str]) -> npt.NDArray[np.float32]:
    texts = list(texts)
    if not texts:
        dimension = getattr(model, "dimension", None)
        return np.zeros((0, dimension if isinstance(dimension, int) else 0), dtype=np.float32)
    try:
        answer = encode(texts)
    except MemoryBankError:
        raise
    except Exception as exc:
        raise EmbeddingError(
            f"the embedder {embedder_name(model)!r} failed on {len(texts)} texts ({type(exc).__name__}): "
            "see the cause, or use another embedding model"
        ) from exc
    return _unit_rows(answer, len(texts), embedder_name(model))


def _unit_rows(answer: Any, n: int, name: str) -> npt.NDArray[np.float32]:
    try:
        rows = np.asarray(answer, dtype=np.float64)
    except Exception as exc:
        raise _nonsense(name, n, f"a {type(answer).__name__} that is no array of numbers") from exc
    if rows.ndim != 2 or rows.shape[0] != n or rows.shape[1] == 0:
        raise _nonsense(name, n, f"an array of shape {rows.shape}")
    if not np.isfinite(rows).all():
        bad = int((~np.isfinite(rows)).any(axis=1).sum())
        raise _nonsense(name, n, f"{bad} rows with numbers that are not finite")
    # By the largest number first, so that squaring neither overflows nor vanishes.
    largest = np.abs(rows).max(axis=1, keepdims=True)
    rows = np.divide(rows, largest, out=np.zeros_like(rows), where=largest > 0)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    unit = np.divide(rows, norms, out=np.zeros_like(rows), where=norms > 0)
    return np.ascontiguousarray(unit, dtype=np.float32)


def _nonsense(name: str, n: int, what: str) -> EmbeddingError:
    return EmbeddingError(
        f"the embedder {name!r} returned {what} for {n} texts: its encode must take a list of strings and "
        "return an (n, d) array of finite numbers"
    )
