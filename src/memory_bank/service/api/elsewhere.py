"""What is asked of the API and is not there: told by it, instead of going on to the model's API."""

from __future__ import annotations

from typing import Any

from starlette.exceptions import HTTPException
from starlette.routing import Match, Route

from memory_bank.errors import NotFoundError

_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_PATHS = ("/v1/sessions", "/v1/sessions/{rest:path}", "/v1/stats", "/v1/stats/{rest:path}")


def no_such_routes() -> list[Route]:
    """Routes that take what no route before them took, with any method; they come after these."""
    return [Route(path, _Nowhere(), include_in_schema=False) for path in _PATHS]


class _Nowhere:
    """ASGI application: 405 where another method would do, else 404."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG002
        allowed = [m for m in _METHODS if self._takes({**scope, "method": m})]
        if allowed:
            told = f"{scope['method']} does not go here: use {' or '.join(allowed)}."
            raise HTTPException(405, told, {"allow": ", ".join(allowed)})
        raise NotFoundError("there is no such route: GET /openapi.json lists those there are.")

    def _takes(self, scope: Any) -> bool:
        for route in scope["app"].router.routes:
            if isinstance(route, Route) and route.app is self:
                return False  # those that follow go on to the model's API
            if route.matches(scope)[0] is Match.FULL:
                return True
        return False
