"""Requests for a summary: answered from the bank, or upstream's answer completed; items of ours in later requests."""

from __future__ import annotations

import json
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

from memory_bank.bank.session import MemoryBankState
from memory_bank.bank.steps import CONTROL
from memory_bank.context.compaction import what_is_known
from memory_bank.context.fold_rule import charge_added, tokens_paid_for
from memory_bank.errors import MemoryBankError, UpstreamError
from memory_bank.service.proxy.body import SEAL, JsonObject, as_object, objects_of, parse_object, render_body
from memory_bank.service.proxy.events import MOST_BYTES, Event, rewrite_event, rewritten
from memory_bank.service.proxy.exchange import Exchange
from memory_bank.service.proxy.memory_calls import read_memory
from memory_bank.service.proxy.rebuild import COMPACTION
from memory_bank.service.proxy.shared import Proxy, Seals
from memory_bank.service.proxy.upstream import UpstreamAnswer, after
from memory_bank.service.security.access import public_name
from memory_bank.transcript import events
from memory_bank.transcript.responses import CALL_OF, OUTPUT_OF, item_type

log = logging.getLogger("memory_bank.Service")

UNKNOWN = frozenset({400, 404, 405, 413, 415, 422, 501})
"""Statuses with which an upstream refuses a compaction; the bank answers then."""
COMPLETED = f"{COMPACTION}, completed by memory"
OPENING = "The following is a summary of the conversation so far, from the records that its memory keeps.\n\n"
LOST = (
    "The following is a summary of the conversation so far: it is not available, since what the client sent in its "
    "place was not made here, or was deleted since. Ask for what you need of the earlier conversation."
)
LEAST_ADDED = 200
"""Nothing is added to a model's summary where fewer tokens than these are paid for."""
ADDED = "\n\nWhat the memory of this session holds besides:\n"
_HAS_COMPACTION = re.compile(rb'"type"\s*:\s*"compaction"')


def expand(exchange: Exchange, seals: Seals) -> bytes | None:
    """The body of a request with what our compaction items stand for; None without any. Sets ``compacted``.

    What came before such an item goes, as with the providers, but what the user and the client said.

    Raises BodyError.
    """
    key, namespace = exchange.api.key, exchange.namespace
    elements = exchange.body.value.get(key)
    if not isinstance(elements, list):
        return None
    places = (n for n in reversed(range(len(elements))) if _parts(elements[n], key)[0])
    if (at := next(places, -1)) < 0:
        return None
    items, _ = _parts(elements[at], key)
    session_id = text = None
    try:
        if values := seals.read(items[-1]["encrypted_content"]):
            session_id, digest, *_ = values  # more in those of earlier versions
            text = seals.database.get_summary(namespace, session_id, digest)
    except MemoryBankError as e:
        log.warning("a compaction item could not be read: %s", type(e).__name__)
    if text:
        exchange.compacted = public_name(namespace, str(session_id))
    conversation = _expanded(elements, at, f"{OPENING}{text}" if text else LOST)
    return render_body(exchange.body, {key: conversation})


def _expanded(elements: list[Any], at: int, text: str) -> list[Any]:
    """A conversation where a text stands for the compaction item at ``at`` and for all that this item replaced."""
    key = "input" if item_type(elements[at]) == "compaction" else "messages"
    before, later = [e for e in elements[:at] if not _is_replaced(e, key)], elements[at + 1 :]
    message = {"role": "user", "content": text}
    if key == "input":
        return [*before, {"type": "message", **message}, *later]
    rest = _parts(elements[at], key)[1]
    return [*before, message, *([{**elements[at], "content": rest}] if rest else []), *later]


def _parts(element: object, key: str) -> tuple[list[Any], list[Any]]:
    """The compaction items of ours in an element of a conversation, and its other parts."""
    content = [element] if key == "input" else as_object(element).get("content")
    parts = content if isinstance(content, list) else []
    ours = [p for p in parts if str(as_object(p).get("encrypted_content")).startswith(SEAL)]
    return ours, [p for p in parts if p not in ours] if ours else []


def _is_replaced(element: object, key: str) -> bool:
    """Return whether a later compaction stands for an element of a conversation."""
    item, kind = as_object(element), item_type(element)
    if key != "input":
        return item.get("role") != "system"
    ours = kind in ("reasoning", "compaction") or item.get("role") == "assistant" or _parts(element, key)[0]
    return bool(ours) or kind in OUTPUT_OF or kind in CALL_OF


def _mode(proxy: Proxy, exchange: Exchange) -> str:
    """How a request for a summary is answered, as the setting ``compaction`` says; "pass" for any other request."""
    step = exchange.step
    knows = step is not None and step.records and step.status != CONTROL
    if exchange.memory == "answered" or not knows:
        return "pass"
    return proxy.rebuilder.sessions.config.service.compaction


