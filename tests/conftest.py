"""What all tests share: no network beyond loopback, no slow-machine failures, no environment of the user."""

import gc
import ipaddress
import logging
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.cli.conftest import NO_CERTIFICATES
from tests.postgres import Server, why_not

MEMORY = "/dev/shm"  # a sync, or the removal of a file, takes no time there
if "TMPDIR" not in os.environ and os.path.isdir(MEMORY):
    disk = os.statvfs(MEMORY)
    if disk.f_bavail * disk.f_frsize > 4 * 2**30 and not disk.f_flag & os.ST_NOEXEC:
        os.environ["TMPDIR"] = tempfile.tempdir = MEMORY

settings.register_profile(
    "long", deadline=None, suppress_health_check=list(HealthCheck), print_blob=True, max_examples=100,
    derandomize="CI" in os.environ,
)  # fmt: skip
settings.register_profile("short", parent=settings.get_profile("long"), max_examples=10)
settings.load_profile("short")
gc.set_threshold(50_000, 20, 50)  # as the command does
signal.signal(
    signal.SIGINT, signal.default_int_handler
)  # a suite started in the background inherits that it is ignored

LONG = (  # what starts many processes or loads a model: begun first, so that no core waits for it at the end
    "cli/test_run", "service/proxy/test_refusals", "integrations/test_prefix",
    "service/proxy/test_clients", "service/test_shared", "service/proxy/test_fuzz",
    "cli/test_faults", "service/proxy/test_agents", "context/test_strategies", "service/proxy/test_messages",
    "service/test_running", "service/proxy/", "test_docs", "integrations/test_together",
    "service/", "bank/test_scope", "models/test_flag", "test_soak", "cli/", "tools/", "audit/", "benchmarks/",
)  # fmt: skip


WAITING = (  # what waits for processes, for time-outs or for the browser more than it computes, the longest first
    "service/test_page_in_browser", "service/proxy/test_late", "service/proxy/test_faults", "service/test_isolation",
    "service/test_recorder", "cli/test_observe", "service/test_timeline", "service/proxy/test_rebuild",
    "service/test_costs", "service/test_holdout", "bank/test_backup", "bank/test_worker", "service/test_workers",
    "service/test_api", "cli/test_backup", "integrations/test_clients", "service/test_operations",
    "testing/test_loopback", "service/test_strategy_that_cannot_work", "test_closing", "bank/test_background",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first, and one that waits among every five, so that few wait at once; a file's tests in order."""

    def rank(name: str) -> int:
        return next((i for i, beginning in enumerate(LONG) if name.startswith(beginning)), len(LONG))

    names = {i.path: i.path.relative_to(Path(__file__).parent).with_suffix("").as_posix() for i in items}
    waiting = [name for name in WAITING if name in names.values()]
    order: list[str] = []
    for n, name in enumerate(sorted({*names.values()} - {*WAITING}, key=lambda name: (rank(name), name))):
        if n % 5 == 0:
            order += waiting[:1]
            del waiting[:1]
        order.append(name)
    place = {name: n for n, name in enumerate([*order, *waiting])}
    items.sort(key=lambda item: place[names[item.path]])


def pytest_collection_finish() -> None:
    gc.freeze()  # garbage collection need not look at the modules and tests again and again


_connect = socket.socket.connect


def _is_loopback(address: object) -> bool:
    if not isinstance(address, tuple):
        return True  # a Unix socket
    host = str(address[0])
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _guarded(self: socket.socket, address: object) -> None:
    if not _is_loopback(address):
        raise ConnectionRefusedError(f"the tests refuse connections beyond loopback: {address}")
    _connect(self, address)  # type: ignore[arg-type]


socket.socket.connect = _guarded  # type: ignore[method-assign,assignment]


@pytest.fixture(autouse=True)
def _no_user_environment(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    names = ["OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "HF_TOKEN"]
    for name in [*names, *(n for n in os.environ if n.startswith("MEMORY_BANK_"))]:
        monkeypatch.delenv(name, raising=False)
    if "installs" not in request.keywords:
        for name, value in NO_CERTIFICATES.items():
            monkeypatch.setenv(name, value)


@pytest.fixture(autouse=True)
def _log_levels() -> None:
    logging.getLogger("memory_bank").setLevel(logging.NOTSET)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A PostgreSQL server with pgvector; without the packages for it the test is skipped."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    folder = Path(tempfile.mkdtemp(prefix="pg-"))  # a short name: sockets have no long ones
    try:
        server = Server(folder / "data")
        yield server
        server.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def postgres_url(postgres: Server) -> str:
    """The URL of a bank without content."""
    return postgres.url(postgres.emptied())


@pytest.fixture(params=["SQLite", pytest.param("PostgreSQL", marks=pytest.mark.long)])
def bank_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a bank that outlives its states, of either kind."""
    if request.param == "SQLite":
        return f"sqlite:///{tmp_path / 'bank.db'}"
    return str(request.getfixturevalue("postgres_url"))
