"""The Messages API of Anthropic: its messages as a Conversation, thinking, the check of pairs, cache marks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import chain, groupby, pairwise, takewhile
from typing import Any

from memory_bank.errors import HistoryError
from memory_bank.transcript.jsontext import compact, parse_arguments, plain
from memory_bank.transcript.messages import MessageKind, content_text, same_objects, shared_length
from memory_bank.transcript.turns import (
    WHOLE,
    Change,
    ChatMessage,
    Conversation,
    Derive,
    Part,
    PartPlace,
    PartWire,
    derive_anew,
    readable,
)

AnthropicMessage = dict[str, Any]
Block = dict[str, Any]

THINKING = frozenset({"thinking", "redacted_thinking"})
CACHE_MARK = "cache_control"
MOST_CACHE_MARKS = 4
LOOKBACK = 19
"""Blocks before a cache mark in which a provider looks for an earlier one, at least."""

_ROLES = ("user", "assistant", "system")
_USER_BLOCKS = frozenset({"text", "image", "document", "search_result"})
_MARKABLE = _USER_BLOCKS | {"tool_use", "tool_result"}
_OPAQUE = frozenset({"type", "id", "signature", "data", "encrypted_content", CACHE_MARK})


class Thinking(Enum):
    """The treatment of thinking blocks after the first message that differs from the request's."""

    DROP = "all are left out: a signature may be bound to every message before it"
    KEEP_LATER = (
        "those before the end of the latest fold are left out, except what a tool turn must begin with"
    )
    KEEP = "all stay: the provider leaves out those that no longer fit"


def thinking_rule(thinking: object) -> Thinking:
    """The treatment of thinking blocks under a request's ``thinking``."""
    settings = thinking if isinstance(thinking, dict) else {}
    if drops_blocks(settings):
        return Thinking.KEEP
    return Thinking.KEEP_LATER if settings.get("type") == "enabled" else Thinking.DROP


def drops_blocks(thinking: Mapping[str, Any]) -> bool:
    """Return whether the client asked the provider to leave out thinking blocks that do not fit."""
    binding = thinking.get("block_binding")
    return isinstance(binding, dict) and binding.get("prefix_mismatch_behavior") == "drop_block"


def thinking_in(messages: Sequence[Any]) -> Thinking:
    """The treatment of thinking blocks in a list whose request is not known, by the first of them.

    A turn of a model that thinks ``enabled`` begins with thinking, and has to when its results are sent. Where the
    first block stands elsewhere or without its words, the model thinks ``adaptive``, and its signatures may be
    bound. The first block stays the first while a list grows, so that what was sent stays as it was sent.
    """
    begins = True
    for message in messages:
        speakers = _WIRE.speakers(message)
        if "assistant" in speakers:
            kinds = [_type(block) for _, block in _numbered(message)]
            if at := [i for i, kind in enumerate(kinds) if kind in THINKING]:
                words = [b.get("thinking", "-") for _, b in _numbered(message) if _type(b) in THINKING]
                return Thinking.KEEP_LATER if begins and at[0] == 0 and all(words) else Thinking.DROP
            begins = False
        begins = begins or speakers == {"user"}
    return Thinking.DROP


def is_anthropic(messages: object) -> bool:
    """Return whether a list has ``tool_use`` or ``tool_result`` of the Messages API, and no calls of a chat."""
    if not isinstance(messages, (list, tuple)):
        return False
    # most lists are chats, whose first call tells
    if any(
        isinstance(m, dict) and (m.get("tool_calls") or m.get("role") in ("tool", "function"))
        for m in messages
    ):
        return False
    turns = (m for m in messages if isinstance(m, dict) and m.get("role") in ("user", "assistant"))
    return any(_type(b) in ("tool_use", "tool_result") for m in turns for _, b in _numbered(m))


def _role(message: object) -> object:
    return message.get("role") if isinstance(message, dict) else None


def _type(block: object) -> str | None:
    kind = block.get("type") if isinstance(block, dict) else None
    return kind if isinstance(kind, str) else None


def _numbered(message: Any) -> list[tuple[int, Any]]:
    """The blocks of a message by number; a text is one block."""
    content = message.get("content")
    if isinstance(content, list):
        return list(enumerate(map(_as_dict, content)))
    return [(WHOLE, _text_block(content))]


def _as_dict(block: Any) -> Any:
    """A block of the SDK, an object, as the dict that it is sent as; any other as it is."""
    return plain(block) if callable(getattr(block, "model_dump", None)) else block


