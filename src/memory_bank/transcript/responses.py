"""The Responses API: its items, the check of their pairs, and its input as a chat and back.

``from_items`` makes chat messages of a request's ``input``, ``to_items`` makes items of a rebuilt chat again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from memory_bank.errors import HistoryError
from memory_bank.transcript.jsontext import compact
from memory_bank.transcript.messages import (
    HOSTED,
    call_entry,
    calls_by_place,
    content_text,
    source_positions,
)

Item = dict[str, Any]
ChatMessage = dict[str, Any]

ROLES = frozenset({"user", "assistant", "system", "developer"})

OUTPUT_OF = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "computer_call": "computer_call_output",
    "local_shell_call": "local_shell_call_output",
    "shell_call": "shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
    "program": "program_output",
}
"""Types of calls, and the type of the item that answers each."""

CALL_OF = {output: call for call, output in OUTPUT_OF.items()}

HELD = ("previous_response_id", "conversation")
"""Members of a request by which the provider knows earlier items that the request does not bring."""

# Items that mean the same wherever they stand. An item of any other type that is not known here is taken to
# belong to what follows it, as reasoning and references do.
_POSITION_FREE = frozenset(
    {
        "mcp_list_tools", "mcp_approval_request", "mcp_approval_response", "mcp_call", "tool_search_call",
        "tool_search_output", "additional_tools", "configuration_update", "compaction", "compaction_trigger",
    }
)  # fmt: skip
_LEADS = frozenset({"reasoning", "item_reference"})  # belong to the turn after them, and go with it
_HIDDEN = frozenset({"type", "id", "status", "encrypted_content", "fingerprint"})
_ARGUMENTS = {
    "computer_call": ("action", "actions"),
    "local_shell_call": ("action",),
    "shell_call": ("action",),
    "apply_patch_call": ("operation",),
    "web_search_call": ("action",),
}
_NAMED_ARGUMENTS = {
    "program": {"code": "code"},
    "file_search_call": {"queries": "queries"},
    "code_interpreter_call": {"code": "code"},
    "image_generation_call": {"prompt": "revised_prompt"},
}


def stands_alone(body: Item) -> str | None:
    """The member of a request by which the provider knows earlier items; None where the request has none.

    That is ``previous_response_id`` or ``conversation``: ``input`` then holds only the new items, and the
    model sees the earlier ones whatever memory leaves out. A stored ``prompt``, ``background``, ``store`` and
    ``context_management`` leave the input whole.
    """
    return next((key for key in HELD if body.get(key) is not None), None)


# Items


def item_type(item: object) -> str:
    """The type of an item, ``message`` and ``item_reference`` also where they leave it out; else ``""``."""
    if not isinstance(item, dict):
        return ""
    kind = item.get("type")
    if isinstance(kind, str):
        return kind
    if kind is None and isinstance(item.get("role"), str):
        return "message"
    if kind is None and isinstance(item.get("id"), str) and item.keys() <= {"id", "type"}:
        return "item_reference"
    return ""


def call_id_of(item: Item) -> str | None:
    """The id that pairs a call with its output; None where there is none."""
    call_id = item.get("call_id")
    if call_id is None and item.get("type") in HOSTED | {"local_shell_call_output"}:
        call_id = item.get("id")
    return call_id if isinstance(call_id, str) else None


def tool_call(item: Item) -> dict[str, Any]:
    """A call as an entry of ``tool_calls``. Tools without a name of their own are named by their type."""
    kind = item_type(item)
    if kind == "custom_tool_call":
        custom = {"name": _tool_name(item), "input": item.get("input")}
        return {"id": call_id_of(item), "type": "custom", "custom": custom}
    if kind in ("function_call", "mcp_call"):
        arguments = item.get("arguments")
    elif kind in _NAMED_ARGUMENTS:
        names = _NAMED_ARGUMENTS[kind].items()
        arguments = compact({k: item[v] for k, v in names if item.get(v) is not None})
    else:
        found: Any = next((item[k] for k in _ARGUMENTS.get(kind, ()) if item.get(k) is not None), {})
        if kind == "web_search_call" and isinstance(found, dict):  # its sources are the result
            found = {k: v for k, v in found.items() if k != "sources"}
        arguments = compact(found)
    return call_entry(call_id_of(item), _tool_name(item), arguments)


def _tool_name(item: Item) -> str:
    name = item.get("name")
    return name if isinstance(name, str) and name else item_type(item)


def tool_message(item: Item) -> ChatMessage:
    """The result of a call as a tool message: from an output item, or from a call that holds its own."""
    message: ChatMessage = {"role": "tool", "tool_call_id": call_id_of(item), "content": _output(item)}
    if message["tool_call_id"] is None:
        name = _tool_name(item) if item_type(item) in HOSTED else item.get("name")
        if isinstance(name, str):
            message["name"] = name
    return message


def _output(item: Item) -> object:
    kind = item_type(item)
    if kind == "computer_call_output":
        return [item.get("output")]
    if kind == "apply_patch_call_output" and item.get("output") is None:
        return compact({"status": item.get("status")})
    if kind == "program_output":
        return item.get("result")
    if kind == "image_generation_call":
        image = item.get("result")
        return [{"type": "input_image", "image_url": image}] if image else _failure(item)
    if kind == "code_interpreter_call":
        return [_code_output(o) for o in item.get("outputs") or ()] or ""
    if kind == "file_search_call":
        return compact(item["results"]) if item.get("results") else ""
    if kind == "web_search_call":
        action = item.get("action")
        sources = action.get("sources") if isinstance(action, dict) else None
        return compact(sources) if sources else ""
    output: object = item.get("output")
    return _failure(item) if output is None and kind in HOSTED else output


def _failure(item: Item) -> str:
    error = item.get("error")
    return "" if error is None else error if isinstance(error, str) else compact({"error": error})


def _code_output(output: object) -> object:
    if isinstance(output, dict) and output.get("type") == "logs":
        return {"type": "input_text", "text": content_text(output.get("logs"))}
    if isinstance(output, dict) and output.get("type") == "image":
        return {"type": "input_image", "image_url": output.get("url")}
    return output


def with_output(item: Item, content: object) -> Item:
    """The item with another text as its output; unchanged where its output cannot be a text."""
    kind = item_type(item)
    text = content_text(content)
    if kind in ("function_call_output", "custom_tool_call_output"):
        return {**item, "output": content}
    if kind in ("local_shell_call_output", "apply_patch_call_output", "mcp_call"):
        return {**item, "output": text}
    if kind == "shell_call_output":
        given = item.get("output")
        first = given[0] if isinstance(given, list) and given else {}
        outcome = first.get("outcome") if isinstance(first, dict) else None
        chunk = {"stdout": text, "stderr": "", "outcome": outcome or {"type": "exit", "exit_code": 0}}
        return {**item, "output": [chunk]}
    if kind == "code_interpreter_call":
        return {**item, "outputs": [{"type": "logs", "logs": text}]}
    return item


def with_arguments(item: Item, entry: dict[str, Any]) -> Item:
    """The call with the arguments of an entry of ``tool_calls``; unchanged where its type has others."""
    kind = item_type(item)
    if kind not in ("function_call", "custom_tool_call"):
        return item
    key, member = ("arguments", "function") if kind == "function_call" else ("input", "custom")
    body = entry.get(member)
    given = body.get(key) if isinstance(body, dict) else None
    return item if given is None or given == item.get(key) else {**item, key: given}


def with_words(item: Item, text: str) -> Item:
    """The assistant's message with another text."""
    if isinstance(item.get("content"), str):
        return {**item, "content": text}
    return {**item, "content": [{"type": "output_text", "text": text, "annotations": []}]}


