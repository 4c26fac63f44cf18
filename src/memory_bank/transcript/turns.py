"""A conversation of any API as chat messages, and a context as edits of them, which one function writes back.

Each API and each framework has a Wire, which reads its messages and writes changed ones.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from operator import itemgetter
from typing import Any, Generic, NamedTuple, TypeVar

from memory_bank.transcript.jsontext import compact, plain
from memory_bank.transcript.messages import MessageKind, call_entry, shared_length
from memory_bank.transcript.transcript import copy_of, digest_of, is_same

N = TypeVar("N")
ChatMessage = dict[str, Any]

WHOLE = -1
"""The number of a chat message's content among its parts, the others of which are its calls, from 0."""
ADDED = -2
"""The number of a text that follows the content of a user message, among its parts."""
KEPT_ROLE = "item"
"""The role of a chat message for what no strategy may leave out and no model reads as a turn."""
Change = Mapping[int, Any]
"""Other texts for some parts of a message, by number: a content, or the arguments of a call; None: left out."""
Entry = tuple[int | None, Any]
"""A message of a context: the position of the one that it is made of and its Change, or None and a new message."""
_SAME: Any = object()


@dataclass(frozen=True)
class Edit:
    """A message in another form: what is changed, the chat message with it, and its tokens."""

    change: Change
    message: Any
    tokens: int

    @cached_property
    def digest(self) -> bytes:
        """The digest of the chat message."""
        return digest_of(self.message)


class PartPlace(NamedTuple):
    """A part of the source: the position of its message, and its number in that.

    ``part``: the part of the chat message that it is; None for what goes with the message, such as thinking.
    """

    message: int
    number: int
    part: int | None = None


class Part(NamedTuple):
    """The meaning of a native part for a chat: a text or a content, a call with its arguments as text, a result.

    A ``value`` None of the user belongs to the user's part before it. ``signed``: thinking that Anthropic has signed,
    or a call with Gemini's signature of its turn.
    """

    kind: MessageKind
    value: Any = ""
    call_id: str | None = None
    name: str | None = None
    signed: bool = False


Placed = tuple[ChatMessage, list[PartPlace]]  # a chat message and the parts of the source that it stands for
Make = Callable[[Any], list[Placed]]
Derive = Callable[[Any, Make], list[Placed]]
"""Applies a function to a message, or returns what it returned for the same object before."""


def derive_anew(message: Any, make: Make) -> list[Placed]:
    """Call ``make``: the Derive that keeps nothing."""
    return make(message)


class Derived:
    """A Derive for a list whose messages the program may change: the result for a changed one is computed again."""

    def __init__(self) -> None:
        # of each message a copy, and what is made of it
        self._by_id: dict[int, tuple[object, list[Placed]]] = {}

    def __call__(self, message: Any, make: Make) -> list[Placed]:
        entry = self._by_id.get(id(message))
        if entry is None or not is_same(entry[0], message):
            entry = self._by_id[id(message)] = copy_of(message), make(message)
        return entry[1]

    def keep(self, messages: Iterable[object]) -> None:
        """Forget what was made of all other messages."""
        entries = self._by_id
        self._by_id = {id(m): entries[id(m)] for m in messages if id(m) in entries}


class Wire(Generic[N]):
    """How the messages of an API or a framework are written; each numbers the parts of a message in its own way.

    ``is_ordered``: results follow the turn that they answer. ``joins_turn``: a text and the calls after it are one
    turn also where they are several messages.
    """

    is_ordered = True
    joins_turn = False

    def parts(self, native: N) -> Iterable[Part]:
        """A message's words, calls and answers. Raises MessagesError for a foreign object."""
        raise NotImplementedError

    def errors(self, natives: Sequence[N]) -> Sequence[str]:  # noqa: ARG002
        """The errors for which the API refuses a list of messages, as far as they are known."""
        return ()

    def write(self, native: N, change: Change) -> N | None:
        """The message with some parts changed or left out; None where nothing is left. ``native`` is not changed."""
        raise NotImplementedError

    def say(self, message: ChatMessage) -> N:
        """A new message with a text; ``role`` is user or system."""
        raise NotImplementedError

    def add(self, native: N, text: str) -> N:
        """A user message with a text after its content, which stays as it is. ``native`` is not changed."""
        raise NotImplementedError

    def finish(self, written: list[tuple[int | None, N]], source: Sequence[N], since: int) -> list[N]:  # noqa: ARG002
        """The messages to be sent. Each is given with the position of its original, None for a new message.

        ``since``: the position in the source from which on thinking stays.
        """
        return [native for _, native in written]


