"""The scripted server with embeddings, as OpenAI's API makes them."""

from __future__ import annotations

import base64
import hashlib
import math
import re
import struct
from collections.abc import Callable
from typing import Any

from memory_bank.testing import Reply, ScriptedServer, fail
from memory_bank.testing.replies import as_json


class EmbeddingServer(ScriptedServer):
    """Answers POST /v1/embeddings, too, in floats and base64.

    ``embed``: a function from texts to vectors of one length, or to a Reply.
    """

    def __init__(
        self, script: Any = (), *, embed: Callable[[list[str]], Any] | None = None, **options: Any
    ) -> None:
        super().__init__(script, **{"models": ("scripted", "scripted-embedding"), **options})
        self.embed = embed or hashed_embedding

    def answer(self, method: str, path: str, body: Any) -> Reply:
        known = (method, path) == ("POST", "/v1/embeddings") and isinstance(body, dict) and body.get("model")
        return self._embeddings(body) if known else super().answer(method, path, body)

    def _embeddings(self, body: dict[str, Any]) -> Reply:
        inputs = body.get("input")
        items = [inputs] if isinstance(inputs, str) or _is_tokens(inputs) else inputs
        if not isinstance(items, list) or not all(isinstance(t, str) or _is_tokens(t) for t in items or [0]):
            return fail(400, "Invalid 'input': expected text, tokens, or an array of them")
        texts = [t if isinstance(t, str) else " ".join(map(str, t)) for t in items]
        vectors = self.embed(texts)
        if isinstance(vectors, Reply):
            return vectors
        data = []
        for i, vector in enumerate(vectors):
            floats = [float(x) for x in vector][: body.get("dimensions")]
            packed = base64.b64encode(struct.pack(f"<{len(floats)}f", *floats)).decode()
            encoded = packed if body.get("encoding_format") == "base64" else floats
            data.append({"object": "embedding", "index": i, "embedding": encoded})
        tokens = sum(len(t) for t in texts) // 4
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return as_json({"object": "list", "data": data, "model": body["model"], "usage": usage})


def hashed_embedding(texts: list[str], dimension: int = 64) -> list[list[float]]:
    """Unit vectors of hashed words: similar for texts that share words, equal in every process."""
    vectors = []
    for text in texts:
        vector = [0.0] * dimension
        for word in re.findall(r"\w+", text.lower()) or [""]:
            h = int.from_bytes(hashlib.sha256(word.encode("utf-8", "replace")).digest()[:8], "big")
            vector[h % dimension] += 1.0 if h >> 63 else -1.0
        norm = math.sqrt(sum(x * x for x in vector))
        vectors.append([x / norm for x in vector] if norm else [1.0, *vector[1:]])
    return vectors


def _is_tokens(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(t) is int for t in value)
