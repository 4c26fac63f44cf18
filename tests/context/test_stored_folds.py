"""Folds as rows of the bank: every process sends the same bytes, whichever made the fold; what is deleted is gone."""

import json
import random
import time
import zlib
from itertools import pairwise
from typing import Literal

import pytest
import sqlalchemy as sa
from tests import blocks
from tests.chats import call, report, result, say, system, user
from tests.contracts.stores import together
from tests.examples import first_short

from memory_bank import MemoryBankSettings, MemoryBankState, MemoryProcessor, apply_memory_bank_strategy
from memory_bank.bank.database import Database
from memory_bank.bank.embedder import re_embed
from memory_bank.bank.folds import Fold, FoldContent, Folds
from memory_bank.bank.maintenance import purge, verify
from memory_bank.bank.schema import folds, records, sessions
from memory_bank.bank.stores import FactStore
from memory_bank.errors import StorageError
from memory_bank.models.lexical import LexicalEmbedder
from memory_bank.pricing import Charge, common_length

LOCAL = {
    "selection": "evidence",
    "embedding_model": "lexical",
    "observer_model": "extractive",
    "token_encoding": "approximate",
}
RULES = {
    "priced": {"fold": "thrifty"},
    "often": {"history_budget": 1_600, "refresh_after": 900},
    "listed": {"history_budget": 700, "refresh_after": 900},
}


def rows_of(n):
    """An output from which later calls take a value."""
    return json.dumps(
        [{"item": f"ITM-{n}{r:02}", "shelf": f"SH-{n * 7 + r}", "note": "as counted"} for r in range(12)]
    )


def chat(turns):
    """A run whose calls use values of older outputs, with words of its user in between."""
    out = [system(), user("Count the shelves of every item, and move what is wrong.")]
    for n in range(turns):
        shelf = f"SH-{(n * 3 % max(n, 1)) * 7 + 2}"
        tool = ("list_items", "move_item", "check_item")[n % 3]
        out += [call((f"c{n}", tool, {"page": n, "shelf": shelf})), result(f"c{n}", rows_of(n))]
        if n % 17 == 16:
            out += [say(f"Counted up to {n}."), user(f"Look at {shelf} again, then go on.")]
    return out


def messages(turns):
    """The same in blocks of the Messages API."""
    out = [blocks.user("Count the shelves of every item, and move what is wrong.")]
    for n in range(turns):
        shelf = f"SH-{(n * 3 % max(n, 1)) * 7 + 2}"
        out += [
            blocks.turn(blocks.use(f"c{n}", ("list_items", "move_item")[n % 2], page=n, shelf=shelf)),
            blocks.user(blocks.answer(f"c{n}", rows_of(n))),
        ]
    return out


def steps_of(run):
    """The lists of messages with which the model is asked."""
    return [run[: n + 1] for n, m in enumerate(run) if m["role"] in ("user", "tool")]


class Process:
    """A process with a processor of its own on a bank that others use."""

    def __init__(self, url, rules, *, defer=False):
        self.url, self.defer = url, defer
        self.config = {"memory_strategies": {"b": {"type": "memory_bank", **LOCAL, **rules}}}
        self.start()

    def start(self):
        self.processor = MemoryProcessor(
            self.config, lambda session_id: MemoryBankState.open(self.url, session_id, defer=self.defer)
        )

    @property
    def state(self):
        return self.processor.state("b", "s")

    def restart(self):
        self.processor.close()
        self.start()

    def ask(self, given, model="claude-sonnet-4-5"):
        given = json.loads(json.dumps(given))  # as it comes in another process
        return self.processor.apply_strategy(given, "b", session_id="s", model=model)[0]


def asked_at_once(processes, given):
    """The contexts that several processes make of one request."""
    found = []
    together(*(lambda p=p: found.append(p.ask(given)) for p in processes))
    return found


def alone(tmp_path, rules, lists):
    """The contexts that one process makes."""
    one = Process(f"sqlite:///{tmp_path / 'alone.db'}", RULES[rules])
    contexts = [one.ask(given) for given in lists]
    one.processor.close()
    return contexts


