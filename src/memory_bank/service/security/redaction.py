"""Redaction: replaces what must not be stored in messages, values and texts.

Two kinds of rules: secrets of known forms (``secrets.py``), and the user's regular expressions. The package
``regex`` matches the latter, because it releases the interpreter lock and has a time limit: a text that an
expression takes too long for is redacted as a whole.
"""

from __future__ import annotations

import json
import logging
import operator
import re
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from cachetools import LRUCache

from memory_bank.config import ServiceSettings
from memory_bank.errors import ConfigError
from memory_bank.service.security.secrets import Span, keyed_secret, named_secret, secrets_in
from memory_bank.transcript.jsontext import flat_text, is_deep, plain

log = logging.getLogger("memory_bank.Service")

_REDACTED = re.compile(r"\[redacted: [a-z0-9_ ]{1,40}\]")
# members that link the messages of a conversation
_KEPT = frozenset({"role", "id", "tool_call_id", "call_id", "type", "index"})
_PARTS = frozenset(  # types of message parts, which must stay readable
    {
        "text", "input_text", "output_text", "refusal", "image_url", "input_image", "file", "input_file",
        "input_audio", "function", "custom", "summary_text", "reasoning_text",
    }
)  # fmt: skip
_JSON = ("{", "[", '"')  # first characters of a JSON text with strings
_MADE_UP = "aB3-dE6-gH9-kL2"  # no secret: tells whether a name is that of several
_DEPTH = 60  # deeper values are treated as text
_ROUNDS = 20  # passes until nothing more is found
_CACHED_CHARS = 16_000_000  # of cached results, each text counting 80 more
_SECONDS = 0.25  # per expression and text, and again per million characters


class Redaction:
    """Redacts messages, values and texts; returns the same object if nothing is redacted.

    Redacted text becomes ``[redacted: KIND]``; redaction is idempotent. Results are cached by text. Thread
    safe. Raises ConfigError for an invalid expression.
    """

    def __init__(
        self, expressions: Sequence[str] = (), *, secrets: bool = True, seconds: float = _SECONDS
    ) -> None:
        self.secrets = secrets
        self._seconds = seconds
        self._rules = [(f"rule {number}", _rule(number, e)) for number, e in enumerate(expressions, 1)]
        # by a text's hash and length: its redacted text, None for itself
        self._known: LRUCache[int, str | None] = LRUCache(_CACHED_CHARS, lambda s: 80 + len(s or ""))
        self._warned: set[str] = set()
        self._lock = threading.Lock()

    @classmethod
    def of(cls, settings: ServiceSettings) -> Redaction | None:
        """The redaction of the settings, or None if they have none. Raises ConfigError."""
        if not settings.redact and not settings.redact_secrets:
            return None
        return cls(settings.redact, secrets=settings.redact_secrets)

    def message(self, message: Any) -> Any:
        """Redact a chat message; its role and call ids stay."""
        return self._value(message, "", links=not isinstance(message, list))

    def value(self, value: Any) -> Any:
        """Redact a JSON value."""
        return self._value(value, "")

    def text(self, text: str) -> str:
        """Redact a text. JSON stays JSON, and its strings are redacted as well."""
        place = hash(text) << 32 | len(text)  # hashes are seeded per process
        with self._lock:
            if place in self._known:
                cached = self._known[place]
                return text if cached is None else cached
        redacted = self._settled(text, 0)
        with self._lock, suppress(ValueError):  # a result that is longer than the cache
            self._known[place] = None if redacted is text else redacted
        return redacted

    def _value(
        self, value: Any, name: str, depth: int = 0, *, inner: bool = False, links: bool = False
    ) -> Any:
        """Redact a field's value; ``inner``: part of a cached text; ``links``: a message or call, whose ids stay."""
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, (str, int, float)):
            if name and self.secrets and (kind := named_secret(name, value)) is not None:
                return f"[redacted: {kind}]"
            if not isinstance(value, str):
                return value
            return self._settled(value, depth) if inner else self.text(value)
        if depth >= _DEPTH:
            text = flat_text(value)
            redacted = self._settled(text, depth)
            return value if redacted is text else redacted
        if isinstance(value, list):
            if self.secrets and any(isinstance(v, str) and "PRIVATE KEY" in v for v in value):
                value = _without_keys(value)  # whose lines may be apart
            items = [
                self._value(
                    v,
                    name if isinstance(v, str) else "",
                    depth + 1,
                    inner=inner,
                    links=links and isinstance(v, dict),
                )
                for v in value
            ]
            return value if all(map(operator.is_, items, value)) else items
        if not isinstance(value, Mapping):
            plain_value = plain(value)
            safe = self._value(plain_value, name, depth, inner=inner, links=links)
            return value if safe is plain_value else safe
        out: dict[Any, Any] = {}
        for key, field in value.items():
            is_id = links and key in _KEPT and isinstance(field, (str, int, type(None)))
            if is_id or (key == "type" and isinstance(field, str) and field in _PARTS):
                out[key] = field
                continue
            redacted_key = (
                self._value(key, "", depth, inner=inner) if isinstance(key, str) and not links else key
            )
            is_calls = links and key == "tool_calls" and isinstance(field, list)
            if self.secrets and name and (kind := keyed_secret(name, field)) is not None:
                out[redacted_key] = f"[redacted: {kind}]"
                continue
            inner_name = (
                name if isinstance(field, Mapping) and keyed_secret(name, _MADE_UP) else str(redacted_key)
            )
            safe = self._value(field, inner_name, depth + 1, inner=inner, links=is_calls)
            while redacted_key is not key and (redacted_key in out or redacted_key in value):
                redacted_key += "+"  # two redacted names stay different
            out[redacted_key] = safe
        same = all(map(operator.is_, out, value)) and all(map(operator.is_, out.values(), value.values()))
        return value if same else out

    def _settled(self, text: str, depth: int) -> str:
        """Redact a text until nothing more is found."""
        redacted = text
        for _ in range(_ROUNDS):
            before, redacted = redacted, self._once(redacted, depth)
            if redacted == before:
                return text if redacted == text else redacted
        return "[redacted: not settled]"

    def _once(self, text: str, depth: int) -> str:
        """One pass. In JSON with escapes the values come first, because they are what the text means."""
        is_json = depth < _DEPTH and (text[:1] in _JSON or text.lstrip()[:1] in _JSON)
        if is_json and self._rules:
            safe = self._in_values(text, depth)
            if safe is not text:
                return safe
        try:
            asked = self._matches(text)
        except TimeoutError:
            return "[redacted: not checked in time]"
        secrets = secrets_in(text) if self.secrets else []
        redacted = _replaced(text, [*secrets, *asked])
        if secrets and is_json and _read(redacted) is None and _read(text) is not None:
            # the redaction broke the JSON: a number, or one match over two values
            safe = self._in_values(text, depth)
            return safe if safe is not text else _replaced(text, asked)
        return redacted

    def _in_values(self, text: str, depth: int) -> str:
        """Redact the values in a JSON text; the same object if there is nothing to redact."""
        read = _read(text)
        if read is None:
            return text
        safe = self._value(read[0], "", depth + 1, inner=True)
        return text if safe is read[0] else json.dumps(safe, ensure_ascii=False)

    def _matches(self, text: str) -> list[Span]:
        spans: list[Span] = []
        limit = self._seconds * (1 + len(text) / 1_000_000)
        for kind, rule in self._rules:
            try:
                matches = rule.finditer(text, timeout=limit, concurrent=True)
                spans += [(*m.span(), kind) for m in matches if m[0]]
            except TimeoutError:
                if kind not in self._warned:
                    self._warned.add(kind)
                    log.warning("redact: %s takes too long; texts that it cannot check are redacted.", kind)
                raise
        return spans


