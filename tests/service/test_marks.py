"""A person pins, excludes and forgets records through the API; the next step uses it, the log has no contents."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

from tests.chats import rounds
from tests.service.proxied import configured, proxied


def asked(p, method, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"{p.base_url}{path}", data, {"content-type": "application/json"}, method=method
    )
    try:
        with urllib.request.urlopen(request) as answer:
            text = answer.read()
            return answer.status, json.loads(text) if text else None
    except urllib.error.HTTPError as e:
        return e.code, json.loads(e.read())


def test_a_record_is_excluded_pinned_and_forgotten(tmp_path):
    config = configured(upstream="http://127.0.0.1:9/v1", database=str(tmp_path / "bank.db"))
    with proxied("", "", config) as p:
        messages = rounds(6, size=300)
        chat = {"messages": [{"role": "user", "content": "Look."}, *messages]}
        record = "/sessions/s/records/2"

        def context():
            status, built = asked(p, "POST", "/sessions/s/context", chat)
            assert status == 200
            return json.dumps(built["messages"])

        assert "ORD-1001" in context()
        assert asked(p, "PUT", f"{record}/mark", {"mark": "excluded"}) == (204, None)
        assert "ORD-1001" not in context()
        status, found = asked(p, "GET", record)
        assert (status, found["mark"], found["raw_output"]["order_id"]) == (200, "excluded", "ORD-1001")
        assert [r["mark"] for r in asked(p, "GET", "/sessions/s/records")[1]["records"]][:3] == [
            None,
            "excluded",
            None,
        ]
        assert asked(p, "PUT", f"{record}/mark", {"mark": "pinned"})[0] == 204
        assert "ORD-1001" in context()
        assert asked(p, "PUT", f"{record}/mark", {"mark": "gone"})[0] == 422
        assert asked(p, "PUT", "/sessions/s/records/99/mark", {"mark": None})[0] == 404
        assert p.service.recorder.drain(60)
        assert asked(p, "DELETE", record) == (204, None)
        assert "ORD-1001" not in context()
        status, found = asked(p, "GET", record)
        assert (found["mark"], found["output_text"], found["insight"]) == ("forgotten", "[forgotten]", None)
        assert asked(p, "PUT", f"{record}/mark", {"mark": "pinned"})[0] == 404
        marked = [line for line in p.lines if "a person marked" in line]
    assert len(marked) == 3
    assert "ORD-1001" not in "".join(p.lines)
