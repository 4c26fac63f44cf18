"""A request's memory: its session is found and its context rebuilt, in time or not at all."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import anyio
from anyio import to_thread

from memory_bank.errors import MemoryBankError
from memory_bank.service.bodies import Body, render_body
from memory_bank.service.breaker import PAUSE, Breaker
from memory_bank.service.dialects import Dialect, PassedError
from memory_bank.service.failures import code_of
from memory_bank.service.identity import Identity
from memory_bank.service.security.access import Caller, stored_id
from memory_bank.service.sessions import Rebuilt, Sessions

log = logging.getLogger("memory_bank.Service")

THREADS = 8
FINISHERS = 2
LATER = 0.01
"""Seconds after a context is made in which its request goes upstream before anything else is done."""
MOST_STUCK = 64
SLOW = 0.5
"""Of the time that memory has: a failure that took as long is one of those that hang."""
ATTEMPTS = 3
"""At finding a session that no other conversation has gone on with meanwhile."""

Status = Literal["rebuilt", "unchanged", "passed", "failed"]


@dataclass(frozen=True, slots=True)
class Remembered:
    """What memory made of a request.

    ``data`` is the body that goes upstream, None for the one that came; ``arrays`` the members that differ.
    ``reason`` says in few words, without contents, why it ``passed`` or memory ``failed``. ``session`` is the
    name by which the caller knows it, ``how`` it was found, ``seconds`` what it took.
    """

    status: Status
    reason: str | None = None
    data: bytes | None = field(default=None, repr=False)
    arrays: Mapping[str, Sequence[Any]] = field(default_factory=dict, repr=False)
    session: str | None = None
    how: str | None = None
    tokens: int | None = None
    full_tokens: int | None = None
    seconds: float = 0.0


@dataclass(slots=True, eq=False)
class _Step:
    """A step in a thread: whether it is at work, and on which session."""

    at_work: bool = False
    session: str | None = None
    rebuilt: Rebuilt | None = None


class _BusyError(Exception):
    """Others are at work on the session: a step that was given up, or other conversations."""


class Memory:
    """What makes a request's memory in worker threads, each for at most ``timeout`` seconds.

    Whatever goes wrong is told as ``failed``, and never raised. When two in a row hang, all go on without
    memory for ``pause`` seconds, then one tries; a session whose step still hangs is left alone. A context's
    facts are committed when it is given back.
    """

    def __init__(
        self, sessions: Sessions, identity: Identity, timeout: float, *, pause: float = PAUSE
    ) -> None:
        self._sessions = sessions
        self._identity = identity
        self._timeout = timeout
        self._breaker = Breaker(pause=pause)
        self._limiter = anyio.CapacityLimiter(THREADS)
        self._finishers = anyio.CapacityLimiter(FINISHERS)
        self._tasks: set[asyncio.Task[None]] = set()
        self._lock = threading.Lock()
        self._stuck: dict[_Step, None] = {}  # at work, though nobody waits for them

    async def remember(
        self,
        caller: Caller,
        dialect: Dialect,
        body: Body,
        headers: Mapping[str, str],
        upstream_key: str | None,
    ) -> Remembered:
        """What is to be sent instead of what a request's body says."""
        began = time.perf_counter()
        if len(self._stuck) >= MOST_STUCK or not self._breaker.lets():
            return Remembered("failed", "paused")
        step = _Step()
        done: Remembered | None = None
        known = False
        try:
            with anyio.move_on_after(self._timeout):
                done = await to_thread.run_sync(
                    self._remember,
                    step,
                    (caller, dialect, body, headers, upstream_key),
                    abandon_on_cancel=True,
                    limiter=self._limiter,
                )
            known = True
        finally:
            if done is None:
                self._give_up(step)
            if not known:
                self._breaker.left()
        seconds = time.perf_counter() - began
        if done is None and not step.at_work:  # no thread was free: too much to do, but nothing hangs
            self._breaker.left()
        elif done is None or (done.status == "failed" and seconds > SLOW * self._timeout):
            self._breaker.hung()
        else:
            self._breaker.worked()
        if done is None:
            log.warning("memory took longer than %g s: the request goes on without", self._timeout)
            return Remembered("failed", "timeout", seconds=seconds)
        if step.rebuilt is not None:
            self._finish_later(step.rebuilt)
        return dataclasses.replace(done, seconds=seconds)

    def _finish_later(self, rebuilt: Rebuilt) -> None:
        """Do what a step put off, once its request is on its way."""

        async def finish() -> None:
            await asyncio.sleep(LATER)
            try:
                await to_thread.run_sync(self._sessions.finish, rebuilt, limiter=self._finishers)
            except Exception as e:  # the next step makes up for it; what it says may hold contents
                log.error("what a step put off failed by an unforeseen %s", type(e).__name__)

        task = asyncio.create_task(finish())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _remember(self, step: _Step, asked: tuple[Any, ...]) -> Remembered:
        """In a thread: the memory of a request, or why there is none."""
        step.at_work = True
        try:
            return self._make(step, *asked)
        except PassedError as e:
            return Remembered("passed", str(e))
        except _BusyError:
            return Remembered("failed", "busy")
        except MemoryBankError as e:
            log.warning("memory failed, the request goes on without: %s: %s", type(e).__name__, e)
            return Remembered("failed", code_of(e))
        except Exception as e:  # no request fails for its memory
            place = traceback.extract_tb(e.__traceback__)[-1]  # but not what it says: it may hold contents
            log.error(
                "memory failed by an unforeseen %s at %s:%s", type(e).__name__, place.name, place.lineno
            )
            return Remembered("failed", "unforeseen")
        finally:
            self._end(step)

    def _make(
        self,
        step: _Step,
        caller: Caller,
        dialect: Dialect,
        body: Body,
        headers: Mapping[str, str],
        upstream_key: str | None,
    ) -> Remembered:
        said = dialect.said(body.value)
        for _ in range(ATTEMPTS):
            found = self._identity.session_of(
                caller.namespace,
                upstream_key=upstream_key,
                headers=headers,
                body=body.value,
                messages=said.messages,
            )
            if found is None:
                return Remembered("passed", "nothing to remember yet")
            self._begin(step, stored_id(caller.namespace, found.name))
            rebuilt = self._sessions.rebuild(
                caller.namespace,
                found.name,
                said.messages,
                agent_id=headers.get("x-memory-agent") or None,
                strategy=headers.get("x-memory-strategy") or None,
            )
            if self._identity.holds(caller.namespace, found):
                step.rebuilt = rebuilt
                break
        else:
            raise _BusyError
        arrays = {} if rebuilt.unchanged else {said.key: said.written(rebuilt.messages)}
        return Remembered(
            "unchanged" if rebuilt.unchanged else "rebuilt",
            data=render_body(body, arrays) if arrays else None,
            arrays=arrays,
            session=found.name,
            how=found.how,
            tokens=rebuilt.tokens,
            full_tokens=rebuilt.full_tokens,
        )

    def _begin(self, step: _Step, session: str) -> None:
        """Note whose session a step works on. Raises _BusyError while one that was given up still does."""
        with self._lock:
            if any(other.session == session for other in self._stuck):
                raise _BusyError
            step.session = session

    def _give_up(self, step: _Step) -> None:
        """Nobody waits for a step any longer."""
        with self._lock:
            if step.at_work:
                self._stuck[step] = None

    def _end(self, step: _Step) -> None:
        with self._lock:
            step.at_work = False
            self._stuck.pop(step, None)
