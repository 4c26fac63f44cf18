"""Measures whether an agent can act on the contexts of each strategy, on recorded runs.

    python benchmarks/acting.py toolathlon_dev claude_code_dev --strategy memory_bank --at 0.10 --at 0.25 --jobs 2 \\
        --baseline truncation --baseline 'keep_last_n?n=3' --baseline 'keep_last_n?n=10' --html acting.html
    PYTHONPATH=../shared/evidence python benchmarks/acting.py livemcpbench \\
        --strategy 'evbench.strategies:keep_last?n=3' --compare-reference ../shared/evidence

Two shares, no model needed: the past calls that a context still tells of (all; those that change something), and the
text that the next call copies from the older history and that stands verbatim in the context (from outputs; from what
the agent wrote itself; over the ends of lines). Besides, how many quotes are of files that a later call edited, and
how many of these neither say so nor are up to date. They are taken at every turn that has an interaction before the
last one; the reference meter defines them (``evbench.acting``). The heading of a set says too how many outcomes of
its calls, as the list of calls tells them, say nothing: ``ok``, or a number of lines or items. Data sets, strategies
and options are those of ``benchmarks/evidence.py``. ``--html`` plots every share over the price, ``--svg`` the copied
text of the first set. Intervals come from 500 resamples of the traces with seed 0.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any

from measuring.copies import Tally, TextIndex, as_copied, characters_kept, copied_stretches
from measuring.measure import COLUMNS as EVIDENCE_COLUMNS
from measuring.measure import Figures, half_interval, intervals_of, measure_by, ratio_of_sums, sum_up
from measuring.pages import PlottedShare
from measuring.stale import FileQuotes
from measuring.tables import Column, whole
from memory_bank.audit.costs import Costs
from memory_bank.audit.figures import percent
from memory_bank.audit.replay import PlayedTurn, play
from memory_bank.audit.text import normalise, parsed_arguments, scalars
from memory_bank.audit.traces import Trace, content_texts, is_turn
from memory_bank.selection.thread import Thread
from memory_bank.transcript import Interaction, MessageKind, calls_of, kind_of, parse_messages, read
from meters import Meter, run

# A verb in a tool's name that changes something.
CHANGING_NAME = re.compile(
    r"(?:^|[-_.:/ ])(?:create|update|delete|send|write|edit|insert|add|remove|move|rename|set|post|put|patch|upload"
    r"|cancel|refund|issue|book|pay|transfer|reply|submit|append|copy|replace|modify|exchange|return|forward|merge"
    r"|commit|push|close|assign|schedule|register|buy|order|deploy|drop|grant|overwrite|fill|click|type)"
    r"(?:$|[-_.:/ ])",
    re.I,
)
RUNS_CODE = re.compile(r"bash|shell|python|execute|sql|code|query|command|run", re.I)
CHANGING_CODE = re.compile(
    r"(?:^|[\n;&|]\s*)(?:sed -i|mv|cp|rm|mkdir|touch|pip install|patch|tee|chmod"
    r"|git (?:add|commit|apply|checkout|stash))\b"
    r"|>>?\s*[-./~\w]+"  # output into a file
    r"|<<\s*'?\"?\w+"  # a here-document
    r"|\b(?:INSERT|UPDATE|DELETE|CREATE|DROP|ALTER)\b"
    r"|open\([^)]*['\"][wa]b?['\"]"
    r"|\.(?:write|write_text|save|to_csv|commit|insert_many)\(",
    re.I,
)
SAYS_NOTHING = re.compile(r"ok|[\d,]+ (?:lines|items?)")


@dataclass(frozen=True)
class PastCall:
    """A call of a trace: its tool, the scalars of its arguments as text, and whether it changed something."""

    name: str
    values: tuple[str, ...]
    changes: bool


def past_calls(message: object) -> Iterator[PastCall]:
    """The calls of an assistant message."""
    for call in calls_of(message):
        values = tuple(map(str, scalars(parsed_arguments(call.arguments))))
        yield PastCall(call.name, values, changes_something(call.name, values))


def changes_something(name: str, values: Iterable[str]) -> bool:
    """Whether a call changes something, judged by the tool's name and by what shells and code do."""
    if CHANGING_NAME.search(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)):
        return True
    return RUNS_CODE.search(name) is not None and any(CHANGING_CODE.search(as_copied(v)) for v in values)


