"""The verb ``run``: a command whose model requests go through a service, which is started for it if none runs."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlsplit

import typer

from memory_bank.cli.handoff import GO_ON, MOST_TOKENS, handoff_text
from memory_bank.cli.setup import ATTRIBUTION, CLIENTS, claude_code, is_elsewhere, toml_value
from memory_bank.cli.shared import CONFIG, DB, one_line, service_settings, spent, tell
from memory_bank.errors import ConfigError, ServiceError
from memory_bank.service.security.proof import CHALLENGE, PROOF, address_of, proved, upstream_claim

if TYPE_CHECKING:
    from memory_bank.config import ServiceSettings
    from memory_bank.service.proxy.api import Provider

ADDRESSES = {"OPENAI_BASE_URL": "{url}/v1", "OPENAI_API_BASE": "{url}/v1", "ANTHROPIC_BASE_URL": "{url}"}
"""The variables from which programs take the address of the model's API."""
_PROVIDERS: dict[str, Provider] = {
    name: "anthropic" if name == "ANTHROPIC_BASE_URL" else "openai" for name in ADDRESSES
}
UNKNOWN = "what answers at {url} does not show that it is a service of yours"
_ROUTES = ("/v1/chat/completions", "/v1/responses", "/v1/messages")
_SAMPLE = re.compile(r'^memory_bank_(\w+)\{(?:method="POST",)?(.*)\} (\S+)$', re.M)
_SERVE = "from memory_bank.cli import main, run; run.end_with_stdin(); main()"
_SIGNALS = [getattr(signal, n) for n in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT") if hasattr(signal, n)]


def run(
    command: list[str] = typer.Argument(..., help="The command with its arguments, after `--`."),
    from_: str | None = typer.Option(
        None, "--from", metavar="SESSION", help="Begin with what `handoff` prints of this session, or of latest."),
    budget: int | None = typer.Option(None, min=500, max=MOST_TOKENS, help="Tokens of what --from tells, at most."),
    db: str | None = DB,
    config: Path | None = CONFIG,
    holdout: float | None = typer.Option(
        None, min=0, max=1, help="Share of sessions that go without memory by chance, to measure what it saves."),
) -> None:  # fmt: skip
    """Run a command with memory, and print what memory saved: `memory-bank run -- claude`.

    The command may be claude, codex, opencode, or any program that takes the address of the model's API from
    OPENAI_BASE_URL or ANTHROPIC_BASE_URL, such as python my_agent.py. Its requests go through the service that
    runs, or through one that is started for this command and stopped after it. No file of the client is changed.
    With --from a session goes on in another client: `memory-bank run --from latest -- codex`. What the session knows
    stands in the first message, as data, before a prompt of yours: `run --from latest -- claude -p "Go on."`.
    The exit code is the command's; 127 where there is no such command.
    """
    if shutil.which(command[0]) is None:
        name = one_line(command[0], 200)
        is_file = os.sep in command[0] and os.path.exists(command[0])
        no_program = f"{name} cannot be run: make it executable, or name its interpreter before it."
        tell(no_program if is_file else f"there is no command {name!r}: check its name, or install it.")
        raise typer.Exit(126 if is_file else 127)
    text = ""
    if from_ is not None:
        command, text = begun(command, lambda c: handoff_text(from_, db, config, budget, c))
    elif budget is not None:
        raise ConfigError("--budget is of what --from tells: name a session with --from.")
    running = running_service(db, config)
    if running is not None and holdout is not None:
        raise ConfigError(
            f"the service at {running} decides its own share of sessions without memory: set holdout in its "
            "[service], or stop it."
        )
    with _started(db, config, holdout) if running is None else contextlib.nullcontext(running) as url:
        before, began = _figures(url), time.time()
        serve = f"memory-bank serve{f' --db {shlex.quote(db)}' if db else ''}"
        later = f", later `{serve}`" if running is None else ""
        tell(f"model requests go through {url}, whose page shows each step{later}.")
        settings = service_settings(db, config)
        elsewhere = is_elsewhere(_named_upstreams(settings).get("anthropic", ("", ""))[1])
        if elsewhere and Path(command[0]).stem == "claude":
            tell(ATTRIBUTION)
        code = _run(*pointed(command, url, elsewhere), text)
        whose = "" if running is None else " of all clients of the service"
        is_used = _report(url, before, _figures(url), whose)
        served = url if running is not None else f"http://127.0.0.1:{settings.port}"  # by `serve`, later
        until = time.monotonic() + (2 if is_used else 0)  # steps are stored behind the answers
        while not (links := _pages(url, began)) and time.monotonic() < until:
            time.sleep(0.1)
        if pages := [page.replace(url, served, 1) for page in links]:
            tell(f"its page{'' if running else ', while `memory-bank serve` runs'}: {' '.join(pages)}")
    raise SystemExit(code)


# -- the service


class Health(NamedTuple):
    """The facts that ``/health`` states, and which of them are proved, first that it knows the user's secret."""

    facts: dict[str, Any]
    proof: list[bool]

    @property
    def is_own(self) -> bool:
        """Whether the service has proved that it is this user's."""
        return self.proof[0]


def ask(url: str, headers: Mapping[str, str] | None = None) -> tuple[bytes, str] | None:
    """Return the body of a local service's answer (status 200 or 503) and its proof, or None."""
    import urllib.request
    from http.client import HTTPException

    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(url, headers=dict(headers or {})), timeout=4.0) as answer:
            return bytes(answer.read(2**20)), answer.headers.get(PROOF, "")
    except urllib.request.HTTPError as e:
        return (e.read(2**20), e.headers.get(PROOF, "")) if e.code == 503 else None
    except (OSError, ValueError, HTTPException):
        return None


