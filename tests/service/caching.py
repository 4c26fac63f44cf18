"""A scripted model API with a prefix cache, for tests: what it has seen of a request is reported with its usage."""

from __future__ import annotations

import hashlib
import itertools
import json
from typing import Any

from memory_bank.pricing import Usage, cost, known_price
from memory_bank.testing import Reply
from memory_bank.transcript.anthropic import CACHE_MARK

LOOKBACK = 20
"""Blocks before a mark that are looked up, as Anthropic documents it."""


class Cached:
    """A script for ScriptedServer: answers "ok" with the tokens that its prefix cache holds of a request.

    The Messages API keeps a prefix only at a mark, and looks at the blocks before a mark; the others keep every prefix.
    ``works``: whether the cache holds anything at all. ``minimum``: tokens of the shortest prefix that it keeps.
    """

    def __init__(self, works: bool = True, minimum: int = 0) -> None:
        self.works, self.minimum = works, minimum
        self.kept: set[bytes] = set()
        self.cached: list[int] = []
        self.usages: list[Usage] = []

    def __call__(self, body: dict[str, Any]) -> Reply:
        by_marks = "max_tokens" in body
        pieces = _pieces(body)
        texts = [json.dumps(_unmarked(p), sort_keys=True) for p in pieces]
        marks = [i for i, p in enumerate(pieces) if not by_marks or _is_marked(p)]
        sizes = [0, *itertools.accumulate(map(len, texts))]  # of the prefixes
        marks = [i for i in marks if sizes[i + 1] // 4 >= self.minimum]
        looked = {j for i in marks for j in range(max(0, i - LOOKBACK), i + 1)}
        prefixes, so_far = [], hashlib.sha256()
        for text in texts:
            so_far.update(text.encode())
            prefixes.append(so_far.digest())
        found = [i for i in looked if prefixes[i] in self.kept]
        cached = sizes[max(found, default=-1) + 1] // 4
        written = 0
        if self.works:
            self.kept |= {prefixes[i] for i in marks}
            written = sizes[max(marks, default=-1) + 1] // 4 - cached if by_marks else 0
        self.cached.append(cached)
        self.usages.append(Usage(sizes[-1] // 4, cached, written, 1))
        return Reply("ok", usage=(self.usages[-1].input, 1), cached=(cached, written))

    def paid(self, model: str) -> tuple[int, float]:
        """The tokens of all requests, and what they cost by the list price of a model."""
        price, _ = known_price({}, model) or (None, "")
        assert price is not None
        return sum(u.input for u in self.usages), sum(cost(u, price) for u in self.usages)


def _pieces(body: dict[str, Any]) -> list[Any]:
    """Tools, system prompt and the blocks of the messages, in the order in which a prompt has them."""
    system = body.get("system")
    out = [*body.get("tools", ()), *(system if isinstance(system, list) else [system])]
    for message in body["messages"]:
        content = message.get("content")
        blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
        rest = {k: v for k, v in message.items() if k != "content"}
        out += [rest, *blocks]
    return out


def _is_marked(piece: Any) -> bool:
    return isinstance(piece, dict) and CACHE_MARK in piece


def _unmarked(piece: Any) -> Any:
    return {k: v for k, v in piece.items() if k != CACHE_MARK} if isinstance(piece, dict) else piece
