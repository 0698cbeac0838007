"""Replies of /v1/messages: in one piece, and as a stream of named events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from api_gateway.answers import Answer
from api_gateway.anthropic.objects import (
    PING,
    Blocks,
    Shown,
    ending,
    error_object,
    event,
    message,
    usage_object,
)
from api_gateway.asgi import NOT_KEPT, Call
from api_gateway.job import Job
from api_gateway.meter import Meter, usage_of
from api_gateway.metrics import GatewayMetrics
from api_gateway.output import COMPLETED, Output
from api_gateway.replies import OnePiece
from api_gateway.sessions import Choice
from api_gateway.sse import KEEP_ALIVE, Stream
from api_gateway.translate import Order
from api_gateway.watch import Vigil
from common.errors import ServiceError
from protos.json_fields import dumps


class Telling:
    """Makes a message out of the one choice of a job."""

    def __init__(self, call: Call, order: Order, choice: Choice) -> None:
        self.output = Output(Blocks())
        self._order = order
        self._request_id = call.request_id
        self._choice = choice
        self._answer = Answer(order, call.request_id, choice)

    def take(self) -> bytes:
        """Take what has come; return the events."""
        return self.output.take(self._answer.take())

    def end(self) -> tuple[bytes, Shown]:
        """Close the blocks; return the last events of them, and why the message ended."""
        told = self.output.end(COMPLETED)
        max_tokens, finish = self._order.requests[0].limits.max_tokens, self._choice.finish
        assert finish is not None
        return told, ending(finish, self._answer.has_calls, max_tokens)

    def message(self, usage: dict[str, Any]) -> Shown:
        blocks = self.output.blocks
        return message(self._request_id, self._order.model, blocks, usage_object(usage))


class WholeMessage(OnePiece):
    """Waits for the end and answers with one JSON object."""

    async def finish(self, job: Job, meter: Meter) -> None:
        """Send the reply."""
        telling = Telling(self._call, self._order, job.choices[0])
        telling.take()
        _, end = telling.end()
        told = {**telling.message(usage_of(job)), **end, "timings": meter.timings()}
        body = dumps(told)  # arguments stand in it as they were written
        await self._call.reply(200, body, b"application/json", [NOT_KEPT])


class MessageStream(Stream):
    """Sends the events of one message, which begins with its first block: by then its prompt has
    been counted."""

    def __init__(
        self, call: Call, order: Order, job: Job, vigil: Vigil, metrics: GatewayMetrics
    ) -> None:
        super().__init__(call, vigil, metrics)
        self._job = job
        self._telling = Telling(call, order, job.choices[0])
        self._has_begun = False

    async def keep_alive(self) -> None:
        await self.send(PING if self._has_begun else KEEP_ALIVE)

    async def advance(self, news: Sequence[Choice]) -> None:
        """Send what arrived."""
        if told := b"".join(self._telling.take() for _ in news):
            await self.send(self._begin() + told)

    def _begin(self) -> bytes:
        if self._has_begun:
            return b""
        self._has_begun = True
        begun = self._telling.message(usage_of(self._job, is_begin=True))
        return event("message_start", message={**begun, "content": []})

    async def finish(self, job: Job, meter: Meter) -> None:
        """Send the end of the blocks, and how the message ended."""
        begun = self._begin()
        told, end = self._telling.end()
        usage = usage_object(usage_of(job))
        told += event("message_delta", delta=end, usage=usage, timings=meter.timings())
        await self.send(begun + told + event("message_stop"), more_body=False)

    async def fail(self, error: ServiceError) -> None:
        """End with an error; raise it when there is still time for a real status."""
        if not self.is_started:
            raise error
        told = error_object(error, self._call.request_id)
        await self.send(event(told.pop("type"), **told), more_body=False)
