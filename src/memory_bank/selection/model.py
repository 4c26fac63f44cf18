"""The model that scores features: a logistic model, averaged in log space with small symmetric trees."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from memory_bank.errors import ConfigError
from memory_bank.selection.features import COPY_FEATURES, FEATURE_NAMES, FEATURES_VERSION
from memory_bank.selection.tables import Array

MODEL_FILE = Path(__file__).with_name("model.json")
"""The model that ships; `benchmarks/train_held_out.py` writes it."""


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

    def linear(self, x: Array) -> Array:
        """Return the log-odds of the logistic part; x (features, n), result (n,)."""
        total = np.full(x.shape[1], self.bias, dtype=np.float32)
        for weight, row in zip(self.weights, x, strict=False):
            total += weight * row
        return total

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

    def log_odds(self, x: Array) -> Array:
        """Return the log-odds that the next call needs a value; x (features, n), result (n,)."""
        if self.mix <= 0 or not len(self.feature):
            return self.linear(x)
        return (1 - self.mix) * self.linear(x) + self.mix * self.boosted(x)


def dump_model(model: Model, notes: Mapping[str, object]) -> str:
    """Return a model as JSON, with the names of its features."""
    data = {
        "version": FEATURES_VERSION,
        "features": FEATURE_NAMES,
        "weights": [round(float(w), 5) for w in model.weights],
        "bias": round(model.bias, 5),
        "base": round(model.base, 5),
        "mix": model.mix,
        "feature": model.feature.tolist(),
        "threshold": [[round(float(t), 5) for t in row] for row in model.threshold],
        "leaf": [[round(float(t), 4) for t in row] for row in model.leaf],
        "copied": {
            "features": COPY_FEATURES if len(model.copied) else (),
            "weights": [round(float(w), 5) for w in model.copied],
        },
        "notes": notes,
    }
    return json.dumps(data, separators=(",", ":"))


def save_model(model: Model, path: Path, notes: Mapping[str, object]) -> None:
    """Write a model to a file, as ``dump_model`` returns it."""
    path.write_text(dump_model(model, notes), encoding="utf-8")


def load_model(path: Path = MODEL_FILE) -> Model:
    """Read a model file; ConfigError if it is unreadable or was trained on other features."""
    name = f"the evidence model {path}"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as e:
        raise ConfigError(f"{name} cannot be read ({type(e).__name__}): train it again.") from e
    return parse_model(text, name)


def parse_model(text: str, name: str) -> Model:
    """The model of a text of ``dump_model``, called `name` in errors. Raises ConfigError if it is unusable."""
    try:
        data = json.loads(text)
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
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as e:
        raise ConfigError(f"{name} cannot be read ({type(e).__name__}): train it again.") from e
