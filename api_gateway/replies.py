"""Replies in one piece, and the pieces that streams share with them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from api_gateway.answers import Answer
from api_gateway.asgi import Call
from api_gateway.bulks import Bulks
from api_gateway.job import Job
from api_gateway.logprobs import TextOffsets, chat_logprobs, completion_logprobs
from api_gateway.meter import Meter, num_output_tokens, usage_of
from api_gateway.sessions import Choice
from api_gateway.told import Told, told
from api_gateway.translate import Order
from common.errors import ServiceError
from protos.columns import unpack
from protos.common_pb2 import LENGTH, Finish
from protos.tokenizer_pb2 import TextLogprobs


def finish_word(finish: Finish, has_calls: bool) -> str:
    """Return OpenAI's word for how a choice ended; a call cut by a stop string is none."""
    if finish.reason == LENGTH:
        return "length"
    return "tool_calls" if has_calls else "stop"


def stop_reason(finish: Finish) -> str | int | None:
    """Return the stop string or stop id that ended the choice, None for EOS and length."""
    if finish.HasField("stop_string"):
        return finish.stop_string
    return finish.stop_token_id if finish.HasField("stop_token_id") else None


def answer_rows(choice: Choice, rows: Sequence[TextLogprobs]) -> list[TextLogprobs]:
    """Return the rows of the answer's own tokens: neither overshot ones nor reasoning."""
    end = num_output_tokens(choice)
    return [row for row in rows if choice.num_reasoning <= row.index < end]


def take_answer_rows(order: Order, choice: Choice) -> list[TextLogprobs]:
    """Return the rows that came since the last call.

    Where thoughts are apart and nothing is said yet they wait: a tag may be under way.
    """
    has_begun = choice.text_bytes or choice.num_reasoning or choice.finish is not None
    if order.requests[0].text.split_reasoning and not has_begun:
        return []
    return answer_rows(choice, choice.take_logprobs())


class OnePiece:
    """A reply that shows nothing before its end."""

    def __init__(self, call: Call, order: Order) -> None:
        self._call = call
        self._order = order

    async def advance(self, news: Sequence[Choice]) -> None:
        """Nothing to show before the end."""

    async def keep_alive(self) -> None:
        """A reply in one piece has no room for comments."""

    async def fail(self, error: ServiceError) -> None:
        raise error

    def close(self) -> None:
        """Nothing was open."""


class WholeReply(OnePiece):
    """Waits for every choice and answers with one JSON object."""

    def __init__(
        self, call: Call, order: Order, created: int, fingerprint: Callable[[], str]
    ) -> None:
        """`fingerprint` is asked when all is there."""
        super().__init__(call, order)
        self._created = created
        self._fingerprint = fingerprint
        self._bulks: list[Bulks] = []
        self._told: list[Told] = []

    async def finish(self, job: Job, meter: Meter) -> None:
        """Send the reply."""
        self._bulks = [Bulks().note(choice) for choice in job.choices]
        if self._order.tells_prompts:
            self._told = await asyncio.to_thread(self._tell, job)
        else:
            self._told = self._tell(job)
        is_chat = self._order.is_chat
        make = self._chat_choice if is_chat else self._text_choice
        body: dict[str, Any] = {
            "id": reply_id(self._call.request_id, is_chat),
            "object": "chat.completion" if is_chat else "text_completion",
            "created": self._created,
            "model": self._order.model,
            "system_fingerprint": self._fingerprint(),
            "choices": [make(choice) for choice in job.choices],
            "usage": usage_of(job),
            "timings": meter.timings(),
        }
        if is_chat and self._order.return_token_ids:
            body["prompt_token_ids"] = self._told[0].ids
        if is_chat and self._order.num_prompt_logprobs is not None:
            body["prompt_logprobs"] = self._told[0].logprobs
        await self._call.reply_json(200, body)

    def _tell(self, job: Job) -> list[Told]:
        return [told(self._order, job, prompt, self._bulks) for prompt in range(len(job.groups))]

    def _chat_choice(self, choice: Choice) -> dict[str, Any]:
        answer = Answer(self._order, self._call.request_id, choice)
        message = answer.message()
        logprobs = None
        if self._order.num_logprobs is not None:
            logprobs = chat_logprobs(answer_rows(choice, choice.logprobs))
        shown = {"index": choice.index, "message": message, "logprobs": logprobs}
        return self._with_ending(shown, choice, answer.has_calls)

    def _text_choice(self, choice: Choice) -> dict[str, Any]:
        order, logprobs, of_prompt = self._order, None, self._told[choice.prompt]
        echo = order.echoes[choice.prompt] if order.echoes else ""
        if order.num_logprobs is not None:
            offsets = TextOffsets()
            offsets.begin_at(len(echo))
            logprobs = completion_logprobs(answer_rows(choice, choice.logprobs), offsets)
            if of_prompt.echo is not None:
                logprobs = {name: of_prompt.echo[name] + logprobs[name] for name in logprobs}
        shown = {"index": choice.index, "text": echo + choice.take_text(), "logprobs": logprobs}
        if order.return_token_ids:
            shown["prompt_token_ids"] = of_prompt.ids
        if order.num_prompt_logprobs is not None:
            shown["prompt_logprobs"] = of_prompt.logprobs
        return self._with_ending(shown, choice)

    def _with_ending(
        self, shown: dict[str, Any], choice: Choice, has_calls: bool = False
    ) -> dict[str, Any]:
        assert choice.finish is not None
        shown["finish_reason"] = finish_word(choice.finish, has_calls)
        shown["stop_reason"] = stop_reason(choice.finish)
        if self._order.return_token_ids:
            shown["token_ids"] = unpack(choice.token_ids)[: num_output_tokens(choice)].tolist()
        if self._order.show_trace:
            shown["sampler_trace"] = self._bulks[choice.index].take_traces(
                num_output_tokens(choice)
            )
        return shown


def reply_id(request_id: str, is_chat: bool) -> str:
    return f"{'chatcmpl' if is_chat else 'cmpl'}-{request_id}"
