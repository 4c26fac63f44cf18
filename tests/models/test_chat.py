"""Reading any model's answer, and OpenAIChat through the real client over loopback."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, MagicMock, Mock

import pytest
from tests.contracts.chat import ChatModelContract
from tests.replies import cut, half, raw

from memory_bank.errors import ConfigError, EmbedderLoadError, MissingExtraError, ModelError
from memory_bank.models.chat import OpenAIChat, as_chat_model, reply_text, usage_of
from memory_bank.models.embedding import load_embedder
from memory_bank.models.usage import NO_USAGE
from memory_bank.ports import ChatModel
from memory_bank.pricing import Usage
from memory_bank.testing import Reply, ScriptedModel, ScriptedServer, fail, say

openai = pytest.importorskip("openai", reason="needs openai")

SECRET = "sk-very-secret"
ASKED = [{"role": "user", "content": "private question"}]


class TestOpenAIChat(ChatModelContract):
    failure = ModelError

    @pytest.fixture(autouse=True)
    def _servers(self) -> Iterator[None]:
        self.servers: dict[int, ScriptedServer] = {}
        yield
        for server in self.servers.values():
            server.close()

    def make_model(self, replies: list[Any]) -> OpenAIChat:
        server = ScriptedServer([fail(500) if isinstance(r, Exception) else say(r) for r in replies]).start()
        model = OpenAIChat(base_url=server.base_url, api_key=SECRET, max_retries=0)
        self.servers[id(model)] = server
        return model

    def received(self, model: Any) -> list[tuple[list[dict[str, Any]], str]]:
        return [(r.body["messages"], r.body["model"]) for r in self.servers[id(model)].requests]


def completion(content: Any) -> SimpleNamespace:
    return SimpleNamespace(choices=[SimpleNamespace(message=SimpleNamespace(content=content))])


PARTS = [
    {"type": "text", "text": "a"},
    {"type": "image_url"},
    SimpleNamespace(text="b"),
    "c",
    None,
    {"text": 1},
]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("plain", "plain"),
        (completion("x"), "x"),
        (completion(None), ""),
        (completion(PARTS), "abc"),
        (completion(7), ""),
        ({"choices": [{"message": {"content": PARTS}}]}, "abc"),
        ({"choices": [{"message": None}]}, ""),
        *(({"choices": odd}, "") for odd in ([], None, {}, 3, [None])),
        ({"content": "message"}, "message"),
        (SimpleNamespace(content=["m"]), "m"),
        (None, ""),
        (b"bytes", ""),
        (Mock(), ""),
        (MagicMock(), ""),
        (object(), ""),
    ],
)
def test_reply_text(answer: Any, text: str) -> None:
    assert reply_text(answer) == text


class Prickly:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


def test_reply_text_and_usage_of_bear_objects_that_raise() -> None:
    for odd in (Prickly(), SimpleNamespace(choices=[Prickly()]), SimpleNamespace(choices=Prickly())):
        assert reply_text(odd) == ""
        assert usage_of(odd) == NO_USAGE


@pytest.mark.parametrize(
    ("answer", "usage"),
    [
        (SimpleNamespace(usage=SimpleNamespace(prompt_tokens=5, completion_tokens=2)), Usage(5, output=2)),
        ({"usage": {"input_tokens": 5, "output_tokens": 2}}, Usage(5, output=2)),
        ({"usage": {"prompt_tokens": None, "completion_tokens": "2"}}, None),
        ({"usage": None}, None),
        (Mock(), None),
    ],
)
def test_usage_of(answer: Any, usage: Usage | None) -> None:
    assert usage_of(answer).tokens == usage


def chat(server: ScriptedServer, **options: Any) -> OpenAIChat:
    return OpenAIChat(
        base_url=server.base_url, api_key=SECRET, **{"max_retries": 0, "timeout": 20, **options}
    )


def test_usage_and_options_go_through() -> None:
    with ScriptedServer([Reply("x", usage=(9, 4))]) as server:
        answer = chat(server).generate_plain(input_messages=ASKED, model="m", temperature=0, max_tokens=5)
    assert usage_of(answer).tokens == Usage(9, output=4)
    assert (server.requests[0].body["temperature"], server.requests[0].body["max_tokens"]) == (0, 5)


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (fail(401, "private"), r"refused \(HTTP 401\): check the API key \(OPENAI_API_KEY\)"),
        (fail(404, "private"), r"refused \(HTTP 404\): check the model name and base_url"),
        (fail(413, "private"), r"refused \(HTTP 413\): .* send less"),
        (fail(422, "private"), r"refused \(HTTP 422\): check that the messages fit"),
        (fail(429, "private"), r"refused \(HTTP 429, rate_limit_exceeded\): wait"),
        (fail(503, "private"), r"refused \(HTTP 503\): the endpoint is in trouble"),
        (cut(40), "cannot be reached, or hung up"),
        (Reply("private", delay=30), "did not answer in time"),
        (half(), "gave no usable answer"),
        (raw(""), "gave no usable answer"),
        (raw("<html>private</html>", content_type="text/html"), "with no chat completion: check base_url"),
        ({"error": {"message": "private"}}, "with no chat completion"),
    ],
)
def test_every_failure_is_one_sentence_without_contents(reply: Any, said: str) -> None:
    with ScriptedServer([reply]) as server, pytest.raises(ModelError, match=said) as caught:
        chat(server, timeout=0.5).generate_plain(input_messages=ASKED, model="m")
    text = str(caught.value)
    assert "127.0.0.1:" in text
    assert "private" not in text
    assert SECRET not in text
    assert "\n" not in text


def test_a_dead_address_and_options_that_are_none() -> None:
    with ScriptedServer() as server:
        gone = chat(server)
        with pytest.raises(ModelError, match=r"gave no usable answer \(TypeError\): .*options"):
            gone.generate_plain(input_messages=ASKED, model="m", no_such_option=1)
        with pytest.raises(ConfigError, match="does not stream"):
            gone.generate_plain(input_messages=ASKED, model="m", stream=True)
    with pytest.raises(ModelError, match="cannot be reached"):
        gone.generate_plain(input_messages=ASKED, model="m")


def test_retries_honour_retry_after() -> None:
    with ScriptedServer([fail(429, retry_after=0.2), fail(429, retry_after=0.2), "ok"]) as server:
        start = time.perf_counter()
        answer = chat(server, max_retries=2).generate_plain(input_messages=ASKED, model="m")
        assert reply_text(answer) == "ok"
        assert time.perf_counter() - start >= 0.4


def test_text_that_utf8_cannot_carry_is_sent_all_the_same() -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a\ud800b\x00 \U0001f600 <|endoftext|>"}]}
    ]
    with ScriptedServer(["ok"]) as server:
        assert reply_text(chat(server).generate_plain(input_messages=messages, model="m")) == "ok"
    assert (
        server.requests[0].body["messages"][0]["content"][0]["text"]
        == "a\ufffdb\x00 \U0001f600 <|endoftext|>"
    )
    assert messages[0]["content"][0]["text"].startswith("a\ud800b")  # type: ignore[index]


def test_a_missing_key_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY"):
        monkeypatch.delenv(name, raising=False)
    for options in ({}, {"base_url": "http://127.0.0.1:9/v1"}):
        with pytest.raises(ModelError, match=r"OPENAI_API_KEY.*base_url"):
            OpenAIChat(**options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="not both"):
        OpenAIChat(Mock(), api_key="x")
    with ScriptedServer(["ok"]) as server:
        monkeypatch.setenv("OPENAI_API_KEY", SECRET)
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        assert reply_text(OpenAIChat().generate_plain(input_messages=ASKED, model="m")) == "ok"


def test_as_chat_model_takes_what_users_have() -> None:
    assert as_chat_model(None) is None
    scripted, mock = ScriptedModel(["x"]), Mock()
    duck = SimpleNamespace(generate_plain=lambda *, input_messages, model: "quack")
    spec = Mock(spec=["generate_plain"])
    for own in (scripted, mock, MagicMock(), spec, duck):
        assert as_chat_model(own) is own
    with ScriptedServer(["ok"]) as server, openai.OpenAI(base_url=server.base_url, api_key="k") as client:
        for given in (client, client.with_options(timeout=5)):
            assert isinstance(as_chat_model(given), OpenAIChat)
        wrapped = as_chat_model(client)
        assert isinstance(wrapped, ChatModel)
        assert reply_text(wrapped.generate_plain(input_messages=ASKED, model="m")) == "ok"


class Async:
    async def generate_plain(self, *, input_messages: list[Any], model: str) -> str:
        return "never"


@pytest.mark.parametrize(
    ("client", "said"),
    [
        (openai.AsyncOpenAI(api_key="k"), "AsyncOpenAI is asynchronous: pass a synchronous client"),
        (openai.AsyncAzureOpenAI(api_key="k", azure_endpoint="http://x", api_version="1"), "is asynchronous"),
        (Async(), "generate_plain of Async is async"),
        (AsyncMock(), "is async"),
        (openai.OpenAI, "is the class OpenAI: pass an instance"),
        ("gpt-4", "cannot be a str: pass an openai.OpenAI client"),
        ({"chat": 1}, "cannot be a dict"),
        (object(), "cannot be a object"),
        (SimpleNamespace(generate_plain="no"), "cannot be a SimpleNamespace"),
        (
            SimpleNamespace(generate_plain=lambda system, user: system + user),
            r"takes \(system, user\): give it the parameters .*input_messages",
        ),
    ],
)
def test_as_chat_model_refuses_in_one_sentence(client: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        as_chat_model(client)


def test_the_module_does_not_import_openai() -> None:
    code = "import memory_bank.models.chat, sys; sys.exit('openai' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    code = "import memory_bank.testing, sys; sys.exit('pytest' in sys.modules or 'openai' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_openai_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(MissingExtraError, match=r"pip install '\.\[openai\]'"):
        OpenAIChat(api_key="k")
    with pytest.raises(EmbedderLoadError, match=r"\.\[openai\]'  in a checkout,? +or set embedding_model"):
        load_embedder("openai:text-embedding-3-small")


FORMS = {
    "by messages": lambda got: lambda *, messages, model, temperature=0.0: got(messages, model),
    "positional": lambda got: lambda prompt, /, model="": got(prompt, model),
    "without model": lambda got: lambda input_messages: got(input_messages, "m"),
    "one argument": lambda got: lambda chat: got(chat, "m"),
    "any names": lambda got: lambda **given: got(given["input_messages"], given["model"]),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_generate_plain_of_another_form_is_called_as_it_allows(form: str) -> None:
    client = SimpleNamespace(generate_plain=FORMS[form](lambda messages, model: (messages, model)))
    model = as_chat_model(client)
    assert model is not None and as_chat_model(client) == model
    assert model.generate_plain(input_messages=ASKED, model="m") == (ASKED, "m")
