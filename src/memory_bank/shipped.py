"""The paths of files shipped with the package: in the wheel, or in the checkout."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parent
_CHECKOUT = _PACKAGE.parents[1]


def shipped_file(name: str) -> Path:
    """The path of a shipped file, such as ``prompts/observer.prompt.md``; it may not exist."""
    in_wheel = _PACKAGE / "_shipped" / name
    return in_wheel if in_wheel.exists() else _CHECKOUT / name


def shipped_trace(name: str) -> Path:
    """The path of a shipped example trace."""
    in_wheel = _PACKAGE / "_shipped" / name
    return in_wheel if in_wheel.exists() else _CHECKOUT / "examples" / name
