"""check_call and ProvenanceGuard: where argument values came from, and which have no source."""

import json
import logging
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.chats import JSON, TEXT, any_chats, call, result, rounds, say, system, user

from memory_bank import MemoryBankError, MemoryBankSettings, MemoryBankState, apply_memory_bank_strategy
from memory_bank.errors import ConfigError, MessagesError
from memory_bank.provenance import Origin, ProvenanceError, ProvenanceGuard, check_call
from memory_bank.provenance.index import ValueKind, distance, find, hard_runs, kind_of_text, normal

LOCAL = MemoryBankSettings(
    embedding_model="lexical", observer_model="extractive", token_encoding="approximate"
)
ORDERS = {
    "orders": [
        {"id": "A-1042", "email": "mia.garcia@acme.io", "account": 8812345678, "file": "/srv/data/q3_in.csv"},
        {"id": "A-2077", "email": "jo.park@acme.io", "account": 8810005678, "file": "/srv/data/q4_in.csv"},
    ]
}
CHAT = [
    system("You serve the shop S-77881."),
    user("Please refund order B-9001 of tom.baker@example.org"),
    call(("c1", "get_orders", {"customer": "tom"})),
    result("c1", json.dumps(ORDERS)),
    call(("c2", "read_log", {"name": "log"})),
    result("c2", "first line\nparcel PX-55012 left\nlast"),
]


def check(arguments, messages=CHAT, name="refund", state=None, **options):
    return check_call((name, arguments), state or MemoryBankState(), messages, **options)


def origin_of(value, **options) -> Origin:
    return check({"value": value}, **options).values[0].origin


# --- where from


@pytest.mark.parametrize(
    ("value", "origin"),
    [
        ("A-1042", Origin.RECORD),
        ("a-1042", Origin.RECORD),
        (8812345678, Origin.RECORD),
        ("PX-55012", Origin.RECORD),
        ("B-9001", Origin.USER),
        ("tom.baker@example.org", Origin.USER),
        ("S-77881", Origin.SYSTEM),
        (True, Origin.TRIVIAL),
        (None, Origin.TRIVIAL),
        ("", Origin.TRIVIAL),
        (7, Origin.TRIVIAL),
        ("asc", Origin.TRIVIAL),
        (123.45, Origin.WRITTEN),
        ("2031-04-05", Origin.WRITTEN),
        ("Dear Mia, your refund of 17.23 is on its way.", Origin.WRITTEN),
        ("/srv/data/A-1042.csv", Origin.COMPOSED),
        ("https://acme.io/orders/A-1042", Origin.COMPOSED),
        ("tom.park@acme.io", Origin.COMPOSED),
        ("PX55012", Origin.COMPOSED),
        ("A-1043", Origin.NOWHERE),
        ("mia.garcai@acme.io", Origin.NOWHERE),
        (8812345687, Origin.NOWHERE),
        ("PX-55021", Origin.NOWHERE),
        ("ceo@acme.io", Origin.NOWHERE),
    ],
)
def test_origins(value, origin):
    report = check({"value": value})
    assert report.values[0].origin is origin
    assert report.ok == (origin is not Origin.NOWHERE)


def test_a_record_is_named_with_its_place():
    state = MemoryBankState()
    (value,) = check({"order_id": "A-2077"}, state=state).values
    place = value.place.as_dict()
    assert len(place.pop("trace_id")) == 36
    assert place == {"role": "record", "place": "orders[1].id", "tool": "get_orders", "step": 1}
    (line,) = check({"parcel": "PX-55012"}, state=state).values
    assert (line.place.tool, line.place.step, line.place.place) == ("read_log", 2, "line 2")
    assert "get_orders, step 1 (orders[1].id)" in value.sentence()


def test_the_nearest_real_value_is_proposed():
    report = check({"order_id": "A-1024"})
    (alarm,) = report.alarms
    assert alarm.nearest.value == "A-1042"
    assert alarm.nearest.distance == 1
    assert "did you mean A-1042, from get_orders, step 1?" in report.sentence()
    json.dumps(report.as_dict())


