"""The contract of a prefix: between two folds a request begins with the one before, byte for byte."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from memory_bank import Plan
from memory_bank.transcript.anthropic import CACHE_MARK


@dataclass(frozen=True)
class Sent:
    """What was sent at a step: what stands before the messages, the messages, and where its fold ends.

    ``fold``: the position of the first interaction that the fold is not about; None without a fold.
    """

    head: str
    messages: list[str]
    fold: int | None


def sent_body(body: dict[str, Any], key: str, plan: Plan | None) -> Sent:
    """A body that went upstream, without its cache marks, which are no part of a prefix."""
    head = {k: v for k, v in body.items() if k != key}
    return Sent(_text(head), [_text(m) for m in body[key]], fold_of(plan))


def fold_of(plan: Plan | None) -> int | None:
    """Where the fold of a plan ends."""
    return None if plan is None or plan.unchanged else plan.choice.since


def _text(value: Any) -> str:
    return json.dumps(_unmarked(value))


def _unmarked(value: Any) -> Any:
    """A value without cache marks; a content that is a text is one block, as a marked one has to be."""
    if isinstance(value, list):
        return [_unmarked(v) for v in value]
    if not isinstance(value, dict):
        return value
    kept = {k: _unmarked(v) for k, v in value.items() if k != CACHE_MARK}
    if "role" in kept and isinstance(kept.get("content"), str):
        kept["content"] = [{"type": "text", "text": kept["content"]}]
    return kept


def fold_steps(steps: Sequence[Sent]) -> list[int]:
    """The steps that did not begin as the one before. Each has a new fold, which is about more."""
    found = []
    for number, (before, now) in enumerate(pairwise(steps), 1):
        same = now.messages[: len(before.messages)] == before.messages
        if same and now.head == before.head:
            continue
        at = next(
            (i for i, (a, b) in enumerate(zip(before.messages, now.messages, strict=False)) if a != b), -1
        )
        where = (
            f"step {number}: message {at} of {len(before.messages)} changed" if not same else f"step {number}"
        )
        assert now.fold is not None and now.fold > (before.fold or 0), where
        found.append(number)
    return found
