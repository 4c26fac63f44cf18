"""The secret of a user's services, with which a service shows a program of the same user that it is theirs.

The program sends a challenge of its own; the service answers with an HMAC of it under the secret, which is in a file
that only the user may read. The address at which the service was reached is part of it, so that a process on another
port cannot pass the challenge on.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from memory_bank.service.server.database import default_database

CHALLENGE, PROOF = "x-memory-challenge", "x-memory-proof"
"""The headers of a challenge, and of the answer to it."""
_LENGTH = 64  # characters of a secret


def secret_file() -> Path:
    """The file of the secret, in the user's data directory. Raises RuntimeError where nobody knows that."""
    return default_database().parent / "service.secret"


def make_secret() -> None:
    """Make the secret where there is none. Does nothing where that is not possible: nothing is proved then."""
    with suppress(OSError, RuntimeError):
        file = secret_file()
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if file.exists() or file.is_symlink():
            return
        handle, name = tempfile.mkstemp(prefix=f"{file.name}.", dir=file.parent)  # mode 600
        try:
            with open(handle, "w", encoding="ascii") as new:
                new.write(secrets.token_hex(_LENGTH // 2))
            os.link(name, file)  # whole at once, and never over another
        finally:
            os.unlink(name)


def user_secret() -> bytes | None:
    """The secret; None without one, and where its file is a link, another user's, or open to others."""
    try:
        handle = os.open(
            secret_file(), os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        )
    except (OSError, RuntimeError):
        return None
    try:
        about = os.fstat(handle)
        is_own = not hasattr(os, "getuid") or about.st_uid == os.getuid()
        if not (stat.S_ISREG(about.st_mode) and is_own) or (os.name == "posix" and about.st_mode & 0o077):
            return None
        text = os.read(handle, _LENGTH + 2).strip()
    except OSError:
        return None
    finally:
        os.close(handle)
    return text if re.fullmatch(rb"[0-9a-f]{%d}" % _LENGTH, text) else None


def address_of(host: str, port: int | None) -> str:
    """An address in the one form that is proved."""
    return f"{host.lower().removeprefix('::ffff:')} {port or 0}"


def prove(challenge: str, address: str, claims: Sequence[str]) -> str | None:
    """The proofs of claims at an address, the first of the empty one; None without a secret or for no challenge.

    A claim is proved to those that know it, and not told to others.
    """
    secret = user_secret()
    if secret is None or not re.fullmatch(r"[0-9a-f]{32,64}", challenge):
        return None
    texts = ("\n".join(("memory_bank", challenge, address, claim)) for claim in ("", *claims))
    return ",".join(hmac.new(secret, t.encode("utf-8", "replace"), hashlib.sha256).hexdigest() for t in texts)


def proved(proof: str, challenge: str, address: str, claims: Sequence[str]) -> list[bool]:
    """Return whether a proof shows that the service knows the secret, then whether it proves each claim, in order."""
    expected = prove(challenge, address, claims)
    if expected is None:
        return [False] * (len(claims) + 1)
    told = [*proof.split(","), *[""] * len(claims)]
    return [
        hmac.compare_digest(one.encode("utf-8", "replace"), other.encode())
        for one, other in zip(told, expected.split(","), strict=False)
    ]


def upstream_claim(provider: str, url: str) -> str:
    """The claim that requests for a provider go to an address."""
    return f"{provider} {url.rstrip('/').replace('//localhost', '//127.0.0.1', 1)}"