class PartWire(Wire[N]):
    """A Wire that reads one message at a time. ``joint``: stands between two texts of a message."""

    joint = "\n"

    def read(self, native: N) -> Mapping[int, Part]:
        """The parts of a message in their order, by number. Raises MessagesError for a foreign object."""
        raise NotImplementedError

    def parts(self, native: N) -> Iterable[Part]:
        """See Wire."""
        return self.read(native).values()

    def bound(self, native: N) -> list[int]:
        """The numbers of a message's thinking whose signature is bound to what stands before it."""
        parts = self.read(native).items()
        return [number for number, part in parts if part.signed and part.kind is MessageKind.REASONING]

    def speakers(self, native: N) -> set[str]:
        """Who speaks in a message: the "user", the "assistant", a "result"."""
        return {_SPEAKERS.get(part.kind, "") for part in self.read(native).values()}

    def read_all(self, natives: Sequence[N], system: str | None = None) -> Conversation[N]:
        """A list of natives as chat messages; ``system`` is a prompt that the framework sends apart from them."""
        chat: Conversation[N] = Conversation(natives, self)
        if system:
            chat.add({"role": "system", "content": system}, [], -1)
        for at, native in enumerate(natives):
            for message, places in self.chat_messages([native]):
                chat.add(message, [place._replace(message=at) for place in places], at)
        return chat

    def chat_messages(self, natives: Iterable[N]) -> list[Placed]:
        """The chat messages of a turn's natives, which are numbered from 0.

        What the assistant said and called is one message, each result one, and what is kept whole one.
        """
        calls: list[ChatMessage] = []
        texts: list[Any] = []
        places: list[PartPlace] = []
        heard: list[Placed] = []
        kept: list[PartPlace] = []
        kept_texts: list[str] = []
        parts = (
            (PartPlace(at, number), part)
            for at, native in enumerate(natives)
            for number, part in (self.read(native) or {WHOLE: Part(MessageKind.OTHER)}).items()
        )
        for place, (kind, value, call_id, name, signed) in parts:
            if kind is MessageKind.SAY:
                texts.append(value)
                places.append(place._replace(part=WHOLE))
            elif kind is MessageKind.CALL:
                places.append(place._replace(part=len(calls)))
                calls.append(call_entry(call_id, name, value, signed))
            elif kind is MessageKind.REASONING:
                places.append(place)
            elif kind is MessageKind.OTHER:
                kept.append(place)
                kept_texts.append(str(value))
            elif value is None and kind is MessageKind.USER and heard:
                heard[-1][1].append(place)
            else:
                message: ChatMessage = {"role": kind.value}
                if kind is MessageKind.RESULT:
                    message["role"] = "function" if call_id is None and name else "tool"
                    message |= {} if call_id is None else {"tool_call_id": call_id}
                    message |= {"name": name} if name else {}
                heard.append((message | {"content": value}, [place._replace(part=WHOLE)]))
        out: list[Placed] = []
        if places:
            content: Any = [{"type": "text", "text": t} if isinstance(t, str) else t for t in texts]
            if all(isinstance(t, str) for t in texts):
                content = self.joint.join(filter(None, texts))
            turn: ChatMessage = {"role": "assistant", "content": content or (None if calls else "")}
            out.append((turn | {"tool_calls": calls} if calls else turn, places))
        # between a call and its result, what is kept keeps the turn from being left out
        kept_message = ({"role": KEPT_ROLE, "content": "\n".join(kept_texts)}, kept)
        return [*out, *heard, kept_message] if kept else [*out, *heard]


_SPEAKERS = dict.fromkeys((MessageKind.SAY, MessageKind.CALL, MessageKind.REASONING), "assistant")
_SPEAKERS |= {MessageKind.USER: "user", MessageKind.RESULT: "result"}


def readable(part: object, left_out: Collection[str]) -> str:
    """A part of a message as JSON, without the ``left_out`` members, which only the provider reads."""
    if isinstance(part, dict):
        part = {k: v for k, v in part.items() if k not in left_out}
    return "" if part == {} else compact(plain(part))


