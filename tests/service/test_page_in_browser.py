"""The page as its users have it: in a headless Chromium, by keyboard and mouse, in any light, on a phone."""

from __future__ import annotations

import json
import os
import threading
import time
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote

import pytest
import sqlalchemy as sa
from tests.bank.test_steps import a_step
from tests.browser import Browser, eventually, why_not
from tests.chats import call, result, rounds, system, user
from tests.contracts.stores import let_wait
from tests.pictures import take_picture
from tests.service.processes import serve
from tests.service.proxied import post, proxied
from tests.service.runs import orders, recorded
from tests.service.serving import serve_here
from tests.service.showcase import showcase
from tests.service.test_figures import BANK, BODIES, FETCH, PRICES
from tests.service.test_strategy_that_cannot_work import SECRET, failing_memory

from memory_bank.bank import schema
from memory_bank.bank.database import Database
from memory_bank.bank.keys import Keys
from memory_bank.bank.steps import StepFigures, StepToStore, add_steps
from memory_bank.bank.stores import FactStore
from memory_bank.config import Config
from memory_bank.pricing import Usage
from memory_bank.records import InteractionRecord
from memory_bank.testing import ScriptedServer, say

pytestmark = [pytest.mark.long, pytest.mark.skipif(why_not() is not None, reason=why_not() or "")]

DOCS = Path(__file__).parents[2] / "docs"
SHOP = recorded("shop-refunds")
LAST = f"#/s/shop-refunds/steps/{len(SHOP)}"
HOSTILE = (
    '<img src=x onerror="window.hit=1"><script>window.hit=2</script><a href="javascript:window.hit=3">x</a>'
    "</pre></textarea>\u202egnp.exe\u202c\u200b\x1b[31m\0\ud800 ${1} `' &lt;b&gt;"
)
MANY = 10_000
BAR = '[aria-label="What becomes of this record"]'


def sent(service, name, messages, **more):
    path = f"/v1/sessions/{quote(name, safe='')}/context"
    answer = service.ask(path, "POST", {"messages": messages, "plan": False, **more})
    assert answer.status == 200, answer.body


def detailed(service, name, number):
    """Wait until a step is noted."""
    path = f"/v1/sessions/{quote(name, safe='')}/steps/{number}"
    eventually(lambda: service.ask(path).status == 200)


def fed(service, name, steps, **more):
    for number, messages in enumerate(steps, 1):
        sent(service, name, messages, **more)
        detailed(service, name, number)


def hostile_chat():
    chat = [system(HOSTILE), user(HOSTILE)]
    for i in range(6):
        answer = json.dumps({"x": HOSTILE, "id": f"ORD-{i}", HOSTILE: [HOSTILE] * 60})
        chat += [call((f"h{i}", HOSTILE, {"q": HOSTILE})), result(f"h{i}", f"{HOSTILE}\nORD-{i}\n{answer}")]
    return chat


HOSTILE_NAME = "<b onclick=alert(1)>x\"'&</b>/..%2F?#"


@pytest.fixture(scope="module")
def browser():
    browser = Browser()
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    with serve_here(folder / "bank.db", history_budget=4_000, refresh_after=0) as process:
        fed(process, "shop-refunds", SHOP, strategy="memory_bank")
        sent(process, "log-hunt", recorded("log-hunt")[-1])
        sent(process, "code-fix", recorded("code-fix")[-1])
        yield process


@pytest.fixture(scope="module")
def block_service(tmp_path_factory):
    """A service whose contexts tell the past in one message; one session has too little room to tell all."""
    folder = tmp_path_factory.mktemp("block")
    config = folder / "config.toml"
    config.write_text(
        "".join(
            f'[memory_strategies.{name}]\ntype = "memory_bank"\nselection = "evidence"\nlayout = "block"\n'
            f'observer_model = "extractive"\nembedding_model = "lexical"\nhistory_budget = {budget}\nrefresh_after = 0\n'
            for name, budget in (("memory_bank", 4000), ("small", 600))
        )
    )
    with serve("--config", config, "--db", folder / "bank.db") as process:
        fed(process, "shop-refunds", SHOP, strategy="memory_bank")
        fed(process, "small", SHOP[-1:], strategy="small")
        yield process


@pytest.fixture
def opened(browser, service):
    """``opened(hash, **size and light)``: the page, once it has its sessions; nothing may go wrong on it.

    ``opened.done()`` looks and closes them, for tests whose own service ends before.
    """
    pages = []

    def go(where="#/", ready="#sessions li", at=service, **how):
        page = browser.page(f"{at.address}/{where}", **how)
        pages.append(page)
        page.wait(ready)
        return page

    def done():
        while pages:
            page = pages.pop()
            trouble = page.trouble()
            page.close()
            assert trouble == []

    go.done = done
    yield go
    done()


STEP = "#detail .message.memory"


def at_step(page, number):
    title = f"document.querySelector('#detail-title')?.innerText === 'Step {number}'"
    page.wait(f"{title} && !document.querySelector('#detail').ariaBusy")


def choose(page, name):
    """Click on a session."""
    page.click("#sessions li a.whole", page.texts("#sessions li .name").index(name))


# -- what is there


@pytest.mark.short
def test_a_session_shows_its_steps_its_curve_and_what_was_sent_last(opened, service):
    page = opened("#/s/shop-refunds", ready=STEP)
    assert page.text("#session-title") == "shop-refunds"
    at_step(page, len(SHOP))
    assert page.count(".curve path.line") == 2
    assert len(page.texts("#session .steps li")) >= 10
    assert "In the week of 9-15 March" in page.text("#session")
    assert "OPENAI" not in page.text("#detail")
    stats = page.text("#stats").split()
    assert stats[:2] == ["sessions", str(service.ask("/v1/stats").json()["sessions"])]
    assert "tokens" in stats and "less" in stats
    step = service.ask(f"/v1/sessions/shop-refunds/steps/{len(SHOP)}").json()
    heads = page.texts(".message h3")
    assert heads[0].split("\n")[0].strip() == f"fold {step['fold']['number']}"
    quoted = list(dict.fromkeys(p["trace_id"] for p in step["fold"]["pieces"]))
    numbers = {c["trace_id"]: c["number"] for c in step["calls"]}
    assert len(quoted) > 3
    for head, trace_id in zip(heads[1:], quoted, strict=True):
        assert f"#{numbers[trace_id]}" in head.split()
    kept = [c for c in step["calls"] if c["fate"] == "kept" and c["number"] > step["fold"]["records"]]
    assert f"{len(kept)} later call" in page.text(".panel.context .gap")


@pytest.mark.parametrize("layout", ["native", "block"])
def test_a_fold_is_shown_to_the_letter_with_the_worth_and_fate_of_each_line(opened, request, layout):
    at = request.getfixturevalue("service" if layout == "native" else "block_service")
    page = opened(LAST, ready=STEP, at=at)
    step = at.ask(f"/v1/sessions/shop-refunds/steps/{len(SHOP)}").json()
    lines = page.js("[...document.querySelectorAll('.message.memory .text')].map(e => e.textContent)")
    assert lines == step["fold"]["text"].split("\n")
    pieces = {}
    for piece in step["fold"]["pieces"]:
        pieces.setdefault(piece["trace_id"], []).append(piece)
    order = [p for of in pieces.values() for p in of]
    quotes = page.js("[...document.querySelectorAll('.line.piece .text')].map(e => e.textContent)")
    assert quotes == [p["text"] for p in order]
    assert page.count(".line.piece.new") == len([p for p in order if p in step["new"]])
    assert page.texts(".line.piece .value") == [f"{p['score']:.2f}" for p in order]
    first = next(i for i, p in enumerate(order) if p["values"])
    page.click(".line.piece .gutter", first)
    why = page.text(".why")
    assert order[first]["values"][0]["value"] in why and "%" in why
    page.click(".line.piece .gutter", first)
    assert page.js("document.querySelector('.why')") is None


def test_a_quoted_call_tells_its_fate_and_leads_to_its_record(opened, service):
    page = opened(LAST, ready=STEP)
    step = service.ask(f"/v1/sessions/shop-refunds/steps/{len(SHOP)}").json()
    calls = {c["trace_id"]: c for c in step["calls"]}
    quoted = [calls[t] for t in dict.fromkeys(p["trace_id"] for p in step["fold"]["pieces"])]
    heads = page.texts(".message.past h3")
    assert all(head.endswith(call["fate"]) for head, call in zip(heads, quoted, strict=True))
    links = "[...document.querySelectorAll('.message.past h3 a')].map(e => e.href.split('/records/')[1])"
    assert page.js(links) == [c["trace_id"] for c in quoted]
    listed = "[...document.querySelectorAll('.call-line a')].map(e => e.href.split('/records/')[1])"
    assert set(page.js(listed)) <= set(calls)
    page.click(".message.past h3 a")
    page.wait("location.hash.includes('/records/')")
    page.wait(".lines .line")
    assert page.text("#detail-title").startswith(f"#{quoted[0]['number']} ")


@pytest.mark.parametrize(
    ("of", "step", "fate"),
    [
        ("service", f"shop-refunds/steps/{len(SHOP)}", "shown in part"),
        ("service", f"shop-refunds/steps/{len(SHOP)}", "listed"),
        ("block_service", "small/steps/1", "left out"),
    ],
)
def test_every_past_call_has_its_fate_and_its_reason(opened, request, of, step, fate):
    at = request.getfixturevalue(of)
    page = opened(f"#/s/{step}/past", ready=".decision", at=at)
    shown = at.ask(f"/v1/sessions/{step}").json()
    fates = [f"{n} {fate}" for fate, n in shown["fates"].items()]
    assert all(page.text("#detail .fates").count(told) == 1 for told in fates)
    assert len(page.texts(".chips a")) == len(fates) + 1
    page.click(".chips a", [fate in chip for chip in page.texts(".chips a")].index(True))
    wanted = [d for d in shown["calls"] if d["fate"] == fate]
    page.wait(f"[...document.querySelectorAll('.decision .fate')].every(e => e.innerText.endsWith('{fate}'))")
    assert wanted and 0 < page.count(".decision") <= len(wanted)
    page.click(".decision .second")
    assert " ".join(wanted[-1]["reason"].split()) in page.text("#detail .told")


