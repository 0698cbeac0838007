"""uvicorn's server; an idle one wakes up once a second instead of ten times.

It then looks whether clients take what they are sent: whole replies too, and those of hosts that
are gone.
"""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import suppress

import uvicorn

from api_gateway.protocol import BoundedProtocol

LOOK_S = 1.0
"""How often the Date header is renewed, an early signal noticed, and a stuck client."""
STREAMS_FIRST_S = 2.0
"""The clock of the live requests gets the first word: it knows whom it cuts off."""
LAST_WORD_S = 0.1
"""How long who came before the door closed may take to say what they want."""


class Server(uvicorn.Server):
    """Serves until `leave`."""

    def __init__(self, config: uvicorn.Config, slow_client_timeout_s: float = 30.0) -> None:
        super().__init__(config)
        self._stuck_after_s = slow_client_timeout_s + STREAMS_FIRST_S
        self._leaving = asyncio.Event()

    async def main_loop(self) -> None:
        """Return when the server is to end."""
        while not await self.on_tick(0):  # 0: every time is one to renew the header
            with suppress(TimeoutError):
                await asyncio.wait_for(self._leaving.wait(), LOOK_S)
            self.cut_stuck_clients()

    def cut_stuck_clients(self) -> None:
        """Look at every connection once."""
        now = time.monotonic()
        for connection in list(self.server_state.connections):
            if isinstance(connection, BoundedProtocol):
                connection.cut_if_stuck(now, self._stuck_after_s)

    def leave(self) -> None:
        """Close the door and let live streams end."""
        self.should_exit = True
        self._leaving.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the door, and only then the connections on which nothing was asked.

        At once, a request that was on its way would meet a connection that is closed, while
        another gateway of the same port could have had it. What is asked before that is the last
        on its connection, and is told so: the next goes to that other one.
        """
        for server in self.servers:
            server.close()
        for door in sockets or []:
            door.close()
        for connection in list(self.server_state.connections):
            if isinstance(connection, BoundedProtocol):
                connection.end_with_next_reply()
        await asyncio.sleep(LAST_WORD_S)
        await super().shutdown(sockets)
