"""Finds the session that a request continues, by its messages. A name that the client gives limits the choice.

Every request stores the digest of its messages with its session. The session's ``head`` is the digest of the
messages up to the end of the last interaction. A list of messages

- continues a session if it begins with the messages of its head, or has its latest calls with the same results. An id
  that looks random names a call by itself, because no other conversation has it: what came before may have been
  dropped or summarised. Any other id (``call_1``) names it with all that came before it but the system messages;
- is a fork if a session knows its beginning, but has continued differently: a new session with a copy of what was
  recorded before the two parted;
- begins a session otherwise.

A name is part of all digests. The first conversation with it has the name itself, the others ``NAME~`` and a number.
Under a name, a list may also be what a compaction made of the messages: it continues the session that was asked for a
summary after its last step, else the one with the newest record, if the list holds a known client's summary (and the
name has one session) or if a person chose the name. A list whose messages before the first call are known is a fork
instead. Where nothing but the name joined two conversations and the first goes on, it parts with its own records.

All of this is in the database, where a head moves by compare-and-swap.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise, takewhile
from typing import Literal, NamedTuple
from urllib.parse import unquote

from memory_bank.bank.database import Database, Operation
from memory_bank.bank.lineage import ForkPoint, KnownDigest, Lineage, LineageEntry
from memory_bank.bank.rows import is_session_id
from memory_bank.context.first_sight import REDACTED
from memory_bank.errors import ConfigError, StorageError
from memory_bank.processor import NotSentError
from memory_bank.records import content_key
from memory_bank.service.proxy.api import RequestHistory
from memory_bank.service.proxy.body import objects_of
from memory_bank.service.proxy.exchange import Exchange
from memory_bank.service.security.access import LONGEST_NAME, public_name, stored_id, writable_id
from memory_bank.service.security.secrets import known_form
from memory_bank.transcript.harness import SUMMARY_OPENINGS
from memory_bank.transcript.jsontext import dump_value, flat_text
from memory_bank.transcript.messages import Interaction, MessageKind, is_text_part

HEADER = "x-memory-session"
LATEST = 16
"""Interactions at the end of a list whose calls are compared."""

How = Literal[
    "header", "metadata", "client", "compaction", "prompt_cache_key", "chain", "calls", "fork", "new"
]

_FIRST_DIGESTS = 16  # looked up in the first query; the others only if none of these helps


@dataclass(frozen=True, slots=True)
class SessionMatch:
    """The session of a request: its public ``name``, ``how`` it was found, and the parent of a new fork.

    ``head`` is the head that the request gave the session; None for a request that stored nothing. ``write`` is left
    to the caller: it gives the session this head, or returns False where another request was faster.
    """

    name: str
    how: How
    forked_from: str | None = None
    head: str | None = field(default=None, repr=False, compare=False)
    write: Operation[bool] | None = field(default=None, repr=False, compare=False)


class Identity:
    """Finds the session of every request. Thread-safe, also with other processes on the same database."""

    def __init__(self, database: Database) -> None:
        self.lineage = Lineage(database)

    def session_of(
        self,
        exchange: Exchange,
        history: RequestHistory,
        *,
        asks_summary: bool = False,
        records: bool = True,
        wanted: Callable[[], bool] = lambda: True,
    ) -> SessionMatch | None:
        """The session that a request belongs to; None for a conversation that has had no tool call yet.

        The messages are chat messages as parsed from JSON. A name in the header may be percent-encoded.
        The upstream's key separates the conversations of clients with different keys; it is not stored.
        ``asks_summary``: the request asks for a summary of the conversation, as clients do before they compact it.
        ``records``: False only looks the session up and stores nothing; else the request begins a session or a fork,
        and what it adds to one that it continues is the match's ``write``. ``wanted``: whether somebody still waits
        for the request; later ones may have arrived otherwise, and it begins no fork beside them.

        Raises ConfigError for an invalid name, StorageError, NotSentError.
        """
        namespace, body = exchange.namespace, exchange.body.value
        named = named_session(namespace, exchange.client_headers, body, history, asks_summary)
        if named is None and exchange.compacted is not None:
            named = SessionMatch(exchange.compacted, "compaction")
        if named is None:
            value = body.get("prompt_cache_key")
            key = value if isinstance(value, str) and value else None
            seed = chain_seed(namespace, exchange.upstream_key, key)
        else:
            key, seed = named.name, content_key(chain_seed(namespace, None), "name", named.name)
        chain = digest_chain(seed, history)
        how: How = named.how if named else "prompt_cache_key" if key else "chain"
        search = _Search(self, namespace, seed, key, named, how, body, history, asks_summary, records, wanted)
        if chain is None:
            return named and search.without_calls(named)
        search.latest = chain.latest
        for _ in range(12):  # another request may move a head meanwhile
            match = search.attempt(chain)
            if match is not None:
                return match
        raise StorageError("too many requests continue one conversation at once: send the request again.")

    def is_current(self, namespace: str | None, match: SessionMatch) -> bool:
        """Return whether a session's head is still the one that the request gave it; ask after its context is built.

        If not, another conversation with the same past has continued the session meanwhile and the context
        may show what that one recorded: discard it and call ``session_of`` again. Raises StorageError.
        """
        return match.head is None or match.head == self.lineage.head(stored_id(namespace, match.name))


@dataclass(slots=True)
class _Search:
    """The search for the session of a request."""

    identity: Identity
    namespace: str | None
    seed: bytes
    key: str | None  # the name that the client gives, or its prompt_cache_key
    named: SessionMatch | None
    how: How  # it is found, other than by its calls
    body: Mapping[str, object]
    history: RequestHistory
    asks_summary: bool
    records: bool
    wanted: Callable[[], bool]
    latest: Sequence[DigestedInteraction] = ()  # of the list
    _has_begun: bool = False
    # by session, the digests of the list that it knows; any of these rows stands for the session
    _rows: dict[str, dict[str, KnownDigest]] = field(default_factory=dict)
    _by_digest: dict[str, list[KnownDigest]] = field(default_factory=dict)

    def digest(self, *parts: str | bytes) -> str:
        """The digest by which something is stored of a session."""
        return content_key(self.seed, *parts).hex()

    def attempt(self, chain: DigestChain) -> SessionMatch | None:
        """Continue, fork or begin a session; None where another request was faster."""
        self._rows.clear()
        self._by_digest.clear()
        self._take([*chain.ends[:_FIRST_DIGESTS], *(i.digest for i in chain.latest)])
        continued = self._continued(chain)
        if continued is None and len(chain.ends) > _FIRST_DIGESTS:
            self._take(chain.ends[_FIRST_DIGESTS:])
            continued = self._continued(chain)
        if continued is None:
            return self._begin(chain)
        session, known_until, by_calls = continued
        new = [i for i in chain.latest if i.stop > known_until]
        entry = self._entry(chain, new, keep_calls=not new)
        rows = self._rows[session.session_id]
        has_news = entry.head != session.head or any(d not in rows for d in (*entry.calls, entry.whole))
        write = None
        if has_news and self.records:
            write = self.identity.lineage.going_on(session.session_id, session.head, entry)
        how = "calls" if by_calls and self.named is None else self.how
        name = public_name(self.namespace, session.session_id)
        return SessionMatch(name, how, head=entry.head, write=write)

    def _go_on(self, session_id: str, head: str | None, entry: LineageEntry) -> bool:
        """Add the request to the session if it has this head; where nothing is stored, only tell."""
        if not self.records:
            return self.identity.lineage.head(session_id) == head
        write = self.identity.lineage.going_on(session_id, head, entry)
        return self.identity.lineage.database.submit(write, session_id)

    def _begin(self, chain: DigestChain) -> SessionMatch | None:
        """Begin a session or a fork, or go on in one of the name; None where it is taken or another was faster."""
        lineage, name = self.identity.lineage, self._new_name()
        known_until, fork = self._fork(chain)
        entry = self._entry(chain, [i for i in chain.latest if i.stop > known_until])
        if self.named is not None:
            family, opening = lineage.known([self.digest("name")]), self._opening()
            begins = not family or fork is not None  # the opening of a fork is no summary of what it has
            entry = replace(entry, kept=(self.digest("name"), opening), begins=begins)
            session = None
            if fork is None:
                session, fork, joins = self._resumed(family, opening)
                if session is not None and joins:
                    entry = replace(entry, kept=(*entry.kept, self.digest("joined", str(session.head))))
            elif self.how != "client":
                # a list that joined this session was another window's, as its own conversation goes on: they part
                joined = lineage.known([self.digest("joined", d) for d in chain.positions])
                taken = [k.before for k in joined if k.session_id == fork.session_id]
                fork = replace(fork, takes=max(taken, default=0))
            if fork is None and (session is not None or name == self.key):
                session_id = session.session_id if session else stored_id(self.namespace, name)
                # without a lineage under this name, it may be there all the same
                head = session.head if session else None if family else lineage.head(session_id)
                if self._go_on(session_id, head, entry):
                    return replace(self.named, name=public_name(self.namespace, session_id), head=entry.head)
                if head is not None:
                    return None
        if not self.records:
            return SessionMatch("count_tokens", "new")  # a name that is never stored
        if not self.wanted() and (fork is not None or self.key not in (None, name)):
            raise NotSentError
        if not lineage.begin(stored_id(self.namespace, name), self.namespace, entry, fork):
            return None
        if fork is not None:
            return SessionMatch(name, "fork", public_name(self.namespace, fork.session_id), entry.head)
        return SessionMatch(name, self.how if name == self.key else "new", head=entry.head)

    def without_calls(self, named: SessionMatch) -> SessionMatch | None:
        """The session under a name whose memory a list without a call gets; None where it begins another."""
        family = self.identity.lineage.known([self.digest("name")])
        session = self._resumed(family, self._opening())[0] if family else None
        if session is not None:
            if self.asks_summary and session.head is not None:
                entry = LineageEntry(self.digest("summary", session.head), [], session.head, same_calls=True)
                self._go_on(session.session_id, session.head, entry)
            return replace(named, name=public_name(self.namespace, session.session_id))
        return None if family else named

    def _resumed(
        self, family: list[KnownDigest], opening: str
    ) -> tuple[KnownDigest | None, ForkPoint | None, bool]:
        """The session of a name that a list without its calls continues, or a fork; whether only the name says so."""
        by_person = self.how != "client"
        digests = {self.digest("summary", str(s.head)): s for s in family}
        rows = self.identity.lineage.known([opening, *digests])
        opened = next((k for k in rows if k.digest == opening), None)
        sessions = [s for s in family if by_person and self._resembles(s)]
        if not sessions and (opened is None or opened.before):
            sessions = [digests[k.digest] for k in rows if k.digest in digests]
        if not sessions and opened is not None:
            point = ForkPoint(opened.session_id, opened.before, opened.number)
            return None, point if opened.before else None, False
        compacts = self.asks_summary or _holds_summary(self.body)
        is_compacted = bool(sessions) or (len(family) == 1 and compacts)
        if not sessions and (by_person or is_compacted):
            sessions = family
        newest = max(sessions, key=lambda s: self.identity.lineage.newest(s.session_id), default=None)
        return newest, None, not is_compacted

    def _new_name(self) -> str:
        """The client's name or key for the first conversation with it; else, and at a later attempt, a random one."""
        key, is_first, self._has_begun = self.key, not self._has_begun, True
        if key is None or not _is_name(self.namespace, key) or known_form(key):
            return f"auto-{secrets.token_hex(10)}"
        return key if is_first else f"{key[: LONGEST_NAME - 13]}~{secrets.token_hex(6)}"

    def _opening(self) -> str:
        """The digest of the messages before the first call but the system messages."""
        begun = takewhile(lambda k: k is not MessageKind.CALL, self.history.kinds)
        first = zip(begun, self.history.messages, strict=False)
        parts = (canonical_bytes(m) for kind, m in first if kind is not MessageKind.SYSTEM)
        return self.digest("opening", *parts)

    def _take(self, digests: Sequence[str]) -> None:
        """Take in the sessions of the namespace that know these digests."""
        for row in self.identity.lineage.known(digests):
            if row.namespace == self.namespace:
                self._rows.setdefault(row.session_id, {})[row.digest] = row
                self._by_digest.setdefault(row.digest, []).append(row)

    def _continued(self, chain: DigestChain) -> tuple[KnownDigest, int, bool] | None:
        """The session that the list continues with least to add, where its records end, whether its calls say so."""
        best: tuple[KnownDigest, int, bool] | None = None
        rank = (-1, False, False)
        first = next((d for d in chain.ends if d in self._by_digest), None)
        for rows in self._rows.values():
            session = next(iter(rows.values()))
            until = chain.positions.get(session.head or "", 0)
            # otherwise the list begins like another session
            may_be = until < self.latest[-1].stop and (first is None or first in rows)
            by_calls = self._until_by_calls(session) if may_be else 0
            for known_until, says_calls in ((until, False), (by_calls, True)):
                new = (known_until, not says_calls, chain.whole in rows)
                if known_until and new > rank:
                    rank, best = new, (session, known_until, says_calls)
        return best

    def _until_by_calls(self, session: KnownDigest) -> int:
        """The end of the interactions that stand for a session's head, if the list has them in order; else 0."""
        by_digest = {i.digest: i for i in self.latest}
        until = 0
        for digest, calls in _head_calls(session):
            interaction = by_digest.get(digest)
            is_its = interaction is not None and interaction.stop > until and len(self._roots(digest)) <= 1
            if interaction is None or not is_its or not self._has_calls(session, interaction, calls):
                return 0
            until = interaction.stop
        return until

    def _has_calls(
        self, session: KnownDigest | None, interaction: DigestedInteraction, calls: Sequence[CallDigest]
    ) -> bool:
        """Return whether an interaction has the calls and results that a session recorded, and no other."""
        here = {c.call: c for c in interaction.calls()}
        pairs = [(c, here.get(c.call)) for c in calls]
        if not here.keys() <= {c.call for c in calls}:
            return False  # another turn, where ids are made of what was said: conversations may share some
        if all(h is not None and h.whole == c.whole for c, h in pairs):
            return True
        # clients mask results that the model has read: those may be shorter, where the calls are one session's
        owners = [row.session_id for row in self._by_digest.get(interaction.digest, ())]
        return (
            owners == ([session.session_id] if session else [])
            and interaction is not self.latest[-1]
            and all(h is not None and (h.whole == c.whole or h.size < c.size) for c, h in pairs)
        )

    def _returned_otherwise(self, session: KnownDigest, interaction: DigestedInteraction) -> bool:
        """Return whether a session stores other results for these calls; one that the client shortened is none."""
        here = {c.call: c for c in interaction.calls()}
        if any(c.call not in here for c in dict(_head_calls(session)).get(interaction.digest, ())):
            return True
        text = {
            str(pair.call.call_id): pair.result.output_text
            for pair in interaction.interaction.pairs
            if pair.call and pair.result and pair.result.output_text is not None
        }
        is_last = interaction is self.latest[-1]  # which no client masks
        return any(
            not any(o == text[i] or REDACTED in o or (len(text[i]) < len(o) and not is_last) for o in outputs)
            for i, outputs in self.identity.lineage.outputs(session.session_id, [*text]).items()
        )

    def _resembles(self, session: KnownDigest) -> bool:
        """Return whether the list holds a session's newest calls, after earlier messages that were rewritten."""
        newest = [calls for _, calls in _head_calls(session)[-1:] if calls]
        new = [i for i in self.latest[:-1] if i.digest not in self._by_digest]
        return any(self._has_calls(None, i, calls) for calls in newest for i in new)

    def _fork(self, chain: DigestChain) -> tuple[int, ForkPoint | None]:
        """Where the list parts from a session that has continued differently; (0, None) where it shares none."""
        # the end of what it knows of the list, or the latest calls that only one session and its forks know
        points: list[tuple[int, ForkPoint | None]] = []
        if digest := next((d for d in chain.ends if d in self._by_digest), None):
            row = self._roots(digest)[0]
            points.append((chain.positions[digest], ForkPoint(row.session_id, row.before, row.number)))
        start, by_calls, others = 0, None, set[str]()
        for interaction in self.latest:
            roots = self._roots(interaction.digest)
            if roots and self._returned_otherwise(row := roots[0], interaction):
                others.add(row.session_id)  # of another agent, where ids are hashes
            elif roots and row.session_id not in others:
                point = ForkPoint(row.session_id, row.before, row.number - 1)
                by_calls = (start, point) if len(roots) == 1 and row.before else None
            start = interaction.stop
        return max([*points, *filter(None, [by_calls])], key=lambda f: f[0], default=(0, None))

    def _roots(self, digest: str) -> list[KnownDigest]:
        """The sessions that know a digest, without forks of others among them."""
        rows = self._by_digest.get(digest, [])
        ids = {row.session_id for row in rows}
        return [row for row in rows if row.forked_from not in ids]

    def _entry(
        self, chain: DigestChain, new: Sequence[DigestedInteraction], keep_calls: bool = False
    ) -> LineageEntry:
        """The entry that the request stores in its session, where the interactions ``new`` are new."""
        latest = new[-2:]  # the new head is known by their calls, as far as no session has had them before
        digests = [i.digest for i in latest]
        if self.asks_summary:
            digests.append(self.digest("summary", chain.head))
        fresh = [i for i in latest if i.digest not in self._by_digest]
        calls = json.dumps([(i.digest, i.calls()) for i in fresh]) if latest[-1:] == fresh[-1:] else None
        return LineageEntry(chain.whole, digests, chain.head, calls, same_calls=keep_calls)


