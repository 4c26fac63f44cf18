"""Lists of other libraries: Anthropic's are parsed, those of LangChain and Gemini are refused by name."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from memory_bank import MemoryBankState, MemoryProcessor, apply_memory_bank_strategy
from memory_bank.errors import MessagesError
from memory_bank.transcript.anthropic import is_anthropic, message_errors
from tests.blocks import rounds, user
from tests.chats import call, result
from tests.chats import user as chat_user


def both(messages, state):
    yield lambda: apply_memory_bank_strategy(
        messages, None, {"selection": "evidence", "embedding_model": "lexical"}, state
    )
    yield lambda: MemoryProcessor(None, lambda session_id: state).apply_strategy(messages, session_id="s")


def test_dicts_of_the_messages_api_are_parsed_and_come_back_as_such():
    messages = [user("Find it"), *rounds(12, size=2_000)]
    with MemoryBankState() as state:
        for apply in both(messages, state):
            context, tokens = apply()
            assert len(state.steps) == 12
            assert tokens < state.last_plan.full_tokens / 3
            assert message_errors(context) == []
            assert context[-1] is messages[-1]
            assert "[… #" in str(context)
    assert messages == [user("Find it"), *rounds(12, size=2_000)]


LANGCHAIN = [
    SimpleNamespace(type="human", content="hi"),
    SimpleNamespace(type="ai", content="", tool_calls=[]),
]
GEMINI = [
    {"role": "user", "parts": [{"text": "hi"}]},
    {"role": "model", "parts": [{"functionCall": {"name": "f"}}]},
]


@pytest.mark.parametrize(
    ("messages", "named"),
    [
        (LANGCHAIN, "integrations.langchain"),
        ([{"type": "human", "content": "hi"}], "integrations.langchain"),
        (GEMINI, "integrations.google_adk"),
        ([SimpleNamespace(role="user", parts=[1], content=None)], "integrations.google_adk"),
    ],
)
def test_shapes_that_are_not_parsed_are_refused_with_the_name_of_what_takes_them(messages, named):
    with MemoryBankState() as state:
        for apply in both(messages, state):
            with pytest.raises(MessagesError, match=named):
                apply()


def test_a_chat_with_blocks_of_the_messages_api_in_its_content_stays_a_chat():
    """LangChain sends such parts beside ``tool_calls``."""
    made = {**call(("c1", "f", {})), "content": [{"type": "tool_use", "id": "c1", "name": "f", "input": {}}]}
    messages = [chat_user(), made, result("c1", "x")]
    assert not is_anthropic(messages)
    with MemoryBankState() as state:
        MemoryProcessor(None, lambda session_id: state).apply_strategy(messages, session_id="s")
        assert len(state.steps) == 1
