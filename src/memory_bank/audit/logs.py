"""The audit of agents' logs: what their compactions kept, and what the bank would have kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from memory_bank import MemoryBankSettings, MemoryBankState, apply_memory_bank_strategy
from memory_bank.audit.costs import Costs, named_counter
from memory_bank.audit.figures import count_of, percent
from memory_bank.audit.needs import Need, needs_of, recall
from memory_bank.audit.replay import copied, quiet
from memory_bank.audit.text import texts_of
from memory_bank.audit.traces import Trace, TraceFiles
from memory_bank.config import ServiceSettings
from memory_bank.context import what_is_known
from memory_bank.transcript import ENCODING, MessageKind, calls_of, kind_of

NEXT_CALLS = 30
"""Calls after a compaction whose values are looked for."""

OWN, ASSIST, ANSWER, FULL = "own compaction", "assist", "answer", "history before"
"""The agent's own summary, the same and what the bank adds to it, the bank's text alone, and what all are made of."""
_ANSWERED = (MessageKind.CALL, MessageKind.RESULT)


class KeptByOne(NamedTuple):
    """The needed values that one way to compact kept: those present, those next to their words; its tokens."""

    needed: int
    present: int
    bound: int
    tokens: int
    failed: bool = False


class CompactionRow(NamedTuple):
    """One compaction, the ``number``-th of its session: what each way by its name kept, FULL included."""

    session: str
    number: int
    kept: Mapping[str, KeptByOne]


class WayFigures(NamedTuple):
    """The results of one way to compact over all compactions: shares, its mean tokens, and how often it raised."""

    name: str
    values: float | None
    bound: float | None
    tokens: float
    failures: int


@dataclass(frozen=True, slots=True)
class LogAudit:
    """The result of an audit of logs; ``figures`` are those of the clients' own compactions, assist, answer.

    ``compactions`` counts those in the logs, ``each`` has those that are followed by calls and have a summary that
    can be read. ``values`` is how many the next calls took.
    """

    sessions: dict[str, int]
    calls: int
    compactions: int
    each: tuple[CompactionRow, ...]
    values: int
    full_tokens: float
    figures: tuple[WayFigures, ...]
    skipped_lines: int
    unknown_files: tuple[str, ...]
    unreadable_files: tuple[str, ...]
    token_counter: str

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        ways = [{name: k._asdict() for name, k in row.kept.items()} for row in self.each]
        return asdict(self) | {
            "each": [row._asdict() | {"kept": k} for row, k in zip(self.each, ways, strict=True)],
            "figures": [f._asdict() for f in self.figures],
            "sentences": self.sentences(),
        }

    def sentences(self) -> list[str]:
        """The result in plain words."""
        sessions = ", ".join(f"{n:,} of {client}" for client, n in self.sessions.items())
        count = count_of(sum(self.sessions.values()), "session")
        sessions_read = f"{count} ({sessions})" if sessions else "No session"
        lines = [
            f"{sessions_read}, {count_of(self.calls, 'call')}, {count_of(self.compactions, 'compaction')}."
        ]
        for f in self.figures:
            values, bound = ("none" if x is None else f"{percent(x)}%" for x in (f.values, f.bound))
            if f.name == OWN:
                lines.append(
                    f"After {count_of(len(self.each), 'compaction')} the next {NEXT_CALLS} calls took "
                    f"{self.values:,} values from the history before it ({self.full_tokens:,.0f} tokens on average)."
                )
            failed = f" (it failed at {count_of(f.failures, 'compaction')})" if f.failures else ""
            lines.append(
                f"{_KEPT[f.name]} {values} of the values ({bound} next to what they belong to) in "
                f"{f.tokens:,.0f} tokens{failed}."
            )
        if self.compactions and not self.each:
            lines.append("No compaction has both a readable summary and calls after it, so none is compared.")
        return lines


_KEPT = {
    OWN: "The agent's own compaction kept",
    ASSIST: "This summary and what the bank adds to it (assist) would have kept",
    ANSWER: "The bank alone, in as many tokens as the summary (answer), would have kept",
}


def audit_logs(
    files: TraceFiles,
    runs: Sequence[Trace],
    *,
    bank: MemoryBankSettings | None = None,
    assist: int = ServiceSettings().compaction_tokens,
    counter: str = ENCODING,
    progress: Callable[[int, int], None] | None = None,
) -> LogAudit:
    """Measure the compactions in the runs that were read of log files.

    ``bank``: the settings of the bank that adds ``assist`` tokens to a summary, or answers in its place with the
    tokens of each summary. Nothing of the contents is in the result.
    """
    costs = Costs(named_counter(counter))
    rows: list[CompactionRow] = []
    seen: set[str] = set()
    with quiet():
        for n, session in enumerate(runs, 1):
            for compaction in compactions_of(session, seen):
                ways = compaction.ways(costs, bank, assist)
                values = compaction.needed_values()
                by_way = {name: kept_by(way, values, costs) for name, way in ways.items()}
                rows.append(CompactionRow(session.id, compaction.number, by_way))
            if progress is not None:
                progress(n, len(runs))
    return LogAudit(
        sessions=dict(Counter(session.client or "message list" for session in runs)),
        calls=files.calls,
        compactions=sum(len(session.compactions) for session in runs),
        each=tuple(rows),
        values=sum(row.kept[OWN].needed for row in rows),
        full_tokens=sum(row.kept[FULL].tokens for row in rows) / max(1, len(rows)),
        figures=tuple(figures_of(name, rows) for name in (OWN, ASSIST, ANSWER) if rows),
        skipped_lines=len(files.skipped),
        unknown_files=tuple(files.unknown),
        unreadable_files=tuple(files.unreadable),
        token_counter=costs.counter.name,
    )


def figures_of(name: str, rows: Sequence[CompactionRow]) -> WayFigures:
    """The results of one way over all compactions; shares are None where no value was needed."""
    figures = [row.kept[name] for row in rows]
    needed = sum(k.needed for k in figures)
    shares = (sum(k.present for k in figures), sum(k.bound for k in figures))
    values, bound = (share / needed if needed else None for share in shares)
    return WayFigures(
        name, values, bound, sum(k.tokens for k in figures) / len(figures), sum(k.failed for k in figures)
    )


def kept_by(way: Callable[[], Sequence[object]], values: Sequence[Need], costs: Costs) -> KeptByOne:
    """The values in the messages of a way; none for one that raises."""
    try:
        messages, failed = way(), False
    except Exception:  # counted: a failure says nothing about the others
        messages, failed = [], True
    texts = texts_of(messages)
    recalled = [recall(need, texts) for need in values]
    present, bound = (sum(r[part] for r in recalled) for part in (0, 1))
    return KeptByOne(len(values), present, bound, costs.total(messages), failed)


@dataclass(frozen=True, slots=True)
class Compaction:
    """The ``number``-th compaction of a session: the history that it replaced by a summary, and the next 30 calls.

    The history is what came since the compaction before, with that one's summary as a user message; ``tail`` is where
    its last interaction begins.
    """

    session: Trace
    number: int
    history: list[Any]
    summary: str
    after: list[dict[str, Any]]
    tail: int

    def ways(
        self, costs: Costs, bank: MemoryBankSettings | None, assist: int, answer: int | None = None
    ) -> dict[str, Callable[[], list[Any]]]:
        """Makers of the messages of each way to compact: ANSWER has the tokens of the summary, or ``answer``."""
        summary = {"role": "user", "content": self.summary}
        room = costs.of(summary) - costs.of({"role": "user", "content": ""})
        from_bank = partial(_bank_says, self.history, bank, costs, self.session.client == "Claude Code")
        return {
            OWN: lambda: [summary],
            FULL: lambda: self.history,
            ASSIST: partial(from_bank, assist, summary),
            ANSWER: partial(from_bank, room if answer is None else answer),
        }

    def needed_values(self) -> list[Need]:
        """The values of the next calls that outputs before the compaction showed; each once.

        What user messages or the last interaction show is left out.
        """
        outputs = texts_of(m for m in self.history[: self.tail] if kind_of(m) is MessageKind.RESULT)
        recent = texts_of(self.history[self.tail :])
        by_value: dict[str, Need] = {}
        for turn in needs_of(Trace("", [*self.history, *self.after])):
            if turn.position >= len(self.history) and turn.kind == "call":
                for need in (n for n in turn.needs if n.born == "tool"):
                    if any(t.holds(need.forms) for t in outputs) and not any(
                        t.holds(need.forms) for t in recent
                    ):
                        by_value.setdefault(need.value, need)
        return list(by_value.values())


def compactions_of(session: Trace, seen: set[str]) -> Iterator[Compaction]:
    """The compactions of a session that are followed by calls; those whose summary is in ``seen`` are left out."""
    start, before = 0, None
    stops = [position for position, _ in session.compactions[1:]] + [len(session.messages)]
    for number, ((position, summary), stop) in enumerate(zip(session.compactions, stops, strict=False), 1):
        history = session.messages[start:position]
        if before is not None:
            history = [{"role": "user", "content": before}, *history]
        start, before = position, summary
        after = next_calls(session.messages[position:stop])
        pairs = list(pairwise(map(kind_of, history)))
        if summary is not None and summary not in seen and after and _ANSWERED in pairs:
            seen.add(summary)
            tail = len(pairs) - 1 - pairs[::-1].index(_ANSWERED)
            yield Compaction(session, number, history, summary, after, tail)


def next_calls(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages up to the thirtieth call; none when there is no call."""
    count = 0
    for position, message in enumerate(messages):
        if kind_of(message) is MessageKind.CALL:
            count += len(calls_of(message))
            if count >= NEXT_CALLS:
                return messages[: position + 1]
    return messages if count else []


def _bank_says(
    history: Sequence[object],
    bank: MemoryBankSettings | None,
    costs: Costs,
    users_words: bool,
    most: int,
    message: dict[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """The messages for a history where a bank answers in ``most`` tokens, or adds them to the summary ``message``.

    ``users_words``: an answer repeats the user's messages, as for clients that do not keep them.
    """
    local = {"selection": "evidence", "embedding_model": "lexical", "observer_mode": "off"}
    with MemoryBankState("lexical", counter=costs.counter) as state:
        apply_memory_bank_strategy(
            copied(history), None, (bank or MemoryBankSettings()).model_copy(update=local), state
        )
        summary = message["content"] if message else ""
        text = what_is_known(state, most, lacking=summary, users_words=users_words and not message)
    return [*([message] if message else ()), {"role": "user", "content": text}]