@pytest.mark.parametrize(
    ("rules", "api", "turns"), [("priced", chat, 60), ("often", messages, 26), ("listed", chat, 24)]
)
@pytest.mark.parametrize("how", first_short(["interleaved", "restarted", "evicted"]))
def test_three_processes_send_what_one_would(bank_url, tmp_path, rules, api, turns, how):
    lists, turn = steps_of(api(turns)), random.Random(f"{rules} {how}")
    expected = alone(tmp_path, rules, lists)
    breaks = [
        n for n in range(1, len(lists)) if common_length(expected[n - 1], expected[n]) < len(expected[n - 1])
    ]
    assert breaks, "nothing was folded"
    processes = [Process(bank_url, RULES[rules]) for _ in range(3)]
    for n, given in enumerate(lists):
        process = turn.choice(processes)
        if how == "restarted" or turn.random() < 0.15:
            process.restart()
        if how == "evicted":
            for each in processes:
                each.processor.close("s")
        assert process.ask(given) == expected[n], n
    for process in processes:
        process.processor.close()
    bank = Database(bank_url)
    assert len(breaks) <= bank.value(sa.select(sa.func.count()).select_from(folds)) <= len(breaks) + 1
    bank.close()


@pytest.mark.long
def test_postgresql_that_ends_within_a_step_costs_no_context_and_no_record(postgres, postgres_url, tmp_path):
    lists = steps_of(chat(26))
    expected = alone(tmp_path, "often", lists)
    processes = [Process(postgres_url, RULES["often"]) for _ in range(3)]

    def restart():
        postgres.crash()
        postgres.start()

    def cut():
        postgres.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend'"
            " AND pid <> pg_backend_pid()"
        )

    def ask(process, given):
        until = time.monotonic() + 60
        while True:
            try:
                return process.ask(given)
            except StorageError:  # the agent asks again
                assert time.monotonic() < until
                time.sleep(0.05)

    for n, given in enumerate(lists):
        made = []
        work = [lambda p=p, given=given, made=made: made.append(ask(p, given)) for p in processes]
        together(*work, *({8: [restart], 14: [cut], 20: [restart]}.get(n, ())))
        assert made == [expected[n]] * 3, n
    for process in processes:
        process.processor.close()
    bank = Database(postgres_url)
    assert bank.value(sa.select(sa.func.count()).select_from(records)) == 26
    assert list(verify(bank)) == []
    bank.close()


def test_a_rewound_list_gets_the_context_of_that_time(bank_url):
    lists = steps_of(chat(26))
    process = Process(bank_url, RULES["often"])
    then = [process.ask(given) for given in lists]
    for back in (2, 6, 19):
        process.restart()
        assert process.ask(lists[-back]) == then[-back]
    assert process.ask(lists[-1]) == then[-1]
    process.processor.close()


def test_the_same_request_at_once_gets_the_same_context(bank_url):
    processes, turn = [Process(bank_url, RULES["often"]) for _ in range(3)], random.Random(3)
    before = []
    for given in steps_of(chat(20)):
        first, *others = asked_at_once(processes, given)
        assert others == [first, first]
        if turn.random() < 0.2:
            turn.choice(processes).restart()
        before.append(first)
    for process in processes:
        process.processor.close()
    bank = Database(bank_url)
    broken = sum(common_length(a, b) < len(a) for a, b in pairwise(before))
    assert 1 <= broken == bank.value(sa.select(sa.func.count()).select_from(folds))
    assert bank.value(sa.select(sa.func.count()).select_from(records)) == 20
    bank.close()


def test_the_first_writer_of_a_fold_wins(bank_url):
    bank = Database(bank_url)
    bank.open_session("s")
    one, other = Folds(bank, "s"), Folds(bank, "s")
    fold = Fold(1, "x", 2, "about", 5, 900, 40, FoldContent("one", turns=[(0, [(0, {-1: "a\ud800"}, 3)])]))
    assert one.add(fold, 0)
    assert not other.add(Fold(1, "x", 2, "about", 5, 900, 40, FoldContent("other")), 0)
    assert not one.add(Fold(2, "x", 2, "about", 5, 900, 40, FoldContent("of a session that was changed")), 7)
    last = other.last()
    assert last.number == 1
    assert other.newest(last, "x", 5, lambda count: "about") == fold
    assert other.newest(last, "x", 4, lambda count: "about") is None  # made for a longer list
    assert other.newest(last, "y", 5, lambda count: "about") is None
    assert other.newest(last, "x", 5, lambda count: f"{count} others") is None
    bank.close()


