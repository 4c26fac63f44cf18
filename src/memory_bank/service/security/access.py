"""Who asks: the caller of a request, and how the sessions of different callers are kept apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from memory_bank.errors import ConfigError
from memory_bank.records import NAMESPACE_END

LONGEST_NAME = 180


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a request. ``namespace`` None: that of a service without keys.

    ``operator``: may see how the service as a whole does. ``requests_per_minute`` and ``max_body_bytes`` are
    the key's own limits, None: as the settings say.
    """

    namespace: str | None = None
    key_id: str | None = None
    operator: bool = False
    requests_per_minute: int | None = None
    max_body_bytes: int | None = None


LOCAL = Caller(operator=True)
"""Who asks a service without keys: the user of this machine."""

NOBODY = Caller(namespace="")
"""Who asks, without a key, for what needs none: no session is in this namespace."""


def caller_of(request: Any) -> Caller:
    """The caller of a request, as the gate has found it out."""
    caller: Caller = request.state.caller
    return caller


def stored_id(namespace: str | None, name: str) -> str:
    """The session_id in the database of what a caller calls ``name``.

    Raises ConfigError for a name that cannot be one.
    """
    if not name or len(name) > LONGEST_NAME or not name.isprintable() or NAMESPACE_END in name:
        raise ConfigError(f"a session's name is 1 to {LONGEST_NAME} printable characters.")
    return name if namespace is None else f"{namespace}{NAMESPACE_END}{name}"


def public_name(namespace: str | None, session_id: str) -> str:
    """What a caller calls the session of this id."""
    return session_id if namespace is None else session_id.removeprefix(f"{namespace}{NAMESPACE_END}")
