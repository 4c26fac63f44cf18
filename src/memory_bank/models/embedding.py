"""Embedders by name: loaded once, kept for the life of the process."""

from __future__ import annotations

import os
import threading
from functools import lru_cache

from memory_bank.models.flag import FlagEmbedder
from memory_bank.models.lexical import LexicalEmbedder
from memory_bank.models.openai_embeddings import OpenAIEmbedder
from memory_bank.ports import NamedEmbedder

OPENAI_PREFIX = "openai:"

#: Loaded models that are kept; of more, the one that was used least recently is dropped.
MAX_LOADED = 4


class _Place:
    """One model: the first thread loads it, the others wait."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.model: NamedEmbedder | None = None


_places_lock = threading.Lock()


@lru_cache(MAX_LOADED)
def _place_of(spec: str) -> _Place:  # noqa: ARG001
    return _Place()


def load_embedder(spec: str) -> NamedEmbedder:
    """The embedder that a setting names.

    ``"lexical"`` is built in; ``"openai:NAME"`` calls an OpenAI-compatible endpoint (OPENAI_BASE_URL,
    OPENAI_API_KEY); anything else is a model name of the Hugging Face hub or a folder, for FlagEmbedding.
    Loaded models are shared by all threads and kept, up to four. An openai embedder holds no weights and is
    made at each call, so that it follows the environment.

    Raises EmbedderLoadError, with the cause and what to do, when the model cannot be loaded.
    """
    spec = spec.strip()
    if spec.startswith(OPENAI_PREFIX):
        return OpenAIEmbedder(spec.removeprefix(OPENAI_PREFIX))
    path = os.path.expanduser(spec)
    key = os.path.realpath(path) if os.path.isdir(path) and spec != "lexical" else spec
    with _places_lock:
        place = _place_of(key)
    with place.lock:
        if place.model is None:
            place.model = LexicalEmbedder() if spec == "lexical" else FlagEmbedder(spec)
        return place.model
