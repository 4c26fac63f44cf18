"""ScriptedServer through the real openai client: chats, embeddings, faults; and the reference agent on top of it."""

from __future__ import annotations

import http.client
import itertools
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.embedding_server import EmbeddingServer
from tests.replies import cut, half, raw

from memory_bank.testing import Reply, ScriptedServer, call, calls, fail, pairing_errors, say

openai = pytest.importorskip("openai", reason="needs openai")
OpenAI = openai.OpenAI

USER: dict[str, Any] = {"role": "user", "content": "q"}


def client_of(server: ScriptedServer, **options: Any) -> Any:
    return OpenAI(
        base_url=server.base_url, api_key="sk-secret", **{"max_retries": 0, "timeout": 20, **options}
    )


def chat(client: Any, *messages: Any, **options: Any) -> Any:
    return client.chat.completions.create(model="m", messages=[*messages] or [USER], **options)


def ask(server: ScriptedServer, **options: Any) -> Any:
    with client_of(server, **options) as client:
        return chat(client)


def test_usage_tells_what_a_prefix_cache_held_by_every_api() -> None:
    with ScriptedServer(lambda _: Reply("x", usage=(100, 3), cached=(60, 30))) as server:
        assert ask(server).usage.prompt_tokens_details.cached_tokens == 60
        with client_of(server) as client:
            told = client.responses.create(model="m", input="q").usage
            assert (told.input_tokens, told.input_tokens_details.cached_tokens) == (100, 60)
            body = {"model": "m", "max_tokens": 9, "messages": [USER]}
            message = client.post("/messages", body=body, cast_to=object)
    assert message["usage"] == {
        "input_tokens": 10, "cache_creation_input_tokens": 30, "cache_read_input_tokens": 60, "output_tokens": 3,
    }  # fmt: skip
    with ScriptedServer([say("x")]) as server:
        assert ask(server).usage.prompt_tokens_details is None


def test_chat_in_words_with_usage_and_log() -> None:
    with ScriptedServer([Reply("naïve — 数", usage=(7, 3)), "plain str", say(None)]) as server:
        answer = ask(server)
        assert answer.choices[0].message.content == "naïve — 数"
        assert answer.choices[0].finish_reason == "stop"
        assert (answer.model, answer.usage.prompt_tokens, answer.usage.total_tokens) == ("m", 7, 10)
        assert [ask(server).choices[0].message.content for _ in range(2)] == ["plain str", None]
    logged = server.requests[0]
    assert (logged.method, logged.path) == ("POST", "/v1/chat/completions")
    assert logged.body == {"model": "m", "messages": [USER]}
    assert logged.headers["authorization"] == "REDACTED"
    assert "sk-secret" not in repr(server.requests)


def test_parallel_tool_calls_have_unique_deterministic_ids() -> None:
    script = [
        calls(("a", {"x": 1}), ("b", {}), content="thinking"), call("a", x="ü"), calls(("a", "{bad", "mine")),
    ]  # fmt: skip
    seen = []
    for _ in range(2):
        with ScriptedServer(script) as server:
            answers = [ask(server).choices[0] for _ in script]
        assert {a.finish_reason for a in answers} == {"tool_calls"}
        made = [c for a in answers for c in a.message.tool_calls]
        seen.append([(c.id, c.function.name, c.function.arguments) for c in made])
    assert answers[0].message.content == "thinking"
    assert seen[0] == seen[1]
    assert len({c[0] for c in seen[0]}) == 4
    assert [json.loads(c[2]) for c in seen[0][:3]] == [{"x": 1}, {}, {"x": "ü"}]
    assert seen[0][3] == ("mine", "a", "{bad")


def test_streaming_gives_the_same_answer_in_pieces() -> None:
    text = "a longer answer, in several pieces — 数"
    reply = calls(("find", {"query": "something long enough to be split"}), ("now", {}), content=text)
    with ScriptedServer([reply, reply, reply, say("")]) as server, client_of(server) as client:
        whole = chat(client).choices[0]
        chunks = list(chat(client, stream=True, stream_options={"include_usage": True}))
        with client.chat.completions.stream(model="m", messages=[USER]) as stream:
            final = stream.get_final_completion().choices[0].message
        empty = list(chat(client, stream=True))
    *body, last = chunks
    assert (last.choices, last.usage.total_tokens > 0) == ([], True)
    assert all(c.usage is None and len(c.choices) == 1 for c in [*body, *empty])
    assert body[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in body if c.choices[0].finish_reason] == ["tool_calls"]
    pieces = [c.choices[0].delta.content for c in body if c.choices[0].delta.content]
    assert len(pieces) > 2
    assert "".join(pieces) == text == final.content

    def functions(message: Any) -> list[tuple[str, str]]:
        return [(c.function.name, c.function.arguments) for c in message.tool_calls]

    assert functions(final) == functions(whole.message)
    assert [c.choices[0].delta.content for c in empty] == ["", None]


