"""Steps: numbered in order by several writers, figures of all, answers of the latest, a curve of any length."""

import subprocess
import sys
import time
from dataclasses import replace

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.conftest import environment

from memory_bank.bank.database import Database
from memory_bank.bank.folds import FoldReasons
from memory_bank.bank.maintenance import purge
from memory_bank.bank.schema import sessions
from memory_bank.bank.steps import (
    StepFigures,
    StepToStore,
    add_steps,
    ends_of,
    get_step,
    list_steps,
    packed,
    steps_shown,
    token_curve,
    unpacked,
    usage_sums,
)
from memory_bank.bank.stores import FactStore
from memory_bank.plan import Fate
from memory_bank.pricing import Usage
from memory_bank.records import InteractionRecord


@pytest.fixture
def database(bank_url):
    database = Database(bank_url)
    for name in ("a", "b"):
        database.open_session(name)
    yield database
    database.close()


def a_step(session="a", tokens=100, full=1000, created=5e9, **more):
    values = {
        "messages": 3,
        "records": 1,
        "status": "rebuilt",
        "strategy": "memory_bank",
        "milliseconds": 1.5,
    }
    if usage := more.pop("usage", None):
        more |= {"sent": usage, "full": usage}
    stored = {k: more.pop(k) for k in ("fates", "answer", "generation") if k in more}
    return StepToStore(StepFigures(session, created, full, tokens, **{**values, **more}), **stored)


def numbers(database, session, **asked):
    return [s.number for s in list_steps(database, session, **asked)]


def test_steps_are_numbered_on_in_each_session(database):
    add_steps(database, [a_step(tokens=1), a_step("b"), a_step(tokens=2)], 100)
    add_steps(database, [a_step(tokens=3)], 100)
    assert [(s.number, s.tokens) for s in list_steps(database, "a")] == [(1, 1), (2, 2), (3, 3)]
    assert numbers(database, "b") == [1]
    assert ends_of(database, "a") == (1, 3)
    assert ends_of(database, "nowhere") is None


def test_a_list_goes_on_after_a_number(database):
    add_steps(database, [a_step() for _ in range(7)], 0)
    assert numbers(database, "a", limit=3) == [1, 2, 3]
    assert numbers(database, "a", after=3, limit=3) == [4, 5, 6]
    assert numbers(database, "a", after=7) == []


def answers(database, session, limit=500):
    found = [s.number for s in list_steps(database, session, limit=limit)]
    return [n for n in found if get_step(database, session, n)[1] is not None]


def test_only_the_latest_keep_their_answers(database):
    for i in range(6):
        add_steps(database, [a_step(answer=packed({"i": i}))], 2)
    assert answers(database, "a") == [5, 6]
    assert get_step(database, "a", 6)[1] == {"i": 5}
    assert get_step(database, "a", 7) is None
    add_steps(database, [a_step(answer=packed({"i": i})) for i in range(5)], 2)  # more at once than are kept
    assert answers(database, "a") == [10, 11]


def test_a_lower_limit_reaches_the_old_ones_in_time(database):
    add_steps(database, [a_step(answer=packed({}))] * 50, 100)
    for _ in range(5):
        add_steps(database, [a_step(answer=packed({}))] * 50, 3)
    assert len(answers(database, "a")) <= 3 + 50
    add_steps(database, [a_step(answer=packed({}))] * 50, 3)
    assert answers(database, "a") == [348, 349, 350]


def test_what_a_context_showed_is_told_by_its_fates_and_by_its_fold(database):
    fates = {"kept": [7, 8, 9], "shown in part": [2, 5]}
    why = FoldReasons(6, {3: (Fate.PART, 0.5, "#3: 1 of 2 pieces")}, frozenset({4}), (), ())
    add_steps(database, [a_step(records=9, fold=1, fates=fates), a_step(records=9, fates=fates), a_step()], 0)
    folded, plain, untold = steps_shown(database, "a")
    assert plain.fates == {"kept": [[7, 9]], "shown in part": [[2, 2], [5, 5]]}
    assert [plain.of(n, None)[0] for n in (2, 3, 8)] == ["shown in part", "left out", "kept"]
    assert [folded.of(n, why)[0] for n in (2, 3, 4, 6, 9)] == [
        "shown in part", "shown in part", "listed", "left out", "kept",
    ]  # fmt: skip
    assert folded.of(3, why)[1:] == (0.5, "#3: 1 of 2 pieces")
    assert folded.of(10, why)[2] == "its messages are no longer in the list that the client sends"
    assert (
        folded.of(3, None)[0] is untold.of(3, None)[0] is None
    )  # the fold is no longer stored; nothing is known
    assert [s.number for s in steps_shown(database, "a", since=9)] == [1, 2]
    assert [s.number for s in steps_shown(database, "a", numbers=(2, 3))] == [2, 3]


