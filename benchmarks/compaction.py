"""Compactions head to head: what a summary keeps (pass), the summary and the bank (assist), the bank alone (answer).

    python benchmarks/compaction.py ../shared/data/claude_code_dev.jsonl.gz
    python benchmarks/compaction.py ~/.claude/projects ~/.codex/sessions --assist 3000

Agents' logs have compactions with the summaries that a model wrote: `memory-bank audit` measures the same. Recorded
runs ({"id", "messages"} a line) have none: they are compacted here at each ``--every`` tokens, and in the place of a
model's summary stands what the agent itself said, the newest of its words, in ``--summary`` tokens. By default that
is the mean length of the 21 summaries with which runs of claude_code_dev begin.

Printed are shares of the values that the next 30 calls took from the history before the compaction (``bound``: next
to what they belong to), the characters that these calls copied from it, tokens, and how often
files were read again. Clients differ: Codex keeps the
user's messages itself, Claude Code does not, so that an answer to it repeats them (``--users-words``).

``--handoff 2000 4000 8000``: instead, what `memory-bank handoff` says of the half of each recorded run in so many
tokens, beside the agent's own newest words in ``--summary`` tokens: the share of the values of earlier outputs that
the next 30 calls take. Its bank has what a service stores: calls, what the user said, the answers.

``--notes 20``: instead, what the notes of ``fold_note`` cost in the first 20 recorded runs, by a model whose notes
have the allowed 300 tokens, at the prices of gpt-4.1-mini, beside what the runs' own requests cost at those of
gpt-4.1 (input alone, with a prefix cache).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from harness import about, command_line
from measuring.copies import Tally, TextIndex, characters_kept, copied_stretches
from measuring.measure import intervals_of, ratio, ratio_of_sums
from measuring.rereads import Rereads, count_rereads
from measuring.tables import markdown_table
from memory_bank import MemoryBankSettings, MemoryBankState, apply_memory_bank_strategy
from memory_bank.audit.costs import Costs, ScriptedCache, named_counter
from memory_bank.audit.figures import percent
from memory_bank.audit.logs import (
    ANSWER,
    ASSIST,
    FULL,
    OWN,
    Compaction,
    KeptByOne,
    compactions_of,
    kept_by,
    next_calls,
)  # fmt: skip
from memory_bank.audit.sessions import Client, log_files
from memory_bank.audit.traces import Trace, TraceFiles, read_traces
from memory_bank.bank.session import NOTE_TOKENS
from memory_bank.bank.steps import StepFigures, StepToStore, add_steps, packed
from memory_bank.config import Price, ServiceSettings
from memory_bank.context import handed_on
from memory_bank.pricing import Usage, cost
from memory_bank.testing import ScriptedModel
from memory_bank.transcript import ENCODING, MessageKind, calls_of, content_text, kind_of, read
from memory_bank.transcript.shortening import fit_text

LOCAL = MemoryBankSettings(selection="evidence", embedding_model="lexical", observer_model="extractive")


def compacted(trace: Trace, every: int, summary: int, client: Client, costs: Costs) -> Trace:
    """A run with a compaction whenever the messages since the one before have so many tokens."""
    session = Trace(trace.id, list(trace.messages), client=client)
    tokens = start = 0
    for position, message in enumerate(trace.messages):
        tokens += costs.of(message)
        if tokens >= every and kind_of(message) is MessageKind.RESULT:
            words = agents_words(trace.messages[start : position + 1], summary, costs)
            session.compactions.append((position + 1, words))
            start, tokens = position + 1, costs.of({"role": "user", "content": words})
    return session


def agents_words(messages: list[Any], most: int, costs: Costs) -> str:
    """The newest of what the agent said, in at most so many tokens."""
    said: list[str] = []
    for message in reversed(messages):
        text = content_text(read(message, "content")) if read(message, "role") == "assistant" else ""
        if text.strip():
            most -= costs.counter.count_text(text) + 1
            if most < 0:
                break
            said.append(text)
    return "\n".join(reversed(said)) or "(nothing was said)"


def sessions_in(paths: list[Path], every: int, summary: int, client: Client, costs: Costs) -> Iterator[Trace]:
    """The sessions of logs, and those made of recorded runs."""
    for run in TraceFiles(log_files(paths), lambda text: print(text, file=sys.stderr)):
        yield run if run.client else compacted(run, every, summary, client, costs)


class Row(NamedTuple):
    """What each way to compact kept of the values and of the copied text of a compaction."""

    session: str
    number: int
    kept: dict[str, KeptByOne]
    copied: dict[str, Tally]


def measure(compaction: Compaction, costs: Costs, assist: int, answer: int | None) -> Row:
    """Measure every way on a compaction."""
    values, stretches = compaction.needed_values(), copied_text(compaction)
    kept, copied = {}, {}
    for name, way in compaction.ways(costs, LOCAL, assist, answer).items():
        messages = way()
        kept[name] = kept_by(lambda messages=messages: messages, values, costs)  # type: ignore[misc]
        index = TextIndex()
        for message in messages:
            index.add_message(message)
        copied[name] = characters_kept(stretches, index)
    return Row(compaction.session.id, compaction.number, kept, copied)


def copied_text(compaction: Compaction) -> list[str]:
    """The stretches that the next calls copy from before the compaction; each once."""
    source, near = TextIndex(), TextIndex()
    asked = (MessageKind.SYSTEM, MessageKind.USER)
    for position, message in enumerate(compaction.history):
        is_near = kind_of(message) in asked or position >= compaction.tail
        (near if is_near else source).add_message(message)
    found: dict[str, None] = {}
    for message in compaction.after:
        if kind_of(message) is MessageKind.USER:
            near.add_message(message)
        found |= dict.fromkeys(copied_stretches(message, source, near))
    return list(found)


def parts_of(way: str) -> dict[str, Callable[[Sequence[Row]], tuple[float, float]]]:
    """For each share of a way: what it kept of the compactions of a session, and of how much."""

    def values(rows: Sequence[Row]) -> tuple[float, float]:
        return sum(r.kept[way].present for r in rows), sum(r.kept[way].needed for r in rows)

    def bound(rows: Sequence[Row]) -> tuple[float, float]:
        return sum(r.kept[way].bound for r in rows), sum(r.kept[way].needed for r in rows)

    def copied(rows: Sequence[Row]) -> tuple[float, float]:
        return sum(r.copied[way].has for r in rows), sum(r.copied[way].of for r in rows)

    return {"values": values, "bound": bound, "copied": copied}


def print_notes(runs: Iterator[Trace], costs: Costs) -> None:
    """A row a table: the notes of all folds, and the requests of the agent."""
    note = "decided " * 400  # cut to the allowed length
    observer, agent = Price(prompt=0.4, completion=1.6), Price(prompt=2.0, completion=8.0, cached=0.5)
    settings = MemoryBankSettings(
        selection="evidence", embedding_model="lexical", observer_model="gpt-4.1-mini", observer_mode="off",
        fold_note="observer",
    )  # fmt: skip
    notes, asked, answered, paid, sessions, steps = 0, 0, 0, 0.0, 0, 0

    def reply(messages: list[Any], _model: str) -> dict[str, Any]:
        written = costs.counter.count_text(fit_text(note, NOTE_TOKENS, costs.counter.count_text))
        nonlocal notes, asked, answered
        notes, asked, answered = notes + 1, asked + costs.total(messages), answered + written
        return {"choices": [{"message": {"role": "assistant", "content": note}}]}

    for run in runs:
        cache = ScriptedCache(costs.counter)
        with MemoryBankState("lexical", counter=costs.counter) as state:
            for end in (n for n, m in enumerate(run.messages) if kind_of(m) is MessageKind.CALL):
                context, _ = apply_memory_bank_strategy(
                    run.messages[:end], ScriptedModel(reply), settings, state
                )
                state.flush(60)
                paid += cost(cache.add(costs.parts(context)), agent)
                steps += 1
        sessions += 1
    spent = cost(Usage(asked, output=answered), observer)
    lines = [
        ["notes", f"{notes:,}", f"{asked / max(1, notes):,.0f}", f"{answered / max(1, notes):,.0f}", f"{spent:.3f}"],
        ["the agent's requests", f"{steps:,}", "", "", f"{paid:.3f}"],
    ]  # fmt: skip
    print(markdown_table([f"{sessions} runs", "calls", "tokens read", "written", "dollars"], lines))
    share = f"{spent / max(1, notes):.4f} dollars a note, {percent(spent / paid)}% of the requests"
    print(f"\n{share}")


def half_of(run: Trace) -> Compaction | None:
    """A run that stops at its half, with the next calls; None where calls are missing on a side."""
    at = len(run.messages) // 2
    while at < len(run.messages) and kind_of(run.messages[at]) is MessageKind.RESULT:
        at += 1
    history, after = list(run.messages[:at]), next_calls(run.messages[at:])
    has_calls = any(kind_of(m) is MessageKind.CALL for m in history)
    return Compaction(run, 1, history, "", after, at) if has_calls and after else None


def handed(history: list[Any], budgets: Sequence[int], costs: Costs) -> list[str]:
    """What is handed on of a conversation, with each budget, by a process that has its bank alone."""
    with MemoryBankState("lexical", counter=costs.counter, fixed=True) as state:
        apply_memory_bank_strategy(history, None, LOCAL.model_copy(update={"observer_mode": "off"}), state)
        records, answers = 0, list[StepToStore]()
        for number, message in enumerate(m for m in history if read(m, "role") == "assistant"):
            text = content_text(read(message, "content"))
            said = packed({"parts": [{"text": text}] if text else [], "calls": []})
            figures = StepFigures(state.session_id, number + 1.0, 0, 0, 0, records, "rebuilt", "", 0.0)
            answers.append(StepToStore(figures, answer=said))
            records += len(calls_of(message))
        add_steps(state.database, answers, ServiceSettings().steps_kept)
        other = MemoryBankState(database=state.database, counter=costs.counter, fixed=True)
        return [handed_on(other, budget) for budget in budgets]


def print_handoff(runs: Iterator[Trace], budgets: Sequence[int], summary: int, costs: Costs) -> None:
    """A row a budget: what is handed on holds of the values that the next calls take."""
    rows: dict[str, list[KeptByOne]] = {}
    for run in runs:
        half = half_of(run)
        values = half.needed_values() if half else []
        if half is None or not values:
            continue
        texts = [("the agent's words", agents_words(half.history, summary, costs))]
        texts += [
            (f"handoff {b:,}", t) for b, t in zip(budgets, handed(half.history, budgets, costs), strict=True)
        ]
        for name, text in texts:
            messages = [{"role": "user", "content": text}]
            rows.setdefault(name, []).append(kept_by(lambda messages=messages: messages, values, costs))  # type: ignore[misc]
    lines = []
    for name, kept in rows.items():
        needed = sum(k.needed for k in kept)
        shares = [
            percent(ratio(sum(getattr(k, part) for k in kept), needed)) for part in ("present", "bound")
        ]
        lines.append(
            [name, f"{len(kept)}", f"{needed:,}", *shares, f"{sum(k.tokens for k in kept) / len(kept):,.0f}"]
        )
    print(markdown_table(["", "runs", "values", "values %", "bound %", "tokens"], lines))


def main() -> None:
    parser = command_line(__doc__ or "")
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument(
        "--every", type=int, default=30_000, help="tokens of a recorded run between compactions"
    )
    parser.add_argument(
        "--summary", type=int, default=2_700, help="tokens of a summary of a recorded run, at most"
    )
    parser.add_argument("--answer", type=int, help="tokens of an answer; default: those of each summary")
    parser.add_argument(
        "--assist",
        type=int,
        default=ServiceSettings().compaction_tokens,
        help="tokens that assist adds at most",
    )
    parser.add_argument(
        "--users-words", action="store_true", help="answers to runs repeat the user's messages"
    )
    parser.add_argument("--notes", type=int, help="what notes at folds cost in so many recorded runs")
    parser.add_argument(
        "--handoff", type=int, nargs="+", help="what a session's handoff holds in so many tokens"
    )
    parser.add_argument("--limit", type=int, help="so many recorded runs, of --handoff")
    parser.add_argument("--json", type=Path, help="write all compactions, without contents")
    options = parser.parse_args()
    client: Client = "Claude Code" if options.users_words else "message list"
    costs, seen, rows, began = Costs(named_counter(ENCODING)), set[str](), [], time.perf_counter()
    reads: list[Rereads] = []
    if options.handoff:
        runs = (run for path in options.paths for run in read_traces(path) if isinstance(run, Trace))
        print_handoff(islice(runs, options.limit), options.handoff, options.summary, costs)
        return
    if options.notes:
        runs = (run for path in options.paths for run in read_traces(path) if isinstance(run, Trace))
        print_notes(islice(runs, options.notes), costs)
        return
    for session in sessions_in(options.paths, options.every, options.summary, client, costs):
        reads.append(count_rereads(session, costs))
        measured = [measure(c, costs, options.assist, options.answer) for c in compactions_of(session, seen)]
        rows += [measured] if measured else []
    each = [row for own in rows for row in own]
    if not each:
        sys.exit("there is no compaction with calls before and after it")
    history = sum(row.kept[FULL].tokens for row in each) / len(each)
    values = sum(row.kept[FULL].needed for row in each)
    print(
        f"{len(rows)} sessions, {len(each)} compactions of {history:,.0f} tokens on average, {values:,} values\n"
    )
    lines = []
    for name in (OWN, ASSIST, ANSWER, FULL):
        parts = parts_of(name)
        low, high = intervals_of(rows, parts).get("bound", (float("nan"),) * 2)
        shares = [percent(ratio_of_sums(map(part, rows))) for part in parts.values()]
        tokens = ratio(sum(row.kept[name].tokens for row in each), len(each))
        lines.append([name, *shares, f"{percent(low)}–{percent(high)}", f"{tokens:,.0f}"])
    print(markdown_table(["", "values %", "bound %", "copied %", "bound, 95%", "tokens"], lines))
    r = Rereads(*map(sum, zip(*reads, strict=True)))
    print(f"\n{r.reads:,} reads of files, {r.again:,} of what had been read, {r.tokens_again:,} tokens;")
    print(f"{r.after_compaction:,} of what a compaction had removed\n{time.perf_counter() - began:,.0f} s")
    if options.json:
        kept = [{"session": row.session, "number": row.number,
                 "kept": {name: k._asdict() for name, k in row.kept.items()},
                 "copied": {name: c._asdict() for name, c in row.copied.items()}} for row in each]  # fmt: skip
        options.json.write_text(
            json.dumps(about(options=vars(options) | {"paths": None, "json": None}, each=kept))
        )


if __name__ == "__main__":
    main()
