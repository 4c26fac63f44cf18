"""Messages to interactions and back: one message at a time, whatever arrives."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from memory_bank.errors import MessagesError
from memory_bank.transcript.content import content_text, media_kinds, part_text, read
from memory_bank.transcript.interactions import (
    Call,
    Interaction,
    Kind,
    Pair,
    Result,
    Segment,
    Utterance,
    calls_of,
    kind_of,
    own_result,
    result_of,
)

# How frameworks introduce the image of a tool in a user message that follows the tool's result.
_MEDIA_MARKS = ("<tool_result", "This is file ", "Observation:")


def check_messages(messages: Any) -> Sequence[Any]:
    """The messages, when they are a list or a tuple.

    Raises MessagesError otherwise: a string or a single message is the usual mistake.
    """
    if not isinstance(messages, (list, tuple)):
        raise MessagesError(
            f"messages must be a list of chat messages, not {type(messages).__name__}: "
            "pass the list that you would send to the model."
        )
    return messages


def parse_messages(messages: Any) -> list[Segment]:
    """Parse a list of messages into segments; ``render_messages`` of them gives the list back.

    Raises MessagesError when ``messages`` is no list. Nothing inside the list makes it raise.
    """
    parser = Parser()
    for message in check_messages(messages):
        parser.feed(message)
    return parser.segments()


def render_messages(segments: Iterable[Segment]) -> list[Any]:
    """The messages of some segments, the very objects that were parsed, in order."""
    return [m for segment in segments for m in segment.messages]


def extract_tool_outputs(messages: Any) -> list[tuple[str, Any, Any]]:
    """``(tool_name, raw_input, raw_output)`` of every answered call of the last interaction.

    Output that is not JSON becomes ``{"_raw": text}``; no interaction, an empty list.
    """
    for segment in reversed(parse_messages(messages)):
        if isinstance(segment, Interaction):
            return [
                (p.tool_name, p.call.raw_input if p.call else {}, p.result.raw_output)
                for p in segment.pairs
                if p.result is not None
            ]
    return []


class Parser:
    """Feeds on messages in order; ``closed`` segments are final, the open ones may still grow.

    The rules: an assistant turn with calls opens an interaction; assistant text and reasoning directly
    before it belong to it, and so do its results in any order, and a user message that only carries the
    images of its results. What arrives in a place where a provider would refuse it stays where it came and
    marks the interaction with a fault.
    """

    def __init__(self, start: int = 0) -> None:
        self.closed: list[Segment] = []
        self.position = start
        self._lead: list[tuple[int, Any, Kind]] = []  # may belong to the call that follows
        self._open: _Open | None = None
        self._between: list[Utterance] = []  # after an unanswered call: part of it if a result still comes

    def feed(self, message: Any) -> None:
        """Take the next message."""
        position, self.position = self.position, self.position + 1
        kind = kind_of(message)
        if kind is Kind.CALL:
            self._feed_call(position, message)
        elif kind is Kind.RESULT:
            self._feed_result(position, message)
        elif kind in (Kind.SAY, Kind.REASONING):
            self._flush_lead_before(kind)
            self._lead.append((position, message, kind))
        else:
            self._feed_utterance(Utterance(position, message, kind))

    def segments(self) -> list[Segment]:
        """All segments so far, the open ones as they would be if nothing followed."""
        return self.closed + self.pending()

    def pending(self) -> list[Segment]:
        """The segments that are not final yet."""
        out: list[Segment] = []
        if self._open is not None:
            out.append(self._open.build())
        out.extend(self._between)
        out.extend(Utterance(p, m, k) for p, m, k in self._lead)
        return out

    # one verb a kind

    def _feed_call(self, position: int, message: Any) -> None:
        is_item = read(message, "role") is None
        joins = (
            self._open is not None
            and is_item
            and self._open.takes_items()
            and not self._between
            and all(kind is Kind.REASONING for _, _, kind in self._lead)
        )
        lead, self._lead = self._lead, []
        if not joins:
            self._close()
            self._open = _Open(lead[0][0] if lead else position, is_item)
        assert self._open is not None
        self._open.messages.extend(m for _, m, _ in lead)
        self._open.add_call(message)

    def _feed_result(self, position: int, message: Any) -> None:
        if self._open is not None and not self._lead:
            waits = self._open.waits_for(message)
            if waits and self._between:
                self._open.interrupt(self._between)
                self._between = []
            if waits or not self._between:  # an orphan stays with the turn it follows
                self._open.add_result(message)
                return
        self._close()
        orphan = _Open(position, read(message, "role") is None)
        orphan.add_result(message)
        self._open = orphan

    def _feed_utterance(self, utterance: Utterance) -> None:
        if self._open is not None and not self._lead:
            if (
                utterance.kind is Kind.USER
                and not self._between
                and self._open.has_results
                and carries_only_media(utterance.message)
            ):
                self._open.attach(utterance.message)
                return
            if self._open.unanswered():
                self._between.append(utterance)
                return
        self._close()
        self.closed.append(utterance)

    def _flush_lead_before(self, kind: Kind) -> None:
        """Assistant text after assistant text: the earlier one stood alone."""
        if kind is Kind.SAY and self._lead and self._lead[-1][2] is Kind.SAY:
            self._close()

    def _close(self) -> None:
        self.closed.extend(self.pending())
        self._open = None
        self._between = []
        self._lead = []


def carries_only_media(message: Any) -> bool:
    """Whether a user message holds nothing the user said: only images or files of a tool's result."""
    content = read(message, "content")
    if not media_kinds(content):
        return False
    texts = [part_text(p) for p in content if read(p, "type") in ("text", "input_text") or isinstance(p, str)]
    return all(not t.strip() or t.lstrip().startswith(_MEDIA_MARKS) for t in texts)


