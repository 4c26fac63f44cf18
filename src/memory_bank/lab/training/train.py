"""Trains the small model from traces: within each step the values compete; numpy only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from memory_bank.errors import TraceFileError
from memory_bank.lab.traces import Trace, read_traces
from memory_bank.lab.training.fitting import MOST, TOTAL, Part, balance, fit, soft
from memory_bank.lab.training.turns import Turn, turns_of
from memory_bank.selection.candidates import KIND, find_uses
from memory_bank.selection.features import FEATURES, describe
from memory_bank.selection.index import MODEL_FILE, EvidenceIndex
from memory_bank.selection.model import Model, load_model, save_model
from memory_bank.selection.tables import Array
from memory_bank.transcript.content import content_text, read

RECIPE: dict[str, Any] = {
    "ridge": 5000.0,
    "trees": 60,
    "depth": 3,
    "rate": 0.15,
    "columns": 0.2,
    "fits": 3,
    "mix": 0.5,
}
"""`fits`: tree models of different seeds, averaged."""
NEGATIVES = 250


def blank_model() -> Model:
    """A model that gives every value even odds; for collecting rows."""
    zero = np.zeros(len(FEATURES), np.float32)
    none = np.zeros((0, 1), np.float32)
    return Model(zero, 0.0, none.astype(np.int32), none, none, 0.0, 0.0)


def needed_values(index: EvidenceIndex, turn: Turn) -> set[int]:
    """Numbers of the indexed values that the calls of a turn name."""
    ids, kinds = index.session.ids, index.session.values["kind"]
    out: set[int] = set()
    for _, _, arguments, _ in turn.calls:
        uses = find_uses(arguments)
        loose = {
            w for u in uses if u.leaf and u.form not in ids and len(u.form.split()) <= 10 for w in [u.form]
        }
        for use in uses:
            value = ids.get(use.form)
            if value is None:
                continue
            plain = kinds[value] in (KIND["word"], KIND["capital"], KIND["name"])
            if use.leaf or not plain or any(use.form in text for text in loose):
                out.add(value)
    return out


def collect(path: Path, every: int = 1, seed: int = 0) -> dict[str, Array]:
    """Rows of one trace file: x (n, features), y, w (weights), trace (n,) and step (n,)."""
    random = np.random.default_rng(seed)
    rows: list[Array] = []
    labels: list[Array] = []
    weights: list[Array] = []
    owners: list[Array] = []
    steps: list[Array] = []
    step = 0
    for number, trace in enumerate(t for t in read_traces(path) if isinstance(t, Trace)):
        if number % every:
            continue
        for x, y, w in trace_rows(trace, random):
            rows.append(x.astype(np.float16))
            labels.append(y)
            weights.append(w)
            owners.append(np.full(len(y), number))
            steps.append(np.full(len(y), step))
            step += 1
    if not rows:
        rows, labels, weights, owners, steps = (
            [np.zeros((0, len(FEATURES)), np.float16)],
            *([np.zeros(0, np.float32)] for _ in range(4)),
        )
    return {
        "x": np.concatenate(rows),
        "y": np.concatenate(labels),
        "w": np.concatenate(weights),
        "trace": np.concatenate(owners),
        "step": np.concatenate(steps),
    }


def trace_rows(trace: Trace, random: np.random.Generator) -> list[tuple[Array, Array, Array]]:
    """(x, y, w) for every step of a trace that has older values: all needed ones, sampled others."""
    index = EvidenceIndex(blank_model())
    messages = trace.messages
    out = []
    interaction = 0
    for turn in turns_of(messages):
        tail = interaction - 1
        if turn.calls and tail > 0:
            said = [m for m in messages[: turn.position] if read(m, "role") in ("system", "user")]
            anchor = [content_text(read(m, "content")) for m in said]
            rows = step_rows(index, anchor, tail, turn, random)
            if rows is not None:
                out.append(rows)
        index.add_note(interaction=interaction, text=turn.note)
        for trace_id, tool, arguments, output in turn.calls:
            index.add_call(
                trace_id=trace_id, interaction=interaction, tool=tool, arguments=arguments, output=output
            )
        interaction += bool(turn.calls)
    return out


def step_rows(
    index: EvidenceIndex, anchor: list[str], tail: int, turn: Turn, random: np.random.Generator
) -> tuple[Array, Array, Array] | None:
    index._sync_anchor(anchor)
    ids = index.eligible(tail)
    if not len(ids):
        return None
    needed = needed_values(index, turn)
    v = index.session.values
    ids = ids[v["agent"][ids] == 0]
    if not len(ids):
        return None
    y = np.array([i in needed for i in ids.tolist()])
    positive, negative = np.flatnonzero(y), np.flatnonzero(~y)
    take = (
        negative if len(negative) <= NEGATIVES else np.sort(random.choice(negative, NEGATIVES, replace=False))
    )
    chosen = np.concatenate([positive, take])
    x = describe(index.session, index.situation(tail), ids[chosen]).T
    w = np.concatenate(
        [
            np.full(len(positive), min(1.0, MOST / max(1, len(positive)))),
            np.full(len(take), len(negative) / max(1, len(take))),
        ]
    )
    return x, y[chosen].astype(np.float32), w.astype(np.float32)


# -- accepting ----------------------------------------------------------------
def held_out_loss(model: Model, parts: list[Part]) -> float:
    """Mean over sets of the cross entropy per needed value within its step; lower is better."""
    losses = []
    for part in parts:
        try:
            data = balance([part], 1.0, 1.0)
        except ValueError:
            continue
        losses.append(
            soft(data, model.log_odds(np.ascontiguousarray(data.x.T)).astype(np.float64))[1] / TOTAL
        )
    return sum(losses) / len(losses) if losses else float("inf")


def split_traces(part: Part, every: int = 5) -> tuple[Part, Part]:
    """Rows of four in five traces, and of every fifth."""
    held = part[3] % every == every - 1
    first, second = tuple(a[~held] for a in part), tuple(a[held] for a in part)
    return (first[0], first[1], first[2], first[3], first[4]), (
        second[0],
        second[1],
        second[2],
        second[3],
        second[4],
    )


def retrain(files: Sequence[Path], out: Path, against: Path | None = None) -> tuple[float, float, bool]:
    """Train on four of five traces of each file; write ``out`` only if it wins on the fifth ones.

    The figures are the cross entropy per needed value, within its step, on traces that neither fit saw: new,
    present (that of ``against``, the shipped model unless given), and whether the new one won. What is
    written is then fitted on all of them. Raises TraceFileError when the traces need too few older values.
    """
    parts: list[Part] = []
    for path in files:
        rows = collect(path)
        parts.append((rows["x"], rows["y"], rows["w"], rows["trace"], rows["step"]))
    halves = [split_traces(part) for part in parts]
    held = [h for _, h in halves]
    try:
        trial = held_out_loss(fit([t for t, _ in halves], **RECIPE), held)
    except ValueError:
        trial = float("inf")
    present = held_out_loss(load_model(against or MODEL_FILE, FEATURES), held)
    if trial == present == float("inf"):
        raise TraceFileError("the traces hold too few calls that needed older values: give more of them.")
    won = trial < present
    if won:
        notes = {"held_out": round(trial, 4), "sets": [p.name for p in files]}
        save_model(fit(parts, **RECIPE), out, FEATURES, notes)
    return trial, present, won
