"""POST /v1/completions: JSON → validated order → pipeline."""

from __future__ import annotations

from api_gateway.asgi import Call
from api_gateway.door import Door
from api_gateway.pipeline import Pipeline
from api_gateway.schema import CompletionRequest
from api_gateway.text_calls import TextCalls
from api_gateway.translate import order_completion
from api_gateway.validation import check_completion
from protos.columns import pack
from protos.tokenizer_pb2 import ConvertRequest


class Completions:
    """Serves plain prompts, streamed and in one piece."""

    def __init__(self, pipeline: Pipeline, door: Door, calls: TextCalls) -> None:
        self._pipeline = pipeline
        self._door = door
        self._calls = calls

    async def create(self, call: Call) -> None:
        """Answer one request; raises ServiceError before the reply has begun."""
        call.report = {}
        with self._door.admission.enter():
            body = await self._door.read(call, CompletionRequest)
            prompts = check_completion(body)
            caller = await self._door.caller(call, body.model)
            echoes = await self._texts(caller.info.id, prompts) if body.echo else ()
            await self._pipeline.run(call, order_completion(body, prompts, caller, echoes))

    async def _texts(self, model: str, prompts: list[str | list[int]]) -> tuple[str, ...]:
        """Return the prompts as text, those of ids decoded with their special tokens."""
        texts = []
        for prompt in prompts:
            if isinstance(prompt, str):
                texts.append(prompt)
                continue
            asked = ConvertRequest(model=model, token_ids=pack(prompt), keep_special_tokens=True)
            texts.append((await self._calls.convert_prompt(asked)).text)
        return tuple(texts)
