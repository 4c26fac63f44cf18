"""Compactions head to head: what a summary keeps (pass), the summary and the bank (assist), the bank alone (answer).

    python benchmarks/compaction.py ../shared/data/claude_code_dev.jsonl.gz
    python benchmarks/compaction.py ~/.claude/projects ~/.codex/sessions --assist 3000

Agents' logs have compactions with the summaries that a model wrote: `memory-bank audit` measures the same. Recorded
runs ({"id", "messages"} a line) have none: they are compacted here at each ``--every`` tokens, and in the place of a
model's summary stands what the agent itself said, the newest of its words, in ``--summary`` tokens. By default that
is the mean length of the 21 summaries with which runs of claude_code_dev begin.

Printed are shares of the values that the next 30 calls took from the history before the compaction (``bound``: next
to what they belong to), the characters that these calls copied from it, and tokens. Clients differ: Codex keeps the
user's messages itself, Claude Code does not, so that an answer to it repeats them (``--users-words``).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness import about, command_line
from memory_bank import MemoryBankSettings
from memory_bank.config import ServiceSettings
from memory_bank.lab.costs import Costs, named_counter
from memory_bank.lab.logs import audit
from memory_bank.lab.logs.sessions import Client, LogFiles, LoggedSession, log_files, log_format
from memory_bank.lab.tables import markdown_table, percent
from memory_bank.lab.traces import Trace, read_traces
from memory_bank.transcript import ENCODING, MessageKind, content_text, kind_of, read

LOCAL = MemoryBankSettings(selection="evidence", embedding_model="lexical", observer_model="extractive")


def compacted(trace: Trace, every: int, summary: int, client: Client, costs: Costs) -> LoggedSession:
    """A run with a compaction whenever the messages since the one before have so many tokens."""
    session = LoggedSession(trace.id, client, list(trace.messages))
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


def sessions_in(
    paths: list[Path], every: int, summary: int, client: Client, costs: Costs
) -> Iterator[LoggedSession]:
    """The sessions of logs, and those made of recorded runs."""
    files = log_files(paths)
    yield from LogFiles([f for f in files if log_format(f)], lambda text: print(text, file=sys.stderr))
    for file in (f for f in files if not log_format(f)):
        runs = (run for run in read_traces(file) if isinstance(run, Trace))
        yield from (compacted(run, every, summary, client, costs) for run in runs)


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
    parser.add_argument("--json", type=Path, help="write all compactions, without contents")
    options = parser.parse_args()
    client: Client = "Claude Code" if options.users_words else "message list"
    costs, seen, rows, began = Costs(named_counter(ENCODING)), set[str](), [], time.perf_counter()
    for session in sessions_in(options.paths, options.every, options.summary, client, costs):
        found = audit.measure_compactions(session, (), costs, seen, LOCAL, options.assist, options.answer)
        rows += [found] if found else []
    each = [row for own in rows for row in own]
    if not each:
        sys.exit("there is no compaction with calls before and after it")
    history = sum(row.kept[audit.FULL].tokens for row in each) / len(each)
    values = sum(row.kept[audit.FULL].values.of for row in each)
    print(
        f"{len(rows)} sessions, {len(each)} compactions of {history:,.0f} tokens on average, {values:,} values\n"
    )
    lines = []
    for name in (audit.OWN, audit.ASSIST, audit.ANSWER, audit.FULL):
        figures = audit.figures_of(name, rows)
        low, high = figures.intervals.get("bound", (float("nan"),) * 2)
        shares = [percent(x) for x in (figures.values, figures.bound, figures.characters)]
        lines.append([name, *shares, f"{percent(low)}–{percent(high)}", f"{figures.tokens:,.0f}"])
    print(markdown_table(["", "values %", "bound %", "copied %", "bound, 95%", "tokens"], lines))
    print(f"\n{time.perf_counter() - began:,.0f} s")
    if options.json:
        kept = [row.as_dict() for row in each]
        options.json.write_text(
            json.dumps(about(options=vars(options) | {"paths": None, "json": None}, each=kept))
        )


if __name__ == "__main__":
    main()