def test_embeddings_in_floats_and_base64() -> None:
    with EmbeddingServer() as server, client_of(server) as client:
        texts = ["order 12 shipped", "order 12 was shipped", "weather"]
        packed = client.embeddings.create(model="e", input=texts)
        floats = client.embeddings.create(model="e", input=texts, encoding_format="float")
        short = client.embeddings.create(model="e", input="one", dimensions=8)
        tokens = client.embeddings.create(model="e", input=[[1, 2], [3]])
    assert server.requests[0].body["encoding_format"] == "base64"
    assert [d.index for d in packed.data] == [0, 1, 2]
    a, b, c = ([*d.embedding] for d in packed.data)
    for mine, theirs in zip(floats.data, packed.data, strict=True):
        assert mine.embedding == pytest.approx(theirs.embedding, abs=1e-6)
    assert sum(x * x for x in a) == pytest.approx(1)
    near, far = (sum(x * y for x, y in zip(a, other, strict=True)) for other in (b, c))
    assert near > 0.8 > far
    assert (len(short.data[0].embedding), len(tokens.data)) == (8, 2)


def test_embeddings_by_a_function_and_its_faults() -> None:
    server = EmbeddingServer(embed=lambda texts: [[float(len(t)), 0.5] for t in texts])
    with server, client_of(server) as client:
        assert client.embeddings.create(model="e", input=["abc"]).data[0].embedding == [3.0, 0.5]
        server.embed = lambda texts: fail(429, retry_after=0)
        with pytest.raises(openai.RateLimitError):
            client.embeddings.create(model="e", input="x")
        server.embed = lambda texts: 1 / 0
        with pytest.raises(openai.InternalServerError, match="ZeroDivisionError"):
            client.embeddings.create(model="e", input="x")
        with pytest.raises(openai.BadRequestError, match="Invalid 'input'"):
            client.embeddings.create(model="e", input=[])


def test_broken_pairs_are_refused_and_take_no_reply() -> None:
    made = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turn = {"role": "assistant", "tool_calls": [made]}
    result = {"role": "tool", "tool_call_id": "c1", "content": "ok"}
    broken = [USER, turn, USER, result]
    with ScriptedServer(["ok", "lax"]) as server, client_of(server) as client:
        with pytest.raises(openai.BadRequestError, match=r"messages\[1\]: no tool message") as caught:
            chat(client, *broken)
        assert caught.value.type == "invalid_request_error"
        assert server.refused == pairing_errors(broken)
        assert chat(client, USER, turn, result).choices[0].message.content == "ok"
        server.strict = False
        assert chat(client, *broken).choices[0].message.content == "lax"


def test_429_is_retried_after_the_time_asked_for() -> None:
    with ScriptedServer([fail(429, "slow down", retry_after=0.3), fail(500), say("at last")]) as server:
        start = time.perf_counter()
        assert ask(server, max_retries=2).choices[0].message.content == "at last"
        assert time.perf_counter() - start >= 0.3
    assert [r.headers["x-stainless-retry-count"] for r in server.requests] == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (fail(429, "scripted"), openai.RateLimitError),
        (fail(500, "scripted"), openai.InternalServerError),
        (fail(401, "scripted"), openai.AuthenticationError),
        (raw("<html>scripted</html>", 502, content_type="text/html"), openai.InternalServerError),
        (cut(), openai.APIConnectionError),
        (cut(50), openai.APIConnectionError),
        (cut(10**6), None),
        (Reply("late", delay=30), openai.APITimeoutError),
        (half(), ValueError),
        (raw(""), ValueError),
        (raw('{"choices": []}'), None),
        ({"error": {"message": "in a 200"}}, None),
        (ZeroDivisionError("scripted"), openai.InternalServerError),
        (lambda body: 1 / 0, openai.InternalServerError),
        (lambda body: pytest.fail("scripted"), openai.InternalServerError),
        (call("f", bad={1, 2}), openai.InternalServerError),
        (Reply(content=["scripted"], status=200, usage="bad"), openai.InternalServerError),  # type: ignore[arg-type]
        (42, openai.InternalServerError),
    ],
)
def test_faults_reach_the_client_and_the_server_lives_on(reply: Any, error: type[Exception] | None) -> None:
    with ScriptedServer([reply, "well again"]) as server:
        if error is None:
            ask(server)
        else:
            with pytest.raises(error):
                ask(server, timeout=0.5 if error is openai.APITimeoutError else 30)
        assert ask(server).choices[0].message.content == "well again"


