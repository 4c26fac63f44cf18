"""The Responses API: its items, the check of their pairs, and its input as a Conversation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from memory_bank.errors import HistoryError
from memory_bank.transcript.jsontext import compact
from memory_bank.transcript.messages import (
    HOSTED,
    SIGNATURES,
    MessageKind,
    call_entry,
    content_text,
    content_with,
    kind_of,
    read,
)
from memory_bank.transcript.turns import (
    KEPT_ROLE,
    WHOLE,
    Change,
    ChatMessage,
    Conversation,
    Derive,
    Part,
    PartPlace,
    Placed,
    Wire,
    derive_anew,
    readable,
)

Item = dict[str, Any]

ROLES = frozenset({"user", "assistant", "system", "developer"})

_CALLS = ("function", "custom_tool", "computer", "local_shell", "shell", "apply_patch")
OUTPUT_OF = {f"{kind}_call": f"{kind}_call_output" for kind in _CALLS} | {"program": "program_output"}
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
_OPAQUE = frozenset({"type", "id", "status", "encrypted_content", "fingerprint"})
# Types of calls whose input is a text: the member that holds it, and its value without one.
_TEXT_INPUTS = {"function_call": ("arguments", "{}"), "custom_tool_call": ("input", "")}
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
        arguments_of: Any = next((item[k] for k in _ARGUMENTS.get(kind, ()) if item.get(k) is not None), {})
        if kind == "web_search_call" and isinstance(arguments_of, dict):  # its sources are the result
            arguments_of = {k: v for k, v in arguments_of.items() if k != "sources"}
        arguments = compact(arguments_of)
    signed = bool(read(item.get("provider_data"), SIGNATURES[-1]))  # of the OpenAI Agents SDK
    return call_entry(call_id_of(item), _tool_name(item), arguments, signed)


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
    output: object = item.get("output")
    if kind == "computer_call_output":
        return [output]
    if kind == "program_output":
        return item.get("result")
    if kind == "apply_patch_call_output" and output is None:
        return compact({"status": item.get("status")})
    if kind == "image_generation_call":
        image = item.get("result")
        return [{"type": "input_image", "image_url": image}] if image else _failure(item)
    if kind == "code_interpreter_call":
        return [_code_output(o) for o in item.get("outputs") or ()] or ""
    if kind in ("file_search_call", "web_search_call"):
        action = item.get("action") if kind == "web_search_call" else None
        results = item.get("results") if kind == "file_search_call" else None
        results = action.get("sources") if isinstance(action, dict) else results
        return compact(results) if results else ""
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


def _with_text(item: Item, text: str) -> Item:
    """The item with another text or output; unchanged where its output cannot be a text."""
    kind = item_type(item)
    if kind == "message":
        part = {"type": "output_text", "text": text, "annotations": []}
        return {**item, "content": text if isinstance(item.get("content"), str) else [part]}
    if kind in ("function_call_output", "custom_tool_call_output"):
        is_list = isinstance(item.get("output"), list)
        return {**item, "output": [{"type": "input_text", "text": text}] if is_list else text}
    if kind in ("local_shell_call_output", "apply_patch_call_output", "mcp_call"):
        return {**item, "output": text}
    if kind == "shell_call_output":
        output = item.get("output")
        first = output[0] if isinstance(output, list) and output else {}
        outcome = first.get("outcome") if isinstance(first, dict) else None
        chunk = {"stdout": text, "stderr": "", "outcome": outcome or {"type": "exit", "exit_code": 0}}
        return {**item, "output": [chunk]}
    return {**item, "outputs": [{"type": "logs", "logs": text}]} if kind == "code_interpreter_call" else item


# The check of pairs


def item_errors(items: object) -> list[str]:
    """The errors for which the Responses API refuses a list of input items, in its words.

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
    for i, item in enumerate([*items, {"role": "user"}]):
        kind = item_type(item)
        if not kind:
            errors.append(f"Invalid value for 'input[{i}]': expected an item with a type or a role.")
            continue
        by_client = kind == "mcp_approval_response" or (kind in CALL_OF and kind != "program_output")
        if reasoning and (by_client or (kind == "message" and item.get("role") != "assistant")):
            errors.append(
                f"Item '{reasoning}' of type 'reasoning' was provided without its required following item."
            )
        item_id, call_id = item.get("id"), str(call_id_of(item))
        reasoning = (item_id if isinstance(item_id, str) else "None") if kind == "reasoning" else ""
        if kind in OUTPUT_OF:
            unanswered[kind, call_id] += 1
            if kind == "program" or item.get("async") is True:
                answered_later.add((kind, call_id))
        elif kind in CALL_OF:
            key = CALL_OF[kind], call_id
            if unanswered[key] > 0:
                unanswered[key] -= 1
            else:
                words = key[0].replace("_", " ")
                errors.append(f"No tool call found for {words} output with call_id {call_id}.")
        if isinstance(item_id, str) and kind not in ("item_reference", "local_shell_call_output"):
            if item_id in ids:
                advice = "Remove duplicate items from your input and try again."
                errors.append(f"Duplicate item found with id {item_id}. {advice}")
            ids.add(item_id)
    for (kind, call_id), calls in unanswered.items():
        if calls and (kind, call_id) not in answered_later:
            errors.append(f"No tool output found for {kind.replace('_', ' ')} {call_id}.")
    return errors


