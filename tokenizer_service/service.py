"""The gRPC door of the text tier: gateway streams in, text out. Knows no text.

Per stream one writer sends everything that is pending; a slow gateway gets steps joined into one
message, and nothing ever waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from typing import Any

import grpc

from common.peers import BEAT_S
from protos.common_pb2 import EngineState, Query, SessionOpened
from protos.tokenizer_pb2 import (
    AskReply,
    CancelReply,
    CancelRequest,
    ConvertReply,
    ConvertRequest,
    GatewayMessage,
    TextBatch,
    TextBulk,
    TextMessage,
)
from protos.tokenizer_pb2_grpc import TokenizerServicer
from tokenizer_service.pipeline import TextPipeline
from tokenizer_service.states import StateFeed
from tokenizer_service.step_text import merged

log = logging.getLogger(__name__)
MAX_PENDING_BATCHES = 64


class Outbox:
    """What one gateway has yet to be sent."""

    def __init__(self) -> None:
        self._bulks: list[TextBulk] = []
        self._batches: list[TextBatch] = []
        self._states: dict[str, EngineState] = {}
        self._has_pending = asyncio.Event()

    def put(self, batch: TextBatch) -> None:
        """Queue the text of a step; many waiting steps become one."""
        if len(self._batches) >= MAX_PENDING_BATCHES:
            self._batches = [merged(self._batches)]
        self._batches.append(batch)
        self._has_pending.set()

    def put_bulk(self, bulk: TextBulk) -> None:
        """Queue a bulk; it goes before all batches that wait, so never after its slot's Finish."""
        self._bulks.append(bulk)
        self._has_pending.set()

    def put_state(self, state: EngineState) -> None:
        """Queue a state; only the last of each engine is sent."""
        self._states[state.engine] = state
        self._has_pending.set()

    async def beat(self) -> None:
        """Say something now and then, whoever below is silent: a gateway gives up who is not."""
        while True:
            await asyncio.sleep(BEAT_S)
            self._has_pending.set()

    async def take(self) -> list[TextMessage]:
        """Wait for something to send and return all of it."""
        await self._has_pending.wait()
        self._has_pending.clear()
        if not (self._bulks or self._batches or self._states):
            return [TextMessage(batch=TextBatch())]  # a beat
        messages = [TextMessage(bulk=bulk) for bulk in self._bulks]
        if self._batches:
            messages.append(TextMessage(batch=merged(self._batches)))
        messages += [TextMessage(state=state) for state in self._states.values()]
        self._bulks, self._batches, self._states = [], [], {}
        return messages


class TokenizerService(TokenizerServicer):
    """Serves any number of gateways from one pipeline."""

    def __init__(
        self,
        pipeline: TextPipeline,
        states: StateFeed,
        unreachable: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        """`unreachable` names the engines that should be there and have no open stream."""
        self._pipeline = pipeline
        self._states = states
        self._unreachable = unreachable

    async def Session(self, request_iterator: AsyncIterator[GatewayMessage], context: Any) -> None:
        """Hold one gateway's stream; when it closes, all its requests end."""
        outbox = Outbox()
        session = self._pipeline.open_session(outbox.put, outbox.put_bulk)
        log.info("gateway connected", extra={"peer": context.peer(), "session": session})
        tasks: list[asyncio.Task[None]] = []
        try:
            opened = SessionOpened(session=session, models=self._pipeline.models())
            await context.write(TextMessage(opened=opened))
            tasks = [asyncio.create_task(do) for do in (write_all(outbox, context), outbox.beat())]
            self._states.join(outbox.put_state)
            async for message in request_iterator:
                if message.session == session:
                    self._take(session, message)
        finally:
            self._states.leave(outbox.put_state)
            self._pipeline.close_session(session)
            for task in tasks:
                task.cancel()
            log.info("gateway gone", extra={"session": session})

    def _take(self, session: int, message: GatewayMessage) -> None:
        for request in message.adds:
            try:
                self._pipeline.submit(session, request)
            except ValueError as error:  # a gateway that breaks the slot rule harms only itself
                log.error("request dropped", extra={"session": session, "reason": str(error)})
        for slot in message.aborts:
            self._pipeline.abort(session, slot)
        for slot in message.pauses:
            self._pipeline.pause(session, slot)
        for slot in message.resumes:
            self._pipeline.resume(session, slot)

    async def Cancel(self, request: CancelRequest, context: Any) -> CancelReply:
        """End every live request of that tenant with exactly this id."""
        return CancelReply(num_cancelled=self._pipeline.cancel(request.request_id, request.tenant))

    async def Convert(self, request: ConvertRequest, context: Any) -> ConvertReply:
        """Encode, decode or render; what is wrong comes as a row of the reply."""
        return await self._pipeline.convert(request)

    async def Ask(self, request: Query, context: Any) -> AskReply:
        """Put a question to every engine; return the answers, or what became of them."""
        return await self._pipeline.ask(request, self._unreachable())


async def write_all(outbox: Outbox, context: Any) -> None:
    """Send what is pending until the stream ends."""
    with suppress(grpc.aio.BaseError, asyncio.InvalidStateError):  # the reader sees the end too
        while True:
            for message in await outbox.take():
                await context.write(message)
