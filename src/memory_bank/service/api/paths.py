"""Names in paths: a session's name may hold a slash, sent as %2F, that separates nothing."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote_to_bytes

SESSIONS = "/v1/sessions/"


class NamesInPaths:
    """ASGI middleware: below /v1/sessions/ a quoted slash separates nothing.

    Servers decode a path as a whole before routes are matched. Here each segment is decoded by itself, and
    what would separate segments is quoted again, for ``decoded`` to undo.
    """

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"].startswith(SESSIONS):
            scope["path"] = _kept_apart(scope["path"], scope.get("raw_path"))
        await self.app(scope, receive, send)


def decoded(segment: str) -> str:
    """The text of a path's segment, as routes see it behind ``NamesInPaths``."""
    return segment.replace("%2F", "/").replace("%25", "%")


def _kept_apart(path: str, raw: bytes | None) -> str:
    if raw is None or not raw.startswith(SESSIONS.encode()):
        return path.replace("%", "%25")
    segments = [unquote_to_bytes(s).decode("utf-8", "surrogateescape") for s in raw.split(b"/")]
    return "/".join(s.replace("%", "%25").replace("/", "%2F") for s in segments)
