"""Replies of /v1/responses: in one piece, and as a stream of named events."""

from __future__ import annotations

import time
from collections.abc import Sequence

from api_gateway.answers import Answer
from api_gateway.asgi import Call
from api_gateway.job import Job
from api_gateway.logprobs import TextOffsets, num_newlines, placed
from api_gateway.meter import Meter, usage_of
from api_gateway.metrics import GatewayMetrics
from api_gateway.output import COMPLETED, INCOMPLETE, Output, Placed
from api_gateway.replies import OnePiece, take_answer_rows
from api_gateway.responses.objects import Head, Shown, failure, usage_object
from api_gateway.responses.output import IN_PROGRESS, Events, Items
from api_gateway.sessions import Choice
from api_gateway.sse import Stream
from api_gateway.translate import Order
from api_gateway.watch import Vigil
from common.errors import ServiceError
from protos.common_pb2 import LENGTH
from protos.tokenizer_pb2 import TextLogprobs


class Telling:
    """Makes a response out of the one choice of a job."""

    def __init__(self, call: Call, order: Order, created: int, choice: Choice) -> None:
        self.head = Head(call.request_id, created, order.model, order.asked or {})
        self.events = Events()
        self.output = Output(Items(self.head, self.events, order.namespaces))
        self._order = order
        self._choice = choice
        self._answer = Answer(order, call.request_id, choice)
        self._rows: list[TextLogprobs] = []  # of tokens before the first text
        self._offsets: TextOffsets | None = None

    def take(self) -> bytes:
        """Take what has come; return the events."""
        logprobs = self._logprobs() if self._order.num_logprobs is not None else []
        return self.output.take(self._answer.take(), logprobs)

    def _logprobs(self) -> list[Placed]:
        """Return those that came, with the places of their tokens: they wait for the first text,
        before which blank lines may have been left out. Calls that are forced have no text beside.
        """
        rows, choice = take_answer_rows(self._order, self._choice), self._choice
        if self._order.tools is not None and self._order.tools.is_forced:
            return []
        if self._offsets is None:
            self._rows += rows
            if not choice.texts and choice.finish is None:
                return []
            rows, self._offsets = self._rows, TextOffsets()
            if choice.texts and not choice.texts[0].startswith("\n"):
                self._offsets.begin_at(-num_newlines(rows))
        return placed(rows, self._offsets)

    def end(self, job: Job, meter: Meter) -> tuple[bytes, Shown]:
        """Close the output; return the last events of items, and the whole response."""
        finish = self._choice.finish
        was_cut = finish is not None and finish.reason == LENGTH
        status = INCOMPLETE if was_cut else COMPLETED
        told = self.output.end(status)
        usage, timings = usage_object(usage_of(job)), meter.timings()
        more: Shown = {"usage": usage, "timings": timings}
        if was_cut:
            more["incomplete_details"] = {"reason": "max_output_tokens"}
        else:
            more["completed_at"] = int(time.time())
        return told, self.head.response(status, self.output.blocks, **more)


class WholeResponse(OnePiece):
    """Waits for the end and answers with one JSON object."""

    def __init__(self, call: Call, order: Order, created: int) -> None:
        super().__init__(call, order)
        self._created = created

    async def finish(self, job: Job, meter: Meter) -> None:
        """Send the reply."""
        telling = Telling(self._call, self._order, self._created, job.choices[0])
        telling.take()
        _, response = telling.end(job, meter)
        await self._call.reply_json(200, response)


class ResponseStream(Stream):
    """Sends the events of one response."""

    def __init__(
        self, call: Call, order: Order, created: int, job: Job, vigil: Vigil,
        metrics: GatewayMetrics,
    ) -> None:  # fmt: skip
        super().__init__(call, vigil, metrics)
        self._job = job
        self._telling = Telling(call, order, created, job.choices[0])
        begun, event = self._telling.head.response(IN_PROGRESS, []), self._telling.events.event
        self._opening = event("created", response=begun) + event("in_progress", response=begun)

    def opening(self) -> bytes:
        return self._opening

    async def advance(self, news: Sequence[Choice]) -> None:
        """Send what arrived."""
        if told := b"".join(self._telling.take() for _ in news):
            await self.send(told)

    async def finish(self, job: Job, meter: Meter) -> None:
        """Send the end of the items, and the whole response once more."""
        told, response = self._telling.end(job, meter)
        kind = response["status"]
        await self.send(told + self._telling.events.event(kind, response=response), more_body=False)

    async def fail(self, error: ServiceError) -> None:
        """End with a failed response; raise `error` when there is still time for a real status."""
        if not self.is_started:
            raise error
        telling = self._telling
        more = {"error": failure(error), "usage": usage_object(usage_of(self._job))}
        told = telling.output.cut()
        response = telling.head.response("failed", telling.output.blocks, **more)
        await self.send(told + telling.events.event("failed", response=response), more_body=False)
