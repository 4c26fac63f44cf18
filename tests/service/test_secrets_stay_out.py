"""Secrets in every place of a run: none of them is in the database, its log or ours; the agent's request keeps them."""

import json
import logging
import sqlite3
import zlib
from contextlib import suppress
from pathlib import Path

import pytest
from tests.chats import call, parted, result, system, user
from tests.service.serving import configured, serving
from tests.service.test_redaction import ASSIGNED, SECRETS

from memory_bank.bank.database import Database
from memory_bank.config import load_config
from memory_bank.service.app import Service
from memory_bank.service.operations.metrics import Metrics
from memory_bank.service.operations.telemetry import Telemetry
from memory_bank.testing import ScriptedServer, say
from memory_bank.tools import TOOL_SCHEMAS
from memory_bank.transcript.pairing import pairing_errors

PLACES = [*SECRETS.values(), *(a + b + c for a, b, c in ASSIGNED)]
HIDDEN = [*SECRETS.values(), *(b for _, b, _ in ASSIGNED if len(b) > 4)]
STRATEGIES = sorted(
    {*load_config().memory_strategies} - {"memory_bank_classic"}
)  # that one needs model weights


def opened(file, config):
    return Service(config, Database(file), Metrics(), Telemetry("http://127.0.0.1:9/v1"))


def a_run():
    messages = [
        system(f"Use {SECRETS['openai key']} for all."),
        user(f"Log in: password={ASSIGNED[3][1]}, then find ORD-7."),
    ]
    for i, said in enumerate(PLACES):
        output = [{"order": f"ORD-{i}", "line": k, "note": "x" * 60} for k in range(20)]
        whole = json.dumps({"said": said, "rows": output})
        content = whole if i % 2 else [{"type": "text", "text": f"{said}\n{output}"}]
        messages.append(call((f"c{i}", "get_order", {"n": i, "with": said}), text=f"I try {said}"))
        messages.append(result(f"c{i}", content))
    secret = SECRETS["github token"]
    messages += [
        call(("n", f"tool_{secret}", {secret: 1, "password": "hunter2!"})),
        result("n", f"nested {json.dumps(json.dumps({'a': secret}))}"),
        user(f"And with {SECRETS['jwt']}?"),
        call(("z", "get_order", {"n": 99})),
        result("z", "done"),
    ]
    return messages


def everything_in(database: Path) -> bytes:
    """All bytes of the files, and of every column what is compressed in it."""
    found = [f.read_bytes() for f in database.parent.iterdir() if f.is_file()]
    with sqlite3.connect(database) as c:
        for (table,) in c.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            for row in c.execute(f"SELECT * FROM {table}"):
                for value in row:
                    raw = value if isinstance(value, bytes) else str(value).encode()
                    found.append(raw)
                    if raw[:1] == b"\x78":
                        with suppress(zlib.error):  # a vector may begin like that, too
                            found.append(zlib.decompress(raw))
    return b"\n".join(found)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_secret_is_stored_or_logged(tmp_path, caplog, strategy):
    file = tmp_path / "bank" / "bank.db"
    file.parent.mkdir()
    service = opened(file, configured(database=str(file), strategy=strategy))
    messages = a_run()
    with caplog.at_level(logging.DEBUG):
        for n in (4, 20, len(messages) - 3, len(messages)):
            made = service.sessions.rebuild("one", "run", messages[:n], project="shop")
        with service.sessions.reading("one", "run") as state:
            state.flush(5)
            size = state.fact_store.size()
    kept = everything_in(file)  # with the log beside the file
    service.close()
    kept += everything_in(file)
    if strategy not in ("no_strategy", "truncation", "keep_last_n"):
        assert size == len(PLACES) + 2
        assert b"[redacted: github token]" in kept and b"ORD-7" in kept
    for secret in HIDDEN:
        for form in (secret, json.dumps(secret)[1:-1], secret.replace("\n", "\\n")):
            assert form.encode() not in kept, form
            assert form not in caplog.text, form
    assert pairing_errors(made.context) == []
    leaving = parted(made.context)
    assert leaving[:2] == messages[:2]  # what goes on upstream has them as they came
    added = [m for m in leaving if m not in messages]
    assert bool(added) == (made.status == "rebuilt" and made.strategy not in ("truncation", "keep_last_n"))
    for message in added:  # and what memory adds, also after the user's own words, has not
        assert not any(secret in json.dumps(message) for secret in HIDDEN)


