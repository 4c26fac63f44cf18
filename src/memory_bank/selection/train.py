"""Trains the small model from traces: rows, logistic regression, symmetric trees; numpy only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from memory_bank.errors import TraceFileError
from memory_bank.history.content import content_text, read
from memory_bank.selection.candidates import KIND, find_uses
from memory_bank.selection.features import FEATURES, describe
from memory_bank.selection.index import MODEL_FILE, EvidenceIndex
from memory_bank.selection.model import Model, load_model, save_model
from memory_bank.selection.tables import Array
from memory_bank.selection.turns import Turn, turns_of
from memory_bank.traces import Trace, read_traces

RECIPE: dict[str, Any] = {"ridge": 30.0, "trees": 100, "depth": 3, "rate": 0.1}
NEGATIVES = 250
MOST = 20.0


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


# -- fitting ------------------------------------------------------------------
Part = tuple[Array, Array, Array, Array]


def balance(parts: list[Part], power: float = 0.5) -> tuple[Array, Array, Array]:
    """One matrix from several sets; the weight of a set grows with its positives to `power`."""
    xs, ys, ws = [], [], []
    for x, y, w, _ in parts:
        positives = float((w * y).sum())
        if positives < 3:
            continue
        xs.append(x.astype(np.float32))
        ys.append(y)
        ws.append(w * positives ** (power - 1))
    weights = np.concatenate(ws)
    y = np.concatenate(ys)
    return np.concatenate(xs), y, weights * (float(y.sum()) / float((weights * y).sum()))


def fit_logistic(x: Array, y: Array, w: Array, ridge: float = 3.0, rounds: int = 25) -> tuple[Array, float]:
    """Weighted ridge logistic regression by damped Newton steps on standardised features."""
    mean = (w[:, None] * x).sum(0) / w.sum()
    spread = np.sqrt(np.maximum((w[:, None] * (x - mean) ** 2).sum(0) / w.sum(), 1e-4))
    z = np.concatenate([(x - mean) / spread, np.ones((len(x), 1), np.float32)], axis=1).astype(np.float32)
    beta = np.zeros(z.shape[1])
    beta[-1] = np.log((w * y).sum() / (w * (1 - y)).sum())
    penalty = np.full(z.shape[1], ridge)
    penalty[-1] = 0

    def loss(b: Array) -> float:
        s = z @ b.astype(np.float32)
        return float((w * (np.logaddexp(0, s) - y * s)).sum() + 0.5 * (penalty * b * b).sum())

    best = loss(beta)
    for _ in range(rounds):
        p = 1 / (1 + np.exp(-(z @ beta.astype(np.float32))))
        gradient = z.T @ (w * (p - y)) + penalty * beta
        h = w * p * (1 - p)
        hessian = (z * h[:, None]).T @ z + np.diag(penalty + 1e-6)
        step = np.linalg.solve(hessian.astype(np.float64), gradient.astype(np.float64))
        scale = 1.0
        while scale > 1e-3:
            now = loss(beta - scale * step)
            if now < best:
                break
            scale /= 2
        if scale <= 1e-3 or best - now < 1e-5 * best:
            break
        beta, best = beta - scale * step, now
    weights = beta[:-1] / spread
    return weights.astype(np.float32), float(beta[-1] - (weights * mean).sum())


def fit_trees(
    x: Array,
    y: Array,
    w: Array,
    base: Array,
    trees: int = 60,
    depth: int = 4,
    rate: float = 0.15,
    bins: int = 32,
    ridge: float = 20.0,
    columns: float = 0.5,
    seed: int = 0,
) -> tuple[Array, Array, Array]:
    """Symmetric trees by histograms, second order; start from log-odds `base`.

    Returns feature (trees, depth), threshold (trees, depth), leaf (trees, 2**depth).
    """
    random = np.random.default_rng(seed)
    count = x.shape[1]
    edges, codes = _bins(x, w, bins)
    score = base.astype(np.float64).copy()
    features = np.zeros((trees, depth), np.int32)
    thresholds = np.zeros((trees, depth), np.float32)
    leaves = np.zeros((trees, 2**depth), np.float32)
    rows_all = len(x)
    for tree in range(trees):
        p = 1 / (1 + np.exp(-score))
        g, h = w * (y - p), w * p * (1 - p)
        keep = np.flatnonzero((y > 0) | (random.random(rows_all) < 0.5))
        boost = np.where(y[keep] > 0, 1.0, 2.0)
        gk, hk = g[keep] * boost, h[keep] * boost
        leaf = np.zeros(len(keep), np.int64)
        allowed = np.sort(random.choice(count, max(1, int(count * columns)), replace=False))
        for level in range(depth):
            groups = 2**level
            best = (-1.0, 0, 0)
            for f in allowed.tolist():
                size = len(edges[f]) + 1
                if size < 2:
                    continue
                slot = leaf * size + codes[f][keep]
                gs = np.bincount(slot, weights=gk, minlength=groups * size).reshape(groups, size)
                hs = np.bincount(slot, weights=hk, minlength=groups * size).reshape(groups, size)
                gl, hl = gs.cumsum(1)[:, :-1], hs.cumsum(1)[:, :-1]
                gt, ht = gs.sum(1, keepdims=True), hs.sum(1, keepdims=True)
                gain = (gl**2 / (hl + ridge) + (gt - gl) ** 2 / (ht - hl + ridge) - gt**2 / (ht + ridge)).sum(
                    0
                )
                place = int(gain.argmax())
                if gain[place] > best[0]:
                    best = (float(gain[place]), f, place)
            _, f, place = best
            features[tree, level] = f
            thresholds[tree, level] = edges[f][place] if len(edges[f]) else np.inf
            leaf += (codes[f][keep] > place).astype(np.int64) << level
        gs = np.bincount(leaf, weights=gk, minlength=2**depth)
        hs = np.bincount(leaf, weights=hk, minlength=2**depth)
        leaves[tree] = rate * gs / (hs + ridge)
        index = np.zeros(rows_all, np.int64)
        for level in range(depth):
            index += (x[:, features[tree, level]] > thresholds[tree, level]).astype(np.int64) << level
        score += leaves[tree][index]
    return features, thresholds, leaves


def _bins(x: Array, w: Array, bins: int) -> tuple[list[Array], list[Array]]:
    edges, codes = [], []
    sample = np.random.default_rng(1).choice(len(x), min(len(x), 60_000), replace=False)
    for f in range(x.shape[1]):
        column = x[sample, f]
        unique = np.unique(column)
        if len(unique) <= bins:
            cut = (unique[1:] + unique[:-1]) / 2
        else:
            cut = np.unique(
                np.quantile(unique if len(unique) < 200 else column, np.linspace(0, 1, bins + 1)[1:-1])
            )
        edges.append(cut.astype(np.float32))
        codes.append(np.searchsorted(edges[-1], x[:, f], side="left").astype(np.int16))
    return edges, codes


def fit(
    parts: list[Part],
    mix: float = 0.5,
    trees: int = 60,
    depth: int = 4,
    ridge: float = 3.0,
    power: float = 0.5,
    rate: float = 0.15,
    **rest: Any,
) -> Model:
    """Both halves of the model from the rows of several sets."""
    x, y, w = balance(parts, power)
    weights, bias = fit_logistic(x, y, w, ridge)
    base = float(np.log((w * y).sum() / (w * (1 - y)).sum()))
    if not trees:
        none = np.zeros((0, 1), np.float32)
        return Model(weights, bias, none.astype(np.int32), none, none, base, 0.0)
    feature, threshold, leaf = fit_trees(x, y, w, np.full(len(y), base), trees, depth, rate)
    return Model(weights, bias, feature, threshold, leaf, base, mix)


# -- accepting ----------------------------------------------------------------
def held_out_loss(model: Model, parts: list[Part]) -> float:
    """Mean over sets of the log loss per needed value on rows the model has not seen; lower is better."""
    losses = []
    for x, y, w, _ in parts:
        if float((w * y).sum()) < 3:
            continue
        odds = model.log_odds(np.ascontiguousarray(x.T, dtype=np.float32)).astype(np.float64)
        losses.append(float((w * (np.logaddexp(0, odds) - y * odds)).sum() / (w * y).sum()))
    return sum(losses) / len(losses) if losses else float("inf")


def split_traces(part: Part, every: int = 5) -> tuple[Part, Part]:
    """Rows of four in five traces, and of every fifth."""
    x, y, w, trace = part
    held = trace % every == every - 1
    return (x[~held], y[~held], w[~held], trace[~held]), (x[held], y[held], w[held], trace[held])


def retrain(files: Sequence[Path], out: Path, against: Path | None = None) -> tuple[float, float, bool]:
    """Train on four of five traces of each file; write ``out`` only if it wins on the fifth ones.

    The figures are the log loss per needed value on traces that neither fit saw: new, present (that of
    ``against``, the shipped model unless given), and whether the new one won. What is written is then fitted
    on all of them.
    """
    parts: list[Part] = []
    for path in files:
        rows = collect(path)
        parts.append((rows["x"], rows["y"], rows["w"], rows["trace"]))
    halves = [split_traces(part) for part in parts]
    if not any((y > 0).sum() >= 3 for _, (_, y, _, _) in halves):
        raise TraceFileError("the traces hold too few calls that needed older values: give more of them.")
    held = [h for _, h in halves]
    trial = held_out_loss(fit([t for t, _ in halves], **RECIPE), held)
    present = held_out_loss(load_model(against or MODEL_FILE, FEATURES), held)
    won = trial < present
    if won:
        notes = {"held_out": round(trial, 4), "sets": [p.name for p in files]}
        save_model(fit(parts, **RECIPE), out, FEATURES, notes)
    return trial, present, won
