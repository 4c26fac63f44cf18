"""Measures how likely a small language model finds the recorded next call, given the contexts of each strategy.

    python benchmarks/reader.py toolathlon_dev livemcpbench --model MODELS/gemma270 --out rows.jsonl \\
        --strategy 'memory_bank?history_budget=1000&refresh_after=0' --strategy 'keep_last_n?n=3'
    python benchmarks/reader.py --report rows.jsonl --strategy 'memory_bank?history_budget=1000&refresh_after=0'

``--model`` is a folder of the library transformers (a causal model with its tokenizer, or a file ``model.gguf``);
torch and transformers must be installed. Without a folder the benchmark says so and ends. The first strategy is the
baseline: figures of the others are differences to it on the same steps, with 95% intervals by bootstrap over steps.
``--out`` gets a JSON line for each step and strategy as soon as it is scored; the same command continues where it was
stopped. ``{set}`` in a strategy stands for the data set's name. ``--scorer module:function`` takes a scorer of your
own: ``function(model) -> Scorer`` of ``benchmarks/likelihood.py``.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import json
import math
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from likelihood import (
    LIKELIHOOD_COLUMNS,
    LikelihoodRow,
    ScoredToken,
    Scorer,
    paired_figures,
    sample_steps,
    score_step,
)
from memory_bank.config import load_config
from memory_bank.errors import MemoryBankError
from memory_bank.lab.meter.figures import json_value
from memory_bank.lab.processes import quiet
from memory_bank.lab.strategies import Strategy, parse_strategy
from memory_bank.lab.tables import markdown_table
from memory_bank.lab.traces import TraceFiles
from meters import DATA, SET, data_name, find


class TransformersScorer:
    """A causal model of transformers on the CPU; what the contexts of a step share is computed once."""

    def __init__(self, folder: str, chunk: int = 512) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        gguf = {"gguf_file": "model.gguf"} if (Path(folder) / "model.gguf").is_file() else {}
        self._torch, self._chunk = torch, chunk
        self._tokenizer = AutoTokenizer.from_pretrained(folder, **gguf)
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **gguf).eval()
        first = self._tokenizer.bos_token_id
        self._first = [] if first is None else [first]

    def count(self, text: str) -> int:
        """Tokens of a text."""
        return len(self._encode(text))

    def score(self, contexts: Mapping[str, str], action: str) -> Iterator[tuple[str, list[ScoredToken]]]:
        """The tokens of the action after each context, by the context's name."""
        from transformers import DynamicCache

        torch = self._torch
        wanted = self._tokenizer(action, add_special_tokens=False, return_offsets_mapping=True)
        ids = wanted["input_ids"]
        encoded = {name: self._first + self._encode(text) for name, text in contexts.items()}
        shared = shared_start(list(encoded.values()))
        with torch.inference_mode():
            base = DynamicCache(config=self._model.config)
            if shared:
                self._feed(shared, base, 1)
            for name, whole in encoded.items():
                cache = copy.deepcopy(base)
                logits = self._feed([*whole[len(shared) :], *ids[:-1]], cache, len(ids))
                likely = torch.log_softmax(logits.float(), -1)
                gold = torch.tensor(ids)
                nats = (-likely[torch.arange(len(ids)), gold]).tolist()
                first = (likely.argmax(-1) == gold).tolist()
                offsets = wanted["offset_mapping"]
                yield name, [ScoredToken(*o, n, f) for o, n, f in zip(offsets, nats, first, strict=True)]

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _feed(self, ids: list[int], cache: Any, last: int) -> Any:
        """The logits of the last tokens."""
        kept = []
        for start in range(0, len(ids), self._chunk):
            part = ids[start : start + self._chunk]
            wanted = max(0, min(len(part), start + len(part) - (len(ids) - last)))
            made = self._model(
                self._torch.tensor([part]),
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=max(1, wanted),
            )
            kept.append(made.logits[0][max(1, wanted) - wanted :])
        return self._torch.cat(kept)


