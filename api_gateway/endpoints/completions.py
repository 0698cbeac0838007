"""POST /v1/completions: JSON → validated order → pipeline."""

from __future__ import annotations

from api_gateway.admission import Admission
from api_gateway.asgi import Call
from api_gateway.parsing import parse
from api_gateway.pipeline import Pipeline
from api_gateway.schema import CompletionRequest
from api_gateway.translate import order_completion


class Completions:
    """Serves plain prompts, streamed and in one piece."""

    def __init__(
        self,
        pipeline: Pipeline,
        admission: Admission,
        max_body_bytes: int,
        is_lenient: bool,
        cache_secret: bytes,
    ) -> None:
        self._pipeline = pipeline
        self._admission = admission
        self._max_body_bytes = max_body_bytes
        self._is_lenient = is_lenient
        self._cache_secret = cache_secret

    async def create(self, call: Call) -> None:
        """Answer one request; raises ServiceError before the reply has begun."""
        call.report = {}
        with self._admission.enter():
            content = await call.body(self._max_body_bytes)
            body = parse(content, CompletionRequest, self._is_lenient)
            call.adopt_request_id(body.request_id)
            order = order_completion(body, call.request_id, call.tenant, self._cache_secret)
            await self._pipeline.run(call, order)
