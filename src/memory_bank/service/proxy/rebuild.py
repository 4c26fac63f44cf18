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
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from itertools import islice, takewhile
from typing import Any, Literal

import anyio
from anyio import CapacityLimiter, to_thread
from cachetools import LRUCache

from memory_bank.bank.lineage import Offer
from memory_bank.bank.steps import CONTROL
from memory_bank.errors import MemoryBankError
from memory_bank.processor import NotSentError
from memory_bank.service.failures import code_of
from memory_bank.service.proxy.api import NotRebuiltError, Provider, RequestHistory, Schemas, own_tools
from memory_bank.service.proxy.body import HOUR, as_object, objects_of
from memory_bank.service.proxy.exchange import MOST_SESSIONS, Exchange
from memory_bank.service.proxy.identity import Identity, SessionMatch, client_session, named_session
from memory_bank.service.security.access import project_named, public_name, stored_id
from memory_bank.service.sessions import ProxiedRequest, Rebuilt, Sessions, count_once
from memory_bank.tools import EARLIER_SCHEMAS, TOOL_SCHEMAS
from memory_bank.transcript.harness import asks_for_summary
from memory_bank.transcript.jsontext import compact
from memory_bank.transcript.messages import MessageKind, content_text, kind_of, message_text, same_objects
from memory_bank.transcript.transcript import is_same

log = logging.getLogger("memory_bank.Service")

THREADS = 8
"""Requests that are rebuilt at once; of a key at most half as many."""
WAITS = 12
"""How many times ``timeout`` a request waits for its turn, if its session has begun; others wait once."""
GROWS = 2**19
"""Bytes of a request for which it gets ``timeout`` once more."""
MOST_HANGING = 64
"""Threads that may hang before no request uses memory any more."""
LATE = frozenset({"timeout", "busy", "overloaded", "paused"})
"""Reasons for which a request gets the context of the session's stored fold."""
CONTINUED = "the last fold and what is new"
TOOLS_SHARE = 0.04
"""The share of a session's first request that memory's tools may add at most, as no step is to be 5% dearer."""
NOTHING_YET = "nothing to remember yet"
COMPACTION = "compaction request"
CACHED_FOR_AN_HOUR = re.compile(rb'"cache_control"\s*+:\s*+\{[^{}]*"ttl"\s*+:\s*+"1h"')
FAILING = 3
"""Requests in a row that memory fails for, after which it counts as failing."""
UNSEEN = 10
"""Requests without a tool call after which the reason says so: the agent's calls may be of an unknown form."""


class MemoryFailedError(Exception):
    """Memory failed for a request: the ``reason`` for its client, and a sentence for the log, "" for none."""

    def __init__(self, reason: str, sentence: str = "") -> None:
        super().__init__(sentence)
        self.reason = reason


@dataclass(slots=True, eq=False)
class _Job:
    """A rebuild in a thread: "taken" before it is charged, "put" before it is recorded and sent, or "given up"."""

    session_id: str | None = None
    end: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def is_wanted(self) -> bool:
        """Return whether its request waits for it, or has it."""
        return self.end != "given up"

    def moves(self, end: Literal["taken", "put", "given up"], *before: str) -> bool:
        """Return whether its end is now ``end``, coming from one of ``before``; the first who moves it decides."""
        with self._lock:
            if self.end in before:
                self.end = end
            return self.end == end


