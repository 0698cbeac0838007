"""uvicorn's server; an idle one wakes up once a second instead of ten times."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import uvicorn

LOOK_S = 1.0
"""How often the Date header is renewed, and an early signal noticed."""


class Server(uvicorn.Server):
    """Serves until `leave`."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._leaving = asyncio.Event()

    async def main_loop(self) -> None:
        """Return when the server is to end."""
        while not await self.on_tick(0):  # 0: every time is one to renew the header
            with suppress(TimeoutError):
                await asyncio.wait_for(self._leaving.wait(), LOOK_S)

    def leave(self) -> None:
        """Close the door and let live streams end."""
        self.should_exit = True
        self._leaving.set()