def test_a_call_of_which_only_the_arguments_are_quoted_is_not_told_as_left_out(service):
    steps = (service.ask(f"/v1/sessions/shop-refunds/steps/{n}").json() for n in range(len(SHOP), 0, -1))
    decided = [
        c for s in steps for c in s["calls"] if "of its arguments or of the agent's words" in c["reason"]
    ]
    assert decided and {c["fate"] for c in decided} == {"shown in part"}


def test_what_changed_since_the_step_before_is_told(opened, service):
    page = opened(f"{LAST}/changes", ready=".piece-card")
    detail = service.ask(f"/v1/sessions/shop-refunds/steps/{len(SHOP)}").json()
    assert page.count(".piece-card.new") == len(detail["new"])
    assert page.count(".piece-card.gone") == len(detail["gone"]) > 0
    assert page.count(".turned") == len(detail["changes"])


def test_a_record_is_there_to_the_letter_summarised_searched_and_copied(opened, service):
    records = service.ask("/v1/sessions/shop-refunds/records?limit=50").json()["records"]
    long = max(records, key=lambda r: r["output_bytes"])
    whole = service.ask(f"/v1/sessions/shop-refunds/records/{long['trace_id']}").json()
    text = whole["output_text"]
    page = opened(f"#/s/shop-refunds/records/{long['trace_id']}", ready=".lines .line")
    assert long["trace_id"] in page.text("#detail")
    assert page.text("#detail .summary") == " ".join(whole["insight"]["summary"].split())
    laid = page.js("document.querySelector('.answer [aria-pressed=true]')?.innerText") == "Laid out"
    if laid:
        page.click(".answer [aria-pressed=true]")
    page.wait(".lines .line")
    lines = page.js("[...document.querySelectorAll('.lines .text')].map(e => e.textContent)")
    assert "\n".join(lines) == "\n".join(line[:4000] for line in text.split("\n"))[: len("\n".join(lines))]
    wanted = "ORD-"
    page.click(".answer input")
    page.write(wanted)
    page.wait(".lines mark")
    hits = sum(wanted in line for line in text.split("\n"))
    assert f"of {hits}" in page.text(".answer .bar")
    page.press("Enter")
    page.click(".answer .bar button:nth-of-type(3)")  # only lines around
    page.wait("document.querySelectorAll('.lines .line').length > 0")
    assert page.js("[...document.querySelectorAll('.lines mark')].every(e => e.textContent === 'ORD-')")
    page.js("navigator.clipboard.writeText = t => { window.copied = t; return Promise.resolve(); }")
    page.click(".group:nth-of-type(3) button")
    assert page.js("window.copied") == text


@pytest.mark.short
def test_what_cannot_be_handed_on_copies_nothing(opened, service):
    sent(service, "empty-handed", [user("Look."), *rounds(3, size=300)])
    page = opened("#/s/empty-handed", ready=".actions button:nth-of-type(3)")
    page.js("navigator.clipboard.writeText = t => { window.copied = t; return Promise.resolve(); }")
    hand_on = "[...document.querySelectorAll('.actions button')].find(b => b.innerText === 'Hand on')"
    page.js(f"{hand_on}.click()")
    page.wait("document.defaultView.copied?.startsWith('<earlier-session>')")
    told = service.ask("/v1/sessions/empty-handed/handoff").json()["text"]
    assert "- Look.\n" in told
    assert page.js("window.copied") == told
    shown = "[...document.querySelectorAll('pre, .handed')].some(e => !e.hidden && e.textContent === window.copied)"
    page.wait(shown)
    page.js("window.copied = 'mine'; window.fetch = () => Promise.reject(new TypeError('no network'))")
    page.wait(f"{hand_on} !== undefined")
    page.js(f"{hand_on}.click()")
    page.wait("document.querySelector('.failure:not([hidden])') !== null")
    assert page.js("window.copied") == "mine"


@pytest.mark.short
def test_forget_is_pressed_twice_and_deletes_the_content(opened, service):
    sent(service, "marks", [user("Look."), *rounds(6, size=300)])
    [record] = [r for r in service.ask("/v1/sessions/marks/records").json()["records"] if r["number"] == 2]
    path = f"/v1/sessions/marks/records/{record['trace_id']}"
    page = opened(
        f"#/s/marks/records/{record['trace_id']}", ready=f"document.querySelector('{BAR} button') !== null"
    )
    page.click(f"{BAR} button")
    page.wait(f"document.querySelector('{BAR} button').innerText === 'Delete for good?'")
    assert service.ask(path).json()["mark"] is None  # the first press only asks
    page.click(f"{BAR} button")
    assert "forgotten" in page.wait("document.querySelector('#detail .note')?.innerText")
    assert service.ask(path).json()["output_text"] == "[forgotten]"


@pytest.mark.short
def test_a_search_finds_what_is_exact_and_leads_to_it(opened):
    page = opened("#/s/shop-refunds/search")
    page.click("#find-text")
    page.write("ORD-59182")
    page.wait("document.querySelectorAll('.hits li').length > 1")
    assert "holds ORD-59182" in page.texts(".hits li")[0]
    assert page.js("location.hash") == "#/s/shop-refunds/search?q=ORD-59182"
    page.click(".hits li a")
    page.wait(".lines mark")
    assert page.text(".lines mark") == "ORD-59182"
    assert page.text("#session-tab-search-panel .empty").endswith("records")  # the search is still there


def test_the_list_of_sessions_finds_what_any_session_holds(opened):
    page = opened("#/")
    page.click("#find-session")
    page.write("ORD-59182")
    page.wait("document.querySelectorAll('#sessions .hits li').length > 1")
    first = page.texts("#sessions .hits li")[0]
    assert "holds ORD-59182" in first and "shop-refunds" in first
    page.js("document.querySelector('#sessions .hits a').focus()")
    page.press("Enter")
    page.wait(".lines mark")
    assert page.js("location.hash").startswith("#/s/shop-refunds/records/")
    page.js(
        "(f => { f.value = 'xylophone quartz'; f.dispatchEvent(new Event('input')); })(document.querySelector('#find-session'))"
    )
    page.wait("document.querySelector('#sessions').innerText.includes('No record matches')")


# -- pictures for the docs


AUDIT = "#/s/refund-audit-w11"
PICTURES = {  # file → address, size and light, what is waited for, what is clicked
    "page-home.png": ("#/", {}, ".days rect", ""),
    "page-step.png": (f"{AUDIT}/steps/18", {}, ".line.piece", ".line.piece .gutter"),
    "page-answer.png": (f"{AUDIT}/steps/9/answer", {}, ".panel.answer .message", ""),
    "page-error.png": ("#/s/flaky-payment-test/steps/7", {}, "#detail .failure b", ""),
    "page-changes.png": (f"{AUDIT}/steps/10/changes", {}, ".panel.changes .group", ""),
    "page-near.png": (f"{AUDIT}/steps/18/near", {}, ".panel.near .piece-card", ""),
    "page-compare.png": ("#/compare/refund-audit-w11/checkout-latency", {}, ".sides td", ""),
    "page-dark.png": (f"{AUDIT}/steps/14/past", {"dark": True}, ".decision", ".decision .second"),
    "page-record.png": (f"{AUDIT}/records/9?find=ORD-59182", {}, ".lines mark", ""),
    "page-search.png": ("#/", {}, "#sessions li", "#find-session"),
    "page-phone.png": (AUDIT, {"width": 375, "height": 720}, ".curve path", ""),
    "page-phone-home.png": ("#/overview", {"width": 375, "height": 720, "dark": True}, ".days rect", ""),
    "page-clients.png": ("#/", {}, ".lines-to-copy li", ""),
}


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """A service that agents have worked with for some days."""
    with showcase(tmp_path_factory.mktemp("shown")) as found:
        yield found


@pytest.fixture(scope="module")
def unused(tmp_path_factory):
    """A service without a session."""
    with serve("--db", tmp_path_factory.mktemp("unused") / "bank.db") as process:
        yield process


@pytest.mark.parametrize("name", PICTURES)
def test_the_pictures_of_the_docs_are_made_here(opened, shown, unused, name, tmp_path):
    """With PAGE_PICTURES set they are written into docs/: ``make screenshots``."""
    where, how, ready, chosen = PICTURES[name]
    at = unused if name == "page-clients.png" else shown
    page = opened(where, at=at, ready=ready, **{"width": 1440, "height": 900, **how})
    page.size(how.get("width", 1440), how.get("height", 900), phone="width" in how)
    page.wait("#stats dd")
    page.wait("!location.hash.startsWith('#/s/') || document.querySelector('#session .facts div')")
    if name == "page-search.png":
        page.click(chosen)
        page.write("ORD-59182")
        page.wait("document.querySelectorAll('#sessions .hits li').length > 1")
    elif chosen:
        page.js(
            f"(e => {{ e.click(); e.scrollIntoView({{block: 'center'}}); }})(document.querySelectorAll({chosen!r})[2])"
        )
    page.js("Promise.all(document.getAnimations().map(a => a.finished))")
    folder = DOCS if os.environ.get("PAGE_PICTURES") else tmp_path
    take_picture(page, folder / name)
    assert 5_000 < (folder / name).stat().st_size < 200_000


