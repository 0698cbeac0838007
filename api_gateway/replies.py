"""Replies in one piece, and the pieces that streams share with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from api_gateway.asgi import Call
from api_gateway.job import Job
from api_gateway.logprobs import chat_logprobs, completion_logprobs
from api_gateway.meter import Meter, num_output_tokens, usage_of
from api_gateway.sessions import Choice
from api_gateway.translate import Order
from common.errors import ServiceError
from protos.common_pb2 import LENGTH, Finish

FINISH_WORDS = {LENGTH: "length"}


def finish_word(finish: Finish) -> str:
    return FINISH_WORDS.get(finish.reason, "stop")


def stop_reason(finish: Finish) -> str | int | None:
    """Return the stop string or stop id that ended the choice, None for EOS and length."""
    if finish.HasField("stop_string"):
        return finish.stop_string
    return finish.stop_token_id or None


def ids_of(column: bytes | bytearray) -> list[int]:
    return memoryview(column).cast("I").tolist()


class WholeReply:
    """Waits for every choice and answers with one JSON object."""

    is_started = False

    def __init__(self, call: Call, order: Order, created: int, fingerprint: str) -> None:
        self._call = call
        self._order = order
        self._created = created
        self._fingerprint = fingerprint

    async def advance(self, news: Sequence[Choice]) -> None:
        """Nothing to show before the end."""

    async def keep_alive(self) -> None:
        """A reply in one piece has no room for comments."""

    async def fail(self, error: ServiceError) -> None:
        raise error

    def close(self) -> None:
        """Nothing was open."""

    async def finish(self, job: Job, meter: Meter) -> None:
        """Send the reply."""
        make = self._chat_choice if self._order.is_chat else self._text_choice
        is_chat = self._order.is_chat
        await self._call.reply_json(
            200,
            {
                "id": reply_id(self._call.request_id, is_chat),
                "object": "chat.completion" if is_chat else "text_completion",
                "created": self._created,
                "model": self._order.model,
                "system_fingerprint": self._fingerprint,
                "choices": [self._with_ending(make(choice), choice) for choice in job.choices],
                "usage": usage_of(job),
                "timings": meter.timings(),
            },
        )

    def _chat_choice(self, choice: Choice) -> dict[str, Any]:
        message = {"role": "assistant", "content": choice.take_text(), "refusal": None}
        logprobs = None
        if self._order.num_logprobs is not None:
            logprobs = chat_logprobs(choice.logprobs[: num_output_tokens(choice)])
        return {"index": choice.index, "message": message, "logprobs": logprobs}

    def _text_choice(self, choice: Choice) -> dict[str, Any]:
        logprobs = None
        if self._order.num_logprobs is not None:
            logprobs = completion_logprobs(choice.logprobs[: num_output_tokens(choice)], 0)
        return {"index": choice.index, "text": choice.take_text(), "logprobs": logprobs}

    def _with_ending(self, shown: dict[str, Any], choice: Choice) -> dict[str, Any]:
        assert choice.finish is not None
        shown["finish_reason"] = finish_word(choice.finish)
        shown["stop_reason"] = stop_reason(choice.finish)
        if self._order.return_token_ids:
            shown["token_ids"] = ids_of(choice.token_ids)[: num_output_tokens(choice)]
        return shown


def reply_id(request_id: str, is_chat: bool) -> str:
    return f"{'chatcmpl' if is_chat else 'cmpl'}-{request_id}"
