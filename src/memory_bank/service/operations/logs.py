"""The log of a service: a line an event, for people or for programs, and no contents in either."""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Literal

from memory_bank.errors import MemoryBankError

log = logging.getLogger("memory_bank.Service")
requests = logging.getLogger("memory_bank.Requests")

request_id: ContextVar[str] = ContextVar("memory_bank_request_id", default="")
"""The id of the request that the present task or thread works for."""

OURS = "memory_bank"
_LONGEST = 2_000
_LONGEST_FOREIGN = 300
_FRAMES = 30
_OWN_KEYS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def set_up(form: Literal["text", "json"], *, verbose: bool = False) -> None:
    """Let all loggers of this process write to standard error in one form.

    Ours tell from INFO on, with ``verbose`` from DEBUG on; those of other packages from WARNING on.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger(OURS).setLevel(logging.DEBUG if verbose else logging.INFO)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = name != "uvicorn.access"
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.captureWarnings(True)
    logging.raiseExceptions = False  # a line that cannot be written would be shown with its values


class TextLines(logging.Formatter):
    """``2026-01-31T12:00:00.123Z INFO Requests: request GET /health 200 key=value …``."""

    def format(self, record: logging.LogRecord) -> str:
        """One line; nothing in it is obeyed by a terminal or taken for another line."""
        parts = [f"{_when(record)} {record.levelname} {_short_name(record)}: {_message(record)}"]
        parts += [f"{k}={_shown(v)}" for k, v in _fields(record).items()]
        if record.exc_info:
            parts.append("| " + " < ".join(_trouble(record.exc_info[1], record.exc_info[2])))
        return escaped(" ".join(parts))


class JsonLines(logging.Formatter):
    """One JSON object a line, in ASCII: ``time``, ``level``, ``logger``, ``message``, what more is told."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        told: dict[str, Any] = {
            "time": _when(record),
            "level": record.levelname.lower(),
            "logger": _short_name(record),
            "message": _message(record),
            **_fields(record),
        }
        if record.exc_info:
            told["trouble"] = _trouble(record.exc_info[1], record.exc_info[2])
        return json.dumps(told, default=str)


def escaped(text: str) -> str:
    """Text in which control characters, odd spaces and lone surrogates are escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _when(record: logging.LogRecord) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z"


def _is_ours(record: logging.LogRecord) -> bool:
    return record.name == OURS or record.name.startswith(f"{OURS}.")


def _short_name(record: logging.LogRecord) -> str:
    return record.name.removeprefix(f"{OURS}.")


def _message(record: logging.LogRecord) -> str:
    """Ours as they are; of others the first line, since what follows may tell of values."""
    text = record.getMessage()
    if _is_ours(record):
        return text[:_LONGEST]
    return text.strip().split("\n", 1)[0][:_LONGEST_FOREIGN]


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """What was given as ``extra``, and the id of the request."""
    given = {k: v for k, v in vars(record).items() if k not in _OWN_KEYS} if _is_ours(record) else {}
    known = request_id.get()
    return {"id": known, **given} if known and "id" not in given else given


def _shown(value: Any) -> str:
    text = str(value)
    return text if text and " " not in text and '"' not in text else json.dumps(text, ensure_ascii=False)


def _trouble(error: BaseException | None, trace: TracebackType | None) -> list[str]:
    """An error as places and types, innermost first; the words of errors that are not ours hold contents."""
    told: list[str] = []
    seen: set[int] = set()
    while error is not None and id(error) not in seen and len(told) < _FRAMES:
        seen.add(id(error))
        what = type(error).__name__
        told.append(f"{what}: {error}"[:_LONGEST] if isinstance(error, MemoryBankError) else what)
        frames = traceback.extract_tb(trace, limit=-_FRAMES)
        told += [f"{_file(f.filename)}:{f.lineno} {f.name}" for f in reversed(frames)]
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        trace = error.__traceback__ if error is not None else None
    return told[: 2 * _FRAMES]


def _file(name: str) -> str:
    """The end of a path: that of a package, not that of the machine."""
    return "/".join(name.replace("\\", "/").split("/")[-3:])
