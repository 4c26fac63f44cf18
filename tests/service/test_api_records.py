"""The HTTP API on records: to the letter, in pieces, in part, and never as a page of ours."""

from __future__ import annotations

import json
import threading
import time

import anyio
import pytest
from hypothesis import given
from tests.chats import JSON, TEXT
from tests.contracts.stores import let_wait
from tests.examples import examples
from tests.service import serving
from tests.service.test_api import api, configured, ingested, told

from memory_bank.bank.listing import PIECE
from memory_bank.bank.stores import FactStore
from memory_bank.errors import StorageError
from memory_bank.records import InteractionRecord
from memory_bank.service.api.records import Record, RecordPage, RecordPart
from memory_bank.service.api.requests import streamed

ORDERS = '{"items": [{"sku": "A-1", "price": 19.90}, {"sku": "B-2", "price": 5.00}], "total": 24.90}'


@pytest.fixture
def http():
    with api() as made:
        yield made


def brought(http, *outputs):
    """The trace_ids of records of these outputs."""
    given_ = [{"tool_name": "get", "raw_input": {"n": n}, "raw_output": o} for n, o in enumerate(outputs)]
    return ingested(http, tool_outputs=given_).trace_ids


def got(http, asked, **params):
    answer = http.get(f"/v1/sessions/s/records/{asked}", params=params)
    assert answer.status_code == 200, answer.text
    return answer


# --- listed


def test_records_are_listed_oldest_first(http):
    ids = brought(http, *(f"output {n}" for n in range(5)))
    page = RecordPage.model_validate(http.get("/v1/sessions/s/records?limit=2").json())
    assert [(r.number, r.trace_id) for r in page.records] == [(1, ids[0]), (2, ids[1])]
    assert page.next == 2
    first = page.records[0]
    assert (first.tool_name, first.step_id, first.input, first.output_bytes) == ("get", 1, '{"n": 0}', 8)
    assert first.source == "extractive"
    assert "output 0" in first.summary
    rest = RecordPage.model_validate(http.get("/v1/sessions/s/records", params={"after": 4}).json())
    assert ([r.number for r in rest.records], rest.next) == ([5], None)
    assert http.get("/v1/sessions/s/records?after=5").json() == {"records": [], "next": None}


def test_long_arguments_are_told_by_their_beginning(http):
    ingested(http, tool_outputs=[{"tool_name": "t", "raw_input": {"q": "é" * 9_000}, "raw_output": "x"}])
    shown = http.get("/v1/sessions/s/records").json()["records"][0]["input"]
    assert shown.startswith('{"q": "ééé')
    assert len(shown) <= 300
    assert "…" in shown


# --- whole


def test_a_record_is_whole(http):
    (trace_id,) = brought(http, ORDERS)
    record = Record.model_validate(got(http, trace_id).json())
    assert record.output_text == ORDERS
    assert record.raw_output == json.loads(ORDERS)
    assert (record.raw_input, record.input_text) == ({"n": 0}, None)
    assert (record.number, record.session, record.call_id) == (1, "s", None)
    assert record.insight.source == "extractive"
    assert record.output_bytes == len(ORDERS)


def test_a_record_that_waits_says_so(http):
    (trace_id,) = brought(http, "x")
    let_wait(http.app.state.service.database, [trace_id], 2)
    assert got(http, trace_id).json()["insight"]["attempts"] == 2


def test_records_are_named_by_id_beginning_and_number(http):
    ids = brought(http, "one", "two")
    for asked in (ids[1], ids[1][:6], ids[1][:13].upper(), "2", "%232"):
        assert got(http, asked).json()["trace_id"] == ids[1]
    for asked in (
        "0",
        "3",
        "%233",
        "99999999999",
        ids[1][:5],
        "nothing-like-it",
        "%00",
        "x" * 65,
        "%FF",
        "a%2Fb",
    ):
        told(http.get(f"/v1/sessions/s/records/{asked}"), 404, "not_found")
    assert "#1 to #2" in told(http.get("/v1/sessions/s/records/7"), 404, "not_found")


def test_a_beginning_that_fits_several_says_which(http):
    store = FactStore(http.app.state.service.database, "s")
    for n in range(8):
        store.store(InteractionRecord(f"shared-{n}", 1, "t", {}, n))
    message = told(http.get("/v1/sessions/s/records/shared"), 404, "not_found")
    assert "shared-7" in message
    assert "and others" in message
    assert got(http, "shared-3").json()["raw_output"] == 3


def test_ids_of_other_libraries(http):
    """A beginning of digits may be an id or a number, an id may have a slash."""
    store = FactStore(http.app.state.service.database, "s")
    for trace_id in ("123456-x", "other-1", "odd/id %2F"):
        store.store(InteractionRecord(trace_id, 1, "t", {}, trace_id))
    for asked, found in (("123456", 0), ("0000002", 1), ("odd%2Fid%20%252F", 2)):
        assert got(http, asked).json()["raw_output"] == ("123456-x", "other-1", "odd/id %2F")[found]
    told(http.get("/v1/sessions/s/records/%23123456"), 404, "not_found")


