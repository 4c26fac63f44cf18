"""Writes the prices that ship with the package, from the package genai-prices; `make prices` runs it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from genai_prices.data import providers

from memory_bank.pricing import DATED, normal_name

FILE = Path(__file__).parents[1] / "src" / "memory_bank" / "prices.toml"
PROVIDERS = ("anthropic", "openai", "google", "x-ai", "deepseek", "mistral", "moonshotai", "zai")
KINDS = {
    "prompt": "input_mtok",
    "completion": "output_mtok",
    "cached": "cache_read_mtok",
    "cache_write": "cache_write_mtok",
}
NO_AGENTS = re.compile(
    r"audio|image|tts|realtime|transcri|live|embed|moderation|^ft|:|@|omni|robotics|banana|voxtral|ocr|vision"
    r"|search|instruct|computer-use|davinci|babbage|curie|^ada$|gpt-3|gpt-4-(turbo|32k|vision|\d{4})|^gpt-4$|claude-(v?[12]|instant)"
    r"|gemini-(1|pro|flash)|gemma|guard|classifier|deep-research|robot|translate|whisper"
    r"|^text-|^open-|pixtral|mixtral|mistral-7b|-beta"
)


def names(clause: Any) -> Iterator[str]:
    """The names in a rule of matching; regular expressions are left out."""
    for kind in ("equals", "starts_with", "ends_with", "contains"):
        if (name := getattr(clause, kind, None)) is not None:
            yield name.rstrip("-").rpartition("/")[2]
    for part in getattr(clause, "or_", ()):
        yield from names(part)


def amount(price: Any) -> str | None:
    """A price as TOML; of one with tiers the price of short prompts."""
    return None if price is None else f"{float(getattr(price, 'base', price)):g}"


def main() -> None:
    """Write the file."""
    now = datetime.now(UTC)
    rows: dict[str, str] = {}
    for provider in (p for name in PROVIDERS for p in providers if p.id == name):
        for model in provider.models:
            prices = model.get_prices(now)
            row = {ours: amount(getattr(prices, theirs, None)) for ours, theirs in KINDS.items()}
            if model.deprecated or not (row["prompt"] and row["completion"]):
                continue
            said = ", ".join(f"{kind} = {value}" for kind, value in row.items() if value is not None)
            rows |= {n: rows.get(n, said) for n in map(normal_name, (model.id, *names(model.match)))}
    rows = {name: said for name, said in rows.items() if not NO_AGENTS.search(name)}
    for name in list(rows):  # a name with a date says nothing that the one without does not
        plain = DATED.sub("", name)
        if plain != name and rows.get(plain) == rows[name]:
            del rows[name]
    head = (
        "# Dollars for a million tokens, of short prompts; written by `make prices`.\n"
        f'source = "genai-prices {version("genai-prices")}"\ndate = {now.date()}\n\n[models]\n'
    )
    lines = (f'"{name}" = {{ {said} }}\n' for name, said in sorted(rows.items()))
    FILE.write_text(head + "".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
