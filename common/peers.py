"""Keeps one stream open to every process behind a list of names, and gives up one that hangs.

Knows no message but the first, with which every stream opens: what is said then is its owner's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc

from common.names import Names
from common.rpc import channel

log = logging.getLogger(__name__)
EOF: Final[Any] = grpc.aio.EOF  # type: ignore[attr-defined]  # missing from the stubs
RESOLVE_EVERY_S = 2.0  # a name may come to stand for other replicas
MIN_BACKOFF_S, MAX_BACKOFF_S = 0.05, 1.0
BEAT_S = 2.0
"""At least so often each side that is listened to says something, if it has nothing to say too."""
SILENT_AFTER_S = 10.0
"""This long without a word, the other side hangs."""
LOOKS = 4
"""In so many parts: one in which we were stopped says nothing of who spoke meanwhile."""


class Breach(Exception):
    """The other side sent what the protocol does not allow."""


class Stream:
    """One gRPC call in both directions, and the channel to who is at its other end."""

    def __init__(self, address: str, line: grpc.aio.Channel, call: Any) -> None:
        self.address = address
        self.channel = line
        self.is_open = False
        self._call = call
        self._num_heard = 0

    async def read(self) -> Any:
        """Return the next message, None at the end."""
        message = await self._call.read()
        self._num_heard += 1
        return None if message is EOF else message

    async def write(self, message: Any) -> None:
        await self._call.write(message)

    def cancel(self) -> None:
        self._call.cancel()

    async def watch(self, patience: asyncio.Timeout) -> None:
        """Let `patience` end when nothing was heard at `LOOKS` looks on end."""
        num_silent = 0
        while num_silent < LOOKS:
            num_heard = self._num_heard
            await asyncio.sleep(SILENT_AFTER_S / LOOKS)
            num_silent = num_silent + 1 if self._num_heard == num_heard else 0
        patience.reschedule(asyncio.get_running_loop().time())


class Peers:
    """All addresses: new ones are dialled; one that has no name any more ends with its stream."""

    def __init__(
        self,
        kind: str,
        addresses: str,
        dial: Callable[[grpc.aio.Channel], Any],
        converse: Callable[[Stream, Any], Awaitable[None]],
    ) -> None:
        """`converse` uses a stream until it ends; it is given what the stream opened with."""
        self._kind = kind
        self._addresses = addresses
        self._names = Names(addresses)
        self._dial = dial
        self._converse = converse
        self._open: set[str] = set()
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Follow the names until cancelled, then close every stream."""
        try:
            while True:
                try:
                    self._follow(await self._names.look_up())
                except Exception:  # the streams that are open do not need it
                    log.exception("cannot follow the names", extra={"names": self._addresses})
                await asyncio.sleep(RESOLVE_EVERY_S)
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def unreachable(self) -> list[str]:
        """Return the addresses that have no open stream."""
        return sorted(self._tasks.keys() - self._open)

    def _follow(self, found: set[str]) -> None:
        for address, task in list(self._tasks.items()):
            if task.done():  # a fault of ours: say so, and dial again
                error = None if task.cancelled() else task.exception()
                log.error("stream given up", extra={"address": address}, exc_info=error)
                del self._tasks[address]
        for address in sorted(found - self._tasks.keys()):
            self._tasks[address] = asyncio.create_task(self._keep_connected(address))
        if found:  # no name at all says more of the names' server than of the peers
            for address in self._tasks.keys() - found - self._open:
                self._tasks.pop(address).cancel()

    async def _keep_connected(self, address: str) -> None:
        """Open a stream, use it until it ends, and again; waits longer after each failure."""
        backoff_s, is_news = MIN_BACKOFF_S, True
        async with channel(address) as line:
            while True:
                stream = Stream(address, line, self._dial(line))
                reason = await self._use(stream)
                if stream.is_open or is_news:
                    extra = {"address": address, "reason": reason}
                    log.warning("%s away", self._kind, extra=extra)
                    backoff_s, is_news = MIN_BACKOFF_S, False
                await asyncio.sleep(backoff_s)
                backoff_s = min(MAX_BACKOFF_S, backoff_s * 2)

    async def _use(self, stream: Stream) -> str:
        """Return why the stream ended."""
        try:
            async with asyncio.timeout(None) as patience:
                watcher = asyncio.create_task(stream.watch(patience))
                try:
                    await self._open_and_converse(stream)
                finally:
                    watcher.cancel()
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"
        except TimeoutError:
            return f"not a word for {SILENT_AFTER_S:g} s"
        except (Breach, ValueError) as error:
            return f"protocol: {error}"
        except Exception as error:
            log.exception("stream failed", extra={"address": stream.address})
            return f"failure: {error}"
        finally:
            stream.cancel()
            self._open.discard(stream.address)
        return f"the {self._kind} closed the stream"

    async def _open_and_converse(self, stream: Stream) -> None:
        first = await stream.read()
        if first is None:
            return
        if first.WhichOneof("body") != "opened":
            raise Breach("the stream did not open with a session")
        stream.is_open = True
        self._open.add(stream.address)
        extra = {"address": stream.address, "session": first.opened.session}
        log.info("%s connected", self._kind, extra=extra)
        await self._converse(stream, first.opened)
