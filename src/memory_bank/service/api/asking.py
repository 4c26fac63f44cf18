"""What a request of the API works with: whose sessions, which of them, and by which parts of the service."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Path, Request

from memory_bank.bank.database import Database
from memory_bank.errors import InvalidRequestError
from memory_bank.service.api.paths import decoded
from memory_bank.service.security.access import LONGEST_NAME, caller_of, public_name, stored_id
from memory_bank.service.sessions import Sessions


@dataclass(frozen=True, slots=True)
class Asking:
    """Everything goes through ``namespace``: what is another's does not exist here."""

    namespace: str | None
    sessions: Sessions

    @property
    def database(self) -> Database:
        """The bank."""
        return self.sessions.database

    @property
    def prefix(self) -> str:
        """How session_ids of the namespace begin."""
        return stored_id(self.namespace, "x")[:-1]

    def known(self, name: str) -> str:
        """The session_id of a session that is there. Raises NotFoundError."""
        return self.sessions.known(self.namespace, name)

    def public(self, session_id: str) -> str:
        """What the caller calls a session of the namespace."""
        return public_name(self.namespace, session_id)

    def public_or_none(self, session_id: str | None) -> str | None:
        """As ``public``, of what may not be there."""
        return None if session_id is None else self.public(session_id)


def asking(request: Request) -> Asking:
    """What a request works with. Raises InvalidRequestError for a parameter that is given twice."""
    given = [key for key, _ in request.query_params.multi_items()]
    for key in given:
        if given.count(key) > 1:
            raise InvalidRequestError(f"{key[:80]} stands there twice: give it once.")
    return Asking(caller_of(request).namespace, request.app.state.service.sessions)


def _session_name(
    name: Annotated[
        str,
        Path(
            description="the session's name; a slash in it is written %2F",
            examples=["refunds-17"],
            json_schema_extra={
                "minLength": 1,
                "maxLength": LONGEST_NAME,
                "pattern": r"^[^\x00-\x1f\x7f-\x9f]+$",
            },
        ),
    ],
) -> str:
    return decoded(name)


def _record_id(
    trace_id: Annotated[
        str,
        Path(
            description="the record's trace_id, 6 or more characters of it, or its number: 12 (or %2312)",
            examples=["0f8fad5b-d9cb-569f-a165-70867728950e"],
            json_schema_extra={"minLength": 1, "maxLength": 64, "pattern": r"^[^\x00-\x1f\x7f-\x9f]+$"},
        ),
    ],
) -> str:
    return decoded(trace_id)


Asks = Annotated[Asking, Depends(asking)]
SessionName = Annotated[str, Depends(_session_name)]
RecordId = Annotated[str, Depends(_record_id)]
