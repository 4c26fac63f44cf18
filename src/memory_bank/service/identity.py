"""To which session a request belongs: named by the client, or found out from what its messages hold.

What a client does not name is found by a chain of digests. Every request leaves the digest of its messages
with its session, whose ``head`` is the digest up to the end of the last interaction: nothing was recorded
after that. So

- a list that begins with a session's head has all that the session recorded in it: the session goes on
  (the next step, a retry, a side question, another end of the same conversation);
- one that does not, but holds the calls by which the head can be told (their ids look random, so no other
  conversation has them) with the same results, is the same conversation whose past the client has dropped,
  masked or summarised: it goes on as well;
- one whose beginning a session knows, but whose session has gone on another way since, is a fork: a session
  of its own, with a copy of what was recorded before they parted;
- anything else begins a session.

The truth is in the database, where a head moves by compare-and-swap; nothing is kept in the process. A name
that the client gives is taken as it is and leaves no digests: requests without it never find that session.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import unquote

from memory_bank.bank.database import Database
from memory_bank.bank.lineage import Begun, ForkPoint, KnownDigest, Lineage, LineageEntry
from memory_bank.bank.rows import is_session_id
from memory_bank.errors import ConfigError, StorageError
from memory_bank.service.chain import Canonical, Chain, Outcome, Turn, read_chain, seed_of
from memory_bank.service.security.access import LONGEST_NAME, public_name, stored_id

HEADER = "x-memory-session"

How = Literal["header", "metadata", "prompt_cache_key", "chain", "calls", "fork", "new"]

_ENDS = 16  # beginnings of a list that are looked up at once; the others only where none of these helps
_ANCHORS = 2  # of the newest interactions are noted
_ATTEMPTS = 12


@dataclass(frozen=True, slots=True)
class Found:
    """The session of a request: its public name, how it was found, and of a new fork, whose it is.

    ``head`` is what the request made the session's head; None where the client named the session.
    """

    name: str
    how: How
    forked_from: str | None = None
    head: str | None = field(default=None, repr=False, compare=False)


class Identity:
    """Finds the session of every request. Safe under threads, and beside other processes at the database.

    ``canonical_of``: see ``read_chain``.
    """

    def __init__(self, database: Database, canonical_of: Canonical | None = None) -> None:
        self._lineage = Lineage(database)
        self._canonical_of = canonical_of

    def session_of(
        self,
        namespace: str | None,
        *,
        upstream_key: str | None,
        headers: Mapping[str, str],
        body: Mapping[str, Any],
        messages: Sequence[Any],
    ) -> Found | None:
        """The session that a request belongs to; None where there is nothing to remember yet.

        ``messages`` are the request's own, as parsed from JSON: chat messages, or made of Responses items. A
        name in the header may be URL-quoted, as in paths. ``upstream_key`` keeps the conversations of those
        who use an upstream with different keys apart; it is stored nowhere.

        Raises ConfigError for a name that cannot be one, StorageError.
        """
        named = _named(namespace, headers, body)
        if named is not None:
            return named
        cache_key = body.get("prompt_cache_key")
        if not isinstance(cache_key, str) or not cache_key:
            cache_key = None
        chain = read_chain(seed_of(namespace, upstream_key, cache_key), messages, self._canonical_of)
        if chain is None:
            return None
        asked = _Asked(namespace, cache_key, chain, _names(namespace, cache_key))
        for _ in range(_ATTEMPTS):  # who loses a race for a head looks again
            found = self._attempt(asked)
            if found is not None:
                return found
        raise StorageError("too many requests go on with one conversation at once: make the same call again.")

    def holds(self, namespace: str | None, found: Found) -> bool:
        """Whether a session is still where the request found it: to be asked when its context is there.

        If not, another conversation with the same past has gone on with it meanwhile; the context may show
        what that one recorded: throw it away, and ask for the request's session again. Raises StorageError.
        """
        return found.head is None or found.head == self._lineage.head(stored_id(namespace, found.name))

    def _attempt(self, asked: _Asked) -> Found | None:
        """None where another request was faster."""
        chain = asked.chain
        anchors = [t.anchor for t in chain.turns if t.anchor is not None]
        sight = _Sight(chain, asked.namespace, self._lineage.known([*chain.ends[:_ENDS], *anchors]))
        going = sight.continued()
        if going is None and len(chain.ends) > _ENDS:
            sight.add(self._lineage.known(chain.ends[_ENDS:]))
            going = sight.continued()
        return self._begin(asked, sight) if going is None else self._go_on(asked, sight, going)

    def _go_on(self, asked: _Asked, sight: _Sight, going: _Going) -> Found | None:
        seen = going.session
        new = [t for t in asked.chain.turns if t.stop > going.since]
        entry = sight.entry(new, keep=not new)
        is_news = entry.head != seen.head or any(d not in seen.rows for d in (*entry.calls, entry.whole))
        if is_news and not self._lineage.go_on(seen.session_id, str(seen.head), entry):
            return None
        how: How = "chain" if asked.cache_key is None else "prompt_cache_key"
        name = public_name(asked.namespace, seen.session_id)
        return Found(name, "calls" if going.by_calls else how, head=entry.head)

    def _begin(self, asked: _Asked, sight: _Sight) -> Found | None:
        since, parting = sight.parting()
        entry = sight.entry([t for t in asked.chain.turns if t.stop > since])
        name = next(asked.names)
        session_id = stored_id(asked.namespace, name)
        if self._lineage.begin(session_id, asked.namespace, entry, parting) is not Begun.MADE:
            return None
        if parting is not None:
            parent = public_name(asked.namespace, parting.session_id)
            return Found(name, "fork", parent, head=entry.head)
        return Found(name, "prompt_cache_key" if name == asked.cache_key else "new", head=entry.head)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request whose session is to be found out; ``names`` are for a new one."""

    namespace: str | None
    cache_key: str | None
    chain: Chain
    names: Iterator[str]


