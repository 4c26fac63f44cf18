"""Measures how time and memory grow with the size of odd tool outputs: they should grow no faster than the output.

    python benchmarks/odd_outputs.py [--size 10000] [--only json] [--work step,search]

For each odd output, at 1, 2, 4 and 8 times a size, in characters: CPU time and peak memory of a step that
stores and cuts it and a step that chooses from it (``step``), of a search for a value and of parts of the
record (``search``), and of the check of a call against it (``provenance``). Prints for each work the output
that grew most and the slowest one; ``--all`` prints every row. Exit code 1 where the time or the memory of 8
times the size is more than 24 times that of one: quadratic growth is 64. Times below 20 ms and memory below
4 MB count as so much.
"""

from __future__ import annotations

import gc
import json
import random
import string
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator

from harness import command_line
from memory_bank import (
    MemoryBankSettings,
    MemoryBankState,
    apply_memory_bank_strategy,
    check_call,
    handle_tool_call,
)

SIZES = (1, 2, 4, 8)
LIMIT = 24.0
LEAST_SECONDS, LEAST_BYTES = 0.02, 4e6
ALPHABET = string.ascii_letters + string.digits + "-_/."

REPEATED = {
    "one letter": "a",
    "lines of one letter": "a\n",
    "empty lines": "\n",
    "spaces": " ",
    "tabs": "\t",
    "quotes": '"',
    "backslashes": "\\",
    "escaped quotes": '\\"',
    "brackets": "[",
    "braces": "{",
    "opened objects": '{"a":',
    "opened printed objects": "{'a': ",
    "opened calls": "f(",
    "opened strings": '{"a": "',
    "bars": "|",
    "commas": ",",
    "dashes": "-",
    "dots": "a.",
    "at signs": "a@",
    "hyphens": "a-",
    "slashes": "a/",
    "version numbers": "1.1.",
    "times": "2026-01-01T00:00:00",
    "assignments": "k=v ",
    "lines with labels": "key: value\n",
    "tags": "<div class='a'>",
    "angle brackets": "<",
    "capital names": "Ab ",
    "apostrophes": "a'",
    "stars": "**a ",
    "joiners": "\u200d",
    "combining accents": "e\u0301\u0301\u0301",
    "emoji": "\U0001f469\u200d\U0001f467",
    "Chinese": "\u6f22",
    "zero characters": "\0",
    "half surrogates": "\ud800",
    "passwords": "password: x1 ",
    "tokens": "sk-",
    "key blocks": "-----BEGIN PRIVATE KEY-----",
    "addresses with passwords": "://a:",
    "call lines": "#12 tool {}\n",
    "gap marks": "…\n",
    "tracebacks": "Traceback (most recent call last):\n  f\n",
}


