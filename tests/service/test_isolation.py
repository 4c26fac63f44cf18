"""Every route and every MCP tool, asked with another key's ids: nothing is read, nothing is told to exist.

Each case is asked twice, by two strangers alike: once with ids of the victim, once with ids that never existed.
The two answers are the same to the byte, but for their own ids; and the victim finds all as it was.
"""

import json
import re
import uuid
from dataclasses import dataclass

import pytest
from starlette.routing import Route
from tests import blocks
from tests.chats import call, result, system, user
from tests.service.serving import bearer, configured, serving

from memory_bank.bank.database import Database
from memory_bank.bank.keys import Keys
from memory_bank.testing import ScriptedServer, say

WORD = "FALCON-77"  # what the victim's memory is about
HIDDEN = "PEREGRINE"  # what only the victim's memory says
STRANGERS = 150


def conversation(word=WORD, calls=6, said="order"):
    messages = [system("You help."), user(f"Find out about {word}.")]
    for i in range(calls):
        rows = json.dumps([{"said": said, "order": f"{word}-{i}-{k}", "note": "x" * 80} for k in range(20)])
        messages += [
            call((f"call_{word}_{i}aB3dE6gH9jK2m", "get_order", {"word": word, "n": i})),
            result(f"call_{word}_{i}aB3dE6gH9jK2m", rows),
        ]
    return messages


@dataclass(frozen=True)
class Ids:
    """What a stranger may try: a session's name, ids of its records, its namespace, words in it."""

    session: str
    trace_id: str
    namespace: str
    agent: str
    word: str


@dataclass(frozen=True)
class Ask:
    """A request; ``{session}`` and so on stand for the ids."""

    path: str
    method: str = "GET"
    body: object = None
    headers: tuple[tuple[str, str], ...] = ()
    status: int | None = None


def chat(**more):
    return {"model": "m", "messages": conversation("{word}", 2), **more}


def asked(**more):
    """A request of the Messages API."""
    messages = [blocks.user("Find out about {word}."), *blocks.rounds(3)]
    return {"model": "m", "max_tokens": 9, "messages": messages, "tools": [{"name": "get_order"}], **more}


