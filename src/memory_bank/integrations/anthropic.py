"""Anthropic's SDK: MemoryBankTransport for its HTTP client, and so for ``create``, ``stream`` and ``tool_runner``.

MemoryFilesTool is a backend of its memory tool.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from typing import Any, Unpack

from memory_bank.bank.files import MemoryFiles
from memory_bank.errors import MemoryBankError, MissingExtraError
from memory_bank.integrations.bridge import Bridge, BridgeOptions, ModelCall
from memory_bank.ports import ToolFunction
from memory_bank.transcript.anthropic import Thinking, from_anthropic, thinking_rule
from memory_bank.transcript.messages import content_text, same_objects
from memory_bank.transcript.turns import Conversation

try:
    import httpx2
    from anthropic import beta_async_tool, beta_tool
    from anthropic.lib.tools import BetaAbstractMemoryTool, BetaAsyncAbstractMemoryTool, ToolError
except ImportError as e:
    raise MissingExtraError("Anthropic's SDK", "anthropic") from e

log = logging.getLogger("memory_bank.Integrations")

SESSION_HEADER = "x-memory-session"
_PATH = "/v1/messages"
_KEPT_BY_PROVIDER = (
    "the provider holds the history (thread), so memory cannot replace it and the request is sent as it is: pass "
    "thread=False to tool_runner"
)
_REFUSED = "the provider refused a rebuilt request with 400: the original is sent"


class _RequestMessages(list[dict[str, Any]]):
    """The messages of a request, and the rule for their thinking blocks."""

    thinking = Thinking.DROP


def read_request(messages: Sequence[dict[str, Any]], system: str | None) -> Conversation[dict[str, Any]]:
    """The messages of a request as a chat."""
    thinking = getattr(messages, "thinking", Thinking.DROP)
    return from_anthropic(list(messages), system, thinking=thinking)


class MemoryBankTransport(httpx2.BaseTransport, httpx2.AsyncBaseTransport):
    """Sends requests of the Messages API with rebuilt contexts; the caller's messages stay whole.

    ``Anthropic(http_client=DefaultHttpxClient(transport=MemoryBankTransport()))``, and the same for
    ``AsyncAnthropic`` with ``DefaultAsyncHttpxClient``. A session is the header ``x-memory-session`` of a request
    (``extra_headers``), which is not sent, or ``session_id``; without them it is found by the messages. A
    request whose history the provider holds (``thread``), and one that asks for a compaction, are sent as they
    are. If the provider refuses a rebuilt request with 400, the original is sent. ``transport`` sends the
    requests; by default a transport of httpx2. ``options`` are those of Bridge.

    Raises ConfigError, UnknownStrategyError, StorageError.
    """

    def __init__(
        self, session_id: str | None = None, *, transport: Any = None, **options: Unpack[BridgeOptions]
    ) -> None:
        self.bridge: Bridge[dict[str, Any]] = Bridge(read_request, **options)
        self._session_id = session_id
        self._transport = transport
        self._has_warned = False

    def tools(self, session_id: str | None = None, *, asynchronous: bool = False) -> list[Any]:
        """The memory tools for ``tool_runner``; ``asynchronous``: for that of AsyncAnthropic."""
        session_id = session_id or self._session_id
        return [self._tool(tool, session_id, asynchronous) for tool in self.bridge.offer()]

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request, rebuilt where it is one of the Messages API."""
        self._transport = self._transport or httpx2.HTTPTransport()
        changed = request
        if (read := self._read(request)) is not None:
            messages, session_id, call = read
            changed = _with_messages(request, messages, self.bridge.rebuild(messages, session_id, **call))
        response: httpx2.Response = self._transport.handle_request(changed)
        if changed is not request and response.status_code == 400:
            response.close()
            log.warning("%s", _REFUSED)
            response = self._transport.handle_request(request)
        return response

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request, rebuilt where it is one of the Messages API."""
        self._transport = self._transport or httpx2.AsyncHTTPTransport()
        changed = request
        if (read := await asyncio.to_thread(self._read, request)) is not None:
            messages, session_id, call = read
            rebuilt = await self.bridge.arebuild(messages, session_id, **call)
            changed = await asyncio.to_thread(_with_messages, request, messages, rebuilt)
        response: httpx2.Response = await self._transport.handle_async_request(changed)
        if changed is not request and response.status_code == 400:
            await response.aclose()
            log.warning("%s", _REFUSED)
            response = await self._transport.handle_async_request(request)
        return response

    def close(self) -> None:
        """Close the connections; the bridge is closed by ``bridge.close()``."""
        if self._transport is not None:
            self._transport.close()

    async def aclose(self) -> None:
        """As ``close``."""
        if self._transport is not None:
            await self._transport.aclose()

    def _read(self, request: httpx2.Request) -> tuple[_RequestMessages, str | None, ModelCall] | None:
        """Messages and session of a request that memory may rebuild, and what else is known; None for another."""
        session_id = request.headers.pop(SESSION_HEADER, None) or self._session_id
        if request.method != "POST" or not request.url.path.endswith(_PATH):
            return None
        try:
            body = json.loads(request.content)
        except (httpx2.RequestNotRead, ValueError):
            return None
        if not isinstance(body, dict) or not isinstance(body.get("messages"), list) or body.get("compaction"):
            return None
        if body.get("thread"):
            if not self._has_warned:
                self._has_warned = True
                log.warning("%s", _KEPT_BY_PROVIDER)
            return None
        messages = _RequestMessages(body["messages"])
        messages.thinking = thinking_rule(body.get("thinking"))
        system = content_text(body["system"]) if body.get("system") else None
        return messages, session_id, ModelCall(system=system, tools=body.get("tools") or ())

    def _tool(self, schema: ToolFunction, session_id: str | None, asynchronous: bool) -> Any:
        name = schema["name"]
        tool = {"name": name, "description": schema["description"], "input_schema": schema["parameters"]}

        def call(**arguments: Any) -> str:
            return self.bridge.answer(name, arguments, session_id)

        async def acall(**arguments: Any) -> str:
            return await self.bridge.aanswer(name, arguments, session_id)

        return beta_async_tool(acall, **tool) if asynchronous else beta_tool(call, **tool)


class MemoryFilesTool(BetaAbstractMemoryTool):
    """A backend of ``memory_20250818`` for ``tool_runner`` that answers as the SDK's own and keeps files in a bank.

    ``database``, ``project`` and ``namespace`` as in MemoryFiles. Raises ConfigError, StorageError.
    """

    def __init__(
        self, database: Any = None, project: str = "default", *, namespace: str | None = None, **options: Any
    ) -> None:
        super().__init__(**options)
        self.files = MemoryFiles(database, project, namespace=namespace)

    def execute(self, command: Any) -> str:
        """Answer a command. Raises ToolError with the text for the model."""
        try:
            return self.files.run(vars(command))
        except MemoryBankError as e:
            raise ToolError(str(e)) from None

    view = create = str_replace = insert = delete = rename = execute


class AsyncMemoryFilesTool(BetaAsyncAbstractMemoryTool):
    """As MemoryFilesTool, for AsyncAnthropic: commands run in a thread."""

    def __init__(self, *args: Any, cache_control: Any = None, **options: Any) -> None:
        super().__init__(cache_control=cache_control)
        self._tool = MemoryFilesTool(*args, **options)

    async def execute(self, command: Any) -> str:
        """As that of MemoryFilesTool."""
        return await asyncio.to_thread(self._tool.execute, command)

    view = create = str_replace = insert = delete = rename = execute


def _with_messages(request: httpx2.Request, came: list[Any], messages: list[Any]) -> httpx2.Request:
    """The request with other messages than those given; itself where they are the same."""
    if same_objects(messages, came):
        return request
    replaced = (b"content-length", b"transfer-encoding")
    headers = [(k, v) for k, v in request.headers.raw if k.lower() not in replaced]
    data = json.dumps({**json.loads(request.content), "messages": messages}).encode()
    return httpx2.Request(
        request.method, request.url, headers=headers, content=data, extensions=request.extensions
    )
