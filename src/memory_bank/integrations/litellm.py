"""LiteLLM: MemoryBankHook for ``litellm.callbacks``, which ``acompletion`` calls, and ``completion`` does not."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Unpack

from memory_bank.errors import MessagesError, MissingExtraError
from memory_bank.integrations.bridge import Bridge, BridgeOptions
from memory_bank.transcript.chat import edited_message
from memory_bank.transcript.messages import MessageKind, calls_of, kind_of
from memory_bank.transcript.turns import ADDED, WHOLE, Change, ChatMessage, Part, PartWire

try:
    from litellm.integrations.custom_logger import CustomLogger
except ImportError as e:
    raise MissingExtraError("LiteLLM", "litellm") from e

log = logging.getLogger("memory_bank.Integrations")

NOT_CALLED = (
    "litellm.completion() was called: LiteLLM calls no hook there that may change the messages, so they were sent as "
    "they are; use acompletion(), or call bridge.rebuild(messages) yourself."
)


BY_POSITION = (
    "litellm.acompletion() was called with its messages by position: LiteLLM shows its hooks named arguments only, "
    "so they were sent as they are; pass messages=…"
)


class LiteLLMWire(PartWire[Any]):
    """See PartWire. Messages are dicts, or LiteLLM's own objects as an answer holds them.

    Only what every form has is read, because LiteLLM gives a hook other forms than the caller's.
    """

    def read(self, native: Any) -> dict[int, Part]:
        message = _as_dict(native)
        kind, content = kind_of(message), message.get("content")
        if kind is MessageKind.RESULT:
            return {WHOLE: Part(kind, content, message.get("tool_call_id"), message.get("name"))}
        if kind not in (MessageKind.CALL, MessageKind.SAY):
            return {WHOLE: Part(kind, content)}
        texts = {} if content is None else {WHOLE: Part(MessageKind.SAY, content)}
        calls = [Part(MessageKind.CALL, c.text, c.call_id, c.name, c.signed) for c in calls_of(message)]
        return texts | dict(enumerate(calls)) or {WHOLE: Part(MessageKind.SAY)}

    def write(self, native: Any, change: Change) -> Any | None:
        return edited_message(_as_dict(native), change)

    def say(self, message: ChatMessage) -> Any:
        return message

    def add(self, native: Any, text: str) -> Any:
        return edited_message(_as_dict(native), {ADDED: text})


def _as_dict(native: Any) -> dict[str, Any]:
    if isinstance(native, Mapping):
        return dict(native)
    dump = getattr(native, "model_dump", None)
    if dump is None or not hasattr(native, "role"):
        raise MessagesError(
            f"{type(native).__name__} is not a chat message: pass dicts or LiteLLM's objects."
        )
    return dict(dump(exclude_none=True, warnings=False))


WIRE = LiteLLMWire()


class MemoryBankHook(CustomLogger):
    """Sends the model a rebuilt context in ``acompletion``; the caller's list is not changed.

    ``litellm.callbacks = [MemoryBankHook()]``. A session is ``session_id`` in the call's ``metadata``; without
    it, it is found by the messages. Messages are passed by name: LiteLLM shows hooks no others. ``completion``
    calls no such hook. Both are said once in the log. ``options`` are
    those of Bridge. Raises ConfigError, UnknownStrategyError, StorageError.
    """

    def __init__(self, **options: Unpack[BridgeOptions]) -> None:
        super().__init__()
        self.bridge: Bridge[Any] = Bridge(WIRE.read_all, **options)
        self._warned: set[str] = set()

    async def async_pre_call_deployment_hook(self, kwargs: dict[str, Any], call_type: Any) -> dict[str, Any]:
        """The arguments of a call, with a rebuilt context."""
        if str(getattr(call_type, "value", call_type)) != "acompletion":
            return kwargs
        messages = kwargs.get("messages")
        if not isinstance(messages, list):
            self._warn_once(BY_POSITION)
            return kwargs
        metadata = kwargs.get("metadata")
        session_id = metadata.get("session_id") if isinstance(metadata, Mapping) else None
        rebuilt = await self.bridge.arebuild(
            messages, None if session_id is None else str(session_id), tools=kwargs.get("tools") or ()
        )
        return {**kwargs, "messages": rebuilt}

    def log_pre_api_call(self, model: str, messages: Any, kwargs: dict[str, Any]) -> None:  # noqa: ARG002
        """Log, once, that ``completion`` calls no hook that may change the messages."""
        params = kwargs.get("litellm_params")
        if kwargs.get("call_type") == "completion" and not (params or {}).get("acompletion"):
            self._warn_once(NOT_CALLED)

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            log.warning("%s", text)
