"""What is shown of outputs when they first appear: it stays until the fold, nothing is lost, the rest can be got."""

import json
import random
import re

import pytest
from tests import blocks, items
from tests.chats import call, result, system, user
from tests.examples import first_short

from memory_bank import TOOL_SCHEMAS, Memory, MemoryBankState, MemoryProcessor, handle_tool_call
from memory_bank.context.first_sight import BEGINNING, END
from memory_bank.pricing import common_length
from memory_bank.transcript.tokens import approximate_counter

LOCAL = {
    "type": "memory_bank", "selection": "evidence", "embedding_model": "lexical", "observer_model": "extractive",
    "token_encoding": "approximate",
}  # fmt: skip
COUNT = approximate_counter().count_text
TASK = "Refund every order that was delivered late." + " Take care." * 600
LOG = "\n".join(
    f"2026-03-{n % 28 + 1:02} worker {n % 7} did job {n} for ORD-{n * 7919 % 99_991:05} in {n * 37 % 911} ms"
    for n in range(600)
)


def rows(count, with_stories=False, **more):
    out = [
        {"id": f"ORD-{n:04}", "status": "open", "late": n % 3 == 0, "note": None, **more}
        for n in range(count)
    ]
    return [{**row, "story": f"It was late, said {row['id']}. " * 20} for row in out] if with_stories else out


def processor_of(open_state=MemoryBankState, **settings):
    return MemoryProcessor(
        {"memory_strategies": {"b": {**LOCAL, **settings}}, "default_strategy": "b"}, open_state
    )


def shown(output, tool="get_orders", arguments=None, offered=TOOL_SCHEMAS, **settings):
    """What the model sees of an output, and the state that stores it."""
    processor = processor_of(**settings)
    given = [system(), user(TASK), call(("c1", tool, arguments or {})), result("c1", output)]
    context, _ = processor.apply_strategy(json.loads(json.dumps(given)), "b", tools=offered)
    assert len(context) == 4
    return context[-1]["content"], processor.state("b")


# -- without loss


def test_json_is_shown_without_what_says_nothing_also_where_no_memory_tool_is_offered():
    output = json.dumps({"type": "text", "text": json.dumps({"orders": rows(40)}, indent=2), "meta": None})
    for offered in (None, TOOL_SCHEMAS):
        text, state = shown(output, offered=offered)
        assert text == json.dumps(
            {
                "orders": [
                    {"all 40 items, but those that say otherwise": {"status": "open"}},
                    *({"id": r["id"], "late": r["late"]} for r in rows(40)),
                ]
            },
            separators=(",", ":"),
        )
        (record,) = state.fact_store.get_many(list(state.steps))
        assert record.output_text == output


def test_short_json_stays_as_it_came():
    output = json.dumps(rows(8), indent=2)
    assert len(output) < 2_000
    assert shown(output)[0] == output


@pytest.mark.parametrize(
    ("tool", "arguments", "settings"),
    [
        ("get_orders", {}, {"first_sight": 0}),
        ("get_orders", {}, {"tools": {"get_orders": {"first_sight": 0}}}),
        ("read_file", {"path": "orders.json"}, {}),  # which an edit must repeat to the letter
    ],
)
def test_json_that_stays_as_it_came(tool, arguments, settings):
    output = json.dumps(rows(100), indent=2)
    assert shown(output, tool, arguments, **settings)[0] == output


def test_a_context_is_not_brought_below_what_providers_keep_in_their_cache():
    output = json.dumps(rows(40), indent=2)
    given = [user("Refund it."), call(("c1", "get_orders", {})), result("c1", output)]
    context, _ = processor_of().apply_strategy(given, "b")
    assert context == given


# -- a part


