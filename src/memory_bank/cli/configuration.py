"""The verb ``config``: print and check a configuration."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import typer

from memory_bank.cli.options import JSON
from memory_bank.cli.output import one_line, print_json, tell
from memory_bank.errors import ConfigError
from memory_bank.shipped import shipped_file

_PASSWORD = re.compile(r"(://[^:/@]*:|[?&]password=)[^@&]*(@|&|$)")


def config(
    file: Path | None = typer.Argument(
        None, help="A configuration file; default: the shipped configuration."
    ),
    every: bool = typer.Option(False, "--all", help="Print every setting."),
    as_json: bool = JSON,
) -> None:
    """Check a configuration and print it as TOML: what people set, and what the file and the environment change.

    Each setting has a sentence, and the file or the variable that sets it. What is printed is a configuration file,
    without a password in the database's URL. Each mistake is one sentence on standard error, with exit code 2.
    """
    from memory_bank.config import effective_settings, has

    try:
        settings = [*effective_settings(file)]
    except ConfigError as e:
        for mistake in e.mistakes:
            tell(mistake)
        raise typer.Exit(2) from None
    usual = tomllib.loads(shipped_file("config.toml").read_text(encoding="utf-8"))
    shown = [s for s in settings if every or s.source or has(usual, s.place)]
    if as_json:
        print_json(
            [{"setting": s.place, "value": _public(s), "source": s.source or "default"} for s in shown]
        )
        return
    shown.sort(key=lambda s: len(s.place))  # tables come last
    for table, members in groupby(shown, lambda s: s.place[:-1]):
        if table:
            print(f"\n[{'.'.join(map(_key, table))}]")
        for s in members:
            if about := " ".join(
                filter(None, (s.meaning, s.source and f"Set by {one_line(s.source, 500)}."))
            ):
                print(f"# {about}")
            print(f"# {s.place[-1]} =" if s.value is None else f"{_key(s.place[-1])} = {_toml(_public(s))}")


def _public(setting: Any) -> Any:
    is_url = setting.place == ("service", "database")
    return _PASSWORD.sub(r"\1***\2", setting.value) if is_url else setting.value


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
