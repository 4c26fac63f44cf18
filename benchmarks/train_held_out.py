"""Trains the evidence model: the one that ships from all sets, and one without each long set.

    python -m benchmarks.train_held_out --data-dir ../shared/data --jobs 2

Writes ``src/memory_bank/selection/model.json`` from the trace files of the folder, and
``benchmarks/models/no_SET.json`` from all but SET for every set of ``--held-out``, so that figures on SET
come from weights that never saw it. ``passed_dev`` is in none: ``derivable.py`` reports the shipped model on it.
Of coding sessions, which are long and many, every third is used; a model's notes say how many traces of each
set it was fitted to. ``--cache DIR`` keeps the collected samples: delete it when features change.
"""

from __future__ import annotations

import argparse
import os
import pickle
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks.harness import command_line
from benchmarks.training.train import Collected, collect, traces_in, train_model

from memory_bank.selection.model import MODEL_FILE

ROOT = Path(__file__).resolve().parents[1]
LONG_SETS = ("toolathlon_dev", "livemcpbench", "intercode_sql_gpt4", "claude_code_dev")
REPORTED = "passed_dev"
"""The set that no model is fitted to."""


def sets_in(folder: Path) -> list[Path]:
    """Return the trace files of a folder that models are fitted to, the largest first."""
    paths = (p for p in folder.glob("*.jsonl*") if p.name.partition(".")[0] != REPORTED)
    return sorted(paths, key=lambda p: -p.stat().st_size)


def samples_of(path: Path, cache: Path | None = None, every: int = 1) -> Collected:
    """Return the samples of every `every`-th trace of a file, from the cache if it has them."""
    kept = cache / f"{path.name.partition('.')[0]}.pickle" if cache else None
    if kept and kept.is_file():
        samples: Collected = pickle.loads(kept.read_bytes())
        return samples
    samples = collect(traces_in(path), every)
    if kept:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(pickle.dumps(samples))
    return samples


def train(samples: dict[str, Collected], left_out: str, out: Path) -> str:
    """Fit to every set but one and write the model; return a line about it."""
    start = time.perf_counter()
    sets = {n: len(set(samples[n].values.trace.tolist())) for n in samples if n != left_out}
    train_model([samples[n] for n in sets], out, traces=sets)
    return f"{out.name}: {len(sets)} sets, {time.perf_counter() - start:.0f} s"


def _count(samples: Collected) -> str:
    values, copies = samples.values, samples.copies
    return (
        f"{len(values.y):,} values, {int(values.y.sum()):,} needed; "
        f"{len(copies.y):,} segments, {int(copies.y.sum()):,} copied from"
    )


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = command_line(__doc__)
    parser.add_argument("--data-dir", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--held-out", nargs="*", default=list(LONG_SETS), metavar="SET")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "models")
    parser.add_argument("--shipped", type=Path, default=MODEL_FILE, help="where the model of all sets goes")
    parser.add_argument("--cache", type=Path, help="keep collected samples here")
    parser.add_argument(
        "--every",
        nargs="*",
        default=["claude_code_dev=3"],
        metavar="SET=N",
        help="use every N-th trace of a set",
    )
    parser.add_argument("--jobs", type=int, default=1)
    return parser.parse_args()


def main() -> None:
    """Collect the samples of every set, then fit."""
    args = arguments()
    paths = sets_in(args.data_dir)
    if not paths:
        raise SystemExit(f"{args.data_dir} holds no trace files: give another --data-dir")
    args.out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with ProcessPoolExecutor(args.jobs) as pool:
        every = {name: int(n) for name, _, n in (e.partition("=") for e in args.every)}
        waiting = {
            p: pool.submit(samples_of, p, args.cache, every.get(p.name.partition(".")[0], 1)) for p in paths
        }
        found = {p.name.partition(".")[0]: waiting[p].result() for p in paths}
        parts = {name: found[name] for name in sorted(found)}
        for name, samples in parts.items():
            print(f"{name}: {_count(samples)}", flush=True)
        wanted = [(name, args.out / f"no_{name}.json") for name in args.held_out if name in parts]
        wanted.append(("", args.shipped))
        for line in [pool.submit(train, parts, name, out) for name, out in wanted]:
            print(line.result(), flush=True)


if __name__ == "__main__":
    main()
