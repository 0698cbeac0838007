"""The server's HTTP protocol with bounds: how large a head may be, how long it may take to come.

uvicorn alone has neither: a head that never ends would be gathered for ever. It also sends chunks
to clients of HTTP/1.0, which know none, and does not tell a request that its client has left when
others of that client stand behind it.
"""

from __future__ import annotations

import asyncio
import re
import time
from functools import partial
from typing import Any

import orjson
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from api_gateway.asgi import Message, new_request_id
from api_gateway.errors import HeadTooLarge, error_object
from api_gateway.taking import Taking
from common.errors import InvalidRequest, ServiceError
from protos.limits import MAX_CONNECTIONS, MAX_HEADER_BYTES

HEAD_TIMEOUT_S = 30.0
LAST_LOOK_S = 1.0
"""When a time is up: for what came while this process was stopped, which is not read yet."""
END, UPGRADE = b"\r\n\r\n", b"\r\nupgrade:"
MAX_PIPELINED = 16
"""Behind the request that runs. At more of them, or behind 64 KiB of a body, no further bytes are
read, nor is an end seen."""
AN_UPGRADE = re.compile(UPGRADE, re.IGNORECASE)


class HeadLimit(Exception):
    """Request line and headers together are over the limit."""


class BoundedProtocol(HttpToolsProtocol):
    """One connection."""

    _is_in_head = True
    _num_head_bytes = 0
    _held = b""
    _is_too_large = False
    _is_last = False
    _head_timer: asyncio.TimerHandle | None = None
    _running: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin; with too many connections, do not."""
        super().connection_made(transport)
        self.taking = Taking(transport, time.monotonic())
        self._start_timer()
        if len(self.connections) > MAX_CONNECTIONS:
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the request that runs; uvicorn tells the last one that came. None behind it runs."""
        self._stop_timer()
        self.pipeline.clear()
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)

    def cut_if_stuck(self, now: float, timeout_s: float) -> None:
        """Cut off a client that takes nothing of what waits for it."""
        if now - self.taking.nothing_since(now) >= timeout_s:
            self.transport.abort()

    def end_with_next_reply(self) -> None:
        """Close behind the reply that is written, or the next one; its head says so."""
        self._is_last = True
        if self.cycle is not None:
            self.cycle.keep_alive = False

    def data_received(self, data: bytes) -> None:
        """Feed the parser; give up on a head that is already too large."""
        if self._is_in_head:
            self._num_head_bytes += len(data)
            data = self._without_upgrade(data)
        super().data_received(data)
        if self._is_in_head and self._num_head_bytes > MAX_HEADER_BYTES:
            self._is_too_large = True
            self.send_400_response("")
        elif self._is_unattended():
            self._start_timer()

    def _is_unattended(self) -> bool:
        """Return whether nothing is being answered and no timer runs.

        The server stops its own at any byte: at one that is left of a body whose request has its
        answer, and at an empty line behind it, too.
        """
        is_answered = self.cycle is not None and self.cycle.response_complete
        return is_answered and self.timeout_keep_alive_task is None and self._head_timer is None

    def _without_upgrade(self, data: bytes) -> bytes:
        """Return what of a head came, with a header `Upgrade` under a name that means nothing.

        Java's HTTP client offers HTTP/2 in that way with every first request. To ignore it is the
        server's right (RFC 9110 §7.8); the parser would take what follows for another protocol.
        """
        data = self._held + data
        stop, rest, self._held = data.find(END), b"", b""
        if stop >= 0:
            rest = data[stop:]
        else:  # what may come in two is kept until the rest is there
            stop = len(data) - max(begun(data, END), begun(data, UPGRADE))
            self._held = data[stop:]
        return AN_UPGRADE.sub(b"\r\nx-grade:", data[:stop]) + rest

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["taking"] = self.taking  # type: ignore[typeddict-unknown-key]
        self._start_timer()

    def on_message_complete(self) -> None:
        """The next head begins; what of it came with this body is not counted."""
        super().on_message_complete()
        self._is_in_head, self._num_head_bytes = True, 0

    def on_headers_complete(self) -> None:
        """Begin the request, if its head is within bounds."""
        self._is_in_head = False
        self._stop_timer()
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > MAX_HEADER_BYTES:
            self._is_too_large = True
            raise HeadLimit  # the parser gives it to data_received as an error of its own
        super().on_headers_complete()
        if self._is_last:
            self.cycle.keep_alive = False
        if not self.pipeline:
            self._running = self.cycle
        elif len(self.pipeline) < MAX_PIPELINED:
            self.flow.resume_reading()  # else nobody sees that the client leaves
        if self.scope["http_version"] == "1.0":
            self.cycle.send = partial(send_without_chunks, self.cycle)  # type: ignore[method-assign]

    def on_response_complete(self) -> None:
        """The next one begins, if there is one."""
        if self.pipeline:
            self._running = self.pipeline[-1][0]
        super().on_response_complete()

    def timeout_keep_alive_handler(self) -> None:
        """Nothing was asked for long; close if nothing waits to be read either."""
        close = super().timeout_keep_alive_handler
        self.timeout_keep_alive_task = self.loop.call_later(LAST_LOOK_S, close)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request in the words of every other error, and close."""
        error: ServiceError = InvalidRequest("this is not an HTTP request", code="invalid_http")
        if self._is_too_large:
            error = HeadTooLarge(f"the head has more than {MAX_HEADER_BYTES} bytes")
        if self.transport.is_closing():
            return
        body = orjson.dumps(error_object(error, new_request_id()))
        head: list[Any] = [
            STATUS_LINE[error.http_status],
            b"content-type: application/json\r\nconnection: close\r\n",
            b"content-length: %d\r\n\r\n" % len(body),
        ]
        self.transport.write(b"".join([*head, body]))
        self.transport.close()

    def _start_timer(self) -> None:
        self._stop_timer()
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._look_last)

    def _look_last(self) -> None:
        self._head_timer = self.loop.call_later(LAST_LOOK_S, self.transport.close)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


async def send_without_chunks(cycle: RequestResponseCycle, message: Message) -> None:
    """Send to a client of HTTP/1.0, which would take the frames of chunks for text.

    A reply without a length ends with its connection (RFC 9112 §6.1, §6.3); the server counts
    against a length all the same, so it is told that of each piece.
    """
    if message["type"] == "http.response.start":
        if all(name != b"content-length" for name, _ in message["headers"]):
            cycle.chunked_encoding = False
    elif cycle.chunked_encoding is False and cycle.expected_content_length == 0:
        cycle.expected_content_length = len(message["body"])
    await RequestResponseCycle.send(cycle, message)  # type: ignore[arg-type]


def begun(data: bytes, what: bytes) -> int:
    """Return how many of the last bytes may be the beginning of `what`, in small letters."""
    last = data[-len(what) + 1 :].lower()
    return next((n for n in range(len(last), 0, -1) if last.endswith(what[:n])), 0)
