"""A request's context from memory: its session is found and its messages are rebuilt, within a time limit."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import re
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import islice, takewhile
from typing import Any, Literal

import anyio
from anyio import to_thread
from cachetools import LRUCache

from memory_bank.bank.session import Session
from memory_bank.context.gate import broken_rule, has_too_many_marks
from memory_bank.errors import MemoryBankError
from memory_bank.service.failures import code_of
from memory_bank.service.proxy.answers import as_object, objects_of
from memory_bank.service.proxy.body import Body, JsonObject, render_body
from memory_bank.service.proxy.dialects import Dialect, LateError, NotRebuiltError, Provider, own_tools
from memory_bank.service.proxy.identity import Identity, client_session
from memory_bank.service.security.access import Caller, public_name, stored_id
from memory_bank.service.sessions import Rebuilt, Sessions
from memory_bank.tools import TOOL_SCHEMAS
from memory_bank.transcript.anthropic import CACHE_MARK, MOST_CACHE_MARKS, cache_marks, marks_beside
from memory_bank.transcript.chat import CHAT
from memory_bank.transcript.harness import asks_for_summary
from memory_bank.transcript.jsontext import compact
from memory_bank.transcript.messages import MessageKind, content_text, kind_of, message_text, same_objects

log = logging.getLogger("memory_bank.Service")

THREADS = 8
"""Requests that are rebuilt at once; of a key at most half as many."""
WAITS = 12
"""How many times ``timeout`` a request waits for its turn, if its session has begun; others wait once."""
GROWS = 2**19
"""Bytes of a request for which it gets ``timeout`` once more."""
MOST_SENT = 128
"""Sessions whose last context is kept for a step whose memory comes too late."""
LATE = frozenset({"timeout", "busy", "overloaded", "paused"})
"""Reasons for which a request continues the context that was sent last."""
CONTINUED = "the last context and what is new"
MOST_UNMARKED = 1_024
"""Sessions of which it is remembered that upstream refuses their marks, or whether they have memory's tools."""
TOOLS_SHARE = 0.04
"""Of a session's first request, the most that memory's tools may take: no step is to be 5% dearer."""
NOTHING_YET = "nothing to remember yet"
COMPACTION, COMPLETED = "compaction request", "compaction request, completed by memory"
FAILING = 3
"""Requests in a row that memory fails for, after which it counts as failing."""
UNSEEN = 10
"""Requests without a tool call after which the reason says so: the agent's calls may be of an unknown form."""


@dataclass(frozen=True, slots=True)
class LastContext:
    """What was sent for a session: the first ``count`` elements of its request, by their digest, as ``written``."""

    session: str
    count: int
    digest: bytes
    written: Sequence[object] = field(repr=False)


@dataclass(frozen=True, slots=True)
class MemoryResult:
    """What memory did for a request.

    ``data`` is the body for upstream, None for the original one; ``arrays`` are the members that differ in it.
    ``reason`` says, without contents, why the request ``passed`` or memory ``failed``, and ``trouble``, for the log,
    how it failed. ``session`` is the session's public name, ``tokens`` are those of one such request, ``step`` is the
    step that it is recorded as. ``tools``: the request's with the memory tools, where these are added. ``sent``: what
    the session's next request may continue.
    """

    status: Literal["rebuilt", "unchanged", "passed", "failed", "answered"]
    reason: str | None = None
    data: bytes | None = field(default=None, repr=False)
    arrays: Mapping[str, Sequence[object]] = field(default_factory=dict, repr=False)
    session: str | None = None
    tokens: int | None = None
    full_tokens: int | None = None
    step: Rebuilt | None = field(default=None, repr=False)
    tools: list[object] | None = field(default=None, repr=False)
    trouble: str = field(default="", repr=False)
    sent: LastContext | None = field(default=None, repr=False)


BUSY = MemoryResult("failed", "busy", trouble="an earlier request of the session is still at work")


