"""The Messages API of Anthropic: its blocks, the check of their pairs, and its messages as a chat and back.

``from_anthropic`` makes chat messages of a request's ``messages``, ``to_anthropic`` makes messages of a rebuilt
chat again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import Any

from memory_bank.errors import HistoryError
from memory_bank.transcript.jsontext import compact, parse_arguments, plain
from memory_bank.transcript.messages import call_entry, calls_by_place, content_text, source_positions

AnthropicMessage = dict[str, Any]
ChatMessage = dict[str, Any]
Block = dict[str, Any]
Part = tuple[ChatMessage, list[tuple[int, int]]]
"""A chat message and its blocks, each as (index of the message in its run, index of the block)."""
Make = Callable[[Any], list[Part]]
Derive = Callable[[Any, Make], list[Part]]
"""Returns what a function makes of a message. It may return what it made of the same object before."""

THINKING = frozenset({"thinking", "redacted_thinking"})
CACHE_MARK = "cache_control"
MOST_CACHE_MARKS = 4

_USER_BLOCKS = frozenset({"text", "image", "document", "search_result"})
_HIDDEN = frozenset({"type", "id", "signature", "data", "encrypted_content", CACHE_MARK})
_WHOLE = -1  # in the place of a block's position: the message as a whole


class Thinking(Enum):
    """What becomes of the thinking blocks after the first message that differs from the request's."""

    DROP = "all are left out: a signature may be bound to every message before it"
    KEEP_LAST = "as DROP, but the tool turn that is being answered keeps its own, which it must begin with"
    KEEP = "all stay: the provider leaves out those that no longer fit"


def thinking_rule(thinking: object) -> Thinking:
    """What becomes of thinking blocks under a request's ``thinking``."""
    given = thinking if isinstance(thinking, dict) else {}
    if drops_blocks(given):
        return Thinking.KEEP
    return Thinking.KEEP_LAST if given.get("type") == "enabled" else Thinking.DROP


def drops_blocks(thinking: Mapping[str, Any]) -> bool:
    """Whether the client asked the provider to leave out thinking blocks that do not fit."""
    binding = thinking.get("block_binding")
    return isinstance(binding, dict) and binding.get("prefix_mismatch_behavior") == "drop_block"


@dataclass(frozen=True, slots=True)
class BlockPlace:
    """A block of a request: the position of its message and its own; a ``block`` of -1 is the whole message."""

    message: int
    block: int = _WHOLE


@dataclass(frozen=True, slots=True)
class AnthropicChat:
    """A request's messages as chat ``messages``, with what ``to_anthropic`` needs.

    ``places`` says which blocks a chat message stands for, by its identity; ``units`` has the chat messages of
    every turn with its results, and of every message outside of turns.
    """

    messages: list[ChatMessage]
    source: Sequence[Any]
    places: dict[int, tuple[BlockPlace, ...]] = field(repr=False)
    units: list[list[ChatMessage]] = field(repr=False)
    unit_of: dict[int, int] = field(repr=False)


def is_anthropic(messages: object) -> bool:
    """Whether a list has blocks of the Messages API, ``tool_use`` or ``tool_result``, and no calls of a chat."""
    if not isinstance(messages, (list, tuple)):
        return False
    if any(
        isinstance(m, dict) and (m.get("tool_calls") or m.get("role") in ("tool", "function"))
        for m in messages
    ):
        return False
    return any(
        block.get("type") in ("tool_use", "tool_result")
        for message in messages
        if isinstance(message, dict) and message.get("role") in ("user", "assistant")
        for block in _blocks(message)
    )


def _blocks(message: object) -> list[Block]:
    """The blocks of a message that are objects; none for a text."""
    content = message.get("content") if isinstance(message, dict) else None
    return [b for b in content if isinstance(b, dict)] if isinstance(content, list) else []


# Messages to a chat


def derive_anew(message: Any, make: Make) -> list[Part]:
    """Call ``make``: the Derive that keeps nothing."""
    return make(message)


