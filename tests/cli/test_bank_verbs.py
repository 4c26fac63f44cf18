"""The verbs on a bank, as its user meets them."""

import json
import subprocess

import pytest
from tests.cli.conftest import COMMAND, ODD, environment, line, run_of, write
from tests.embedding_server import EmbeddingServer

from memory_bank.bank.database import Database
from memory_bank.bank.session import MemoryBankState
from memory_bank.records import InteractionRecord
from memory_bank.testing import ScriptedServer, fail, say


def exported_records(cli, *args):
    """The records among the lines of an export."""
    lines = [json.loads(text) for text in cli("bank", "export", *args).out.splitlines()]
    return [line["record"] for line in lines if "record" in line]


@pytest.fixture
def odd(cli, tmp_path):
    """A bank whose only record holds what terminals obey; its trace_id."""
    messages = run_of("odd", 2, ODD)
    messages[2]["tool_calls"][0]["function"]["name"] = "t\x1b[31m[red]"
    db = tmp_path / "odd.db"
    cli("lab", "replay", write(tmp_path / "odd.jsonl", line("s\x1b[31m", messages)), "--db", db)
    return db, exported_records(cli, "--db", db)[0]["trace_id"]


def test_without_db_it_is_the_bank_that_serve_uses(cli, bank, tmp_path, monkeypatch):
    exported = tmp_path / "all.jsonl"
    assert cli.bank(bank, "export", "--out", exported).code == 0
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    own = tmp_path / "home" / "memory-bank" / "bank.db"
    done = cli("bank", "sessions")
    assert (done.code, str(own) in done.sentence(), own.exists()) == (2, True, False)
    assert cli("bank", "import", exported).code == 0
    assert own.parent.stat().st_mode & 0o077 == 0  # what tools said is the user's own
    listed = cli("bank", "sessions", "--json").json()["sessions"]
    assert {s["session_id"] for s in listed} == {"one", "two"}
    trace_id = exported_records(cli)[0]["trace_id"]
    for command in (
        ("show", trace_id), ("search", "order", "--session", "one"), ("verify",), ("observe", "--once"),
        ("re-embed", "--embedding-model", "lexical"), ("purge", "--older-than", "1d"), ("purge", "--session", "one"),
    ):  # fmt: skip
        assert cli("bank", *command).code == 0, command
    [left] = [s for s in cli("bank", "sessions", "--json").json()["sessions"] if s["records"]]
    assert left["session_id"] == "two"
    other = tmp_path / "other.db"
    monkeypatch.setenv("MEMORY_BANK_SERVICE__DATABASE", str(other))
    assert cli("bank", "import", exported).code == 0
    assert other.exists()


def test_sessions(cli, bank):
    done = cli.bank(bank, "sessions")
    assert done.code == 0
    rows = [row.split() for row in done.out.splitlines()]
    assert rows[0] == ["session", "requests", "tokens", "saved", "last", "used", "model", "task"]
    assert [(row[0], row[-1]) for row in rows[1:]] == [("two", "beta"), ("one", "alpha")]
    listed = cli.bank(f"sqlite:///{bank}", "sessions", "--json").json()
    assert listed["embedder"] == "lexical-v1"
    assert {s["session_id"]: (s["records"], s["task"]) for s in listed["sessions"]} == {
        "one": (4, "alpha"),
        "two": (4, "beta"),
    }


@pytest.mark.parametrize(
    "verb",
    [
        ["bank", "sessions"],
        ["bank", "show", "x"],
        ["bank", "search", "x"],
        ["bank", "purge", "--session", "x"],
        ["bank", "export"],
        ["bank", "observe"],
        ["bank", "re-embed", "--embedding-model", "lexical"],
    ],
)
def test_a_bank_that_is_missing_is_wrong_use_and_is_not_made(cli, tmp_path, verb):
    db = tmp_path / "missing.db"
    for where in (db, f"sqlite:///{db}"):
        done = cli(*verb, "--db", where)
        assert (done.code, done.out) == (2, "")
        assert "there is no bank" in done.sentence()
    assert not db.exists()
    assert cli(*verb, "--db", ":memory:").code == 2


