"""The sessions as a service works with them: apart by namespace, rebuilt, closed when there are too many."""

import json
import threading

import pytest
from tests.bank.conftest import counted_commits
from tests.chats import call, parted, result, system, user
from tests.growth import cpu_seconds
from tests.service.serving import configured

from memory_bank import handle_tool_call
from memory_bank.bank.database import Database
from memory_bank.config import load_config
from memory_bank.errors import ConfigError, NotFoundError, UnknownStrategyError
from memory_bank.processor import NotSentError
from memory_bank.service.proxy.api import RequestHistory
from memory_bank.service.proxy.identity import named_session
from memory_bank.service.security.access import public_name, stored_id
from memory_bank.service.sessions import ProxiedRequest, Sessions
from memory_bank.transcript.pairing import pairing_errors


def noted(n):
    rows = [{"order": f"ORD-{1000 + n}", "line": k, "sku": f"SKU-{n * 97 + k * 13}"} for k in range(70)]
    return [call((f"c{n}", "get_order", {"number": n})), result(f"c{n}", json.dumps(rows))]


CHAT = [system(), user("Which orders are late?"), *(m for n in range(12) for m in noted(n))]

WHOLE = {
    "memory_bank": {
        "type": "memory_bank",
        "observer_model": "extractive",
        "embedding_model": "lexical",
        "first_sight": 0,
    }
}  # outputs as they came


@pytest.fixture
def database(bank_url):
    database = Database(bank_url)
    yield database
    database.close()


def hide(message):
    text = json.dumps(message)
    return json.loads(text.replace("ORD-1003", "[hidden]")) if "ORD-1003" in text else message


def test_a_context_is_rebuilt_and_whole(database):
    sessions = Sessions(database, configured(WHOLE))
    made = sessions.rebuild(None, "a", CHAT)
    assert made.tokens < made.full_tokens
    assert made.plan is not None
    assert not made.unchanged
    assert pairing_errors(made.context) == []
    assert parted(made.context)[:2] == CHAT[:2]
    assert made.context[-2:] == CHAT[-2:]
    assert made.records == 12
    assert made.messages == len(CHAT)


def test_namespaces_are_apart_under_one_name(database):
    sessions = Sessions(database, configured())
    sessions.rebuild("one", "same", CHAT)
    for there in (None, "two"):
        assert not sessions.exists(there, "same")
        with pytest.raises(NotFoundError), sessions.reading(there, "same"):
            pass
        with pytest.raises(NotFoundError):
            sessions.delete(there, "same")
    sessions.rebuild("two", "same", CHAT[:4])
    with sessions.reading("two", "same") as state:
        assert state.fact_store.size() == 1
    with sessions.reading("one", "same") as state:
        assert state.fact_store.size() == 12


def test_no_name_is_another_namespaces_session(database):
    sessions = Sessions(database, configured())
    sessions.rebuild("one", "same", CHAT)
    there = stored_id("one", "same")
    assert public_name("one", there) == "same"
    for name in (there, stored_id("two", "never")):  # told the same, whether it is there or not
        with pytest.raises(ConfigError, match="printable"):
            sessions.rebuild(None, name, CHAT)
        with pytest.raises(NotFoundError), sessions.reading(None, name):
            pass
    assert sessions.rebuild(None, "one/same", CHAT[:4]).records == 1
    assert sessions.rebuild("one", "same", CHAT).records == 12


@pytest.mark.parametrize("scope", ["project", "all"])
def test_a_wider_scope_ends_at_the_namespace(database, scope):
    bank = load_config().strategy("memory_bank").model_dump()
    sessions = Sessions(database, configured({"memory_bank": bank | {"scope": scope}}))
    for namespace, name, messages in (("one", "a", CHAT), ("one", "b", CHAT[:4]), ("two", "c", CHAT[:4])):
        sessions.finish(sessions.rebuild(namespace, name, messages, project="x"))
    with sessions.reading("one", "b") as state:
        assert 'holds "ord-1007"' in handle_tool_call(state, "search_memory", {"query": "ORD-1007"})
        assert state.wider.size() == 13
    with sessions.reading("two", "c") as state:
        assert "ORD-1007" not in handle_tool_call(state, "search_memory", {"query": "get_order 1007"})
        assert state.wider.size() == 1
        with sessions.reading("one", "a") as other:
            foreign = next(iter(other.fact_store.steps()))
        assert "no record" in handle_tool_call(state, "get_record", {"trace_id": foreign})


