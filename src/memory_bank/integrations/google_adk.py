"""Google ADK: MemoryBankPlugin for ``App(plugins=[…])``."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Unpack

from memory_bank.errors import MissingExtraError
from memory_bank.integrations.bridge import (
    KEPT_ROLE,
    Bridge,
    BridgeOptions,
    ChatMessage,
    NativeChat,
    read_natives,
)
from memory_bank.tools import TOOL_SCHEMAS
from memory_bank.transcript.jsontext import compact, parse_arguments, plain
from memory_bank.transcript.messages import call_entry, calls_by_place, content_text

try:
    from google.adk.plugins.base_plugin import BasePlugin
    from google.adk.tools.base_tool import BaseTool
    from google.genai import types
except ImportError as e:
    raise MissingExtraError("the Google Agent Development Kit", "google-adk") from e

_TEXT_RESULT = "result"  # the key under which ADK puts what is no object


class ADKWire:
    """See Wire. A content is one chat message for each response of a function, and one for the rest.

    ``ids`` gives the id of each call and response by the identity of its part, because ADK leaves out those
    that it made itself.
    """

    def __init__(self, ids: dict[int, str]) -> None:
        self._ids = ids

    def read(self, native: Any) -> list[ChatMessage]:
        return [message for message, _ in self._divided(native)]

    def rewrite(self, native: Any, messages: Sequence[ChatMessage | None]) -> Any | None:
        parts: list[tuple[int, Any]] = []
        for (old, held), new in zip(self._divided(native), messages, strict=True):
            if new == old:
                parts += [(i, native.parts[i]) for i in held]
            elif new is not None:
                parts += self._changed([(i, native.parts[i]) for i in held], new, old)
        parts.sort(key=lambda p: p[0])
        return native.model_copy(update={"parts": [p for _, p in parts]}) if parts else None

    def _changed(
        self, held: Sequence[tuple[int, Any]], new: ChatMessage, old: ChatMessage
    ) -> Iterator[tuple[int, Any]]:
        """The parts of a changed message that stay, by position. A call that is signed keeps its arguments."""
        calls = iter(range(len(old.get("tool_calls", ()))))
        kept = calls_by_place(new, old)
        text = content_text(new["content"])
        for i, part in held:
            if part.function_response is not None:
                yield i, _with_text(part, text)
            elif part.function_call is not None:
                call = next(calls)
                if call in kept:
                    is_same = part.thought_signature or kept[call] == old["tool_calls"][call]
                    yield i, part if is_same else _with_arguments(part, kept[call])
            elif part.thought or new["content"] == old["content"]:
                yield i, part
            elif text:
                yield i, types.Part(text=text)
                text = ""

    def say(self, message: ChatMessage) -> Any:
        """See Wire. Contents have no role for system messages, so every one is the user's."""
        return types.Content(role="user", parts=[types.Part(text=message["content"])])

    def _divided(self, native: Any) -> list[tuple[ChatMessage, list[int]]]:
        """The chat messages of a content, each with the positions of its parts."""
        parts = native.parts or []
        if native.role == "model":
            return self._turn(parts)
        divided: list[tuple[ChatMessage, list[int]]] = []
        rest: list[int] = []
        for i, part in enumerate(parts):
            response = part.function_response
            if response is None:
                rest.append(i)
                continue
            head = {"role": "tool", "tool_call_id": self._ids[id(part)], "name": response.name}
            divided.append(({**head, "content": _text_of(response.response)}, [i]))
        if rest:
            divided.append(({"role": "user", "content": _user_content([parts[i] for i in rest])}, rest))
        return divided

    def _turn(self, parts: Sequence[Any]) -> list[tuple[ChatMessage, list[int]]]:
        calls, texts, made, kept = [], [], [], []
        for i, part in enumerate(parts):
            if part.function_call is not None:
                call = part.function_call
                calls.append(call_entry(self._ids[id(part)], call.name, compact(plain(call.args or {}))))
            elif part.text is not None:
                texts += [] if part.thought else [part.text]
            else:  # code, files and what is not known
                kept.append(i)
                continue
            made.append(i)
        message: ChatMessage = {"role": "assistant", "content": "".join(texts) or (None if calls else "")}
        turn = [(message | {"tool_calls": calls} if calls else message, made)]
        return [*turn, ({"role": KEPT_ROLE, "content": ""}, kept)] if kept else turn


