"""Composition root of the worker: settings → metrics → server."""

from __future__ import annotations

import os
import platform
import signal
import socket
import sys
from importlib.metadata import version
from pathlib import Path

import zmq

from common import logs, threads
from common.errors import PortTaken, refuse_to_work
from common.metrics import new_registry, serve
from common.model_folder import ModelFolderError
from common.settings import load_or_exit
from protos import worker as wire
from worker.build import fingerprint_folder, load_model
from worker.errors import DeviceLost, WeightsWritten
from worker.memory import NoRoom, parse_size
from worker.metrics import WorkerMetrics
from worker.server import WorkerServer
from worker.settings import Settings

NICENESS = 5
"""The tiers come first: a token that is computed late costs less than one delivered late."""


def main() -> None:
    """Serve until SIGTERM or SIGINT; a bad setting or folder ends the process with one line."""
    settings = load_or_exit(Settings, "worker")
    logs.setup("worker", settings.log_level)
    threads.check_or_exit("worker")
    os.nice(NICENESS)
    try:
        server = build_server(settings)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: server.interrupt())
        server.run()
    except (NoRoom, PortTaken, WeightsWritten, DeviceLost, OSError, MemoryError) as error:
        sys.exit(f"worker: {error}")
    except (ModelFolderError, ValueError) as error:
        refuse_to_work(f"worker: {error}")


def build_server(settings: Settings) -> WorkerServer:
    """Join the parts; raise ModelFolderError, PortTaken or ValueError for what cannot work."""
    folder = Path(settings.model)
    given = settings.kv_cache_memory
    asked = parse_size("kv_cache_memory", given) if given else None
    host_bytes = parse_size("host_kv_memory", settings.host_kv_memory)
    registry = new_registry()
    server = WorkerServer(
        context=zmq.Context.instance(),
        engine=settings.engine,
        hello=wire.Hello(
            host=socket.gethostname(),
            device=f"{settings.device} {platform.machine()}",
            model_hash=fingerprint_folder(folder),
            build=f"millrace {version('millrace')}",
        ),
        load=lambda: load_model(
            folder,
            settings.device,
            settings.dtype,
            settings.threads,
            kv_layout=settings.kv_layout,
            max_ubatch_tokens=settings.max_ubatch_tokens,
            kernel_level=settings.kernel_level,
            quantization=settings.quantization,
            kv_cache_dtype=settings.kv_cache_dtype,
            host_kv_bytes=host_bytes,
        ),
        kv_cache_bytes=lambda loaded: loaded.kv_cache_bytes(asked),
        metrics=WorkerMetrics(registry),
    )
    serve(settings.metrics_host, settings.metrics_port, registry, server.reasons)
    return server


if __name__ == "__main__":
    main()
