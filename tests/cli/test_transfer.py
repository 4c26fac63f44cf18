"""Export and import: sessions move between banks of either kind, nothing lost, nothing twice."""

from __future__ import annotations

import gzip
import json
import random
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from tests.audit.logged import ClaudeCode
from tests.chats import JSON, TEXT, rounds, user
from tests.cli.conftest import COMMAND, environment
from tests.contracts.stores import a_record, let_wait, together
from tests.embedding_server import EmbeddingServer
from tests.examples import examples

from memory_bank import InteractionRecord, LexicalEmbedder, MemoryBankState
from memory_bank.audit import traces
from memory_bank.bank.database import Database
from memory_bank.bank.listing import list_sessions, newest_searchable
from memory_bank.bank.schema import records
from memory_bank.bank.stores import FactStore, InsightStore
from memory_bank.bank.transfer import (
    ImportedSession,
    RefusedSession,
    decode_text,
    encode_text,
    export_lines,
    import_lines,
)
from memory_bank.records import NAMESPACE_END, Insight

HALVES = "\ud83d\ude00"[:1] + "\ude00"  # two lone surrogates that JSON would make one letter


def lines_of(database: Database) -> list[str]:
    return [json.dumps(value) for value in export_lines(database)]


def take(database: Database, lines: list[str], model: Any = None) -> list[Any]:
    return list(import_lines(database, list(enumerate(lines, 1)), model))


def a_full_bank(database: Database) -> None:
    """Sessions with everything a bank can hold."""
    one = FactStore(database, "one")
    one.store_many(
        [
            a_record(
                1, output_text=f"nul \0 lone \ud800 two {HALVES} 😀\r\n", input_text='{"n": 1', raw_input=None
            ),
            a_record(2, raw_output={"x": [HALVES, float("nan"), 1e300, 10**30], "\ud800": None}),
            a_record(3, tool_name=HALVES, call_id="\0", timestamp=0.1 + 0.2),
            a_record(4, call_id=None, raw_output=json.loads("[" * 150 + "]" * 150), step_id=-5),
            a_record(5, output_text="[" * 9_000 + "]" * 9_000),
        ]
    )
    insights = InsightStore(LexicalEmbedder(), database, "one")
    insights.add_many(
        [Insight(f"trace-{n:05}", f"summary {n} {HALVES}", "llm:m", "why \ud800") for n in (3, 1)]
    )
    insights.add("by hand", "an insight without a record")
    let_wait(database, ["trace-00001"], 1, f"failed {HALVES}")
    database.set_session("one", task=f"the task {HALVES}")
    FactStore(database, "two").store(a_record(1, raw_output="another"))
    with database.write() as c:
        c.exec_driver_sql("UPDATE sessions SET project = X'70c3bc' WHERE session_id = 'two'")
    FactStore(database, "nothing in it")


def test_there_and_back_byte_for_byte(tmp_path: Path, postgres_url: str) -> None:
    first, second, third = Database(tmp_path / "1.db"), Database(postgres_url), Database(tmp_path / "3.db")
    a_full_bank(first)
    lines = lines_of(first)
    for source, target in ((first, second), (second, third)):
        taken = take(target, lines_of(source))
        assert [t.session_id for t in taken] == ["nothing in it", "one", "two"]
        assert taken[1] == ImportedSession("one", 5, 0, 3)
        assert lines_of(target) == lines
        assert take(target, lines)[1] == ImportedSession("one", 0, 5, 0)  # once more: nothing twice
        assert lines_of(target) == lines
    for ours, theirs in zip(list_sessions(first), list_sessions(third), strict=True):
        assert ours == theirs
    store = FactStore(third, "one")
    assert store.get_many(list(store.steps()))[0] == FactStore(first, "one").get("trace-00001")
    query = "summary 3"
    found = [InsightStore(LexicalEmbedder(), d, "one").rank(query) for d in (first, third)]
    assert found[0] == found[1]
    for database in (first, second, third):
        database.close()