def test_of_a_long_text_its_ends_are_shown_and_what_is_needed_and_the_rest_can_be_got():
    text, state = shown(LOG, "run_report")
    mark, *lines = text.split("\n")
    assert re.fullmatch(
        rf"\[… #1: {len(LOG):,} characters; shown are its beginning, .* The output is complete, what is not shown may be "
        r'in it: get_record\("#1", lines="…" or pattern="…"\) returns it\]',
        mark,
    )
    assert COUNT(text) <= 4_000
    assert LOG[: BEGINNING - 100] in text
    assert LOG[-END:] in text
    whole, at = LOG.split("\n"), 0
    for line in lines:
        if gap := re.fullmatch(r"\[… lines? (\d+)(?:-(\d+))?\]", line):
            first, last = int(gap[1]), int(gap[2] or gap[1])
            assert first == at + 1
            answer = handle_tool_call(
                state, "get_record", {"trace_id": "#1", "lines": f"{first}-{last}"}, max_chars=10**6
            )
            assert "\n".join(whole[first - 1 : last]) in re.sub(r"(?m)^ *\d+[:|] ?", "", answer)
            at = last
        else:
            assert line == whole[at]
            at += 1
    assert at == len(whole)
    (record,) = state.fact_store.get_many(list(state.steps))
    assert record.output_text == LOG


def test_a_text_fills_its_room_also_with_what_is_not_likely_needed():
    draw = random.Random(7)
    words = [f"{a}{b}" for a in ("riv", "sto", "gar", "win") for b in ("er", "ne", "den", "dow")]
    lines = [
        f"{' '.join(draw.choices(words, k=9))} {draw.choice(words).title()}{draw.randrange(10**6)} and so on."
        for _ in range(700)
    ]
    text, _ = shown("\n".join(lines), "fetch")
    assert COUNT(text) > 3_500


def test_what_the_task_names_is_among_the_parts():
    lines = LOG.split("\n")
    for line in lines[100:560:100]:
        order = re.search(r"ORD-\d+", line)[0]
        for asked in (f"Look for {order}. {TASK}", f"{TASK} Look for {order}."):
            given = [system(), user(asked), call(("c1", "run", {})), result("c1", LOG)]
            context, _ = processor_of().apply_strategy(given, "b", tools=TOOL_SCHEMAS)
            assert line in context[-1]["content"] and COUNT(context[-1]["content"]) <= 4_000
    given[1] = user(
        f"{TASK} Look for 2026-03, worker 3 and C++ (.*.*)x/y/z [a.b.c."
    )  # of too many lines, or of none
    context, _ = processor_of().apply_strategy(given, "b", tools=TOOL_SCHEMAS)
    assert COUNT(context[-1]["content"]) <= 4_000


def test_every_row_of_long_json_is_shown_with_the_same_members():
    output = json.dumps({"type": "text", "text": json.dumps({"orders": rows(150, with_stories=True)})})
    text, _ = shown(output)
    mark, body = text.split("\n", 1)
    assert "#1: " in mark and 'path="orders[3]"' in mark
    head, *orders = json.loads(body.split("\n(without")[0])["orders"]
    assert head == {"… 150 items as rows of": ["id", "status", "late"]}
    assert [order[0] for order in orders] == [r["id"] for r in rows(150)]
    assert COUNT(text) <= 4_000


def test_pieces_of_json_say_how_its_items_are_got():
    text, state = shown(
        json.dumps([{"a": f"ORD-{n:05}", "b": f"N-{n}", "c": f"X-{n * 7}"} for n in range(900)])
    )
    assert "its beginning, its end" in text and COUNT(text) <= 4_000
    path = re.search(r'path="(.*?)"', text)[1]
    assert "ORD-00003" in handle_tool_call(state, "get_record", {"trace_id": "#1", "path": path})


NUMBERS = [round(200 + n * 7919 % 4_999 / 100, 2) for n in range(3_000)]


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"price": 220.34, "MA(5)": NUMBERS}, '["MA(5)"][3]'),
        ({"few": [1, 2, 3, 4], "data": {"rows": NUMBERS}}, "data.rows[3]"),
        ({f"key {n}": number for n, number in enumerate(NUMBERS)}, None),
    ],
)
def test_the_path_in_the_mark_of_an_object_finds_an_item_of_its_longest_list(value, path):
    text, state = shown(json.dumps(value), "get_stock")
    mark = text.split("\n")[0]
    if path is None:
        assert "path=" not in mark and 'get_record("#1", pattern="…")' in mark
    else:
        assert f"path={json.dumps(path)}" in mark
        answer = handle_tool_call(state, "get_record", {"trace_id": "#1", "path": path})
        assert str(NUMBERS[3]) in answer


