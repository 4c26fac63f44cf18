"""The words' index, in the database: which insights of a scope have the terms of a query, and how they are kept.

The terms of a new insight are a row of ``words``. As soon as a namespace has ``block_size`` such rows, they become a
block (``seal``): the terms of all of them, in BUCKETS parts by the first bits of a term, so that a search reads a few
parts of each block, whatever the process has read before. Rows that are in no block yet are kept by a process that
has read them, 6 MiB in all, and each search asks the database which of them are still there. Whoever deletes an
insight takes its block apart first (``delete_insights``): a block has no words of what is not there.
"""

from __future__ import annotations

import json
import struct
import threading
import zlib
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import sqlalchemy as sa
from cachetools import LRUCache
from sqlalchemy.engine import Connection

from memory_bank.bank.database import Database
from memory_bank.bank.schema import (
    INSIGHT_OF_RECORD,
    LAST,
    SESSION,
    block_sessions,
    blocks,
    count_of,
    in_parts,
    insights,
    of_session,
    records,
    sessions,
    sum_of,
    waits,
    words,
)
from memory_bank.bank.terms import HEAD, Postings, heads_of, may_be_of, parts_of
from memory_bank.errors import StorageError
from memory_bank.faults import fault_point
from memory_bank.models.lexical import Hashes

BUCKETS = 256
_SHIFT = np.uint32(24)
_ROWS = -1  # the bucket that says which insights a block has
_SIZES = struct.Struct("<II")
DAMAGED = (ValueError, LookupError, struct.error, zlib.error)
"""The errors of a block that cannot be read."""

_w, _b, _i = words.c, blocks.c, insights.c
_NAMESPACE = sa.bindparam("namespace", type_=sa.String)
_OWNER = sa.func.coalesce(
    sa.select(sessions.c.namespace).where(sessions.c.session_id == _i.session_id).scalar_subquery(), ""
)
_NAMESPACE_OF = sa.select(sessions.c.namespace).where(of_session(sessions))


def _added(namespace: sa.ColumnElement[str], *which: sa.ColumnElement[bool]) -> sa.Insert:
    columns = _i.seq, namespace, _i.session_id, sa.bindparam("terms", type_=sa.LargeBinary)
    return sa.insert(words).from_select(
        ["seq", "namespace", "session_id", "terms"], sa.select(*columns).where(*which)
    )


_ADD = _added(_OWNER, _i.trace_id == sa.bindparam("trace"), _i.session_id == SESSION)
_ADD_AGAIN = _added(_NAMESPACE, _i.seq == sa.bindparam("row"))
_LOOSE = (
    sa.select(_w.seq, _w.session_id, _w.terms, sa.func.coalesce(records.c.seq, _w.seq).label("place"))
    .join_from(words, insights, _i.seq == _w.seq)
    .outerjoin(records, INSIGHT_OF_RECORD)
    .where(_w.namespace == _NAMESPACE)
    .order_by(_w.seq)
)
_EXTENT = sa.select(sa.func.count(), sum_of(_w.seq)).where(_w.namespace == _NAMESPACE, _w.seq <= LAST)
_BODIES = sa.select(_b.first, _b.bucket, _b.body).where(
    _b.namespace == _NAMESPACE, _b.bucket.in_(sa.bindparam("buckets", expanding=True))
)
_OF_BLOCK = _b.namespace == _NAMESPACE, _b.first == sa.bindparam("of")


