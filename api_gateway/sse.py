"""An event stream: sends what arrives as chunks, and its end, good or bad."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from api_gateway.answers import Answer
from api_gateway.asgi import Call
from api_gateway.bulks import Bulks
from api_gateway.chunks import Chunks, frame
from api_gateway.echo import EchoedPrompts
from api_gateway.errors import error_frame
from api_gateway.job import Job
from api_gateway.logprobs import TextOffsets, chat_logprobs, completion_logprobs
from api_gateway.meter import Meter, Usage, ms, num_output_tokens, usage_of
from api_gateway.metrics import GatewayMetrics
from api_gateway.replies import finish_word, stop_reason, take_answer_rows
from api_gateway.sessions import Choice
from api_gateway.told import prompt_ids
from api_gateway.translate import Order
from api_gateway.watch import Vigil
from common.errors import ServiceError
from protos.columns import unpack
from protos.common_pb2 import LENGTH, STOPPED

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # or a proxy would hold the stream back
]
DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"


class Stream:
    """Sends one request's frames. The response starts with its first frame, not before."""

    def __init__(self, call: Call, vigil: Vigil, metrics: GatewayMetrics) -> None:
        self._call = call
        self._vigil = vigil
        self._metrics = metrics
        self._num_bytes = 0
        self.is_started = False
        metrics.streams.inc()

    def opening(self) -> bytes:
        """Return what comes before the first frame, if anything does."""
        return b""

    async def keep_alive(self) -> None:
        """Send a comment; it starts the response when nothing came for so long."""
        await self.send(KEEP_ALIVE)

    async def send(self, body: bytes, more_body: bool = True) -> None:
        """Write; the vigil sees when a send began and that it has not come back."""
        vigil = self._vigil
        vigil.sent_s = vigil.sending_since_s = time.monotonic()
        if not self.is_started:
            self.is_started = True
            await self._call.start(200, HEADERS)
            body = self.opening() + body
        await self._call.send({"type": "http.response.body", "body": body, "more_body": more_body})
        vigil.sending_since_s = None
        if vigil.paused is not None:
            vigil.resume()
        self._num_bytes += len(body)

    def close(self) -> None:
        """Count what was sent; the stream is over."""
        self._metrics.streams.dec()
        self._metrics.sse_bytes.inc(self._num_bytes)


