"""The input of a Responses API request as a chat for memory, and a rebuilt chat as input items again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from memory_bank.errors import HistoryError
from memory_bank.transcript.content import content_text
from memory_bank.transcript.itempairs import item_errors
from memory_bank.transcript.itemparts import answer_to, call_for, tool_call, tool_message, with_output
from memory_bank.transcript.items import CALL_OF, HOSTED, OUTPUT_OF, ROLES, call_id_of, item_type
from memory_bank.transcript.jsontext import compact

# Items that mean the same wherever they stand. Any other type we do not know is taken to belong to what
# follows it, as reasoning and references do.
_APART = frozenset(
    {
        "mcp_list_tools", "mcp_approval_request", "mcp_approval_response", "mcp_call", "tool_search_call",
        "tool_search_output", "additional_tools", "configuration_update", "compaction", "compaction_trigger",
    }
)  # fmt: skip
_HIDDEN = frozenset({"type", "id", "status", "encrypted_content", "fingerprint"})

HELD = ("previous_response_id", "conversation")


def stands_alone(body: dict[str, Any]) -> str | None:
    """None when a request brings all that was said with it; else the member by which the provider knows more.

    That is ``previous_response_id`` or ``conversation``: ``input`` holds only what is new then, and what
    memory leaves out of it the model sees all the same. A stored ``prompt``, ``background``, ``store`` and
    ``context_management`` leave the input whole.
    """
    return next((key for key in HELD if body.get(key) is not None), None)


@dataclass(frozen=True, slots=True)
class _Part:
    """A message's place: the unit it belongs to, and the items it stands for, by their positions."""

    unit: int
    items: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ItemChat:
    """Items as chat ``messages``; ``to_items`` needs the rest: which items each message stands for."""

    messages: list[dict[str, Any]]
    items: Sequence[Any]
    parts: dict[int, _Part] = field(repr=False)  # by the identity of the message
    units: list[list[dict[str, Any]]] = field(repr=False)  # the messages of each unit


def from_items(items: Any, instructions: Any = None) -> ItemChat:
    """Group the items of a request's ``input`` (a text, or a list of items) into units, as chat messages.

    An assistant turn becomes one message: its reasoning, what it says directly before its calls, and all
    calls up to the first output. A hosted call, which holds its own result, becomes a call and a result.
    Between two calls with an output between them nothing tells whether they were made together, so they are
    two turns; the calls of a ``program`` are one with it. What only the provider can read (compaction,
    references, types not known here) becomes a message of the role ``item``, which no strategy leaves out,
    and a turn that follows a reference or an unknown item is bound to it. ``instructions`` become a system
    message that stands for no item. Equal items give equal messages. Raises HistoryError when ``items`` is
    neither text nor list; nothing in the list makes it raise.
    """
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    if not isinstance(items, (list, tuple)):
        raise HistoryError(f"input must be a text or a list of items, not {type(items).__name__}.")
    reader = _Reader(items)
    if isinstance(instructions, str) and instructions:
        reader.put(({"role": "system", "content": instructions}, ()))
    for position in range(len(items)):
        reader.feed(position)
    reader.close()
    return ItemChat([m for unit in reader.units for m in unit], items, reader.parts, reader.units)


class _Turn:
    """An assistant turn being read: its calls, what answers them, what binds it."""

    def __init__(self) -> None:
        self.made: list[int] = []  # reasoning, words and calls
        self.calls: list[dict[str, Any]] = []
        self.texts: list[Any] = []
        self.bonds: list[int] = []
        self.answers: list[tuple[int, dict[str, Any]]] = []
        self.ids: set[str | None] = set()
        self.unanswered: Counter[str | None] = Counter()
        self.programs: set[str | None] = set()  # still running
        self.has_outputs = False

    def takes(self, call: dict[str, Any], has_lead: bool) -> bool:
        """Whether one more call was made in this turn."""
        caller = call.get("caller")
        if self.programs or (isinstance(caller, dict) and caller.get("caller_id") in self.ids - {None}):
            return True
        return not self.has_outputs and bool(+self.unanswered or not has_lead)

    def add_call(self, position: int, item: dict[str, Any]) -> None:
        call_id = call_id_of(item)
        self.made.append(position)
        self.calls.append(tool_call(item))
        self.ids.add(call_id)
        if item_type(item) in HOSTED:
            self.answers.append((position, tool_message(item)))
            return
        self.unanswered[call_id] += 1
        if item_type(item) == "program":
            self.programs.add(call_id)

    def add_output(self, position: int, item: dict[str, Any]) -> None:
        call_id = call_id_of(item)
        self.answers.append((position, tool_message(item)))
        self.unanswered[call_id] -= 1
        self.has_outputs = True
        if item_type(item) == "program_output":
            self.programs.discard(call_id)


