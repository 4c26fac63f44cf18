"""The audit of agents' logs: what their compactions kept, what a strategy would have kept, what was read again."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from memory_bank.lab.costs import Costs, named_counter
from memory_bank.lab.logs.compactions import NEXT_CALLS, OWN, CompactionRow, measure_compactions
from memory_bank.lab.logs.files import LogFiles
from memory_bank.lab.logs.rereads import Rereads, count_rereads
from memory_bank.lab.logs.sessions import LoggedSession
from memory_bank.lab.meter.figures import TracePart, intervals_of, json_value, ratio, ratio_of_sums
from memory_bank.lab.processes import ProgressReport, quiet
from memory_bank.lab.strategies import Strategy
from memory_bank.lab.tables import Column, count_of, percent, whole
from memory_bank.transcript import ENCODING, calls_of

SHARES = ("values", "bound", "characters")


@dataclass(frozen=True, slots=True)
class CompactionFigures:
    """What one way to compact kept, over all compactions: shares of 0 to 1, mean tokens.

    ``failures`` counts the compactions at which the strategy raised; ``intervals`` are 95% bounds by bootstrap.
    """

    name: str
    values: float
    bound: float
    characters: float
    tokens: float
    failures: int
    intervals: dict[str, tuple[float, float]]


@dataclass(frozen=True, slots=True)
class LogAudit:
    """The result of an audit of logs; the first figures are those of the clients' own compactions.

    ``compactions`` counts those in the logs, ``measured`` those that are followed by calls and have a summary that
    can be read. ``values`` and ``characters`` are what the next calls took.
    """

    sessions: dict[str, int]
    calls: int
    compactions: int
    measured: int
    values: int
    characters: int
    full_tokens: float
    figures: tuple[CompactionFigures, ...]
    rereads: Rereads
    skipped_lines: int
    unknown_files: tuple[str, ...]
    unreadable_files: tuple[str, ...]
    token_counter: str

    def as_dict(self) -> dict[str, Any]:
        """JSON values; NaN is None."""
        figures = [{k: json_value(v) for k, v in asdict(f).items()} for f in self.figures]
        return {k: json_value(v) for k, v in asdict(self).items() if k != "figures"} | {
            "figures": figures,
            "unknown_files": list(self.unknown_files),
            "unreadable_files": list(self.unreadable_files),
            "sentences": self.sentences(),
        }

    def sentences(self) -> list[str]:
        """The result in plain words."""
        told = [self._counted()]
        if self.measured:
            own, *others = self.figures
            taken = f"{self.values:,} values and {self.characters:,} characters of copied text"
            told.append(
                f"After {count_of(self.measured, 'compaction')} the next {NEXT_CALLS} calls took {taken} from the "
                f"history before it ({self.full_tokens:,.0f} tokens on average)."
            )
            told.append(f"The agent's own compaction kept {_shares_in_words(own)}.")
            told += [f"{f.name} would have kept {_shares_in_words(f)}." for f in others]
        elif self.compactions:
            told.append("No compaction has both a readable summary and calls after it, so none is compared.")
        else:
            told.append("No compaction is recorded, so there is nothing to compare a memory with.")
        r = self.rereads
        if r.reads:
            told.append(
                f"Of {count_of(r.reads, 'file read')} {r.again:,} ({percent(r.again / r.reads)}%) read again what "
                f"had been read before, {r.after_compaction:,} of them what a compaction had removed; together "
                f"{r.tokens_again:,} tokens."
            )
        return told

    def _counted(self) -> str:
        sessions = ", ".join(f"{n:,} of {client}" for client, n in self.sessions.items())
        found = (
            f"{count_of(sum(self.sessions.values()), 'session')} ({sessions})" if sessions else "No session"
        )
        return f"{found}, {count_of(self.calls, 'call')}, {count_of(self.compactions, 'compaction')}."


def _shares_in_words(f: CompactionFigures) -> str:
    failed = f" (it failed at {count_of(f.failures, 'compaction')})" if f.failures else ""
    values, bound, characters = (_percent(x) for x in (f.values, f.bound, f.characters))
    return (
        f"{values} of the values ({bound} next to what they belong to) and {characters} of the copied text in "
        f"{f.tokens:,.0f} tokens{failed}"
    )


def _percent(share: float) -> str:
    return "none" if math.isnan(share) else f"{percent(share)}%"


LOG_COLUMNS: tuple[Column[CompactionFigures], ...] = (
    Column("values", lambda f: f.values, percent,
           f"values that the next {NEXT_CALLS} calls took from before the compaction and that were kept, %"),
    Column("bound", lambda f: f.bound, percent, "those kept next to what they belong to, %"),
    Column("copied", lambda f: f.characters, percent,
           "characters that these calls copied from before the compaction and that were kept verbatim, %"),
    Column("tokens", lambda f: f.tokens, whole, "mean tokens of the summary, or of the memory in its place"),
)  # fmt: skip


def audit_logs(
    paths: Sequence[Path],
    strategies: Sequence[Strategy],
    *,
    counter: str = ENCODING,
    tell: Callable[[str], None] = lambda _: None,
    progress: ProgressReport | None = None,
) -> LogAudit:
    """Measure the compactions and the reads in log files.

    Strategies that use a ``history_budget`` get the tokens of each summary. Nothing of the contents is in the result.
    Files that cannot be read are reported to ``tell``.
    """
    costs = Costs(named_counter(counter))
    files = LogFiles(paths, tell)
    rows: list[list[CompactionRow]] = []  # of each session
    reads: list[Rereads] = []
    clients: Counter[str] = Counter()
    seen: set[str] = set()
    calls = compactions = 0
    with quiet():
        for n, session in enumerate(files, 1):
            clients[session.client] += 1
            calls += _count_calls(session)
            compactions += len(session.compactions)
            rows.append(measure_compactions(session, strategies, costs, seen))
            reads.append(count_rereads(session, costs))
            if progress is not None:
                progress(n, n)
    measured = [row for own in rows for row in own]
    return LogAudit(
        sessions=dict(clients),
        calls=calls,
        compactions=compactions,
        measured=len(measured),
        values=sum(row.kept[OWN].values.of for row in measured),
        characters=sum(row.kept[OWN].characters.of for row in measured),
        full_tokens=ratio(sum(row.full_tokens for row in measured), len(measured)),
        figures=tuple(_figures(name, rows) for name in (OWN, *(s.name for s in strategies)) if measured),
        rereads=sum(reads, Rereads()),
        skipped_lines=files.skipped,
        unknown_files=tuple(files.unknown),
        unreadable_files=tuple(files.unreadable),
        token_counter=costs.counter.name,
    )


def _count_calls(session: LoggedSession) -> int:
    return sum(len(calls_of(m)) for m in session.messages if m.get("role") == "assistant")


def _figures(name: str, rows: Sequence[Sequence[CompactionRow]]) -> CompactionFigures:
    parts = {share: partial(_part, name=name, share=share) for share in SHARES}
    shares = {share: ratio_of_sums(map(part, rows)) for share, part in parts.items()}
    tokens = [row.kept[name].tokens for own in rows for row in own]
    return CompactionFigures(
        name=name,
        tokens=ratio(sum(tokens), len(tokens)),
        failures=sum(row.kept[name].failed for own in rows for row in own),
        intervals=intervals_of(rows, parts),
        **shares,
    )


def _part(rows: Iterable[CompactionRow], name: str, share: str) -> TracePart:
    tallies = [getattr(row.kept[name], share) for row in rows]
    return sum(t.has for t in tallies), sum(t.of for t in tallies)
