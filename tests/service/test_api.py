"""The HTTP API on sessions and memory: what goes in, what comes out, and what nobody else may see."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from tests.chats import FOLDING, JSON, call, good_chats, parted, result, rounds, system, user
from tests.embedding_server import EmbeddingServer
from tests.examples import examples
from tests.service import serving

from memory_bank.config import Config, load_config
from memory_bank.service.api.memory import BuiltContext, Hits, Ingested
from memory_bank.service.api.openapi import Failure
from memory_bank.service.api.sessions import SessionDetail, SessionPage, Stats
from memory_bank.service.app import create_app
from memory_bank.testing import fail
from memory_bank.transcript.pairing import pairing_errors


def configured(database, **service):
    settings = {"database": str(database), "redact_secrets": False, **service}
    return serving.configured({"memory_bank": FOLDING}, **settings)


def noted(n):
    """The n-th order, long enough that thirty of them do not fit into a context."""
    lines = [{"line": k, "sku": f"SKU-{n * 97 + k * 13}"} for k in range(30)]
    output = json.dumps({"order_id": f"ORD-{1000 + n}", "lines": lines})
    return [call((f"c{n}", "get_order", {"number": n})), result(f"c{n}", output)]


CHAT = [system(), user("Which orders are late?"), *(m for n in range(30) for m in noted(n))]
OUTPUT = {
    "tool_name": "get_order",
    "raw_input": {"id": "ORD-7"},
    "raw_output": '{"id": "ORD-7", "due": 1.10}',
}


@contextmanager
def api(database=":memory:", **service):
    with TestClient(create_app(configured(database, **service))) as http:
        yield http


@pytest.fixture
def http():
    with api() as made:
        yield made


def told(response, status, code):
    """The sentence of an error in the one shape."""
    assert response.status_code == status, response.text
    error = Failure.model_validate(response.json()).error
    assert error.code == code
    assert error.message
    return error.message


# --- contexts


def test_a_context_is_built_with_its_plan(http):
    made = built(http)
    assert made.tokens < made.full_tokens and not made.unchanged
    assert (made.records, made.strategy) == (30, "memory_bank")
    assert pairing_errors(made.messages) == []
    leaving = parted(made.messages)
    assert (leaving[:2], leaving[-2:]) == (CHAT[:2], CHAT[-2:])
    assert len(made.plan["decisions"]) == 29
    assert {"pieces", "near_misses", "query"} <= set(made.plan)
    assert made.report["strategy"] == "memory_bank"
    assert built(http, plan=False).plan is None


def built(http, name="s", **more):
    answer = http.post(f"/v1/sessions/{name}/context", json={"messages": CHAT, **more})
    assert answer.status_code == 200, answer.text
    return BuiltContext.model_validate(answer.json())


def test_other_strategies_give_a_report_or_nothing(http):
    masked = built(http, strategy="observation_masking")
    assert {d["fate"] for d in masked.plan["decisions"]} <= {"kept", "shown in part"}
    assert masked.report["tokens"] == masked.tokens < masked.full_tokens
    plain = built(http, strategy="no_strategy")
    assert plain.unchanged and plain.report["why_unchanged"] and plain.messages == CHAT
    answer = http.post("/v1/sessions/s/context", json={"messages": CHAT, "strategy": "nope"})
    assert "nope" in told(answer, 422, "unknown_strategy")


EXACT = (
    b'{"messages": [{"role":"user","content":"caf\\u00e9 \\ud800","n":1.10,"big":123456789012345678901234567890},'
    b'{"role": "user",  "content": [{"type": "text", "text": "a"}], "odd": [NaN, 1e999, -0.0, {"k":1,"k":2}]}]}'
)


def test_messages_that_stay_come_back_to_the_byte(http):
    answer = http.post("/v1/sessions/s/context", content=EXACT, headers={"content-type": "application/json"})
    assert answer.status_code == 200
    first, second = EXACT[len(b'{"messages": [') : -2].split(b"},", 1)
    assert first + b"}," + second in answer.content
    assert answer.json()["unchanged"] is True


@given(good_chats() | st.lists(JSON.map(lambda v: {"role": "user", "content": v}), max_size=4))
@examples(25)
def test_what_is_unchanged_is_what_was_sent(messages):
    with api() as http:
        body = json.dumps({"messages": messages, "strategy": "no_strategy"}, ensure_ascii=True)
        answer = http.post("/v1/sessions/s/context", content=body)
        assert answer.status_code == 200, answer.text
        sent = json.loads(body)["messages"]
        assert json.dumps(json.loads(answer.content)["messages"]) == json.dumps(sent)


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        (b"", "invalid_request", "JSON"),
        (b"[]", "invalid_request", "object"),
        (b'{"messages": [}', "invalid_request", "line 1 column 15"),
        (b'\xff{"messages": []}', "invalid_request", "UTF-8"),
        (b'{"messages": ' + b"[" * 100_000, "invalid_request", "too deep"),
        (b'{"messages": [' + b"1" * 5_000 + b"]}", "invalid_request", "digits"),
        (b'{"messages": [], "messages": []}', "invalid_request", "duplicate"),
        (b"{}", "invalid_request", "messages"),
        (b'{"messages": "hello"}', "invalid_request", "list"),
        (b'{"messages": [], "plan": "yes"}', "invalid_request", "plan"),
        (b'{"messages": [], "mesages": []}', "invalid_request", "'mesages'"),
        (b'{"messages": [{"role": "user"}, 3]}', "invalid_messages", "messages[1]"),
        (b'{"messages": [{"content": "my secret"}]}', "invalid_messages", "messages[0]"),
        (b'{"messages": [], "project": "\\ud800"}', "invalid_request", "project"),
        (b'{"messages": [], "project": ""}', "invalid_request", "project"),
    ],
)
def test_a_body_that_cannot_be_used_is_refused_with_a_sentence(http, body, code, says):
    message = told(http.post("/v1/sessions/s/context", content=body), 422, code)
    assert says in message
    assert "secret" not in message
    assert "hello" not in message
    assert told(http.get("/v1/sessions/s"), 404, "not_found")  # nothing was begun


def test_a_body_of_another_kind_is_refused(http):
    answer = http.post("/v1/sessions/s/context", content=b"{}", headers={"content-type": "text/plain"})
    assert "application/json" in told(answer, 415, "http_error")


def test_a_session_is_of_one_project(http):
    given = {"messages": CHAT[:4], "project": "clerk"}
    assert http.post("/v1/sessions/s/context", json=given).status_code == 200
    assert http.get("/v1/sessions/s").json()["project"] == "clerk"
    told(http.post("/v1/sessions/s/context", json={**given, "project": "other"}), 422, "invalid_settings")


def test_a_loop_is_told_where_the_configuration_raises(tmp_path):
    shipped = load_config().model_dump(exclude={"service", "loop_detection"})
    config = Config(**shipped, loop_detection="raise", service={"database": ":memory:"})
    messages = [user()]
    for n in range(12):
        messages += [call((f"c{n}", "ping", {})), result(f"c{n}", "pong")]
    with TestClient(create_app(config)) as http:
        told(http.post("/v1/sessions/s/context", json={"messages": messages}), 409, "loop_detected")
        assert http.get("/v1/sessions/s").json()["records"] == 12


# --- ingestion


def ingested(http, name="s", **body):
    answer = http.post(f"/v1/sessions/{name}/ingest", content=json.dumps(body))
    assert answer.status_code == 200, answer.text
    return Ingested.model_validate(answer.json())


def test_messages_are_remembered_without_a_context(http):
    first = ingested(http, messages=CHAT)
    assert (len(first.trace_ids), first.new) == (30, 30)
    assert ingested(http, messages=CHAT).new == 0
    detail = http.get("/v1/sessions/s").json()
    assert (detail["records"], detail["insights"], detail["task"]) == (30, 30, "Which orders are late?")
    assert (detail["steps"], detail["tokens"]["steps"]) == (30, 0)


def test_ids_are_those_that_a_context_gives(http):
    brought = ingested(http, messages=CHAT[:8]).trace_ids
    http.post("/v1/sessions/s/context", json={"messages": CHAT[:10]})
    listed = http.get("/v1/sessions/s/records").json()["records"]
    assert [r["trace_id"] for r in listed][:3] == brought
    assert [r["step_id"] for r in listed] == [1, 2, 3, 4]


@pytest.mark.parametrize("output", [OUTPUT["raw_output"], [{"type": "text", "text": "ORD-7 is late"}], [1]])
def test_a_tool_output_is_the_record_that_its_message_is(http, output):
    messages = [user(), call(("c1", "get_order", {"id": "ORD-7"})), result("c1", output)]
    by_message = ingested(http, messages=messages)
    arguments = messages[1]["tool_calls"][0]["function"]["arguments"]
    told = {**OUTPUT, "raw_input": arguments, "raw_output": output, "call_id": "c1"}
    by_output = ingested(http, tool_outputs=[told])
    assert by_output.trace_ids == by_message.trace_ids
    assert by_output.new == 0


def test_tool_outputs_are_stored_once(http):
    outputs = [
        OUTPUT,
        OUTPUT,
        {"tool_name": "now", "raw_output": {"t": [1, None, "\ud800"]}, "call_id": "c2"},
    ]
    first = ingested(http, tool_outputs=outputs, task="Find it")
    assert first.new == len(set(first.trace_ids)) == 3
    again = ingested(http, tool_outputs=outputs)
    assert (again.trace_ids, again.new) == (first.trace_ids, 0)
    detail = http.get("/v1/sessions/s").json()
    assert (detail["records"], detail["steps"], detail["task"]) == (3, 1, "Find it")
    assert ingested(http, tool_outputs=[{**OUTPUT, "raw_output": "other"}]).new == 1
    assert http.get("/v1/sessions/s").json()["steps"] == 2


def test_an_honest_repetition_is_told_by_its_call_id(http):
    for call_id, new in ((None, 1), (None, 0), ("c1", 1), ("c2", 1), ("c2", 0)):
        own = {"call_id": call_id} if call_id else {}
        assert ingested(http, tool_outputs=[{**OUTPUT, **own}]).new == new


def test_a_key_that_told_equal_outputs_apart_is_refused(http):
    def told_of(**output):
        body = {"tool_outputs": [{**OUTPUT, **output}]}
        return http.post("/v1/sessions/s/ingest", json=body, headers={"idempotency-key": "1"})

    assert "give each output its call_id" in told(told_of(), 422, "invalid_request")
    assert told_of(call_id="c1").json()["new"] == 1


def test_what_was_ingested_is_in_the_next_context(http):
    http.post("/v1/sessions/s/context", json={"messages": CHAT[:4]})
    ingested(http, tool_outputs=[{**OUTPUT, "raw_output": '{"id": "ORD-7", "carrier": "Zephyr-991"}'}])
    made = http.post("/v1/sessions/s/context", json={"messages": CHAT[:6]}).json()
    assert "Zephyr-991" in json.dumps(made["messages"])
    assert "#2 get_order" in json.dumps(made["messages"])
    assert made["records"] == 3


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "either"),
        ({"messages": [], "tool_outputs": []}, "either"),
        ({"messages": [], "task": "x"}, "task"),
        ({"tool_outputs": [{"tool_name": "t"}]}, "tool_outputs.0.raw_output"),
        ({"tool_outputs": [{"tool_name": "", "raw_output": 1}]}, "tool_outputs.0.tool_name"),
        ({"tool_outputs": [{"tool_name": 1, "raw_output": 1}]}, "must be text"),
        ({"tool_outputs": [{"tool_name": "t", "raw_output": 1, "output": 2}]}, "output"),
        ({"tool_outputs": {}}, "tool_outputs"),
    ],
)
def test_what_cannot_be_ingested_is_refused(http, body, says):
    assert says in told(http.post("/v1/sessions/s/ingest", json=body), 422, "invalid_request")


def test_nothing_is_a_session_too(http):
    assert ingested(http, messages=[]) == Ingested(trace_ids=[], new=0)
    assert http.get("/v1/sessions/s").json()["records"] == 0


@given(JSON, JSON)
@examples(40)
def test_any_value_is_stored_as_it_is(given_, came):
    with api() as http:
        body = {"tool_outputs": [{"tool_name": "t", "raw_input": given_, "raw_output": came}]}
        answer = http.post("/v1/sessions/s/ingest", content=json.dumps(body))
        assert answer.status_code == 200, answer.text
        assert http.post("/v1/sessions/s/ingest", content=json.dumps(body)).json()["new"] == 0
        record = json.loads(http.get("/v1/sessions/s/records/1").content)
        sent = json.loads(json.dumps(body))["tool_outputs"][0]["raw_output"]
        shown = record["output_text"] if isinstance(sent, str) else record["raw_output"]
        assert json.dumps(shown) == json.dumps(sent)


def test_the_same_at_once_is_stored_once(tmp_path):
    with serving.serving(configured(tmp_path / "bank.db")) as served:

        def bring(_):
            with served.client() as http:
                return http.post("/v1/sessions/s/ingest", json={"messages": CHAT}).json()

        with ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(bring, range(8)))
        assert len({tuple(a["trace_ids"]) for a in answers}) == 1
        assert sum(a["new"] for a in answers) == 30


# --- search


def hits(http, query, name="s", **more):
    answer = http.get(f"/v1/sessions/{name}/search", params={"q": query, **more})
    assert answer.status_code == 200, answer.text
    return Hits.model_validate(answer.json())


def test_exact_words_come_before_what_is_similar(http):
    ingested(http, messages=CHAT)
    found = hits(http, "ord-1007", top_k=4)
    assert len(found.hits) == 4
    assert [h.holds for h in found.hits] == ["ord-1007", None, None, None]
    first = found.hits[0]
    assert (first.number, first.place, first.tool_name, first.session) == (8, "order_id", "get_order", "s")
    assert "ORD-1007" in first.excerpt
    assert first.summary
    scores = [h.score for h in found.hits[1:]]
    assert scores == sorted(scores, reverse=True)
    sentence = hits(http, "when is ORD-1003 due, and ORD-1004?")
    assert {h.holds for h in sentence.hits if h.holds} == {"ORD-1003", "ORD-1004"}


@pytest.mark.parametrize(
    ("texts", "query", "found"),
    [
        (["id 645 here", "1,645", "645.99"], "645", {1}),
        ([json.dumps({"name": "Müller-9 GmbH"}), "MÜLLER-9\n  gmbh", "x"], "müller-9 GmbH", {1, 2}),
        (["a", "b", "中文订单 9981 已发货"], "订单", {3}),
    ],
)
def test_search_finds_words_as_tools_write_them(http, texts, query, found):
    ingested(http, tool_outputs=[{"tool_name": "t", "raw_output": t} for t in texts])
    assert {h.number for h in hits(http, query).hits if h.holds} == found


def test_nothing_to_find_is_no_error(http):
    ingested(http, messages=[])
    assert hits(http, "anything") == Hits(hits=[], note=None)
    assert hits(http, "\0 ?!") == Hits(hits=[], note=None)


def test_what_search_does_not_take(http):
    ingested(http, messages=CHAT[:4])
    for params in ({}, {"q": ""}, {"q": "x", "top_k": 0}, {"q": "x", "top_k": 51}, {"q": "x", "limit": 3}):
        told(http.get("/v1/sessions/s/search", params=params), 422, "invalid_request")
    assert "q is empty" in told(http.get("/v1/sessions/s/search?q=%20"), 422, "invalid_request")


def test_a_wider_scope_names_the_session(tmp_path):
    shipped = load_config().model_dump(exclude={"service"})
    shipped["memory_strategies"]["memory_bank"]["scope"] = "all"
    config = Config(**shipped, service={"database": ":memory:"})
    with TestClient(create_app(config)) as http:
        ingested(http, "one", tool_outputs=[OUTPUT])
        ingested(http, "two", tool_outputs=[{**OUTPUT, "raw_output": "nothing like it"}])
        found = hits(http, "due or nothing", "two")
        assert {h.session for h in found.hits} == {"one", "two"}


def found_everywhere(http, **query):
    answer = http.get("/v1/search", params=query)
    assert answer.status_code == 200, answer.text
    return Hits.model_validate(answer.json())


def test_one_search_finds_what_any_session_holds(http):
    assert found_everywhere(http, q="anything") == Hits(hits=[], note=None)
    ingested(
        http, "one", tool_outputs=[{**OUTPUT, "raw_output": "the zephyr carrier is late"}], project="bot"
    )
    ingested(http, "two", tool_outputs=[{**OUTPUT, "raw_output": "the walrus carrier is early"}])
    ingested(http, "three", tool_outputs=[{**OUTPUT, "raw_output": "unrelated text"}])
    [hit] = found_everywhere(http, q="zephyr").hits
    assert (hit.session, hit.why, hit.reason, hit.newer) == ("one", "holds", 'holds "zephyr" at line 1', None)
    assert {h.session for h in found_everywhere(http, q="which carrier").hits} == {"one", "two"}
    assert {h.session for h in found_everywhere(http, q="which carrier", project="bot").hits} == {"one"}
    assert found_everywhere(http, q="carrier", project="nobody").hits == []
    assert found_everywhere(http, q="xylophone quartz").hits == []
    for wrong in (
        {},
        {"q": ""},
        {"q": " "},
        {"q": "x" * 8_001},
        {"q": "x", "project": ""},
        {"q": "x", "scope": "all"},
    ):
        told(http.get("/v1/search", params=wrong), 422, "invalid_request")
    http.delete("/v1/sessions/one")
    assert found_everywhere(http, q="zephyr").hits == []


def test_a_search_whose_embedder_fails_answers_by_words_and_says_so(monkeypatch):
    broken = []
    with EmbeddingServer(
        embed=lambda texts: fail(500, "no such luck") if broken else [[1.0, len(t) % 7] for t in texts]
    ) as embeddings:
        monkeypatch.setenv("OPENAI_BASE_URL", embeddings.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "key")
        strategies = {"memory_bank": {**FOLDING, "embedding_model": "openai:m"}}
        config = serving.configured(strategies, database=":memory:")
        with TestClient(create_app(config)) as http:
            ingested(http, "one", tool_outputs=[{**OUTPUT, "raw_output": "the zephyr carrier is late"}])
            ingested(http, "two", tool_outputs=[{**OUTPUT, "raw_output": "nothing of the kind"}])
            assert found_everywhere(http, q="the carrier").note is None
            broken.append(True)
            for found in (found_everywhere(http, q="which zephyr"), hits(http, "which zephyr", "one")):
                assert [(h.session, h.why) for h in found.hits] == [("one", "words")]
                assert found.note.startswith("only words were compared: openai:m refused (HTTP 500)")
            nothing = found_everywhere(http, q="quartz")
            assert nothing.hits == [] and "only words were compared" in nothing.note


def test_a_search_says_what_is_superseded(http):
    for number, status in enumerate(("packed", "shipped")):
        ingested(
            http, tool_outputs=[{**OUTPUT, "call_id": f"c{number}", "raw_output": f"parcel status {status}"}]
        )
    new, old = hits(http, "parcel status").hits
    assert ("shipped" in new.excerpt, new.newer) == (True, None)
    assert old.newer == new.trace_id and new.trace_id in old.reason
    assert 0 < old.score <= 1
    newer = [http.get(f"/v1/sessions/s/records/{hit.trace_id}").json()["newer"] for hit in (old, new)]
    assert newer == [new.trace_id, None]


# --- sessions


def test_sessions_are_listed_newest_first(http):
    for n in range(5):
        ingested(http, f"s{n}", messages=[user(f"task {n}"), *rounds(1)])
    page = SessionPage.model_validate(http.get("/v1/sessions", params={"limit": 2}).json())
    assert [s.name for s in page.sessions] == ["s4", "s3"]
    assert page.next == "s3"
    assert page.sessions[0].task == "task 4"
    rest = SessionPage.model_validate(http.get("/v1/sessions", params={"after": page.next}).json())
    assert [s.name for s in rest.sessions] == ["s2", "s1", "s0"]
    assert rest.next is None
    found = http.get("/v1/sessions", params={"q": "TASK 1"}).json()["sessions"]
    assert [s["name"] for s in found] == ["s1"]
    for wrong in ({"after": "gone"}, {"limit": 501}, {"limt": 5}):
        told(http.get("/v1/sessions", params=wrong), 422, "invalid_request")


def test_a_long_task_is_short_in_the_list_and_whole_in_the_session(http):
    ingested(http, messages=[user("word " * 3_000), *rounds(1)])
    assert len(http.get("/v1/sessions").json()["sessions"][0]["task"]) <= 300
    detail = SessionDetail.model_validate(http.get("/v1/sessions/s").json())
    assert detail.task == "word " * 3_000


def test_reset_empties_and_delete_takes_off_the_list(http):
    ingested(http, messages=CHAT)
    assert http.post("/v1/sessions/s/reset").status_code == 204
    detail = http.get("/v1/sessions/s").json()
    assert (detail["records"], detail["insights"], detail["task"]) == (0, 0, "")
    ingested(http, messages=CHAT)
    answer = http.delete("/v1/sessions/s")
    assert (answer.status_code, answer.content) == (204, b"")
    for method, path in (("DELETE", ""), ("GET", ""), ("POST", "/reset")):
        told(http.request(method, f"/v1/sessions/s{path}"), 404, "not_found")
    assert http.get("/v1/sessions").json()["sessions"] == []
    assert ingested(http, messages=CHAT).new == 30


def test_the_sums_of_all_sessions(http):
    ingested(http, "a", messages=CHAT)
    ingested(http, "b", tool_outputs=[OUTPUT])
    made = Stats.model_validate(http.get("/v1/stats").json())
    assert (made.sessions, made.records, made.insights) == (2, 31, 31)
    assert (made.queue.open, made.queue.calls, made.tokens.steps) == (0, 0, 0)


# --- names and routes


@pytest.mark.parametrize(
    "name", ["a/b", "a%2Fb", "%", "a..b", "...", "a b", "中文", "a?b#c", "x" * 180, "context", "a/context"]
)
def test_any_printable_name_is_a_session(http, name):
    path = f"/v1/sessions/{quote(name, safe='').replace('.', '%2E')}"
    assert http.post(f"{path}/ingest", json={"tool_outputs": [OUTPUT]}).json()["new"] == 1
    assert http.get(path).json()["name"] == name
    assert http.get(f"{path}/records/1").json()["session"] == name
    assert http.get("/v1/sessions").json()["sessions"][0]["name"] == name
    assert http.delete(path).status_code == 204


@pytest.mark.parametrize("name", ["%00", "%0A", "%E2%80%A8", "x" * 181, "%FF", "%ED%A0%80"])
def test_other_names_are_refused_where_a_session_would_begin(http, name):
    told(http.get(f"/v1/sessions/{name}"), 404, "not_found")
    told(http.post(f"/v1/sessions/{name}/ingest", json={"messages": []}), 422, "invalid_settings")
    told(http.post(f"/v1/sessions/{name}/context", json={"messages": []}), 422, "invalid_settings")


def test_what_is_no_route_is_told_and_does_not_go_on(http):
    for path in ("", "s/nope", "s/records/1/2", "/context"):
        told(http.get(f"/v1/sessions/{path}"), 404, "not_found")
    for method, path, allowed in (
        ("PUT", "/v1/sessions", "GET"),
        ("POST", "/v1/stats", "GET"),
        ("PATCH", "/v1/sessions/s", "GET, DELETE"),
        ("GET", "/v1/sessions/s/context", "POST"),
        ("ODD", "/v1/sessions/s/reset", "POST"),
    ):
        answer = http.request(method, path)
        assert "use" in told(answer, 405, "http_error")
        assert answer.headers["allow"] == allowed


def test_a_database_that_fails_is_told_in_the_one_shape(tmp_path):
    file = tmp_path / "bank.db"
    with api(file) as http:
        ingested(http, tool_outputs=[OUTPUT])
        database = http.app.state.service.database
        with database.write() as c:
            c.exec_driver_sql("DROP TABLE records")
        answer = http.get("/v1/sessions/s/records")
        told(answer, 503, "storage_unavailable")
        assert answer.headers["retry-after"] == "1"


def test_what_the_document_says_of_every_operation(http):
    document = http.get("/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    operations = [o for path in document["paths"].values() for o in path.values()]
    ids = [o["operationId"] for o in operations]
    assert len(ids) == len(set(ids))
    assert {"list_sessions", "get_session", "build_context", "ingest", "get_record", "get_stats"} <= set(ids)
    assert set(document["components"]["securitySchemes"]) == {"key", "memory_key"}
    for operation in operations:
        assert operation["summary"]
        for status, answer in operation["responses"].items():
            if int(status) >= 400:
                schema = answer["content"]["application/json"]["schema"]
                assert schema == {"$ref": "#/components/schemas/Failure"}


def test_a_query_has_a_bounded_number_of_parameters_and_each_once():
    with api() as service:
        for path in ("/v1/sessions", "/v1/sessions/s/search", "/v1/sessions/s/records"):
            refused = service.get(f"{path}?" + "&".join(f"{n:x}" for n in range(8_000)))
            assert refused.status_code == 422
            assert "at most 100: send fewer" in refused.json()["error"]["message"]
            assert service.get(f"{path}?q=a&q=b").status_code == 422
