"""The error tree as HTTP responses: a status and a code for each error, one form of body."""

from __future__ import annotations

import math
from typing import Any

from memory_bank.errors import (
    BodyError,
    ConfigError,
    EmbeddingError,
    HistoryError,
    InvalidRequestError,
    LoopDetectedError,
    MemoryBankError,
    MessagesError,
    MissingExtraError,
    ModelError,
    NotAuthorizedError,
    NotFoundError,
    OriginError,
    ProvenanceError,
    RecordConflictError,
    RecordError,
    StorageError,
    TooLargeError,
    TooManyRequestsError,
    TraceFileError,
    UnknownStrategyError,
    UpstreamError,
)

# The first match applies: subclasses come before their base classes.
STATUSES: tuple[tuple[type[MemoryBankError], int, str], ...] = (
    (NotFoundError, 404, "not_found"),
    (NotAuthorizedError, 401, "not_authorized"),
    (OriginError, 403, "origin_not_allowed"),
    (TooLargeError, 413, "too_large"),
    (TooManyRequestsError, 429, "too_many_requests"),
    (UpstreamError, 502, "upstream_unreachable"),
    (BodyError, 422, "invalid_body"),
    (InvalidRequestError, 422, "invalid_request"),
    (UnknownStrategyError, 422, "unknown_strategy"),
    (ConfigError, 422, "invalid_settings"),
    (MessagesError, 422, "invalid_messages"),
    (RecordConflictError, 409, "record_conflict"),
    (RecordError, 422, "invalid_record"),
    (HistoryError, 422, "invalid_history"),
    (TraceFileError, 422, "invalid_trace"),
    (LoopDetectedError, 409, "loop_detected"),
    (ProvenanceError, 409, "provenance"),
    (StorageError, 503, "storage_unavailable"),
    (EmbeddingError, 503, "embedder_unavailable"),
    (ModelError, 502, "model_failed"),
    (MissingExtraError, 501, "missing_extra"),
    (MemoryBankError, 500, "memory_bank_error"),
)


def failure(error: MemoryBankError, path: str = "") -> tuple[int, dict[str, Any], dict[str, str]]:
    """The status, body and headers of the response to an error, in the form of the API at a path."""
    status, code = _entry(error)
    headers = {}
    if isinstance(error, TooManyRequestsError):
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after)))
    if isinstance(error, NotAuthorizedError):
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, StorageError):
        headers["retry-after"] = "1"
    if path == "/v1/messages" or path.startswith("/v1/messages/"):
        return status, messages_body(str(error), status), headers
    return status, body(str(error), code, status), headers


def code_of(error: MemoryBankError) -> str:
    """The code of an error, as it is in its body and in headers."""
    return _entry(error)[1]


def _entry(error: MemoryBankError) -> tuple[int, str]:
    return next((s, c) for kind, s, c in STATUSES if isinstance(error, kind))


MESSAGES_KINDS = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error",
}  # fmt: skip


def messages_body(message: str, status: int) -> dict[str, Any]:
    """An error's body in the form of Anthropic's Messages API."""
    kind = MESSAGES_KINDS.get(status) or ("api_error" if status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


def body(message: str, code: str, status: int) -> dict[str, Any]:
    """An error's body in the form of OpenAI's API, so that its clients show the message."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}
