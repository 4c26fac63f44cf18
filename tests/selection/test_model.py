"""Model files name their features: any order will do, other features are refused."""

import json

import numpy as np
import pytest
from benchmarks.training.fitting import log_odds
from benchmarks.training.train import save_model

from memory_bank.errors import ConfigError
from memory_bank.selection.model import COPY_FEATURES, FEATURES, MODEL_FILE, load_model


def test_a_model_file_may_order_its_features_freely(tmp_path):
    data = json.loads(MODEL_FILE.read_text())
    last = len(data["features"]) - 1
    data["features"].reverse()
    data["weights"].reverse()
    data["feature"] = [[last - f for f in tree] for tree in data["feature"]]
    file = tmp_path / "model.json"
    file.write_text(json.dumps(data))
    x = np.random.default_rng(0).random((len(FEATURES), 50), dtype=np.float32)
    np.testing.assert_array_equal(log_odds(load_model(file), x), log_odds(load_model(), x))


def test_what_is_saved_is_read_again(tmp_path):
    model, file = load_model(), tmp_path / "model.json"
    save_model(model, file, {"sets": ["a"]})
    x = np.random.default_rng(0).random((len(FEATURES), 50), dtype=np.float32)
    np.testing.assert_allclose(log_odds(load_model(file), x), log_odds(model, x), atol=1e-3)
    segments = np.random.default_rng(1).random((len(COPY_FEATURES), 50), dtype=np.float32)
    np.testing.assert_allclose(load_model(file).copy_chance(segments), model.copy_chance(segments), atol=1e-3)


def test_a_file_without_weights_for_copied_text_expects_none(tmp_path):
    data = json.loads(MODEL_FILE.read_text())
    del data["copied"]
    file = tmp_path / "model.json"
    file.write_text(json.dumps(data))
    assert not load_model(file).copy_chance(np.ones((len(COPY_FEATURES), 3), np.float32)).any()


@pytest.mark.parametrize(
    ("text", "told"),
    [("{", "cannot be read"), ("[]", "cannot be read"), ('{"features": ["length"]}', "other features")],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path, text, told):
    file = tmp_path / "model.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=told):
        load_model(file)
