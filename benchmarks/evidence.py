"""Measures which share of the evidence that calls need each strategy keeps on recorded runs, and its price.

    python benchmarks/evidence.py toolathlon_dev livemcpbench --strategy memory_bank_local --jobs 2
    python benchmarks/evidence.py run.jsonl.gz --strategy 'memory_bank_local?top_k=8' --html frontier.html
    PYTHONPATH=../shared/evidence python benchmarks/evidence.py tau_retail_gold \
        --strategy 'evbench.strategies:keep_last?n=3' --compare-reference ../shared/evidence

A data set is a trace file, or the name of one (NAME.jsonl.gz, NAME.jsonl) in ``--data-dir``, by default
``../shared/data``, seen from the repository; without any name, every file of that folder. A strategy is a key of the
configuration, ``KEY?setting=value``, a plugin ``module:function?name=value`` of the form
``f(messages, state) -> messages``, ``full`` or ``oracle``. Prints a Markdown table for each set and the plain
mean over the sets. ``{set}`` in a strategy stands for the data set's name:
with ``evidence_model=benchmarks/models/no_{set}.json`` each set is measured with a model that was not trained on it.
``--at 0.25`` tries every strategy
that has a budget with a quarter of each step's older history; ``--baseline`` adds strategies and prints by how many
points the others are above the straight line between them at equal tokens. Figures do not depend on ``--jobs``,
times do. Intervals come from 500 resamples of the
traces with seed 0.

``--compare-reference DIR`` measures the plugins once more with the reference meter (DIR holds its package
``evbench``; tokens are then counted by its rule) and prints the differences in points; exit code 1 when ER,
ERb, ERb_old, ratio or hist_ratio differs by more than one point.
"""

from __future__ import annotations

from measuring.measure import COLUMNS, Figures, measure
from measuring.pages import OLD_BOUND
from meters import Meter, run


def counts(f: Figures) -> str:
    """What was measured on a set."""
    return f"{f.traces} traces, {f.steps:,} steps, {f.values:,} values ({f.values_old:,} old)"


METER = Meter(
    command="benchmarks/evidence.py",
    title="Evidence kept, and its price",
    measure=measure,
    columns=COLUMNS,
    shares=(OLD_BOUND,),
    counts=counts,
    reference="evbench.run",
    compared={
        "ER": "recall",
        "ERb": "bound",
        "ERb_old": "bound_old",
        "ratio": "share_of_full",
        "hist_ratio": "share_of_history",
    },
    evaluate=lambda module, strategy, path, limit: module.evaluate(strategy, path, limit, 1),
)

if __name__ == "__main__":
    run(METER, __doc__)