def test_a_context_that_was_not_sent_left_everything_as_it_came(database):
    add_steps(database, [a_step(records=9, fold=1, fates={"kept": [9]}, status="refused")], 0)
    assert steps_shown(database, "a")[0].of(3, None)[0] == "kept"


def test_deleted_content_takes_along_what_contexts_showed_of_it(database):
    FactStore(database, "a").store(InteractionRecord.create(1, "look", {}, "secret"))
    [outline] = FactStore(database, "a").page()
    add_steps(database, [a_step(fold=1, fates={"kept": [1]})], 0)
    FactStore(database, "a").forget(outline.trace_id)
    assert [(s.fold, s.fates) for s in steps_shown(database, "a")] == [(None, None)]


def test_a_step_revives_a_deleted_session_unless_it_came_before(database):
    add_steps(database, [a_step(created=1.0)], 9)
    list(purge(database, session_id="a"))
    database.set_session("a", deleted=time.time())
    deleted = sa.select(sessions.c.deleted).where(sessions.c.session_id == "a")
    add_steps(database, [a_step(created=2.0)], 9)  # what was on its way when the session went
    with database.read() as c:
        assert c.execute(deleted).scalar() is not None
    assert numbers(database, "a") == []
    add_steps(database, [a_step(created=5e9)], 9)
    with database.read() as c:
        assert c.execute(deleted).scalar() is None
    assert numbers(database, "a") == [1]


def test_what_was_shown_before_a_reset_does_not_come_after_it(database):
    generation = database.extent("a").generation
    database.set_session("a", task="what is to be purged")
    list(purge(database, session_id="a"))
    assert database.extent("a").generation > generation
    old = a_step(fold=1, fates={"kept": [1]}, generation=generation)
    new = a_step(fold=1, fates={"kept": [1]}, generation=database.extent("a").generation)
    add_steps(database, [old, new], 9)
    assert [(s.fold, s.fates) for s in steps_shown(database, "a")] == [(None, None), (1, {"kept": [[1, 1]]})]


def test_names_that_a_database_refuses_are_stored_in_part(database):
    """A role and a model's name are what a client or provider sends."""
    used = Usage(100, 0, 0, 10)
    odd = "\ud800\0role"
    step = a_step(tokens=70, full=90, status="refused", model=odd, usage=used, changed=odd, changed_at=1)
    add_steps(database, [step], 100)
    (step,) = list_steps(database, "a")
    assert (step.changed, step.model) == ("??role", "??role")
    assert (step.tokens, step.full_tokens, step.status) == (70, 90, "refused")


def test_a_purge_takes_the_steps_along(database):
    add_steps(database, [a_step()] * 3 + [a_step("b")], 9)
    list(purge(database, session_id="a"))
    assert numbers(database, "a") == []
    assert numbers(database, "b") == [1]


def test_a_session_that_is_not_there_has_no_steps(database):
    add_steps(database, [a_step("nowhere"), a_step()], 9)
    assert numbers(database, "nowhere") == []
    assert numbers(database, "a") == [1]


def test_an_answer_keeps_lone_surrogates_and_nul():
    wanted = {"text": "\ud800 \0 \u202e é", "deep": [{"n": 1.5}]}
    assert unpacked(packed(wanted)) == wanted


