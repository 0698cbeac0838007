"""POST of every kind of request to a model: JSON → checked order → pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from api_gateway.asgi import Call
from api_gateway.door import Door
from api_gateway.forms import Form
from api_gateway.pipeline import Pipeline
from api_gateway.text_calls import TextCalls
from api_gateway.told import check_echo
from protos.tokenizer_pb2 import ConvertRequest, TextRequest


class Generate:
    """Serves all of them, streamed and in one piece."""

    def __init__(self, pipeline: Pipeline, door: Door, calls: TextCalls) -> None:
        self._pipeline = pipeline
        self._door = door
        self._calls = calls

    async def create(self, form: Form[Any], call: Call) -> None:
        """Answer one request; raises ServiceError before the reply has begun."""
        call.report = {}
        with self._door.admission.enter(call.tenant):
            order = await self._door.order(call, form)
            if order.has_echo:
                order = replace(order, echoes=tuple(await self._texts(order.requests)))
            await self._pipeline.run(call, order)

    async def _texts(self, requests: Sequence[TextRequest]) -> list[str]:
        texts: list[str] = []
        for request in requests:
            texts.append(await self._text(request))
            check_echo(requests, texts)  # no more is asked for than may be told
        return texts

    async def _text(self, request: TextRequest) -> str:
        """Return a prompt as text, one of ids decoded with its special tokens."""
        if request.WhichOneof("input") == "prompt":
            return request.prompt
        asked = ConvertRequest(
            model=request.model, token_ids=request.prompt_token_ids, keep_special_tokens=True
        )
        return (await self._calls.convert_prompt(asked)).text
