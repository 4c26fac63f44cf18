"""A conversation of any API as chat messages, and a context as edits of them, which one function writes back.

Each API and each framework has a Wire, which reads its messages and writes changed ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Generic, NamedTuple, TypeVar

from memory_bank.errors import HistoryError

N = TypeVar("N")
ChatMessage = dict[str, Any]

WHOLE = -1
"""The number of a chat message's content among its parts, the others of which are its calls, from 0."""
KEPT_ROLE = "item"
"""The role of a chat message for what no strategy may leave out and no model reads as a turn."""
Change = Mapping[int, Any]
"""Other texts for some parts of a message, by number: a content, or the arguments of a call; None: left out."""
Entry = tuple[int | None, Any]
"""A message of a context: the position of the one that it is made of and its Change, or None and a new message."""


_SAME: Any = object()


@dataclass(frozen=True, slots=True)
class Edit:
    """A message in another form: what is changed, the chat message with it, and its tokens."""

    change: Change
    message: Any
    tokens: int


class PartPlace(NamedTuple):
    """A part of the source: the position of its message, and its number in that.

    ``part``: the part of the chat message that it is; None for what goes with the message, such as thinking.
    """

    message: int
    number: int
    part: int | None = None


class Wire(Generic[N]):
    """How the messages of an API or a framework are written; each numbers the parts of a message in its own way."""

    def write(self, native: N, change: Change) -> N | None:
        """The message with some parts changed or left out; None where nothing is left. ``native`` is not changed."""
        raise NotImplementedError

    def say(self, message: ChatMessage) -> N:
        """A new message with a text, as a chat message of the role user or system gives it."""
        raise NotImplementedError

    def repair(self, message: ChatMessage, source: Sequence[N]) -> N | None:  # noqa: ARG002
        """A call or a result that the source lacks. Raises HistoryError where the API cannot be given one."""
        raise HistoryError("the context holds a call or a result that the history does not have")

    def finish(self, written: list[tuple[int | None, N]], source: Sequence[N]) -> list[N]:  # noqa: ARG002
        """The messages to be sent, each given with the position of the one that it is made of; None for a new one."""
        return [native for _, native in written]


@dataclass(frozen=True, slots=True)
class Conversation(Generic[N]):
    """What an API or a framework was sent, as chat ``messages``, and where each of them stands in it.

    ``places``: the parts of the source that a chat message stands for; none for a system prompt that is sent apart.
    ``units``: for each chat message the number of its turn; what is sent of a turn keeps the order of the source.
    """

    source: Sequence[N]
    wire: Wire[N] = field(repr=False)
    messages: list[ChatMessage] = field(default_factory=list)
    places: list[Sequence[PartPlace]] = field(default_factory=list, repr=False)
    units: list[int] = field(default_factory=list, repr=False)

    def add(self, message: ChatMessage, places: Sequence[PartPlace], unit: int) -> None:
        """Add a chat message of a turn."""
        self.messages.append(message)
        self.places.append(places)
        self.units.append(unit)

    def write(self, entries: Sequence[Entry]) -> list[N]:
        """The messages that a context stands for: unchanged ones are the very objects, in the order of the context.

        Raises HistoryError where they cannot be written: the conversation is better sent as it came.
        """
        return self.wire.finish(self._edited(entries), self.source)

    def _edited(self, entries: Sequence[Entry]) -> list[tuple[int | None, N]]:
        pieces: list[
            tuple[int | None, Any]
        ] = []  # a message and its parts that stay, or None and a new message
        turn: dict[tuple[int, int], Any] = {}
        added: list[Any] = []
        unit = -1

        def flush() -> None:
            for (at, number), text in sorted(turn.items(), key=lambda part: part[0]):
                if not pieces or pieces[-1][0] != at:
                    pieces.append((at, {}))
                pieces[-1][1][number] = text
            pieces.extend((None, native) for native in added)
            turn.clear()
            added.clear()

        for position, change in entries:
            if position is not None:
                if self.units[position] != unit:
                    flush()
                    unit = self.units[position]
                turn.update(self._parts(position, change))
            elif change["role"] in ("tool", "function"):  # it answers a call of the turn
                added.append(self.wire.repair(change, self.source))
            else:
                flush()
                unit = -1
                has_calls = change.get("tool_calls") or change.get("function_call")
                made = self.wire.repair(change, self.source) if has_calls else self.wire.say(change)
                pieces.append((None, made))
        flush()
        numbers: dict[int, set[int]] = {}
        for place in chain.from_iterable(self.places):
            numbers.setdefault(place.message, set()).add(place.number)
        out: list[tuple[int | None, N]] = []
        for at, parts in pieces:
            new = {} if at is None else {n: parts.get(n) for n in numbers[at] if parts.get(n) is not _SAME}
            native: Any = parts if at is None else self.source[at]
            native = self.wire.write(native, new) if new else native
            if native is not None or (at is not None and not new):
                out.append((at, native))
        return out

    def _parts(self, position: int, change: Change) -> dict[tuple[int, int], Any]:
        """The places of a chat message that stay, with what each becomes."""
        found: dict[tuple[int, int], Any] = {}
        has_text = False
        for at, number, part in self.places[position]:
            if part is None or part not in change:
                found[at, number] = _SAME
            elif change[part] is not None and not (part == WHOLE and has_text):
                found[at, number] = change[part]
                has_text = has_text or part == WHOLE
        return found