def _head_calls(session: KnownDigest) -> list[tuple[str, list[CallDigest]]]:
    """The digests of a session's head, each with the calls of its interaction."""
    entries = json.loads(session.head_calls or "[]")
    return [(digest, [CallDigest(*c) for c in calls]) for digest, calls in entries]


def named_session(
    namespace: str | None,
    headers: Mapping[str, str],
    body: Mapping[str, object],
    history: RequestHistory | None,
    asks_summary: bool = False,
) -> SessionMatch | None:
    """The session that the client names: by our header or member, or by an id that it sends by itself.

    Under an id of its own, a client also sends requests that are no part of the conversation (a title, a
    summary of one page); those have neither calls nor tools and do not belong to the session. A request for a
    summary of the conversation (``asks_summary``) belongs to it all the same. Without a ``history`` all do. Raises
    ConfigError.
    """
    named = {key.lower(): value for key, value in headers.items()}
    if HEADER in named:
        return SessionMatch(_checked_name(namespace, unquote(named[HEADER].strip()), HEADER), "header")
    metadata = body.get("metadata")
    name = metadata.get("session_id") if isinstance(metadata, Mapping) else None
    if name is not None:
        return SessionMatch(_checked_name(namespace, name, "metadata.session_id"), "metadata")
    session = client_session(named, metadata) or ""
    # a short id may be in use by somebody else too
    if len(session) < 16 or not _is_name(namespace, session) or known_form(session):
        return None
    is_called = history is None or MessageKind.CALL in history.kinds
    belongs = asks_summary or is_called or bool(body.get("tools"))
    if not belongs and not any(i.get("type") == "additional_tools" for i in objects_of(body.get("input"))):
        return None
    return SessionMatch(session, "client")


