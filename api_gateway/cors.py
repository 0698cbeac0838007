"""Cross-origin resource sharing: pages of the origins an operator names may call from a browser.

Knows the Fetch standard's headers (fetch.spec.whatwg.org, "CORS protocol") and no route. Calls
without `Origin`, all but browsers', go to the application as they are. What a page sends with a
plain content type comes without a preflight, and only its reply is hidden: an open door refuses it
(`auth.py`), which knows a page that may call by its `Origin` being taken off here.
"""

from __future__ import annotations

from api_gateway.asgi import Application, Message, Receive, Scope, Send
from api_gateway.errors import Headers

ANY = "*"
METHODS = b"GET, POST"
ALLOWED_FOR_S = b"600"
READABLE = b"x-request-id, request-id, retry-after, x-should-retry"
"""Headers of replies that pages may see."""


class Cors:
    """The application behind it, with the headers that let pages of `origins` read replies."""

    def __init__(self, app: Application, origins: str) -> None:
        """`origins`: a comma list such as https://chat.example, or * for all."""
        self._app = app
        self._origins = {one.strip().rstrip("/").lower() for one in origins.split(",")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = dict(scope.get("headers", ()))
        origin = asked.get(b"origin", b"")
        if not origin or not self._allows(origin.decode("latin-1").lower()):
            await self._app(scope, receive, send)
            return
        headers = [
            (b"access-control-allow-origin", ANY.encode() if ANY in self._origins else origin),
            (b"vary", b"origin"),
        ]
        if scope["method"] == "OPTIONS" and b"access-control-request-method" in asked:
            names = asked.get(b"access-control-request-headers", b"")
            await _reply_to_preflight(send, headers, names)
            return
        headers.append((b"access-control-expose-headers", READABLE))

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *headers]
            await send(message)

        mine = [pair for pair in scope["headers"] if pair[0] != b"origin"]  # like any other's
        await self._app({**scope, "headers": mine}, receive, send_with_headers)

    def _allows(self, origin: str) -> bool:
        return ANY in self._origins or origin in self._origins


async def _reply_to_preflight(send: Send, headers: Headers, names: bytes) -> None:
    """Say what a page may send; every header may come, which ones count is the routes' matter."""
    head = [
        *headers,
        (b"access-control-allow-methods", METHODS),
        (b"access-control-allow-headers", names or b"*"),
        (b"access-control-max-age", ALLOWED_FOR_S),
    ]
    await send({"type": "http.response.start", "status": 204, "headers": head})
    await send({"type": "http.response.body", "body": b""})
