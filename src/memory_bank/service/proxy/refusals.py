"""Whether upstream refuses a request that memory changed, and what its session does then."""

from __future__ import annotations

import logging
import re
import time
from dataclasses import dataclass, field
from typing import Any

from memory_bank.errors import UpstreamError
from memory_bank.service.proxy.api import Dialect, EventKind
from memory_bank.service.proxy.body import JsonObject, as_object, parse_object
from memory_bank.service.proxy.events import EventSplitter
from memory_bank.service.proxy.upstream import UpstreamAnswer, after

log = logging.getLogger("memory_bank.Service")

TEMPORARY = frozenset({401, 402, 407, 408, 429, 529})
"""Statuses that say nothing of the request's contents: the client's own request would get them as well."""
OUTAGES = frozenset({500, 502, 503, 504, *range(520, 528)})
"""Statuses of an upstream that fails; of a form that it has accepted before, they say nothing either."""
NO_ANSWER = 502
"""The status of an answer that breaks off, or is none of the API, before anything of it was shown."""
MOST_HELD, LONGEST_HELD = 2**20, 5.0
"""Bytes and seconds at the beginning of a stream in which an error is looked for."""
FIRST_PAUSE, LONGEST_PAUSE = 5, 160
"""Requests of a session without memory after a refused context; each further refusal doubles them."""
MOST_SESSIONS = 1_024
"""Sessions of which it is remembered how upstream took their requests."""
IN_VAIN = 4
"""Requests in a row that upstream refuses also as they came, after which a request is sent only so."""

REFUSED = "upstream refused the rebuilt context"
REFUSED_TOO = "upstream refused the request as it came, too"
REFUSES_ALL = "upstream refused the session's last requests as they came, too"
MARKS_REFUSED = "upstream refused cache marks"
TOOLS_REFUSED = "upstream refused memory's tools"
THINKING_LEFT_OUT = "upstream refused thinking that does not fit the request as it came"

# the statuses of errors within an answer with status 200, by a part of their type, code or status
_STATUSES = (
    ("overloaded", 529),
    ("capacity", 529),
    ("rate_limit", 429),
    ("too_many_requests", 429),
    ("throttl", 429),
    ("resource_exhausted", 429),
    ("quota", 429),
    ("authentication", 401),
    ("billing", 402),
    ("timeout", 408),
    ("server_error", 500),
    ("api_error", 500),
    ("internal", 500),
    ("unavailable", 503),
)


@dataclass(frozen=True, slots=True)
class FailedAnswer:
    """Why a request was not answered: a status, the type and code of the error, or the connection's ``error``."""

    status: int
    kind: str
    error: UpstreamError | None = None

    def is_refusal(self, accepted: bool) -> bool:
        """Whether the request may be the cause; ``accepted``: upstream has taken this form of it before."""
        if self.status in TEMPORARY or (self.error is not None and self.error.passing):
            return False
        return not (accepted and self.status in OUTAGES)


@dataclass(frozen=True, slots=True, eq=False)
class Attempt:
    """A request that was sent: its ``answer``, None without one, and the ``failure`` if it was not accepted."""

    answer: UpstreamAnswer | None
    failure: FailedAnswer | None = None

    def result(self) -> UpstreamAnswer:
        """The answer. Raises UpstreamError where there is none."""
        if self.answer is None:
            assert self.failure is not None
            assert self.failure.error is not None
            raise self.failure.error
        return self.answer

    async def aclose(self) -> None:
        """Release the connection."""
        if self.answer is not None:
            await self.answer.aclose()


