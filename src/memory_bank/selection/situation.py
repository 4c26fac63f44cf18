"""What one step adds to what is known: how task, tail and the tools' habits meet each segment and value."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from memory_bank.selection.candidates import words_of
from memory_bank.selection.session import Session
from memory_bank.selection.tables import Array


@dataclass(frozen=True, slots=True)
class Situation:
    """What the step at hand adds: where the tail begins, and per segment how it meets task and tail.

    The arrays have one float per segment of the session; `value_…` one per value; `expected` holds,
    by source, shape, key and argument name, what the tools that may come next took before.
    """

    tail: int
    last_tool: int
    tail_words: Array
    tail_values: Array
    note_words: Array
    value_note: Array
    value_tail: Array
    expected: tuple[Array, Array, Array, Array]
    columns: dict[str, dict[str, Array]] = field(default_factory=dict)


def look(s: Session, tail: int) -> Situation:
    """What the step whose tail begins at an interaction adds to the features."""
    word, v = s.terms["word"], s.values
    said = np.zeros(s.words.table.size, dtype=bool)
    seen = np.zeros(s.words.table.size, dtype=bool)
    last_tool = 0
    for record in range(int(np.searchsorted(s.records["interaction"], tail)), s.records.size):
        item = s.prepared[record]
        end = s.first_term[record + 1] if record + 1 < s.records.size else s.terms.size
        (said if item.note else seen)[word[s.first_term[record] : end]] = True
        if not item.note:
            last_tool = s.tools.ids[item.tool]
            known = [s.words.ids.get(text) for text in words_of(item.arguments[:2000])]
            said[[number for number in known if number is not None]] = True
    joined = (v["seen"] >= tail) & ~v["visible"]
    pairs = np.flatnonzero(joined[s.pairs["value"]])
    weights = 1.0 / v["records"][s.pairs["value"][pairs]].clip(1)
    in_values = sums(s, s.pairs["segment"][pairs], weights)
    flagged = np.flatnonzero((said | seen)[word])
    found, owners, weights = word[flagged], s.terms["segment"][flagged], s.terms["weight"][flagged]
    in_notes, in_tail = (
        sums(s, owners[on], weights[on]) for on in (np.flatnonzero(flag[found]) for flag in (said, seen))
    )
    value_said, value_seen = _by_value(s, said, seen)
    return Situation(
        tail,
        last_tool,
        in_tail,
        in_values,
        in_notes,
        value_said,
        value_seen,
        _expected(s, last_tool),
    )


def sums(s: Session, segments: Array, weights: Array) -> Array:
    """log(1 + sum of the weights) by segment."""
    total = np.bincount(segments, weights=weights, minlength=s.segments.size)
    out = np.zeros(len(total), np.float32)
    at = np.flatnonzero(total)
    out[at] = np.log1p(total[at])
    return out


def _by_value(s: Session, *flags: Array) -> list[Array]:
    """Share of each value's words (rare ones count more) that are flagged."""
    value, word, weight = s.value_terms["value"], s.value_terms["word"], s.value_terms["weight"]
    at = np.flatnonzero(np.logical_or.reduce(flags)[word])
    value, word, weight = value[at], word[at], weight[at]
    share = weight / s.values["word_weight"][value]
    out = []
    for flag in flags:
        on = np.flatnonzero(flag[word])
        out.append(np.bincount(value[on], weights=share[on], minlength=s.values.size).astype(np.float32))
    return out


def _expected(s: Session, last_tool: int) -> tuple[Array, Array, Array, Array]:
    """How often the tools that may come next took a value: by source, shape, key, argument name."""
    sizes = (s.sources.table.size, s.shapes.table.size, s.keys.table.size, s.keys.table.size)
    out = tuple(np.zeros(size, dtype=np.float32) for size in sizes)
    for tool, share in s.expected(last_tool):
        for total, table in zip(
            out, (s.tool_sources, s.tool_shapes, s.tool_keys, s.tool_arguments), strict=False
        ):
            for number, count in table.get(tool, {}).items():
                total[number] += share * count
    return out[0], out[1], out[2], out[3]