def from_anthropic(messages: object, system: object = None, derive: Derive = derive_anew) -> AnthropicChat:
    """The messages of a request as chat messages. Equal messages give equal chat messages.

    An assistant turn (several messages of the assistant in a row are one) becomes one message with its text and
    calls. A user message becomes one tool message for each of its results and a user message for the rest.
    ``system`` becomes a system message that stands for no block; a system message in the list stays one.
    Blocks of server tools, MCP, compaction and unknown types become a message of the role ``item``, which no
    strategy leaves out, and a turn with such blocks stays whole. Cache marks are no part of the chat.
    ``derive`` may keep what is made of a message, so that the next request gets the same objects.

    Raises HistoryError when ``messages`` is no list; nothing in the list makes it raise.
    """
    if not isinstance(messages, (list, tuple)):
        raise HistoryError(f"messages must be a list of messages, not {type(messages).__name__}.")
    reader = _Reader(messages, derive)
    text = content_text(system).strip() if system else ""
    if text:
        reader.begin()
        reader.put({"role": "system", "content": text})
    at = 0
    while at < len(messages):
        message = messages[at]
        role = message.get("role") if isinstance(message, dict) else None
        if role == "assistant":
            stop = at + 1
            while stop < len(messages) and _role(messages[stop]) == "assistant":
                stop += 1
            reader.read_turn(range(at, stop))
            at = stop
            continue
        if role == "user":
            reader.read_user(at)
        else:
            reader.begin()
            said = content_text(message.get("content")) if role == "system" else _readable(message)
            reader.put({"role": "system" if role == "system" else "item", "content": said}, BlockPlace(at))
        at += 1
    return AnthropicChat(
        [m for unit in reader.units for m in unit], messages, reader.places, reader.units, reader.unit_of
    )


class _Reader:
    """Makes chat messages of the messages of a request, unit by unit."""

    def __init__(self, source: Sequence[Any], derive: Derive) -> None:
        self.source = source
        self._derive = derive
        self.units: list[list[ChatMessage]] = []
        self.places: dict[int, tuple[BlockPlace, ...]] = {}
        self.unit_of: dict[int, int] = {}
        self._has_calls = False  # the last unit is a turn with calls

    def begin(self) -> None:
        """Begin a unit."""
        self.units.append([])
        self._has_calls = False

    def put(self, message: ChatMessage, *places: BlockPlace) -> None:
        """Add a chat message that stands for some blocks to the unit."""
        self.places[id(message)] = places
        self.unit_of[id(message)] = len(self.units) - 1
        self.units[-1].append(message)

    def read_turn(self, positions: range) -> None:
        """Read the messages of one assistant turn."""
        run = self.source[positions.start : positions.stop]
        parts = self._derive(run[0], lambda m: _turn([m])) if len(run) == 1 else _turn(run)
        self.begin()
        self._has_calls = "tool_calls" in parts[0][0]
        self._put_parts(parts, positions.start)

    def read_user(self, i: int) -> None:
        """Read a user message: its results, then the rest."""
        joins = self._has_calls  # results join the turn before them
        for part in self._derive(self.source[i], _said_by_user):
            if part[0]["role"] != "tool" or not joins:
                self.begin()
            joins = True
            self._put_parts([part], i)

    def _put_parts(self, parts: Sequence[Part], start: int) -> None:
        for message, blocks in parts:
            self.put(message, *[BlockPlace(start + i, j) for i, j in blocks])


def _turn(run: Sequence[Any]) -> list[Part]:
    """Make one message of an assistant turn, with its text and calls, and an item for blocks of other kinds."""
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    made: list[tuple[int, int]] = []
    opaque: list[tuple[int, int]] = []
    for i, message in enumerate(run):
        content = message.get("content")
        if not isinstance(content, list):
            texts.append(content_text(content))
            made.append((i, _WHOLE))
            continue
        if not content:
            made.append((i, _WHOLE))
        for j, block in enumerate(content):
            kind = _type(block)
            if kind == "tool_use":
                calls.append(_tool_call(block))
            elif kind == "text":
                texts.append(content_text(block.get("text")))
            elif kind not in THINKING:
                opaque.append((i, j))
                continue
            made.append((i, j))
    text = "\n".join(t for t in texts if t)
    kept = [run[i]["content"][j] for i, j in opaque]
    if calls:
        turn = {"role": "assistant", "content": text or None, "tool_calls": calls}
        # between a call and its result, an item keeps the turn from being left out
        return [(turn, made), (_item(kept), opaque)] if opaque else [(turn, made)]
    if opaque:  # a turn of the provider's own tools
        return [({"role": "item", "content": "\n".join((text, _item(kept)["content"]))}, made + opaque)]
    return [({"role": "assistant", "content": text}, made)]