def answer_to(call: Item, content: object) -> Item | None:
    """A new output item for a call that had none; None where its output cannot be a text."""
    kind = item_type(call)
    if kind not in ("function_call", "custom_tool_call"):
        return None
    return {"type": OUTPUT_OF[kind], "call_id": call_id_of(call), "output": content}


def call_for(output: Item, name: str) -> Item | None:
    """A new call item for an output that had none; None for other outputs than those of functions."""
    kind = CALL_OF.get(item_type(output))
    head = {"type": kind, "call_id": call_id_of(output), "name": name}
    if kind == "function_call":
        return {**head, "arguments": "{}"}
    return {**head, "input": ""} if kind == "custom_tool_call" else None


# The check of pairs


def item_errors(items: object) -> list[str]:
    """What the Responses API refuses in a list of input items, in its words; empty when nothing.

    - Every output answers a call that stands before it. Every call but an asynchronous one or a program has
      its output behind it; an id that several calls share has as many outputs.
    - A reasoning item is followed by more reasoning or by an item of the model.
    - No two items have the same ``id``; a call's output and an ``item_reference`` may name it again.

    Takes linear time and never raises.
    """
    if not isinstance(items, (list, tuple)):
        return [f"Invalid type for 'input': expected an array, but got {type(items).__name__}."]
    errors: list[str] = []
    unanswered: Counter[tuple[str, str]] = Counter()
    answered_later: set[tuple[str, str]] = set()  # may be answered in a later request
    ids: set[str] = set()
    reasoning = ""
    for i, item in enumerate(items):
        kind = item_type(item)
        if not kind:
            errors.append(f"Invalid value for 'input[{i}]': expected an item with a type or a role.")
            continue
        if reasoning and _is_by_client(item):
            errors.append(_reasoning_error(reasoning))
        reasoning = _id_text(item.get("id")) if kind == "reasoning" else ""
        if kind in OUTPUT_OF:
            key = (kind, _id_text(call_id_of(item)))
            unanswered[key] += 1
            if kind == "program" or item.get("async") is True:
                answered_later.add(key)
        elif kind in CALL_OF:
            key = (CALL_OF[kind], _id_text(call_id_of(item)))
            if unanswered[key] < 1:
                words = key[0].replace("_", " ")
                errors.append(f"No tool call found for {words} output with call_id {key[1]}.")
            else:
                unanswered[key] -= 1
        own = item.get("id")
        if isinstance(own, str) and kind not in ("item_reference", "local_shell_call_output"):
            if own in ids:
                errors.append(
                    f"Duplicate item found with id {own}. "
                    "Remove duplicate items from your input and try again."
                )
            ids.add(own)
    if reasoning:
        errors.append(_reasoning_error(reasoning))
    for key, calls in unanswered.items():
        if calls and key not in answered_later:
            errors.append(f"No tool output found for {key[0].replace('_', ' ')} {key[1]}.")
    return errors