ITEMS = [
    {"role": "user", "content": "Find out about {word}."},
    {"type": "function_call", "call_id": "call_aB3dE6gH9jK2m", "name": "get_order", "arguments": '{"word": "{word}"}'},
    {"type": "function_call_output", "call_id": "call_aB3dE6gH9jK2m", "output": "order {word}-1 " * 200},
]  # fmt: skip
RECORDS = "/v1/sessions/{session}/records"
NAMED = {"session_id": "{session}"}
CASES = {
    "GET /openapi.json": [Ask("/openapi.json", status=200)],
    "HEAD /openapi.json": [Ask("/openapi.json", "HEAD", status=200)],
    "GET /health": [Ask("/health", status=200), Ask("/health?live", status=200)],
    "GET /healthz": [Ask("/healthz", status=200)],
    "GET /readyz": [Ask("/readyz", status=200)],
    "GET /metrics": [Ask("/metrics", status=401)],
    "GET /": [Ask("/")],
    "HEAD /": [Ask("/", "HEAD")],
    "GET /static/{name}": [Ask("/static/{session}", status=404), Ask("/static/..%2f{session}", status=404)],
    "HEAD /static/{name}": [Ask("/static/{session}", "HEAD", status=404)],
    "GET /v1/stats": [Ask("/v1/stats", status=200), Ask("/v1/stats?namespace={namespace}&session={session}", status=200)],
    "GET /v1/sessions": [
        Ask("/v1/sessions", status=200), Ask("/v1/sessions?limit=100&q={word}", status=200), Ask("/v1/sessions?q={session}", status=200),
        Ask("/v1/sessions?q={namespace}", status=200), Ask("/v1/sessions?after={session}"), Ask("/v1/sessions?after={namespace}%E2%90%9F{session}"),
        Ask("/v1/sessions?namespace={namespace}"), Ask("/v1/sessions?sort=used&after={session}"),
        *(Ask(f"/v1/sessions?sort={sort}&limit=100", status=200) for sort in ("used", "saved", "lost", "cost", "errors", "steps")),
        *(Ask(f"/v1/sessions?only={only}", status=200) for only in ("errors", "without_memory")), Ask("/v1/sessions?model=m", status=200),
    ],
    "PUT /v1/sessions/{name}/title": [
        Ask("/v1/sessions/{session}/title", "PUT", {"title": "mine"}, status=404),
        Ask("/v1/sessions/{namespace}%E2%90%9F{session}/title", "PUT", {"title": "mine"}, status=404),
    ],
    "GET /v1/sessions/{name}/handoff": [Ask("/v1/sessions/{session}/handoff", status=404), Ask("/v1/sessions/{namespace}%E2%90%9F{session}/handoff", status=404)],
    "GET /v1/sessions/{name}/export": [Ask("/v1/sessions/{session}/export", status=404), Ask("/v1/sessions/{namespace}%E2%90%9F{session}/export", status=404)],
    "GET /v1/stats/groups": [Ask(f"/v1/stats/groups?by={by}", status=200) for by in ("project", "client")],
    "GET /v1/stats/wrong": [Ask("/v1/stats/wrong?limit=500", status=200), Ask("/v1/stats/wrong?session={session}", status=404)],
    "GET /v1/sessions/{name}/records/{trace_id}/life": [
        Ask(f"{place}/life", status=404)
        for place in (f"{RECORDS}/{{trace_id}}", f"{RECORDS}/1", "/v1/sessions/own/records/{trace_id}")
    ],
    "GET /v1/stats/days": [Ask("/v1/stats/days", status=200), Ask("/v1/stats/days?days=400", status=200)],
    "GET /v1/sessions/{name}": [
        Ask("/v1/sessions/{session}", status=404), Ask("/v1/sessions/{namespace}%E2%90%9F{session}", status=404),
        Ask("/v1/sessions/{namespace}%2F{session}", status=404), Ask("/v1/sessions/..%2F{namespace}%2F{session}", status=404),
        Ask("/v1/sessions/{session}", headers=(("x-memory-session", "{session}"),), status=404),
    ],
    "DELETE /v1/sessions/{name}": [Ask("/v1/sessions/{session}", "DELETE", status=404), Ask("/v1/sessions/{namespace}%E2%90%9F{session}", "DELETE", status=404)],
    "POST /v1/sessions/{name}/reset": [Ask("/v1/sessions/{session}/reset", "POST", status=404)],
    "POST /v1/sessions/{name}/context": [
        Ask("/v1/sessions/{session}/context", "POST", {"messages": conversation("{word}", 2)}, status=200),
        Ask("/v1/sessions/{session}/context", "POST", {"messages": conversation("{word}", 2), "project": "{agent}", "strategy": "wide"}, status=200),
        Ask("/v1/sessions/{namespace}%E2%90%9F{session}/context", "POST", {"messages": conversation("{word}", 1)}, status=422),
        Ask("/v1/sessions/mine/context", "POST", {"messages": conversation("{word}", 2), "project": "{namespace}␟{agent}"}, status=422),
    ],
    "POST /v1/sessions/{name}/ingest": [
        Ask("/v1/sessions/{session}/ingest", "POST", {"messages": conversation("{word}", 2)}, status=200),
        Ask("/v1/sessions/{session}/ingest", "POST", {"tool_outputs": [{"tool_name": "f", "raw_input": {}, "raw_output": "x"}], "project": "{agent}"}, status=200),
        Ask("/v1/sessions/{namespace}%E2%90%9F{session}/ingest", "POST", {"messages": []}, status=422),
    ],
    "GET /v1/sessions/{name}/search": [
        Ask("/v1/sessions/{session}/search?q={word}", status=404), Ask(f"/v1/sessions/own/search?q={WORD}", status=200),
        Ask(f"/v1/sessions/wide/search?q={WORD}&top_k=20", status=200),
    ],
    "GET /v1/search": [
        Ask("/v1/search?q={word}", status=200), Ask(f"/v1/search?q={WORD}&top_k=50", status=200),
        Ask("/v1/search?q={word}&project={agent}", status=200), Ask("/v1/search?q={word}&agent={namespace}%E2%90%9F{agent}"),
    ],
    "ANY /v1/search": [Ask("/v1/search?q={word}", "POST", {}, status=405)],
    "ANY /v1/search/{rest:path}": [Ask("/v1/search/{session}", status=404)],
    "GET /v1/sessions/{name}/records": [
        Ask(RECORDS, status=404), Ask(RECORDS + "?after=3&limit=2", status=404), Ask("/v1/sessions/own/records?after=1", status=200),
    ],
    "DELETE /v1/sessions/{name}/records/{trace_id}": [
        Ask(place, "DELETE", status=404)
        for place in (f"{RECORDS}/{{trace_id}}", f"{RECORDS}/1", "/v1/sessions/own/records/{trace_id}")
    ],
    "GET /v1/sessions/{name}/records/{trace_id}": [
        *(
            Ask(f"{RECORDS}/{which}{how}", status=404)
            for which in ("{trace_id}", "%231", "1", "{trace_id:.8}")
            for how in ("", "?raw=1", "?path=[0].order", "?lines=1-2", "?pattern={word}")
        ),
        *(
            Ask(f"/v1/sessions/own/records/{which}{how}", status=404)
            for which in ("{trace_id}", "{trace_id:.8}", "%2399")
            for how in ("", "?raw=1", "?lines=1")
        ),
    ],
    "GET /v1/sessions/{name}/steps": [Ask("/v1/sessions/{session}/steps", status=404), Ask("/v1/sessions/{session}/steps?after=1&limit=1", status=404)],
    "GET /v1/sessions/{name}/steps/{number}": [Ask("/v1/sessions/{session}/steps/1", status=404), Ask("/v1/sessions/own/steps/99", status=404)],
    "GET /v1/sessions/{name}/curve": [Ask("/v1/sessions/{session}/curve", status=404)],
    "ANY /v1/sessions": [Ask("/v1/sessions", "PUT", {"name": "{session}"}, status=405)],
    "ANY /v1/sessions/{rest:path}": [
        Ask("/v1/sessions/{session}", "PATCH", status=405), Ask("/v1/sessions/{session}/nothing", status=404),
        Ask("/v1/sessions/{session}/records/{trace_id}/nothing", status=404), Ask("/v1/sessions/{session}/reset", status=405),
        Ask("/v1/sessions/{session}/", status=404), Ask("/v1/sessions/{session}", "OPTIONS"),
    ],
    "ANY /v1/stats": [Ask("/v1/stats", "DELETE", status=405)],
    "ANY /v1/stats/{rest:path}": [Ask("/v1/stats/{session}", status=404)],
    "POST /mcp": [],  # below
    "ANY /v1/chat/completions": [
        Ask("/v1/chat/completions", "POST", chat(), status=200),
        Ask("/v1/chat/completions", "POST", chat(metadata=NAMED), status=200),
        Ask("/v1/chat/completions", "POST", chat(prompt_cache_key="{session}"), status=200),
        Ask("/v1/chat/completions", "POST", chat(), (("x-memory-session", "{session}"),), status=200),
        Ask("/v1/chat/completions", "POST", chat(), (("x-memory-session", "{namespace}%E2%90%9F{session}"),), status=200),
        Ask("/v1/chat/completions", "POST", chat(), (("x-memory-session", "{session}"), ("x-memory-strategy", "wide")), status=200),
    ],
    "ANY /v1/responses/compact": [
        Ask("/v1/responses/compact", "POST", {"model": "m", "input": ITEMS}, (("x-memory-session", "{session}"),)),
        Ask("/v1/responses/compact", "POST", {"model": "m", "input": ITEMS, "prompt_cache_key": "{session}"}),
    ],
    "ANY /v1/responses/input_tokens": [
        Ask("/v1/responses/input_tokens", "POST", {"model": "m", "input": ITEMS}, (("x-memory-session", "{session}"),)),
        Ask("/v1/responses/input_tokens", "POST", {"model": "m", "input": ITEMS, "prompt_cache_key": "{session}"}),
    ],
    "ANY /v1/responses": [
        Ask("/v1/responses", "POST", {"model": "m", "input": "{word}", "metadata": NAMED}, status=200),
        Ask("/v1/responses", "POST", {"model": "m", "input": ITEMS}, (("x-memory-session", "{session}"),), status=200),
        Ask("/v1/responses", "POST", {"model": "m", "input": ITEMS, "prompt_cache_key": "{session}"}, status=200),
    ],
    "ANY /v1/messages": [
        Ask("/v1/messages", "POST", asked(), status=200),
        Ask("/v1/messages", "POST", asked(metadata={"user_id": "_session_{session}"}), status=200),
        Ask("/v1/messages", "POST", asked(), (("x-claude-code-session-id", "{session}"),), status=200),
        Ask("/v1/messages", "POST", asked(), (("x-memory-session", "{session}"),), status=200),
    ],
    "ANY /v1/messages/count_tokens": [
        Ask("/v1/messages/count_tokens", "POST", asked(), (("x-memory-session", "{session}"),), status=200),
        Ask("/v1/messages/count_tokens", "POST", asked(), (("x-claude-code-session-id", "{session}"),), status=200),
    ],
    "ANY /v1/{path:path}": [
        Ask("/v1/models", status=200),
        Ask("/v1/nothing/{session}"),
    ],
}  # fmt: skip