def test_what_is_redacted_is_sent_but_not_stored(database):
    sessions = Sessions(database, configured(WHOLE), redact=hide)
    for n in range(4, len(CHAT) + 1, 2):
        made = sessions.rebuild(None, "a", CHAT[:n])
        assert made.context[-2:] == CHAT[n - 2 : n]  # the agent's own request keeps it
        if n == 10:
            assert "ORD-1003" in json.dumps(made.context)
    assert "ORD-1003" not in json.dumps(made.context)  # it came from memory by now
    with sessions.reading(None, "a") as state:
        stored = state.fact_store.get_many(list(state.fact_store.steps()))
    assert len(stored) == 12
    assert not any("ORD-1003" in (r.output_text or "") for r in stored)
    assert sum("[hidden]" in (r.output_text or "") for r in stored) == 1


def test_a_reset_session_is_empty_and_a_deleted_one_gone_until_it_goes_on(database):
    sessions = Sessions(database, configured())
    sessions.rebuild(None, "a", CHAT)
    sessions.reset(None, "a")
    assert sessions.exists(None, "a")
    with sessions.reading(None, "a") as state:
        assert state.fact_store.size() == 0
    sessions.delete(None, "a")
    assert not sessions.exists(None, "a")
    with pytest.raises(NotFoundError):
        sessions.reset(None, "a")
    sessions.rebuild(None, "a", CHAT)
    assert sessions.exists(None, "a")
    with sessions.reading(None, "a") as state:
        assert state.fact_store.size() == 12


def test_another_worker_notices_a_reset(database):
    one, two = Sessions(database, configured()), Sessions(database, configured())
    one.rebuild(None, "a", CHAT)
    two.rebuild(None, "a", CHAT)
    one.delete(None, "a")
    made = two.rebuild(None, "a", CHAT)
    assert made.records == 12
    with one.reading(None, "a") as state:
        assert state.fact_store.size() == 12


def test_sessions_beyond_the_limit_are_closed_and_go_on_from_the_database(database):
    sessions = Sessions(database, configured(sessions_kept=2))
    for name in ("a", "b", "c", "a"):
        made = sessions.rebuild(None, name, CHAT)
    assert made.records == 12
    assert sessions.held == 2
    for name in ("a", "b", "c"):
        with sessions.reading(None, name) as state:
            assert state.fact_store.size() == 12


def test_sessions_of_too_many_tokens_are_closed(database):
    full = Sessions(database, configured()).rebuild(None, "a", CHAT).full_tokens
    sessions = Sessions(database, configured(tokens_kept=2 * full))
    for name in ("a", "b", "c", "d"):
        sessions.rebuild(None, name, CHAT)
    assert sessions.held <= 3  # the last is counted when it is done
    assert sessions.rebuild(None, "a", CHAT).records == 12


def test_large_requests_of_few_tokens_count_by_their_bytes(database):
    """Ids and images of megabytes, which a token counter does not see."""
    full = Sessions(database, configured()).rebuild(None, "a", CHAT).full_tokens
    for size, kept in ((0, 4), (64 * 3 * full, 2)):
        sessions = Sessions(database, configured(tokens_kept=4 * full))
        for name in ("a", "b", "c", "d"):
            sessions.rebuild(None, name, CHAT, size=size)
        assert sessions.held == kept


def test_many_threads_at_few_sessions(database):
    sessions = Sessions(database, configured(sessions_kept=2))
    failed = []

    def work(seed):
        try:
            for n in range(2, len(CHAT) + 1, 4):
                made = sessions.rebuild(None, f"s{seed % 4}", CHAT[:n])
                assert pairing_errors(made.context) == []
        except Exception as e:
            failed.append(e)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert failed == []
    for n in range(4):
        with sessions.reading(None, f"s{n}") as state:
            assert state.fact_store.size() == 12


