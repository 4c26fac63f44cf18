"""The key of the project in a folder: of its repository's remote, else of the repository, else of the path."""

from __future__ import annotations

import os
import re
import subprocess
import time
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from threading import Thread
from urllib.parse import quote, unquote, urlsplit

from memory_bank.records import project_key
from memory_bank.transcript.harness import project_of_place

_SECONDS = 5.0  # for git; a folder on a network may be slow
_PATIENCE = 1.0  # seconds for which requests wait for it
_SCP = re.compile(r"(?:[^@/\s]*@)?([^:/\s]{2,}):(.*)")  # git@host:path; one letter is a drive of Windows
_PORTS = {"http": 80, "https": 443, "git": 9418}  # of others, such as ssh, a port says nothing of the place


def project_of_folder(folder: str | os.PathLike[str] = ".") -> str | None:
    """The key of the project whose repository a folder is in; None without a repository, or without git.

    Worktrees and clones of one remote have one key, forks have others. The key has the last part of the URL's path
    and a digest of host and path: no user, no password, no token.
    """
    remotes = _git(folder, "remote").splitlines()
    for remote in sorted(remotes, key=lambda name: name != "origin")[:1]:
        if place := normalised_remote(_git(folder, "remote", "get-url", remote), folder):
            return project_key("remote", place)
    common = _git(folder, "rev-parse", "--git-common-dir")
    place = Path(os.path.realpath(Path(folder, common))).as_posix() if common else ""
    return project_key("repository", _without_git(place))


def project_header(folder: str | os.PathLike[str] = ".") -> dict[str, str]:
    """The request header that names a folder's project; empty where the folder is in no repository."""
    return {"x-memory-project": quote(key, safe="@ ")} if (key := project_of_folder(folder)) else {}


def project_of_prompt(folder: str, *, is_here: bool) -> str | None:
    """The key of a folder that a client says it works in; ``is_here``: on this machine, so that its git is asked."""
    key = None
    if is_here:
        asking, until, keys = _asked_here(folder, int(time.monotonic() / 60))
        asking.join(max(0.0, until - time.monotonic()))
        key = next(iter(keys), None)
    return key or project_of_place(folder)


@lru_cache(maxsize=256)
def _asked_here(folder: str, _minute: int) -> tuple[Thread, float, list[str | None]]:
    """The thread that asks git about a folder, once a minute, how long it is waited for, and what it finds."""
    keys: list[str | None] = []

    def ask() -> None:
        with suppress(OSError, ValueError):  # no path: NUL, half a character
            keys.append(project_of_folder(os.path.expanduser(folder)))

    asking = Thread(target=ask, name="memory-bank-git", daemon=True)
    asking.start()
    return asking, time.monotonic() + _PATIENCE, keys


def projects_of(folder: str | os.PathLike[str] = ".") -> list[str]:
    """The keys of a folder's sessions: by the header of its repository, and by the folder in their prompts."""
    keys = project_of_folder(folder), project_of_place(Path(os.path.realpath(folder)).as_posix())
    return [key for key in keys if key is not None]


def normalised_remote(url: str, folder: str | os.PathLike[str] = ".") -> str | None:
    """A remote's host and path, the same over ssh and https, without what logs in; None where it names none."""
    host, path = "", url
    if "://" in url:
        try:
            parts = urlsplit(url)
            host, port, path = parts.hostname or "", parts.port, unquote(parts.path)
        except ValueError:
            return None
        if port not in (None, _PORTS.get(parts.scheme)) and parts.scheme in _PORTS:
            host += f":{port}"
    elif scp := _SCP.fullmatch(url):
        host, path = scp[1].lower(), scp[2]
    if path and not host:
        return _without_git(Path(os.path.realpath(Path(folder, path))).as_posix())
    path = _without_git(path.strip("/"))
    return f"{host}/{path}" if path else None


def _without_git(path: str) -> str:
    return path.rstrip("/").removesuffix("/.git").removesuffix(".git").rstrip("/")


def _git(folder: str | os.PathLike[str], *arguments: str) -> str:
    """The output of a command of git about a folder; "" where it fails or there is no git."""
    env = {k: v for k, v in os.environ.items() if k not in ("GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR")}
    with suppress(OSError, ValueError, subprocess.SubprocessError):
        done = subprocess.run(
            ["git", "-C", os.fspath(folder), *arguments], capture_output=True, text=True, errors="replace",
            stdin=subprocess.DEVNULL, timeout=_SECONDS, check=False, env=env,
        )  # fmt: skip
        return done.stdout.strip() if done.returncode == 0 else ""
    return ""
