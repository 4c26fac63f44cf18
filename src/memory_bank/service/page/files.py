"""The page at ``/`` and the files it consists of: read once, sent with a policy that lets in nothing else."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import Response

from memory_bank.errors import NotFoundError

router = APIRouter(include_in_schema=False)

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_FOLDER = Path(__file__).with_name("static")
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class File:
    """A file of the page."""

    content: bytes
    kind: str
    etag: str


@cache
def page_files() -> dict[str, File]:
    """The files of the page by name."""
    found = {}
    for path in _FOLDER.iterdir():
        if path.suffix in _KINDS:
            content = path.read_bytes()
            etag = f'"{hashlib.sha256(content).hexdigest()[:24]}"'
            found[path.name] = File(content, _KINDS[path.suffix], etag)
    return found


@router.api_route("/", methods=["GET", "HEAD"])
async def index(request: Request) -> Response:
    """The page."""
    return _sent(request, "index.html")


@router.api_route("/static/{name}", methods=["GET", "HEAD"])
async def static(request: Request, name: str) -> Response:
    """A file of the page. Only what lies in its folder has a name here."""
    return _sent(request, name)


def _sent(request: Request, name: str) -> Response:
    file = page_files().get(name)
    if file is None:
        raise NotFoundError("the page has no such file.")
    headers = {
        "etag": file.etag,
        "cache-control": "no-cache",
        "content-security-policy": POLICY,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
    }
    known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    if file.etag in known or "*" in known:
        return Response(status_code=304, headers=headers)
    return Response(file.content, media_type=file.kind, headers=headers)