def _is_by_client(item: Item) -> bool:
    """Whether an item of this type comes from the client, and never from the model."""
    kind = item_type(item)
    if kind == "message":
        return bool(item.get("role") != "assistant")
    return kind == "mcp_approval_response" or (kind in CALL_OF and kind != "program_output")


def _reasoning_error(reasoning: str) -> str:
    return f"Item '{reasoning}' of type 'reasoning' was provided without its required following item."


def _id_text(value: object) -> str:
    return value if isinstance(value, str) else "None"


# Items to messages


@dataclass(frozen=True, slots=True)
class _MessageItems:
    """The unit that a message belongs to, and the positions of the items that it stands for."""

    unit: int
    items: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ItemChat:
    """Items as chat ``messages``, with what ``to_items`` needs: which items each message stands for."""

    messages: list[ChatMessage]
    items: Sequence[Any]
    parts: dict[int, _MessageItems] = field(repr=False)  # by the identity of the message
    units: list[list[ChatMessage]] = field(repr=False)  # the messages of each unit


def from_items(items: object, instructions: object = None) -> ItemChat:
    """Group the items of a request's ``input`` (a text, or a list of items) into units, as chat messages.

    An assistant turn becomes one message: its reasoning, its text directly before its calls, and all calls up
    to the first output. A hosted call, which holds its own result, becomes a call and a result. Two calls
    with an output between them may have been made together or not; they become two turns. The calls of a
    ``program`` are one turn with it. Items that only the provider can read (compaction, unknown types, a
    reference that leads to nothing) become a message of the role ``item``, which no strategy leaves out, and a
    turn that follows an unknown item is bound to it. A reference belongs to the turn after it, as reasoning does.
    ``instructions`` become a system message that stands for no item. Equal items give equal messages.

    Raises HistoryError when ``items`` is neither text nor list; nothing in the list makes it raise.
    """
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    if not isinstance(items, (list, tuple)):
        raise HistoryError(f"input must be a text or a list of items, not {type(items).__name__}.")
    reader = _ItemReader(items)
    if isinstance(instructions, str) and instructions:
        reader.put(({"role": "system", "content": instructions}, ()))
    for position in range(len(items)):
        reader.feed(position)
    reader.close()
    return ItemChat([m for unit in reader.units for m in unit], items, reader.parts, reader.units)