def _text_block(text: object) -> Block:
    return {"type": "text", "text": text}


def _without_cache_mark(block: Any) -> Any:
    """A block without its cache mark, which clients move from message to message."""
    if isinstance(block, dict) and CACHE_MARK in block:
        return {k: v for k, v in block.items() if k != CACHE_MARK}
    return block


# Messages to a chat, and back


def from_anthropic(
    messages: object,
    system: object = None,
    derive: Derive = derive_anew,
    thinking: Thinking = Thinking.DROP,
    earlier: Conversation[AnthropicMessage] | None = None,
) -> Conversation[AnthropicMessage]:
    """The messages of a request as chat messages. Equal messages give equal chat messages.

    An assistant turn (several messages of the assistant in a row are one) becomes one message with its text and
    calls. A user message becomes one tool message for each of its results and a user message for the rest.
    ``system`` becomes a system message that stands for no block; a system message in the list stays one.
    Blocks of server tools, MCP, compaction and unknown types become a message of the role ``item``, which no
    strategy leaves out, and a turn with such blocks stays whole. Cache marks are no part of the chat.
    ``derive`` may keep what is made of a message, so that the next request gets the same objects. ``earlier``:
    what another list was read as; the objects that both begin with, which must not be modified, are not read again.

    What is written: the memory joins the user message before it; from the first message on that differs from the
    request's, thinking blocks go as ``thinking`` says; no cache mark is added.

    Raises HistoryError when ``messages`` is no list; nothing in the list makes it raise.
    """
    if not isinstance(messages, (list, tuple)):
        raise HistoryError(f"messages must be a list of messages, not {type(messages).__name__}.")
    wire = AnthropicWire(thinking)
    chat: Conversation[AnthropicMessage] = Conversation(messages, wire)
    if text := content_text(system).strip() if system else "":
        chat.add({"role": "system", "content": text}, [], -1)
    start = chat.go_on(earlier)
    unit = chat.units[-1] if start else 0
    joins = False  # the unit is a turn with calls, which results join
    while start < len(messages):
        role, stop = _role(messages[start]), start + 1
        if role == "assistant":
            chat.begins.append((start, start, len(chat.messages)))
        while role == "assistant" and stop < len(messages) and _role(messages[stop]) == "assistant":
            stop += 1
        if stop == start + 1:
            chat_messages = derive(messages[start], lambda m: _WIRE.chat_messages([m]))
        else:
            chat_messages = wire.chat_messages(messages[start:stop])
        for n, (message, places) in enumerate(chat_messages):
            unit += n == 0 if role == "assistant" else message["role"] != "tool" or not joins
            joins = True
            chat.add(message, [PartPlace(start + p.message, p.number, p.part) for p in places], unit)
        joins = role == "assistant" and "tool_calls" in chat_messages[0][0]
        start = stop
    return chat


class AnthropicWire(PartWire[AnthropicMessage]):
    """See PartWire. The parts of a message are its blocks; a content that is a text is the part WHOLE."""

    joins_turn = True

    def __init__(self, thinking: Thinking = Thinking.DROP) -> None:
        self.thinking = thinking

    def errors(self, natives: Sequence[AnthropicMessage]) -> list[str]:
        """See Wire."""
        return message_errors(natives)

    def read(self, native: AnthropicMessage) -> dict[int, Part]:
        """See PartWire. Never raises. What the user says in a message is one part, its results stand before it."""
        role = _role(native)
        if role not in ("user", "assistant"):
            is_system = role == "system"
            text = content_text(native.get("content")) if is_system else readable(native, _OPAQUE)
            return {WHOLE: Part(MessageKind.SYSTEM if is_system else MessageKind.OTHER, text)}
        content, is_user = native.get("content"), role == "user"
        if not isinstance(content, list):
            return {WHOLE: Part(MessageKind.USER if is_user else MessageKind.SAY, content_text(content))}
        if not content:
            return {WHOLE: Part(MessageKind.USER, []) if is_user else Part(MessageKind.REASONING)}
        content = [*map(_as_dict, content)]
        parts = dict(enumerate(map(_read_by_user if is_user else _read_by_assistant, content)))
        if spoken := [j for j, part in parts.items() if part.kind is MessageKind.USER]:
            texts = [_without_cache_mark(content[j]) for j in spoken]
            only = texts[0].get("text") if len(texts) == 1 and _type(texts[0]) == "text" else None
            parts[spoken[0]] = Part(MessageKind.USER, only if isinstance(only, str) else texts)
        if not is_user:
            return parts
        return dict(sorted(parts.items(), key=lambda part: part[1].kind is not MessageKind.RESULT))

    def bound(self, native: AnthropicMessage) -> list[int]:
        blocks = _numbered(native) if _role(native) == "assistant" else ()
        return [number for number, block in blocks if _type(block) in THINKING]

    def speakers(self, native: AnthropicMessage) -> set[str]:
        """See PartWire."""
        role = _role(native)
        speakers = {role} if isinstance(role, str) and role in ("user", "assistant") else set()
        has_result = isinstance(native, dict) and any(_type(b) == "tool_result" for _, b in _numbered(native))
        return speakers | ({"result"} if has_result else set())

    def write(self, native: AnthropicMessage, change: Change) -> AnthropicMessage | None:
        numbered = _numbered(native)
        blocks = [
            _with_text(b, change[j]) if j in change else b
            for j, b in numbered
            if change.get(j, "") is not None
        ]
        return {**native, "content": blocks} if blocks else None

    def say(self, message: ChatMessage) -> AnthropicMessage:
        return {"role": "user", "content": [_text_block(content_text(message["content"]))]}

    def add(self, native: AnthropicMessage, text: str) -> AnthropicMessage:
        """See Wire."""
        return {**native, "content": [*_as_blocks(native), _text_block(text)]}

    def finish(
        self, written: list[tuple[int | None, AnthropicMessage]], source: Sequence[Any], since: int
    ) -> list[AnthropicMessage]:
        """See Wire. Raises HistoryError where a tool turn would have to keep a thinking block that it has not."""
        messages = _arranged(super().finish(written, source, since), source, written)
        return without_thinking(messages, self.thinking, source, since=since)


