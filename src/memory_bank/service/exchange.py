"""What one request through the proxy came to, in figures, for whoever watches the service."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass
from typing import Literal

Outcome = Literal["complete", "client_gone", "broken_off", "unreachable", "refused", "aborted"]
"""``broken_off``: upstream, within its answer; ``unreachable``: it gave none; ``refused``: by the service;
``aborted``: it ended, or erred."""

_TAIL = 16_384
_USAGE = b'"usage":'


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and its answer. No contents, no keys.

    ``route``: "chat", "responses", or "other" for what only passes through. ``began``: Unix seconds;
    ``first_byte`` and ``seconds`` from then on to the first and the last byte of the answer's body.
    ``memory``: rebuilt, unchanged, passed or failed, "" where none was asked, with its ``reason``, and the
    ``memory_seconds`` it took; ``tokens`` of what went upstream and ``full_tokens`` of what came, as memory
    counts. ``input_tokens`` and ``output_tokens`` as upstream says, where it does.
    """

    method: str
    route: str
    outcome: Outcome
    status: int | None
    began: float
    seconds: float
    first_byte: float | None = None
    model: str | None = None
    streamed: bool = False
    namespace: str | None = None
    session: str | None = None
    memory: str = ""
    reason: str | None = None
    memory_seconds: float = 0.0
    tokens: int | None = None
    full_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    received_bytes: int = 0
    sent_bytes: int = 0


class Tail:
    """The end of an answer, where the usage stands, kept while its bytes pass."""

    def __init__(self) -> None:
        self.size = 0
        self._kept: deque[bytes] = deque()
        self._length = 0

    def feed(self, chunk: bytes) -> None:
        """The next bytes."""
        self.size += len(chunk)
        self._kept.append(chunk)
        self._length += len(chunk)
        while self._length - len(self._kept[0]) >= _TAIL:
            self._length -= len(self._kept.popleft())

    def usage(self) -> tuple[int | None, int | None]:
        """The tokens of the prompt and of the answer, as the last usage in it says; None where none does."""
        end = b"".join(self._kept)[-_TAIL:]
        at = end.rfind(_USAGE)
        while at >= 0:
            found = _tokens(end[at + len(_USAGE) :])
            if found is not None:
                return found
            at = end.rfind(_USAGE, 0, at)
        return None, None


def _tokens(text: bytes) -> tuple[int | None, int | None] | None:
    try:
        usage, _ = json.JSONDecoder().raw_decode(text.decode("utf-8", "replace").lstrip())
    except (ValueError, RecursionError):
        return None
    if not isinstance(usage, dict):
        return None
    given = (
        _count(usage, "prompt_tokens", "input_tokens"),
        _count(usage, "completion_tokens", "output_tokens"),
    )
    return None if given == (None, None) else given


def _count(usage: dict[str, object], *names: str) -> int | None:
    return next((v for n in names if type(v := usage.get(n)) is int), None)