@pytest.mark.short
def test_the_docs_show_every_picture():
    text = (DOCS / "howto" / "page.md").read_text()
    for name in PICTURES:
        assert f"](../{name})" in text
        assert 5_000 < (DOCS / name).stat().st_size < 200_000


# -- money, errors and what can be done with sessions, on every screen

API_WORDS = (
    "Observer",
    "base_url",
    "cached_tokens",
    "[object",
    "undefined",
    "NaN",
    "unpriced",
    "without_memory",
    "memory_bank",
    "trace_id",
    "llm:",
    "extractive",
)
three = pytest.mark.parametrize("screen", ["light", "dark", "phone"])


def seen(opened, at, screen, where, ready):
    """A page on a screen, on which nothing is cut, scrolls sideways, or speaks the API's language."""
    how = SCREENS[screen]
    page = opened(where, at=at, ready=ready, **how)
    page.size(how.get("width", 1440), how.get("height", 900), phone=screen == "phone")
    page.wait("document.querySelector('#stats dd') && document.querySelector('#columns').ariaBusy !== 'true'")
    width = how.get("width", 1440)
    assert page.js("[document.documentElement.scrollWidth, innerWidth]") == [width, width]
    assert page.js(f"{CUT}(document.querySelector('header'))") == []
    words = page.text().replace(page.text(".lines-to-copy") or "\0", "")  # these are code
    assert not [word for word in API_WORDS if word in words]
    return page


def figure(n):
    """A sum of money as the page writes it."""
    return f"${n:.4f}" if n < 0.1 else f"${n:.2f}"


@three
def test_the_overview_has_the_money_the_days_and_the_prices(opened, shown, screen):
    page = seen(opened, shown, screen, "#/overview", ".days rect")
    stats, days = (shown.proxied.ask(f"/v1/stats{p}").json() for p in ("", "/days"))
    cost = stats["cost"]
    assert cost["full"] > cost["sent"]
    tiles = page.texts(".home-page .tiles")[1]
    assert figure(cost["full"] - cost["sent"]) in tiles
    assert f"paid {figure(cost['sent'])}, without memory {figure(cost['full'])}" in tiles
    assert page.texts(".tiles:not(.today) .bad b") == ["2", "1"]  # errors, steps without memory
    assert page.count(".days rect.sent") == len(days["days"]) > 4
    assert page.count(".days circle.bad") == sum(
        bool(d["errors"] or d["without_memory"]) for d in days["days"]
    )
    sessions = page.texts(".wide td a.named b")
    assert sessions[0] == "Warehouse recount"
    assert page.texts(".wide td a.named .name")[0] == "warehouse-recount"
    assert "genai-prices" in page.text(".home-page") and "20" in page.text(".home-page")
    assert "no price" in page.text(".home-page")  # of house-model-7b
    assert "$" in page.js("document.querySelector('.days svg').textContent")
    page.click(".days button", 1)
    assert page.js("document.querySelectorAll('.days button')[1].ariaPressed") == "true"
    assert "$" not in page.js("document.querySelector('.days svg').textContent")
    by = "[...document.querySelectorAll('.home-page button')].find(e => e.innerText === 'by %s').click()"
    page.js(by % "day")
    page.wait(f"document.querySelector('.wide tbody').children.length === {len(days['days'])}")
    assert page.texts(".wide tbody td.text")[0] == days["days"][-1]["day"]
    page.js(by % "client")
    page.wait("document.querySelector('.wide tbody td.text').innerText === 'claude-cli'")
    assert (
        "Sessions\tLast use" in page.text(".wide thead")
        and page.texts(".home-page h2")[2] == "Clients that saved most"
    )
    page.js(by % "project")
    page.wait("document.querySelector('.wide tbody td.text').innerText === 'no project is named'")
    page.js(by % "session")
    page.wait(".wide td a.named")
    page.click(".wide td a")
    page.wait("location.hash === '#/s/warehouse-recount'")


# -- three questions, one click each


def counted(page):
    """Count the clicks on a page from now on, in ``page.clicks``."""
    page.clicks, click = 0, page.click

    def one(*place):
        page.clicks += 1
        click(*place)

    page.click = one
    return page


def home(opened, at, screen):
    """The page as it opens, counted, and on a phone the home behind its one button."""
    page = counted(seen(opened, at, screen, "#/", "#sessions li"))
    if screen == "phone":
        page.click("#sessions .overview")
    page.wait(
        "document.querySelector('.tiles.today b')?.offsetParent && document.querySelector('.days rect')"
    )
    return page


RED_OUTSIDE_LINKS = """
(red => [...document.querySelectorAll('#columns *, header *')].filter(e => e.checkVisibility() && !e.closest('a')
  && [getComputedStyle(e).color, getComputedStyle(e).fill].includes(red) && (e.tagName === 'circle'
  || [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()))).map(e => e.outerHTML))
(getComputedStyle(document.querySelector('.wrong .bad, .bad')).color)
"""


@three
@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "Pacific/Auckland", "America/St_Johns"])
def test_what_memory_saved_today_is_seen_at_the_first_look(opened, shown, screen, zone):
    """No click, on a phone one; today is that of the reader's time zone."""
    page = home(opened, shown, screen)
    page.send("Emulation.setTimezoneOverride", timezoneId=zone)
    page.js("window.before = true; location.reload()")
    page.wait(
        "!window.before && document.querySelector('.tiles.today b')?.offsetParent && document.querySelector('.days rect')"
    )
    offset = page.js("0 - new Date().getTimezoneOffset()")
    days = shown.proxied.ask(f"/v1/stats/days?offset={offset}").json()["days"]
    today = {d["day"]: d for d in days}.get(page.js("new Date().toLocaleDateString('sv-SE')"))
    told = page.text(".tiles.today")
    if today is None:
        assert f"nothing sent yet\nthe last step was on {days[-1]['day']}" in told
    else:
        assert told.startswith(f"Saved\n{figure(today['full_cost'] - today['sent_cost'])}\n")
        assert f"paid {figure(today['sent_cost'])}, without memory {figure(today['full_cost'])}" in told
    assert page.text("#session-title") == "What memory saved today"
    assert page.clicks == (screen == "phone")
    page.send("Emulation.setTimezoneOverride", timezoneId="")


@three
def test_a_session_that_was_dearer_today_is_named_and_hours_are_shown_while_there_are_few_days(
    opened, dear, screen
):
    page = home(opened, dear, screen)
    session = dear.proxied.ask("/v1/sessions/task").json()
    lost = session["cost"]["sent"] - session["cost"]["full"]
    told = page.wait("document.querySelector('.home-page > div > .figures')?.innerText")
    assert told.startswith("Dearer today than without memory: ") and told.endswith(f"+{figure(lost)}")
    assert page.texts(".tiles.today .loss b") == [figure(lost)]
    assert page.texts(".days h2")[0].endswith(" hours")
    assert page.count(".days rect.sent") == 1
    assert page.js(RED_OUTSIDE_LINKS) == []
    page.click(".tiles.today a.loss")
    page.wait("location.hash === '#/s/task'")


@three
@pytest.mark.parametrize(
    ("place", "session", "step"),
    [
        (".wrong a", "flaky-payment-test", 9),
        (".tiles:not(.today) a.bad", "flaky-payment-test", 9),
        (".tiles:not(.today) a.bad:nth-of-type(2)", "log-hunt-nightly", 6),
        (".days svg a:last-of-type", "flaky-payment-test", 9),
        (".wide td a.bad", "flaky-payment-test", 9),
        ("#sessions .entry a.bad", "flaky-payment-test", 9),
    ],
)
def test_every_red_thing_leads_to_the_step_that_went_wrong(opened, shown, screen, place, session, step):
    """One click, and on a phone one more for what is on the home."""
    if place.startswith("#sessions"):
        page = counted(seen(opened, shown, screen, "#/", "#sessions li"))
    else:
        page = home(opened, shown, screen)
        page.wait(".wide td a.bad")
    assert page.js(RED_OUTSIDE_LINKS) == []
    before = page.clicks
    if "svg" in place or "nth" in place:
        which = 1 if "nth" in place else page.count(".days svg a") - 1
        page.click(".days svg a circle" if "svg" in place else ".tiles:not(.today) a.bad", which)
    else:
        page.click(place)
    page.wait(f"location.hash.startsWith('#/s/{session}/steps/')")
    at_step(page, step)
    assert page.clicks - before == 1
    assert page.js("document.querySelector('#detail .failure').checkVisibility()")
    assert page.js("document.querySelector('#detail .sums').rows[1].cells[0].innerText") == "Tokens"
    page.js("history.back()")
    page.wait("!location.hash.includes('/s/')")  # the way through is not kept


@three
def test_a_record_says_why_the_model_did_not_see_it(opened, shown, screen):
    """An id is searched for; one click leads to its record, whose life stands first."""
    page = counted(seen(opened, shown, screen, "#/", "#sessions li"))
    page.js("document.querySelector('#find-session').focus()")
    page.write("RFD-20731")
    page.wait("document.querySelectorAll('#sessions .hits li').length > 1")
    place = next(
        i for i, t in enumerate(page.texts("#sessions .hits li")) if t.startswith("#3 ") and "w11" in t
    )
    page.click("#sessions .hits a", place)
    page.wait(".life li")
    assert page.clicks == 1
    spans = shown.proxied.ask("/v1/sessions/refund-audit-w11/records/3/life").json()["spans"]
    assert [s["fate"] for s in spans] == ["kept", "kept", "listed"]
    first, latest, listed = page.texts(".life li")
    assert first.endswith(
        f"whole from step {spans[0]['first']} to {spans[0]['last']}: the messages were sent as they came"
    )
    assert latest.endswith(
        f"whole in step {spans[1]['first']}: among the latest calls, or all of it was chosen"
    )
    assert f"listed since step {spans[2]['first']}: it was worth less than " in listed
    assert "; other pieces were likelier to be needed: " in listed
    assert all(p["value"] in listed for p in spans[2]["likelier"])
    assert page.js("document.querySelector('.panel.record').firstElementChild.className") == "life"
    page.click(".life li:last-child a")
    at_step(page, spans[2]["first"])


