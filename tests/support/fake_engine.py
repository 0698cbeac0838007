"""A scripted engine front: over real gRPC (`FakeEngine`) or in process (`FakeLink`).

Tests read what it was asked (`adds`, `aborts`, `stops`) and say what it answers; it computes
nothing by itself unless `script` is given.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import grpc

from protos.common_pb2 import (
    EngineState,
    Finish,
    FinishReason,
    Query,
    QueryAnswer,
    SessionOpened,
)
from protos.engine_pb2 import (
    Bulk,
    EngineReply,
    EngineRequest,
    GenerateRequest,
    StopAt,
    TokenBatch,
)
from protos.engine_pb2_grpc import EngineServicer, add_EngineServicer_to_server

Script = Callable[[GenerateRequest], Sequence[int]]
"""All output tokens of a request (of each of its choices), the stop token included."""


def column(values: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def ids_of(packed: bytes) -> list[int]:
    return list(struct.unpack(f"<{len(packed) // 4}I", packed))


def ready_state(engine: str = "fake", **fields: Any) -> EngineState:
    fields = {"ready": True, "max_model_len": 256, "vocab_size": 512, "num_replicas": 1} | fields
    return EngineState(engine=engine, **fields)


def token_batch(
    entries: Sequence[tuple[int, int, Sequence[int]]], finishes: Sequence[Finish] = (), **rest: Any
) -> TokenBatch:
    """Return one step from (slot, index of the first token, tokens) entries."""
    return TokenBatch(
        slots=column([slot for slot, _, _ in entries]),
        counts=column([len(ids) for _, _, ids in entries]),
        token_offsets=column([offset for _, offset, _ in entries]),
        token_ids=column([token_id for _, _, ids in entries for token_id in ids]),
        finishes=finishes,
        **rest,
    )


def finish(slot: int, reason: FinishReason, num_output_tokens: int = 0, **rest: Any) -> Finish:
    return Finish(slot=slot, reason=reason, num_output_tokens=num_output_tokens, **rest)


class FakeLink:
    """An engine in process: what the text tier's `EngineLink` asks for, and lists of calls."""

    def __init__(self, name: str = "fake", state: EngineState | None = None) -> None:
        self.name = name
        self.state = ready_state(name) if state is None else state
        self.adds: list[GenerateRequest] = []
        self.aborts: list[int] = []
        self.stops: list[tuple[int, int]] = []
        self.pauses: list[int] = []
        self.resumes: list[int] = []
        self.queries: list[Query] = []

    def add(self, request: GenerateRequest) -> None:
        self.adds.append(request)

    def abort(self, slot: int) -> None:
        self.aborts.append(slot)

    def stop(self, slot: int, num_output_tokens: int) -> None:
        self.stops.append((slot, num_output_tokens))

    def pause(self, slot: int) -> None:
        self.pauses.append(slot)

    def resume(self, slot: int) -> None:
        self.resumes.append(slot)

    def ask(self, query: Query) -> None:
        self.queries.append(query)


class FakeEngine(EngineServicer):
    """A gRPC server of the Engine service on a free port."""

    def __init__(self, script: Script | None = None, state: EngineState | None = None) -> None:
        self._script = script
        self._state = ready_state() if state is None else state
        self._server: grpc.aio.Server | None = None
        self._outboxes: list[asyncio.Queue[EngineReply]] = []
        self.port = 0
        self.sessions = 0
        self.adds: asyncio.Queue[GenerateRequest] = asyncio.Queue()
        self.aborts: asyncio.Queue[int] = asyncio.Queue()
        self.stops: asyncio.Queue[StopAt] = asyncio.Queue()
        self.pauses: asyncio.Queue[tuple[list[int], list[int]]] = asyncio.Queue()
        self.answers: dict[str, bytes] | None = {}
        """What it answers to each kind of query; None keeps silent."""

    async def start(self, port: int = 0) -> int:
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        add_EngineServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        await self._server.start()
        return self.port

    async def stop(self) -> None:
        """Die: every stream breaks."""
        if self._server is not None:
            await self._server.stop(None)

    def send(self, batch: TokenBatch) -> None:
        """Send a step on every open session."""
        for outbox in self._outboxes:
            outbox.put_nowait(EngineReply(batch=batch))

    def send_bulk(self, bulk: Bulk) -> None:
        """Send what is too large for columns on every open session."""
        for outbox in self._outboxes:
            outbox.put_nowait(EngineReply(bulk=bulk))

    def tell(self, state: EngineState) -> None:
        """Tell a new state on every open session."""
        self._state = state
        for outbox in self._outboxes:
            outbox.put_nowait(EngineReply(state=state))

    async def Session(self, request_iterator: AsyncIterator[EngineRequest], context: Any) -> None:
        self.sessions += 1
        session, outbox = self.sessions, asyncio.Queue[EngineReply]()
        await context.write(EngineReply(opened=SessionOpened(session=session)))
        outbox.put_nowait(EngineReply(state=self._state))
        self._outboxes.append(outbox)
        writer = asyncio.create_task(self._write(outbox, context))
        try:
            async for message in request_iterator:
                assert message.session == session
                self._take(message, outbox)
        finally:
            self._outboxes.remove(outbox)
            writer.cancel()

    def _take(self, message: EngineRequest, outbox: asyncio.Queue[EngineReply]) -> None:
        for request in message.adds:
            self.adds.put_nowait(request)
            if self._script is not None:
                for batch in scripted(request, self._script(request)):
                    outbox.put_nowait(EngineReply(batch=batch))
        for slot in message.aborts:
            self.aborts.put_nowait(slot)
        for stop in message.stops:
            self.stops.put_nowait(stop)
        if message.pauses or message.resumes:
            self.pauses.put_nowait((list(message.pauses), list(message.resumes)))
        for query in message.queries:
            if self.answers is not None:
                body = self.answers.get(query.kind, query.body_json)
                answer = QueryAnswer(query_id=query.query_id, body_json=body)
                outbox.put_nowait(EngineReply(answer=answer))

    @staticmethod
    async def _write(outbox: asyncio.Queue[EngineReply], context: Any) -> None:
        while True:
            await context.write(await outbox.get())


def scripted(request: GenerateRequest, output_ids: Sequence[int]) -> list[TokenBatch]:
    """Return the steps that generate `output_ids`, after what the request has resumed."""
    start = len(request.resumed_token_ids[0]) // 4 if request.resumed_token_ids else 0
    slots = range(request.slot, request.slot + max(1, request.limits.n))
    limit = min(len(output_ids), request.limits.max_tokens)
    steps = [
        token_batch([(slot, index, [output_ids[index]]) for slot in slots])
        for index in range(start, limit)
    ]
    reason = FinishReason.LENGTH if limit == request.limits.max_tokens else FinishReason.STOPPED
    ends = [finish(slot, reason, limit) for slot in slots]
    if output_ids and output_ids[limit - 1] in ids_of(request.limits.stop_token_ids):
        ends = [
            finish(slot, FinishReason.STOPPED, limit, stop_token_id=output_ids[limit - 1])
            for slot in slots
        ]
    return [*steps, token_batch([], ends)]
