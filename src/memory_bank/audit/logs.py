"""The audit of agents' logs: what their compactions kept, what the bank would have kept, what was read again."""

from __future__ import annotations

import math
import re
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from memory_bank import MemoryBankSettings, MemoryBankState, apply_memory_bank_strategy
from memory_bank.audit.copies import Tally, TextIndex, characters_kept, copied_stretches
from memory_bank.audit.costs import Costs, named_counter
from memory_bank.audit.measure import Figures, intervals_of, json_value, ratio, ratio_of_sums
from memory_bank.audit.needs import Need, needs_of, recall
from memory_bank.audit.processes import ProgressReport, quiet
from memory_bank.audit.replay import Strategy, copied, with_budgets
from memory_bank.audit.tables import Column, count_of, percent, whole
from memory_bank.audit.text import parsed_arguments, texts_of
from memory_bank.audit.traces import Trace, TraceFiles
from memory_bank.config import ServiceSettings
from memory_bank.context import what_is_known
from memory_bank.transcript import ENCODING, MessageKind, calls_of, content_text, kind_of, read

NEXT_CALLS = 30
"""Calls after a compaction whose values and copied text are looked for."""

OWN, ASSIST, ANSWER, FULL = "own compaction", "assist", "answer", "history before"
"""The agent's own summary, the same and what the bank adds to it, the bank's text alone, and what all are made of."""
_ANSWERED = (MessageKind.CALL, MessageKind.RESULT)


class KeptByOne(NamedTuple):
    """What one way to compact kept: values present, values next to their words, characters of copied text, tokens."""

    values: Tally
    bound: Tally
    characters: Tally
    tokens: int
    failed: bool = False


class CompactionRow(NamedTuple):
    """One compaction, the ``number``-th of its session: what each way by its name kept, FULL included.

    ``read_again``: reads of files, up to the next compaction, of what one had removed.
    """

    session: str
    number: int
    kept: Mapping[str, KeptByOne]
    read_again: int

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        return self._asdict() | {"kept": {name: kept._asdict() for name, kept in self.kept.items()}}


class Rereads(NamedTuple):
    """Reads of files, those of what had been read before, those of what a compaction had removed, their tokens."""

    reads: int = 0
    again: int = 0
    after_compaction: int = 0
    tokens_again: int = 0


@dataclass(frozen=True, slots=True)
class LogAudit:
    """The result of an audit of logs; the first figures are those of the clients' own compactions, assist, answer.

    Figures are what one way to compact kept over all compactions (shares, mean tokens), and its ``failures``, the
    compactions at which it raised. ``compactions`` counts those in the logs, ``each`` has those that are followed by
    calls and have a summary that can be read. ``values`` and ``characters`` are what the next calls took.
    """

    sessions: dict[str, int]
    calls: int
    compactions: int
    each: tuple[CompactionRow, ...]
    values: int
    characters: int
    full_tokens: float
    figures: tuple[Figures, ...]
    rereads: Rereads
    skipped_lines: int
    unknown_files: tuple[str, ...]
    unreadable_files: tuple[str, ...]
    token_counter: str

    def as_dict(self) -> dict[str, Any]:
        """JSON values; NaN is None."""
        values = {f.name: json_value(getattr(self, f.name)) for f in fields(self)}
        values["each"] = [row.as_dict() for row in self.each]
        figures = [f.as_dict() for f in self.figures]
        return values | {"figures": figures, "rereads": self.rereads._asdict(), "sentences": self.sentences()}

    def sentences(self) -> list[str]:
        """The result in plain words."""
        sessions = ", ".join(f"{n:,} of {client}" for client, n in self.sessions.items())
        count = count_of(sum(self.sessions.values()), "session")
        found = f"{count} ({sessions})" if sessions else "No session"
        said = [f"{found}, {count_of(self.calls, 'call')}, {count_of(self.compactions, 'compaction')}."]
        for f in self.figures:
            values, bound, copied_text = (
                "none" if math.isnan(x) else f"{percent(x)}%" for x in (f.values, f.bound, f.characters)
            )
            if f.name == OWN:
                said.append(
                    f"After {count_of(len(self.each), 'compaction')} the next {NEXT_CALLS} calls took "
                    f"{self.values:,} values and {self.characters:,} characters of copied text from the history "
                    f"before it ({self.full_tokens:,.0f} tokens on average)."
                )
            kept = _KEPT.get(f.name, f"{f.name} would have kept")
            failed = f" (it failed at {count_of(f.failures, 'compaction')})" if f.failures else ""
            said.append(
                f"{kept} {values} of the values ({bound} next to what they belong to) and {copied_text} of the "
                f"copied text in {f.tokens:,.0f} tokens{failed}."
            )
        if self.compactions and not self.each:
            said.append("No compaction has both a readable summary and calls after it, so none is compared.")
        elif not self.compactions:
            said.append(
                "No compaction is recorded, so there is nothing to compare a memory with. What memory saves at work "
                "is printed by `memory-bank run -- claude`, or codex."
            )
        r = self.rereads
        if r.reads:
            said.append(
                f"Of {count_of(r.reads, 'file read')} {r.again:,} ({percent(r.again / r.reads)}%) read again what "
                f"had been read before, {r.after_compaction:,} of them what a compaction had removed; together "
                f"{r.tokens_again:,} tokens."
            )
        return said