@three
def test_summaries_that_wait_for_a_model_that_nobody_asks_say_so(opened, shown, screen):
    ids = [
        r["trace_id"] for r in shown.proxied.ask("/v1/sessions/calendar-reviews/records").json()["records"]
    ]
    let_wait(shown.proxied.service.database, ids[:5])
    try:
        queue = shown.proxied.ask("/v1/stats").json()["queue"]
        assert (queue["open"], queue["model"]) == (5, None)
        page = home(opened, shown, screen)
        assert "5 waiting for a model that this service does not ask" in page.text(".home-page")
        assert "waiting" not in page.text("header")
        page.js("location.hash = '#/s/calendar-reviews'")
        told = page.wait("document.querySelector('#session .facts')?.innerText")
        assert "summaries waiting for a model" in told
    finally:
        with shown.proxied.service.database.write() as c:
            c.execute(sa.update(schema.insights).values(due=None))


@three
def test_the_figures_behind_a_choice_are_behind_a_switch(opened, shown, screen):
    page = seen(opened, shown, screen, f"{AUDIT}/steps/18", ".line.piece")
    page.js(
        "document.querySelectorAll('.line.piece .gutter').forEach(e => document.querySelector('.why details') || e.click())"
    )
    visible = "document.querySelector('.why .features').checkVisibility()"
    assert "How likely the next calls are to need it:" in page.text(".why")
    assert not page.js(visible)
    page.click(".why summary")
    page.wait(visible)


@three
def test_hits_stay_in_their_pane_and_say_which_words_they_have(opened, shown, screen):
    page = seen(opened, shown, screen, f"{AUDIT}/search?q=refund+duplicate+nosuchword", "#session .hits li")
    for hits in ("#session .hits", "#sessions .hits"):
        if hits.startswith("#sessions"):
            page.js("location.hash = '#/'")
            page.wait("document.querySelector('#find-session').checkVisibility()")
            page.js("document.querySelector('#find-session').focus()")
            page.write("refund duplicate nosuchword")
            page.wait(f"document.querySelectorAll('{hits} li').length > 1")
        why = page.texts(f"{hits} .why-found")
        assert any("has refund" in told for told in why) and not any("nosuchword" in told for told in why)
        beyond = f"(r => [...document.querySelectorAll('{hits} *')].filter(e => e.getBoundingClientRect().right > r + 1).length)"
        assert (
            page.js(f"{beyond}(document.querySelector('{hits}').parentElement.getBoundingClientRect().right)")
            == 0
        )


@three
def test_the_list_says_what_sessions_cost_and_is_sorted_and_filtered(opened, shown, screen):
    page = seen(opened, shown, screen, "#/", "#sessions li")
    rows = "[...document.querySelectorAll('#sessions li')].sort((a, b) => a.dataset.index - b.dataset.index).map(e => e.innerText)"
    first = page.js(rows)[0]
    assert "Double charges, week 11" in first and "refund-audit-w11" in first
    assert "18 steps" in first and "% less" in first and "$0." in first and "gpt-4.1-mini" in first

    def choose(place, value):
        page.js(
            f"(s => {{ s.value = {value!r}; s.dispatchEvent(new Event('change')); }})(document.querySelectorAll('#sessions select')[{place}])"
        )

    choose(0, "saved")
    page.wait(f"({rows})[0].startsWith('Warehouse recount')")
    choose(1, "errors")
    page.wait_for("#sessions li", 1)
    assert "2 errors" in page.text("#sessions li") and "Flaky payment test" in page.text("#sessions li")
    choose(1, "without_memory")
    page.wait("document.querySelector('#sessions li')?.innerText.includes('1 without memory')")
    choose(1, "house-model-7b")
    page.wait("document.querySelector('#sessions li')?.innerText.includes('log-hunt-nightly')")
    choose(1, "all")
    page.wait_for("#sessions li", len(shown.steps))
    page.click("#find-session")
    page.write("ORD-59182")
    page.wait("document.querySelectorAll('#sessions .hits li').length > 1")
    assert page.text("#sessions h2") == "In the contents of all sessions"


@three
def test_a_step_shows_what_the_model_answered(opened, shown, screen):
    page = seen(opened, shown, screen, f"{AUDIT}/steps/9/answer", ".panel.answer .message")
    found = shown.proxied.ask("/v1/sessions/refund-audit-w11/steps/9").json()
    said, step = found["answer"], found["step"]
    assert page.texts(".panel.answer h3 b") == ["text", *(c["name"] for c in said["calls"])]
    assert said["parts"][0]["text"] in page.text(".panel.answer")
    billed = page.text("#detail .billed")
    assert billed.startswith(f"gpt-4.1-mini · answered in {step['seconds']:.1f} s · 20")
    sums = page.text("#detail .sums")
    for name, kind in (("Read by the provider", "input"), ("of it from its cache", "cached")):
        assert f"{name}\t{step['sent'][kind]:,}\t{step['full'][kind]:,}\t" in sums
    assert f"Written in the answer\t{step['sent']['output']}\t" in sums
    assert f"Paid\t{figure(step['sent_cost'])}\t{figure(step['full_cost'])}\t" in sums


@three
def test_errors_and_steps_without_memory_are_seen_and_filtered(opened, shown, screen):
    page = seen(opened, shown, screen, "#/s/flaky-payment-test/steps/7", "#detail .failure b")
    assert page.text("#detail .failure").startswith("The provider answered 429: Rate limit reached for gpt-5")
    page.js("location.hash = '#/s/flaky-payment-test'")
    page.wait("document.querySelectorAll('#session .chips button').length === 2")
    page.click("#session .chips button", 1)
    at_step(page, 9)  # the latest such step
    page.js("location.hash = '#/s/flaky-payment-test'")
    page.wait("document.querySelector('#session .steps').offsetParent")
    page.wait_for("#session .steps li", 2)
    assert [t.split()[0] for t in page.texts("#session .steps li")] == ["9", "7"]
    assert page.texts("#session .steps li .less") == ["error 429"] * 2
    page.click("#session .steps li a", 1)
    at_step(page, 7)
    page.js("location.hash = '#/s/log-hunt-nightly/steps/6'")
    at_step(page, 6)
    failure = page.wait("document.querySelector('#detail .failure')?.innerText")
    assert failure == "Without memory: memory failed: unknown strategy. The request went on as it came."
    assert page.js("document.querySelector('#detail .note').hidden")


@three
def test_two_sessions_stand_side_by_side(opened, shown, screen):
    page = seen(opened, shown, screen, AUDIT, "#session .actions a")
    page.click("#session .actions a")
    page.wait("location.hash === '#/compare/refund-audit-w11'")
    second = "document.querySelectorAll('.pickers select')[1]"
    page.wait(second)
    page.js(f"{second}.value = 'checkout-latency'; {second}.dispatchEvent(new Event('change'))")
    page.wait(".sides td")
    assert page.js("location.hash") == "#/compare/refund-audit-w11/checkout-latency"
    assert page.count(".curve path.line") == 2
    told = page.text(".sides")
    for name in ("refund-audit-w11", "checkout-latency"):
        info = shown.proxied.ask(f"/v1/sessions/{name}").json()
        assert figure(info["cost"]["sent"]) in told and figure(info["cost"]["full"]) in told
        assert str(info["tokens"]["steps"]) in told and str(info["records"]) in told
    assert "run_sql" in page.text(".home-page")
    assert page.js("document.documentElement.scrollWidth") == SCREENS[screen].get("width", 1440)
    page.press("Escape")
    page.wait("location.hash === '#/'")


@three
def test_a_session_is_renamed_exported_and_deleted(opened, service, screen):
    name = f"short-lived-{screen}"
    sent(service, name, SHOP[6])
    page = seen(opened, service, screen, f"#/s/{name}", "#session .actions button")
    buttons = page.texts("#session .actions > *")
    page.click("#session .actions button", 1)
    page.wait("document.activeElement.closest('.renaming')")
    page.write("A name of my own")
    page.press("Enter")
    page.wait("document.querySelector('#session-title').innerText === 'A name of my own'")
    assert service.ask(f"/v1/sessions/{name}").json()["title"] == "A name of my own"
    page.js("HTMLAnchorElement.prototype.click = function () { window.saved = [this.download, this.href]; }")
    page.js("URL.revokeObjectURL = () => 0")
    page.click("#session .actions > *", buttons.index("Export"))
    assert page.wait("window.saved !== undefined && window.saved")[0] == f"{name}.jsonl"
    text = page.js("fetch(window.saved[1]).then(a => a.text()).catch(e => String(e))")
    exported = service.ask(f"/v1/sessions/{name}/export").body.decode()
    assert exported.count("\n") > 5 and (text == exported or "Failed to fetch" in text)
    page.expected = ("connect-src", "404", "blob:")  # only this test reads the file
    delete = buttons.index("Delete")
    page.click("#session .actions > *", delete)
    assert page.texts("#session .actions > *")[delete] == "Delete for good?"
    assert service.ask(f"/v1/sessions/{name}").status == 200  # the first press only asks
    page.click("#session .actions > *", delete)
    page.wait("location.hash === '#/'")
    assert service.ask(f"/v1/sessions/{name}").status == 404