def add_insights(database: Database, c: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Within a write, store the terms of insights that were inserted: rows with the ``terms`` of ``terms_of``."""
    if rows:
        named = [{"terms": r["terms"], "trace": r["trace_id"], "session": r["session_id"]} for r in rows]
        database.change(c, _ADD, named)


def delete_insights(c: Connection, which: sa.ColumnElement[bool], **values: object) -> int:
    """Within a write, delete insights and their words; returns how many."""
    gone = c.execute(sa.delete(insights).where(which).returning(_i.seq, _i.session_id), values).all()
    left = {row.seq: row.session_id for row in gone}
    while left:
        for part in in_parts(list(left)):
            loose = sa.delete(words).where(_w.seq.in_(part)).returning(_w.seq)
            for seq in c.execute(loose).scalars().all():
                del left[seq]
        if left and not _take_apart(c, left):
            break
    return len(gone)


def copy_words(
    database: Database, c: Connection, session_id: str, other: str, ids: Mapping[str, str]
) -> None:
    """Within a write, give the copies of a session's insights, by trace_id, in another session their words."""
    mine = {"session": session_id}
    seqs = c.execute(sa.select(_i.seq).where(of_session(insights)), mine).scalars().all()
    if seqs:
        _take_apart(c, dict.fromkeys(seqs, session_id))
        stored = sa.select(_i.trace_id, _w.terms).join_from(words, insights, _i.seq == _w.seq)
        rows = c.execute(stored.where(of_session(insights)), mine).all()
        copies = [{"terms": t, "trace_id": ids[i], "session_id": other} for i, t in rows if i in ids]
        add_insights(database, c, copies)


def _take_apart(c: Connection, rows: Mapping[int, str]) -> int:
    """Make rows of ``words`` of the blocks that have these rows (``seq`` to session_id); returns how many blocks."""
    s = block_sessions.c
    taken: set[tuple[str, int]] = set()
    for part in in_parts(sorted(set(rows.values()))):
        there = (
            sa.select(_b.namespace, s.first)
            .join(blocks, (_b.first == s.first) & (_b.bucket == _ROWS))
            .where(s.session_id.in_(part), s.first <= max(rows), s.last >= min(rows))
        )
        taken.update((namespace, first) for namespace, first in c.execute(there))
    for namespace, first in sorted(taken):
        of = {"namespace": namespace, "of": first}
        head = c.execute(sa.select(_b.body).where(*_OF_BLOCK, _b.bucket == _ROWS).with_for_update(), of)
        if (body := head.scalar()) is None:  # another process has done it
            continue
        bodies = c.execute(sa.select(_b.body).where(*_OF_BLOCK, _b.bucket != _ROWS), of).scalars()
        with suppress(*DAMAGED):  # ``bank verify --repair`` makes the words anew
            block = _Rows.unpacked(body)
            stored = _joined([_unpacked(body) for body in bodies]).stored(block.heads)
            pairs = zip(block.seqs.tolist(), stored, strict=True)
            c.execute(_ADD_AGAIN, [{"row": n, "namespace": namespace, "terms": t} for n, t in pairs])
        delete_words(c, (), [(namespace, first)])
    return len(taken)


def seal(database: Database, namespace: str) -> bool:
    """Make a block of the oldest words of a namespace, if there are enough; whether there may be more.

    Nothing happens where another process does the same. Insights that wait for a better summary are left out.
    """
    oldest = _LOOSE.where(~waits).limit(database.block_size)
    with database.read() as c:
        rows = c.execute(oldest, {"namespace": namespace}).all()
    if len(rows) < database.block_size:
        return False
    new = LooseWords().extended(rows)
    block = _Rows(new.names, new.seqs, new.session.astype(np.uint16), new.place, new.heads)
    postings = Postings(new.terms, np.repeat(np.arange(len(rows), dtype=np.uint32), new.counts), new.weights)
    bodies = {_ROWS: block.packed(), **_packed(postings)}
    first, last = rows[0].seq, dict[str, int]()
    for row in rows:
        last[row.session_id] = row.seq
    with suppress(_TakenMeanwhile), database.write(erasing=True) as c:  # no second copy in free pages
        gone = 0
        for part in in_parts(block.seqs.tolist()):
            gone += c.execute(sa.delete(words).where(_w.seq.in_(part))).rowcount
        if gone != len(rows):
            raise _TakenMeanwhile
        of = {"namespace": namespace, "first": first}
        c.execute(sa.insert(blocks), [{**of, "bucket": n, "body": body} for n, body in bodies.items()])
        mine = [{"session_id": name, "first": first, "last": seq} for name, seq in last.items()]
        c.execute(sa.insert(block_sessions), mine)
        fault_point("seal.executed")
    return True


class _TakenMeanwhile(Exception):
    """Another process has made a block of these words, or has deleted some."""


def settle(database: Database, session_id: str, added: int, most: int = 1) -> None:
    """Make at most ``most`` blocks of the words of a session's namespace, once enough words were ``added``."""
    database.loose_words += added
    if database.loose_words >= database.block_size // 8:
        database.loose_words = 0
        with database.read() as c:
            namespace = namespace_of(c, session_id)
        _settle(database, namespace, most)


def settle_all(database: Database) -> None:
    """Make all blocks that there are words for, as after an import, or in a bank of an older form."""
    for namespace in database.column(sa.select(_w.namespace).distinct()):
        _settle(database, namespace)
    database.shrink()


def _settle(database: Database, namespace: str, most: int | None = None) -> None:
    many = count_of(words).where(_w.namespace == namespace)
    with suppress(StorageError, *DAMAGED):  # they stay as they are
        while most != 0 and not database.read_only and (database.value(many) or 0) >= database.block_size:
            most = None if most is None else most - 1
            if not seal(database, namespace):
                return


def namespace_of(c: Connection, session_id: str) -> str:
    """The namespace of a session, as ``words`` has it."""
    return c.execute(_NAMESPACE_OF, {"session": session_id}).scalar() or ""


def move(c: Connection, session_id: str, namespace: str | None) -> None:
    """Within a write, take the words of a session to another namespace."""
    seqs = c.execute(sa.select(_i.seq).where(of_session(insights)), {"session": session_id}).scalars().all()
    if seqs:
        _take_apart(c, dict.fromkeys(seqs, session_id))
        c.execute(sa.update(words).where(_w.session_id == session_id).values(namespace=namespace or ""))


def indexed(c: Connection, damaged: list[tuple[str, int]], broken: list[int]) -> Iterator[int]:
    """The ``seq`` of all insights that have words.

    Blocks that cannot be read are added to ``damaged``, rows of words that cannot to ``broken``.
    """
    size = sa.func.length(_w.terms, type_=sa.Integer)
    is_broken = (size < HEAD.itemsize) | ((size - HEAD.itemsize) % 5 != 0)
    broken += c.execute(sa.select(_w.seq).where(is_broken)).scalars()
    yield from c.execute(sa.select(_w.seq).where(~is_broken)).scalars()
    rows, bad = dict[tuple[str, int], list[int]](), set[tuple[str, int]]()
    for namespace, bucket, first, body in c.execute(sa.select(*_b), execution_options={"yield_per": 500}):
        seqs = rows.setdefault((namespace, first), [])
        try:
            if bucket == _ROWS:
                seqs += _Rows.unpacked(body).seqs.tolist()
            else:
                _unpacked(body)
        except DAMAGED:
            bad.add((namespace, first))
    damaged += sorted(bad | {of for of, seqs in rows.items() if not seqs})
    for seqs in (rows[of] for of in rows.keys() - bad):
        yield from seqs


def delete_words(c: Connection, rows: Iterable[int], damaged: Iterable[tuple[str, int]] = ()) -> None:
    """Within a write, delete rows of ``words``, and blocks that cannot be read."""
    for part in in_parts(list(rows)):
        c.execute(sa.delete(words).where(_w.seq.in_(part)))
    for namespace, first in damaged:
        c.execute(sa.delete(blocks).where(*_OF_BLOCK), {"namespace": namespace, "of": first})
        c.execute(sa.delete(block_sessions).where(block_sessions.c.first == first))


@dataclass(frozen=True, slots=True)
class _Rows:
    """Insights in the order of ``seq``: those of a block.

    ``session`` are numbers in ``names``; ``place``: of the record in its session; ``heads`` as ``heads_of`` has them.
    """

    names: Sequence[str]
    seqs: Any
    session: Any
    place: Any
    heads: Any

    def packed(self) -> bytes:
        columns = (np.diff(self.seqs, prepend=0), self.session, np.diff(self.place, prepend=0))
        names = json.dumps(self.names).encode("ascii")
        packed = zlib.compress(names + b"".join(map(_planes, columns)))
        return b"".join((_SIZES.pack(len(packed), len(names)), packed, self.heads.tobytes()))

    @classmethod
    def unpacked(cls, body: bytes) -> _Rows:
        end, of_names = _SIZES.unpack_from(body)
        end += _SIZES.size
        heads = np.frombuffer(body, HEAD, offset=end)
        raw = zlib.decompress(body[_SIZES.size : end])
        kinds = [(kind, len(heads)) for kind in (np.int64, np.uint16, np.int64)]
        seqs, session, place = _columns(raw[of_names:], kinds)
        return cls(json.loads(raw[:of_names]), np.cumsum(seqs), session, np.cumsum(place), heads)


@dataclass(frozen=True, slots=True)
class Indexed(_Rows):
    """The insights of a scope, and the terms of them that a query may ask for; ``loose`` of them are in no block."""

    postings: Postings
    loose: int


class LooseWords(NamedTuple):
    """Rows of ``words`` in the order of ``seq``: what a process keeps of them.

    ``session`` are numbers in ``names``; ``counts``: how many of the ``terms`` and ``weights`` each has.
    """

    names: tuple[str, ...] = ()
    seqs: Any = np.zeros(0, np.int64)
    session: Any = np.zeros(0, np.int64)
    place: Any = np.zeros(0, np.int64)
    heads: Any = np.zeros(0, HEAD)
    counts: Any = np.zeros(0, np.int64)
    terms: Any = np.zeros(0, np.uint32)
    weights: Any = np.zeros(0, np.uint8)

    @property
    def bytes(self) -> int:
        """Their size in memory."""
        return sum(column.nbytes for column in self[1:])

    def extended(self, rows: Sequence[Any]) -> LooseWords:
        """The rows with newer ones after them."""
        seqs, of_session, stored, place = zip(*rows, strict=True)
        numbers = {name: number for number, name in enumerate(dict.fromkeys((*self.names, *of_session)))}
        session = [numbers[name] for name in of_session]
        new = *map(np.array, (seqs, session, place)), heads_of(stored), *parts_of(stored)
        return LooseWords(tuple(numbers), *map(np.concatenate, zip(self[1:], new, strict=True)))

    def asked(self, query: Hashes) -> Postings:
        """The terms that may be a query's, with their rows, which are numbered from 0."""
        at = may_be_of(query, self.terms)
        rows = np.searchsorted(np.cumsum(self.counts), at, "right")
        return Postings(self.terms[at], rows, self.weights[at])


_keeping = threading.Lock()


def _loose_words(
    c: Connection,
    cache: LRUCache[Hashable, LooseWords],
    key: Hashable,
    which: sa.ColumnElement[bool],
    values: Any,
) -> LooseWords:
    """The rows of ``words`` of a scope; those that are in the ``cache`` under the ``key`` are not read again."""
    with _keeping:
        words = cache.get(key, LooseWords())
    if len(words.seqs):
        extent = c.execute(_EXTENT.where(which), {**values, "last": int(words.seqs[-1])}).one()
        if tuple(map(int, extent)) != (len(words.seqs), words.seqs.sum()):
            words = LooseWords()  # some were deleted, or are in a block now
    last = int(words.seqs[-1]) if len(words.seqs) else -1
    if new := c.execute(_LOOSE.where(which, _w.seq > LAST), {**values, "last": last}).all():
        words = words.extended(new)
        with _keeping, suppress(ValueError):  # more than there is room for
            cache[key] = words
    return words


def read_index(
    c: Connection,
    cache: LRUCache[Hashable, LooseWords],
    namespace: str,
    query: Hashes,
    sessions_of: sa.Select[Any] | None,
    session_id: str,
) -> Indexed:
    """The data that a search needs, within a snapshot: of the sessions of a statement, or of the whole ``namespace``.

    ``cache``: words in no block that this process has read before.
    """
    values: dict[str, Any] = {"namespace": namespace, "session": session_id}
    bodies, included = _BODIES, None
    which: sa.ColumnElement[bool] = sa.true()
    if sessions_of is not None:
        s = block_sessions.c
        firsts = list(
            c.execute(sa.select(s.first).where(s.session_id.in_(sessions_of)).distinct(), values).scalars()
        )
        bodies, values["firsts"] = bodies.where(_b.first.in_(sa.bindparam("firsts", expanding=True))), firsts
        which = _w.session_id.in_(sessions_of)
        included = frozenset(c.execute(sessions_of, values).scalars())
    names: dict[str, int] = {}
    parts: list[tuple[Any, ...]] = [LooseWords()[1:5]]
    postings: list[Postings] = []
    start: dict[int, Any] = {}
    total = 0
    buckets = np.unique(query >> _SHIFT).tolist()
    rows = c.execute(bodies.order_by(_b.bucket), {**values, "buckets": [_ROWS, *buckets]})
    for first, bucket, body in rows:
        if bucket == _ROWS:
            block = _Rows.unpacked(body)
            here = np.array([included is None or name in included for name in block.names])[block.session]
            sessions = np.array([names.setdefault(name, len(names)) for name in block.names])[block.session]
            parts.append((block.seqs[here], sessions[here], block.place[here], block.heads[here]))
            numbers = np.where(here, total + np.cumsum(here) - 1, -1)
            start[first], total = numbers, total + int(here.sum())
            continue
        terms, of, weights = _unpacked(body).asked(query)
        numbers = start[first][of]
        postings.append(Postings(terms[numbers >= 0], numbers[numbers >= 0], weights[numbers >= 0]))
    loose = _loose_words(c, cache, (namespace, included), which, values)
    if len(loose.seqs):
        sessions = np.array([names.setdefault(name, len(names)) for name in loose.names])[loose.session]
        parts.append((loose.seqs, sessions, loose.place, loose.heads))
        terms, of, weights = loose.asked(query)
        postings.append(Postings(terms, of + total, weights))
    seqs, session, place, heads = map(np.concatenate, zip(*parts, strict=True))
    order = np.argsort(seqs, kind="stable")
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order))
    terms, of, weights = _joined(postings)
    return Indexed(
        list(names), seqs[order], session[order], place[order], heads[order],
        Postings(terms, number[of.astype(np.int64)], weights), len(loose.seqs),
    )  # fmt: skip


