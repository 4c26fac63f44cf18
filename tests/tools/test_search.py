"""The one search: what it finds, in which order, why, and what it never finds."""

import pytest
from tests.bank.conftest import *  # noqa: F403  the fixture ``bank``: memory, SQLite, PostgreSQL

from memory_bank import InteractionRecord, MemoryBankSettings, MemoryBankState
from memory_bank.bank.maintenance import purge
from memory_bank.bank.transfer import export_lines
from memory_bank.errors import EmbeddingError
from memory_bank.tools.handlers import answer_tool_call
from memory_bank.tools.search import search_session


def record(n, tool, arguments, output):
    return InteractionRecord(f"{n:08d}-trace", n, tool, arguments, output)


SHOP = [
    record(1, "get_order", {"id": "ORD-7"}, {"status": "open", "carrier": "unknown", "total": 12}),
    record(2, "list_returns", {"customer": "CUS-1"}, "two parcels came back damaged"),
    record(3, "get_customer", {"id": "CUS-1"}, {"name": "Ada", "address": "Main Street 5", "parcel": "PX-9"}),
    record(4, "read_policy", {}, "Refunds are paid within fourteen days of a return."),
    record(5, "get_order", {"id": "ORD-7"}, {"status": "shipped", "carrier": "Snail", "total": 12}),
    record(6, "ping", {}, "pong"),
]


@pytest.fixture
def state(bank):
    made = bank.state("shop")
    made.add(SHOP, task="help the customer")
    return made


def steps(state, query, top_k=5, **options):
    return [m.outline.step_id for m in search_session(state, query, top_k, **options).matches]


def test_words_rank_and_say_why(state):
    result = search_session(state, "when is a refund paid", 5)
    first, *others = result.matches
    assert (first.outline.step_id, first.why, first.reason) == (4, "words", "has words of the query")
    assert 0 < first.score <= 1
    assert [m.outline.step_id for m in others if m.why == "neighbour"] == [5, 3, 2, 1]
    assert all(m.reason.startswith("near a record that fits") for m in others if m.why == "neighbour")


@pytest.mark.parametrize("query", ["PX-9", "px-9", "parcel PX-9 of Ada"])
def test_exact_identifiers_come_first_with_their_place(state, query):
    first = search_session(state, query, 3).matches[0]
    assert first.outline.step_id == 3
    if query != "parcel PX-9 of Ada":
        assert first.reason == 'holds "px-9" at parcel'


def test_a_record_with_an_identifier_of_the_query_comes_first_unless_it_is_superseded(state):
    state.add([
        record(7, "read_mail", {"n": 1}, "Where the parcel of the customer is: the parcel is with the customer's carrier."),
        record(8, "read_mail", {"n": 2}, "Where is the parcel, the customer asks, where is the parcel of the customer?"),
        record(9, "list_parcels", {}, "PX-9, PX-10, PX-11"),
        record(10, "list_parcels", {}, "none is left"),
    ])  # fmt: skip
    found = steps(state, "where is the parcel PX-9 of the customer", 8, by_agent=False)
    assert set(found[:3]) == {3, 9, 10}
    assert found.index(10) < found.index(9)


def test_of_two_that_fit_alike_the_newer_comes_first(bank):
    """Whoever said it and however: a message, an output, the arguments of a call."""
    talk = bank.state("talk")
    talk.add([
        record(1, "message", {"speaker": "user"}, "Let us hold the design review on Tuesday in room Linden."),
        record(2, "get_weather", {"city": "Porto"}, {"sky": "clear", "wind": 3}),
        record(3, "get_rates", {"of": "EUR"}, {"USD": 1.08, "GBP": 0.85}),
        record(4, "message", {"speaker": "Priya"}, "I cannot come: the design review moves to Thursday, please."),
        record(5, "get_rates", {"of": "USD"}, {"EUR": 0.92, "GBP": 0.79}),
        record(6, "get_weather", {"city": "Ghent"}, {"sky": "rain", "wind": 9}),
    ])  # fmt: skip
    assert steps(talk, "when is the design review", by_agent=False)[:2] == [4, 1]