TOOLS = {
    "search_memory": [{"query": "{word}"}, {"query": "{word}", "session": "{session}"}, {"query": WORD, "session": "own"}, {"query": WORD, "session": "wide"}, {"query": WORD, "scope": "all"}, {"query": "{word}", "scope": "all", "session": "{session}"}],
    "get_record": [
        {"trace_id": t, "session": s}
        for t in ("{trace_id}", "{trace_id:.8}", "#1") for s in ("{session}", "{namespace}␟{session}", "{namespace}/{session}")
    ] + [
        {argument: t, "session": s}
        for argument in ("trace_id", "record") for t in ("{trace_id}", "{trace_id:.8}", "#99", "[… #99]") for s in ("own", "wide")
    ] + [{"record": "{word}"}, {"record": "{word}", "session": "wide", "lines": "1"}, {"record": "{word}", "scope": "all"}],
    "list_records": [{"session": "{session}"}, {"session": "{namespace}␟{session}"}, {}],
    "forget_record": [{"trace_id": "{trace_id}", "session": s} for s in ("{session}", "own")],
}  # fmt: skip
RESOURCES = {
    "memory://sessions": ["memory://sessions"],
    "memory://sessions/{session}/records/{trace_id}": [
        "memory://sessions/{session}/records/{trace_id}", "memory://sessions/{namespace}%E2%90%9F{session}/records/{trace_id}",
        "memory://sessions/own/records/{trace_id}", "memory://sessions/{session}/records/%231", "memory://sessions/{session}/records",
    ],
}  # fmt: skip


