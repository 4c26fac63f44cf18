"""What must not be stored: a message as it came, and as it may be kept.

Two kinds of rules: secrets of known forms (``secrets.py``), and regular expressions of the user. Those are
matched by the package ``regex``, which lets other threads go on meanwhile and stops at a time limit: a text
for which an expression takes too long is hidden as a whole, since it has not been checked.
"""

from __future__ import annotations

import json
import logging
import operator
import re
import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from memory_bank.config import ServiceSettings
from memory_bank.errors import ConfigError
from memory_bank.service.security.secrets import Span, named_secret, secrets_in
from memory_bank.transcript.jsontext import flat_text, is_deep, plain

log = logging.getLogger("memory_bank.Service")

_MARK = re.compile(r"\[redacted: [a-z0-9_ ]{1,40}\]")
_UNCHECKED = "[redacted: not checked in time]"
_UNSETTLED = "[redacted: not settled]"
_KEPT = frozenset(
    {"role", "id", "tool_call_id", "call_id", "type", "index"}
)  # what holds a conversation together
_PARTS = frozenset(  # kinds of parts of a message: by them it can be read
    {
        "text", "input_text", "output_text", "refusal", "image_url", "input_image", "file", "input_file",
        "input_audio", "function", "custom", "summary_text", "reasoning_text",
    }
)  # fmt: skip
_JSON = ("{", "[", '"')  # what a JSON text that holds texts begins with
_DEPTH = 60  # of nesting; what is deeper is looked at as text
_ROUNDS = 20  # until nothing more is found in what was left
_RESULTS = 200_000  # texts whose result is remembered
_RESULT_CHARS = 16_000_000  # of results that differ from their text
_SECONDS = 0.25  # for one expression and one text, and as much again for each million characters


class Redaction:
    """Gives a message, a value or a text as it may be stored: the very same object where nothing is hidden.

    What is hidden reads ``[redacted: KIND]``; doing it again changes nothing more. Texts are looked at once:
    results are remembered. Safe under threads. Raises ConfigError for an expression that cannot be used.
    """

    def __init__(
        self, expressions: Sequence[str] = (), *, secrets: bool = True, seconds: float = _SECONDS
    ) -> None:
        self.secrets = secrets
        self._seconds = seconds
        self._rules = [(f"rule {number}", _rule(number, e)) for number, e in enumerate(expressions, 1)]
        self._known: OrderedDict[int, str | None] = OrderedDict()  # None: nothing to hide
        self._chars = 0
        self._told: set[str] = set()
        self._lock = threading.Lock()

    @classmethod
    def of(cls, settings: ServiceSettings) -> Redaction | None:
        """That of the settings; None where they ask for none. Raises ConfigError."""
        if not settings.redact and not settings.redact_secrets:
            return None
        return cls(settings.redact, secrets=settings.redact_secrets)

    def message(self, message: Any) -> Any:
        """A chat message. Its role and the ids of its calls stay: by them a conversation holds together."""
        if not isinstance(message, dict):
            if isinstance(message, (str, int, float, list, type(None))):
                return self._value(message, "")
            made = plain(message)
            shown = self.message(made) if isinstance(made, dict) else made
            return message if shown is made else shown
        changed = None
        for key, value in message.items():
            if key in _KEPT and isinstance(value, (str, int, type(None))):
                continue
            shown = self._calls(value) if key == "tool_calls" else self._value(value, str(key))
            if shown is not value:
                changed = changed or dict(message)
                changed[key] = shown
        return message if changed is None else changed

    def value(self, value: Any) -> Any:
        """Any JSON value."""
        return self._value(value, "")

    def text(self, text: str) -> str:
        """A text; where it is JSON, it stays JSON, and its texts are looked at, too."""
        place = hash(text) << 32 | len(text)  # seeded anew in every process: nobody makes two alike
        with self._lock:
            if place in self._known:
                self._known.move_to_end(place)
                known = self._known[place]
                return text if known is None else known
        shown = self._settled(text, 0)
        with self._lock:
            if place not in self._known:
                self._known[place] = None if shown is text else shown
                self._chars += len(self._known[place] or "")
            while len(self._known) > _RESULTS or self._chars > _RESULT_CHARS:
                self._chars -= len(self._known.popitem(last=False)[1] or "")
        return shown

    def _calls(self, calls: Any) -> Any:
        if not isinstance(calls, list):
            return self._value(calls, "")
        shown = [self.message(call) if isinstance(call, dict) else self._value(call, "") for call in calls]
        return calls if all(map(operator.is_, shown, calls)) else shown

    def _value(self, value: Any, name: str, depth: int = 0, *, inner: bool = False) -> Any:
        """A value of a field of this name, "" for none. ``inner``: of a text, whose result is remembered."""
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, (str, int, float)):
            kind = named_secret(name, value) if name and self.secrets else None
            if kind is not None:
                return _mark(kind)
            if isinstance(value, str):
                return self._settled(value, depth) if inner else self.text(value)
            return value
        if depth >= _DEPTH:
            text = flat_text(value)
            shown = self._settled(text, depth)
            return value if shown is text else shown
        if isinstance(value, list):
            items = [self._value(v, "", depth + 1, inner=inner) for v in value]
            return value if all(map(operator.is_, items, value)) else items
        if isinstance(value, Mapping):
            return self._object(value, depth, inner)
        made = plain(value)
        safe = self._value(made, name, depth, inner=inner)
        return value if safe is made else safe

    def _object(self, value: Mapping[Any, Any], depth: int, inner: bool) -> Any:
        out: dict[Any, Any] = {}
        same = True
        for key, field in value.items():
            if key == "type" and isinstance(field, str) and field in _PARTS:
                out[key] = field
                continue
            shown_key = self._value(key, "", depth, inner=inner) if isinstance(key, str) else key
            safe = self._value(field, str(shown_key), depth + 1, inner=inner)
            same = same and shown_key is key and safe is field
            while shown_key is not key and (shown_key in out or shown_key in value):
                shown_key += "+"  # two names that are hidden stay two
            out[shown_key] = safe
        return value if same else out

    def _settled(self, text: str, depth: int) -> str:
        """A text in which nothing is left to hide; the same object where nothing was."""
        shown = text
        for _ in range(_ROUNDS):
            before = shown
            shown = self._once(before, depth)
            if shown == before:
                return text if shown == text else shown
        return _UNSETTLED

    def _once(self, text: str, depth: int) -> str:
        """Hide what is found once; in JSON with escapes first in its values, for they are what is meant."""
        begins = text[:1] if text[:1] in _JSON else text.lstrip()[:1]
        is_json = depth < _DEPTH and begins != "" and begins in _JSON
        if is_json and (self._rules or "\\" in text):
            safe = self._in_values(text, depth)
            if safe is not text:
                return safe
        try:
            asked = self._matches(text)
        except TimeoutError:
            return _UNCHECKED
        secrets = secrets_in(text) if self.secrets else []
        shown = _hidden(text, [*secrets, *asked])
        if secrets and is_json and _read(shown) is None and _read(text) is not None:
            # a number was hidden, or what only looked like one secret were two values
            safe = self._in_values(text, depth)
            return safe if safe is not text else _hidden(text, asked)
        return shown

    def _in_values(self, text: str, depth: int) -> str:
        """A JSON text with what its values hide hidden; the same object where that is nothing."""
        read = _read(text)
        if read is None or not (self._rules or _may_hide(*read)):
            return text
        (value,) = read
        safe = self._value(value, "", depth + 1, inner=True)
        return text if safe is value else json.dumps(safe, ensure_ascii=False)

    def _matches(self, text: str) -> list[Span]:
        """What the user's rules match. Raises TimeoutError."""
        spans: list[Span] = []
        limit = self._seconds * (1 + len(text) / 1_000_000)
        for kind, rule in self._rules:
            try:
                spans += [
                    (*m.span(), kind) for m in rule.finditer(text, timeout=limit, concurrent=True) if m[0]
                ]
            except TimeoutError:
                if kind not in self._told:
                    self._told.add(kind)
                    log.warning("redact: %s takes too long; texts that it cannot check are hidden.", kind)
                raise
        return spans