class _Share:
    """The limits of one namespace, and what happened to its requests: hangs, failures, clients without calls."""

    def __init__(self, pause: float, threads: int) -> None:
        self.limiter = CapacityLimiter(threads)
        self.late: _Job | None = None  # the latest that hung when it read a stored fold
        self.without: Counter[str] = Counter()  # requests that memory failed for, by reason
        self.without_calls: LRUCache[bytes, int] = LRUCache(256)  # requests in a row, by client
        self.failures = 0  # requests in a row that memory failed for
        self.causes: dict[str, str] = {}  # their reasons, with the latest sentence
        self._pause = pause
        self._hangs: LRUCache[bytes, int] = LRUCache(256)  # in a row, by conversation
        self._hung: set[bytes] = set()  # the conversations that hung since a request did not
        self._blocked_until = 0.0
        self._is_trying = False

    def is_paused(self, exchange: Exchange, *, tries: bool = False) -> bool:
        """Return whether memory is paused for a request; ``tries``: after a pause one goes on, as a trial."""
        many, is_blocked = len(self._hung) >= 2, time.monotonic() < self._blocked_until
        if many:
            is_paused = is_blocked or self._is_trying
        else:
            is_paused = is_blocked and self._hangs.get(_conversation(exchange), 0) >= 2
        if tries and not is_paused:
            self._is_trying = many
        return is_paused

    def report(self, exchange: Exchange, hung: bool | None) -> None:
        """Count a request that was allowed as hung or as not; None where nobody waited for it."""
        self._is_trying = False
        if hung:
            conversation = _conversation(exchange)
            self._hangs[conversation] = self._hangs.get(conversation, 0) + 1
            self._hung.add(conversation)
            self._blocked_until = time.monotonic() + self._pause
        elif hung is False and self._hangs:
            self._hangs.pop(_conversation(exchange), None)
            self._hung.clear()

    def fails(self, reason: str, sentence: str) -> None:
        """Count a failure of memory, which is logged once for each reason until it works again."""
        self.failures += 1
        level = logging.DEBUG if reason in self.causes else logging.WARNING
        self.causes.pop(reason, None)
        self.causes[reason] = sentence
        log.log(level, "memory failed, the request continues without it: %s", sentence)

    def works(self) -> None:
        """Forget the failures: memory works."""
        if self.failures >= FAILING:
            log.warning("memory works again, after %d requests without it", self.failures)
        self.failures, self.causes = 0, {}

    def count(self, exchange: Exchange) -> None:
        """Where many requests of a client or conversation had no call, say in its reason how many."""
        session = client_session(exchange.client_headers, exchange.body.value.get("metadata"))
        who = repr((exchange.upstream_key, exchange.client_headers.get("user-agent"), session))
        client = hashlib.sha256(who.encode("utf-8", "surrogatepass")).digest()
        if exchange.session is not None:
            self.without_calls.pop(client, None)
        if exchange.reason != NOTHING_YET:
            return
        count = self.without_calls[client] = self.without_calls.get(client, 0) + 1
        talked = 1 + sum(
            kind_of(m) is MessageKind.SAY for m in objects_of(exchange.body.value.get("messages"))
        )
        if max(count, talked) < UNSEEN:
            return
        exchange.reason = _unseen(max(count, talked))
        if UNSEEN in (count, talked):
            log.warning(
                "%s: memory does nothing for an agent whose calls are of no known form", exchange.reason
            )


