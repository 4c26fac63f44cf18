"""What headers say about whom they are for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_bank.errors import NotAuthorizedError
from memory_bank.service.proxy.upstream import answer_headers, credential_of, is_own_key, request_headers

names = st.sampled_from(
    [
        b"Connection",
        b"TE",
        b"host",
        b"x-a",
        b"X-A",
        b"X-Memory-Agent",
        b"date",
        b"server",
        b"set-cookie",
        b"Upgrade",
    ]
)
lists = st.lists(st.tuples(names, st.sampled_from([b"1", b"x-a", b"close, X-A", b""])))


@given(lists)
def test_what_passes_keeps_its_order_and_its_number(headers):
    for passed in (request_headers(headers, None), answer_headers(headers)):
        lowered = iter([(n.lower(), v) for n, v in headers])
        assert all(pair in lowered for pair in passed)  # in this order
        assert not {n for n, _ in passed} & {b"connection", b"te", b"upgrade"}
        assert not [n for n, _ in passed if n.startswith(b"x-memory-")]
    named = any(n.lower() == b"connection" and b"x-a" in v.lower() for n, v in headers)
    count = sum(n.lower() == b"x-a" for n, _ in headers)
    assert sum(n == b"x-a" for n, _ in answer_headers(headers)) == (0 if named else count)


@pytest.mark.parametrize(
    ("value", "ours"),
    [
        (b"Bearer mb_1_2", True),
        (b"bearer  mb_1_2", True),
        (b"Bearer sk-mb_1", False),
        (b"mb_1_2", False),
        (b"Basic mb_1_2", False),
        (b"Bearer ", False),
        (b"", False),
    ],
)
def test_which_key_is_ours(value, ours):
    assert is_own_key(value) is ours
    headers = [(b"authorization", value), (b"x-b", b"1")]
    if ours:
        with pytest.raises(NotAuthorizedError) as caught:
            request_headers(headers, None)
        assert "mb_" not in str(caught.value)
    wanted = b"Bearer sk-service" if ours else value
    assert request_headers(headers, "sk-service") == [(b"authorization", wanted), (b"x-b", b"1")]


def test_who_pays():
    assert credential_of([(b"x", b"1"), (b"authorization", b"Bearer a")]) == "Bearer a"
    assert credential_of([(b"api-key", b"k")]) == "k"
    assert credential_of([]) is None
