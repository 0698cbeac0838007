"""POST /v1/messages: Anthropic's form of a chat request."""

from __future__ import annotations

from api_gateway.anthropic.schema import MessagesRequest
from api_gateway.anthropic.translate import order_messages
from api_gateway.asgi import Call
from api_gateway.door import Door
from api_gateway.pipeline import Pipeline


class Messages:
    """Serves messages, streamed and in one piece."""

    def __init__(self, pipeline: Pipeline, door: Door) -> None:
        self._pipeline = pipeline
        self._door = door

    async def create(self, call: Call) -> None:
        """Answer one request; raises ServiceError before the reply has begun."""
        call.report = {}
        with self._door.admission.enter():
            body = await self._door.read(call, MessagesRequest)
            caller = await self._door.caller(call, body.model)
            await self._pipeline.run(call, order_messages(body, caller))
