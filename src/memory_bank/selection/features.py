"""Describes each value of a session by numbers that say whether the next call may need it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from memory_bank.selection.candidates import KINDS
from memory_bank.selection.session import NEVER, Session
from memory_bank.selection.tables import Array, Table

# How each can be kept up to date. (a) a number of the value's own that changes when the value is touched:
# kind_…, length, words, digits, cell, overlap, records, was_used, uses, leaf_uses, notes, rank, row_uses.
# (b) a column of its owner: record_…, tool_…, near_…, segment_…, key_…, source_…, shape_…, column_used,
# column_size, column_rate, column_recent (like_… alike), kind_rate, …_expected; of value and owner:
# rank_share, column_next, column_after, column_before. (c) the tail minus an interaction: age_…, shown_…,
# used_…, noted_…, successor, like_successor, row_used, after_used, use_rate. (d) added to few values a
# step: overlap_note, overlap_tail. `history` is one number a step.
VALUE_FEATURES = (
    "length",
    "words",
    "digits",
    "cell",
    "overlap",
    "age_shown",
    "shown_1",
    "shown_3",
    "shown_8",
    "age_first",
    "records",
    "was_used",
    "uses",
    "leaf_uses",
    "age_used",
    "used_1",
    "used_3",
    "notes",
    "age_noted",
    "noted_1",
    "rank",
    "rank_share",
    "record_values",
    "record_size",
    "record_ordinal",
    "record_note",
    "record_supplied",
    "record_supplied_rate",
    "record_supplied_recent",
    "record_echo",
    "tool_rate",
    "tool_recent",
    "tool_same",
    "tool_values_rate",
    "tool_follow",
    "key_used",
    "key_rate",
    "key_recent",
    "key_argument",
    "key_empty",
    "source_used",
    "source_rate",
    "source_recent",
    "shape_used",
    "shape_rate",
    "shape_recent",
    "column_used",
    "column_next",
    "column_after",
    "column_before",
    "column_size",
    "like_used",
    "like_next",
    "like_after",
    "like_before",
    "like_size",
    "successor",
    "like_successor",
    "row_used",
    "row_uses",
    "after_used",
    "segment_task",
    "segment_tail_words",
    "segment_tail_values",
    "segment_note_words",
    "segment_density",
    "segment_first",
    "segment_place",
    "segment_symbols",
    "kind_rate",
    "history",
    "overlap_note",
    "overlap_tail",
    "use_rate",
    "column_rate",
    "column_recent",
    "like_rate",
    "like_recent",
    "near_after",
    "near_before",
    "record_latest",
    "record_tail_values",
    "record_note_words",
    "record_task",
    "source_expected",
    "shape_expected",
    "key_expected",
    "argument_expected",
    "key_overlap",
)
FEATURES = tuple("kind_" + k for k in KINDS) + VALUE_FEATURES
_NUMBER = {name: number for number, name in enumerate(FEATURES)}


@dataclass(frozen=True, slots=True)
class Situation:
    """What the step at hand adds: where the tail begins, and per segment how it meets task and tail.

    The arrays have one float per segment of the session; `value_…` one per value; `expected` holds,
    by source, shape, key and argument name, what the tools that may come next took before.
    """

    tail: int
    last_tool: int
    task: Array
    tail_words: Array
    tail_values: Array
    note_words: Array
    value_note: Array
    value_tail: Array
    expected: tuple[Array, Array, Array, Array]
    columns: dict[str, dict[str, Array]] = field(default_factory=dict)


Group = tuple[Array | None, dict[str, Array]]
"""Columns of a kind of owner (record, key, …) and each value's owner; None: columns by value."""


def describe(session: Session, now: Situation, ids: Array) -> Array:
    """Feature matrix, float32, shape (len(FEATURES), len(ids)): one row a feature."""
    x = np.zeros((len(FEATURES), len(ids)), dtype=np.float32)
    x[session.values["kind"][ids], np.arange(len(ids))] = 1
    for owner, columns in _groups(session, now, ids):
        for name, column in columns.items():
            x[_NUMBER[name]] = column if owner is None else column[owner]
    return x


def linear_scores(session: Session, now: Situation, ids: Array, weights: Array) -> Array:
    """`weights @ describe(...)`, shape (len(ids),), float32."""
    return np.asarray(weights.astype(np.float32) @ describe(session, now, ids))


