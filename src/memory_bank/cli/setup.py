"""The verbs connect and config: what a client needs to use the proxy, and the configuration, checked and printed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import typer

from memory_bank.cli.shared import CONFIG, JSON, one_line, print_json, service_settings, table, tell
from memory_bank.errors import ConfigError
from memory_bank.service.server.database import default_database
from memory_bank.shipped import shipped_file

ATTRIBUTION = (
    "CLAUDE_CODE_ATTRIBUTION_HEADER=0 is set, as the upstream is not Anthropic: Claude Code's header changes at each "
    "request, so that no prefix cache would hold."
)
_BEGIN, _END = "# memory-bank connect: begin", "# memory-bank connect: end"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[\w-]+", name, re.ASCII) else toml_value(name)


def toml_value(value: Any) -> str:
    """A value in TOML, on one line."""
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{_key(k)} = {toml_value(v)}" for k, v in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml_value, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


# -- connect


class Client(NamedTuple):
    """A client, and what points it at the proxy: a variable, or values in its configuration file (``--write``).

    ``file`` is the variable that names a folder, that folder below the user's, and the path in it. ``place`` says
    where what is printed belongs.
    """

    place: str = "set it in the shell that starts the program, not in that of the service"
    variable: str = ""
    file: tuple[str, ...] = ()
    values: Callable[[str], dict[str, Any]] = lambda _: {}

    def path(self) -> Path:
        variable, default, *rest = self.file
        folder = os.environ.get(variable)
        return (Path(folder) if folder else Path.home() / default).joinpath(*rest)


def is_elsewhere(upstream: str) -> bool:
    """Return whether an upstream of the Messages API is not Anthropic's own; "" is."""
    host = urlsplit(upstream).hostname or ""
    return bool(upstream) and host != "anthropic.com" and not host.endswith(".anthropic.com")


def claude_code(url: str, elsewhere: bool = False) -> dict[str, Any]:
    """The settings of Claude Code."""
    return {
        "env": {"ANTHROPIC_BASE_URL": url} | ({"CLAUDE_CODE_ATTRIBUTION_HEADER": "0"} if elsewhere else {})
    }


def _opencode(url: str) -> dict[str, Any]:
    options = {"options": {"baseURL": f"{url}/v1"}}
    return {"provider": {"openai": options, "anthropic": options}}


def _codex(url: str) -> dict[str, Any]:
    provider = {
        "name": "memory_bank", "base_url": f"{url}/v1", "env_key": "OPENAI_API_KEY", "wire_api": "responses",
    }  # fmt: skip
    return {"model_provider": "memory_bank", "model_providers": {"memory_bank": provider}}


CLIENTS = {
    "claude-code": Client(
        "set it in the shell that starts `claude`, not in that of the service, or put this into {file}: {values}",
        "ANTHROPIC_BASE_URL={url}", ("CLAUDE_CONFIG_DIR", ".claude", "settings.json"), claude_code,
    ),
    "codex": Client(
        "put these lines at the top of {file}, above its first [table] and in place of a model_provider that it has, "
        "and set OPENAI_API_KEY, from which Codex takes the key",
        file=("CODEX_HOME", ".codex", "config.toml"), values=_codex,
    ),
    "opencode": Client(
        "put these members into {file}, beside those that it has",
        file=("XDG_CONFIG_HOME", ".config", "opencode", "opencode.json"), values=_opencode,
    ),
    "openai": Client(variable="OPENAI_BASE_URL={url}/v1"),
    "anthropic": Client(variable="ANTHROPIC_BASE_URL={url}"),
}  # fmt: skip
"""The clients by name. ``openai`` and ``anthropic`` are programs that use the SDKs of these names."""


def connect(
    client: str | None = typer.Argument(None, help=f"One of {', '.join(CLIENTS)}; without one they are listed."),
    url: str | None = typer.Option(None, help="Address of the service, without /v1; default: where `serve` listens."),
    config: Path | None = CONFIG,
    write: bool = typer.Option(False, "--write", help="Write it to the client's configuration."),
    undo: bool = typer.Option(False, "--undo", help="Remove what --write has written."),
) -> None:  # fmt: skip
    """Print the setting that sends a client's requests through the proxy, and how to check that it works.

    Settings that the client's configuration already contains are never changed.
    """
    if client is None:
        places = {n: str(c.path()) if c.file else c.variable.partition("=")[0] for n, c in CLIENTS.items()}
        table(["client", "its setting"], [*map(list, places.items())], whole=[0])
        return
    client = "claude-code" if client == "claude" else client  # its command
    entry = CLIENTS.get(client)
    if entry is None:
        raise ConfigError(f"no client is called {client!r}: choose one of {', '.join(CLIENTS)}.")
    if write and undo:
        raise ConfigError("give --write or --undo, not both.")
    settings = service_settings(None, config)
    usual = f"http://127.0.0.1:{settings.port}"
    written = _written() if entry.file else {}
    path = entry.path() if entry.file else Path()
    is_undone = undo and url is None and str(path) in written
    url = (usual if url is None else url).strip().rstrip("/").removesuffix("/v1")
    port = _port_of(url)
    if port is None:
        raise ConfigError(f"{url!r} is no address of the service: give one such as {usual}.")
    if (write or undo) and not entry.file:
        raise ConfigError(f"{client} has no configuration file: set the variable printed without --write.")
    upstream = settings.upstream_anthropic or os.environ.get("ANTHROPIC_BASE_URL", "")
    elsewhere = client == "claude-code" and upstream.rstrip("/") != url and is_elsewhere(upstream)
    entries = claude_code(url, elsewhere) if client == "claude-code" else entry.values(url)
    values = written[str(path)] if is_undone else entries
    if write or undo:
        old = path.read_text(encoding="utf-8-sig") if path.exists() else ""
        new = (_edited_toml if path.suffix == ".toml" else _edited_json)(path, old, values, undo)
        if new == old:
            tell(f"{path} needs no change.")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(new, encoding="utf-8")
            written.pop(str(path), None)
            with contextlib.suppress(OSError):  # --undo takes --url then
                _connected().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                _connected().write_text(json.dumps(written | ({} if undo else {str(path): values})), "utf-8")
            tell(f"{'removed from' if undo else 'written to'} {path}.")
    elif not entry.file:
        print(f"export {entry.variable.format(url=url)}")
        tell(f"{entry.place}.")
    else:
        lines = _toml_lines(values) if client == "codex" else json.dumps(values, indent=2)
        print(f"export {entry.variable.format(url=url)}" if entry.variable else lines)
        if elsewhere:
            print("export CLAUDE_CODE_ATTRIBUTION_HEADER=0")
        place = entry.place.format(file=entry.path(), values=json.dumps(values))
        tell(f"{place} (--write changes the file).")
    if elsewhere and not undo:
        tell(ATTRIBUTION)
    if not undo:
        is_here = urlsplit(url).hostname in ("127.0.0.1", "localhost")
        other = f" --port {port}" if is_here and port not in (0, settings.port) else ""
        tell(
            f"start `memory-bank serve{other}`, let the client make some calls of tools, and look at {url}/ or at "
            "`memory-bank bank sessions`: the session is there, and answers have the header x-memory-status."
        )