def test_a_mark_stands_where_it_is_shorter_than_what_is_left_out():
    text, _ = shown(json.dumps({"price": 220.34, "MA(5)": NUMBERS}), "get_stock")
    gaps = re.findall(r"\[… ([\d,]+) characters\]", text)
    assert gaps and all(int(gap.replace(",", "")) > 24 for gap in gaps)


def test_members_that_the_users_message_names_come_first():
    items = [
        {
            "id": f"ORD-{n:04}",
            **{k: f"A {k} called {n * 37 % 901} of the north" for k in ("courier", "depot", "shop")},
        }
        for n in range(190)
    ]
    for name, other in (("courier", "depot"), ("depot", "courier")):
        given = [
            system(),
            user(f"Group by {name}."),
            call(("c1", "get_orders", {})),
            result("c1", json.dumps(items)),
        ]
        context, _ = processor_of().apply_strategy(given, "b", tools=TOOL_SCHEMAS)
        head = context[-1]["content"].split("\n")[1]
        assert f'"{name}"' in head and f'"{other}"' not in head


def test_json_that_was_cut_off_is_shown_as_json_and_its_items_can_be_got():
    whole = json.dumps(
        {"type": "text", "text": json.dumps({"orders": rows(400, with_stories=True)}, indent=2)}
    )
    text, state = shown(whole[:100_000] + "\n\n(Cut: the whole is in out.json)")
    assert text.endswith("(Cut: the whole is in out.json)")
    assert '"ORD-0090"' in text
    answer = handle_tool_call(state, "get_record", {"trace_id": "#1", "path": "orders[90]"})
    assert "It was late, said ORD-0090." in answer


def test_pieces_of_strings_stand_as_they_are():
    output = json.dumps(
        {f"page {n}": "\n".join(f"{n}.{line}" for line in LOG.split("\n")[n::40]) for n in range(40)}
    )
    text, _ = shown(output, "read_pages")
    assert COUNT(text) <= 4_000 and "\\n… " not in text and "('" not in text


def test_many_short_texts_in_one_text_are_shown_in_part():
    orders = [json.dumps({"said": f"ORD-{n} is late. " + f"It rains {n}. " * 20}) for n in range(90)]
    output = json.dumps({"page": json.dumps(orders)})
    text, _ = shown(output, "read_page")
    assert text.startswith("[… #1: ") and COUNT(text) <= 4_000
    assert sum(f"ORD-{n} is late" in text for n in range(90)) > 3


def test_several_text_parts_are_one_output():
    parts = [{"type": "text", "text": t} for t in (json.dumps(rows(40), indent=2), "Two pages.")]
    (part,) = shown(parts)[0]
    assert part["type"] == "text"
    assert part["text"].endswith("]\nTwo pages.") and len(part["text"]) < len(parts[0]["text"]) / 2
    lines = LOG.split("\n")
    logs = [{"type": "text", "text": "\n".join(lines[n : n + 100])} for n in range(0, 600, 100)]
    ((part,), state) = shown(logs, "run_report")
    assert part["text"].startswith("[… #1: ") and COUNT(part["text"]) <= 4_000
    assert lines[0] in part["text"] and lines[-1] in part["text"]
    missing = next(line for line in lines if line not in part["text"])
    order = re.search(r"ORD-\d+", missing)[0]
    assert missing in handle_tool_call(state, "get_record", {"trace_id": "#1", "pattern": order})
    short = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert shown(short)[0] == short


def test_the_json_that_a_tool_makes_of_a_sheet_is_no_text_that_an_edit_repeats():
    output = json.dumps(rows(100), indent=2)
    assert len(shown(output, "read_excel", {"path": "orders.xlsx"})[0]) < len(output) // 2
    assert shown(output, "read_file", {"path": ".prettierrc"})[0] == output


