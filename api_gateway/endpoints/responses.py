"""POST /v1/responses: OpenAI's newer form of a chat request. Nothing is stored."""

from __future__ import annotations

from api_gateway.asgi import Call
from api_gateway.door import Door
from api_gateway.pipeline import Pipeline
from api_gateway.responses.schema import ResponseRequest
from api_gateway.responses.translate import order_response


class Responses:
    """Serves responses, streamed and in one piece."""

    def __init__(self, pipeline: Pipeline, door: Door) -> None:
        self._pipeline = pipeline
        self._door = door

    async def create(self, call: Call) -> None:
        """Answer one request; raises ServiceError before the reply has begun."""
        call.report = {}
        with self._door.admission.enter():
            body = await self._door.read(call, ResponseRequest)
            caller = await self._door.caller(call, body.model)
            await self._pipeline.run(call, order_response(body, caller))
