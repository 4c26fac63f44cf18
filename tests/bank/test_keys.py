"""Keys: made once, told by their digest, valid until they are revoked."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_bank.bank.database import Database
from memory_bank.bank.keys import Keys, key_id_of
from memory_bank.errors import ConfigError, NotFoundError


@pytest.fixture
def keys(bank_url):
    database = Database(bank_url)
    yield Keys(database)
    database.close()


def test_a_key_is_told_by_its_digest(keys):
    made, key = keys.create("agent", operator=True, requests_per_minute=5, max_body_bytes=2**40)
    assert keys.all() == [made]
    assert made.digest == hashlib.sha256(key.encode()).hexdigest()
    assert made.fits(key)
    assert not made.fits(key[:-1] + ("a" if key[-1] != "a" else "b"))
    assert key_id_of(key) == made.key_id
    assert len(key.split("_", 2)[2]) >= 43  # 32 bytes in base64
    assert (made.operator, made.requests_per_minute, made.max_body_bytes) == (True, 5, 2**40)
    assert key not in repr(made) and made.digest not in repr(made)


def test_the_key_is_nowhere_in_the_database(tmp_path):
    database = Database(tmp_path / "bank.db")
    _, key = Keys(database).create("agent")
    stored = b"".join(f.read_bytes() for f in tmp_path.iterdir())  # the log beside it included
    assert key.split("_")[1].encode() in stored
    assert key.split("_", 2)[2].encode() not in stored
    database.close()


def test_each_key_has_a_namespace_of_its_own_unless_one_is_named(keys):
    one, _ = keys.create("one")
    two, _ = keys.create("two")
    again, _ = keys.create("two, rotated", namespace=two.namespace)
    local, _ = keys.create("local", namespace="default")
    assert one.namespace and two.namespace and one.namespace != two.namespace
    assert again.namespace == two.namespace
    assert local.namespace is None


def test_revoking(keys):
    first, _ = keys.create("agent")
    other, _ = keys.create("other")
    gone = keys.revoke("agent")
    assert (gone.key_id, gone.revoked is not None) == (first.key_id, True)
    assert keys.revoke(first.key_id) == gone  # once and for good
    second, _ = keys.create("agent")  # the name is free again, and means the key that is valid
    assert keys.revoke("agent").key_id == second.key_id
    assert [k.revoked is None for k in keys.all()] == [False, True, False]
    assert keys.revoke(other.key_id).key_id == other.key_id
    with pytest.raises(NotFoundError, match="keys list"):
        keys.revoke("nobody")


def test_names_and_namespaces_that_cannot_be_one(keys):
    for name in ("", " a", "a\nb", "\ud800", "x" * 101):
        with pytest.raises(ConfigError, match="name of a key"):
            keys.create(name)
    for namespace in ("", "a b", "a/b", "a␟b", "-a", "x" * 65, "é"):
        with pytest.raises(ConfigError, match="namespace"):
            keys.create("agent", namespace=namespace)
    assert keys.all() == []


def test_a_name_of_a_valid_key_is_not_given_twice(keys):
    keys.create("agent")
    with pytest.raises(ConfigError, match="another name"):
        keys.create("agent")
    assert len(keys.all()) == 1


@given(st.text() | st.from_regex(r"mb_[0-9a-f_]{0,20}", fullmatch=True))
def test_whatever_is_presented_has_a_key_id_or_none(text):
    found = key_id_of(text)
    assert found is None or (found and text.startswith(f"mb_{found}_"))
