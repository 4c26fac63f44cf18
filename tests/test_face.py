"""The face: a sorted list, cheap to import."""

import subprocess
import sys

import pytest

import memory_bank

HEAVY = (
    "torch",
    "faiss",
    "openai",
    "transformers",
    "sqlalchemy",
    "pydantic",
    "numpy",
    "tiktoken",
    "FlagEmbedding",
)


def test_every_name_is_there():
    assert len(memory_bank.__all__) == len(set(memory_bank.__all__)) <= 30
    for name in memory_bank.__all__:
        assert getattr(memory_bank, name) is not None
    assert set(memory_bank.__all__) <= set(dir(memory_bank))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nonsense"):
        memory_bank.nonsense  # noqa: B018


def run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_the_verbs_load_nothing_of_a_bank_before_one_is_used():
    heavy = (
        "sqlalchemy",
        "numpy",
        "pydantic",
        "memory_bank.config",
        "memory_bank.bank",
        "memory_bank.transcript",
    )
    loaded = run(f"import sys, memory_bank.cli.app; print([m for m in {heavy!r} if m in sys.modules])")
    assert loaded == "[]"


def test_importing_loads_nothing_heavy():
    loaded = run(f"import sys, memory_bank; print([m for m in {HEAVY!r} if m in sys.modules])")
    assert loaded == "[]"


def test_importing_is_quick():
    def seconds(code: str) -> float:
        return float(run(f"{code}; import time; print(time.process_time())"))

    extra = [seconds("import memory_bank") - seconds("pass") for _ in range(5)]
    assert min(extra) < 0.2


def test_the_core_needs_no_model_libraries():
    code = (
        "import sys; from memory_bank import *; s = MemoryBankState('lexical');"
        "apply_memory_bank_strategy([{'role': 'user', 'content': 'x'}], None, None, s);"
        "print([m for m in ('torch', 'openai', 'transformers', 'FlagEmbedding') if m in sys.modules])"
    )
    assert run(code) == "[]"


def test_the_face_of_history_is_sorted_and_every_name_is_there():
    from memory_bank import history

    assert history.__all__ == sorted(history.__all__, key=lambda n: (not n[0].isupper(), n))
    assert all(getattr(history, name) is not None for name in history.__all__)
    assert set(history.__all__) <= set(dir(history))
    with pytest.raises(AttributeError, match="nonsense"):
        history.nonsense  # noqa: B018
