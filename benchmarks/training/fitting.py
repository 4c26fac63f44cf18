"""Fits the models of the evidence selection: of values, those of one step compete, and of text that calls copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from memory_bank.selection.model import Model
from memory_bank.selection.tables import Array

TOTAL = 3000.0
"""Sum of the weights of all steps."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the shipped model is fitted; `fits`: tree models of different seeds, averaged."""

    ridge: float = 5000.0
    trees: int = 60
    depth: int = 3
    rate: float = 0.15
    columns: float = 0.2
    fits: int = 3
    mix: float = 0.5


@dataclass(frozen=True, slots=True)
class Samples:
    """Features `x` (n, features) of values or segments, needed or not `y`, weight `w`, trace and step."""

    x: Array
    y: Array
    w: Array
    trace: Array
    step: Array

    def take(self, rows: Array) -> Samples:
        """Return some of the samples."""
        return Samples(self.x[rows], self.y[rows], self.w[rows], self.trace[rows], self.step[rows])

    @classmethod
    def of(cls, steps: Sequence[tuple[Array, Array, Array]], traces: Sequence[int], features: int) -> Samples:
        """Put together the (x, y, w) of several steps; `traces` are the numbers of their traces."""
        sizes = [len(y) for _, y, _ in steps]
        none = np.zeros((0, features)), np.zeros(0), np.zeros(0)
        x, y, w = (np.concatenate(arrays) for arrays in zip(*(steps or [none]), strict=True))
        owners = np.repeat(np.array(traces, np.int64), sizes)
        return cls(x, y > 0, w.astype(np.float32), owners, np.repeat(np.arange(len(steps)), sizes))


@dataclass(frozen=True, slots=True)
class TrainingSteps:
    """Samples of several files, sorted by step; `target` by row and `share` by step each add up to TOTAL."""

    x: Array
    y: Array
    w: Array
    step: Array
    start: Array
    target: Array
    share: Array


def balance(samples: Sequence[Samples], power: float = 0.5, trace_power: float = 0.85) -> TrainingSteps:
    """The steps that need something, weighted by file and trace to these powers. ValueError if there are none."""
    parts: list[tuple[Array, ...]] = []
    first = 0
    for s in samples:
        _, number = np.unique(s.step, return_inverse=True)
        needed = np.bincount(number, weights=s.y)
        others = np.bincount(number, weights=~s.y)
        rows = np.flatnonzero(((needed > 0) & (others > 0))[number])
        if s.y[rows].sum() < 3:
            continue
        order = rows[np.argsort(number[rows], kind="stable")]
        _, number = np.unique(number[order], return_inverse=True)
        y = s.y[order]
        counts = np.where(y, s.w[order], 0)
        needed = np.bincount(number, weights=counts)
        share = np.minimum(needed, 20.0)  # of one step count in full
        total = share.sum()
        owners = s.trace[order][np.searchsorted(number, np.arange(len(needed)))]
        _, owner = np.unique(owners, return_inverse=True)
        share = share * np.bincount(owner, weights=share)[owner] ** (trace_power - 1)
        share *= total**power / share.sum()
        w, target = np.where(y, 1, s.w[order]), counts * (share / needed)[number]
        parts.append((s.x[order].astype(np.float32), y, w, number + first, target, share))
        first += len(needed)
    if not parts:
        raise ValueError("no step of the traces needs an older value")
    x, y, w, step, target, share = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    scale = TOTAL / share.sum()
    return TrainingSteps(
        x,
        y,
        w.astype(np.float32),
        step,
        np.searchsorted(step, np.arange(first)),
        (target * scale).astype(np.float32),
        (share * scale).astype(np.float32),
    )


def log_odds(model: Model, x: Array) -> Array:
    """Return the log-odds that the next call needs a value; x (features, n), result (n,)."""
    linear = np.full(x.shape[1], model.bias, dtype=np.float32)
    for weight, row in zip(model.weights, x, strict=False):
        linear += weight * row
    if model.mix <= 0 or not len(model.feature):
        return linear
    return np.asarray((1 - model.mix) * linear + model.mix * model.boosted(x))


def held_out_loss(model: Model, samples: Sequence[Samples]) -> float:
    """Return the mean over files of the cross entropy per needed value within its step; lower is better."""
    losses = []
    for part in samples:
        try:
            data = balance([part], 1.0, 1.0)
        except ValueError:
            continue
        score = log_odds(model, np.ascontiguousarray(data.x.T)).astype(np.float64)
        losses.append(soft(data, score)[1] / TOTAL)
    return sum(losses) / len(losses) if losses else float("inf")


