"""selection = "evidence": under the budget, with whole pairs, a stable prefix, and what the next call needs."""

import json
import random
import re
from itertools import pairwise, takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.chats import FOLDING, any_chats, call, good_chats, parted, result, rounds, say, system, user
from tests.examples import examples, first_short
from tests.selection.texts import filled
from tests.shops import messages_of, shop_run

from memory_bank import (
    TOOL_SCHEMAS,
    Memory,
    MemoryBankSettings,
    MemoryBankState,
    MemoryProcessor,
    apply_memory_bank_strategy,
)
from memory_bank.config import Config
from memory_bank.context.evidence import quotes_by_text
from memory_bank.errors import ConfigError
from memory_bank.selection.cutting import cut_text
from memory_bank.transcript.messages import MessageKind, kind_of
from memory_bank.transcript.pairing import pairing_errors
from memory_bank.transcript.tokens import approximate_counter

LOCAL = {
    "selection": "evidence",
    "embedding_model": "lexical",
    "observer_model": "extractive",
    "token_encoding": "approximate",
    "refresh_after": 0,
    "first_sight": 0,
}
"""Settings that fold at every step, with outputs as they came. Folds that stand for several steps: test_folding.py."""


def applied(messages, state=None, *, offered=None, **changes):
    state = state or MemoryBankState("lexical")
    settings = MemoryBankSettings(**{**LOCAL, **changes})
    return apply_memory_bank_strategy(messages, None, settings, state, tools=offered)


def apply(*given, **changes):
    context, tokens = applied(*given, **changes)
    return parted(context), tokens