NASTY = st.lists(
    st.fixed_dictionaries(
        {
            "tool_name": TEXT,
            "raw_input": JSON,
            "raw_output": JSON,
            "call_id": st.none() | TEXT,
            "input_text": st.none() | TEXT,
            "output_text": st.none() | TEXT,
        }
    ),
    max_size=5,
)


@examples(60)
@given(records=NASTY, summary=TEXT, task=TEXT)
def test_nasty_texts_move_without_loss(
    postgres: Any,
    tmp_path_factory: pytest.TempPathFactory,
    records: list[dict[str, Any]],
    summary: str,
    task: str,
) -> None:
    first, second, third = Database(), Database(postgres.url(postgres.emptied())), Database()
    made = [InteractionRecord(f"t{n}", n, timestamp=n / 3, **r) for n, r in enumerate(records)]
    FactStore(first, "s").store_many(made)
    InsightStore(LexicalEmbedder(), first, "s").add_many([Insight(r.trace_id, summary) for r in made[::2]])
    first.set_session("s", task=task)
    lines = lines_of(first)
    assert not any(isinstance(t, RefusedSession) for t in take(second, lines) + take(third, lines_of(second)))
    assert lines_of(second) == lines == lines_of(third)
    ours, theirs = FactStore(first, "s"), FactStore(third, "s")
    mine, yours = ([*map(astuple, facts.get_many(list(facts.steps())))] for facts in (ours, theirs))
    assert repr(mine) == repr(yours)
    assert theirs.database.get_session("s", "task") == task
    second.close()


@given(st.text(st.characters(exclude_categories=())) | TEXT)
def test_texts_come_back(text: str) -> None:
    assert decode_text(json.loads(json.dumps(encode_text(text)))) == text


def test_two_that_import_the_same_at_once(tmp_path: Path, bank_url: str) -> None:
    source = Database(tmp_path / "a.db")
    a_full_bank(source)
    lines = lines_of(source)
    targets = [Database(bank_url) for _ in range(2)]
    told: list[Any] = []
    together(*(lambda t=t: told.extend(take(t, lines)) for t in targets))
    assert sorted(t.records for t in told) == [0, 0, 0, 0, 1, 5]
    assert lines_of(targets[0]) == lines
    for target in targets:
        target.close()


def test_what_is_there_stays(tmp_path: Path) -> None:
    source, target = Database(tmp_path / "a.db"), Database(tmp_path / "b.db")
    a_full_bank(source)
    FactStore(target, "one").store(a_record(9))
    InsightStore(LexicalEmbedder(), target, "one").add("trace-00001", "a better summary")
    target.set_session("one", task="a task of its own")
    before = target.extent("one").generation
    take(target, lines_of(source))
    assert InsightStore(LexicalEmbedder(), target, "one").get_summary("trace-00001") == "a better summary"
    assert target.get_session("one", "task") == "a task of its own"
    assert list(FactStore(target, "one").steps())[0] == "trace-00009"
    assert target.extent("one").generation > before  # open states notice


def test_another_record_refuses_its_session_only(tmp_path: Path) -> None:
    source, target = Database(tmp_path / "a.db"), Database(tmp_path / "b.db")
    a_full_bank(source)
    FactStore(target, "one").store(a_record(2, raw_output="something else"))
    before = lines_of(target)
    empty, one, two = take(target, lines_of(source))
    assert (empty.session_id, two.session_id) == ("nothing in it", "two")
    assert isinstance(one, RefusedSession)
    assert "trace-00002" in one.reason
    assert [line for line in lines_of(target) if '"one"' in line] == before


def test_the_session_of_another_project_is_refused(tmp_path: Path) -> None:
    source, target = Database(tmp_path / "a.db"), Database(tmp_path / "b.db")
    a_full_bank(source)
    take(target, lines_of(source))
    with target.write() as c:
        c.exec_driver_sql("UPDATE sessions SET project = X'616e6f74686572' WHERE session_id = 'two'")
    assert "another project" in take(target, lines_of(source))[2].reason


