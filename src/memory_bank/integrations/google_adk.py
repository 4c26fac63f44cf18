"""Google ADK: MemoryBankPlugin for ``App(plugins=[…])``."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, Unpack

from memory_bank.errors import MissingExtraError
from memory_bank.integrations.bridge import Bridge, BridgeOptions
from memory_bank.ports import ToolFunction
from memory_bank.transcript.anthropic import Thinking
from memory_bank.transcript.jsontext import compact, parse_arguments, plain
from memory_bank.transcript.messages import MessageKind
from memory_bank.transcript.turns import WHOLE, Change, ChatMessage, Conversation, Part, PartWire

try:
    from google.adk.plugins.base_plugin import BasePlugin
    from google.adk.tools.base_tool import BaseTool
    from google.genai import types
except ImportError as e:
    raise MissingExtraError("the Google Agent Development Kit", "google-adk") from e

_TEXT_RESULT = "result"  # the key under which ADK puts what is no object


class ADKWire(PartWire[Any]):
    """See PartWire. What the user says in a content is one part, WHOLE.

    ``ids`` gives the id of each call and response by the identity of its part, because ADK leaves out those
    that it made itself.
    """

    joint = ""

    def __init__(self, ids: dict[int, str]) -> None:
        self._ids = ids
        self._parts: list[Any] = []

    def read(self, native: Any) -> dict[int, Part]:
        parts: dict[int, Part] = {}
        words: list[Any] = []
        for number, part in enumerate(native.parts or ()):
            call, response, is_signed = (
                part.function_call,
                part.function_response,
                bool(part.thought_signature),
            )
            if native.role != "model" and response is None:
                words.append(part)
            elif response is not None:
                text = _text_of(response.response)
                parts[number] = Part(MessageKind.RESULT, text, self._ids[id(part)], response.name)
            elif call is not None:
                arguments = compact(plain(call.args or {}))
                parts[number] = Part(MessageKind.CALL, arguments, self._ids[id(part)], call.name, is_signed)
            elif part.thought or (is_signed and not part.text):  # a signature may stand alone
                parts[number] = Part(MessageKind.REASONING, part.text or "", signed=is_signed)
            elif part.text is not None:
                parts[number] = Part(MessageKind.SAY, part.text)
            else:  # code, files and what is not known
                parts[number] = Part(MessageKind.OTHER)
        return parts | ({WHOLE: Part(MessageKind.USER, _user_content(words))} if words else {})

    def add(self, native: Any, text: str) -> Any:
        return native.model_copy(update={"parts": [*native.parts, types.Part(text=f"\n\n{text}")]})

    def write(self, native: Any, change: Change) -> Any | None:
        """See PartWire. A call that is signed keeps its arguments."""
        parts = []
        for number, part in enumerate(native.parts):
            call, response, original = part.function_call, part.function_response, part
            is_said = native.role != "model" and response is None
            text = change.get(WHOLE if is_said else number, "")
            if text is None:
                continue
            if text and response is not None:
                response = response.model_copy(update={"response": {_TEXT_RESULT: text}})
                part = part.model_copy(update={"function_response": response})
            elif text and call is not None and not part.thought_signature:
                call = call.model_copy(update={"args": parse_arguments(text)})
                part = part.model_copy(update={"function_call": call})
            elif text and call is None:
                part = types.Part(text=text, thought_signature=part.thought_signature)
            if part is not original and id(original) in self._ids:
                self._ids[id(part)] = self._ids[id(original)]
                self._parts.append(part)  # while it lives no other part has its identity
            parts.append(part)
        return native.model_copy(update={"parts": parts}) if parts else None

    def say(self, message: ChatMessage) -> Any:
        """See Wire. Contents have no role for system messages, so every one is the user's."""
        return types.Content(role="user", parts=[types.Part(text=message["content"])])


def _text_of(response: dict[str, Any] | None) -> str:
    response = response or {}
    if response.keys() == {_TEXT_RESULT} and isinstance(response[_TEXT_RESULT], str):
        return str(response[_TEXT_RESULT])
    return compact(plain(response))


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
    counts: Counter[str] = Counter()
    waiting: defaultdict[str, list[str]] = defaultdict(list)
    for part in (part for content in contents for part in content.parts or ()):
        call, response = part.function_call, part.function_response
        if call is not None:
            counts[call.name] += 1
            ids[id(part)] = call.id or f"{call.name}-{counts[call.name]}"
            if not call.id:
                waiting[call.name].append(ids[id(part)])
        elif response is not None:
            first = waiting[response.name].pop(0) if not response.id and waiting[response.name] else ""
            ids[id(part)] = response.id or first or f"{response.name}-unknown"
    return ids


def read_contents(contents: Sequence[Any], system: str | None) -> Conversation[Any]:
    """The contents of a model request as a chat."""
    return ADKWire(call_ids(contents)).read_all(contents, system)


class MemoryBankPlugin(BasePlugin):
    """Sends the model a rebuilt context; the events of ADK's session keep the whole history.

    ``App(…, plugins=[MemoryBankPlugin()])``. ``session_of`` gives the name of a session. Agents get the memory tool,
    get_record. ``options`` are those of Bridge. Raises ConfigError, UnknownStrategyError, StorageError.
    """

    def __init__(self, name: str = "memory_bank", **options: Unpack[BridgeOptions]) -> None:
        super().__init__(name)
        self.bridge: Bridge[Any] = Bridge(read_contents, **options)
        self._tools = [_MemoryTool(self, tool) for tool in self.bridge.offer()]

    async def before_model_callback(self, *, callback_context: Any, llm_request: Any) -> None:
        """Rebuild the contents of a request."""
        contents, session_id = llm_request.contents, session_of(callback_context)
        instruction = llm_request.config.system_instruction
        system = instruction if isinstance(instruction, str) else None
        llm_request.contents = await self.bridge.arebuild(
            contents, session_id, system=system, thinking=_rule(llm_request)
        )
        llm_request.append_tools([t for t in self._tools if t.name not in llm_request.tools_dict])


def _rule(llm_request: Any) -> Thinking:
    """Return how to treat thinking in earlier turns: Gemini's is kept, Claude's depends on the thinking budget."""
    if "claude" not in str(llm_request.model):
        return Thinking.KEEP
    budget = getattr(llm_request.config.thinking_config, "thinking_budget", None) or 0
    return Thinking.KEEP_LATER if budget > 0 else Thinking.DROP


def session_of(context: Any) -> str:
    """The name of the session of a context: application, user and session of ADK, and the agent's name."""
    session = context.session
    return f"{session.app_name}/{session.user_id}/{session.id}/{context.agent_name}"


class _MemoryTool(BaseTool):
    def __init__(self, plugin: MemoryBankPlugin, schema: ToolFunction) -> None:
        super().__init__(name=schema["name"], description=schema["description"])
        self._plugin = plugin
        self._schema = schema

    def _get_declaration(self) -> Any:
        return types.FunctionDeclaration(
            name=self.name, description=self.description, parameters_json_schema=self._schema["parameters"]
        )

    async def run_async(self, *, args: dict[str, Any], tool_context: Any) -> str:
        return await self._plugin.bridge.aanswer(self.name, args, session_of(tool_context))