def shared(before, now):
    """How many messages or characters both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, now, strict=False)))


def orders(n: int, rows: int = 30, start: int = 0):
    """n calls that each return a table of orders."""
    out = []
    for i in range(start, start + n):
        rest = {"city": "Oslo", "note": "as agreed"}
        table = [{"order_id": f"ORD-{i}{r:03}", "customer": f"CUS-{i * 7 + r}", **rest} for r in range(rows)]
        out += [call((f"c{i}", "list_orders", {"page": i})), result(f"c{i}", json.dumps(table))]
    return out


def test_a_history_that_fits_is_left_untouched():
    messages = [system(), user(), *rounds(4)]
    state = MemoryBankState("lexical")
    context, tokens = apply(messages, state, history_budget=100_000)
    assert context == messages
    assert tokens == state.last_plan.full_tokens
    assert state.last_plan.why_unchanged == "the older history is shorter than a fold and its growth"


@examples(60)
@given(
    good_chats(),
    st.sampled_from([0, 1, 5, 40, 200, 1_600, 0.0, 0.1, 0.5, 1.0]),
    st.integers(0, 2),
    st.booleans(),
)
def test_never_over_budget_never_dearer_never_a_broken_pair(messages, budget, recent, long):
    messages = [*messages, *(orders(12, rows=8) if long else [])]
    if pairing_errors(messages):
        return
    state = MemoryBankState("lexical")
    context, tokens = applied(messages, state, history_budget=budget, keep_recent=recent)
    plan = state.last_plan
    assert pairing_errors(context) == []
    assert tokens == sum(map(state.counter.count_message, context)) <= plan.full_tokens
    view = plan.view
    kept = sum(view.tokens_between(p, p + 1) for p in view.kept)
    older = view.tokens_between(0, view.tail_start) - kept
    allowed = int(older * budget) if isinstance(budget, float) else budget
    kept += sum(  # words before a call that part two messages of the user
        e.tokens
        for p, e in plan.choice.edits.items()
        if p < view.tail_start and kind_of(messages[p]) is MessageKind.SAY
    )
    if not plan.unchanged:
        assert tokens - kept - view.tokens_between(view.tail_start, len(messages)) <= allowed


@examples(30)
@given(any_chats())
def test_any_list_goes_through(messages):
    state = MemoryBankState("lexical")
    context, tokens = applied(messages, state, history_budget=60)
    assert tokens == sum(map(state.counter.count_message, context)) <= state.last_plan.full_tokens
    json.dumps(state.last_plan.as_dict(), default=str)


def test_what_was_used_before_stays_in_a_tenth_of_the_history():
    messages = [user("Refund what went wrong."), *orders(4)]
    detail = json.dumps({"order_id": "ORD-2003", "payment_id": "PAY-77123", "state": "captured twice"})
    messages += [call(("x", "get_order", {"order_id": "ORD-2003"})), result("x", detail), *orders(4, start=4)]
    context, _ = apply(messages, history_budget=0.1)
    memory = context[1]["content"]
    assert "ORD-2003" in memory
    assert "PAY-77123" in memory


def test_the_order_of_the_context_and_later_users():
    messages = [system(), user("a"), *orders(3), say("Which?"), user("the second"), *orders(3, start=3)]
    context, _ = apply(messages, history_budget=300)
    assert context[:4] == [system(), user("a"), say("Which?"), user("the second")]
    assert context[4]["role"] == "user"
    assert context[5:] == messages[-2:]


def test_the_prefix_is_stable_from_step_to_step():
    state = MemoryBankState("lexical")
    messages = [system(), user("Refund all orders.")]
    texts = []
    for i in range(12):
        refund = call((f"r{i}", "refund", {"order": f"ORD-{i}001"}))
        messages += [*orders(1, start=i), refund, result(f"r{i}", '{"state": "paid"}')]
        context, _ = apply(messages, state, history_budget=2_000)
        texts += [] if state.last_plan.unchanged else [context[2]["content"]]
    same = [shared(before, text) for before, text in pairwise(texts)]
    assert len(same) >= 5
    assert min(same) > 100  # the fence and the lines of refunds so far
    assert same[-1] > same[0]


def test_recent_interactions_can_be_kept_whole():
    messages = [user(), *orders(12)]
    state = MemoryBankState("lexical")
    context, _ = apply(messages, state, history_budget=0.6, keep_recent=5)
    assert context[-4:] == messages[-4:]
    reasons = [d.reason for d in state.last_plan.decisions]
    assert "kept whole" in reasons[-1]
    assert "kept whole" not in reasons[-2]  # a fifth of the budget has room for one


def test_the_plan_tells_what_was_shown_listed_and_left_out():
    state = MemoryBankState("lexical")
    apply([user("Refund the order of CUS-12."), *orders(10)], state, history_budget=400)
    plan = state.last_plan
    assert [d.step for d in plan.decisions] == list(range(1, 10))
    fates = {str(d.fate) for d in plan.decisions}
    assert "shown in part" in fates
    assert fates <= {"kept", "shown in part", "listed", "left out"}
    shown = next(d for d in plan.decisions if str(d.fate) == "shown in part")
    assert shown.score is not None
    assert "of 30 pieces" in shown.reason or "pieces" in shown.reason


def test_reopening_gives_the_same_context(tmp_path):
    messages = [user("Refund the order of CUS-12."), *orders(8)]
    with MemoryBankState.open(tmp_path / "bank.db", embedding_model="lexical") as state:
        before = apply(messages, state, history_budget=500)
    with MemoryBankState.open(tmp_path / "bank.db", embedding_model="lexical") as state:
        assert apply(messages, state, history_budget=500) == before


def test_records_whose_messages_the_client_dropped_are_still_found():
    state = MemoryBankState("lexical")
    messages = [user("Refund what went wrong."), *orders(6)]
    apply(messages, state)
    context, _ = apply([messages[0], *messages[-2:]], state, history_budget=2_000)
    assert "#1 to #5 list_orders page=0; 1; 2; 3; 4\n" in context[1]["content"]
    assert "#5 list_orders page=4\n[" in context[1]["content"]
    assert "ORD-" in context[1]["content"]
    assert any(d.step is None for d in state.last_plan.decisions)


@pytest.mark.parametrize("budget", [-1, 1.5, True, "many"])
def test_wrong_budgets_are_refused(budget):
    with pytest.raises(ConfigError, match="history_budget"):
        MemoryBankSettings(history_budget=budget)


def test_a_wrong_model_file_is_one_clear_error(tmp_path):
    file = tmp_path / "model.json"
    file.write_text("{}")
    with pytest.raises(ConfigError, match="evidence model"):
        apply([user(), *orders(3)], evidence_model=str(file))


def test_a_fork_that_answers_an_older_call_late_is_taken_in():
    state = MemoryBankState("lexical")
    turn = call(("p", "first", {}), ("q", "second", {}))
    start = [user(), *orders(1), turn, result("p", "PAY-1")]
    apply(start, state, history_budget=0.5)
    apply([*start, result("q", "PAY-2"), *orders(3, start=1)], state, history_budget=0.5)
    apply([*start, result("q", "PAY-3")], state, history_budget=0.5)  # the same calls, answered otherwise
    context, _ = apply([*start, result("q", "PAY-3"), *orders(3, start=5)], state, history_budget=0.5)
    assert pairing_errors(context) == []
    assert len(state.cache("evidence", dict).memory.numbers) == state.fact_store.size()


@pytest.mark.parametrize("seed", first_short(range(6), 2))
def test_what_a_fold_shows_does_not_depend_on_when_others_were_made(seed):
    chat = messages_of(shop_run(seed, 9))
    half = len(chat) // 4 * 2
    chat[half:half] = [
        say("Half is done."),
        user(f"Look at {chat[half - 1]['content']} and {chat[5]['content']}"),
    ]
    ends = [n for n in range(1, len(chat) + 1) if chat[n - 1]["role"] in ("user", "tool")]
    often = MemoryBankState("lexical")
    for end in ends:
        last, _ = applied(chat[:end], often, history_budget=1_800)
    assert not often.last_plan.unchanged
    once = MemoryBankState("lexical")
    for end in ends[:-1]:
        applied(chat[:end], once, history_budget=10**6)
    assert applied(chat, once, history_budget=1_800)[0] == last
    used = [
        state.cache("evidence", dict).memory.index.tables.keys.table["used"].tolist()
        for state in (often, once)
    ]
    assert used[0] == used[1]


# refresh_after: what was chosen stays for some steps


def test_a_new_user_turn_an_edit_and_a_reset_choose_anew():
    chat = [system(), user(), *orders(20, rows=4)]
    state = MemoryBankState("lexical")
    changes = {"history_budget": 2_000, "refresh_after": 1_000}
    before = apply(chat, state, **changes)[0]
    assert shared(before, apply(chat, state, **changes)[0]) == len(before)
    asked = [*chat, say("What else?"), user("And those of CUS-9?"), *orders(1, rows=4, start=20)]
    contents = [m["content"] for m in apply(asked, state, **changes)[0]]
    assert contents.index("And those of CUS-9?") < len(contents) - 2
    other, _ = apply(chat, state, history_budget=1_500, refresh_after=1_000)
    assert other != before
    state.reset()
    assert apply(chat[:4], state, **changes)[0] == chat[:4]


@pytest.mark.parametrize("selection", ["evidence", "top_k"])
def test_a_result_whose_image_comes_later_is_no_past_call(selection):
    """A user message with the image makes another record of the same call, not a call of earlier."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    chat = [system(), user(), *rounds(1), call(("c9", "look", {"at": 1})), result("c9", "a picture")]
    state = MemoryBankState("lexical")
    apply(chat, state, selection=selection, history_budget=200)
    longer = [*chat, user([image])]
    context, tokens = apply(longer, state, selection=selection, history_budget=200)
    assert [r.step_id for r in state.fact_store.get_many(list(state.steps))] == [1, 2, 2]
    if selection == "evidence":
        assert (context, tokens) == (longer, state.last_plan.full_tokens)
    else:
        assert "a picture" not in context[2]["content"]


