"""Measures whether an agent can act on the contexts of each strategy, on recorded runs.

    python benchmarks/acting.py toolathlon_dev claude_code_dev --strategy memory_bank --at 0.10 --at 0.25 --jobs 2 \\
        --baseline truncation --baseline 'keep_last_n?n=3' --baseline 'keep_last_n?n=10' --html acting.html
    PYTHONPATH=../shared/evidence python benchmarks/acting.py livemcpbench \\
        --strategy 'evbench.strategies:keep_last?n=3' --compare-reference ../shared/evidence

Two shares, no model needed: the past calls that a context still tells of (all; those that change something), and the
text that the next call copies from the older history and that stands verbatim in the context (from outputs; from what
the agent wrote itself; over the ends of lines). Data sets, strategies and options are those of
``benchmarks/evidence.py``. ``--html`` plots every share over the price, ``--svg`` the copied text of the first set.
Intervals come from 500 resamples of the traces with seed 0.
"""

from __future__ import annotations

from memory_bank.lab.meter.acting import ACTING_COLUMNS, ActingFigures, measure_acting
from memory_bank.lab.pages import PlottedShare
from meters import Meter, run


def counts(f: ActingFigures) -> str:
    """What was measured on a set."""
    characters = f"{f.characters_outputs:,} of outputs, {f.characters_own:,} of own writing"
    return f"{f.traces} traces, {f.steps:,} steps, copied characters: {characters}"


METER = Meter(
    command="benchmarks/acting.py",
    title="What an agent can act on, and its price",
    measure=measure_acting,
    columns=ACTING_COLUMNS,
    shares=(
        PlottedShare("copied", "copied text kept"),
        PlottedShare("copied_outputs", "text copied from outputs kept"),
        PlottedShare("copied_own", "text copied from own writing kept"),
        PlottedShare("copied_over_lines", "text copied over line ends kept"),
        PlottedShare("told", "past calls told"),
        PlottedShare("told_changing", "past calls that change something told"),
    ),
    counts=counts,
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
