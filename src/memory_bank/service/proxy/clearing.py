"""``context_management`` of the Messages API: what a client wants cleared is not sent, and the answer says so."""

from __future__ import annotations

from memory_bank.service.proxy.answers import as_object
from memory_bank.service.proxy.body import JsonObject

CONTEXT_MANAGEMENT = "context_management"


def edit_of(request: JsonObject, kind: str) -> JsonObject | None:
    """The edit of a type in ``context_management`` of a request of the Messages API; None without one."""
    edits = as_object(request.get(CONTEXT_MANAGEMENT)).get("edits")
    known = map(as_object, edits if isinstance(edits, list) else ())
    return next((e for e in known if e.get("type") == kind), None)