CHANGED = [
    record(1, "get_customer", {"name": "Lena Vogt"}, {"name": "Lena Vogt", "address": {"city": "Ghent"}}),
    record(2, "message", {"speaker": "user"}, "The budget of Lena Vogt for her trips is 300 euros this quarter, to spend on trains."),
    record(3, "message", {"speaker": "user"}, "The budget of Omar Haddad for his trips is 400 euros this quarter, to spend on trains."),
    record(4, "get_rates", {"of": "EUR"}, {"USD": 1.08, "GBP": 0.85}),
    record(5, "message", {"speaker": "Ada"}, "Lena Vogt got that raised to 500 euros."),
    record(6, "message", {"speaker": "Ada"}, "Did Lena Vogt spend 20 euros of her budget on trains?"),
    record(7, "get_weather", {"city": "Porto"}, {"sky": "clear", "wind": 3}),
    record(8, "message", {"speaker": "user"}, "Omar Haddad has moved to Porto."),
]  # fmt: skip


def test_a_message_that_tells_a_change_supersedes_what_was_said_of_the_same_thing(bank):
    talk = bank.state("talk")
    talk.add(CHANGED)
    matches = search_session(talk, "How much may Lena Vogt spend this quarter?", 5, by_agent=False).matches
    found = [m.outline.step_id for m in matches]
    assert found.index(5) < found.index(2)
    told = {m.outline.step_id: (m.newer, m.reason.partition("; ")[2]) for m in matches}
    later = CHANGED[4].trace_id
    assert told[2] == (later, f"superseded by {later}, a later message")
    assert {told[n] for n in told if n != 2} == {(None, "")}  # neither another thing's nor by a question
    answer = answer_tool_call(talk, "search_memory", {"query": "How much may Lena Vogt spend this quarter?"})
    assert "superseded by #5, a later message" in answer.text
    one = search_session(talk, "How much may Lena Vogt spend this quarter?", 1, by_agent=False).matches
    assert [m.outline.step_id for m in one] == found[:1]  # also a later one that fits less


@pytest.mark.parametrize(
    "query",
    [
        "How much could Lena Vogt originally spend this quarter?",  # of the past
        "Now let me see what Lena Vogt may spend this quarter",  # before a call
        "### Step 2: what Lena Vogt may spend this quarter",
    ],
)
def test_what_asks_not_what_is_so_now_is_ranked_by_fit(bank, query):
    talk = bank.state("talk")
    talk.add(CHANGED)
    matches = search_session(talk, query, 5, by_agent=False).matches
    found = [m.outline.step_id for m in matches]
    assert found.index(2) < found.index(5)
    assert {m.newer for m in matches} == {None}


def test_the_record_of_another_thing_supersedes_nothing_nor_does_one_in_view_come_first(bank):
    talk = bank.state("talk")
    talk.add(CHANGED)
    matches = search_session(talk, "Where does Lena Vogt live?", 8, by_agent=False).matches
    assert {m.outline.step_id for m in matches if m.newer} <= {2}
    talk.add([record(9, "message", {"speaker": "user"}, "Lena Vogt has moved from Ghent to Porto for good.")])
    found = search_session(talk, "Where does Lena Vogt live?", 9).matches
    assert found[-1].outline.step_id == 9  # the agent has it in view
    assert next(m for m in found if m.outline.step_id == 1).newer == "00000009-trace"


@pytest.mark.parametrize(
    ("query", "older", "later"),
    [
        (  # what is handed over is no seat
            "Which seat does Kenji Mori want?",
            record(1, "get_issue", {"key": "PAY-32752"}, {"key": "PAY-32752", "assignee": "Kenji Mori"}),
            record(2, "message", {"speaker": "user"}, "I am handing PAY-26716 to Kenji Mori, who knows the code."),
        ),
        (  # a tool's sentences, and nothing changed
            "Which region is the Atlas cluster in?",
            record(1, "get_cluster", {"name": "Atlas"}, {"name": "Atlas", "region": "Oslo", "healthy": True}),
            record(2, "ask_docs", {"n": 1}, "The Atlas cluster was actually tested in Porto before it was healthy there."),
        ),
        (  # the same value once more
            "What is the budget of Lena Vogt?",
            record(1, "message", {"speaker": "user"}, "The budget of Lena Vogt is 300 euros for trains."),
            record(2, "message", {"speaker": "Ada"}, "Lena Vogt may spend the 300 euros on planes instead."),
        ),
        (  # what changed is another's
            "Which region is Atlas in?",
            record(1, "get_cluster", {"name": "Atlas"}, {"name": "Atlas", "region": "Oslo", "healthy": True}),
            record(2, "message", {"speaker": "user"}, "Lena Vogt has moved to Porto. We have Atlas, which is healthy."),
        ),
        (  # a figure of something else
            "What is the budget of Lena Vogt?",
            record(1, "message", {"speaker": "user"}, "The budget of Lena Vogt is 300 euros for trains."),
            record(2, "message", {"speaker": "Ada"}, "Lena Vogt has changed 2 trains since."),
        ),
    ],
)  # fmt: skip
def test_what_gives_no_other_value_of_what_is_asked_supersedes_nothing(bank, query, older, later):
    talk = bank.state("talk")
    talk.add([older, later, record(3, "get_weather", {"city": "Porto"}, {"sky": "clear"})])
    matches = search_session(talk, query, 5, by_agent=False).matches
    assert {1, 2} <= {m.outline.step_id for m in matches}
    assert {m.newer for m in matches} == {None}


