"""A conversation as it grows: each message is parsed, counted and identified once in its life."""

from __future__ import annotations

import copy
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from memory_bank.history.interactions import Interaction, Segment
from memory_bank.history.parsing import Parser, check_messages, task_text
from memory_bank.ports import TokenCounter
from memory_bank.records import derive_trace_id


@dataclass(frozen=True, slots=True)
class Entry:
    """An interaction with the trace_ids of its pairs (None where there is no result) and its tokens."""

    interaction: Interaction
    trace_ids: tuple[str | None, ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class View:
    """One look at a conversation: what is anchor, what is history, what is tail.

    ``messages`` are the caller's own. ``entries`` are the interactions, the tail's last; ``history`` the
    ones before it. ``kept`` are the positions of the messages before the tail that are never dropped:
    system and user messages, assistant text, and interactions whose pairs are broken.
    """

    messages: Sequence[Any]
    entries: Sequence[Entry]
    kept: Sequence[int]
    tail_start: int
    task: str
    tokens_before: Sequence[int]  # tokens of the first i messages, i = 0 … n

    @property
    def history(self) -> Sequence[Entry]:
        """The interactions before the tail."""
        return self.entries[:-1]

    @property
    def tail(self) -> Entry | None:
        """The last interaction."""
        return self.entries[-1] if self.entries else None

    @property
    def full_tokens(self) -> int:
        """Tokens of all messages."""
        return self.tokens_before[len(self.messages)]

    def tokens_between(self, start: int, stop: int) -> int:
        """Tokens of the messages from ``start`` up to ``stop``."""
        return self.tokens_before[stop] - self.tokens_before[start]


class Conversation:
    """Follows one session's message list from step to step.

    What is the same as at the last step is compared, not parsed again: the cost of a step is what is new.
    A list that differs earlier (a fork, a retry, a client that dropped or edited messages) is parsed anew
    from the first difference.
    """

    def __init__(self, session_id: str, counter: TokenCounter) -> None:
        self.session_id = session_id
        self.counter = counter
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self._snapshot: list[Any] = []
        self._tokens_before = [0]
        self._parser = Parser()
        self._read = 0  # closed segments taken over
        self._entries: list[Entry] = []
        self._starts: list[int] = []  # of the entries
        self._keys: list[tuple[bytes, ...]] = []  # content keys of the entries' answered pairs
        self._occurrences: Counter[bytes] = Counter()
        self._kept: list[int] = []
        self._acknowledged = 0
        self._task: str | None = None  # once it stands in a closed segment
        self._task_sought = 0

    def update(self, messages: Any) -> View:
        """Take in the present list of messages. Raises MessagesError when it is no list."""
        messages = check_messages(messages)
        same = _common_prefix(self._snapshot, messages)
        if same < len(self._snapshot):
            same = self._rewind(same)
        for message in messages[same:]:
            self._snapshot.append(_freeze(message))
            self._tokens_before.append(self._tokens_before[-1] + self.counter.count_message(message))
            self._parser.feed(message)
        self._take_closed()
        return self._view(messages)

    def fresh(self, view: View) -> Sequence[Entry]:
        """The entries not yet acknowledged, and the tail, which may still grow."""
        return view.entries[min(self._acknowledged, max(0, len(view.entries) - 1)) :]

    def acknowledge(self) -> None:
        """What ``fresh`` gave is stored; it need not be given again."""
        self._acknowledged = len(self._entries)

    # ------------------------------------------------------------------

    def _take_closed(self) -> None:
        closed = self._parser.closed
        for segment in closed[self._read :]:
            if isinstance(segment, Interaction):
                entry, keys = self._entry(segment)
                self._occurrences.update(keys)
                self._entries.append(entry)
                self._starts.append(segment.start)
                self._keys.append(keys)
            if not isinstance(segment, Interaction) or segment.fault:
                self._kept.extend(range(segment.start, segment.stop))
        self._read = len(closed)

    def _entry(self, interaction: Interaction) -> tuple[Entry, tuple[bytes, ...]]:
        keys: list[bytes] = []
        ids: list[str | None] = []
        here: Counter[bytes] = Counter()
        for pair in interaction.pairs:
            if pair.result is None:
                ids.append(None)
                continue
            key = pair.content_key()
            ids.append(derive_trace_id(self.session_id, key, self._occurrences[key] + here[key]))
            here[key] += 1
            keys.append(key)
        tokens = self._tokens_before[interaction.stop] - self._tokens_before[interaction.start]
        return Entry(interaction, tuple(ids), tokens), tuple(keys)

    def _view(self, messages: Sequence[Any]) -> View:
        pending = self._parser.pending()
        entries = list(self._entries)
        if pending and isinstance(pending[0], Interaction):
            entries.append(self._entry(pending[0])[0])
        tail_start = entries[-1].interaction.start if entries else len(messages)
        kept = self._kept[: bisect_left(self._kept, tail_start)]
        if not entries:
            kept = list(range(len(messages)))
        if self._task is None:
            self._task = task_text(self._parser.closed[self._task_sought :])
            self._task_sought = len(self._parser.closed)
        task = self._task if self._task is not None else task_text(pending)
        # A prefix view of a list that only grows is safe to share: it is cut, never changed, on a rewind.
        return View(messages, entries, kept, tail_start, task or "", self._tokens_before)

    def _rewind(self, position: int) -> int:
        """Forget what was read from ``position`` on and from the last interaction that may reach there."""
        closed = self._parser.closed
        cut = len(closed)
        while cut and closed[cut - 1].stop >= position:
            cut -= 1
        while cut and not isinstance(closed[cut - 1], Interaction):
            cut -= 1
        cut = max(0, cut - 1)
        start = closed[cut].start if cut < len(closed) else self._first_pending(position)
        start = min(start, position)
        parser = Parser(start)
        parser.closed = closed[:cut]
        self._parser = parser
        self._read = cut
        self._snapshot = self._snapshot[:start]
        self._tokens_before = self._tokens_before[: start + 1]
        keep = bisect_left(self._starts, start)
        for keys in self._keys[keep:]:
            self._occurrences.subtract(keys)
        del self._entries[keep:], self._starts[keep:], self._keys[keep:]
        self._kept = self._kept[: bisect_left(self._kept, start)]
        self._acknowledged = min(self._acknowledged, keep)
        self._task = None
        self._task_sought = 0
        return start

    def _first_pending(self, position: int) -> int:
        pending: list[Segment] = self._parser.pending()
        return pending[0].start if pending else position


def _common_prefix(snapshot: list[Any], messages: Sequence[Any]) -> int:
    """How many messages at the beginning are what they were."""
    n = min(len(snapshot), len(messages))
    head = messages[:n] if isinstance(messages, list) else list(messages[:n])
    known = snapshot if n == len(snapshot) else snapshot[:n]
    try:
        if head == known:
            return n
    except Exception:  # foreign objects may refuse to be compared
        pass
    return next((i for i in range(n) if not _same(snapshot[i], messages[i])), n)


def _same(a: Any, b: Any) -> bool:
    try:
        return bool(a == b)
    except Exception:  # too deep, or a foreign object: read it again
        return False


def _freeze(message: Any) -> Any:
    """A copy of a message's containers; texts are shared, so comparing an unchanged one is cheap."""
    try:
        return _copy(message)
    except RecursionError:
        return message


def _copy(value: Any) -> Any:
    if isinstance(value, str) or value is None:
        return value
    kind = type(value)
    if kind is dict:
        return {k: _copy(v) for k, v in value.items()}
    if kind is list:
        return [_copy(v) for v in value]
    if kind in (int, float, bool):
        return value
    try:
        return copy.deepcopy(value)
    except Exception:  # locks, sockets and the like: compared as they are
        return value
