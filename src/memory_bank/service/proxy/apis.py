"""The model APIs that the proxy knows."""

from __future__ import annotations

from memory_bank.service.proxy.api import Dialect
from memory_bank.service.proxy.chat import ChatDialect
from memory_bank.service.proxy.messages import MessagesDialect
from memory_bank.service.proxy.responses import ResponsesDialect

DIALECTS: tuple[Dialect, ...] = (
    ChatDialect(),
    ResponsesDialect(),
    MessagesDialect(),
    ResponsesDialect("compact", "/responses/compact"),
    MessagesDialect("count_tokens", "/messages/count_tokens", counts_only=True),
    ResponsesDialect("input_tokens", "/responses/input_tokens", counts_only=True),
)