async def own_summary(proxy: Proxy, exchange: Exchange) -> UpstreamAnswer | None:
    """The bank's answer to a request for a summary, where upstream is not asked; else None."""
    return await _own(proxy, exchange) if _mode(proxy, exchange) == "answer" else None


async def finish_summary(proxy: Proxy, exchange: Exchange, answer: UpstreamAnswer) -> UpstreamAnswer:
    """Upstream's answer, for a summary with what it lacks; the bank's where upstream does not know how to compact."""
    if _mode(proxy, exchange) == "pass":
        return answer
    if answer.status in UNKNOWN:
        return await _own(proxy, exchange, instead_of=answer) or answer
    if not answer.is_readable:
        return answer
    if exchange.api.is_compaction(exchange.body.value):
        return await _with_item(proxy, exchange, answer)
    exchange.reason = COMPLETED if exchange.reason == COMPACTION else exchange.reason
    if answer.is_stream:
        answer.replace_body(rewritten(answer.body, _completed(proxy, exchange)))
        return answer
    value = parse_object(await answer.hold() or b"")
    holder, key = next(_texts(value), ({}, ""))
    if key and (added := await _besides(proxy, exchange, holder[key])):
        holder[key] += added
        answer.replace_body(json.dumps(value).encode())
    return answer


async def _besides(proxy: Proxy, exchange: Exchange, summary: str) -> str:
    """The bank's own part beside the model's summary, as far as what was saved pays for it; "" for nothing."""
    assert exchange.step is not None
    state, most = exchange.step.state, proxy.rebuilder.sessions.config.service.compaction_tokens
    if not isinstance(state, MemoryBankState) or (budget := min(most, tokens_paid_for(state))) < LEAST_ADDED:
        return ""
    if not (text := await _read(proxy, partial(what_is_known, state, budget, lacking=summary))):
        return ""
    charge_added(state, exchange.counter.count_text(text))
    return ADDED + text


async def _read(proxy: Proxy, work: Callable[[], str]) -> str | None:
    """The result of ``work``; None if it fails, which is logged without the error's text, or takes too long."""
    try:
        return await read_memory(work, proxy.rebuilder.timeout)
    except Exception as e:
        log.warning("memory failed for a summary: %s", type(e).__name__)
        return None


async def _own(
    proxy: Proxy, exchange: Exchange, instead_of: UpstreamAnswer | None = None
) -> UpstreamAnswer | None:
    """The answer of the bank, in the place of upstream's; None where it knows nothing."""
    route, value, model = exchange.api.route, exchange.body.value, exchange.model or ""
    by_item, is_messages = exchange.api.is_compaction(value), exchange.api.provider == "anthropic"
    assert exchange.step is not None
    most = proxy.rebuilder.sessions.config.service.compaction_tokens
    words = not by_item or is_messages  # Codex and /responses/compact keep the user's messages
    text = await _read(proxy, partial(what_is_known, exchange.step.state, most, users_words=words))
    item = await _item(proxy, exchange, text) if by_item and text else None
    if not text or (by_item and item is None):
        return None
    counts = exchange.full_tokens or 0, exchange.counter.count_text(text)
    number, now = secrets.token_hex(12), int(time.time())
    write: Callable[[JsonObject], list[bytes]]
    if is_messages:
        ends = "compaction" if item else "end_turn"
        block = item or {"type": "text", "text": text}
        body = events.message_of(f"msg_{number}", model, [block], ends, *counts)
        write = events.message_events
    elif route == "chat":
        message = {"role": "assistant", "content": text, "refusal": None}
        body = events.completion(f"chatcmpl-{number}", model, message, *counts, now)
        write = partial(events.chat_events, request=value)
    else:
        output = [item or events.text_item(f"msg_{number}", text)]
        body = events.response_of(f"resp_{number}", value, output, *counts) | {"created_at": now}
        write = events.response_events
    if route == "compact":
        body = {k: body[k] for k in ("id", "created_at", "usage")} | {"object": "response.compaction"}
        body["output"] = [*_users_items(exchange), *output]
    if instead_of is not None:
        await instead_of.aclose()
    exchange.memory, exchange.reason = "answered", COMPACTION
    streamed = exchange.streamed and route != "compact"
    kind = b"text/event-stream" if streamed else b"application/json"
    answer = UpstreamAnswer(200, [(b"content-type", kind)], after(b""))
    answer.replace_body(b"".join(write(body)) if streamed else json.dumps(body).encode())
    return answer


def _users_items(exchange: Exchange) -> list[JsonObject]:
    """The user's messages of a request, as they came."""
    return [i for i in objects_of(exchange.body.value.get("input")) if i.get("role") == "user"]


