"""FlagEmbedding's FlagModel as an embedder; it fails within seconds where the model cannot be loaded."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from memory_bank.errors import INSTALL, EmbedderLoadError, MissingExtraError

BGE_INSTRUCTIONS = {
    "en": "Represent this sentence for searching relevant passages: ",
    "zh": "为这个句子生成表示以用于检索相关文章：",
}

LEXICAL_ADVICE = 'set embedding_model = "lexical", which needs nothing'
_BGE = re.compile(r"bge-(?:small|base|large)-(en|zh)(?![a-z])", re.IGNORECASE)
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_TOKENIZERS = ("tokenizer.json", "vocab.txt", "sentencepiece.bpe.model", "tokenizer.model", "vocab.json")
_EXTRAS = ("1_Pooling/config.json", "config_sentence_transformers.json")
_HASHED = ("config.json", "tokenizer_config.json", "merges.txt", *_TOKENIZERS)
_BATCH = 32  # texts that are encoded at once
_log = logging.getLogger("memory_bank.InsightStore")


class _ModelFiles(NamedTuple):
    """A model before it is loaded: where its files are, its name, pooling and query instruction."""

    source: str
    name: str
    pooling: str
    query_instruction: str


class FlagEmbedder:
    """Texts to vectors by an encoder model through FlagEmbedding, such as ``BAAI/bge-small-en-v1.5``.

    ``model_name_or_folder`` is a name on the Hugging Face hub or a folder in transformers' format. Texts are pooled
    as the model's ``1_Pooling/config.json`` says, cls or mean, else cls. ``query_instruction``, which
    ``encode_queries`` puts before a text, is the ``query`` prompt in ``config_sentence_transformers.json``, else the
    documented one of English and Chinese BGE models, else none. The device is the first that FlagEmbedding finds;
    half precision on a GPU only.

    ``name`` is the hub name, or for a folder ``folder:TYPE-DIMENSION-HASH``, a hash of weights, configuration
    and tokenizer; a pooling other than cls is appended (``+mean``), because it gives other vectors.

    A hub model in the local cache is loaded without the network. Any other is requested once, with a timeout
    of 10 seconds; HF_HUB_OFFLINE is respected. Loading sets TOKENIZERS_PARALLELISM=false unless the
    environment sets it. Threads may share an embedder; one of them encodes at a time.

    Raises EmbedderLoadError when FlagEmbedding is not installed or the model cannot be loaded.
    """

    def __init__(self, model_name_or_folder: str) -> None:
        _log.info("loading embedding model %s", model_name_or_folder)
        started = time.perf_counter()
        folder = _find(model_name_or_folder)
        pooling, self.query_instruction = folder.pooling, folder.query_instruction
        self.name = folder.name if pooling == "cls" else f"{folder.name}+{pooling}"
        self._lock = threading.Lock()
        try:
            if pooling not in ("cls", "mean"):
                raise ValueError(f"FlagModel has no pooling {pooling!r}, only cls and mean")
            model = _load(folder.source, pooling)
            self.dimension = int(model.model.config.hidden_size)
            self._max_tokens = min(512, int(model.tokenizer.model_max_length))
            self._encode = _one_pass(model) or model.encode
        except Exception as exc:
            raise EmbedderLoadError(
                f"the embedding model {model_name_or_folder!r} cannot be loaded ({_cause(exc)}): {LEXICAL_ADVICE}, "
                "or give a local folder with the weights of a model that FlagEmbedding's FlagModel loads"
            ) from exc
        seconds = time.perf_counter() - started
        _log.info("loaded embedding model %s in %.1f s, dimension %d", self.name, seconds, self.dimension)

    def encode(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Embed the first 512 tokens of texts: float32 of shape (n, d), rows of length 1."""
        rows = np.zeros((len(texts), self.dimension), dtype=np.float32)
        # Longest first, for little padding; slices under the batch size, for no progress bar.
        # Texts are cut before the tokenizer: 512 tokens are some 2,500 characters of prose.
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        for start in range(0, len(order), _BATCH):
            part = order[start : start + _BATCH]
            readable = [texts[i][:30_000].encode("utf-8", "replace").decode() for i in part]
            with self._lock:
                rows[part] = self._encode(readable, batch_size=_BATCH + 1, max_length=self._max_tokens)
        return rows

    def encode_queries(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """As ``encode``, with the query instruction before each text."""
        return self.encode([f"{self.query_instruction}{text}" for text in texts])


def _load(source: str, pooling: str) -> Any:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from FlagEmbedding import FlagModel

    devices = list(FlagModel.get_target_devices(None))[:1]
    with _quiet():
        return FlagModel(source, pooling_method=pooling, devices=devices, use_fp16=devices[0] != "cpu")


def _one_pass(model: Any) -> Callable[..., Any] | None:
    """An ``encode`` that runs a batch once on a CPU, not twice; None where its vectors are not FlagModel's."""
    import torch

    def encode(texts: list[str], *, batch_size: int, max_length: int) -> Any:  # noqa: ARG001
        with torch.inference_mode():
            options = {"padding": True, "truncation": True, "return_tensors": "pt"}
            inputs = model.tokenizer(texts, max_length=max_length, **options)
            hidden = model.model(**inputs, return_dict=True).last_hidden_state
            rows = model.pooling(hidden, inputs["attention_mask"])
            return torch.nn.functional.normalize(rows, dim=-1).numpy()

    probe: list[str] = ["one", "two words"]
    expected = model.encode(probe, batch_size=3, max_length=16)
    if model.target_devices == ["cpu"]:
        with contextlib.suppress(Exception):
            if np.allclose(encode(probe, batch_size=3, max_length=16), expected, atol=1e-5):
                return encode
    return None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the progress bars and reports of transformers and huggingface_hub."""
    hub: Any = importlib.import_module("huggingface_hub.utils")
    reports: Any = importlib.import_module("transformers.utils.logging")
    with contextlib.ExitStack() as stack:
        stack.callback(reports.set_verbosity, reports.get_verbosity())
        reports.set_verbosity_error()
        if reports.is_progress_bar_enabled():
            stack.callback(reports.enable_progress_bar)
            reports.disable_progress_bar()
        if not hub.are_progress_bars_disabled():
            stack.callback(hub.enable_progress_bars)
            hub.disable_progress_bars()
        yield


def _find(model: str) -> _ModelFiles:
    """The files of a model. Raises EmbedderLoadError, before FlagEmbedding is imported, without them."""
    folder = Path(os.path.expanduser(model))
    is_folder = bool(model.strip()) and folder.is_dir()
    if not is_folder and (folder.exists() or not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", model)):
        raise EmbedderLoadError(
            f"there is no folder {model!r} to load an embedding model from: {LEXICAL_ADVICE}, or give an existing "
            "folder with the weights or a name on the Hugging Face hub"
        )
    if importlib.util.find_spec("FlagEmbedding") is None:
        raise EmbedderLoadError(
            f"the embedding model {model!r} needs FlagEmbedding, which is not installed: run  "
            f"{INSTALL.format(extra='bge')}  in a checkout, or {LEXICAL_ADVICE}"
        ) from MissingExtraError("FlagEmbedding", "bge")
    try:
        return _files_in(folder, str(folder), None) if is_folder else _on_hub(model)
    except Exception as exc:
        where = "holds no model" if is_folder else "is not on this machine and cannot be downloaded"
        raise EmbedderLoadError(
            f"the embedding model {model!r} {where} ({_cause(exc)}): {LEXICAL_ADVICE}, or give a local folder with "
            "config.json, tokenizer and weights, or allow the download from the Hugging Face hub"
        ) from exc


def _on_hub(name: str) -> _ModelFiles:
    """A model of the hub: from the local cache when it is complete there, else by one request to the hub."""
    hub: Any = importlib.import_module("huggingface_hub")
    look = functools.partial(hub.try_to_load_from_cache, name)

    def fetch(*files: str) -> None:
        # transformers itself repeats its requests: an unreachable hub would be an error after 47 s
        hub.get_hf_file_metadata(hub.hf_hub_url(name, "config.json"), timeout=10.0)
        for file in files:
            with contextlib.suppress(hub.errors.EntryNotFoundError), _quiet():
                hub.hf_hub_download(name, file)

    cached = isinstance(look("config.json"), str) and _complete(Path(look("config.json")).parent)
    if not cached:
        fetch("config.json", *_EXTRAS)
        _log.info("downloading embedding model %s from the Hugging Face hub", name)
    elif not _BGE.search(name) and look(_EXTRAS[0]) is None:
        with contextlib.suppress(Exception):  # transformers alone does not download how to pool
            fetch(*_EXTRAS)
    folder = Path(look("config.json")).parent
    return _files_in(folder, str(folder) if cached else name, name)


def _complete(folder: Path) -> bool:
    shards = {name for index in folder.glob("*.index.json") for name in _json(index)["weight_map"].values()}
    weights = any(any(folder.glob(pattern)) for pattern in _WEIGHTS)
    tokenizer = any((folder / name).exists() for name in _TOKENIZERS)
    return weights and tokenizer and all((folder / shard).exists() for shard in shards)


def _files_in(folder: Path, source: str, hub_name: str | None) -> _ModelFiles:
    """The name (unless the hub gave one), pooling and instruction that the files of a model give."""
    config, modes = _json(folder / "config.json"), _json(folder / _EXTRAS[0])
    chosen = [key for key, on in modes.items() if key.startswith("pooling_mode_") and on]
    mode = str(modes.get("pooling_mode") or "+".join(chosen) or "cls")
    prompts = _json(folder / _EXTRAS[1]).get("prompts") or {}
    # A snapshot of the hub's cache is models--OWNER--NAME/snapshots/REVISION.
    places = [hub_name] if hub_name else [folder.name, *folder.resolve().parts[-3::2]]
    names = [*places, str(config.get("_name_or_path", "")).replace("_", "-")]
    bge = next((match for place in names if (match := _BGE.search(place))), None)
    instruction = prompts.get("query") or (BGE_INSTRUCTIONS[bge[1].lower()] if bge else "")
    name = hub_name
    if name is None:
        if not _complete(folder):  # without a tokenizer, transformers would make up an empty one
            raise FileNotFoundError("weights or tokenizer are missing")
        weights = next(files for pattern in _WEIGHTS if (files := sorted(folder.glob(pattern))))
        digest = hashlib.sha256()
        for file in [*weights, *(folder / hashed for hashed in _HASHED)]:
            if file.is_file():
                with file.open("rb") as stream:
                    digest.update(file.name.encode() + hashlib.file_digest(stream, "sha256").digest())
        kind = f"{config.get('model_type', 'model')}-{config.get('hidden_size', 0)}"
        name = f"folder:{kind}-{digest.hexdigest()[:12]}"
    return _ModelFiles(source, name, re.sub(r"pooling_mode_|_tokens?\b", "", mode), str(instruction))


def _json(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return values


def _cause(exc: BaseException) -> str:
    """The type of an error and the first line of its message."""
    first = next(iter(str(exc).strip().splitlines()), "").rstrip(" .:")[:200]
    return f"{type(exc).__name__}: {first}" if first else type(exc).__name__