def _named(namespace: str | None, headers: Mapping[str, str], body: Mapping[str, Any]) -> Found | None:
    """What the client itself says. Raises ConfigError."""
    for key, value in headers.items():
        if key.lower() == HEADER:
            return Found(_checked(namespace, unquote(value.strip()), HEADER), "header")
    metadata = body.get("metadata")
    name = metadata.get("session_id") if isinstance(metadata, Mapping) else None
    if name is None:
        return None
    return Found(_checked(namespace, name, "metadata.session_id"), "metadata")


def _checked(namespace: str | None, name: Any, where: str) -> str:
    if not isinstance(name, str) or not _is_name(namespace, name):
        raise ConfigError(f"{where} must be a session's name: 1 to {LONGEST_NAME} printable characters.")
    return name


def _is_name(namespace: str | None, name: str) -> bool:
    try:
        return is_session_id(stored_id(namespace, name))
    except ConfigError:
        return False


def _names(namespace: str | None, cache_key: str | None) -> Iterator[str]:
    """Names for a new session: the prompt_cache_key for its first conversation, else random ones.

    A client gives many conversations one such key, so it never stands for more than one of them.
    """
    if cache_key is None or not _is_name(namespace, cache_key):
        while True:
            yield f"auto-{secrets.token_hex(10)}"
    yield cache_key
    while True:
        yield f"{cache_key[: LONGEST_NAME - 13]}~{secrets.token_hex(6)}"


# ----------------------------------------------------------------------


@dataclass(slots=True)
class _Seen:
    """A session as the database knows it; ``rows``: of the list's digests those that it knows."""

    session_id: str
    head: str | None
    forked_from: str | None
    calls: list[tuple[str, list[Outcome]]]
    rows: dict[str, KnownDigest] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Going:
    """A session that a list goes on with: what it recorded ends with the list's position ``since``."""

    session: _Seen
    since: int
    by_calls: bool = False