_WIRE = AnthropicWire()


def _read_by_user(block: Any) -> Part:
    kind = _type(block)
    if kind == "tool_result":
        content = block.get("content")
        content = [_without_cache_mark(part) for part in content] if isinstance(content, list) else content
        return Part(MessageKind.RESULT, "" if content is None else content, block.get("tool_use_id"))
    if isinstance(block, str) or kind in _USER_BLOCKS:
        return Part(MessageKind.USER, None)
    return Part(MessageKind.OTHER, readable(block, _OPAQUE))


def _read_by_assistant(block: Any) -> Part:
    kind = _type(block)
    if kind == "tool_use":
        value, name = block.get("input"), block.get("name")
        text = value if isinstance(value, str) else compact(plain(value or {}))
        return Part(MessageKind.CALL, text, block.get("id"), name if isinstance(name, str) else "unknown")
    if kind == "text":
        return Part(MessageKind.SAY, content_text(block.get("text")))
    if kind in THINKING:
        return Part(MessageKind.REASONING, signed=True)
    return Part(MessageKind.OTHER, readable(block, _OPAQUE))


def _with_text(block: Block, text: Any) -> Block:
    kind = _type(block)
    if kind == "tool_use":
        return {**block, "input": parse_arguments(text)}
    if kind == "tool_result":
        return {**block, "content": [_text_block(text)] if isinstance(block.get("content"), list) else text}
    return {**{k: v for k, v in block.items() if k != "citations"}, "text": text}


def _arranged(
    messages: Sequence[Any], source: Sequence[Any], written: Iterable[tuple[int | None, Any]]
) -> list[AnthropicMessage]:
    """The messages, each run that the request did not have so in the order that the API asks for."""
    at = {id(m): p for p, m in enumerate(source)} | {id(m): p for p, m in written if p is not None}
    out: list[AnthropicMessage] = []
    for is_assistant, group in groupby(messages, lambda m: _role(m) == "assistant"):
        run = list(group)
        late = (block for m in run[1:] if isinstance(m, dict) for _, block in _numbered(m))
        stays = is_assistant or any(_type(block) == "tool_result" for block in late)
        stays = stays or all(at.get(id(a), -2) + 1 == at.get(id(b), -2) for a, b in pairwise(run))
        if stays or any(_role(m) not in ("user", "system") for m in run):
            out += run
            continue
        for role in ("user", "system"):
            same = [m for m in run if _role(m) == role]
            if len(same) > 1:
                same = [{"role": role, "content": [b for m in same for b in _as_blocks(m)]}]
            out += same
    return out


def _as_blocks(message: AnthropicMessage) -> list[Any]:
    content = message.get("content")
    if isinstance(content, list):
        return [*map(_as_dict, content)]
    text = content_text(content)
    return [_text_block(text)] if text else []