def test_the_newest_folds_are_kept_and_a_list_that_was_rewound_behind_many_finds_its_own(bank_url):
    bank = Database(bank_url)
    bank.open_session("s")
    one, other = Folds(bank, "s"), Folds(bank, "s")
    for n in range(1, 71):
        assert one.add(Fold(n, "x", n, f"about {n}", n, 900, 40, FoldContent(f"{n}")), 0)
    assert bank.column(sa.select(folds.c.number).order_by(folds.c.number)) == [*range(7, 71)]
    for count in (70, 40, 7):
        assert other.newest(other.last(), "x", count, lambda n: f"about {n}").body.text == f"{count}"
        assert other.newest(other.last(), "x", count, lambda n: f"about {n}" if n < 30 else "").past == min(
            count, 29
        )
    assert other.newest(other.last(), "x", 6, lambda n: f"about {n}") is None
    bank.close()


def test_a_bank_that_is_embedded_again_keeps_its_folds(tmp_path):
    file = tmp_path / "bank.db"
    one, other = (Process(f"sqlite:///{file}", RULES["often"]) for _ in range(2))
    lists, expected = steps_of(chat(20)), alone(tmp_path, "often", steps_of(chat(20)))
    for given in lists[:-2]:
        one.ask(given)
    bank = Database(file)
    made = bank.column(sa.select(folds.c.body))
    assert made and re_embed(bank, LexicalEmbedder()) == len(bank.column(sa.select(records.c.seq)))
    assert bank.column(sa.select(folds.c.body)) == made
    assert [p.ask(lists[-2]) for p in (one, other)] == [expected[-2]] * 2
    assert other.ask(lists[-1]) == expected[-1]
    bank.close()


class LaterSettings(MemoryBankSettings):
    """Those of a version that has a setting more, and another default."""

    more: int = 3
    fold: Literal["careful", "thrifty"] = "thrifty"


def test_a_version_with_other_settings_goes_on_with_the_folds_of_the_one_before(bank_url):
    contexts = []
    for settings, lists in (
        (MemoryBankSettings, steps_of(chat(24))[:-4]),
        (LaterSettings, steps_of(chat(24))[-4:]),
    ):
        state = MemoryBankState.open(bank_url, "s")
        made = settings(**LOCAL, **RULES["listed"])
        contexts += [apply_memory_bank_strategy(m, None, made, state)[0] for m in lists]
        folded = state.last_fold.number
        state.close()
    assert folded > 0
    assert common_length(contexts[-5], contexts[-4]) == len(contexts[-5])


@pytest.mark.parametrize("how", ["forget", "purge", "purge the older", "reset"])
def test_what_is_deleted_leaves_no_fold(tmp_path, how):
    file = tmp_path / "bank.db"
    process, other = (Process(f"sqlite:///{file}", RULES["often"]) for _ in range(2))
    lists = steps_of(chat(20))
    for given in lists[:-3]:
        process.ask(given)
    stale = other.ask(lists[-3])
    bank = Database(file)
    bodies = bank.column(sa.select(folds.c.body))
    assert bodies
    state = process.processor.state("b", "s")
    shown = json.dumps(stale)
    trace_id = next(
        r.trace_id for r in state.fact_store.get_many(list(state.steps)) if r.raw_output[0]["item"] in shown
    )
    if how == "forget":
        assert state.fact_store.forget(trace_id)
    elif how == "purge":
        assert [*purge(bank, session_id="s")]
    elif how == "purge the older":
        times = sorted(bank.column(sa.select(records.c.timestamp)))
        assert [p.records for p in purge(bank, before=times[3])] == [3]
    else:
        process.processor.reset_state("s")
    assert bank.column(sa.select(folds.c.body)) == []
    assert bank.rows(sa.select(sessions.c.sent, sessions.c.came)) == [{"sent": None, "came": None}]
    stored = b"".join(f.read_bytes() for f in tmp_path.iterdir())
    assert not any(body in stored for body in bodies)
    made = [p.ask(lists[-2]) for p in (other, process)]  # the one that had the fold in memory, too
    assert made[0] == made[1]
    if how == "forget":
        assert made[0] != stale
    bank.close()