def odd_outputs(size: int) -> Iterator[tuple[str, str]]:
    """Yield (name, output) of odd tool outputs, each of about `size` characters; the same at every call."""
    for name, part in REPEATED.items():
        yield name, part * (size // len(part))
    rng = random.Random(size)

    def word(chars: int) -> str:
        return "".join(rng.choices(ALPHABET, k=chars))

    yield "one random word", word(size)
    yield "one address", "https://a.example/" + "a/" * (size // 2)
    yield "nested lists", "[" * (size // 2) + "]" * (size // 2)
    yield "nested strings", _nested_string(word(200), size)
    yield "different words", " ".join(word(12) for _ in range(size // 13))
    yield "different numbers", " ".join(str(rng.random()) for _ in range(size // 19))
    yield "JSON integers", json.dumps([rng.randrange(10**9) for _ in range(size // 11)])
    yield "JSON keys", json.dumps({word(10): i for i in range(size // 20)})
    yield "JSON rows of different keys", json.dumps([{word(8): 1} for _ in range(size // 17)])
    yield "JSON lines", "\n".join(json.dumps({"a": i, "b": word(5)}) for i in range(size // 27))
    yield "a long key over many values", json.dumps({"k" * (size // 2): [word(8) for _ in range(size // 24)]})
    yield "long keys in one another", _nested_keys(size)
    yield "long integers", json.dumps([int("9" * 4000)] * (size // 4000 + 1))
    yield "huge exponents", "[" + ",".join(["1e999999"] * (size // 9)) + "]"
    yield "a printed object", str({word(8): word(8) for _ in range(size // 24)})
    yield "JSON in JSON strings", json.dumps([json.dumps({"password": word(10)}) for _ in range(size // 37)])
    yield "a table", "\n".join("| " + " | ".join(word(6) for _ in range(8)) + " |" for _ in range(size // 75))
    yield "comma separated values", "\n".join(",".join(word(5) for _ in range(10)) for _ in range(size // 60))
    yield "one wide row", "a,b\n" + ",".join(word(5) for _ in range(size // 6))
    yield "secrets", " ".join(f"password={word(9)}1" for _ in range(size // 20))


def _nested_string(text: str, size: int) -> str:
    """JSON in a string in JSON, so often that its escapes have about `size` characters."""
    while len(text) * 2 < size:
        text = json.dumps({"a": text})
    return json.dumps([text] * (size // len(text)))


def _nested_keys(size: int) -> str:
    value: object = {"a": 1}
    for _ in range(40):
        value = {"k" * (size // 40): value, "z": 1}
    return json.dumps(value)


# -- what is measured ---------------------------------------------------------
SETTINGS = MemoryBankSettings(
    selection="evidence",
    embedding_model="lexical",
    observer_model="extractive",
    history_budget=4000,
    refresh_after=0,
)


def conversation(output: str, small: int) -> list[dict[str, object]]:
    """A task, a call with the output, and some small calls after it."""
    messages: list[dict[str, object]] = [{"role": "user", "content": "Look for A-17."}]
    for number, text in enumerate([output, *(f"small {i}" for i in range(small))]):
        arguments = json.dumps({"id": f"A-{number}"})
        call = {
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": "get", "arguments": arguments},
        }
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"call_{number}", "content": text})
    return messages


def steps(output: str) -> Callable[[], object]:
    """A step in which the output is new, and one that chooses from it."""

    def work() -> None:
        with MemoryBankState("lexical") as state:
            messages = conversation(output, 4)
            apply_memory_bank_strategy(messages[:3], None, SETTINGS, state)
            apply_memory_bank_strategy(messages, None, SETTINGS, state)

    return work


def _stored(output: str) -> MemoryBankState:
    state = MemoryBankState("lexical")
    apply_memory_bank_strategy(conversation(output, 4), None, SETTINGS, state)
    return state


def search(output: str) -> Callable[[], object]:
    """Searches for a value and for words, and reads parts of the record."""
    state = _stored(output)
    middle = output[len(output) // 2 :][:12]

    def work() -> None:
        for query in ("A-17 password", middle):
            handle_tool_call(state, "search_memory", {"query": query})
        handle_tool_call(state, "get_record", {"trace_id": "#1"})
        handle_tool_call(state, "get_record", {"trace_id": "#1", "lines": "1-3"})
        handle_tool_call(state, "get_record", {"trace_id": "#1", "pattern": "zz+top"})

    return work


def provenance(output: str) -> Callable[[], object]:
    """Checks of calls: one whose value nobody has shown, one whose values come from the output."""
    messages = conversation(output, 4)
    middle = output[len(output) // 2 :][:40]

    def work() -> None:
        with MemoryBankState("lexical") as state:
            check_call(
                ("get", {"id": "A-99817", "text": middle, "path": "/a/b/c/ab-17.txt"}), state, messages
            )

    return work


WORK = {"step": steps, "search": search, "provenance": provenance}


def cpu_seconds(prepare: Callable[[str], Callable[[], object]], output: str) -> float:
    """CPU seconds of this thread."""
    work = prepare(output)
    gc.collect()
    start = time.thread_time()
    work()
    return time.thread_time() - start


def peak_bytes(prepare: Callable[[str], Callable[[], object]], output: str) -> int:
    """The most memory that was held at once, in bytes, beyond what was held before."""
    work = prepare(output)
    gc.collect()
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def main() -> int:
    """Print the tables; 1 where something grew faster than it should."""
    parser = command_line(__doc__)
    parser.add_argument("--size", type=int, default=10_000, help="characters of the smallest outputs")
    parser.add_argument("--only", default="", help="outputs whose name has this")
    parser.add_argument(
        "--work", default=",".join(WORK), help="step, search, provenance; several with commas"
    )
    parser.add_argument("--all", action="store_true", help="print every output")
    args = parser.parse_args()
    by_size = [dict(odd_outputs(args.size * n)) for n in SIZES]
    names = [name for name in by_size[0] if args.only.lower() in name.lower()]
    bad = 0
    times = " | ".join(f"{n} × (ms)" for n in SIZES)
    print(f"| work | output | {times} | growth | 1 × (MB) | {SIZES[-1]} × (MB) | growth |")
    print("|---|---|" + "---|" * (len(SIZES) + 4))
    for kind in args.work.split(","):
        cpu_seconds(WORK[kind], by_size[0][names[0]])  # imports and caches
        rows = []
        for name in names:
            seconds = [cpu_seconds(WORK[kind], outputs[name]) for outputs in by_size]
            small, large = (peak_bytes(WORK[kind], by_size[n][name]) for n in (0, -1))
            growth = seconds[-1] / max(seconds[0], LEAST_SECONDS), large / max(small, LEAST_BYTES)
            cells = " | ".join(f"{1000 * s:.0f}" for s in seconds)
            memory = f"{small / 1e6:.1f} | {large / 1e6:.1f} | {growth[1]:.1f} ×"
            line = f"| {kind} | {name} | {cells} | {growth[0]:.1f} × | {memory} |"
            rows.append((growth, seconds[-1], line))
            bad += max(growth) > LIMIT
            if args.all or max(growth) > LIMIT:
                print(line, flush=True)
        if not args.all:
            for line in dict.fromkeys(
                (max(rows, key=lambda r: max(r[0]))[2], max(rows, key=lambda r: r[1])[2])
            ):
                print(line, flush=True)
    print(
        f"\n{bad} outputs grew more than {LIMIT:.0f} times from 1 × to 8 ×."
        if bad
        else "\nNone grew too fast."
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