# layout = "native": past turns in their places, every call told


def issued(n: int):
    """A call that changes something; its output is long enough to be worth shortening."""
    said = {"refund_id": f"RFD-{n}", "state": "paid", "note": "as agreed with the customer " * 4}
    return [
        call((f"r{n}", "issue_refund", {"order": f"ORD-{n}001", "n": n})),
        result(f"r{n}", json.dumps(said)),
    ]


def test_past_turns_stay_calls_and_results_in_their_places():
    begin = [system(), user("Refund what went wrong.")]
    messages = [*begin, *orders(6), say("Which?"), user("All."), *orders(6, start=6)]
    context, _ = apply(messages, history_budget=2_500, keep_recent=0)
    assert context[:2] == messages[:2]
    assert context[2]["content"].startswith("<retrieved-data seal=")
    assert pairing_errors(context) == []
    asked = [m["content"] for m in context].index("All.")
    assert context[-2:] == messages[-2:]
    shortened = [m for m in context if m["role"] == "tool" and re.search(r"\[… #\d+\]\Z", m["content"])]
    assert shortened
    for message in shortened:
        number = int(message["content"].rsplit("#", 1)[1].rstrip("]"))
        original = next(m for m in messages if m.get("tool_call_id") == message["tool_call_id"])
        assert messages.index(original) == (2 * number + 1 if number <= 6 else 2 * number + 3)
        assert (context.index(message) < asked) == (number <= 6)
        assert_quoted(message["content"].rsplit("\n", 1)[0], original["content"])


