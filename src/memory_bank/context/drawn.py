"""What a selection draws from the bank for one step: the text to show, what stays whole, and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from memory_bank.config import MemoryBankSettings
from memory_bank.context.evidence import EvidenceMemory
from memory_bank.context.plan import Choice, Plan
from memory_bank.context.report import ContextReport
from memory_bank.models.observer import Account, Observer
from memory_bank.ports import FactStorePort, TokenCounter, WiderScopePort
from memory_bank.records import Insight, InteractionRecord
from memory_bank.transcript.interactions import Interaction
from memory_bank.transcript.shortening import Shortened
from memory_bank.transcript.transcript import Transcript


@dataclass(frozen=True, slots=True)
class Drawn:
    """``text`` is "" when there is nothing to show. ``whole`` are past interactions kept as they are.

    ``unchanged`` is the reason why the messages need no memory at all, or "". ``beyond`` tells that the text
    shows records whose messages are no longer in the list, so that the full list is no substitute.
    """

    text: str
    choice: Choice
    query: str = ""
    whole: Sequence[Interaction] = ()
    unchanged: str = ""
    beyond: bool = False


class BankState(Protocol):
    """What the strategy needs of a MemoryBankState."""

    lock: Any
    session_id: str
    fact_store: FactStorePort
    insight_store: Any
    transcript: Transcript
    counter: TokenCounter
    step_count: int
    last_plan: Plan | None
    steps: dict[str, int]  # step of every record known to be stored, in the order of storing
    unobserved: dict[str, Insight | None]  # stored, but without an insight yet; a draft where there is one
    shortened: dict[tuple[str, int], Shortened]
    brought: dict[tuple[str, str], InteractionRecord]  # what contexts have shown of other sessions
    evidence: EvidenceMemory | None  # made when first needed
    last_report: ContextReport | None
    memos: dict[Any, Any]  # what strategies note for themselves; a reset empties it

    def prepare(self, settings: MemoryBankSettings) -> None:
        """Bind embedder and counter, notice what other processes did."""

    @property
    def generation(self) -> int | None:
        """How often the session was reset, as the state knows it."""

    storage_errors: int  # steps whose messages went through unchanged, as `on_storage_error` asks

    @property
    def wider(self) -> WiderScopePort | None:
        """What a scope of more than one session adds; None: nothing."""

    @property
    def account(self) -> Account:
        """Where the Observer's calls are booked."""

    def keep(
        self, records: Sequence[InteractionRecord], drafts: Sequence[Insight], to_observe: Sequence[str]
    ) -> dict[str, Insight | None]:
        """Commit records, noting which a model is to summarise; returns those still without an insight."""

    def queue(self, trace_ids: Sequence[str]) -> None:
        """Note that a model is to summarise stored records."""

    def work_off(self, observer: Observer, settings: MemoryBankSettings, news: bool) -> None:
        """See that somebody works at what is to be observed."""

    @property
    def puts_off(self) -> bool:
        """Whether what no context needs yet is done later."""

    def put_off(self, what: str, work: Callable[[], None]) -> None:
        """Do what no context needs yet: now, or when whoever makes the steps has time for it."""

    def remember_task(self, task: str) -> None:
        """Write down what the user asked for."""


def ids_of(entry: Interaction | None) -> set[str]:
    """The trace_ids of an interaction's records, and of what they were before their images came."""
    return set() if entry is None else {t for t in (*entry.trace_ids, *entry.earlier_ids) if t}
