"""What the service learns of a provider's prefix cache from prices and usage, over real HTTP."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace

import pytest
from tests.blocks import rounds as blocks
from tests.blocks import user as said
from tests.chats import call, report, result, rounds, say, system, user
from tests.examples import first_short
from tests.service.caching import Cached
from tests.service.processes import until
from tests.service.proxied import RawUpstream, chunked, post, scripted, whole

from memory_bank.pricing import MISSES, RETRY_AFTER
from memory_bank.testing import Reply, calls

CHAT = "/v1/chat/completions"
NAME = b"x-memory-session: a"
START = [system(), user()]
LONG = rounds(14, size=6_000)


def served(script, tmp_path, prices=None, **service):
    return scripted(script, tmp_path, prices=prices, strategy="", **{"inject_tools": False, **service})


def cache_of(p, name="a"):
    return p.service.sessions.processor.state("memory_bank", name).prefix_cache


def answered_counts(cache):
    """The counts of the newest request that has its answer, as they are stored."""
    return json.loads(cache.told)[3]


def step(p, messages, *headers, model="m", path=CHAT, **members):
    """One request; returns what became of it."""
    before = len(p.exchanges)
    post(p.port, path, {"model": model, "messages": messages, **members}, *(headers or (NAME,)))
    return p.told(before + 1)[-1]


def changes(exchanges):
    return [e.step.changed_at is not None for e in exchanges]


@pytest.mark.parametrize(
    ("model", "prices", "ratios"),
    [
        ("gpt-4.1-mini", {}, (0.25, 1.0)),
        ("anthropic/claude-x", {}, (0.1, 1.25)),
        ("unknown", {}, (0.1, 1.0)),
        ("own", {"own": {"prompt": 4, "completion": 8, "cached": 1}}, (0.25, 1.0)),
        ("own", {"own": {"prompt": 4, "completion": 8, "cached": 1, "cache_write": 5}}, (0.25, 1.25)),
        ("gpt-4o", {"gpt": {"prompt": 4, "completion": 8}}, (0.5, 1.0)),
    ],
)
def test_the_price_of_the_requests_model_is_taken_before_its_first_step(tmp_path, model, prices, ratios):
    with served(Cached(), tmp_path, prices) as (_, p):
        step(p, [*START, *LONG[:4]], model=model)
        assert (cache_of(p).read, cache_of(p).write) == ratios


def test_a_model_whose_cached_tokens_cost_as_much_folds_at_every_step(tmp_path):
    prices = {"dear": {"prompt": 2, "completion": 8, "cached": 2}}
    with served(Cached(), tmp_path, prices) as (_, p):
        done = [step(p, [*START, *rounds(n, size=6_000)], model="dear") for n in range(10, 20)]
    assert {e.memory for e in done} == {"rebuilt"}
    assert all(changes(done)[1:])


def test_a_provider_that_caches_lets_a_fold_stand(tmp_path):
    with served(Cached(), tmp_path) as (_, p):
        done = [step(p, [*START, *rounds(n, size=6_000)]) for n in range(2, 40)]
        assert cache_of(p).read == 0.1
    assert done[-1].memory == "rebuilt"
    assert 1 <= sum(changes(done)) <= 6


def test_a_provider_that_reports_that_nothing_was_cached_gets_a_fold_at_every_step(tmp_path):
    upstream = Cached(works=False)
    with served(upstream, tmp_path) as (_, p):
        done = [step(p, [*START, *rounds(n, size=6_000)]) for n in range(2, 30)]
        assert cache_of(p).read == 1.0
        assert done[-1].memory == "rebuilt"
        assert all(changes(done)[-12:])
        # a cache that begins to work is noticed by the first tokens that are reported
        report(cache_of(p), 0, 512)
        assert cache_of(p).read == 0.1


class Hidden(Cached):
    """A gateway that reports zeros whatever its provider caches."""

    def __call__(self, body):
        return replace(super().__call__(body), cached=(0, 0))


@pytest.mark.parametrize("api", first_short(["chat", "messages"]))
def test_a_listed_cache_that_is_hidden_costs_hardly_more_than_no_memory(tmp_path, api):
    """A provider may have no cache either: folds come as often as is allowed if it has one."""
    model, upstream, alone = {"chat": "gpt-5", "messages": "claude-sonnet-4-5"}[api], Hidden(), Hidden()
    of, path = {"chat": (rounds, CHAT), "messages": (blocks, "/v1/messages")}[api]
    more = {"max_tokens": 9} if api == "messages" else {}
    mark = {"cache_control": {"type": "ephemeral"}}
    with served(upstream, tmp_path, cache_markers="off") as (_, p):
        for n in range(2, 52):
            task = [said("Check the orders.") if api == "messages" else user(), *of(n, size=3_000)]
            if api == "messages":
                *rest, last = task[-1]["content"]
                task[-1] = {**task[-1], "content": [*rest, {**last, **mark}]}
            done = step(p, task, model=model, path=path, **more)
            alone({"messages": task, **more})
            assert upstream.paid(model)[1] <= 1.05 * alone.paid(model)[1], n
        assert cache_of(p).is_denied
        assert cache_of(p).read < 1
    assert done.memory == "rebuilt"
    assert upstream.paid(model)[0] < alone.paid(model)[0]


class Dearer(Hidden):
    """It counts a tenth more of a context with a fold than of the messages."""

    def __call__(self, body):
        reply = super().__call__(body)
        return replace(reply, usage=(reply.usage[0] * (11 if "seal=" in json.dumps(body) else 10), 1))


def test_tokens_that_are_reported_without_a_cache_are_what_was_paid(tmp_path):
    """A listed cache may be hidden: what was read from it stays estimated, but not how many tokens were sent."""
    paid = []
    for upstream in (Hidden(), Dearer()):
        with served(upstream, tmp_path / type(upstream).__name__) as (_, p):
            for n in range(20, 80, 2):
                e = step(p, [user(), *looks(n)], model="gpt-5")
                if e.step.fold:
                    break
        paid.append(e.step.charge.paid)
    assert paid[1] == pytest.approx(1.1 * paid[0], rel=0.02)


class Asking(Cached):
    """Its model asks memory before each answer."""

    asks = True

    def __call__(self, body):
        reply, self.asks = super().__call__(body), not self.asks
        return (
            reply
            if self.asks
            else replace(reply, content=None, tool_calls=calls(("get_record", {"record": "#1"})).tool_calls)
        )


def test_turns_that_ask_memory_keep_no_fold_waiting(tmp_path):
    """What they cost would be paid back by no fold that waits."""
    paid = []
    for upstream in (Cached(), Asking()):
        with served(upstream, tmp_path / type(upstream).__name__, inject_tools=True) as (_, p):
            done = [step(p, [*START, *rounds(n, size=3_000)]) for n in range(2, 12)]
        assert {e.rounds for e in done} == {type(upstream) is Asking}
        paid.append([e.step.charge.paid for e in done])
    assert paid[1] == pytest.approx(paid[0])


def looks(count, start=0):
    """Calls whose outputs have 40 lines each."""
    out = []
    for i in range(start, start + count):
        lines = (f"parcel {i} lane {k * i % 997}: weight {k * 7919 * i % 99991}" for k in range(40))
        out += [call((f"c{i}", "look", {"number": i})), result(f"c{i}", "\n".join(lines))]
    return out


def test_two_branches_of_a_conversation_cost_hardly_more_than_no_memory(tmp_path):
    """What the one has paid ahead of what it saved, the other may not pay once more; caches have what both begin with."""
    upstream, alone, model = Cached(), Cached(), "gpt-5"
    trunk = [user(), *looks(44)]
    lists = [trunk[: 1 + 2 * n] for n in range(1, 45)]
    for n in range(2, 70):
        words = [say("Done."), user(f"Look to the {('left', 'right')[n % 2]}.")]
        lists.append([*trunk, *words, *looks(n // 2, start=1_000 * (1 + n % 2))])
    with served(upstream, tmp_path) as (_, p):
        sessions = set()
        for n, task in enumerate(lists):
            sessions.add(step(p, task, b"x-other: 1", model=model).session)
            alone({"messages": task})
            assert upstream.paid(model)[1] <= 1.05 * alone.paid(model)[1], n
    assert len(sessions) == 2
    assert upstream.paid(model)[1] < 0.95 * alone.paid(model)[1]


def test_a_cache_is_assumed_again_after_a_while(tmp_path):
    """A session that folds at every step has no prefix that stands: only a longer one shows whether a cache works."""
    upstream = Cached(works=False)
    with served(upstream, tmp_path) as (_, p):
        chat = [*START, *rounds(8, size=2_000)]
        for n in range(9, 30):
            chat = [*START, *rounds(n, size=6_000)]
            step(p, chat)
        assert cache_of(p).read == 1.0
        upstream.works = True
        cache = cache_of(p)
        for _ in range(RETRY_AFTER):
            report(cache, 0, 0)
        assert cache.read == 0.1
        before = len(p.exchanges)
        done = [step(p, [*START, *rounds(n, size=6_000)]) for n in range(30, 36)]
        assert cache.read == 0.1
        assert [e.usage.cached > 0 for e in done] == [True] * 6 or done[-1].usage.cached > 4_000
        assert sum(changes(p.exchanges[before:])) <= 2


def test_an_answer_without_usage_a_broken_stream_and_an_error_say_nothing(tmp_path):
    usage = {"prompt_tokens": 9_000, "completion_tokens": 1}
    none = json.dumps({"choices": [], "usage": usage}).encode()
    zero = json.dumps(
        {"choices": [], "usage": {**usage, "prompt_tokens_details": {"cached_tokens": 0}}}
    ).encode()
    kind = b"Content-Type: application/json"
    answers = {
        "no usage": lambda _: whole(b'{"choices": []}', kind),
        "no cached tokens": lambda _: whole(none, kind),
        "broken off": lambda _: [*chunked(zero, headers=(kind,), end=False), None],
        "an error": lambda _: whole(zero, kind, status=b"500 Oops"),
    }
    for name, answer in answers.items():
        with (
            RawUpstream(answer) as upstream,
            served(Cached(), tmp_path / name, upstream=upstream.base_url) as (_, p),
        ):
            for n in range(10, 16 + MISSES):
                step(p, [*START, *rounds(n, size=6_000)])
            assert cache_of(p).read == 0.1, name
    with (
        RawUpstream(lambda _: whole(zero, kind)) as upstream,
        served(Cached(), tmp_path / "zero", upstream=upstream.base_url) as (_, p),
    ):
        for n in range(10, 30 + MISSES):
            step(p, [*START, *rounds(n, size=6_000)])
        assert cache_of(p).read == 1.0


def test_only_a_prefix_that_should_be_cached_counts(tmp_path):
    """Not one of another model, or of a request that is being answered."""
    with served(Cached(works=False), tmp_path) as (_, p):
        task = [*START, *LONG]
        for n in range(4, 28, 2):  # one agent with two models
            step(p, task[: 2 + n], b"x-memory-session: b", model=f"m{n // 2 % 2}")
        assert cache_of(p, "b").read == 0.1
        for n in range(4, 28, 2):  # while the first is being answered, nothing is known
            step(p, task[: 2 + n], b"x-memory-session: c", model="m")
            model, misses, asked, _, grown = json.loads(cache_of(p, "c").told)
            cache_of(p, "c").tell(json.dumps([model, misses, asked, None, grown]))
        assert cache_of(p, "c").read == 0.1
        for n in range(4, 28, 2):
            step(p, task[: 2 + n], b"x-memory-session: d", model="m")
        assert cache_of(p, "d").read == 1.0


@pytest.mark.parametrize("works", [True, False])
def test_what_the_provider_reports_is_what_a_session_has_paid(tmp_path, works):
    with served(Cached(works=works), tmp_path) as (_, p):
        done = [step(p, [*START, *LONG[:n]]) for n in (4, 6, 8)]
        ledger = p.service.sessions.processor.state("memory_bank", "a").ledger
        assert {e.memory for e in done} == {"unchanged"}
        share = ledger.last.paid / done[-1].step.tokens
        assert 0.1 < share < 0.5 if works else 0.9 < share < 1.1
        assert ledger.paid == pytest.approx(ledger.full)


def test_a_prefix_older_than_the_retention_does_not_count(tmp_path):
    with served(Cached(works=False), tmp_path) as (_, p):
        for n in range(4, 28, 2):
            step(p, [*START, *LONG[:n]])
            paused(p, "a", 301)
        assert cache_of(p).read == 0.1


@pytest.mark.parametrize(("markers", "read"), [("auto", 0.1), ("off", 1.0)])
def test_without_marks_nothing_is_cached_on_the_messages_api(tmp_path, markers, read):
    with served(Cached(), tmp_path, cache_markers=markers) as (server, p):
        done = []
        for n in range(4, 80, 2):
            messages = [said("Check the orders."), *blocks(n // 2, size=400)]
            done.append(step(p, messages, model="claude-x", path="/v1/messages", max_tokens=9))
        assert cache_of(p).read == read
        assert cache_of(p).write == (1.25 if read < 1 else 1.0)
        assert server.refused == []
    assert done[-1].memory == "rebuilt"
    cached = [e.usage.cached for e in done]
    if markers == "auto":
        assert sum(changes(done)) <= 6
        assert sum(n == 0 for n in cached) <= 8
    else:
        assert set(cached) == {0}
        assert sum(changes(done)[-20:]) >= 18


@pytest.mark.parametrize("pauses", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("own", "minimum"),
    [
        ((), 4_096),
        (("tools",), 0),
        (("system", "messages"), 0),
        *(pytest.param(own, 0, marks=pytest.mark.long) for own in ((), ("system",))),
    ],
)
def test_marks_of_memory_cost_hardly_more_than_no_memory_at_any_request(tmp_path, own, pauses, minimum):
    """Nothing is cached without them but what the client marks, and what is written is dearer than what is not."""
    tool = {"name": "look", "description": "It looks. " * 2_000, "input_schema": {"type": "object"}}
    head = (
        {"tools": [tool], "system": [{"type": "text", "text": "You check orders. " * 1_000}]} if own else {}
    )
    model, upstream, alone = "claude-sonnet-4-5", Cached(minimum=minimum), Cached(minimum=minimum)
    with served(upstream, tmp_path) as (server, p):
        marked = []
        for n in range(1, 25):
            task = [
                {"role": "user", "content": [{"type": "text", "text": "Check."}]},
                *blocks(n, size=3_000),
            ]
            body = json.loads(json.dumps({**head, "max_tokens": 9, "messages": task}))
            for place in own:  # of the messages the one before the last turn
                blocks_of = body[place][-3]["content"] if place == "messages" else body[place]
                blocks_of[-1]["cache_control"] = {"type": "ephemeral"}
            if pauses and n > 8 and n % 2:  # the provider has forgotten what it was sent
                upstream.kept.clear()
                alone.kept.clear()
                paused(p, "a", 301)
            alone(body)
            messages = body.pop("messages")
            step(p, messages, model=model, path="/v1/messages", **body)
            assert upstream.paid(model)[1] <= 1.05 * alone.paid(model)[1], n
            marked.append("cache_control" in json.dumps(server.requests[-1].body["messages"][-1]))
    assert (alone.usages[-1].cached > 0) == bool(own)
    if not own:
        assert not any(marked[:3])
    if not pauses:
        assert all(marked[12:])
        assert upstream.paid(model)[1] < (0.9 if own else 0.4) * alone.paid(model)[1]


def test_the_answer_is_not_kept_waiting_by_a_step_of_the_session(tmp_path):
    """What is reported is taken on the event loop, while a step may hold the session's lock."""
    with served(Cached(), tmp_path) as (_, p):
        done = step(p, [*START, *LONG])
        state = p.service.sessions.processor.state("memory_bank", "a")
        with state.lock:
            done.step.state.prefix_cache.answered(done.step.charge, 5_000)
        assert answered_counts(done.step.state.prefix_cache) == [*done.step.charge.counts]