def test_the_agent_of_an_older_export_is_the_project(tmp_path: Path) -> None:
    source, target = Database(tmp_path / "a.db"), Database(tmp_path / "b.db")
    source.open_session("team␟s", "clerk", "team")
    FactStore(source, "team␟s").store(a_record(1))
    lines = [json.loads(line) for line in lines_of(source)]
    for line in lines:
        if "session" in line and line["session"].pop("project", None):
            line["session"]["agent_id"] = "team␟clerk"
    assert "agent_id" in json.dumps(lines)
    take(target, [json.dumps(line) for line in lines])
    assert target.project_of("team␟s") == "clerk"


def test_sessions_stay_with_the_key_that_made_them(tmp_path: Path, bank_url: str) -> None:
    source, target = Database(tmp_path / "a.db"), Database(bank_url)
    for namespace in ("team", "others"):
        name = f"{namespace}{NAMESPACE_END}s"
        with MemoryBankState("lexical", database=source, session_id=name, namespace=namespace) as state:
            state.add([InteractionRecord.create(1, "look", {}, f"what {namespace} saw")])
    lines = lines_of(source)
    without = [json.loads(line) for line in lines]  # as an earlier version wrote it
    for line in without:
        line.get("session", {}).pop("namespace", None)
    assert not [x for x in take(target, list(map(json.dumps, without))) if isinstance(x, RefusedSession)]
    assert newest_searchable(target, "team") is None
    for _ in range(2):
        assert [x.session_id for x in take(target, lines)] == [
            f"{n}{NAMESPACE_END}s" for n in ("others", "team")
        ]
        assert newest_searchable(target, "team") == f"team{NAMESPACE_END}s"
        assert newest_searchable(target, None) is None
    assert lines_of(target) == lines
    stolen = [line.replace('"namespace": "team"', '"namespace": "others"') for line in lines]
    refused = [x for x in take(target, stolen) if isinstance(x, RefusedSession)]
    assert ["another namespace" in x.reason for x in refused] == [True]
    wrong = [line.replace('"namespace": "team"', f'"namespace": "{"x" * 65}"') for line in lines]
    assert "namespace is not valid" in str(take(Database(tmp_path / "c.db"), wrong))


# the verbs


@pytest.fixture
def exported(cli: Any, bank: Path, tmp_path: Path) -> Path:
    out = tmp_path / "out.jsonl"
    assert cli.bank(bank, "export", "--out", out).code == 0
    return out


def test_import_makes_a_bank_and_is_exact(cli: Any, exported: Path, tmp_path: Path, bank_url: str) -> None:
    bank_url = bank_url.replace("bank.db", "new.db")
    done = cli.bank(bank_url, "import", exported, "--json").json()
    assert (done["complete"], done["records"], done["known"], done["insights"]) == (True, 8, 0, 8)
    assert cli.bank(bank_url, "import", exported).out.startswith(
        "imported 0 records with 0 insights of 2 sessions; 8"
    )
    again = tmp_path / "again.jsonl"
    cli.bank(bank_url, "export", "--out", again)
    assert again.read_bytes() == exported.read_bytes()
    packed = tmp_path / "out.jsonl.gz"
    packed.write_bytes(gzip.compress(exported.read_bytes()))
    assert cli.bank(tmp_path / "packed.db", "import", packed, "--json").json()["records"] == 8
    with MemoryBankState.open(bank_url, "one", "lexical") as state:
        assert (state.fact_store.size(), state.pending) == (4, 0)


def first_of(lines: list[str], kind: str) -> int:
    """The index of the first line of a kind in the second session."""
    return next(i for i, line in enumerate(lines) if '"two"' in line and kind in json.loads(line))


def changed(kind: str, **values: Any) -> Any:
    """The lines with other values in the first of a kind in the second session; the number of that line."""

    def change(lines: list[str]) -> tuple[list[str], int]:
        at = first_of(lines, kind)
        line = json.loads(lines[at])
        line[kind] |= values
        return [*lines[:at], json.dumps(line), *lines[at + 1 :]], at + 1

    return change


def replaced(kind: str, *new: str, after: int = 0) -> Any:
    """The lines with others in the place of the first of a kind in the second session."""

    def change(lines: list[str]) -> tuple[list[str], int]:
        at = first_of(lines, kind)
        return [
            *lines[:at],
            *(lines[at] if n == "same" else n for n in new),
            *lines[at + 1 :],
        ], at + 1 + after

    return change


