"""One HTTP call over raw ASGI: its identity, its body within bounds, its reply."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import orjson

from api_gateway.errors import Headers
from common.errors import Cancelled, DeadlineExceeded, InvalidRequest, PayloadTooLarge
from protos.limits import MAX_REQUEST_ID_CHARS

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
REQUEST_ID = re.compile(rf"[A-Za-z0-9_.:-]{{1,{MAX_REQUEST_ID_CHARS}}}")
BODY_TIMEOUT_S = 60.0
NOT_KEPT = (b"cache-control", b"no-store")
"""No reply is one for later: a cache in front told for two minutes that we were ready."""


def new_request_id() -> str:
    return uuid.uuid4().hex


def too_large(max_bytes: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"the body has more than {max_bytes} bytes", code="body_too_large")


class Call:
    """One HTTP request and its reply. `report` gathers the fields of its log line."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.receive = receive
        self.send = send
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.params: dict[str, str] = {}
        self.request_id = new_request_id()
        self.tenant = ""
        self.status = 0
        self.report: dict[str, Any] | None = None
        """Fields of the log line; None for routes that leave none."""
        self.started_s = time.monotonic()

    def take_request_id(self) -> InvalidRequest | None:
        """Go by the caller's X-Request-Id, if there is one; return what is wrong with it.

        Who sends one to an API route means to cancel by it, or to find it in a log: there a bad one
        is an error. A probe's or a browser's is what some proxy has made, and only not used.
        """
        given = self.headers.get(b"x-request-id", b"").decode("latin-1")
        try:
            if given:
                self._go_by(given, "X-Request-Id")
        except InvalidRequest as error:
            return error
        return None

    async def body(self, max_bytes: int) -> bytes:
        """Return the whole body; raise PayloadTooLarge as soon as it must be too large."""
        declared = self.headers.get(b"content-length", b"0")
        if declared.isdigit() and int(declared[:20]) > max_bytes:
            raise too_large(max_bytes)
        body = bytearray()
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                while True:
                    message = await self.receive()
                    if message["type"] == "http.disconnect":
                        raise Cancelled("the client is gone")
                    body += message.get("body", b"")
                    if len(body) > max_bytes:
                        raise too_large(max_bytes)
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError as error:
            raise DeadlineExceeded(f"no whole body within {BODY_TIMEOUT_S:g} s") from error

    async def start(self, status: int, headers: Headers) -> None:
        """Send status and headers; the request id goes with every reply."""
        self.status = status
        told = self.request_id.encode()
        head = [*headers, (b"x-request-id", told), (b"request-id", told)]  # Anthropic's name
        await self.send({"type": "http.response.start", "status": status, "headers": head})

    async def reply(self, status: int, body: bytes, kind: bytes, headers: Headers) -> None:
        """Send a whole reply."""
        length = str(len(body)).encode()
        head = [(b"content-type", kind), (b"content-length", length), *headers]
        await self.start(status, head)
        await self.send({"type": "http.response.body", "body": body})

    async def reply_json(self, status: int, value: Any, headers: Headers | None = None) -> None:
        """Send `value` as a whole JSON reply."""
        head = [NOT_KEPT, *(headers or [])]
        await self.reply(status, orjson.dumps(value), b"application/json", head)

    def adopt_request_id(self, request_id: str | None) -> None:
        """Let the id in the body win over the header's; raise InvalidRequest when it is bad."""
        if request_id is not None:
            self._go_by(request_id, "request_id")

    def _go_by(self, request_id: str, name: str) -> None:
        if not REQUEST_ID.fullmatch(request_id):
            raise InvalidRequest(
                f"{name} must be 1 to {MAX_REQUEST_ID_CHARS} characters of A-Z a-z 0-9 _ . : -",
                param=name,
                code="invalid_value",
            )
        self.request_id = request_id