_KEPT = {
    OWN: "The agent's own compaction kept",
    ASSIST: "This summary and what the bank adds to it (assist) would have kept",
    ANSWER: "The bank alone, in as many tokens as the summary (answer), would have kept",
}

LOG_COLUMNS: tuple[Column[Figures], ...] = (
    Column("values", lambda f: f.values, percent,
           f"values that the next {NEXT_CALLS} calls took from before the compaction and that were kept, %"),
    Column("bound", lambda f: f.bound, percent, "those kept next to what they belong to, %"),
    Column("copied", lambda f: f.characters, percent,
           "characters that these calls copied from before the compaction and that were kept verbatim, %"),
    Column("tokens", lambda f: f.tokens, whole, "mean tokens of the summary, or of what stands in its place"),
)  # fmt: skip


def each_table(rows: Sequence[CompactionRow]) -> tuple[list[str], list[list[str]]]:
    """A table of compactions: titles, and rows with the tokens of the history, values needed, what each way kept."""
    ways = [name for name in rows[0].kept if name != FULL]
    columns = (title for way in ways for title in (f"{way} %", "tokens"))
    titles = ["compaction", "history", "values", *columns, "read again"]
    cells = []
    for row in rows:
        full, figures = row.kept[FULL], []
        for kept in (row.kept[way] for way in ways):
            figures += [percent(kept.bound.has / kept.bound.of) if kept.bound.of else "–", f"{kept.tokens:,}"]
        first = [f"{row.session[:8]} {row.number}", f"{full.tokens:,}", f"{full.values.of:,}"]
        cells.append([*first, *figures, f"{row.read_again:,}"])
    return titles, cells


def audit_logs(
    files: TraceFiles,
    runs: Sequence[Trace],
    strategies: Sequence[Strategy] = (),
    *,
    bank: MemoryBankSettings | None = None,
    assist: int = ServiceSettings().compaction_tokens,
    counter: str = ENCODING,
    progress: ProgressReport | None = None,
) -> LogAudit:
    """Measure the compactions and the reads in the runs that were read of log files.

    ``bank``: the settings of the bank that adds ``assist`` tokens to a summary, or answers in its place. It and
    strategies that use a ``history_budget`` get the tokens of each summary. Nothing of the contents is in the result.
    """
    costs = Costs(named_counter(counter))
    rows: list[list[CompactionRow]] = []  # of each session
    reads: list[Rereads] = []
    clients: Counter[str] = Counter()
    seen: set[str] = set()
    calls = compactions = 0
    with quiet():
        for n, session in enumerate(runs, 1):
            clients[session.client or "message list"] += 1
            calls += sum(len(calls_of(m)) for m in session.messages if m.get("role") == "assistant")
            compactions += len(session.compactions)
            rows.append(measure_compactions(session, strategies, costs, seen, bank, assist))
            reads.append(count_rereads(session, costs))
            if progress is not None:
                progress(n, n)
    measured = [row for own in rows for row in own]
    ways = measured[0].kept if measured else ()
    return LogAudit(
        sessions=dict(clients),
        calls=calls,
        compactions=compactions,
        each=tuple(measured),
        values=sum(row.kept[OWN].values.of for row in measured),
        characters=sum(row.kept[OWN].characters.of for row in measured),
        full_tokens=ratio(sum(row.kept[FULL].tokens for row in measured), len(measured)),
        figures=tuple(figures_of(name, rows) for name in ways if name != FULL),
        rereads=Rereads(*map(sum, zip(*reads, strict=True))),
        skipped_lines=len(files.skipped),
        unknown_files=tuple(files.unknown),
        unreadable_files=tuple(files.unreadable),
        token_counter=costs.counter.name,
    )