def functions(context):
    return {c["id"]: c["function"] for m in context for c in m.get("tool_calls") or []}


def assert_quoted(text: str, source: str) -> None:
    """Every stretch between gap marks stands in the source to the letter."""
    stretches = re.split(r"(?:\A|\n)…[^\n]*(?:\n|\Z)", text)
    for stretch in stretches:
        assert not stretch.strip() or stretch.strip("\n") in source, stretch


def test_long_arguments_are_shortened_and_stay_json():
    body = "Dear customer, " + "we looked at your order again. " * 40
    messages = [user("Write to all."), *orders(3)]
    draft = call(("m", "draft", {"to": "a@b.example", "body": body}))
    messages += [draft, result("m", "Draft DRF-77123 saved"), *orders(3, start=3)]
    sent = call(("n", "send_draft", {"id": "DRF-77123"}))
    messages += [sent, result("n", "sent"), *orders(3, start=6)]
    context, _ = apply(messages, history_budget=3_000, keep_recent=0)
    calls = functions(context)
    if "m" in calls:
        arguments = json.loads(calls["m"]["arguments"])
        assert arguments["to"] == "a@b.example"
        assert arguments["body"].startswith("Dear customer")
        assert arguments["body"].endswith("… [… #4]")
    else:
        assert "draft to=a@b.example" in context[1]["content"]


def test_a_shortened_script_begins_with_its_first_line():
    messages = [user("Find what is wrong.")]
    scripts = []
    for n in range(6):
        rows = "".join(f"rows_{n}_{i} = load('K-{n}{i:03}')\n" for i in range(40))
        scripts.append(f"# Report number {n} of six\nimport reports\n{rows}")
        run = call((f"s{n}", "run_python", {"code": scripts[n]}))
        messages += [run, result(f"s{n}", f"rows of K-{n}030")]
    messages += [call(("t", "look", {"row": "rows_2_31"})), result("t", "rows_2_31 and rows_4_17 differ")]
    quoted = 0
    for budget in (600, 1_000, 1_500, 2_000):
        context, _ = apply(messages, history_budget=budget, keep_recent=0)
        calls = functions(context)
        for n, script in enumerate(scripts):
            if f"s{n}" in calls:
                code = json.loads(calls[f"s{n}"]["arguments"])["code"]
                assert code.startswith(f"# Report number {n} of six\n")
                if "load(" in code and code != script:
                    quoted += 1
                    assert_quoted(code.rpartition("\n")[0], script)
    assert quoted


def test_a_quote_says_that_the_beginning_of_its_text_is_missing():
    texts = ["\n".join(f"line {n} of the {name} script{' ' * 100}#" for n in range(lines))
             for name, lines in (("first", 1_700), ("second", 900))]  # fmt: skip
    cut = cut_text(json.dumps(texts), unfold=True)  # it leaves out the middle, where the second text begins
    quotes = dict(quotes_by_text(cut, [0, len(cut.segments) - 1]))
    assert set(quotes) >= set(texts)
    assert quotes[texts[0]].startswith("line 0 of the first script")
    assert quotes[texts[1]].startswith("…\n")


