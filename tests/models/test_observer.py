"""The Observer: what it is told, what it makes of answers and failures."""

import logging

import pytest
from tests.chats import rounds, user
from tests.contracts.stores import to_redo

from memory_bank import MemoryBankState, apply_memory_bank_strategy
from memory_bank.config import MemoryBankSettings
from memory_bank.errors import ConfigError, PromptError
from memory_bank.models.observer import Observer, observe_tool_output
from memory_bank.records import InteractionRecord
from memory_bank.testing import ScriptedModel, ScriptedServer, fail, say


def record(output="found ORD-7", **more):
    return InteractionRecord.create(1, "find", {"q": "Ada"}, {"_raw": output}, output_text=output, **more)


def observer_of(model):
    return Observer.create(model, MemoryBankSettings(observer_model="m"))


def test_it_sees_task_tool_arguments_and_output_and_the_instructions():
    model = ScriptedModel(["ok"])
    said = observe_tool_output("refund Ada", "find", {"id": "ORD-7"}, model, "m", raw_input={"q": "Ada"})
    assert (said, model.calls[0].model) == ("ok", "m")
    text = "\n".join(m["content"] for m in model.calls[0].messages)
    for piece in ("refund Ada", "find", '{"q":"Ada"}', "ORD-7", "200 words"):
        assert piece in text
    assert [m["role"] for m in model.calls[0].messages] == ["system", "user"]
    assert "ORD-7" not in model.calls[0].messages[0]["content"]  # tool text is never in the system prompt


def test_a_long_output_is_shortened_by_its_structure():
    model = ScriptedModel(["ok"])
    rows = [{"id": f"ROW-{i}", "text": "y" * 90} for i in range(1000)]
    observe_tool_output("t", "rows", rows, model, "m")
    text = model.calls[0].messages[-1]["content"]
    assert len(text) < 12_000
    assert '"id":"ROW-0"' in text
    assert "more items" in text


@pytest.mark.parametrize("reply", ["", "   ", None, {"choices": []}])
def test_an_empty_reply_leaves_an_extractive_summary_a_warning_and_a_mark(reply, caplog):
    observer = observer_of(ScriptedModel([reply]))
    with caplog.at_level(logging.WARNING, logger="memory_bank.Observer"):
        insight = observer.observe(record(), "task")
    assert "ORD-7" in insight.summary
    assert (insight.source, insight.redo) == ("extractive", "the model's reply was empty")
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert "ORD-7" not in caplog.text


def test_parallel_calls_are_observed_concurrently_and_in_order():
    import threading

    barrier = threading.Barrier(3, timeout=60)

    def answer(messages, model):
        barrier.wait()  # only passes when three calls are open at once
        return "about " + messages[-1]["content"].split("OUT-")[1][0]

    observer = observer_of(ScriptedModel(answer))
    insights = observer.observe_all([record(f"OUT-{i}") for i in range(3)], "t")
    assert [i.summary for i in insights] == ["about 0", "about 1", "about 2"]


def test_no_client_or_the_model_extractive_means_extraction():
    assert observe_tool_output("t", "find", {"id": "ORD-7"}, None, "gpt").startswith("Called find")
    model = ScriptedModel([])
    assert observe_tool_output("t", "find", {"id": "ORD-7"}, model, "extractive").startswith("Called find")
    assert model.calls == []


def test_a_real_openai_client_over_loopback():
    OpenAI = pytest.importorskip("openai").OpenAI  # noqa: N806

    with ScriptedServer(
        [say("It found ORD-7."), fail(500, "down"), fail(500, "down"), fail(500, "down")]
    ) as server:
        client = OpenAI(base_url=server.base_url, api_key="x", max_retries=0)
        assert observe_tool_output("t", "find", {"id": "ORD-7"}, client, "m") == "It found ORD-7."
        assert observe_tool_output("t", "find", {"id": "ORD-7"}, client, "m").startswith("Called find")
        assert server.requests[0].body["model"] == "m"


def test_what_is_no_client_is_refused():
    with pytest.raises(ConfigError, match="llm_client"):
        observe_tool_output("t", "find", {}, object(), "m")


def test_a_missing_prompt_file_is_one_clear_error(tmp_path):
    settings = MemoryBankSettings(observer_prompt=str(tmp_path / "none.md"))
    with pytest.raises(PromptError, match="cannot be read"):
        Observer.create(ScriptedModel(["x"]), settings).observe(record(), "t")


def test_an_own_prompt_is_used(tmp_path):
    file = tmp_path / "p.md"
    file.write_text("=== user ===\nT {{user_query}} N {{tool_name}} A {{arguments}} O {{output}}")
    model = ScriptedModel(["x"])
    Observer.create(model, MemoryBankSettings(observer_prompt=str(file))).observe(
        record("{{tool_name}}"), "task"
    )
    assert model.calls[0].messages[0]["content"] == 'T task N find A {"q":"Ada"} O {{tool_name}}'


def test_a_spelling_that_the_api_does_not_know(caplog):
    OpenAI = pytest.importorskip("openai").OpenAI  # noqa: N806

    def reply(body):
        return say("A summary.") if body["model"] == "gpt-4.1-mini" else fail(404, code="model_not_found")

    settings = MemoryBankSettings(observer_model="gpt-4-1-mini", embedding_model="lexical")
    with ScriptedServer(reply) as server, caplog.at_level(logging.WARNING):
        client = OpenAI(base_url=server.base_url, api_key="x", max_retries=0)
        settings = settings.model_copy(update={"observer_concurrency": 1})
        state = MemoryBankState()
        for n in (2, 3):  # a chat model is made of the client at each step
            apply_memory_bank_strategy([user(), *rounds(n)], client, settings, state)
        asked = [r.body["model"] for r in server.requests]
    assert asked == ["gpt-4-1-mini", *["gpt-4.1-mini"] * (len(asked) - 1)] and len(asked) >= 3
    [warning] = caplog.records
    assert "gpt-4-1-mini" in warning.getMessage() and "is called gpt-4.1-mini there" in warning.getMessage()


class Refused(Exception):
    """An error as clients of other providers raise it."""

    def __init__(self, status_code):
        super().__init__("secret sk-123")
        self.status_code = status_code


@pytest.mark.parametrize(
    ("failure", "model", "told"),
    [
        (fail(404), "gpt-4-1-mini", ["HTTP 404", "check the model name"]),
        (fail(404), "gpt-4.1-mini", ["HTTP 404", "check the model name"]),
        (Refused(429), "m", ["Refused", "HTTP 429", "quota"]),
    ],
)
def test_a_failing_model_tells_status_and_cause_once(failure, model, told, caplog):
    OpenAI = pytest.importorskip("openai").OpenAI  # noqa: N806

    with (
        ScriptedServer([] if isinstance(failure, Exception) else [failure] * 12) as server,
    ):
        client = OpenAI(base_url=server.base_url, api_key="x", max_retries=0)
        if isinstance(failure, Exception):
            client = ScriptedModel([failure] * 6)
        settings = MemoryBankSettings(observer_model=model, embedding_model="lexical")
        state = MemoryBankState()
        with caplog.at_level(logging.WARNING):
            for n in (3, 6):  # two steps
                apply_memory_bank_strategy([user(), *rounds(n)], client, settings, state)
    [warning] = caplog.records
    assert all(piece in warning.getMessage() for piece in told)
    assert ("gpt-4.1-mini" in warning.getMessage()) == ("gpt-4.1-mini" in (model, *told))
    assert "sk-123" not in caplog.text
    assert all(told[0] in i.redo for i in to_redo(state.insight_store))
