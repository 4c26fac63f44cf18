"""The verb connect: what a client needs to use the proxy, printed, written to its configuration, and undone."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from memory_bank.cli.output import tell
from memory_bank.errors import ConfigError

URL = "http://127.0.0.1:8767"
_BEGIN, _END = "# memory-bank connect: begin", "# memory-bank connect: end"


@dataclass(frozen=True)
class Client:
    """A client: what to set by hand, where (``{file}``, ``{values}``), and the file that ``--write`` changes."""

    by_hand: Callable[[str], str]
    place: str = "set it in the shell that starts the program, not in that of the service"
    home: tuple[
        str, ...
    ] = ()  # the variable that names a folder, that folder below the user's, the path in it
    values: Callable[[str], dict[str, Any]] | None = None

    def file(self) -> Path:
        variable, default, *rest = self.home
        given = os.environ.get(variable)
        return (Path(given) if given else Path.home() / default).joinpath(*rest)


def _opencode(url: str) -> dict[str, Any]:
    options = {"options": {"baseURL": f"{url}/v1"}}
    return {"provider": {"openai": options, "anthropic": options}}


def _codex(url: str) -> dict[str, Any]:
    provider = {
        "name": "memory_bank",
        "base_url": f"{url}/v1",
        "env_key": "OPENAI_API_KEY",
        "wire_api": "responses",
    }
    return {"model_provider": "memory_bank", "model_providers": {"memory_bank": provider}}


CLIENTS = {
    "claude-code": Client(
        lambda url: f"export ANTHROPIC_BASE_URL={url}",
        "set it in the shell that starts `claude`, not in that of the service, or put this into {file}: {values}",
        ("CLAUDE_CONFIG_DIR", ".claude", "settings.json"),
        lambda url: {"env": {"ANTHROPIC_BASE_URL": url}},
    ),
    "codex": Client(
        lambda url: _toml(_codex(url)),
        "put these lines at the top of {file}, above its first [table] and in place of a model_provider that it has, "
        "and set OPENAI_API_KEY, from which Codex takes the key",
        ("CODEX_HOME", ".codex", "config.toml"),
        _codex,
    ),
    "opencode": Client(
        lambda url: json.dumps(_opencode(url), indent=2),
        "put these members into {file}, beside those that it has",
        ("XDG_CONFIG_HOME", ".config", "opencode", "opencode.json"),
        _opencode,
    ),
    "openai": Client(lambda url: f"export OPENAI_BASE_URL={url}/v1"),
    "anthropic": Client(lambda url: f"export ANTHROPIC_BASE_URL={url}"),
}
"""The clients by name. ``openai`` and ``anthropic`` are programs that use the SDKs of these names."""


def connect(
    client: str = typer.Argument(..., help=f"One of {', '.join(CLIENTS)}."),
    url: str = typer.Option(URL, help="Address of the service, without /v1."),
    write: bool = typer.Option(False, "--write", help="Write it to the client's configuration."),
    undo: bool = typer.Option(False, "--undo", help="Remove what --write has written."),
) -> None:
    """Print what a client needs to send its requests through the proxy, and how to see that it works.

    A setting that the client's configuration has already is never changed.
    """
    known = CLIENTS.get(client)
    if known is None:
        raise ConfigError(f"no client is called {client!r}: choose one of {', '.join(CLIENTS)}.")
    if write and undo:
        raise ConfigError("give --write or --undo, not both.")
    url = url.strip().rstrip("/").removesuffix("/v1")
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"{url!r} is no address of the service: give one such as {URL}.")
    check = (
        f"start `memory-bank serve`, let the client make some calls of tools, and look at {url}/ or at "
        "`memory-bank bank sessions`: the session is there, and answers have the header x-memory-status."
    )
    if not (write or undo):
        print(known.by_hand(url))
        place = known.place
        if known.values is not None:
            place = place.format(file=known.file(), values=json.dumps(known.values(url)))
            place += " (--write changes the file)"
        tell(f"{place}.")
        tell(check)
        return
    if known.values is None:
        raise ConfigError(
            f"{client} has no configuration file: set the variable that is printed without --write."
        )
    path = known.file()
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    edit = _edited_toml if path.suffix == ".toml" else _edited_json
    new = edit(path, old, known.values(url), undo)
    if new == old:
        tell(f"{path} needs no change.")
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(new, encoding="utf-8")
        tell(f"{'removed from' if undo else 'written to'} {path}.")
    if not undo:
        tell(check)


def _edited_json(path: Path, old: str, values: dict[str, Any], undo: bool) -> str:
    """The text of a JSON file with the values added or removed."""
    try:
        config = json.loads(old) if old.strip() else {}
    except ValueError:
        config = None
    if not isinstance(config, dict):
        raise ConfigError(f"{path} is not plain JSON: make the change by hand.")
    before = json.dumps(config)
    (_remove if undo else _add)(path, config, values)
    return old if json.dumps(config) == before else json.dumps(config, indent=2, ensure_ascii=False) + "\n"


def _add(path: Path, config: dict[str, Any], values: dict[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, dict):
            inner = config.setdefault(key, {})
            if not isinstance(inner, dict):
                raise ConfigError(f"{key} in {path} is no object: make the change by hand.")
            _add(path, inner, value)
        elif config.setdefault(key, value) != value:
            raise ConfigError(f"{path} sets {key} already: remove it, or make the change by hand.")


def _remove(path: Path, config: dict[str, Any], values: dict[str, Any]) -> None:
    for key, value in values.items():
        inner = config.get(key)
        if isinstance(value, dict) and isinstance(inner, dict):
            _remove(path, inner, value)
            if not inner:
                del config[key]
        elif inner == value and key in config:
            del config[key]


def _edited_toml(path: Path, old: str, values: dict[str, Any], undo: bool) -> str:
    """The text of a TOML file with the values added at its beginning, between marks, or removed."""
    rest = re.sub(rf"^{_BEGIN}.*?(^{_END}.*?$\n?|\Z)", "", old, flags=re.MULTILINE | re.DOTALL)
    if undo:
        return rest
    new = f"{_BEGIN}\n{_toml(values)}\n{_END}\n{rest}"
    try:
        tomllib.loads(new)
    except tomllib.TOMLDecodeError:
        keys = ", ".join(values)
        raise ConfigError(
            f"{path} is no valid TOML or sets {keys} already: make the change by hand."
        ) from None
    return new


def _toml(values: dict[str, Any]) -> str:
    """The values as TOML without a heading, so that lines that follow stay outside of any table."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items() if isinstance(value, str)]
    for key, tables in values.items():
        for name, table in tables.items() if isinstance(tables, dict) else ():
            members = ", ".join(f"{k} = {json.dumps(v)}" for k, v in table.items())
            lines.append(f"{key}.{name} = {{ {members} }}")
    return "\n".join(lines)