@three
def test_a_service_without_sessions_says_how_to_begin(opened, unused, screen):
    page = seen(opened, unused, screen, "#/overview" if screen == "phone" else "#/", ".lines-to-copy li")
    lines = page.texts(".lines-to-copy pre")
    assert lines[0] == "memory-bank run -- claude" and page.texts(".lines-to-copy b")[0] == "Claude Code"
    address = f"{unused.address}/v1"
    assert f'client = OpenAI(base_url="{address}")' in lines and any("ChatOpenAI" in line for line in lines)
    page.js("navigator.clipboard.writeText = t => { window.copied = t; return Promise.resolve(); }")
    page.click(".lines-to-copy button", 4)
    page.wait(f"window.copied === {lines[4]!r}")
    assert page.texts(".lines-to-copy button")[4] == "Copied"
    if screen == "phone":
        page.click(".home-page .up")
        page.wait("location.hash === '#/'")
        page.click("#sessions .overview")
        page.wait(".lines-to-copy li")


def test_near_misses_are_pieces_of_records(opened, shown):
    page = seen(opened, shown, "light", f"{AUDIT}/steps/18/near", ".panel.near .piece-card")
    fold = shown.proxied.ask("/v1/sessions/refund-audit-w11/steps/18").json()["fold"]
    assert page.count(".panel.near .piece-card") == len(fold["near_misses"]) > 0
    assert "[object" not in page.text("#detail")


@three
def test_what_an_mcp_server_answers_is_shown_as_its_text(opened, shown, screen):
    page = seen(opened, shown, screen, "#/s/calendar-reviews/records/3", ".lines .line")
    assert page.text(".answer [aria-pressed=true]") == "Text alone"
    assert '"title": "Interview"' in page.text(".lines") and "\\" not in page.text(".lines")
    page.click(".answer [aria-pressed=true]")
    page.wait("document.querySelector('.lines').innerText.includes('isError')")


def test_a_phone_opens_a_session_at_its_beginning_however_far_the_list_was_scrolled(opened, crowd):
    page = opened(at=crowd, width=360, height=740)
    page.size(360, 740, phone=True)
    page.wait("document.querySelectorAll('#sessions li').length > 5")
    page.js("document.querySelector('#columns').scrollTop = 5000")
    page.js("location.hash = '#/s/many'")
    page.wait("document.querySelectorAll('#session .steps li .number').length > 3")
    time.sleep(0.3)
    assert page.js("document.querySelector('#columns').scrollTop") == 0
    assert page.texts("#session .steps li b")[0] == f"{MANY:,}"


# -- by keyboard


def tab_to(page, wanted, most=40):
    for _ in range(most):
        if wanted in page.focused():
            return
        page.press("Tab")
    raise AssertionError(f"Tab never reached {wanted}; it is at {page.focused()}")


def test_everything_is_done_by_keyboard(opened):
    page = opened()
    tab_to(page, "find-session")
    page.write("shop")
    page.wait_for("#sessions li", 1)
    tab_to(page, "shop-refunds")
    page.press("Enter")
    page.wait("location.hash === '#/s/shop-refunds'")
    at_step(page, len(SHOP))
    tab_to(page, "div#.curve")
    page.press("ArrowLeft", 3)
    at_step(page, len(SHOP) - 3)
    assert page.js("document.activeElement.getAttribute('aria-valuetext')").startswith(
        f"step {len(SHOP) - 3}: sent"
    )
    page.press("Home")
    at_step(page, 1)
    page.press("End")
    at_step(page, len(SHOP))
    tab_to(page, "session-tab-steps")
    page.press("Tab")
    assert f"Step {len(SHOP)}:" in page.focused()
    page.press("ArrowDown", 4)
    at_step(page, len(SHOP) - 4)
    assert f"Step {len(SHOP) - 4}:" in page.focused()
    tab_to(page, "step-tab-context")
    page.press("Tab", 2)
    first = "document.querySelector('.panel.context :is(a.record, a.gutter, button.gutter)')"
    assert page.js(f"document.activeElement === {first}")  # the first in the context with something behind it
    page.press("End")
    last = page.focused()
    assert "Record" in last or "why?" in last  # the last line of the last message that quotes a record
    while "why?" not in page.focused():  # from message to message
        page.press("ArrowUp")
    page.press("Enter")
    page.wait(".why")
    while not page.js("!!document.querySelector('.why a')"):  # a quote of the agent's own words has no record
        page.press("Enter")
        page.press("ArrowUp")
        while "why?" not in page.focused():
            page.press("ArrowUp")
        page.press("Enter")
        page.wait(".why")
    page.press("Tab")
    assert page.focused().startswith("a#")  # the record that it is a piece of
    page.press("Enter")
    page.wait("location.hash.includes('/records/')")
    page.wait(".lines .line")
    page.press("Escape")
    page.wait("!location.hash.includes('/records/')")
    tab_to(page, "session-tab-")
    page.press("ArrowRight")
    page.wait("location.hash === '#/s/shop-refunds/records'")
    page.wait("#session .records li a .name")
    page.press("Tab")
    page.wait("document.activeElement.href?.includes('/records/')")
    page.press("End")
    page.wait("document.activeElement.innerText.startsWith('#1 ')")
    page.press("Enter")
    page.wait("document.querySelector('#detail-title').innerText.startsWith('#1 ')")
    assert page.js("document.querySelector('#session .records [aria-current]').innerText").startswith("#1 ")
    page.press("Escape")
    page.press("Escape")
    page.wait("location.hash === '#/'")


def test_past_calls_are_walked_by_arrow_keys(opened):
    page = opened(f"{LAST}/past", ready=".decision")
    tab_to(page, "step-tab-past")
    page.press("Tab", 1)
    while "chip" in page.focused():
        page.press("Tab")
    page.press("ArrowDown", 2)
    assert page.text("#detail .told")
    page.press("End")
    assert "#1 " in page.focused()


def test_what_is_new_does_not_move_the_focus(opened):
    page = opened("#/s/shop-refunds", ready=STEP)
    page.js("document.querySelector('#sessions li a').focus()")
    page.press("ArrowDown")
    second = page.focused()
    asked = len(page.requests("/v1/sessions?"))
    page.js("document.dispatchEvent(new Event('visibilitychange'))")  # as one comes back to the page
    eventually(lambda: len(page.requests("/v1/sessions?")) > asked)
    page.wait("#sessions [aria-current]")
    assert page.focused() == second
    page.press("ArrowDown")
    assert page.focused() == page.js(
        "(e => `a#.whole ${e.innerText}`)(document.querySelectorAll('#sessions li a')[2])"
    )


def test_the_focus_is_always_to_be_seen_and_comes_in_the_order_of_the_page(opened):
    page = opened("#/s/shop-refunds", ready=STEP)
    seen = []
    for _ in range(30):
        page.press("Tab")
        where = page.focused()
        if where.startswith("body"):
            break
        outlined = page.js(
            "(s => s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 2)(getComputedStyle(document.activeElement))"
        )
        assert outlined, where
        seen.append(
            page.js(
                "(e => e.closest('header, nav, #session, #detail')?.id || 'header')(document.activeElement)"
            )
        )
    order = ["header", "sessions", "session", "detail"]
    assert sorted(seen, key=order.index) == seen
    assert set(seen) == set(order)


def test_skip_links_lead_to_the_columns(opened):
    page = opened("#/s/shop-refunds", ready=STEP)
    page.press("Tab", 2)
    page.press("Enter")
    assert "h2#detail-title" in page.focused()


# -- for assistive technology


def test_everything_that_acts_has_a_name_and_the_page_has_its_landmarks(opened):
    for where, ready in (
        ("#/", "#sessions li"),
        (LAST, STEP),
        (f"{LAST}/past", ".decision"),
        ("#/s/shop-refunds/records/3", ".lines .line"),
    ):
        page = opened(where, ready=ready)
        nodes = [n for n in page.send("Accessibility.getFullAXTree")["nodes"] if not n["ignored"]]
        roles = {n["role"]["value"] for n in nodes}
        assert {"banner", "navigation", "main", "region", "heading"} <= roles, where
        named = [n["role"]["value"] for n in nodes if n["name"]["value"].strip()]
        for role in [
            "button",
            "link",
            "textbox",
            "searchbox",
            "slider",
            "tab",
            "tabpanel",
            "region",
            "navigation",
        ]:
            assert named.count(role) == [n["role"]["value"] for n in nodes].count(role), (where, role)
        assert page.js("document.documentElement.lang") == "en"
        assert page.count("h1") == 1


def test_the_curve_has_its_words_and_its_table(opened):
    page = opened("#/s/shop-refunds", ready=".curve path")
    told = page.js(
        "(e => [e.role, e.ariaValueMin, e.ariaValueMax, e.ariaValueText])(document.querySelector('.curve'))"
    )
    assert told[0] == "slider" and told[1:3] == ["1", str(len(SHOP))] and "tokens" in told[3]
    page.click("#session summary")
    page.wait("#session table")
    assert page.count("#session tbody tr") == len(SHOP)
    assert page.js("[...document.querySelectorAll('#session th')].every(e => e.scope === 'col')")


# -- in any light, on any screen


def test_light_and_dark_follow_the_user(opened):
    page = opened("#/s/shop-refunds", ready=STEP)
    colours = "(s => [s.backgroundColor, s.color])(getComputedStyle(document.body))"
    light = page.js(colours)
    page.look(dark=True)
    dark = page.js(colours)
    assert light == ["rgb(255, 255, 255)", "rgb(21, 25, 30)"]
    assert dark == ["rgb(16, 20, 24)", "rgb(230, 233, 237)"]
    assert (
        page.js("getComputedStyle(document.querySelector('.curve .line.sent')).stroke")
        == "rgb(125, 180, 238)"
    )