def _holds_summary(body: Mapping[str, object]) -> bool:
    """Return whether a request has a compaction item, or a known client's summary in a user message."""
    messages = [*objects_of(body.get("input")), *objects_of(body.get("messages"))]
    if any(p.get("type") == "compaction" for m in messages for p in (m, *objects_of(m.get("content")))):
        return True
    contents = [m.get("content") for m in messages if m.get("role") == "user"]
    texts = (t for c in contents for t in (c, *(p.get("text") for p in objects_of(c))))
    return any(isinstance(t, str) and t.lstrip().startswith(SUMMARY_OPENINGS) for t in texts)


def client_session(headers: Mapping[str, str], metadata: object) -> str | None:
    """The session's name made of the ids that known clients send by themselves; None without one.

    Claude Code: ``x-claude-code-session-id``, with ``x-claude-code-agent-id`` for a subagent, and
    ``metadata.user_id``; Codex: ``session-id`` and ``thread-id``; opencode: ``x-session-id``. ``headers`` have
    lower-case names.
    """
    for session, part in (
        ("x-claude-code-session-id", "x-claude-code-agent-id"),
        ("session-id", "thread-id"),
        ("thread-id", ""),
        ("x-session-id", ""),
    ):
        name = headers.get(session, "").strip()
        if name:
            inner = headers.get(part, "").strip() if part else ""
            return f"{name}~{inner}" if inner and inner != name else name
    user = metadata.get("user_id") if isinstance(metadata, Mapping) else None
    if not isinstance(user, str):
        return None
    if user.lstrip().startswith("{"):
        with suppress(ValueError, RecursionError):
            parsed = json.loads(user)
            named = parsed.get("session_id") if isinstance(parsed, dict) else None
            return named if isinstance(named, str) and named else None
    ending = re.search(r"_session_([0-9a-f-]{36})\Z", user)
    return ending[1] if ending else None


