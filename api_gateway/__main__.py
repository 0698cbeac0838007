"""Composition root of the gateway: settings → parts → application → uvicorn on our own socket."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import uvicorn
import uvloop

from api_gateway.admission import Admission
from api_gateway.app import App, Endpoints, Hook, routes
from api_gateway.asgi import Application
from api_gateway.auth import KeyFile, OpenDoor
from api_gateway.clients import TextClients
from api_gateway.cors import Cors
from api_gateway.door import Door
from api_gateway.endpoints.cache import Cache
from api_gateway.endpoints.convert import Convert
from api_gateway.endpoints.generate import Generate
from api_gateway.endpoints.models import Models
from api_gateway.endpoints.requests import Requests
from api_gateway.health import Health
from api_gateway.listening import allow_connections, listen
from api_gateway.metrics import GatewayMetrics
from api_gateway.openapi import OpenApi
from api_gateway.pipeline import Pipeline
from api_gateway.protocol import BoundedProtocol
from api_gateway.routing import Router
from api_gateway.scrape import Scrape
from api_gateway.server import LAST_WORD_S, Server
from api_gateway.settings import Settings
from api_gateway.text_calls import TextCalls
from api_gateway.ui_files import UiFiles
from api_gateway.watch import Watch
from common import logs, threads
from common.errors import PortTaken
from common.metrics import serve
from common.settings import SettingsError, load_or_exit

log = logging.getLogger(__name__)
NOT_READY_FIRST_S = 0.2  # /ready says no before the door closes
FINISH_WITHIN_S = 3.5


class Gateway:
    """The parts of one gateway process and the order in which they start and stop."""

    def __init__(self, settings: Settings) -> None:
        self.metrics = GatewayMetrics()
        self.admission = Admission(settings.max_concurrent_requests)
        self.clients = TextClients(settings.tokenizers)
        self.watch = Watch(
            settings.keep_alive_s, settings.slow_client_timeout_s, self.metrics.lag.observe
        )
        self.health = Health(self.clients, self.admission)
        self.keys = keys_of(settings)
        self.metrics.watch_line(self.clients)
        self.metrics.add_vllm_names()
        self._origins = settings.allowed_origins
        self._ticking: asyncio.Task[None] | None = None
        pipeline = Pipeline(self.clients, self.watch, self.metrics)
        calls = TextCalls(self.clients)
        secret = settings.cache_secret.encode(errors="surrogateescape")  # any bytes make a key
        limits = (settings.max_body_bytes, settings.lenient, secret)
        door = Door(self.clients, self.admission, *limits)
        self.endpoints = Endpoints(
            generate=Generate(pipeline, door, calls),
            convert=Convert(calls, door),
            models=Models(self.clients),
            requests=Requests(self.clients, calls, door),
            cache=Cache(calls),
            health=self.health,
            scrape=Scrape(self.metrics),
            openapi=OpenApi(),
            ui=UiFiles(),
        )

    def app(self, started: Hook | None = None) -> Application:
        """Return the ASGI application; its lifespan starts and stops the gateway."""

        async def start() -> None:
            await self.start()
            if started is not None:
                await started()

        router = Router(routes(self.endpoints))
        app = App(router, self.keys, self.metrics, start, self.stop)
        return Cors(app, self._origins) if self._origins else app

    async def start(self) -> None:
        await self.clients.start()
        self._ticking = asyncio.create_task(self.watch.run())

    async def stop(self) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
            with suppress(asyncio.CancelledError):
                await self._ticking
        await self.clients.close()

    def drain(self, leave: Callable[[], None]) -> None:
        """Say first that we go; call `leave`, refuse newcomers and end all streams, in this order.

        Who came before the door closed is served.
        """

        def shut() -> None:
            self.admission.is_draining = True

        self.admission.is_leaving = True
        loop = asyncio.get_running_loop()
        loop.call_later(NOT_READY_FIRST_S, leave)
        loop.call_later(NOT_READY_FIRST_S + LAST_WORD_S, shut)
        loop.call_later(FINISH_WITHIN_S, self.watch.end_all)


def keys_of(settings: Settings) -> KeyFile | OpenDoor:
    if settings.api_key_file:
        return KeyFile(Path(settings.api_key_file))
    return OpenDoor()


def configure(app: Application) -> uvicorn.Config:
    """Return uvicorn's configuration: the fast parts, none of the talkative ones."""
    return uvicorn.Config(
        app,
        http=BoundedProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        log_level=max(logging.WARNING, logging.getLogger().level),
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=int(FINISH_WITHIN_S) + 1,
    )


async def run(gateway: Gateway, sock: socket.socket, slow_client_timeout_s: float) -> None:
    """Serve until SIGTERM or SIGINT, then refuse newcomers and let live streams end."""

    async def when_started() -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, gateway.drain, server.leave)
        gc.collect()
        gc.freeze()
        log.info("serving", extra={"port": sock.getsockname()[1]})

    server = Server(configure(gateway.app(when_started)), slow_client_timeout_s)
    await server.serve(sockets=[sock])


def main() -> None:
    settings = load_or_exit(Settings, "gateway")
    logs.setup("gateway", settings.log_level)
    threads.check_or_exit("gateway")
    allow_connections()
    try:
        gateway = Gateway(settings)
        sock = listen(settings.host, settings.port)
        reasons = gateway.health.reasons
        serve(settings.metrics_host, settings.metrics_port, gateway.metrics.registry, reasons)
    except (SettingsError, PortTaken) as error:
        sys.exit(f"gateway: {error}")
    uvloop.run(run(gateway, sock, settings.slow_client_timeout_s))


if __name__ == "__main__":
    main()