class _Reader:
    """Feeds on items in order; ``units`` are lists of messages, ``parts`` say what each stands for."""

    def __init__(self, items: Sequence[Any]) -> None:
        self.items = items
        self.units: list[list[dict[str, Any]]] = []
        self.parts: dict[int, _Part] = {}
        self._turn: _Turn | None = None
        self._lead: list[int] = []  # belongs to what follows

    def feed(self, position: int) -> None:
        """Take the next item."""
        item = self.items[position]
        kind = item_type(item)
        if kind == "message" and item["role"] in ROLES:
            self._feed_message(position, item)
        elif kind in OUTPUT_OF or (kind in HOSTED and not _was_approved(item)):
            self._feed_call(position, item)
        elif kind in CALL_OF:
            self._feed_output(position, item)
        elif kind in _APART:
            self._feed_apart(position)
        elif kind != "reasoning" and self._turn and _names(item, self._turn.ids):
            self._bind([position])
        else:
            self._lead.append(position)

    def close(self) -> None:
        """All that is open ends here."""
        self._close_turn()
        self._put_lead()

    def put(self, *messages: tuple[dict[str, Any], Sequence[int]]) -> None:
        """One more unit: its messages, each with the positions of the items it stands for."""
        for message, positions in messages:
            self.parts[id(message)] = _Part(len(self.units), tuple(positions))
        self.units.append([message for message, _ in messages])

    # one verb a kind

    def _feed_message(self, position: int, item: dict[str, Any]) -> None:
        if item["role"] != "assistant":
            self.close()
            self.put(({"role": item["role"], "content": item.get("content")}, [position]))
            return
        spoken = next((i for i, p in enumerate(self._lead) if self._is_words(p)), None)
        if spoken is not None:  # those words stood alone; what came after them leads to these
            after = self._lead[spoken + 1 :]
            del self._lead[spoken + 1 :]
            self.close()
            self._lead = after
        self._lead.append(position)

    def _feed_call(self, position: int, item: dict[str, Any]) -> None:
        if self._turn is None or not self._turn.takes(item, bool(self._lead)):
            self._close_turn()
            self._turn = _Turn()
        self._absorb_lead(self._turn)
        self._turn.add_call(position, item)

    def _feed_output(self, position: int, item: dict[str, Any]) -> None:
        if self._turn is not None and self._turn.unanswered[call_id_of(item)] > 0:
            self._absorb_lead(self._turn)
            self._turn.add_output(position, item)
            return
        self.close()
        self.put((tool_message(item), [position]))

    def _feed_apart(self, position: int) -> None:
        if self._turn is not None and (+self._turn.unanswered or self._turn.programs):
            self._bind([position])
            return
        self.close()
        self.put((self._opaque([position]), [position]))

    def _bind(self, positions: list[int]) -> None:
        assert self._turn is not None
        self._absorb_lead(self._turn)
        self._turn.bonds += positions

    def _absorb_lead(self, turn: _Turn) -> None:
        for position in self._lead:
            if self._is_words(position):
                turn.texts.append(self.items[position].get("content"))
            elif item_type(self.items[position]) != "reasoning":
                turn.bonds.append(position)
                continue
            turn.made.append(position)
        self._lead = []

    def _close_turn(self) -> None:
        turn, self._turn = self._turn, None
        if turn is None:
            return
        content = turn.texts[0] if len(turn.texts) == 1 else "\n".join(map(content_text, turn.texts)) or None
        said = {"role": "assistant", "content": content, "tool_calls": turn.calls}
        # between a call and its result, a message of another role keeps the turn from being left out
        bonds = [(self._opaque(turn.bonds), turn.bonds)] if turn.bonds else []
        self.put((said, turn.made), *bonds, *((message, [p]) for p, message in turn.answers))

    def _put_lead(self) -> None:
        lead, self._lead = self._lead, []
        words = [p for p in lead if self._is_words(p)]
        bonds = [p for p in lead if not self._is_words(p) and (not words or not self._is_thought(p))]
        messages: list[tuple[dict[str, Any], Sequence[int]]] = []
        if words:
            said = {"role": "assistant", "content": self.items[words[0]].get("content")}
            messages.append((said, [p for p in lead if p not in bonds]))
        if bonds:  # after the words: so they are not taken for those of a call that follows
            messages.append((self._opaque(bonds), bonds))
        if messages:
            self.put(*messages)

    def _is_words(self, position: int) -> bool:
        return item_type(self.items[position]) == "message"

    def _is_thought(self, position: int) -> bool:
        return item_type(self.items[position]) == "reasoning"

    def _opaque(self, positions: Sequence[int]) -> dict[str, Any]:
        """A message that no strategy leaves out, for items that are kept as they are."""
        return {"role": "item", "content": "\n".join(_shown(self.items[p]) for p in positions)}


def _was_approved(item: dict[str, Any]) -> bool:
    """Whether a call answers an approval: without it the provider would take the approval for open."""
    return item.get("approval_request_id") is not None


def _names(item: Any, ids: set[str | None]) -> bool:
    return isinstance(item, dict) and isinstance(item.get("call_id"), str) and item["call_id"] in ids


def _shown(item: Any) -> str:
    """What an item says beside what only the provider reads."""
    if not isinstance(item, dict):
        return compact(item)
    rest = {k: v for k, v in item.items() if k not in _HIDDEN}
    return compact(rest) if rest else ""