@dataclass(eq=False)
class Rebuilder:
    """Rebuilds requests in worker threads, each for at most ``timeout`` seconds once it is its turn.

    Under load requests wait for their turn; one of a session that has not begun goes without memory after ``timeout``
    seconds (the session's next request brings the same messages), the others after WAITS times as long.

    A large request may take longer (GROWS). One that comes too late gets the context of the session's stored fold, if
    there is one; what its thread still does changes nothing but the facts that it stores. Failures become
    ``failed`` and never raised. After two consecutive hangs of a conversation its requests skip memory for ``pause``
    seconds, and after those of two conversations in a row all of the namespace (a key), then one tries. A session
    whose job still hangs is not used. The facts of a context are committed when it is returned.

    ``marks_cache``: requests whose client asks for no cache get cache marks where the API needs them. ``inject``:
    memory tools are added to requests; "auto": to those that bring tools. ``refusing_marks`` and ``untooled``: the
    sessions whose cache marks or added tools upstream refuses. ``passes``: the providers whose upstream gets
    ``context_management``.
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
        # what sessions get of memory's tools, and whether the database has it
        self._offers: LRUCache[str, tuple[Offer | None, bool]] = LRUCache(MOST_SESSIONS)
        self.refusing_marks: LRUCache[tuple[str | None, str | None], bool] = LRUCache(MOST_SESSIONS)
        self.untooled: LRUCache[str, bool] = LRUCache(MOST_SESSIONS)
        self._shares: LRUCache[str | None, _Share] = LRUCache(1_024)
        self._limiter = CapacityLimiter(THREADS)
        self._threads = CapacityLimiter(math.inf)  # those of the limiters, and what hangs
        self._finishers = CapacityLimiter(2)
        self.tasks: set[asyncio.Task[Any]] = set()  # its work, which goes on whoever waits for it
        self._unfinished: set[object] = set()  # one task a session, or they would pile up under load
        self._lock = threading.Lock()
        self.hanging: set[_Job] = set()  # that still run, though their requests have gone on

    async def rebuild(self, exchange: Exchange) -> None:
        """Put the rebuilt context into a request, or set the reason why it is forwarded unchanged."""
        share = self._share(exchange.namespace)
        try:
            await self._in_turn(share, exchange)
            if not exchange.api.counts_only and (share.without_calls or exchange.reason == NOTHING_YET):
                share.count(exchange)
        except NotRebuiltError as e:
            exchange.passes(str(e))
        except MemoryFailedError as e:
            exchange.memory, exchange.reason = "failed", e.reason
            share.without[e.reason] += 1
            if sentence := str(e):
                share.fails(e.reason, sentence)
            await self._without(share, exchange)
        if exchange.tools is not None:
            added = compact(exchange.tools[len(exchange.body.value.get("tools") or ()) :])
            exchange.tool_tokens = count_once(exchange.counter.count_text, added)
        if (step := exchange.step) is None:
            return
        if step.broke:
            share.without[step.broke] += 1
        elif exchange.reason is None and share.failures:
            share.works()
        if getattr(step.state, "deferred", None) and step.state not in self._unfinished:
            self._unfinished.add(step.state)
            self.tasks.add(task := asyncio.create_task(self._finish(step)))
            task.add_done_callback(self.tasks.discard)

    async def _in_turn(self, share: _Share, exchange: Exchange) -> None:
        """Rebuild a request when it is its turn. Raises NotRebuiltError, MemoryFailedError."""
        if share.is_paused(exchange):
            raise MemoryFailedError("paused")
        waits = self.timeout * (WAITS if _has_begun(exchange) else 1)
        with anyio.move_on_after(waits) as waiting:
            async with share.limiter, self._limiter:
                waiting.deadline = math.inf
                if len(self.hanging) >= MOST_HANGING or share.is_paused(exchange, tries=True):
                    raise MemoryFailedError("paused")
                began, limit = time.perf_counter(), self.timeout * (1 + len(exchange.body.data) / GROWS)
                hung: bool | None = None
                try:
                    if not await self._within(limit, _Job(), self._rebuild, exchange):
                        raise MemoryFailedError("timeout", f"it took longer than {limit:.3g} s")
                    hung = False
                except (NotRebuiltError, MemoryFailedError) as e:
                    hung = isinstance(e, MemoryFailedError) and time.perf_counter() - began > limit / 2
                    raise
                finally:
                    share.report(exchange, hung)
                return
        raise MemoryFailedError("overloaded")

    async def _within(
        self, limit: float, job: _Job, work: Callable[[_Job, Exchange], None], exchange: Exchange
    ) -> bool:
        """Work on a request in a thread; False where it has not begun to change it within the limit."""

        def ended(task: asyncio.Task[None]) -> None:
            self.tasks.discard(task)
            self.hanging.discard(job)
            if not task.cancelled():
                task.exception()  # which nobody may have waited for

        task = asyncio.create_task(to_thread.run_sync(work, job, exchange, limiter=self._threads))
        self.tasks.add(task)
        task.add_done_callback(ended)
        try:
            await asyncio.wait({task}, timeout=limit)
            if not task.done() and not job.moves("given up", ""):
                await asyncio.wait({task}, timeout=limit)  # what it costs is being stored
            if not task.done() and job.moves("given up", "", "taken"):
                return False
            await task
            return True
        except (NotRebuiltError, MemoryFailedError, NotSentError):
            raise
        except MemoryBankError as e:
            raise MemoryFailedError(code_of(e), f"{type(e).__name__}: {e}") from None
        except Exception as e:  # the error's text may hold contents
            place = traceback.extract_tb(e.__traceback__)[-1]
            sentence = f"an unforeseen {type(e).__name__} at {place.name}:{place.lineno}"
            raise MemoryFailedError("unforeseen", sentence) from None
        finally:
            if job.moves("given up", "", "taken"):  # also where the client has gone
                if task in self.tasks:
                    self.hanging.add(job)
                if job.session_id is not None:
                    exchange.session = public_name(exchange.namespace, job.session_id)

    async def _without(self, share: _Share, exchange: Exchange) -> None:
        """Give a request that memory failed for its session's tools; one that is late its stored fold, too."""
        headers, metadata = exchange.client_headers, exchange.body.value.get("metadata")
        named = headers.get("x-memory-session") or client_session(headers, metadata)
        exchange.session = exchange.session or named
        with suppress(MemoryBankError):  # a name that is none
            session_id = named and stored_id(exchange.namespace, str(exchange.session))
            exchange.tools = self._offered(exchange, session_id or None, asks=False)
        may_stand = exchange.reason in LATE and not exchange.api.counts_only and _has_begun(exchange)
        if share.late in self.hanging or not may_stand:
            return
        job = _Job()
        with suppress(NotRebuiltError, MemoryFailedError):
            if not await self._within(self.timeout, job, self._stand, exchange):
                share.late = job

    def notice(self, namespace: str | None) -> str | None:
        """A warning if a client has sent UNSEEN requests or more in a row without a tool call; else None."""
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
        """Return whether memory works for all namespaces, and who went without it, for ``/health``."""
        namespaces = list(self._shares)
        trouble = next(filter(None, map(self.trouble, namespaces)), None)
        told: dict[str, object] = {"ok": False, "trouble": trouble} if trouble else {}
        return told | {"without_memory": self.without(*namespaces)}

    def _share(self, namespace: str | None) -> _Share:
        """The limits of a namespace: without keys all threads, a key half, which leaves threads for the others."""
        if namespace not in self._shares:
            self._shares[namespace] = _Share(self.pause, THREADS if namespace is None else THREADS // 2)
        return self._shares[namespace]

    async def _finish(self, rebuilt: Rebuilt) -> None:
        """Do the work that was put off for a context, once its request is on its way."""
        await asyncio.sleep(0.01)  # in which the request goes upstream
        try:
            async with self._finishers:
                self._unfinished.discard(rebuilt.state)  # a step from now on is another task's
                await to_thread.run_sync(self.sessions.finish, rebuilt, limiter=self._threads)
        except Exception as e:  # the next step does it; the error's text may hold contents
            log.error("the work put off by a step failed with an unforeseen %s", type(e).__name__)

    def _rebuild(self, job: _Job, exchange: Exchange) -> None:
        """In a worker thread: rebuild a request. Raises NotRebuiltError, MemoryFailedError."""
        api, value, namespace = exchange.api, exchange.body.value, exchange.namespace
        history = api.history(exchange.body)
        is_summary = _asks_summary(exchange, history)
        project = project_named(namespace, exchange.client_headers)
        is_whole = not self.sessions.shortens(exchange.client_headers.get("x-memory-strategy"))
        members = [v for member in ("tools", "functions") if (v := value.get(member))]
        last, beside = history.memo.beside
        if not is_same(last, members):
            beside = "".join(map(compact, members))
            history.memo.beside = members, beside
        data = exchange.body.data
        lasts = HOUR in exchange.body.holds and CACHED_FOR_AN_HOUR.search(data)
        cached_for = 3_600 * bool(lasts)  # seconds
        cached_for = 86_400 if value.get("prompt_cache_retention") == "24h" else cached_for
        for _ in range(12):  # another conversation may continue the session meanwhile
            match = self.identity.session_of(
                exchange, history, asks_summary=is_summary, records=not api.counts_only, wanted=job.is_wanted
            )
            session_id = None if match is None else stored_id(namespace, match.name)
            keeps = None if api.counts_only else job.is_wanted
            offered = self._offered(exchange, session_id, history.messages, keeps=keeps)
            if match is None:
                if job.moves("put", ""):
                    exchange.passes(NOTHING_YET)
                    exchange.tools = offered
                return
            where = namespace, match.name, history.messages
            how: Any = {
                "strategy": exchange.client_headers.get("x-memory-strategy") or None,
                "model": exchange.model or "",
                "tools": offered or own_tools(value),
            }
            if api.counts_only:
                leaving = self.sessions.preview(*where, **how, form=history.form)
                if job.moves("put", ""):
                    exchange.tools = offered
                    self._put(exchange, leaving)
                return
            job.session_id = session_id
            if any(other.session_id == session_id for other in [*self.hanging] if other is not job):
                raise MemoryFailedError("busy", "an earlier request of the session is still at work")

            def sends(match: SessionMatch = match) -> bool:
                """Return whether it is sent: asked before it is charged, and again once that is done."""
                return job.moves("put", "taken") or (
                    (is_whole or self.identity.is_current(namespace, match)) and job.moves("taken", "")
                )

            try:
                request = ProxiedRequest(
                    history=history,
                    beside=beside,
                    added=compact(offered[len(value.get("tools") or ()) :]) if offered else "",
                    cached_for=cached_for,
                    marked=api.marked_head(exchange.body)
                    if api.provider == "anthropic" and self._adds_marks(namespace, match.name)
                    else None,
                    project=project,
                    client=exchange.client_headers.get("user-agent") or "",
                    sends=sends,
                    lineage=match.write,
                )
                step = self.sessions.rebuild(*where, **how, size=len(data), request=request)
                break
            except NotSentError:
                if job.end == "given up":
                    raise
        else:
            raise MemoryFailedError("busy", "other requests continue the session all the time")
        if not job.moves("put", "taken"):
            raise NotSentError
        exchange.session, exchange.step, exchange.tools = match.name, step, offered
        exchange.tokens, exchange.context_tokens, exchange.full_tokens = 0, step.tokens, step.full_tokens
        if is_summary and self.sessions.sends_whole(step):  # it is made of the real conversation
            exchange.passes(COMPACTION)
            exchange.context_tokens = step.full_tokens
            return
        # what changes at each step would be written to the cache and never be read
        written = value[api.key] if step.unchanged else step.written
        control = "control group (holdout)" if step.status == CONTROL else None
        self._put(exchange, written, stands=not step.changes_again, marks=not control, ends=step.cache_marks)
        exchange.memory = "unchanged" if step.unchanged else "rebuilt"
        exchange.reason = COMPACTION if is_summary else control or step.broke

    def _stand(self, job: _Job, exchange: Exchange) -> None:
        """In a worker thread: put what the session's stored fold shows into a late request. Nothing is stored."""
        history = exchange.api.history(exchange.body)
        if _asks_summary(exchange, history):  # which is to be made of the real conversation
            return
        match = self.identity.session_of(exchange, history, records=False)
        if match is None or match.how == "new":
            return
        offered = self._offered(exchange, stored_id(exchange.namespace, match.name))
        leaving = self.sessions.standing(
            exchange.namespace,
            match.name,
            history.messages,
            history.form,
            strategy=exchange.client_headers.get("x-memory-strategy") or None,
            tools=offered or own_tools(exchange.body.value),
        )
        if leaving is not None and job.moves("put", ""):
            exchange.session, exchange.tools = match.name, offered
            self._put(exchange, leaving, stands=True, marks=True)
            exchange.memory, exchange.reason = "rebuilt", f"{exchange.reason}: {CONTINUED}"

    def _put(
        self,
        exchange: Exchange,
        written: Sequence[object],
        *,
        stands: bool = False,
        marks: bool = False,
        ends: Sequence[Sequence[object]] | None = None,
    ) -> None:
        """Put a conversation into a request, with cache marks (``marks``) where its API needs them.

        ``stands``: the next one will begin with it. ``ends``: see with_cache_marks.
        """
        api = exchange.api
        is_same = same_objects(written, exchange.body.value[api.key])
        exchange.memory = "unchanged" if is_same else "rebuilt"
        marked = None
        if marks and api.provider == "anthropic" and self._adds_marks(exchange.namespace, exchange.session):
            marked = api.mark_cache(exchange.body, written, stands=stands, ends=ends)
        exchange.arrays = {api.key: marked or written} if marked or not is_same else {}

    def _adds_marks(self, namespace: str | None, session: str | None) -> bool:
        return self.marks_cache and (namespace, session) not in self.refusing_marks

    def _offered(
        self,
        exchange: Exchange,
        session_id: str | None = None,
        messages: Sequence[object] = (),
        *,
        asks: bool = True,
        keeps: Callable[[], bool] | None = None,
    ) -> list[object] | None:
        """The request's tools with memory's, which a session gets from its first request on or never; None without.

        The tools stand before all messages: if they came, went or changed within a session, the provider's cache
        would lose these. ``messages``: of a session that may begin, whose project may have earlier ones. ``asks``:
        the database is asked for what this process has not decided itself. ``keeps``: what is decided is stored,
        if it returns True then.
        """
        api, value, offered, is_kept = exchange.api, exchange.body.value, None, False
        if not (self.inject is True or (self.inject and value.get("tools"))) or api.route == "compact":
            return None
        if session_id is not None:
            with self._lock:
                offered, is_kept = self._offers.get(session_id, (None, False))
            if asks and not is_kept and (stored := self.identity.lineage.offer(session_id)):
                offered, is_kept = stored, True
        if is_kept and offered is Offer.NONE:
            return None
        offer = self._offer(exchange, session_id, offered, messages)
        tools = api.offer_tools(value, _SCHEMAS[offer]) if offer in _SCHEMAS else None
        if session_id is None:
            return tools
        if keeps and not is_kept and (value.get("tools") or offer is Offer.EARLIER):
            offered = self.identity.lineage.keep_offer(session_id, offer if tools else Offer.NONE, keeps)
            if not (is_kept := keeps()):
                return tools
            if tools and offered is not offer:  # another process was faster
                tools = api.offer_tools(value, _SCHEMAS[offered]) if offered in _SCHEMAS else None
        if is_kept or (offered is None and tools):
            with self._lock:
                self._offers[session_id] = offered or offer, is_kept
        return tools

    def _offer(
        self, exchange: Exchange, session_id: str | None, stored: Offer | None, messages: Sequence[object]
    ) -> Offer:
        """The memory tools that a request gets: those of its session, where these can be offered at all."""
        api, value = exchange.api, exchange.body.value
        if not self.sessions.shortens(exchange.client_headers.get("x-memory-strategy")):
            return Offer.NONE
        if session_id is not None and (
            session_id in self.untooled
            or (self.sessions.is_control(session_id) and _names(exchange, session_id))
        ):
            return Offer.NONE
        if stored is not None:
            return stored
        if api.binds_tools(value) or not (self.inject is True or _has_room(exchange, TOOL_SCHEMAS)):
            return Offer.NONE
        # where no client names the session, its first request could not know what is decided later
        is_first = messages and session_id is not None and _names(exchange, session_id)
        if is_first and (self.inject is True or _has_room(exchange, EARLIER_SCHEMAS)):
            project = project_named(exchange.namespace, exchange.client_headers)
            if self.sessions.has_earlier(exchange.namespace, str(session_id), project, [*messages]):
                return Offer.EARLIER
        return Offer.OWN


_SCHEMAS = {Offer.OWN: TOOL_SCHEMAS, Offer.EARLIER: EARLIER_SCHEMAS}


def _names(exchange: Exchange, session_id: str | None) -> bool:
    """Return whether the client itself names this session, as from its first request on."""
    named = named_session(exchange.namespace, exchange.client_headers, exchange.body.value, None)
    return named is not None and session_id == stored_id(exchange.namespace, named.name)


def _has_room(exchange: Exchange, schemas: Schemas) -> bool:
    """Return whether memory's tools are a small share of the first request of a conversation: its tools and prompts.

    Images, files and blanks are many characters and few tokens, so that they do not count.
    """
    value = exchange.body.value
    tools = compact(own_tools(value))
    came = messages if isinstance(messages := value.get(exchange.api.key), list) else []
    asked = takewhile(lambda m: as_object(m).get("role") in ("system", "developer", "user"), came)
    texts = [
        content_text(value.get("system")),
        content_text(value.get("instructions")),
        *map(message_text, asked),
    ]
    chars = len(tools) + sum(len(" ".join(text.split())) for text in texts)
    return len(compact(schemas)) <= TOOLS_SHARE * chars


def _asks_summary(exchange: Exchange, history: RequestHistory) -> bool:
    """Return whether a request asks for a summary: by a member, a system message, or the user's last one."""
    messages, kinds = history.messages, history.kinds
    places = islice((i for i, kind in enumerate(kinds) if kind is MessageKind.SYSTEM), 2)
    prompts = [messages[i] for i in places]
    prompts += [m for m in messages[-1:] if kinds[-1] is MessageKind.USER]
    ask = history.memo.of_each("asks for a summary", prompts, lambda m: asks_for_summary(message_text(m)))
    return any(ask) or exchange.api.is_compaction(exchange.body.value)


def _has_begun(exchange: Exchange) -> bool:
    """Return whether a request has two turns of the agent or more; of fewer memory could shorten nothing."""
    items = exchange.body.value.get(exchange.api.key)
    came = (m for m in (items if isinstance(items, list) else ()) if isinstance(m, dict))
    turns = (m.get("role") == "assistant" or str(m.get("type")).endswith("_call") for m in came)
    return len(list(islice(filter(None, turns), 2))) == 2


def _conversation(exchange: Exchange) -> bytes:
    """The digest of a conversation whose session is not known yet: of its name, else of its beginning."""
    value = exchange.body.value
    named = exchange.client_headers.get("x-memory-session") or client_session(
        exchange.client_headers, value.get("metadata")
    )
    came = value.get(exchange.api.key)
    begins = named or compact(came[:2] if isinstance(came, list) else None)
    return hashlib.sha256(begins.encode("utf-8", "surrogatepass")).digest()


def _unseen(count: int) -> str:
    return f"no tool calls seen in {count} requests"