def _checked_name(namespace: str | None, name: object, source: str) -> str:
    if not isinstance(name, str) or not _is_name(namespace, name):
        raise ConfigError(f"{source} must be a session's name: 1 to {LONGEST_NAME} printable characters.")
    writable_id(namespace, name)  # a name that holds a secret is refused with a sentence of its own
    return name


def _is_name(namespace: str | None, name: str) -> bool:
    with suppress(ConfigError):
        return is_session_id(stored_id(namespace, name))
    return False


# ---------------------------------------------------------------------- digests


class CallDigest(NamedTuple):
    """An answered call: digests of its id and tool (``call``) and of everything (``whole``), its length."""

    call: str
    whole: str
    size: int


class DigestedInteraction(NamedTuple):
    """An interaction near the end of a list; ``stop`` is the position after it.

    ``digest`` is the digest of its first call id that looks random; without one, that of all messages up to its
    end but the system messages.
    """

    digest: str
    stop: int
    interaction: Interaction
    seed: bytes

    def calls(self) -> list[CallDigest]:
        """The digests of its answered calls."""
        digests = []
        for pair in self.interaction.pairs:
            if pair.result is not None:
                call_id = (pair.call.call_id if pair.call else None) or ""
                output = pair.result.output_text
                if output is None:
                    output = dump_value(pair.result.raw_output)
                called = content_key(self.seed, b"called", call_id, pair.tool_name)
                whole = hashlib.sha256(self.seed + b"outcome" + pair.content_key()).hexdigest()
                size = len(pair.call.text if pair.call else "") + len(output or "")
                digests.append(CallDigest(called.hex()[:32], whole[:32], size))
        return digests


