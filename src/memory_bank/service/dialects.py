"""The two ways in which clients say what was said so far: as messages, and as items of a response."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from memory_bank.service.bodies import Body, parse_body
from memory_bank.service.seen import Seen
from memory_bank.transcript.responses import from_items, stands_alone, to_items


class PassedError(Exception):
    """Memory has nothing to do with a request, and why: no error, it passes as it came."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a request says was said so far, as chat messages.

    ``written`` gives, for a context rebuilt from them, the array that stands in the request's member ``key``.
    """

    messages: list[Any]
    key: str
    written: Callable[[Sequence[Any]], Sequence[Any]]


class Dialect(Protocol):
    """One route that memory acts on."""

    route: str
    key: str

    def said(self, value: Mapping[str, Any]) -> Said:
        """What a request's body says. Raises PassedError."""


class Chat:
    """POST /v1/chat/completions."""

    route = "chat"
    key = "messages"

    def said(self, value: Mapping[str, Any]) -> Said:
        """See Dialect."""
        messages = value.get(self.key)
        if not isinstance(messages, list) or not messages:
            raise PassedError("no messages")
        return Said(messages, self.key, lambda context: context)


class Responses:
    """POST /v1/responses."""

    route = "responses"
    key = "input"

    def said(self, value: Mapping[str, Any]) -> Said:
        """See Dialect."""
        held = stands_alone(dict(value))
        if held is not None:
            raise PassedError(held)
        items = value.get(self.key)
        if not isinstance(items, list) or not items:
            raise PassedError("no list of items")
        chat = from_items(items, value.get("instructions"))
        return Said(chat.messages, self.key, lambda context: to_items(context, chat))


DIALECTS: Mapping[str, Dialect] = {"/chat/completions": Chat(), "/responses": Responses()}
"""By what follows ``/v1`` in the path of a POST."""


def read_body(data: bytes, dialect: Dialect, seen: Seen | None = None) -> Body:
    """A request's body; what was said in it and its tools can be edited. Raises BodyError.

    What was said as in an earlier request are the objects that ``seen`` remembers.
    """
    body = parse_body(data, dialect.key, "tools")
    return body if seen is None else seen.again(body, dialect.key)
