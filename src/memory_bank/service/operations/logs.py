"""The service's log: one line per event, as text or JSON, without stored content."""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Literal

from memory_bank.errors import MemoryBankError

log = logging.getLogger("memory_bank.Service")
requests = logging.getLogger("memory_bank.Requests")

request_id: ContextVar[str] = ContextVar("memory_bank_request_id", default="")
"""The id of the current request."""

OURS = "memory_bank"
_LONGEST = 2_000
_LONGEST_FOREIGN = 300
_FRAMES = 30
_OWN_KEYS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def set_up(form: Literal["text", "json"], *, verbose: bool = False) -> None:
    """Write all logs of this process to standard error in one form.

    The level is INFO for ours, DEBUG with ``verbose``, and WARNING for other packages.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    handler.addFilter(RepeatLimit())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger(OURS).setLevel(logging.DEBUG if verbose else logging.INFO)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = name != "uvicorn.access"
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.captureWarnings(True)
    logging.raiseExceptions = False  # otherwise a failing handler prints the values of its line


class RepeatLimit(logging.Filter):
    """Passes at most ``most`` equal warnings and errors in ``seconds``; the next one says how many were left out.

    Lines are equal if they come from one place in the code: clients must not be able to fill a disk.
    """

    def __init__(
        self, most: int = 20, seconds: float = 10.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._most, self._seconds, self._clock = most, seconds, clock
        self._places: dict[tuple[str, int, int], tuple[float, int]] = {}  # since when, how many

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line is written."""
        if record.levelno < logging.WARNING:
            return True
        place, now = (record.pathname, record.lineno, record.levelno), self._clock()
        since, count = self._places.get(place, (now, 0))
        if now - since < self._seconds:
            self._places[place] = since, count + 1
            return count < self._most
        if count > self._most:
            record.msg = f"{record.getMessage()} ({count - self._most:,} more of these lines were left out)"
            record.args = None
        self._places[place] = now, 1
        return True


class JsonLines(logging.Formatter):
    """One ASCII JSON object per line: ``time``, ``level``, ``logger``, ``message``, then the extra fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Format as one line."""
        return json.dumps(_fields(record), default=str)


class TextLines(logging.Formatter):
    """``2026-01-31T12:00:00.123Z INFO Requests: request GET /health 200 key=value …``."""

    def format(self, record: logging.LogRecord) -> str:
        """Format as one line without control characters."""
        fields = _fields(record)
        line = "{time} {level} {logger}: {message}".format(**fields | {"level": record.levelname})
        trouble = fields.pop("trouble", None)
        for name in [*fields][4:]:
            text = str(fields[name])
            is_plain = text and " " not in text and '"' not in text
            line += f" {name}={text if is_plain else json.dumps(text, ensure_ascii=False)}"
        return escaped(line if trouble is None else f"{line} | {' < '.join(trouble)}")


def escaped(text: str) -> str:
    """The text with control characters, unusual spaces and lone surrogates escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """What a line says: the four members of every line, the request's id, the ``extra`` fields, the error.

    Of other packages' messages only the first line is taken, because later ones may quote values.
    """
    text, more = record.getMessage(), {}
    if record.name == OURS or record.name.startswith(f"{OURS}."):
        text = text[:_LONGEST]
        more = {k: v for k, v in vars(record).items() if k not in _OWN_KEYS}
    else:
        text = text.strip().split("\n", 1)[0][:_LONGEST_FOREIGN]
    if known := request_id.get():
        more = {"id": known, **more}
    if record.exc_info:
        more["trouble"] = _error_chain(record.exc_info[1])
    when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return {
        "time": f"{when}.{int(record.msecs):03d}Z",
        "level": record.levelname.lower(),
        "logger": record.name.removeprefix(f"{OURS}."),
        "message": text,
        **more,
    }


def _error_chain(error: BaseException | None) -> list[str]:
    """Describe an error by types and frames, innermost first.

    Only the library's own errors are quoted, because their messages hold no content.
    """
    chain: list[str] = []
    seen: set[int] = set()
    while error is not None and id(error) not in seen and len(chain) < _FRAMES:
        seen.add(id(error))
        what = type(error).__name__
        chain.append(f"{what}: {error}"[:_LONGEST] if isinstance(error, MemoryBankError) else what)
        for frame in reversed(traceback.extract_tb(error.__traceback__, limit=-_FRAMES)):
            file = "/".join(frame.filename.replace("\\", "/").split("/")[-3:])
            chain.append(f"{file}:{frame.lineno} {frame.name}")
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return chain[: 2 * _FRAMES]