def _kind_rate(session: Session) -> Array:
    return np.asarray(np.log((session.kinds["used"] + 0.2) / (session.kinds["total"] + 20)))


def _use_rate(session: Session, ids: Array, tail: int) -> Array:
    v = session.values
    uses = v["uses"][ids]
    return np.where(uses > 0, uses / (tail - np.maximum(v["first_use"][ids], -1) + 2), 0).astype(np.float32)


def _table(session: Session, name: str) -> Table:
    return {
        "key": session.keys,
        "source": session.sources,
        "shape": session.shapes,
        "column": session.columns,
        "like": session.likes,
    }[name].table


def _owner_columns(session: Session, now: Situation, name: str) -> dict[str, Array]:
    """Columns by key, source, shape, column or like; computed once a step."""
    known = now.columns.get(name)
    if known is not None:
        return known
    table = _table(session, name)
    if name in ("column", "like"):
        columns = {
            name + "_used": _log(table["used"]),
            name + "_size": _log(table["size"]),
            name + "_rate": table["used"] / (np.maximum(table["last_at"], 0) + 2).astype(np.float32),
            name + "_recent": _recent(table["used_at"], now.tail),
        }
    else:
        columns = {
            name + "_used": _log(table["used"]),
            name + "_rate": (table["used"] + 0.1) / (table["total"] + 5),
            name + "_recent": _recent(table["used_at"], now.tail),
            name + "_expected": now.expected[{"source": 0, "shape": 1, "key": 2}[name]],
        }
        if name == "key":
            columns["argument_expected"] = now.expected[3]
            columns["key_overlap"] = session.overlap_of_keys()
            columns["key_argument"] = (table["argument"] > 0).astype(np.float32)
            columns["key_empty"] = np.arange(table.size) == 0
    now.columns[name] = columns
    return columns


def _groups(session: Session, now: Situation, ids: Array) -> Iterator[Group]:
    v = session.values
    record, segment = v["record"][ids], v["segment"][ids]
    yield None, _value_columns(session, now, ids, record)
    yield record, _record_columns(session, now)
    yield segment, _segment_columns(session, now)
    yield v["kind"][ids], {"kind_rate": _kind_rate(session)}
    for name in ("key", "source", "shape", "column", "like"):
        yield v[name][ids], _owner_columns(session, now, name)


def _recent(times: Array, tail: int, half: float = 3.0) -> Array:
    """1 for the interaction before the tail or later, falling with age; 0 for never."""
    age = (tail - 1 - times).astype(np.float32)
    np.maximum(age, 0, out=age)
    return np.asarray((np.float32(half) / (np.float32(half) + age)) * (times != NEVER), dtype=np.float32)


_LOGS = np.log1p(np.arange(8192)).astype(np.float32)


def _log(x: Array) -> Array:
    """log(1 + x) of whole numbers, those above 8,191 taken as 8,191."""
    return np.asarray(_LOGS.take(x.astype(np.int32), mode="clip"))