def _rule(number: int, expression: str) -> Any:
    import regex  # takes a while to load, and most services have no rules

    try:
        return regex.compile(expression)
    except regex.error as e:
        raise ConfigError(f"redact: rule {number} is no regular expression ({e}).") from None


def _mark(kind: str) -> str:
    return f"[redacted: {kind}]"


def _around(span: Span, marks: list[tuple[int, int]]) -> Span | None:
    """A span with the marks that it touches; None for one within a mark."""
    start, end, kind = span
    first = bisect_right(marks, start, key=lambda m: m[1])
    last = bisect_left(marks, end, key=lambda m: m[0])
    if first == last:
        return span
    if last == first + 1 and marks[first][0] <= start and end <= marks[first][1]:
        return None
    return min(start, marks[first][0]), max(end, marks[last - 1][1]), kind


def _hidden(text: str, spans: Iterable[Span]) -> str:
    """The text with marks in place of spans; those that overlap have one, that of the first and longest.

    What is within a mark already stays so.
    """
    if "[redacted: " in text:
        marks = [m.span() for m in _MARK.finditer(text)]
        spans = [found for span in spans if (found := _around(span, marks))]
    out: list[str] = []
    at, last = 0, (0, 0, "")
    for start, end, kind in sorted(spans, key=lambda s: (s[0], -s[1], s[2])):
        if start < last[1]:
            last = (last[0], max(end, last[1]), last[2])
            continue
        if last[2]:
            out += [text[at : last[0]], _mark(last[2])]
            at = last[1]
        last = (start, end, kind)
    if last[2]:
        out += [text[at : last[0]], _mark(last[2])]
        at = last[1]
    return "".join([*out, text[at:]])


def _may_hide(value: Any) -> bool:
    """Whether the texts of a value, their escapes undone, may hold what its JSON did not show."""
    texts: list[str] = []
    stack = [value]
    while stack:
        node = stack.pop()
        if isinstance(node, str):
            if "\\" in node and node.lstrip()[:1] in _JSON:
                return True
            texts.append(node)
        elif isinstance(node, dict):
            if any(named_secret(k, v) for k, v in node.items()):
                return True
            stack += [*node.keys(), *node.values()]
        elif isinstance(node, list):
            stack += node
    return bool(secrets_in("\n".join(texts)))


def _read(text: str) -> tuple[Any] | None:
    """The value of a JSON text, in a tuple; None where it is none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return None if is_deep(value) else (value,)