normal = lru_cache(maxsize=50_000)(normalise.__wrapped__)
"""A line, a name or a value in normal form; the cache of texts is too small for all lines."""


def short(value: str) -> str:
    """The part of an argument that a line must show."""
    return normal(value)[:24].strip()


def words_to_tell(calls: Sequence[PastCall]) -> list[tuple[str, tuple[str, ...]]]:
    """For each call what one line must hold to tell of it: the tool's name, and its rarest value.

    A second value is asked for when the rarest one occurs in several calls of the tool.
    """
    uses: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for call in calls:
        uses[call.name].update(set(map(short, call.values)))
    found = []
    for call in calls:
        count = uses[call.name]
        values = dict.fromkeys(short(v) for v in call.values if len(v) >= 2 and len(short(v)) >= 2)
        rarest = sorted(values, key=lambda v: (count[v], -min(len(v), 12)))
        most = 2 if rarest and count[rarest[0]] > 1 else 1
        found.append((normal(call.name), tuple(rarest[:most])))
    return found


def lines_of(context: Iterable[object]) -> list[str]:
    """The lines of a context in normal form that may tell of a call: all but those of outputs; a call is a line."""
    lines: list[str] = []
    for message in context:
        kind = kind_of(message)
        for call in calls_of(message) if kind is MessageKind.CALL else ():
            lines.append(" ".join([call.name, *map(str, scalars(parsed_arguments(call.arguments)))]))
        if kind is not MessageKind.RESULT:
            for text in content_texts(read(message, "content")):
                lines += text.splitlines()
    return [normal(line) for line in lines]


def told(wanted: Sequence[tuple[str, tuple[str, ...]]], lines: Sequence[str]) -> list[bool]:
    """Whether some line tells of each call."""
    by_name = {name: [line for line in lines if name in line] for name in {n for n, _ in wanted}}
    return [any(all(v in line for v in values) for line in by_name[name]) for name, values in wanted]


def outcomes_of(messages: Sequence[Any]) -> list[tuple[int, str]]:
    """The outcome of each answered call, as the list of calls tells it, with the position of its turn."""
    thread, found = Thread(len), list[tuple[int, str]]()
    for turn, interaction in enumerate(parse_messages(messages)):
        for pair in interaction.pairs if isinstance(interaction, Interaction) else ():
            if pair.call is not None and pair.result is not None:
                number, call = len(found) + 1, (pair.tool_name, pair.call.text, pair.result.text)
                tool, arguments, output = call
                thread.add(number=number, interaction=turn, tool=tool, arguments=arguments, output=output)
                found.append((interaction.start, thread.outcome_of(number)))
    return found


@dataclass(frozen=True)
class ActingTurn:
    """What a context could tell at one turn, and the stretches that the turn's calls copy from older history.

    ``past`` says of the calls older than the last interaction what tells of them, ``changes`` whether they changed
    something; ``from_outputs`` and ``from_own`` are stretches of past outputs and of the agent's own words and
    arguments. ``last_start`` is where the last interaction begins. ``silent``: the outcomes that say nothing, of the
    calls that became older than the last interaction since the turn before.
    """

    position: int
    last_start: int
    past: list[tuple[str, tuple[str, ...]]]
    changes: list[bool]
    from_outputs: tuple[str, ...]
    from_own: tuple[str, ...]
    silent: Tally


def acting_turns(trace: Trace) -> list[ActingTurn]:
    """The turns of a trace that have an interaction before the last one."""
    kinds = [kind_of(m) for m in trace.messages]
    outputs, own, asked = TextIndex(), TextIndex(), TextIndex()
    calls: list[PastCall] = []
    starts: list[int] = []  # of interactions that have a result
    indexed = 0  # messages that are in the indexes
    outcomes = outcomes_of(trace.messages)
    turns = []
    for position, message in enumerate(trace.messages):
        if kinds[position] is MessageKind.RESULT and position and kinds[position - 1] is MessageKind.CALL:
            starts.append(position - 1)
        if not is_turn(message) or len(starts) < 2:
            continue
        for older, kind in zip(trace.messages[indexed : starts[-1]], kinds[indexed:], strict=False):
            if kind in (MessageKind.SYSTEM, MessageKind.USER):
                asked.add_message(older)
            elif kind is MessageKind.RESULT:
                outputs.add_message(older)
            elif is_turn(older):
                own.add_message(older)
                calls += past_calls(older)
        came = [told for at, told in outcomes if indexed <= at < starts[-1]]
        indexed = starts[-1]
        recent = TextIndex()
        for latest in trace.messages[indexed:position]:
            recent.add_message(latest)
        from_outputs = copied_stretches(message, outputs, asked, recent)
        from_own = [s for s in copied_stretches(message, own, asked, recent) if s not in from_outputs]
        past, changes = words_to_tell(calls), [call.changes for call in calls]
        silent = Tally(sum(SAYS_NOTHING.fullmatch(told) is not None for told in came), len(came))
        turns.append(
            ActingTurn(position, indexed, past, changes, tuple(from_outputs), tuple(from_own), silent)
        )
    return turns


