"""The table of routes. A route is closed to callers without a key unless it says otherwise.

A route of operators is closed to all tenants but `admin`, where keys are asked for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from api_gateway.asgi import Call
from api_gateway.errors import MethodNotAllowed
from common.errors import NotFound

Endpoint = Callable[[Call], Awaitable[None]]


@dataclass(frozen=True)
class Route:
    """One method on one path; `{id}` stands for one or more characters, none of them a slash.

    `{name}` may have slashes: model names do.
    """

    method: str
    path: str
    endpoint: Endpoint
    is_public: bool = False
    is_admin: bool = False

    @property
    def parameter(self) -> str | None:
        """The name between the braces, None for a plain path."""
        return next((name for name in ("id", "name") if f"{{{name}}}" in self.path), None)

    def match(self, path: str) -> dict[str, str] | None:
        """Return the path's parameters, or None when it is another path."""
        name = self.parameter
        if name is None:
            return {} if path == self.path else None
        before, _, after = self.path.partition(f"{{{name}}}")
        value = path.removeprefix(before).removesuffix(after)
        is_ours = path == before + value + after and value
        return {name: value} if is_ours and (name == "name" or "/" not in value) else None


class Router:
    """Finds the route of a call."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._exact = {(r.method, r.path): r for r in routes if r.parameter is None}
        self._routes = routes

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        """Return route and parameters; raise NotFound or MethodNotAllowed.

        A slash at the end says nothing.
        """
        method = "GET" if method == "HEAD" else method
        path = path.removesuffix("/") or "/"
        if (exact := self._exact.get((method, path))) is not None:
            return exact, {}
        matches = [(r, found) for r in self._routes if (found := r.match(path)) is not None]
        for route, found in matches:
            if route.method == method:
                return route, found
        if matches:
            allowed = ",".join(sorted({route.method for route, _ in matches}))
            raise MethodNotAllowed(f"this route answers {allowed}")
        raise NotFound(f"no such route{self._hint(path)}", code="route_not_found")

    def _hint(self, path: str) -> str:
        """Say which path was meant where only the version is missing, or is too much."""
        for meant in (f"/v1{path}", path.removeprefix("/v1")):
            for route in self._routes:
                if route.match(meant) is not None:
                    return f": here it is {route.path}"
        return ""