def to_items(context: Sequence[Any], chat: ItemChat) -> list[Any]:
    """The items that a rebuilt context stands for, the very objects that were read, in their order.

    A result that was shortened becomes a copy of its item with the new output, any other new message an item
    of its own. Raises HistoryError where the items would have a broken pair that those read had not: the
    request is better sent as it came.
    """
    writer = _Writer(chat)
    for message in context:
        writer.feed(message)
    writer.flush()
    if item_errors(writer.out) and not item_errors(chat.items):
        raise HistoryError("the rebuilt context would break a call from its output: send the input as it is.")
    return writer.out


class _Writer:
    """Feeds on the messages of a context; the items of one unit come out together, in their order."""

    def __init__(self, chat: ItemChat) -> None:
        self.chat = chat
        self.out: list[Any] = []
        self._holders = Counter(p for part in chat.parts.values() for p in part.items)
        self._unit = -1
        self._reached = 0  # the unit taken last
        self._taken: set[int] = set()  # messages of the context, by identity
        self._seen: Counter[int] = Counter()  # of this unit: how many messages that stand for an item
        self._changed: dict[int, Any] = {}
        self._added: list[Any] = []

    def feed(self, message: dict[str, Any]) -> None:
        """Take the next message."""
        part = self.chat.parts.get(id(message))
        if part is not None:
            self._take(message, part.items)
        elif message.get("role") in ("tool", "function"):
            self._feed_result(message)
        elif message.get("role") == "assistant" and message.get("tool_calls"):
            self._feed_calls(message)
        else:
            self.flush()
            content = content_text(message.get("content"))
            self.out.append({"type": "message", "role": message.get("role"), "content": content})

    def flush(self) -> None:
        """The unit is over: an item is there when all messages that stand for it are."""
        whole = sorted(p for p, seen in self._seen.items() if seen == self._holders[p])
        self.out += [self._changed.get(p, self.chat.items[p]) for p in whole]
        self.out += self._added
        self._seen, self._changed, self._added = Counter(), {}, []
        self._unit = -1

    def _take(self, message: dict[str, Any], positions: Sequence[int]) -> None:
        unit = self.chat.parts[id(message)].unit
        if unit != self._unit:
            self.flush()
            self._unit = self._reached = unit
        self._taken.add(id(message))
        self._seen.update(positions)

    def _feed_result(self, message: dict[str, Any]) -> None:
        """A result with other words than its item has, or one for a call that had none."""
        call_id, content = message.get("tool_call_id"), message.get("content")

        def fits(m: dict[str, Any]) -> bool:
            return bool(m["role"] == "tool" and m["tool_call_id"] == call_id)

        here = self.chat.units[self._unit] if self._unit >= 0 else []
        original = self._first(here, fits)
        if original is None:
            calls = (self.chat.items[p] for p in self._seen)
            call = next((c for c in calls if item_type(c) in OUTPUT_OF and call_id_of(c) == call_id), None)
            if call is not None:
                self._added += [a for a in [answer_to(call, content)] if a is not None]
                return
            original = self._later(fits)
        if original is None:
            raise HistoryError(
                "the rebuilt context holds a result that no item has: send the input as it is."
            )
        positions = self.chat.parts[id(original)].items
        self._take(original, positions)
        self._changed.update((p, with_output(self.chat.items[p], content)) for p in positions)

    def _feed_calls(self, message: dict[str, Any]) -> None:
        """A turn with fewer calls than it had, or a call for an output that had none."""
        ids = [call.get("id") for call in message["tool_calls"]]
        turn = self._later(lambda m: any(c["id"] in ids for c in m.get("tool_calls", ())))
        if turn is not None:
            positions = self.chat.parts[id(turn)].items
            items = self.chat.items
            dropped = [
                p for p in positions if item_type(items[p]) in OUTPUT_OF and call_id_of(items[p]) not in ids
            ]
            self._take(turn, [p for p in positions if p not in dropped])
            return
        orphan = self._later(lambda m: m["role"] == "tool" and m["tool_call_id"] in ids)
        made = None
        if orphan is not None:
            output = self.chat.items[self.chat.parts[id(orphan)].items[0]]
            made = call_for(output, str(message["tool_calls"][0].get("function", {}).get("name")))
        if made is None:
            raise HistoryError("the rebuilt context holds a call that no item has: send the input as it is.")
        self.flush()
        self.out.append(made)

    def _later(self, fits: Callable[[dict[str, Any]], bool]) -> dict[str, Any] | None:
        """The first message from here on that fits and is not in the context yet."""
        units = self.chat.units[self._reached :]
        return next((m for unit in units if (m := self._first(unit, fits)) is not None), None)

    def _first(
        self, messages: Sequence[dict[str, Any]], fits: Callable[[dict[str, Any]], bool]
    ) -> dict[str, Any] | None:
        return next((m for m in messages if id(m) not in self._taken and fits(m)), None)