def figures_of(name: str, sessions: Sequence[Sequence[CompactionRow]]) -> Figures:
    """What one way kept over all compactions, given by session."""

    def part(share: str, rows: Sequence[CompactionRow]) -> tuple[float, float]:
        tallies = [getattr(row.kept[name], share) for row in rows]
        return sum(t.has for t in tallies), sum(t.of for t in tallies)

    parts = {share: partial(part, share) for share in ("values", "bound", "characters")}
    kept = [row.kept[name] for rows in sessions for row in rows]
    tokens, failures = ratio(sum(k.tokens for k in kept), len(kept)), sum(k.failed for k in kept)
    shares = {share: ratio_of_sums(map(own, sessions)) for share, own in parts.items()}
    return Figures(
        {"name": name, "tokens": tokens, "failures": failures, **shares}, intervals_of(sessions, parts)
    )


def measure_compactions(
    session: Trace,
    strategies: Sequence[Strategy],
    costs: Costs,
    seen: set[str],
    bank: MemoryBankSettings | None = None,
    assist: int = ServiceSettings().compaction_tokens,
    answer: int | None = None,
) -> list[CompactionRow]:
    """The compactions of a session that are followed by calls; those whose summary is in ``seen`` are left out.

    A compaction sees the history since the one before, with that one's summary as a user message. The values are
    those of the next 30 calls that only an output of this history showed; the text is what these calls copy from it.
    What user messages or the last interaction show is left out. Strategies get a budget of the summary's tokens, and
    so does ANSWER unless ``answer`` says how many; ASSIST has ``assist`` tokens beside the summary.
    """
    rows: list[CompactionRow] = []
    start, before = 0, None
    stops = [position for position, _ in session.compactions[1:]] + [len(session.messages)]
    for number, ((position, summary), stop) in enumerate(zip(session.compactions, stops, strict=False), 1):
        history = session.messages[start:position]
        if before is not None:
            history = [{"role": "user", "content": before}, *history]
        start, before = position, summary
        after = _next_calls(session.messages[position:stop])
        pairs = list(pairwise(map(kind_of, history)))
        if summary is None or summary in seen or not after or _ANSWERED not in pairs:
            continue
        seen.add(summary)
        own = {"role": "user", "content": summary}
        tail = len(pairs) - 1 - pairs[::-1].index(_ANSWERED)  # the last interaction
        values, stretches = _needed_values(history, after, tail), _copied_text(history, after, tail)

        def kept_by(
            messages: Sequence[object], values: Any = values, stretches: Any = stretches
        ) -> KeptByOne:
            texts, index = texts_of(messages), TextIndex()
            for message in messages:
                index.add_message(message)
            recalled = [recall(need, texts) for need in values]
            present, bound = (Tally(sum(r[part] for r in recalled), len(values)) for part in (0, 1))
            return KeptByOne(present, bound, characters_kept(stretches, index), costs.total(messages))

        always = [*filter(_is_asked, history), *history[tail:]]
        room = costs.of(own) - costs.of({"role": "user", "content": ""})
        trace = Trace(session.id, history)
        known = partial(_bank_says, history, bank, costs, session.client == "Claude Code")
        ways: dict[str, Callable[[], Sequence[object]]]
        ways = {OWN: partial(list, [own]), FULL: partial(list, history), ASSIST: partial(known, assist, own)}
        ways[ANSWER] = partial(known, room if answer is None else answer)
        ways |= {s.name: partial(_memory_of, s, trace, always, costs.of(own)) for s in strategies}
        kept: dict[str, KeptByOne] = {}
        for name, way in ways.items():
            try:
                kept[name] = kept_by(way())
            except Exception:  # counted: a failure says nothing about the others
                kept[name] = kept_by([])._replace(failed=True)
        again = count_rereads(session, costs, number).after_compaction
        rows.append(CompactionRow(session.id, number, kept, again))
    return rows