def health_of(url: str, claims: Sequence[str] = ()) -> Health | None:
    """The claims of ``/health`` of the service at an address; None where nothing answers as a service does.

    Anything may answer so: no key and no content goes there unless it ``is_own``. ``claims`` are checked with that.
    """
    challenge = secrets.token_hex(16)
    try:
        parts = urlsplit(url)
        address = address_of(parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))
        body, proof = ask(f"{url}/health", {CHALLENGE: challenge}) or (b"null", "")
        facts = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(facts, dict) or {*facts} - {"parts"} != {"status", "version"}:
        return None
    return Health(facts, proved(proof, challenge, address, claims))


def local_address(value: str) -> str | None:
    """The address in a variable such as OPENAI_BASE_URL, without /v1, if it is of this machine; else None."""
    url = value.strip().rstrip("/").removesuffix("/v1")
    try:
        is_local = urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")
    except ValueError:
        return None
    return url.replace("//localhost", "//127.0.0.1", 1) if is_local else None


def running_service(db: str | None, config: Path | None) -> str | None:
    """The address of this user's service that runs: the environment's, else the configured one; None without one.

    With ``db`` only one of that bank counts, and only one that sends to the upstreams that the environment or the
    configuration name. Raises ConfigError where the environment names another service, or two upstreams.
    """
    settings = service_settings(db, config)
    upstreams = _named_upstreams(settings)
    named = {name: local_address(os.environ.get(name, "")) for name in ADDRESSES}
    configured = f"http://127.0.0.1:{settings.port}"
    for url in dict.fromkeys(filter(None, (*named.values(), configured))):
        variable = next((name for name, address in named.items() if address == url), "")
        health = health_of(url, [upstream_claim(p, address) for p, (_, address) in upstreams.items()])
        if health is None:
            continue
        if not health.is_own:
            unknown = UNKNOWN.format(url=url)
            if variable:
                raise ConfigError(f"{unknown}: unset {variable}, or start your own there.")
            tell(f"{unknown}: this command gets one of its own.")
            continue
        if db is not None and not _has_bank(health.facts, db):
            continue
        places = zip(upstreams.values(), health.proof[1:], strict=True)
        other = next((where for (where, _), fits in places if not fits), "")
        if not other:
            return url
        sends = f"the service at {url} does not send to the upstream that {other} names"
        if variable:
            raise ConfigError(f"{sends}: unset {variable} or {other}.")
        tell(f"{sends}: this command gets a service of its own.")
    return None


def _named_upstreams(settings: ServiceSettings) -> dict[Provider, tuple[str, str]]:
    """The upstreams named for this command: the place, and the address. Raises ConfigError for two of a provider."""
    from memory_bank.config import upstreams_of

    places: list[tuple[Provider, str, str | None]] = [("openai", "the configuration", settings.upstream)]
    places += [("anthropic", "the configuration", settings.upstream_anthropic)]
    places += [(provider, name, os.environ.get(name)) for name, provider in _PROVIDERS.items()]
    named: dict[Provider, tuple[str, str]] = {}
    for provider, where, address in places:
        local = local_address(address or "")
        if not (address or "").strip() or (local is not None and _is_service(local, settings.port)):
            continue
        key = "upstream" if provider == "openai" else "upstream_anthropic"
        url = upstreams_of(settings.model_copy(update={key: address}))[provider]
        before, other = named.setdefault(provider, (where, url))
        if other != url:
            raise ConfigError(f"{before} and {where} name two upstreams: unset one of them.")
    return named


def _is_service(url: str, port: int) -> bool:
    """Return whether an address is that of a service, also of one that has ended since."""
    return urlsplit(url).port == port or health_of(url) is not None