def _said_by_user(message: Any) -> list[Part]:
    """Divide a user message: each result becomes a tool message, texts and images become one user message.

    Blocks of other kinds become one item.
    """
    content = message.get("content")
    if not isinstance(content, list):
        return [({"role": "user", "content": content_text(content)}, [(0, _WHOLE)])]
    results = [j for j, b in enumerate(content) if _type(b) == "tool_result"]
    said = [j for j, b in enumerate(content) if isinstance(b, str) or _type(b) in _USER_BLOCKS]
    other = [j for j in range(len(content)) if j not in {*results, *said}]
    parts: list[Part] = [(_tool_message(content[j]), [(0, j)]) for j in results]
    if said or not content:
        texts = [_unmarked(content[j]) for j in said]
        is_text = len(texts) == 1 and _type(texts[0]) == "text" and isinstance(texts[0].get("text"), str)
        places = [(0, j) for j in said] or [(0, _WHOLE)]
        parts.append(({"role": "user", "content": texts[0]["text"] if is_text else texts}, places))
    if other:
        parts.append((_item([content[j] for j in other]), [(0, j) for j in other]))
    return parts


def _item(blocks: Sequence[Any]) -> ChatMessage:
    """A message that no strategy leaves out, for blocks that are kept as they are."""
    return {"role": "item", "content": "\n".join(map(_readable, blocks))}


def _role(message: object) -> object:
    return message.get("role") if isinstance(message, dict) else None


def _type(block: object) -> str | None:
    kind = block.get("type") if isinstance(block, dict) else None
    return kind if isinstance(kind, str) else None


def _tool_call(block: Block) -> dict[str, Any]:
    arguments = block.get("input")
    name = block.get("name")
    text = arguments if isinstance(arguments, str) else compact(plain(arguments or {}))
    return call_entry(block.get("id"), name if isinstance(name, str) else "unknown", text)


def _tool_message(block: Block) -> ChatMessage:
    content = block.get("content")
    if isinstance(content, list):
        content = [_unmarked(part) for part in content]
    return {
        "role": "tool",
        "tool_call_id": block.get("tool_use_id"),
        "content": "" if content is None else content,
    }


def _unmarked(block: Any) -> Any:
    """A block without its cache mark, which clients move from message to message."""
    if isinstance(block, dict) and CACHE_MARK in block:
        return {k: v for k, v in block.items() if k != CACHE_MARK}
    return block


def _readable(block: object) -> str:
    """The members of a block as JSON, without those that only the provider reads."""
    if not isinstance(block, dict):
        return compact(plain(block))
    rest = {k: v for k, v in block.items() if k not in _HIDDEN}
    return compact(plain(rest)) if rest else ""


# A chat to messages


def to_anthropic(
    context: Sequence[Any], chat: AnthropicChat, thinking: Thinking = Thinking.DROP
) -> list[AnthropicMessage]:
    """The messages that a rebuilt context stands for: those that did not change are the very objects.

    A result that was shortened becomes a copy of its block with the new content, and the words of a turn stand in
    its first text. The memory joins the user message before it. From the first message on that differs from the
    request's, thinking blocks go as ``thinking`` says. No cache mark is added.

    Raises HistoryError where the messages would have a broken pair that those read had not, or where a tool
    turn would have to keep a thinking block that it has not: the request is better sent as it came.
    """
    writer = _Writer(chat)
    for message, source in zip(context, source_positions(context, chat.messages), strict=True):
        writer.feed(message, None if source is None else chat.messages[source])
    writer.flush()
    messages = _arranged(_joined(writer.pieces, chat.source), chat.source)
    messages = _without_thinking(messages, chat.source, thinking)
    if message_errors(messages) and not message_errors(chat.source):
        raise HistoryError(
            "the rebuilt context would break a call from its result: send the messages as they are."
        )
    return messages


@dataclass(slots=True)
class _Piece:
    """Blocks that stand together in the new list: of one message of the request, or new ones.

    ``source`` is that message's position, None for new blocks; ``blocks`` are the positions of its blocks with
    what they became. A message whose content is a text is one piece with no blocks, ``whole``.
    """

    role: str
    source: int | None = None
    blocks: list[tuple[int, Block]] = field(default_factory=list)
    whole: bool = False


