"""Summaries without a model: the telling values are in, the rest is counted."""

import json
import tracemalloc

import pytest
from hypothesis import given
from tests.chats import JSON, TEXT
from tests.growth import LINEAR, growth

from memory_bank.models.extraction import MAX_CHARS, extract_summary
from memory_bank.records import InteractionRecord
from memory_bank.transcript.jsontext import parse_arguments, parse_output


def summary(output: str, arguments: str = '{"order": "ORD-1"}', tool: str = "get_order") -> str:
    return extract_summary(
        InteractionRecord.create(1, tool, parse_arguments(arguments), parse_output(output))
    )


@given(TEXT | JSON.map(json.dumps), TEXT)
def test_any_output_gets_a_short_summary(output, arguments):
    s = summary(output, arguments)
    assert s.startswith("Called get_order(")
    assert len(s) <= MAX_CHARS + 40


def test_ids_names_counts_and_headers():
    rows = [{"order_id": f"ORD-{i}", "customer_name": f"Ada {i}", "total": i} for i in range(30)]
    s = summary(json.dumps({"orders": rows, "next_page": "tok_99"}))
    assert "order=ORD-1" in s
    assert "orders (30 items)" in s
    assert "ORD-7" in s
    assert "Ada 3" in s
    assert "tok_99" in s
    table = summary(json.dumps(rows))
    assert "30 items with the fields order_id, customer_name, total" in table


def test_errors_come_first():
    s = summary(json.dumps({"data": ["x" * 50] * 50, "error": "permission denied for table orders"}))
    assert s.index("permission denied") < 400
    text = summary(
        "line\n" * 500 + "Traceback (most recent call last):\n  File x\nKeyError: 'sku'\n" + "line\n" * 500
    )
    assert "KeyError: 'sku'" in text


def test_text_shows_its_ends_and_identifiers():
    s = summary(
        "# Report\nSee https://shop.example/orders/77 and mail to ada@shop.example.\n"
        + "filler\n" * 50
        + "Total 99"
    )
    assert "https://shop.example/orders/77" in s
    assert "ada@shop.example" in s
    assert "Total 99" in s


def test_nothing_is_called_nothing():
    assert "Returned nothing" in summary("")


@pytest.mark.long
def test_huge_outputs_take_little_time():
    assert growth(lambda n: summary("a_1 " * n), 5_000_000) < LINEAR
    assert growth(lambda n: summary(json.dumps([{"id": i} for i in range(n)])), 300_000) < LINEAR


@pytest.mark.parametrize("part", ["x", "a-", "a.b/", "1", "a@", "x_", "/", "é", "error", "a1-"])
def test_long_runs_take_no_time(part):
    def extract(chars):
        extract_summary(InteractionRecord.create(1, "tool", {}, {"_raw": part * (chars // len(part))}))

    assert growth(extract, 60_000) < LINEAR


def test_a_long_key_over_many_values_is_not_written_for_each():
    output = {"k" * 100_000: [f"id-{n}" for n in range(1_000)]}
    record = InteractionRecord.create(1, "t", {}, output)
    tracemalloc.start()
    try:
        assert len(extract_summary(record)) <= 2_000
        assert tracemalloc.get_traced_memory()[1] < 20_000_000  # 100 MB if it were
    finally:
        tracemalloc.stop()
