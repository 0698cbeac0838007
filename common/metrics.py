"""Prometheus plumbing: the side port of a tier, and vLLM's names as aliases of ours.

Every tier serves /metrics, /live and /ready on a port of its own, from a daemon thread.
"""

from __future__ import annotations

import logging
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from common.errors import PortTaken

log = logging.getLogger(__name__)
PEER_TIMEOUT_S = 10.0
"""A peer that is silent for longer is gone, and would keep its thread for ever."""
Readiness = Callable[[], list[str]]  # why this process is not ready; empty = it is


def new_registry() -> CollectorRegistry:
    """Return a registry with the process's CPU, memory and descriptors."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    return registry


class Aliases(Collector):
    """Shows each metric of `names` a second time under the name it maps to."""

    def __init__(self, registry: CollectorRegistry, names: dict[str, str]) -> None:
        self._registry = registry
        self._names = names

    def describe(self) -> Iterable[Metric]:
        return []  # registered without being collected: its source lives in the same registry

    def collect(self) -> Iterator[Metric]:
        sources = [c for c in list(self._registry._collector_to_names) if c is not self]
        for metric in (m for source in sources for m in source.collect()):
            if alias := self._names.get(metric.name):
                yield renamed(metric, alias)


def renamed(metric: Metric, name: str) -> Metric:
    """Return a copy of `metric` and its samples under `name`."""
    copy = Metric(name, metric.documentation, metric.type)
    copy.samples = [Sample(name + s.name.removeprefix(metric.name), *s[1:]) for s in metric.samples]
    return copy


def exposition(registry: CollectorRegistry) -> tuple[bytes, str]:
    """Return body and content type of a /metrics reply."""
    return generate_latest(registry), CONTENT_TYPE_LATEST


def _tell(error: BaseException | None) -> None:
    """Log why a request failed; that who asked has gone is no news."""
    if isinstance(error, RuntimeError):  # the system has no thread for it just now
        log.warning("the side port does not answer", extra={"reason": error})
    elif not isinstance(error, OSError):
        log.error("a request of the side port failed", exc_info=error)


def serve(host: str, port: int, registry: CollectorRegistry, reasons: Readiness) -> int:
    """Serve /metrics, /live and /ready in a daemon thread; return the port (0 picks one).

    Raises PortTaken.
    """

    class Door(BaseHTTPRequestHandler):
        timeout = PEER_TIMEOUT_S

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/metrics":
                body, kind = exposition(registry)
                self.answer(200, body, kind)
            elif path == "/live":
                self.answer(200, b'{"status":"live"}')
            elif path == "/ready":
                why = reasons()
                body = msgspec.json.encode(
                    {"status": "not ready" if why else "ready", "reasons": why}
                )
                self.answer(503 if why else 200, body)
            else:
                self.answer(404, b'{"error":"not found"}')

        def answer(self, status: int, body: bytes, kind: str = "application/json") -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass  # a scrape is not news

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

        def handle_error(self, *peer: Any) -> None:
            _tell(sys.exception())

    try:
        server = Server((host, port), Door)
    except OSError as error:
        raise PortTaken(f"metrics port {host}:{port} cannot be used: {error.strerror}") from error
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(None,), name="metrics", daemon=True).start()
    return int(server.server_address[1])