def soft(data: TrainingSteps, score: Array) -> tuple[Array, float]:
    """Return the softmax within each step (rows count by their weight) and the cross entropy."""
    top = np.maximum.reduceat(score, data.start)
    e = data.w * np.exp(score - top[data.step])
    total = np.add.reduceat(e, data.start)
    entropy = (data.share * (np.log(total) + top)).sum() - (data.target * score).sum()
    return e / total[data.step], float(entropy)


def fit_linear(data: TrainingSteps, ridge: float) -> Array:
    """Conditional-logit weights with a ridge, by damped Newton steps."""
    mean = data.x.mean(0)
    spread = np.sqrt(np.maximum(((data.x - mean) ** 2).mean(0), 1e-4))
    z = ((data.x - mean) / spread).astype(np.float32)
    beta = np.zeros(z.shape[1])
    p, best = soft(data, np.zeros(len(z), np.float32))
    for _ in range(8):
        q = (data.share[data.step] * p).astype(np.float32)
        gradient = z.T @ (q - data.target) + ridge * beta
        middle = np.add.reduceat(z * p[:, None], data.start, axis=0)
        shared = (middle * data.share[:, None]).T @ middle
        hessian = (z * q[:, None]).T @ z - shared + np.diag(np.full(len(beta), ridge))
        step = np.linalg.solve(hessian.astype(np.float64), gradient.astype(np.float64))
        scale, before = 1.0, best
        while scale > 1e-3:
            trial = beta - scale * step
            chance, loss = soft(data, z @ trial.astype(np.float32))
            loss += 0.5 * ridge * float((trial**2).sum())
            if loss < best:
                beta, p, best = trial, chance, loss
                break
            scale /= 2
        if before - best < 1e-4 * abs(best):
            break
    return np.asarray((beta / spread).astype(np.float32))


def fit_trees(data: TrainingSteps, recipe: Recipe, seed: int) -> tuple[Array, Array, Array]:
    """Symmetric trees by histograms: feature and threshold (trees, depth), leaf (trees, 2**depth)."""
    trees, depth, ridge = recipe.trees, recipe.depth, 60.0
    random = np.random.default_rng(seed)
    rows_all, count = data.x.shape
    edges, codes = _bins(data.x)
    score = np.zeros(rows_all)
    features = np.zeros((trees, depth), np.int32)
    thresholds = np.zeros((trees, depth), np.float32)
    leaves = np.zeros((trees, 2**depth), np.float32)
    share = data.share[data.step]
    for tree in range(trees):
        p, _ = soft(data, score)
        g, h = data.target - share * p, share * p * (1 - p) + 1e-9
        keep = np.flatnonzero(data.y | (random.random(rows_all) < 0.5))
        boost = np.where(data.y[keep], 1.0, 2.0)
        gk, hk = g[keep] * boost, h[keep] * boost
        leaf = np.zeros(len(keep), np.int64)
        every = np.zeros(rows_all, np.int64)
        for level in range(depth):
            groups = 2**level
            if level == 0:
                allowed = random.choice(count, max(1, int(count * recipe.columns)), replace=False).tolist()
            best = (-1.0, 0, 0)
            for f in allowed:
                size = len(edges[f]) + 1
                if size < 2:
                    continue
                slot = leaf * size + codes[f][keep]
                gs = np.bincount(slot, weights=gk, minlength=groups * size).reshape(groups, size)
                hs = np.bincount(slot, weights=hk, minlength=groups * size).reshape(groups, size)
                gl, hl = gs.cumsum(1)[:, :-1], hs.cumsum(1)[:, :-1]
                gt, ht = gs.sum(1, keepdims=True), hs.sum(1, keepdims=True)
                gain = gl**2 / (hl + ridge) + (gt - gl) ** 2 / (ht - hl + ridge) - gt**2 / (ht + ridge)
                gain = gain.sum(0)
                place = int(gain.argmax())
                if gain[place] > best[0]:
                    best = (float(gain[place]), f, place)
            _, f, place = best
            features[tree, level] = f
            thresholds[tree, level] = edges[f][place] if len(edges[f]) else np.inf
            above = (codes[f] > place).astype(np.int64) << level
            every += above
            leaf += above[keep]
        gs = np.bincount(leaf, weights=gk, minlength=2**depth)
        hs = np.bincount(leaf, weights=hk, minlength=2**depth)
        leaves[tree] = recipe.rate * gs / (hs + ridge)
        score += leaves[tree][every]
    return features, thresholds, leaves


