"""Brief: values whose repr is one short line, whatever they hold."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

_CHARS = 280


def brief(value: object, held: Mapping[str, object]) -> str:
    """A repr of at most 280 characters, with the beginning of each part that is not empty."""
    shown = ", ".join(f"{k}={reprlib.repr(v)}" for k, v in held.items() if v not in (None, "", ()))
    text = f"{type(value).__name__}({shown})"
    return text if len(text) <= _CHARS else f"{text[: _CHARS - 2]}…)"


class Brief:
    """The base of dataclasses with such a repr; they are made with ``repr=False``."""

    __slots__ = ()

    def __repr__(self) -> str:
        made: Any = self
        return brief(self, {f.name: getattr(self, f.name) for f in fields(made)})