def ended(lines: list[str]) -> tuple[list[str], int]:
    at = first_of(lines, "session")
    return [*lines[:at], "{broken"], at + 1


def cut(lines: list[str]) -> tuple[list[str], int]:
    return lines[:-1], first_of(lines, "session") + 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (replaced("record", "{broken"), "it is not JSON"),
        (ended, "it is not JSON"),
        (replaced("record", "[]"), "not a JSON object"),
        (replaced("record", '{"session_id": "two"}'), "not a row of a session"),
        (cut, "3 of 4 insights"),
        (replaced("session"), "the beginning of session 'two' is missing"),
        (replaced("record", "same", "same", after=1), "occurs twice"),
        (changed("record", step_id=1.0), "step_id"),
        (changed("record", trace_id=""), "trace_id"),
        (changed("record", mark="loved"), "mark"),
        (changed("record", timestamp=1e308), "timestamp"),
        (changed("record", output_verbatim=False, output='{"v": [1,'), "should be JSON"),
        (changed("record", output={"$utf8": "no base64"}), "output"),
        (changed("insight", embedding="AAAA"), "dimension"),
        (changed("insight", embedding=5), "embedding"),
        (changed("insight", source=None), "source"),
        (changed("session", created=1e308), "its created"),
        (changed("session", embedder="lexical"), "embedder"),
        (changed("session", rows=4), "its rows"),
        (changed("session", format=99), "newer memory_bank"),
        (changed("session", task=[]), "task"),
    ],
)
def test_broken_lines_cost_their_session(
    cli: Any, exported: Path, tmp_path: Path, change: Any, says: str
) -> None:
    file, db = tmp_path / "broken.jsonl", tmp_path / "new.db"
    lines, line = change(exported.read_text().splitlines())
    file.write_text("\n".join(lines) + "\n")
    done = cli.bank(db, "import", file, "--json")
    assert done.code == 1
    told = done.sentence()
    assert says in told
    assert f"line {line}" in told
    assert [s["session_id"] for s in done.json()["sessions"]] == ["one"]
    assert len(done.json()["refused"]) == 1
    assert [s["session_id"] for s in cli.bank(db, "sessions", "--json").json()["sessions"]] == ["one"]


def test_times_of_earlier_versions_are_shown(cli: Any, bank: Path) -> None:
    database = Database(bank)
    with database.write() as c:
        c.execute(sa.update(records).values(timestamp=1e308))
    database.close()
    assert cli.bank(bank, "sessions").code == 0