def without_thinking(
    messages: Sequence[Any],
    rule: Thinking,
    source: Sequence[Any] = (),
    wire: PartWire[Any] = _WIRE,
    since: int | None = None,
) -> list[Any]:
    """The messages without the thinking that ``rule`` removes, from the first one on that differs from ``source``.

    ``since``: the position in the source from which on KEEP_LATER keeps all: what follows the latest fold. Else each
    request would lose the block that the one before had to send. All turns after a prompt count as one for the API,
    which has to begin with thinking if it did: the first one shown keeps its block, or gets that of the first of all.

    Raises HistoryError where the turn that is being answered must have thinking and has none.
    """

    def without(message: Any) -> Any | None:
        bound = wire.bound(message)
        return wire.write(message, dict.fromkeys(bound)) if bound else message

    def thinks(messages: Sequence[Any]) -> bool:
        turns = messages[_begin(messages, wire) :]
        return any(map(wire.bound, turns))

    pairs = enumerate(zip(messages, source, strict=False))
    first = next((i for i, (a, b) in pairs if a is not b), min(len(messages), len(source)))
    if rule is Thinking.KEEP or first >= len(messages):
        return [*messages]
    answered = answered_turn(messages, wire) if rule is Thinking.KEEP_LATER else None
    stay, later = {answered}, len(messages)
    if rule is Thinking.KEEP_LATER and since is not None:
        later_ids = {id(m) for m in source[since:]}
        later = next((i for i, m in enumerate(messages) if id(m) in later_ids), later)
        at = _first_turn(messages, later, wire)
        if at is not None and without(messages[at]) is messages[at]:
            before = _first_turn(source, since, wire)
            lead = [] if before is None else _lead(source[before])
            messages = [*messages]
            messages[at] = (
                {**messages[at], "content": [*lead, *_as_blocks(messages[at])]} if lead else messages[at]
            )
        stay.add(at)
    out = [m if i < first or i >= later or i in stay else without(m) for i, m in enumerate(messages)]
    out = [new for new, old in zip(out, messages, strict=True) if new is not None or old is None]
    if answered is not None and not thinks(out) and thinks(source):
        raise HistoryError(
            "the tool turn that is being answered has no thinking block of its own: send the messages as they are."
        )
    return out


def _lead(message: Any) -> list[Block]:
    """The thinking that a message begins with; none where it is of a framework."""
    blocks = _as_blocks(message) if isinstance(message, dict) else []
    return [*takewhile(lambda block: _type(block) in THINKING, blocks)]


def _first_turn(messages: Sequence[Any], stop: int, wire: PartWire[Any]) -> int | None:
    """The position of the first turn after the last prompt before a position; None where another prompt follows."""
    for at in range(_begin(messages[:stop], wire), len(messages)):
        speakers = wire.speakers(messages[at])
        if "assistant" in speakers or speakers == {"user"}:
            return at if "assistant" in speakers else None
    return None


def _begin(messages: Sequence[Any], wire: PartWire[Any]) -> int:
    """The position of the turns after the last prompt, a message of the user without results."""
    return next((i for i in range(len(messages), 0, -1) if wire.speakers(messages[i - 1]) == {"user"}), 0)


def answered_turn(messages: Sequence[Any], wire: PartWire[Any] = _WIRE) -> int | None:
    """The position of the assistant message whose results end the list; None where something else does."""
    answers = False
    for at in range(len(messages) - 1, -1, -1):
        speakers = wire.speakers(messages[at])
        answers = answers or "result" in speakers
        if "assistant" in speakers:
            return at if answers else None
    return None


# The check of pairs