def test_a_change_in_its_place_of_which_nothing_is_quoted_has_its_outcome():
    messages = [user("Refund what went wrong.")]
    for n in range(24):
        both = orders(1, start=n)[0]
        both["tool_calls"] += call((f"r{n}", "issue_refund", {"n": n}))["tool_calls"]
        refund = json.dumps({"refund_id": f"RFD-{n}4711", "state": "accepted", "notes": "approved " * 200})
        messages += [both, orders(1, start=n)[1], result(f"r{n}", refund)]
    context, _ = apply([*messages, *orders(1, start=24)], history_budget=2_500, keep_recent=0)
    answers = {m["tool_call_id"]: m["content"] for m in context[:-2] if m["role"] == "tool"}
    assert {i: text for i, text in answers.items() if i[0] == "r"} == {
        "r23": "→ refund_id=RFD-234711 [… #48]"
    }  # the newest call of its tool
    for n in range(23):
        assert told(context, "issue_refund", f"RFD-{n}4711")


def told(context, name: str, value: str) -> bool:
    """Whether a call is told: in a line of text with its tool, or as a call in its place."""
    lines = [line for m in context if isinstance(m["content"], str) for line in m["content"].splitlines()]
    calls = [f"{c['name']} {c['arguments']}" for c in functions(context).values()]
    return any(name in line and value in line for line in (*lines, *calls))


@examples(15)
@given(
    st.lists(
        st.tuples(st.sampled_from(["get_order", "issue_refund", "bash"]), st.text("abc ", max_size=300)),
        max_size=25,
    ),
    st.sampled_from(["native", "block"]),
    st.sampled_from([0, 500]),
)
def test_every_context_tells_every_change(calls, layout, refresh):
    messages = [user("Go on.")]
    state = MemoryBankState("lexical")
    for n, (tool, output) in enumerate(calls):
        messages += [
            call((f"c{n}", tool, {"id": f"ID-{n:03}"})),
            result(f"c{n}", f"{output}\nREF-{n:03} {'x' * 200}"),
        ]
        context, tokens = applied(messages, state, history_budget=1_500, layout=layout, refresh_after=refresh)
        assert pairing_errors(context) == []
        assert tokens == sum(map(state.counter.count_message, context)) <= state.last_plan.full_tokens
        assert all(
            told(context, t, f"ID-{i:03}") for i, (t, _) in enumerate(calls[: n + 1]) if t == "issue_refund"
        )
        assert (
            applied(messages, state, history_budget=1_500, layout=layout, refresh_after=refresh)[0] == context
        )


def test_a_context_with_every_call_in_its_place_says_how_to_get_the_rest():
    contexts = [
        apply([user("Refund."), *orders(n, rows=90)], history_budget=1_600, offered=TOOL_SCHEMAS)[0]
        for n in (2, 3, 6)
    ]
    shown = ["\n".join(m["content"] or "" for m in context) for context in contexts]
    assert any("Calls so far" not in text for text in shown)
    assert "[… #1]" in shown[0]
    assert all('get_record("#' in text for text in shown)


@pytest.mark.parametrize("layout", ["native", "block"])
def test_a_fold_names_the_tool_of_each_step(layout):
    def shown(messages, state, tools=None):
        context, _ = apply(messages, state, offered=tools, layout=layout, refresh_after=9_000, keep_recent=0)
        return "\n".join(m["content"] or "" for m in context)

    messages = [user("Refund."), *orders(30)]
    prefixed = [{"name": "mcp__memory_bank__get_record", "input_schema": {}}]
    state = MemoryBankState("lexical")
    named = shown(messages, state, TOOL_SCHEMAS)
    hint = ' (get_record("#n") returns one, with lines="8-40" or pattern="…" a part of it; other words search all outputs)'
    assert f"Calls so far{hint}:" in named
    assert shown(messages, state, [{"name": "look", "input_schema": {}}]) == named.replace(
        hint, ""
    )  # the same fold
    assert shown(messages, state, prefixed) == named.replace("get_record", "mcp__memory_bank__get_record")
    assert shown(messages, state, TOOL_SCHEMAS) == named
    unnamed = MemoryBankState("lexical")
    assert "get_record" not in shown(messages, unnamed)
    assert "get_record" not in shown(messages, unnamed, TOOL_SCHEMAS)  # until the next fold


