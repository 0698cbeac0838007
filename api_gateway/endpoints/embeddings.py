"""POST /v1/embeddings: JSON → validated order → pipeline."""

from __future__ import annotations

from api_gateway.asgi import Call
from api_gateway.door import Door
from api_gateway.pipeline import Pipeline
from api_gateway.schema import EmbeddingRequest
from api_gateway.translate import order_embedding
from api_gateway.validation import check_embedding


class Embeddings:
    """Serves vectors of texts or ids."""

    def __init__(self, pipeline: Pipeline, door: Door) -> None:
        self._pipeline = pipeline
        self._door = door

    async def create(self, call: Call) -> None:
        """Answer one request; raises ServiceError."""
        call.report = {}
        with self._door.admission.enter():
            body = await self._door.read(call, EmbeddingRequest)
            inputs = check_embedding(body)
            caller = await self._door.caller(call, body.model)
            await self._pipeline.run(call, order_embedding(body, inputs, caller))