def filled(value, ids):
    """A value with the ids in the place of their names."""
    if isinstance(value, str):
        return re.sub(
            r"\{(session|trace_id|namespace|agent|word)(:[.\d]*)?\}",
            lambda m: format(getattr(ids, m[1]), (m[2] or ":")[1:]),
            value,
        )
    if isinstance(value, dict):
        return {k: filled(v, ids) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [filled(v, ids) for v in value]
    return value


UNIQUE = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|auto-[0-9a-f]{20}|~[0-9a-f]{12}|chatcmpl-\w+|resp_\w+|msg_\w+|(?<=seal=)[0-9a-f]{8}"
)
FIGURES = re.compile(
    r'"(created|created_at|timestamp|last_written|last_used|\w*tokens|sent|full)": ?[0-9.]+|"compared": ?"[^"]*"|(?<="x-memory-tokens", ")[0-9/]+'
)


def told(answer, ids):
    """An answer without what is its own."""
    own = ("x-request-id", "x-memory-request-id", "date", "content-length")
    headers = [(k, v) for k, v in answer.headers if k.lower() not in own]
    return plain(json.dumps([answer.status, headers]) + answer.body.decode("utf-8", "surrogateescape"), ids)


def plain(text, ids):
    """A text without the ids that were asked for, new ids, times and sizes."""
    for name in ("trace_id", "session", "namespace", "agent", "word"):
        text = text.replace(getattr(ids, name), f"<{name}>")
    text = text.replace(ids.trace_id[:8], "<trace_id>")
    text = re.sub(r"the (?:latest|nearest) are [^.]*", "<own records>", text)
    text = re.sub(r"\bmbc1\.[\w-]+|\bcmp_[0-9a-f]{24}", "<made>", text)
    return FIGURES.sub("<figure>", UNIQUE.sub("<new>", text))