def test_before_a_call_the_newest_of_one_tool_comes_first_and_no_other(bank):
    work = bank.state("work")
    work.add([
        record(1, "check_links", {"n": 1}, "broken references: intro and method"),
        record(2, "read_mail", {"n": 1}, "lunch at noon"),
        record(3, "check_links", {"n": 2}, "broken references: method, of many"),
        record(4, "read_mail", {"n": 2}, "lunch at one"),
        record(5, "write_file", {"n": 1}, "the references of a method, many"),
    ])  # fmt: skip
    assert steps(work, "Now let me fix the broken references:", by_agent=False)[:2] == [3, 1]


def test_a_part_of_the_same_output_supersedes_nothing(bank):
    work = bank.state("work")
    text = [f"line {n} of the harbour" for n in range(9)]
    work.add([
        record(1, "Read", {"file": "a.txt", "limit": 3}, "\n".join(text[:3])),
        record(2, "Read", {"file": "a.txt", "limit": 9}, "\n".join(text)),
    ])  # fmt: skip
    assert {m.newer for m in search_session(work, "harbour", 5, by_agent=False).matches} == {None}


def test_the_nearer_neighbour_comes_first_and_none_is_six_away(bank):
    work = bank.state("work")
    work.add([
        record(n, "look", {"n": n}, "the zeppelin has landed" if n == 8 else f"{'abcdefghijklmnop'[n]} {n}")
        for n in range(1, 16)
    ])  # fmt: skip
    found = search_session(work, "zeppelin", 20, by_agent=False).matches
    far = [abs(m.outline.step_id - 8) for m in found]
    assert far == sorted(far) == [0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]


def test_a_long_answer_with_words_of_change_supersedes_nothing(bank):
    talk = bank.state("talk")
    advice = "Instead of trains Lena Vogt could take buses, and raise the matter of her budget with the quarter's review. "
    talk.add([*CHANGED[1:4], record(5, "message", {"speaker": "assistant"}, advice * 4), *CHANGED[6:]])
    matches = search_session(talk, "How much may Lena Vogt spend this quarter?", 5, by_agent=False).matches
    assert matches[0].outline.step_id == 2
    assert {m.newer for m in matches} == {None}


def test_a_query_that_nothing_matches_finds_nothing(state):
    assert search_session(state, "zeppelin quantum xyzzy", 20).matches == []


def test_the_latest_fact_comes_first_and_the_older_says_so(state):
    matches = search_session(state, "status of order ORD-7", 5, by_agent=False).matches
    found = [m.outline.step_id for m in matches]
    assert found.index(5) < found.index(1)
    older = next(m for m in matches if m.outline.step_id == 1)
    assert older.newer == SHOP[4].trace_id
    assert "superseded" in older.reason
    assert next(m for m in matches if m.outline.step_id == 5).newer is None
    only = search_session(state, "unknown carrier open", 1, by_agent=False).matches
    assert [m.outline.step_id for m in only] == [5]  # also where only the older one would have been found


def test_messages_of_a_conversation_do_not_supersede_one_another(bank):
    """They have the same tool and speaker, and each says something else."""
    said = [
        "I would like to adopt a puppy from the shelter, maybe a small one.",
        "That is lovely news! Which name did you think of for the little dog?",
        "We settled on Biscuit because of the colour of his fur.",
        "How are the driving lessons of your sister going these days?",
        "She passed the test on her second attempt and bought a used car.",
        "Let us talk again next week about the trip to the mountains.",
        "In Porto.",
        "At 12:15, I think?",
    ]
    talk = bank.state("talk")
    talk.add([
        record(n, "message", {"speaker": ("Ada", "Bob")[n % 2]}, {"text": text} if n > 3 else text)
        for n, text in enumerate(said, 1)
    ])  # fmt: skip
    for query, step in (("the name of the little dog", 2), ("colour of the fur", 3), ("who bought a car", 5)):
        matches = search_session(talk, query, 5, by_agent=False).matches
        assert matches[0].outline.step_id == step
        assert {m.newer for m in matches} == {None}