class _Writer:
    """Makes pieces of the messages of a context; the blocks of one unit come out together, in their order."""

    def __init__(self, chat: AnthropicChat) -> None:
        self.chat = chat
        self.pieces: list[_Piece] = []
        self._unit = -1
        self._seen: dict[BlockPlace, Block | None] = {}  # of this unit, with what became of the block
        self._added: list[Block] = []
        self._answered = {str(m["tool_call_id"]) for m in chat.messages if m["role"] == "tool"}

    def feed(self, message: ChatMessage, source: ChatMessage | None) -> None:
        """Write the next message, which is or was made of ``source``."""
        if source is not None:
            unit = self.chat.unit_of[id(source)]
            if unit != self._unit:
                self.flush()
                self._unit = unit
            places = self.chat.places[id(source)]
            self._seen.update(dict.fromkeys(places) if message is source else self._changed(message, source))
        elif message.get("role") in ("tool", "function"):
            self._add_result(message)
        elif message.get("role") == "assistant" and message.get("tool_calls"):
            self._add_call(message)
        else:
            self.flush()
            text = content_text(message.get("content"))
            self.pieces.append(_Piece("user", None, [(0, {"type": "text", "text": text})]))

    def flush(self) -> None:
        """End the unit."""
        for place in sorted(self._seen, key=lambda p: (p.message, p.block)):
            changed = self._seen[place]
            message = self.chat.source[place.message]
            last = self.pieces[-1] if self.pieces else None
            role = message.get("role") if isinstance(message, dict) else None
            if last is None or last.source != place.message:
                last = _Piece(str(role), place.message)
                self.pieces.append(last)
            if place.block == _WHOLE and changed is None:
                last.whole = True
            else:
                last.blocks.append((place.block, changed or message["content"][place.block]))
        if self._added:
            self.pieces.append(_Piece("user", None, [(0, block) for block in self._added]))
        self._seen, self._added, self._unit = {}, [], -1

    def _changed(self, message: ChatMessage, source: ChatMessage) -> dict[BlockPlace, Block | None]:
        """The places of a changed message that stay, with the blocks that changed."""
        calls = iter(range(len(source.get("tool_calls") or ())))
        kept = calls_by_place(message, source)
        text = content_text(message.get("content"))
        keeps_words = message.get("content") == source.get("content")
        found: dict[BlockPlace, Block | None] = {}
        for place in self.chat.places[id(source)]:
            block = self._block(place)
            kind = _type(block)
            if kind == "tool_result":
                found[place] = {**block, "content": message.get("content")}
            elif kind == "tool_use":
                call = next(calls)
                if call in kept:
                    found[place] = _with_arguments(block, kept[call], source["tool_calls"][call])
            elif keeps_words or kind in THINKING:
                found[place] = None
            elif text:
                found[place] = {**{k: v for k, v in block.items() if k != "citations"}, "text": text}
                text = ""
        return found

    def _block(self, place: BlockPlace) -> Block:
        """The block at a place; a text block for a message whose content is a text."""
        if place.block == _WHOLE:
            return {"type": "text"}
        block: Block = self.chat.source[place.message]["content"][place.block]
        return block

    def _add_result(self, message: ChatMessage) -> None:
        """Write a result for a call of this unit that had none. Raises HistoryError for any other."""
        call_id, content = message.get("tool_call_id"), message.get("content")
        here = self.chat.units[self._unit] if self._unit >= 0 else []
        if not any(c["id"] == call_id for m in here for c in m.get("tool_calls", ())):
            raise HistoryError(
                "the rebuilt context holds a result that no message has: send the messages as they are."
            )
        self._added.append({"type": "tool_result", "tool_use_id": call_id, "content": content})

    def _add_call(self, message: ChatMessage) -> None:
        """Write a call for a result that had none. Raises HistoryError for any other."""
        calls = message["tool_calls"]
        ids = [call.get("id") for call in calls]
        if self._answered.isdisjoint(map(str, ids)):
            raise HistoryError(
                "the rebuilt context holds a call that no message has: send the messages as they are."
            )
        self.flush()
        names = [call.get("function", {}).get("name") for call in calls]
        made = [
            {"type": "tool_use", "id": i, "name": n, "input": {}} for i, n in zip(ids, names, strict=True)
        ]
        self.pieces.append(_Piece("assistant", None, [(0, block) for block in made]))