def _bins(x: Array) -> tuple[list[Array], list[Array]]:
    """Return by feature: the edges of its bins, and the bin of each row."""
    edges, codes, bins = [], [], 32
    sample = np.random.default_rng(1).choice(len(x), min(len(x), 60_000), replace=False)
    for f in range(x.shape[1]):
        column = x[sample, f]
        unique = np.unique(column)
        if len(unique) <= bins:
            cut = (unique[1:] + unique[:-1]) / 2
        else:
            of = unique if len(unique) < 200 else column
            cut = np.unique(np.quantile(of, np.linspace(0, 1, bins + 1)[1:-1]))
        edges.append(cut.astype(np.float32))
        codes.append(np.searchsorted(edges[-1], x[:, f], side="left").astype(np.uint8))
    return edges, codes


def logistic(z: Array, y: Array, w: Array, beta: Array, penalty: Array) -> Array:
    """Return weighted logistic weights with a ridge, by Newton steps from `beta`."""
    for _ in range(30):
        p = 1 / (1 + np.exp(-np.clip(z @ beta, -30, 30)))
        gradient = z.T @ (w * (p - y)) + penalty * beta
        hessian = (z * (w * p * (1 - p))[:, None]).T @ z + np.diag(penalty + 1e-6)
        step = np.linalg.solve(hessian, gradient)
        beta = beta - step * min(1.0, 2 / max(1e-9, float(np.abs(step).max())))
        if np.abs(step).max() < 1e-5:
            break
    return beta


def fit_copied(samples: Sequence[Samples], ridge: float = 30.0) -> Array:
    """Logistic weights and a bias for segments, files balanced by their root; empty where too little is copied."""
    used = [s for s in samples if s.y.sum() >= 20]
    if not used:
        return np.zeros(0, np.float32)
    x = np.concatenate([s.x for s in used]).astype(np.float64)
    y = np.concatenate([s.y for s in used])
    w = np.concatenate([s.w * float(s.y.sum()) ** -0.5 for s in used])
    w *= 20_000 / w[y].sum()
    mean, spread = np.average(x, axis=0, weights=w), x.std(axis=0)
    spread[spread < 1e-6] = 1.0
    z = np.concatenate([(x - mean) / spread, np.ones((len(x), 1))], axis=1)
    beta, penalty = np.zeros(z.shape[1]), np.full(z.shape[1], ridge)
    beta[-1], penalty[-1] = np.log(w[y].sum() / w[~y].sum()), 0.0
    beta = logistic(z, y, w, beta, penalty)
    weights = beta[:-1] / spread
    return np.append(weights, beta[-1] - (weights * mean).sum()).astype(np.float32)


def fit(samples: Sequence[Samples], recipe: Recipe = Recipe()) -> Model:
    """Fit both parts of the model to samples of files, as log-odds. ValueError when no step needs anything."""
    data = balance(samples)
    weights = fit_linear(data, recipe.ridge)
    several = [fit_trees(data, recipe, seed) for seed in range(recipe.fits)]
    feature, threshold, leaf = (np.concatenate(part) for part in zip(*several, strict=True))
    return _calibrated(Model(weights, 0.0, feature, threshold, leaf / recipe.fits, 0.0, recipe.mix), data)


def _calibrated(model: Model, data: TrainingSteps) -> Model:
    """The model with its scores as log-odds of the samples."""
    score = log_odds(model, np.ascontiguousarray(data.x.T)).astype(np.float64)
    w = data.w * data.share[data.step] / np.sqrt(np.bincount(data.step, weights=data.y))[data.step]
    b = np.log((w * data.y).sum() / (w * ~data.y * np.exp(np.minimum(score, 20))).sum())
    z = np.stack([score, np.ones(len(score))], axis=1)
    scale, bias = map(float, logistic(z, data.y, w, np.array([1.0, b]), np.zeros(2)))
    return replace(
        model,
        weights=np.asarray(model.weights * scale, np.float32),
        bias=model.bias * scale + bias,
        leaf=np.asarray(model.leaf * scale, np.float32),
        base=model.base * scale + bias,
    )