@dataclass(frozen=True, slots=True)
class Conversation(Generic[N]):
    """The messages sent to an API or a framework, as chat ``messages``, and where each of them stands in it.

    ``places``: the parts of the source that a chat message stands for; none for a system prompt that is sent apart.
    ``units``: for each chat message the number of its turn; what is sent of a turn keeps the order of the source.
    ``derive`` keeps an added message with the last message of the source that it is made of: an equal one is the same
    object at the next step. ``begins``: the turns at which reading can start again: how much of the source had to be
    read to know that, and where the turn begins in the source and in the chat messages.
    """

    source: Sequence[N]
    wire: Wire[N] = field(repr=False)
    messages: list[ChatMessage] = field(default_factory=list)
    places: list[Sequence[PartPlace]] = field(default_factory=list, repr=False)
    units: list[int] = field(default_factory=list, repr=False)
    derive: Derive = field(default=derive_anew, repr=False)
    begins: list[tuple[int, int, int]] = field(default_factory=list, repr=False)

    def go_on(self, earlier: Conversation[N] | None) -> int:
        """Take over the chat messages for the beginning shared with an earlier source; return where to read on."""
        prompt = [] if earlier is None else [m for m in earlier.messages[:1] if not earlier.places[0]]
        if earlier is None or prompt != self.messages:
            return 0
        shared = shared_length(earlier.source, self.source)
        at = bisect_right(earlier.begins, shared, key=itemgetter(0))
        _, start, count = earlier.begins[at - 1] if at else (0, 0, len(prompt))
        self.begins[:] = earlier.begins[: max(0, at - 1)]
        self.messages[:], self.places[:] = earlier.messages[:count], earlier.places[:count]
        self.units[:] = earlier.units[:count]
        return start

    def add(self, message: ChatMessage, places: Sequence[PartPlace], unit: int) -> None:
        """Add a chat message of a turn."""
        last = self.source[max(place.message for place in places)] if places else message
        if last is not message:
            earlier = self.derive(last, lambda _: [(message, [*places])])[0][0]
            message = earlier if is_same(earlier, message) else message
        self.messages.append(message)
        self.places.append(places)
        self.units.append(unit)

    def place_of(self, position: int | None) -> int:
        """The position in the source of the first part of a chat message, or of one after it; None: the end."""
        after = len(self.places) if position is None else position
        return next((p.message for places in self.places[after:] for p in places), len(self.source))

    def write(self, entries: Sequence[Entry], since: int | None = None) -> list[N]:
        """The messages that a context stands for: unchanged ones are the very objects, in the order of the context.

        ``since``: that of the context; None: no thinking stays for its place.
        Raises HistoryError where they cannot be written: the conversation is better sent as it came.
        """
        pieces: list[tuple[int | None, Any]] = []  # of a message the parts that stay, or a new message
        turn: dict[tuple[int, int], Any] = {}
        added: dict[int, str] = {}  # texts by the position of the message that they join
        unit = -1

        def end_turn() -> None:
            for (at, number), text in sorted(turn.items(), key=lambda part: part[0]):
                if not pieces or pieces[-1][0] != at:
                    pieces.append((at, {}))
                pieces[-1][1][number] = text
            turn.clear()

        for position, change in entries:
            of_unit = -1 if position is None else self.units[position]
            if position is None or of_unit != unit:
                end_turn()
                unit = of_unit
            if position is not None:
                turn.update(self._parts(position, change))
                if ADDED in change:
                    added[self.places[position][-1].message] = change[ADDED]
            else:
                pieces.append((None, self.wire.say(change)))
        end_turn()
        numbers: defaultdict[int, set[int]] = defaultdict(set)
        for place in chain.from_iterable(self.places):
            numbers[place.message].add(place.number)
        out: list[tuple[int | None, N]] = []
        for at, piece in pieces:
            if at is None:
                new = piece
            else:
                new = self.source[at]
                changed = {n: piece.get(n) for n in numbers[at] if piece.get(n) is not _SAME}
                if changed and (new := self.wire.write(new, changed)) is None:
                    continue
                if at in added:
                    new = self.wire.add(new, added.pop(at))
            out.append((at, new))
        return self.wire.finish(out, self.source, self.place_of(since))

    def _parts(self, position: int, change: Change) -> dict[tuple[int, int], Any]:
        """The places of a chat message that stay, with what each becomes."""
        parts: dict[tuple[int, int], Any] = {}
        has_text = False
        for at, number, part in self.places[position]:
            if part is None or part not in change:
                parts[at, number] = _SAME
            elif change[part] is not None and not (part == WHOLE and has_text):
                parts[at, number] = change[part]
                has_text = has_text or part == WHOLE
        return parts