def test_where_no_bank_is_made_yet_the_command_that_makes_it_is_said(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    done = cli("saved")
    assert (done.code, done.out) == (2, "")
    assert "`memory-bank run -- COMMAND` makes one" in done.sentence()
    assert "makes one" not in cli("saved", "--db", tmp_path / "missing.db").sentence()


def test_what_is_no_bank(cli, two):
    done = cli.bank(two, "sessions")
    assert done.code == 1
    assert done.sentence()
    assert "secret" not in cli.bank("mysql://me:secret@host/x", "sessions").sentence()


def test_show_raw_is_the_output_byte_for_byte(odd):
    db, trace_id = odd
    command = [*COMMAND, "bank", "show", "--db", str(db), trace_id, "--raw"]
    done = subprocess.run(command, env=environment(), capture_output=True, timeout=120, check=True)
    assert done.stdout == ODD.encode("utf-8", "surrogatepass")


def test_nothing_reaches_the_terminal_raw(cli, odd):
    db, trace_id = odd
    for args in (["bank", "show", trace_id], ["bank", "sessions"], ["bank", "search", "lone"]):
        done = cli(*args, "--db", db)
        assert done.code == 0
        assert not set(done.out) & set("\x1b\x07\x00\ud800\u202e\r"), args
    shown = cli.bank(db, "show", trace_id).out
    assert "[bold]markup[/bold]" in shown
    assert "\\x1b[31mred" in shown
    assert "t\\x1b[31m[red]" in shown


def test_show_as_json_is_exact(cli, odd):
    db, trace_id = odd
    record = cli.bank(db, "show", trace_id, "--json").json()
    assert record["output_text"] == ODD
    assert record["tool_name"] == "t\x1b[31m[red]"
    assert record["summary_source"] == "extractive"


@pytest.mark.parametrize("depth", [150, 400, 20_000])
def test_deep_outputs_are_shown_and_exported(cli, tmp_path, depth):
    deep = "[" * depth + "]" * depth
    db = tmp_path / "deep.db"
    cli("lab", "replay", write(tmp_path / "deep.jsonl", line("d", run_of("deep", 1, deep))), "--db", db)
    [record] = exported_records(cli, "--db", db)
    assert record["output"] == deep
    assert cli.bank(db, "show", record["trace_id"], "--json").json()["output_text"] == deep
    assert deep[:100] in cli.bank(db, "show", record["trace_id"]).out


def test_show_of_an_unknown_id(cli, bank):
    done = cli.bank(bank, "show", "nope\x1b[31m")
    assert done.code == 1
    assert "no record has the trace_id nope\\x1b[31m" in done.sentence()


def test_search(cli, bank):
    done = cli.bank(bank, "search", "order alpha-2", "--session", "one", "--json", "--top-k", "2")
    hits = done.json()["hits"]
    assert hits[0]["step"] == 3
    assert hits[0]["why"] == "holds" and "alpha-2" in hits[0]["reason"]
    assert {h["session_id"] for h in hits} == {"one"}
    table = cli.bank(bank, "search", "order", "--session", "one").out
    assert hits[0]["trace_id"] in table  # in a file no cell is folded
    done = cli.bank(bank, "search", "x", "--session", "three")
    assert done.code == 1
    assert "'three'" in done.sentence()


def test_search_without_a_session_is_over_all(cli, bank):
    found = cli.bank(bank, "search", "order", "--json", "--top-k", "20").json()
    assert found["session_id"] is None
    assert {h["session_id"] for h in found["hits"]} == {"one", "two"}
    done = cli.bank(bank, "search", "xylophone")
    assert (done.code, done.out) == (0, "nothing matches 'xylophone': try other words, a name or an id.\n")
    assert cli.bank(bank, "search", " ").code == 2


def test_search_is_over_the_sessions_of_every_key(cli, tmp_path):
    database = Database(tmp_path / "keys.db")
    for namespace in ("a", "b"):
        with MemoryBankState.open(database, namespace, "lexical", namespace=namespace) as state:
            state.add([InteractionRecord.create(1, "get", {}, f"zephyr of {namespace}")])
    database.close()
    found = cli.bank(tmp_path / "keys.db", "search", "zephyr", "--json").json()["hits"]
    assert [h["session_id"] for h in found] == ["a", "b"]


def test_search_of_a_bank_without_anything(cli, tmp_path):
    db = tmp_path / "empty.db"
    cli("lab", "replay", write(tmp_path / "empty.jsonl"), "--db", db)
    assert cli.bank(db, "search", "x").code == 0
    assert cli.bank(db, "search", "x", "--json").json()["hits"] == []
    cli("lab", "replay", write(tmp_path / "talk.jsonl", line("t", run_of("talk", 0))), "--db", db)
    assert cli.bank(db, "search", "x", "--json").json()["hits"] == []


def test_search_with_another_embedder_and_re_embed(cli, bank, monkeypatch):
    pytest.importorskip("openai", reason="needs the extra openai")
    with EmbeddingServer() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        other = ["--embedding-model", "openai:scripted-embedding"]
        done = cli.bank(bank, "search", "x", "--session", "one", *other)
        assert done.code == 1
        assert "re-embed" in done.sentence()
        done = cli.bank(bank, "re-embed", *other, "--json")
        assert done.json()["insights"] == 8
        found = cli.bank(bank, "search", "x", "--session", "one", "--json").json()
        assert found["embedder"] == done.json()["embedder"] == "openai:scripted-embedding"
        assert len(found["hits"]) == 4


def test_a_session_is_emptied(cli, bank):
    assert cli.bank(bank, "purge", "--session", "one", "--json").json()["records"] == 4
    left = {s["session_id"]: s for s in cli.bank(bank, "sessions", "--json").json()["sessions"]}
    assert (left["one"]["records"], left["one"]["insights"], left["one"]["task"]) == (0, 0, "")
    assert left["two"]["records"] == 4
    done = cli.bank(bank, "purge", "--session", "three")
    assert done.code == 1
    assert "memory-bank bank sessions" in done.sentence()


def test_export(cli, bank, tmp_path):
    records = exported_records(cli, "--db", bank, "--session", "two")
    assert [json.loads(each["input"])["i"] for each in records] == [0, 1, 2, 3]
    out = tmp_path / "all.json"
    done = cli.bank(bank, "export", "--json", "--out", out)
    assert "wrote 8 records" in done.sentence()
    assert sum("record" in value for value in json.loads(out.read_text())) == 8


def test_export_never_writes_over_the_bank(cli, bank):
    before = bank.read_bytes()
    assert cli.bank(bank, "export", "--out", bank).code == 2
    assert bank.read_bytes() == before
    assert cli.bank(bank, "export", "--session", "nope").code == 1


def test_observe_makes_marked_insights_again(cli, tmp_path, monkeypatch):
    pytest.importorskip("openai", reason="needs the extra openai")
    from memory_bank import MemoryBankSettings, MemoryBankState, apply_memory_bank_strategy
    from memory_bank.models.chat import OpenAIChat

    db = tmp_path / "bank.db"
    settings = MemoryBankSettings(embedding_model="lexical", observer_model="gpt-4-1-mini")
    with ScriptedServer(lambda body: fail(400)) as server, MemoryBankState.open(db, "s") as state:
        chat = OpenAIChat(base_url=server.base_url, api_key="k", max_retries=0)
        apply_memory_bank_strategy(run_of("alpha", 2), chat, settings, state)
    assert cli.bank(db, "sessions", "--json").json()["sessions"][0]["to_redo"] == 2

    waiting = cli.bank(db, "observe", "--once")  # no model named: the marks stay
    assert (waiting.code, "2 insights are still" in waiting.out) == (0, True)
    no_key = cli.bank(db, "observe", "--observer-model", "gpt-4-1-mini")
    assert no_key.code == 1
    assert "OPENAI_API_KEY" in no_key.sentence()

    monkeypatch.setenv("OPENAI_API_KEY", "k")
    with ScriptedServer(lambda body: fail(400)) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        config = tmp_path / "config.toml"
        config.write_text(
            'default_strategy = "mine"\n[memory_strategies.mine]\ntype = "memory_bank"\nobserver_attempts = 1\n'
        )
        done = cli.bank(db, "observe", "--once", "--config", config, "--observer-model", "m", "--json")
        assert (done.code, done.json()["still_marked"], done.json()["extracted"]) == (1, 2, 2)
        assert done.json()["pending"] == 0
    with ScriptedServer(lambda body: say("The order is open, says the model.")) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        done = cli.bank(db, "observe", "--once", "--observer-model", "gpt-4-1-mini", "--json")
        assert done.code == 0
        assert done.json() == {
            "queued": 2, "made": 2, "observed": 2, "extracted": 0, "retried": 0, "still_marked": 0, "pending": 0,
            "observer": "llm:gpt-4-1-mini",
        }  # fmt: skip
        assert len(server.requests) == 2
        assert "alpha" in json.dumps(server.requests[0].body)  # the task was written down
    hits = cli.bank(db, "search", "what does the model say", "--json").json()["hits"]
    assert {h["summary"] for h in hits} == {"The order is open, says the model."}