def test_a_request_sent_as_it_came_is_no_prefix_of_the_next_context(tmp_path):
    """Upstream refuses a rebuilt context: what memory built was never sent."""

    def refuse(body):
        folded = "[… #" in json.dumps(body["messages"], ensure_ascii=False)
        return Reply("no", status=400) if folded else Reply("ok", usage=(9_000, 1), cached=(0, 0))

    with served(refuse, tmp_path) as (_, p):
        for n in range(12, 18):
            messages = [said("Check the orders."), *blocks(n, size=1_500)]
            done = step(p, messages, path="/v1/messages", max_tokens=9)
            assert (done.memory, done.status, done.reason) == (
                "unchanged", 200, "upstream refused the rebuilt context",
            )  # fmt: skip
            assert answered_counts(cache_of(p, done.session)) is None
        assert cache_of(p).read == 0.1


def paused(p, name, seconds):
    with sqlite3.connect(p.service.config.service.database) as bank:
        sent = "SELECT sent FROM sessions WHERE session_id = ?"
        until(lambda: bank.execute(sent, (name,)).fetchone()[0])  # a step is stored after its answer
        bank.execute("UPDATE sessions SET asked = asked - ? WHERE session_id = ?", (seconds, name))


@pytest.mark.parametrize("ttl", ["5m", "1h"])
def test_a_prefix_that_is_kept_for_an_hour_is_not_folded_after_ten_minutes(tmp_path, ttl):
    """What the client's marks ask for is what the provider keeps, at twice the input price."""
    with served(Cached(), tmp_path) as (_, p):
        for n in (8, 9):
            messages = [said("Check the orders."), *blocks(n, size=500)]
            messages[-1]["content"][-1]["cache_control"] = {"type": "ephemeral", "ttl": ttl}
            if n == 9:
                paused(p, "a", 600)
            e = step(p, messages, NAME, model="claude-x", path="/v1/messages", max_tokens=9)
        assert e.memory == ("unchanged" if ttl == "1h" else "rebuilt")
        assert cache_of(p).write == (2.0 if ttl == "1h" else 1.25)