def test_a_huge_answer_has_few_pieces_and_a_stream_can_be_cut_in_the_middle() -> None:
    huge = "x" * 20_000_000
    with ScriptedServer([say(huge), cut(400), cut(0)]) as server, client_of(server) as client:
        chunks = list(chat(client, stream=True))
        assert len(chunks) < 100
        assert sum(len(c.choices[0].delta.content or "") for c in chunks) == len(huge)
        with pytest.raises(Exception, match=r"(?i)incomplete|closed|connection|disconnected"):
            list(chat(client, stream=True))
        with pytest.raises(openai.APIConnectionError):
            chat(client, stream=True)


def test_a_script_is_a_list_that_ends_a_function_or_an_endless_iterator() -> None:
    with ScriptedServer(["one"]) as server:
        ask(server)
        with pytest.raises(openai.InternalServerError, match="it has ended after 1 replies"):
            ask(server, max_retries=5)
        assert len(server.requests) == 2  # such a 500 is not retried
    with ScriptedServer(lambda body: f"echo {body['messages'][-1]['content']}") as server:
        assert ask(server).choices[0].message.content == "echo q"
    with ScriptedServer(itertools.cycle(["tick", "tock"])) as server:
        assert [ask(server).choices[0].message.content for _ in range(3)] == ["tick", "tock", "tick"]


CHATS, RESPONSES = "/v1/chat/completions", "/v1/responses"


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", CHATS, b"{half", 400), ("POST", CHATS, b"[" * 100_000, 400), ("POST", CHATS, b"\xff", 400),
        ("POST", CHATS, b"[]", 400), ("POST", CHATS, b"{}", 400), ("POST", CHATS, b'{"model": "m"}', 400),
        ("POST", CHATS, b'{"model": "m", "messages": []}', 400),
        ("POST", CHATS, b'{"model": "m", "messages": [1]}', 400),
        ("POST", "/v1/embeddings", b'{"model": "m", "input": [1.5]}', 400),
        ("POST", f"{CHATS}?x=1", b'{"model": "m", "messages": [{"role": "user"}]}', 200),
        ("POST", RESPONSES, b"{}", 400), ("POST", RESPONSES, b'{"model": "m"}', 400),
        ("POST", RESPONSES, b'{"model": "m", "input": 1}', 400),
        ("POST", RESPONSES, b'{"model": "m", "input": [1]}', 400),
        ("POST", RESPONSES, b'{"model": "m", "input": "x"}', 200),
        ("GET", f"{RESPONSES}/resp_1", b"", 404), ("DELETE", f"{RESPONSES}/resp_1", b"", 404),
        ("PUT", RESPONSES, b"{}", 404), ("GET", "/v1/nothing", b"", 404), ("GET", "/v1/models", b"", 200),
    ],
)  # fmt: skip
def test_what_a_client_gets_wrong(method: str, path: str, body: bytes, status: int) -> None:
    with EmbeddingServer(["ok"]) as server:
        connection = http.client.HTTPConnection(server.base_url.split("/")[2], timeout=60)
        connection.request(method, path, body)
        response = connection.getresponse()
        answer = json.loads(response.read())
        assert response.status == status
        assert status == 200 or answer["error"]["message"]
        connection.request("GET", "/v1/models")  # the connection is still good
        assert connection.getresponse().status == 200
        connection.close()


def test_many_threads_are_each_answered_once() -> None:
    with ScriptedServer([say(str(i)) for i in range(64)]) as server, client_of(server) as client:
        with ThreadPoolExecutor(16) as pool:
            answers = pool.map(lambda _: chat(client).choices[0].message.content, range(64))
        assert sorted(map(int, answers)) == list(range(64))


def test_closing_is_fast_and_clean_with_hung_and_idle_connections() -> None:
    server = ScriptedServer([say("x"), *[Reply("late", delay=600)] * 4]).start()
    assert server.base_url.startswith("http://127.0.0.1:") and server.base_url.endswith("/v1")
    idle = client_of(server)
    chat(idle)
    failures: list[Exception] = []

    def hung() -> None:
        try:
            ask(server)
        except openai.APIConnectionError as error:
            failures.append(error)

    threads = [threading.Thread(target=hung) for _ in range(4)]
    for thread in threads:
        thread.start()
    while len(server.requests) < 5:
        time.sleep(0.01)
    start = time.perf_counter()
    server.close()
    assert time.perf_counter() - start < 60  # the answers would come in ten minutes
    for thread in threads:
        thread.join(5)
    assert len(failures) == 4
    with pytest.raises(openai.APIConnectionError):
        chat(idle)
    idle.close()
    server.close()
    with pytest.raises(RuntimeError, match="not running"):
        _ = server.base_url
