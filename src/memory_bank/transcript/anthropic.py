"""The Messages API of Anthropic: its blocks, the check of their pairs, and its messages as a Conversation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from itertools import groupby, pairwise
from typing import Any

from memory_bank.errors import HistoryError
from memory_bank.transcript.jsontext import compact, parse_arguments, plain
from memory_bank.transcript.messages import call_entry, content_text
from memory_bank.transcript.turns import KEPT_ROLE, WHOLE, Change, ChatMessage, Conversation, PartPlace, Wire

AnthropicMessage = dict[str, Any]
Block = dict[str, Any]
Part = tuple[ChatMessage, list[PartPlace]]
"""A chat message and its blocks, whose messages are numbered from the first of their turn."""
Make = Callable[[Any], list[Part]]
Derive = Callable[[Any, Make], list[Part]]
"""Returns what a function makes of a message. It may return what it made of the same object before."""

THINKING = frozenset({"thinking", "redacted_thinking"})
CACHE_MARK = "cache_control"
MOST_CACHE_MARKS = 4

_USER_BLOCKS = frozenset({"text", "image", "document", "search_result"})
_HIDDEN = frozenset({"type", "id", "signature", "data", "encrypted_content", CACHE_MARK})
_NOTHING = PartPlace(0, WHOLE)  # the message as a whole, which is never changed


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


def from_anthropic(
    messages: object,
    system: object = None,
    derive: Derive = derive_anew,
    thinking: Thinking = Thinking.DROP,
) -> Conversation[AnthropicMessage]:
    """The messages of a request as chat messages. Equal messages give equal chat messages.

    An assistant turn (several messages of the assistant in a row are one) becomes one message with its text and
    calls. A user message becomes one tool message for each of its results and a user message for the rest.
    ``system`` becomes a system message that stands for no block; a system message in the list stays one.
    Blocks of server tools, MCP, compaction and unknown types become a message of the role ``item``, which no
    strategy leaves out, and a turn with such blocks stays whole. Cache marks are no part of the chat.
    ``derive`` may keep what is made of a message, so that the next request gets the same objects.

    What is written: the memory joins the user message before it; from the first message on that differs from the
    request's, thinking blocks go as ``thinking`` says; no cache mark is added.

    Raises HistoryError when ``messages`` is no list; nothing in the list makes it raise.
    """
    if not isinstance(messages, (list, tuple)):
        raise HistoryError(f"messages must be a list of messages, not {type(messages).__name__}.")
    chat: Conversation[AnthropicMessage] = Conversation(messages, AnthropicWire(thinking))
    unit = 0

    def put(part: Part, start: int) -> None:
        message, places = part
        chat.add(message, [PartPlace(start + i, j, number) for i, j, number in places], unit)

    text = content_text(system).strip() if system else ""
    if text:
        put(({"role": "system", "content": text}, []), 0)
    at = 0
    joins = False  # the unit is a turn with calls, which results join
    while at < len(messages):
        role, start = _role(messages[at]), at
        at += 1
        while role == "assistant" and at < len(messages) and _role(messages[at]) == "assistant":
            at += 1
        if role == "user":
            for part in derive(messages[start], _said_by_user):
                unit += part[0]["role"] != "tool" or not joins
                joins = True
                put(part, start)
            joins = False
            continue
        unit += 1
        if role == "assistant":
            run = messages[start:at]
            parts = derive(run[0], lambda m: _turn([m])) if len(run) == 1 else _turn(run)
        else:
            message = messages[start]
            said = content_text(message.get("content")) if role == "system" else _readable(message)
            parts = [({"role": "system" if role == "system" else KEPT_ROLE, "content": said}, [_NOTHING])]
        joins = "tool_calls" in parts[0][0]
        for part in parts:
            put(part, start)
    return chat


def _turn(run: Sequence[Any]) -> list[Part]:
    """Make one message of an assistant turn, with its text and calls, and an item for blocks of other kinds."""
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    made: list[PartPlace] = []
    opaque: list[PartPlace] = []
    for i, message in enumerate(run):
        content = message.get("content")
        if not isinstance(content, list):
            texts.append(content_text(content))
            made.append(PartPlace(i, WHOLE, WHOLE))
            continue
        if not content:
            made.append(PartPlace(i, WHOLE))
        for j, block in enumerate(content):
            kind = _type(block)
            if kind == "tool_use":
                made.append(PartPlace(i, j, len(calls)))
                calls.append(_tool_call(block))
            elif kind == "text":
                made.append(PartPlace(i, j, WHOLE))
                texts.append(content_text(block.get("text")))
            else:
                (made if kind in THINKING else opaque).append(PartPlace(i, j))
    text = "\n".join(t for t in texts if t)
    kept = _item([run[place.message]["content"][place.number] for place in opaque])
    if calls:
        turn = {"role": "assistant", "content": text or None, "tool_calls": calls}
        # between a call and its result, an item keeps the turn from being left out
        return [(turn, made), (kept, opaque)] if opaque else [(turn, made)]
    if opaque:  # a turn of the provider's own tools
        return [({"role": KEPT_ROLE, "content": "\n".join((text, kept["content"]))}, made + opaque)]
    return [({"role": "assistant", "content": text}, made)]


def _said_by_user(message: Any) -> list[Part]:
    """Divide a user message: each result becomes a tool message, texts and images become one user message.

    Blocks of other kinds become one item.
    """
    content = message.get("content")
    if not isinstance(content, list):
        return [({"role": "user", "content": content_text(content)}, [_NOTHING])]
    results = [j for j, b in enumerate(content) if _type(b) == "tool_result"]
    said = [j for j, b in enumerate(content) if isinstance(b, str) or _type(b) in _USER_BLOCKS]
    other = [j for j in range(len(content)) if j not in {*results, *said}]
    parts: list[Part] = [(_tool_message(content[j]), [PartPlace(0, j, WHOLE)]) for j in results]
    if said or not content:
        texts = [_unmarked(content[j]) for j in said]
        is_text = len(texts) == 1 and _type(texts[0]) == "text" and isinstance(texts[0].get("text"), str)
        places = [PartPlace(0, j) for j in said] or [_NOTHING]
        parts.append(({"role": "user", "content": texts[0]["text"] if is_text else texts}, places))
    if other:
        parts.append((_item([content[j] for j in other]), [PartPlace(0, j) for j in other]))
    return parts


def _item(blocks: Sequence[Any]) -> ChatMessage:
    """A message that no strategy leaves out, for blocks that are kept as they are."""
    return {"role": KEPT_ROLE, "content": "\n".join(map(_readable, blocks))}


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


class AnthropicWire(Wire[AnthropicMessage]):
    """See Wire. The parts of a message are its blocks; a content that is a text is the part WHOLE."""

    def __init__(self, thinking: Thinking) -> None:
        self._thinking = thinking

    def write(self, native: AnthropicMessage, change: Change) -> AnthropicMessage | None:
        content = native["content"] if isinstance(native["content"], list) else [{"type": "text"}]
        whole = change.get(WHOLE, "")
        changed = change if isinstance(native["content"], list) else {0: whole}
        blocks = [
            _with_text(block, changed[j]) if j in changed else block
            for j, block in enumerate(content)
            if changed.get(j, "") is not None
        ]
        return {**native, "content": blocks} if blocks else None

    def say(self, message: ChatMessage) -> AnthropicMessage:
        return {"role": "user", "content": [{"type": "text", "text": content_text(message["content"])}]}

    def repair(self, message: ChatMessage, source: Sequence[Any]) -> AnthropicMessage:  # noqa: ARG002
        if message["role"] == "tool":
            block = {"type": "tool_result", "tool_use_id": message["tool_call_id"]}
            return {"role": "user", "content": [{**block, "content": message["content"]}]}
        made = [
            {"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": {}}
            for call in message["tool_calls"]
        ]
        return {"role": "assistant", "content": made}

    def finish(
        self, written: list[tuple[int | None, AnthropicMessage]], source: Sequence[Any]
    ) -> list[AnthropicMessage]:
        """See Wire. Raises HistoryError where the messages would have a broken pair that those read had not.

        Also where a tool turn would have to keep a thinking block that it has not.
        """
        messages = _arranged(super().finish(written, source), source)
        messages = without_thinking(messages, self._thinking, source)
        if message_errors(messages) and not message_errors(source):
            raise HistoryError(
                "the rebuilt context would break a call from its result: send the messages as they are."
            )
        return messages


def _with_text(block: Block, text: Any) -> Block:
    """The block with other arguments, another result or another text."""
    kind = _type(block)
    if kind == "tool_use":
        return {**block, "input": parse_arguments(text)}
    if kind == "tool_result":
        is_list = isinstance(block.get("content"), list)
        return {**block, "content": [{"type": "text", "text": text}] if is_list else text}
    return {**{k: v for k, v in block.items() if k != "citations"}, "text": text}


def _arranged(messages: Sequence[Any], source: Sequence[Any]) -> list[AnthropicMessage]:
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


def _kinds(message: Any) -> set[str]:
    kinds = {role for role in ("user", "assistant") if _role(message) == role}
    return kinds | {"result" for b in _blocks(message) if b.get("type") == "tool_result"}


def _without(message: Any) -> Any | None:
    blocks = _blocks(message)
    if _role(message) != "assistant" or not any(_type(b) in THINKING for b in blocks):
        return message
    rest = [b for b in message["content"] if _type(b) not in THINKING]
    return {**message, "content": rest} if rest else None


def without_thinking(
    messages: Sequence[Any],
    rule: Thinking,
    source: Sequence[Any] = (),
    kinds: Callable[[Any], set[str]] = _kinds,
    without: Callable[[Any], Any | None] = _without,
) -> list[Any]:
    """The messages without the thinking blocks that the rule leaves out from the first that differs from ``source``.

    ``kinds`` says of a message whether it is of the "user", of the "assistant", or has a "result"; ``without`` gives
    it without its thinking, itself where it has none, None where nothing is left.

    Raises HistoryError where the turn that is being answered must have thinking and has none.
    """
    pairs = enumerate(zip(messages, source, strict=False))
    first = next((i for i, (a, b) in pairs if a is not b), min(len(messages), len(source)))
    if rule is Thinking.KEEP or first >= len(messages):
        return [*messages]
    keeps = answered_turn(messages, kinds) if rule is Thinking.KEEP_LAST else None
    if keeps is not None and without(messages[keeps]) is messages[keeps]:
        for message in reversed(source):
            if without(message) is not message:
                raise HistoryError(
                    "the tool turn that is being answered has no thinking block of its own: send the messages "
                    "as they are."
                )
            if "user" in kinds(message) and "result" not in kinds(message):
                break
    out = [m if i < first or i == keeps else without(m) for i, m in enumerate(messages)]
    return [new for new, old in zip(out, messages, strict=True) if new is not None or old is None]


def answered_turn(messages: Sequence[Any], kinds: Callable[[Any], set[str]] = _kinds) -> int | None:
    """The position of the assistant message whose results end the list; None where something else does."""
    answers = False
    for at in range(len(messages) - 1, -1, -1):
        found = kinds(messages[at])
        answers = answers or "result" in found
        if "assistant" in found:
            return at if answers else None
    return None


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
    for role, run in groupby(range(len(messages)), lambda i: _role(messages[i])):
        positions = list(run)
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
    for place in (_last_markable(_places(out, len(out) - 1)), _end_of_fold(out, source)):
        if place is not None and around + cache_marks(out) < MOST_CACHE_MARKS:
            _mark(out, place)
    return out


def _end_of_fold(messages: Sequence[Any], source: Sequence[Any]) -> PartPlace | None:
    """The last block before those that stand as in the request, up to the last turn; None where all do."""
    now, before = _up_to_last_turn(messages), _up_to_last_turn(source)
    same = 0
    for (_, a), (_, b) in zip(reversed(now), reversed(before), strict=False):
        if a is not b and a != b:
            break
        same += 1
    return _last_markable(now[: len(now) - same])


def _up_to_last_turn(messages: Sequence[Any]) -> list[tuple[PartPlace, Any]]:
    """The blocks up to the last message of the assistant, without its thinking."""
    stop = next((i for i in reversed(range(len(messages))) if _role(messages[i]) == "assistant"), -1) + 1
    return [(p, b) for p, b in _places(messages[:stop]) if _type(b) not in THINKING]


def _places(messages: Sequence[Any], start: int = 0) -> list[tuple[PartPlace, Any]]:
    """The blocks from a message on with their places; a text is one block."""
    out: list[tuple[PartPlace, Any]] = []
    for i in range(start, len(messages)):
        if _role(messages[i]) not in ("user", "assistant", "system"):
            continue
        content = messages[i].get("content")
        if isinstance(content, list):
            out += [(PartPlace(i, j), block) for j, block in enumerate(content)]
        else:
            out.append((PartPlace(i, WHOLE), {"type": "text", "text": content}))
    return out


def _last_markable(blocks: Sequence[tuple[PartPlace, Any]]) -> PartPlace | None:
    """The place of the last block that may have a mark; an empty text may have none."""

    def may(block: Any) -> bool:
        text = block.get("text") if _type(block) == "text" else "-"
        return _type(block) in _MARKABLE and isinstance(text, str) and bool(text.strip())

    return next((place for place, block in reversed(blocks) if may(block)), None)


def _mark(messages: list[Any], place: PartPlace) -> None:
    """Put a copy of a message with a mark at one of its blocks in its place; a marked block stays."""
    message = messages[place.message]
    blocks = _as_blocks(message) if place.number == WHOLE else [*message["content"]]
    at = max(place.number, 0)
    if blocks[at].get(CACHE_MARK) is None:
        after = _places([{**message, "content": blocks[at + 1 :]}, *messages[place.message + 1 :]])
        given = (
            b[CACHE_MARK] for _, b in after if isinstance(b, dict) and isinstance(b.get(CACHE_MARK), dict)
        )
        blocks[at] = {**blocks[at], CACHE_MARK: next(given, {"type": "ephemeral"})}
        messages[place.message] = {**message, "content": blocks}
