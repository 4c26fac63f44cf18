"""Protocols of what users may give: chat models, embedders and token counters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NotRequired, Protocol, TypedDict, runtime_checkable

Scope = Literal["session", "project", "all"]
"""Whose records a search may find: those of the session, of its project's sessions, of all sessions."""


@runtime_checkable
class Embedder(Protocol):
    """Texts to vectors; only ``encode`` is required."""

    def encode(self, texts: list[str]) -> object:
        """An array of shape (n, d), one row for each text."""


@runtime_checkable
class NamedEmbedder(Embedder, Protocol):
    """An embedder with a name and an own method for queries, as all in this package."""

    @property
    def name(self) -> str:
        """The name that the bank stores: two embedders of one name give the same vectors."""

    def encode_queries(self, texts: list[str]) -> object:
        """As ``encode``, for queries."""


@runtime_checkable
class ChatModel(Protocol):
    """A language model."""

    def generate_plain(self, *, input_messages: list[dict[str, Any]], model: str) -> object:
        """The answer: a string, or an OpenAI-shaped chat completion. May raise anything."""


class ChatClient(Protocol):
    """An ``openai.OpenAI``, or a client with the same ``chat.completions.create``."""

    @property
    def chat(self) -> Any:
        """Its chat API."""


LLMClient = ChatModel | ChatClient
"""A chat model, or a client that calls one."""


class ToolFunction(TypedDict):
    """Name, description and JSON schema of a tool."""

    name: str
    description: NotRequired[str]
    parameters: NotRequired[dict[str, Any]]
    strict: NotRequired[bool | None]


class ToolSchema(TypedDict):
    """A tool in the form of the chat completions API, as ``tools=`` of openai's client takes it."""

    function: ToolFunction
    type: Literal["function"]


@runtime_checkable
class TokenCounter(Protocol):
    """Counts tokens of texts and messages."""

    @property
    def name(self) -> str:
        """The encoding, ``"approximate"`` when it is an estimate."""

    @property
    def approximate(self) -> bool:
        """Whether counts are estimates."""

    def count_text(self, text: str) -> int:
        """Tokens of a text; special-token text counts as plain text and never raises."""

    def count_message(self, message: object) -> int:
        """Tokens of a chat message with its calls, and 4 for its frame."""


TextCounter = Callable[[str], int]