def _has_bank(health: Mapping[str, Any], db: str) -> bool:
    from memory_bank.bank.database import database_url

    theirs, ours = map(database_url, (health.get("parts", {}).get("database", {}).get("name", ""), db))
    if ours.get_backend_name() != "sqlite":
        return theirs == ours.set(password="***" if ours.password else None)
    files = str(theirs.database), str(ours.database)
    return os.path.isabs(files[0]) and all(map(os.path.exists, files)) and os.path.samefile(*files)


@contextlib.contextmanager
def _started(db: str | None, config: Path | None, holdout: float | None = None) -> Iterator[str]:
    """Start a service on a free port; it ends with the block, or with this process."""
    command = [sys.executable, "-c", _SERVE, "serve"]
    command += ["--host", "127.0.0.1", "--port", "0", *(["--db", db] if db else [])]
    command += ["--config", str(config)] if config else []
    port = service_settings(db, config).port
    services = {
        n for n in ADDRESSES if (url := local_address(os.environ.get(n, ""))) and _is_service(url, port)
    }
    variables = {k: v for k, v in os.environ.items() if k not in services}  # the rest may be its upstream
    if holdout is not None:
        variables["MEMORY_BANK_SERVICE__HOLDOUT"] = str(holdout)
    if older := variables.get("OPENAI_API_BASE"):  # the name of an older client
        variables["OPENAI_BASE_URL"] = variables.get("OPENAI_BASE_URL") or older
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        service = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=variables,
            start_new_session=True,  # Ctrl-C is for the command alone
        )  # fmt: skip
        assert service.stdin is not None
        assert service.stdout is not None
        try:
            url = service.stdout.readline().strip()
            if not url:
                service.wait()
                log.seek(0)
                reason = (log.read().strip().splitlines() or ["the service did not start"])[-1]
                error = ConfigError if service.returncode == 2 else ServiceError
                raise error(reason.removeprefix("memory-bank: "))
            yield url
        finally:
            service.stdin.close()
            service.stdout.close()
            service.wait()


def end_with_stdin() -> None:
    """Stop this process by SIGTERM when its standard input closes, which happens when its parent ends."""

    def wait() -> None:
        while os.read(0, 1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


# -- the command

_BEFORE_PROMPT = {"claude": ("-p", "--print"), "codex": ("exec", "e"), "opencode": ("run",)}
"""By client, what stands between its name and a prompt."""


def begun(command: list[str], text: Callable[[str], str]) -> tuple[list[str], str]:
    """Return the command of a client with ``text`` put before its prompt, and what to write to its standard input.

    A command without a prompt gets ``GO_ON``. The input is "" if the client is to read none. Raises ConfigError for
    an unknown client, and for a prompt that stands after options.
    """
    client = Path(command[0]).stem
    if client not in _BEFORE_PROMPT:
        name = one_line(client, 80)
        raise ConfigError(
            f"--from begins claude, codex or opencode: give {name} the text of `memory-bank handoff` yourself."
        )
    words = _BEFORE_PROMPT[client]
    at = 2 if command[1:2] and command[1] in words else 1
    rest = command[at:]
    if rest and rest[0].startswith("-") and not rest[-1].startswith("-") and any(map(str.isspace, rest[-1])):
        raise ConfigError(
            f"--from adds to a prompt that comes first: write {client} {words[0]} 'PROMPT' OPTIONS."
        )
    if client == "opencode" and at == 1:  # its argument is a folder
        return [*command, "--prompt", f"{text(client)}{GO_ON}"], ""
    prompt = rest.pop(0) if rest and not rest[0].startswith("-") else GO_ON
    begin = f"{text(client)}{prompt}"
    if client == "opencode":  # which puts an argument with blanks into quotes
        return [*command[:at], *rest], begin
    return [*command[:at], begin, *rest], ""


def pointed(command: list[str], url: str, elsewhere: bool = False) -> tuple[list[str], dict[str, str]]:
    """A command, and the environment in which it runs, so that its model requests go to the service.

    Requests of known clients name the project of this folder's repository.
    ``elsewhere``: the Messages API is not Anthropic's own.
    """
    variables = os.environ | {name: form.format(url=url) for name, form in ADDRESSES.items()}
    from memory_bank.service.project import project_header

    header = project_header()
    opencode = CLIENTS["opencode"].values(url)
    for each in opencode["provider"].values() if header else ():
        each["options"]["headers"] = header
    variables.setdefault("OPENCODE_CONFIG_CONTENT", json.dumps(opencode))
    headers = variables.get("ANTHROPIC_CUSTOM_HEADERS", "")  # of Claude Code
    if header and not any(name in headers.lower() for name in header):
        lines = [headers.strip(), *(f"{name}: {value}" for name, value in header.items())]
        variables["ANTHROPIC_CUSTOM_HEADERS"] = "\n".join(filter(None, lines))
    for name in ("NO_PROXY", "no_proxy"):
        variables[name] = ",".join(filter(None, (os.environ.get(name), "127.0.0.1,localhost")))
    added: list[str] = []
    program = Path(command[0]).stem
    if program == "claude":
        added = ["--settings", json.dumps(claude_code(url, elsewhere))]
    if program == "codex":
        values = CLIENTS["codex"].values(url)
        if not variables.get("OPENAI_API_KEY"):  # the key or the account of `codex login`
            provider = values["model_providers"]["memory_bank"]
            del provider["env_key"]
            provider["requires_openai_auth"] = True
        if header:
            values["model_providers"]["memory_bank"]["http_headers"] = header
        added = [a for key, value in values.items() for a in ("-c", f"{key}={toml_value(value)}")]
    return [command[0], *added, *command[1:]], variables


def _run(command: list[str], variables: dict[str, str], text: str = "") -> int:
    """Run a command with this terminal, or with ``text`` as its input; signals reach it. Returns its exit code."""
    process: subprocess.Popen[bytes] | None = None

    def pass_on(number: int, _frame: object) -> None:
        typed = number in (signal.SIGINT, getattr(signal, "SIGQUIT", None)) and _in_foreground()
        if process is not None and not typed:  # the terminal sends what is typed to the command, too
            process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in _SIGNALS}
    try:
        with tempfile.TemporaryFile() as file:
            file.write(text.encode())
            file.seek(0)
            process = subprocess.Popen(command, env=variables, stdin=file if text else None)
            code = process.wait()
    except OSError as e:
        tell(f"{one_line(command[0], 200)} cannot be run ({e.strerror}): check the file.")
        return 127 if isinstance(e, FileNotFoundError) else 126
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def _in_foreground() -> bool:
    """Return whether this process group is the terminal's foreground group."""
    try:
        with open("/dev/tty", encoding="ascii") as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except (OSError, AttributeError):
        return False