@dataclass(frozen=True, slots=True)
class DigestChain:
    """The rolling digests of a list of messages, from its first tool call on.

    ``whole`` is the digest of all messages, ``head`` that of the messages up to the end of the last
    interaction. ``positions`` gives the number of messages of each digest. ``ends`` are the digests at which
    a request may have ended, longest first. ``latest`` are the last interactions, oldest first.
    """

    whole: str
    head: str
    positions: dict[str, int] = field(repr=False)
    ends: Sequence[str] = field(repr=False)
    latest: Sequence[DigestedInteraction] = field(repr=False)


def chain_seed(namespace: str | None, upstream_key: str | None, cache_key: str | None = None) -> bytes:
    """The seed of all digests, which separates the conversations of different users.

    The upstream key enters as a hash that is never used alone.
    """
    secret = b"" if upstream_key is None else hashlib.sha256(upstream_key.encode()).digest()
    parts = (b"\0" if part is None else part for part in (namespace, cache_key))
    return content_key(b"memory_bank lineage 1", secret, *parts)


def digest_chain(seed: bytes, history: RequestHistory) -> DigestChain | None:
    """The digests of a list; None before the first assistant tool call."""
    messages, kinds, memo = history.messages, history.kinds, history.memo
    if MessageKind.CALL not in kinds:
        return None
    first = kinds.index(MessageKind.CALL)
    latest = memo.latest(messages, LATEST)
    by_end: dict[int, str | None] = {}
    for interaction in latest:
        calls = (pair.call for pair in interaction.pairs if pair.call is not None)
        ids = (c.call_id for c in calls if looks_random(c.call_id and c.call_id[:256], c.name[:256]))
        call_id = next(ids, None)
        by_end[interaction.stop] = call_id and content_key(seed, b"call", call_id).hex()
    data = memo.of_each("canonical", messages, canonical_bytes)
    if None in by_end.values():  # named by all that came before but the system messages
        earlier = [b"" if k is MessageKind.SYSTEM else d for k, d in zip(kinds, data, strict=True)]
        past = memo.digests("past", seed + b"past", earlier)
        by_end = {stop: digest or past[stop - 1] for stop, digest in by_end.items()}
    digests = memo.digests("chain", seed, data)
    pairs = zip(digests[first:], kinds[first:], [*kinds[first + 1 :], None], strict=True)
    ends = [  # not between a call and its results
        d
        for d, kind, after in pairs
        if not (after and kind is MessageKind.CALL) and after is not MessageKind.RESULT
    ]
    positions = dict(zip(digests[first:], range(first + 1, len(digests) + 1), strict=True))
    latest_calls = [DigestedInteraction(str(by_end[i.stop]), i.stop, i, seed) for i in latest]
    return DigestChain(digests[-1], digests[latest[-1].stop - 1], positions, ends[::-1], latest_calls)