def test_an_unknown_strategy_and_impossible_names_are_refused(database):
    sessions = Sessions(database, configured())
    with pytest.raises(UnknownStrategyError, match="memory_bank"):
        sessions.rebuild(None, "a", CHAT, strategy="memory_bonk")
    for name in ("", "x" * 500, "a\nb", "a\0b", "\ud800"):
        with pytest.raises(ConfigError, match="printable"):
            sessions.rebuild(None, name, CHAT)
    assert not sessions.exists(None, "a")


@pytest.mark.parametrize("strategy", ["no_strategy", "truncation", "observation_masking"])
def test_every_strategy_serves(database, strategy):
    sessions = Sessions(database, configured(strategy=strategy))
    made = sessions.rebuild(None, "a", CHAT)
    assert made.strategy == strategy
    assert pairing_errors(made.context) == []
    assert made.unchanged == (made.context == CHAT)


@pytest.mark.parametrize(
    "name",
    ["ghp_" + "a1B2" * 9, "run-of-sk-proj-" + "aB3_d-" * 12, "AKIA" + "Z7QX" * 4, "glpat-" + "a1B2" * 5],
)
def test_a_name_that_holds_a_secret_is_refused(database, name):
    sessions = Sessions(database, configured())
    for refused in ({"name": name}, {"name": "run", "project": name}):
        for store in (
            lambda given: sessions.rebuild(None, given["name"], CHAT, project=given.get("project")),
            lambda given: sessions.writing(None, given["name"], project=given.get("project")).__enter__(),
        ):
            with pytest.raises(ConfigError, match="looks like a secret") as refusal:
                store(refused)
            assert name not in str(refusal.value)
    with pytest.raises(ConfigError, match="looks like a secret"):
        named_session(None, {"x-memory-session": name}, {}, RequestHistory(CHAT))
    assert not sessions.exists(None, name)


@pytest.mark.parametrize(
    "name",
    ["main", "token-refresh", "password-reset", "sess-7", "9b1deb4d-3b7d-4bad-9bdd-2b0d7b3dcb6d", "key-12"],
)
def test_other_names_are_taken(database, name):
    Sessions(database, configured()).rebuild(None, name, CHAT[:4])


def test_parts_of_a_messages_api_message_keep_the_callers_text(database):
    """Where a message is shown in part, the parts that are shown are the caller's own."""
    sessions = Sessions(database, configured(), redact=hide_in_blocks)
    messages = [{"role": "user", "content": [block("Which orders are late? ORD-1003 is.")]}]
    for n in range(12):
        rows = noted(n)[1]["content"]
        uses = [
            {"type": "tool_use", "id": f"c{n}{k}", "name": "get_order", "input": {"number": n, "k": k}}
            for k in "ab"
        ]
        came = [
            {"type": "tool_result", "tool_use_id": f"c{n}{k}", "content": t}
            for k, t in (("a", rows), ("b", "ok"))
        ]
        messages += [
            {"role": "assistant", "content": uses},
            {"role": "user", "content": [*came, block(f"ORD-1003 again, {n}")]},
        ]
    made = sessions.rebuild(None, "a", messages)
    assert made.tokens < made.full_tokens
    said = [
        part["text"]
        for message in made.context
        if message["role"] == "user" and isinstance(message["content"], list)
        for part in message["content"]
        if part["type"] == "text" and not part["text"].startswith("<retrieved-data")
    ]
    assert said and "[hidden]" not in " ".join(said)
    assert any("ORD-1003" in text for text in said)


def block(text):
    return {"type": "text", "text": text}


def hide_in_blocks(message):
    """As the redaction does: what is hidden is a copy, what is not is the same object."""
    if not isinstance(message["content"], list):
        return hide(message)
    content = [hide(part) for part in message["content"]]
    same = all(a is b for a, b in zip(content, message["content"], strict=True))
    return message if same else {**message, "content": content}