def _text_of(response: dict[str, Any] | None) -> str:
    response = response or {}
    if response.keys() == {_TEXT_RESULT} and isinstance(response[_TEXT_RESULT], str):
        return str(response[_TEXT_RESULT])
    return compact(plain(response))


def _with_arguments(part: Any, call: dict[str, Any]) -> Any:
    arguments = parse_arguments(call["function"]["arguments"])
    changed = part.function_call.model_copy(update={"args": arguments})
    return part.model_copy(update={"function_call": changed})


def _with_text(part: Any, text: str) -> Any:
    response = part.function_response.model_copy(update={"response": {_TEXT_RESULT: text}})
    return part.model_copy(update={"function_response": response})


def _user_content(parts: Sequence[Any]) -> Any:
    if all(p.text is not None for p in parts):
        return "\n".join(p.text for p in parts)
    return [{"type": "file"} if p.text is None else {"type": "text", "text": p.text} for p in parts]


def call_ids(contents: Sequence[Any]) -> dict[int, str]:
    """The id of every call and every response, by the identity of its part.

    Where a part has none, calls are numbered by their names, and a response answers the first call of its name
    that has no response yet.
    """
    ids: dict[int, str] = {}
    made: Counter[str] = Counter()
    waiting: defaultdict[str, list[str]] = defaultdict(list)
    for part in (part for content in contents for part in content.parts or ()):
        call, response = part.function_call, part.function_response
        if call is not None:
            made[call.name] += 1
            ids[id(part)] = call.id or f"{call.name}-{made[call.name]}"
            if not call.id:
                waiting[call.name].append(ids[id(part)])
        elif response is not None:
            first = waiting[response.name].pop(0) if not response.id and waiting[response.name] else ""
            ids[id(part)] = response.id or first or f"{response.name}-unknown"
    return ids


def read_contents(contents: Sequence[Any], system: str | None) -> NativeChat[Any]:
    """The contents of a model request as a chat."""
    return read_natives(contents, ADKWire(call_ids(contents)), system)


class MemoryBankPlugin(BasePlugin):
    """Sends the model a rebuilt context; the events of ADK's session keep the whole history.

    ``App(…, plugins=[MemoryBankPlugin()])``. ``session_of`` gives the name of a session. ``offer_tools``:
    whether agents get search_memory, get_record and list_records. ``options`` are those of Bridge. Raises
    ConfigError, UnknownStrategyError, StorageError.
    """

    def __init__(
        self, name: str = "memory_bank", *, offer_tools: bool = True, **options: Unpack[BridgeOptions]
    ) -> None:
        super().__init__(name)
        self.bridge: Bridge[Any] = Bridge(read_contents, **options)
        self._tools = [_MemoryTool(self, s["function"]) for s in TOOL_SCHEMAS] if offer_tools else []
        self.bridge.offered = TOOL_SCHEMAS if offer_tools else ()

    async def before_model_callback(self, *, callback_context: Any, llm_request: Any) -> None:
        """Rebuild the contents of a request."""
        system = llm_request.config.system_instruction
        llm_request.contents = await self.bridge.arebuild(
            llm_request.contents,
            session_of(callback_context),
            system=system if isinstance(system, str) else None,
        )
        llm_request.append_tools([t for t in self._tools if t.name not in llm_request.tools_dict])


def session_of(context: Any) -> str:
    """The name of the session of a context: application, user and session of ADK, and the agent's name."""
    session = context.session
    return f"{session.app_name}/{session.user_id}/{session.id}/{context.agent_name}"


class _MemoryTool(BaseTool):
    """A memory tool of a plugin's agents."""

    def __init__(self, plugin: MemoryBankPlugin, schema: dict[str, Any]) -> None:
        super().__init__(name=schema["name"], description=schema["description"])
        self._plugin = plugin
        self._schema = schema

    def _get_declaration(self) -> Any:
        return types.FunctionDeclaration(
            name=self.name, description=self.description, parameters_json_schema=self._schema["parameters"]
        )

    async def run_async(self, *, args: dict[str, Any], tool_context: Any) -> str:
        """The tool's answer."""
        return await self._plugin.bridge.aanswer(self.name, args, session_of(tool_context))