@dataclass(slots=True)
class SessionRefusals:
    """How a model of upstream has taken the changed requests of a session, in this process.

    ``left`` of ``pause`` requests go without memory. ``accepted``: the statuses of memory whose present form was
    accepted. ``in_vain``: requests in a row that were refused as they came, too. ``tools``: upstream has accepted
    memory's tools, which stay in a pause.
    """

    left: int = 0
    pause: int = 0
    accepted: set[str] = field(default_factory=set)
    in_vain: int = 0
    tools: bool = False

    def waits(self) -> str | None:
        """Why the session's next request is sent as it came; None where it is not. Counts the pause down."""
        if self.left > 0:
            self.left -= 1
            return REFUSED
        return REFUSES_ALL if self.in_vain >= IN_VAIN else None

    def accepts(self, memory: str, session: str | None, *, with_tools: bool, hides: bool) -> None:
        """Note that upstream took a request that memory changed, ``with_tools`` of its own and maybe hidden turns."""
        self.in_vain = 0
        if memory == "rebuilt" and self.pause and not self.accepted:
            log.info("upstream accepted a context: session %s has memory again", session)
        self.tools = self.tools or with_tools
        if not hides:
            self.accepted.add(memory)

    def fails(self, failure: FailedAnswer | None) -> None:
        """Note that upstream refused a request as it came, too. One that is not down is asked with memory again."""
        self.in_vain += 1
        if self.in_vain >= 2 * IN_VAIN and failure is not None and failure.status not in OUTAGES:
            self.in_vain = 0

    def pauses(self) -> None:
        """Note that upstream accepted a request as it came, but not as memory changed it."""
        self.accepted.clear()
        self.pause = self.left = min(2 * self.pause, LONGEST_PAUSE) if self.pause else FIRST_PAUSE


async def failure_of(answer: UpstreamAnswer, dialect: Dialect, request: JsonObject) -> FailedAnswer | None:
    """Why an answer is none, read until it shows something of the model; its body gives the same bytes after that."""
    try:
        if not 200 <= answer.status < 300:
            value = parse_object(await answer.hold() or b"")
            return FailedAnswer(answer.status, _kind(_error_in(value) or {}))
        if not answer.is_readable:
            return None
        json_type = answer.header(b"content-type").startswith(b"application/json")
        if answer.is_stream or (request.get("stream") is True and not json_type):
            value, has_begun = await _first_shown(answer, dialect, request)
        else:
            data = await answer.hold()
            value = parse_object(data or b"")
            has_begun = data is None or dialect.answer_key in value
    except UpstreamError as e:
        return FailedAnswer(NO_ANSWER, "broken off", e)
    if (error := _error_in(value)) is not None:
        return FailedAnswer(_status(error), _kind(error))
    return None if has_begun else FailedAnswer(NO_ANSWER, "no answer")


async def _first_shown(
    answer: UpstreamAnswer, dialect: Dialect, request: JsonObject
) -> tuple[JsonObject, bool]:
    """The first event of a stream that shows something of the model, or an error; whether there is one."""
    body, splitter, reader = answer.body, EventSplitter(), dialect.open_stream(request)
    held, until = bytearray(), time.monotonic() + LONGEST_HELD

    def shown(chunk: bytes) -> JsonObject | None:
        events = splitter.feed(chunk) if chunk else splitter.close()
        for value in (e.value for e in events if e.value is not None):
            if _error_in(value) is not None or reader.read(value) is not EventKind.SILENT:
                return value
        return None

    value, passes = None, False
    try:
        async for chunk in body:
            held += chunk
            passes = len(held) > MOST_HELD or time.monotonic() > until
            if (value := shown(chunk)) is not None or passes:
                break
        else:
            value = shown(b"")
    except BaseException:
        await answer.aclose()
        raise
    answer.body = after(bytes(held), body)
    return value or {}, value is not None or passes


def _error_in(value: JsonObject) -> JsonObject | None:
    """The error in an answer or an event, as an object; None without one."""
    response = as_object(value.get("response"))
    choices = value.get("choices")
    choice = as_object(choices[0]) if isinstance(choices, list) and choices else {}
    given: Any = value.get("error") or response.get("error") or choice.get("error")
    if given:
        return given if isinstance(given, dict) else {"message": str(given)}
    if "error" in (value.get("type"), value.get("object")):
        return value
    return {} if "failed" in (value.get("status"), response.get("status")) else None


def _status(error: JsonObject) -> int:
    """The status of an error within an answer with status 200; 400 where it names none."""
    for given in (error.get("code"), error.get("status")):
        if re.fullmatch(r"[45]\d\d", str(given)):
            return int(str(given))
    names = f"{error.get('type')} {error.get('code')} {error.get('status')}".lower()
    return next((status for part, status in _STATUSES if part in names), 400)


def _kind(error: JsonObject) -> str:
    """The type and code of an error where they are plain names."""
    names = [str(error.get(k) or "") for k in ("type", "code")]
    return "/".join(n for n in names if re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", n)) or "no type"
