"""The folds of sessions: what stands in the place of the older history until the next fold, stored once."""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from memory_bank.bank.database import GENERATION, LEDGER, Database, LastFold
from memory_bank.bank.schema import SET_SESSION, folds, of_session, sessions
from memory_bank.errors import StorageError
from memory_bank.plan import Fate, Piece

log = logging.getLogger("memory_bank.MemoryBankStrategy")

KEPT = 64
"""The newest folds of a session that are kept: lists of messages that were rewound may need an older one."""
_AT_ONCE = 16
_f = folds.c
_HEADS = (
    sa.select(*(c for c in _f if c.name not in ("session_id", "created", "body", "why")))
    .where(of_session(folds), _f.made_for == sa.bindparam("settings"), _f.count <= sa.bindparam("most"))
    .order_by(_f.count.desc(), _f.number.desc())
)
_BODY, _WHY = (
    sa.select(c).where(of_session(folds), _f.number == sa.bindparam("at")) for c in (_f.body, _f.why)
)
_EXPLAIN = (
    sa.update(folds)
    .where(of_session(folds), _f.number == sa.bindparam("at"), _f.about == sa.bindparam("of"))
    .values(why=sa.bindparam("reasons"))
)
_EXPLAINED = sa.select(_f.number, _f.body, _f.why).where(
    of_session(folds), _f.number.in_(sa.bindparam("numbers", expanding=True))
)
_OLD = sa.delete(folds).where(of_session(folds), _f.number <= sa.bindparam("upto"))

Turn = tuple[int, Sequence[tuple[int, Mapping[int, Any], int]]]
"""A past turn in its place: its number, and of each message that stays its place in the turn, what is changed of it,
and its tokens then."""


@dataclass(frozen=True, slots=True)
class FoldContent:
    """The content of a fold: ``text`` in the memory message, ``turns`` in their places; None: none may stand there.

    ``note``: what it quotes of a model's note. ``gone``: it shows records whose messages the list had lost.
    ``stored``: its stored form, where it was read of it.
    """

    text: str
    note: str = ""
    gone: bool = False
    turns: Sequence[Turn] | None = None
    stored: bytes = field(default=b"", repr=False, compare=False)

    def packed(self) -> bytes:
        """As it is stored: ASCII JSON, compressed. Raises TypeError, ValueError, RecursionError."""
        if self.stored:
            return self.stored
        turns = None
        if self.turns is not None:
            turns = [
                [turn, [[place, [*change.items()], tokens] for place, change, tokens in messages]]
                for turn, messages in self.turns
            ]
        values = {"text": self.text, "note": self.note, "gone": self.gone, "turns": turns}
        return zlib.compress(json.dumps(values, separators=(",", ":")).encode("ascii"), 6)

    @classmethod
    def unpacked(cls, stored: bytes) -> FoldContent:
        """The body of its stored form. Raises ValueError where that is damaged."""
        try:
            return cls._unpacked(stored)
        except (zlib.error, TypeError, LookupError, RecursionError) as e:
            raise ValueError(f"a fold is damaged ({type(e).__name__})") from None

    @classmethod
    def _unpacked(cls, stored: bytes) -> FoldContent:
        values = json.loads(zlib.decompress(stored))
        if values["turns"] is not None:
            values["turns"] = [
                (turn, [(place, dict(map(tuple, change)), tokens) for place, change, tokens in messages])
                for turn, messages in values["turns"]
            ]
        return cls(**values, stored=stored)