@pytest.mark.long
def test_without_the_tool_its_tokens_go_to_evidence():
    messages = [user("Refund."), *orders(40)]

    def quoted(tools, budget):
        state = MemoryBankState("lexical")
        apply(messages, state, offered=tools, layout="block", history_budget=budget)
        return sum(len(piece.text) for piece in state.last_plan.choice.reasons.pieces())

    budgets = range(500, 1_500, 100)
    assert sum(quoted(None, b) for b in budgets) > sum(quoted(TOOL_SCHEMAS, b) for b in budgets)


class BrokenCounter:
    """A user's own counter, that fails on a text."""

    name, approximate = "own", True

    def __init__(self, text):
        self.text, self.whole = text, approximate_counter()
        self.count_message = self.whole.count_message

    def count_text(self, text):
        if self.text in text:
            raise ZeroDivisionError("PAY-1 is secret")
        return self.whole.count_text(text)


@pytest.mark.parametrize(
    ("text", "lists"),
    [
        pytest.param("customer…", True, id="select"),
        pytest.param("ORD-3012", True, id="add"),
        pytest.param("Calls so far", False, id="tell"),
    ],
)
def test_a_failure_of_the_selection_leaves_the_thread_and_the_latest_turns(text, lists, caplog):
    messages = [system(), user("Refund them."), *orders(8), *issued(1), *orders(3, start=8)]
    state = MemoryBankState("lexical", counter=BrokenCounter(text))
    context, tokens = apply(messages, state, history_budget=4_000)
    assert pairing_errors(context) == []
    assert context[-2:] == messages[-2:]
    assert tokens <= state.last_plan.full_tokens
    if lists:
        assert told(context, "issue_refund", "ORD-1001")
    else:
        assert context[-6:] == messages[-6:]
    warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert warnings
    assert not any("secret" in w for w in warnings)
    assert any(state.session_id in w or any(t in w for t in state.steps) for w in warnings)


def test_a_declared_tool_is_told_as_declared():
    messages = [user("Look."), *orders(8)]
    messages[7:7] = [call(("k", "check_stock", {"sku": "S-1"})), result("k", "12")]
    declared = {"check_stock": {"effect": "write"}}
    context, _ = apply(messages, history_budget=1_000, tools=declared)
    assert "#4 check_stock sku=S-1 → 12" in context[1]["content"]
    context, _ = apply(messages, history_budget=1_000)
    assert "#4 check_stock sku=S-1\n" in context[1]["content"]


def _orders(form: str, ids: list[str]) -> str:
    rows = [
        {"order_id": i, "total": 10.5 * n, "note": "the parcel stands at the northern gate " * 3}
        for n, i in enumerate(ids)
    ]
    if form == "JSON":
        return json.dumps({"orders": rows}, indent=1)
    if form == "JSON lines":
        return "\n".join(map(json.dumps, rows))
    if form == "table":
        return "order_id,total,note\n" + "\n".join(",".join(map(str, r.values())) for r in rows)
    return "\n".join(f"{r['order_id']}  shipped  {r['note']}" for r in rows)


@pytest.mark.parametrize("order", first_short([1, -1]))
@pytest.mark.parametrize("form", ["JSON", "JSON lines", "table", "lines"])
def test_the_next_items_of_a_list_that_is_worked_off_stay_in_sight(form, order):
    """Each item is looked at once: it stands in the context when its turn comes, and those after it."""
    ids = [f"ORD-{7919 * n % 99991:05d}{chr(65 + n % 23)}X" for n in range(40)]
    messages = [
        user("Check every order of the list."),
        call(("l", "list_orders", {})),
        result("l", _orders(form, ids)),
    ]
    settings = FOLDING | {"history_budget": 3_000, "refresh_after": 5_000, "first_sight": 0}
    config = Config(memory_strategies={"memory_bank": settings})
    processor, folds, before = MemoryProcessor(config), 0, 0
    for n, item in enumerate(ids[::order]):
        context, _ = processor.apply_strategy(messages)
        folds, before = folds + (len(context) < before), len(context)
        text = json.dumps(context)
        assert all(later in text for later in ids[::order][n : n + 3])
        parts = [{"sku": f"SKU-{n}{k}", "text": "blue carton in lane " * 25} for k in range(6)]
        messages += [
            call((f"c{n}", "get_order", {"order_id": item})),
            result(f"c{n}", json.dumps({"order_id": item, "items": parts})),
        ]
    assert folds > 2


