"""LLMOrchestrator: memory applied or not, a trace that tells the truth, both colours, streams untouched."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from memory_bank import LLMOrchestrator, MemoryBankState, load_config
from memory_bank.config import Price
from memory_bank.errors import ConfigError, LoopDetectedError, ModelError, UnknownStrategyError
from memory_bank.testing import Reply, ScriptedModel, ScriptedServer, fail, say
from memory_bank.transcript.pairing import pairing_errors
from tests.chats import call, result, rounds, system, user

openai = pytest.importorskip("openai", reason="needs openai")
AsyncOpenAI, OpenAI = openai.AsyncOpenAI, openai.OpenAI

CHAT = [system(), user(), *rounds(20, size=600)]
CONFIG = {
    "default_strategy": "short",
    "memory_strategies": {
        "short": {"type": "progressive_summarization", "compact_threshold": 2000},
        "none": {"type": "no_strategy"},
        "progressive": {
            "type": "progressive_summarization",
            "compact_threshold": 2000,
            "summary_model": "small",
        },
    },
    "prices": {"m": {"prompt": 2.0, "completion": 10.0}},
}


def client_of(server, kind=OpenAI):
    return kind(base_url=server.base_url, api_key="x", max_retries=0)


def test_memory_is_applied_and_the_trace_says_what_was_sent():
    with ScriptedServer([Reply(content="done", usage=(100, 7)), say("plain")]) as server:
        orchestrator = LLMOrchestrator(client_of(server), CONFIG, model="m")
        answer = orchestrator.generate(CHAT, temperature=0.5)
        assert answer.choices[0].message.content == "done"
        sent = server.requests[0].body
        assert sent["temperature"] == 0.5
        plain = orchestrator.generate_plain(input_messages=CHAT[:2], model="other")
        assert plain.choices[0].message.content == "plain"
        assert server.requests[1].body["messages"] == CHAT[:2]
        assert server.refused == []
    first, second = orchestrator.trace
    assert list(first.messages) == sent["messages"] != CHAT
    assert (first.kind, first.memory_key, first.model, first.number) == ("memory", "short", "m", 1)
    assert (first.prompt_tokens, first.completion_tokens) == (100, 7)
    assert first.cost == pytest.approx((100 * 2 + 7 * 10) / 1e6)
    assert first.counted_tokens < 2000 < first.full_tokens
    assert (second.kind, second.memory_key, second.cost) == ("plain", None, None)
    assert json.dumps(first.as_dict())


def test_sessions_are_kept_apart_and_reset_alone():
    it = LLMOrchestrator(ScriptedModel(lambda *_: "ok"), CONFIG, model="m")
    it.generate(CHAT)
    it.set_active_context(session_id="a")
    it.generate(CHAT[:8])
    it.generate(CHAT[:12], session_id="b")
    size = lambda s: it.processor.state("short", s).fact_store.size()  # noqa: E731
    assert [size(s) for s in (None, "a", "b")] == [20, 3, 5]
    it.reset_session()
    assert [size(s) for s in (None, "a", "b")] == [20, 0, 5]
    it.reset_session("b")
    assert [size(s) for s in (None, "a", "b")] == [20, 0, 0]
    assert [s.session_id for s in it.trace] == [None, "a", "b"]
    with pytest.raises(UnknownStrategyError, match="did you mean 'none'"):
        it.set_active_context("nonee", "c")
    it.set_active_context("none")
    it.generate(CHAT)
    assert (it.trace[-1].memory_key, it.trace[-1].session_id) == ("none", "a")
    assert it.trace[-1].counted_tokens == it.trace[-1].full_tokens


def test_sessions_in_one_database(tmp_path):
    def opened(session_id="main"):
        return MemoryBankState.open(tmp_path / "bank.db", session_id)

    with LLMOrchestrator(ScriptedModel(lambda *_: "ok"), CONFIG, model="m", open_state=opened) as it:
        it.generate(CHAT, session_id="a")
        it.generate(CHAT[:4], session_id="b")
    with opened("a") as a, opened("b") as b:
        assert (a.fact_store.size(), b.fact_store.size()) == (20, 1)
    closed = LLMOrchestrator(ScriptedModel(["ok"]), CONFIG, model="m", open_state=lambda: MemoryBankState())
    with pytest.raises(ConfigError, match="no parameter session_id"):
        closed.generate(CHAT, session_id="a")


def test_summaries_go_through_it_and_are_in_the_trace():
    with ScriptedServer(lambda body: say("SUMMARY" if body["model"] == "small" else "answer")) as server:
        it = LLMOrchestrator(client_of(server), CONFIG, model="m", memory_key="progressive")
        it.generate(CHAT)
    assert [(s.kind, s.model) for s in it.trace] == [("plain", "small"), ("memory", "m")]
    assert "SUMMARY" in json.dumps(it.trace[-1].messages)


def test_streams_come_back_as_the_client_gave_them():
    with ScriptedServer([say("word by word")] * 2) as server:
        client = client_of(server)
        it = LLMOrchestrator(client, CONFIG, model="m")
        stream = it.generate(CHAT, stream=True)
        assert type(stream) is type(client.chat.completions.create(messages=CHAT[:2], model="m", stream=True))
        assert "".join(c.choices[0].delta.content or "" for c in stream if c.choices) == "word by word"
    assert it.trace[0].streamed
    assert it.trace[0].cost == pytest.approx(it.trace[0].counted_tokens * 2 / 1e6)


@pytest.mark.parametrize("kind", [OpenAI, AsyncOpenAI])
def test_asynchronous_programs(kind):
    async def run(server):
        it = LLMOrchestrator(client_of(server, kind), CONFIG, model="m")
        answers = await asyncio.gather(*(it.agenerate(CHAT, session_id=str(n)) for n in range(4)))
        assert {a.choices[0].message.content for a in answers} == {"yes"}
        plain = await it.agenerate_plain(input_messages=CHAT[:2])
        assert plain.choices[0].message.content == "yes"
        stream = await it.agenerate(CHAT, stream=True)
        chunks = [c async for c in stream] if kind is AsyncOpenAI else list(stream)
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "yes"
        return it

    with ScriptedServer(lambda body: say("yes")) as server:
        it = asyncio.run(run(server))
        assert server.refused == []
        assert all(pairing_errors(r.body["messages"]) == [] for r in server.requests)
        assert len(it.trace) == 6
        if kind is AsyncOpenAI:
            with pytest.raises(ConfigError, match="asynchronous: use agenerate"):
                it.generate(CHAT)


def test_failures_are_one_sentence_and_in_the_trace():
    with ScriptedServer([fail(500), fail(500)]) as server:
        it = LLMOrchestrator(client_of(server), CONFIG, model="m")
        with pytest.raises(ModelError, match="HTTP 500"):
            it.generate(CHAT)
        both = LLMOrchestrator(client_of(server, AsyncOpenAI), CONFIG, model="m")
        with pytest.raises(ModelError, match="HTTP 500"):
            asyncio.run(both.agenerate(CHAT))
    assert [s.error for s in (*it.trace, *both.trace)] == ["ModelError"] * 2


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"client": None}, "needs a client"),
        ({"client": 5}, "cannot be a int"),
        ({"memory_key": "shrt"}, "did you mean 'short'"),
    ],
)
def test_wrong_use_is_one_sentence(wrong, says):
    given = {"client": ScriptedModel(["x"]), "config": CONFIG, "model": "m"} | wrong
    with pytest.raises(ConfigError) as e:
        LLMOrchestrator(**given)
    assert says in str(e.value)
    with pytest.raises(ConfigError, match="no model is named"):
        LLMOrchestrator(ScriptedModel(["x"]), CONFIG).generate(CHAT)


def test_the_trace_is_bounded_and_no_copy_of_what_the_caller_changes():
    it = LLMOrchestrator(ScriptedModel(lambda *_: "ok"), CONFIG, model="m")
    messages = [system(), user("first")]
    for _ in range(1_002):
        it.generate_plain(input_messages=messages)
    messages[1]["content"] = "changed"
    assert [s.number for s in it.trace] == list(range(3, 1_003))
    assert it.trace[0].messages[1]["content"] == "first"


def test_threads_share_an_orchestrator():
    it = LLMOrchestrator(ScriptedModel(lambda *_: "ok"), CONFIG, model="m")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: it.generate(CHAT, session_id=str(n % 2)), range(8)))
    assert sorted(s.number for s in it.trace) == list(range(1, 9))
    assert len({json.dumps(s.messages) for s in it.trace}) <= 2


# loops


def same(n, start=0, answer="no"):
    out = []
    for i in range(start, start + n):
        arguments = {"a": 1, "b": 2} if i % 2 else {"b": 2, "a": 1}
        out += [call((f"s{i}", "get", arguments)), result(f"s{i}", answer)]
    return out


def looping(mode, threshold=3):
    return CONFIG | {"loop_detection": mode, "loop_threshold": threshold}


@pytest.mark.parametrize("key", ["short", "none"])
def test_a_loop_is_raised_with_its_calls_after_the_facts_are_stored(key):
    it = LLMOrchestrator(ScriptedModel(lambda *_: "ok"), looping("raise"), model="m", memory_key=key)
    it.generate([user(), *rounds(2), *same(2)])
    with pytest.raises(LoopDetectedError) as e:
        it.generate([user(), *rounds(2), *same(3)])
    assert [c["call_id"] for c in e.value.calls] == ["s0", "s1", "s2"]
    arguments = {"a": 1, "b": 2}
    assert e.value.calls[0] == {"call_id": "s0", "tool_name": "get", "arguments": arguments, "output": "no"}
    assert "3 calls in a row of get" in str(e.value)
    if key == "short":
        assert it.processor.state(key).fact_store.size() == 5
    assert len(it.trace) == 1


@pytest.mark.parametrize(
    "messages",
    [
        [user(), *same(2), *same(1, 2, "other"), *same(2, 3)],
        [user(), *same(2), user("try again"), *same(2, 2)],
        [user(), *same(3), {"role": "assistant", "content": "I give up"}],
        [user(), *same(2), call(("x", "get", {"a": 1, "b": 3})), result("x", "no"), *same(2, 2)],
        [user(), *same(2), call(("x", "get", {"a": 1, "b": 2}))],
        [],
    ],
)
def test_what_is_no_loop(messages):
    LLMOrchestrator(ScriptedModel(["ok"]), looping("raise"), model="m").generate(messages)


def test_parallel_calls_loop_as_turns():
    messages = [user()]
    for n in range(3):
        calls = call((f"a{n}", "one", {}), (f"b{n}", "two", {}))
        messages += [calls, result(f"a{n}", "x"), result(f"b{n}", "y")]
    with pytest.raises(LoopDetectedError) as e:
        LLMOrchestrator(ScriptedModel(["ok"]), looping("raise"), model="m").generate(messages)
    assert len(e.value.calls) == 6


def test_loops_are_warned_of_once_or_not_at_all(caplog):
    for mode, wanted in (("warn", 2), ("off", 0)):
        caplog.clear()
        it = LLMOrchestrator(ScriptedModel(lambda *_: "ok"), looping(mode), model="m")
        for n in range(1, 8):
            it.generate([user(), *same(n)])
        assert caplog.text.count("repeats itself") == wanted


# the provider's prefix cache


@pytest.mark.parametrize(
    ("reported", "streamed", "read"),
    [(0, False, 1.0), (3_000, False, 0.1), (None, False, 0.1), (0, True, 0.1)],
)
def test_reported_usage_and_prices_decide_how_often_the_history_is_folded(reported, streamed, read):
    replies = lambda body: Reply("ok", usage=(9_000, 1), cached=None if reported is None else (reported, 0))  # noqa: E731
    config = load_config().model_copy(update={"prices": {"own": Price(prompt=4, completion=8, cached=2)}})
    with ScriptedServer(replies) as server, LLMOrchestrator(client_of(server), config) as it:
        for n in range(8, 30):
            answer = it.generate([*CHAT[:2], *rounds(n, size=6_000)], model="other", stream=streamed)
            if streamed:
                list(answer)
        cache = it.processor.state("memory_bank").prefix_cache
        assert cache.read == read
        stands = sum(
            list(a.messages) == list(b.messages[: len(a.messages)])
            for a, b in zip(it.trace[-10:], it.trace[-9:], strict=False)
        )
        assert stands <= 1 if read == 1.0 else stands >= 8
        it.generate(CHAT, model="own")
        assert cache.read == 0.5