def test_the_path_in_the_mark_of_a_list_finds_an_item():
    text, state = shown(json.dumps([{"type": "text", "text": json.dumps(rows(150, with_stories=True))}]))
    path = re.search(r'path="(.*?)"', text)[1]
    assert "It was late, said ORD-0003." in handle_tool_call(
        state, "get_record", {"trace_id": "#1", "path": path}
    )


def test_a_page_in_json_is_shown_as_a_text_with_what_stands_beside_it():
    page = "\n".join(f"Paragraph {n} tells of ORD-{n:04} and more." for n in range(700))
    text, state = shown(json.dumps({"url": "https://shop.example/a", "content": page}), "fetch")
    mark, beside, *_ = text.split("\n")
    assert beside == '{"url":"https://shop.example/a","content":"… shown below"}'
    assert 'get_record("#1", path="content", lines="…" or pattern="…")' in mark
    first, last = re.search(r"\[… lines (\d+)-(\d+)\]", text).groups()
    answer = handle_tool_call(
        state, "get_record", {"trace_id": "#1", "path": "content", "lines": f"{first}-{last}"}
    )
    assert f"Paragraph {int(first) - 1} " in answer and f"Paragraph {int(last) - 1} " in answer


def test_only_where_the_agent_can_get_the_rest():
    assert shown(LOG, "run_report", offered=None)[0] == LOG
    assert shown(LOG, "run_report", offered=[])[0] == LOG


CODE = "\n".join(f"def job_{n}(order):\n    return order.refund({n})\n" for n in range(700))
DIFF = "diff --git a/x.py b/x.py\n@@ -1,3 +1,3 @@\n" + CODE


@pytest.mark.parametrize(
    ("output", "tool", "arguments", "settings"),
    [
        (CODE, "read_file", {"path": "src/jobs.py"}, {}),
        (CODE, "str_replace_editor", {"command": "view", "path": "src/jobs.py"}, {}),
        (CODE, "bash", {"command": "cd src && cat jobs.py"}, {}),
        (CODE, "bash", {"command": "git show HEAD~2:src/jobs.py"}, {}),
        (CODE, "bash", {"command": "cd /w && git -C lib show --textconv 'main:src/jobs.py'"}, {}),
        (DIFF, "bash", {"command": "git diff"}, {}),
        (f"Always ask before a refund.\n{LOG}", "read_file", {"path": "AGENTS.md"}, {}),
        (LOG, "bash", {"command": "sed -n 1,600p all.log"}, {}),
        (LOG, "bash", {"command": "cat all.log | head -600"}, {}),
        (LOG, "read_file", {"path": "all.log", "offset": 100}, {}),
        (LOG, "list_jobs", {"page": 3}, {}),
        (LOG, "list_jobs", {"cursor": "b1"}, {}),
        (LOG, "run_report", {}, {"first_sight": 0}),
        (LOG, "run_report", {}, {"tools": {"run_report": {"first_sight": 0}}}),
        (LOG, "run_report", {}, {"first_sight": 50_000}),
        ("<retrieved-data seal=1234abcd>\n" + LOG, "get_record", {"trace_id": "#4"}, {}),
        (
            [{"type": "text", "text": LOG}, {"type": "image_url", "image_url": {"url": "data:,"}}],
            "draw",
            {},
            {},
        ),
    ],
)
def test_what_is_always_shown_whole(output, tool, arguments, settings):
    assert shown(output, tool, arguments, **settings)[0] == output


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("read_file", {"path": "all.log"}),
        ("bash", {"command": "cat out/all.log"}),
        ("bash", {"command": "git show HEAD:out/all.log"}),
        ("bash", {"command": "git show --stat HEAD"}),
    ],
)
def test_of_data_and_text_files_a_part_is_shown(tool, arguments):
    assert shown(LOG, tool, arguments)[0].startswith("[… #1: ")


def test_a_tool_can_have_its_own_length():
    assert shown(LOG[:9_000], "run")[0] == LOG[:9_000]
    text, _ = shown(
        LOG[:9_000],
        "run",
        tools={"run": {"first_sight": 8_000}},
        first_sight_tokens=900,
    )
    assert text.startswith("[… #1: 9,000 characters")


