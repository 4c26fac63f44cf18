"""``python -m benchmarks``, run in this process."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

from tests.audit.conftest import config, counter, traces  # noqa: F401  fixtures
from tests.cli.conftest import Result


@pytest.fixture
def verbs(capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """``verbs("bench", "--config", path)`` runs a verb."""

    def run(*args: Any) -> Result:
        capsys.readouterr()
        code = import_module("benchmarks.__main__").main([*map(str, args)])
        return Result(code, *capsys.readouterr())

    return run