def test_nothing_moves_for_those_who_ask_for_that(opened):
    page = opened()
    moves = "getComputedStyle(document.querySelector('#live'), '::before').animationName"
    page.look(dark=False, still=True)
    still = page.js("document.getAnimations().length")
    page.look(dark=False, still=False)
    assert (still, page.js(moves)) == (0, "beat")


VIEWS = [
    ("#/", "#sessions li"),
    ("#/s/shop-refunds", ".curve path"),
    ("#/s/shop-refunds/records", "#session .records li a"),
    ("#/s/shop-refunds/search?q=ORD-59182", ".hits li"),
    (LAST, STEP),
    (f"{LAST}/past", ".decision"),
    (f"{LAST}/changes", ".piece-card"),
    (f"{LAST}/near", ".piece-card"),
    ("#/s/shop-refunds/records/3", ".lines .line"),
]


@pytest.mark.parametrize("width", [360, 700, 1000, 1920])
def test_no_view_scrolls_sideways(opened, width):
    page = opened(width=width, height=740)
    page.size(width, 740, phone=width < 600)
    for where, ready in VIEWS:
        page.js(f"location.hash = {where!r}")
        page.wait(ready)
        page.js("document.querySelectorAll('.line.piece .gutter').forEach((e, i) => i < 3 && e.click())")
        assert page.js("[document.documentElement.scrollWidth, innerWidth]") == [width, width], where
        beyond = page.js(
            "(cut => [...document.querySelectorAll('#columns *')].filter(e => e.offsetParent && e.getBoundingClientRect().right"
            " > innerWidth + 1 && !cut(e)).map(e => `${e.tagName} ${e.className}`).slice(0, 5))(e => { for (; e; e = e.parentElement)"
            " { if (getComputedStyle(e).textOverflow === 'ellipsis') return true; } return false; })"
        )
        assert beyond == [], where


def test_a_phone_shows_one_thing_at_a_time_and_leads_back(opened):
    page = opened(width=360, height=740)
    page.size(360, 740, phone=True)

    def shows(name):
        visible = "['sessions', 'session', 'detail'].filter(id => document.getElementById(id).offsetParent)"
        page.wait(f"{visible}.join() === {name!r}")

    shows("sessions")
    choose(page, "shop-refunds")
    page.wait("#session .steps li a")
    shows("session")
    page.click("#session .steps li a", 2)
    at_step(page, len(SHOP) - 2)
    shows("detail")
    assert page.js("document.activeElement.id") == "detail-title"
    assert (
        page.js(
            "Math.min(...[...document.querySelectorAll('.turn button, #detail .tabs button')].map(e => e.getBoundingClientRect().height))"
        )
        >= 24
    )
    page.click("#detail .up")
    page.wait("location.hash === '#/s/shop-refunds'")
    shows("session")  # the address is there before what it shows
    page.click("#session .up")
    page.wait("location.hash === '#/'")
    shows("sessions")


def test_a_phone_shows_the_beginning_of_a_session_and_stays_where_one_reads(opened, service):
    for messages in SHOP[:14]:
        sent(service, "pocket", messages, strategy="memory_bank")
    eventually(lambda: service.ask("/v1/sessions/pocket/steps").json()["last"] == 14)
    page = opened(width=360, height=740)
    page.size(360, 740, phone=True)
    choose(page, "pocket")
    page.wait("document.querySelectorAll('#session .steps li .number').length > 10")
    page.wait(
        "document.querySelector('#session-tab-records .count')?.innerText > 0"
    )  # its list has its length
    where = "document.querySelector('#columns').scrollTop"
    assert page.js(where) == 0
    assert page.js("document.querySelector('#session-title').getBoundingClientRect().top > 42")
    known = page.text("#session-tab-records .count")
    sent(service, "pocket", SHOP[14], strategy="memory_bank")
    page.wait("document.querySelector('#session .steps li').innerText.startsWith('15')")
    page.wait(f"document.querySelector('#session-tab-records .count').innerText !== '{known}'")
    assert page.js(where) == 0


# -- where one is


def test_links_lead_deep_and_the_back_button_back(opened):
    page = opened("#/s/shop-refunds/steps/7/past", ready=".decision")
    at_step(page, 7)
    assert "step 7" in page.js("document.title")
    page.click(".decision .calls a")
    page.wait("location.hash.includes('/records/')")
    page.wait(".lines .line")
    choose(page, "code-fix")
    page.wait("location.hash === '#/s/code-fix'")
    page.js("history.back()")
    page.wait("document.querySelector('.lines .line') && location.hash.includes('/records/')")
    page.js("history.back()")
    at_step(page, 7)
    assert page.js("document.querySelector('#step-tab-past').ariaSelected") == "true"
    assert page.text("#session-title") == "shop-refunds"


def test_what_is_not_there_is_said(opened):
    page = opened("#/s/no-such-session", ready="#session .note")
    page.expected = ("404",)
    assert "no such session" in page.text("#session")
    page = opened("#/s/shop-refunds/steps/999", ready="document.querySelector('#detail .note')?.innerText")
    page.expected = ("404",)
    assert "no such step" in page.text("#detail .note")
    page = opened("#/s/shop-refunds/records/no-such-record", ready="#detail .note")
    page.expected = ("404",)
    assert "no such record" in page.text("#detail .note")
    for where in ("#/s/../../metrics", "#/s/%2E%2E", "#/s/./records/1"):
        page = opened(where, ready="#session .note")
        assert "nothing of this name" in page.text("#session")
    opened("#/s/shop-refunds/records/..", ready="#detail .note")


# -- what others wrote


@pytest.mark.short
def test_nothing_that_others_wrote_becomes_markup(opened, service):
    fed(service, HOSTILE_NAME, [hostile_chat()[:-2], hostile_chat()], strategy="memory_bank")
    name = quote(HOSTILE_NAME, safe="")
    page = opened(f"#/s/{name}", ready=".line.piece")
    assert page.text("#session-title") == HOSTILE_NAME
    page.click(".line.piece .gutter")
    known = []
    for where, ready in (
        ("/steps/2", ".line.piece"),
        ("/steps/2/past", ".decision"),
        ("/steps/2/changes", "document.querySelector('#step-tab-changes').ariaSelected === 'true'"),
        ("/steps/2/near", "document.querySelector('#step-tab-near').ariaSelected === 'true'"),
        ("/records", "#session .records li a"),
        ("/records/2", ".lines .line"),
        ("/search?q=" + quote("<script>window.hit=2</script>"), ".hits li"),
        ("/records/2?find=%3Cscript%3E", ".lines mark"),
    ):
        page.js(f"location.hash = {json.dumps('#/s/' + name + where)}")
        page.wait(ready)
        known.append(page.text())
    everything = "\n".join(known)
    assert "<script>window.hit=2</script>" in everything
    for mark in ("U+202E", "U+202C", "U+200B", "NUL", "ESC", "U+D800"):
        assert mark in everything, mark
    assert not any(c in everything for c in "\u202e\u202c\u200b\x1b\0")
    assert page.js("window.hit") is None
    assert page.count("img, iframe, script:not([src]), [onerror], [onclick]") == 0
    assert page.js("[...document.querySelectorAll('a')].every(a => a.protocol.startsWith('http'))")
    assert page.js("document.title").endswith("memory bank")
    found = page.text("#sessions")
    assert HOSTILE_NAME[:10] in found
    service.ask(f"/v1/sessions/{name}", "DELETE")


def test_a_policy_that_is_broken_would_fail_these_tests(browser, service):
    page = browser.page(service.address)
    page.js(
        "(e => { e.textContent = 'window.hit = 1'; document.head.append(e); })(document.createElement('script'))"
    )
    page.js("document.body.setAttribute('style', 'color: red')")
    page.js("fetch('http://192.0.2.1/').catch(() => 0)")
    told = " ".join(eventually(lambda: len(t := page.trouble()) >= 3 and t))
    assert "script-src" in told and "style-src" in told and "connect-src" in told
    assert page.js("window.hit") is None
    page.close()


# -- live


def test_a_step_shows_up_while_the_agent_runs_and_only_what_is_new_is_asked_for(opened, service):
    for messages in SHOP[:8]:
        sent(service, "live", messages)
    eventually(lambda: service.ask("/v1/sessions/live/steps").json()["last"] == 8)
    page = opened("#/s/live", ready="document.querySelectorAll('#session .steps li').length === 8")
    at_step(page, 8)
    before = len(page.requests("/curve?"))
    sent(service, "live", SHOP[8])
    at_step(page, 9)
    assert page.texts("#session .steps li")[0].startswith("9")
    assert "follows the latest" in page.text("#detail")
    assert len(page.requests("/curve?")) == before == 1
    assert len(page.requests("/steps?after=0")) == 1  # the rows, once
    assert page.requests("/steps?after=8")  # what is new
    page.click("#session .steps li a", 4)
    at_step(page, 5)
    sent(service, "live", SHOP[9])
    page.wait("document.querySelector('#session .steps li').innerText.startsWith('10')")
    assert page.text("#detail-title") == "Step 5"  # what one looks at stays
    page.click("#detail .button")
    at_step(page, 10)
    page.click("#sessions li a", 0)


def test_what_one_reads_stays_where_it_is_while_the_agent_goes_on(opened, service):
    for messages in SHOP[:12]:
        sent(service, "reading", messages, strategy="memory_bank")
    detailed(service, "reading", 12)
    page = opened("#/s/reading/steps/12/past", ready=".decision", height=640)
    page.js("document.querySelector('#detail .past .scroll').scrollTop = 90")
    page.js("document.querySelectorAll('#detail .decision a')[4].focus({preventScroll: true})")
    page.js("document.querySelector('#session .steps .scroll').scrollTop = 60")
    page.js("window.row = document.querySelector('#session .steps li:nth-child(4)')")
    at = page.js("window.row.getBoundingClientRect().top")
    before = page.focused()
    for messages in SHOP[12:14]:
        sent(service, "reading", messages, strategy="memory_bank")
    page.wait("document.querySelector('#session-tab-steps').innerText.includes('14')")
    assert page.focused() == before
    assert page.js("document.querySelector('#detail .past .scroll').scrollTop") == 90
    assert page.js("[window.row.isConnected, window.row.getBoundingClientRect().top]") == [True, at]
    page.click("#session-tab-steps")
    page.wait("document.querySelectorAll('#session .steps li').length > 8")