class World:
    """A service with a victim and many strangers, all of them with keys."""

    def __init__(self, folder, keys, upstream):
        self.upstream = upstream
        self._readers = {}
        trace_id = f"{uuid.uuid4()!s:.3}abc{uuid.uuid4()!s:.2}{str(uuid.uuid4())[8:]}"
        self.never = Ids("badger-plan", trace_id, "ns-0123456789abcdef", "badger-bot", WORD)
        self.victim, self.victim_key = keys.create("victim")
        self.twin, self.twin_key = keys.create("twin")
        self._strangers = iter([keys.create(f"stranger {i}")[1] for i in range(STRANGERS)])
        self._operators = iter([keys.create(f"operator {i}", operator=True)[1] for i in range(STRANGERS)])

    def prepare(self, served):
        self.served = served
        chat = {"messages": conversation(said=HIDDEN)}
        for path, body in (
            ("/v1/sessions/falcon-plan/context", {**chat, "project": "falcon-bot"}),
            ("/v1/sessions/wide/context", {**chat, "project": "falcon-bot", "strategy": "wide"}),
            ("/v1/sessions/own/ingest", chat),
            ("/v1/chat/completions", {"model": "m", **chat}),
        ):
            self.done(self.victim_key, Ask(path, "POST", body, status=200))
        listed = self.ask(self.victim_key, Ask("/v1/sessions/falcon-plan/records")).json()["records"]
        assert len(listed) == 6
        trace_id = next(
            r["trace_id"] for r in listed if re.search("[a-f]", r["trace_id"][:6])
        )  # else a number
        self.real = Ids("falcon-plan", trace_id, self.victim.namespace, "falcon-bot", WORD)
        assert self.served.app.state.service.recorder.drain(30)  # steps are noted beside the requests
        self.before = self.everything(self.victim_key)

    def stranger(self, operator=False):
        """Somebody who has two sessions already, which the victim has of the same name."""
        key = next(self._operators if operator else self._strangers)
        for name, calls in (("own", 2), ("wide", 4)):  # so that no random seal turns their order by savings
            body = {"messages": conversation("mole", calls), "project": "mole-bot"}
            self.done(key, Ask(f"/v1/sessions/{name}/context", "POST", body, status=200))
        assert self.served.app.state.service.recorder.drain(30)  # steps are noted beside the requests
        return key

    def known_stranger(self, ids, operator=False):
        """One for all that only reads."""
        if (ids, operator) not in self._readers:
            self._readers[ids, operator] = self.stranger(operator)
        return self._readers[ids, operator]

    def ask(self, key, ask, ids=None):
        ids = ids or self.never
        headers = [tuple(filled(h, ids)) for h in ask.headers]
        body = None
        if ask.body is not None:
            body = json.dumps(filled(ask.body, ids)).encode()
            headers.append(("Content-Type", "application/json"))
        return self.served.ask(ask.method, filled(ask.path, ids), bearer(key), *headers, body=body)

    def done(self, key, ask):
        """An answer that must have its status."""
        answer = self.ask(key, ask)
        assert answer.status == ask.status, answer
        return answer

    def everything(self, key):
        """All that a key can see, as bytes."""
        names = [s["name"] for s in self.ask(key, Ask("/v1/sessions?limit=100")).json()["sessions"]]
        paths = "", "/steps", "/steps/1", "/records", "/records/1", "/search?q=order", "/records/1?raw=1"
        seen = [self.ask(key, Ask(f"/v1/sessions/{n}{path}")).body for n in names for path in paths]
        return [*names, self.ask(key, Ask("/v1/stats")).body, *seen]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("isolation")
    database = Database(folder / "bank.db")
    wide = {
        "type": "memory_bank", "observer_model": "extractive", "embedding_model": "lexical", "scope": "all",
        "history_budget": 400, "refresh_after": 0,
    }  # fmt: skip
    with ScriptedServer(lambda body: say("ok")) as upstream, pytest.MonkeyPatch.context() as patched:
        patched.setenv("OPENAI_API_KEY", "sk-of-the-service")
        patched.setenv("ANTHROPIC_API_KEY", "sk-of-the-service")
        urls = {"upstream": upstream.base_url, "upstream_anthropic": upstream.base_url}
        settings = {"database": str(folder / "bank.db"), "strategy": "wide", **urls}
        made = World(folder, Keys(database), upstream)
        with serving(configured({"wide": wide}, **settings)) as served:
            made.prepare(served)
            yield made
    database.close()