@dataclass(frozen=True)
class ActingRow:
    """One turn under a strategy: tokens, time, calls told of, and characters of copied text that are kept.

    ``near`` are the tokens of the anchor and of everything from the last interaction on.
    """

    tokens: int
    full: int
    near: int
    seconds: float
    error: str  # the type of the exception that the strategy raised, or ""
    broken: bool  # the context has broken pairs that the trace itself does not have
    told: Tally
    told_changing: Tally
    outputs: Tally
    own: Tally
    over_lines: Tally
    files: Tally
    silent: Tally


def prepare(trace: Trace, costs: Costs) -> Callable[[Any], list[ActingRow]]:
    """What measures a strategy on a trace: a row for each acting turn; it is asked at every model call."""
    turns = {turn.position: turn for turn in acting_turns(trace)}
    positions = [i for i, message in enumerate(trace.messages) if is_turn(message)]
    counts = [costs.of(m) for m in trace.messages]
    asked = [kind_of(m) in (MessageKind.SYSTEM, MessageKind.USER) for m in trace.messages]
    tokens = list(accumulate(counts, initial=0))
    anchor = list(accumulate((n * a for n, a in zip(counts, asked, strict=True)), initial=0))

    def rows(strategy: Any) -> list[ActingRow]:
        found, files, seen = [], FileQuotes(), 0
        for step in play(trace, lambda messages: strategy(messages, ()), positions):
            if turn := turns.get(step.position):
                near = anchor[turn.last_start] + tokens[turn.position] - tokens[turn.last_start]
                for message in trace.messages[seen : turn.position]:
                    files.add(message)
                seen = turn.position
                total = costs.total(step.context)
                found.append(row(turn, step, total, tokens[turn.position], near, files.quoted(step.context)))
        return found

    return rows


def row(turn: ActingTurn, step: PlayedTurn, tokens: int, full: int, near: int, files: Tally) -> ActingRow:
    """What a context has of what it could have."""
    heard = told(turn.past, lines_of(step.context))
    changing = [h for h, changes in zip(heard, turn.changes, strict=True) if changes]
    needed = [*turn.from_outputs, *turn.from_own]
    context = TextIndex()
    for message in step.context if needed else ():
        context.add_message(message)
    return ActingRow(
        tokens=tokens,
        full=full,
        near=near,
        seconds=step.seconds,
        error=step.error,
        broken=step.broken_pairs > 0,
        told=Tally(sum(heard), len(heard)),
        told_changing=Tally(sum(changing), len(changing)),
        outputs=characters_kept(turn.from_outputs, context),
        own=characters_kept(turn.from_own, context),
        over_lines=characters_kept([s for s in needed if "\n" in s.strip()], context),
        files=files,
        silent=turn.silent,
    )


def mean_part(name: str) -> Callable[[Sequence[ActingRow]], tuple[float, float]]:
    """Of a trace: the sum and the number of its turns' shares."""

    def part(trace: Sequence[ActingRow]) -> tuple[float, float]:
        shares = [t.has / t.of for t in (getattr(row, name) for row in trace) if t.of]
        return sum(shares), len(shares)

    return part


def sum_part(*names: str) -> Callable[[Sequence[ActingRow]], tuple[float, float]]:
    """Of a trace: the sums of what contexts have, and of what they could have."""

    def part(trace: Sequence[ActingRow]) -> tuple[float, float]:
        tallies = [getattr(row, name) for row in trace for name in names]
        return sum(t.has for t in tallies), sum(t.of for t in tallies)

    return part


