"""The verb ``doctor``: what a bank, a service and its clients need, each with the command that mends it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import stat
import tomllib
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import typer

from memory_bank.cli.run import ADDRESSES, UNKNOWN, Health, health_of, local_address
from memory_bank.cli.setup import CLIENTS
from memory_bank.cli.shared import CONFIG, DB, JSON, bank_file, print_json, service_settings, visible
from memory_bank.errors import (
    INSTALL,
    ConfigError,
    DatabaseVersionError,
    EmbedderMismatchError,
    MemoryBankError,
)

if TYPE_CHECKING:
    from memory_bank.bank.database import Database
    from memory_bank.service.proxy.api import Provider

_PROGRAMS = {"claude-code": "claude", "codex": "codex", "opencode": "opencode"}
_ROOM = 2**30  # free bytes of a disk below which it is reported
_FULL = 2**26  # bytes below which a bank cannot be written for want of room


class Finding(NamedTuple):
    """One check: ``ok``, ``wrong`` with the ``command`` that mends it, or a ``note``."""

    name: str
    state: str
    says: str
    command: str = ""


def doctor(db: str | None = DB, config: Path | None = CONFIG, as_json: bool = JSON) -> None:
    """Check the bank, the embedder, the service, its upstreams and the settings of clients.

    What is wrong is printed with the command that mends it; exit code 1 then. Nothing is changed, and no key read.
    """
    try:
        findings = [*_checks(db, config)]
    except ConfigError as e:
        command = shlex.join(["memory-bank", "config", *([str(config)] if config else [])])
        findings = [Finding("configuration", "wrong", str(e), command)]
    wrong = any(f.state == "wrong" for f in findings)
    if as_json:
        print_json({"ok": not wrong, "checks": [f._asdict() for f in findings]})
    for f in () if as_json else findings:
        print(fill(visible(f.says), 80, initial_indent=f"{f.state:<6} {f.name}: ", subsequent_indent=" " * 7))
        if f.command:
            print(f"       run: {visible(f.command)}")
    if wrong:
        raise typer.Exit(1)


def _checks(db: str | None, config: Path | None) -> Iterator[Finding]:
    from memory_bank.bank.database import Database
    from memory_bank.config import load_config, upstreams_of
    from memory_bank.service.server.database import database_of

    loaded = load_config(config)
    settings = service_settings(db, config)
    where = database_of(settings)
    db_option = "" if db is None else f" --db {shlex.quote(db)}"
    try:
        file = bank_file(where)
    except ConfigError:  # PostgreSQL, or in memory
        file = None
    if file is not None:
        folder = next(p for p in file.absolute().parents if p.is_dir())
        free = shutil.disk_usage(folder).free
        state, mends = (
            ("ok", "") if free >= _ROOM else ("wrong", f"memory-bank bank purge{db_option} --older-than 30d")
        )
        yield Finding("disk", state, f"{free / 2**30:,.1f} GiB are free in {folder}", mends)
    database = None
    if file is not None and settings.database and not file.absolute().parent.is_dir():
        mends = f"mkdir -p {shlex.quote(str(file.parent))}"
        yield Finding("database", "wrong", f"there is no folder {file.parent} for the bank", mends)
    elif file is not None and not file.exists():
        yield Finding("database", "note", f"there is no bank {file} yet: the first request makes it")
    else:
        try:
            database = Database(where, must_exist=True)
            database.check_writing()
            yield _database(database, file)
        except MemoryBankError as e:
            mends = f"memory-bank bank restore{db_option} BACKUP"
            if isinstance(e, DatabaseVersionError):
                mends = "git pull && pip install ."
            elif file is not None and shutil.disk_usage(file.absolute().parent).free < _FULL:
                mends = f"memory-bank bank purge{db_option} --older-than 30d"
            yield Finding("database", "wrong", str(e), mends)
    strategy = loaded.strategy(settings.strategy or loaded.default_strategy)
    yield _embedder(getattr(strategy, "embedding_model", "lexical"), database, db_option)
    if database is not None:
        database.close()
    url = f"http://127.0.0.1:{settings.port}"
    health = health_of(url)
    try:
        if not (find_spec("fastapi") and find_spec("uvicorn")):
            raise ImportError("FastAPI or uvicorn is not installed")
        yield from _service(url, health) if health else _upstreams(url, upstreams_of(settings))
    except ConfigError as e:
        yield Finding("upstream", "wrong", str(e), "memory-bank config")
    except ImportError as e:
        yield Finding("service", "wrong", str(e), INSTALL.format(extra="service"))
    yield from _clients(url)


def _database(database: Database, file: Path | None) -> Finding:
    from memory_bank.bank.schema import VERSION

    says = f"{database.name}, schema {VERSION}"
    if file is not None:
        status = file.stat()
        says += f", {status.st_size / 2**20:,.1f} MiB, mode {stat.S_IMODE(status.st_mode):o}"
        if os.name == "posix" and status.st_mode & 0o077:  # opening it could not change that
            return Finding(
                "database", "wrong", f"{says}: others may read it", f"chmod 600 {shlex.quote(str(file))}*"
            )
    return Finding("database", "ok", says)


def _embedder(wanted: str, database: Database | None, db_option: str) -> Finding:
    from memory_bank.bank.embedder import check_embedder
    from memory_bank.models.embedding import load_embedder

    try:
        model = load_embedder(wanted)
        if database is not None:
            check_embedder(database, model.name, None)
    except EmbedderMismatchError as e:
        again = f"memory-bank bank re-embed{db_option} --embedding-model {shlex.quote(wanted)}"
        return Finding("embedder", "wrong", str(e), again)
    except MemoryBankError as e:
        return Finding("embedder", "wrong", str(e), INSTALL.format(extra="bge"))
    return Finding("embedder", "ok", model.name)


def _service(url: str, health: Health) -> Iterator[Finding]:
    if not health.is_own:
        yield Finding("service", "note", f"{UNKNOWN.format(url=url)}; `memory-bank run` starts its own")
        return
    parts = health.facts.get("parts", {})
    well = ", ".join(name for name, part in parts.items() if part["ok"])
    yield Finding(
        "service", "ok", f"{health.facts['version']} answers at {url}" + (f"; well: {well}" if well else "")
    )
    for name, part in parts.items():
        if not part["ok"]:
            mends = (
                "memory-bank serve --upstream URL" if name == "upstream" else "memory-bank --verbose serve"
            )
            yield Finding(
                name, "wrong", f"the service says: {part.get('trouble') or part.get('name')}", mends
            )


def _upstreams(service: str, urls: Mapping[Provider, str]) -> Iterator[Finding]:
    """Check whether the upstream APIs of a service started in this shell answer."""
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    says = f"none answers at {service}; `memory-bank run -- COMMAND` starts one for a command"
    with socket.socket() as s:
        is_taken = s.connect_ex(("127.0.0.1", urlsplit(service).port or 0)) == 0
    if is_taken:
        says = f"{service} is in use by another program, or its service does not answer"
        yield Finding("service", "wrong", says, "memory-bank serve --port 0")
    else:
        yield Finding("service", "note", says, "memory-bank serve")
    for provider, url in urls.items():
        local = local_address(url)
        if local is not None and (local == service or health_of(local)):
            says = f"{url} is a service itself: the variable is for clients, not for the shell of the service"
            yield Finding("upstream", "note", says)
            continue
        try:
            with urlopen(Request(url, method="HEAD"), timeout=5):
                pass
        except HTTPError:  # an answer, as there is no key
            pass
        except (OSError, ValueError) as e:
            option = "--upstream" if provider == "openai" else "--upstream-anthropic"
            says = f"{url} does not answer ({getattr(e, 'reason', e)})"
            yield Finding("upstream", "wrong", says, f"memory-bank serve {option} URL")
            continue
        yield Finding("upstream", "ok", f"{url} answers")


def _clients(service: str) -> Iterator[Finding]:
    """Check where the environment variables of this shell and the settings of clients send requests."""
    places = [(name, os.environ.get(name, ""), f"unset {name}") for name in ADDRESSES]
    for client, client_entry in CLIENTS.items():
        if client_entry.file and (path := client_entry.path()).is_file():
            try:
                text = path.read_text(encoding="utf-8-sig")
                values = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
                url = _address_in(client, values)
            except (OSError, ValueError, AttributeError, TypeError):
                yield Finding(
                    client, "note", f"{path} cannot be read here: `memory-bank connect {client}` says more"
                )
                continue
            places.append((client, url, f"memory-bank connect {client} --undo --url {local_address(url)}"))
    for name, url, undo in places:
        local, start = (
            local_address(url),
            f"memory-bank run -- {_PROGRAMS[name]}" if name in _PROGRAMS else "",
        )
        health = None if local is None else health_of(local)
        if health is not None:
            goes = f"goes through the service at {local}"
            unknown = f"goes to {local}, but {UNKNOWN.format(url='that address')}"
            yield Finding(name, "ok" if health.is_own else "note", goes if health.is_own else unknown)
        elif local == service or (local and name in CLIENTS):
            says = (
                f"goes to {local}, where no service answers: start it with --port {urlsplit(local).port}, or"
            )
            yield Finding(name, "wrong", says, undo)
        elif url:
            yield Finding(name, "note", f"goes to {_without_secrets(url)}, without memory", start)
        elif start:
            yield Finding(name, "note", "has no settings of memory", start)


def _address_in(client: str, values: dict[str, Any]) -> str:
    """The address of the API in the configuration of a client; "" without one."""
    if client == "claude-code":
        return str(values.get("env", {}).get("ANTHROPIC_BASE_URL", ""))
    if client == "codex":
        provider = values.get("model_providers", {}).get(values.get("model_provider"), {})
        return str(provider.get("base_url", ""))
    urls = (p.get("options", {}).get("baseURL", "") for p in values.get("provider", {}).values())
    return next(filter(None, urls), "")


def _without_secrets(url: str) -> str:
    """Return the URL without user name, password and query."""
    try:
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}{parts.path}"
    except ValueError:
        return "an address that cannot be read"