class _ItemTurn:
    """An assistant turn being read: its calls, their results, and the items that bind it."""

    def __init__(self) -> None:
        self.made: list[int] = []  # reasoning, text and calls
        self.calls: list[dict[str, Any]] = []
        self.texts: list[object] = []
        self.bonds: list[int] = []
        self.answers: list[tuple[int, ChatMessage]] = []
        self.ids: set[str | None] = set()
        self.unanswered: Counter[str | None] = Counter()
        self.programs: set[str | None] = set()  # still running
        self.has_outputs = False

    def takes(self, call: Item, has_lead: bool) -> bool:
        """Whether one more call was made in this turn."""
        caller = call.get("caller")
        if self.programs or (isinstance(caller, dict) and caller.get("caller_id") in self.ids - {None}):
            return True
        return not self.has_outputs and bool(+self.unanswered or not has_lead)

    def add_call(self, position: int, item: Item) -> None:
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

    def add_output(self, position: int, item: Item) -> None:
        call_id = call_id_of(item)
        self.answers.append((position, tool_message(item)))
        self.unanswered[call_id] -= 1
        self.has_outputs = True
        if item_type(item) == "program_output":
            self.programs.discard(call_id)


class _ItemReader:
    """Groups items into ``units`` of messages, one item at a time; ``parts`` say what each stands for."""

    def __init__(self, items: Sequence[Any]) -> None:
        self.items = items
        self.units: list[list[ChatMessage]] = []
        self.parts: dict[int, _MessageItems] = {}
        self._turn: _ItemTurn | None = None
        self._lead: list[int] = []  # belongs to what follows

    def feed(self, position: int) -> None:
        """Read the next item."""
        item = self.items[position]
        kind = item_type(item)
        if kind == "message" and item["role"] in ROLES:
            self._feed_message(position, item)
        elif kind in OUTPUT_OF or (kind in HOSTED and item.get("approval_request_id") is None):
            # an approved call stays apart: without it the provider would take the approval for open
            self._feed_call(position, item)
        elif kind in CALL_OF:
            self._feed_output(position, item)
        elif kind in _POSITION_FREE:
            self._feed_position_free(position)
        elif kind != "reasoning" and self._turn and _has_call_id(item) and item["call_id"] in self._turn.ids:
            self._bind(self._turn, position)
        else:
            self._lead.append(position)

    def close(self) -> None:
        """End all units that are open."""
        self._close_turn()
        self._put_lead()

    def put(self, *messages: tuple[ChatMessage, Sequence[int]]) -> None:
        """Add a unit: its messages, each with the positions of the items it stands for."""
        for message, positions in messages:
            self.parts[id(message)] = _MessageItems(len(self.units), tuple(positions))
        self.units.append([message for message, _ in messages])

    def _feed_message(self, position: int, item: Item) -> None:
        if item["role"] != "assistant":
            self.close()
            self.put(({"role": item["role"], "content": item.get("content")}, [position]))
            return
        spoken = next((i for i, p in enumerate(self._lead) if self._is_message(p)), None)
        if spoken is not None:  # that text stood alone; the items after it lead to this one
            after = self._lead[spoken + 1 :]
            del self._lead[spoken + 1 :]
            self.close()
            self._lead = after
        self._lead.append(position)

    def _feed_call(self, position: int, item: Item) -> None:
        if self._turn is None or not self._turn.takes(item, bool(self._lead)):
            self._close_turn()
            self._turn = _ItemTurn()
        self._absorb_lead(self._turn)
        self._turn.add_call(position, item)

    def _feed_output(self, position: int, item: Item) -> None:
        if self._turn is not None and self._turn.unanswered[call_id_of(item)] > 0:
            self._absorb_lead(self._turn)
            self._turn.add_output(position, item)
            return
        self.close()
        self.put((tool_message(item), [position]))

    def _feed_position_free(self, position: int) -> None:
        if self._turn is not None and (+self._turn.unanswered or self._turn.programs):
            self._bind(self._turn, position)
            return
        self.close()
        self.put((self._opaque([position]), [position]))

    def _bind(self, turn: _ItemTurn, position: int) -> None:
        self._absorb_lead(turn)
        turn.bonds.append(position)

    def _absorb_lead(self, turn: _ItemTurn) -> None:
        for position in self._lead:
            if self._is_message(position):
                turn.texts.append(self.items[position].get("content"))
            elif item_type(self.items[position]) not in _LEADS:
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
        said = [p for p in lead if self._is_message(p)]
        bonds = [
            p
            for p in lead
            if not self._is_message(p) and (not said or item_type(self.items[p]) not in _LEADS)
        ]
        messages: list[tuple[ChatMessage, Sequence[int]]] = []
        if said:
            message = {"role": "assistant", "content": self.items[said[0]].get("content")}
            messages.append((message, [p for p in lead if p not in bonds]))
        if bonds:  # after the text, so that it is not taken for that of a call that follows
            messages.append((self._opaque(bonds), bonds))
        if messages:
            self.put(*messages)

    def _is_message(self, position: int) -> bool:
        return item_type(self.items[position]) == "message"

    def _opaque(self, positions: Sequence[int]) -> ChatMessage:
        """A message that no strategy leaves out, for items that are kept as they are."""
        return {"role": "item", "content": "\n".join(_readable_text(self.items[p]) for p in positions)}


