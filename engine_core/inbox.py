"""A ZeroMQ ROUTER on an asyncio loop: every message becomes a call, in the loop's thread."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec
import zmq

from common.channel import Router

log = logging.getLogger(__name__)

In = TypeVar("In")


class Inbox(Generic[In]):
    """Calls `take(peer, message)` for all that `router` receives; owns the router."""

    def __init__(self, router: Router[In], take: Callable[[bytes, In], None]) -> None:
        self._router = router
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._descriptor = router.socket.getsockopt(zmq.FD)
        self._is_open = True
        self._loop.add_reader(self._descriptor, self._drain)
        self._loop.call_soon(self._drain)  # the descriptor tells of changes, not of what is there

    def send(self, peer: bytes, message: msgspec.Struct) -> None:
        """Send to `peer`; raise Gone when it is not connected."""
        self._router.send(peer, message)
        self._loop.call_soon(self._drain)  # sending may have swallowed the descriptor's event

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._descriptor)
            self._router.close()

    def _drain(self) -> None:
        while self._is_open:
            try:
                received = self._router.receive(0)
            except (msgspec.DecodeError, ValueError):
                log.warning("dropped what is no message of ours", exc_info=True)
                continue
            if received is None:
                return
            self._take(*received)