def _port_of(url: str) -> int | None:
    """The port that an address of HTTP names, 0 where it names none; None where it is no such address."""
    try:
        where = urlsplit(url)
        return (where.port or 0) if where.scheme in ("http", "https") and where.hostname else None
    except ValueError:
        return None


def _connected() -> Path:
    return default_database().parent / "connected.json"


def _written() -> dict[str, Any]:
    """The settings that ``--write`` has written, by file."""
    try:
        written = json.loads(_connected().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return written if isinstance(written, dict) else {}


def _edited_json(path: Path, old: str, values: dict[str, Any], undo: bool) -> str:
    try:
        config = json.loads(old) if old.strip() else {}
    except ValueError:
        config = None
    if not isinstance(config, dict):
        raise ConfigError(f"{path} is not plain JSON: make the change by hand.")
    before = json.dumps(config)
    _edit(path, config, values, undo)
    return old if json.dumps(config) == before else json.dumps(config, indent=2, ensure_ascii=False) + "\n"


def _edit(path: Path, config: dict[str, Any], values: dict[str, Any], undo: bool) -> None:
    for key, value in values.items():
        inner = config.get(key) if undo else config.setdefault(key, {} if isinstance(value, dict) else value)
        if isinstance(value, dict) and isinstance(inner, dict):
            _edit(path, inner, value, undo)
            value = {}  # what is removed when nothing is left in it
        elif inner != value and not undo:
            raise ConfigError(f"{path} sets {key} already, to something else: make the change by hand.")
        if undo and key in config and inner == value:
            del config[key]


def _edited_toml(path: Path, old: str, values: dict[str, Any], undo: bool) -> str:
    """The text of a TOML file with the values added at its beginning, between comments, or removed."""
    rest = re.sub(rf"^{_BEGIN}.*?(^{_END}.*?$\n?|\Z)", "", old, flags=re.MULTILINE | re.DOTALL)
    if undo:
        return rest
    new = f"{_BEGIN}\n{_toml_lines(values)}\n{_END}\n{rest}"
    try:
        tomllib.loads(new)
    except tomllib.TOMLDecodeError:
        keys = ", ".join(values)
        raise ConfigError(
            f"{path} is no valid TOML or sets {keys} already: make the change by hand."
        ) from None
    return new


def _toml_lines(values: dict[str, Any]) -> str:
    """The values as TOML without a heading, so that lines that follow stay outside of any table."""
    lines = [f"{key} = {toml_value(value)}" for key, value in values.items() if not isinstance(value, dict)]
    for key, tables in values.items():
        if isinstance(tables, dict):
            lines += [f"{key}.{name} = {toml_value(table)}" for name, table in tables.items()]
    return "\n".join(lines)


# -- config


def config(
    file: Path | None = typer.Argument(None, help="A configuration file; default: the shipped configuration."),
    every: bool = typer.Option(False, "--all", help="Print every setting."),
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Check a configuration and print it as TOML: what people set, and what the file and the environment change.

    Each setting has a sentence, and the file or the variable that sets it; one that has no effect under the others
    stands in a comment. What is printed is a configuration file,
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
    printed = [s for s in settings if every or s.source or has(usual, s.place)]
    for i, s in enumerate(printed):
        if s.place == ("service", "database"):
            password = r"(://[^:/@]*:|[?&]password=)[^@&]*(@|&|$)"
            printed[i] = s._replace(value=re.sub(password, r"\1***\2", s.value))
    if as_json:
        print_json([{"setting": s.place, "value": s.value, "source": s.source or "default"} for s in printed])
        return
    printed.sort(key=lambda s: len(s.place))  # tables come last
    for place, members in groupby(printed, lambda s: s.place[:-1]):
        if place:
            print(f"\n[{'.'.join(map(_key, place))}]")
        for s in members:
            source = f"Set by {one_line(s.source, 500)}." if s.source else ""
            if about := " ".join(filter(None, (s.meaning, source))):
                print(f"# {about}")
            value = "" if s.value is None else f" {toml_value(s.value)}"
            is_comment = s.value is None or (s.is_idle and not s.source)
            print(f"{'# ' if is_comment else ''}{_key(s.place[-1])} ={value}")