def routes_of(router):
    for route in router.routes:
        inner = getattr(route, "original_router", None)
        if inner is not None:
            yield from routes_of(inner)
            continue
        assert isinstance(route, Route), f"cases for a {type(route).__name__} are not known here"
        for method in route.methods or ["ANY"]:
            yield f"{method} {route.path}"


def test_every_route_has_a_case(world):
    assert set(routes_of(world.served.app.router)) == set(CASES)


@pytest.mark.parametrize("route", CASES)
def test_ids_of_others_are_told_from_nothing(world, route):
    for operator in (False, True):
        ask_as_strangers(world, route, operator)


def test_no_stranger_changed_what_the_victim_sees(world):
    """After the requests above to every route; the tests that change it come later."""
    assert world.everything(world.victim_key) == world.before


def ask_as_strangers(world, route, operator):
    reads = all(ask.method in ("GET", "HEAD") for ask in CASES[route])
    stranger_of = world.known_stranger if reads else lambda ids, operator: world.stranger(operator)
    strangers = [(ids, stranger_of(ids, operator)) for ids in (world.real, world.never)]
    for ask in CASES[route]:
        answers = []
        for ids, stranger in strangers:
            sent = len(world.upstream.requests)
            answer = world.ask(stranger, ask, ids)
            if not (operator and route == "GET /metrics"):
                assert ask.status in (None, answer.status), (ask, answer)
            upstream = json.dumps([r.body for r in world.upstream.requests[sent:]])
            assert HIDDEN not in answer.body.decode("utf-8", "replace") + upstream
            asked = json.dumps(filled([ask.path, ask.body, ask.headers], ids), ensure_ascii=False)
            for name in (world.real.session, world.real.namespace):
                assert name in asked or name not in answer.body.decode("utf-8", "replace") + str(
                    answer.headers
                )
            answers.append(told(answer, ids) + plain(upstream, ids))
        if not (operator and route in ("GET /metrics", "GET /health")):  # figures of the service as a whole
            assert answers[0] == answers[1], ask


def rpc(world, key, method, params, ids=None, headers=()):
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    meta = (("Accept", "application/json, text/event-stream"), ("MCP-Protocol-Version", "2025-06-18"))
    return world.ask(key, Ask("/mcp", "POST", body, (*meta, *headers)), ids)


def test_every_mcp_tool_and_resource_has_a_case(world):
    stranger = world.known_stranger(world.never)
    tools = rpc(world, stranger, "tools/list", {}).json()["result"]["tools"]
    assert {t["name"] for t in tools} == set(TOOLS) - {"search_memory", "list_records"}  # answered still
    templates = rpc(world, stranger, "resources/templates/list", {}).json()["result"]["resourceTemplates"]
    listed = rpc(world, stranger, "resources/list", {}).json()["result"]["resources"]
    assert {t["uriTemplate"] for t in templates} | {
        r["uri"] for r in listed if "records" not in r["uri"]
    } == set(RESOURCES)
    assert rpc(world, stranger, "prompts/list", {}).json()["error"]  # there are none


KINDS = {"GET /metrics": "text/plain", "GET /": "text/html", "HEAD /": "text/html"}