async def _item(proxy: Proxy, exchange: Exchange, text: str) -> JsonObject | None:
    """An item or block that names what the bank knows; None where it cannot be kept."""
    step = exchange.step
    assert step is not None

    def seal() -> str:
        """Keep the text for later requests, and seal what names it."""
        generation = step.state.generation if isinstance(step.state, MemoryBankState) else None
        digest = proxy.rebuilder.sessions.database.add_summary(step.session_id, text, generation)
        return proxy.seals.seal(step.session_id, digest)

    sealed = await _read(proxy, seal)
    if sealed is None:
        return None
    member = (
        {"content": text} if exchange.api.provider == "anthropic" else {"id": f"cmp_{secrets.token_hex(12)}"}
    )
    return {"type": "compaction", "encrypted_content": sealed, **member}


async def _with_item(proxy: Proxy, exchange: Exchange, answer: UpstreamAnswer) -> UpstreamAnswer:
    """Upstream's answer where it holds a compaction; the bank's where it has none."""
    try:
        data = await answer.hold()
    except UpstreamError as e:
        if (answered := await _own(proxy, exchange)) is None:
            raise
        log.warning("upstream broke off a summary (%s): the bank answers", type(e).__name__)
        return answered
    if data is None or _HAS_COMPACTION.search(data):
        if data and exchange.api.route == "compact" and exchange.arrays:  # it repeats what it got
            value = parse_object(data)
            others = [i for i in objects_of(value.get("output")) if i.get("role") != "user"]
            value["output"] = [*_users_items(exchange), *others]
            answer.replace_body(json.dumps(value).encode())
        return answer
    return await _own(proxy, exchange, instead_of=answer) or answer


def _completed(proxy: Proxy, exchange: Exchange) -> Callable[[Event], Awaitable[bytes]]:
    """Writes the events of a summary, with one more at the end of its text; a very long one stays as it is."""
    pieces: list[str] = []
    said, added, size = "", "", 0
    repeats = exchange.api.key == "input"

    async def write(event: Event) -> bytes:
        nonlocal said, added, size
        value, size, out = event.value or {}, size + len(event.raw), b""
        if size > MOST_BYTES and not said:
            return event.raw
        if not said:
            pieces.append(_said(value))
        if not said and _ends(value) and (said := "".join(pieces)):
            added = await _besides(proxy, exchange, said)
            out = _one_more(value, added) if added else b""
        changed = repeats and added and event.value
        return out + (rewrite_event(event, _with(value, said, f"{said}{added}")) if changed else event.raw)

    return write


def _texts(answer: JsonObject) -> Iterator[tuple[JsonObject, str]]:
    """The objects of an answer that hold its texts, the last first, each with the name of the member."""
    for choice in answer.get("choices") or ():
        if isinstance(as_object(as_object(choice).get("message")).get("content"), str):
            yield choice["message"], "content"
    for item in reversed([*(answer.get("output") or ()), answer]):
        for part in reversed(as_object(item).get("content") or []):
            if as_object(part).get("type") in ("text", "output_text") and isinstance(part.get("text"), str):
                yield part, "text"


def _choice(event: JsonObject) -> JsonObject:
    choices = event.get("choices")
    return as_object(choices[0]) if isinstance(choices, list) and choices else {}


def _said(event: JsonObject) -> str:
    """The text that an event adds to an answer of any API."""
    delta = event.get("delta")
    if isinstance(delta, str):
        return delta if event.get("type") == "response.output_text.delta" else ""
    return str(as_object(delta).get("text") or as_object(_choice(event).get("delta")).get("content") or "")


def _ends(event: JsonObject) -> bool:
    """Return whether an event ends the text of an answer."""
    ends = event.get("type") in ("response.output_text.done", "content_block_stop")
    return ends or bool(_choice(event).get("finish_reason"))


def _one_more(end: JsonObject, text: str) -> bytes:
    """An event that adds a text, before the one that ends it."""
    if "choices" in end:
        choice = {**_choice(end), "delta": {"content": text}, "finish_reason": None}
        return b"data: " + json.dumps({**end, "choices": [choice]}).encode() + b"\n\n"
    fields = {k: v for k, v in end.items() if k not in ("type", "text")}
    kind, fields["delta"] = "response.output_text.delta", text
    if end.get("type") == "content_block_stop":
        kind, fields["delta"] = "content_block_delta", {"type": "text_delta", "text": text}
    return events.as_events([(kind, fields)])[0]


def _with(value: Any, text: str, new: str) -> Any:
    """A JSON value with another text wherever one stands."""
    if isinstance(value, dict):
        return {k: _with(v, text, new) for k, v in value.items()}
    if isinstance(value, list):
        return [_with(v, text, new) for v in value]
    return new if value == text else value
