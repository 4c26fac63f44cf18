"""The page at ``/`` and its files, sent with a content security policy that allows nothing else."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles

from memory_bank.errors import NotFoundError

router = APIRouter(include_in_schema=False)

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_FILES = StaticFiles(directory=Path(__file__).with_name("static"))


@router.api_route("/", methods=["GET", "HEAD"])
async def index(request: Request) -> Response:
    """The page."""
    return await _file(request, "index.html")


@router.api_route("/static/{name}", methods=["GET", "HEAD"])
async def static(request: Request, name: str) -> Response:
    """A file of the page."""
    return await _file(request, name)


async def _file(request: Request, name: str) -> Response:
    try:
        response = await _FILES.get_response(name, request.scope)
    except HTTPException:
        raise NotFoundError("the page has no such file.") from None
    response.headers.update(_HEADERS)
    return response
