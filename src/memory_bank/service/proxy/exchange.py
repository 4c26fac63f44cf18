"""A request and its answer, from arrival to record: what every step of the proxy reads and changes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from memory_bank.models.usage import NO_USAGE, ReportedUsage
from memory_bank.ports import TokenCounter
from memory_bank.service.proxy.api import Dialect, Provider
from memory_bank.service.proxy.body import Body, render_body
from memory_bank.service.proxy.upstream import Headers, UsageReader
from memory_bank.service.sessions import Rebuilt
from memory_bank.transcript.tokens import open_counter

ROUNDS = 8
"""Hidden turns of one request; after them the memory tools are no longer offered."""
OUTAGES = frozenset({500, 502, 503, 504, *range(520, 528)})
"""Statuses of an upstream that fails; of a form that it has accepted before, they say nothing either."""
FIRST_PAUSE, LONGEST_PAUSE = 5, 160
"""Requests of a session without memory after a refused context; each further refusal doubles them."""
MOST_SESSIONS = 1_024
"""Sessions of which it is remembered how upstream took their requests, and whether they have memory's tools."""
IN_VAIN = 4
"""Requests in a row that upstream refuses also as they came, after which a request is sent only so."""

REFUSED = "upstream refused the rebuilt context"
REFUSED_TOO = "upstream refused the request as it came, too"
REFUSES_ALL = "upstream refused the session's last requests as they came, too"
CACHE_MARKS_REFUSED = "upstream refused cache marks"
TOOLS_REFUSED = "upstream refused memory's tools"
THINKING_LEFT_OUT = "upstream refused thinking that does not fit the request as it came"

log = logging.getLogger("memory_bank.Service")


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
        """Count a request that memory changed as taken, ``with_tools`` of its own and maybe hidden turns."""
        self.in_vain = 0
        if memory == "rebuilt" and self.pause and not self.accepted:
            log.info("upstream accepted a context: session %s has memory again", session)
        self.tools = self.tools or with_tools
        if not hides:
            self.accepted.add(memory)

    def fails(self, status: int) -> None:
        """Count a request that upstream refused as it came, too. One that is not down is asked with memory again."""
        self.in_vain += 1
        if self.in_vain >= 2 * IN_VAIN and status not in OUTAGES:
            self.in_vain = 0

    def pauses(self) -> None:
        """Begin a pause: upstream accepted a request as it came, but not as memory changed it."""
        self.accepted.clear()
        self.pause = self.left = min(2 * self.pause, LONGEST_PAUSE) if self.pause else FIRST_PAUSE


OTHER = Dialect("other")
"""For what is no request for a turn of a model, and only passes."""


@dataclass(slots=True, eq=False)
class Exchange:
    """A request and its answer. What is recorded of it has no keys, and no contents but ``kept``.

    ``api``: the model API, OTHER for what only passes; ``provider``, ``path``, ``query``: where it goes. ``body``
    is the request's, without members if it cannot be edited; ``headers`` are those for upstream, ``client_headers``
    those that came, and ``compacted`` is the session that a compaction item of ours in it names.

    ``memory`` says what memory did (rebuilt, unchanged, passed, failed, answered; "" where it has nothing to do),
    ``reason`` why, without contents. ``arrays``: the members that memory changed; ``tools``: the request's with the
    memory tools, where these are added. ``hidden``: turns that called memory, with their results, which the client
    does not see. ``step``: the step that the request is recorded as. ``refusals``:
    how upstream has taken the session's requests.

    Tokens are those that memory counts: ``full_tokens`` of the request as it came, ``context_tokens`` of what memory
    makes of it, ``tool_tokens`` and ``hidden_tokens`` of the rest, ``tokens`` of all that was sent upstream (None
    where nothing was counted), ``answered_tokens`` of what upstream did not refuse. ``usage``: what was reported of
    the answers to that, hidden turns included, as ``readers`` find it.

    ``outcome``: upstream has ``broken_off`` its answer or is ``unreachable``, the service has ``refused`` the
    request, or has ended or failed (``aborted``). ``trouble``: why there is no answer, or only a part of one.
    ``seconds``: until the last byte of the answer's body. ``kept``: the beginning of the answer.
    """

    method: str
    namespace: str | None = None
    api: Dialect = field(default=OTHER, repr=False)
    provider: Provider = "openai"
    path: bytes = field(default=b"", repr=False)
    query: bytes = field(default=b"", repr=False)
    headers: Headers = field(default_factory=list, repr=False)
    client_headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    upstream_key: str | None = field(default=None, repr=False)
    body: Body = field(default_factory=lambda: Body(b""), repr=False)
    received_bytes: int = 0
    model: str | None = None
    streamed: bool = False
    compacted: str | None = None

    memory: Literal["", "rebuilt", "unchanged", "passed", "failed", "answered"] = ""
    reason: str | None = None
    session: str | None = None
    step: Rebuilt | None = field(default=None, repr=False)
    arrays: Mapping[str, Sequence[object]] = field(default_factory=dict, repr=False)
    tools: list[object] | None = field(default=None, repr=False)
    hidden: list[object] = field(default_factory=list, repr=False)
    rounds: int = 0
    fetched: int = 0
    context_tokens: int | None = None
    full_tokens: int | None = None
    tool_tokens: int = 0
    hidden_tokens: int = 0
    refusals: SessionRefusals = field(default_factory=SessionRefusals, repr=False)

    tokens: int | None = None
    answered_tokens: int = 0
    readers: list[UsageReader] = field(default_factory=list, repr=False)
    usage: ReportedUsage = NO_USAGE
    status: int | None = None
    outcome: Literal["complete", "client_gone", "broken_off", "unreachable", "refused", "aborted"] = "aborted"
    trouble: str | None = field(default=None, repr=False)
    seconds: float = 0.0
    kept: bytearray = field(default_factory=bytearray, repr=False)

    @property
    def counter(self) -> TokenCounter:
        """The counter of its tokens."""
        return open_counter() if self.step is None else self.step.state.counter

    @property
    def may_hide(self) -> bool:
        """Whether memory tools are offered, and another turn that calls them may be hidden."""
        return self.tools is not None and self.rounds < ROUNDS

    def render(self) -> bytes:
        """The body for upstream, with what memory changed in it. Raises BodyError."""
        arrays, key = dict(self.arrays), self.api.key
        if self.may_hide and self.tools:
            arrays["tools"] = self.tools
        if self.hidden:
            arrays[key] = [*arrays.get(key, self.body.value.get(key) or ()), *self.hidden]
        return render_body(self.body, arrays)

    def passes(self, reason: str) -> None:
        """Pass a request that memory has nothing to do for, and say why."""
        self.memory, self.reason = "passed", reason

    def goes_as_it_came(self, reason: str) -> None:
        """Take back what memory changed of the request."""
        is_built = self.memory in ("rebuilt", "unchanged")
        if is_built or self.reason is None:
            self.reason = reason
        if is_built:
            self.memory = "unchanged"
        self.arrays, self.tools, self.context_tokens = {}, None, self.full_tokens