def message_errors(messages: object) -> list[str]:
    """The errors for which the Messages API refuses a list of messages.

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
    for role, group in groupby(enumerate(messages), lambda numbered: _role(numbered[1])):
        run = list(group)
        first = run[0][0]
        if role not in _ROLES:
            errors.append(f"messages.{first}: Input should have the role user, assistant or system")
            continue
        if last_role is None and role == "assistant":
            errors.append("messages: first message must use the user role")
        if role == "system" and last_role != "user":
            errors.append(f"messages.{first}: a system message must follow a user message")
        blocks: list[tuple[str, object]] = []
        for i, message in run:
            content = message.get("content")
            may_be_empty = role == "assistant" and i + 1 == len(messages)
            if not isinstance(content, (str, list)) or (not content and not may_be_empty):
                errors.append(f"messages.{i}: all messages must have non-empty content")
            whole = [*map(_as_dict, content)] if isinstance(content, list) else [_text_block(content or "-")]
            blocks += [(f"messages.{i}.content.{j}", block) for j, block in enumerate(whole)]
        errors += _block_errors(blocks, role, open_calls, ids)
        if open_calls and role != "assistant":
            errors.append(_unanswered(first, open_calls))
            open_calls.clear()
        last_role = role
    return [*errors, _unanswered(len(messages) - 1, open_calls)] if open_calls else errors


def _block_errors(
    blocks: Sequence[tuple[str, object]], role: object, open_calls: dict[str, None], ids: set[str]
) -> Iterator[str]:
    """The errors of one role's blocks; takes answered calls out of ``open_calls`` and adds new ones."""
    had_other = False
    for where, block in blocks:
        kind = _type(block)
        if not isinstance(block, dict) or kind is None:
            yield f"{where}: Input should be an object with a type"
        elif kind == "text" and not block.get("text"):
            yield f"{where}: text content blocks must be non-empty"
        elif kind == "tool_use":
            call_id = str(block.get("id"))
            if role != "assistant":
                yield f"{where}: `tool_use` blocks can only be in `assistant` messages"
            elif call_id in ids:
                yield f"{where}: `tool_use` ids must be unique"
            else:
                ids.add(call_id)
                open_calls[call_id] = None
        elif kind == "tool_result":
            call_id = str(block.get("tool_use_id"))
            if role != "user":
                yield f"{where}: `tool_result` blocks can only be in `user` messages"
            elif call_id not in open_calls or had_other:
                yield (
                    f"{where}: unexpected `tool_use_id` found in `tool_result` blocks: {call_id}. Each "
                    "`tool_result` block must have a corresponding `tool_use` block in the previous message."
                )
            else:
                del open_calls[call_id]
        had_other = had_other or kind != "tool_result"


def _unanswered(i: int, open_calls: dict[str, None]) -> str:
    return (
        f"messages.{i}: `tool_use` ids were found without `tool_result` blocks immediately after: "
        f"{', '.join(list(open_calls)[:5])}. Each `tool_use` block must have a corresponding `tool_result` block "
        "in the next message."
    )


# Cache marks


def cache_marks(*values: object) -> int:
    """The number of cache marks in contents, tools or messages."""
    count, rest = 0, [*values]
    for value in rest:  # which grows
        if isinstance(value, dict):
            count += value.get(CACHE_MARK) is not None
            rest.append(value.get("content"))
        elif isinstance(value, list | tuple):
            rest += value
    return count


def cache_marks_beside(request: Mapping[str, Any]) -> int:
    """The number of cache marks of a request that are not in its messages; one for the last block counts, too."""
    return cache_marks(request.get("system"), request.get("tools")) + (request.get(CACHE_MARK) is not None)


def marked_head(
    request: Mapping[str, Any], counts: Sequence[int], places: Sequence[Sequence[PartPlace]]
) -> int | None:
    """How much of a request the cache marks cover: 0: nothing, 1: the tools, n + 1: also the first n chat messages.

    None where they reach its last turn. ``counts``: how many each message has; ``places``: the parts of each chat
    message.
    """
    if request.get(CACHE_MARK) is not None or any(counts[_last_turn(request["messages"]) :]):
        return None
    if any(counts):
        last = max(i for i, count in enumerate(counts) if count)
        return 1 + sum(not of or of[0].message <= last for of in places)
    if cache_marks(request.get("system")):
        return 1 + (not places[0])
    return int(cache_marks(request.get("tools")) > 0)