def _with_arguments(block: Block, call: Mapping[str, Any], old: Mapping[str, Any]) -> Block | None:
    """The block with the arguments of a call; None where they are those that it had."""
    arguments = (call.get("function") or {}).get("arguments")
    if arguments in (None, old["function"]["arguments"]):
        return None
    return {**block, "input": parse_arguments(arguments) if isinstance(arguments, str) else arguments}


def _joined(pieces: Sequence[_Piece], source: Sequence[Any]) -> Iterator[Any]:
    """The messages of the pieces; those of one message of the request that stand side by side are one again."""
    joined: list[_Piece] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        if last is not None and last.source is not None and last.source == piece.source:
            last.blocks += piece.blocks
            last.whole = last.whole or piece.whole
        else:
            joined.append(piece)
    for piece in joined:
        if piece.source is None:
            yield {"role": piece.role, "content": [block for _, block in piece.blocks]}
            continue
        message = source[piece.source]
        blocks = [block for _, block in sorted(piece.blocks, key=lambda b: b[0])]
        own = message.get("content") if isinstance(message, dict) else None
        is_same = isinstance(own, list) and len(own) == len(blocks)
        if piece.whole or (is_same and all(a is b for a, b in zip(own or (), blocks, strict=True))):
            yield message
        else:
            yield {**message, "content": blocks}


def _arranged(messages: Iterator[Any], source: Sequence[Any]) -> list[AnthropicMessage]:
    """The messages with each run between assistant turns in the order that the API asks for.

    A run that stood so in the request stays. In any other the user messages become one, and the system
    messages, which must follow a user message, one after it.
    """
    after = {id(a): b for a, b in pairwise(source)}
    out: list[AnthropicMessage] = []
    run: list[Any] = []

    def close() -> None:
        stood_so = all(after.get(id(a)) is b for a, b in pairwise(run))
        roles = [_role(m) for m in run]
        late_result = any(_type(b) == "tool_result" for m in run[1:] for b in _blocks(m))
        if stood_so or late_result or any(r not in ("user", "system") for r in roles):
            out.extend(run)
        else:
            for role in ("user", "system"):
                same = [m for m in run if _role(m) == role]
                if len(same) == 1:
                    out.append(same[0])
                elif same:
                    out.append({"role": role, "content": [b for m in same for b in _as_blocks(m)]})
        run.clear()

    for message in messages:
        if _role(message) == "assistant":
            close()
            out.append(message)
        else:
            run.append(message)
    close()
    return out


def _as_blocks(message: AnthropicMessage) -> list[Any]:
    content = message.get("content")
    if isinstance(content, list):
        return content
    text = content_text(content)
    return [{"type": "text", "text": text}] if text else []


def _without_thinking(
    messages: list[AnthropicMessage], source: Sequence[Any], rule: Thinking
) -> list[AnthropicMessage]:
    """The messages without the thinking blocks that the rule leaves out. Raises HistoryError."""
    first = next(
        (i for i, (a, b) in enumerate(zip(messages, source, strict=False)) if a is not b), len(source)
    )
    if rule is Thinking.KEEP or first >= len(messages):
        return messages
    keeps = answered_turn(messages) if rule is Thinking.KEEP_LAST else None
    if keeps is not None and _thinks_in_this_turn(source):
        blocks = _blocks(messages[keeps])
        if not blocks or _type(blocks[0]) not in THINKING:
            raise HistoryError(
                "the tool turn that is being answered has no thinking block of its own: send the messages as "
                "they are."
            )
    return strip_thinking(messages, rule, first)


def strip_thinking(messages: Sequence[Any], rule: Thinking, first: int = 0) -> list[Any]:
    """The messages without the thinking blocks that the rule leaves out, from the position ``first`` on.

    Messages that have none are the very objects.
    """
    keeps = answered_turn(messages) if rule is Thinking.KEEP_LAST else None
    if rule is Thinking.KEEP:
        return [*messages]
    out: list[Any] = []
    for i, message in enumerate(messages):
        blocks = _blocks(message)
        thinks = _role(message) == "assistant" and any(_type(b) in THINKING for b in blocks)
        if i < first or i == keeps or not thinks:
            out.append(message)
        elif rest := [b for b in message["content"] if _type(b) not in THINKING]:
            out.append({**message, "content": rest})
    return out


def answered_turn(messages: Sequence[AnthropicMessage]) -> int | None:
    """The position of the assistant message whose results end the list; None where something else does."""
    at = len(messages) - 1
    answers = False
    while at >= 0 and _role(messages[at]) != "assistant":
        answers = answers or any(b.get("type") == "tool_result" for b in _blocks(messages[at]))
        at -= 1
    return at if at >= 0 and answers else None