def fresh_preview(database, messages, name="a"):
    sessions = Sessions(database, configured(strategy="folding"), None)
    shown = sessions.preview(None, name, messages)
    sessions.close()
    return shown


def test_a_preview_after_others_is_as_the_first_one(database):
    """What was previewed and not sent is gone in the next one; what was stored meanwhile is there."""
    sessions = Sessions(database, configured(strategy="folding"))
    more = [*CHAT, *(m for n in range(12, 16) for m in noted(n))]
    other = [*CHAT, *(m for n in range(30, 34) for m in noted(n))]
    for messages in (more, CHAT[:-2]):
        sessions.preview(None, "a", messages)
        assert sessions.preview(None, "a", messages) == fresh_preview(database, messages)
    sessions.rebuild(None, "a", more)
    assert sessions.preview(None, "a", other) == fresh_preview(database, other)
    with sessions.reading(None, "a") as state:
        assert state.fact_store.size() == 16  # nothing is stored by a preview
    sessions.reset(None, "a")
    short = more[:2] + more[-8:]
    assert "ORD-1003" not in json.dumps(sessions.preview(None, "a", short))


def test_the_second_preview_only_reads_what_is_new(database):
    sessions = Sessions(database, configured())
    messages = [system(), user("Which orders are late?"), *(m for n in range(40) for m in noted(n))]
    sessions.preview(None, "a", messages[:-2])
    known = cpu_seconds(lambda: sessions.preview(None, "a", messages))
    assert cpu_seconds(lambda: fresh_preview(database, messages, "b")) > 4 * known


def test_a_step_that_is_given_up_at_the_first_use_by_a_process_leaves_what_was_sent_before(database):
    one, other = (Sessions(database, configured()) for _ in range(2))
    one.finish(one.rebuild(None, "a", CHAT[:-2]))
    session = stored_id(None, "a")
    before, answers = database.extent(session), iter([True, False])
    with pytest.raises(NotSentError):
        other.rebuild(None, "a", CHAT, request=ProxiedRequest(sends=lambda: next(answers)))
    one.close(), other.close()
    after = database.extent(session)
    assert before.sent
    assert (after.sent, after.came) == (before.sent, before.came)
    assert (after.paid, after.would_pay) == pytest.approx((before.paid, before.would_pay))


def test_what_a_step_costs_is_stored_before_its_summaries(database):
    """Summaries are one transaction after the answer; a step whose work was dropped is charged all the same."""
    one, other = (Sessions(database, configured()) for _ in range(2))
    session, paid = stored_id(None, "a"), []
    for count, finishes in ((8, True), (10, False), (12, True)):
        step = one.rebuild(None, "a", CHAT[: 2 + 2 * count])
        paid.append(step.state.ledger.paid)
        if finishes:
            with counted_commits() as commits:
                one.finish(step)
            assert len(commits) <= 1 + (count == 12)  # a fold's reasons are stored by themselves
        stored = database.extent(session)
        assert (stored.records, stored.paid) == (count, pytest.approx(paid[-1]))
    step = other.rebuild(None, "a", CHAT)
    assert step.state.ledger.paid == pytest.approx(paid[-1] + step.state.ledger.last.paid)
    one.close(), other.close()


def test_a_request_stores_nothing_where_another_was_faster(database):
    sessions, session = Sessions(database, configured()), stored_id(None, "a")
    sessions.rebuild(None, "a", CHAT[:-4])
    for messages in (CHAT[:-2], [*CHAT[:-4], user("Go on.")]):
        with pytest.raises(NotSentError):
            sessions.rebuild(None, "a", messages, request=ProxiedRequest(lineage=lambda c: False))
        assert database.extent(session).records == 10
    heads = []
    request = ProxiedRequest(lineage=lambda c: not heads.append("moved"))
    sessions.rebuild(None, "a", CHAT[:-2], request=request)
    assert (database.extent(session).records, heads) == (11, ["moved"])
    sessions.close()