def shared_start(lists: list[list[int]]) -> list[int]:
    """What all lists begin with, without the last item of any."""
    length = 0
    for items in zip(*(one[:-1] for one in lists), strict=False):
        if len(set(items)) > 1:
            break
        length += 1
    return lists[0][:length]


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="*", help="trace files or names; default: every file of --data-dir")
    parser.add_argument("--data-dir", type=Path, default=DATA)
    parser.add_argument("--model", help="a folder with a causal language model")
    parser.add_argument("--scorer", help="module:function that makes a scorer of the model's folder")
    parser.add_argument("--strategy", action="append", default=[], help="the first is the baseline")
    parser.add_argument("--config", type=Path)
    parser.add_argument("--needs", type=int, default=16, help="steps of each set that need an older value")
    parser.add_argument("--controls", type=int, default=6, help="steps of each set that need none")
    parser.add_argument("--most-tokens", type=int, default=4_600, help="of a context with its next call")
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop after this time")
    parser.add_argument("--out", type=Path, help="append a JSON line for each step and strategy")
    parser.add_argument("--report", type=Path, help="print the tables of such a file and end")
    return parser.parse_args()


def main() -> int:
    """Sample, score, print."""
    args = arguments()
    names = args.strategy or [
        "memory_bank?history_budget=1000&refresh_after=0",
        "keep_last_n?n=3",
        "truncation",
    ]
    if args.report:
        print_tables(known_rows(args.report), names[0])
        return 0
    if not args.model:
        print("skipped: no --model FOLDER with a causal language model was given.")
        return 0
    scorer = open_scorer(args.model, args.scorer)
    if scorer is None:
        return 0
    config = load_config(args.config)
    rows = known_rows(args.out) if args.out else []
    done = {(row.step, row.strategy) for row in rows}
    stop = time.monotonic() + 60 * args.minutes
    paths = [find(n, args.data_dir) for n in args.data] or sorted(args.data_dir.glob("*.jsonl*"))
    with quiet():
        for path in paths:
            data = data_name(path)
            strategies = [replace(parse_strategy(n.replace(SET, data), config), name=n) for n in names]
            for row in new_rows(path, strategies, scorer, args, done):
                rows.append(row)
                if args.out:
                    with args.out.open("a", encoding="utf-8") as file:
                        file.write(json.dumps({k: json_value(v) for k, v in asdict(row).items()}) + "\n")
                if time.monotonic() > stop:
                    print(f"stopped after {args.minutes:g} minutes", file=sys.stderr)
                    print_tables(rows, names[0])
                    return 0
    print_tables(rows, names[0])
    return 0


def open_scorer(model: str, target: str | None) -> Scorer | None:
    """The scorer of a model's folder; None, with one sentence, where it cannot be had."""
    if target:
        module, _, name = target.partition(":")
        made: Scorer = getattr(importlib.import_module(module), name)(model)
        return made
    if not Path(model).is_dir():
        print(f"skipped: there is no folder {model} with a causal language model.")
        return None
    try:
        return TransformersScorer(model)
    except ImportError as e:
        print(f"skipped: {e.name} is not installed: pip install torch transformers (gguf for GGUF files).")
        return None


def new_rows(
    path: Path,
    strategies: list[Strategy],
    scorer: Scorer,
    args: argparse.Namespace,
    done: set[tuple[str, str]],
) -> Iterator[LikelihoodRow]:
    """The rows of a data set that are not done yet."""
    traces = list(TraceFiles([path], lambda told: print(told, file=sys.stderr)))
    name = data_name(path)
    steps = sample_steps(
        traces, strategies, scorer,
        needs=args.needs, controls=args.controls, most_tokens=args.most_tokens, seed=name,
    )  # fmt: skip
    for step in steps:
        step = replace(step, id=f"{name}/{step.id}")
        left = {k: v for k, v in step.contexts.items() if (step.id, k) not in done}
        if left:
            yield from score_step(replace(step, contexts=left), scorer)


def known_rows(path: Path) -> list[LikelihoodRow]:
    """The rows in a file; none when there is no file."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8") as file:
        rows = [json.loads(line) for line in file if line.strip()]
    return [LikelihoodRow(**{k: math.nan if v is None else v for k, v in row.items()}) for row in rows]


def print_tables(rows: list[LikelihoodRow], baseline: str) -> None:
    """A table for the steps that need older values, and one for those that do not."""
    tables = paired_figures(rows, baseline)
    if not tables:
        print("no step was scored with the baseline: name more data sets, or another first --strategy.")
    for kind, figures in tables.items():
        print(
            f"\n## steps that need {'older values' if kind == 'needs' else 'no older value'}, against {baseline}\n"
        )
        cells = [[name, *(c.cell(f) for c in LIKELIHOOD_COLUMNS)] for name, f in figures.items()]
        print(markdown_table(["strategy", *(c.title for c in LIKELIHOOD_COLUMNS)], cells))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except MemoryBankError as e:
        sys.exit(f"benchmarks/reader.py: {e}")
