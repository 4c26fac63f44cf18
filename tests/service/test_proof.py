"""A service shows whose it is: the secret's file, and the answer to a challenge."""

from __future__ import annotations

import os
import stat
import threading

import pytest
from tests.service.proxied import head_of, proxied, request

from memory_bank.cli.run import health_of
from memory_bank.service.security.proof import (
    CHALLENGE,
    PROOF,
    address_of,
    make_secret,
    prove,
    proved,
    secret_file,
    upstream_claim,
    user_secret,
)

NONCE = "ab" * 16
UPSTREAM = "http://127.0.0.1:9/v1"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def test_the_secret_is_made_once_and_only_the_user_may_read_it():
    assert user_secret() is None
    makers = [threading.Thread(target=make_secret) for _ in range(8)]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()
    made = user_secret()
    assert made is not None and len(made) == 64
    assert stat.S_IMODE(secret_file().stat().st_mode) == 0o600
    assert [p.name for p in secret_file().parent.iterdir()] == ["service.secret"]
    make_secret()
    assert user_secret() == made


@pytest.mark.skipif(os.name != "posix", reason="modes, links and owners of files")
@pytest.mark.parametrize(
    "case", ["readable", "writable", "link", "dangling", "folder", "short", "empty", "words", "pipe"]
)
def test_a_file_that_cannot_be_trusted_proves_nothing(case):
    make_secret()
    file = secret_file()
    whole = file.read_bytes()
    if case in ("readable", "writable"):
        file.chmod(0o640 if case == "readable" else 0o620)
    elif case in ("short", "empty", "words"):
        file.write_bytes({"short": whole[:-1], "empty": b"", "words": b"x" * 64}[case])
    else:
        file.unlink()
        if case == "folder":
            file.mkdir()
        elif case == "pipe":
            os.mkfifo(file, 0o600)
        else:
            other = file.with_name("other")
            if case == "link":
                other.write_bytes(whole)
                other.chmod(0o600)
            file.symlink_to(other)
    make_secret()  # it is not replaced, and nothing is written through a link
    assert user_secret() is None
    assert prove(NONCE, "127.0.0.1 1", []) is None
    assert proved("", NONCE, "127.0.0.1 1", ["a"]) == [False, False]
    assert case != "dangling" or not file.resolve().exists()


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root may give files away")
def test_a_file_of_another_user_proves_nothing():
    make_secret()
    os.chown(secret_file(), 12345, 12345)
    assert user_secret() is None


def test_nothing_fails_where_there_is_no_place_for_a_secret(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    make_secret()
    assert user_secret() is None


def test_a_proof_is_of_one_challenge_at_one_address_and_of_claims_that_are_known():
    make_secret()
    claim = upstream_claim("openai", UPSTREAM)
    proof = prove(NONCE, "127.0.0.1 8767", [claim])
    assert proved(proof, NONCE, "127.0.0.1 8767", [claim]) == [True, True]
    assert proved(proof, NONCE, "127.0.0.1 8767", [upstream_claim("openai", "http://other/v1")]) == [
        True,
        False,
    ]
    assert proved(proof, NONCE, "127.0.0.1 8768", [claim]) == [False, False]
    assert proved(proof, "cd" * 16, "127.0.0.1 8767", [claim]) == [False, False]
    for wrong in ("", "é", ",", proof[1:], proof.partition(",")[2], "0" * 64):
        assert proved(wrong, NONCE, "127.0.0.1 8767", [claim])[0] is False
    assert user_secret().decode() not in proof
    assert UPSTREAM not in proof
    for odd in ("", "a", "ab" * 40, "zz" * 16, NONCE + "\n"):
        assert prove(odd, "127.0.0.1 8767", []) is None


def test_one_form_of_an_address():
    assert address_of("::ffff:127.0.0.1", 80) == address_of("127.0.0.1", 80)
    assert upstream_claim("openai", "http://localhost:1/v1/") == upstream_claim(
        "openai", "http://127.0.0.1:1/v1"
    )


def test_health_answers_a_challenge(tmp_path):
    with proxied(UPSTREAM, tmp_path / "bank.db") as p:
        url = f"http://127.0.0.1:{p.port}"
        assert not health_of(url).is_own  # no secret yet
        make_secret()
        claims = [upstream_claim("openai", UPSTREAM), upstream_claim("anthropic", "http://other")]
        health = health_of(url, claims)
        assert (health.is_own, health.proof[1:]) == (True, [True, False])
        assert health.facts["status"] in ("ok", "degraded")
        plain = p.ask("/health")
        assert plain.header(PROOF.encode()) is None or not plain.header(PROOF.encode())
        odd = request(p.port, head_of("GET", "/health", b"", f"{CHALLENGE}: no".encode()), b"")
        assert not odd.header(PROOF.encode())


def test_an_answer_that_is_passed_on_from_the_users_service_proves_nothing(tmp_path):
    """A process on another port asks the real service with the same challenge and repeats what it says."""
    import http.server
    import urllib.request

    make_secret()
    with proxied(UPSTREAM, tmp_path / "bank.db") as p:

        class Relay(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_GET(self):
                asked = urllib.request.Request(
                    f"http://127.0.0.1:{p.port}{self.path}", headers=dict(self.headers)
                )
                with urllib.request.urlopen(asked) as answer:
                    body, proof = answer.read(), answer.headers[PROOF]
                self.send_response(200)
                self.send_header(PROOF, proof)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        relay = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Relay)
        threading.Thread(target=relay.serve_forever, daemon=True).start()
        try:
            health = health_of(f"http://127.0.0.1:{relay.server_port}")
        finally:
            relay.shutdown()
            relay.server_close()
    assert health is not None
    assert not health.is_own