# Items as a chat, and back


class ItemWire(Wire[Item]):
    """See Wire. A call is the part 0 of its item; a text and an output are the part WHOLE."""

    is_ordered = False
    joins_turn = True

    def parts(self, native: Item) -> list[Part]:
        """See Wire. Never raises. A hosted call, which holds its own result, is of no kind."""
        kind = item_type(native)
        if kind == "message":
            speaker = (
                MessageKind.SAY
                if native.get("role") == "assistant"
                else kind_of({"role": native.get("role")})
            )
            return [Part(speaker, native.get("content"))]
        if kind in OUTPUT_OF:
            return [Part(MessageKind.CALL, "", call_id_of(native), kind)]
        if kind in CALL_OF:
            return [Part(MessageKind.RESULT, _output(native), call_id_of(native), CALL_OF[kind])]
        return [Part(MessageKind.REASONING if kind == "reasoning" else MessageKind.OTHER)]

    def errors(self, natives: Sequence[Item]) -> list[str]:
        """See Wire."""
        return item_errors(natives)

    def write(self, native: Item, change: Change) -> Item | None:
        if None in change.values():
            return None
        if 0 in change and item_type(native) in _TEXT_INPUTS:
            native = {**native, _TEXT_INPUTS[item_type(native)][0]: change[0]}
        return _with_text(native, change[WHOLE]) if WHOLE in change else native

    def say(self, message: ChatMessage) -> Item:
        return {"type": "message", "role": message["role"], "content": content_text(message["content"])}

    def add(self, native: Item, text: str) -> Item:
        """See Wire."""
        return {**native, "content": content_with(native.get("content"), text, "input_text")}


WIRE = ItemWire()


def from_items(
    items: object,
    instructions: object = None,
    derive: Derive = derive_anew,
    earlier: Conversation[Item] | None = None,
) -> Conversation[Item]:
    """Group the items of a request's ``input`` (a text, or a list of items) into units, as chat messages.

    An assistant turn becomes one message: its reasoning, its text directly before its calls, and all calls up
    to the first output. A hosted call, which holds its own result, becomes a call and a result. Two calls
    with an output between them may have been made together or not; they become two turns. The calls of a
    ``program`` are one turn with it. Items that only the provider can read (compaction, unknown types, a
    reference that leads to nothing) become a message of the role ``item``, which no strategy leaves out, and a
    turn that follows an unknown item is bound to it. A reference belongs to the turn after it, as reasoning does.
    ``instructions`` become a system message that stands for no item. Equal items give equal messages,
    and with a ``derive`` that keeps them the same objects. ``earlier``: as for ``from_anthropic``.

    Raises HistoryError when ``items`` is neither text nor list; nothing in the list makes it raise.
    """
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    if not isinstance(items, (list, tuple)):
        raise HistoryError(f"input must be a text or a list of items, not {type(items).__name__}.")
    reader = _Reader(Conversation(items, WIRE, derive=derive))
    if isinstance(instructions, str) and instructions:
        reader.put(({"role": "system", "content": instructions}, []))
    for position in range(reader.chat.go_on(earlier), len(items)):
        reader.feed(position, items[position], item_type(items[position]))
    reader.close()
    return reader.chat


@dataclass(slots=True)
class _Turn:
    """An assistant turn being read: its calls, their results, and the items that bind it."""

    made: list[PartPlace] = field(default_factory=list)  # reasoning, text and calls
    calls: list[dict[str, Any]] = field(default_factory=list)
    texts: list[object] = field(default_factory=list)
    bonds: list[int] = field(default_factory=list)
    answers: list[Placed] = field(default_factory=list)
    unanswered: Counter[str | None] = field(default_factory=Counter)
    programs: set[str | None] = field(default_factory=set)  # still running
    has_outputs: bool = False

    def holds(self, call_id: object) -> bool:
        return isinstance(call_id, str) and any(call["id"] == call_id for call in self.calls)

    def takes(self, call: Item, has_lead: bool) -> bool:
        """Return whether one more call was made in this turn."""
        caller = call.get("caller")
        if self.programs or (isinstance(caller, dict) and self.holds(caller.get("caller_id"))):
            return True
        return not self.has_outputs and bool(+self.unanswered or not has_lead)


