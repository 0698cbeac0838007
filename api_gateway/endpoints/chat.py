"""POST /v1/chat/completions: JSON → validated order → pipeline."""

from __future__ import annotations

from api_gateway.asgi import Call
from api_gateway.door import Door
from api_gateway.pipeline import Pipeline
from api_gateway.schema import ChatRequest
from api_gateway.translate import order_chat
from api_gateway.validation import check_chat


class ChatCompletions:
    """Serves chat requests, streamed and in one piece."""

    def __init__(self, pipeline: Pipeline, door: Door) -> None:
        self._pipeline = pipeline
        self._door = door

    async def create(self, call: Call) -> None:
        """Answer one request; raises ServiceError before the reply has begun."""
        call.report = {}
        with self._door.admission.enter():
            body = await self._door.read(call, ChatRequest)
            check_chat(body)
            caller = await self._door.caller(call, body.model)
            await self._pipeline.run(call, order_chat(body, caller))
