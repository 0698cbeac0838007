"""The chat page: three files, read once, served with headers that forbid everything foreign."""

from __future__ import annotations

from pathlib import Path

from api_gateway.asgi import Call
from common.errors import NotFound

FOLDER = Path(__file__).parent / "ui"
KINDS = {
    "index.html": b"text/html; charset=utf-8",
    "app.js": b"text/javascript; charset=utf-8",
    "style.css": b"text/css; charset=utf-8",
}
HEADERS = [
    (
        b"content-security-policy",
        b"default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
        b"frame-ancestors 'none'; object-src 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),
]


class UiFiles:
    """Serves exactly the files it read at start; a path can name nothing else."""

    def __init__(self) -> None:
        self._files = {name: (FOLDER / name).read_bytes() for name in KINDS}

    async def page(self, call: Call) -> None:
        await self._show(call, "index.html")

    async def file(self, call: Call) -> None:
        await self._show(call, call.params["id"])

    async def _show(self, call: Call, name: str) -> None:
        if name not in self._files:
            raise NotFound("no such file", code="route_not_found")
        await call.reply(200, self._files[name], KINDS[name], HEADERS)