@pytest.mark.parametrize("asked", [{}, {"prompt_cache_retention": "24h"}])
def test_a_prefix_that_is_kept_for_a_day_is_not_folded_after_an_hour(tmp_path, asked):
    with served(Cached(), tmp_path) as (_, p):
        step(p, [*START, *rounds(8, size=6_000)], **asked)
        paused(p, "a", 4_000)
        e = step(p, [*START, *rounds(9, size=6_000)], **asked)
        assert e.memory == ("unchanged" if asked else "rebuilt")


def test_a_model_that_is_asked_once_is_no_reason_to_fold_what_another_has_in_its_cache(tmp_path):
    """Its own prefix is in no cache, but the next request to the other one would write the fold."""
    with served(Cached(), tmp_path) as (_, p):
        done = [
            step(p, [*START, *rounds(n, size=6_000)], model=model)
            for n, model in ((8, "m"), (9, "m"), (10, "other"), (11, "m"), (12, "m"))
        ]
    assert [e.memory for e in done] == ["unchanged"] * 5


def test_a_model_that_goes_on_after_a_pause_folds_what_no_cache_has(tmp_path):
    with served(Cached(), tmp_path) as (_, p):
        step(p, [*START, *rounds(8, size=6_000)], model="m")
        paused(p, "a", 600)
        assert step(p, [*START, *rounds(9, size=6_000)], model="other").memory == "rebuilt"


