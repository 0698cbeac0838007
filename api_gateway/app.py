"""The ASGI application: find the route, ask for the key, run the endpoint, answer for its errors.

Pure ASGI: nothing stands between an endpoint and the server's `send`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from api_gateway.anthropic.objects import error_object as anthropic_error
from api_gateway.asgi import Call, Receive, Scope, Send
from api_gateway.auth import KeyFile, OpenDoor
from api_gateway.endpoints.cache import Cache
from api_gateway.endpoints.convert import Convert
from api_gateway.endpoints.generate import Generate
from api_gateway.endpoints.models import Models
from api_gateway.endpoints.requests import Requests
from api_gateway.errors import error_headers, error_object
from api_gateway.forms import CHAT, COMPLETION, EMBEDDING, MESSAGE, MESSAGE_PROMPT, RESPONSE
from api_gateway.health import Health
from api_gateway.metrics import GatewayMetrics
from api_gateway.openapi import OpenApi
from api_gateway.routing import Route, Router
from api_gateway.scrape import Scrape
from api_gateway.ui_files import UiFiles
from common.errors import Forbidden, Internal, ServiceError

log = logging.getLogger(__name__)
Hook = Callable[[], Awaitable[None]]
ANTHROPIC = "/v1/messages"
"""Paths that begin so have errors in Anthropic's form."""


@dataclass(frozen=True)
class Endpoints:
    """Everything that answers calls."""

    generate: Generate
    convert: Convert
    models: Models
    requests: Requests
    cache: Cache
    health: Health
    scrape: Scrape
    openapi: OpenApi
    ui: UiFiles


def routes(to: Endpoints) -> list[Route]:
    """Return the table of routes. Only those marked public are open to callers without a key."""
    generate, count = to.generate.create, to.convert.count
    return [
        Route("POST", "/v1/chat/completions", partial(generate, CHAT)),
        Route("POST", "/v1/completions", partial(generate, COMPLETION)),
        Route("POST", "/v1/responses", partial(generate, RESPONSE)),
        Route("POST", "/v1/messages", partial(generate, MESSAGE)),
        Route("POST", "/v1/embeddings", partial(generate, EMBEDDING)),
        Route("POST", "/v1/chat/completions/input_tokens", partial(count, CHAT)),
        Route("POST", "/v1/completions/input_tokens", partial(count, COMPLETION)),
        Route("POST", "/v1/responses/input_tokens", partial(count, RESPONSE)),
        Route("POST", "/v1/messages/count_tokens", partial(count, MESSAGE_PROMPT)),
        Route("POST", "/tokenize", to.convert.tokenize),
        Route("POST", "/detokenize", to.convert.detokenize),
        Route("POST", "/apply-template", to.convert.apply_template),
        Route("GET", "/tokenizer_info", to.convert.about),
        Route("GET", "/v1/models", to.models.list),
        Route("GET", "/v1/models/{name}", to.models.get),
        Route("POST", "/v1/requests/explain", to.requests.explain),
        Route("GET", "/v1/requests/{id}", to.requests.state),
        Route("POST", "/v1/requests/{id}/cancel", to.requests.cancel),
        Route("GET", "/v1/cache", to.cache.statistics),
        Route("POST", "/v1/cache/reset", to.cache.reset, is_admin=True),
        Route("GET", "/live", to.health.live, is_public=True),
        Route("GET", "/ready", to.health.ready, is_public=True),
        Route("GET", "/health", to.health.ready, is_public=True),
        Route("GET", "/version", to.health.version, is_public=True),
        Route("GET", "/metrics", to.scrape.show, is_public=True),
        Route("GET", "/openapi.json", to.openapi.show, is_public=True),
        Route("GET", "/", to.ui.page, is_public=True),
        Route("GET", "/ui/{id}", to.ui.file, is_public=True),
    ]


class App:
    """What uvicorn calls."""

    def __init__(
        self, router: Router, keys: KeyFile | OpenDoor, metrics: GatewayMetrics, start: Hook,
        stop: Hook,
    ) -> None:  # fmt: skip
        self._router = router
        self._keys = keys
        self._metrics = metrics
        self._start = start
        self._stop = stop

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        call = Call(scope, receive, send)
        route_name = "other"
        try:
            bad_request_id = call.take_request_id()
            route, call.params = self._router.find(call.method, call.path)
            route_name = route.path
            if not route.is_public:
                if bad_request_id is not None:
                    raise bad_request_id
                call.tenant = self._keys.tenant_of(call.headers)
            if route.is_admin and not self._keys.is_admin(call.tenant):
                raise Forbidden("this route is for keys of the tenant admin", code="not_admin")
            await route.endpoint(call)
        except ServiceError as error:
            await self._refuse(call, error)
        except Exception:
            log.exception("request failed", extra={"request_id": call.request_id})
            await self._refuse(call, Internal("the gateway failed on this request"))
        finally:
            self._metrics.note_call(route_name, call.method, call.status)
            if call.report is not None:
                self._log(call, route_name)

    async def _refuse(self, call: Call, error: ServiceError) -> None:
        """Answer with the error's own status, unless the reply has begun."""
        if call.report is not None:
            call.report["code"] = error.code or type(error).__name__
        self._metrics.rejections.labels(type(error).__name__).inc()
        if call.status:
            raise error
        is_theirs = call.path.startswith(ANTHROPIC)
        tell = anthropic_error if is_theirs else error_object
        body = tell(error, call.request_id)
        await call.reply_json(error.http_status, body, error_headers(error))

    def _log(self, call: Call, route_name: str) -> None:
        e2e_ms = round((time.monotonic() - call.started_s) * 1000, 3)
        fields = {"request_id": call.request_id, "tenant": call.tenant, "route": route_name}
        extra = {**fields, "status": call.status, **(call.report or {}), "e2e_ms": e2e_ms}
        log.info("request", extra=extra)

    async def _live(self, receive: Receive, send: Send) -> None:
        """Start and stop what lives as long as the process."""
        await receive()
        await self._start()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._stop()
        await send({"type": "lifespan.shutdown.complete"})