def test_no_secret_is_stored_by_any_way_into_the_service(tmp_path, caplog):
    file = tmp_path / "bank" / "bank.db"
    file.parent.mkdir()
    secret = SECRETS["github token"]
    items = [
        {"role": "user", "content": f"Log in with {secret}."},
        {"type": "function_call", "call_id": "call_aB3dE6gH9jK2m", "name": f"f_{secret}", "arguments": json.dumps({"password": "hunter2!"})},
        {"type": "function_call_output", "call_id": "call_aB3dE6gH9jK2m", "output": json.dumps({"said": PLACES})},
    ]  # fmt: skip
    odd = {secret: [{"type": secret, "password": "hunter2!"}]}
    outputs = [
        {"tool_name": f"f_{secret}", "raw_input": {"password": "hunter2!"}, "raw_output": p} for p in PLACES
    ]
    outputs.append({"tool_name": "f", "raw_input": secret, "raw_output": odd})
    longer = [*a_run(), user("go on"), *a_run()[2:8]]
    asks = [
        ("/v1/sessions/a/context", {"messages": a_run()}),
        ("/v1/sessions/b/ingest", {"messages": a_run()}),
        ("/v1/sessions/c/ingest", {"tool_outputs": outputs, "task": f"with {secret}"}),
        ("/v1/chat/completions", {"model": "m", "messages": a_run()}),
        ("/v1/chat/completions", {"model": "m", "messages": longer, "stream": True}),
        ("/v1/responses", {"model": "m", "input": items}),
        ("/v1/responses", {"model": "m", "input": [*items, *items[1:]]}),
    ]
    with (
        ScriptedServer(lambda body: say(f"I have {secret}."), strict=False) as upstream,
        caplog.at_level(logging.DEBUG),
    ):
        with serving(configured(database=str(file), upstream=upstream.base_url)) as served:
            for path, body in asks:
                kind = ("Content-Type", "application/json")
                answer = served.ask("POST", path, kind, body=json.dumps(body).encode())
                assert answer.status == 200, answer
            assert served.ask("GET", f"/v1/sessions/a/search?q={secret}").status == 200
            assert served.app.state.service.recorder.drain(30)
            steps = served.ask("GET", "/v1/sessions/a/steps/1").body
            kept = everything_in(file)
        assert SECRETS["openai key"] in json.dumps(upstream.requests[0].body)  # which went on as it came
    kept += everything_in(file) + steps
    assert b'"fates"' in kept and kept.count(b"[redacted: github token]") > 20
    for hidden in HIDDEN:
        for form in (hidden, json.dumps(hidden)[1:-1]):
            assert form.encode() not in kept, form
            assert form not in caplog.text, form


NAMES = [s for s in SECRETS.values() if s.isprintable() and len(s) <= 150]
SHOWN = (
    "/v1/sessions",
    "/v1/sessions/a",
    "/v1/sessions/a/steps",
    "/v1/sessions/a/steps/1",
    "/v1/stats",
    "/metrics",
    "/health",
    "/healthz",
    "/readyz",
)


