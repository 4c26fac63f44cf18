"""Requests for a summary: answered from the bank, or upstream's answer completed; items of ours in later requests."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import anyio
from anyio import to_thread

from memory_bank.bank.database import Database
from memory_bank.context.compaction import what_is_known
from memory_bank.errors import MemoryBankError, UpstreamError
from memory_bank.service.proxy.answers import EventSplitter, as_object, rewrite_event
from memory_bank.service.proxy.body import Body, JsonObject, render_body
from memory_bank.service.proxy.injection import MOST_BYTES, SendUpstream, is_readable, is_stream, parse_object, without_length
from memory_bank.service.proxy.rebuild import COMPLETED, MemoryResult, ModelRequest, Rebuilder
from memory_bank.service.proxy.upstream import Headers, UpstreamAnswer, after
from memory_bank.transcript.events import (
    as_events,
    chat_events,
    completion,
    message_events,
    message_of,
    response_events,
    response_of,
)
from memory_bank.transcript.responses import CALL_OF, OUTPUT_OF, item_type

log = logging.getLogger("memory_bank.Service")

UNKNOWN = frozenset({400, 404, 405, 413, 415, 422, 501})
"""Statuses with which an upstream refuses a compaction; the bank answers then."""
OPENING = "The following is a summary of the conversation so far, from the records that its memory keeps.\n\n"
LOST = (
    "The following is a summary of the conversation so far: it is not available, since what the client sent in its "
    "place was not made here, or was deleted since. Ask for what you need of the earlier conversation."
)
ADDED = "\n\nWhat the memory of this session holds besides:\n"
_BEGINNING = "mbc1."  # of the encrypted_content of ours: the version
_NONCE, _TAG = 12, 16  # bytes


class Seals:
    """Makes and reads ``encrypted_content``: values that nobody else can read, change or make."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @cached_property
    def _secret(self) -> bytes:
        return self._database.secret()

    def seal(self, *values: object) -> str:
        """The values (JSON) as a text."""
        nonce = secrets.token_bytes(_NONCE)
        data = self._hidden(nonce, json.dumps(values, separators=(",", ":")).encode())
        return _BEGINNING + base64.urlsafe_b64encode(nonce + self._tag(nonce + data) + data).decode()

    def read(self, sealed: str) -> list[Any] | None:
        """The values of a text; None for one that this bank has not made. Raises StorageError."""
        try:
            raw = base64.b64decode(sealed.removeprefix(_BEGINNING), b"-_", validate=True)
        except ValueError:
            return None
        nonce, tag, data = raw[:_NONCE], raw[_NONCE : _NONCE + _TAG], raw[_NONCE + _TAG :]
        if not hmac.compare_digest(tag, self._tag(nonce + data)):
            return None
        values: list[Any] = json.loads(self._hidden(nonce, data))
        return values

    def _tag(self, data: bytes) -> bytes:
        return hmac.digest(self._secret, b"tag" + data, "sha256")[:_TAG]

    def _hidden(self, nonce: bytes, data: bytes) -> bytes:
        stream = hashlib.shake_256(b"stream" + self._secret + nonce).digest(len(data))
        return bytes(a ^ b for a, b in zip(data, stream, strict=True))


def expand(request: ModelRequest, seals: Seals, upstream: str) -> tuple[Sequence[object], str | None] | None:
    """The conversation of a request with what our items stand for, and the session that they name; None without any.

    What came before such an item goes, as with the providers, but what the user and the client said. An item of a
    provider that ours holds comes back for the same ``upstream``. Raises StorageError.
    """
    key, session = request.dialect.key, None
    elements = request.value.get(key)
    if _BEGINNING.encode() not in request.body.data or not isinstance(elements, list):
        return None
    made: list[object] = []
    for element in elements:
        parts = [element] if key == "input" else as_object(element).get("content")
        own = [p for p in parts if is_ours(p)] if isinstance(parts, list) else []
        if not own:
            made.append(element)
            continue
        made = [e for e in made if not _is_replaced(e, key)]
        values = seals.read(own[-1]["encrypted_content"]) or [None, "", None, ""]
        session_id, digest, foreign, where = values
        text = session_id and seals.text(request.caller.namespace, session_id, digest)
        session = session_id if text else session
        if foreign and where == upstream:
            made.append(foreign if key == "input" else {"role": "assistant", "content": [foreign]})
        elif foreign and isinstance(foreign.get("content"), str) and text:
            text += f"\n\n{foreign['content']}"
        said = {"role": "user", "content": f"{OPENING}{text}" if text else LOST}
        made.append({"type": "message", **said} if key == "input" else said)
        if key != "input" and (rest := [p for p in parts if p not in own]):
            made.append({**as_object(element), "content": rest})
    return None if made == elements else (made, session)