def _has_call_id(item: object) -> TypeGuard[Item]:
    return isinstance(item, dict) and isinstance(item.get("call_id"), str)


def _readable_text(item: object) -> str:
    """The members of an item as JSON, without those that only the provider reads."""
    if not isinstance(item, dict):
        return compact(item)
    rest = {k: v for k, v in item.items() if k not in _HIDDEN}
    return compact(rest) if rest else ""


# Messages to items


def to_items(context: Sequence[Any], chat: ItemChat) -> list[Any]:
    """The items that a rebuilt context stands for, the very objects that were read, in their order.

    A result that was shortened becomes a copy of its item with the new output, any other new message an item
    of its own. Raises HistoryError where the items would have a broken pair that those read had not: the
    request is better sent as it came.
    """
    writer = _ItemWriter(chat)
    for message, source in zip(context, source_positions(context, chat.messages), strict=True):
        writer.feed(message, None if source is None else chat.messages[source])
    writer.flush()
    if item_errors(writer.out) and not item_errors(chat.items):
        raise HistoryError("the rebuilt context would break a call from its output: send the input as it is.")
    return writer.out


class _ItemWriter:
    """Makes items of the messages of a context; the items of one unit come out together, in their order."""

    def __init__(self, chat: ItemChat) -> None:
        self.chat = chat
        self.out: list[Any] = []
        self._holders = Counter(p for part in chat.parts.values() for p in part.items)
        self._unit = -1
        self._seen: Counter[int] = Counter()  # of this unit: how many messages that stand for an item
        self._changed: dict[int, Item] = {}
        self._added: list[Item] = []
        self._answers = {m["tool_call_id"]: m for m in reversed(chat.messages) if m["role"] == "tool"}

    def feed(self, message: ChatMessage, source: ChatMessage | None) -> None:
        """Write the next message, which is or was made of ``source``."""
        if source is not None:
            part = self.chat.parts[id(source)]
            if part.unit != self._unit:
                self.flush()
                self._unit = part.unit
            self._seen.update(part.items if message is source else self._kept(message, source))
        elif message.get("role") in ("tool", "function"):
            self._add_result(message)
        elif message.get("role") == "assistant" and message.get("tool_calls"):
            self._add_call(message)
        else:
            self.flush()
            content = content_text(message.get("content"))
            self.out.append({"type": "message", "role": message.get("role"), "content": content})

    def flush(self) -> None:
        """End the unit: write the items all of whose messages are in the context."""
        whole = sorted(p for p, seen in self._seen.items() if seen == self._holders[p])
        self.out += [self._changed.get(p, self.chat.items[p]) for p in whole]
        self.out += self._added
        self._seen, self._changed, self._added = Counter(), {}, []
        self._unit = -1

    def _kept(self, message: ChatMessage, source: ChatMessage) -> list[int]:
        """The positions of a changed message's items that stay; notes those that changed."""
        positions = self.chat.parts[id(source)].items
        content = message.get("content")
        if source["role"] == "tool":
            self._changed.update((p, with_output(self.chat.items[p], content)) for p in positions)
            return list(positions)
        calls = iter(range(len(source.get("tool_calls") or ())))
        entries = calls_by_place(message, source)
        keeps_words = content == source.get("content")
        text = content_text(content)
        kept: list[int] = []
        for p in positions:
            item = self.chat.items[p]
            kind = item_type(item)
            if kind in OUTPUT_OF or kind in HOSTED:
                call = next(calls)
                if call not in entries and kind in OUTPUT_OF:
                    continue
                self._changed[p] = with_arguments(item, entries.get(call, {}))
            elif kind == "message" and not keeps_words:
                if not text:
                    continue
                self._changed[p] = with_words(item, text)
                text = ""
            kept.append(p)
        return kept

    def _add_result(self, message: ChatMessage) -> None:
        """Write a result for a call of this unit that had none. Raises HistoryError for any other."""
        call_id = message.get("tool_call_id")
        calls = (self.chat.items[p] for p in self._seen)
        call = next((c for c in calls if item_type(c) in OUTPUT_OF and call_id_of(c) == call_id), None)
        if call is None:
            raise HistoryError(
                "the rebuilt context holds a result that no item has: send the input as it is."
            )
        answer = answer_to(call, message.get("content"))
        self._added += [] if answer is None else [answer]

    def _add_call(self, message: ChatMessage) -> None:
        """Write a call for an output that had none. Raises HistoryError for any other."""
        orphan = self._answers.get(message["tool_calls"][0].get("id"))
        made = None
        if orphan is not None:
            output = self.chat.items[self.chat.parts[id(orphan)].items[0]]
            made = call_for(output, str(message["tool_calls"][0].get("function", {}).get("name")))
        if made is None:
            raise HistoryError("the rebuilt context holds a call that no item has: send the input as it is.")
        self.flush()
        self.out.append(made)