def test_processes_never_number_two_steps_alike(bank_url):
    database = Database(bank_url)
    database.open_session("a")
    code = (
        "import sys\n"
        "from memory_bank.bank.database import Database\n"
        "from memory_bank.bank.steps import StepFigures, StepToStore, add_steps, packed\n"
        "d = Database(sys.argv[1])\n"
        "for i in range(20):\n"
        "    figures = StepFigures('a', 5e9, 2, 1, 1, 1, 'rebuilt', 's', 1.0)\n"
        "    add_steps(d, [StepToStore(figures, answer=packed({}))], 5)\n"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", code, bank_url], env=environment(), stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    for process in running:
        _, told = process.communicate(timeout=60)
        assert process.returncode == 0, told.decode()
    found = list_steps(database, "a")
    assert [s.number for s in found] == list(range(1, 41))
    assert answers(database, "a") == list(range(36, 41))
    database.close()


def test_figures_come_back_as_they_were(database):
    wanted = a_step(tokens=2**40, full=2**41, messages=7, records=9, status="unchanged", milliseconds=0.25)
    add_steps(database, [wanted], 100)
    assert list_steps(database, "a") == [replace(wanted.figures, number=1)]


def test_a_session_without_steps_has_no_curve(database):
    totals, points = token_curve(database, "b", 400)
    assert (totals["first"], totals["last"], totals["steps"], points) == (None, None, 0, [])


def test_a_long_curve_is_bounded_and_keeps_its_peaks(database):
    wanted = [a_step(tokens=50 if i != 7_777 else 9_999, full=i) for i in range(1, 12_001)]
    for start in range(0, len(wanted), 2_000):
        add_steps(database, wanted[start : start + 2_000], 0)
    totals, points = token_curve(database, "a", 300)
    assert totals["steps"] == totals["last"] == 12_000
    assert len(points) <= 300
    assert sum(p.steps for p in points) == 12_000
    assert points[-1].number == 12_000 and points[-1].full_tokens == 12_000
    assert max(p.tokens for p in points) == 9_999
    assert min(p.least_tokens for p in points) == 50


@given(
    tokens=st.lists(st.integers(0, 10**6), min_size=1, max_size=40),
    points=st.integers(1, 50),
)
def test_a_curve_of_any_width_holds_all_steps(tokens, points):
    database = Database()
    database.open_session("a")
    add_steps(database, [a_step(tokens=t, full=t + 1) for t in tokens], 0)
    totals, found = token_curve(database, "a", points)
    assert len(found) <= points
    assert sum(p.steps for p in found) == len(tokens)
    assert [p.number for p in found] == sorted({p.number for p in found})
    assert found[-1].number == len(tokens)
    start = 0
    for p in found:
        part = tokens[start : p.number]
        assert (p.tokens, p.least_tokens, p.full_tokens) == (max(part), min(part), max(part) + 1)
        start = p.number
    assert totals["tokens"] == sum(tokens)
    database.close()


def test_usage_is_summed_by_session_and_by_day(database):
    day = 20_700
    noon = 86_400.0 * day + 43_200
    used = Usage(900, 300, 0, 50)
    add_steps(database, [
        a_step(created=noon - 43_200, model="m", usage=used),
        a_step(created=noon + 43_199, model="m", error="429", http_status=429),
        a_step("b", created=noon + 43_200, model="n", usage=used, status="failed"),
        a_step("b", created=noon + 90_000, status="refused"),
    ], 0)  # fmt: skip

    def sums(by, **asked):
        found = usage_sums(database, None, by, **asked)
        return sorted(
            (str(s.of), s.model or "", s.steps, s.reported, s.sent.input, s.errors, s.without_memory)
            for s in found
        )

    first = ("m", 2, 1, 900, 1, 0)
    assert sums("session") == [("a", *first), ("b", "", 1, 0, 0, 0, 1), ("b", "n", 1, 1, 900, 0, 1)]
    today, tomorrow = str(day), str(day + 1)
    assert sums("period") == [
        (today, *first),
        (tomorrow, "", 1, 0, 0, 0, 1),
        (tomorrow, "n", 1, 1, 900, 0, 1),
    ]
    assert sums("period", since=noon + 43_200) == sums("period")[1:]
    assert sums("all", session_ids=["a"]) == [("None", *first)]
    assert usage_sums(database, "another") == []
    assert numbers(database, "a", only="errors") == [2]
    assert numbers(database, "b", only="without_memory") == [1, 2]
    assert {s.last for s in usage_sums(database, None, "session") if s.model == "m"} == {noon + 43_199}


def test_an_answer_comes_with_its_step_and_goes_with_later_ones(database):
    for i in range(3):
        said = {"parts": [{"text": f"{i}\ud800"}], "calls": []}
        ended = {"seconds": 2.5, "http_status": 200, "model": "m"}
        add_steps(database, [a_step(created=5e9 + i, answer=packed(said), **ended)], 2)
    kept = [get_step(database, "a", n) for n in (1, 2, 3)]
    assert [a and a["parts"][0]["text"] for _, a in kept] == [None, "1\ud800", "2\ud800"]
    assert (kept[0][0].seconds, kept[0][0].http_status) == (2.5, 200)