def _rule(number: int, expression: str) -> Any:
    import regex  # slow to import, and most services have no rules

    try:
        return regex.compile(expression)
    except regex.error as e:
        raise ConfigError(f"redact: rule {number} is no regular expression ({e}).") from None


def _replaced(text: str, spans: Iterable[Span]) -> str:
    """Replace spans by placeholders, overlapping ones by that of the first and longest; placeholders stay."""
    if "[redacted: " in text:
        placeholders = [m.span() for m in _REDACTED.finditer(text)]
        spans = [wider for span in spans if (wider := _around(span, placeholders))]
    merged: list[Span] = []
    for start, end, kind in sorted(spans, key=lambda s: (s[0], -s[1], s[2])):
        if merged and start < merged[-1][1]:
            first, last, first_kind = merged[-1]
            merged[-1] = first, max(end, last), first_kind
        else:
            merged.append((start, end, kind))
    out, at = [], 0
    for start, end, kind in merged:
        out += [text[at:start], f"[redacted: {kind}]"]
        at = end
    return "".join([*out, text[at:]])


def _without_keys(items: list[Any]) -> list[Any]:
    """A list in which the lines of private keys are placeholders; the same object without any."""
    text = json.dumps(items)
    keys = [span for span in secrets_in(text) if span[2] == "private key"]
    read = _read(_replaced(text, keys)) if keys else None
    return read[0] if read and isinstance(read[0], list) else items


def _around(span: Span, placeholders: list[tuple[int, int]]) -> Span | None:
    """A span extended by the placeholders that it overlaps; None for a span within a placeholder."""
    start, end, kind = span
    first = bisect_right(placeholders, start, key=lambda m: m[1])
    last = bisect_left(placeholders, end, key=lambda m: m[0])
    if first == last:
        return span
    if last == first + 1 and placeholders[first][0] <= start and end <= placeholders[first][1]:
        return None
    return min(start, placeholders[first][0]), max(end, placeholders[last - 1][1]), kind


def _read(text: str) -> tuple[Any] | None:
    """The value of a JSON text in a tuple, or None."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return None if is_deep(value) else (value,)
