"""Looks names up beside the event loop: one that no server answers holds up others 2 s, no end.

The threads are daemons of our own: those of asyncio's pool are few, and waited for at the end.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from contextlib import suppress

from common.addresses import joined

log = logging.getLogger(__name__)
PATIENCE_S = 2.0
"""What is not known by then is known at a later look. So long a mute name holds up the others."""


class Names:
    """A comma list of `host:port`. Belongs to one event loop."""

    def __init__(self, addresses: str) -> None:
        self._addresses = [a.strip() for a in addresses.split(",") if a.strip()]
        self._asked: dict[str, asyncio.Future[set[str]]] = {}
        self._known: dict[str, set[str]] = {}  # the last answers

    async def look_up(self) -> set[str]:
        """Return every `ip:port` behind the list; a name may have many replicas.

        Of a name that has no answer within PATIENCE_S, those of the last one.
        """
        for address in self._addresses:
            if address not in self._asked:
                self._asked[address] = ask(address)
        if self._asked:
            await asyncio.wait(self._asked.values(), timeout=PATIENCE_S)
        for address in [address for address, answer in self._asked.items() if answer.done()]:
            self._known[address] = self._asked.pop(address).result()
        return set().union(*self._known.values())


def ask(address: str) -> asyncio.Future[set[str]]:
    """Look one name up in a thread."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[set[str]] = loop.create_future()

    def work() -> None:
        try:
            found = behind(address)
        except Exception:  # or nobody would ask again
            log.exception("cannot resolve", extra={"address": address})
            found = set()
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(answer.set_result, found)

    threading.Thread(target=work, name="names", daemon=True).start()
    return answer


def behind(address: str) -> set[str]:
    """Return every `ip:port` of a `host:port`; none where it has no address just now.

    Who listens on 0.0.0.0 may have IPv6 as well: only a name without IPv4 stands for what it has of
    IPv6.
    """
    host, _, port = address.rpartition(":")
    try:
        for family in (socket.AF_INET, socket.AF_INET6):
            with suppress(socket.gaierror):  # no replica yet, and so no name
                rows = socket.getaddrinfo(host.strip("[]"), int(port), family=family)
                return {joined(*row[4][:2]) for row in rows}
    except (OSError, ValueError, OverflowError) as error:
        log.warning("cannot resolve", extra={"address": address, "error": error})
    return set()