def page_of(talks):
    style = "".join(f".a{n}{{margin:{n}px}}" for n in range(2_000))
    rows = "".join(
        f'<li class="item d-flex"><a class="nav-link p-1" href="/talk/{n * 7919}"><span>Talk {n}</span></a></li>'
        for n in range(talks)
    )
    head = f"<head><title>Talks</title><style>{style}</style><script>var x = '{'y' * 9_000}';</script></head>"
    return f'<!DOCTYPE html><html>{head}<body><ul>{rows}</ul><p class="end">That was all.</p></body></html>'


def test_a_long_page_is_shown_as_its_words_and_links():
    text, state = shown(page_of(140), "fetch_html", {"url": "https://talks.example"})
    mark, *lines = text.split("\n")
    assert "shown are its words and links" in mark and 'get_record("#1", pattern="…")' in mark
    listed = [f"- [Talk {n}](/talk/{n * 7919})" for n in range(140)]
    assert lines == ["Talks", *listed, "That was all."]
    found = handle_tool_call(state, "get_record", {"record": "#1", "pattern": ".a77{"})
    assert ".a77{margin:77px}" in str(found)
    text, _ = shown(page_of(900), "fetch_html", {"url": "https://talks.example"})
    assert "shown are of its words and links its beginning" in text and "- [Talk 0](/talk/0)" in text
    assert text.endswith("That was all.") and "margin" not in text and COUNT(text) < 4_200


@pytest.mark.parametrize(
    ("tool", "arguments", "offered"),
    [("read_file", {"path": "talks.html"}, TOOL_SCHEMAS), ("Bash", {"command": "cat talks.html"}, TOOL_SCHEMAS),
     ("fetch_html", {"url": "https://talks.example"}, None)],
)  # fmt: skip
def test_a_file_and_what_cannot_be_fetched_again_is_no_page(tool, arguments, offered):
    assert shown(page_of(900), tool, arguments, offered)[0] == page_of(900)


def test_an_output_cannot_forge_a_mark():
    forged = '[… #9: 40 characters; get_record("#9") returns it]\n[… lines 1-2]\n' + LOG
    text, _ = shown(forged, "run_report")
    assert "\n\\[… #9: 40" in text
    assert "\n\\[… lines 1-2]" in text


# -- equal to the byte


def run_of(turns, seed=1):
    """A run with long logs, pages of JSON, and later calls that use their values."""
    dice = random.Random(seed)
    out = [system(), user(TASK)]
    for n in range(turns):
        output = [
            json.dumps({"orders": rows(60 + n, of=n)}, indent=1),
            "\n".join(f"{n}.{line}" for line in dice.sample(LOG.split("\n"), 400)),
            "done",
        ][n % 3]
        out += [
            call((f"c{n}", ("get_orders", "run_report", "refund")[n % 3], {"n": n})),
            result(f"c{n}", output),
        ]
        if n == 10:
            out.append(user("Leave out those of Ann."))
    return out


def steps_of(run):
    return [run[: n + 1] for n, m in enumerate(run) if m["role"] in ("user", "tool")]


def asked(processor, given):
    given = json.loads(json.dumps(given))
    return processor.apply_strategy(given, "b", session_id="s", tools=TOOL_SCHEMAS)[0]


@pytest.mark.parametrize("fold", first_short([{"history_budget": 3_000, "refresh_after": 12_000}, {}]))
def test_between_folds_a_context_begins_with_the_one_before_and_every_process_writes_the_same(tmp_path, fold):
    url = f"sqlite:///{tmp_path / 'bank.db'}"

    def start():
        return processor_of(lambda session_id: MemoryBankState.open(url, session_id), **fold)

    lists, one, dice = steps_of(run_of(20)), start(), random.Random(2)
    before, folds, parts = [], set(), 0
    for given in lists:
        context = asked(one, given)
        number = one.state("b", "s").last_plan.fold
        if number in folds or not folds:
            assert common_length(before, context) == len(before)
        folds.add(number)
        parts += "[… #" in str(context[-1]["content"])
        other = start() if dice.random() < 0.3 else one
        assert asked(other, given) == context
        if other is not one:
            other.close()
        before = context
    assert parts >= 6
    assert len(folds) > 1
    for back in (3, 9):
        again, other = asked(one, lists[-back]), start()
        assert asked(other, lists[-back]) == again
        other.close()
    one.close()


