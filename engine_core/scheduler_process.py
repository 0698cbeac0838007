"""`python -m engine_core.scheduler_process < JSON`: one replica's scheduler, started by the front.

Imports no gRPC: a thread of it would delay every step by the scheduler's own work. Dies with the
front, and ends when its workers are lost: their state is worth nothing to anyone else.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import secrets
import signal
import sys
import time
from typing import Any

import msgspec
import zmq

from common import logs
from common.addresses import joined
from common.channel import Router
from engine_core.front_link import ZmqFrontLink
from engine_core.loop import EngineLoop, WorkerLost
from engine_core.scheduling.bounds import Bounds, TenantLimits
from engine_core.scheduling.scheduler import Scheduler, scheduler_of
from engine_core.worker_link import Awake, ZmqWorkerLink
from protos.worker import FromWorker, ModelFacts, ReplicaLost, ReplicaReady, SchedulerListening

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1


class SchedulerConfig(msgspec.Struct, frozen=True):
    """What the front tells a scheduler process, as JSON on its standard input."""

    replica: int
    parent_pid: int
    front_address: str
    worker_host: str
    world_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    """0 = the model's."""
    max_waiting: int
    tenants: dict[str, TenantLimits]
    prefix_cache: bool
    join_timeout_s: float
    step_timeout_s: float
    worker_timeout_s: float
    log_level: str = "info"
    num_guesses: int = 0


def main(told: bytes) -> int:
    """Serve until the front says Shutdown or SIGTERM comes (0), or the workers are lost (1)."""
    config = msgspec.json.decode(told, type=SchedulerConfig)
    die_with_parent(config.parent_pid)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the front decides what Ctrl-C means
    logs.setup("scheduler", config.log_level)
    context = zmq.Context()
    front = ZmqFrontLink(context, config.front_address)
    address = f"tcp://{joined(config.worker_host, 0)}"
    router: Router[FromWorker] = Router(context, address, FromWorker)
    key = secrets.token_hex(16)
    workers = ZmqWorkerLink(
        router,
        config.world_size,
        Awake(time.monotonic),
        key,
        join_timeout_s=config.join_timeout_s,
        step_timeout_s=config.step_timeout_s,
        worker_timeout_s=config.worker_timeout_s,
    )
    try:
        front.send(SchedulerListening(router.port, key))
        serve(config, front, workers)
        return 0
    except WorkerLost as error:
        log.warning("replica lost", extra={"replica": config.replica, "reason": str(error)})
        front.send(ReplicaLost(str(error), error.under_way))
        return 1
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the front ends whom it hears is lost
        workers.close()
        front.close()
        context.term()


def serve(config: SchedulerConfig, front: ZmqFrontLink, workers: ZmqWorkerLink) -> None:
    """Let the workers join, then run the loop."""
    told, num_blocks, ready = workers.join()
    facts = msgspec.structs.replace(told[0], host_blocks=min(one.host_blocks for one in told))
    scheduler = new_scheduler(config, facts, num_blocks)
    loop = EngineLoop(scheduler, workers, front, time.monotonic, workers.age)
    workers.attend(front.socket, loop.attend)
    freeze_heap()
    front.send(loop.state(time.monotonic()))
    front.send(ReplicaReady(facts, num_blocks, scheduler.max_model_len))
    extra = {"replica": config.replica, "num_blocks": num_blocks}
    log.info("replica ready", extra=extra | {"startup_s": ready.startup_s, "memory": ready.memory})
    loop.run()


def new_scheduler(config: SchedulerConfig, facts: ModelFacts, num_blocks: int) -> Scheduler:
    """Return a scheduler bounded by the setting, the model, and the KV capacity."""
    scheduler = scheduler_of(
        facts,
        num_blocks,
        Bounds(
            config.max_num_seqs, config.max_num_batched_tokens, config.max_waiting, config.tenants
        ),
        config.max_model_len,
        config.num_guesses,
        has_prefix_cache=config.prefix_cache,
    )
    if scheduler.max_model_len < config.max_model_len:
        log.warning(
            f"max_model_len is {config.max_model_len}, served are {scheduler.max_model_len} "
            f"tokens: the model has {facts.max_position_embeddings} positions, the KV cache "
            f"room for {num_blocks * facts.block_size}"
        )
    return scheduler


def freeze_heap() -> None:
    """Keep what the start has built out of every later collection."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 1000)


def die_with_parent(parent_pid: int) -> None:
    """Ask the kernel to kill us when the front dies, also when that has happened already."""
    libc: Any = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        sys.exit("the front is gone")


if __name__ == "__main__":
    sys.exit(main(sys.stdin.buffer.read()))