def test_what_a_session_has_paid_and_its_pause_hold_in_every_process(bank_url):
    processes = [Process(bank_url, {**RULES["often"], "cache_retention": 60.0}) for _ in range(2)]
    lists = steps_of(chat(20))
    for n, given in enumerate(lists[:-1]):
        before = processes[n % 2].ask(given)
    bank = Database(bank_url)
    paid, full = bank.rows(sa.select(sessions.c.paid, sessions.c.would_pay))[0].values()
    state = processes[0].processor.state("b", "s")
    assert min(paid, full) > 0
    bank.set_session("s", asked=time.time() - 61)
    cold = processes[1].ask(lists[-1])
    assert common_length(before, cold) < len(before)
    processes[0].ask(lists[-1])
    assert state.ledger.paid > paid
    assert state.ledger.full > full
    bank.close()


def test_what_the_provider_tells_of_its_cache_holds_in_every_process(bank_url):
    one, other = (Process(bank_url, {"history_budget": 1_600}) for _ in range(2))
    lists = steps_of(chat(6))
    one.ask(lists[0]), other.ask(lists[1])
    cache = one.processor.state("b", "s").prefix_cache
    for _ in range(3):
        report(cache, 10_000, 0)
    one.ask(lists[2]), other.ask(lists[3])
    assert other.processor.state("b", "s").prefix_cache.is_denied
    report(other.processor.state("b", "s").prefix_cache, 0, 5)
    other.processor.state("b", "s").save()
    one.ask(lists[4])
    assert not cache.is_denied


def test_which_models_a_session_has_asked_holds_in_every_process(bank_url, tmp_path):
    """Of three one alone gets the requests for the cheap model."""
    alone, *processes = (
        Process(url, RULES["priced"]) for url in (f"sqlite:///{tmp_path / 'alone.db'}", *[bank_url] * 3)
    )
    for n, given in enumerate(steps_of(chat(70))):
        model = "claude-haiku-4-5" if n % 3 == 2 else "claude-sonnet-4-5"
        contexts = []
        for process in (alone, processes[n % 3]):
            contexts.append(process.ask(given, model))
        assert contexts[0] == contexts[1], n
    assert alone.state.last_fold.number


def test_the_models_that_are_known_of_a_session_are_few_and_fit_the_column(bank_url):
    state = MemoryBankState.open(bank_url, "s")
    keys = []
    for n in range(9):
        state.prepare(None)
        state.prefix_cache.take_price(None, f"m{n}" + "\U0001f9e0" * 300)
        keys.append(state.prefix_cache.key)
        state.idle = 100.0
        state.charge(Charge(1.0, 1.0), (), ())
    assert state.prefix_cache.asked == {keys[8]: 0, keys[7]: 100, keys[6]: 200, keys[5]: 300}
    assert len(state.prefix_cache.told) <= 1024
    state.close()


def explained(bank):
    """The numbers of the folds whose reasons are stored."""
    return bank.column(sa.select(folds.c.number).where(folds.c.why.is_not(None)).order_by(folds.c.number))


def test_why_a_fold_shows_what_it_does_is_stored_after_the_answer(bank_url):
    bank, lists = Database(bank_url), steps_of(chat(24))
    processes = [Process(bank_url, RULES["often"], defer=True) for _ in range(2)]
    one, other = processes
    made = 0
    for n, given in enumerate(lists):
        context, plan = one.ask(given), one.state.last_plan
        if (plan.fold or 0) > made:
            made = plan.fold
            assert explained(bank) == [*range(1, made)]
            if made == 1:  # it was killed now
                killed = other.ask(given)
                assert killed == context
                fates = {str(d.fate) for d in other.state.last_plan.decisions}
                assert fates <= {"kept", "shown in part", "listed"}
                assert other.state.last_plan.choice.reasons.pieces() == []
            pieces = plan.choice.reasons.pieces()
            assert pieces
        one.state.finish()
        assert explained(bank) == [*range(1, made + 1)], n
    assert made > 2
    assert other.ask(lists[-1]) == context
    assert [*other.state.last_plan.choice.reasons.pieces()] == [*plan.choice.reasons.pieces()]
    assert other.state.last_plan.as_dict() == plan.as_dict()
    bank.close()


