"""What tells conversations apart: the rolling digest of their messages, and call ids that only one has."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any

from memory_bank.records import content_key
from memory_bank.transcript.content import is_text_part
from memory_bank.transcript.interactions import Interaction, Kind, Pair, kind_of
from memory_bank.transcript.jsontext import dump_value, flat_text
from memory_bank.transcript.parsing import Parser

LATEST = 16
"""Interactions at the end of a list whose calls are looked at."""

_MARK = "cache_control"  # asks a provider to cache; it wanders from message to message
_dump = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode


@dataclass(frozen=True, slots=True)
class Outcome:
    """A call with its result: digests, ``call`` of its id and tool, ``whole`` of all, ``size`` in letters."""

    call: str
    whole: str
    size: int


@dataclass(frozen=True, slots=True)
class Turn:
    """An interaction at the end of a list. ``stop`` is the position after it.

    ``anchor`` is the digest of a call id that looks random, None where it has none.
    """

    anchor: str | None
    stop: int
    interaction: Interaction = field(repr=False)
    seed: bytes = field(repr=False)

    def outcomes(self) -> list[Outcome]:
        """Its answered calls."""
        return [_outcome(self.seed, pair) for pair in self.interaction.pairs if pair.result is not None]


@dataclass(frozen=True, slots=True)
class Chain:
    """The digests of a list of messages, from its first tool call on.

    ``whole`` is that of all its messages, ``head`` that of those up to the end of the last interaction.
    ``positions`` says how many messages a digest is of; ``ends`` are those of beginnings that may have been a
    request, the longest first. ``turns`` are the latest interactions, oldest first.
    """

    whole: str
    head: str
    positions: dict[str, int] = field(repr=False)
    ends: Sequence[str] = field(repr=False)
    turns: Sequence[Turn] = field(repr=False)


def seed_of(namespace: str | None, upstream_key: str | None, cache_key: str | None = None) -> bytes:
    """What every digest begins with: whose conversations these are.

    The upstream key enters as a hash, and that never stands alone.
    """
    secret = (
        b""
        if upstream_key is None
        else hashlib.sha256(upstream_key.encode("utf-8", "surrogatepass")).digest()
    )
    parts = (b"\0" if p is None else p.encode("utf-8", "surrogatepass") for p in (namespace, cache_key))
    return content_key(b"memory_bank lineage 1", secret, *parts)


Canonical = Callable[[Any], tuple[bytes, bytes]]


def read_chain(seed: bytes, messages: Sequence[Any], canonical_of: Canonical | None = None) -> Chain | None:
    """The chain of a list; None before the first assistant tool call.

    ``canonical_of`` gives what ``canonical`` gives, and may know it already.
    """
    canonical_of = canonical_of or canonical
    kinds = [kind_of(m) for m in messages]
    if Kind.CALL not in kinds:
        return None
    first = kinds.index(Kind.CALL)
    rolling = hashlib.sha256(seed)
    positions: dict[str, int] = {}
    digests: list[str] = []  # digests[i] of the messages up to first + i
    for i, message in enumerate(messages):
        told, text = canonical_of(message)
        rolling.update(b"%d,%d;" % (len(told), len(text)))
        rolling.update(told)
        rolling.update(text)
        if i >= first:
            digest = rolling.copy().hexdigest()
            digests.append(digest)
            positions[digest] = i + 1
    turns = _turns(seed, messages, kinds)
    ends = [d for i, d in enumerate(digests, first) if _may_end(kinds, i)]
    return Chain(digests[-1], digests[turns[-1].stop - 1 - first], positions, ends[::-1], turns)


def canonical(message: Any) -> tuple[bytes, bytes]:
    """A message as bytes: all but a content that is text, and that text.

    Equal for messages that differ only in the order of keys, in members that are null or absent, in a text
    given as a single part, and in where a provider is asked to cache.
    """
    if not isinstance(message, dict):
        return _told(message), b""
    content = message.get("content")
    text = content if isinstance(content, str) else _only_text(content)
    if text is None:
        rest = {k: _plain(v) if k == "content" else v for k, v in message.items()}
        return _told(rest), b""
    rest = {k: v for k, v in message.items() if k != "content"}
    return _told(rest), b"=" + text.encode("utf-8", "surrogatepass")


def _only_text(content: Any) -> str | None:
    """The text of a content that is a single part of text and nothing else."""
    if not isinstance(content, list) or len(content) != 1 or not isinstance(content[0], dict):
        return None
    part = content[0]
    if is_text_part(part) and all(k in ("type", "text", _MARK) or v is None for k, v in part.items()):
        return str(part["text"])
    return None


def _plain(content: Any) -> Any:
    if not isinstance(content, list):
        return content
    return [{k: v for k, v in p.items() if k != _MARK} if isinstance(p, dict) else p for p in content]


def _told(value: Any) -> bytes:
    if isinstance(value, dict):
        value = {k: v for k, v in value.items() if k != _MARK}
    try:
        text = _dump(_without_null(value))
    except RecursionError:
        text = flat_text(value)
    return text.encode("utf-8", "surrogatepass")


def _without_null(value: Any) -> Any:
    kind = type(value)
    if kind is dict:
        return {k: _without_null(v) if type(v) is not str else v for k, v in value.items() if v is not None}
    if kind is list:
        return [_without_null(v) for v in value]
    return value


def _may_end(kinds: Sequence[Kind], i: int) -> bool:
    """Whether a request may have ended at a position: results come together, and a call with its results."""
    if i + 1 == len(kinds):
        return True
    return kinds[i] is not Kind.CALL and kinds[i + 1] is not Kind.RESULT


# ----------------------------------------------------------------------


def _turns(seed: bytes, messages: Sequence[Any], kinds: Sequence[Kind]) -> list[Turn]:
    """The latest interactions."""
    start, calls = len(kinds), 0
    while start and (calls <= LATEST or kinds[start - 1] is Kind.CALL):
        start -= 1
        calls += kinds[start] is Kind.CALL
    parser = Parser(start)
    for message in messages[start:]:
        parser.feed(message)
    found = [s for s in parser.segments() if isinstance(s, Interaction)]
    return [Turn(_anchor(seed, i.pairs), i.stop, i, seed) for i in found[-LATEST:]]


def _anchor(seed: bytes, pairs: Sequence[Pair]) -> str | None:
    for pair in pairs:
        if pair.call is not None and looks_random(pair.call.call_id, pair.call.name):
            return _digest(seed, "call", str(pair.call.call_id))
    return None


def _outcome(seed: bytes, pair: Pair) -> Outcome:
    arguments = pair.call.text if pair.call else ""
    output = pair.result.output_text if pair.result else ""
    if output is None and pair.result is not None:
        output = dump_value(pair.result.raw_output)
    call_id = pair.call.call_id if pair.call else None
    return Outcome(
        _digest(seed, "called", call_id or "", pair.tool_name)[:32],
        hashlib.sha256(seed + b"outcome" + pair.content_key()).hexdigest()[:32],
        len(arguments) + len(output or ""),
    )


def _digest(seed: bytes, *parts: str) -> str:
    return content_key(seed, *(p.encode("utf-8", "surrogatepass") for p in parts)).hex()


_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|[0-9]+")


@lru_cache(maxsize=65_536)
def looks_random(call_id: str | None, name: str = "") -> bool:
    """Whether nobody else is likely to have an id: ``call_DdmO9pD3xa9XTPNJ32zg2hcA``, but not ``call_0001``.

    What counts are stretches of mixed kinds of letters and digits that change often, the tool's name aside:
    eight characters of them, six different, not in a row. Of such ids with 24 characters less than one in
    twenty fails; a counter, a word, a time never passes.
    """
    if not call_id:
        return False
    if name:
        call_id = call_id.replace(name, " ")
    stretches = [
        s for s in re.split(r"[^A-Za-z0-9]+", call_id) if len(s) >= 4 and len(set(map(_sort, s))) > 1
    ]
    text = "".join(stretches)
    words = [w for s in stretches for w in _WORDS.findall(s)]
    if len(text) < 8 or len(set(text)) < 6:
        return False
    if 3 * sum(ord(b) - ord(a) in (0, 1) for a, b in pairwise(text)) > len(text):
        return False
    if len(text) <= 3 * len(words):
        return True
    return 2 * len(text) <= 9 * len(words) and sum(w.isdigit() for w in words) >= 3


def _sort(c: str) -> int:
    return 0 if c.isdigit() else 1 if c.isupper() else 2
