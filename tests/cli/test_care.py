"""purge and verify: what goes, what is wrong, what is mended."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from tests.chats import call, result, rounds, user
from tests.contracts.insights import NumbersEmbedder
from tests.contracts.stores import a_record

from memory_bank import LexicalEmbedder, MemoryBankSettings, MemoryBankState, apply_memory_bank_strategy
from memory_bank.bank.database import Database
from memory_bank.bank.listing import list_sessions
from memory_bank.bank.maintenance import Counts, Purged, purge, verify
from memory_bank.bank.stores import FactStore, InsightStore
from memory_bank.bank.worker import book_call
from memory_bank.cli.bank import seconds_of
from memory_bank.errors import ConfigError
from memory_bank.records import Insight

DAY = 86_400.0
SETTINGS = MemoryBankSettings(
    embedding_model="lexical", observer_model="extractive", token_encoding="approximate"
)


@pytest.fixture
def database(bank_url: str) -> Any:
    """Sessions old (6 records), mixed (3 old, 3 new), new (2): insights and jobs for all."""
    database = Database(bank_url)
    now = time.time()
    for session, old, new in (("old", 6, 0), ("mixed", 3, 3), ("new", 0, 2)):
        facts = FactStore(database, session)
        made = [a_record(n, timestamp=now - 40 * DAY) for n in range(old)]
        made += [a_record(old + n, timestamp=now - n) for n in range(new)]
        facts.store_many(made)
        ids = [r.trace_id for r in made]
        InsightStore(NumbersEmbedder(), database, session).add_many(
            [Insight(t, "1 0", "llm:m") for t in ids], waiting=ids
        )
        database.set_session(session, task=f"the task of {session}")
        book_call(database, session, None)
    yield database
    database.close()


def test_what_is_old_goes_and_nothing_else(database: Database) -> None:
    before = time.time() - 30 * DAY
    would = list(purge(database, before=before, dry_run=True))
    assert len(list_sessions(database)) == 3
    assert sum(s.records for s in list_sessions(database)) == 14
    went = list(purge(database, before=before))
    assert went == would
    size = sum(len('{"n": 0}') + len('{"rows": [0, "0"]}') + len("1 0") for _ in range(3))
    assert went == [Purged("mixed", 3, 3, size, False), Purged("old", 6, 6, 2 * size, True)]
    left = {s.session_id: s for s in list_sessions(database)}
    assert {k: (s.records, s.insights, s.waiting, s.task) for k, s in left.items()} == {
        "old": (0, 0, 0, ""),
        "mixed": (3, 3, 3, "the task of mixed"),
        "new": (2, 2, 2, "the task of new"),
    }
    assert left["old"].calls == 1  # the limit goes on holding
    assert [database.extent(s).generation for s in ("old", "mixed", "new")] == [1, 1, 0]
    assert list(FactStore(database, "mixed").steps()) == ["trace-00003", "trace-00004", "trace-00005"]
    assert list(purge(database, before=before)) == []
    assert database.extent("old").generation == 1


def test_of_one_session(database: Database) -> None:
    before = time.time() - 30 * DAY
    assert [p.records for p in purge(database, session_id="mixed", before=before)] == [3]
    assert [p.records for p in purge(database, session_id="mixed")] == [3]
    assert list(purge(database, session_id="mixed")) == []
    assert {s.session_id: s.records for s in list_sessions(database)} == {"old": 6, "mixed": 0, "new": 2}


def test_an_open_state_notices(bank_url: str) -> None:
    messages = [user(), *rounds(4)]
    with MemoryBankState.open(bank_url, "s") as here, MemoryBankState.open(bank_url, "s") as there:
        for state in (here, there):
            apply_memory_bank_strategy(messages, None, SETTINGS, state)
        assert sum(p.records for p in purge(there.database, session_id="s")) == 4
        later = rounds(1, start=50)  # a client that has dropped the older messages
        apply_memory_bank_strategy([user(), *later], None, SETTINGS, here)
        assert (here.fact_store.size(), here.insight_store.size(), here.step_count) == (1, 1, 1)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30d", 30 * DAY), ("12h", 43_200), ("90m", 5_400), ("1d12h", 1.5 * DAY), ("2W", 14 * DAY)],
)
def test_durations(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "30", "d", "-3d", "3.5d", "0d", "30 days", "\x1b[31m", "9" * 50 + "d"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ConfigError, match="not a duration"):
        seconds_of(text)


def test_the_verb(cli: Any, database: Database, bank_url: str) -> None:
    assert cli.bank(bank_url, "purge").code == 2
    assert cli.bank(bank_url, "purge", "--older-than", "soon").code == 2
    assert cli.bank(bank_url, "purge", "--session", "nope").code == 1
    told = cli.bank(bank_url, "purge", "--older-than", "30d", "--dry-run")
    assert "would remove 9 records and 9 insights" in told.out
    would = cli.bank(bank_url, "purge", "--older-than", "30d", "--dry-run", "--json").json()
    did = cli.bank(bank_url, "purge", "--older-than", "30d", "--json").json()
    assert did == {**would, "dry_run": False}
    assert (did["records"], did["sessions_emptied"], did["complete"]) == (9, 1, True)
    assert cli.bank(bank_url, "purge", "--session", "new").out.startswith("session")
    assert "removed 0 records" in cli.bank(bank_url, "purge", "--older-than", "400w").out


def test_nothing_of_it_is_left_in_the_file(cli: Any, tmp_path: Path) -> None:
    db = tmp_path / "bank.db"
    facts = FactStore(Database(db), "s")
    facts.store_many([a_record(n, output_text=f"the secret {n} " * 700) for n in range(20)])
    facts.database.close()
    assert b"the secret" in db.read_bytes()
    assert cli.bank(db, "purge", "--session", "s").code == 0
    assert not any(b"the secret" in file.read_bytes() for file in tmp_path.iterdir())


# verify


def wrong(database: Database, **more: Any) -> list[tuple[str, str | None, str | None]]:
    return [(p.kind, p.session_id, p.trace_id) for p in verify(database, **more)]


def test_a_bank_that_is_whole(database: Database) -> None:
    counts = Counts()
    assert list(verify(database, counts)) == []
    assert counts == Counts(records=14, insights=14, sessions=3)


@pytest.mark.parametrize(
    "messages",
    [
        [user(), *rounds(5)],
        [user(), *([call(("a", "poll", {})), result("a", "wait")] * 30)],
        [user(), call(("a", "t", "{broken"), ("b", "t", ""), ("c", "t", {"\ud800": [1.5, None, "é"]}))]
        + [result(i, c) for i, c in (("a", "[1, 2"), ("b", "nul \0 \ud83d"), ("c", ""))],
        [
            {"type": "function_call", "call_id": "x", "name": "t", "arguments": {"b": 1, "a": {"c": []}}},
            {"type": "function_call_output", "call_id": "x", "output": {"rows": [1, 2.5, "é", None, 10**30]}},
        ],
        [user(), result("lost", "an answer without a call")],
    ],
)  # fmt: skip
def test_ids_are_what_their_content_makes_them(bank_url: str, messages: list[Any]) -> None:
    with MemoryBankState.open(bank_url, "s ü") as state:
        apply_memory_bank_strategy(messages, None, SETTINGS, state)
        counts = Counts()
        assert list(verify(state.database, counts)) == []
        assert counts.checked_ids == counts.records > 0
        with state.database.write() as c:
            c.exec_driver_sql(
                "UPDATE records SET tool_name = call_id, output = call_id WHERE seq = (SELECT max(seq) FROM records)"
            )
        assert [p.kind for p in verify(state.database)] == ["record"]


def test_what_is_wrong_is_named_and_mended(database: Database) -> None:
    dimension = "'[1,2,3]'" if database.ranks else "x'00'"
    for statement in (
        "DELETE FROM records WHERE session_id = 'new' AND trace_id = 'trace-00000'",
        f"UPDATE insights SET embedding = {dimension} WHERE session_id = 'mixed' AND trace_id = 'trace-00001'",
        "DELETE FROM sessions WHERE session_id = 'old'",
    ):
        with database.write() as c:
            c.exec_driver_sql(statement)
    expected = [
        ("session", "old", None),
        ("embedding", "mixed", "trace-00001"),
        ("insight", "new", "trace-00000"),
    ]
    assert wrong(database) == expected
    assert wrong(database) == expected  # nothing was changed
    mended = list(verify(database, repair=True))
    assert [(p.kind, p.session_id, p.trace_id) for p in mended] == expected
    assert all(p.mended for p in mended)
    counts = Counts()
    assert list(verify(database, counts)) == []
    assert (counts.records, counts.insights, counts.unobserved) == (13, 12, 1)
    assert database.extent("mixed").generation == 1
    assert len(InsightStore(NumbersEmbedder(), database, "mixed").search("1 0", 9)) == 5


def test_records_that_cannot_be_read_are_named_and_kept(tmp_path: Path, cli: Any) -> None:
    db = tmp_path / "bank.db"
    FactStore(Database(db), "s").store_many([a_record(n) for n in range(1, 6)])
    with sqlite3.connect(db) as c:
        c.execute("UPDATE records SET output = x'ff' WHERE seq = 1")
        c.execute("UPDATE records SET input = x'7b' WHERE seq = 2")
        c.execute("UPDATE records SET tool_name = 'text' WHERE seq = 3")
        c.execute("UPDATE records SET timestamp = 'yesterday' WHERE seq = 4")
    for args in (["--json"], ["--json", "--repair"]):
        done = cli.bank(db, "verify", *args)
        told = done.json()
        assert (done.code, told["left"], told["records"]) == (1, 4, 5)
        assert [f["trace_id"][-1] for f in told["found"]] == ["1", "2", "3", "4"]
    shown = cli.bank(db, "verify")
    assert "4 are left" in shown.out
    assert "5 records have no insight" in shown.out


def test_embeddings_that_are_no_numbers_and_a_forgotten_embedder(tmp_path: Path) -> None:
    database = Database(tmp_path / "bank.db")
    FactStore(database, "s").store_many([a_record(1), a_record(2)])
    store = InsightStore(NumbersEmbedder(), database, "s")
    store.add_many([Insight("trace-00001", "1 0"), Insight("trace-00002", "0 1")])
    with database.write() as c:
        c.exec_driver_sql(
            "UPDATE insights SET embedding = x'0000c07f0000c07f' WHERE trace_id = 'trace-00001'"
        )
    assert wrong(database, repair=True) == [("embedding", "s", "trace-00001")]
    with database.write() as c:
        c.exec_driver_sql("DELETE FROM bank")
    assert wrong(database, repair=True) == [("embedder", None, None)]


def test_the_verb_verify(cli: Any, bank: Path) -> None:
    done = cli.bank(bank, "verify")
    assert (done.code, done.err) == (0, "")
    assert "8 records (8 ids are their content's hash)" in done.out
    with sqlite3.connect(bank) as c:
        c.execute("DELETE FROM records WHERE seq < 3")
    done = cli.bank(bank, "verify")
    assert (done.code, "--repair" in done.sentence()) == (1, True)
    assert cli.bank(bank, "verify", "--repair").code == 0
    assert cli.bank(bank, "verify").code == 0


def test_many_problems_need_no_memory_and_no_endless_list(cli: Any, tmp_path: Path) -> None:
    database = Database(tmp_path / "bank.db")
    InsightStore(LexicalEmbedder(), database, "s").add_many([Insight(f"t{n}", "x") for n in range(1_200)])
    told = cli.bank(tmp_path / "bank.db", "verify", "--json").json()
    assert (told["left"], len(told["found"])) == (1_200, 1_000)
    assert "… and 200 more." in cli.bank(tmp_path / "bank.db", "verify").out
    assert cli.bank(tmp_path / "bank.db", "verify", "--repair").code == 0
    assert InsightStore(LexicalEmbedder(), database, "s").is_empty()