class _Open:
    """The interaction being read."""

    def __init__(self, start: int, is_item: bool) -> None:
        self.start = start
        self.is_item = is_item
        self.messages: list[Any] = []
        self.has_results = False
        self._calls: list[Call] = []
        self._results: list[Result | None] = []  # one a call
        self._orphans: list[Result] = []
        self._faults: dict[str, None] = {}
        self._ids: set[str] = set()
        self._unanswered: dict[int, None] = {}
        self._queues: dict[tuple[str, str | None], deque[int]] = {}  # calls by id and by name, oldest first
        self._last_answered: int | None = None

    def takes_items(self) -> bool:
        """Parallel calls of the Responses API come as several items before the first result."""
        return self.is_item and not self.has_results

    def add_call(self, message: Any) -> None:
        self.messages.append(message)
        own = own_result(message)
        for call in calls_of(message):
            if call.call_id is not None:
                if call.call_id in self._ids:
                    self._faults["two calls share an id"] = None
                self._ids.add(call.call_id)
            i = len(self._calls)
            self._calls.append(call)
            self._results.append(own)
            if own is None:
                self._unanswered[i] = None
                self._queues.setdefault(("id", call.call_id), deque()).append(i)
                self._queues.setdefault(("name", call.name), deque()).append(i)

    def _match(self, result: Result) -> int | None:
        """The unanswered call that a result is for: by id, else by name, else, without an id, the first."""
        if result.call_id is None and result.name is None:
            return next(iter(self._unanswered), None)
        key = ("id", result.call_id) if result.call_id is not None else ("name", result.name)
        queue = self._queues.get(key)
        while queue and queue[0] not in self._unanswered:
            queue.popleft()
        return queue[0] if queue else None

    def waits_for(self, message: Any) -> bool:
        return self._match(result_of(message)) is not None

    def add_result(self, message: Any) -> None:
        self.messages.append(message)
        self.has_results = True
        result = result_of(message)
        i = self._match(result)
        if i is None:
            self._orphans.append(result)
            self._faults["a result has no call"] = None
            return
        self._results[i] = result
        del self._unanswered[i]
        self._last_answered = i

    def attach(self, message: Any) -> None:
        """A user message that carries the images of the results."""
        self.messages.append(message)
        i = self._last_answered
        result = self._results[i] if i is not None else None
        if i is not None and result is not None:
            extra = (*result.extra, read(message, "content"))
            self._results[i] = Result(result.call_id, result.content, result.name, extra)

    def interrupt(self, between: list[Utterance]) -> None:
        """Messages stood between a call and its result."""
        self.messages.extend(u.message for u in between)
        self._faults["a message stands between a call and its result"] = None

    def unanswered(self) -> bool:
        return bool(self._unanswered)

    def build(self) -> Interaction:
        faults = dict(self._faults)
        if self._unanswered:
            faults["a call has no result"] = None
        pairs = [Pair(c, r) for c, r in zip(self._calls, self._results, strict=True)]
        pairs.extend(Pair(None, r) for r in self._orphans)
        return Interaction(self.start, tuple(self.messages), tuple(pairs), "; ".join(faults))


def task_text(segments: Iterable[Segment]) -> str | None:
    """What the user asked for: the text of the first user message, None without one."""
    for segment in segments:
        if isinstance(segment, Utterance) and segment.kind is Kind.USER:
            return content_text(read(segment.message, "content"))
    return None
