"""A conversation as it grows: each message is parsed, counted and identified once."""

from __future__ import annotations

import copy
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from itertools import accumulate, chain, pairwise
from operator import is_
from typing import Any

from memory_bank.ports import TokenCounter
from memory_bank.records import Brief, derive_trace_id
from memory_bank.transcript.harness import persons_text
from memory_bank.transcript.messages import (
    Interaction,
    MessageKind,
    Pair,
    Parser,
    Segment,
    Utterance,
    check_messages,
    kind_of,
    message_text,
    read,
    task_text,
)

DIGEST = 6
"""Bytes of a message's digest."""
_LATEST = 64  # messages at the end that are compared at every step
_IN_TURN = 256  # older messages that are compared in one step


@dataclass(frozen=True, repr=False)
class View(Brief):
    """A conversation at one step: its anchor, its history and its tail.

    ``messages`` are the caller's own. ``interactions`` are all of them, the tail's last, with their trace_ids
    and tokens. ``kept`` are the positions of the messages before the tail that are never dropped: system and
    user messages, assistant text, and interactions that have a message among their own. ``new`` are the interactions
    whose records are not known to be stored: those since ``Transcript.acknowledge()``, and always the tail,
    which may still grow. ``digests``: of each message. ``tail`` is the last interaction, ``history`` has those before
    it; ``full_tokens`` are those of all messages.
    """

    messages: Sequence[Any]
    interactions: Sequence[Interaction]
    kept: Sequence[int]
    tail_start: int
    task: str
    tokens_before: Sequence[int]  # tokens of the first i messages, i = 0 … n
    new: Sequence[Interaction] = ()
    digests: Sequence[bytes] = ()
    tail: Interaction | None = field(init=False, repr=False, compare=False)
    history: Sequence[Interaction] = field(init=False, repr=False, compare=False)
    full_tokens: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tail", self.interactions[-1] if self.interactions else None)
        object.__setattr__(self, "history", self.interactions[:-1])
        object.__setattr__(self, "full_tokens", self.tokens_before[len(self.messages)])

    @property
    def past(self) -> Sequence[Interaction]:
        """The interactions before the tail that may be left out: not those that stay."""
        return [i for i in self.history if not i.stays]

    @cached_property
    def kept_tokens(self) -> int:
        """Tokens of what every context has: anchor, interactions that stay, tail."""
        tail = self.tokens_between(self.tail_start, len(self.messages))
        return tail + sum(self.tokens_between(p, p + 1) for p in self.kept)

    def tokens_between(self, start: int, stop: int) -> int:
        """Tokens of the messages from ``start`` up to ``stop``."""
        return self.tokens_before[stop] - self.tokens_before[start]


