"""GET /v1/cache: what the engines' prefix caches hold. POST /v1/cache/reset empties them."""

from __future__ import annotations

from api_gateway.asgi import Call
from api_gateway.text_calls import TextCalls


class Cache:
    """Asks every engine."""

    def __init__(self, calls: TextCalls) -> None:
        self._calls = calls

    async def statistics(self, call: Call) -> None:
        await self._reply(call, "cache_statistics")

    async def reset(self, call: Call) -> None:
        """Forget every block that no request holds; for operators."""
        call.report = {}
        await self._reply(call, "cache_reset")

    async def _reply(self, call: Call, kind: str) -> None:
        answers = await self._calls.ask(kind, {"tenant": call.tenant})
        engines = [{"engine": engine, **told} for engine, told in sorted(answers.items())]
        await call.reply_json(200, {"object": "cache", "engines": engines})