def test_the_agents_own_words_are_told_apart():
    messages = [*CHAT, say("I shall look at C-7070 next."), user("ok")]
    assert origin_of("C-7070", messages=messages) is Origin.AGENT


def test_schema_values_are_known():
    tools = [{"type": "function", "function": {"name": "x", "parameters": {"enum": ["plan_20477"]}}}]
    assert origin_of("plan_20477") is Origin.NOWHERE
    assert origin_of("plan_20477", tools=tools) is Origin.SCHEMA


def test_the_call_that_is_checked_is_no_source():
    wrong = call(("c3", "refund", {"order_id": "A-9999"}), text="I refund A-9999.")
    report = check_call(wrong["tool_calls"][0], MemoryBankState(), [*CHAT, wrong])
    assert [a.value for a in report.alarms] == ["A-9999"]
    parallel = call(("c3", "refund", {"order_id": "A-9999"}), ("c4", "refund", {"order_id": "A-9999"}))
    report = check_call(parallel["tool_calls"][1], MemoryBankState(), [*CHAT, parallel, result("c3", "done")])
    assert not report.ok


def test_json_within_text_and_lists_are_gone_into():
    report = check({"body": json.dumps({"ids": ["A-1042", "A-1043"]}), "list": [{"x": "A-2077"}]})
    assert [(v.path, v.origin) for v in report.values] == [
        ("body.ids[0]", Origin.RECORD),
        ("body.ids[1]", Origin.NOWHERE),
        ("list[0].x", Origin.RECORD),
    ]


def test_text_is_checked_token_by_token_for_slips_only():
    fine = "SELECT * FROM orders WHERE id = 'A-1042' AND total > 51234 -- see ticket_v2 ZZ81-QQ77X"
    assert check({"sql": fine}).ok
    slip = check({"sql": "SELECT * FROM orders WHERE mail = 'mia.garcia@acme.io' AND parcel = 'PX-55021'"})
    (alarm,) = slip.alarms
    assert alarm.token
    assert alarm.value == "PX-55021"
    assert alarm.nearest.value == "PX-55012"


def test_names_of_new_things_are_the_agents_own():
    assert check({"path": "/srv/data/summary_88123.csv", "content": "x"}, name="write_file").ok
    assert not check({"path": "/srv/data/summary_88123.csv"}, name="read_file").ok


def test_a_slip_in_a_path_is_mended():
    (alarm,) = check({"path": "/srv/daat/q3_in.csv"}, name="read_file").alarms
    assert alarm.nearest.value == "/srv/data/q3_in.csv"


def test_one_number_does_not_stand_within_another():
    assert find(normal("total 1645.99 or 645.99"), "645") == -1
    assert find(normal("645, and more"), "645") == 0
    assert origin_of("88123456") is Origin.NOWHERE


def test_escaped_and_nested_json_is_seen_through():
    inner = json.dumps({"text": json.dumps({"path": "/a/b/KQ-90210.txt", "name": "Zoë"})})
    messages = [user(), call(("a", "f", {})), result("a", inner)]
    assert origin_of("/a/b/KQ-90210.txt", messages=messages) is Origin.RECORD
    assert normal('\\"caf\\u00e9\\"\\n') == '"café"'


def test_cjk_text_hides_no_number():
    messages = [user("请退款订单KQ90210吧")]
    assert origin_of("KQ90210", messages=messages) is Origin.USER


# --- what a call may look like