@pytest.mark.parametrize("form", first_short(["JSON", "table", "lines"]))
def test_a_list_whose_items_are_used_in_any_order_stays_in_sight(form):
    """Any item may come next: those whose rows do not fit are named without them, for a bounded part of the budget."""
    ids = [f"ORD-{7919 * n % 99991:05d}{chr(65 + n % 23)}X" for n in range(90)]
    messages = [user("Check every order."), call(("l", "list_orders", {})), result("l", _orders(form, ids))]
    settings = FOLDING | {"history_budget": 3_000, "refresh_after": 5_000, "first_sight": 0}
    processor, folds, before = MemoryProcessor(Config(memory_strategies={"memory_bank": settings})), 0, 0
    order = random.Random(7).sample(ids, len(ids))
    for n, item in enumerate(order):
        context, _ = processor.apply_strategy(messages)
        folds, before = folds + (len(context) < before), len(context)
        assert all(later in json.dumps(context) for later in order[n : n + 3])
        plan = processor.state("memory_bank").last_plan
        assert plan.unchanged or plan.memory_tokens <= 3_100
        parts = [{"sku": f"SKU-{n}{k}", "text": "blue carton in lane " * 25} for k in range(4)]
        body = json.dumps({"order_id": item, "items": parts})
        messages += [call((f"c{n}", "get_order", {"order_id": item})), result(f"c{n}", body)]
    assert folds > 2


def test_a_list_that_calls_do_not_work_off_has_no_worth_of_its_own():
    index = filled(
        ("list", "{}", _orders("JSON", [f"ORD-{n:04d}X" for n in range(30)])), "nothing", "nothing"
    )
    assert not index.tables.left_of_lists(3, 3, 12, 64).any()


@pytest.mark.parametrize("form", ["JSON", "lines"])
def test_two_uses_of_a_list_begin_to_work_it_off(form):
    """One use is a look-up; from the second on, what stands on both sides of the latest is near."""
    ids = [f"ORD-{7919 * n % 99991:05d}{chr(65 + n % 23)}X" for n in range(40)]
    for used in (1, 2):
        looks = [("get_order", {"order_id": ids[n]}, "ok") for n in (20, 21)[:used]]
        index = filled(("list", "{}", _orders(form, ids)), *looks, *["nothing"] * 6)
        text = index.select(anchor=["Check them."], tail_interaction=6, budget=400).text
        assert [item in text for item in (ids[18], ids[19], ids[22])] == [used == 2, used == 2, True]


@pytest.mark.parametrize("part_of_mcp", [False, True])
def test_the_lines_that_a_context_names_are_those_of_the_tool(part_of_mcp):
    """In gaps, and at the end of a quote how many there are; also of a text in a part of MCP."""
    log = "\n".join(
        f"order ORD-{n} of customer CUS-{n * 37 % 1000} waits for parcel PX-{n * 91}" for n in range(1, 121)
    )
    output = json.dumps({"type": "text", "text": log}) if part_of_mcp else log
    messages = [
        user("Where is parcel PX-9100 of ORD-100?"),
        call(("c0", "read_log", {})),
        result("c0", output),
    ]
    for n in range(1, 30):
        messages += [
            call((f"c{n}", "track", {"parcel": f"PX-{9100 if n % 2 else n}"})),
            result(f"c{n}", f"PX-{n} " + "late " * 400),
        ]
    with Memory(budget=2_000, refresh_after=2_000, token_encoding="approximate") as memory:
        context = memory.context(messages, tools=memory.tools)
        [quote] = [m["content"] for m in context if str(m.get("content")).endswith("[… #1 of 120 lines]")]
        found = re.findall(r"^… line (\d+):\n(.*)$", quote, re.M)
        assert found
        for number, line in found:
            assert f"\n{number}: {line}\n" in memory.call("get_record", {"record": "#1", "lines": number})
        [mark] = re.findall(r"\[… #1 of 120 lines\]", quote)
        assert "120 lines" in memory.call("get_record", {"record": mark, "pattern": "PX-9100"})