@pytest.mark.parametrize("route", CASES)
def test_every_answer_says_what_it_is(world, route):
    """No browser takes what a tool said for a page of ours, or for a script."""
    own = [Ask(a.path.replace("{session}", "own"), a.method, a.body, a.headers) for a in CASES[route]]
    operator = next(world._operators)
    of_victim = [ask for ask in (*CASES[route], *own) if ask.method == "GET"]
    asks = (
        *((operator, ask) for ask in (*CASES[route], *own)),
        *((world.victim_key, ask) for ask in of_victim),
    )
    for key, ask in asks:
        answer = world.ask(key, ask, world.real)
        assert answer.header("x-content-type-options") == "nosniff"
        kind = answer.header("content-type")
        if answer.status == 204:
            assert answer.body == b""
        elif answer.status == 200 and "raw=1" in ask.path:
            assert kind == "application/octet-stream"
            assert answer.header("content-disposition").startswith("attachment")
        elif answer.status == 200 and "/export" in ask.path:
            assert kind.partition(";")[0] == "application/x-ndjson"
            assert answer.header("content-disposition") == "attachment"
        elif answer.status != 200 or route not in KINDS:
            assert kind.partition(";")[0] == "application/json", ask
        else:
            assert kind.startswith(KINDS[route])


CURSORS = [
    json.dumps(["{session}", 0]),
    json.dumps(["{session}", 3]),
    json.dumps(["{namespace}␟{session}", 0], ensure_ascii=False),
]
MCP = [
    *(("tools/call", {"name": n, "arguments": a}, ()) for n, cases in TOOLS.items() for a in cases),
    *(("tools/call", {"name": n, "arguments": {k: v for k, v in cases[0].items() if k != "session"}}, (("x-memory-session", "{session}"),)) for n, cases in TOOLS.items()),
    *(("resources/read", {"uri": u}, ()) for uris in RESOURCES.values() for u in uris),
    *(("resources/list", {"cursor": c}, ()) for c in CURSORS),
    ("resources/list", {}, (("x-memory-session", "{session}"),)),
    ("resources/list", {}, ()),
]  # fmt: skip


@pytest.mark.parametrize(("method", "params", "headers"), MCP)
def test_mcp_with_ids_of_others(world, method, params, headers):
    answers = []
    for ids in (world.real, world.never):
        answer = rpc(world, world.known_stranger(ids), method, params, ids, headers)
        assert answer.status == 200
        answers.append(told(answer, ids))
        assert HIDDEN not in answer.body.decode()
    assert answers[0] == answers[1]


def test_without_a_key_all_that_is_not_open_is_closed(world):
    answers = []
    for route, asks in CASES.items():
        for ask in asks:
            for ids in (world.real, world.never):
                method, path = ask.method, filled(ask.path, ids)
                answer = world.served.ask(method, path, ("x-request-id", "same"))
                if path.partition("?")[0] in (
                    "/",
                    "/health",
                    "/healthz",
                    "/readyz",
                    "/openapi.json",
                ) or path.startswith("/static/"):
                    assert answer.status in (200, 404), route
                    assert HIDDEN.encode() not in answer.body
                else:
                    assert answer.status == 401, (route, path)
                    answers.append((path.startswith("/v1/messages"), answer.body))
    assert len({a for a in answers if a[1]}) == 2  # one for each of the two forms; HEAD has no body


# --- equal names, equal contents


def test_equal_names_and_contents_stay_apart(world):
    for name, calls in (("falcon-plan", 3), ("wide", 2)):
        body = {"messages": conversation(calls=calls), "project": "falcon-bot", "strategy": "wide"}
        world.done(world.twin_key, Ask(f"/v1/sessions/{name}/context", "POST", body, status=200))
    theirs = world.ask(world.victim_key, Ask("/v1/sessions/falcon-plan/records")).json()["records"]
    mine = world.ask(world.twin_key, Ask("/v1/sessions/falcon-plan/records")).json()["records"]
    assert (len(theirs), len(mine)) == (6, 3)
    assert not {r["trace_id"] for r in mine} & {r["trace_id"] for r in theirs}  # a trace_id is of its session
    stats = world.ask(world.twin_key, Ask("/v1/stats")).json()
    assert (stats["sessions"], stats["records"]) == (2, 5)
    hits = world.ask(world.twin_key, Ask(f"/v1/sessions/wide/search?q={WORD}&top_k=20")).json()["hits"]
    assert {h["session"] for h in hits} <= {"wide", "falcon-plan"}
    assert {h["trace_id"] for h in hits} <= {
        r["trace_id"]
        for name in ("wide", "falcon-plan")
        for r in world.ask(world.twin_key, Ask(f"/v1/sessions/{name}/records")).json()["records"]
    }
    before = world.everything(world.victim_key)
    world.done(world.twin_key, Ask("/v1/sessions/falcon-plan/reset", "POST", status=204))
    world.done(world.twin_key, Ask("/v1/sessions/falcon-plan", "DELETE", status=204))
    world.done(world.twin_key, Ask("/v1/sessions/falcon-plan", status=404))
    assert world.everything(world.victim_key) == before


