"""The life of a request in the gateway, in one coroutine: submit, pass on what comes, end once.

Everything that can end a request early (client gone or too slow, deadline, cancel call, shutdown,
an error below) leaves through `Pipeline.run`, which frees its slots exactly once.
"""

from __future__ import annotations

import asyncio
import time

from api_gateway.anthropic.reply import MessageStream, WholeMessage
from api_gateway.asgi import Call, Receive
from api_gateway.chunks import Chunks
from api_gateway.clients import TextClients
from api_gateway.embedding_reply import EmbeddingReply
from api_gateway.errors import of_finish
from api_gateway.job import Job
from api_gateway.meter import Meter
from api_gateway.metrics import GatewayMetrics
from api_gateway.replies import WholeReply
from api_gateway.responses.reply import ResponseStream, WholeResponse
from api_gateway.sessions import Mailbox
from api_gateway.sse import EventStream
from api_gateway.structure import blamed
from api_gateway.told import check_told
from api_gateway.translate import Kind, Order
from api_gateway.watch import CANCELLED, DEADLINE, GONE, IDLE, SHUTDOWN, Vigil, Watch
from common.errors import Cancelled, DeadlineExceeded, ServiceError, Unavailable
from protos.common_pb2 import LENGTH, STOPPED

Reply = (
    WholeReply | EventStream | EmbeddingReply | WholeResponse | ResponseStream | WholeMessage
    | MessageStream
)  # fmt: skip
INPUT_FIELDS = {
    Kind.CHAT: "messages", Kind.TEXT: "prompt", Kind.EMBEDDING: "input", Kind.RESPONSE: "input",
    Kind.MESSAGE: "messages",
}  # fmt: skip


class Pipeline:
    """Runs orders. One instance serves every request of the process."""

    def __init__(self, clients: TextClients, watch: Watch, metrics: GatewayMetrics) -> None:
        self._clients = clients
        self._watch = watch
        self._metrics = metrics

    async def run(self, call: Call, order: Order) -> None:
        """Carry `order` from here to the last byte of its reply.

        Raises ServiceError while the reply has not begun; a stream that has tells it in a frame.
        """
        report = call.report = call.report if call.report is not None else {}
        report |= {"stream": order.is_stream, "model": order.model}
        deadline_s = call.started_s + order.timeout_s if order.timeout_s is not None else None
        job = Job(order.requests, deadline_s)
        vigil = Vigil(job, asyncio.current_task(), call.scope.get("taking"))
        meter = Meter(self._metrics, job, call.started_s)
        reply = self._reply(call, order, job, vigil)
        listener = asyncio.create_task(listen(call.receive, job.mailbox))
        self._watch.add(vigil)
        try:
            try:
                self._clients.submit(job)
                await self._drive(order, job, reply, meter)
                await reply.finish(job, meter)
            except ServiceError as error:
                report["code"] = error.code
                await reply.fail(in_own_words(error, order))  # it may wait for a full socket, too
        except asyncio.CancelledError:
            if not vigil.was_slow:
                raise
            report["code"] = "slow_client"
            note_handled()
        finally:
            listener.cancel()
            self._watch.remove(vigil)
            self._clients.release(job)
            report |= meter.end(time.monotonic())
            reply.close()

    async def _drive(self, order: Order, job: Job, reply: Reply, meter: Meter) -> None:
        """Pass news on until every choice has ended; raise what ended one badly."""
        mailbox, num_live = job.mailbox, len(job.choices)
        while num_live:
            news = await mailbox.wait()
            if mailbox.alarm is not None:
                await answer(mailbox, reply)
            meter.note(news, time.monotonic())
            if order.tells_prompts:
                check_told(order, job)
            ended = [(choice.finish, choice) for choice in news if choice.finish is not None]
            await reply.advance(news)
            for finish, choice in ended:
                if finish.reason not in (STOPPED, LENGTH):
                    raise of_finish(finish, choice.prompt if len(job.requests) > 1 else None)
            if ended:
                num_live -= len(ended)
                self._clients.go_on(job)

    def _reply(self, call: Call, order: Order, job: Job, vigil: Vigil) -> Reply:
        if order.kind is Kind.EMBEDDING:
            return EmbeddingReply(call, order)
        if order.kind is Kind.MESSAGE:
            if not order.is_stream:
                return WholeMessage(call, order)
            return MessageStream(call, order, job, vigil, self._metrics)
        created, fingerprint = int(time.time()), self._clients.fingerprint
        if order.kind is Kind.RESPONSE:
            if not order.is_stream:
                return WholeResponse(call, order, created)
            return ResponseStream(call, order, created, job, vigil, self._metrics)
        if not order.is_stream:
            return WholeReply(call, order, created, fingerprint)

        def make_chunks() -> Chunks:  # not before an engine has it
            return Chunks(order, call.request_id, created, fingerprint())

        return EventStream(call, order, make_chunks, job, vigil, self._metrics)


async def answer(mailbox: Mailbox, reply: Reply) -> None:
    """Do what an alarm asks for: a comment for a silent stream, an end for all others."""
    alarm, mailbox.alarm = mailbox.alarm, None
    if alarm == IDLE:
        await reply.keep_alive()
    elif alarm == GONE:
        raise Cancelled("the client is gone", code="client_gone")
    elif alarm == DEADLINE:
        raise DeadlineExceeded("the request's deadline has passed")
    elif alarm == SHUTDOWN:
        raise Unavailable("the gateway is shutting down", code="draining", retry_after_s=1)
    else:
        assert alarm == CANCELLED, alarm
        raise Cancelled("the request was cancelled")


async def listen(receive: Receive, mailbox: Mailbox) -> None:
    """Ring when the client goes away."""
    while (await receive())["type"] != "http.disconnect":
        pass
    mailbox.ring(GONE)


def in_own_words(error: ServiceError, order: Order) -> ServiceError:
    """Return the error with the fields that the client wrote."""
    given = INPUT_FIELDS[order.kind]
    own = {"max_tokens": order.length_field, "prompt": given, "messages": given}
    own |= {f"prompt[{place}]": f"{given}[{place}]" for place in range(len(order.requests))}
    if error.param not in own:
        grammar = order.requests[0].text.grammar.text
        return blamed(error, order.grammar_field, order.tools, grammar)
    message = error.message.replace("max_tokens", order.length_field)
    message = message.replace(f"{error.param}: ", f"{own[error.param]}: ")
    return type(error)(message, param=own[error.param], code=error.code)


def note_handled() -> None:
    """Tell asyncio that the cancellation of this task was ours and ends here."""
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()