def test_calls_of_all_shapes():
    arguments = '{"order_id": "A-1043"}'
    function = SimpleNamespace(name="refund", arguments=arguments)
    for made in (
        {"id": "x", "type": "function", "function": {"name": "refund", "arguments": arguments}},
        SimpleNamespace(id="x", type="function", function=function),
        {"type": "function_call", "call_id": "x", "name": "refund", "arguments": arguments},
        ("refund", arguments),
        ("refund", json.loads(arguments)),
    ):
        report = check_call(made, MemoryBankState(), CHAT)
        assert report.name == "refund"
        assert [a.path for a in report.alarms] == ["order_id"]
    for wrong in (None, 3, {}, ("refund",)):
        with pytest.raises(MessagesError):
            check_call(wrong, MemoryBankState(), CHAT)
    with pytest.raises(MessagesError):
        check_call(("refund", "{}"), MemoryBankState(), "no list")


def test_broken_arguments_are_checked_as_text():
    report = check('{"order_id": "PX-55021')
    assert [a.value for a in report.alarms] == ["PX-55021"]


@given(any_chats(), JSON | TEXT, TEXT)
def test_nothing_makes_it_raise(messages, arguments, name):
    report = check_call((name or "f", arguments), MemoryBankState(), messages)
    json.dumps(report.as_dict())
    assert report.sentence()
    assert all(v.sentence() for v in report.values)


@given(st.from_regex(r"[A-Z]{2}-[1-9][0-9]{5}", fullmatch=True), st.integers(0, 8))
def test_what_a_tool_returned_is_never_an_alarm(identifier, step):
    messages = [user(), *rounds(step), call(("q", "f", {})), result("q", json.dumps({"k": [identifier]}))]
    (value,) = check({"id": identifier}, messages).values
    assert value.origin is Origin.RECORD
    assert value.place.place in ("k[0]", "order_id")


# --- state, steps and sessions


def test_messages_come_from_the_last_plan():
    state = MemoryBankState("lexical")
    apply_memory_bank_strategy(CHAT, None, LOCAL, state)
    (value,) = check_call(("refund", {"id": "A-1042"}), state).values
    assert value.place.trace_id in state.steps
    assert state.fact_store.get(value.place.trace_id).tool_name == "get_orders"
    assert not check_call(("refund", {"id": "A-1043"}), state).ok
    state.reset()
    assert not check_call(("refund", {"id": "A-1042"}), state).ok


def test_records_without_messages_are_read_from_the_bank(tmp_path):
    with MemoryBankState.open(tmp_path / "b.db", "s", "lexical") as state:
        apply_memory_bank_strategy(CHAT, None, LOCAL, state)
    with MemoryBankState.open(tmp_path / "b.db", "s", "lexical") as again:
        (value,) = check_call(("refund", {"id": "A-1042"}), again).values
        assert value.origin is Origin.RECORD
    with MemoryBankState.open(tmp_path / "b.db", "other", "lexical") as other:
        assert not check_call(("refund", {"id": "A-1042"}), other).ok


def test_a_growing_conversation_is_the_same_as_a_whole_one():
    grown = MemoryBankState()
    messages = [user()]
    for i in range(12):
        messages += rounds(1, start=i)
        check({"id": f"ORD-{1000 + i}"}, messages, state=grown)
    values = {"a": "ORD-1003", "b": "ORD-1030", "c": "ORD-1011", "d": [5, "xs"]}
    whole = MemoryBankState()
    assert check(values, messages, state=grown) == check(values, messages, state=whole)
    assert not check(values, messages, state=grown).ok


class Counted(dict):
    """A message that counts how often its fields are read."""

    reads = 0

    def get(self, key, default=None):
        Counted.reads += 1
        return super().get(key, default)


def test_a_check_does_not_read_old_messages_again():
    reads = []
    for n in (250, 1_000):
        state = MemoryBankState()
        messages = [Counted(m) for m in [user(), *rounds(n)]]
        check({"id": "ORD-1100"}, messages, state=state)
        messages += map(Counted, rounds(1, start=n))
        Counted.reads = 0
        assert not check({"id": "ORD-9100", "limit": 5}, messages, state=state).ok
        reads.append(Counted.reads)
    assert 0 < reads[1] <= reads[0] + 10


# --- the guard


