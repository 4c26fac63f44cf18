"""The features of a value, numbers that say whether the next call may need it, and their linear score."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal

import numpy as np

from memory_bank.selection.candidates import KINDS, words_of
from memory_bank.selection.tables import NEVER, Array, EvidenceTables, Table, ValueLists

Owner = Literal["kind", "key", "source", "shape", "column", "like", "first", "record", "segment"]
OWNERS: tuple[Owner, ...] = ("segment", "kind", "key", "source", "shape", "column", "like", "first")
"""What values have in common, each a column of the values. The record is that of the segment."""


class CurrentStep:
    """What features know of the step: the `tail` (its first interaction), and what stands there.

    Valid until the tables change. `columns` keeps the features of owners that were computed.
    """

    def __init__(self, tables: EvidenceTables, tail: int) -> None:
        self.tables, self.tail = tables, tail
        self.columns: dict[str, Array] = {}
        items = tables.parsed[tables.records_before(tail) :]
        self.calls = [item for item in items if not item.note]
        self.last_tool = tables.tools.ids[self.calls[-1].tool] if self.calls else 0

    @cached_property
    def _tail_flags(self) -> tuple[Array, Array]:
        """By word: whether it stands in a note or the arguments of the tail; in an output of the tail."""
        t = self.tables
        word = t.terms["word"]
        in_calls = t.words.flags(w for item in self.calls for w in words_of(item.arguments[:2000]))
        in_output = np.zeros_like(in_calls)
        first = t.records_before(self.tail)
        for record, item in enumerate(t.parsed[first:], first):
            end = t.first_term[record + 1] if record + 1 < t.records.size else t.terms.size
            (in_calls if item.note else in_output)[word[t.first_term[record] : end]] = True
        return in_calls, in_output

    @cached_property
    def segment_words(self) -> tuple[Array, Array]:
        """By segment: the weight of its words in notes or arguments of the tail, and in its outputs."""
        t = self.tables
        word, segment, weight = t.terms["word"], t.terms["segment"], t.terms["weight"]
        said, shown = self._tail_flags
        at = np.flatnonzero((said | shown)[word])
        found = [at[flag[word[at]]] for flag in (said, shown)]
        return t.log_sums(segment[found[0]], weight[found[0]]), t.log_sums(
            segment[found[1]], weight[found[1]]
        )

    @cached_property
    def segment_values(self) -> Array:
        """By segment: its values that the tail shows too; those of many records count less."""
        t = self.tables
        shown = (t.values["seen"] >= self.tail) & ~t.values["visible"]
        pairs = np.flatnonzero(shown[t.pairs["value"]])
        return t.log_sums(
            t.pairs["segment"][pairs], 1.0 / t.values["records"][t.pairs["value"][pairs]].clip(1)
        )

    @cached_property
    def value_words(self) -> tuple[Array, Array]:
        """By value: the share of its words in notes or arguments of the tail, and in its outputs."""
        t = self.tables
        said, shown = self._tail_flags
        value, word, weight = t.value_terms["value"], t.value_terms["word"], t.value_terms["weight"]
        at = np.flatnonzero((said | shown)[word])
        value, word, weight = value[at], word[at], weight[at]
        share = weight / t.values["word_weight"][value]
        on = (np.flatnonzero(flag[word]) for flag in (said, shown))
        first, second = (np.bincount(value[i], weights=share[i], minlength=t.values.size) for i in on)
        return first.astype(np.float32), second.astype(np.float32)

    @cached_property
    def expected(self) -> dict[str, Array]:
        """By source, shape, key and argument name: uses by the tools that may come next."""
        t = self.tables
        sizes = {"source": t.sources, "shape": t.shapes, "key": t.keys, "argument": t.keys}
        out = {name: np.zeros(owners.table.size, np.float32) for name, owners in sizes.items()}
        for tool, share in t.next_tool_shares(self.last_tool):
            for name, total in out.items():
                for number, count in t.inputs[name].get(tool, {}).items():
                    total[number] += share * count
        return out

    @cached_property
    def tool_follow(self) -> Array:
        """By tool: share of the calls that followed the last tool and were supplied by it."""
        counts = np.zeros(self.tables.tools.table.size, np.float32)
        total = 0.0
        for (before, origin), number in self.tables.follow.items():
            if before == self.last_tool:
                counts[origin] = number
                total += number
        return np.asarray((counts + 0.5) / (total + 0.5 * len(counts)))

    @cached_property
    def distance(self) -> Array:
        """By segment: its distance from the segment of its record that was used last, or NaN."""
        t = self.tables
        used = t.records["used_place"][t.segments["record"]]
        ahead = (t.segments["place"] - used).astype(np.float32)
        ahead[used == NEVER] = np.nan
        return ahead

    def most_of_record(self, by_segment: Array) -> Array:
        """By record: the largest figure of its segments."""
        record = self.tables.segments["record"]
        out = np.zeros(self.tables.records.size, np.float32)
        if len(record):
            first = np.flatnonzero(np.diff(record, prepend=-1))
            out[record[first]] = np.maximum.reduceat(by_segment, first)
        return out


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one table at one step, from which a feature is computed; `rows["name"]` is a column of them."""

    step: CurrentStep
    table: Table
    ids: Array | slice

    def __getitem__(self, column: str) -> Array:
        return self.table[column][self.ids]

    @property
    def tail(self) -> int:
        return self.step.tail

    @property
    def tables(self) -> EvidenceTables:
        return self.step.tables


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature of values. What it `depends_on` says which rows `compute` gets, and when:

    - ``value``: the value's own counters; computed for values that changed.
    - ``event``: the age of what happened to the value; computed for values with an event, 0 for others.
    - ``step``: what only this step says; computed for all values.
    - ``session``: one number a step.
    - ``segment text``: the value's segment, unless the step matters; computed for segments that changed.
    - an `Owner`: what many values have in common; computed once for each owner and looked up by values.
    """

    name: str
    depends_on: Literal["value", "event", "step", "session", "segment text"] | Owner
    compute: Callable[[Rows], Array]


_LOGS = np.log1p(np.arange(8192)).astype(np.float32)


def _log(x: Array) -> Array:
    """log(1 + x) of whole numbers; those above 8,191 count as 8,191."""
    return np.asarray(_LOGS.take(x.astype(np.int32), mode="clip"))


def _recent(times: Array, tail: int, half: float = 3.0) -> Array:
    """1 for the interaction before the tail or later, 0.5 for `half` interactions earlier, 0 for NEVER."""
    age = (tail - 1 - times).astype(np.float32)
    np.maximum(age, 0, out=age)
    return np.asarray((np.float32(half) / (np.float32(half) + age)) * (times != NEVER), dtype=np.float32)


def _shown(r: Rows) -> Array:
    """By record: its interaction; NEVER for notes."""
    return np.where(r["note"] > 0, NEVER, r["interaction"])


def _by_tool(r: Rows, by_tool: Array) -> Array:
    return np.asarray(by_tool[r["tool"]])


def _kind_features() -> list[Feature]:
    def is_kind(number: int, r: Rows) -> Array:
        return np.asarray(r["kind"] == number)

    return [Feature(f"kind_{kind}", "value", partial(is_kind, n)) for n, kind in enumerate(KINDS)]


def _owner_features(name: Literal["key", "source", "shape"]) -> list[Feature]:
    """How often and how lately values of one key, source or shape were used."""
    return [
        Feature(f"{name}_used", name, lambda r: _log(r["used"])),
        Feature(f"{name}_rate", name, lambda r: (r["used"] + 0.1) / (r["total"] + 5)),
        Feature(f"{name}_recent", name, lambda r: _recent(r["used_at"], r.tail)),
        Feature(f"{name}_expected", name, lambda r: r.step.expected[name]),
    ]


def _list_features(name: Literal["column", "like"]) -> list[Feature]:
    """Where a value stands in its list, seen from the value of it that was used last."""

    def lists(r: Rows) -> ValueLists:
        return r.tables.columns if name == "column" else r.tables.likes

    def of_list(r: Rows, column: str) -> Array:
        return lists(r).table[column][r[name]]

    def ahead(r: Rows) -> Array:
        """Positions after the value used last, NaN if none was."""
        last = of_list(r, "last_at")
        return np.where(last == NEVER, np.nan, r[name + "_at"] - last)

    def rate(r: Rows) -> Array:
        return of_list(r, "used") / (np.maximum(of_list(r, "last_at"), 0) + 2).astype(np.float32)

    def after(r: Rows) -> Array:
        steps = ahead(r)
        return np.where(steps > 0, 3.0 / (2 + np.maximum(steps, 1)), 0)

    return [
        Feature(f"{name}_size", "value", lambda r: _log(of_list(r, "size"))),
        Feature(f"{name}_used", "value", lambda r: _log(of_list(r, "used"))),
        Feature(f"{name}_rate", "value", rate),
        Feature(f"{name}_next", "value", lambda r: ahead(r) == 1),
        Feature(f"{name}_after", "value", after),
        Feature(f"{name}_before", "value", lambda r: ahead(r) <= 0),
        Feature(f"{name}_recent", name, lambda r: _recent(lists(r).table["used_at"], r.tail)),
    ]


def _near(r: Rows, after: bool) -> Array:
    ahead = r.step.distance
    side = ahead >= 0 if after else ahead < 0
    return np.where(side, 2 / (2 + np.abs(ahead)), 0)


FEATURES: tuple[Feature, ...] = (
    # What the value is
    Feature("kind_rate", "kind", lambda r: np.log((r["used"] + 0.2) / (r["total"] + 20))),
    Feature("length", "value", lambda r: _log(r["length"])),
    Feature("words", "value", lambda r: r["words"]),
    Feature("digits", "value", lambda r: r["digits"]),
    Feature("cell", "value", lambda r: r["cell"]),
    Feature("overlap", "value", lambda r: r["overlap"]),
    # How often it was shown and used, and how lately
    Feature("records", "value", lambda r: _log(r["records"])),
    Feature("was_used", "value", lambda r: r["uses"] > 0),
    Feature("uses", "value", lambda r: _log(r["uses"])),
    Feature("leaf_uses", "value", lambda r: _log(r["leaf_uses"])),
    Feature("notes", "value", lambda r: _log(r["notes"])),
    Feature("row_uses", "value", lambda r: _log(r["row_uses"])),
    Feature("rank", "value", lambda r: _log(r["rank"])),
    Feature(
        "rank_share",
        "value",
        lambda r: r["rank"].astype(np.float32) / np.maximum(1, r.tables.records["values"])[r["record"]],
    ),
    Feature("age_first", "first", lambda r: _recent(np.arange(r.tables.interactions + 1), r.tail, 6.0)),
    Feature("age_used", "event", lambda r: _recent(r["used"], r.tail)),
    Feature("used_1", "event", lambda r: r["used"] >= r.tail - 1),
    Feature("used_3", "event", lambda r: r["used"] >= r.tail - 3),
    Feature("age_noted", "event", lambda r: _recent(r["noted"], r.tail)),
    Feature("noted_1", "event", lambda r: r["noted"] >= r.tail - 1),
    # What happened to its neighbours
    Feature("successor", "event", lambda r: _recent(r["successor"], r.tail, 1.0) * r["successor_by"]),
    Feature("like_successor", "event", lambda r: _recent(r["like_successor"], r.tail, 1.0)),
    Feature("row_used", "event", lambda r: _recent(r["row_used"], r.tail)),
    Feature("after_used", "event", lambda r: _recent(r["after_used"], r.tail)),
    Feature("use_rate", "event", lambda r: r["uses"] / (r.tail - np.maximum(r["first_use"], -1) + 2).clip(1)),
    *_list_features("column"),
    *_list_features("like"),
    *_kind_features(),
    # What has the same key, tool and key, or shape
    *_owner_features("key"),
    Feature("argument_expected", "key", lambda r: r.step.expected["argument"]),
    Feature("key_overlap", "key", lambda r: r.tables.key_overlap()),
    Feature("key_argument", "key", lambda r: r["argument"] > 0),
    Feature("key_empty", "key", lambda r: np.arange(r.table.size) == 0),
    *_owner_features("source"),
    *_owner_features("shape"),
    # The record that showed it last, and the record's tool
    Feature("age_shown", "record", lambda r: _recent(_shown(r), r.tail)),
    Feature("shown_1", "record", lambda r: _shown(r) >= r.tail - 1),
    Feature("shown_3", "record", lambda r: _shown(r) >= r.tail - 3),
    Feature("shown_8", "record", lambda r: _shown(r) >= r.tail - 8),
    Feature("record_values", "record", lambda r: _log(r["values"])),
    Feature("record_size", "record", lambda r: np.log1p(r["size"])),
    Feature("record_ordinal", "record", lambda r: _log(r["ordinal"])),
    Feature("record_note", "record", lambda r: r["note"]),
    Feature("record_supplied", "record", lambda r: _log(r["supplied"])),
    Feature("record_supplied_rate", "record", lambda r: r["supplied"] / (r["values"] + 3)),
    Feature("record_supplied_recent", "record", lambda r: _recent(r["supplied_at"], r.tail)),
    Feature("record_echo", "record", lambda r: r["echo"]),
    Feature(
        "tool_rate",
        "record",
        lambda r: _by_tool(
            r, (r.tables.tools.table["supplied"] + 0.5) / (r.tables.tools.table["records"] + 2)
        ),
    ),
    Feature(
        "tool_recent", "record", lambda r: _by_tool(r, _recent(r.tables.tools.table["supplied_at"], r.tail))
    ),
    Feature(
        "record_latest",
        "record",
        lambda r: _by_tool(r, r.tables.tools.table["records"]) - r["ordinal"] <= 1,
    ),
    Feature(
        "record_tail_values",
        "record",
        lambda r: np.log1p(
            np.bincount(r.tables.segments["record"], r.step.segment_values, minlength=r.table.size)
        ),
    ),
    Feature("record_note_words", "record", lambda r: r.step.most_of_record(r.step.segment_words[0])),
    Feature("record_task", "record", lambda r: r.step.most_of_record(r.tables.segments["task"])),
    Feature("tool_same", "record", lambda r: r["tool"] == r.step.last_tool),
    Feature(
        "tool_values_rate",
        "record",
        lambda r: _by_tool(
            r, np.log((r.tables.tools.table["used_values"] + 0.5) / (r.tables.tools.table["records"] + 1))
        ),
    ),
    Feature("tool_follow", "record", lambda r: _by_tool(r, r.step.tool_follow)),
    # The segment that showed it last
    Feature("segment_task", "segment text", lambda r: r["task"]),
    Feature("segment_first", "segment text", lambda r: r["place"] == 0),
    Feature("segment_place", "segment text", lambda r: _log(r["place"])),
    Feature("segment_symbols", "segment text", lambda r: r["symbols"]),
    Feature(
        "segment_density",
        "segment text",
        lambda r: r["count"] / r["tokens"].clip(1).astype(np.float32),
    ),
    Feature("near_after", "segment", lambda r: _near(r, True)),
    Feature("near_before", "segment", lambda r: _near(r, False)),
    Feature("segment_tail_words", "segment", lambda r: r.step.segment_words[1]),
    Feature("segment_tail_values", "segment", lambda r: r.step.segment_values),
    Feature("segment_note_words", "segment", lambda r: r.step.segment_words[0]),
    # The step
    Feature("overlap_note", "step", lambda r: r.step.value_words[0][r.ids]),
    Feature("overlap_tail", "step", lambda r: r.step.value_words[1][r.ids]),
    Feature("history", "session", lambda r: np.log1p(r.tables.values.size)),
)
FEATURE_NAMES = tuple(feature.name for feature in FEATURES)
_PLACES = {
    scope: [n for n, f in enumerate(FEATURES) if f.depends_on == scope]
    for scope in ("value", "event", "step", "session", "segment text", "record", *OWNERS)
}


def _owner_column(feature: Feature, rows: Rows) -> Array:
    """Return a feature by owner; computed once a step."""
    column = rows.step.columns.get(feature.name)
    if column is None:
        column = rows.step.columns[feature.name] = np.asarray(feature.compute(rows), dtype=np.float32)
    return column


def describe(step: CurrentStep, ids: Array) -> Array:
    """Return the features of some values: float32, shape (features, values)."""
    x = np.zeros((len(FEATURES), len(ids)), dtype=np.float32)
    t, values = step.tables, step.tables.values
    segments = Rows(step, t.segments, values["segment"][ids])
    for n, feature in enumerate(FEATURES):
        if feature.depends_on == "segment text":
            x[n] = feature.compute(segments)
        elif feature.depends_on in ("value", "event", "step", "session"):
            x[n] = feature.compute(Rows(step, values, ids))
        else:
            owner = feature.depends_on
            x[n] = _owner_column(feature, Rows(step, t.owners[owner], slice(None)))[values[owner][ids]]
    return x


class LinearScores:
    """The linear score of all values of a growing session: ``weights @ describe(...)``, incrementally.

    The part of a value that depends on itself is kept until it changes; a part that many values share is
    summed once by owner and looked up.
    """

    def __init__(self, weights: Array) -> None:
        self._weights = weights.astype(np.float32)
        self._by_value = Table(score=("f4", 0.0))
        self._by_segment = Table(score=("f4", 0.0))

    def score(self, step: CurrentStep) -> Array:
        """Return a score for every value, float32, shape (values,)."""
        t = step.tables
        self._by_value.grow(t.values.size - self._by_value.size)
        changed = t.pop_changed_values()
        if len(changed):
            self._by_value["score"][changed] = self._sum("value", Rows(step, t.values, changed))
        every = Rows(step, t.values, slice(None))
        total = self._sum("session", every, self._by_value["score"])
        parts = {owner: self._sum(owner, Rows(step, t.owners[owner], slice(None))) for owner in OWNERS}
        if t.segments.size:
            first = t.pop_changed_segment()
            self._by_segment.grow(t.segments.size - self._by_segment.size)
            if first < self._by_segment.size:
                new = Rows(step, t.segments, slice(first, None))
                self._by_segment["score"][first:] = self._sum("segment text", new)
            by_record = self._sum("record", Rows(step, t.records, slice(None)))[t.segments["record"]]
            parts["segment"] = parts["segment"] + self._by_segment["score"] + by_record
            for owner, part in parts.items():
                if len(part):
                    total += part.take(t.values[owner], mode="clip")
        total = self._sum("step", every, total)
        events = t.eventful["value"]
        if len(events):
            total[events] += self._sum("event", Rows(step, t.values, events))
        return np.asarray(total)

    def _sum(self, scope: str, rows: Rows, total: Array | np.float32 = np.float32(0)) -> Array:
        """Return `total` and the weighted features of a scope."""
        for n in _PLACES[scope]:
            feature = FEATURES[n]
            if scope in OWNERS or scope == "record":
                column = _owner_column(feature, rows)
            else:
                column = np.asarray(feature.compute(rows), dtype=np.float32)
            total = total + self._weights[n] * column
        return np.asarray(total)
