"""Messages that came before, as the very objects they were then, with what was found out about them.

An agent sends its whole history again with each request. What a message's bytes say does not change, so what
follows from them alone (its digest, what of it may be stored) is worked out once.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from memory_bank.service.bodies import Body

T = TypeVar("T")

CHARS = 16_000_000
"""Of messages that are remembered; the parsed ones are mostly those that sessions hold anyway."""
LONGEST = 1_000_000


@dataclass(slots=True, eq=False)
class _Entry:
    """A message and what follows from it, by kinds of results."""

    value: Any
    known: dict[str, Any] = field(default_factory=dict)


class Seen:
    """Remembers the messages of the latest requests, so many ``chars`` of them. Safe under threads.

    Messages are never changed, so whoever sends the same bytes may share an object.
    """

    def __init__(self, chars: int = CHARS) -> None:
        self._most = chars
        self._chars = 0
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._by_id: dict[int, _Entry] = {}
        self._lock = threading.Lock()

    def again(self, body: Body, key: str) -> Body:
        """The body with the messages in its member ``key`` as they were seen before, where they were.

        Within one body no two are the same object.
        """
        elements = body.elements.get(key)
        if not elements:
            return body
        with self._lock:
            taken: set[int] = set()
            known = tuple(
                (self._same(body.text[start:end], value, taken), (start, end))
                for value, (start, end) in elements
            )
            self._shrink()
        return replace(
            body,
            value={**body.value, key: [value for value, _ in known]},
            elements={**body.elements, key: known},
        )

    def known(self, kind: str, message: Any, find: Callable[[Any], T]) -> T:
        """What ``find`` gives for a message; asked once for each kind while the message is remembered."""
        entry = self._by_id.get(id(message))
        if entry is None or entry.value is not message:
            return find(message)
        if kind not in entry.known:
            entry.known[kind] = find(message)
        found: T = entry.known[kind]
        return found

    def _same(self, text: str, value: Any, taken: set[int]) -> Any:
        if not isinstance(value, dict) or len(text) > LONGEST:
            return value
        entry = self._entries.get(text)
        if entry is None:
            entry = self._entries[text] = self._by_id[id(value)] = _Entry(value)
            self._chars += len(text)
        elif id(entry.value) in taken:
            return value
        else:
            self._entries.move_to_end(text)
        taken.add(id(entry.value))
        return entry.value

    def _shrink(self) -> None:
        while self._chars > self._most:
            text, entry = self._entries.popitem(last=False)
            self._chars -= len(text)
            del self._by_id[id(entry.value)]
