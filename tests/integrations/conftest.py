"""What the tests of several frameworks share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cli.conftest import NO_CERTIFICATES
from tests.integrations.gemini import GeminiServer


@pytest.fixture
def gemini(monkeypatch: pytest.MonkeyPatch) -> Iterator[GeminiServer]:
    """A server of Gemini's API; at the end all turns must have come back signed, and some in part."""
    for name in NO_CERTIFICATES:  # Google's client does not start with an empty name of a file
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GOOGLE_API_KEY", "k")
    with GeminiServer() as server:
        yield server
    assert server.refused == server.unsigned == []
    assert server.parted > 10