class _Sight:
    """A list and what the database knows of it."""

    def __init__(self, chain: Chain, namespace: str | None, known: Sequence[KnownDigest]) -> None:
        self.chain = chain
        self._namespace = namespace
        self._sessions: dict[str, _Seen] = {}
        self._knowing: dict[str, list[_Seen]] = {}
        self.add(known)

    def add(self, known: Sequence[KnownDigest]) -> None:
        """Take in rows."""
        for row in known:
            if row.namespace != self._namespace:
                continue
            seen = self._sessions.get(row.session_id)
            if seen is None:
                calls = _calls_from(row.head_calls)
                seen = self._sessions[row.session_id] = _Seen(
                    row.session_id, row.head, row.forked_from, calls
                )
            seen.rows[row.digest] = row
            self._knowing.setdefault(row.digest, []).append(seen)

    def continued(self) -> _Going | None:
        """Of the sessions that the list goes on with the one with least to catch up; the oldest of equals."""
        whole = self.chain.whole
        best: tuple[tuple[int, bool, bool], _Going] | None = None
        for seen in self._sessions.values():
            for going in (self._by_chain(seen), self._by_calls(seen)):
                if going is not None:
                    rank = (going.since, not going.by_calls, whole in seen.rows)
                    if best is None or rank > best[0]:
                        best = rank, going
        return None if best is None else best[1]

    def _by_chain(self, seen: _Seen) -> _Going | None:
        position = None if seen.head is None else self.chain.positions.get(seen.head)
        return None if position is None else _Going(seen, position)

    def _by_calls(self, seen: _Seen) -> _Going | None:
        known = next((d for d in self.chain.ends if d in self._knowing), None)
        if known is not None and known not in seen.rows:  # it began as another session did
            return None
        turns = {t.anchor: t for t in self.chain.turns if t.anchor is not None}
        since = 0
        for anchor, outcomes in seen.calls:
            turn = turns.get(anchor)
            if turn is None or turn.stop <= since or len(self._roots(anchor)) > 1:
                return None
            if not self._holds(seen, turn, outcomes):
                return None
            since = turn.stop
        return _Going(seen, since, by_calls=True) if since else None

    def _holds(self, seen: _Seen, turn: Turn, outcomes: Sequence[Outcome]) -> bool:
        """Whether an interaction of the list is the one that a session recorded with these outcomes.

        Each must be there as it was. Where the list goes on beyond it, and no other session ever had these
        calls, it may also be shorter: clients mask what the model has read.
        """
        here = {o.call: o for o in turn.outcomes()}
        found = [(o, here.get(o.call)) for o in outcomes]
        if all(h is not None and h.whole == o.whole for o, h in found):
            return True
        alone = self._knowing.get(str(turn.anchor), []) == [seen]
        beyond = turn is not self.chain.turns[-1]
        return (
            alone
            and beyond
            and all(h is not None and (h.whole == o.whole or h.size < o.size) for o, h in found)
        )

    def parting(self) -> tuple[int, ForkPoint | None]:
        """Where the list parts from a session that has gone another way; None: it is nobody's.

        Interactions that end after that position of the list may be its own.
        """
        by_chain = self._parting_by_chain()
        by_calls = self._parting_by_calls()
        if by_chain is None or by_calls is None:
            return by_chain or by_calls or (0, None)
        return by_calls if by_calls[0] > by_chain[0] else by_chain

    def _parting_by_chain(self) -> tuple[int, ForkPoint] | None:
        for digest in self.chain.ends:
            if digest in self._knowing:
                row = self._roots(digest)[0].rows[digest]
                return self.chain.positions[digest], ForkPoint(row.session_id, row.before, row.number)
        return None

    def _parting_by_calls(self) -> tuple[int, ForkPoint] | None:
        """By the latest interaction whose calls are known: whoever has them has all that came before them.

        Sessions that know them and are no forks of each other show that these ids are not random.
        """
        start = 0
        found: tuple[int, ForkPoint] | None = None
        for turn in self.chain.turns:
            roots = self._roots(str(turn.anchor))
            if roots:
                row = roots[0].rows[str(turn.anchor)]
                alone = len(roots) == 1 and row.before
                found = (start, ForkPoint(row.session_id, row.before, row.number - 1)) if alone else None
            start = turn.stop
        return found

    def _roots(self, digest: str) -> list[_Seen]:
        """Of the sessions that know a digest those that are no forks of another such."""
        knowing = self._knowing.get(digest, [])
        ids = {s.session_id for s in knowing}
        return [s for s in knowing if s.forked_from not in ids]

    def entry(self, new: Sequence[Turn], keep: bool = False) -> LineageEntry:
        """What the request leaves behind; ``new`` are the interactions that are new in its session.

        The latest of them become the session's mark, as far as no session ever had their calls before.
        """
        latest = new[-_ANCHORS:]
        anchors = [t.anchor for t in latest if t.anchor is not None]
        fresh = [t for t in latest if t.anchor not in self._knowing]
        calls = None
        if len(anchors) == len(latest) and latest[-1:] == fresh[-1:]:
            told = [(t.anchor, [(o.call, o.whole, o.size) for o in t.outcomes()]) for t in fresh]
            calls = json.dumps(told)
        return LineageEntry(self.chain.whole, anchors, self.chain.head, calls, same_calls=keep)


def _calls_from(text: str | None) -> list[tuple[str, list[Outcome]]]:
    if text is None:
        return []
    return [(anchor, [Outcome(*o) for o in outcomes]) for anchor, outcomes in json.loads(text)]
