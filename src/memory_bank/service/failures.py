"""The error tree as HTTP responses: a status and a code for each error, one form of body."""

from __future__ import annotations

import math
from typing import Any

from memory_bank import errors

# The first match applies: subclasses come before their base classes.
STATUSES: tuple[tuple[type[errors.MemoryBankError], int, str], ...] = (
    (errors.NotFoundError, 404, "not_found"),
    (errors.NotAuthorizedError, 401, "not_authorized"),
    (errors.OriginError, 403, "origin_not_allowed"),
    (errors.TooLargeError, 413, "too_large"),
    (errors.TooManyRequestsError, 429, "too_many_requests"),
    (errors.UpstreamError, 502, "upstream_unreachable"),
    (errors.BodyError, 422, "invalid_body"),
    (errors.InvalidRequestError, 422, "invalid_request"),
    (errors.UnknownStrategyError, 422, "unknown_strategy"),
    (errors.ConfigError, 422, "invalid_settings"),
    (errors.MessagesError, 422, "invalid_messages"),
    (errors.RecordConflictError, 409, "record_conflict"),
    (errors.RecordError, 422, "invalid_record"),
    (errors.HistoryError, 422, "invalid_history"),
    (errors.TraceFileError, 422, "invalid_trace"),
    (errors.LoopDetectedError, 409, "loop_detected"),
    (errors.StorageError, 503, "storage_unavailable"),
    (errors.EmbeddingError, 503, "embedder_unavailable"),
    (errors.ModelError, 502, "model_failed"),
    (errors.MissingExtraError, 501, "missing_extra"),
    (errors.MemoryBankError, 500, "memory_bank_error"),
)


def failure(error: errors.MemoryBankError, path: str = "") -> tuple[int, dict[str, Any], dict[str, str]]:
    """The status, body and headers of the response to an error, in the form of the API at a path."""
    status, code = _entry(error)
    headers = {}
    if isinstance(error, errors.TooManyRequestsError):
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after)))
    if isinstance(error, errors.NotAuthorizedError):
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, errors.StorageError):
        headers["retry-after"] = "1"
    if f"{path}/".startswith("/v1/messages/"):
        return status, messages_body(str(error), status), headers
    return status, body(str(error), code, status), headers


def code_of(error: errors.MemoryBankError) -> str:
    """The code of an error, as it is in its body and in headers."""
    return _entry(error)[1]


def _entry(error: errors.MemoryBankError) -> tuple[int, str]:
    return next((s, c) for kind, s, c in STATUSES if isinstance(error, kind))


def messages_body(message: str, status: int) -> dict[str, Any]:
    """An error's body in the form of Anthropic's Messages API."""
    kinds = {
        401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large",
        429: "rate_limit_error", 503: "overloaded_error",
    }  # fmt: skip
    kind = kinds.get(status) or ("api_error" if status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


def body(message: str, code: str, status: int) -> dict[str, Any]:
    """An error's body in the form of OpenAI's API, so that its clients show the message."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}