def test_a_chat_that_tells_nothing_of_its_cache_is_charged_as_one_that_caches(tmp_path):
    """Else the full history is taken to be paid anew at each step, and folds come that nothing saved pays for."""
    with served(lambda body: Reply("ok", usage=(len(json.dumps(body)) // 4, 5)), tmp_path) as (_, p):
        for n in range(2, 9):
            step(p, [*START, *rounds(n, size=6_000)])
        ledger = p.service.sessions.processor.state("memory_bank", "a").ledger
    assert ledger.full < 2 * 8 * 6_000 / 4


def test_what_a_step_costs_is_stored_before_its_request_is_sent(tmp_path):
    """A service that takes the next request of an agent that asks on at once finds it in the session's row."""
    stored, bank = [], []

    def answer(_body):
        with sqlite3.connect(bank[0]) as c:
            stored.append(c.execute("SELECT paid FROM sessions WHERE session_id = 'a'").fetchone()[0])
        return Reply("ok")

    with served(answer, tmp_path) as (_, p):
        bank.append(p.service.config.service.database)
        for n in range(2, 6):
            step(p, [*START, *rounds(n, size=6_000)])
    assert all(b > a for a, b in zip([0, *stored], stored, strict=False))


class Otherwise(Cached):
    """A provider that counts three times the tokens that memory does, but for ``HEAD`` of them; it keeps what came."""

    HEAD = 6_000

    def __init__(self) -> None:
        super().__init__()
        self.came: list[str] = []

    def __call__(self, body):
        self.came.append(json.dumps(body, sort_keys=True))
        reply = super().__call__(body)
        tokens, cached = (3 * n - 2 * min(n, self.HEAD) for n in (reply.usage[0], reply.cached[0]))
        return replace(reply, usage=(tokens, 1), cached=(cached, 0))


def stored_of(folder):
    """What a session has paid, once the answer to its newest request is stored, which is done after it is sent."""
    of_session = "SELECT paid, would_pay, cache FROM sessions WHERE session_id = 'a'"

    def sums():
        with sqlite3.connect(folder / "bank.db") as bank:
            *paid, cache = bank.execute(of_session).fetchone()
        return paid if json.loads(cache)[3] else None

    return until(sums)


@pytest.mark.parametrize("api", first_short(["messages", "chat"]))
def test_what_the_provider_counts_is_known_to_every_service_on_the_bank(tmp_path, api):
    """Two take the requests by turns, and one of them begins anew each time: the contexts are those of one alone."""
    model, path, of, size, new = {
        "chat": ("gpt-5", CHAT, rounds, 8_000, 1),
        "messages": ("claude-sonnet-4-5", "/v1/messages", blocks, 900, 2),
    }[api]
    more, begin = ({"max_tokens": 9}, said) if api == "messages" else ({}, user)
    lists = [[begin("Look. " * 4 * Otherwise.HEAD), *of(n, size=size)] for n in range(2, 46, new)]
    one, two, alone, turns = Otherwise(), Otherwise(), tmp_path / "alone", tmp_path / "by turns"
    with served(one, alone) as (_, p):
        folds = {step(p, task, model=model, path=path, **more).step.fold for task in lists}
    with served(two, turns) as (_, p):
        for n, task in enumerate(lists):
            if n % 2:
                with served(two, turns) as (_, other):
                    step(other, task, model=model, path=path, **more)
            else:
                step(p, task, model=model, path=path, **more)
                stored_of(turns)
    assert [n for n, pair in enumerate(zip(one.came, two.came, strict=True)) if pair[0] != pair[1]] == []
    assert stored_of(turns) == pytest.approx(stored_of(alone), rel=1e-3)  # 5% where it is not known
    assert len(folds) > 2
