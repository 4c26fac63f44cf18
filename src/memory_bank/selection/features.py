"""Describes each value of a session by numbers that say whether the next call may need it."""

from __future__ import annotations

import numpy as np

from memory_bank.selection.candidates import KINDS
from memory_bank.selection.session import NEVER, Session
from memory_bank.selection.situation import Situation
from memory_bank.selection.tables import Array

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

OWNERS = ("record", "segment", "kind", "key", "source", "shape", "column", "like", "first")
"""Columns of the values that name what they belong to (`first`: the interaction that showed them first)."""


def describe(session: Session, now: Situation, ids: Array) -> Array:
    """Feature matrix, float32, shape (len(FEATURES), len(ids)): one row a feature.

    A feature is of one of four kinds, so that a step costs what is new: it changes only when its value is
    touched (`static_columns`), it is nought but for values that something happened to (`timed_columns`), it
    belongs to an owner that many values share (`owner_columns`), or it is the step's (`step_columns`).
    """
    x = np.zeros((len(FEATURES), len(ids)), dtype=np.float32)
    x[session.values["kind"][ids], np.arange(len(ids))] = 1
    x[_NUMBER["history"]] = history(session)
    for columns in (
        static_columns(session, ids),
        timed_columns(session, now, ids),
        step_columns(now, ids),
    ):
        for name, column in columns.items():
            x[_NUMBER[name]] = column
    for owner in OWNERS:
        number = session.values[owner][ids]
        for name, column in owner_columns(session, now, owner).items():
            x[_NUMBER[name]] = column[number]
    for name, column in segment_constants(session, session.values["segment"][ids]).items():
        x[_NUMBER[name]] = column
    return x


def history(session: Session) -> float:
    """The feature that all values share."""
    return float(np.log1p(session.values.size))


def static_columns(session: Session, ids: Array) -> dict[str, Array]:
    """What changes only when a value is touched: `Session.changed` tells which were."""
    v = session.values
    rank, uses = v["rank"][ids], v["uses"][ids]
    return {
        "length": _log(v["length"][ids]),
        "words": v["words"][ids],
        "digits": v["digits"][ids],
        "cell": v["cell"][ids],
        "overlap": v["overlap"][ids],
        "records": _log(v["records"][ids]),
        "was_used": uses > 0,
        "uses": _log(uses),
        "leaf_uses": _log(v["leaf_uses"][ids]),
        "notes": _log(v["notes"][ids]),
        "row_uses": _log(v["row_uses"][ids]),
        "rank": _log(rank),
        "rank_share": rank.astype(np.float32) / np.maximum(1, session.records["values"])[v["record"][ids]],
        **_order_columns(session, ids, "column"),
        **_order_columns(session, ids, "like"),
    }


def _order_columns(session: Session, ids: Array, name: str) -> dict[str, Array]:
    """Where values stand in their column (or among those of their shape), seen from the last one used."""
    v = session.values
    table = session.columns if name == "column" else session.likes
    number = v[name][ids]
    last, count = table["last_at"][number], table["used"][number]
    step = v[name + "_at"][ids] - last
    known = last != NEVER
    return {
        name + "_size": _log(table["size"][number]),
        name + "_used": _log(count),
        name + "_rate": count / (np.maximum(last, 0) + 2).astype(np.float32),
        name + "_next": known & (step == 1),
        name + "_after": np.where(known & (step > 0), 3.0 / (2 + np.maximum(step, 1)), 0),
        name + "_before": known & (step <= 0),
    }


def timed_columns(session: Session, now: Situation, ids: Array) -> dict[str, Array]:
    """What ages, or follows a neighbour's use: nought for all values but those in `Session.timed`."""
    v, tail = session.values, now.tail
    used, noted, uses = v["used"][ids], v["noted"][ids], v["uses"][ids]
    return {
        "age_used": _recent(used, tail),
        "used_1": used >= tail - 1,
        "used_3": used >= tail - 3,
        "age_noted": _recent(noted, tail),
        "noted_1": noted >= tail - 1,
        "successor": _recent(v["successor"][ids], tail, 1.0) * v["successor_by"][ids],
        "like_successor": _recent(v["like_successor"][ids], tail, 1.0),
        "row_used": _recent(v["row_used"][ids], tail),
        "after_used": _recent(v["after_used"][ids], tail),
        "use_rate": uses / np.maximum(tail - np.maximum(v["first_use"][ids], -1) + 2, 1),
    }