def _next_calls(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages up to the thirtieth call; none when there is no call."""
    count = 0
    for position, message in enumerate(messages):
        if kind_of(message) is MessageKind.CALL:
            count += len(calls_of(message))
            if count >= NEXT_CALLS:
                return messages[: position + 1]
    return messages if count else []


def _is_asked(message: object) -> bool:
    return kind_of(message) in (MessageKind.SYSTEM, MessageKind.USER)


def _bank_says(
    history: Sequence[object],
    bank: MemoryBankSettings | None,
    costs: Costs,
    users_words: bool,
    most: int,
    own: dict[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """What stands for a history where a bank answers in ``most`` tokens, or adds them to the summary ``own``.

    ``users_words``: an answer repeats the user's messages, as for clients that do not keep them.
    """
    local = {"selection": "evidence", "embedding_model": "lexical", "observer_mode": "off"}
    with MemoryBankState("lexical", counter=costs.counter) as state:
        apply_memory_bank_strategy(
            copied(history), None, (bank or MemoryBankSettings()).model_copy(update=local), state
        )
        summary = own["content"] if own else ""
        text = what_is_known(state, most, lacking=summary, users_words=users_words and not own)
    return [*([own] if own else ()), {"role": "user", "content": text}]


def _memory_of(strategy: Strategy, history: Trace, always: Sequence[object], budget: int) -> list[Any]:
    """What a strategy shows beyond what ``always`` stands in a context; ``budget`` is its ``history_budget``."""
    [limited] = with_budgets(strategy, [max(1, budget)], folds=True)
    with limited.start(history) as build:
        context = build(copied(history.messages), ())
    return [m for m in context if m not in always]


def _needed_values(history: Sequence[object], after: Sequence[object], tail: int) -> list[Need]:
    """The values of the next calls that outputs before the compaction showed; each once."""
    outputs = texts_of(m for m in history[:tail] if kind_of(m) is MessageKind.RESULT)
    recent = texts_of(history[tail:])
    found: dict[str, Need] = {}
    for turn in needs_of(Trace("", [*history, *after])):
        if turn.position >= len(history) and turn.kind == "call":
            for need in (n for n in turn.needs if n.born == "tool"):
                if any(t.holds(need.forms) for t in outputs) and not any(t.holds(need.forms) for t in recent):
                    found.setdefault(need.value, need)
    return list(found.values())


def _copied_text(history: Sequence[object], after: Sequence[object], tail: int) -> list[str]:
    """The stretches that the next calls copy from before the compaction; each once."""
    source, near = TextIndex(), TextIndex()
    for position, message in enumerate(history):
        (near if _is_asked(message) or position >= tail else source).add_message(message)
    found: dict[str, None] = {}
    for message in after:
        if kind_of(message) is MessageKind.USER:
            near.add_message(message)
        found |= dict.fromkeys(copied_stretches(message, source, near))
    return list(found)


def count_rereads(session: Trace, costs: Costs, compaction: int | None = None) -> Rereads:
    """The reads of a session; of one ``compaction``: those between it and the next.

    A read is a call that reads one file (by a tool's name, or by cat, head, sed -n …). A file is read again when at
    least half of the lines had been read from it before.
    """
    lines_of: dict[str, dict[str, int]] = {}  # file → line → compactions made when it was last read
    asked: dict[str, str] = {}  # call → file
    reads = again = removed = tokens = 0
    for position, message in enumerate(session.messages):
        kind = kind_of(message)
        if kind is MessageKind.CALL:
            for call in calls_of(message):
                if path := file_read(call.name, parsed_arguments(call.arguments)):
                    asked[call.call_id or ""] = path
        elif kind is MessageKind.RESULT and (path := asked.pop(str(read(message, "tool_call_id") or ""), "")):
            done = sum(p <= position for p, _ in session.compactions)
            raw = content_text(read(message, "content")).splitlines()
            lines = list(filter(None, (re.sub(r"^\s*\d+\s?[\t→:|]", "", line).strip() for line in raw)))
            known = lines_of.setdefault(path, {})
            old = [known[line] for line in lines if line in known]
            counts = compaction in (None, done)
            reads += counts
            if lines and counts and len(old) >= 0.5 * len(lines):
                again += 1
                removed += max(old) < done
                tokens += costs.of(message)
            known.update(dict.fromkeys(lines, done))
    return Rereads(reads, again, removed, tokens)


def file_read(name: str, arguments: object) -> str:
    """The file that a call reads, or ""."""
    if not isinstance(arguments, Mapping):
        return ""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)
    if re.search(r"(?:^|[-_.:/ ])(?:read|view|open|cat|get)(?:$|[-_.:/ ])", words, re.I):
        paths = ("file_path", "path", "filename", "file", "notebook_path", "target_file", "uri")
        return next((v for k in paths if isinstance(v := arguments.get(k), str) and v), "")
    if not re.search(r"bash|shell|exec|terminal|command", name, re.I):
        return ""
    command = arguments.get("command", arguments.get("cmd"))
    if isinstance(command, list):
        wrapped = len(command) == 3 and str(command[1]).startswith("-")
        command = command[-1] if wrapped else shlex.join(map(str, command))
    if not isinstance(command, str):
        return ""
    command = re.sub(r"^\s*cd [^;&|]+&&", "", command)
    if re.search(r"[;&<>$`\n]", command):
        return ""
    try:
        parts = shlex.split(command.split("|")[0])
    except ValueError:
        return ""
    pagers = ("cat", "head", "tail", "nl", "less", "more", "bat", "sed")
    if not parts or parts[0] not in pagers or (parts[0] == "sed" and "-n" not in parts):
        return ""
    files = [p for p in parts[1:] if not p.startswith("-") and not re.fullmatch(r"[\d,$]+p?", p)]
    return files[0] if len(files) == 1 else ""