@pytest.mark.parametrize("place", ["title", "project", "model"])
def test_a_token_in_a_name_is_nowhere(tmp_path, caplog, place):
    """In the name that a person gave a session, that of a project, and that of a model."""
    file = tmp_path / "bank" / "bank.db"
    file.parent.mkdir()
    messages = [
        user("find"),
        *[m for i in range(8) for m in (call((f"c{i}", "f", {"n": i})), result(f"c{i}", "x " * 800))],
    ]
    json_body = ("Content-Type", "application/json")
    shown = b""
    with (
        ScriptedServer(lambda body: say("ok"), strict=False) as upstream,
        caplog.at_level(logging.DEBUG),
        serving(configured(database=str(file), upstream=upstream.base_url)) as served,
    ):

        def ask(method, path, body, *headers):
            return served.ask(method, path, json_body, *headers, body=json.dumps(body).encode())

        ask("POST", "/v1/sessions/a/context", {"messages": messages})
        for n, secret in enumerate(NAMES):
            name = f"my {secret} here" if n % 2 else secret
            if place == "title":
                assert ask("PUT", "/v1/sessions/a/title", {"title": name}).status == 204
            elif place == "model":
                asked = {"model": name, "messages": messages}
                assert ask("POST", "/v1/chat/completions", asked, ("x-memory-session", "a")).status == 200
                assert ask("POST", "/v1/responses", {"model": name, "input": "hello"}).status == 200
            else:
                given = {"command": "create", "path": "/memories/a.md", "file_text": "text"}
                files = served.app.state.service.sessions.files(None, name)
                files.run(given)
                assert "text" in files.run({"command": "view", "path": "/memories/a.md"})
                assert "text" in served.app.state.service.sessions.files(None, name).run(
                    {"command": "view", "path": "/memories/a.md"}
                )
        assert served.app.state.service.recorder.drain(30)
        for path in SHOWN:
            answer = served.ask("GET", path)
            assert answer.status == 200, path
            shown += answer.body
        kept = everything_in(file)
    kept += everything_in(file)
    assert b"[redacted: " in kept
    for secret in NAMES:
        assert secret.encode() not in kept, (place, secret)
        assert secret.encode() not in shown, (place, secret)
        assert secret not in caplog.text, (place, secret)


def test_a_step_without_secrets_is_the_clients_own_messages(tmp_path):
    service = opened(tmp_path / "bank.db", configured())
    messages = [user("find"), call(("a", "f", {})), result("a", "x")]
    made = service.sessions.rebuild(None, "run", messages)
    assert made.unchanged
    assert all(a is b for a, b in zip(made.context, messages, strict=True))
    service.close()


def test_it_can_be_switched_off(tmp_path):
    settings = {"redact_secrets": False, "redact": ("ORD-\\d+",)}
    service = opened(tmp_path / "bank.db", configured(**settings))
    messages = [user("find"), call(("a", "f", {})), result("a", "ORD-7 password=hunter2"), user("on")]
    service.sessions.rebuild(None, "run", messages)
    with service.sessions.reading(None, "run") as state:
        (record,) = state.fact_store.get_many(list(state.steps))
    assert record.output_text == "[redacted: rule 1] password=hunter2"
    service.close()


def test_what_was_said_before_the_rules_changed_stays_apart(tmp_path):
    """Other rules make other records: nothing stored is overwritten, nothing fails."""
    messages = [
        user("find"),
        call(("a", "f", {})),
        result("a", "password=hunter2"),
        *[m for i in range(3) for m in (call((f"b{i}", "f", {})), result(f"b{i}", "x" * 500))],
    ]
    sizes = []
    for secrets in (False, True):
        service = opened(tmp_path / "bank.db", configured(redact_secrets=secrets))
        service.sessions.rebuild(None, "run", messages)
        with service.sessions.reading(None, "run") as state:
            sizes.append(state.fact_store.size())
        service.close()
    assert sizes == [4, 5]


@pytest.mark.parametrize("form", ["json", "log"])
def test_an_output_with_a_secret_is_first_shown_as_it_came(tmp_path, form):
    service = opened(
        tmp_path / "bank.db", configured(database=str(tmp_path / "bank.db"), strategy="memory_bank")
    )
    token = SECRETS["github token"]
    rows = [{"id": f"ORD-{n:04}", "note": None, "status": "open"} for n in range(900)]
    output = json.dumps({"access": token, "rows": rows}, indent=1)
    if form == "log":
        output = f"access {token}\n" + "\n".join(f"{n} {row}" for n, row in enumerate(rows))
    messages = [system("Help. " * 900), user("Sign in."), call(("c1", "sign_in", {})), result("c1", output)]
    made = service.sessions.rebuild("one", "run", messages, tools=TOOL_SCHEMAS)
    assert made.context == messages
    messages[-1] = result("c1", output.replace(token, "none"))
    made = service.sessions.rebuild("one", "other", messages, tools=TOOL_SCHEMAS)
    assert len(made.context[-1]["content"]) < 0.8 * len(output)
    service.close()
