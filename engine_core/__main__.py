"""Composition root of the front: settings → fleet, service, registry, side port → serve."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time

import zmq

from common import logs, metrics, rpc, threads
from common.addresses import joined
from common.errors import PortTaken, refuse_to_work
from common.settings import SettingsError, load_or_exit
from engine_core.front import Front
from engine_core.metrics import PhaseTimes, register
from engine_core.registry import Listener, Registry
from engine_core.replica import Fleet, Replica
from engine_core.scheduler_process import SchedulerConfig, freeze_heap
from engine_core.scheduling.bounds import TenantLimits
from engine_core.settings import Settings
from engine_core.tenant_file import read_tenants
from protos.engine_pb2_grpc import add_EngineServicer_to_server
from protos.worker import ReplicaLost

DRAIN_S = 3.0
"""What running requests get at shutdown; what is left then goes on elsewhere."""
JOIN_TIMEOUT_S = 900.0
"""From lease to ready: a large model is read and warmed up in it."""
WORKER_TIMEOUT_S = 10.0
"""A worker or a scheduler that is silent for longer loses its replica; both speak often."""


async def serve(settings: Settings, tenants: dict[str, TenantLimits]) -> None:
    """Serve until SIGTERM or SIGINT, then drain and end the schedulers."""
    log = logs.setup("engine", settings.log_level)
    series = metrics.new_registry()
    phases = PhaseTimes(series)
    fleet = Fleet(settings.step_budget_s, time.monotonic)
    name = f"{socket.gethostname()}:{settings.port}"
    front = Front(name, fleet, settings.max_waiting, phases.observe)
    register(series, fleet, lambda: front.num_held)
    context = zmq.Context()

    def replica_lost(replica: Replica, lost: ReplicaLost) -> None:
        phases.forget(replica)
        front.replica_lost(replica, lost)

    listener = Listener(
        front.replica_ready, front.replica_output, replica_lost, front.replica_answer
    )
    # The first port to be claimed: a taken one ends this before there is a server to be stopped.
    side = metrics.serve(settings.metrics_host, settings.metrics_port, series, front.reasons)
    address = f"tcp://{joined(settings.host, settings.registry_port)}"
    registry = Registry(context, address, scheduler_config(settings, tenants), fleet, listener)
    server = rpc.new_server()
    add_EngineServicer_to_server(front, server)  # type: ignore[no-untyped-call]
    port = await rpc.start_server(server, joined(settings.host, settings.port))
    ticker = asyncio.create_task(front.tick())
    stopping = stop_signals()
    freeze_heap()
    log.info("listening", extra={"port": port, "registry": registry.port, "metrics": side})
    log.info("waiting for workers", extra={"a_replica_takes": settings.tensor_parallel_size})
    await stopping.wait()
    await front.drain(DRAIN_S)
    ticker.cancel()
    await server.stop(0)
    await registry.close()
    context.term()


def scheduler_config(settings: Settings, tenants: dict[str, TenantLimits]) -> SchedulerConfig:
    """Return what all scheduler processes have in common."""
    return SchedulerConfig(
        replica=0,
        parent_pid=os.getpid(),
        front_address="",
        worker_host=settings.host,
        world_size=settings.tensor_parallel_size,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_model_len=settings.max_model_len,
        max_waiting=settings.max_waiting,
        tenants=tenants,
        prefix_cache=settings.prefix_cache,
        num_guesses=settings.num_guesses,
        join_timeout_s=JOIN_TIMEOUT_S,
        step_timeout_s=settings.step_timeout_s,
        worker_timeout_s=WORKER_TIMEOUT_S,
        log_level=settings.log_level,
    )


def stop_signals() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set."""
    event = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, event.set)
    return event


def main() -> None:
    settings = load_or_exit(Settings, "engine")
    threads.check_or_exit("engine")
    try:
        tenants = read_tenants(settings.tenant_limits)
    except SettingsError as error:
        refuse_to_work(f"settings: engine: {error}")
    try:
        asyncio.run(serve(settings, tenants))
    except PortTaken as error:
        sys.exit(f"engine: {error}")


if __name__ == "__main__":
    main()