@given(TEXT | JSON, TEXT | JSON)
@examples(30)
def test_what_is_stored_is_what_is_given(came, given_):
    with api() as http:
        sent = {"tool_outputs": [{"tool_name": "t", "raw_input": given_, "raw_output": came}]}
        http.post("/v1/sessions/s/ingest", content=json.dumps(sent))
        came = json.loads(json.dumps(came))  # two lone surrogates side by side are one letter in JSON
        record = json.loads(got(http, "1").content)
        stored = FactStore(http.app.state.service.database, "s").get(record["trace_id"])
        assert stored is not None
        for name in ("raw_input", "input_text", "raw_output", "output_text"):
            assert json.dumps(record[name]) == json.dumps(getattr(stored, name)), name
        if isinstance(came, str):
            assert record["output_text"] == came
            assert got(http, "1", raw=1).content == came.encode("utf-8", "surrogatepass")


# --- as bytes


def test_raw_is_the_output_byte_for_byte_and_no_page(http):
    page = "<script>alert(1)</script>é\r\n"
    (trace_id,) = brought(http, page)
    answer = got(http, trace_id, raw=1)
    assert answer.content == page.encode()
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-disposition"] == f'attachment; filename="{trace_id}.txt"'
    assert answer.headers["content-length"] == str(len(page.encode()))
    brought(http, {"a": 1})
    assert got(http, "2", raw="true").content == b'{"a": 1}'
    brought(http, "")
    assert got(http, "3", raw=1).content == b""


def test_a_name_from_outside_cannot_leave_its_header(http):
    FactStore(http.app.state.service.database, "s").store(InteractionRecord('a"; x\r\nb: é', 1, "t", {}, "x"))
    answer = got(http, "1", raw=1)
    assert answer.headers["content-disposition"] == 'attachment; filename="a_x_b_?.txt"'
    assert "b" not in answer.headers


# --- in part


def part(http, asked="1", **params):
    return RecordPart.model_validate(got(http, asked, **params).json())


def test_a_path_gives_values(http):
    brought(http, ORDERS)
    one = part(http, path="items[1].sku")
    assert (one.text, one.count, one.complete) == ("B-2", 1, True)
    assert [(v.path, v.value) for v in one.values] == [("items[1].sku", "B-2")]
    prices = part(http, path="items[*].price")
    assert prices.text == "items[0].price = 19.90\nitems[1].price = 5.00"
    assert [v.value for v in prices.values] == [19.9, 5.0]
    assert part(http, path="$").text == ORDERS
    told(http.get("/v1/sessions/s/records/1?path=items[9]"), 422, "invalid_request")
    told(http.get("/v1/sessions/s/records/1?path=]["), 422, "invalid_request")


def test_an_error_may_quote_a_lone_surrogate(http):
    brought(http, {"\ud800": 1})
    assert "\ud800" in told(http.get("/v1/sessions/s/records/1?path=zzz"), 422, "invalid_request")


def test_lines_and_patterns_give_numbered_lines(http):
    text = "\n".join(f"line {n}" for n in range(1, 31))
    brought(http, text)
    some = part(http, lines="3-4,-1")
    assert some.text == "line 3\nline 4\nline 30"
    assert [x.number for x in some.lines] == [3, 4, 30]
    assert (some.count, some.complete, some.next) == (30, True, None)
    found = part(http, pattern="line 1[23]$")
    assert [(x.number, x.matches) for x in found.lines] == [(11, False), (12, True), (13, True), (14, False)]
    assert part(http, lines="1-5", pattern="9").lines == []
    for query in ("lines=50-60", "lines=x", "pattern=[", "pattern=(a%2B)%2B%24%23"):
        answer = http.get(f"/v1/sessions/s/records/1?{query}")
        assert answer.status_code in (200, 422)
    told(http.get("/v1/sessions/s/records/1?path=a"), 422, "invalid_request")


def test_a_part_that_is_too_long_says_how_to_go_on(http):
    brought(http, "\n".join("x" * 90 for _ in range(100)), ORDERS)
    cut = part(http, lines="11-90", max_chars=1_000)
    assert (len(cut.lines), cut.complete) == (10, False)
    assert cut.next == "21-90"
    assert part(http, lines=cut.next, max_chars=1_000).lines[0].number == 21
    short = part(http, asked="2", path="items", max_chars=20)
    assert (short.complete, short.values) == (False, None)
    assert len(short.text) <= 20


@pytest.mark.parametrize(
    "query",
    [
        "raw=1&path=a",
        "path=a&path=b",
        "raw=1&lines=1",
        "max_chars=10",
        "raw=x",
        "max_chars=0&path=a",
        "wat=1",
    ],
)
def test_selections_that_contradict_are_refused(http, query):
    brought(http, ORDERS)
    told(http.get(f"/v1/sessions/s/records/1?{query}"), 422, "invalid_request")