class Transcript:
    """Follows one session's message list from step to step; a step costs only its new messages.

    Messages that are equal to those of the last step are not parsed again. An edited system prompt or user
    message is replaced in its place; a list that differs otherwise (a fork, a retry, a client that dropped or
    edited messages) is parsed again from the first difference. Where the list holds the very objects of the
    last step, the messages that every context keeps and the latest ones are compared in full, the older
    ones in turns, 256 a step.

    ``is_mask(pair, trace_id)`` returns whether the client has replaced a recorded output by the pair's result; it is
    called for results before the last interaction. Such a result has no trace_id.
    """

    def __init__(
        self, session_id: str, counter: TokenCounter, is_mask: Callable[[Pair, str], bool] | None = None
    ) -> None:
        self.session_id = session_id
        self.counter = counter
        self._is_mask = is_mask
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self._objects: list[object] = []  # the caller's messages
        self._snapshot: list[object] = []  # copies of them
        self._compared = 0  # the older message that is compared next
        self._digests: list[bytes] = []
        self._task: str | None = None  # known once it stands in a closed segment
        self._task_sought = 0
        self._tokens_before = [0]
        self._parser = Parser()
        self._read = 0  # closed segments that are counted and identified
        self._pending: list[Segment] | None = None  # what may go on; None: not yet read
        self._interactions: list[Interaction] = []
        self._keys: list[tuple[bytes, ...]] = []  # content keys of their answered pairs
        self._occurrences: Counter[bytes] = Counter()
        self._kept: list[int] = []
        self._acknowledged = 0

    def update(self, messages: object) -> View:
        """Parse what is new in the present list of messages. Raises MessagesError when it is no list."""
        messages = check_messages(messages)
        same = self._reconcile(messages)
        for message in messages[same:]:
            self._objects.append(message)
            self._snapshot.append(copy_of(message))
            self._digests.append(digest_of(message))
            self._tokens_before.append(self._tokens_before[-1] + self.counter.count_message(message))
            self._parser.feed(message)
        if same < len(messages) or self._pending is None:
            self._identify()
        return self._view(messages)

    @property
    def messages(self) -> Sequence[object]:
        """Copies of the last list's messages."""
        return self._snapshot[:]

    def acknowledge(self) -> None:
        """Count the interactions of the last view as stored: for later views they are not new."""
        self._acknowledged = len(self._interactions)

    def _identify(self) -> None:
        closed, self._pending = self._parser.closed, self._parser.pending()
        latest = chain(reversed(self._pending), reversed(closed))
        last = next((s for s in latest if isinstance(s, Interaction)), None)
        for segment in closed[self._read :]:
            if isinstance(segment, Interaction):
                interaction, keys = self._identified(segment, may_be_masked=segment is not last)
                self._occurrences.update(keys)
                self._interactions.append(interaction)
                self._keys.append(keys)
            if not isinstance(segment, Interaction) or segment.stays:
                self._kept.extend(range(segment.start, segment.stop))
        self._read = len(closed)
        self._pending = [self._identified(s)[0] if isinstance(s, Interaction) else s for s in self._pending]

    def holds(self, trace_id: str) -> bool:
        """Return whether an interaction read so far has this record."""
        return any(trace_id in interaction.record_ids for interaction in self._interactions)

    def _identified(
        self, interaction: Interaction, *, may_be_masked: bool = False
    ) -> tuple[Interaction, tuple[bytes, ...]]:
        """The interaction with its trace_ids and tokens, and the content keys of its answered pairs."""
        ids: list[str | None] = []
        earlier: list[str] = []
        keys: list[bytes] = []
        here: Counter[bytes] = Counter()

        def trace_id_of(key: bytes) -> str:
            return derive_trace_id(self.session_id, key, self._occurrences[key] + here[key])

        for pair in interaction.pairs:
            if pair.result is None:
                ids.append(None)
                continue
            extra = pair.result.extra
            for n in range(len(extra)):  # as it was before each message that brought images
                before = replace(pair, result=replace(pair.result, extra=extra[:n]))
                earlier.append(trace_id_of(before.content_key()))
            key = pair.content_key()
            trace_id = trace_id_of(key)
            masks = may_be_masked and self._is_mask is not None and self._is_mask(pair, trace_id)
            ids.append(None if masks else trace_id)
            keys.append(key)
            here[key] += 1
        tokens = self._tokens_before[interaction.stop] - self._tokens_before[interaction.start]
        identified = replace(interaction, trace_ids=tuple(ids), earlier_ids=tuple(earlier), tokens=tokens)
        return identified, tuple(keys)

    def _view(self, messages: Sequence[Any]) -> View:
        pending = self._pending or []
        interactions = [*self._interactions, *(s for s in pending if isinstance(s, Interaction))]
        tail_start = interactions[-1].start if interactions else len(messages)
        kept = (
            self._kept[: bisect_left(self._kept, tail_start)] if interactions else list(range(len(messages)))
        )
        if self._task is None:
            self._task = task_text(self._parser.closed[self._task_sought :])
            self._task_sought = len(self._parser.closed)
        task = self._task if self._task is not None else task_text(pending)
        # The lists of counts and digests are safe to share: they only grow, and are replaced when messages change.
        new = interactions[min(self._acknowledged, max(0, len(interactions) - 1)) :]
        return View(
            messages, interactions, kept, tail_start, task or "", self._tokens_before, new, self._digests
        )

    def _reconcile(self, messages: Sequence[object]) -> int:
        """Forget or replace what differs from the list; returns how many of its messages are known then."""
        n = min(len(self._snapshot), len(messages))
        head = messages if n == len(messages) else messages[:n]
        is_known = n == len(self._objects) and all(map(is_, head, self._objects))
        changed = self._changed(head, n, is_known)
        stop = next((i for i in changed if not self._is_patchable(i, messages[i])), n)
        if stop < len(self._snapshot):
            stop = self._rewind(stop)
        if changed and changed[0] < stop:
            self._patch([i for i in changed if i < stop], messages)
        if not is_known:
            self._objects[:stop] = messages[:stop]
        return stop

    def _changed(self, messages: Sequence[object], n: int, is_known: bool) -> list[int]:
        """The positions of ``n`` messages that have changed since the last step, whose objects they may be."""
        positions: Iterable[int] = range(n)
        if is_known:
            turn = range(self._compared, min(n, self._compared + _IN_TURN))
            self._compared = turn.stop if turn.stop < n else 0
            latest = range(max(0, n - _LATEST), n)
            kept = self._kept[: bisect_left(self._kept, latest.start)]
            positions = sorted({*kept, *latest, *turn})
        else:
            try:
                if list(messages) == (self._snapshot if n == len(self._snapshot) else self._snapshot[:n]):
                    return []
            except Exception:  # too deep, or foreign objects that refuse to be compared
                pass
        return [i for i in positions if not is_same(self._snapshot[i], messages[i])]

    def _is_patchable(self, position: int, message: object) -> bool:
        """Return whether a changed message can be replaced alone: a text of system or user before and after it."""
        at = self._closed_at(position)
        segment = self._parser.closed[at] if at >= 0 else None
        return (
            isinstance(segment, Utterance)
            and segment.stop > position
            and segment.kind in (MessageKind.SYSTEM, MessageKind.USER)
            and kind_of(message) is segment.kind
            and all(isinstance(read(m, "content"), str) for m in (message, self._snapshot[position]))
        )

    def _closed_at(self, position: int) -> int:
        """The number of the last closed segment that begins at a position or before it; -1 without one."""
        return bisect_right(self._parser.closed, position, key=lambda s: s.start) - 1

    def _patch(self, positions: Sequence[int], messages: Sequence[object]) -> None:
        counts = [b - a for a, b in pairwise(self._tokens_before)]
        self._digests = self._digests[:]
        for i in positions:
            self._digests[i] = digest_of(messages[i])
            counts[i] = self.counter.count_message(messages[i])
            self._snapshot[i] = copy_of(messages[i])
            self._parser.closed[self._closed_at(i)] = Utterance(i, messages[i], kind_of(messages[i]))
        self._tokens_before = list(accumulate(counts, initial=0))
        self._task, self._task_sought = None, 0

    def _rewind(self, position: int) -> int:
        """Forget the messages from ``position`` on, and an open interaction; returns where parsing goes on."""
        closed = self._parser.closed
        cut = len(closed)
        while cut and closed[cut - 1].stop >= position:
            cut -= 1
        while cut and not isinstance(closed[cut - 1], Interaction):
            cut -= 1
        cut = max(0, cut - 1)
        rest = closed[cut:] or self._parser.pending()
        start = min(rest[0].start, position) if rest else position
        parser = Parser(start)
        parser.closed = closed[:cut]
        self._parser, self._pending = parser, None
        self._read = cut
        del self._snapshot[start:], self._objects[start:]
        self._tokens_before, self._digests = self._tokens_before[: start + 1], self._digests[:start]
        keep = bisect_left(self._interactions, start, key=lambda e: e.start)
        for keys in self._keys[keep:]:
            self._occurrences.subtract(keys)
        del self._interactions[keep:], self._keys[keep:]
        self._kept = self._kept[: bisect_left(self._kept, start)]
        self._acknowledged = min(self._acknowledged, keep)
        self._task, self._task_sought = None, 0
        return start