def test_a_search_of_all_sessions_is_of_the_keys_own(world):
    key = world.stranger()
    world.done(
        key, Ask("/v1/sessions/mole/context", "POST", {"messages": conversation("MOLE-1", 2)}, status=200)
    )
    for query in (WORD, HIDDEN, "order"):
        theirs = world.ask(world.victim_key, Ask(f"/v1/search?q={query}&top_k=50"))
        mine = world.ask(key, Ask(f"/v1/search?q={query}&top_k=50"))
        assert theirs.json()["hits"]
        assert {h["session"] for h in mine.json()["hits"]} <= {"mole", "own", "wide"}
        assert HIDDEN not in mine.body.decode()
        assert world.victim.namespace not in theirs.body.decode()
    asked = {"name": "search_memory", "arguments": {"query": HIDDEN, "scope": "all"}}
    assert "Nothing matches" in rpc(world, key, "tools/call", asked).body.decode()
    theirs = rpc(world, world.victim_key, "tools/call", asked).body.decode()
    assert theirs.count(HIDDEN) > 2 and world.victim.namespace not in theirs


def test_the_same_conversation_of_two_keys_is_two_sessions(world):
    body = {"model": "m", "messages": conversation("TWINS-1", 4)}
    names = [
        world.ask(key, Ask("/v1/chat/completions", "POST", body)).header("x-memory-session")
        for key in (world.victim_key, world.twin_key)
    ]
    assert names[0] != names[1]
    for key, own, other in ((world.victim_key, *names), (world.twin_key, *reversed(names))):
        listed = [s["name"] for s in world.ask(key, Ask("/v1/sessions?limit=100")).json()["sessions"]]
        assert own in listed and other not in listed
        assert len(world.ask(key, Ask(f"/v1/sessions/{own}/records")).json()["records"]) == 4


def test_a_wider_scope_ends_at_the_namespace(world):
    """Searches over all sessions, and contexts made of them, hold nothing of another key's."""
    key = world.stranger()
    messages = [*conversation("mole", 8), user(f"What about {WORD}?")]
    sent = len(world.upstream.requests)
    how = (("x-memory-strategy", "wide"),)
    answer = world.done(
        key, Ask("/v1/chat/completions", "POST", {"model": "m", "messages": messages}, how, status=200)
    )
    assert answer.header("x-memory-status") == "rebuilt"
    assert HIDDEN not in json.dumps(world.upstream.requests[sent].body)
    search = {"name": "search_memory", "arguments": {"query": WORD, "session": "wide"}}
    assert HIDDEN not in rpc(world, key, "tools/call", search).body.decode()
    own = rpc(world, world.victim_key, "tools/call", search)
    assert HIDDEN in own.body.decode()
    assert world.victim.namespace not in own.body.decode()  # which is nobody's business, not even its own


def test_operators_see_how_the_service_does_and_no_names(world):
    operator = next(world._operators)
    figures = world.ask(operator, Ask("/metrics")).body.decode()
    details = world.ask(operator, Ask("/health")).body.decode()
    assert "memory_bank_requests" in figures and "parts" in details
    for text in (figures, details):
        for hidden in (WORD, "falcon", world.victim.namespace, "sk-of-the-service"):
            assert hidden not in text
    assert world.ask(operator, Ask("/v1/sessions")).json()["sessions"] == []


def test_keys_go_nowhere(world):
    sent = len(world.upstream.requests)
    world.done(
        world.victim_key,
        Ask("/v1/chat/completions", "POST", {"model": "m", "messages": [user("hi")]}, status=200),
    )
    assert "mb_" not in json.dumps(world.upstream.requests[sent].headers, default=str)