def _value_columns(session: Session, now: Situation, ids: Array, record: Array) -> dict[str, Array]:
    v, tail = session.values, now.tail
    shown, used, noted = v["out"][ids], v["used"][ids], v["noted"][ids]
    rank, uses = v["rank"][ids], v["uses"][ids]
    c: dict[str, Array] = {
        "length": _log(v["length"][ids]),
        "words": v["words"][ids],
        "digits": v["digits"][ids],
        "cell": v["cell"][ids],
        "overlap": v["overlap"][ids],
        "age_shown": _recent(shown, tail),
        "shown_1": shown >= tail - 1,
        "shown_3": shown >= tail - 3,
        "shown_8": shown >= tail - 8,
        "age_first": _recent(v["first"][ids], tail, 6.0),
        "records": _log(v["records"][ids]),
        "was_used": uses > 0,
        "uses": _log(uses),
        "leaf_uses": _log(v["leaf_uses"][ids]),
        "age_used": _recent(used, tail),
        "used_1": used >= tail - 1,
        "used_3": used >= tail - 3,
        "notes": _log(v["notes"][ids]),
        "age_noted": _recent(noted, tail),
        "noted_1": noted >= tail - 1,
        "rank": _log(rank),
        "rank_share": rank.astype(np.float32) / np.maximum(1, session.records["values"])[record],
        "successor": _recent(v["successor"][ids], tail, 1.0) * v["successor_by"][ids],
        "like_successor": _recent(v["like_successor"][ids], tail, 1.0),
        "row_used": _recent(v["row_used"][ids], tail),
        "row_uses": _log(v["row_uses"][ids]),
        "after_used": _recent(v["after_used"][ids], tail),
        "overlap_note": now.value_note[ids],
        "overlap_tail": now.value_tail[ids],
        "use_rate": _use_rate(session, ids, tail),
        "history": np.full(len(ids), np.log1p(session.values.size), dtype=np.float32),
    }
    for name, table in (("column", session.columns.table), ("like", session.likes.table)):
        number = v[name][ids]
        step = v[name + "_at"][ids] - table["last_at"][number]
        known = table["last_at"][number] != NEVER
        c[name + "_next"] = known & (step == 1)
        c[name + "_after"] = np.where(known & (step > 0), 3.0 / (2 + np.maximum(step, 1)), 0).astype(
            np.float32
        )
        c[name + "_before"] = known & (step <= 0)
    return c


def _segment_columns(session: Session, now: Situation) -> dict[str, Array]:
    if "segment" in now.columns:
        return now.columns["segment"]
    s = session.segments
    used = session.records["used_place"][s["record"]]
    ahead = (s["place"] - used).astype(np.float32)
    known = used != NEVER
    now.columns["segment"] = {
        "near_after": np.where(known & (ahead >= 0), 2 / (2 + np.abs(ahead)), 0).astype(np.float32),
        "near_before": np.where(known & (ahead < 0), 2 / (2 + np.abs(ahead)), 0).astype(np.float32),
        "segment_task": now.task,
        "segment_tail_words": now.tail_words,
        "segment_tail_values": now.tail_values,
        "segment_note_words": now.note_words,
        "segment_first": s["place"] == 0,
        "segment_place": _log(s["place"]),
        "segment_symbols": s["symbols"],
        "segment_density": s["count"] / s["tokens"].clip(1).astype(np.float32),
    }
    return now.columns["segment"]


def _record_columns(session: Session, now: Situation) -> dict[str, Array]:
    """Columns by record, those of its tool among them."""
    if "record" in now.columns:
        return now.columns["record"]
    r, t = session.records, session.tools.table
    values, tool = r["values"], r["tool"]
    follow = np.zeros(t.size, dtype=np.float32)
    total = 0.0
    for (before, origin), n in session.follow.items():
        if before == now.last_tool:
            follow[origin] = n
            total += n
    follow = (follow + 0.5) / (total + 0.5 * t.size)
    tool_rate = (t["supplied"] + 0.5) / (t["records"] + 2)
    owner = session.segments["record"]

    def most(column: Array) -> Array:
        top = np.zeros(r.size, dtype=np.float32)
        if len(owner):
            first = np.flatnonzero(np.diff(owner, prepend=-1))
            top[owner[first]] = np.maximum.reduceat(column, first)
        return top

    value_rate: Array = np.log((t["used_values"] + 0.5) / (t["records"] + 1))
    now.columns["record"] = {
        "record_values": _log(values),
        "record_size": np.log1p(r["size"]),
        "record_ordinal": _log(r["ordinal"]),
        "record_note": r["note"],
        "record_supplied": _log(r["supplied"]),
        "record_supplied_rate": r["supplied"] / (values + 3),
        "record_supplied_recent": _recent(r["supplied_at"], now.tail),
        "record_echo": r["echo"],
        "tool_rate": tool_rate[tool],
        "tool_recent": _recent(t["supplied_at"], now.tail)[tool],
        "record_latest": t["records"][tool] - r["ordinal"] <= 1,
        "record_tail_values": np.log1p(np.bincount(owner, weights=now.tail_values, minlength=r.size)).astype(
            np.float32
        ),
        "record_note_words": most(now.note_words),
        "record_task": most(now.task),
        "tool_same": tool == now.last_tool,
        "tool_values_rate": value_rate[tool],
        "tool_follow": follow[tool],
    }
    return now.columns["record"]
