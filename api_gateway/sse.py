"""Event-stream framing: what never changes of a chunk is bytes made once, only the text is encoded.

Chunks with more than text (logprobs, ids, usage so far) are built as objects; nothing else is slow.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import orjson

from api_gateway.asgi import Call
from api_gateway.errors import error_frame
from api_gateway.job import Job
from api_gateway.logprobs import chat_logprobs, completion_logprobs
from api_gateway.meter import Meter, usage_of
from api_gateway.metrics import GatewayMetrics
from api_gateway.replies import finish_word, ids_of, reply_id, stop_reason
from api_gateway.sessions import Choice
from api_gateway.translate import Order
from api_gateway.watch import Vigil
from common.errors import ServiceError
from protos.common_pb2 import LENGTH, STOPPED

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # or a proxy would hold the stream back
]
DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
_dumps = orjson.dumps


def frame(event: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % _dumps(event)


class Chunks:
    """Makes the frames of one stream."""

    def __init__(self, order: Order, request_id: str, created: int, fingerprint: str) -> None:
        self._order = order
        self._head: dict[str, Any] = {
            "id": reply_id(request_id, order.is_chat),
            "object": "chat.completion.chunk" if order.is_chat else "text_completion",
            "created": created,
            "model": order.model,
            "system_fingerprint": fingerprint,
        }
        self.is_plain = (
            order.num_logprobs is None and not order.return_token_ids and not order.continuous_usage
        )
        around = [self._around(index) for index in range(order.num_choices)]
        self._before = [before for before, _ in around]
        self._after = [after for _, after in around]

    def _around(self, index: int) -> tuple[bytes, bytes]:
        """Return the bytes before and after the text of a plain chunk."""
        before, _, after = frame(self.event(self.choice(index, "\0"))).partition(b'"\\u0000"')
        return before, after

    def text(self, index: int, text: str) -> bytes:
        """Return a chunk that is nothing but text: the hot path."""
        return self._before[index] + _dumps(text) + self._after[index]

    def choice(self, index: int, text: str | None) -> dict[str, Any]:
        """Return a choice object; None for the text leaves a chat delta empty."""
        shown: dict[str, Any] = {"index": index}
        if self._order.is_chat:
            shown["delta"] = {} if text is None else {"content": text}
        else:
            shown["text"] = text or ""
        return {**shown, "logprobs": None, "finish_reason": None}

    def event(self, *choices: dict[str, Any], **more: Any) -> dict[str, Any]:
        event = {**self._head, "choices": choices}
        if self._order.include_usage:
            event["usage"] = None
        return {**event, **more}

    def roles(self) -> bytes:
        """Return what a chat stream opens with: who speaks, once a choice."""
        if not self._order.is_chat:
            return b""
        frames = []
        for index in range(self._order.num_choices):
            opening = self.choice(index, "")
            opening["delta"] = {"role": "assistant", "content": ""}
            frames.append(frame(self.event(opening)))
        return b"".join(frames)


class EventStream:
    """Sends one request's events. The response starts with its first frame, not before."""

    def __init__(
        self, call: Call, order: Order, chunks: Chunks, job: Job, vigil: Vigil,
        metrics: GatewayMetrics,
    ) -> None:  # fmt: skip
        self._call = call
        self._order = order
        self._chunks = chunks
        self._job = job
        self._vigil = vigil
        self._metrics = metrics
        self._shown_tokens = [0] * order.num_choices
        self._shown_chars = [0] * order.num_choices
        self._num_bytes = 0
        self.is_started = False
        metrics.streams.inc()

    async def advance(self, news: Sequence[Choice]) -> None:
        """Send what arrived: one chunk a choice, and the last one of those that ended well."""
        frames = []
        for choice in news:
            if self._chunks.is_plain:
                if choice.texts:
                    frames.append(self._chunks.text(choice.index, choice.take_text()))
            elif choice.texts or choice.logprobs:
                frames.append(self._rich(choice))
            finish = choice.finish
            if finish is not None and finish.reason in (STOPPED, LENGTH):
                frames.append(self._last(choice))
        if frames:
            await self._send(b"".join(frames))

    async def keep_alive(self) -> None:
        """Send a comment; it starts the response when nothing came for so long."""
        await self._send(KEEP_ALIVE)

    async def finish(self, job: Job, meter: Meter) -> None:
        """Send usage, if asked for, and the end."""
        tail = DONE
        if self._order.include_usage:
            event = self._chunks.event(usage=usage_of(job), timings=meter.timings())
            tail = frame(event) + DONE
        await self._send(tail, more_body=False)

    async def fail(self, error: ServiceError) -> None:
        """End with an error frame; raise `error` when there is still time for a real status."""
        if not self.is_started:
            raise error
        await self._send(error_frame(error, self._call.request_id), more_body=False)

    def _rich(self, choice: Choice) -> bytes:
        """Return a chunk with all that was asked for beside text."""
        text = choice.take_text()
        shown = self._chunks.choice(choice.index, text)
        if self._order.num_logprobs is not None:
            shown["logprobs"] = self._logprobs(choice)
        if self._order.return_token_ids:
            first = self._shown_tokens[choice.index]
            shown["token_ids"] = ids_of(choice.token_ids)[first:]
            self._shown_tokens[choice.index] = choice.num_tokens
        return frame(self._chunks.event(shown, **self._usage_so_far()))

    def _logprobs(self, choice: Choice) -> dict[str, Any]:
        rows = choice.take_logprobs()
        if self._order.is_chat:
            return chat_logprobs(rows)
        shown = completion_logprobs(rows, self._shown_chars[choice.index])
        self._shown_chars[choice.index] += sum(map(len, shown["tokens"]))
        return shown

    def _last(self, choice: Choice) -> bytes:
        """Return the chunk that says how a choice ended."""
        assert choice.finish is not None
        shown = self._chunks.choice(choice.index, None)
        shown["finish_reason"] = finish_word(choice.finish)
        shown["stop_reason"] = stop_reason(choice.finish)
        first = self._shown_tokens[choice.index]
        if self._order.return_token_ids and choice.num_tokens > first:
            shown["token_ids"] = ids_of(choice.token_ids)[first : choice.finish.num_output_tokens]
        return frame(self._chunks.event(shown, **self._usage_so_far()))

    def _usage_so_far(self) -> dict[str, Any]:
        return {"usage": usage_of(self._job)} if self._order.continuous_usage else {}

    async def _send(self, body: bytes, more_body: bool = True) -> None:
        """Write; the vigil sees when a send began and that it has not come back."""
        vigil = self._vigil
        vigil.sent_s = vigil.sending_since_s = time.monotonic()
        if not self.is_started:
            self.is_started = True
            await self._call.start(200, HEADERS)
            body = self._chunks.roles() + body
        await self._call.send({"type": "http.response.body", "body": body, "more_body": more_body})
        vigil.sending_since_s = None
        self._num_bytes += len(body)

    def close(self) -> None:
        """Count what was sent; the stream is over."""
        self._metrics.streams.dec()
        self._metrics.sse_bytes.inc(self._num_bytes)
