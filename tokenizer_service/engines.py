"""Keeps one gRPC session open to every engine front behind the configured addresses.

Each open stream is a `GrpcEngine`, attached to the pipeline as an `EngineLink`; when it is lost a
new one is dialled. Knows no requests: replay is the pipeline's.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from typing import Any, Final

import grpc

from common import rpc
from protos.common_pb2 import EngineState, Query
from protos.engine_pb2 import EngineReply, EngineRequest, GenerateRequest, StopAt
from protos.engine_pb2_grpc import EngineStub
from protos.words import RESOLVE_EVERY_S
from tokenizer_service.pipeline import TextPipeline

log = logging.getLogger(__name__)
EOF: Final[Any] = grpc.aio.EOF  # type: ignore[attr-defined]  # missing from the stubs
REDIAL_AFTER_S = 0.2
SILENT_AFTER_S = 10.0
"""An engine tells its state several times a second; this long without a word, it hangs."""
LOOKS = 4
"""In so many parts that time is counted: one in which we were stopped ourselves says nothing of
the engine, whose words wait to be read."""


class GrpcEngine:
    """One open stream (an `EngineLink`): what the pipeline asks is joined into few messages."""

    def __init__(self, name: str, session: int) -> None:
        self.name = name
        self.state: EngineState | None = None
        self._session = session
        self._adds: deque[GenerateRequest] = deque()
        self._pending = EngineRequest(session=session)  # all else
        self._has_pending = asyncio.Event()

    def add(self, request: GenerateRequest) -> None:
        self._adds.append(request)
        self._has_pending.set()

    def abort(self, slot: int) -> None:
        self._pending.aborts.append(slot)
        self._has_pending.set()

    def stop(self, slot: int, num_output_tokens: int) -> None:
        self._pending.stops.append(StopAt(slot=slot, num_output_tokens=num_output_tokens))
        self._has_pending.set()

    def pause(self, slot: int) -> None:
        self._say_once(slot, self._pending.pauses, self._pending.resumes)

    def resume(self, slot: int) -> None:
        self._say_once(slot, self._pending.resumes, self._pending.pauses)

    def _say_once(self, slot: int, said: Any, opposite: Any) -> None:
        """Within one message there is no order: take the opposite back instead, if it waits."""
        if slot in opposite:
            opposite.remove(slot)
        else:
            said.append(slot)
        self._has_pending.set()

    def ask(self, query: Query) -> None:
        self._pending.queries.append(query)
        self._has_pending.set()

    async def write_to(self, call: Any) -> None:
        """Send what is asked, as much of it at once as may be, until the stream ends."""
        with suppress(asyncio.InvalidStateError, grpc.RpcError):  # the reader sees the end too
            while True:
                await self._has_pending.wait()
                await call.write(self._next_message())

    def _next_message(self) -> EngineRequest:
        """Return the next adds; with the last of them all else, which speaks of what was added."""
        adds: list[GenerateRequest] = []
        size = 0
        while self._adds and size < rpc.MAX_MERGED_BYTES:
            size += self._adds[0].ByteSize()
            adds.append(self._adds.popleft())
        if self._adds:
            return EngineRequest(session=self._session, adds=adds)
        self._has_pending.clear()
        message, self._pending = self._pending, EngineRequest(session=self._session)
        message.adds.extend(adds)
        return message


class EngineConnection:
    """One address: dials, converses, dials again."""

    def __init__(self, address: str, pipeline: TextPipeline, silent_after_s: float) -> None:
        self.address = address
        self.is_open = False
        self._pipeline = pipeline
        self._silent_after_s = silent_after_s
        self._num_heard = 0
        self._link: GrpcEngine | None = None

    async def run(self) -> None:
        """Hold a session for as long as this task lives."""
        async with rpc.channel(self.address) as channel:
            stub = EngineStub(channel)  # type: ignore[no-untyped-call]
            while True:
                call = stub.Session(wait_for_ready=True)
                try:
                    await self._converse(call)
                    log.warning("engine closed the stream", extra={"engine": self.address})
                except grpc.aio.AioRpcError as error:
                    log.warning(
                        "engine stream lost",
                        extra={"engine": self.address, "code": error.code().name},
                    )
                except TimeoutError:
                    log.warning("engine is silent", extra={"engine": self.address})
                finally:
                    call.cancel()
                    self._close()
                await asyncio.sleep(REDIAL_AFTER_S)

    async def _converse(self, call: Any) -> None:
        opened = await call.read()
        if opened is EOF or opened.WhichOneof("body") != "opened":
            return
        link = self._open(opened.opened.session)
        writer = asyncio.create_task(link.write_to(call))
        async with asyncio.timeout(None) as patience:
            watcher = asyncio.create_task(self._watch(patience))
            try:
                while (reply := await call.read()) is not EOF:
                    self._num_heard += 1
                    self._take(link, reply)
            finally:
                writer.cancel()
                watcher.cancel()

    async def _watch(self, patience: asyncio.Timeout) -> None:
        """Let `patience` end when nothing was heard at `LOOKS` looks on end."""
        num_silent = 0
        while num_silent < LOOKS:
            num_heard = self._num_heard
            await asyncio.sleep(self._silent_after_s / LOOKS)
            num_silent = num_silent + 1 if self._num_heard == num_heard else 0
        patience.reschedule(asyncio.get_running_loop().time())

    def _open(self, session: int) -> GrpcEngine:
        log.info("engine connected", extra={"engine": self.address, "session": session})
        link = self._link = GrpcEngine(self.address, session)
        self.is_open = True
        self._pipeline.attach_engine(link)
        return link

    def _take(self, link: GrpcEngine, reply: EngineReply) -> None:
        kind = reply.WhichOneof("body")
        if kind == "batch":
            self._pipeline.on_tokens(link, reply.batch)
        elif kind == "state":
            link.state = reply.state
            self._pipeline.on_state(link)
        elif kind == "bulk":
            self._pipeline.on_bulk(link, reply.bulk)
        elif kind == "answer":
            self._pipeline.on_answer(link, reply.answer)

    def _close(self) -> None:
        self.is_open = False
        if self._link is not None:
            self._pipeline.detach_engine(self._link)
            self._link = None


class EngineConnections:
    """All addresses: new ones are dialled; one that has no name any more ends with its stream."""

    def __init__(
        self, addresses: str, pipeline: TextPipeline, silent_after_s: float = SILENT_AFTER_S
    ) -> None:
        self._addresses = addresses
        self._pipeline = pipeline
        self._silent_after_s = silent_after_s
        self._tasks: dict[str, tuple[EngineConnection, asyncio.Task[None]]] = {}

    async def run(self) -> None:
        """Follow the names until cancelled, then close every stream."""
        try:
            while True:
                await self._follow(await rpc.resolve(self._addresses))
                await asyncio.sleep(RESOLVE_EVERY_S)
        finally:
            tasks = [task for _, task in self._tasks.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def unreachable(self) -> list[str]:
        """Return the addresses that have no open stream."""
        return [address for address, (held, _) in self._tasks.items() if not held.is_open]

    async def _follow(self, wanted: set[str]) -> None:
        for address in wanted - self._tasks.keys():
            connection = EngineConnection(address, self._pipeline, self._silent_after_s)
            self._tasks[address] = (connection, asyncio.create_task(connection.run()))
        for address in self._tasks.keys() - wanted:
            connection, task = self._tasks[address]
            if not connection.is_open:
                task.cancel()
                del self._tasks[address]
        for address, (_, task) in list(self._tasks.items()):
            if task.done():  # a fault of ours: say so, and dial again
                log.error("connection failed", extra={"engine": address}, exc_info=task.exception())
                del self._tasks[address]