def with_cache_marks(
    request: Mapping[str, Any],
    messages: Sequence[Any],
    counts: Sequence[int] | None = None,
    *,
    stands: bool = True,
    ends: Sequence[Sequence[Any]] | None = None,
) -> list[Any] | None:
    """The messages to be sent for a request with cache marks; None where they need none.

    Cache marks are added at the last block, at the end of the anchor (it is read again at each fold) and at the end
    of the request before, unless the client has one at the end, and up to four with the client's, which the API
    allows. Where the client has four, the first of several after the anchor moves there. A request that goes as it
    came, with a cache mark at its end, is not changed. ``stands``: the next context will begin as this one; else the
    anchor alone. ``counts``: the cache marks of each message, where they are known. ``ends``: the beginnings of the
    messages that get one at their ends instead, the longest first; nothing behind them gets one.

    A cache mark before one with a longer lifetime gets that lifetime, as the API demands.
    """
    source = request["messages"]
    is_changed = not same_objects(messages, source)
    counts = [*(map(cache_marks, messages) if counts is None else counts)]
    last, every = _last_turn(messages), range(len(messages))
    ends_marked = any(counts[last:])
    if ends_marked and not is_changed:
        return None
    is_marked = ends_marked or request.get(CACHE_MARK) is not None
    if is_changed:  # the anchor is what both begin with, else what stands before any call
        begun = shared_length(messages, source)
        both = zip(_places(messages, every[begun:]), _places(source, range(begun, len(source))), strict=False)
        shared = takewhile(lambda two: two[0][1] is two[1][1] or two[0][1] == two[1][1], both)
        anchor = chain([block for block, _ in shared][::-1], _places(messages, every[:begun], -1))
    else:
        blocks = _places(messages)
        calls = next((p.message for p, block in blocks if _type(block) == "tool_use"), len(messages))
        anchor = chain(_places(messages, every[:calls], -1))
    late = [] if is_marked or not stands else [_places(messages, every[-1:], -1)]
    early = [_places(messages, every[:last] if stands else (), -1)]
    if ends is not None:
        since = max(0, len(ends[-1]) - 1) if ends else 0
        sizes = [sum(len(_numbered(m)) for m in end[since:]) for end in ends]
        if len(sizes) > 1 and sizes[0] - sizes[1] < LOOKBACK:  # the provider finds the second
            ends = ends[:1]
        late = [_places(end, step=-1) for end in ends]
        most = next((p for end in ends for p, _ in _places(end, step=-1)), None)
        anchor, early = chain(run for run in anchor if most and run[0] <= most), []
    out, around = list(messages), cache_marks_beside(request)
    for run in (*late, anchor, *early):
        place = next((p for p, block in run if _takes_cache_mark(block)), None)
        if place is None:
            continue
        if around + sum(counts) == MOST_CACHE_MARKS and run is anchor and is_changed:
            _drop_cache_mark(out, place)
            counts = [*map(cache_marks, out)]
        if around + sum(counts) < MOST_CACHE_MARKS:
            _add_cache_mark(out, place, counts)
    return None if same_objects(out, messages) else out


def _last_turn(messages: Sequence[Any]) -> int:
    """The position at which the last turn of the assistant begins; the end where there is none."""
    last = next(
        (i for i in reversed(range(len(messages))) if _role(messages[i]) == "assistant"), len(messages)
    )
    while 0 < last < len(messages) and _role(messages[last - 1]) == "assistant":
        last -= 1
    return last


def _drop_cache_mark(messages: list[Any], anchor: PartPlace) -> None:
    """Take one of the client's cache marks away where several are after the anchor: the first of them."""
    marked = [
        p
        for p, b in _places(messages)
        if p > anchor and isinstance(b, dict) and b.get(CACHE_MARK) is not None
    ]
    if len(marked) > 1:
        message, at = messages[marked[0].message], marked[0].number
        blocks = [_without_cache_mark(b) if i == at else b for i, b in enumerate(_as_blocks(message))]
        messages[marked[0].message] = {**message, "content": blocks}


def _places(
    messages: Sequence[Any], at: Sequence[int] | None = None, step: int = 1
) -> Iterator[tuple[PartPlace, Any]]:
    """The blocks of the messages, or of those ``at`` some positions; ``step`` -1: from the last on."""
    for i in (range(len(messages)) if at is None else at)[::step]:
        if _role(messages[i]) in _ROLES:
            for j, block in _numbered(messages[i])[::step]:
                yield PartPlace(i, j), block


def _takes_cache_mark(block: Any) -> bool:
    text = block.get("text") if _type(block) == "text" else "-"
    return _type(block) in _MARKABLE and isinstance(text, str) and bool(text.strip())  # an empty text may not


def _add_cache_mark(messages: list[Any], place: PartPlace, counts: list[int]) -> None:
    """Replace a message by a copy with a cache mark at one of its blocks, unless that has one; count it."""
    message, at = messages[place.message], max(place.number, 0)
    blocks = [*_as_blocks(message)]
    if blocks[at].get(CACHE_MARK) is None:
        rest = _places(messages, [i for i in range(place.message, len(messages)) if counts[i]])
        after = (b for p, b in rest if p > place and isinstance(b, dict))
        marks = (b[CACHE_MARK] for b in after if isinstance(b.get(CACHE_MARK), dict))
        blocks[at] = {**blocks[at], CACHE_MARK: next(marks, {"type": "ephemeral"})}
        messages[place.message] = {**message, "content": blocks}
        counts[place.message] += 1