def _packed(postings: Postings) -> dict[int, bytes]:
    """The parts of a block, by bucket."""
    order = np.lexsort((postings.rows, postings.terms))
    terms, rows, weights = (column[order] for column in postings)
    ends = np.searchsorted(terms >> _SHIFT, np.arange(BUCKETS + 1)).tolist()
    parts = {}
    for bucket, (a, b) in enumerate(pairwise(ends)):
        if a < b:
            each, counts = np.unique(terms[a:b], return_counts=True)
            columns = (
                np.diff(each, prepend=np.uint32(0)), counts.astype(np.uint16),
                np.diff(rows[a:b].astype(np.uint16), prepend=np.uint16(0)), weights[a:b],
            )  # fmt: skip
            parts[bucket] = _SIZES.pack(len(each), b - a) + zlib.compress(b"".join(map(_planes, columns)))
    return parts


def _unpacked(body: bytes) -> Postings:
    """A part of a block."""
    each, count = _SIZES.unpack_from(body)
    kinds = [(np.uint32, each), (np.uint16, each), (np.uint16, count), (np.uint8, count)]
    terms, counts, rows, weights = _columns(zlib.decompress(body[_SIZES.size :]), kinds)
    repeated = np.repeat(np.cumsum(terms, dtype=np.uint32), counts)
    return Postings(repeated, np.cumsum(rows, dtype=np.uint16), weights)


def _joined(postings: Iterable[Postings]) -> Postings:
    empty = Postings(np.zeros(0, np.uint32), np.zeros(0, np.int64), np.zeros(0, np.uint8))
    return Postings(*map(np.concatenate, zip(empty, *postings, strict=True)))


def _planes(column: Any) -> bytes:
    """Numbers byte by byte, all first bytes first: most of the others are 0 then, and compress well."""
    return column.view(np.uint8).reshape(-1, column.itemsize).T.tobytes()  # type: ignore[no-any-return]


def _columns(raw: bytes, kinds: Sequence[tuple[Any, int]]) -> list[Any]:
    """The columns of these types and lengths that ``_planes`` packed."""
    columns, at = [], 0
    for kind, count in kinds:
        size = np.dtype(kind).itemsize
        planes = np.frombuffer(raw, np.uint8, size * count, at).reshape(size, count)
        columns.append(np.ascontiguousarray(planes.T).view(kind).reshape(count))
        at += size * count
    return columns
