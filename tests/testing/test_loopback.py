"""Pieces go out as they come, and half a request is none."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.replies import raw

from memory_bank.testing import Reply, ScriptedServer

openai = pytest.importorskip("openai", reason="needs openai")
OpenAI = openai.OpenAI


def connected(server: ScriptedServer, body: bytes = b'{"model": "m", "input": "q", "stream": true}') -> Any:
    connection = http.client.HTTPConnection(server.base_url.split("/")[2], timeout=60)
    connection.request("POST", "/v1/responses", body)
    return connection


def soon(condition: Callable[[], bool], seconds: float = 20) -> bool:
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.005)
    return condition()


def ask_in_vain(server: ScriptedServer) -> None:
    with pytest.raises((http.client.HTTPException, OSError)):
        connected(server).getresponse()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_the_pieces_of_a_slow_answer_arrive_one_by_one(path: str) -> None:
    with ScriptedServer([Reply("one two three four five six", pause=0.2)]) as server:
        connection = http.client.HTTPConnection(server.base_url.split("/")[2], timeout=60)
        said = b'[{"role": "user", "content": "q"}]'
        connection.request(
            "POST", path, b'{"model": "m", "stream": true, "messages": %b, "input": %b}' % (said, said)
        )
        response = connection.getresponse()
        begun = time.monotonic()
        times = []
        while response.readline():
            times.append(time.monotonic() - begun)
        connection.close()
    assert times[-1] > 0.8
    assert times[0] < times[-1] / 2


def test_a_request_in_chunks_is_read_and_half_a_request_is_none() -> None:
    with ScriptedServer(["ok"]) as server:
        connection = http.client.HTTPConnection(server.base_url.split("/")[2], timeout=60)
        chunks = iter([b'{"model": "m",', b' "input": "q"}'])
        connection.request("POST", "/v1/responses", chunks, encode_chunked=True)  # type: ignore[arg-type]
        assert connection.getresponse().status == 200
        connection.close()
        assert server.requests[0].data == b'{"model": "m", "input": "q"}'
        broken = http.client.HTTPConnection(server.base_url.split("/")[2], timeout=60)
        broken.putrequest("POST", "/v1/responses")
        broken.putheader("content-length", "100")
        broken.endheaders(b'{"model": "m"')
        broken.close()
        with OpenAI(base_url=server.base_url, api_key="k") as client:
            client.models.list()
    assert [r.method for r in server.requests] == ["POST", "GET"]


def test_a_body_comes_in_the_pieces_it_is_given_in() -> None:
    with ScriptedServer([raw([": hello\n\nda", b"ta: {}\n", "\n"])]) as server:
        response = connected(server).getresponse()
        assert response.headers["content-type"] == "text/event-stream"
        assert response.read() == b": hello\n\ndata: {}\n\n"


def test_another_key_is_refused_where_one_is_asked_for() -> None:
    with ScriptedServer(["ok"], api_key="sk-right") as server:
        wrong, right = (OpenAI(base_url=server.base_url, api_key=f"sk-{k}") for k in ("wrong", "right"))
        with wrong, pytest.raises(openai.AuthenticationError):
            wrong.responses.create(model="m", input="q")
        with right:
            assert right.responses.create(model="m", input="q").output_text == "ok"
    assert "sk-" not in repr(server.requests)