_dump = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode


def canonical_bytes(message: object) -> bytes:
    """A message as bytes: its members without a content that is text, and that text, with their lengths.

    Equal for messages that differ only in the order of members, in members that are null or absent, in
    whether a text is a string or a single part, and in cache control.
    """
    text = b""
    if isinstance(message, dict):
        content = message.get("content")
        text_only = content
        if isinstance(content, list):
            content = [_without_cache_mark(p) if isinstance(p, dict) else p for p in content]
            text_only = _single_text(content)
        members = {**message, "content": content} if "content" in message else message
        if isinstance(text_only, str):
            text = b"=" + _encode(text_only)
            members = {k: v for k, v in members.items() if k != "content"}
        message = _without_cache_mark(members)
    try:
        data = _encode(_dump(_without_null(message)))
    except RecursionError:
        data = _encode(flat_text(message))
    return b"%d,%d;%b%b" % (len(data), len(text), data, text)


def _single_text(content: list[object]) -> str | None:
    """The text of a content that consists of one text part."""
    part = content[0] if len(content) == 1 else None
    if not isinstance(part, dict) or not is_text_part(part):
        return None
    return str(part["text"]) if all(k in ("type", "text") or v is None for k, v in part.items()) else None


def _without_cache_mark(members: dict[str, object]) -> dict[str, object]:
    # clients move it from message to message
    return {k: v for k, v in members.items() if k != "cache_control"}


