"""A whole engine on free ports, and a caller that remembers everything it was told."""

from __future__ import annotations

import asyncio
import json
import os
import time
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import zmq

from common import rpc
from engine_core.front import Front
from engine_core.registry import Listener, Registry
from engine_core.replica import Fleet, Replica
from engine_core.scheduler_process import SchedulerConfig
from protos.common_pb2 import EngineState, Finish, Limits, PromptProgress, Query, QueryAnswer
from protos.engine_pb2 import Bulk, EngineReply, EngineRequest, GenerateRequest, StopAt
from protos.engine_pb2_grpc import EngineStub, add_EngineServicer_to_server
from protos.worker import Finished

PATIENCE_S = 20.0


@dataclass
class Stack:
    front: Front
    fleet: Fleet
    registry: Registry
    address: str
    observed: list[tuple[int, Finished]]


@asynccontextmanager
async def running_stack(max_waiting: int = 8, **overrides: Any) -> AsyncIterator[Stack]:
    """Start front, registry and gRPC server; end them and all schedulers afterwards."""
    values: dict[str, Any] = {
        "replica": 0, "parent_pid": os.getpid(), "front_address": "", "worker_host": "127.0.0.1",
        "world_size": 1, "max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 0,
        "max_waiting": max_waiting, "tenants": {},
        "prefix_cache": True, "join_timeout_s": 10.0,
        "step_timeout_s": 10.0, "worker_timeout_s": 10.0, "log_level": "warning",
    }  # fmt: skip
    fleet = Fleet(5.0, time.monotonic)
    observed: list[tuple[int, Finished]] = []

    def observe(replica: Replica, row: Finished) -> None:
        observed.append((replica.number, row))

    front = Front("test", fleet, max_waiting, observe)
    context = zmq.Context()
    listener = Listener(
        front.replica_ready, front.replica_output, front.replica_lost, front.replica_answer
    )
    config = SchedulerConfig(**{**values, **overrides})
    registry = Registry(context, "tcp://127.0.0.1:0", config, fleet, listener)
    server = rpc.new_server()
    add_EngineServicer_to_server(front, server)  # type: ignore[no-untyped-call]
    port = await rpc.start_server(server, "127.0.0.1:0")
    ticker = asyncio.create_task(front.tick())
    try:
        yield Stack(front, fleet, registry, f"127.0.0.1:{port}", observed)
    finally:
        ticker.cancel()
        await server.stop(0)
        await registry.close()
        context.term()


class Refusal(Exception):
    """A question was refused."""


@dataclass
class Caller:
    """One stream. `tokens` are checked to come without gap or repetition, nothing after an end."""

    number: int
    stream: Any
    tokens: dict[int, list[int]] = field(default_factory=dict)
    ends: dict[int, Finish] = field(default_factory=dict)
    states: list[EngineState] = field(default_factory=list)
    bulks: list[Bulk] = field(default_factory=list)
    progress: list[PromptProgress] = field(default_factory=list)
    answers: dict[int, QueryAnswer] = field(default_factory=dict)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def add(self, slot: int, prompt: list[int], **limits: Any) -> None:
        resumed = [array("I", ids).tobytes() for ids in limits.pop("resumed", [])]
        attempt = limits.pop("attempt", 0)
        body = array("I", prompt).tobytes()
        await self.send(
            adds=[
                GenerateRequest(
                    slot=slot,
                    request_id=f"r{slot}",
                    prompt_token_ids=body,
                    resumed_token_ids=resumed,
                    limits=Limits(**limits),
                    attempt=attempt,
                )
            ]
        )

    async def send(self, session: int | None = None, **fields: Any) -> None:
        number = self.number if session is None else session
        await self.stream.write(EngineRequest(session=number, **fields))

    async def abort(self, slot: int) -> None:
        await self.send(aborts=[slot])

    async def stop_at(self, slot: int, count: int) -> None:
        await self.send(stops=[StopAt(slot=slot, num_output_tokens=count)])

    async def ask(self, kind: str, **body: Any) -> dict[str, list[dict[str, Any]]]:
        """Return what the replicas answer; raise what they refuse."""
        query_id = len(self.answers) + 1
        query = Query(query_id=query_id, kind=kind, body_json=json.dumps(body).encode())
        await self.send(queries=[query])
        await self.until(lambda: query_id in self.answers)
        answer = self.answers[query_id]
        if answer.HasField("error"):
            raise Refusal(f"{answer.error.kind}: {answer.error.message}")
        told: dict[str, list[dict[str, Any]]] = json.loads(answer.body_json)
        return told

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_S), self.changed:
            await self.changed.wait_for(condition)

    def reasons(self) -> list[str]:
        return list(self.states[-1].reasons) if self.states else []

    async def ended(self, slot: int) -> Finish:
        await self.until(lambda: slot in self.ends)
        return self.ends[slot]

    async def ready(self) -> EngineState:
        await self.until(lambda: self.states and self.states[-1].ready)
        return self.states[-1]

    async def not_ready(self) -> EngineState:
        await self.until(lambda: self.states and not self.states[-1].ready)
        return self.states[-1]

    async def read(self) -> None:
        while (reply := await self.stream.read()) is not grpc.aio.EOF:
            async with self.changed:
                self.take(reply)
                self.changed.notify_all()

    def take(self, reply: EngineReply) -> None:
        if reply.HasField("state"):
            self.states.append(reply.state)
        if reply.HasField("bulk"):
            assert reply.bulk.slot not in self.ends
            self.bulks.append(reply.bulk)
        if reply.HasField("answer"):
            self.answers[reply.answer.query_id] = reply.answer
        self.progress += reply.batch.progress
        batch = reply.batch
        slots, offsets = array("I", batch.slots), array("I", batch.token_offsets)
        counts = array("I", batch.counts) or array("I", [1]) * len(slots)
        ids = list(array("I", batch.token_ids))
        assert len(ids) == sum(counts)
        for slot, count, offset in zip(slots, counts, offsets, strict=True):
            got = self.tokens.setdefault(slot, [])
            assert slot not in self.ends
            assert offset == len(got)
            got += ids[:count]
            del ids[:count]
        for finish in batch.finishes:
            assert finish.slot not in self.ends
            self.ends[finish.slot] = finish


@asynccontextmanager
async def calling(address: str) -> AsyncIterator[Caller]:
    """Open a stream to the engine at `address`."""
    async with rpc.channel(address) as channel:
        # Its port may have been another server's: a channel left open to that one shares its word.
        stream = EngineStub(channel).Session(wait_for_ready=True)  # type: ignore[no-untyped-call]
        async with asyncio.timeout(PATIENCE_S):
            opened = await stream.read()
        caller = Caller(opened.opened.session, stream)
        reader = asyncio.create_task(caller.read())
        yield caller
        stream.cancel()
        await asyncio.gather(reader, return_exceptions=True)
        if not reader.cancelled() and (error := reader.exception()):
            if not isinstance(error, grpc.aio.AioRpcError):
                raise error
