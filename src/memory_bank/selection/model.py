"""The features of values and of segments, and the model that scores them: will the next call need or copy them?

The model is a logistic one, averaged in log space with small symmetric trees.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from memory_bank.errors import ConfigError
from memory_bank.selection.tables import NEVER, OWN, Array, EvidenceTables, Table
from memory_bank.selection.values import KINDS, key_words, words_of

Owner = Literal["kind", "key", "source", "shape", "like", "record", "segment"]
OWNERS: tuple[Owner, ...] = get_args(Owner)
"""Properties that values have in common, each a column of the values and a table."""


class CurrentStep:
    """The facts of the step for the features: the `tail` (its first interaction), and what stands there.

    Valid until the tables change. `columns` keeps the features of owners that were computed.
    """

    def __init__(self, tables: EvidenceTables, tail: int) -> None:
        self.tables, self.tail = tables, tail
        self.columns: dict[str, Array] = {}
        self._items = tables.parsed[tables.records_before(tail) :]

    @cached_property
    def named_words(self) -> Array:
        """By value: the share of its words in the remarks and arguments of the tail; rare ones count more."""
        t = self.tables
        words: set[str] = set()
        for item in self._items:
            if item.kind != "arguments":
                words.update(*(item.words if item.kind == "note" else [words_of(item.arguments[:2000])]))
        at = np.flatnonzero(t.words.flags(words)[t.value_terms["word"]])
        value = t.value_terms["value"][at]
        share = t.value_terms["weight"][at] / t.values["word_weight"][value]
        return np.bincount(value, weights=share, minlength=t.values.size).astype(np.float32)

    @cached_property
    def last_tool(self) -> int:
        """The tool of the last call in the tail, 0 for none."""
        calls = [item.tool for item in self._items if item.kind == "output"]
        return self.tables.tools.ids[calls[-1]] if calls else 0

    @cached_property
    def expected(self) -> dict[str, Array]:
        """By source, shape and key: uses by the tools that may come next."""
        t = self.tables
        out = {name: np.zeros(t.owners[name].size, np.float32) for name in t.inputs}
        for tool, share in t.next_tool_shares(self.last_tool):
            for name, total in out.items():
                for number, count in t.inputs[name].get(tool, {}).items():
                    total[number] += share * count
        return out


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one table at one step, from which a feature is computed; `rows["name"]` is a column of them."""

    step: CurrentStep
    table: Table
    ids: Array | slice

    def __getitem__(self, column: str) -> Array:
        return self.table[column][self.ids]

    def of_list(self, name: Literal["column", "like"], column: str) -> Array:
        """Return a column of the lists in which these values stand."""
        lists = self.step.tables.columns if name == "column" else self.step.tables.likes
        return np.asarray(lists.table[column][self[name]])


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature of values. What it `depends_on` says which rows `compute` gets, and when:

    - ``value``: the value's own counters; computed for values that changed.
    - ``event``: the age of what happened to the value; computed for values with an event, 0 for others.
    - ``step``: what only this step says; computed for all values.
    - an `Owner`: what many values have in common; computed once for each owner and looked up by values.
    """

    name: str
    depends_on: Literal["value", "event", "step"] | Owner
    compute: Callable[[Rows], Array]


_LOGS = np.log1p(np.arange(8192)).astype(np.float32)


def _log(x: Array) -> Array:
    """log(1 + x) of whole numbers; those above 8,191 count as 8,191."""
    return np.asarray(_LOGS.take(x.astype(np.int32), mode="clip"))


def recency(times: Array, tail: int, half: float = 3.0) -> Array:
    """1 for the interaction before the tail or later, 0.5 for `half` interactions earlier, 0 for NEVER."""
    age = (tail - 1 - times).astype(np.float32)
    np.maximum(age, 0, out=age)
    return np.asarray((np.float32(half) / (np.float32(half) + age)) * (times != NEVER), dtype=np.float32)


def _shown(r: Rows) -> Array:
    """By record: its interaction; NEVER for what the agent wrote."""
    return np.where(r["own"] > 0, NEVER, r["interaction"])


def _kind_features() -> list[Feature]:
    def is_kind(number: int, r: Rows) -> Array:
        return np.asarray(np.arange(r.table.size) == number)

    return [Feature(f"kind_{kind}", "kind", partial(is_kind, n)) for n, kind in enumerate(KINDS)]


def _owner_features(name: Literal["key", "source", "shape"]) -> list[Feature]:
    """How often and how lately values of one key, source or shape were used."""
    return [
        Feature(f"{name}_rate", name, lambda r: (r["used"] + 0.1) / (r["total"] + 5)),
        Feature(f"{name}_odds", name, lambda r: np.log((r["used"] + 0.2) / (r["total"] + 5))),
        Feature(f"{name}_recent", name, lambda r: recency(r["used_at"], r.step.tail)),
        Feature(f"{name}_expected", name, lambda r: r.step.expected[name]),
    ]


def _list_features(name: Literal["column", "like"]) -> list[Feature]:
    """Where a value stands in its list, seen from the value of it that was used last."""

    def ahead(r: Rows) -> Array:
        """Positions after the value used last, NaN if none was."""
        last = r.of_list(name, "last_at")
        return np.where(last == NEVER, np.nan, r[name + "_at"] - last)

    def after(r: Rows) -> Array:
        steps = ahead(r)
        return np.where(steps > 0, 3.0 / (2 + np.maximum(steps, 1)), 0)

    return [
        Feature(f"{name}_size", "value", lambda r: _log(r.of_list(name, "size"))),
        Feature(f"{name}_next", "value", lambda r: ahead(r) == 1),
        Feature(f"{name}_after", "value", after),
        Feature(f"{name}_before", "value", lambda r: ahead(r) <= 0),
    ]


def _key_like(r: Rows) -> Array:
    """By key: the share of its words that stand in names of arguments, or in keys whose values were used."""
    t = r.step.tables
    names = [key_words(str(name)) for name in t.keys.ids]
    used_words = t.argument_words.union(*(names[n] for n in np.flatnonzero(r["used"] > 0).tolist()))
    return np.array([len(used_words.intersection(words)) / max(1, len(words)) for words in names], np.float32)


def _like_rate(r: Rows) -> Array:
    """Used values of the list, against the position of the one used last."""
    last = np.maximum(r.of_list("like", "last_at"), 0)
    return np.asarray(r.of_list("like", "used") / (last + 2).astype(np.float32))


FEATURES: tuple[Feature, ...] = (
    # What the value is
    *_kind_features(),
    Feature("kind_rate", "kind", lambda r: np.log((r["used"] + 0.2) / (r["total"] + 20))),
    Feature("length", "value", lambda r: _log(r["length"])),
    Feature("words", "value", lambda r: r["words"]),
    Feature("digits", "value", lambda r: r["digits"]),
    Feature("cell", "value", lambda r: r["cell"]),
    Feature("overlap", "value", lambda r: r["overlap"]),
    Feature("overlap_note", "step", lambda r: r.step.named_words[r.ids]),
    # How often it was shown and used, and how lately
    Feature("records", "value", lambda r: _log(r["records"])),
    Feature("was_used", "value", lambda r: r["uses"] > 0),
    Feature("uses", "value", lambda r: _log(r["uses"])),
    Feature("leaf_uses", "value", lambda r: _log(r["leaf_uses"])),
    Feature("age_used", "event", lambda r: recency(r["used"], r.step.tail)),
    Feature("used_1", "event", lambda r: r["used"] >= r.step.tail - 1),
    Feature("used_3", "event", lambda r: r["used"] >= r.step.tail - 3),
    Feature(
        "use_rate", "event", lambda r: r["uses"] / (r.step.tail - np.maximum(r["first_use"], -1) + 2).clip(1)
    ),
    # What happened to its neighbours
    Feature("row_uses", "value", lambda r: _log(r["row_uses"])),
    Feature("row_used", "event", lambda r: recency(r["row_used"], r.step.tail)),
    Feature("successor", "event", lambda r: recency(r["successor"], r.step.tail, 1.0) * r["successor_by"]),
    Feature("like_successor", "event", lambda r: recency(r["like_successor"], r.step.tail, 1.0)),
    *_list_features("column"),
    *_list_features("like"),
    Feature("like_used", "value", lambda r: _log(r.of_list("like", "used"))),
    Feature("like_rate", "value", _like_rate),
    Feature("like_recent", "like", lambda r: recency(r["used_at"], r.step.tail)),
    # What has the same key, tool and key, or shape
    *_owner_features("key"),
    Feature("key_like", "key", _key_like),
    Feature("key_empty", "key", lambda r: np.arange(r.table.size) == 0),
    *_owner_features("source"),
    *_owner_features("shape"),
    # The record and the segment that showed it last
    Feature("rank", "value", lambda r: _log(r["rank"])),
    Feature(
        "rank_share", "value", lambda r: r["rank"] / r.step.tables.records["values"][r["record"]].clip(1)
    ),
    Feature("age_shown", "record", lambda r: recency(_shown(r), r.step.tail)),
    Feature("shown_1", "record", lambda r: _shown(r) >= r.step.tail - 1),
    Feature("shown_3", "record", lambda r: _shown(r) >= r.step.tail - 3),
    Feature("shown_8", "record", lambda r: _shown(r) >= r.step.tail - 8),
    Feature("record_values", "record", lambda r: _log(r["values"])),
    Feature(
        "record_latest",
        "record",
        lambda r: r.step.tables.tools.table["last"][r["tool"]] == np.arange(r.table.size),
    ),
    Feature("segment_density", "segment", lambda r: r["count"] / r["tokens"].clip(1).astype(np.float32)),
)
FEATURE_NAMES = tuple(feature.name for feature in FEATURES)
FEATURES_VERSION = 1
"""To be raised when a feature means something else under the same name: older models are then refused."""
_PLACES = {
    scope: [n for n, f in enumerate(FEATURES) if f.depends_on == scope]
    for scope in ("value", "event", "step", *OWNERS)
}


def _computed(feature: Feature, rows: Rows) -> Array:
    """A feature of some rows; what many values have in common is computed once a step."""
    cache = rows.step.columns if feature.depends_on in OWNERS else {}
    if feature.name not in cache:
        cache[feature.name] = np.asarray(feature.compute(rows), dtype=np.float32)
    return cache[feature.name]


def describe(step: CurrentStep, ids: Array) -> Array:
    """Return the features of some values: float32, shape (features, values)."""
    x = np.zeros((len(FEATURES), len(ids)), dtype=np.float32)
    t = step.tables
    for n, feature in enumerate(FEATURES):
        owner = feature.depends_on
        if owner in t.owners:
            x[n] = _computed(feature, Rows(step, t.owners[owner], slice(None)))[t.values[owner][ids]]
        else:
            x[n] = _computed(feature, Rows(step, t.values, ids))
    return x


class LinearScores:
    """The linear score of all values of a growing session: ``weights @ describe(...)``, incrementally.

    The part of a score that depends on the value alone is cached until the value changes; a part that many values
    share is summed once for each owner and looked up.
    """

    def __init__(self, weights: Array) -> None:
        self._weights = weights.astype(np.float32)
        self._by_value = Table(score=("f4", 0.0))

    def score(self, step: CurrentStep) -> Array:
        """Return a score for every value, float32, shape (values,)."""
        t = step.tables
        self._by_value.grow(t.values.size - self._by_value.size)
        changed = t.pop_changed_values()
        if len(changed):
            self._by_value["score"][changed] = self._sum("value", Rows(step, t.values, changed))
        total = self._by_value["score"] + self._sum("step", Rows(step, t.values, slice(None)))
        for owner in OWNERS if t.values.size else ():
            table = t.owners[owner]
            if table.size:
                total += self._sum(owner, Rows(step, table, slice(None))).take(t.values[owner], mode="clip")
        events = t.eventful["value"]
        if len(events):
            total[events] += self._sum("event", Rows(step, t.values, events))
        return np.asarray(total)

    def _sum(self, scope: str, rows: Rows) -> Array:
        total: Array = np.zeros(1, dtype=np.float32)
        for n in _PLACES[scope]:
            total = total + self._weights[n] * _computed(FEATURES[n], rows)
        return total


# What is known of a segment, for the chance that the next call copies text from it.
COPY_FEATURES = (
    "recent", "age", "arguments", "arguments_recent", "note", "stale", "edited", "latest_copy", "file_recent",
    "used_recently", "used", "named", "length", "lines", "structure", "table", "record_size", "error", "same_tool",
)  # fmt: skip
RECENT = 2  # interactions before the tail whose uses count as recent


def describe_segments(step: CurrentStep, last: int) -> Array:
    """Return the features of the first `last` segments: float32, shape (features, segments)."""
    t = step.tables
    s, r = t.segments, t.records
    record = s["record"][:last]
    kinds = r["own"][record]
    recent = recency(r["interaction"], step.tail)[record]
    stale, file = r["stale"][record], r["file"][record]
    arguments = kinds == OWN["arguments"]
    v = t.values
    used = v["uses"] - v["agent"] > 0
    lately = used & (v["used"] >= step.tail - RECENT)
    last_tool = step.last_tool
    return np.stack(
        [
            recent,
            np.log1p(np.maximum(step.tail - r["interaction"], 0))[record],
            arguments,
            arguments * recent,
            kinds == OWN["note"],
            stale == 1,
            (stale > 0) & (stale < 1),
            (file > 0) & (stale < 1),
            np.where(file > 0, recency(t.files.table["last"], step.tail)[file], 0),
            np.log1p(t.sum_by_segment(lately.astype(np.float32), last)),
            np.log1p(t.sum_by_segment(used.astype(np.float32), last)),
            np.log1p(t.sum_by_segment(step.named_words, last)),
            np.log1p(s["chars"][:last]),
            np.log1p(s["lines"][:last]),
            s["structure"][:last],
            s["block"][:last] > 0,
            np.log1p(r["segments"])[record],
            r["error"][record],
            (r["tool"] == last_tool)[record] if last_tool else np.zeros(last),
        ]
    ).astype(np.float32)


MODEL_FILE = Path(__file__).with_name("model.json")
"""The model that ships; `python -m benchmarks.train_held_out` writes it."""


@dataclass(frozen=True, slots=True)
class Model:
    """weights (features,), bias; trees: feature and threshold (trees, depth), leaf (trees, 2**depth).

    `copied`: weights of COPY_FEATURES, then a bias; empty: nothing is expected to be copied.
    `mix` is the share of the trees. Features are used as they come, in the order of `FEATURES`.
    """

    weights: Array
    bias: float
    feature: Array
    threshold: Array
    leaf: Array
    base: float
    mix: float
    copied: Array = field(default_factory=lambda: np.zeros(0, np.float32))

    def boosted(self, x: Array) -> Array:
        """Return the log-odds of the trees; x (features, n), result (n,)."""
        trees, depth = self.feature.shape
        if not len(self.leaf):
            return np.full(x.shape[1], self.base, dtype=np.float32)
        index = np.zeros((trees, x.shape[1]), dtype=np.int32)
        for level in range(depth):
            above = x[self.feature[:, level]] > self.threshold[:, level, None]
            index += np.multiply(above, np.int32(1 << level), dtype=np.int32)
        index += (np.arange(trees, dtype=np.int32) * self.leaf.shape[1])[:, None]
        return np.asarray(self.leaf.ravel().take(index).sum(axis=0) + np.float32(self.base))

    def copy_chance(self, x: Array) -> Array:
        """Return the probability that the next call copies from a segment; x (copy features, n), result (n,)."""
        if not len(self.copied):
            return np.zeros(x.shape[1], np.float32)
        odds = self.copied[:-1] @ x + self.copied[-1]
        return np.asarray(1 / (1 + np.exp(-np.clip(odds, -30, 30))))


def load_model(path: Path = MODEL_FILE) -> Model:
    """Read a model file; ConfigError if it is unreadable or was trained on other features."""
    name = f"the evidence model {path}"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        names, copied = list(data["features"]), data.get("copied", {"features": [], "weights": []})
        is_known = sorted(names) == sorted(FEATURE_NAMES) and data.get("version", 1) == FEATURES_VERSION
        if not is_known or tuple(copied["features"]) not in ((), COPY_FEATURES):
            raise ConfigError(f"{name} was trained on other features: train it again.")
        place = np.array([FEATURE_NAMES.index(n) for n in names], np.int32)  # a file may order them freely
        weights = np.zeros(len(names), np.float32)
        weights[place] = data["weights"]
        return Model(
            weights,
            float(data["bias"]),
            place[np.array(data["feature"], np.int32).reshape(len(data["feature"]), -1)],
            np.array(data["threshold"], np.float32),
            np.array(data["leaf"], np.float32),
            float(data["base"]),
            float(data["mix"]),
            np.array(copied["weights"], np.float32),
        )
    except ConfigError:
        raise
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as e:
        raise ConfigError(f"{name} cannot be read ({type(e).__name__}): train it again.") from e