def _without_null(value: object) -> object:
    if type(value) is dict:
        return {k: _without_null(v) if type(v) is not str else v for k, v in value.items() if v is not None}
    if type(value) is list:
        return [_without_null(v) for v in value]
    return value


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


@lru_cache(maxsize=65_536)
def looks_random(call_id: str | None, name: str = "") -> bool:
    """Return whether an id is probably unique: true for ``call_DdmO9pD3xa9XTPNJ32zg2hcA``, not for ``call_0001``.

    Without the tool's name, it needs eight characters in stretches of mixed kinds (digits, upper case, lower
    case) that change often, six of them different and not consecutive. Fewer than one in twenty random ids
    of 24 characters fail; a counter, a word or a time never passes. What was asked is kept: cut long ids.
    """
    if not call_id:
        return False
    if name:
        call_id = call_id.replace(name, " ")
    parts = re.split(r"[^A-Za-z0-9]+", call_id)
    stretches = [s for s in parts if len(s) >= 4 and len({(c.isdigit(), c.isupper()) for c in s}) > 1]
    text = "".join(stretches)
    words = [w for s in stretches for w in re.findall(r"[A-Z]?[a-z]+|[A-Z]+|[0-9]+", s)]
    if len(text) < 8 or len(set(text)) < 6:
        return False
    if 3 * sum(ord(b) - ord(a) in (0, 1) for a, b in pairwise(text)) > len(text):
        return False
    if len(text) <= 3 * len(words):
        return True
    return 2 * len(text) <= 9 * len(words) and sum(w.isdigit() for w in words) >= 3