def _thinks_in_this_turn(source: Sequence[Any]) -> bool:
    """Whether the assistant thought since the user last said something besides results."""
    for message in reversed(source):
        if _role(message) == "assistant":
            if any(_type(b) in THINKING for b in _blocks(message)):
                return True
        elif _role(message) == "user" and not any(b.get("type") == "tool_result" for b in _blocks(message)):
            return False
    return False


# The check of pairs


def message_errors(messages: object) -> list[str]:
    """What the Messages API refuses in a list of messages; empty when nothing.

    - Messages of one role in a row count as one. The first is not the assistant's, and a system message
      follows one of the user.
    - All calls of an assistant message are answered in the user message directly after it, before anything
      else in that message, once each. A result answers a call of the message before it.
    - Ids of calls are not repeated. A content is a text or a list of blocks, and no text is empty.

    Takes linear time and never raises.
    """
    if not isinstance(messages, (list, tuple)):
        return [f"messages: Input should be a valid list, not {type(messages).__name__}"]
    errors: list[str] = []
    ids: set[str] = set()
    open_calls: dict[str, None] = {}
    last_role: object = None
    for role, positions in _runs(messages):
        first = positions[0]
        if role not in ("user", "assistant", "system"):
            errors.append(f"messages.{first}: Input should have the role user, assistant or system")
            continue
        if last_role is None and role == "assistant":
            errors.append("messages: first message must use the user role")
        if role == "system" and last_role != "user":
            errors.append(f"messages.{first}: a system message must follow a user message")
        blocks: list[tuple[str, object]] = []
        for i in positions:
            content = messages[i].get("content")
            may_be_empty = role == "assistant" and i + 1 == len(messages)
            if not isinstance(content, (str, list)) or (not content and not may_be_empty):
                errors.append(f"messages.{i}: all messages must have non-empty content")
            whole = content if isinstance(content, list) else [{"type": "text", "text": content or "-"}]
            blocks += [(f"messages.{i}.content.{j}", block) for j, block in enumerate(whole)]
        errors += _block_errors(blocks, role, open_calls, ids)
        if open_calls and role != "assistant":
            errors.append(_unanswered(first, open_calls))
            open_calls.clear()
        last_role = role
    if open_calls:
        errors.append(_unanswered(len(messages) - 1, open_calls))
    return errors


def _runs(messages: Sequence[Any]) -> Iterator[tuple[object, list[int]]]:
    """The roles in their order, each with the positions of the messages in a row that have it."""
    run: list[int] = []
    for i, message in enumerate(messages):
        if run and _role(messages[run[0]]) != _role(message):
            yield _role(messages[run[0]]), run
            run = []
        run.append(i)
    if run:
        yield _role(messages[run[0]]), run


def _block_errors(
    blocks: Sequence[tuple[str, object]], role: object, open_calls: dict[str, None], ids: set[str]
) -> list[str]:
    """The errors of one role's blocks; takes answered calls out of ``open_calls`` and adds new ones."""
    errors: list[str] = []
    had_other = False
    for where, block in blocks:
        kind = _type(block)
        if not isinstance(block, dict) or not isinstance(kind, str):
            errors.append(f"{where}: Input should be an object with a type")
        elif kind == "text" and not block.get("text"):
            errors.append(f"{where}: text content blocks must be non-empty")
        elif kind == "tool_use":
            call_id = str(block.get("id"))
            if role != "assistant":
                errors.append(f"{where}: `tool_use` blocks can only be in `assistant` messages")
            elif call_id in ids:
                errors.append(f"{where}: `tool_use` ids must be unique")
            else:
                ids.add(call_id)
                open_calls[call_id] = None
        elif kind == "tool_result":
            call_id = str(block.get("tool_use_id"))
            if role != "user":
                errors.append(f"{where}: `tool_result` blocks can only be in `user` messages")
            elif call_id not in open_calls or had_other:
                errors.append(
                    f"{where}: unexpected `tool_use_id` found in `tool_result` blocks: {call_id}. Each "
                    "`tool_result` block must have a corresponding `tool_use` block in the previous message."
                )
            else:
                del open_calls[call_id]
            continue
        had_other = True
    return errors