def test_the_library_stores_the_reasons_of_a_fold_with_the_next_step_or_at_its_end(bank_url):
    bank, process = Database(bank_url), Process(bank_url, RULES["often"])
    plan = None
    for given in steps_of(chat(24)):
        before = plan
        process.ask(given)
        plan = process.state.last_plan
        if before is not None and before.fold:
            assert before.fold in explained(bank)
    process.ask(given)
    made = bank.value(sa.select(sa.func.max(folds.c.number)))
    process.processor.close()
    assert explained(bank) == [*range(1, made + 1)]
    bank.close()


def test_the_reasons_of_deleted_content_are_not_stored(bank_url):
    bank, process = Database(bank_url), Process(bank_url, RULES["often"], defer=True)
    for given in steps_of(chat(24)):
        process.ask(given)
        if process.state.last_plan.fold:
            break
        process.state.finish()
    facts = FactStore(bank, "s")
    assert facts.forget(next(iter(facts.steps())))
    other = Process(bank_url, RULES["often"], defer=True)
    other.ask(given)
    assert bank.column(sa.select(folds.c.number)) == [1]  # a fold of the same number
    process.state.finish()
    assert explained(bank) == []
    other.state.finish()
    assert explained(bank) == [1]
    bank.close()


@pytest.mark.parametrize(
    "why", [b"", b"junk", zlib.compress(b"[1]"), zlib.compress(b"[3, [[1, 2]], [], [], []]")]
)
def test_damaged_reasons_leave_their_fold_as_it_is(bank_url, why):
    bank, lists = Database(bank_url), steps_of(chat(24))
    process = Process(bank_url, RULES["often"])
    for given in lists:
        context = process.ask(given)
    process.processor.close()
    with bank.write() as c:
        c.execute(sa.update(folds).values(why=why))
    other = Process(bank_url, RULES["often"])
    assert other.ask(lists[-1]) == context
    assert other.state.last_plan.fold and other.state.last_plan.decisions
    if why:
        assert {d.kind for d in verify(bank, repair=True)} == {"fold"}
    assert list(verify(bank)) == [] and bank.value(sa.select(sa.func.count()).select_from(folds)) > 1
    assert not why or explained(bank) == []
    bank.close()


@pytest.mark.parametrize("body", [b"", b"junk", zlib.compress(b"[]"), zlib.compress(b'{"text": "cut')])
def test_a_damaged_fold_is_told_and_the_next_one_stands_in_its_place(bank_url, body, caplog):
    bank, lists = Database(bank_url), steps_of(chat(24))
    processes = [Process(bank_url, RULES["often"]) for _ in range(2)]
    for given in lists[:-4]:
        processes[0].ask(given)
    assert list(verify(bank)) == []
    made = bank.value(sa.select(sa.func.max(folds.c.number)))
    with bank.write() as c:
        c.execute(sa.update(folds).values(body=body))
    assert [(d.kind, d.session_id) for d in verify(bank)] == [("fold", "s")] * made
    for given in lists[-4:]:
        context = processes[1].ask(given)  # which has read none of them
    assert f"fold {made} cannot be read" in caplog.text
    assert len(json.dumps(context)) < len(json.dumps(lists[-1])) / 2
    assert all(d.mended for d in verify(bank, repair=True))
    assert list(verify(bank)) == []
    assert Process(bank_url, RULES["often"]).ask(lists[-1]) == context
    bank.close()


def test_a_model_of_any_name_is_known_with_what_its_provider_told(bank_url):
    state = MemoryBankState.open(bank_url, "s")
    bank, name = Database(bank_url), "\U0001f9e0" * 300
    bank.open_session("s")
    state.prefix_cache.take_price(None, name)
    for _ in range(3):
        report(state.prefix_cache, 10_000, 0)
    state.save()
    other = MemoryBankState.open(bank_url, "s")
    other.prefix_cache.take_price(None, name)
    other.prepare(None)
    assert other.prefix_cache.read == 1
    bank.close()


def test_a_fold_that_is_to_stand_forever_is_stored(tmp_path):
    rules = {"history_budget": 700, "refresh_after": 10**20, "cache_retention": 1e-9}  # folds when it is cold
    one, other = (Process(f"sqlite:///{tmp_path / 'bank.db'}", rules) for _ in range(2))
    for given in steps_of(chat(8)):
        context = one.ask(given)
    assert len(json.dumps(context)) < len(json.dumps(given)) / 2
    assert other.ask(given) == context
