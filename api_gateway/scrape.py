"""GET /metrics on the public port: the same text as on the side port."""

from __future__ import annotations

import asyncio

from api_gateway.asgi import NOT_KEPT, Call
from api_gateway.metrics import GatewayMetrics
from common.metrics import exposition


class Scrape:
    """Shows the registry; the text is made in a thread, because it takes milliseconds."""

    def __init__(self, metrics: GatewayMetrics) -> None:
        self._registry = metrics.registry

    async def show(self, call: Call) -> None:
        body, kind = await asyncio.to_thread(exposition, self._registry)
        await call.reply(200, body, kind.encode(), [NOT_KEPT])
