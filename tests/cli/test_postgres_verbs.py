"""The verbs on a bank in PostgreSQL."""

import json

import pytest


@pytest.fixture
def url(cli, two, postgres_url):
    """A bank with the sessions one and two."""
    assert cli("lab", "replay", two, "--db", postgres_url).code == 0
    return postgres_url


def test_every_verb(cli, url, tmp_path):
    listed = cli.bank(url, "sessions", "--json").json()
    assert listed["embedder"] == "lexical-v1"
    assert {s["session_id"]: (s["records"], s["insights"]) for s in listed["sessions"]} == {
        "one": (4, 4),
        "two": (4, 4),
    }
    hits = cli.bank(url, "search", "order alpha-2", "--session", "one", "--json", "--top-k", "2").json()[
        "hits"
    ]
    assert [hit["step"] for hit in hits][0] == 3
    shown = cli.bank(url, "show", hits[0]["trace_id"], "--json").json()
    assert json.loads(shown["output_text"]) == {"order": "alpha-2"}
    out = tmp_path / "all.jsonl"
    assert "wrote 8 records" in cli.bank(url, "export", "--out", out).sentence()
    assert sum("record" in json.loads(line) for line in out.read_text().splitlines()) == 8
    assert cli.bank(url, "observe", "--once", "--json").json()["made"] == 0
    assert cli.bank(url, "re-embed", "--embedding-model", "lexical", "--json").json()["insights"] == 8
    assert cli.bank(url, "purge", "--session", "one", "--json").json()["records"] == 4
    assert cli.bank(url, "search", "x", "--session", "one", "--json").json()["hits"] == []
    assert cli.bank(url, "search", "x", "--session", "\udcff").code == 1


def test_a_file_named_as_the_database_may_be_written(cli, url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = url.partition("@/")[2].partition("?")[0]
    (tmp_path / name).touch()
    assert cli.bank(url, "export", "--out", name).code == 0


def test_replaying_again_stores_nothing_twice(cli, url, two):
    assert cli("lab", "replay", two, "--db", url).code == 0
    assert "wrote 8 records" in cli.bank(url, "export").err


def test_what_is_no_bank_is_not_made_one(cli, postgres):
    empty = postgres.new("template0")
    done = cli.bank(postgres.url(empty), "sessions")
    assert (done.code, "no bank yet" in done.sentence()) == (1, True)
    assert postgres.sql("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'", empty) == [(0,)]


def test_a_password_is_never_printed(cli, postgres):
    for url in (
        "postgresql://me:secret@127.0.0.1:1/x",
        "postgresql://me@127.0.0.1:1/x?password=secret",
        postgres.url("nowhere", "postgres", "secret"),
    ):
        done = cli.bank(url, "sessions")
        assert done.code == 1
        assert done.sentence()
        assert "secret" not in done.out + done.err
