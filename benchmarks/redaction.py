"""Measures the redaction of secrets on recorded runs: its time, and what it would replace in texts without secrets.

    python benchmarks/redaction.py TRACES.jsonl.gz [...]

Reads the texts of messages from files of JSON lines ``{id, messages}``, plain or .gz. Prints for each file its
texts and characters, seconds of CPU per million characters, the same for a plain scan of the texts (``str.lower``),
and how many texts have something replaced, by kind. No text is printed.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from harness import command_line
from memory_bank.lab.traces import Trace, message_texts, read_traces
from memory_bank.service.security.redaction import Redaction

_MARK = re.compile(r"\[redacted: ([a-z0-9_ ]{1,40})\]")


def seconds(work: Callable[[str], str], texts: list[str]) -> tuple[float, list[str]]:
    """CPU seconds of some work on each text, and its results."""
    began = time.process_time()
    results = [work(text) for text in texts]
    return time.process_time() - began, results


def main() -> None:
    """Measure the files and print one line for each."""
    parser = command_line(__doc__)
    parser.add_argument("traces", nargs="+", type=Path)
    for path in parser.parse_args().traces:
        traces = [trace for trace in read_traces(path) if isinstance(trace, Trace)]
        found = dict.fromkeys(text for t in traces for m in t.messages for text in message_texts(m))
        texts = list(found)
        millions = sum(map(len, texts)) / 1e6
        spent, shown = seconds(Redaction().text, texts)
        scan, _ = seconds(str.lower, texts)
        kinds: Counter[str] = Counter()
        for before, after in zip(texts, shown, strict=True):
            kinds.update(set(_MARK.findall(after)) - set(_MARK.findall(before)))
        changed = sum(a != b for a, b in zip(texts, shown, strict=True))
        print(
            f"{path.name}: {len(texts):,} texts, {millions:.1f} M characters, "
            f"{spent / max(millions, 1e-6):.3f} s per M (plain scan {scan / max(millions, 1e-6):.3f}), "
            f"{changed:,} texts changed: {dict(kinds.most_common()) or 'none'}",
            flush=True,
        )


if __name__ == "__main__":
    main()
