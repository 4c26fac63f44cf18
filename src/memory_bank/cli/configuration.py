"""The commands `memory-bank config show` and `memory-bank config check`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import typer

from memory_bank.cli.bank import JSON
from memory_bank.cli.lab import CONFIG
from memory_bank.cli.output import one_line, print_json, tell
from memory_bank.errors import ConfigError

config = typer.Typer(help="Show and check configurations.", no_args_is_help=True, rich_markup_mode=None)
_PASSWORD = re.compile(r"(://[^:/@]*:|[?&]password=)[^@&]*(@|&|$)")


@config.command()
def show(file: Path | None = CONFIG, as_json: bool = JSON) -> None:
    """Print all settings in effect as TOML, each with its source: the file, a variable, shipped, or default.

    What is printed can be used as a configuration file. A password in the database's URL is not shown.
    """
    from memory_bank.config import effective_settings

    settings = [
        (place, _PASSWORD.sub(r"\1***\2", value) if place == ("service", "database") else value, source)
        for place, value, source in effective_settings(file)
    ]
    if as_json:
        print_json(
            [{"setting": place, "value": value, "source": source} for place, value, source in settings]
        )
        return
    settings.sort(key=lambda s: len(s[0]))  # tables come last
    for table, members in groupby(settings, lambda s: s[0][:-1]):
        if table:
            print(f"\n[{'.'.join(map(_key, table))}]")
        for place, value, source in members:
            line = f"# {place[-1]} is not set" if value is None else f"{_key(place[-1])} = {_toml(value)}"
            print(f"{line}  # {one_line(source, 500)}")


@config.command()
def check(
    file: Path | None = typer.Argument(None, help="A configuration file."), config: Path | None = CONFIG
) -> None:
    """Check a configuration file, and the environment variables that change it.

    Prints one sentence for each mistake and exits with code 2, or says that the file is well. Whether models can be
    loaded and reached is checked by `memory-bank serve` when it starts.
    """
    from memory_bank.config import load_config

    try:
        load_config(file or config)
    except ConfigError as e:
        for mistake in e.mistakes:
            tell(mistake)
        raise typer.Exit(2) from None
    print(f"{file or config or 'the shipped configuration'} is well.")


def _key(name: str) -> str:
    return name if re.fullmatch(r"[\w-]+", name, re.ASCII) else _toml(name)


def _toml(value: Any) -> str:
    """A value in TOML, on one line."""
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{_key(k)} = {_toml(v)}" for k, v in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
