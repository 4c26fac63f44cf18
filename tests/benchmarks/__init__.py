"""Imports of what is measured with: the folder benchmarks/ is on the path during an import alone."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parents[2] / "benchmarks"


@contextmanager
def importing() -> Iterator[None]:
    """The folder on the path; not afterwards, for its agents.py has the name of the package of openai-agents."""
    sys.path.insert(0, str(FOLDER))
    try:
        yield
    finally:
        sys.path.remove(str(FOLDER))


def load(name: str) -> ModuleType:
    """A module of the folder under a name that no package has: ``NAME_benchmark``."""
    spec = importlib.util.spec_from_file_location(f"{name}_benchmark", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module  # dataclasses look there for their annotations
    with importing():
        spec.loader.exec_module(module)
    return module