def test_a_record_says_which_later_one_supersedes_it(bank, state):
    def answer(trace_id, of=state):
        return answer_tool_call(of, "get_record", {"trace_id": trace_id})

    old, new = SHOP[0].trace_id, SHOP[4].trace_id
    said = answer(old)
    assert f"\nsuperseded by {new}, a later result of the same call\n" in said.text
    assert said.records[0]["newer"] == new
    for current in (new, SHOP[1].trace_id):
        assert "superseded" not in answer(current).text
        assert answer(current).records[0]["newer"] is None
    other = bank.state("other")
    other.prepare(MemoryBankSettings(scope="all", embedding_model="lexical"))
    assert f"superseded by {new}" in answer(old, other).text
    other.add([record(9, "get_order", {"id": "ORD-7"}, "another session's")])
    assert answer(old).records[0]["newer"] == new
    state.add([record(7, "get_order", {"id": "ORD-7"}, "Error: timed out")])
    assert answer(old).records[0]["newer"] == new  # a failure says nothing about the order
    state.add([record(8, "get_order", {"id": "ORD-7"}, SHOP[0].raw_output)])
    assert answer(old).records[0]["newer"] is None  # it is so again
    assert answer(new).records[0]["newer"] == record(8, "", {}, "").trace_id


def test_a_failed_call_and_another_object_supersede_nothing(state):
    state.add([
        record(7, "get_order", {"id": "ORD-7"}, {"error": "timeout"}),
        record(8, "get_order", {"id": "ORD-8"}, {"status": "lost"}),
    ])  # fmt: skip
    newest = search_session(state, "order ORD-7 shipped Snail", 5, by_agent=False).matches[0]
    assert (newest.outline.step_id, newest.newer) == (5, None)


def test_what_an_agent_has_in_view_comes_last(state):
    assert steps(state, "pong", by_agent=False)[0] == 6
    state.add([record(7, "ping", {"again": True}, "pong")])
    assert steps(state, "pong")[0] == 6
    assert steps(state, "pong", by_agent=False)[0] == 7


def test_names_in_the_middle_of_a_long_output_are_found(state):
    filler = "lorem ipsum dolor " * 20_000
    state.add(
        [record(7, "read_log", {}, f"{filler} request REQ-40001 failed {filler}"), record(8, "ping", {}, "x")]
    )
    assert steps(state, "REQ-40001")[0] == 7


def test_a_record_of_a_wider_scope_is_found_from_one_index_for_the_namespace(bank):
    one, two, stranger = (bank.state(s) for s in ("one", "two", "three"))
    one.add(SHOP[:3])
    two.add(SHOP[3:])
    assert steps(two, "damaged parcels", scope="all") == steps(one, "damaged parcels", by_agent=False)
    found = search_session(one, "refunds", 5, scope="all").matches
    assert [(m.session_id, m.outline.step_id) for m in found][0] == ("two", 4)
    assert search_session(one, "refunds", 5).matches == []
    stranger.add([record(1, "note", {}, "refunds refunds")])
    assert search_session(two, "refunds", 5, scope="all").matches[0].session_id == "three"


@pytest.mark.parametrize("end", ["reset", "forget", "purge"])
def test_what_was_deleted_is_not_found(bank, state, end):
    other = bank.state("other")
    other.add(SHOP[:1])
    assert steps(other, "refunds", scope="all") == [4, *steps(other, "refunds", scope="all")[1:]]
    if end == "reset":
        state.reset()
    elif end == "forget":
        state.fact_store.forget(SHOP[3].trace_id)
    else:
        list(purge(bank.database(), session_id="shop"))
    assert 4 not in steps(state, "refunds paid fourteen") + steps(other, "refunds paid fourteen", scope="all")
    left = [line for line in export_lines(bank.database(), "shop") if "ourteen" in str(line)]
    assert left == []


def test_an_embedder_that_fails_leaves_the_words(bank):
    class Moody:
        name = "moody"
        fails = False

        def encode(self, texts):
            if self.fails:
                raise OSError("gone")
            return [[1.0, len(text) % 7] for text in texts]

    model = Moody()
    state = MemoryBankState(model, database=bank.database(), session_id="moody")
    state.add(SHOP)
    both = search_session(state, "refunds paid", 3)
    assert both.matches[0].outline.step_id == 4
    assert both.matches[0].why == "words"
    model.fails = True
    result = search_session(state, "refunds are paid", 3)
    assert isinstance(result.trouble, EmbeddingError)
    assert result.matches[0].outline.step_id == 4