def _unanswered(i: int, open_calls: dict[str, None]) -> str:
    return (
        f"messages.{i}: `tool_use` ids were found without `tool_result` blocks immediately after: "
        f"{', '.join(list(open_calls)[:5])}. Each `tool_use` block must have a corresponding `tool_result` block "
        "in the next message."
    )


def cache_marks(*values: object) -> int:
    """How many cache marks the blocks of these contents, tools or lists of messages have."""
    count = 0
    for value in values:
        if isinstance(value, dict):
            count += value.get(CACHE_MARK) is not None
            count += cache_marks(value.get("content"))
        elif isinstance(value, (list, tuple)):
            count += cache_marks(*value)
    return count


_MARKABLE = frozenset({"text", "image", "document", "search_result", "tool_use", "tool_result"})


def with_cache_marks(request: Mapping[str, Any], messages: Sequence[Any]) -> list[Any] | None:
    """The messages to be sent for a request with cache marks; None where they need none.

    One is at the last block, and one at the end of what stands in the place of the request's older messages. A
    request that has marks of its own keeps those; only where it lost one with a message does it get others, as many
    as the API allows. A mark before one with a longer lifetime gets that lifetime, as the API demands.
    """
    source = request["messages"]
    around = cache_marks(request.get("system"), request.get("tools")) + (request.get(CACHE_MARK) is not None)
    own, left = cache_marks(source), cache_marks(messages)
    if (own or around) and left >= own:
        return None
    out = list(messages)
    for place in (_last_place(out), _end_of_fold(out, source)):
        if place is not None and around + cache_marks(out) < MOST_CACHE_MARKS:
            _mark(out, place)
    return out


def _last_place(messages: Sequence[Any]) -> BlockPlace | None:
    """The last block of the last message that may have a mark."""
    last = len(messages) - 1
    return next((p for p, b in reversed(_places(messages, last)) if _is_markable(b)), None)


def _end_of_fold(messages: Sequence[Any], source: Sequence[Any]) -> BlockPlace | None:
    """The last block before those that stand as in the request, up to the last turn; None where all do."""
    now, before = _up_to_last_turn(messages), _up_to_last_turn(source)
    same = 0
    for (_, a), (_, b) in zip(reversed(now), reversed(before), strict=False):
        if a is not b and a != b:
            break
        same += 1
    if same == len(now):
        return None
    return next((p for p, b in reversed(now[: len(now) - same]) if _is_markable(b)), None)


def _up_to_last_turn(messages: Sequence[Any]) -> list[tuple[BlockPlace, Any]]:
    """The blocks up to the last message of the assistant, without its thinking."""
    stop = next((i for i in reversed(range(len(messages))) if _role(messages[i]) == "assistant"), -1) + 1
    return [(p, b) for p, b in _places(messages[:stop]) if _type(b) not in THINKING]


def _places(messages: Sequence[Any], start: int = 0) -> list[tuple[BlockPlace, Any]]:
    """The blocks from a message on with their places; a text is one block."""
    out: list[tuple[BlockPlace, Any]] = []
    for i in range(start, len(messages)):
        if _role(messages[i]) not in ("user", "assistant", "system"):
            continue
        content = messages[i].get("content")
        if isinstance(content, list):
            out += [(BlockPlace(i, j), block) for j, block in enumerate(content)]
        else:
            out.append((BlockPlace(i), {"type": "text", "text": content}))
    return out


def _is_markable(block: object) -> bool:
    if not isinstance(block, dict) or _type(block) not in _MARKABLE:
        return False
    text = block.get("text")
    return _type(block) != "text" or (isinstance(text, str) and bool(text.strip()))


def _mark(messages: list[Any], place: BlockPlace) -> None:
    """Put a copy of a message with a mark at one of its blocks in its place; a marked block stays."""
    message = messages[place.message]
    blocks = _as_blocks(message) if place.block == _WHOLE else [*message["content"]]
    at = max(place.block, 0)
    if blocks[at].get(CACHE_MARK) is None:
        after = _places([{**message, "content": blocks[at + 1 :]}, *messages[place.message + 1 :]])
        given = (
            b[CACHE_MARK] for _, b in after if isinstance(b, dict) and isinstance(b.get(CACHE_MARK), dict)
        )
        blocks[at] = {**blocks[at], CACHE_MARK: next(given, {"type": "ephemeral"})}
        messages[place.message] = {**message, "content": blocks}