PARTS: dict[str, Callable[[Sequence[ActingRow]], tuple[float, float]]] = {
    "told": mean_part("told"),
    "told_changing": mean_part("told_changing"),
    "copied": sum_part("outputs", "own"),
    "copied_outputs": sum_part("outputs"),
    "copied_own": sum_part("own"),
    "copied_over_lines": sum_part("over_lines"),
    "share_of_history": lambda trace: (
        sum(max(0, row.tokens - row.near) for row in trace),
        sum(row.full - row.near for row in trace),
    ),
}


def acting_figures(traces: Sequence[Sequence[ActingRow]]) -> Figures:
    """The figures of a strategy, from the rows of every trace.

    ``told`` and ``told_changing`` are means over turns of each turn's share of past calls; the copied shares are
    over all characters.
    """
    rows = [row for trace in traces for row in trace]
    values = sum_up(
        rows,
        traces=len(traces),
        characters_outputs=sum(row.outputs.of for row in rows),
        characters_own=sum(row.own.of for row in rows),
        characters_over_lines=sum(row.over_lines.of for row in rows),
        stale=sum(row.files.of for row in rows),
        stale_unmarked=sum(row.files.of - row.files.has for row in rows),
        outcomes=sum(row.silent.of for row in rows),
        silent=ratio_of_sums((row.silent.has, row.silent.of) for row in rows),
        **{name: ratio_of_sums(map(part, traces)) for name, part in PARTS.items()},
    )
    return Figures(values, intervals_of(traces, PARTS))


COLUMNS: tuple[Column[Figures], ...] = (
    Column("told", lambda f: f.told, percent,
           "past calls older than the last interaction that one line tells of, mean over turns, %"),
    Column("changing", lambda f: f.told_changing, percent, "the same for calls that change something, %"),
    Column("outputs", lambda f: f.copied_outputs, percent,
           "characters that the next call copies from older outputs and that stand verbatim in the context, %"),
    Column("own", lambda f: f.copied_own, percent, "the same for what the agent wrote itself, %"),
    Column("over lines", lambda f: f.copied_over_lines, percent,
           "the same for copied stretches that go over the end of a line, %"),
    Column("copied", lambda f: f.copied, percent, "outputs and own writing together, %"),
    Column("±", half_interval("copied"), percent, "half of the 95% interval of copied, points"),
    Column("stale", lambda f: f.stale, whole, "quotes, over all contexts, of files that a later call edited"),
    Column("unmarked", lambda f: f.stale_unmarked, whole,
           "those that neither say so nor are up to date, as far as the recorded edits tell"),
    *(c for c in EVIDENCE_COLUMNS if c.title in ("of history", "tokens", "ms", "ms p95", "errors", "broken")),
)  # fmt: skip


def measure_acting(traces: Sequence[Trace], strategies: Sequence[Any], **options: Any) -> list[Any]:
    """A measurement of each strategy, in their order. See ``measuring.measure.measure``."""
    return measure_by(prepare, acting_figures, traces, strategies, **options)


METER = Meter(
    command="benchmarks/acting.py",
    title="What an agent can act on, and its price",
    measure=measure_acting,
    columns=COLUMNS,
    shares=(
        PlottedShare("copied", "copied text kept"),
        PlottedShare("copied_outputs", "text copied from outputs kept"),
        PlottedShare("copied_own", "text copied from own writing kept"),
        PlottedShare("copied_over_lines", "text copied over line ends kept"),
        PlottedShare("told", "past calls told"),
        PlottedShare("told_changing", "past calls that change something told"),
    ),
    counts=lambda f: (
        f"{f.traces} traces, {f.steps:,} steps, copied characters: {f.characters_outputs:,} of outputs, "
        f"{f.characters_own:,} of own writing, outcomes that say nothing: {percent(f.silent)}% of {f.outcomes:,}"
    ),
    reference="evbench.acting",
    compared={
        "hist": "share_of_history",
        "done": "told",
        "done_w": "told_changing",
        "span_tool": "copied_outputs",
        "span_own": "copied_own",
        "span_lines": "copied_over_lines",
    },
    evaluate=lambda module, strategy, path, limit: module.evaluate(strategy, path, limit or 0),
)

if __name__ == "__main__":
    run(METER, __doc__)
