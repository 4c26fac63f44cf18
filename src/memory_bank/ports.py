"""Protocols of stores, chat models, embedders and token counters."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

from memory_bank.records import Insight, InteractionRecord, Ranking, RecordLine

Scope = Literal["session", "agent", "all"]
"""Whose records a search may find: those of the session, of its agent's sessions, of all sessions."""


@runtime_checkable
class FactStorePort(Protocol):
    """Raw records of one session, by trace_id, in the order in which they were first stored."""

    def store(self, record: InteractionRecord) -> None:
        """Store a record durably. Storing an equal one again changes nothing.

        Raises RecordConflictError when a different record has this trace_id, RecordError when a raw value is
        no JSON value, StorageError when the database refuses.
        """

    def store_many(self, records: Sequence[InteractionRecord], to_observe: Collection[str] = ()) -> None:
        """Store several records in one transaction: all or none.

        ``to_observe``: trace_ids of records that a model is to summarise, stored in the same transaction.
        """

    def get(self, trace_id: str) -> InteractionRecord | None:
        """The record, or None."""

    def get_many(self, trace_ids: Sequence[str]) -> list[InteractionRecord]:
        """The records found, in the order asked for; missing ids are skipped."""

    def steps(self) -> dict[str, int]:
        """The step_id of every record by trace_id, oldest first."""

    def page(self, after: int = 0, limit: int = 50, tool: str | None = None) -> list[RecordLine]:
        """The records with a number above ``after``, oldest first; only those of ``tool``, if given."""

    def clear(self) -> None:
        """Remove every record of the session."""

    def size(self) -> int:
        """How many records there are."""


@runtime_checkable
class InsightStorePort(Protocol):
    """Summaries of one session, searchable by cosine similarity."""

    def add(self, trace_id: str, summary: str) -> None:
        """Embed a summary and store it; an existing insight of that trace_id is replaced."""

    def add_many(self, insights: Sequence[Insight]) -> None:
        """Embed and store several insights, in one batch and one transaction."""

    def search(self, query: str, top_k: int = 3) -> list[str]:
        """The trace_ids of the ``top_k`` most similar summaries, best first; ties: the newer first."""

    def rank(self, query: str, exclude: Collection[str] = (), limit: int | None = None) -> Ranking:
        """The insights without the excluded, best first, at most ``limit``; ties (1e-6): newer first."""

    def get_summary(self, trace_id: str) -> str | None:
        """The summary, or None."""

    def get_insight(self, trace_id: str) -> Insight | None:
        """The insight, or None."""

    def get_insights(self, trace_ids: Sequence[str]) -> dict[str, Insight]:
        """The insights found, by trace_id, in the order asked for; missing ids are left out."""

    def trace_ids(self) -> list[str]:
        """All ids that have an insight, oldest first."""

    def to_redo(self) -> list[Insight]:
        """The insights whose ``redo`` is set, oldest first."""

    def clear(self) -> None:
        """Remove every insight of the session; the embedding model stays loaded."""

    def is_empty(self) -> bool:
        """Whether there is no insight."""

    def size(self) -> int:
        """How many insights there are."""


class WiderScopePort(Protocol):
    """A scope of more than one session; a record of another one is named by (session_id, trace_id)."""

    def rank(self, query: str, exclude: Collection[str] = (), limit: int | None = None) -> Ranking:
        """As in ``InsightStorePort``, over all sessions of the scope; hits of other sessions name theirs."""

    def entries(
        self, where: Sequence[tuple[str, str]]
    ) -> dict[tuple[str, str], tuple[InteractionRecord, Insight | None]]:
        """Records with their insights, by (session_id, trace_id); those not found are left out."""

    def elsewhere(self, trace_id: str, *, beginning: bool = False) -> list[tuple[str, str]]:
        """(session_id, trace_id) of other sessions' records with this trace_id, or prefix; newest first."""

    def size(self) -> int:
        """How many records the scope has, the session's own included."""


@runtime_checkable
class Embedder(Protocol):
    """Texts to vectors; only ``encode`` is required."""

    def encode(self, texts: list[str]) -> object:
        """An array of shape (n, d), one row for each text."""


@runtime_checkable
class NamedEmbedder(Embedder, Protocol):
    """An embedder with a name and an own method for queries, as all in this package."""

    @property
    def name(self) -> str:
        """The name that the bank stores: two embedders of one name give the same vectors."""

    def encode_queries(self, texts: list[str]) -> object:
        """As ``encode``, for queries."""


@runtime_checkable
class ChatModel(Protocol):
    """A language model."""

    def generate_plain(self, *, input_messages: list[dict[str, Any]], model: str) -> object:
        """The answer: a string, or an OpenAI-shaped chat completion. May raise anything."""


@runtime_checkable
class TokenCounter(Protocol):
    """Counts tokens of texts and messages."""

    @property
    def name(self) -> str:
        """The encoding, ``"approximate"`` when it is an estimate."""

    @property
    def approximate(self) -> bool:
        """Whether counts are estimates."""

    def count_text(self, text: str) -> int:
        """Tokens of a text; special-token text counts as plain text and never raises."""

    def count_message(self, message: object) -> int:
        """Tokens of a chat message with its calls, and 4 for its frame."""


TextCounter = Callable[[str], int]