def test_a_new_session_and_a_reset_one_show_up(opened, service):
    page = opened("#/s/live2", ready="#session .note")
    page.expected = ("404",)
    sent(service, "live2", SHOP[3])
    page.wait("[...document.querySelectorAll('#sessions li')].some(e => e.innerText.includes('live2'))")
    page = opened("#/s/live2", ready="document.querySelectorAll('#session .steps li').length === 1")
    page.expected = ("404",)  # a step that it asks for while the reset takes it
    sent(service, "live2", SHOP[4])
    page.wait_for("#session .steps li", 2)
    service.ask("/v1/sessions/live2/reset", "POST")
    page.wait_for("#session .steps li", 0)
    sent(service, "live2", SHOP[2])
    page.wait_for("#session .steps li", 1)
    at_step(page, 1)


def test_a_page_that_nobody_looks_at_asks_for_nothing(opened):
    page = opened("#/s/shop-refunds", ready=STEP)
    page.js(
        "const later = window.setTimeout; window.setTimeout = (work, ms) => later(work, Math.min(ms, 30)); 0"
    )
    hide = "Object.defineProperty(document, 'hidden', {{value: {}, configurable: true}}); document.dispatchEvent(new Event('visibilitychange'))"
    page.js(hide.format("true"))
    page.wait("document.querySelector('#live').innerText === 'paused'")

    def is_quiet():
        before = len(page.requests())
        time.sleep(0.5)  # its pauses are 30 ms long now
        return len(page.requests()) == before

    eventually(is_quiet)  # once what was under way has come
    before = len(page.requests())
    page.js(hide.format("false"))
    eventually(lambda: len(page.requests()) > before + 10)  # it goes on by itself
    page.js(hide.format("true"))
    eventually(is_quiet)


def test_a_service_that_is_away_is_said_and_waited_for(opened):
    page = opened("#/s/shop-refunds", ready=STEP)
    page.expected = ("ERR_INTERNET_DISCONNECTED",)
    offline = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    page.send("Network.emulateNetworkConditions", offline=True, **offline)
    page.wait("document.querySelector('#live').innerText.includes('no answer')")
    assert page.count(".line.piece") > 0  # what was there stays
    page.send("Network.emulateNetworkConditions", offline=False, **offline)
    page.wait("document.querySelector('#live').innerText === 'live'")


@pytest.mark.parametrize(("fetches", "inject"), [(2, True), (0, False)])
def test_a_step_appears_with_its_final_figures_when_its_answer_has_ended(opened, tmp_path, fetches, inject):
    """What hidden turns cost and what the provider counted: on a page that follows the session."""
    asked, ends = threading.Event(), threading.Event()
    turns = iter([FETCH] * fetches)

    def answer(_):
        if (turn := next(turns, None)) is not None:
            return turn
        asked.set()
        assert ends.wait(120)
        return say("It is done.")

    path, body = BODIES["chat"]
    body = {**body, "model": "m"}
    with (
        ScriptedServer(answer) as server,
        proxied("", "", charging(server, tmp_path, inject_tools=inject)) as p,
    ):
        at = SimpleNamespace(address=p.base_url.removesuffix("/v1"))
        client = threading.Thread(target=post, args=(p.port, path, body, b"x-memory-session: task"))
        client.start()
        try:
            assert asked.wait(60)
            page = opened("#/s/task", ready="document.querySelector('#session-title')", at=at)
            assert page.count("#session .steps li") == 0
        finally:
            ends.set()
        client.join(60)
        at_step(page, 1)
        step = step_of(p, 1)
        assert figures(step) in page.text("#detail .figures")
        assert f"Read by the provider\t{step['sent']['input']:,}\t" in page.text("#detail .figures")
        tiles = f"document.querySelector('.tiles p').innerText.includes('latest step: {step['tokens']:,} ')"
        page.wait(tiles)
        assert f"sent {step['tokens']:,}" in page.text(".curve-box .legend")
        opened.done()


# -- what memory costs, and when it fails


def charging(server, folder, **service):
    """The configuration of a service with prices whose contexts save little, so that hidden turns cost more."""
    return Config(
        memory_strategies={"small": {**BANK, "history_budget": 0.9}},
        default_strategy="small",
        service={
            "upstream": server.base_url,
            "database": str(folder / "bank.db"),
            "memory_timeout": 60.0,
            "inject_tools": True,  # by default memory's tools join a longer first request only
            **service,
        },
        prices=PRICES,
    )


def step_of(p, number):
    """A step's figures as the API has them; None while there is none."""
    try:
        with urllib.request.urlopen(f"{p.base_url}/sessions/task/steps/{number}") as got:
            return json.load(got)["step"]
    except urllib.error.HTTPError:
        return None


def figures(step):
    """The first row of a step's figures."""
    return f"Tokens\t{step['tokens']:,}\t{step['full_tokens']:,}\t"


@pytest.fixture(scope="module")
def dear(tmp_path_factory):
    """A service with a session for which memory cost more than it saved."""
    path, body = BODIES["chat"]
    with (
        ScriptedServer([FETCH] * 3 + [say("It is done.")]) as server,
        proxied("", "", charging(server, tmp_path_factory.mktemp("dear"))) as p,
    ):
        assert post(p.port, path, {"model": "m", **body}, b"x-memory-session: task").status == 200
        p.told()
        assert p.service.recorder.drain(60)
        yield SimpleNamespace(address=p.base_url.removesuffix("/v1"), proxied=p)


SCREENS = {
    "light": {},
    "dark": {"dark": True},
    "narrow": {"width": 1000},
    "phone": {"width": 360, "height": 740},
}
screens = pytest.mark.parametrize("screen", SCREENS)
CUT = """
(e => [e, ...e.querySelectorAll('*')].filter(e => e.offsetParent && e.scrollWidth > e.clientWidth + 1
  && getComputedStyle(e).display !== 'inline').map(e => `${e.tagName} ${e.className} ${e.innerText}`))
"""


@screens
def test_what_memory_costs_more_is_said(opened, dear, screen):
    how = SCREENS[screen]
    page = opened("#/s/task", ready=".tiles b", at=dear, **how)
    page.size(how.get("width", 1440), 900, phone=screen == "phone")
    with urllib.request.urlopen(f"{dear.proxied.base_url}/sessions/task") as got:
        session = json.load(got)
    told, paid = session["tokens"]["compared"], session["cost"]["compared"]
    assert told.endswith("% more than without memory") and paid.endswith("% more than without memory")
    lost = session["cost"]["sent"] - session["cost"]["full"]
    assert page.texts(".tiles b") == [told, told, f"${lost:.4f} more"]
    step = step_of(dear.proxied, 1)
    assert f"latest step: {step['tokens']:,} instead of {step['full_tokens']:,} tokens" in page.text(".tiles")
    assert f"instead of ${session['cost']['full']:.4f}, {paid}" in page.wait(
        "document.querySelector('#session .facts')?.innerText"
    )
    share = told.removesuffix(" than without memory")
    assert share in page.text(".curve-box .legend")
    assert page.js(f"{CUT}(document.querySelector('#session .head'))") == []
    row = "document.querySelector('.step').getAttribute('aria-label')"
    assert f"{step['tokens']:,} instead of {step['full_tokens']:,} tokens" in page.wait(row)
    if screen != "phone":
        assert share in page.text(".step .less")
        assert told in page.wait(
            "document.querySelector('#stats dd') && document.querySelector('#stats').innerText"
        )
        assert page.js(f"{CUT}(document.querySelector('header'))") == []
    page.js("location.hash = '#/s/task/steps/1'")
    at_step(page, 1)
    assert f"{figures(step)}{share}" in page.text("#detail .figures")
    assert page.js("[document.documentElement.scrollWidth, innerWidth]") == [how.get("width", 1440)] * 2


@pytest.mark.parametrize(
    ("sessions", "says"), [(40, "50% less a session"), (5, "too few sessions"), (0, None)]
)
def test_the_tile_of_a_holdout_says_what_was_measured_or_that_it_is_too_few(opened, tmp_path, sessions, says):
    database = Database(tmp_path / "bank.db")
    for n in range(max(sessions, 3)):
        for group in ("memory", "control")[: 2 if sessions else 1]:
            database.open_session(name := f"{group} {n}")
            database.set_session(name, control=group == "control")
            tokens = 1_000 if group == "memory" else 2_000
            usage, full = Usage(tokens + n, 0, 0, 0), Usage(2_000 + n, 0, 0, 0)
            step = a_step(name, created=time.time(), model="m")
            add_steps(database, [replace(step, figures=replace(step.figures, sent=usage, full=full))])
    database.close()
    with proxied(
        "http://127.0.0.1:9", tmp_path / "bank.db", prices={"m": {"prompt": 1.0, "completion": 1.0}}
    ) as p:
        page = opened("#/", ready=".tiles b", at=SimpleNamespace(address=p.base_url.removesuffix("/v1")))
        told = p.ask("/v1/stats").json()["holdout"]
        page.wait("document.querySelector('#overview, main').innerText.includes('Summaries')")
        text = page.js("document.body.innerText")
        assert ("Measured by holdout".casefold() in text.casefold()) is (says is not None)
        assert (told is None) is (says is None)
        if says is not None:
            assert says in text
            assert told["compared"] in " ".join(text.split())
            assert ("95% interval" in text) is (sessions == 40)
        opened.done()