class _Reader:
    def __init__(self, chat: Conversation[Item]) -> None:
        self.chat = chat
        self._turn: _Turn | None = None
        self._lead: list[tuple[int, Item, str]] = []  # belongs to what follows: positions, items, types

    def feed(self, position: int, item: Any, kind: str) -> None:
        """Read the next item."""
        turn, call_id = self._turn, call_id_of(item) if kind else None
        if kind == "message" and item["role"] in ROLES - {"assistant"}:
            self.close()
            self.put(
                ({"role": item["role"], "content": item.get("content")}, [PartPlace(position, WHOLE, WHOLE)])
            )
        elif kind == "message" and item["role"] == "assistant":
            spoken = next((n for n, (_, _, led) in enumerate(self._lead, 1) if led == "message"), 0)
            if spoken:  # that text stood alone; the items after it lead to this one
                after, self._lead = self._lead[spoken:], self._lead[:spoken]
                self.close()
                self._lead = after
            self._lead.append((position, item, kind))
        elif kind in OUTPUT_OF or (kind in HOSTED and item.get("approval_request_id") is None):
            # an approved call stays apart: without it the provider would take the approval for open
            if turn is None or not turn.takes(item, bool(self._lead)):
                self._close_turn()
                turn = self._turn = _Turn()
                begins = self._lead[0][0] if self._lead else position
                self.chat.begins.append((position + 1, begins, len(self.chat.messages)))
            self._absorb_lead(turn)
            turn.made.append(PartPlace(position, 0, len(turn.calls)))
            turn.calls.append(tool_call(item))
            if kind in HOSTED:
                turn.answers.append((tool_message(item), [PartPlace(position, WHOLE, WHOLE)]))
            else:
                turn.unanswered[call_id] += 1
                turn.programs |= {call_id} if kind == "program" else set()
        elif kind in CALL_OF:
            answer = tool_message(item), [PartPlace(position, WHOLE, WHOLE)]
            if turn is None or turn.unanswered[call_id] <= 0:
                self.close()
                self.put(answer)
                return
            self._absorb_lead(turn)
            turn.answers.append(answer)
            turn.unanswered[call_id] -= 1
            turn.has_outputs = True
            turn.programs -= {call_id} if kind == "program_output" else set()
        elif kind in _POSITION_FREE and (turn is None or not (+turn.unanswered or turn.programs)):
            self.close()
            self.put(self._bound([position]))
        elif turn is not None and (
            kind in _POSITION_FREE
            or (kind != "reasoning" and isinstance(item, dict) and turn.holds(item.get("call_id")))
        ):
            self._absorb_lead(turn)
            turn.bonds.append(position)
        else:
            self._lead.append((position, item, kind))

    def close(self) -> None:
        self._close_turn()
        lead, self._lead = self._lead, []
        message = next((item for _, item, kind in lead if kind == "message"), None)
        goes_along = {"message"} if message is None else _LEADS | {"message"}
        bonds = [at for at, _, kind in lead if kind not in goes_along]
        unit: list[Placed] = []
        if message is not None:
            places = [_place(at, kind) for at, _, kind in lead if at not in bonds]
            unit.append(({"role": "assistant", "content": message.get("content")}, places))
        # after the text, so that it is not taken for that of a call that follows
        self.put(*unit, *([self._bound(bonds)] if bonds else []))

    def put(self, *unit: Placed) -> None:
        """Add a unit: its messages, each with the parts of items that it stands for."""
        number = len(self.chat.units)  # any number that no other unit has
        for message, places in unit:
            self.chat.add(message, places, number)

    def _absorb_lead(self, turn: _Turn) -> None:
        for at, item, kind in self._lead:
            if kind == "message":
                turn.texts.append(item.get("content"))
            if kind == "message" or kind in _LEADS:
                turn.made.append(_place(at, kind))
            else:
                turn.bonds.append(at)
        self._lead = []

    def _close_turn(self) -> None:
        turn, self._turn = self._turn, None
        if turn is not None:
            texts = turn.texts
            content = texts[0] if len(texts) == 1 else "\n".join(map(content_text, texts)) or None
            message = {"role": "assistant", "content": content, "tool_calls": turn.calls}
            # between a call and its result, a message of another role keeps the turn from being left out
            self.put((message, turn.made), *([self._bound(turn.bonds)] if turn.bonds else []), *turn.answers)

    def _bound(self, positions: Sequence[int]) -> Placed:
        """A message that no strategy leaves out, for items that are kept as they are."""
        text = "\n".join(readable(self.chat.source[p], _OPAQUE) for p in positions)
        return {"role": KEPT_ROLE, "content": text}, [PartPlace(p, WHOLE) for p in positions]


def _place(at: int, kind: str) -> PartPlace:
    return PartPlace(at, WHOLE, WHOLE if kind == "message" else None)