@dataclass(frozen=True, slots=True)
class FoldReasons:
    """The fate of each of the session's first ``records`` records in a fold, and its reason.

    ``calls``: by number the fate, worth and reason of those of which something was shown or nearly shown. Of the
    others those in ``listed`` are named, the rest is only counted. ``pieces`` as they stand in the context,
    ``near_misses`` best first.
    """

    records: int
    calls: Mapping[int, tuple[Fate, float | None, str]]
    listed: Collection[int]
    pieces: Sequence[Piece]
    near_misses: Sequence[Piece]

    def of(self, number: int) -> tuple[Fate, float | None, str]:
        """Fate, worth and reason of a record."""
        if number > self.records:
            return Fate.LEFT_OUT, None, "it came after this fold"
        if number in self.calls:
            return self.calls[number]
        if number in self.listed:
            return Fate.LISTED, None, f"#{number} named in the list of calls, nothing of its output"
        return Fate.LEFT_OUT, None, f"#{number} counted in the list of calls"

    def packed(self) -> bytes:
        """As it is stored: ASCII JSON, compressed."""
        calls = [[number, *of] for number, of in self.calls.items()]
        pieces = [
            [(p.trace_id, p.tool, p.text, p.score, p.reasons) for p in some]
            for some in (self.pieces, self.near_misses)
        ]
        values = [self.records, calls, sorted(self.listed), *pieces]
        return zlib.compress(json.dumps(values, separators=(",", ":")).encode("ascii"), 3)

    @classmethod
    def unpacked(cls, stored: bytes) -> FoldReasons:
        """The reasons of their stored form. Raises ValueError where that is damaged."""
        try:
            records, calls, listed, *pieces = json.loads(zlib.decompress(stored))
            by_number = {number: (Fate(fate), worth, reason) for number, fate, worth, reason in calls}
            shown, near = ([_piece(*p) for p in some] for some in pieces)
        except (zlib.error, TypeError, LookupError, RecursionError) as e:
            raise ValueError(f"the reasons of a fold are damaged ({type(e).__name__})") from None
        return cls(records, by_number, frozenset(listed), shown, near)


def _piece(trace_id: str, tool: str, text: str, score: float, reasons: Sequence[Any]) -> Piece:
    values = ((value, chance, tuple((f, n) for f, n in features)) for value, chance, features in reasons)
    return Piece(trace_id, tool, text, score, tuple(values))


@dataclass(frozen=True, slots=True)
class Fold:
    """A fold and what it is about: the first ``past`` interactions, of which ``about`` is a digest.

    ``number`` counts the folds of the session. ``made_for``: a digest of the settings and of the counter's name.
    ``count``: past interactions then, those kept whole included. ``growth``: tokens of interactions that may follow
    before the next fold. ``tokens``: of its memory message. ``why``: what explains it, read or made when it is asked
    for; None where that is not known.
    """

    number: int
    made_for: str
    past: int
    about: str
    count: int
    growth: int
    tokens: int
    body: FoldContent = field(repr=False)
    why: Callable[[], FoldReasons | None] = field(default=lambda: None, repr=False, compare=False)


