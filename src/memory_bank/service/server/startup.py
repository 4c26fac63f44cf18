"""Starting the service: check its configuration, listen, announce, serve."""

from __future__ import annotations

import errno
import logging
import os
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError

from memory_bank import __version__
from memory_bank.bank.embedder import check_embedder
from memory_bank.config import Config, MemoryBankSettings, ServiceSettings, message_of, upstreams_of
from memory_bank.context.policies import policy_of
from memory_bank.errors import ConfigError, EmbeddingError, ServiceError
from memory_bank.models.chat import OpenAIChat
from memory_bank.models.embedding import load_embedder
from memory_bank.models.observer import EXTRACTIVE, Observer
from memory_bank.records import InteractionRecord
from memory_bank.selection.model import load_model
from memory_bank.service.app import connections
from memory_bank.service.operations import logs
from memory_bank.service.operations.background import chat_of, model_of
from memory_bank.service.security.access import AllowedHosts, check_binding
from memory_bank.service.security.proof import make_secret
from memory_bank.service.server.database import open_database
from memory_bank.service.server.process import Workers, serve_here

log = logging.getLogger("memory_bank.Service")

_OPTIONS = {"database": "db"}  # settings whose option has another name


def with_options(config: Config, options: Mapping[str, Any]) -> Config:
    """The configuration with settings of the command line. Raises ConfigError."""
    try:
        service = ServiceSettings.model_validate({**config.service.model_dump(exclude_unset=True), **options})
    except ValidationError as e:
        first = e.errors(include_url=False, include_input=False)[0]
        name = str(first["loc"][0])
        raise ConfigError(f"--{_OPTIONS.get(name, name).replace('_', '-')}: {message_of(first)}") from None
    return config.model_copy(update={"service": service})


def serve(config: Config, *, verbose: bool = False) -> int:
    """Serve until a signal; returns the exit code, 0 or 130 after Ctrl-C.

    When requests are answered, the address is written to standard output; everything else goes to standard
    error. Raises before serving: ConfigError, ServiceError for an address that cannot be used, StorageError,
    EmbeddingError.
    """
    with listening(config) as sock:
        service = config.service.model_copy(update={"port": sock.getsockname()[1]})
        config = config.model_copy(update={"service": service})
        serving = checked(config)
        started = partial(announce, serving, service.log_format)
        try:
            sock.listen(2048)
        except OSError as e:  # the address has been taken meanwhile
            raise _unbound(config, e) from None
        make_secret()
        logs.set_up(service.log_format, verbose=verbose)
        if service.workers == 1:
            return serve_here(config, sock, started)
        return Workers(config, sock, verbose=verbose).run(started)


def listening(config: Config) -> socket.socket:
    """Bind a socket to the configured address, without listening yet. Raises ServiceError."""
    host, port = config.service.host, config.service.port
    try:
        family, kind, proto, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError):
        raise ConfigError(f"the host {host!r} is unknown: give an address such as 127.0.0.1.") from None
    sock = socket.socket(family, kind, proto)
    try:
        if os.name == "posix":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(where)
    except OSError as e:
        sock.close()
        raise _unbound(config, e) from None
    return sock