def step_columns(now: Situation, ids: Array | slice) -> dict[str, Array]:
    """What this step alone says of values."""
    return {"overlap_note": now.value_note[ids], "overlap_tail": now.value_tail[ids]}


def owner_columns(session: Session, now: Situation, owner: str) -> dict[str, Array]:
    """Columns by record, segment, kind, …; computed once a step."""
    known = now.columns.get(owner)
    if known is None:
        make = {"record": _record_columns, "segment": _segment_columns, "kind": _kind_columns}
        if owner == "first":
            known = {"age_first": _recent(np.arange(session.interactions + 1), now.tail, 6.0)}
        elif owner in ("column", "like"):
            table = session.columns if owner == "column" else session.likes
            known = {owner + "_recent": _recent(table["used_at"], now.tail)}
        elif owner in make:
            known = make[owner](session, now)
        else:
            known = _shared_columns(session, now, owner)
        now.columns[owner] = known
    return known


def _kind_columns(session: Session, now: Situation) -> dict[str, Array]:  # noqa: ARG001  one signature
    return {"kind_rate": np.log((session.kinds["used"] + 0.2) / (session.kinds["total"] + 20))}


def _shared_columns(session: Session, now: Situation, name: str) -> dict[str, Array]:
    """Columns by key, source or shape."""
    owners = {"key": session.keys, "source": session.sources, "shape": session.shapes}
    table = owners[name].table
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
    return columns


def _recent(times: Array, tail: int, half: float = 3.0) -> Array:
    """1 for the interaction before the tail or later, falling with age; 0 for never."""
    age = (tail - 1 - times).astype(np.float32)
    np.maximum(age, 0, out=age)
    return np.asarray((np.float32(half) / (np.float32(half) + age)) * (times != NEVER), dtype=np.float32)


_LOGS = np.log1p(np.arange(8192)).astype(np.float32)


def _log(x: Array) -> Array:
    """log(1 + x) of whole numbers, those above 8,191 taken as 8,191."""
    return np.asarray(_LOGS.take(x.astype(np.int32), mode="clip"))


def segment_constants(session: Session, which: Array | slice) -> dict[str, Array]:
    """Columns by segment that stay as they are."""
    s = session.segments
    place = s["place"][which]
    return {
        "segment_task": s["task"][which],
        "segment_first": place == 0,
        "segment_place": _log(place),
        "segment_symbols": s["symbols"][which],
        "segment_density": s["count"][which] / s["tokens"][which].clip(1).astype(np.float32),
    }


def _segment_columns(session: Session, now: Situation) -> dict[str, Array]:
    """Columns by segment that are the step's."""
    s, used = session.segments, session.records["used_place"]
    near = np.flatnonzero((used != NEVER)[s["record"]])
    ahead = (s["place"][near] - used[s["record"][near]]).astype(np.float32)
    after, before = (np.zeros(s.size, np.float32) for _ in range(2))
    after[near] = np.where(ahead >= 0, 2 / (2 + np.abs(ahead)), 0)
    before[near] = np.where(ahead < 0, 2 / (2 + np.abs(ahead)), 0)
    return {
        "near_after": after,
        "near_before": before,
        "segment_tail_words": now.tail_words,
        "segment_tail_values": now.tail_values,
        "segment_note_words": now.note_words,
    }


def _record_columns(session: Session, now: Situation) -> dict[str, Array]:
    """Columns by record, those of its tool among them."""
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
    shown = np.where(r["note"] > 0, NEVER, r["interaction"])
    return {
        "age_shown": _recent(shown, now.tail),
        "shown_1": shown >= now.tail - 1,
        "shown_3": shown >= now.tail - 3,
        "shown_8": shown >= now.tail - 8,
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
        "record_task": most(session.segments["task"]),
        "tool_same": tool == now.last_tool,
        "tool_values_rate": value_rate[tool],
        "tool_follow": follow[tool],
    }