def test_the_guard_warns_without_contents(caplog):
    guard = ProvenanceGuard()
    with caplog.at_level(logging.DEBUG, "memory_bank"):
        report = guard(("refund", {"order_id": "A-1024", "note": "ok"}), MemoryBankState(), CHAT)
    assert not report.ok
    (record,) = [r for r in caplog.records if r.name == "memory_bank.Provenance"]
    assert record.levelno == logging.WARNING
    assert "order_id" in record.getMessage()
    assert "1024" not in caplog.text
    assert "1042" not in caplog.text


def test_the_guard_blocks():
    guard, state = ProvenanceGuard("block"), MemoryBankState()
    assert guard(("refund", {"order_id": "A-1042"}), state, CHAT).ok
    with pytest.raises(ProvenanceError) as caught:
        guard(("refund", {"order_id": "A-1024"}), state, CHAT)
    assert isinstance(caught.value, MemoryBankError)
    assert caught.value.report.alarms[0].nearest.value == "A-1042"
    assert "1024" not in str(caught.value)
    assert [r.ok for r in guard.reports] == [True, False]


def test_the_guard_only_reports(caplog):
    guard = ProvenanceGuard("report", only_alarms=True, keep=2)
    state = MemoryBankState()
    for i in range(4):
        guard(("refund", {"order_id": f"A-400{i + 3}"}), state, CHAT)
    guard(("refund", {"order_id": "A-1042"}), state, CHAT)
    assert [r.values[0].value for r in guard.reports] == ["A-4005", "A-4006"]
    assert not [r for r in caplog.records if r.name == "memory_bank.Provenance"]


def test_an_unknown_mode_is_refused():
    with pytest.raises(ConfigError, match="warn, block, report"):
        ProvenanceGuard("shout")


# --- the parts


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("A-1042", ValueKind.CODE),
        ("4f3a9c1e-aaaa-4bbb-8ccc-1234567890ab", ValueKind.CODE),
        ("a@b.io", ValueKind.EMAIL),
        ("https://x.io/a", ValueKind.URL),
        ("/a/b.txt", ValueKind.PATH),
        ("C:\\data\\x.txt", ValueKind.PATH),
        ("1234567", ValueKind.LONG_NUMBER),
        ("123", ValueKind.TRIVIAL),
        ("5000", ValueKind.NUMBER),
        ("1,234.50", ValueKind.NUMBER),
        ("2024-05-01T10:00:00Z", ValueKind.DATE),
        ("10:30", ValueKind.DATE),
        ("order_items", ValueKind.NAME),
        ("#1a1a2e", ValueKind.TRIVIAL),
        ("#W2378156", ValueKind.CODE),
        ("A1:D25", ValueKind.TRIVIAL),
        ("Novato", ValueKind.WORD),
        ("two words", ValueKind.TEXT),
    ],
)
def test_kinds(text, kind):
    assert kind_of_text(text) is kind


def test_what_nobody_guesses():
    assert hard_runs("report_2024-05-01_v2_1080p_sha256.csv") == []
    assert hard_runs("credit_card_9513926") == ["9513926"]
    assert hard_runs("00000012") == ["00000012"]
    assert hard_runs("fDZjV8EAAAAJ") == ["fdzjv8eaaaaj"]


WORDS = st.text("ab1", max_size=8)


@given(WORDS, WORDS, st.integers(0, 8))
def test_distances(a, b, limit):
    """Against the plain recurrence of the optimal string alignment distance."""
    table = {}
    for i in range(-1, len(a)):
        for j in range(-1, len(b)):
            if i < 0 or j < 0:
                table[i, j] = max(i, j) + 1
                continue
            best = min(table[i - 1, j] + 1, table[i, j - 1] + 1, table[i - 1, j - 1] + (a[i] != b[j]))
            if i and j and a[i] == b[j - 1] and a[i - 1] == b[j]:
                best = min(best, table[i - 2, j - 2] + 1)
            table[i, j] = best
    want = table[len(a) - 1, len(b) - 1]
    assert distance(a, b, limit) == min(want, limit + 1)