@pytest.mark.parametrize("screen", ["light", "dark", "phone"])
def test_memory_that_fails_is_said_at_the_top_until_it_works(opened, tmp_path, monkeypatch, screen):
    how = SCREENS[screen]
    with failing_memory(tmp_path, monkeypatch) as (p, down, step):
        at = SimpleNamespace(address=p.base_url.removesuffix("/v1"))
        page = opened(ready="document.querySelector('#sessions .empty')?.innerText", at=at, **how)
        page.size(how.get("width", 1440), 900, phone=screen == "phone")

        def look():
            page.js("document.dispatchEvent(new Event('visibilitychange'))")  # as one comes back to the page

        def looked():
            """The page has asked again and again, so it shows the first of these answers."""
            asked = len(page.requests("/v1/sessions?"))
            eventually(lambda: look() or len(page.requests("/v1/sessions?")) > asked + 2)

        hidden = "document.querySelector('#trouble').hidden"
        assert [step(n) for n in (3, 4)] == [b"failed embedder_unavailable"] * 2
        looked()
        assert page.js(hidden)
        step(5)
        page.wait(f"!{hidden}")
        assert page.text("#trouble").startswith("Memory fails, requests continue without it: EmbeddingError")
        eventually(lambda: look() or "3 requests" in page.text("#stats"))  # of those without memory
        assert SECRET not in page.text()
        colour = "getComputedStyle(document.querySelector('#trouble')).color"
        assert page.js(colour) == ("rgb(255, 143, 133)" if screen == "dark" else "rgb(179, 38, 30)")
        place = "(r => [r.left, r.right, r.top, r.bottom])(document.querySelector('#trouble').getBoundingClientRect())"
        left, right, top, bottom = page.js(place)
        width = how.get("width", 1440)
        assert (left, right) == (0, width) and 0 < top < bottom < 300
        assert page.js("[document.documentElement.scrollWidth, innerWidth]") == [width, width]
        nodes = page.send("Accessibility.getFullAXTree")["nodes"]
        assert [n for n in nodes if not n["ignored"] and n["role"]["value"] == "alert"]
        page.js("window.said = document.querySelector('#trouble').firstChild")
        looked()
        assert page.js("window.said.isConnected")  # put anew, it would be read aloud with every look
        down[0] = False
        assert step(7).startswith((b"rebuilt", b"unchanged"))
        eventually(lambda: look() or page.js(hidden))
        assert page.text("#trouble") == ""
        down[0] = True
        for n in (8, 9, 10):
            step(n)
        eventually(lambda: look() or not page.js(hidden))
        opened.done()


# -- ten and ten thousand


@pytest.fixture(scope="module")
def crowd(tmp_path_factory):
    """A session of ten records and one of ten thousand, each with as many steps; and 10,000 sessions beside."""
    file = tmp_path_factory.mktemp("crowd") / "bank.db"
    database = Database(file)
    with serve("--db", file) as process:
        fed(process, "seed", [orders(40)], strategy="memory_bank")
        seed = dict(database.rows(sa.select(schema.folds).where(schema.folds.c.session_id == "seed"))[0])
        for name, n in (("ten", 10), ("many", MANY)):
            database.open_session(name)
            records = [
                InteractionRecord(f"{name}-{i:08}", i, "get_order", {"id": i}, {"order": f"ORD-{i:05}"})
                for i in range(1, n + 1)
            ]
            FactStore(database, name).store_many(records)
            with database.write() as c:
                c.execute(sa.insert(schema.folds), [{**seed, "session_id": name}])
            figures = [
                StepFigures(
                    name,
                    1.79e9 + i,
                    500 * i,
                    4_000 + i % 500,
                    2 * i,
                    i,
                    "rebuilt",
                    "memory_bank",
                    9.5,
                    fold=1,
                )
                for i in range(1, n + 1)
            ]
            steps = [StepToStore(f, {"kept": [f.records]} if f.records > 1 else None) for f in figures]
            for start in range(0, n, 2_500):
                add_steps(database, steps[start : start + 2_500], 100)
        for i in range(400):
            database.open_session(f"other-{i:05}")
        yield process
    database.close()


@pytest.mark.parametrize(("name", "n"), [("ten", 10), ("many", MANY)])
def test_the_page_has_few_elements_at_ten_and_at_ten_thousand(browser, crowd, name, n):
    page = browser.page(f"{crowd.address}/#/s/{name}")
    page.wait("document.querySelector('.line.piece') && document.querySelector('#session .steps .number')")
    nodes = "document.querySelectorAll('*').length"
    small = page.js(nodes)
    assert small < 4_000
    first = page.texts("#session .steps li b")[0]
    assert first.replace(",", "") == str(n)
    page.js("document.querySelector('#session .steps li a').focus()")
    page.press("End")
    page.wait("document.activeElement.ariaLabel?.startsWith('Step 1:')")
    at_step(page, 1)
    assert "Only the figures" in page.text("#detail .note")
    page.press("PageUp")
    page.js("document.querySelector('#session-tab-records').click()")
    page.wait("#session .records li a .name")
    page.js("document.querySelector('#session .records li a').focus()")
    page.press("End")
    page.wait(
        "document.activeElement.innerText.startsWith('#1 ') && document.activeElement.querySelector('.name')"
    )
    page.press("Enter")
    page.wait(".lines .line")
    assert "ORD-00001" in page.text(".lines")
    page.js(f"location.hash = '#/s/{name}/steps/{n}/past'")
    page.wait("document.querySelectorAll('.decision').length > 5")
    assert page.js(nodes) < 4_000
    assert page.count(".decision") < 60
    tell = page.text("#detail .hint") if n > 2_000 else ""
    assert f"{MANY - 2_000:,}" in tell or n == 10
    assert page.js(
        "[...document.querySelectorAll('.curve path')].every(p => p.getAttribute('d').length < 12000)"
    )
    assert page.trouble() == []
    page.close()


def test_a_long_list_of_sessions_is_fetched_as_it_is_looked_at(browser, crowd):
    page = browser.page(f"{crowd.address}/")
    page.wait("document.querySelectorAll('#sessions li').length > 5")
    assert page.count("#sessions li") < 60
    first = len(page.requests("/v1/sessions?"))
    page.js("document.querySelector('#sessions li a').focus()")
    for _ in range(6):
        page.press("End")
        time.sleep(0.2)
    page.wait(
        "document.querySelector('#sessions .rows').children.length && Number(document.querySelector('#sessions li').ariaSetSize) > 300"
    )
    assert len(page.requests("/v1/sessions?")) > first
    page.click("#find-session")
    page.write("other-00399")
    page.wait_for("#sessions li", 1)
    assert page.trouble() == []
    page.close()


def test_an_answer_of_many_megabytes_is_left_where_it_is(opened, service):
    line = "x" * 90
    text = "\n".join(f"{i} {line}" for i in range(60_000)) + "\nthe needle <b>\n" + line
    chat = [
        system(),
        user("?"),
        call(("big", "dump", {})),
        result("big", text),
        call(("c", "t", {})),
        result("c", "1"),
    ]
    sent(service, "big", chat)
    page = opened("#/s/big/records/1", ready="document.querySelectorAll('.lines .line').length > 100")
    assert len(text) > 5_000_000
    assert page.count("*") < 3_000
    page.click(".answer input")
    page.write("needle <b>")
    page.wait(".lines mark")
    assert "line 1 of 1" in page.text(".answer .bar")
    assert page.text(".lines .here").endswith("the needle <b>")
    received = sum(
        e["params"]["encodedDataLength"]
        for e in page.browser.events(page.session)
        if e["method"] == "Network.loadingFinished"
    )
    assert received < 3_000_000


# -- keys


@pytest.mark.short
def test_a_service_with_keys_asks_for_one_and_keeps_it_in_the_tab(browser, tmp_path):
    bank = tmp_path / "bank.db"
    database = Database(bank)
    keys = [Keys(database).create(name)[1] for name in ("mine", "theirs")]
    database.close()
    with serve_here(bank) as process:
        for name, key in zip(("mine", "theirs"), keys, strict=True):
            path = f"/v1/sessions/{name}/context"
            assert process.ask(path, "POST", {"messages": SHOP[5]}, x_memory_key=key).status == 200
        page = browser.page(process.address)
        page.expected = ("401",)
        page.wait("!document.querySelector('#key').hidden")
        page.wait("document.activeElement.id === 'key-field'")
        page.write("mb_nobody_" + "x" * 40)
        page.press("Enter")
        page.wait(
            "!document.querySelector('#key').hidden && document.querySelector('#key').innerText.includes('not accepted')"
        )
        page.wait("document.activeElement.id === 'key-field'")
        page.write(keys[0])
        page.press("Enter")
        page.wait_for("#sessions li", 1)
        assert page.texts("#sessions li .name") == ["mine"]
        assert page.js("document.querySelector('#key').hidden")
        assert keys[0] not in page.js("document.documentElement.outerHTML")
        assert page.js("[localStorage.length, document.cookie]") == [0, ""]
        page.js("location.hash = '#/s/mine'")
        page.wait(".curve circle, .curve path")
        page.js("location.reload()")
        page.wait("#session .steps li")  # the tab still has it
        assert not any(keys[0] in url for url in page.requests())
        page.js("location.hash = '#/s/theirs'")
        page.expected = ("401", "404")
        page.wait("#session .note")
        assert "no such session" in page.text("#session")
        page.click("#forget-key")  # loads the page anew
        page.wait("document.querySelector('#key')?.hidden === false")
        assert page.js("sessionStorage.length") == 0
        assert page.count("#sessions li") == 0
        assert page.trouble() == []
        page.close()
