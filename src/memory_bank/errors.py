"""Every error that memory_bank raises, in one tree.

MemoryBankError
├ ConfigError (ValueError): PromptError, UnknownStrategyError
├ MessagesError (TypeError)
├ HistoryError (ValueError): StepOrderError, StepFileError, ImageError, TokenBudgetError
├ TraceFileError (ValueError)
├ RecordError (ValueError): RecordConflictError
├ FileError (ValueError)
├ StorageError: DatabaseOpenError, DatabaseVersionError
├ EmbeddingError: EmbedderLoadError, EmbedderMismatchError
├ ModelError
├ LoopDetectedError (RuntimeError)
├ BodyError (ValueError)
├ ServiceError: InvalidRequestError (ValueError), NotFoundError (LookupError), NotAuthorizedError, OriginError,
│               TooLargeError, TooManyRequestsError, UpstreamError
└ MissingExtraError (ImportError)

Messages are one sentence that says what to do. They name tools, ids, sizes and files, never contents.
Errors of other libraries are translated where that library is called.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


class MemoryBankError(Exception):
    """Base of all errors raised by memory_bank.

    Example:
        >>> try:
        ...     MemoryBankSettings(top_k=-1)
        ... except MemoryBankError as e:
        ...     print(e)
        MemoryBankSettings: top_k: input should be greater than or equal to 0.
    """


class ConfigError(MemoryBankError, ValueError):
    """Settings or a configuration file cannot be used. It tells the first of its ``mistakes``, one sentence each."""

    def __init__(self, *mistakes: str) -> None:
        super().__init__(*mistakes[:1])
        self.mistakes = mistakes


class PromptError(ConfigError):
    """A prompt file is missing or lacks a placeholder."""


class UnknownStrategyError(ConfigError):
    """The configuration has no strategy under the key asked for."""


class MessagesError(MemoryBankError, TypeError):
    """The messages are not a list of chat messages."""


class HistoryError(MemoryBankError, ValueError):
    """A step, a limit or a call on a typed history cannot be used."""


class StepOrderError(HistoryError):
    """A step's number is lower than that of the step before it."""


class StepFileError(HistoryError):
    """A file of steps is damaged; ``steps`` are those before the damage."""

    def __init__(self, message: str, steps: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.steps = tuple(steps)


class ImageError(HistoryError):
    """A value given as an image is not one."""


class TokenBudgetError(HistoryError):
    """No pruning meets the budget; ``smallest`` (tokens) is the smallest that can be met."""

    def __init__(self, message: str, smallest: int) -> None:
        super().__init__(message)
        self.smallest = smallest


class TraceFileError(MemoryBankError, ValueError):
    """A file of recorded traces cannot be read."""


class RecordError(MemoryBankError, ValueError):
    """A record cannot be stored as it is."""


class RecordConflictError(RecordError):
    """A different record with the same trace_id is already stored; facts are never overwritten."""


class FileError(MemoryBankError, ValueError):
    """A command on an agent's own files is refused; the text is for the model and may quote the command."""


class StorageError(MemoryBankError):
    """The database refused an operation or cannot be reached."""


class DatabaseOpenError(StorageError):
    """The database cannot be opened."""


class DatabaseVersionError(StorageError):
    """The database was written by another version of memory_bank."""


class EmbeddingError(MemoryBankError):
    """An embedder failed or returned something that is not an (n, d) array of finite numbers."""


class EmbedderLoadError(EmbeddingError):
    """An embedding model cannot be loaded."""


class EmbedderMismatchError(EmbeddingError):
    """The bank was built with another embedder than the one given now."""


class ModelError(MemoryBankError):
    """A chat model could not be called or returned no usable answer."""


class LoopDetectedError(MemoryBankError, RuntimeError):
    """An agent repeats the same call with the same answer.

    ``calls`` are the repeated ones, oldest first, as dicts of call_id, tool_name, arguments and output.
    """

    def __init__(self, message: str, calls: Iterable[dict[str, Any]]) -> None:
        super().__init__(message)
        self.calls = tuple(calls)


class BodyError(MemoryBankError, ValueError):
    """A request's JSON body cannot be edited to the byte; the text is a short reason without contents."""


class ServiceError(MemoryBankError):
    """The service refuses a request."""


class InvalidRequestError(ServiceError, ValueError):
    """A body or a parameter is not what the route takes."""


class NotFoundError(ServiceError, LookupError):
    """There is no such session, record or route for this caller."""


class NotAuthorizedError(ServiceError):
    """The key is missing, invalid, or does not allow this."""


class OriginError(ServiceError):
    """The host name or the origin of the request is not allowed."""


class TooLargeError(ServiceError):
    """The request's body is longer than allowed."""


class TooManyRequestsError(ServiceError):
    """A limit of requests is reached; ``retry_after`` is the number of seconds to wait."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class UpstreamError(ServiceError):
    """The model's API cannot be reached or closed the connection; ``passing``: whatever the request was."""

    def __init__(self, message: str, *, passing: bool = False) -> None:
        super().__init__(message)
        self.passing = passing


INSTALL = "pip install '.[{extra}]'"
"""How an extra is installed: in a checkout, while nothing is published."""


class MissingExtraError(MemoryBankError, ImportError):
    """An optional dependency is not installed; the message names the extra."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed: run  {INSTALL.format(extra=extra)}  in a checkout")
        self.extra = extra