@pytest.mark.long
def test_a_packed_file_that_grows_too_much_is_refused(cli: Any, tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.jsonl.gz"
    piece = b"x" * 8 * 2**20
    bomb.write_bytes(gzip.compress(b'{"id": "a", "messages": ["') + gzip.compress(piece) * 33)
    assert bomb.stat().st_size * traces.UNPACKED_TIMES < traces.UNPACKED_BYTES < 33 * len(piece)
    for verb in (
        ["bank", "import", bomb, "--db", tmp_path / "new.db"],
        ["lab", "replay", bomb],
        ["audit", bomb],
    ):
        done = cli(*verb)
        assert done.code == 1, verb
        assert "gunzip" in done.err, verb
    allowed = tmp_path / "allowed.jsonl.gz"
    allowed.write_bytes(gzip.compress(random.Random(1).randbytes(2 * 2**20)) + gzip.compress(piece) * 33)
    with traces.open_lines(allowed) as lines:  # grows, but not so much
        assert len(lines.read()) > traces.UNPACKED_BYTES


def test_recorded_runs_and_logs_are_imported_once(cli: Any, tmp_path: Path) -> None:
    log = ClaudeCode().user("Go")
    for n in range(3):
        log.call(f"c{n}", "Read", f"line {n}", file_path=f"f{n}.py")
    lines = [*map(json.dumps, log.lines)]
    (tmp_path / "claude.jsonl").write_text("\n".join(lines))
    run = {"id": "late orders", "messages": [user(), *rounds(4)]}
    (tmp_path / "run.json").write_text(json.dumps(run, indent=1))
    bank = ("--db", tmp_path / "new.db")
    done = cli("bank", "import", tmp_path / "claude.jsonl", tmp_path / "run.json", *bank, "--json")
    told = done.json()
    assert (done.code, told["records"], [s["session_id"] for s in told["sessions"]]) == (
        0,
        7,
        ["s-1", "late orders"],
    )
    again = cli("bank", "import", tmp_path / "claude.jsonl", tmp_path / "run.json", *bank, "--json").json()
    assert (again["records"], again["known"]) == (0, 7)
    with MemoryBankState.open(tmp_path / "new.db", "late orders") as state:
        assert (state.fact_store.size(), state.insight_store is None) == (4, True)
    assert "line 2" in cli("bank", "search", "line 2", *bank).out
    (tmp_path / "talk.json").write_text(json.dumps([user("hi")]))
    done = cli("bank", "import", tmp_path / "talk.json", *bank)
    assert done.code == 1
    assert "no tool call was read" in done.err


def test_what_is_no_export(cli: Any, bank: Path, two: Path, tmp_path: Path) -> None:
    db = tmp_path / "new.db"
    assert cli.bank(db, "import", tmp_path / "missing").code == 2
    assert cli.bank(db, "import", tmp_path).code == 2
    assert not db.exists()
    assert cli.bank(":memory:", "import", two).code == 2
    other = tmp_path / "other.jsonl"
    other.write_text('{"id": 1}\n')
    assert "no session_id" in cli.bank(db, "import", other).sentence()
    array = tmp_path / "array.json"
    cli.bank(bank, "export", "--json", "--out", array)
    assert "without --json" in cli.bank(db, "import", array).sentence()
    assert cli.bank(db, "import", bank).code == 1  # a database
    (tmp_path / "cut.gz").write_bytes(gzip.compress(two.read_bytes() * 50)[:-20])
    cut = cli.bank(db, "import", tmp_path / "cut.gz")
    assert (cut.code, "cannot be read" in cut.err) == (1, True)


def test_embeddings_of_another_model(cli: Any, exported: Path, tmp_path: Path, monkeypatch: Any) -> None:
    pytest.importorskip("openai", reason="needs the extra openai")
    db = tmp_path / "other.db"
    with EmbeddingServer() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        with MemoryBankState.open(db, "mine", "openai:scripted-embedding") as state:
            state.insight_store.add("a", "a summary")
        done = cli.bank(db, "import", exported)
        assert done.code == 1
        assert "--embedding-model openai:scripted-embedding" in done.sentence()
        assert cli.bank(db, "import", exported, "--embedding-model", "lexical").code == 1
        assert len(cli.bank(db, "sessions", "--json").json()["sessions"]) == 1
        model = ["--embedding-model", "openai:scripted-embedding"]
        assert cli.bank(db, "import", exported, *model, "--json").json()["insights"] == 8
        assert cli.bank(db, "import", exported).code == 0  # all is there: nothing to embed
        assert cli.bank(db, "search", "order", "--session", "one", "--json").json()["hits"]


def test_a_session_named_is_exported_alone(cli: Any, bank: Path) -> None:
    lines = [json.loads(line) for line in cli.bank(bank, "export", "--session", "two").out.splitlines()]
    assert {line["session_id"] for line in lines} == {"two"}
    assert lines[0]["session"]["embedder"] == {"name": "lexical-v1", "dimension": LexicalEmbedder().dimension}
    assert "session" not in lines[1]


def test_a_pipe_from_bank_to_bank(bank: Path, tmp_path: Path) -> None:
    import subprocess

    mb = " ".join(COMMAND)
    line = f"{mb} bank export --db {bank} | {mb} bank import /dev/stdin --db {tmp_path / 'copy.db'}"
    done = subprocess.run(["bash", "-c", line], env=environment(), capture_output=True, text=True, timeout=60)
    assert (done.returncode, "imported 8 records" in done.stdout) == (0, True), done.stderr