@dataclass(slots=True, eq=False)
class ModelRequest:
    """A request of a dialect, and what memory did for it. The ``body`` has no members if it cannot be edited.

    ``compacted``: the session that a compaction item of ours names.
    """

    dialect: Dialect
    caller: Caller
    body: Body = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    upstream_key: str | None = field(repr=False)
    memory: MemoryResult = MemoryResult("passed")
    compacted: str | None = None

    @property
    def value(self) -> JsonObject:
        """The members of its body."""
        return self.body.value

    @property
    def model(self) -> str:
        """The model that it is for, "" without a name."""
        model = self.value.get("model")
        return model if isinstance(model, str) else ""

    def render(self, arrays: Mapping[str, Sequence[object]] | None = None) -> bytes:
        """The body for upstream, with memory's context and these arrays as members. Raises BodyError."""
        if not arrays:
            return self.memory.data or self.body.data
        return render_body(self.body, {**self.memory.arrays, **arrays})


@dataclass(slots=True, eq=False)
class _Job:
    """A rebuild in a worker thread: on which session, and whether it runs and its result is waited for."""

    is_running: bool = False
    session_id: str | None = None
    is_wanted: bool = True


class _Line:
    """Places for so many requests at once; who waits gets one in order, sessions that have begun before new ones."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._begun: deque[asyncio.Future[None]] = deque()
        self._new: deque[asyncio.Future[None]] = deque()

    def __len__(self) -> int:
        """How many wait."""
        return len(self._begun) + len(self._new)

    @asynccontextmanager
    async def place(self, begun: bool) -> AsyncIterator[None]:
        """Hold a place, once there is one."""
        if self._free:
            self._free -= 1
        else:
            turn = asyncio.get_running_loop().create_future()
            (self._begun if begun else self._new).append(turn)
            try:
                await turn
            except BaseException:
                if not turn.cancelled():  # it was given a place and has left meanwhile
                    self._leave()
                raise
        try:
            yield
        finally:
            self._leave()

    def _leave(self) -> None:
        while waiting := self._begun or self._new:
            turn = waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


class _Share:
    """What one namespace may use, and what its requests have met with: hangs, failures, clients without calls."""

    def __init__(self, pause: float, threads: int) -> None:
        self.line = _Line(threads)
        self.without: Counter[str] = Counter()  # requests that memory failed for, by reason
        self.without_calls: LRUCache[bytes, int] = LRUCache(256)  # requests in a row, by client
        self.failures = 0  # requests in a row that memory failed for
        self.causes: dict[str | None, str] = {}  # their reasons, with the latest sentence
        self._pause = pause
        self._hangs = 0
        self._blocked_until = 0.0
        self._is_trying = False

    @property
    def is_paused(self) -> bool:
        """Whether no request may use memory now."""
        return self._hangs >= 2 and (self._is_trying or time.monotonic() < self._blocked_until)

    def allows(self) -> bool:
        """Whether a request may use memory; after a pause, true for one until it reports."""
        if self.is_paused:
            return False
        self._is_trying = self._hangs >= 2
        return True

    def report(self, hung: bool | None) -> None:
        """Note whether a request that was allowed has hung; None where nobody waited for it."""
        self._is_trying = False
        if hung:
            self._hangs += 1
            self._blocked_until = time.monotonic() + self._pause
        elif hung is False:
            self._hangs = 0

    def note(self, result: MemoryResult) -> None:
        """Note that memory works or has failed, which is logged once for each reason until it works again."""
        if result.trouble:
            self.failures += 1
            known = self.causes.pop(result.reason, None)
            self.causes[result.reason] = result.trouble
            level = logging.WARNING if known is None else logging.DEBUG
            log.log(level, "memory failed, the request continues without it: %s", result.trouble)
        elif result.step is not None and result.reason is None:
            if self.failures >= FAILING:
                log.warning("memory works again, after %d requests without it", self.failures)
            self.failures, self.causes = 0, {}

    def count(self, request: ModelRequest, result: MemoryResult) -> MemoryResult:
        """The result; its reason says how many requests of the client or conversation had no call, if many."""
        session = client_session(request.headers, request.value.get("metadata"))
        who = repr((request.upstream_key, request.headers.get("user-agent"), session))
        client = hashlib.sha256(who.encode("utf-8", "surrogatepass")).digest()
        if result.session is not None:
            self.without_calls.pop(client, None)
        if result.reason != NOTHING_YET:
            return result
        own = self.without_calls[client] = self.without_calls.get(client, 0) + 1
        talked = 1 + sum(kind_of(m) is MessageKind.SAY for m in objects_of(request.value.get("messages")))
        if max(own, talked) < UNSEEN:
            return result
        reason = _unseen(max(own, talked))
        if UNSEEN in (own, talked):
            log.warning("%s: memory does nothing for an agent whose calls are of no known form", reason)
        return replace(result, reason=reason)


@dataclass(eq=False)
class Rebuilder:
    """Rebuilds requests in worker threads, each for at most ``timeout`` seconds once it is its turn.

    Under load requests wait for their turn; one of a session that has not begun goes without memory after ``timeout``
    seconds (the session's next request brings the same messages), the others after WAITS times as long.

    A large request may take longer (GROWS). One that comes too late continues the context that was sent last, if
    there is one; the late result is dropped. Failures are returned as ``failed`` and never raised. After two
    consecutive hangs of a namespace (a key) its requests skip memory for ``pause`` seconds, then one tries. A session
    whose job still hangs is not used. The
    facts of a context are committed when it is returned. ``marks_cache``: requests whose client asks for no cache
    get marks where the API needs them. ``inject``: memory tools are added to requests; "auto": to those that bring
    tools. ``unmarked`` and ``untooled``: the sessions whose marks or added tools upstream refuses.
    ``passes``: the providers whose upstream gets ``context_management``, which is applied here otherwise.
    """

    sessions: Sessions
    identity: Identity
    timeout: float
    _: KW_ONLY
    pause: float = 10.0
    marks_cache: bool = True
    inject: bool | Literal["auto"] = False
    passes: set[Provider] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._sent: LRUCache[tuple[str | None, str], LastContext] = LRUCache(MOST_SENT)
        self._decisions: LRUCache[str, bool] = LRUCache(MOST_UNMARKED)  # which sessions have memory's tools
        self.unmarked: LRUCache[tuple[str | None, str | None], bool] = LRUCache(MOST_UNMARKED)
        self.untooled: LRUCache[str, bool] = LRUCache(MOST_UNMARKED)
        self._shares: LRUCache[str | None, _Share] = LRUCache(1_024)
        self._line = _Line(THREADS)
        self._limiter = anyio.CapacityLimiter(math.inf)  # those of the line, and what hangs
        self._finishers = anyio.CapacityLimiter(2)
        self._tasks: set[asyncio.Task[None]] = set()
        self._unfinished: set[Session | None] = set()  # one task a session, or they would pile up under load
        self._lock = threading.Lock()
        self._stuck: set[_Job] = set()  # running, though nobody waits for them

    async def rebuild(self, request: ModelRequest) -> MemoryResult:
        """Return the rebuilt context of a request, or the reason why the request is forwarded unchanged."""
        share, begun = self._share(request.caller.namespace), _has_begun(request)
        result = MemoryResult("failed", "paused")
        if not share.is_paused:
            result = MemoryResult("failed", "overloaded")
            with anyio.move_on_after(self.timeout * (WAITS if begun else 1)) as waiting:
                async with share.line.place(begun), self._line.place(begun):
                    waiting.deadline = math.inf
                    result = await self._timed(share, request)
        if result.status == "failed" or (result.step is not None and result.step.broke):
            share.without[str(result.reason)] += 1
        if result.status == "failed":
            headers, metadata = request.headers, request.value.get("metadata")
            named = headers.get("x-memory-session") or client_session(headers, metadata)
            result = replace(result, session=result.session or named)
            with suppress(MemoryBankError):  # a name that is none
                session_id = named and stored_id(request.caller.namespace, str(result.session))
                result = replace(result, tools=self._offered(request, session_id or None, asks=False))
            if result.reason in LATE and not request.dialect.counts_only:
                known = [
                    c for (namespace, _), c in self._sent.items() if namespace == request.caller.namespace
                ]
                result = await to_thread.run_sync(self._continued, request, result, known)
        elif (sent := result.sent) is not None:
            self._sent[request.caller.namespace, sent.session] = sent
        if result.step is not None and result.step.state not in self._unfinished:
            self._unfinished.add(result.step.state)
            task = asyncio.create_task(self._finish(result.step))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return result

    async def _timed(self, share: _Share, request: ModelRequest) -> MemoryResult:
        """The context of a request whose turn it is, if it takes no longer than the limit."""
        if len(self._stuck) >= 64 or not share.allows():
            return MemoryResult("failed", "paused")
        began, limit = time.perf_counter(), self.timeout * (1 + len(request.body.data) / GROWS)
        job = _Job()
        result: MemoryResult | None = None
        hung: bool | None = None
        try:
            with anyio.move_on_after(limit):
                result = await to_thread.run_sync(
                    self._run, job, request, abandon_on_cancel=True, limiter=self._limiter
                )
            if result is not None:
                hung = result.status == "failed" and time.perf_counter() - began > limit / 2
            elif job.is_running:
                hung = True
        finally:
            share.report(hung)
            job.is_wanted = result is not None
            with self._lock:
                if result is None and job.is_running:
                    self._stuck.add(job)
        if result is None:
            result = MemoryResult("failed", "timeout", trouble=f"it took longer than {limit:.3g} s")
        elif not request.dialect.counts_only:
            result = share.count(request, result)
        share.note(result)
        if result.status == "failed" and job.session_id is not None:
            result = replace(result, session=public_name(request.caller.namespace, job.session_id))
        return result

    def notice(self, namespace: str | None) -> str | None:
        """That a client of a namespace has sent UNSEEN or more requests in a row without a tool call; else None."""
        most = max(self._share(namespace).without_calls.values(), default=0)
        return None if most < UNSEEN else _unseen(most)

    def trouble(self, namespace: str | None) -> str | None:
        """Why memory fails, if it failed for a namespace's latest requests, FAILING or more, in this process."""
        share = self._share(namespace)
        if share.failures < FAILING:
            return None
        return f"Memory fails, requests continue without it: {[*share.causes.values()][-1].rstrip('.')}."

    def without(self, *namespaces: str | None) -> dict[str, int]:
        """How many requests of namespaces went without memory in this process, by reason."""
        counts = [self._share(n).without for n in namespaces]
        return dict(sum(counts, Counter()).most_common())

    def check(self) -> dict[str, object]:
        """Whether memory works for all namespaces, and who went without it, for ``/health``."""
        known = list(self._shares)
        trouble = next(filter(None, map(self.trouble, known)), None)
        told: dict[str, object] = {"ok": False, "trouble": trouble} if trouble else {}
        return told | {"without_memory": self.without(*known)}

    def _share(self, namespace: str | None) -> _Share:
        """What a namespace may use: without keys all threads, a key half, which leaves threads for the others."""
        if namespace not in self._shares:
            self._shares[namespace] = _Share(self.pause, THREADS if namespace is None else THREADS // 2)
        return self._shares[namespace]

    async def _finish(self, rebuilt: Rebuilt) -> None:
        """Do the work that was put off for a context, once its request is on its way."""
        await asyncio.sleep(0.01)  # in which the request goes upstream

        def finish() -> None:
            self._unfinished.discard(rebuilt.state)  # a step from now on is another task's
            self.sessions.finish(rebuilt)

        try:
            await to_thread.run_sync(finish, limiter=self._finishers)
        except Exception as e:  # the next step does it; the error's text may hold contents
            log.error("the work put off by a step failed with an unforeseen %s", type(e).__name__)

    def _run(self, job: _Job, request: ModelRequest) -> MemoryResult:
        """In a worker thread: rebuild a request, and turn errors into results."""
        job.is_running = True
        try:
            memory = self._rebuild(job, request)
            return replace(memory, data=render_body(request.body, memory.arrays) if memory.arrays else None)
        except NotRebuiltError as e:
            return MemoryResult("passed", str(e))
        except LateError:
            return MemoryResult("failed", "timeout")
        except MemoryBankError as e:
            return MemoryResult("failed", code_of(e), trouble=f"{type(e).__name__}: {e}")
        except Exception as e:  # the error's text may hold contents
            place = traceback.extract_tb(e.__traceback__)[-1]
            trouble = f"an unforeseen {type(e).__name__} at {place.name}:{place.lineno}"
            return MemoryResult("failed", "unforeseen", trouble=trouble)
        finally:
            with self._lock:
                job.is_running = False
                self._stuck.discard(job)

    def _rebuild(self, job: _Job, request: ModelRequest) -> MemoryResult:
        dialect, value, headers = request.dialect, request.value, request.headers
        namespace = request.caller.namespace
        history = dialect.history(request.body)
        is_summary = _asks_summary(dialect, value, history.messages)
        strategy = headers.get("x-memory-strategy") or None

        def wanted() -> bool:
            return job.is_wanted

        for _ in range(3):  # another conversation may continue the session meanwhile
            match = self.identity.session_of(
                namespace,
                upstream_key=request.upstream_key,
                headers=headers,
                body=value,
                messages=history.messages,
                asks_summary=is_summary,
                compacted=request.compacted,
                records=not dialect.counts_only,
                wanted=wanted,
            )
            if match is None:
                return MemoryResult("passed", NOTHING_YET, tools=self._offered(request))
            session_id = stored_id(namespace, match.name)
            offered = self._offered(request, session_id)
            tools = offered or own_tools(value)
            given = namespace, match.name, history.messages
            how: Any = {"strategy": strategy, "model": request.model, "tools": tools}
            if dialect.counts_only:
                leaving = self.sessions.preview(*given, **how, form=history.form)
                if same_objects(leaving, value[dialect.key]):
                    return MemoryResult("unchanged", tools=offered)
                return MemoryResult("rebuilt", arrays={dialect.key: leaving}, tools=offered)
            job.session_id = session_id
            with self._lock:  # an abandoned job may use it
                if any(other.session_id == job.session_id for other in self._stuck - {job}):
                    return BUSY
            step = self.sessions.rebuild(
                *given,
                **how,
                size=len(request.body.data),
                history=None if is_summary else history,
                beside="".join(compact(v) for m in ("tools", "functions") if (v := value.get(m))),
                wanted=wanted,
                added=compact(offered[len(value.get("tools") or ()) :]) if offered else "",
                sender=_program(headers.get("user-agent") or ""),
            )
            if self.identity.is_current(namespace, match):
                break
        else:
            return BUSY
        self._keep_decision(request, session_id, offered is not None)
        if is_summary:  # which is to be made of the real conversation
            tokens = step.full_tokens, step.full_tokens
            return MemoryResult("passed", COMPACTION, None, {}, match.name, *tokens, step, offered)
        arrays: dict[str, Sequence[object]] = {} if step.unchanged else {dialect.key: step.written}
        # what changes at each step would be written to the cache and never be read
        if self.marks_cache and not step.control and (namespace, match.name) not in self.unmarked:
            sent, stands = arrays.get(dialect.key) or value[dialect.key], not step.changes_again
            marked = dialect.mark_cache(value, sent, stands=stands)
            if marked is not None and not has_too_many_marks(marked, value[dialect.key], marks_beside(value)):
                arrays = {dialect.key: marked}
        sent = None
        if not step.unchanged:
            [digest] = self._digests(request, [count := len(value[dialect.key])])
            sent = LastContext(match.name, count, digest, arrays[dialect.key])
        return MemoryResult(
            "unchanged" if step.unchanged else "rebuilt",
            "control group (holdout)" if step.control else step.broke,
            arrays=arrays,
            session=match.name,
            tokens=step.tokens,
            full_tokens=step.full_tokens,
            step=step,
            tools=offered,
            sent=sent,
        )

    def _offered(
        self, request: ModelRequest, session_id: str | None = None, *, asks: bool = True
    ) -> list[object] | None:
        """The request's tools with memory's, which a session gets from its first request on or never; None without.

        The tools stand before all messages: if they came or went within a session, the provider's cache would lose
        these. ``asks``: the database is asked for a decision that this process has not made itself.
        """
        dialect, value = request.dialect, request.value
        own = value.get("tools")
        if not (self.inject is True or (self.inject and own)) or dialect.route == "compact":
            return None
        if not self.sessions.shortens(request.headers.get("x-memory-strategy")):
            return None
        decided = None
        if session_id is not None:
            if session_id in self.untooled or self.sessions.is_control(session_id):
                return None
            with self._lock:
                decided = self._decisions.get(session_id)
            if decided is None and asks:
                decided = self.identity.lineage.tools_decided(session_id)
        if decided is None:
            decided = not dialect.binds_tools(value) and (self.inject is True or _has_room(request))
        return dialect.offer_tools(value) if decided else None

    def _keep_decision(self, request: ModelRequest, session_id: str, offered: bool) -> None:
        """Store whether a session has memory's tools, where a later request of it might say otherwise."""
        with self._lock:
            is_known = session_id in self._decisions
        if not is_known and self.inject and request.value.get("tools"):
            decided = self.identity.lineage.tools_decided(session_id)
            if decided is None:
                self.identity.lineage.decide_tools(session_id, decided := offered)
            with self._lock:
                self._decisions[session_id] = decided

    def _continued(
        self, request: ModelRequest, failed: MemoryResult, known: Sequence[LastContext]
    ) -> MemoryResult:
        """In a worker thread: the context that was sent last, with the new messages after it; else the failure.

        So a step whose memory comes too late keeps its prefix. A request for a summary is of the real conversation.
        """
        dialect, value = request.dialect, request.value
        came = given if isinstance(given := value.get(dialect.key), list) else []
        counts = sorted({c.count for c in known if c.count <= len(came)})
        digests = set(self._digests(request, counts))
        known = [c for c in known if c.digest in digests]
        try:
            history = dialect.history(request.body)
            if not known or _asks_summary(dialect, value, history.messages):
                return failed
            last = max(known, key=lambda c: c.count)
            written = [*last.written, *came[last.count :]]
            form, beside = history.form, marks_beside(value)
            if cache_marks(written) + beside > MOST_CACHE_MARKS:
                written = [*map(_without_marks, last.written), *came[last.count :]]
            wire = CHAT if form is None else form.source.wire
            if broken_rule(written, came, wire, marks_beside=beside):
                return failed
            data = render_body(request.body, {dialect.key: written})
        except (NotRebuiltError, MemoryBankError):
            return failed
        reason = f"{failed.reason}: {CONTINUED}"
        arrays = {dialect.key: written}
        return MemoryResult("rebuilt", reason, data, arrays, last.session, tools=failed.tools)

    def _digests(self, request: ModelRequest, counts: Sequence[int]) -> list[bytes]:
        """The digests of the first so many elements of a client's conversation, for ascending counts."""
        named = [request.headers.get(f"x-memory-{name}") for name in ("session", "agent", "strategy")]
        who = repr((request.dialect.route, request.upstream_key, named))
        rolling, found, at = hashlib.sha256(who.encode("utf-8", "surrogatepass")), [], 0
        for count in counts:
            for element in request.value[request.dialect.key][at:count]:
                rolling.update(self.identity.canonical(element))
            found.append(rolling.copy().digest())
            at = count
        return found


def _without_marks(message: Any) -> Any:
    """A message without cache marks at its parts."""
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, list) or not cache_marks(content):
        return message
    parts = [{k: v for k, v in p.items() if k != CACHE_MARK} if isinstance(p, dict) else p for p in content]
    return {**message, "content": parts}


def _has_room(request: ModelRequest) -> bool:
    """Whether memory's tools are a small share of the first request of a conversation: its tools and prompts.

    Images, files and blanks are many characters and few tokens, so that they do not count.
    """
    value, own = request.value, compact(own_tools(request.value))
    came = given if isinstance(given := value.get(request.dialect.key), list) else []
    asked = takewhile(lambda m: as_object(m).get("role") in ("system", "developer", "user"), came)
    texts = [
        content_text(value.get("system")),
        content_text(value.get("instructions")),
        *map(message_text, asked),
    ]
    shown = len(own) + sum(len(" ".join(text.split())) for text in texts)
    return len(compact(TOOL_SCHEMAS)) <= TOOLS_SHARE * shown


def _asks_summary(dialect: Dialect, value: JsonObject, messages: Sequence[object]) -> bool:
    """Whether a request asks for a summary: by a member, a system message, or the user's last one."""
    prompts = [m for m in messages if kind_of(m) is MessageKind.SYSTEM][:2]
    prompts += [m for m in messages[-1:] if kind_of(m) is MessageKind.USER]
    return dialect.is_compaction(value) or any(asks_for_summary(message_text(m)) for m in prompts)


def _has_begun(request: ModelRequest) -> bool:
    """Whether a request has two turns of the agent or more; with fewer there is nothing that memory could shorten."""
    items = request.value.get(request.dialect.key)
    turns = (m.get("role") == "assistant" or str(m.get("type")).endswith("_call") for m in objects_of(items))
    return len(list(islice(filter(None, turns), 2))) == 2


def _unseen(count: int) -> str:
    return f"no tool calls seen in {count} requests"


def _program(user_agent: str) -> str:
    """The name of a program, of its user agent: ``claude-cli/2.1.4 (external)`` is "claude-cli"."""
    return re.split(r"[/ ]v?\d|[ (]", user_agent, maxsplit=1)[0][:60].strip("/")
