"""The engine as a process: it starts, serves, ends cleanly, and takes its schedulers with it."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from http.client import HTTPConnection
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from common.errors import CANNOT_WORK
from common.settings import SettingsError, load
from engine_core.metrics import PhaseTimes
from engine_core.replica import Replica
from engine_core.settings import Settings
from protos.worker import Finished
from tests.engine_core.stack import calling
from tests.support.fake_worker import FakeWorker

ARGUMENTS = (
    "--port=0", "--metrics-port=0", "--registry-port=0", "--max-num-seqs=4",
)  # fmt: skip


class Engine:
    """A running `python -m engine_core` and the ports it has told."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.ports: dict[str, int] = {}

    async def line(self, message: str) -> dict[str, object]:
        """Read the log up to the line that says `message`."""
        assert self.process.stderr is not None
        async with asyncio.timeout(30):
            while True:
                line = json.loads(await self.process.stderr.readline())
                if line["message"] == message:
                    return dict(line)

    def get(self, path: str) -> tuple[int, str]:
        connection = HTTPConnection("127.0.0.1", self.ports["metrics"], timeout=10)
        connection.request("GET", path)
        reply = connection.getresponse()
        body = reply.read().decode()
        connection.close()
        return reply.status, body


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "engine_core", *ARGUMENTS, stderr=subprocess.PIPE
    )
    engine = Engine(process)
    ports = await engine.line("listening")
    engine.ports = {name: int(str(ports[name])) for name in ("port", "registry", "metrics")}
    yield engine
    if process.returncode is None:
        process.kill()
    await process.communicate()


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


async def until(condition: Callable[[], bool]) -> None:
    """Poll: /proc tells nobody when it changes."""
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise TimeoutError


def test_a_step_timeout_that_schedulers_cannot_be_told_is_refused() -> None:
    with pytest.raises(SettingsError, match="<= 1000000000.0 - at `\\$.step_timeout_s`"):
        load(Settings, "engine", ["--step-timeout-s=inf"], {})


async def test_life(engine: Engine) -> None:
    assert engine.get("/live")[0] == 200
    assert engine.get("/ready") == (
        503, '{"status":"not ready","reasons":["no worker has registered"]}'
    )  # fmt: skip
    worker = FakeWorker(engine.ports["registry"])
    async with calling(f"127.0.0.1:{engine.ports['port']}") as caller:
        await caller.ready()
        assert engine.get("/ready")[0] == 200
        for slot in (1, 2):
            await caller.add(slot, list(range(18)), max_tokens=6)
            assert (await caller.ended(slot)).num_cached_tokens == (0, 16)[slot - 1]
        looked_up = 'vllm:prefix_cache_queries_total{engine="1"} 36.0'
        unused = 'millrace_engine_kv_blocks{engine="1",state="used"} 0.0'
        await until(lambda: {looked_up, unused} <= set(engine.get("/metrics")[1].splitlines()))
        text = engine.get("/metrics")[1]
        for line in (
            'millrace_request_queue_time_seconds_count{engine="1"} 2.0',
            'vllm:request_decode_time_seconds_count{engine="1"} 2.0',
            'vllm:num_requests_running{engine="1"} 0.0',
            'vllm:num_preemptions_total{engine="1"} 0.0',
            'vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="64"} 1.0',
            'millrace_engine_kv_blocks{engine="1",state="free"} 63.0',
            'millrace_engine_kv_blocks{engine="1",state="cached"} 1.0',
            'millrace_kv_cache_usage_perc{engine="1"} 0.0',
            'vllm:prefix_cache_hits_total{engine="1"} 16.0',
            "millrace_engine_replicas 1.0",
        ):
            assert line in text
        (scheduler,) = children(engine.process.pid)
        engine.process.terminate()
        assert await asyncio.wait_for(engine.process.wait(), 10) == 0
        await until(lambda: not is_alive(scheduler))
    worker.die()


def test_a_phase_of_milliseconds_is_not_shown_as_a_third_of_a_second() -> None:
    """A quantile is a place in a bucket: the first one began at 0.3 s."""
    registry = CollectorRegistry()
    row = Finished(1, 1, 3, 0, 2, 0.0015, 0.015, 0.15, num_preemptions=0)
    PhaseTimes(registry).observe(Replica(7, (), lambda message: None), row)
    for phase, below, above in (
        ("queue", "0.001", "0.002"), ("prefill", "0.01", "0.02"), ("decode", "0.1", "0.2"),
    ):  # fmt: skip
        name = f"millrace_request_{phase}_time_seconds_bucket"
        counts = [
            registry.get_sample_value(name, {"engine": "7", "le": bound})
            for bound in (below, above, "0.3")
        ]
        assert counts == [0, 1, 1], phase


async def test_a_lost_replica_leaves_no_series(engine: Engine) -> None:
    worker = FakeWorker(engine.ports["registry"])
    async with calling(f"127.0.0.1:{engine.ports['port']}") as caller:
        await caller.ready()
        await caller.add(1, [1, 2, 3], max_tokens=2)
        await caller.ended(1)
        assert 'engine="1"' in engine.get("/metrics")[1]
        worker.die()
        await until(lambda: "millrace_engine_replicas 0.0" in engine.get("/metrics")[1])
        assert 'engine="1"' not in engine.get("/metrics")[1]


async def test_schedulers_die_with_the_front(engine: Engine) -> None:
    worker = FakeWorker(engine.ports["registry"])
    await until(lambda: len(children(engine.process.pid)) == 1)
    (scheduler,) = children(engine.process.pid)
    engine.process.send_signal(signal.SIGKILL)
    await engine.process.wait()
    await until(lambda: not is_alive(scheduler))
    worker.die()


def test_a_scheduler_process_imports_no_grpc() -> None:
    code = "import sys, engine_core.scheduler_process; sys.exit('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_budget_below_the_seats_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "engine_core", "--max-num-seqs=64", "--max-num-batched-tokens=8"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == CANNOT_WORK
    assert "max_num_batched_tokens (8) must be at least max_num_seqs (64)" in done.stderr


@pytest.mark.parametrize("name", ["port", "registry_port", "metrics_port"])
async def test_a_port_that_is_taken_is_named(name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "engine_core", *ARGUMENTS, f"--{name}={taken}",
            stderr=subprocess.PIPE,
        )  # fmt: skip
        said = (await process.communicate())[1].decode()
    assert process.returncode == 1 and "Traceback" not in said
    last = said.splitlines()[-1]  # before it, gRPC may have its own say
    assert last.startswith("engine: ") and f"127.0.0.1:{taken} cannot be " in last
