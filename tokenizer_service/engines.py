"""The engines' fronts as the text tier talks to them over gRPC.

Each open stream is a `GrpcEngine`, attached to the pipeline as an `EngineLink`. Knows no requests:
replay is the pipeline's.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Any

import grpc

from common import rpc
from common.peers import Breach, Peers, Stream
from protos.common_pb2 import EngineState, Query, SessionOpened
from protos.engine_pb2 import EngineReply, EngineRequest, GenerateRequest, StopAt
from protos.engine_pb2_grpc import EngineStub
from protos.limits import SLOT_LIMIT
from tokenizer_service.pipeline import TextPipeline


class GrpcEngine:
    """One open stream (an `EngineLink`): what the pipeline asks is joined into few messages."""

    def __init__(self, name: str, session: int) -> None:
        self.name = name
        self.state: EngineState | None = None
        self.last_slot = 0
        self._session = session
        self._adds: deque[GenerateRequest] = deque()
        self._pending = EngineRequest(session=session)  # all else
        self._has_pending = asyncio.Event()

    def add(self, request: GenerateRequest) -> None:
        self.last_slot = request.slot
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

    async def write_to(self, stream: Stream) -> None:
        """Send what is asked, as much of it at once as may be, until the stream ends."""
        with suppress(asyncio.InvalidStateError, grpc.RpcError):  # the reader sees the end too
            while True:
                await self._has_pending.wait()
                await stream.write(self._next_message())

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


def engine_peers(addresses: str, pipeline: TextPipeline) -> Peers:
    """Return what keeps `pipeline` connected to the fronts behind a list of names."""

    async def converse(stream: Stream, opened: SessionOpened) -> None:
        link = GrpcEngine(stream.address, opened.session)
        pipeline.attach_engine(link)
        writer = asyncio.create_task(link.write_to(stream))
        try:
            while (reply := await stream.read()) is not None:
                take(pipeline, link, reply)
                if link.last_slot > SLOT_LIMIT:
                    raise Breach("slots of this stream are used up")
        finally:
            writer.cancel()
            pipeline.detach_engine(link)

    return Peers("engine", addresses, lambda line: stub(line).Session(), converse)


def take(pipeline: TextPipeline, link: GrpcEngine, reply: EngineReply) -> None:
    kind = reply.WhichOneof("body")
    if kind == "batch":
        pipeline.on_tokens(link, reply.batch)
    elif kind == "state":
        link.state = reply.state
        pipeline.on_state(link)
    elif kind == "bulk":
        pipeline.on_bulk(link, reply.bulk)
    elif kind == "answer":
        pipeline.on_answer(link, reply.answer)


def stub(channel: Any) -> Any:
    """Return the generated stub, which carries no types."""
    return EngineStub(channel)  # type: ignore[no-untyped-call]