def said_in(messages: Sequence[object]) -> frozenset[str]:
    """The words of persons in a list of messages, without those that clients write by themselves."""
    texts = (persons_text(message_text(m)) for m in messages if kind_of(m) is MessageKind.USER)
    return frozenset(t for t in texts if t)


def digest_of(message: object) -> bytes:
    """A short digest of a message, by which a later step sees whether it is still there."""
    try:
        text = repr(message)
    except Exception:  # too deep, or a foreign object
        text = type(message).__name__
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=DIGEST).digest()


def is_same(a: object, b: object) -> bool:
    """Return whether two messages are equal; not where they cannot be compared."""
    try:
        return bool(a == b)
    except Exception:  # too deep, or a foreign object: parse it again
        return False


def copy_of(message: Any) -> Any:
    """A copy of a message's containers; texts are shared, so comparing an unchanged one is cheap."""
    try:
        return _copy(message)
    except RecursionError:
        return message


def _copy(value: object) -> object:
    if isinstance(value, str) or value is None:
        return value
    if type(value) is dict:
        return {k: _copy(v) for k, v in value.items()}
    if type(value) is list:
        return [_copy(v) for v in value]
    if type(value) in (int, float, bool):
        return value
    try:
        return copy.deepcopy(value)
    except Exception:  # locks, sockets and the like: compared by identity
        return value
