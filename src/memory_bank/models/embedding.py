"""Embedders by name: loaded once, kept for the life of the process."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict

from memory_bank.models.flag import FlagEmbedder
from memory_bank.models.lexical import LexicalEmbedder
from memory_bank.models.openai_embeddings import OpenAIEmbedder
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
