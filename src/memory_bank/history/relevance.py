"""Pruning by meaning: the steps that are most relevant to the task, and not all alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memory_bank.errors import HistoryError
from memory_bank.history.parts import is_amount, positive
from memory_bank.history.pruning import Pruning, is_protected
from memory_bank.history.replaying import told
from memory_bank.history.steps import Step, TaskStep

_EMBEDDED = 4_000  # characters of a step that are embedded


def step_text(step: Step) -> str:
    """What a step says, in one text."""
    title, rows = told(step)
    return "\n".join([title, *(f"{label}: {text}" if label else text for label, text in rows)])


def semantic_pruning(
    embedder: Any, keep: int = 10, *, query: str | None = None, diversity: float = 0.3
) -> Pruning:
    """System prompt, tasks, the last step, and the ``keep`` others that tell most about the query.

    The query is the last task unless given. Chosen by maximal marginal relevance (Carbonell and Goldstein,
    1998): similarity to the query times ``1 - diversity`` minus the greatest similarity to a step already
    chosen times ``diversity`` (0 to 1). Ties: the newer step. ``embedder`` has
    ``encode(list[str])`` -> (n, d). Raises HistoryError for limits out of range; the pruning raises
    EmbeddingError.
    """
    positive(keep, "keep")
    if not is_amount(diversity) or diversity > 1:
        raise HistoryError(f"diversity is {diversity!r}: give a number from 0 to 1.")
    if isinstance(embedder, str) or not callable(getattr(embedder, "encode", None)):
        raise HistoryError("the embedder has no encode: give one, such as LexicalEmbedder().")

    def prune(steps: Sequence[Step]) -> list[Step]:
        free = [i for i, s in enumerate(steps) if not is_protected(s) and i != len(steps) - 1]
        if len(free) <= keep:
            return list(steps)
        tasks = [s.task for s in steps if isinstance(s, TaskStep)]
        wanted = query if query is not None else (tasks or [step_text(steps[-1])])[-1]
        texts = [step_text(steps[i])[:_EMBEDDED] for i in free]
        others = set(free)
        chosen = {free[j] for j in _most_relevant(embedder, wanted, texts, keep, float(diversity))}
        return [s for i, s in enumerate(steps) if i in chosen or i not in others]

    return prune


def _most_relevant(embedder: Any, query: str, texts: list[str], keep: int, diversity: float) -> list[int]:
    import numpy as np

    from memory_bank.vectors import encode_documents, encode_queries

    rows = encode_documents(embedder, texts).astype(np.float64)
    relevance = rows @ encode_queries(embedder, [query])[0].astype(np.float64)
    nearest = np.zeros(len(texts))  # to what is chosen already
    chosen: list[int] = []
    left = np.ones(len(texts), dtype=bool)
    for _ in range(keep):
        worth = np.where(left, (1 - diversity) * relevance - diversity * nearest, -np.inf).round(6)
        best = int(len(worth) - 1 - np.argmax(worth[::-1]))
        chosen.append(best)
        left[best] = False
        likeness = rows @ rows[best]
        nearest = likeness if len(chosen) == 1 else np.maximum(nearest, likeness)
    return chosen