def test_the_same_messages_in_another_session_are_shown_alike():
    lists = steps_of(run_of(9))
    contexts = []
    for name in ("s", "t"):
        processor = processor_of(lambda session_id: MemoryBankState(session_id=session_id))
        contexts.append(processor.apply_strategy(lists[-1], "b", session_id=name, tools=TOOL_SCHEMAS)[0])
    assert contexts[0] == contexts[1]


def test_the_messages_are_not_changed_and_the_plan_counts_what_is_sent():
    given = run_of(6)
    came = json.dumps(given)
    processor = processor_of()
    context, tokens = processor.apply_strategy(given, "b", tools=TOOL_SCHEMAS)
    assert json.dumps(given) == came
    plan = processor.state("b").last_plan
    assert plan.unchanged and tokens == plan.tokens < plan.full_tokens
    count = approximate_counter().count_message
    assert plan.tokens == sum(map(count, context))
    assert plan.full_tokens == sum(map(count, given))


def test_a_fold_chooses_from_the_stored_whole():
    secret = LOG.split("\n")[300]
    given = [system(), user(TASK), call(("c0", "run_report", {})), result("c0", LOG)]
    processor = processor_of(history_budget=3_000, refresh_after=2_000, keep_recent=0)
    first = processor.apply_strategy(given, "b", tools=TOOL_SCHEMAS)[0]
    order = re.search(r"ORD-\d+", secret)[0]
    assert order not in first[-1]["content"]
    for n in range(12):
        given += [
            call((f"d{n}", "get_order", {"order": order, "n": n})),
            result(f"d{n}", f"{order} is open. " * 60),
        ]
    context = processor.apply_strategy(given, "b", tools=TOOL_SCHEMAS)[0]
    assert processor.state("b").last_plan.fold
    assert secret in json.dumps(context, ensure_ascii=False)


# -- every form


def forms():
    text = json.dumps(rows(80), indent=2)
    dense, key = rows(80), "all 80 items, but those that say otherwise"
    expected = json.dumps(
        [{key: {"status": "open"}}, *({"id": r["id"], "late": r["late"]} for r in dense)],
        separators=(",", ":"),
    )
    chat = [user(TASK), call(("c1", "get_orders", {})), result("c1", text)]
    parts = [user(TASK), call(("c1", "get_orders", {})), result("c1", [{"type": "text", "text": text}])]
    responses = [items.user(TASK), items.call("c1"), items.output("c1", text=text)]
    anthropic = [
        blocks.user(TASK),
        blocks.turn(blocks.use("c1", "get_orders")),
        blocks.user(blocks.answer("c1", text)),
    ]
    listed = [
        blocks.user(TASK),
        blocks.turn(blocks.use("c1", "get_orders")),
        blocks.user(blocks.answer("c1", [{"type": "text", "text": text}])),
    ]
    two = [text, "More."]
    several = [
        blocks.user(TASK),
        blocks.turn(blocks.use("c1", "get_orders")),
        blocks.user(blocks.answer("c1", [{"type": "text", "text": part} for part in two])),
    ]
    many = [{"type": "text", "text": f"{expected}\nMore."}]
    yield pytest.param(several, lambda m: m["content"][0]["content"], many, id="several blocks")
    yield pytest.param(chat, lambda m: m["content"], expected, id="chat")
    yield pytest.param(parts, lambda m: m["content"][0]["text"], expected, id="parts")
    yield pytest.param(responses, lambda m: m["output"], expected, id="responses")
    yield pytest.param(anthropic, lambda m: m["content"][0]["content"], expected, id="anthropic")
    yield pytest.param(listed, lambda m: m["content"][0]["content"][0]["text"], expected, id="blocks")


@pytest.mark.parametrize(("messages", "read", "expected"), [*forms()])
def test_in_every_api(messages, read, expected):
    with Memory() as memory:
        context = memory.context(messages, tools=memory.tools)
        assert read(context[-1]) == expected
        assert context[:-1] == messages[:-1]