# --- on every database


def test_it_is_the_same_on_every_database(bank_url):
    odd = "NUL \0 and \ud800, ORD-4711\nsecond line"
    with api(bank_url) as http:
        ids = brought(http, odd, ORDERS, {"nested": [1, None, "\ud800"]})
        assert brought(http, odd, ORDERS, {"nested": [1, None, "\ud800"]}) == ids
        made = http.post("/v1/sessions/s/context", json={"messages": [{"role": "user", "content": "hi"}]})
        assert made.json()["records"] == 3
        assert [r["trace_id"] for r in http.get("/v1/sessions/s/records").json()["records"]] == ids
        assert json.loads(got(http, ids[0]).content)["output_text"] == odd
        assert got(http, "1", raw=1).content == odd.encode("utf-8", "surrogatepass")
        assert got(http, "3").json()["raw_output"] == {"nested": [1, None, "\ud800"]}
        assert part(http, ids[1][:9], path="total").text == "24.90"
        found = http.get("/v1/sessions/s/search", params={"q": "ord-4711"}).json()["hits"]
        assert (found[0]["trace_id"], found[0]["holds"], found[0]["place"]) == (ids[0], "ord-4711", "line 1")
        assert [s["records"] for s in http.get("/v1/sessions?q=S").json()["sessions"]] == [3]
        assert http.get("/v1/stats").json()["insights"] == 3
        assert http.delete("/v1/sessions/s").status_code == 204
        assert http.get("/v1/stats").json()["sessions"] == 0


# --- huge


@pytest.fixture(scope="module")
def huge_text():
    return json.dumps({"rows": [{"n": n, "text": f"row {n} é"} for n in range(120_000)]}, ensure_ascii=False)


@pytest.fixture
def huge(tmp_path, huge_text):
    """A client of a service with a record of about 4 MB, and the service."""
    with serving.serving(configured(tmp_path / "bank.db")) as served, served.client() as http:
        outputs = [{"tool_name": "t", "raw_output": huge_text}]
        assert http.post("/v1/sessions/s/ingest", json={"tool_outputs": outputs}).status_code == 200
        yield http, served


@pytest.mark.long
def test_a_huge_output_comes_whole_in_part_and_holds_up_nobody(huge, huge_text):
    http, served = huge
    slowest, done = 0.0, threading.Event()

    def look():
        nonlocal slowest
        with served.client() as other:
            while not done.wait(0.05):
                began = time.monotonic()
                assert other.get("/v1/sessions").status_code == 200
                slowest = max(slowest, time.monotonic() - began)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        began = time.monotonic()
        assert got(http, "1", raw=1).content == huge_text.encode()
        record = got(http, "1").json()
        assert record["output_text"] == huge_text
        assert record["raw_output"] is None  # it is over 2 MiB: parsed on request, a part at a time
        assert part(http, path="rows[119999].text").text == "row 119999 é"
        found = part(http, pattern="row 12345 é")
        assert [x.text for x in found.lines if x.matches] == ['rows[12345].text = "row 12345 é"']
        listed = http.get("/v1/sessions/s/records").json()["records"][0]
        assert listed["output_bytes"] == len(huge_text.encode())
        hits = http.get("/v1/sessions/s/search", params={"q": "row 119999"}).json()["hits"]
        assert [h["number"] for h in hits] == [1]
        took = time.monotonic() - began
    finally:
        done.set()
        looking.join()
    assert slowest < took / 4  # others went on meanwhile


def test_a_value_that_came_as_one_is_given_whole_whatever_its_size(http):
    rows = [{"n": n, "t": "\ud800é"} for n in range(30_000)]
    brought(http, rows)
    answer = got(http, "1")
    assert answer.json()["raw_output"] == rows
    assert answer.json()["output_text"] is None


@pytest.mark.parametrize("letter", ["é", "中", "😀", "\ud800", "\\", '"', "\n"])
def test_texts_in_pieces_cut_no_character(http, letter):
    """A text is read in pieces, which may end within the bytes of a character."""
    store = FactStore(http.app.state.service.database, "s")
    for shift in range(len(letter.encode(errors="surrogatepass"))):
        text = "a" * (PIECE - shift) + letter + "b" * PIECE
        record = InteractionRecord.create(shift, "t", {}, {"_raw": text}, output_text=text)
        store.store(record)
        shown = json.loads(got(http, record.trace_id).content)
        assert (shown["output_text"] == text, shown["raw_output"]) == (True, None)


def test_what_fails_at_once_is_told_before_an_answer_begins():
    def failing():
        yield b"{"
        raise StorageError("gone")

    with pytest.raises(StorageError):
        anyio.run(streamed, failing())
