"""Measures the redaction of secrets: recall and false alarms by class; on recorded runs, its time and its changes.

    python benchmarks/redaction.py tests/service/redaction.toml
    python benchmarks/redaction.py --lines tests/service/redaction_lines.jsonl.gz
    python benchmarks/redaction.py TRACES.jsonl.gz [...]

Of a file of forms (.toml; its own head says how they are written), each form is tried three times with other random
characters. Prints for each class how many have nothing left of what is marked (of ``harmless``: how many were
changed), and the names of the others.

Of a file of lines (``--lines``; JSON lines ``{id, class, text, secrets}``, the id begins with the set's name) prints
for each set and class how many have none of their secrets left (of ``harmless``: how many were changed).

Otherwise reads the texts of messages from files of JSON lines ``{id, messages}``, plain or .gz. Prints for each
file its texts and characters, seconds of CPU per million characters, the same for a plain scan of the texts
(``str.lower``), and how many texts have something replaced, by kind. No text is printed.
"""

from __future__ import annotations

import gzip
import json
import random
import re
import string
import time
import tomllib
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from harness import command_line
from memory_bank.audit.traces import Trace, message_texts, read_traces
from memory_bank.service.security.redaction import Redaction

_MARK = re.compile(r"\[redacted: ([a-z0-9_ ]{1,40})\]")


def seconds(work: Callable[[str], str], texts: list[str]) -> tuple[float, list[str]]:
    """CPU seconds of some work on each text, and its results."""
    began = time.process_time()
    results = [work(text) for text in texts]
    return time.process_time() - began, results


_CHARACTERS = {
    "A": string.ascii_letters + string.digits,
    "H": "0123456789abcdef",
    "D": string.digits,
    "U": string.ascii_uppercase + string.digits,
    "L": string.ascii_lowercase + string.digits,
    "W": string.ascii_letters + string.digits + "-_",
    "B": string.ascii_letters + string.digits + "+/",
    "K": "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz",
}


def example(form: str, seed: int) -> tuple[str, list[str]]:
    """A text of a form, with random characters, and the secrets in it."""
    chance = random.Random(f"{form} {seed}")

    def drawn(found: re.Match[str]) -> str:
        if found[0] == "{uuid}":
            return str(uuid.UUID(int=chance.getrandbits(128), version=4))
        return "".join(chance.choices(_CHARACTERS[found[1]], k=int(found[2])))

    text = re.sub(r"\{uuid\}|\{([AHDULWBK])(\d+)\}", drawn, form)
    return re.sub("[«»]", "", text), re.findall("«(.*?)»", text, re.S)


def is_shown(secret: str, text: str) -> bool:
    """Whether a secret, or a long part of it, is in a text."""
    part = min(len(secret), 12)
    return any(secret[at : at + part] in text for at in range(0, len(secret) - part + 1, 4))


def measure_forms(path: Path) -> None:
    """Print recall and false alarms of a file of forms by class."""
    redaction = Redaction()
    for kind, forms in tomllib.loads(path.read_text("utf-8")).items():
        missed = []
        for name, form in forms.items():
            for text, secrets in (example(form, seed) for seed in range(3)):
                shown = redaction.text(text)
                if any(is_shown(s, shown) for s in secrets) if secrets else shown != text:
                    missed.append(name)
        done, tried = 3 * len(forms) - len(missed), 3 * len(forms)
        if kind == "harmless":
            done = len(missed)
        word = "changed" if kind == "harmless" else "found"
        print(
            f"{kind}: {done} of {tried} {word} ({done / tried:.1%}): {list(dict.fromkeys(missed)) or 'all well'}"
        )


def measure_lines(path: Path) -> dict[str, dict[str, tuple[int, int]]]:
    """By set and class of a file of lines: how many are as they should be, and how many there are."""
    redaction = Redaction()
    counts: dict[str, dict[str, tuple[int, int]]] = {}
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            shown = redaction.text(row["text"])
            is_right = not any(s in shown for s in row["secrets"]) if row["secrets"] else shown == row["text"]
            of_set = counts.setdefault(row["id"].partition("-")[0], {})
            right, all_ = of_set.get(row["class"], (0, 0))
            of_set[row["class"]] = right + is_right, all_ + 1
    return counts


def main() -> None:
    """Measure the files and print one line for each, or for each class of forms."""
    parser = command_line(__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--lines", action="store_true", help="the files hold lines with the secrets in them")
    args = parser.parse_args()
    for path in args.files:
        if args.lines:
            for name, classes in measure_lines(path).items():
                for kind, (right, all_) in classes.items():
                    print(f"{name} {kind}: {right} of {all_} right ({right / all_:.1%})")
            continue
        if path.suffix == ".toml":
            measure_forms(path)
            continue
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
