"""Settings of the strategies that only leave out."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from memory_bank.settings.base import Int, Settings


class NoStrategySettings(Settings):
    """No memory at all: the full history, what every comparison starts from."""

    type: Literal["no_strategy"] = "no_strategy"


class TruncationSettings(Settings):
    """System and user messages, and the last interaction."""

    type: Literal["truncation"] = "truncation"


class KeepLastSettings(Settings):
    """System and user messages, and the last interactions."""

    type: Literal["keep_last_n"] = "keep_last_n"
    n: Int = Field(default=5, ge=1, description="so many interactions, the last one included")
