"""The evidence model of a namespace: kept, read by its sessions alone, gone with the content it was fitted to."""

import json
import time

import pytest
import sqlalchemy as sa
from tests.contracts.stores import a_record, together

from memory_bank.bank.database import Database
from memory_bank.bank.learned import (
    delete_model,
    keep_model,
    learned_of,
    model_of_session,
    namespaces_due,
    newest_sessions,
    records_of_session,
)
from memory_bank.bank.maintenance import purge, verify
from memory_bank.bank.schema import models
from memory_bank.bank.session import MemoryBankState
from memory_bank.bank.stores import FactStore
from memory_bank.bank.transfer import export_lines

MODEL = json.dumps({"features": ["digits"], "weights": [1.5], "mark": "learned here"})


@pytest.fixture
def database(bank_url):
    database = Database(bank_url)
    for namespace, name in (("a", "a/1"), ("a", "a/2"), ("b", "b/1"), (None, "own")):
        database.open_session(name, None, namespace)
        FactStore(database, name).store_many([a_record(1), a_record(2)])
    yield database
    database.close()


def generations(database, namespace):
    return {s.session_id: s.generation for s in newest_sessions(database, namespace)}


def kept(database, *namespaces):
    for namespace in namespaces:
        assert keep_model(database, namespace, generations(database, namespace), MODEL)


def has_model(database, namespace):
    found = learned_of(database, namespace)
    return found is not None and found.model is not None


def test_a_model_belongs_to_the_sessions_of_its_namespace(database):
    assert learned_of(database, "a") is None
    kept(database, "a")
    found = learned_of(database, "a")
    assert found is not None and (found.model, found.sessions) == (MODEL, 2)
    assert found.fitted > 0
    names = ("a/1", "a/2", "b/1", "own", "unknown")
    assert [model_of_session(database, n) for n in names] == [MODEL, MODEL, None, None, None]
    kept(database, None)
    assert model_of_session(database, "own") == MODEL
    assert MemoryBankState.open(database, "own").learned_model() == MODEL
    assert model_of_session(database, "b/1") is None
    assert delete_model(database, "a") and not delete_model(database, "a")
    assert [has_model(database, n) for n in ("a", "b", None)] == [False, False, True]


def test_what_it_is_fitted_to_are_the_sessions_of_the_namespace_oldest_first(database):
    assert [s.session_id for s in newest_sessions(database, "a")] == ["a/1", "a/2"]
    assert [r.trace_id for r in records_of_session(database, "a/1")] == ["trace-00001", "trace-00002"]
    database.open_session("a/empty", None, "a")
    database.set_session("a/2", deleted=time.time())
    assert [s.session_id for s in newest_sessions(database, "a")] == ["a/1"]


@pytest.mark.parametrize("how", ["purge", "age", "clear", "reset", "forget"])
def test_deleting_content_of_a_session_deletes_the_model_of_its_namespace(database, how):
    kept(database, "a", "b", None)
    if how == "purge":
        assert list(purge(database, session_id="a/1", dry_run=True)) and has_model(database, "a")
        assert list(purge(database, session_id="a/1"))
    elif how == "age":
        assert list(purge(database, session_id="a/1", before=10**12))
    elif how == "clear":
        FactStore(database, "a/1").clear()
    elif how == "forget":
        assert not FactStore(database, "a/1").forget("unknown") and has_model(database, "a")
        assert FactStore(database, "a/1").forget("trace-00001")
        assert [r.trace_id for r in records_of_session(database, "a/1")] == ["trace-00002"]
    else:
        MemoryBankState.open(database, "a/1").reset()
    assert [has_model(database, n) for n in ("a", "b", None)] == [False, True, True]
    assert not list(purge(database, session_id="b/1", before=0.0))
    assert has_model(database, "b")  # nothing was deleted


def test_a_model_is_not_kept_once_content_it_was_fitted_to_is_gone(database):
    before = generations(database, "a")
    list(purge(database, session_id="a/2"))
    assert not keep_model(database, "a", before, MODEL)
    assert not has_model(database, "a")
    database.set_session("a/1", deleted=time.time())
    assert not keep_model(database, "a", {"a/1": before["a/1"]}, MODEL)


def test_of_a_fit_and_a_deletion_at_once_no_model_of_deleted_content_is_left(database):
    before = generations(database, "a")
    together(
        lambda: keep_model(database, "a", before, MODEL), lambda: list(purge(database, session_id="a/2"))
    )
    assert not has_model(database, "a")


def test_a_namespace_is_due_once_after_so_many_new_sessions(database):
    assert list(namespaces_due(database, 3)) == []
    assert sorted(map(str, namespaces_due(database, 1))) == ["None", "a", "b"]
    assert list(namespaces_due(database, 1)) == []
    kept(database, "a")
    database.open_session("a/3", None, "a")
    assert list(namespaces_due(database, 2)) == []
    assert list(namespaces_due(database, 1)) == ["a"]
    assert has_model(database, "a")
    list(purge(database, session_id="a/1"))
    assert list(namespaces_due(database, 1)) == []  # only new sessions count


def test_two_processes_do_not_fit_the_same_namespace(database):
    found = []
    together(*[lambda: found.extend(namespaces_due(database, 2))] * 4)
    assert found == ["a"]


def test_verify_finds_and_deletes_models_that_cannot_be_used(database):
    kept(database, "a", "b")
    assert list(verify(database)) == []
    with database.write() as c:
        c.execute(sa.update(models).where(models.c.namespace == "a").values(model="{no model"))
        c.execute(sa.insert(models), {"namespace": "gone", "fitted": 1.0, "sessions": 1, "model": MODEL})
    found = {d.what for d in verify(database)}
    assert found == {
        "namespace a: its evidence model cannot be read",
        "namespace gone: it has an evidence model and no session",
    }
    assert all(d.mended and d.kind == "model" for d in verify(database, repair=True))
    assert list(verify(database)) == []
    assert [has_model(database, n) for n in ("a", "gone", "b")] == [False, False, True]


def test_an_export_does_not_carry_it(database):
    kept(database, None)
    assert "learned here" not in json.dumps(list(export_lines(database)))