def _unbound(config: Config, error: OSError) -> ServiceError:
    address = f"{_bracketed(config.service.host)}:{config.service.port}"
    if error.errno == errno.EADDRINUSE:
        return ServiceError(f"{address} is in use: stop what listens there, or choose another --port.")
    if error.errno == errno.EACCES:
        return ServiceError(f"{address} needs more rights: choose a --port over 1023.")
    return ServiceError(f"{address} cannot be used ({error.strerror}): choose another --host or --port.")


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def checked(config: Config) -> dict[str, Any]:
    """Check what a service and its strategy need, and the evidence models of all, as a request may name each.

    Returns the address for clients (that of this machine if the service listens on all addresses) and the settings
    that a service announces once it has started.

    Creates the database if there is none. Raises ConfigError, StorageError, EmbeddingError.
    """
    settings = config.service
    name = settings.strategy or config.default_strategy
    strategy = config.strategy(name)
    upstreams = upstreams_of(settings)
    _check_upstream(config, upstreams["openai"], "--upstream", "OPENAI_BASE_URL")
    _check_upstream(config, upstreams["anthropic"], "--upstream-anthropic", "ANTHROPIC_BASE_URL")
    connections(upstreams)
    AllowedHosts(settings)
    chat = chat_of(config, upstreams["openai"])
    for each in config.memory_strategies.values():
        if isinstance(each, MemoryBankSettings) and each.evidence_model is not None:
            load_model(Path(each.evidence_model))
    embedder = _check_strategy(config, name, chat)
    database = open_database(settings)
    try:
        if embedder is not None:
            check_embedder(database, embedder, None)
        if database.in_memory and settings.workers > 1:
            raise ConfigError("workers cannot share a database in memory: set workers to 1, or name a file.")
        check_binding(settings, database)
        where = database.name
    finally:
        database.close()
    observer = "by extraction"
    if chat is not None and isinstance(strategy, MemoryBankSettings) and strategy.observer_mode != "off":
        model = strategy.observer_model
        observer = observer if model == EXTRACTIVE else f"by {model}"
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
    return {
        "address": f"http://{_bracketed(host)}:{settings.port}",
        "database": where,
        "upstream": upstreams["openai"],
        "upstream_anthropic": upstreams["anthropic"],
        "strategy": name,
        "observer": observer,
        "workers": settings.workers,
    }


def _check_strategy(config: Config, name: str, chat: OpenAIChat | None) -> str | None:
    """The embedder that the strategy's contexts need, if any. Raises ConfigError if every request would fail."""
    settings = config.strategy(name)
    policy = policy_of(settings, chat)
    model = model_of(settings)
    embedder = None
    try:
        if policy.bank is not None:
            embedder = load_embedder(policy.bank.embedding_model).name
            Observer.create(chat, policy.bank).messages(InteractionRecord.create(0, "-", {}, ""), "")
        if chat is not None and model is not None:
            chat.check(model)
    except (ConfigError, EmbeddingError) as e:
        raise ConfigError(f"the strategy {name!r} cannot work: {e}") from None
    return embedder if policy.reads_insights else None


def _check_upstream(config: Config, upstream: str, option: str, variable: str) -> None:
    """Raise ConfigError if the service would forward to itself, as with its clients' environment variable."""
    parts = urlsplit(upstream)
    names = {config.service.host, "localhost", "127.0.0.1", "::1", socket.gethostname()}
    same_port = (parts.port or (443 if parts.scheme == "https" else 80)) == config.service.port
    if same_port and (parts.hostname in names or parts.hostname == socket.getfqdn()):
        raise ConfigError(
            f"the upstream {upstream} is this service itself: name the model's API with {option}, or unset "
            f"{variable} for the service."
        )


def announce(serving: dict[str, Any], log_format: str) -> None:
    """Announce that requests are answered, and at which address."""
    lines = [(sys.stdout, serving["address"])]
    if log_format == "json":
        log.info("serving", extra={"version": __version__, **serving})
    else:
        workers = f", {serving['workers']} workers" if serving["workers"] > 1 else ""
        text = (
            f"memory-bank {__version__} serves at {{address}}{workers}\n"
            "  database  {database}\n"
            "  upstream  {upstream}\n"
            "  messages  {upstream_anthropic}\n"
            "  strategy  {strategy}, summaries: {observer}\n"
            "  agents    OPENAI_BASE_URL={address}/v1\n"
            "            ANTHROPIC_BASE_URL={address}\n"
            "  page      {address}/"
        )
        lines.insert(0, (sys.stderr, text.format(**serving)))
    for stream, line in lines:
        with suppress(OSError, ValueError, AttributeError):  # the stream is closed
            print(line, file=stream, flush=True)