# -- the result


def _figures(url: str) -> Counter[str] | None:
    """Return a service's counters by name and labels, or None if only operators may read them."""
    answer = ask(f"{url}/metrics")
    if answer is None:
        return None
    counters: Counter[str] = Counter()
    for name, labels, value in _SAMPLE.findall(answer[0].decode()):
        counters[f"{name} {labels}"] += float(value)  # type: ignore[assignment]
    return counters


def _report(url: str, before: Counter[str] | None, after: Counter[str] | None, whose: str) -> bool:
    """Say how many requests came, and what memory saved; ``whose`` they are. Whether it has seen tool calls."""
    if before is None or after is None:
        tell(f"the service at {url} shows its figures to a key of an operator alone: see its page.")
        return False
    grown = {key: after[key] - before[key] for key in after}
    statuses: Counter[str] = Counter()
    for route in _ROUTES:
        start = f'requests_total route="{route}",status="'
        statuses.update({k[len(start) : -1]: int(n) for k, n in grown.items() if n and k.startswith(start)})
    if not statuses:
        tell(
            f"no model request came through {url}: does the program take the address of its API from OPENAI_BASE_URL "
            "or ANTHROPIC_BASE_URL? `memory-bank connect` says what clients need, `memory-bank doctor` checks them."
        )
        return False
    parts = [f"{statuses.total():,} model request{'' if statuses.total() == 1 else 's'}{whose}"]
    parts += [f"{n:,} of them answered with {s}" for s, n in sorted(statuses.items()) if s >= "400"]
    kinds = (
        ("tokens", "sent", "full"),
        ("model_tokens", "input", "full_input"),
        ("model_cost", "sent", "full"),
    )
    tokens, counted, dollars = (
        [grown.get(f'{name}_total kind="{kind}"', 0.0) for kind in both] for name, *both in kinds
    )
    tokens = counted if counted[1] else tokens  # as the provider counts them
    for unit, (sent, full), label in (("", tokens, "tokens sent"), ("$", dollars, "paid")):
        if full:
            parts.append(spent(unit, sent, full, label))
    start = 'untold_costs_total reason="'
    for key, n in grown.items():
        if n and key.startswith(start):
            parts.append(f"the cost of {n:,.0f} of them is not known: {key[len(start) : -1]}")
    tell("; ".join(parts) + ".")
    return bool(tokens[1])


def _pages(url: str, since: float) -> list[str]:
    """The addresses of the pages of the sessions that were used since a time, the newest first; at most three."""
    answer = ask(f"{url}/v1/sessions?sort=used&limit=3&since={since:.3f}")
    try:
        names = [s["name"] for s in json.loads(answer[0] if answer else b"{}").get("sessions", ())]
    except (ValueError, TypeError, KeyError, AttributeError):
        return []
    return [f"{url}/#/s/{quote(name, safe='')}" for name in names]
