"""The chance that the next call copies text from a segment: features of segments for a small logistic model."""

from __future__ import annotations

import numpy as np

from memory_bank.selection.features import CurrentStep, recency
from memory_bank.selection.tables import OWN, Array

COPY_FEATURES = (
    "recent", "age", "arguments", "arguments_recent", "note", "stale", "edited", "latest_copy", "file_recent",
    "used_recently", "used", "named", "length", "lines", "structure", "table", "record_size", "error", "same_tool",
)  # fmt: skip
RECENT = 2
"""Interactions before the tail whose uses count as recent."""


def describe_segments(step: CurrentStep, last: int) -> Array:
    """Return the features of the first `last` segments: float32, shape (features, segments)."""
    t = step.tables
    s, r = t.segments, t.records
    record = s["record"][:last]
    own = r["own"][record]
    recent = recency(r["interaction"], step.tail)[record]
    stale, file = r["stale"][record], r["file"][record]
    arguments = own == OWN["arguments"]
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
            own == OWN["note"],
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