class Folds:
    """The folds of one session, with those read last in memory. Methods may raise StorageError."""

    def __init__(self, database: Database, session_id: str) -> None:
        self.database, self.session_id = database, session_id
        self._heads: tuple[object, Sequence[Any]] = (None, ())
        self._read: dict[int, Fold] = {}

    def newest(self, last: LastFold, made_for: str, count: int, about: Callable[[int], str]) -> Fold | None:
        """The newest fold that was made for no more past interactions than ``count``, and fits them.

        ``last``: the session's newest fold; ``about`` returns the digest of the first so many interactions. Where two
        processes stored the fold of one step, all find the same. None where it is damaged.
        """
        key = last, made_for
        if self._heads[0] != key:
            read, rows = self._read, self._rows(_HEADS.limit(_AT_ONCE), made_for, 2**31 - 1)
            same = [
                r for r in rows if r.number in read and all(getattr(read[r.number], k) == r[k] for k in r)
            ]
            self._heads, self._read = (key, rows), {r.number: read[r.number] for r in same}
        rows = self._heads[1]
        head = next((r for r in rows if r.count <= count and r.about == about(r.past)), None)
        if head is None and len(rows) == _AT_ONCE:  # a list that was rewound behind them
            rows = self._rows(_HEADS, made_for, count)
            head = next((r for r in rows if r.about == about(r.past)), None)
        if head is None:
            return None
        if head.number not in self._read:
            stored = self.database.rows(_BODY, session=self.session_id, at=head.number)
            if not stored:  # deleted meanwhile
                return None
            try:
                body = FoldContent.unpacked(stored[0]["body"])
            except ValueError as e:  # the step goes on as without it, and the next fold stands in its place
                log.warning("session %s: fold %d cannot be read (%s)", self.session_id, head.number, e)
                return None
            fold = Fold(**head, body=body, why=partial(self.reasons, head.number))
            self._read = {**dict([*self._read.items()][-3:]), head.number: fold}
        return self._read[head.number]

    def _rows(self, query: sa.Select[Any], made_for: str, most: int) -> Sequence[Any]:
        return self.database.rows(query, session=self.session_id, settings=made_for, most=most)

    def add(self, fold: Fold, generation: int | None) -> bool:
        """Store a fold; False where its number is taken, or content was deleted since ``generation``."""
        row = {f.name: getattr(fold, f.name) for f in fields(Fold)}
        row |= {"session_id": self.session_id, "body": fold.body.packed(), "why": None}
        session = {"session": self.session_id}

        def insert(c: Connection) -> bool:
            self.database.lock_session(c, self.session_id)
            if (c.execute(GENERATION, session).scalar() or 0) != (generation or 0):
                return False
            created = {"created": self.database.now(c)}
            if self.database.insert_new(c, folds, [row | created]) != 1:
                return False
            c.execute(_OLD, {**session, "upto": fold.number - KEPT})
            return True

        is_new = self.database.submit(insert, self.session_id)
        if is_new:
            self._read[fold.number] = fold
        return is_new

    def explain(self, fold: Fold, why: FoldReasons, generation: int | None) -> None:
        """Store why a fold shows what it does, unless content was deleted since ``generation``."""
        session, reasons = {"session": self.session_id}, why.packed()

        def update(c: Connection) -> None:
            self.database.lock_session(c, self.session_id)
            if (c.execute(GENERATION, session).scalar() or 0) == (generation or 0):
                c.execute(_EXPLAIN, {**session, "at": fold.number, "of": fold.about, "reasons": reasons})

        self.database.submit(update, self.session_id)

    def reasons(self, number: int) -> FoldReasons | None:
        """Why a fold shows what it does; None where that is not stored yet, or cannot be read."""
        with suppress(ValueError, StorageError):
            stored = self.database.value(_WHY, session=self.session_id, at=number)
            return FoldReasons.unpacked(stored) if stored else None
        return None

    def last(self) -> LastFold:
        """The session's newest fold."""
        return self.database.extent(self.session_id).fold


def stored_folds(
    database: Database, session_id: str, numbers: Collection[int | None]
) -> dict[int, tuple[FoldContent, FoldReasons | None]]:
    """The readable folds among these numbers, each with its reasons, or None where those are missing or damaged."""
    folds: dict[int, tuple[FoldContent, FoldReasons | None]] = {}
    newest = sorted({n for n in numbers if n})[-KEPT:]
    for row in database.rows(_EXPLAINED, session=session_id, numbers=newest):
        with suppress(ValueError):
            folds[row["number"]] = FoldContent.unpacked(row["body"]), None
            if row["why"] is not None:
                folds[row["number"]] = folds[row["number"]][0], FoldReasons.unpacked(row["why"])
    return folds


def copy_folds(source: Database, target: Database, session_id: str) -> None:
    """Put folds and ledger of a session in the place of those that another database has of it."""
    rows = source.rows(sa.select(*_f).where(of_session(folds)), session=session_id)
    ledger = source.rows(sa.select(*LEDGER).where(of_session(sessions)), session=session_id)
    with target.write() as c:
        c.execute(SET_SESSION.values(dict(ledger[0])), {"session": session_id})
        c.execute(sa.delete(folds).where(of_session(folds)), {"session": session_id})
        if rows:
            c.execute(sa.insert(folds), [dict(row) for row in rows])