class EventStream(Stream):
    """Sends the chunks of OpenAI's older routes."""

    def __init__(
        self, call: Call, order: Order, make_chunks: Callable[[], Chunks], job: Job, vigil: Vigil,
        metrics: GatewayMetrics,
    ) -> None:  # fmt: skip
        """`make_chunks` is called when the first chunk is made."""
        super().__init__(call, vigil, metrics)
        self._order = order
        self._make_chunks = make_chunks
        self._job = job
        self._bulks = [Bulks() for _ in job.choices]
        self._answers = [Answer(order, call.request_id, c) for c in job.choices]
        self._shown_tokens = [0] * order.num_choices
        num_places = (1 if order.is_chat else order.num_choices) * order.return_token_ids
        self._untold_prompts = set(range(num_places))
        self._offsets = [TextOffsets() for _ in job.choices]
        self._echoes = EchoedPrompts(order.echoes, job, self._bulks) if order.tells_echo else None

    @cached_property
    def _chunks(self) -> Chunks:
        return self._make_chunks()

    def opening(self) -> bytes:
        return self._opening

    @cached_property
    def _opening(self) -> bytes:
        """For each choice, who speaks, or the prompt's echo.

        Made once: its chunks come before those that `advance` makes.
        """
        order, chunks, choices = self._order, self._chunks, self._job.choices
        if order.is_chat:
            return b"".join(self._chunk(chunks.role(c.index), c, is_begin=True) for c in choices)
        if not order.echoes or order.tells_echo:
            return b""
        shown = [(chunks.choice(c.index, order.echoes[c.prompt]), c) for c in choices]
        return b"".join(self._chunk(one, choice, is_begin=True) for one, choice in shown)

    async def advance(self, news: Sequence[Choice]) -> None:
        """Send what arrived: one chunk a choice, and the last one of those that ended well."""
        self.opening()
        frames: list[bytes] = []
        if self._echoes is not None:
            news = self._echoes.begun(news)
        ends = [choice.finish for choice in news]  # others may come while an echo is made
        if self._echoes is not None:
            await self._begin_echoes(self._echoes, frames)
        for choice, finish in zip(news, ends, strict=True):
            if self._chunks.is_plain:
                if choice.reasoning:
                    thoughts = choice.take_reasoning()
                    if self._order.show_reasoning:
                        frames.append(self._chunks.thought(choice.index, thoughts))
                if choice.texts:
                    frames.append(self._chunks.text(choice.index, choice.take_text()))
            else:
                self._rich(choice, frames)
            if finish is not None and finish.reason in (STOPPED, LENGTH):
                frames.append(self._last(choice))
        if frames:
            await self.send(b"".join(frames))

    async def finish(self, job: Job, meter: Meter) -> None:
        """Send usage, if asked for, and the end."""
        tail = DONE
        if self._order.include_usage:
            tail = frame(self._usage(meter.timings())) + DONE
        await self.send(tail, more_body=False)

    async def fail(self, error: ServiceError) -> None:
        """End with an error frame; raise `error` when there is still time for a real status.

        What was used up to there is told as in a stream that ended well.
        """
        if not self.is_started:
            raise error
        tail = error_frame(error, self._call.request_id)
        if self._order.include_usage:
            tail = frame(self._usage(None)) + tail
        await self.send(tail, more_body=False)

    def _usage(self, timings: dict[str, float | int] | None) -> dict[str, Any]:
        more: dict[str, Any] = {"timings": timings} if timings is not None else {}
        return self._chunks.event(usage=self._usage_now(), **more)

    async def _begin_echoes(self, echoes: EchoedPrompts, frames: list[bytes]) -> None:
        """Add the echoes of those that may be shown from now on."""
        for choice in echoes.take_new():
            shown = self._chunks.choice(choice.index, echoes.text(choice))
            shown["logprobs"] = await echoes.logprobs(choice, self._offsets[choice.index])
            frames.append(self._chunk(shown, choice))

    def _rich(self, choice: Choice, frames: list[bytes]) -> None:
        """Add chunks with all that was asked for beside text."""
        if choice.progress is not None:
            frames.append(self._progress(choice))
        has_text = choice.texts or choice.reasoning
        if not (has_text or choice.logprobs or choice.bulks or choice.finish is not None):
            return
        shown = self._chunks.choice(choice.index, None)
        if self._order.is_chat:
            shown["delta"] = self._answers[choice.index].take().delta()
        else:
            shown["text"] = choice.take_text()
        if not self._add_rest(shown, choice) and not (shown.get("delta") or shown.get("text")):
            return  # withheld
        if self._order.is_chat and not shown["delta"]:
            shown["delta"] = {"content": ""}
        frames.append(self._chunk(shown, choice))

    def _chunk(self, shown: dict[str, Any], choice: Choice, is_begin: bool = False) -> bytes:
        """Return a chunk, with the ids of a prompt that are to be told, in vLLM's places.

        A chat tells them once, beside its choices; a completion in each choice.
        """
        is_chat, more = self._order.is_chat, self._usage_so_far(is_begin)
        number = 0 if is_chat else choice.index
        if number in self._untold_prompts and (ids := prompt_ids(self._job, choice.prompt)):
            self._untold_prompts.remove(number)
            place = more if is_chat else shown
            place["prompt_token_ids"] = ids
        return frame(self._chunks.event(shown, **more))

    def _add_rest(self, shown: dict[str, Any], choice: Choice) -> bool:
        """Add logprobs, ids and traces that are new; return whether there were any."""
        order, has_more = self._order, False
        if order.num_logprobs is not None and choice.logprobs:
            shown["logprobs"] = self._logprobs(choice)
            has_more = True
        if order.return_token_ids:
            first, end = self._shown_tokens[choice.index], choice.num_tokens
            if choice.finish is not None:
                end = min(end, choice.finish.num_output_tokens)
            shown["token_ids"] = unpack(choice.token_ids[4 * first : 4 * end]).tolist()
            has_more = has_more or end > first
            self._shown_tokens[choice.index] = max(first, end)
        if order.show_trace:
            bulks = self._bulks[choice.index].note(choice)
            if traces := bulks.take_traces(num_output_tokens(choice)):
                shown["sampler_trace"] = traces
                has_more = True
        return has_more

    def _progress(self, choice: Choice) -> bytes:
        """Return llama.cpp's event of a prompt that is being worked on."""
        progress, choice.progress = choice.progress, None
        assert progress is not None
        told = {
            "index": choice.index,
            "total": progress.num_total,
            "cache": progress.num_cached,
            "processed": progress.num_computed,
            "time_ms": ms(time.monotonic() - self._call.started_s),
        }
        return frame(self._chunks.event(prompt_progress=told))

    def _logprobs(self, choice: Choice) -> dict[str, Any]:
        rows = take_answer_rows(self._order, choice)
        if self._order.is_chat:
            return chat_logprobs(rows)
        return completion_logprobs(rows, self._offsets[choice.index])

    def _last(self, choice: Choice) -> bytes:
        """Return the chunk that says how a choice ended."""
        assert choice.finish is not None
        shown = self._chunks.choice(choice.index, None)
        has_calls = self._answers[choice.index].has_calls
        shown["finish_reason"] = finish_word(choice.finish, has_calls)
        shown["stop_reason"] = stop_reason(choice.finish)
        return self._chunk(shown, choice)

    def _usage_so_far(self, is_begin: bool) -> dict[str, Any]:
        return {"usage": self._usage_now(is_begin)} if self._order.continuous_usage else {}

    def _usage_now(self, is_begin: bool = False) -> Usage:
        """Return the usage so far, without what was cached while only the engine knows it."""
        usage = usage_of(self._job, is_begin)
        if any(choice.finish is None for choice in self._job.choices):
            del usage["prompt_tokens_details"]
        return usage
