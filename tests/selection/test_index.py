"""Properties of the evidence index: budget, determinism, forks, bad input."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from benchmarks.training.fitting import log_odds
from hypothesis import given
from hypothesis import strategies as st
from tests.chats import call, parted, result, rounds, user
from tests.examples import examples
from tests.selection.texts import ANY_TEXT, CHARACTERS, TEXTS, add, filled, words

from memory_bank import MemoryBankState, apply_memory_bank_strategy, load_config
from memory_bank.selection.cutting import cut_text
from memory_bank.selection.index import TREES_ON, EvidenceIndex
from memory_bank.selection.model import CurrentStep, describe
from memory_bank.selection.values import find_candidates, forms_in

CALL = st.tuples(
    st.sampled_from(["get_orders", "find user", "x" * 200]) | CHARACTERS, ANY_TEXT, ANY_TEXT, TEXTS
)


def grown(calls, **selecting):
    """An index that selects after every call."""
    index = EvidenceIndex(count_tokens=words)
    for number, each in enumerate(calls):
        add(index, number, *each)
        index.select(tail_interaction=number, **selecting)
        yield index


@examples(60)
@given(st.lists(CALL, min_size=2, max_size=6))
def test_scores_that_grow_are_those_of_the_features(calls):
    for number, index in enumerate(grown(calls, anchor=["find bob"], budget=300)):
        index.tables.set_anchor(["A-1042"] if number > 3 else ["find bob"])
        _, chance = index.chances(number)
        x = describe(CurrentStep(index.tables, number), index.eligible(number))
        if x.shape[1] <= TREES_ON:
            np.testing.assert_allclose(chance, 1 / (1 + np.exp(-log_odds(index.model, x))), atol=2e-4)


@examples(60)
@given(st.lists(CALL, min_size=2, max_size=5))
def test_selecting_changes_nothing(calls):
    *_, often = grown(calls, anchor=["a"], budget=100)
    arguments = {"anchor": ["a"], "tail_interaction": len(calls) - 1, "budget": 200}
    assert filled(*calls).select(**arguments) == often.select(**arguments)


def deep(levels: int) -> str:
    return "[" * levels + "]" * levels


BAD = {
    "empty": "",
    "nul": "a\x00b",
    "surrogate": "x \ud83d y \udc00 z",
    "half json": '{"a": [1, 2, {"b": "c',
    "half table": '{"cells": [' + '{"address": "A1", "value": "Bob"},\n' * 40 + '{"addr',
    "html": "<html><body>" + "<p>Order A-1042</p>" * 300,
    "csv": 'a,"b ""q"", x",c\n1,"2\n3",4\n' * 50,
    "base64": "QUJD" * 300_000,
    "one line": "word A-1042 " * 900_000,
    "no spaces": "x" * 10_000_000,
    "quotes": "'" * 300_000,
    "escaped quotes": '="' + '\\"' * 200_000,
    "braces": "{" * 200_000,
    "deep": deep(10_000),
    "deep objects": '{"a":' * 10_000 + "1" + "}" * 10_000,
    "rtl": "שלום עולם order A-77 مرحبا " * 50,
    "cjk": "订单编号 A-1042 的状态是已发货。" * 200,
    "numbers as strings": json.dumps([{"id": str(i), "n": "1,234.50"} for i in range(300)]),
    "big integer": "[" + "9" * 6000 + "]",
    "table": json.dumps([{"id": i, "name": f"user_{i}", "email": f"u{i}@x.org"} for i in range(100_000)]),
    "nan": "[NaN, Infinity, -Infinity]",
    "escapes": "text='" + '{\\n \\"a\\": 1}\\n' * 2000 + "'",
    "slashes": "/" * 200_000,
    "dots": "a.b-" * 50_000,
    "bom": '\ufeff{"a": 1}',
    "special": "<|endoftext|> A-1",
}


@pytest.mark.parametrize("name", BAD)
def test_bad_output(name):
    bad = ("t", BAD[name][:3000], BAD[name])
    index = filled(bad, bad, ("u", {"x": 1}, "ok", BAD[name][:100_000]))
    chosen = index.select(anchor=["hello"], tail_interaction=2, budget=500)
    assert words(chosen.text) <= 500


@examples(100)
@given(st.lists(st.from_regex(r"[A-Za-z0-9_]{1,30}", fullmatch=True), min_size=1, max_size=200))
def test_no_word_is_cut(tokens):
    text = " ".join(tokens)
    known = set(tokens)
    for segment in cut_text(text).segments:
        assert all(word in known for word in segment.text.split())


def test_same_in_every_process():
    code = (
        "import json\nfrom memory_bank.selection.index import EvidenceIndex\n"
        "i = EvidenceIndex()\n"
        "for n in range(30): i.add_call(trace_id=str(n), interaction=n, tool='t%d' % (n % 3), arguments=json.dumps({'q': 'a-%d' % n}), output=json.dumps([{'id': 'a-%d' % (n + k), 'name': 'Bob %d' % k} for k in range(20)]))\n"
        "print(i.select(anchor=['x'], tail_interaction=29, budget=400).text)"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1] and len(runs[0]) > 100


@pytest.mark.parametrize(
    "token", ["httpx/client.py", "httpd/conf", "http/1.1?x=1", "https:/x", "http://", "https://?a&b", "http"]
)
def test_a_token_that_only_begins_like_an_address_is_a_path(token):
    messages = [
        user(),
        call(("c0", "grep", {"pattern": token}), text=token),
        result("c0", f"{token}:12: x\n" * 9),
    ]
    messages += [*rounds(3, size=20_000), call(("c9", "read", {"path": token})), result("c9", token)]
    settings = load_config().strategy("memory_bank").model_copy(update={"refresh_after": 0})
    with MemoryBankState() as state:
        context, tokens = apply_memory_bank_strategy(messages, None, settings, state)
    assert tokens < sum(map(state.counter.count_message, messages))
    assert parted(context)[0] == messages[0]


@examples(100)
@given(
    st.lists(CALL, min_size=1, max_size=6),
    st.lists(ANY_TEXT, max_size=2),
    st.sampled_from([0, 1, 5, 17, 40, 300, 2500]),
    st.sampled_from([words, len, lambda s: len(s.split())]),
)
def test_no_text_makes_it_raise_or_exceed_the_budget(calls, anchor, budget, count):
    tool, arguments, output, note = calls[0]
    index = filled(*calls, (tool, output, arguments, note), count=count)  # an output is an argument, too
    chosen = index.select(anchor=anchor, tail_interaction=len(calls), budget=budget)
    assert chosen.tokens == count(chosen.text) <= budget
    index.explain(list(chosen.gains), anchor=anchor, tail_interaction=len(calls))


def order(number: int) -> dict[str, str]:
    remark = "The order was taken over the telephone, checked twice against the list, and then passed on."
    return {
        "billing": f"BK-{7919 * number % 9973:04}-Q",
        "remark": remark,
        "parcel": f"w{6101 * number % 9967:04}x{number}z",
        "notes": remark,
    }


def orders_taken(field: str | None) -> EvidenceIndex:
    """A session in which calls take a field of eight orders, or of none; a ninth order waits for its call."""
    calls = []
    for number in (*range(1, 9), 40):
        taken = order(number)[field] if field else "nothing"
        calls.append(("get_order", json.dumps({"page": number}), json.dumps(order(number)), ""))
        calls.append(("check", json.dumps({"value": taken}), "done", ""))
    calls[-1] = ("wait", "{}", "done", "")
    return filled(*calls)


def test_a_field_that_calls_took_before_is_kept_of_a_new_output():
    earlier = [order(n)[field] for n in range(1, 9) for field in ("billing", "parcel")]
    anchor = ["Go through the orders.", f"Done: {', '.join(earlier)}"]  # these need no room in the selection
    shown = {
        taken: orders_taken(taken).select(anchor=anchor, tail_interaction=17, budget=34).text
        for taken in ("billing", "parcel", None)
    }
    new = order(40)
    assert new["billing"] in shown["billing"]
    assert new["parcel"] not in shown["billing"]
    assert new["parcel"] in shown["parcel"]
    assert new["parcel"] not in shown[None]


def test_drawings_and_long_unions_have_no_values():
    allowed = " | ".join(f'"kind_{n}"' for n in range(6))
    text = f'type Kind = {allowed};\n<svg id="logo_7" class="shown_always and_big" d="M120.5 20.25L301 407.75C3"/>'
    schema = {"name": "find_items", "properties": {"kind": {"enum": [f"sort_{n}" for n in range(6)]}}}
    forms = {c.form for s in cut_text(text).segments for c in find_candidates(s)}
    assert "logo_7" in forms and not any("kind_" in form or "407" in form for form in forms)
    forms = {c.form for s in cut_text(json.dumps(schema)).segments for c in find_candidates(s)}
    assert "find_items" in forms and not any("sort_" in form for form in forms)
    assert "kind_1" in forms_in('type Kind = "kind_1" | "kind_2"')  # two of them may be what is asked for


def quoted_folder(entries: int, kind: str = "file") -> tuple[str, list[str]]:
    """What is quoted of a folder with so many entries, and the names of those whose rows are not shown."""
    names = [f"part{7919 * n % 9973}.yml" for n in range(entries)]
    listing = [
        {
            "type": kind,
            "name": name,
            "sha": f"{7919 * n:010x}" * 4,
            "url": f"https://a.test/repos/x/contents/{name}",
        }
        for n, name in enumerate(names)
    ]
    index = filled(json.dumps(listing), "done")
    chosen = index.select(anchor=[], tail_interaction=1, budget=1_500, prices=[10, 10])
    quote = index.quote(0, chosen.shown[0], chosen)[0]
    return quote, [name for name in names if f'"name": "{name}"' not in quote]


def test_of_a_listing_that_is_shown_in_part_the_other_entries_are_named():
    quote, others = quoted_folder(60)
    assert 10 < len(others) < 60
    assert f"… also in it: {', '.join(others)}" in quote.split("\n")


def test_of_a_listing_with_too_many_entries_none_is_named_without_its_row():
    quote, others = quoted_folder(400)
    assert others
    assert "also in it" not in quote
